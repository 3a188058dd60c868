"""What one session promises, on `SessionCore` alone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engines import BrokenBuilder, ScriptedEngine
from schedules import SESSION, texts
from stored.audit import check_session
from turnwise.actors.hosting.stored_source import StoredSource
from turnwise.actors.inference.engine import EngineBuilder, RunContext
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.reads import SessionReads
from turnwise.errors import (
    ConfigError,
    EmptyTurnError,
    InvalidPromptError,
    NoActiveRunError,
    RunNotFoundError,
    SessionBusyError,
    SessionEndedError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreError,
    TurnNotFoundError,
)
from turnwise.memory.conversation import blocks
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolResult, ToolUse
from turnwise.memory.conversation.events import RunCompleted, RunStarted, TextDelta
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Outcome, Turn
from turnwise.memory.stores.base import Activation
from turnwise.memory.stores.in_memory import InMemoryStore


def play(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(play, 30))


async def new_core(
    engine: EngineBuilder | None = None, config: SessionConfig | None = None, store: InMemoryStore | None = None
) -> tuple[SessionCore, InMemoryStore]:
    store = store or InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))
    return SessionCore(SessionKey(SESSION), store, engine or ScriptedEngine(), config), store


async def turn_of(core: SessionCore, prompt: str, run_id: str = "run", **settings: Any) -> Outcome:
    await core.admission.start([prompt], run_id=run_id, **settings)
    return await core.reads.wait(run_id)


async def test_starting_with_nothing_to_run_builds_no_engine_and_changes_nothing() -> None:
    """Case 2."""

    core, store = await new_core(BrokenBuilder())
    before = await store.get(SessionKey(SESSION))
    for prompts in ([], [""], ["  \n"]):
        with pytest.raises(EmptyTurnError, match=SESSION):
            await core.admission.start(prompts, run_id="run")
    assert replace(await store.get(SessionKey(SESSION)), epoch=0, revision=0) == before
    assert await store.runs(SessionKey(SESSION)) == [] and await store.events(SessionKey(SESSION)) == []


@pytest.mark.parametrize("prompt", ["raise", "exit", "nothing", "thoughts", "parrot", "curse"])
async def test_an_engine_that_fails_fails_its_run_and_the_session_is_usable_at_once(prompt: str) -> None:
    """Cases 10 and 23."""

    core, store = await new_core()
    await turn_of(core, "hello", "first")
    outcome = await turn_of(core, prompt)
    assert outcome.run.state == "failed" and outcome.run.why
    assert outcome.turn and texts(outcome.turn.new_blocks) == [prompt]
    after = await turn_of(core, "and now", "next")
    assert after.turn and texts(after.turn.blocks) == ["hello", prompt, "and now"]
    await check_session(store, SESSION)


async def test_an_engine_that_cannot_be_built_fails_its_run_and_another_takes_over() -> None:
    """Case 10; a later manager's engine is taken over between runs."""

    core, _ = await new_core(BrokenBuilder())
    outcome = await turn_of(core, "hello", "first")
    assert outcome.run.state == "failed" and "no such model" in str(outcome.run.why)
    core.use(ScriptedEngine("new: "), SessionConfig())
    again = await turn_of(core, "hello")
    assert again.turn and again.turn.text == "new: hello"


async def test_many_waiters_get_the_same_result_and_a_wait_that_times_out_cancels_nothing() -> None:
    """Case 7."""

    core, _ = await new_core()
    await core.admission.start(["slow 5"], run_id="run")
    assert (await core.reads.wait("run", timeout_s=0.01)).run.state == "running"
    waiter = asyncio.create_task(core.reads.wait("run"))
    await asyncio.sleep(0)
    waiter.cancel()
    outcomes = await asyncio.gather(*(core.reads.wait("run") for _ in range(20)))
    assert {outcome.run.state for outcome in outcomes} == {"completed"}
    assert len({outcome.turn for outcome in outcomes}) == 1
    late = await core.reads.wait("run")
    assert late == outcomes[0]
    with pytest.raises(RunNotFoundError, match="nobody"):
        await core.reads.wait("nobody")


