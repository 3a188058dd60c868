"""What each `if_busy` stores, runs, and tells the callers of the other runs; with faults at every point."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines import ScriptedEngine
from scale import of_cases, share
from schedules import SESSION, inline, texts
from stored.audit import check_session
from turnwise.actors.hosting.stored_source import StoredSource
from turnwise.actors.inference.engine import EngineBuilder, RunContext, SessionView
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import Tool, tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.engines.budget import Budget
from turnwise.actors.session.state.reads import SessionReads
from turnwise.errors import (
    EmptyTurnError,
    InvalidInputError,
    QueueFullError,
    SessionBusyError,
    SessionEndedError,
    SessionLostError,
)
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.blocks import AnyBlock, Block, Image, Text, Thinking, ToolUse, User
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.events import PromptJoined, RunCancelled, RunCompleted
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.trim import Trim
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.audit import audit, check_request
from turnwise.testing.exhaust import Life, exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.faulty_engine import FaultyEngine
from turnwise.testing.world import World

pytestmark = pytest.mark.usefixtures("quiet")


async def new_core(
    engine: EngineBuilder | None = None, config: SessionConfig | None = None, store: InMemoryStore | None = None
) -> tuple[SessionCore, InMemoryStore]:
    store = store or InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))
    return another(store, engine, config), store


def another(
    store: InMemoryStore, engine: EngineBuilder | None = None, config: SessionConfig | None = None
) -> SessionCore:
    clock = asyncio.get_running_loop().time
    return SessionCore(SessionKey(SESSION), store, engine or ScriptedEngine(), config, clock=clock, off_loop=inline)


@pytest.mark.virtual_time
async def test_latest_takes_the_place_of_all_that_wait_and_says_so_to_their_callers() -> None:
    core, store = await new_core()
    await core.admission.start(["slow 10"], run_id="first")
    await core.admission.start(["a"], run_id="a", if_busy="enqueue")
    await core.admission.append(["kept"], key="kept")
    await core.admission.start(["b"], run_id="b", if_busy="latest")
    waiter = asyncio.create_task(core.reads.wait("b"))
    await asyncio.sleep(0)
    await core.admission.start(["c"], run_id="c", if_busy="latest")
    for run_id, successor in (("a", "b"), ("b", "c")):
        outcome = await core.reads.wait(run_id)
        assert outcome.turn is None
        assert (outcome.run.state, outcome.run.code, outcome.run.successor) == ("cancelled", "replaced", successor)
        assert await core.reads.run(run_id) == outcome.run == await store.run(run_id)
    assert await waiter == await core.reads.wait("b")
    last = await core.reads.wait("c")
    assert last.turn and texts(last.turn.blocks) == ["slow 10", "kept", "c"], "appended prompts stay"
    events = [event for event in await store.events(SessionKey(SESSION)) if isinstance(event, RunCancelled)]
    assert [(event.run_id, event.code, event.successor) for event in events] == [
        ("a", "replaced", "b"),
        ("b", "replaced", "c"),
    ]
    await check_session(store, SESSION)


@pytest.mark.virtual_time
async def test_latest_runs_at_once_when_nothing_runs_and_needs_one_place_in_the_queue() -> None:
    core, _ = await new_core(config=SessionConfig(max_queued=0))
    await core.admission.start(["slow 10"], run_id="first", if_busy="latest")
    assert core.reads.active_run_id == "first"
    with pytest.raises(QueueFullError, match="first"):
        await core.admission.start(["hello"], run_id="next", if_busy="latest")
    core, _ = await new_core(config=SessionConfig(max_queued=1))
    for number in range(3):
        await core.admission.start(["slow 1"], run_id=f"run{number}", if_busy="latest")
    assert core.reads.queued_run_ids == ["run2"]


@pytest.mark.virtual_time
async def test_drop_stores_nothing_and_answers_with_the_active_run() -> None:
    core, store = await new_core()
    first = await core.admission.start(["slow 10"], run_id="first", if_busy="drop")
    assert not first.dropped
    await core.admission.append(["kept"], key="kept")
    before = await store.get(SessionKey(SESSION)), await store.events(SessionKey(SESSION))
    for prompts in (["hello"], []):
        answer = await core.admission.start(prompts, run_id="dropped", if_busy="drop", idempotency_key="key")
        assert (answer.run_id, answer.turn_index, answer.dropped) == ("first", 0, True)
    assert before == (await store.get(SessionKey(SESSION)), await store.events(SessionKey(SESSION)))
    assert await core.admission.start(["slow 10"], run_id="first", if_busy="drop") == first, (
        "the second delivery of a start"
    )
    with pytest.raises(InvalidInputError, match="output"):  # refused as if no run was active
        await core.admission.start(["hello"], run_id="typed", if_busy="drop", output={"schema": {}, "retries": 0})
    await core.reads.wait("first")
    await core.admission.start(["hello"], run_id="dropped", if_busy="drop", idempotency_key="key")
    outcome = await core.reads.wait("dropped")
    assert outcome.turn and texts(outcome.turn.blocks) == ["slow 10", "kept", "hello"]
    with pytest.raises(EmptyTurnError):
        await core.admission.start([], run_id="empty", if_busy="drop")
    await core.admission.end_session()
    with pytest.raises(SessionEndedError):
        await core.admission.start(["hello"], run_id="late", if_busy="drop")


@pytest.mark.virtual_time
async def test_runs_that_wait_become_one_turn_and_all_handles_lead_to_it() -> None:
    core, store = await new_core()
    await core.admission.start(["slow 10"], run_id="active")
    await core.admission.start(["other"], run_id="other", if_busy="enqueue", timeout_s=9.0)
    await core.admission.start(["one"], run_id="one", if_busy="enqueue", labels={"n": "1"})
    await core.admission.append(["two"], key="two")
    await core.admission.start(["three"], run_id="three", if_busy="enqueue")
    waiter = asyncio.create_task(core.reads.wait("three"))
    await asyncio.sleep(0)
    four = await core.admission.start(
        ["four"], run_id="four", if_busy="merge", labels={"n": "4"}, idempotency_key="key"
    )
    assert core.reads.queued_run_ids == ["other", "one"]
    assert not await core.reads.is_ending("four"), "the run that it leads to waits"
    again = await core.admission.start(["four"], run_id="again", if_busy="merge", idempotency_key="key")
    assert again == four and again.run_id == "four", "the second delivery adds nothing"
    assert four.turn_index == (await core.reads.run("one")).turn_index
    await core.admission.append(["five"], key="five")
    await core.admission.start([], run_id="six", if_busy="merge")
    outcome = await core.reads.wait("one")
    assert outcome.turn and texts(outcome.turn.new_blocks) == ["one", "two", "three", "four", "five"]
    assert outcome.turn.index == four.turn_index and await core.reads.is_ending("four")
    new = another(store)
    stored = SessionReads(StoredSource(SessionKey(SESSION), store, None))
    for run_id in ("one", "three", "four", "six"):
        assert await core.reads.wait(run_id) == outcome == await stored.wait(run_id) == await new.reads.wait(run_id)
        assert (await core.reads.run(run_id)).run_id == "one"
        assert (await core.reads.events(run_id=run_id))[0] == (await core.reads.events(run_id="one"))[0]
    assert await waiter == outcome
    runs = {run.run_id: run for run in await core.reads.runs()}
    assert [runs[run_id].labels.get("n") for run_id in ("one", "four")] == ["1", "4"]
    assert {run_id for run_id, run in runs.items() if run.leads_to == "one"} == {"three", "four", "six"}
    await check_session(store, SESSION)
    lines: list[str] = []
    await export_session(store, SessionKey(SESSION), lines.append)
    copy = await import_session(store, lines, session_id="copy")
    await check_session(store, copy.session_id, imported=True)
    copied = {run.turn_index: run.leads_to for run in await store.runs(SessionKey("copy"))}
    ended = await SessionReads(StoredSource(SessionKey("copy"), store, None)).wait(
        next(run_id for run_id in copied.values() if run_id)
    )
    assert ended.turn and texts(ended.turn.new_blocks) == texts(outcome.turn.new_blocks)


@pytest.mark.virtual_time
async def test_a_run_that_asks_otherwise_is_not_merged() -> None:
    core, _ = await new_core(config=SessionConfig(max_queued=3))
    await core.admission.start(["slow 10"], run_id="active")
    for run_id, options in (("a", {"timeout_s": 5.0}), ("b", {"memory": "off"}), ("c", {"turn_id": "mine"})):
        await core.admission.start([run_id], run_id=run_id, if_busy="merge", **options)
    assert core.reads.queued_run_ids == ["a", "b", "c"]
    with pytest.raises(QueueFullError):
        await core.admission.start(["d"], run_id="d", if_busy="merge", timeout_s=1.0)
    await core.admission.start(["e"], run_id="e", if_busy="merge")
    assert core.reads.queued_run_ids == ["a", "b", "c"]
    assert await core.admission.cancel("stop", "e") is True, (
        "a merged run's cancel cancels the run that has its prompts"
    )
    assert core.reads.queued_run_ids == ["a", "b"]
    await core.admission.end_session()


@pytest.mark.virtual_time
async def test_no_merge_takes_away_a_turn_that_the_caller_has_named() -> None:
    core, store = await new_core()
    await core.admission.start(["slow 10"], run_id="active")
    for run_id, turn_id in (("a", None), ("b", "mine"), ("c", None)):
        await core.admission.start([run_id], run_id=run_id, if_busy="enqueue", turn_id=turn_id)
    await core.admission.start(["d"], run_id="d", if_busy="merge")
    assert core.reads.queued_run_ids == ["a", "b"]
    merged = await core.reads.wait("d")
    assert merged.run.run_id == "b" and merged.turn == await core.reads.turn("mine")
    assert texts(merged.turn.new_blocks) == ["b", "c", "d"]
    await check_session(store, SESSION)


@pytest.mark.virtual_time
async def test_a_merged_start_that_is_repeated_in_another_process_waits_for_nothing() -> None:
    core, store = await new_core()
    for run_id in ("one", "two"):
        await core.admission.start([run_id], run_id=run_id, **QUIET)
    core.transactor.give_up(SessionLostError(SESSION, "it was killed"))
    moved = another(store)
    again = await moved.admission.start(["two"], run_id="two", **QUIET)
    assert again.run_id == "two" and not await moved.reads.is_ending("two"), "the run that it leads to waits"
    outcome = await moved.reads.wait("two")
    assert outcome.run.run_id == "one" and await moved.reads.is_ending("two")
    await check_session(store, SESSION)


@pytest.mark.virtual_time
async def test_a_cancel_of_a_run_that_merges_meanwhile_cancels_the_run_that_has_its_prompts() -> None:
    core, store = await new_core()
    await core.admission.start(["slow 10"], run_id="active")
    for run_id in ("first", "second"):
        await core.admission.start([run_id], run_id=run_id, if_busy="enqueue")
    merging = asyncio.create_task(core.admission.start(["third"], run_id="third", if_busy="merge"))
    await asyncio.sleep(0)  # now the merge has the lock
    assert await core.admission.cancel("stop", "second") is True
    await merging
    assert core.reads.queued_run_ids == [] and (await store.run("first")).why == "stop"
    await core.admission.end_session()
    await check_session(store, SESSION)


class Stepper:
    """Calls a tool as often as the tools' step count says, then answers with the prompts of its request."""

    def __init__(self, *tools: Tool, steps: int = 1, most: int = 99) -> None:
        self.tools, self.steps, self.most = tools, steps, most

    def build(self, session: SessionView) -> ToolLoop:
        return ToolLoop(self, ToolRegistry(*self.tools, max_steps=self.most))

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        check_request(turn.blocks)
        await asyncio.sleep(0.01)
        calls = sum(isinstance(block, ToolUse) for block in turn.output)
        if calls < self.steps and "quick" not in texts(turn.new_blocks):
            return [Thinking(text="hm", signature="s"), ToolUse(call_id=str(calls), name=self.tools[0].name)]
        return [Text(text=", ".join(texts(turn.new_blocks)))]

    def not_taken(self, model: str | None, params: Any) -> Mapping[str, str]:
        return {}


