"""What a session says by itself: an assistant's message that no model wrote, said once, in its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from operator import attrgetter
from typing import Any

import pytest

from scale import of_cases, share
from schedules import SESSION, World as RacingWorld, spread
from stored.audit import check_session
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.runs.admission import Started
from turnwise.errors import (
    IdempotencyConflictError,
    InvalidPromptError,
    QueueFullError,
    SessionEndedError,
    SessionFencedError,
    SessionNotFoundError,
    StoreError,
)
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.blocks import Text, ToolResult, ToolUse
from turnwise.memory.conversation.events import RunCompleted, RunQueued, RunStarted
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.exhaust import Life, exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.world import World

KEY = SessionKey("session")

SLOW_S = 0.3

pytestmark = pytest.mark.usefixtures("quiet")


async def answer(turn: Turn) -> AsyncIterator[str]:
    """Answer after a while."""
    await asyncio.sleep(SLOW_S)
    yield f"answer to {turn.asked[-1].text}"  # type: ignore[union-attr]


async def begun(faults: Faults | None = None, **settings: Any) -> World:
    """Return a world with a session."""
    config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9, **settings)
    world = World(faults or Faults(), engine=FunctionEngine(answer), config=config)
    await world.create()
    return world


async def say(world: World, text: str, run_id: str | None = None, **settings: Any) -> Started:
    """Have the session say a text, as a caller does who asks until there is an answer."""
    started: Started = await world.ask("admission.say", text, run_id=run_id or f"says {text}", **settings)
    return started


async def settled(world: World) -> None:
    """Wait until no run is open."""
    for run in await world.store.inner.runs(KEY):
        await world.ask("reads.wait", run.run_id)


async def history(world: World) -> list[tuple[str, str]]:
    """Return the stored conversation: who has said what."""
    latest = await world.ask("reads.latest")
    return [(block.role, block.text) for block in latest.blocks] if latest else []


@pytest.mark.virtual_time
async def test_a_free_session_says_a_text_in_one_commit() -> None:
    faults = Faults(remembers=True)
    world = await begun(faults)
    await world.core.transactor.activate()
    faults.passed.clear()
    started = await say(world, "Hello!")
    assert [point for point, _ in faults.passed] == ["store.commit before", "store.commit after"]
    run, (turn,) = await world.store.inner.run(started.run_id), await world.store.inner.turns(KEY)
    assert (run.state, run.says, run.model, run.turn_index) == ("completed", "Hello!", None, started.turn_index)
    assert (turn.status, turn.run_id, turn.prompt) == ("completed", run.run_id, ())
    assert await history(world) == [("assistant", "Hello!")]
    assert [type(event) for event in await world.store.inner.events(KEY)] == [RunStarted, RunCompleted]
    outcome = await world.core.reads.wait(started.run_id)
    assert outcome.turn and outcome.turn.text == "Hello!"
    assert await say(world, "Hello!") == started, "the second one changes nothing"
    world.kill()
    assert await say(world, "Hello!") == started, "another process knows it, too"
    assert await history(world) == [("assistant", "Hello!")]


@pytest.mark.virtual_time
async def test_the_conversation_goes_on_from_what_was_said() -> None:
    world = await begun()
    await say(world, "Hello!")
    await say(world, "Are you there?")
    await world.wait(await world.start("Yes."))
    await say(world, "Fine.")
    said = [("assistant", "Hello!"), ("assistant", "Are you there?"), ("user", "Yes."), ("assistant", "answer to Yes.")]
    assert await history(world) == [*said, ("assistant", "Fine.")]
    messages, _ = await world.ask("reads.messages", None, 10)
    assert [(message.role, message.text) for message in messages] == await history(world)
    turns = await check_session(world.store.inner, "session")
    assert [turn.new_blocks for turn in turns][::3] == [(Text(text="Hello!"),), (Text(text="Fine."),)]
    (await world.audit()).check()


@pytest.mark.virtual_time
async def test_events_alone_tell_what_was_said() -> None:
    world = await begun()
    await say(world, "Hello!")
    await world.wait(await world.start("Yes."))
    await say(world, "Fine.")
    events, _, _ = await world.ask("reads.events", 0, 100, run_id=None, timeout_s=0.0)
    latest = await world.ask("reads.latest")
    assert rebuild(events) == list(latest.blocks)
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers)) and sum(isinstance(event, RunCompleted) for event in events) == 3


@pytest.mark.virtual_time
async def test_appended_prompts_come_before_what_is_said() -> None:
    world = await begun()
    index = await world.append("Is anybody there?")
    started = await say(world, "I am.")
    assert started.turn_index == index
    assert await history(world) == [("user", "Is anybody there?"), ("assistant", "I am.")]
    await check_session(world.store.inner, "session")


@pytest.mark.virtual_time
async def test_a_busy_session_says_it_in_its_turn() -> None:
    world = await begun()
    for prompt in ("first", "second"):
        await world.start(prompt, if_busy="enqueue")
    said = await say(world, "between")
    assert (await world.store.inner.run(said.run_id)).state == "queued"
    await world.start("third", if_busy="enqueue")
    await settled(world)
    texts = [text for _, text in await history(world)]
    assert texts == ["first", "answer to first", "second", "answer to second", "between", "third", "answer to third"]
    events = [event for event in await world.store.inner.events(KEY) if event.run_id == said.run_id]
    assert [type(event) for event in events] == [RunQueued, RunStarted, RunCompleted]
    await check_session(world.store.inner, "session")


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("policy", "is_said"),
    [
        *[("enqueue", True), ("merge", True), ("inject", True), ("drop", True)],
        *[("latest", False), ("interrupt", False), ("rollback", False)],
    ],
)
async def test_what_waits_to_be_said_follows_the_policies_of_later_runs(policy: IfBusy, is_said: bool) -> None:
    world = await begun()
    await world.start("first")
    await asyncio.sleep(SLOW_S / 3)
    said = await say(world, "between")
    await world.start("second", if_busy=policy)
    await settled(world)
    run, texts = await world.store.inner.run(said.run_id), [text for _, text in await history(world)]
    assert (run.state, texts.count("between")) == (("completed", 1) if is_said else ("cancelled", 0))
    await check_session(world.store.inner, "session")


@pytest.mark.virtual_time
async def test_what_waits_to_be_said_can_be_cancelled_and_what_was_said_cannot() -> None:
    world = await begun()
    await world.start("first")
    await world.append("appended")
    waits = await say(world, "never said")
    assert await world.cancel(waits.run_id)
    (await world.ask("reads.latest"))
    await settled(world)
    said = await say(world, "said")
    assert not await world.cancel(said.run_id)
    assert [text for _, text in await history(world)] == ["first", "answer to first", "appended", "said"]
    await check_session(world.store.inner, "session")


@pytest.mark.virtual_time
async def test_a_key_says_a_text_once() -> None:
    world = await begun()
    await world.start("first")
    started = await say(world, "once", "a", key="key")
    assert await say(world, "once", "b", key="key") == started
    await settled(world)
    world.kill()
    assert await say(world, "once", "c", key="key") == started
    with pytest.raises(IdempotencyConflictError):
        await say(world, "another", "d", key="key")
    with pytest.raises(IdempotencyConflictError):
        await world.start("once", run_id="e", idempotency_key="key")
    assert [text for _, text in await history(world)] == ["first", "answer to first", "once"]


@pytest.mark.virtual_time
async def test_what_cannot_be_said_is_refused_and_nothing_is_stored() -> None:
    world = await begun(max_prompt_bytes=100, max_queued=0)
    for text in ("", " \n", "\ud800", "a" * 101):
        with pytest.raises(InvalidPromptError):
            await say(world, text, "run")
    await world.ask("admission.append", [ToolUse(call_id="open", name="look")], "key")
    with pytest.raises(InvalidPromptError, match="'open'"):
        await say(world, "Hello!")
    await world.ask("admission.append", [ToolResult(call_id="open", text="seen")], "another key")
    await world.start("first")
    with pytest.raises(QueueFullError):
        await say(world, "Hello!")
    await world.ask("admission.end_session")
    with pytest.raises(SessionEndedError):
        await say(world, "Hello!")
    assert len(await world.store.inner.runs(KEY)) == 1


@pytest.mark.virtual_time
async def test_what_waits_to_be_said_is_said_by_the_next_process() -> None:
    """Also if `on_lost` ends the runs of lost processes, as it does here."""
    world = await begun()
    await world.start("first")
    said = await say(world, "between")
    world.kill()
    await world.ask("transactor.activate")
    await settled(world)
    assert (await world.store.inner.run("first")).state == "interrupted"
    assert (await world.store.inner.run(said.run_id)).state == "completed"
    assert await history(world) == [("user", "first"), ("assistant", "between")]


@pytest.mark.virtual_time
async def test_what_was_said_is_cleared_removed_and_forgotten_as_other_answers() -> None:
    world = await begun()
    said = {text: await say(world, text) for text in ("cleared", "forgotten", "stays")}
    await world.ask("forgetting.forget_turn", said["forgotten"].turn_index, verify=False)
    assert await history(world) == [("assistant", "cleared"), ("assistant", "forgotten"), ("assistant", "stays")]
    await world.wait(await world.start("Hello?"))
    assert [text for _, text in await history(world)] == ["cleared", "stays", "Hello?", "answer to Hello?"]
    await world.ask("forgetting.clear", 1, memory=False, verify=False, updated_at=None, key="clear")
    await say(world, "last")
    assert [text for _, text in await history(world)] == ["Hello?", "answer to Hello?", "last"]


@pytest.mark.virtual_time
async def test_an_archive_has_what_was_said_and_what_waits_to_be_said() -> None:
    world = await begun()
    await say(world, "Hello!")
    await world.start("first")
    await say(world, "between")
    lines: list[str] = []
    await export_session(world.store.inner, KEY, lines.append)
    elsewhere = InMemoryStore()
    await import_session(elsewhere, lines)
    copy = World(Faults(), engine=FunctionEngine(answer), store=elsewhere)
    assert await history(copy) == [("assistant", "Hello!"), ("user", "first"), ("assistant", "between")]
    await say(copy, "Go on.")
    assert [text for _, text in await history(copy)] == ["Hello!", "first", "between", "Go on."]


# Lives: each fault at each point, and a kill at each step


Story = Callable[[World], Coroutine[Any, Any, None]]


def life_of(story: Story) -> Life:
    async def life(faults: Faults) -> None:
        world = await begun(faults)
        await story(world)
        await settled(world)
        await check_session(world.store.inner, "session")

    return life


@pytest.mark.by_turns
def test_a_text_is_said_once_whatever_fails_or_dies() -> None:
    """A commit that fails, one that is stored with its answer lost, a kill at each step, another owner."""

    async def story(world: World) -> None:
        await say(world, "greeting")
        await world.start("first")
        await say(world, "between")
        await say(world, "again", key="key")
        await world.start("second", if_busy="enqueue")
        await settled(world)
        await say(world, "again", "another call", key="key")
        await say(world, "farewell")
        texts = [text for role, text in await history(world) if role == "assistant" and not text.startswith("answer")]
        assert texts == ["greeting", "between", "again", "farewell"]
        runs = {run.run_id: run.state for run in await world.store.inner.runs(KEY)}
        assert len(runs) == 6
        assert {state for run_id, state in runs.items() if run_id.startswith("says")} == {"completed"}

    struck = exhaust(life_of(story), **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck


@pytest.mark.parametrize("verb", ["cancel", "end", "fork"])
def test_a_text_is_said_or_not_at_all_beside_other_changes(verb: str) -> None:
    async def story(world: World) -> None:
        await say(world, "greeting")
        await world.start("first")
        await say(world, "between")
        if verb == "cancel":
            await world.cancel("says between")
        elif verb == "end":
            await world.ask("admission.end_session")
        await settled(world)
        if verb == "fork":
            await world.fork("fork")
        texts = [text for _, text in await history(world)]
        run = await world.store.inner.run("says between")
        assert texts.count("between") == (run.state == "completed")

    struck = exhaust(life_of(story), **of_cases())
    assert all(struck[kind] >= 3 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck


# Races, by seed


@pytest.mark.by_turns
def test_nothing_is_said_twice_or_lost_among_runs_cancels_and_owners() -> None:
    """Callers who run, cancel and say, cores that take over, a store that fails; then an end or a deletion."""

    async def schedule(seed: int) -> None:
        world = RacingWorld(seed, kinds=("answer", "raise", "stubborn"), config=SessionConfig(cancel_grace_s=0.1))
        await world.create()
        store, dice = world.store.inner, world.random
        cores: list[SessionCore] = [world.core]
        policies: tuple[IfBusy, ...] = ("enqueue", "interrupt", "rollback", "latest", "merge", "inject")
        said: dict[str, str] = {}
        refused: set[str] = set()

        async def persist(verb: str, *args: Any, **options: Any) -> Any:
            while True:
                core = cores[-1]
                try:
                    return await attrgetter(verb)(core)(*args, **options)
                except SessionFencedError:
                    if core is cores[-1]:
                        cores.append(world.new_core())
                except SessionNotFoundError:
                    raise
                except StoreError:
                    await asyncio.sleep(0.01)

        async def speaker(name: str) -> None:
            for number in range(3):
                await world.pause()
                text = f"{name}{number}"
                try:
                    started = await persist("admission.say", text, run_id=f"run of {text}", key=text)
                    repeated = await persist("admission.say", text, run_id=f"second run of {text}", key=text)
                except (SessionEndedError, SessionNotFoundError):
                    refused.add(text)
                    continue
                assert repeated == started
                said[text] = started.run_id
                if dice.random() < 0.3:
                    with suppress(SessionNotFoundError):
                        await persist("admission.cancel", "stop", started.run_id)

        async def asker() -> None:
            for number in range(3):
                await world.pause()
                options = {"run_id": f"ask{number}", "if_busy": dice.choice(policies)}
                with suppress(SessionEndedError, SessionNotFoundError):
                    await persist("admission.start", [f"ask{number}"], **options)

        async def usurper() -> None:
            await asyncio.sleep(dice.random() * 0.5)
            cores.append(world.new_core())
            with suppress(StoreError, SessionNotFoundError):
                await cores[-1].transactor.activate()

        async def ender() -> None:
            await asyncio.sleep(dice.random() * 0.3)
            if seed % 3 == 1:
                await persist("admission.end_session")
            elif seed % 3 == 2:
                await store.delete(SessionKey(SESSION))

        world.store.fail_rate = 0.05 if seed % 2 else 0.0
        await asyncio.gather(speaker("a"), speaker("b"), asker(), usurper(), ender())
        world.store.fail_rate = 0.0
        if seed % 3 == 2:
            assert not await store.query(), "nothing makes a deleted session anew"
            return
        runs = {run.run_id: run for run in await persist("reads.runs", -1, 100)}
        for run_id in runs:
            await persist("reads.wait", run_id)
        turns = await check_session(store, SESSION)
        texts = [block.text for turn in turns for block in turn.new_blocks if isinstance(block, Text)]
        for text, run_id in said.items():
            state = (await store.run(run_id)).state
            assert state in ("completed", "cancelled") and texts.count(text) == (state == "completed"), (text, state)
        for text in refused - set(said):
            assert texts.count(text) <= 1

    assert spread(share(2000, 40), schedule)
