"""Commits whose answer is lost although they are stored: a live process acts once, as if it had got the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Literal

import pytest

from memories.session_memories import Book
from scale import of_cases
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.middleware import SystemPrompt
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import StoreError
from turnwise.memory.conversation.blocks import ToolUse, User
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.ledger import Spent
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.message_reading import read_messages
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.strategies.keep_last import KeepLast
from turnwise.strategies.summarize import Summarize
from turnwise.testing.audit import read_events
from turnwise.testing.exhaust import Life, exhaust
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.scripted_engine import ScriptedEngine
from turnwise.testing.world import World

OnLost = Literal["interrupt", "resume"]

LONG_S = 0.3
"""How long an answer takes: many times longer than a caller waits before it repeats a request."""

pytestmark = pytest.mark.usefixtures("quiet")


@tool
async def look() -> str:
    """Look."""
    await asyncio.sleep(LONG_S)
    return "seen"


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def answer(turn: Turn) -> AsyncIterator[Any]:
    """Call the tool that the prompt names, then answer in two pieces."""
    prompts = [block.text for block in turn.asked if isinstance(block, User)]
    named = prompts[0].partition("call:")[2].split(" ")[0] if prompts else ""
    yield Usage(input_tokens=10, output_tokens=1)
    if named and not turn.output:
        yield ToolUse(call_id=f"{turn.index}-{named}", name=named, input={})
        return
    yield "answer "
    await asyncio.sleep(LONG_S)
    yield f"to {' '.join(prompts)}"


ENGINE = FunctionEngine(answer, tools=[look, pay])


async def outcome_of(store: Any, session_id: str) -> dict[str, Any]:
    """Return all stored records of a session, without times and event numbers."""
    session = await store.get(SessionKey(session_id))
    usage = session.usage and {name: value for name, value in vars(session.usage).items() if name != "seconds"}
    runs = await store.runs(SessionKey(session_id))
    turns = await store.turns(SessionKey(session_id))
    texts = [(turn.index, turn.status, turn.run_id, await store.blocks(turn.spans)) for turn in turns]
    ends = [(run.run_id, run.state, run.code, run.successor, run.resumes) for run in runs]
    events = [(event.kind, event.run_id) for event in await read_events(store, SessionKey(session_id))]
    whole = {"runs": sorted(ends), "turns": texts, "events": events, "usage": usage}
    return {**whole, "size": session.log_size, "next": session.next_index, "status": session.status}


Story = Callable[[World], Coroutine[Any, Any, None]]


def life_of(story: Story, **settings: Any) -> Life:
    """Return a life that must leave the same records in the store whichever answer is lost."""
    outcomes: list[Any] = []
    config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9, **settings.pop("config", {}))
    clears = settings.pop("clears", False)

    async def life(faults: Faults) -> None:
        world_settings = {name: make() for name, make in settings.items()}
        world = World(faults, **{"engine": ENGINE, "config": config, **world_settings})
        await world.create()
        await story(world)
        await asyncio.sleep(20 * LONG_S)  # for what goes on beside the conversation
        outcomes.append(
            [await outcome_of(world.store.inner, name) for name in ("session", "fork") if name in await names(world)]
        )
        assert outcomes[-1] == outcomes[0]
        if not clears:  # the audit knows no conversation of which turns were removed for good
            (await world.audit(discards=True, compacts=bool(settings.get("overflow")))).check()
        assert world.process.killed_at_s is None

    return life


async def names(world: World) -> list[str]:
    return [session.session_id for session in await world.store.inner.query()]


def check(story: Story, at_least: int = 2, **settings: Any) -> None:
    assert exhaust(life_of(story, **settings), ["unanswered"], **of_cases())["unanswered"] >= at_least


POLICIES: dict[IfBusy, dict[str, Any]] = {
    **{policy: {} for policy in ("enqueue", "interrupt", "rollback", "latest", "drop", "merge", "inject")},
    "debounce": {"debounce_s": LONG_S / 2},
}


@pytest.mark.parametrize("on_lost", ["interrupt", "resume"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", ["one", "call:look one"])
def test_a_lost_answer_changes_nothing_for_runs_of_any_policy(policy: IfBusy, on_lost: OnLost, first: str) -> None:
    async def story(world: World) -> None:
        runs = [await world.start(first)]
        await world.append("appended")
        for prompt in ("two", "three"):
            await asyncio.sleep(LONG_S / 10)
            runs.append(await world.start(prompt, if_busy=policy, **POLICIES[policy]))
        for run_id in runs:
            await world.wait(run_id)
        await world.wait(await world.start("four"))

    check(story, config={"on_lost": on_lost})


@pytest.mark.parametrize("on_lost", ["interrupt", "resume"])
def test_a_lost_answer_changes_nothing_for_a_queue_that_waits_for_silence(on_lost: OnLost) -> None:
    async def story(world: World) -> None:
        for prompt in ("one", "two"):
            await world.start(prompt, if_busy="debounce", debounce_s=LONG_S)
        await world.wait("two")

    check(story, config={"on_lost": on_lost})


@pytest.mark.parametrize("verdict", ["approved", "rejected", "provided"])
@pytest.mark.parametrize("policy", ["enqueue", "inject"])
def test_a_lost_answer_changes_nothing_for_a_decision(verdict: Any, policy: IfBusy) -> None:
    async def story(world: World) -> None:
        await world.start("call:pay one")
        await world.start("two", if_busy=policy)
        await asyncio.sleep(LONG_S)
        await world.decide("call:pay one", "0-pay", ApprovalDecision(verdict=verdict, text="so"))
        await world.wait("call:pay one")
        await world.wait("two")

    check(story, at_least=4, config={"on_lost": "resume"})


def test_a_lost_answer_changes_nothing_for_cancels_ends_and_updates() -> None:
    async def story(world: World) -> None:
        await world.start("one")
        for prompt in ("two", "three"):
            await world.start(prompt, if_busy="enqueue")
        await world.cancel("two")
        await world.ask("row.update", "title", {"a": 1})
        await world.ask("row.refresh")
        await world.ask("row.use_memory", "off")
        await world.ask("additions.add_event", "name", {"a": 1}, "key")
        await world.wait("three")
        await world.start("four")
        await world.start("five", if_busy="enqueue")
        await asyncio.sleep(LONG_S / 2)
        assert await world.ask("admission.end_session")

    check(story, at_least=8, config={"on_lost": "resume"})


def test_a_lost_answer_changes_nothing_for_forks_imports_and_removals() -> None:
    conversation = read_messages([{"role": "user", "content": "old"}, {"role": "assistant", "content": "long ago"}])

    async def story(world: World) -> None:
        await world.ask("importing.import_turns", conversation)
        for prompt in ("one", "two", "three"):
            await world.wait(await world.start(prompt))
        await world.fork("fork")
        turns = await world.ask("reads.turns")
        await world.ask("removals.remove", 1, turns[1].record.prompt, "key")
        await world.wait(await world.start("four"))

    check(story, at_least=8)


@pytest.mark.by_turns
@pytest.mark.parametrize("on_lost", ["interrupt", "resume"])
def test_a_lost_answer_changes_nothing_for_what_a_middleware_stores(on_lost: OnLost) -> None:
    async def story(world: World) -> None:
        for prompt in ("one", "call:look two", "three"):
            await world.wait(await world.start(prompt))

    middleware = [SystemPrompt("Be brief.", store=True)]
    engine = FunctionEngine(answer, tools=[look, pay], middleware=middleware)
    check(story, at_least=5, engine=lambda: engine, config={"on_lost": on_lost})


@pytest.mark.parametrize("on_lost", ["interrupt", "resume"])
def test_a_lost_answer_changes_nothing_for_a_strategy_of_one_run_and_late_events(on_lost: OnLost) -> None:
    async def story(world: World) -> None:
        await world.wait(await world.start("one"))
        last = {"strategy": "KeepLast", "turns": 1}
        await world.wait(await world.start("call:look two", overflow=last, turn_id="second", labels={"a": "b"}))
        await world.ask("additions.add_event", "rated", {"stars": 5}, "key", run_id="call:look two", labels={"c": "d"})
        await world.wait(await world.start("three"))

    check(story, at_least=5, config={"on_lost": on_lost})


@pytest.mark.parametrize("on_lost", ["interrupt", "resume"])
def test_a_lost_answer_changes_nothing_for_turns_above_the_storage_limit(on_lost: OnLost) -> None:
    async def story(world: World) -> None:
        for prompt in ("one", "call:look two", "three", "four"):
            await world.wait(await world.start(prompt))
            await asyncio.sleep(LONG_S)

    check(story, at_least=5, clears=True, config={"on_lost": on_lost, "storage_limit": 4})


def test_a_lost_answer_changes_nothing_for_turns_that_are_forgotten_and_cleared() -> None:
    async def story(world: World) -> None:
        for prompt in ("one", "two", "three"):
            await world.wait(await world.start(prompt))
        await world.ask("forgetting.forget_turn", 1)
        await world.ask("forgetting.clear", 1, key="clear")
        await world.wait(await world.start("four"))

    check(story, at_least=8, clears=True)


@pytest.mark.parametrize(
    "strategy", [lambda: KeepLast(turns=1), lambda: Summarize(ScriptedEngine(["short"], repeat=True))]
)
def test_a_lost_answer_changes_nothing_for_a_compaction(strategy: Any) -> None:
    async def story(world: World) -> None:
        for prompt in ("one " * 40, "two " * 40, "three"):
            await world.wait(await world.start(prompt))
        await world.ask("compaction.compact")
        await world.wait(await world.start("four"))

    check(story, at_least=8, overflow=strategy, config={"max_context_tokens": 2000, "reserve_output_tokens": 100})


def test_a_lost_answer_changes_nothing_for_a_memory() -> None:
    books: list[Book] = []

    def memories() -> list[MemorySlot]:
        books.append(Book())
        return [MemorySlot(memory=books[-1], name="book", section=None)]

    async def story(world: World) -> None:
        for prompt in ("one", "two"):
            await world.wait(await world.start(prompt))
        await world.start("three")
        await world.start("four", if_busy="enqueue")
        await world.wait("four")
        await world.ask("ingestion.wait_for_memory")
        assert books[-1].turns == [0, 1, 2, 3]

    check(story, at_least=6, memories=memories)


@pytest.mark.virtual_time
async def test_a_run_whose_start_was_stored_begins_although_nobody_asks_again() -> None:
    faults, store = Faults(), InMemoryStore()
    world = World(faults, engine=ENGINE, store=store)
    await world.create()
    await world.core.transactor.activate()
    faults.plan = FaultPlan(rates={"unanswered": 1.0}, limit=1)
    with pytest.raises(StoreError):
        await world.core.admission.start(["one"], run_id="one")
    assert not await world.core.ownership.leave(), "only this process can drive the run"
    await asyncio.sleep(2 * LONG_S)
    assert (await store.run("one")).state == "completed"
    assert await world.core.ownership.leave()


@pytest.mark.virtual_time
async def test_what_was_cleared_leaves_the_memory_of_a_process_without_an_answer() -> None:
    faults = Faults()
    world = World(faults, engine=ENGINE)
    await world.create()
    await world.wait(await world.start("secret"))
    faults.plan = FaultPlan(rates={"unanswered": 1.0}, limit=1)
    with pytest.raises(StoreError):
        await world.core.forgetting.clear(key="clear")
    events, _, _ = await world.core.reads.events()
    assert "secret" not in repr(events)
    assert "secret" not in repr(await world.core.reads.turns())
    assert (await world.core.reads.wait("secret")).turn is None


@pytest.mark.virtual_time
async def test_a_run_whose_end_cannot_be_stored_keeps_its_usage() -> None:
    faults = Faults()
    world = World(faults, engine=ENGINE, config=SessionConfig(store_retry_s=0.1))
    await world.create()
    await world.start("one")
    faults.plan = FaultPlan(rates={"error": 1.0}, points=("store.commit before",))
    with pytest.raises(StoreError):
        await world.core.reads.wait("one")
    faults.plan = FaultPlan()
    await world.core.transactor.activate()
    run = await world.store.inner.run("one")
    assert run.state == "interrupted" and run.usage and run.usage.input_tokens == 10
    usage = (await world.store.inner.get(SessionKey("session"))).usage
    assert (usage.input_tokens, usage.calls) == (10, 1)


@pytest.mark.virtual_time
async def test_usage_that_no_commit_recorded_stays_for_the_next_one() -> None:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    faults = Faults()
    world = World(faults, session_id="s", engine=ENGINE, store=store)
    core: SessionCore = world.core
    await core.transactor.activate()
    core.transactor.add_unbilled(Spent.on(Usage(input_tokens=7, cost=0.1)))
    for kind, points in (("error", "store.commit before"), ("unanswered", "store.commit after")):
        faults.plan = FaultPlan(rates={kind: 1.0}, points=(points,), limit=faults.struck.total() + 1)  # type: ignore[dict-item]
        with pytest.raises(StoreError):
            await core.admission.append([kind], key=kind)
        assert core.transactor.unbilled == Usage(input_tokens=7, cost=0.1)
    await core.admission.append(["more"], key="more")
    assert core.transactor.unbilled == Usage()
    assert (await store.get(SessionKey("s"))).usage == Usage(input_tokens=7, cost=0.1)


@pytest.mark.virtual_time
async def test_usage_that_a_refused_commit_was_to_record_stays_for_the_next_one() -> None:
    world = World(Faults(), session_id="s", engine=ENGINE)
    await world.create()
    core: SessionCore = world.core
    number = await core.additions.add_event("arrived", None, "key")
    core.transactor.add_unbilled(Spent.on(Usage(input_tokens=7)))
    assert await core.additions.add_event("arrived", None, "key") == number, "the store has refused another one"
    assert core.transactor.unbilled == Usage(input_tokens=7)
    await core.additions.add_event("left", None, "another key")
    assert (await world.store.inner.get(SessionKey("s"))).usage == Usage(input_tokens=7)