class Unwilling(Stepper):
    """The same, but it takes no prompts in the middle of a run."""

    def build(self, session: SessionView) -> ToolLoop:
        loop = super().build(session)
        loop.takes_prompts = False
        return loop


@tool
async def look() -> str:
    """Look."""
    await asyncio.sleep(0.02)
    return "seen"


@tool(approval=True)
async def book() -> str:
    """Book it."""
    return "booked"


def kinds(blocks: Sequence[Block]) -> list[str]:
    return [block.text if isinstance(block, User) else block.kind for block in blocks]


@pytest.mark.virtual_time
async def test_an_injected_prompt_joins_the_active_run_at_its_next_model_call() -> None:
    core, store = await new_core(Stepper(look, steps=2))
    await core.admission.start(["go"], run_id="active")
    await asyncio.sleep(0.015)
    await core.admission.start(["left"], run_id="left", if_busy="inject", labels={"n": "1"})
    follower = asyncio.create_task(followed(core, "left"))
    await core.admission.start(["no, right"], run_id="right", if_busy="inject")
    await core.admission.start(["later"], run_id="later", if_busy="enqueue")
    await core.admission.start(["quick"], run_id="quick", if_busy="inject")
    assert core.reads.queued_run_ids == ["left", "right", "later", "quick"]
    active = await core.reads.wait("left")
    assert active.run.run_id == "active" and active.run.state == "completed"
    assert active == await core.reads.wait("right") == await core.reads.wait("active")
    assert active.turn and active.turn.text == "go, left, no, right"
    round_ = ["thinking", "tool_use", "tool_result"]
    assert kinds(active.turn.new_blocks) == ["go", *round_, "left", "no, right", *round_, "text"]
    later = await core.reads.wait("quick")
    assert later.run.run_id == "later", "it joined the run that came before it"
    turns = await check_session(store, SESSION)
    assert [turn.run_id for turn in turns] == ["active", "later"]
    runs = {run.run_id: run for run in await store.runs(SessionKey(SESSION))}
    assert {run_id: runs[run_id].leads_to for run_id in runs} == {
        "active": None,
        "left": "active",
        "right": "active",
        "later": None,
        "quick": "later",
    }
    events = await follower
    assert [event.kind for event in events if event.run_id == "left"] == ["run_queued", "run_cancelled"]
    assert isinstance(events[-1], RunCompleted) and events[-1].run_id == "active"
    joined = [event for event in await store.events(SessionKey(SESSION)) if isinstance(event, PromptJoined)]
    assert [(event.run_id, event.joined) for event in joined] == [
        *(("active", "left"), ("active", "right"), ("later", "quick"))
    ]
    messages, _ = await core.reads.messages(None, 50)
    prompts = [message.text for message in messages if message.role == "user"]
    assert prompts == ["go", "left", "no, right", "later", "quick"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("discarded_by", ["rollback", "cancel"])
async def test_no_appended_prompt_joins_a_run_with_which_it_could_be_discarded(discarded_by: str) -> None:
    core, store = await new_core(Stepper(look, steps=9), SessionConfig(on_cancel="discard"))
    await core.admission.start(["go"], run_id="active")
    await asyncio.sleep(0.015)
    await core.admission.append(["kept"], key="kept")
    await core.admission.start(["quick"], run_id="quick", if_busy="inject")
    await asyncio.sleep(0.03)  # the tool has ended
    if discarded_by == "rollback":
        await core.admission.start(["quick"], run_id="last", if_busy="rollback")
    else:
        await core.admission.cancel("stop", "active")
    last = await core.reads.wait("last" if discarded_by == "rollback" else "quick")
    assert last.turn and texts(last.turn.blocks) == ["kept", "quick"]
    await check_session(store, SESSION)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("go", "joined"),
    [
        ("go", {"small": "active", "large": None, "behind": "large"}),
        ("go" + 1300 * "o", {"small": None, "large": "small", "behind": "small"}),
    ],
)
async def test_a_large_prompt_does_not_join_and_fail_the_active_run(go: str, joined: dict[str, str | None]) -> None:
    """More than a quarter of the window, with those that joined before; or more than the active turn leaves of it."""
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))
    config = SessionConfig(max_context_tokens=1600, reserve_output_tokens=100, token_counter=ByteCounter())
    core = SessionCore(SessionKey(SESSION), store, Stepper(look, steps=2), config, overflow=Trim(), off_loop=inline)
    await core.admission.start([go], run_id="active")
    for run_id, letters in (("small", 200), ("large", 260), ("behind", 9)):
        await core.admission.start([run_id + letters * "x"], run_id=run_id, if_busy="inject")
    outcome = await core.reads.wait("behind")
    assert outcome.run.run_id == joined["behind"] and outcome.run.state == "completed"
    runs = {run.run_id: run for run in await store.runs(SessionKey(SESSION))}
    assert {run_id: runs[run_id].leads_to for run_id in joined} == joined
    assert runs["active"].state == "completed"
    await check_session(store, SESSION, compacts=True)