async def test_a_late_wait_works_after_the_run_has_left_memory() -> None:
    """Case 7."""

    core, store = await new_core()
    first = await turn_of(core, "hello", "first")
    second_core = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    assert await second_core.reads.wait("first") == first
    assert (await second_core.reads.run("first")).state == "completed"


async def test_a_cancelled_run_keeps_its_text_marked_and_closes_its_open_tool_calls() -> None:
    """Cases 8, 19, 20 and 21."""

    core, store = await new_core()
    await core.admission.start(["dangling"], run_id="run")
    await asyncio.sleep(0.05)
    assert await core.admission.cancel("changed my mind") is True
    assert await core.admission.cancel("again", "run") is True
    outcome = await core.reads.wait("run")
    assert outcome.turn and outcome.run.why == "changed my mind"
    assert outcome.turn.new_blocks[1:] == (
        blocks.Text(text="let me look"),
        blocks.ToolUse(call_id="1", name="look"),
        blocks.ToolResult(call_id="1", text="cancelled: changed my mind", is_error=True),
    )
    with pytest.raises(NoActiveRunError):
        await core.admission.cancel("nothing there")
    await check_session(store, SESSION)


async def test_with_discard_the_history_equals_that_before_the_run() -> None:
    """Case 20."""

    core, store = await new_core(config=SessionConfig(on_cancel="discard"))
    before = (await turn_of(core, "hello", "first")).turn
    await core.admission.start(["slow 500"], run_id="run")
    await asyncio.sleep(0.05)
    await core.admission.cancel("no")
    outcome = await core.reads.wait("run")
    assert outcome.turn is None and outcome.run.state == "cancelled"
    assert await core.reads.latest() == before and await core.reads.turns() == [before]
    with pytest.raises(TurnNotFoundError):
        await core.reads.turn(1)
    await check_session(store, SESSION)


async def test_an_engine_that_ignores_cancel_delays_no_caller_and_its_late_result_changes_nothing() -> None:
    """Case 9."""

    began, let_go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Stubborn(ScriptedEngine):
        async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
            if texts(turn.new_blocks) != ["stubborn"]:
                return await super().run(turn, context)
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await let_go.wait()
            context.emit("too late")
            ended.set()
            return [Text(text="too late")]

    core, store = await new_core(Stubborn(), SessionConfig(cancel_grace_s=0.05))
    await core.admission.start(["stubborn"], run_id="run")
    await began.wait()
    await core.admission.cancel("stop")
    await turn_of(core, "hello", "next")
    assert not ended.is_set(), "no caller has waited for it"
    let_go.set()
    await ended.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    latest = await core.reads.latest()
    assert latest and "too late" not in str(latest.blocks)
    assert not [event for event in (await core.reads.events())[0] if "too late" in str(event)]
    await check_session(store, SESSION)


async def test_a_run_that_is_rolled_back_leaves_no_trace_though_it_is_then_interrupted_too() -> None:
    """Case 17."""

    core, store = await new_core(config=SessionConfig(cancel_grace_s=0.2))
    await core.admission.start(["stubborn"], run_id="first")
    await asyncio.sleep(0.02)
    await core.admission.start(["second"], run_id="second", if_busy="rollback")
    await core.admission.start(["third"], run_id="third", if_busy="interrupt")
    outcome = await core.reads.wait("third")
    assert outcome.turn and texts(outcome.turn.blocks) == ["second", "third"]
    await check_session(store, SESSION)


async def test_a_run_over_its_time_fails_and_keeps_what_it_has() -> None:
    core, store = await new_core()
    outcome = await turn_of(core, "slow 500", timeout_s=0.1)
    assert outcome.run.state == "failed" and "timeout_s=0.1" in str(outcome.run.why)
    assert outcome.turn and outcome.turn.text.startswith("0 1 ")
    await check_session(store, SESSION)


