"""Requests that would not fit the window, on `SessionCore` alone; the races are in test_compaction_races.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from test_tool_loop import Stage, results, use

from schedules import SESSION, inline
from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView, StepContext
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.window.compaction_tasks import Compactor
from turnwise.errors import (
    ConfigError,
    ContextOverflowError,
    StoreError,
    StrategyError,
    WindowOverflowError,
)
from turnwise.memory.conversation.blocks import AnyBlock, Block, System, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import CompactionFailed, WindowCompacted
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Outcome, Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.memory.values.frozen_json import freeze
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.plan import Plan
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget, Window
from windows.stage import (
    Notebook,
    Summarizer,
    Talker,
    chat,
    events_of,
    opened,
    prompts,
    said,
    summarize,
)

pytestmark = pytest.mark.virtual_time


async def test_the_oldest_exchanges_go_before_a_request_that_would_not_fit_and_earlier_turns_stay_as_they_were() -> (
    None
):
    """Case 35, in a session; reading back."""

    stage = await opened(Trim())
    turns = [(await chat(stage, prompt)).turn for prompt in prompts(0, 12)]
    engine: Talker = stage.engine
    assert said(engine.given[-1])[-1].startswith("prompt 11") and len(said(engine.given[-1])) < 12
    for turn, request in zip(await stage.core.reads.turns(), engine.given, strict=True):
        assert turn.blocks[: len(request)] == request, "the turn begins with its request"
    assert [turn and turn.blocks for turn in turns] == [turn.blocks for turn in await stage.core.reads.turns()]
    assert await events_of(stage, WindowCompacted) and not await events_of(stage, CompactionFailed)


class Steered(Talker):
    """A `Talker` that runs may ask for any model and parameters."""

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        return {}


async def test_a_run_makes_room_for_the_answer_that_it_allows_and_the_next_one_has_the_window_again() -> None:
    stage = await opened(Trim(), Steered())
    await chat(stage, *prompts(0, 6))
    long: dict[str, Any] = {"params": {"max_output_tokens": 400}}
    await stage.core.admission.start(["long"], run_id="long", **long)
    await stage.core.reads.wait("long")
    engine: Steered = stage.engine
    assert len(said(engine.given[-2])) == 6, "all of it fits"
    assert 1 < len(said(engine.given[-1])) < 6 and sum(len(text) for text in said(engine.given[-1])) < 200
    await chat(stage, *prompts(6, 9))
    assert len(said(engine.given[-1])) > len(said(engine.given[-4]))


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 1_047_576 - 4096),
        ({"model": "gpt-4"}, 8_192 - 1_024),
        ({"model": "gpt-4", "params": freeze({"max_output_tokens": 192})}, 8_000),
        ({"params": freeze({"max_output_tokens": 47_576})}, 1_000_000),
        ({"model": "nobody-knows"}, 1_047_576 - 4096),
        ({"model": "gpt-4", "params": freeze({"max_output_tokens": 9_000})}, 1_047_576 - 4096),
    ],
    ids=str,
)
def test_a_run_s_requests_fit_the_window_of_the_model_that_it_asks(options: dict[str, Any], limit: int) -> None:
    compactor = Compactor(Trim(), OpenAIEngine("gpt-4.1"), SessionConfig(), inline)
    run = RunRecord(run_id="r", session_id="s", turn_index=0, state="running", first_seq=1, created_at=0.0, **options)
    assert compactor.of_run(run).budget.max_tokens == limit
    small = Compactor(Trim(), OpenAIEngine("gpt-4"), SessionConfig(max_context_tokens=4_000), inline)
    assert small.of_run(replace(run, model="gpt-4.1")).budget.max_tokens <= small.budget.max_tokens


async def test_only_a_prompt_that_does_not_fit_waits_for_the_summary() -> None:
    """Case 40: the run uses the summary, and no second one is made."""

    model = Summarizer(delay_s=5.0)
    stage = await opened(summarize(model))
    began = asyncio.get_running_loop().time()
    number = 0
    while not model.shown:
        await chat(stage, *prompts(number, number + 1), pause_s=0.0)
        number += 1
    assert not (await stage.core.reads.session()).usage.calls
    await chat(stage, "short", pause_s=0.0)
    assert asyncio.get_running_loop().time() < began + 5, "it did not wait"
    assert said(stage.engine.given[-1])[0] == prompts(0, 1)[0]
    await chat(stage, "long " * 60, pause_s=0.0)
    assert asyncio.get_running_loop().time() > began + 5
    assert said(stage.engine.given[-1])[0] == "summary 1" and said(stage.engine.given[-1])[-2] == "short"
    assert len(model.shown) == 1
    turns = await stage.core.reads.turns()
    assert turns[-1].blocks[: len(stage.engine.given[-1])] == stage.engine.given[-1]


class Agent:
    """Calls `look` a few times, then answers: each result is long."""

    def __init__(self, calls: int, size: int) -> None:
        self.calls = calls
        self.size = size
        self.given: list[tuple[Block, ...]] = []

    def build(self, session: SessionView) -> InferenceRunner:
        @tool
        async def look(number: int) -> str:
            """Look.

            Args:
                number: which.
            """
            return f"{number} " + "y" * self.size

        return ToolLoop(self, ToolRegistry(look))

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        self.given.append(turn.blocks)
        call_count = sum(isinstance(block, ToolUse) for block in turn.output)
        if said(turn.blocks)[-1] != "look" or call_count == self.calls:
            return [Text(text="done")]
        return [use(f"call{call_count}", "look", number=call_count)]


@pytest.mark.parametrize("overflow", [Trim(), DeleteOldest(3), summarize(Summarizer())])
async def test_a_tool_loop_that_outgrows_the_window_continues_with_less_history(overflow: Any) -> None:
    """During a run: its own prompt, calls and results stay."""

    stage = await opened(overflow, Agent(5, 40))
    await chat(stage, *prompts(0, 8), pause_s=0.0)
    outcome = await chat(stage, "look", pause_s=0.0)
    assert outcome.run.state == "completed" and outcome.turn
    results = [block for block in outcome.turn.output if isinstance(block, ToolResult)]
    assert [result.text[0] for result in results] == list("01234")
    index = ByteCounter()
    assert all(sum(map(index.count, request)) <= 600 for request in stage.engine.given)
    assert said(outcome.turn.blocks)[-1] == "look" and said(outcome.turn.blocks)[0] != prompts(0, 1)[0]
    assert said(stage.engine.given[8])[0] != said(stage.engine.given[-1])[0], "the history left during the run"
    turns = await stage.core.reads.turns()
    assert turns[-1].blocks[:-1] == stage.engine.given[-1], "the turn begins with its last request"
    assert said(turns[-2].blocks)[-1] == prompts(7, 8)[0]


class Narrow(Talker):
    """A provider whose window is smaller than the session thinks."""

    def __init__(self, most_chars: int) -> None:
        super().__init__()
        self.most_chars = most_chars
        self.refused = 0

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(self, ToolRegistry())

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        if sum(len(block.text) for block in turn.blocks if isinstance(block, User | Text)) > self.most_chars:
            self.refused += 1
            raise ContextOverflowError("this model's maximum context length is shorter")
        return await super().run(turn, context)


async def test_a_provider_that_finds_the_conversation_too_long_is_asked_again_with_less() -> None:
    engine = Narrow(most_chars=250)
    stage = await opened(Trim(), engine)
    for prompt in prompts(0, 12):
        outcome = await chat(stage, prompt)
        assert outcome.run.state == "completed"
    # What was refused is remembered, so later runs are refused seldom.
    assert 1 <= engine.refused <= 3
    assert said(engine.given[-1])[-1] == prompts(11, 12)[0]


async def test_a_conversation_that_is_too_long_fails_its_run_where_nothing_can_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = await opened(None, Narrow(most_chars=60))
    first, second = prompts(0, 2)
    assert (await chat(stage, first)).run.state == "completed"
    outcome = await chat(stage, second)
    assert (outcome.run.state, outcome.run.code) == ("failed", "window")
    assert "maximum context length" in (outcome.run.why or "")
    assert "pass overflow= to the manager" in caplog.text
    alone = await opened(Trim(), Narrow(most_chars=5))
    outcome = await chat(alone, first)
    assert (outcome.run.state, outcome.run.code) == ("failed", "window")


async def test_a_turn_that_alone_exceeds_the_window_fails_with_token_counts_and_the_session_continues() -> None:
    """Case 38: no loop, and the engine is not asked."""

    stage = await opened(Trim())
    await chat(stage, System(text="s" * 96), "hello")
    outcome = await chat(stage, "x" * 900)
    assert (outcome.run.state, outcome.run.code) == ("failed", "window") and len(stage.engine.given) == 2
    assert outcome.run.why == str(WindowOverflowError(600, 100 + 3 + 904, 100 + 3, 0, 904))
    outcome = await chat(stage, "shorter")
    assert outcome.run.state == "completed"


async def test_a_strategy_that_breaks_a_law_or_raises_changes_nothing() -> None:
    """The plan is refused with the law's name; a run that fits goes on, one that does not fit fails."""

    class Broken:
        def decide(self, window: Window, budget: TokenBudget) -> Any:
            if window.taken(budget) > 300:
                raise ZeroDivisionError("oops")
            return None

        def due(self, window: Window, budget: TokenBudget) -> bool:
            return self.decide(window, budget) is not None

    stage = await opened(Broken())
    await chat(stage, *prompts(0, 7), pause_s=0.0)
    outcome = await chat(stage, "z" * 300)
    assert (outcome.run.state, outcome.run.code) == ("failed", "compaction") and "'decides'" in str(outcome.run.why)
    assert all("oops" in event.why for event in await events_of(stage, CompactionFailed))
    turn = await stage.core.reads.latest()
    assert turn and said(turn.blocks) == [*prompts(0, 7), "z" * 300]
    with pytest.raises(StrategyError, match="oops"):
        await stage.core.compaction.compact()