async def followed(core: SessionCore, run_id: str) -> list[Any]:
    events: list[Any] = []
    after, done = 0, False
    while not done:
        page, after, done = await core.reads.events(after, run_id=run_id, timeout_s=1.0)
        events += page
    return events


@pytest.mark.virtual_time
async def test_an_injected_prompt_is_the_next_run_if_the_active_one_calls_the_model_no_more() -> None:
    """Or if it takes none, is over a limit or a budget, or is cancelled, or if the prompt asks otherwise."""
    one_call = SessionConfig(run_budget=Budget(calls=1))
    for engine, prompt, config in (
        (None, "slow 3", None),
        (Stepper(look), "quick", None),
        (Stepper(look, most=1), "go", None),
        (Unwilling(look), "go", None),
        (Stepper(look), "go", one_call),
    ):
        core, store = await new_core(engine, config)
        await core.admission.start([prompt], run_id="active")
        await core.admission.start(["more quick"], run_id="next", if_busy="inject")
        outcome = await core.reads.wait("next")
        assert outcome.run.run_id == "next" and outcome.turn, "it is a run of its own"
        await check_session(store, SESSION)
    core, store = await new_core(Stepper(look))
    await core.admission.start(["go"], run_id="active")
    variants: dict[str, dict[str, Any]] = {
        "model": {"model": "m"},
        "time": {"timeout_s": 9.0},
        "turn": {"turn_id": "t"},
    }
    for run_id, options in variants.items():
        await core.admission.start([run_id], run_id=run_id, if_busy="inject", **options)
    await core.admission.start([Image(url="https://example.org/a.png")], run_id="image", if_busy="inject")
    await core.reads.wait("image")
    assert [turn.run_id for turn in await check_session(store, SESSION)] == ["active", *variants, "image"]
    core, store = await new_core(Stepper(look))
    await core.admission.start(["go"], run_id="active")
    await asyncio.sleep(0.02)
    await core.admission.start(["next"], run_id="next", if_busy="inject")
    await core.admission.cancel("stop", "active")
    outcome = await core.reads.wait("next")
    assert outcome.run.run_id == "next" and outcome.run.state == "completed"