async def test_a_returned_turn_cannot_be_changed() -> None:
    """Case 12."""

    core, _ = await new_core()
    turn = (await turn_of(core, "hello")).turn
    assert turn
    with pytest.raises(AttributeError):
        turn.status = "failed"  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        turn.blocks[0].text = "other"  # type: ignore[union-attr]
    with pytest.raises(TypeError):
        turn.metadata["key"] = "value"
    assert (await core.reads.turn(0)).blocks == turn.blocks


async def test_a_turn_that_waits_has_one_content_and_names_the_turn_before_it() -> None:
    core, store = await new_core()
    await turn_of(core, "one", "one")
    await core.admission.append(["two"], key="two")
    stored = SessionReads(StoredSource(SessionKey(SESSION), store, None))
    for reads in (core.reads, stored):
        latest = await reads.latest()
        assert latest and texts(latest.blocks) == ["one", "two"] and latest.parent == f"{SESSION}#0"
        assert latest == await reads.turn(1) == (await reads.turns())[-1] and latest.status == "pending"
    await core.admission.start(["slow 100000"], run_id="two")
    await core.admission.start(["three"], run_id="three", if_busy="enqueue")
    await core.admission.append(["four"], key="four")
    turns = await core.reads.turns()
    assert [turn.parent for turn in turns] == [None, *(f"{SESSION}#{index}" for index in range(3))]
    assert texts(turns[2].blocks)[1:] == ["two", "slow 100000", "three"]
    assert texts(turns[3].blocks)[1:] == ["two", "slow 100000", "three", "four"]
    assert turns[3] == await core.reads.latest() == await core.reads.turn(3)
    await core.admission.end_session()


async def test_a_fork_continues_from_any_ended_turn_and_leaves_the_original_alone() -> None:
    """Case 13."""

    core, store = await new_core()
    for number in range(3):
        await turn_of(core, f"prompt {number}", f"run{number}")
    before = await core.reads.turns()
    fork = await core.forking.fork(1, "fork")
    assert fork.parent == f"{SESSION}#1"
    assert await core.forking.fork(1, "fork") == fork, "forking again under the same id is the same fork"
    with pytest.raises(SessionExistsError):
        await core.forking.fork(0, "fork")
    forked = SessionCore(SessionKey("fork"), store, ScriptedEngine())
    outcome = await turn_of(forked, "another way", "forked")
    assert outcome.turn and texts(outcome.turn.blocks) == ["prompt 0", "prompt 1", "another way"]
    assert outcome.turn.index == 2 and outcome.turn.parent == "fork#1"
    assert (await forked.reads.turn(1)).parent == f"{SESSION}#1"
    assert await core.reads.turns() == before
    latest = await core.forking.fork(None, "latest")
    assert latest.parent == f"{SESSION}#2"
    for index in (3, -1, 99):
        with pytest.raises(TurnNotFoundError, match=str(index)):
            await core.forking.fork(index, "none")
    await core.admission.start(["slow 50"], run_id="running")
    with pytest.raises(TurnNotFoundError):
        await core.forking.fork(3, "none")
    await core.admission.cancel("enough")
    await core.forgetting.delete()
    assert (await forked.reads.turns())[-1].blocks == outcome.turn.blocks
    for session in (SESSION,):
        with pytest.raises(SessionNotFoundError):
            await store.get(SessionKey(session))


async def test_a_fork_that_is_asked_for_twice_is_one_though_its_parent_has_gone_on_meanwhile() -> None:
    """A call may be delivered twice, with a kill in between; a fork that is in use is another matter."""

    core, store = await new_core()
    await turn_of(core, "one", "run0")
    fork = await core.forking.fork(None, "fork")
    await turn_of(core, "two", "run1")
    assert await core.forking.fork(None, "fork") == fork and fork.parent == f"{SESSION}#0"
    with pytest.raises(SessionExistsError):
        await core.forking.fork(1, "fork")
    await store.create(SessionRecord(session_id="other", parent="elsewhere#0"))
    with pytest.raises(SessionExistsError):
        await core.forking.fork(None, "other")
    await turn_of(SessionCore(SessionKey("fork"), store, ScriptedEngine()), "another way", "run2")
    with pytest.raises(SessionExistsError):
        await core.forking.fork(None, "fork")


