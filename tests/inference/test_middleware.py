"""Middleware, hooks and budgets, without Ray."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from schedules import SESSION, inline
from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, RunContext, SessionView, StepContext
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.middleware import LogCalls, Middleware, ReorderResults, SystemPrompt, wrap
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.loop import Hook, Phase, ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.engines.budget import Budget, Price, exceeded, priced
from turnwise.errors import ConfigError, EngineError
from turnwise.memory.conversation.blocks import AnyBlock, Block, System, Text, ToolResult, ToolUse, User, encode
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.events import Event, HookFailed, InputReplaced, ModelCallStarted
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.turns import Outcome, Turn, TurnRecord, turn_of
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.providers.validation import CHAT, check
from turnwise.memory.stores.in_memory import InMemoryStore
from virtual_time import play

pytestmark = pytest.mark.virtual_time


@tool
async def look(thing: str) -> str:
    """Look at something."""
    await asyncio.sleep(0.5)
    return f"a {thing}"


class Model:
    """A model with scripted answers, which records its inputs. `tokens`: the usage of each call."""

    def __init__(self, *says: Sequence[AnyBlock], tokens: int = 10, name: str | None = "model") -> None:
        self.says = says
        self.tokens = tokens
        self.name = name
        self.given: list[tuple[Block, ...]] = []
        self.middleware: Sequence[Middleware] = ()
        self.hooks: Sequence[Hook] = ()

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(wrap(self, self.middleware), ToolRegistry(look), self.hooks)

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        self.given.append(turn.blocks)
        context.report(usage=Usage(calls=1, input_tokens=self.tokens), stop_reason="stop", model=self.name)
        return self.says[min(len(self.given), len(self.says)) - 1]


def use(call_id: str) -> ToolUse:
    return ToolUse(call_id=call_id, name="look", input={"thing": call_id})


def result(call_id: str) -> ToolResult:
    return ToolResult(call_id=call_id, text=f"a {call_id}")


LOOK = (Text(text="let me look"), use("cat"))
DONE = (Text(text="done"),)


async def core_of(model: EngineBuilder, **config: Any) -> SessionCore:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))
    now = asyncio.get_running_loop().time
    return SessionCore(SessionKey(SESSION), store, model, SessionConfig(**config), clock=now, off_loop=inline)


def goes_on(core: SessionCore, *middleware: Middleware) -> SessionCore:
    """Return the session in another process, whose model has other middleware."""
    model = Model(DONE)
    model.middleware = middleware
    now = asyncio.get_running_loop().time
    return SessionCore(core.state.key, core.state.journal.store, model, clock=now, off_loop=inline)


async def run(core: SessionCore, run_id: str = "run") -> Outcome:
    await core.admission.start(["go"], run_id=run_id)
    return await core.reads.wait(run_id)


def shown(middleware: Middleware, *blocks: Block) -> tuple[Block, ...]:
    """Return the blocks that the model gets; check that the turn is unchanged."""
    encoded = [encode(block) for block in blocks]
    spans = (Span("chat-1", 0, len(encoded)),)
    turn = turn_of("chat-1", TurnRecord(index=0, input=spans), spans, encoded)
    model = Model(DONE)

    class Context:
        session = SessionView(session_id="chat-1", user_id="ada", agent=None, metadata={})
        run_id = "run"

        def report(self, **_: Any) -> None:
            pass

    answer = asyncio.run(wrap(model, [middleware]).run(turn, Context()))  # type: ignore[arg-type]
    assert tuple(answer) == DONE and turn.blocks == blocks
    return model.given[0]


# Middleware


def test_a_system_prompt_comes_first_and_once_however_often_added() -> None:
    """Case 34."""
    hello, answer, again = User(text="hello"), Text(text="hi"), User(text="again")
    old, new = System(text="old"), System(text="new")
    once = shown(SystemPrompt("new"), hello, answer, again)
    assert once == (new, hello, answer, again)
    assert shown(SystemPrompt("new"), *once) == once
    assert shown(SystemPrompt("new"), old, hello, answer, System(text="newer"), again) == once
    assert shown(SystemPrompt("other", if_present="keep"), *once) == once
    assert shown(SystemPrompt("other", if_present="keep"), old, hello, new, answer, again) == once, "the last one wins"
    assert shown(SystemPrompt("new", if_present="keep"), hello) == (new, hello)


def test_results_are_moved_to_their_calls_in_the_order_of_the_calls() -> None:
    hello, thanks = User(text="hello"), User(text="thanks")
    jumbled = (hello, use("a"), use("b"), result("b"), thanks, result("a"), use("c"), result("c"), Text(text="so"))
    put = shown(ReorderResults(), *jumbled)
    assert put == (hello, use("a"), use("b"), result("a"), result("b"), thanks, use("c"), result("c"), Text(text="so"))
    check(messages_of(put), CHAT)
    assert shown(ReorderResults(), *put) == put


@pytest.mark.parametrize(
    "faulty",
    [
        (use("a"), use("b"), result("b")),
        (use("a"), result("a"), result("a")),
        (use("a"), result("b")),
        (use("a"), result("a"), use("a"), result("a")),
    ],
    ids=["missing", "doubled", "orphan", "one id twice"],
)
def test_invalid_results_are_left_to_the_validator(faulty: tuple[Block, ...]) -> None:
    assert shown(ReorderResults(), User(text="hello"), *faulty)[1:] == faulty


@dataclass
class Noting:
    """A middleware that records when it is entered and left, and may change the answer or fail."""

    name: str
    notes: list[str]
    change: Callable[[Sequence[AnyBlock]], Sequence[AnyBlock]] | None = None

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        self.notes.append(f"{self.name} in")
        answer = await runner.run(turn, context)
        self.notes.append(f"{self.name} out")
        return self.change(answer) if self.change else answer


async def test_the_first_middleware_is_outermost_and_its_answer_counts() -> None:
    notes: list[str] = []
    model = Model(LOOK, DONE)
    model.middleware = [
        Noting("outer", notes, lambda answer: [*answer, use("dog")] if answer == LOOK else answer),
        Noting("inner", notes),
    ]
    outcome = await run(await core_of(model))
    assert notes == ["outer in", "inner in", "inner out", "outer out"] * 2
    assert outcome.turn and outcome.turn.output == (*LOOK, use("dog"), result("cat"), result("dog"), *DONE)


async def test_a_middleware_that_raises_fails_the_run_and_keeps_what_was_recorded() -> None:
    def fail(answer: Sequence[AnyBlock]) -> Sequence[AnyBlock]:
        if answer == DONE:
            raise EngineError("this may not be said")
        return answer

    model = Model(LOOK, DONE)
    model.middleware = [Noting("censor", [], fail)]
    outcome = await run(await core_of(model))
    assert (outcome.run.state, outcome.run.why) == ("failed", "this may not be said")
    assert outcome.turn and outcome.turn.output == (*LOOK, result("cat"))


def test_calls_are_logged_with_ids_sizes_and_times_but_without_texts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        model = Model(LOOK, DONE)
        model.middleware = [LogCalls(), Noting("", [], lambda answer: answer if answer == LOOK else answer[1:9:0])]
        await run(await core_of(model))

    with caplog.at_level(logging.INFO, "turnwise.calls"):
        play(story())
    first, second = (record.getMessage() for record in caplog.records)
    assert first == f"session {SESSION} run run: 1 blocks, 2 back in {first[-7:]}"
    assert second.startswith(f"session {SESSION} run run: 4 blocks, ValueError after 0.")
    assert "look" not in caplog.text and "go" not in first


async def test_middleware_wraps_each_call_of_a_function() -> None:
    notes: list[str] = []
    steps = iter([LOOK, DONE])
    given: list[tuple[Block, ...]] = []

    async def answer(turn: Turn) -> Sequence[AnyBlock]:
        given.append(turn.blocks)
        return next(steps)

    layers: list[Middleware] = [Noting("outer", notes), SystemPrompt("Be brief.")]
    outcome = await run(await core_of(FunctionEngine(answer, tools=[look], middleware=layers)))
    assert notes == ["outer in", "outer out"] * 2
    assert outcome.turn and outcome.turn.output == (*LOOK, result("cat"), *DONE)
    assert [blocks[0] for blocks in given] == [System(text="Be brief.")] * 2
    with pytest.raises(ConfigError, match="middleware"):
        FunctionEngine(answer, middleware=["Be brief."])  # type: ignore[list-item]


@dataclass
class Adding:
    """A middleware that adds a block before the rest, once; the conversation goes on with it."""

    block: Block
    drops: type[Block] | None = None

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        if self.block in turn.blocks:
            return await runner.run(turn, context)
        rest = [block for block in turn.blocks if self.drops is None or not isinstance(block, self.drops)]
        return await runner.run(turn.showing([self.block, *rest], store=True), context)


async def test_the_conversation_goes_on_with_what_a_middleware_stores() -> None:
    model = Model(LOOK, DONE)
    rule = System(text="Be brief.")
    model.middleware = [LogCalls(), Adding(rule)]
    core = await core_of(model)
    outcome = await run(core)
    whole = (rule, User(text="go"), *LOOK, result("cat"), *DONE)
    assert model.given[:2] == [whole[:2], whole[:5]]
    assert outcome.turn and outcome.turn.blocks == whole
    assert outcome.turn.new_blocks == (User(text="go"), rule, *whole[2:])
    other = goes_on(core)
    again = await run(other, "again")
    assert again.turn and again.turn.blocks[: len(whole)] == whole, "also where no middleware adds it"
    events = (await other.reads.events())[0]
    assert [type(event) for event in events].count(InputReplaced) == 1, "stored once, though it is called for each step"
    assert rebuild(events) == list(again.turn.blocks)
    assert (await other.reads.turn(0)).blocks == whole
    await other.forgetting.forget_turn(0)
    last = await run(other, "last")
    assert last.turn and rule not in last.turn.blocks and last.turn.blocks[0] == User(text="go")


async def test_a_middleware_may_replace_what_the_conversation_goes_on_with() -> None:
    core = await core_of(Model(DONE))
    await run(core)
    replaced = await run(goes_on(core, Adding(User(text="only this"), drops=User)), "replaced")
    assert replaced.turn and replaced.turn.blocks == (User(text="only this"), *DONE, *DONE)
    assert replaced.turn.asked == (User(text="go"), User(text="only this")), "what was asked stays in the history"
    following = await run(goes_on(core), "next")
    assert following.turn and following.turn.blocks[:3] == replaced.turn.blocks


async def test_a_system_prompt_may_be_stored_with_the_conversation() -> None:
    core = await core_of(Model(DONE))
    await run(goes_on(core, SystemPrompt("old", store=True)))
    await run(goes_on(core, SystemPrompt("new", store=True)), "second")
    outcome = await run(goes_on(core), "third")
    systems = [block for block in outcome.turn.blocks if isinstance(block, System)] if outcome.turn else []
    assert systems == [System(text="new")]


async def test_a_middleware_that_would_store_another_answer_fails_the_run() -> None:
    model = Model(LOOK, DONE)

    class Changing(Adding):
        async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
            return await runner.run(turn.showing([*turn.blocks[:1], self.block], store=True), context)

    model.middleware = [Changing(Text(text="never said"))]
    outcome = await run(await core_of(model))
    assert outcome.run.state == "failed" and "has answered so far" in str(outcome.run.why)


def test_middleware_and_hooks_pickle_with_their_engine_and_are_checked() -> None:
    middleware: list[Middleware] = [SystemPrompt("Be brief."), LogCalls(), ReorderResults()]
    engine = OpenAIEngine("local", middleware=middleware, hooks=[show_nothing])
    assert pickle.loads(pickle.dumps(engine)) == engine
    assert all(isinstance(layer, Middleware) for layer in middleware)
    with pytest.raises(ConfigError, match="middleware"):
        OpenAIEngine("local", middleware=["Be brief."])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="hooks"):
        OpenAIEngine("local", hooks=["print"])  # type: ignore[list-item]


def show_nothing(phase: Phase, turn: Turn, context: RunContext) -> None:
    pass


# Hooks


async def test_hooks_get_the_turn_before_and_after_each_call_and_after_tools() -> None:
    hook_calls: list[tuple[str, int, str]] = []

    async def later(phase: Phase, turn: Turn, context: RunContext) -> None:
        await asyncio.sleep(0.1)
        hook_calls.append((phase, len(turn.blocks), turn.blocks[-1].kind))
        assert context.run_id == "run" and turn.index == 0

    model = Model(LOOK, DONE)
    model.hooks = [later]
    outcome = await run(await core_of(model))
    assert outcome.run.state == "completed"
    assert hook_calls == [
        ("before_inference", 1, "user"),
        ("after_inference", 3, "tool_use"),
        ("after_tools", 4, "tool_result"),
        ("before_inference", 4, "tool_result"),
        ("after_inference", 5, "text"),
    ]


@pytest.mark.parametrize("kind", [ValueError, TypeError])
async def test_a_failing_hook_is_reported_and_stops_nothing(kind: type[Exception]) -> None:
    """Case 59."""

    phases: list[str] = []

    def broken(phase: Phase, turn: Turn, context: RunContext) -> None:
        raise kind("the hook broke")

    class Watcher:
        def __call__(self, phase: Phase, turn: Turn, context: RunContext) -> None:
            phases.append(phase)

    model = Model(LOOK, DONE)
    model.hooks = [broken, Watcher()]
    core = await core_of(model)
    outcome = await run(core)
    assert outcome.turn and outcome.turn.output == (*LOOK, result("cat"), *DONE)
    assert phases == ["before_inference", "after_inference", "after_tools", "before_inference", "after_inference"]
    events: list[Event] = (await core.reads.events())[0]
    failed = [event for event in events if isinstance(event, HookFailed)]
    assert [event.hook.partition(":")[0] for event in failed] == phases
    assert {event.why for event in failed} == {f"{kind.__name__}: the hook broke"}
    assert all(event.hook.endswith("broken") for event in failed)
    assert [event.call for event in events if isinstance(event, ModelCallStarted)] == [0, 1]


# Budgets


def test_a_budget_names_the_reached_limit_and_the_usage() -> None:
    spent = Usage(input_tokens=70, output_tokens=30, calls=3, tool_calls=2, seconds=1.5, cost=0.25)
    assert Budget().exceeded(spent) is None
    assert Budget(tokens=101, calls=4, tool_calls=3, seconds=2.0, cost=0.3).exceeded(spent) is None
    for budget, reason in (
        (Budget(tokens=100), "100 of 100 tokens"),
        (Budget(calls=2), "3 of 2 calls"),
        (Budget(tool_calls=2), "2 of 2 tool calls"),
        (Budget(seconds=1), "1.5 of 1 seconds"),
        (Budget(cost=0.2), "0.25 of 0.2 cost"),
    ):
        assert budget.exceeded(spent) == reason
    assert exceeded({"tool_calls": 0}, Usage(calls=2)) is None
    assert exceeded({"tool_calls": 0}, Usage(tool_calls=1)) == "1 of 0 tool calls"
    assert exceeded({"calls": 0}, Usage()) == "0 of 0 calls"
    for name in ("tokens", "calls", "tool_calls", "seconds", "cost"):
        for value in (0, -1, float("nan")):
            with pytest.raises(ConfigError, match=f"Budget.{name}"):
                Budget(**{name: value})  # type: ignore[arg-type]


def test_a_price_is_for_a_million_tokens_of_each_kind() -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=500_000)
    assert Price(input=2.0, output=8.0).of(usage) == pytest.approx(2.0 + 4.0)
    assert Price(input=2.0, output=8.0, cached=0.5).of(usage) == pytest.approx(1.2 + 0.2 + 4.0)
    assert priced(usage, None).cost == 0 == priced(usage, Price(input=0, output=0)).cost
    own = Usage(input_tokens=1, cost=7.0)
    assert priced(own, Price(input=1, output=1)) == own, "an engine that knows what it costs has said so"
    for name in ("input", "output", "cached"):
        with pytest.raises(ConfigError, match=f"Price.{name}"):
            Price(**{"input": 1.0, "output": 1.0, name: -1.0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "calls"),
    [
        (Budget(calls=2), 2),
        (Budget(tokens=25), 3),
        (Budget(tool_calls=2), 2),
        (Budget(cost=20.0), 2),
        (Budget(seconds=1.2), 3),
    ],
)
async def test_a_call_that_passes_a_limit_ends_and_the_next_is_refused(budget: Budget, calls: int) -> None:
    model = Model(*([use(str(number))] for number in range(9)))
    prices = {"model": Price(input=1_000_000.0, output=0.0)}
    outcome = await run(await core_of(model, run_budget=budget, prices=prices))
    assert (outcome.run.state, outcome.run.code) == ("failed", "budget")
    assert outcome.turn and outcome.turn.stop_reason == "budget"
    assert len(model.given) == calls
    pairs = [(use(str(number)), result(str(number))) for number in range(calls)]
    assert outcome.turn.output == tuple(block for pair in pairs for block in pair)
    assert outcome.run.usage and outcome.run.usage.cost == 10.0 * calls


async def test_a_cost_limit_applies_only_to_known_costs() -> None:
    """With a cost budget, a model without a name or price fails with a remedy; tools cost nothing."""

    for name in (None, "other"):
        model = Model(LOOK, DONE, name=name)
        outcome = await run(
            await core_of(model, run_budget=Budget(cost=1.0), prices={"model": Price(input=1, output=1)})
        )
        assert outcome.run.state == "failed" and outcome.run.code is None
        assert f"model {name!r} has no price: add it to SessionConfig(prices=...)" in str(outcome.run.why)
        outcome = await run(await core_of(Model(LOOK, DONE, name=name), run_budget=Budget(calls=9)))
        assert outcome.run.state == "completed" and outcome.run.usage and outcome.run.usage.cost == 0
    free = await core_of(Model(LOOK, DONE), session_budget=Budget(cost=1.0), prices={"model": Price(input=0, output=0)})
    assert (await run(free)).run.state == "completed"


async def test_a_sessions_budget_counts_all_runs_and_an_approval_covers_one() -> None:
    core = await core_of(Model(DONE), session_budget=Budget(calls=2), over_budget="ask")
    for name in ("first", "second"):
        assert (await run(core, name)).run.state == "completed"
    for name in ("third", "fourth"):
        await core.admission.start(["go"], run_id=name)
        while not await core.reads.pending(name):
            await asyncio.sleep(0.01)
        (call,) = await core.reads.pending(name)
        assert call.wants == "budget" and call.why and "the session has spent" in call.why
        await core.approvals.decide(name, call.call_id, ApprovalDecision(verdict="approved"))
        outcome = await core.reads.wait(name)
        assert outcome.run.state == "completed", "leave is for this run"
    session = await core.reads.session()
    assert (session.usage.calls, session.usage.input_tokens) == (4, 40)


async def test_a_run_that_is_refused_more_budget_keeps_executed_results() -> None:
    core = await core_of(Model(LOOK, DONE), run_budget=Budget(calls=1), over_budget="ask")
    await core.admission.start(["go"], run_id="run")
    while (await core.reads.run("run")).state != "awaiting_approval":
        await asyncio.sleep(0.01)
    before = (await core.reads.run("run")).usage
    await asyncio.sleep(100)
    assert (await core.reads.run("run")).usage == before, "waiting costs nothing"
    (call,) = await core.reads.pending("run")
    await core.approvals.decide("run", call.call_id, ApprovalDecision(verdict="rejected", text="no"))
    outcome = await core.reads.wait("run")
    assert outcome.turn and (outcome.run.state, outcome.run.code) == ("failed", "budget")
    assert outcome.turn.output == (*LOOK, result("cat"))
    assert outcome.run.usage and outcome.run.usage.calls == 1