@pytest.mark.virtual_time
@pytest.mark.parametrize("verdict", ["approved", "rejected"])
@pytest.mark.parametrize("moves", [False, True])
async def test_a_prompt_joins_a_run_that_waits_for_a_decision_after_it(verdict: Any, moves: bool) -> None:
    core, store = await new_core(Stepper(book))
    await core.admission.start(["go"], run_id="active")
    while not await core.reads.pending("active"):
        await asyncio.sleep(0.01)
    await core.admission.start(["with a window"], run_id="more", if_busy="inject")
    lost = core
    if moves:
        core = another(store, Stepper(book))
    (call,) = await core.reads.pending("active")
    before = len(await store.events(SessionKey(SESSION)))
    await core.approvals.decide("active", call.call_id, ApprovalDecision(verdict=verdict))
    decided = (await store.events(SessionKey(SESSION)))[before:]
    assert ("prompt_joined" in [event.kind for event in decided[:4]]) == (verdict == "rejected")
    outcome = await core.reads.wait("more")
    assert outcome.run.run_id == "active" and outcome.turn
    assert kinds(outcome.turn.new_blocks) == ["go", "thinking", "tool_use", "tool_result", "with a window", "text"]
    await check_session(store, SESSION)
    lost.transactor.give_up(SessionLostError(SESSION, "it was killed"))