async def test_an_ended_session_refuses_runs_and_can_be_read_forked_and_deleted() -> None:
    """Case 14."""

    core, store = await new_core()
    await core.admission.start(["slow 500"], run_id="run")
    await core.admission.start(["queued"], run_id="queued", if_busy="enqueue")
    with pytest.raises(SessionBusyError):
        await core.forgetting.delete()
    await core.admission.end_session("closing time")
    await core.admission.end_session("closing time")
    for run_id in ("run", "queued"):
        outcome = await core.reads.wait(run_id)
        assert (outcome.run.state, outcome.run.why) == ("cancelled", "closing time")
    with pytest.raises(SessionEndedError):
        await core.admission.start(["more"], run_id="more")
    with pytest.raises(SessionEndedError):
        await core.admission.append(["more"], key="more")
    assert (await core.reads.turns())[0].status == "cancelled"
    assert (await core.forking.fork(0, "fork")).status == "active"
    await check_session(store, SESSION)
    await core.forgetting.delete()
    with pytest.raises(SessionNotFoundError):
        await core.reads.latest()


async def test_an_earlier_conversation_may_be_appended_in_pieces_but_no_call_without_its_result() -> None:
    core, store = await new_core()
    use, result = ToolUse(call_id="c", name="look"), ToolResult(call_id="c", text="seen")
    await core.admission.append(["look", use], key="use")
    with pytest.raises(InvalidPromptError, match="the tool call 'c' has no result: append a ToolResult before the run"):
        await core.admission.start(["well?"], run_id="early")
    with pytest.raises(InvalidPromptError, match="the tool call 'd' does not come before its result"):
        await core.admission.append([ToolResult(call_id="d", text="?")], key="other")
    index = await core.admission.append([result, Text(text="I saw it.")], key="result")
    assert (
        await core.admission.append([result, Text(text="I saw it.")], key="result") == index
    )  # as Ray may deliver it again
    outcome = await turn_of(core, "well?")
    assert outcome.turn and [block.kind for block in outcome.turn.asked] == [
        "user",
        "tool_use",
        "tool_result",
        "text",
        "user",
    ]
    await check_session(store, SESSION)


async def test_a_lost_run_is_interrupted_once_and_the_queue_goes_on() -> None:
    """Cases 15 and 60: an actor that restarts after a kill."""

    core, store = await new_core()
    await core.admission.append(["first"], key="first")
    await core.admission.start(["slow 500"], run_id="lost")
    await core.admission.start(["second"], run_id="queued", if_busy="enqueue")
    await core.admission.append(["appended"], key="appended")
    # The process is gone here: another comes, and the first can do nothing any more.
    back = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    outcome = await back.reads.wait("lost")
    assert outcome.run.state == "interrupted" and outcome.turn
    queued = await back.reads.wait("queued")
    assert queued.run.state == "completed" and queued.turn
    assert texts(queued.turn.blocks) == ["first", "slow 500", "second"]
    latest = await back.reads.latest()
    assert latest and texts(latest.blocks)[-1] == "appended"
    with pytest.raises(SessionFencedError):
        await core.admission.append(["late"], key="late")
    with pytest.raises(SessionFencedError):
        await core.reads.wait("lost")
    third = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    assert await third.reads.wait("lost") == outcome
    await check_session(store, SESSION)


