"""Events of callers' own: from tools, from engines, and from outside."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from engines import ScriptedEngine
from schedules import SESSION, inline
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import external_tool, tool
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    CallDecidedError,
    RunNotFoundError,
    SessionEndedError,
    StoreError,
    ToolError,
)
from turnwise.memory.conversation.blocks import AnyBlock, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.events import (
    AnyEvent,
    CustomEvent,
    PlannerNote,
    RunEnded,
    StepStarted,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    without_blocks,
)
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.steps import steps_of
from turnwise.memory.stores.in_memory import InMemoryStore

pytestmark = pytest.mark.virtual_time


@tool
async def search(query: str, context: ToolContext) -> str:
    """Search."""
    context.event("progress", {"done": 1, "of": 2})
    with context.step("fetch"):
        await asyncio.sleep(1)
        with context.step("parse") as parse:
            context.event("progress", {"done": 2, "of": 2})
    return f"found {query}, {bool(parse)}"


@tool
def count(context: ToolContext) -> str:
    """Count, on a thread of its own."""
    context.event("thread", {"main": threading.current_thread() is threading.main_thread()})
    return "3"


class Planner:
    """Notes its plan, calls two tools, and answers."""

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(self, ToolRegistry(search, count))

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        if any(isinstance(block, ToolResult) for block in turn.output):
            context.event("answered")
            return [Text(text="Done.")]
        context.note("search first, then answer")
        return [ToolUse(call_id="a", name="search", input={"query": "boats"}), ToolUse(call_id="b", name="count")]


class Failing(InMemoryStore):
    """A store that fails once: at commit number `failing_commit`, after it is stored if `stores` is true."""

    def __init__(self, failing_commit: int, *, stores: bool) -> None:
        super().__init__()
        self.failing_commit, self.stores, self.commits = failing_commit, stores, 0

    async def commit(self, *args: Any) -> None:
        self.commits += 1
        if self.commits == self.failing_commit and not self.stores:
            raise StoreError("the store is away")
        await super().commit(*args)
        if self.commits == self.failing_commit:
            raise StoreError("the answer is lost")


async def a_core(store: Any = None, engine: Any = None) -> tuple[SessionCore, Any]:
    store = store or InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))
    return SessionCore(SessionKey(SESSION), store, engine or Planner(), off_loop=inline), store


async def events_of(store: Any) -> list[AnyEvent]:
    return list(await store.events(SessionKey(SESSION)))


def own_of(events: Sequence[AnyEvent]) -> list[str]:
    return [event.name for event in events if isinstance(event, CustomEvent)]


async def test_events_of_tools_and_engines_are_stored_in_order_within_their_run() -> None:
    core, store = await a_core()
    await core.admission.start(["go"], run_id="run")
    await core.reads.wait("run")
    events = await events_of(store)
    assert sorted(own_of(events)) == ["answered", "progress", "progress", "thread"]
    assert isinstance(events[-1], RunEnded) and {event.run_id for event in events} == {"run"}
    custom = [event for event in events if isinstance(event, CustomEvent)]
    assert [dict(event.data) for event in custom if event.name == "progress"] == [
        *({"done": 1, "of": 2}, {"done": 2, "of": 2}),
    ]
    (note,) = [event for event in events if isinstance(event, PlannerNote)]
    assert note.text == "search first, then answer"
    ended = next(event for event in events if isinstance(event, ToolEnded) and event.name == "search")
    assert all(event.seq < ended.seq for event in custom if event.name == "progress")
    live, _, _ = await core.reads.events(run_id="run")
    assert [without_blocks(event) for event in live if not event.live] == events


async def test_steps_nest_within_their_tool_call() -> None:
    core, store = await a_core()
    await core.admission.start(["go"], run_id="run")
    await core.reads.wait("run")
    events = await events_of(store)
    fetch, parse = [step for step in steps_of(events) if step.kind == "step"]
    assert (fetch.name, fetch.parent, parse.name, parse.parent) == ("fetch", "a", "parse", fetch.id)
    assert fetch.seconds is not None and not fetch.is_error
    progress = [event.step for event in events if isinstance(event, CustomEvent) and event.name == "progress"]
    assert progress == ["a", parse.id]
    assert [event.parent for event in events if isinstance(event, StepStarted)] == ["a", fetch.id]


async def test_a_step_whose_body_raises_is_an_error() -> None:
    async def answer(turn: Turn, context: Any) -> str:
        with suppress(KeyError), context.step("fetch"):
            raise KeyError("boats")
        with context.step("parse"):
            return "done"

    core, store = await a_core(engine=FunctionEngine(answer))
    await core.admission.start(["go"], run_id="run")
    await core.reads.wait("run")
    steps = [step for step in steps_of(await events_of(store)) if step.kind == "step"]
    assert [(step.name, step.is_error) for step in steps] == [("fetch", True), ("parse", False)]


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("failing_commit", range(2, 8))
async def test_an_event_is_stored_once_whatever_commit_fails(failing_commit: int, stores: bool) -> None:
    core, store = await a_core(Failing(failing_commit, stores=stores))
    await core.admission.start(["go"], run_id="run")
    outcome = await core.reads.wait("run")
    assert outcome.run.state == "completed"
    assert store.commits >= failing_commit - 1
    events = await events_of(store)
    assert sorted(own_of(events)) == ["answered", "progress", "progress", "thread"]
    assert isinstance(events[-1], RunEnded)
    assert len([event for event in events if isinstance(event, PlannerNote)]) == 1


class Wrong:
    """Adds an event that cannot be stored."""

    def __init__(self, name: Any, data: Any) -> None:
        self.wrong = name, data

    def build(self, session: SessionView) -> Wrong:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        context.event(*self.wrong)
        return [Text(text="unreachable")]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [("", {}, "blank"), (3, {}, "not a string"), ("x", [1], "mapping"), ("x", {"a": object()}, "data")],
)
async def test_a_wrong_event_fails_its_caller(name: Any, data: Any, reason: str) -> None:
    core, store = await a_core(engine=Wrong(name, data))
    await core.admission.start(["go"], run_id="run")
    outcome = await core.reads.wait("run")
    assert outcome.run.state == "failed" and reason in str(outcome.run.why)
    assert own_of(await events_of(store)) == []


def test_a_tool_in_another_process_is_told_what_to_do() -> None:
    session = SessionView(session_id="s", user_id="u", agent=None, metadata={})
    there: ToolContext = pickle.loads(pickle.dumps(ToolContext(session=session, run_id="r", turn_index=0, call_id="c")))
    with pytest.raises(ToolError, match=r"'c'.*'r'.*ExecutionHandle.add_event"):
        there.event("progress")


async def test_events_from_outside_belong_to_a_run_or_to_the_session() -> None:
    core, store = await a_core(engine=ScriptedEngine())
    first = await core.additions.add_event("imported", {"from": "crm"}, "k1")
    assert await core.additions.add_event("imported", {"from": "crm"}, "k1") == first, "the second delivery"
    await core.admission.start(["slow 500"], run_id="run")
    within = await core.additions.add_event("watched", None, "k2", run_id="run")
    await core.admission.cancel("enough", "run")
    assert await core.additions.add_event("watched", None, "k2", run_id="run") == within, (
        "the second delivery, after the run's end"
    )
    late = await core.additions.add_event("late", None, "k3", run_id="run")
    assert await core.additions.add_event("late", None, "k3", run_id="run") == late
    with pytest.raises(RunNotFoundError):
        await core.additions.add_event("late", None, "k5", run_id="other")
    events = [event for event in await events_of(store) if isinstance(event, CustomEvent)]
    assert [(event.seq, event.name, event.run_id) for event in events] == [
        (first, "imported", None),
        (within, "watched", "run"),
        (late, "late", "run"),
    ]
    await core.admission.end_session()
    with pytest.raises(SessionEndedError):
        await core.additions.add_event("late", None, "k4")
    assert await core.additions.add_event("late", None, "k3", run_id="run") == late, (
        "a delivery after the session's end"
    )
    with pytest.raises(SessionEndedError):
        await core.additions.add_event("late", None, "k5", run_id="run")


async def test_a_run_may_have_a_parent_run_of_the_same_user() -> None:
    core, store = await a_core(engine=ScriptedEngine())
    await core.admission.start(["plan"], run_id="parent")
    await core.reads.wait("parent")
    await store.create(SessionRecord(session_id="sub"))
    await store.create(SessionRecord(session_id="stranger", user_id="eve"))
    sub, stranger = (
        SessionCore(key, store, ScriptedEngine()) for key in (SessionKey("sub"), SessionKey("stranger", "eve"))
    )
    await sub.admission.start(["do"], run_id="child", parent="parent")
    await sub.reads.wait("child")
    assert (await store.run("child")).parent == "parent"
    for child_core, parent in ((sub, "nobody"), (stranger, "parent")):
        with pytest.raises(RunNotFoundError, match=parent):
            await child_core.admission.start(["do"], run_id="other", parent=parent)


class Streaming:
    """Streams thoughts and texts in turn, then a JSON result of a tool is provided from outside."""

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(self, ToolRegistry(external_tool("ask", "Asks.", {"type": "object"}), prices))

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        if turn.output:
            return [Text(text="Done.")]
        parts: list[Any] = [Thinking(text="a"), Thinking(text="b", signature="s"), Thinking(text="c"), "d", "e"]
        for part in parts:
            context.emit(part)
        await asyncio.sleep(1)
        context.emit("f")
        context.emit(Thinking(text="g"))
        return [Text(text="def"), ToolUse(call_id="x", name="ask"), ToolUse(call_id="y", name="prices")]


@tool
def prices() -> dict[str, int]:
    """Say prices."""
    return {"tea": 3}


async def test_streamed_parts_have_indexes_and_results_have_payloads() -> None:
    core, _ = await a_core(engine=Streaming())
    await core.admission.start(["go"], run_id="run")
    while not await core.reads.pending("run"):
        await asyncio.sleep(0.1)
    decision = ApprovalDecision(verdict="provided", text='{"answer":[1]}', is_json=True)
    for _ in range(2):
        await core.approvals.decide("run", "x", decision)
    with pytest.raises(CallDecidedError):
        await core.approvals.decide("run", "x", ApprovalDecision(verdict="provided", text='{"answer":[1]}'))
    outcome = await core.reads.wait("run")
    assert outcome.turn
    results = [block for block in outcome.turn.output if isinstance(block, ToolResult)]
    assert [(result.call_id, result.data) for result in results] == [("x", {"answer": (1,)}), ("y", {"tea": 3})]
    events, _, _ = await core.reads.events(run_id="run")
    deltas = [(event.index, event.text) for event in events if isinstance(event, TextDelta | ThinkingDelta)]
    assert deltas[:3] == [(0, "a"), (0, "b"), (1, "c")] and deltas[-2:] == [(3, "g"), (3, "")]
    assert "".join(text for index, text in deltas if index == 2) == "def"
