"""`ToolLoop` in a `SessionCore`, without Ray; its races are in test_histories.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from schedules import SESSION, inline
from stored.watched_store import WatchedStore
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext, Suspend
from turnwise.actors.inference.tools.loop import LOST, ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import CallDecidedError, CallNotFoundError, EngineError, InvalidInputError
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, CallState, decode_calls
from turnwise.memory.conversation.events import Event, ModelCallEnded, RunCompleted, RunResumed, ToolEnded, ToolStarted
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Outcome, Turn
from turnwise.memory.conversation.views.steps import steps_of
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.strategies.strategy import OverflowStrategy

pytestmark = pytest.mark.virtual_time

Script = Sequence[Sequence[AnyBlock]]


def use(call_id: str, name: str, /, **arguments: Any) -> ToolUse:
    return ToolUse(call_id=call_id, name=name, input=arguments)


class Scripted:
    """A model that answers with the steps of a script, by its number of messages in the run; repeats the last step."""

    def __init__(self, script: Script, registry: ToolRegistry) -> None:
        self.script = script
        self.registry = registry
        self.given: list[tuple[AnyBlock, ...]] = []

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(self, self.registry)

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        self.given.append(turn.blocks)
        answer_count = len([message for message in Ledger(turn.output).messages() if message.role == "assistant"])
        return self.script[min(answer_count, len(self.script) - 1)]


class Stage:
    """A store with one session, and the cores that own it one after the other."""

    def __init__(self, engine: Any, *, overflow: OverflowStrategy | None = None, **settings: Any) -> None:
        self.store: Any = InMemoryStore()
        self.engine = engine
        self.overflow = overflow
        self.config = SessionConfig(**settings)
        self.core: SessionCore
        self.new_core()

    def new_core(self) -> SessionCore:
        now = asyncio.get_running_loop().time
        self.core = SessionCore(
            SessionKey(SESSION),
            self.store,
            self.engine,
            self.config,
            overflow=self.overflow,
            clock=now,
            off_loop=inline,
        )
        return self.core

    async def create(self) -> None:
        await self.store.create(SessionRecord(session_id=SESSION))

    async def start(self, **settings: Any) -> None:
        await self.create()
        await self.core.admission.start(["go"], run_id="run", **settings)

    async def run(self) -> Outcome:
        await self.start()
        return await self.outcome()

    async def outcome(self) -> Outcome:
        return await self.core.reads.wait("run")

    async def events(self) -> list[Event]:
        return [event for event in (await self.core.reads.events())[0] if not event.live]

    async def until(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        while not await holds():
            await asyncio.sleep(0.01)

    async def awaits(self) -> bool:
        return (await self.core.reads.run("run")).state == "awaiting_approval"


def results(outcome: Outcome) -> list[ToolResult]:
    assert outcome.turn
    return [block for block in outcome.turn.output if isinstance(block, ToolResult)]


async def test_parallel_results_keep_the_order_of_calls_and_fail_alone() -> None:
    """Cases 24 and 31: at most `max_parallel` at once, whichever ends first."""
    busy, most, order = [0], [0], list[int]()

    @tool
    async def work(number: int, seconds: float) -> str:
        """Work."""
        busy[0] += 1
        most[0] = max(most)
        most.append(busy[0])
        await asyncio.sleep(seconds)
        busy[0] -= 1
        order.append(number)
        if number == 1:
            raise ValueError("broken")
        return str(number)  # text is no work for a thread, on which virtual time does not wait

    calls = [use(f"c{n}", "work", number=n, seconds=s) for n, s in enumerate((0.1, 0.02, 0.03, 0.0))]

    stage = Stage(Scripted([[Text(text="let me"), *calls], [Text(text="done")]], ToolRegistry(work, max_parallel=2)))
    outcome = await stage.run()
    assert outcome.run.state == "completed" and outcome.turn and outcome.turn.text == "done"
    assert [result.text for result in results(outcome)] == ["0", "ValueError: broken", "2", "3"]
    assert [result.is_error for result in results(outcome)] == [False, True, False, False]
    assert order == [1, 2, 3, 0] and max(most) == 2
    assert stage.engine.given[1] == outcome.turn.blocks[:-1], "the model is shown what the history holds"
    events = await stage.events()
    kinds = [type(event) for event in events]
    assert kinds.index(ModelCallEnded) < kinds.index(ToolStarted) < kinds.index(ToolEnded)
    assert [event.call_id for event in events if isinstance(event, ToolEnded)] == ["c1", "c2", "c3", "c0"]
    steps = steps_of(events)
    assert [(step.kind, step.name, step.is_error) for step in steps] == [
        ("model", "", False),
        *(("tool", "work", failed) for failed in (False, True, False, False)),
        ("model", "", False),
    ]
    assert all(step.seconds is not None and step.seconds >= 0 for step in steps)
    assert outcome.run.usage and (outcome.run.usage.calls, outcome.run.usage.tool_calls) == (2, 4)
    assert (await stage.core.reads.session()).usage == outcome.run.usage


async def test_an_abort_stops_the_run_and_keeps_the_results_of_other_calls() -> None:
    """Case 31."""

    @tool
    async def quick() -> str:
        return "quick"

    @tool
    async def breaks() -> None:
        await asyncio.sleep(0.02)
        raise ValueError("broken")

    @tool
    async def long() -> None:
        await asyncio.sleep(60)

    calls: list[AnyBlock] = [use("a", "long"), use("b", "breaks"), use("c", "quick")]
    stage = Stage(Scripted([calls, [Text(text="no")]], ToolRegistry(quick, breaks, long, on_error="abort")))
    outcome = await stage.run()
    assert outcome.run.state == "failed" and "breaks" in str(outcome.run.why)
    a, b, c = results(outcome)
    assert a.is_error and "cancelled" in a.text and b.is_error and c.text == "quick"
    assert len(stage.engine.given) == 1


async def test_results_that_arrive_together_with_an_abort_are_kept() -> None:
    """Case 31: results that are there and were not recorded yet."""

    @tool
    async def quick(number: int) -> int:
        await asyncio.sleep(1)
        return number

    @tool
    async def breaks() -> None:
        await asyncio.sleep(1)
        raise ValueError("broken")

    calls: list[AnyBlock] = [use("a", "quick", number=1), use("b", "breaks"), use("c", "quick", number=2)]
    outcome = await Stage(Scripted([calls], ToolRegistry(quick, breaks, on_error="abort"))).run()
    assert [result.text for result in results(outcome) if not result.is_error] == ["1", "2"]


async def test_a_model_call_discards_what_an_earlier_one_streamed() -> None:
    class Retrying:
        def build(self, session: SessionView) -> InferenceRunner:
            return self

        async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
            context.begin_call()
            context.emit("half an ")
            context.begin_call()
            context.emit("all of it")
            await asyncio.sleep(60)
            raise AssertionError("cancelled before")

    stage = Stage(Retrying())
    await stage.start()
    await asyncio.sleep(1)
    assert Ledger.replay((await stage.core.reads.events())[0]).blocks() == [Text(text="all of it")]
    await stage.core.admission.cancel("enough")
    outcome = await stage.outcome()
    assert outcome.turn and outcome.turn.text == "all of it" and outcome.turn.output[0].interrupted  # type: ignore[union-attr]


async def test_a_runs_seconds_do_not_count_its_waiting_for_approval() -> None:
    @tool(approval=True)
    async def work() -> str:
        await asyncio.sleep(6)
        return "worked"

    async def story(timeout_s: float) -> Outcome:
        stage = Stage(Scripted([[use("a", "work")], [use("b", "work")], [Text(text="done")]], ToolRegistry(work)))
        await stage.start(timeout_s=timeout_s)
        for call in "ab":
            await stage.until(stage.awaits)
            await asyncio.sleep(100)
            await stage.core.approvals.decide("run", call, ApprovalDecision(verdict="approved"))
            if call == "a":
                await asyncio.sleep(7)
        return await stage.outcome()

    enough, short = await story(13), await story(11)
    assert enough.run.state == "completed" and enough.run.usage and 12 <= enough.run.usage.seconds < 13
    assert (short.run.state, short.run.code) == ("failed", "timeout")
    assert [result.is_error for result in results(short)] == [False, True]


async def test_a_run_at_its_step_limit_keeps_its_results() -> None:
    """Case 22."""

    @tool
    async def look() -> str:
        return "seen"

    class Restless(Scripted):
        async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
            self.given.append(turn.blocks)
            return [use(f"c{len(self.given)}", "look")]

    stage = Stage(Restless([], ToolRegistry(look, max_steps=3)))
    outcome = await stage.run()
    assert (outcome.run.state, outcome.run.code, outcome.run.finish) == ("failed", "step_limit", "error")
    assert "max_steps" in str(outcome.run.why)
    assert outcome.turn and outcome.turn.stop_reason == "step_limit"
    assert [result.text for result in results(outcome)] == ["seen"] * 3


async def test_an_unknown_tool_or_invalid_arguments_become_an_error_result() -> None:
    """Case 32."""

    @tool
    async def double(number: int) -> int:
        return 2 * number

    @tool
    async def secret() -> str:
        raise AssertionError("it is denied")

    calls = [use("a", "nothing"), use("b", "secret"), use("c", "double", number="x"), use("d", "double", number=4)]
    stage = Stage(Scripted([calls, [Text(text="done")]], ToolRegistry(double, secret, deny=["secret"])))
    outcome = await stage.run()
    a, b, c, d = results(outcome)
    assert outcome.run.state == "completed" and d.text == "8"
    assert a.is_error and b.is_error and c.is_error and "number" in c.text
    assert "secret" not in a.text, "the model is not told of a tool that it may not call"


@pytest.mark.parametrize("repeatable", [False, True])
async def test_a_lost_run_continues_after_its_last_result(repeatable: bool) -> None:
    """Case 33: calls with a result are not repeated; calls that had begun only if their tool is repeatable."""
    called: list[str] = []

    @tool
    async def quick() -> str:
        called.append("quick")
        return "quick"

    @tool(repeatable=repeatable)
    async def slow() -> str:
        called.append("slow")
        await asyncio.sleep(60 if called.count("slow") == 1 else 0)
        return "slow"

    script: Script = [[use("a", "quick"), use("b", "slow")], [Text(text="done")]]
    stage = Stage(Scripted(script, ToolRegistry(quick, slow)), on_lost="resume")
    await stage.start()
    await stage.until(lambda: _has(stage, ToolEnded))
    first = stage.core
    outcome_of_first = asyncio.ensure_future(first.reads.wait("run"))
    stage.new_core()
    outcome = await stage.outcome()
    assert called == ["quick", "slow", "slow"] if repeatable else ["quick", "slow"]
    quickly, slowly = results(outcome)
    assert quickly.text == "quick" and slowly.text == ("slow" if repeatable else LOST)
    assert outcome.run.resumes == 1 and outcome.run.state == "completed"
    resumed = [event for event in await stage.events() if isinstance(event, RunResumed)]
    assert len(resumed) == 1
    outcome_of_first.cancel()


async def _has(stage: Stage, kind: type[Event]) -> bool:
    return any(isinstance(event, kind) for event in await stage.events())


async def test_a_run_that_kills_its_process_is_resumed_a_few_times() -> None:
    @tool(repeatable=True)
    async def deadly() -> None:
        await asyncio.sleep(60)

    stage = Stage(Scripted([[use("a", "deadly")]], ToolRegistry(deadly)), on_lost="resume", max_resumes=2)
    await stage.start()
    await stage.until(lambda: _has(stage, ToolStarted))
    for resumes in (1, 2):
        stage.new_core()
        assert (await stage.core.reads.run("run")).resumes == resumes
    stage.new_core()
    outcome = await stage.outcome()
    assert outcome.run.state == "interrupted" and "max_resumes allows" in str(outcome.run.why)
    assert results(outcome)[0].is_error


async def test_a_run_that_may_not_resume_does_not_report_too_many_resumes() -> None:
    @tool
    async def slow() -> None:
        await asyncio.sleep(60)

    stage = Stage(Scripted([[use("a", "slow")]], ToolRegistry(slow)), on_lost="resume")
    await stage.start()
    await stage.until(lambda: _has(stage, ToolStarted))
    stage.new_core().use(stage.engine, SessionConfig(on_lost="interrupt"), runs=["run"])
    outcome = await stage.outcome()
    assert outcome.run.state == "interrupted" and "max_resumes" not in str(outcome.run.why)


def approving() -> tuple[Scripted, list[str]]:
    called: list[str] = []

    @tool(approval=True)
    async def delete(path: str) -> str:
        called.append(path)
        return f"deleted {path}"

    script: Script = [[use("a", "delete", path="/etc")], [Text(text="done")]]
    return Scripted(script, ToolRegistry(delete)), called


async def test_a_call_waits_for_approval_across_processes() -> None:
    """The process may end meanwhile; after repeated approvals, the call is made once."""

    engine, called = approving()
    stage = Stage(engine)
    await stage.start()
    await stage.until(stage.awaits)
    (pending,) = await stage.core.reads.pending("run")
    assert (pending.call_id, pending.name, dict(pending.input)) == ("a", "delete", {"path": "/etc"})
    assert (await stage.core.reads.run("run")).finish == "tool_calls_pending"
    assert await stage.core.ownership.leave(), "a waiting run keeps no process"
    stage.new_core()
    assert await stage.core.reads.pending("run") == [pending] and not called
    for _ in range(2):
        await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="approved"))
    outcome = await stage.outcome()
    assert called == ["/etc"] and results(outcome)[0].text == "deleted /etc"
    await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="approved"))
    with pytest.raises(CallDecidedError, match="approved"):
        await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="rejected"))
    with pytest.raises(CallNotFoundError):
        await stage.core.approvals.decide("run", "b", ApprovalDecision(verdict="approved"))


async def test_a_repeated_call_id_is_another_call_with_its_own_approval() -> None:
    """Some servers restart ids in each answer: a decision about one call must not apply to the next."""

    engine, called = approving()
    engine.script = [
        [use("call_0", "delete", path="/etc")],
        [use("call_0", "delete", path="/home"), use("call_0", "delete", path="/tmp/x")],
        [Text(text="done")],
    ]
    stage = Stage(engine)
    await stage.start()
    await stage.until(stage.awaits)
    await stage.core.approvals.decide("run", "call_0", ApprovalDecision(verdict="rejected", text="no"))
    await asyncio.sleep(1)
    pending = [(call.call_id, call.input["path"]) for call in await stage.core.reads.pending("run")]
    assert pending == [("call_0_2", "/home"), ("call_0_3", "/tmp/x")] and not called
    await stage.core.approvals.decide("run", "call_0_2", ApprovalDecision(verdict="rejected", text="no"))
    await stage.core.approvals.decide("run", "call_0_3", ApprovalDecision(verdict="approved"))
    outcome = await stage.outcome()
    assert called == ["/tmp/x"] and outcome.run.state == "completed"
    assert [result.text for result in results(outcome)] == ["rejected: no", "rejected: no", "deleted /tmp/x"]


@pytest.mark.parametrize(
    ("decision", "result", "ran"),
    [
        (ApprovalDecision(verdict="rejected", text="never"), "rejected: never", []),
        (ApprovalDecision(verdict="provided", text="it is gone"), "it is gone", []),
        (ApprovalDecision(verdict="approved", input={"path": "/tmp/x"}), "deleted /tmp/x", ["/tmp/x"]),
    ],
    ids=["rejected", "provided", "edited"],
)
async def test_the_model_and_the_history_show_the_decision(
    decision: ApprovalDecision, result: str, ran: list[str]
) -> None:
    engine, called = approving()
    stage = Stage(engine)
    await stage.start()
    await stage.until(stage.awaits)
    await stage.core.approvals.decide("run", "a", decision)
    outcome = await stage.outcome()
    assert called == ran and results(outcome)[0].text == result
    assert results(outcome)[0].is_error == (decision.verdict == "rejected")
    assert outcome.turn and outcome.turn.text == "done"
    (call,) = [block for block in outcome.turn.output if isinstance(block, ToolUse)]
    assert call.input == (decision.input or {"path": "/etc"})
    assert engine.given[1] == outcome.turn.blocks[:-1]
    events = await stage.events()
    assert Ledger.replay(events).blocks() == list(outcome.turn.output)
    assert isinstance(events[-1], RunCompleted)


WRONG_EDITS: list[dict[str, Any]] = [{"path": 7}, {}, {"path": "/tmp", "force": True}, {"path": None}]


@pytest.mark.parametrize("is_back", [False, True], ids=["same process", "process that came back"])
async def test_invalid_edited_arguments_store_nothing_and_can_be_corrected(is_back: bool) -> None:
    engine, called = approving()
    stage = Stage(engine)
    await stage.start()
    await stage.until(stage.awaits)
    if is_back:
        assert await stage.core.ownership.leave()
        stage.new_core()
    events, record = await stage.events(), await stage.core.reads.run("run")
    for wrong in WRONG_EDITS:
        with pytest.raises(InvalidInputError, match=r"input=.*'delete'.*(path|force)"):
            await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="approved", input=wrong))
    assert await stage.events() == events and await stage.core.reads.run("run") == record
    for _ in range(2):
        await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="approved", input={"path": "/tmp"}))
    assert results(await stage.outcome())[0].text == "deleted /tmp" and called == ["/tmp"]
    with pytest.raises(CallDecidedError):
        await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="approved", input={"path": 7}))


async def test_an_engine_that_cannot_be_built_leaves_an_edited_call_undecided() -> None:
    class Unbuildable(Scripted):
        def build(self, session: SessionView) -> InferenceRunner:
            raise SystemExit("no key")

    engine, called = approving()
    stage = Stage(engine)
    await stage.start()
    await stage.until(stage.awaits)
    assert await stage.core.ownership.leave()
    stage.engine = Unbuildable(engine.script, engine.registry)
    stage.new_core()
    edit = ApprovalDecision(verdict="approved", input={"path": "/tmp"})
    with pytest.raises(EngineError, match=r"'delete' cannot be checked: .*SystemExit"):
        await stage.core.approvals.decide("run", "a", edit)
    assert [call.call_id for call in await stage.core.reads.pending("run")] == ["a"]
    assert await stage.core.ownership.leave()
    stage.engine = engine
    stage.new_core()
    await stage.core.approvals.decide("run", "a", edit)
    assert results(await stage.outcome())[0].text == "deleted /tmp" and called == ["/tmp"]


async def test_a_too_deeply_nested_call_fails_only_its_run() -> None:
    """Otherwise a block could be stored that no JSON parser reads, and the session could not be loaded again."""
    arguments: Any = "deep"
    for _ in range(230):
        arguments = {"a": arguments}

    engine, called = approving()
    engine.script = [[use("a", "delete", path=arguments)]]
    stage = Stage(engine)
    outcome = await stage.run()
    assert outcome.run.state == "failed" and "nested more than 100 levels" in str(outcome.run.why)
    stage.new_core()
    assert [turn.index for turn in await stage.core.reads.turns()] == [0] and not called
    engine.script = [[Text(text="done")]]
    await stage.core.admission.start(["again"], run_id="next")
    assert (await stage.core.reads.wait("next")).run.state == "completed"


async def test_two_concurrent_edits_build_one_engine_which_is_closed() -> None:
    built: list[Any] = []
    closed: list[Any] = []

    class Slow(Scripted):
        def build(self, session: SessionView) -> InferenceRunner:
            async def close() -> None:
                closed.append(loop)

            loop = ToolLoop(self, self.registry, close=close)
            built.append(loop)
            return loop

    async def off_loop(work: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0.1)
        return work(*args)

    engine, called = approving()
    stage = Stage(engine)
    await stage.start()
    await stage.until(stage.awaits)
    assert await stage.core.ownership.leave()
    slow = Slow(engine.script, engine.registry)
    stage.core = SessionCore(SessionKey(SESSION), stage.store, slow, off_loop=off_loop)
    edits = [ApprovalDecision(verdict="approved", input={"path": path}) for path in ("/a", "/a")]
    await asyncio.gather(*(stage.core.approvals.decide("run", "a", edit) for edit in edits))
    await stage.outcome()
    assert await stage.core.ownership.leave()
    assert called == ["/a"] and len(built) == 1 and closed == built


async def test_a_waiting_run_can_be_cancelled_and_keeps_its_decisions() -> None:
    @tool(approval=True)
    async def act(what: str) -> str:
        raise AssertionError("nobody approved")

    calls = [use("a", "act", what="one"), use("b", "act", what="two")]
    stage = Stage(Scripted([calls, [Text(text="done")]], ToolRegistry(act)))
    await stage.start()
    await stage.until(stage.awaits)
    await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="provided", text="by hand"))
    assert await stage.awaits(), "it goes on when all is decided"
    stage.new_core()
    assert await stage.core.admission.cancel("enough") is True
    outcome = await stage.outcome()
    assert [result.text for result in results(outcome)] == ["by hand", "cancelled: enough"]
    with pytest.raises(CallDecidedError, match="cancelled"):
        await stage.core.approvals.decide("run", "b", ApprovalDecision(verdict="approved"))


async def test_decisions_of_the_wrong_kind_are_refused() -> None:
    from turnwise.actors.inference.tools.tool import external_tool

    outside = external_tool("outside", "Runs elsewhere.", {"type": "object"})
    stage = Stage(Scripted([[use("a", "outside")], [Text(text="done")]], ToolRegistry(outside)))
    await stage.start()
    await stage.until(stage.awaits)
    assert [call.wants for call in await stage.core.reads.pending("run")] == ["result"]
    with pytest.raises(InvalidInputError, match="provide"):
        await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="approved"))
    await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="provided", text="42"))
    assert results(await stage.outcome())[0].text == "42"


async def test_a_run_killed_right_after_asking_for_an_approval_waits_for_it() -> None:
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    engine = Scripted([[use("c1", "pay")], [Text(text="done")]], ToolRegistry(pay))
    kills: list[InMemoryStore] = []
    stage = Stage(engine, on_lost="resume")
    stage.store = WatchedStore(kills.append)
    stage.new_core()
    await stage.start()
    await stage.until(stage.awaits)
    stores = [store for store in kills if "c1" in (await store.run("run")).calls]
    assert {(await store.run("run")).state for store in stores} == {"awaiting_approval"}, "one commit stores both"
    again = Stage(engine, on_lost="interrupt")
    again.store = stores[0]
    core = again.new_core()
    await core.transactor.activate()
    assert (await core.reads.run("run")).state == "awaiting_approval"
    await core.approvals.decide("run", "c1", ApprovalDecision(verdict="approved"))
    outcome = await again.outcome()
    assert outcome.run.state == "completed" and [result.text for result in results(outcome)] == ["paid"]


async def test_a_call_whose_approval_fails_waits_for_a_person_who_is_told_why(caplog: pytest.LogCaptureFixture) -> None:
    def is_dear(euros: Any, order: Any) -> bool:
        return bool(euros > 50)

    @tool(approval=is_dear)
    def pay(euros: int) -> str:
        return "paid"

    stage = Stage(Scripted([[use("c1", "pay", euros=20)], [Text(text="done")]], ToolRegistry(pay)))
    core = stage.new_core()
    await stage.start()
    await stage.until(stage.awaits)
    state = decode_calls((await core.reads.run("run")).calls)["c1"]
    assert state.wants == "approval" and state.why and "approval= of the tool failed (TypeError" in state.why
    assert "approval= of tool pay failed" in caplog.text


async def test_a_run_killed_between_the_commits_of_its_call_and_of_its_wait_waits_for_it() -> None:
    """As that of an engine which does not say that it suspends the run next."""
    waiting = CallState(name="pay", wants="approval")

    class InTwoSteps(Scripted):
        async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
            if "c1" not in context.calls:
                await context.record(use("c1", "pay"), calls={"c1": waiting})
            if context.calls["c1"].is_waiting:
                raise Suspend
            return [Text(text=f"it was {context.calls['c1'].verdict}")]

    engine = InTwoSteps([], ToolRegistry())
    kills: list[InMemoryStore] = []
    stage = Stage(engine, on_lost="resume")
    stage.store = WatchedStore(kills.append)
    stage.new_core()
    await stage.start()
    await stage.until(stage.awaits)
    stores = [store for store in kills if "c1" in (run := await store.run("run")).calls and run.state == "running"]
    assert len(stores) == 1, "the call was recorded, and the run does not wait yet"
    again = Stage(engine, on_lost="resume")
    again.store = stores[0]
    core = again.new_core()
    while (run := await core.reads.run("run")).state == "running":
        await asyncio.sleep(0.01)
    assert run.state == "awaiting_approval", run.why
    await core.approvals.decide("run", "c1", ApprovalDecision(verdict="approved"))
    assert (await again.outcome()).run.state == "completed"


async def test_a_call_that_has_begun_keeps_why_it_waited() -> None:
    """And the engine's id of its question, by which the engine finds it again."""
    asked = CallState(name="work", wants="approval", why="it is dear", question="q1")
    begun: list[Any] = []

    @tool
    async def work() -> str:
        begun.append((await stage.core.reads.run("run")).calls)
        return "worked"

    class Asking(Scripted):
        async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
            if not turn.output:
                await context.record(use("a", "work"))
                raise Suspend({"a": asked})
            return [Text(text="done")]

    stage = Stage(Asking([], ToolRegistry(work)))
    await stage.start()
    await stage.until(stage.awaits)
    decision = ApprovalDecision(verdict="approved")
    await stage.core.approvals.decide("run", "a", decision)
    assert (await stage.outcome()).run.state == "completed"
    state = replace(asked, verdict="approved", digest=decision.digest, started=True)
    assert [decode_calls(calls) for calls in begun] == [{"a": state}]


async def test_hooks_are_called_after_tools_that_waited_for_a_decision() -> None:
    phases: list[tuple[str, str]] = []

    @tool(approval=True)
    async def work() -> str:
        return "worked"

    class Watched(Scripted):
        def build(self, session: SessionView) -> InferenceRunner:
            return ToolLoop(self, self.registry, [lambda phase, turn, _: phases.append((phase, turn.blocks[-1].kind))])

    stage = Stage(Watched([[use("a", "work")], [Text(text="done")]], ToolRegistry(work)))
    await stage.start()
    await stage.until(stage.awaits)
    await stage.core.approvals.decide("run", "a", ApprovalDecision(verdict="approved"))
    await stage.outcome()
    names = ["before_inference", "after_inference", "after_tools", "before_inference", "after_inference"]
    assert phases == [*zip(names, ("user", "tool_use", "tool_result", "tool_result", "text"), strict=True)]