QUIET: dict[str, Any] = {"if_busy": "debounce", "debounce_s": 2.0}


@pytest.mark.virtual_time
async def test_a_debounced_run_begins_after_silence_with_all_prompts_that_came_meanwhile() -> None:
    core, store = await new_core()
    now, began = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
    for number in range(3):
        await core.admission.start([f"part {number}"], run_id=f"run{number}", **QUIET)
        record = await core.reads.run(f"run{number}")
        assert (record.run_id, record.state, record.started_at) == ("run0", "queued", now() + 2.0)
        await asyncio.sleep(1.0)
    await core.admission.start(["and this"], run_id="merged", if_busy="merge")
    await core.admission.append(["for later"], key="later")
    await core.admission.start(["next"], run_id="next", if_busy="enqueue")
    assert core.reads.active_run_id is None and core.reads.queued_run_ids == ["run0", "next"]
    first = await core.reads.wait("run2")
    assert first.turn and texts(first.turn.blocks) == [*(f"part {n}" for n in range(3)), "and this"]
    assert first == await core.reads.wait("merged") and first.run.started_at == began + 4.0
    last = await core.reads.wait("next")
    assert last.turn and texts(last.turn.new_blocks) == ["for later", "next"]
    await core.admission.start(["slow 200"], run_id="slow")
    await core.admission.start(["soon"], run_id="soon", **QUIET)
    soon = await core.reads.wait("soon")
    assert soon.run.started_at == (await core.reads.run("slow")).ended_at, "it was due during the other run"
    await check_session(store, SESSION)