async def test_a_memory_that_fails_lets_otherwise_decide_or_the_run_fail() -> None:
    async def story(otherwise: Any) -> tuple[Stage, Outcome]:
        stage = await opened(FlushToMemory([Notebook(failures=10**6)], otherwise=otherwise))
        return stage, await chat(stage, *prompts(0, 12), pause_s=0.0)

    stage, outcome = await story(Trim())
    assert outcome.run.state == "completed" and (await events_of(stage, WindowCompacted))[0].strategy == "Trim"
    stage, outcome = await story(None)
    assert (outcome.run.state, outcome.run.code) == ("failed", "compaction")
    assert "Notebook: the disk is full" in str(outcome.run.why)
    turn = await stage.core.reads.latest()
    assert turn and said(turn.blocks) == prompts(0, 12)


async def test_what_was_compacted_beside_a_run_may_not_be_enough() -> None:
    model = Summarizer(delay_s=5.0)
    stage = await opened(summarize(model, keep_turns=3, keep_tokens=220))
    number = 0
    while not model.shown:
        await chat(stage, *prompts(number, number + 1), pause_s=0.0)
        number += 1
    outcome = await chat(stage, "z" * 420, pause_s=0.0)
    assert outcome.run.state == "completed" and outcome.turn and not outcome.turn.record.carried