async def test_events_are_live_numbered_and_replayed_with_the_text() -> None:
    """Case 59."""

    core, store = await new_core()
    await core.admission.start(["slow 20"], run_id="run")
    after, live = 0, []
    done = False
    while not done:
        events, after, done = await core.reads.events(after, limit=3, run_id="run", timeout_s=5)
        live += events
    assert isinstance(live[0], RunStarted) and isinstance(live[-1], RunCompleted)
    assert [event.seq for event in live] == sorted({event.seq for event in live})
    text = "".join(event.text for event in live if isinstance(event, TextDelta))
    assert text == "".join(f"{number} " for number in range(20))
    again, _, done = await core.reads.events(0, run_id="run")
    assert again == live and done, "deltas are held while they are recent"
    later = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    replayed, after, done = await later.reads.events(0, run_id="run")
    assert [event.kind for event in replayed] == ["run_started", "run_completed"] and done
    assert isinstance(replayed[-1], RunCompleted) and replayed[-1].text == "slow 20"
    assert (await later.reads.events(after, run_id="run"))[0] == []
    await turn_of(later, "next", "next")
    numbers = [event.seq for event in (await later.reads.events())[0]]
    assert numbers == sorted(set(numbers)) and numbers[-1] > live[-1].seq


async def test_prompts_that_are_no_text_are_refused() -> None:
    core, _ = await new_core()
    for prompt in (3, None, b"bytes", blocks.ToolResult(call_id="1", text="forged"), "\ud800"):
        with pytest.raises(InvalidPromptError, match=SESSION):
            await core.admission.start([prompt], run_id="run")  # type: ignore[list-item]
    with pytest.raises(InvalidPromptError, match="10000"):
        await core.admission.append(["x" * 10_000_000], key="big")
    assert await core.reads.latest() is None
    assert isinstance((await turn_of(core, "hello")).turn, Turn)


@pytest.mark.parametrize(
    "settings",
    [
        {"on_cancel": "maybe"},
        {"cancel_grace_s": -1},
        {"max_queued": -1},
        {"max_prompt_bytes": 0},
        {"idle_s": 0},
        {"delta_interval_s": -1},
        {"store_retry_s": -1},
    ],
)
def test_a_config_out_of_range_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        SessionConfig(**settings)


class StumblingStore(InMemoryStore):
    """A store whose next commit fails and stores nothing, if the test says so."""

    stumbles = False
    refuses = False
    """Whether it activates nothing."""

    async def activate(self, *args: Any, **kwargs: Any) -> Activation:
        if self.refuses:
            raise StoreError("out of order")
        return await super().activate(*args, **kwargs)

    async def commit(self, *args: Any) -> None:
        if self.stumbles:
            self.stumbles = False
            raise StoreError("out of order for once")
        await super().commit(*args)


async def stumbling() -> tuple[SessionCore, StumblingStore]:
    """Return a core during a run, after a commit with an unknown outcome."""
    store = StumblingStore()
    core, _ = await new_core(store=store)
    await core.admission.start(["slow 100"], run_id="run")
    await asyncio.sleep(0.1)
    store.stumbles = True
    with pytest.raises(StoreError):
        await core.admission.append(["more"], key="key")
    return core, store


async def test_live_events_after_a_store_error_get_numbers_that_no_later_owner_gives_again() -> None:
    """Case 59."""

    core, store = await stumbling()
    await core.transactor.activate()
    await asyncio.sleep(0.1)
    seqs = [event.seq for event in (await core.reads.events())[0]]
    second_core = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    await second_core.transactor.activate()
    interrupted = (await store.events(SessionKey(SESSION)))[-1]
    assert interrupted.kind == "run_interrupted" and interrupted.seq > max(seqs)


async def test_live_events_of_a_run_that_another_owner_ended_are_not_published() -> None:
    """Case 64."""

    core, store = await stumbling()
    store.refuses = True
    with pytest.raises(StoreError):
        await core.transactor.activate()
    store.refuses = False
    second_core = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    await second_core.transactor.activate()
    published = core.state.journal.log.published
    await asyncio.sleep(0.1)  # deltas wait for what becomes of the commit
    with pytest.raises(SessionFencedError):
        await core.reads.wait("run")
    await asyncio.sleep(0.1)
    assert core.state.journal.log.published == published
    await second_core.admission.append(["still mine"], key="mine")  # the core has taken nothing from the other owner