@pytest.mark.virtual_time
async def test_a_debounced_run_behind_another_one_keeps_its_silence_when_a_run_is_merged() -> None:
    core, store = await new_core()
    began = asyncio.get_running_loop().time()
    await core.admission.start(["slow 20"], run_id="active")
    await core.admission.start(["first"], run_id="first", if_busy="enqueue")
    await core.admission.start(["quiet"], run_id="quiet", **QUIET)
    acknowledged = Acknowledged()
    acknowledged.stored(SESSION, ["quiet"], 0.0, run_id="quiet", silence_s=QUIET["debounce_s"])
    await core.admission.start(["more"], run_id="more", if_busy="merge")
    assert core.reads.queued_run_ids == ["first", "quiet"]
    outcome = await core.reads.wait("more")
    assert outcome.turn and texts(outcome.turn.new_blocks) == ["quiet", "more"]
    assert outcome.run.run_id == "quiet" and outcome.run.started_at == began + 2.0
    await check_session(store, SESSION)
    (await audit(store, [SESSION], acknowledged)).check()


@pytest.mark.virtual_time
async def test_silence_goes_on_while_no_process_has_the_session() -> None:
    core, store = await new_core()
    now = asyncio.get_running_loop().time
    started = now()
    await core.admission.start(["hello"], run_id="run", **QUIET)
    await asyncio.sleep(1.0)
    second = another(store)
    await second.transactor.activate()
    outcome = await second.reads.wait("run")
    assert outcome.run.started_at == started + 2.0 and outcome.run.state == "completed"
    await second.admission.start(["again"], run_id="again", **QUIET)
    for lost in (core, second):
        lost.transactor.give_up(SessionLostError(SESSION, "it was killed"))
    await asyncio.sleep(5.0)
    assert (await store.run("again")).state == "queued", "nobody has the session"
    third = another(store)
    outcome = await third.reads.wait("again")
    assert outcome.run.started_at == now() and outcome.run.state == "completed"
    await check_session(store, SESSION)