async def test_a_run_goes_on_with_the_strategy_that_it_began_with() -> None:
    agent = Agent(5, 40)
    stage = await opened(Trim(), agent)
    await chat(stage, *prompts(0, 8), pause_s=0.0)
    run = agent.run

    async def swapped(turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        stage.core.use(Agent(0, 0), stage.config, None)
        return await run(turn, context)

    agent.run = swapped  # type: ignore[method-assign]
    outcome = await chat(stage, "look", pause_s=0.0)
    assert outcome.run.state == "completed" and len(results(outcome)) == 5
    assert max(sum(map(ByteCounter().count, request)) for request in agent.given) <= 600


async def test_settings_that_cannot_be_used_are_refused_whole() -> None:
    stage = await opened(Trim())
    with pytest.raises(ConfigError, match="max_context_tokens"):
        stage.core.use(Summarizer(), SessionConfig(), Trim())
    await chat(stage, *prompts(0, 12), pause_s=0.0)
    assert len(stage.engine.given) == 12 and await events_of(stage, WindowCompacted)


async def test_a_strategy_that_fails_while_all_fits_is_reported_and_fails_no_run() -> None:
    class Broken:
        def decide(self, window: Window, budget: TokenBudget) -> Any:
            raise ZeroDivisionError("oops")

        def due(self, window: Window, budget: TokenBudget) -> bool:
            return False

    class Malformed:
        def decide(self, window: Window, budget: TokenBudget) -> Any:
            return Plan(strategy="Malformed", keep=None)  # type: ignore[arg-type]

        def due(self, window: Window, budget: TokenBudget) -> bool:
            return False

    for strategy in (Broken(), Malformed()):
        stage = await opened(strategy)
        outcome = await chat(stage, "hi")
        assert outcome.run.state == "completed" and len(await events_of(stage, CompactionFailed)) == 1
        with pytest.raises(StrategyError, match="decides"):
            await stage.core.compaction.compact()


async def test_a_counter_that_fails_is_a_typed_error() -> None:
    class Counter(ByteCounter):
        def count(self, block: Block) -> int:
            raise ZeroDivisionError("oops")

    stage = await opened(Trim(), token_counter=Counter())
    outcome = await chat(stage, "hi")
    assert outcome.run.state == "failed" and "token_counter='Counter': it raised" in str(outcome.run.why)


async def test_an_earlier_prompt_that_was_never_answered_goes_though_the_system_prompt_has_moved() -> None:
    stage = await opened(Trim())
    await chat(stage, *prompts(0, 6), pause_s=0.0)
    outcome = await chat(stage, "x" * 900, pause_s=0.0)
    assert outcome.run.code == "window"
    started = await stage.core.admission.start([System(text="be kind"), "y" * 400], run_id="next")
    outcome = await stage.core.reads.wait(started.run_id)
    assert outcome.run.state == "completed" and said(stage.engine.given[-1]) == ["y" * 400]
    outcome = await chat(stage, "z" * 300, pause_s=0.0)
    assert outcome.run.state == "completed"


def test_a_run_that_is_cancelled_while_its_window_is_counted_leaves_the_counts_right() -> None:
    """On a thread, which goes on."""
    counting, go_on = threading.Event(), threading.Event()

    class Slow(ByteCounter):
        def count(self, block: Block) -> int:
            if threading.current_thread() is not threading.main_thread():
                counting.set()
                go_on.wait(60)
            return super().count(block)

    async def story() -> None:
        config = SessionConfig(token_counter=Slow(), max_context_tokens=10**6)
        store = InMemoryStore()
        await store.create(SessionRecord(session_id=SESSION))
        before = SessionCore(SessionKey(SESSION), store, Talker(), config)
        await before.admission.append(list(prompts(0, 200)), "key")
        core = SessionCore(SessionKey(SESSION), store, Talker(), config, overflow=Trim())
        await core.admission.start(["one"], run_id="one")
        assert await asyncio.to_thread(counting.wait, 30)
        assert await core.admission.cancel("stop", "one")
        go_on.set()
        await core.admission.start(["two"], run_id="two")
        await core.reads.wait("two")
        turn = await core.reads.latest()
        assert turn and core.engines.current.compactor
        window = await core.engines.current.compactor.window(turn.record, turn.cache)
        assert window.total == sum(map(ByteCounter().count, turn.blocks))

    asyncio.run(story())


async def test_a_summary_that_a_discarded_run_waited_for_is_there_for_the_next() -> None:
    """Case 43."""

    class Slow(Talker):
        async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
            answer = await super().run(turn, context)
            await asyncio.sleep(10 if said(turn.blocks)[-1].startswith("zz") else 0)
            return answer

    model = Summarizer()
    strategy = summarize(model, trigger_ratio=1.0, keep_turns=2)
    stage = await opened(strategy, Slow(), on_cancel="discard")
    await chat(stage, *prompts(0, 7), pause_s=0.0)
    for number in range(3):
        await stage.core.admission.start(["zz" * 80], run_id=f"z{number}")
        await asyncio.sleep(2)
        assert await stage.core.admission.cancel("no", f"z{number}")
    assert len(model.shown) == 1 and said(stage.engine.given[-1])[0] == "summary 1"
    turn = await stage.core.reads.latest()
    assert turn and said(turn.blocks) == prompts(0, 7), "the earlier turn is unchanged"


async def test_a_window_compacted_beside_a_run_is_used_when_the_runs_own_strategy_would_act() -> None:
    agent = Agent(4, 20)
    stage = await opened(None, agent)
    await chat(stage, *prompts(0, 7), pause_s=0.0)
    run = agent.run

    async def slow(turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        await asyncio.sleep(1)
        return await run(turn, context)

    agent.run = slow  # type: ignore[method-assign]
    stage.core.use(agent, stage.config, Trim(max_tokens=480))
    await stage.core.admission.start(["look"], run_id="look")
    await asyncio.sleep(0.5)
    stage.core.use(agent, stage.config, Trim(max_tokens=200))
    assert await stage.core.compaction.compact()
    outcome = await stage.core.reads.wait("look")
    assert outcome.run.state == "completed" and not await events_of(stage, CompactionFailed)
    sizes = [sum(map(ByteCounter().count, blocks)) + 3 for blocks in agent.given[7:]]
    assert max(sizes) <= 480 and any(after < before for before, after in pairwise(sizes))


async def test_the_usage_of_a_step_is_counted_once_though_the_answer_to_its_record_was_lost() -> None:
    agent = Agent(3, 5)
    run = agent.run

    async def reporting(turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        context.report(usage=Usage(input_tokens=10))
        return await run(turn, context)

    agent.run = reporting  # type: ignore[method-assign]
    stage = Stage(agent)
    commit, lost = stage.store.commit, list[bool]()

    async def forgetful(*args: Any) -> None:
        await commit(*args)
        if not lost and any(event.kind == "model_call_ended" for event in args[2].events):
            lost.append(True)
            raise StoreError("the answer was lost")

    stage.store.commit = forgetful
    await stage.create()
    outcome = await chat(stage, "look")
    assert lost and outcome.run.usage and (await stage.core.reads.session()).usage.input_tokens == 40
    assert (outcome.run.usage.input_tokens, outcome.run.usage.calls) == (40, 4)