@pytest.mark.virtual_time
async def test_a_session_that_waits_for_silence_is_busy() -> None:
    core, store = await new_core(config=SessionConfig(max_queued=2))
    await core.admission.start(["quiet"], run_id="quiet", **QUIET)
    with pytest.raises(SessionBusyError, match="quiet"):
        await core.admission.start(["no"], run_id="no")
    assert (await core.admission.start(["no"], run_id="no", if_busy="drop")).run_id == "quiet"
    for refused in (core.forgetting.clear(), core.forgetting.delete(), core.removals.remove(0, (), "key")):
        with pytest.raises(SessionBusyError, match="quiet"):
            await refused
    await core.admission.start(["behind"], run_id="behind", if_busy="inject")
    with pytest.raises(QueueFullError):
        await core.admission.start(["full"], run_id="full", **{**QUIET, "debounce_s": 1.0})
    assert await core.admission.cancel("stop", "quiet") is True
    assert (await store.run("quiet")).started_at is None, "it never began"
    behind = await core.reads.wait("behind")
    assert behind.turn and texts(behind.turn.blocks) == ["quiet", "behind"], "nothing keeps it waiting"
    for policy, earlier in (("latest", []), ("rollback", []), ("interrupt", ["soft"])):
        await core.admission.start(["soft"], run_id=f"before {policy}", **QUIET)
        await core.admission.start([policy], run_id=policy, if_busy=policy)  # type: ignore[arg-type]
        assert core.reads.active_run_id == policy
        outcome = await core.reads.wait(policy)
        assert outcome.turn and texts(outcome.turn.new_blocks) == [*earlier, policy]
    await core.admission.start(["last"], run_id="last", **QUIET)
    await core.admission.end_session()
    assert (await store.run("last")).state == "cancelled"
    await asyncio.sleep(5.0)
    assert core.reads.active_run_id is None
    await check_session(store, SESSION)


@pytest.mark.virtual_time
async def test_debounce_and_its_seconds_come_together() -> None:
    core, store = await new_core()
    for options in ({"if_busy": "debounce"}, {"debounce_s": 1.0}, {"if_busy": "enqueue", "debounce_s": 1.0}):
        with pytest.raises(InvalidInputError, match="debounce_s"):
            await core.admission.start(["hello"], run_id="run", **options)
    assert not await store.runs(SessionKey(SESSION))


@pytest.mark.parametrize("kind", ["encrypted", "postgresql", "redis"])
async def test_every_store_keeps_what_the_policies_need(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store: Any
    if kind == "encrypted":
        key = Encryption(lambda user: user.encode().ljust(32, b"."))
        store = EncryptedStore(SQLStore(f"sqlite:///{tmp_path}/store.db"), key)
    elif kind == "redis":
        store = RedisStore(request.getfixturevalue("redis_url"))
    else:
        store = SQLStore(request.getfixturevalue("database"))
    await store.create(SessionRecord(session_id=SESSION))
    engine = Stepper(look, steps=20)  # so many commits come between the first start and the run's end
    core = SessionCore(SessionKey(SESSION), store, engine)
    await core.admission.start(["go"], run_id="active")
    await core.admission.start(["quick"], run_id="gone", if_busy="enqueue", timeout_s=9.0)
    core = SessionCore(
        SessionKey(SESSION), store, engine, SessionConfig(on_lost="resume")
    )  # as if the process was lost
    await core.admission.start(["quick"], run_id="one", if_busy="latest")
    await core.admission.start(["quick"], run_id="two", if_busy="merge")
    await core.admission.start(["quick"], run_id="three", if_busy="debounce", debounce_s=0.05)
    expected: dict[str, tuple[str, str, str | None]] = {
        "active": ("active", "completed", None),
        "gone": ("gone", "cancelled", "replaced"),
        "one": ("one", "completed", None),
        "two": ("one", "completed", None),
        "three": ("three", "completed", None),
    }
    for run_id, ending in expected.items():
        outcome = await core.reads.wait(run_id, 60.0)
        assert (outcome.run.run_id, outcome.run.state, outcome.run.code) == ending
    await core.admission.start(["go on"], run_id="more")
    await core.admission.start(["and this"], run_id="this", if_busy="inject")
    assert await core.reads.wait("this", 60.0) == await core.reads.wait("more", 60.0)
    records = {record.run_id: record for record in await store.runs(SessionKey(SESSION))}
    assert (records["this"].leads_to, records["this"].joins) == ("more", True)
    await check_session(store, SESSION)
    await store.close()


class CountingStore(InMemoryStore):
    """Counts transactions."""

    commits = 0

    async def commit(self, *args: Any) -> None:
        self.commits += 1
        await super().commit(*args)


@pytest.mark.virtual_time
async def test_merge_and_inject_add_no_transaction_to_those_of_enqueue() -> None:
    """Three prompts while a run calls a tool: one transaction stores each, whatever becomes of it."""
    counts: dict[str, int] = {}
    policies: tuple[IfBusy, ...] = ("enqueue", "merge", "inject")
    for policy in policies:
        store = CountingStore()
        core, _ = await new_core(Stepper(look), store=store)
        await core.admission.start(["go"], run_id="active")
        for number in range(3):
            before = store.commits
            await core.admission.start(["quick"], run_id=f"run{number}", if_busy=policy)
            assert store.commits == before + 1
        for number in range(3):
            await core.reads.wait(f"run{number}")
        counts[policy] = store.commits
    # The active run: its start, the start of its tool, the tool's result, its end with the next start. Other runs: an
    # end each, with the next one's start.
    print(f"transactions for a run with a tool and three prompts: {counts}")
    assert counts == {"enqueue": 4 + 3 + 3, "merge": 4 + 3 + 1, "inject": 4 + 3}


POLICIES: dict[IfBusy, dict[str, Any]] = {
    "latest": {},
    "drop": {},
    "merge": {},
    "inject": {},
    "debounce": {"debounce_s": 0.05},
}


def life_of(policy: IfBusy) -> Life:
    calls, config = share(1), SessionConfig(cancel_grace_s=0.1, idle_s=1e9, on_lost="resume")

    async def life(faults: Faults) -> None:
        """A run; a prompt appended and two started meanwhile. With all schedules, the run calls a tool."""
        engine = FaultyEngine(faults, tools=ToolRegistry(look, retries=0), late_s=0.2, word_s=0.01)
        world = World(faults, engine=engine, config=config)
        await world.create()
        runs = [await world.start("call:look one" if calls or policy == "inject" else "one")]
        await world.append("appended")
        runs += [await world.start(prompt, if_busy=policy, **POLICIES[policy]) for prompt in ("two", "three")]
        for run_id in runs:
            if (await world.ask("reads.wait", run_id, 2.0)).run.is_open:  # its engine hangs
                await world.cancel(run_id)
            await world.wait(run_id)
        (await world.audit()).check()

    return life


@pytest.mark.by_turns
@pytest.mark.parametrize("policy", POLICIES)
def test_no_fault_at_any_point_loses_or_doubles_a_prompt(policy: IfBusy) -> None:
    struck = exhaust(life_of(policy), **of_cases())
    assert struck["kill"] > 20 and struck["crash"] > 5
