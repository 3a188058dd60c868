"""Windows that are compacted between runs, on `SessionCore` alone; the races are in test_compaction_races.py."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_tool_loop import Stage

from schedules import SESSION, inline
from turnwise.actors.inference.completion import within
from turnwise.actors.inference.engine import RunContext
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.engines.budget import Budget, Price
from turnwise.errors import (
    CompactionError,
    EngineError,
    InvalidInputError,
    StoreError,
)
from turnwise.memory.conversation.blocks import AnyBlock, Summary, System, Text, ToolUse, User
from turnwise.memory.conversation.events import CompactionFailed, WindowCompacted
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim
from windows.stage import (
    WINDOW,
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


async def test_a_summary_is_made_beside_the_conversation_once_and_rolls_on() -> None:
    """Cases 37 and 43: the model sees removed blocks once, and the next request has the summary."""

    model = Summarizer()
    stage = await opened(summarize(model))
    await chat(stage, System(text="be kind"), *prompts(0, 30))
    engine: Talker = stage.engine
    compaction = await events_of(stage, WindowCompacted)
    assert len(compaction) == len(model.shown) > 2, "each was paid for once"
    assert all(event.tokens_after < event.tokens_before <= 600 for event in compaction)
    last = engine.given[-1]
    assert [type(block) for block in last[:2]] == [System, Summary] and said(last)[0].startswith("summary ")
    shown = ["\n".join(said(blocks)) for blocks in model.shown]
    for prompt in prompts(0, 20):
        assert sum(prompt in text for text in shown) == 1, f"{prompt} is shown once"
    assert all(f"summary {number}" in text for number, text in enumerate(shown[1:], 1)), "it is folded in"
    assert (await stage.core.reads.session()).usage.calls == len(model.shown), "the talker reports no usage"


async def test_a_summary_stands_for_what_was_said_and_is_expanded_to_it() -> None:
    stage = await opened(summarize(Summarizer()))
    await chat(stage, System(text="be kind"), *prompts(0, 30))
    turn = await stage.core.reads.latest()
    assert turn
    (summary,) = (block for block in turn.blocks if isinstance(block, Summary))
    behind = await stage.core.reads.expand(summary)
    held = [block for block in turn.blocks if isinstance(block, User)]
    assert said([*behind, *held]) == prompts(0, 30), "each prompt is there once, in order"
    await stage.core.forking.fork(None, "fork")
    await stage.core.forgetting.delete()
    now = asyncio.get_running_loop().time
    fork = type(stage.core)(
        SessionKey("fork"), stage.store, stage.engine, stage.config, overflow=stage.overflow, clock=now
    )
    assert await fork.reads.expand(summary) == behind, "a fork has the blocks that its summaries replaced"
    unknown_summary = summary.model_copy(update={"of": (("9", 0, 1),)})
    with pytest.raises(InvalidInputError, match="not a summary of session"):
        await fork.reads.expand(unknown_summary)


async def test_a_fork_of_an_earlier_turn_goes_on_with_the_originals() -> None:
    stage = await opened(summarize(Summarizer()))
    await chat(stage, *prompts(0, 9))
    (first, *_) = await events_of(stage, WindowCompacted)
    before = next(turn for turn in await stage.core.reads.turns() if turn.record.carried)
    assert first and said(before.blocks) == prompts(0, before.index + 1)
    await stage.core.forking.fork(before.index, "early")
    now = asyncio.get_running_loop().time
    fork = type(stage.core)(SessionKey("early"), stage.store, stage.engine, stage.config, clock=now)
    await fork.admission.start(["and then?"], run_id="fork")
    outcome = await fork.reads.wait("fork")
    assert outcome.turn and said(outcome.turn.blocks) == [*said(before.blocks), "and then?"]


async def test_a_summary_that_comes_behind_newer_turns_goes_in_front_of_them() -> None:
    """It is rebased: two turns have passed while the model wrote."""

    model = Summarizer(delay_s=5.0)
    stage = await opened(summarize(model))
    number = 0
    while not model.shown:
        await chat(stage, *prompts(number, number + 1), pause_s=0.0)
        number += 1
    await chat(stage, "one", "two", pause_s=0.0)
    await asyncio.sleep(10)
    await chat(stage, "three", pause_s=0.0)
    assert said(stage.engine.given[-1]) == ["summary 1", prompts(number - 1, number)[0], "one", "two", "three"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("", "EngineError"),
        ("   ", "empty"),
        ("y" * 101, "oversize"),
        ([ToolUse(call_id="c", name="look")], "tool_call"),
        ([Text(text="It was", interrupted=True)], "cut"),
        (ValueError("broken"), "ValueError: broken"),
        (EngineError("refused"), "refused"),
        (SystemExit(1), "SystemExit"),
    ],
)
async def test_an_unusable_summary_changes_nothing_is_reported_and_retried(answer: Any, kind: str) -> None:
    """Case 37, in a session: a bounded number of times, each paid for."""

    model = Summarizer(*[answer] * 3)
    stage = await opened(summarize(model), prices={"small": Price(input=1.0, output=1.0)})
    await chat(stage, *prompts(0, 8), pause_s=0.0)
    await asyncio.sleep(20)
    failed = await events_of(stage, CompactionFailed)
    assert [(event.attempt, event.of) for event in failed] == [(1, 3), (2, 3), (3, 3)]
    assert all(kind in event.why or kind == "EngineError" for event in failed)
    assert not await events_of(stage, WindowCompacted)
    turn = await stage.core.reads.latest()
    assert turn and said(turn.blocks) == prompts(0, 8) and not turn.record.carried
    usage = (await stage.core.reads.session()).usage
    assert (usage.input_tokens, usage.calls) == (300, 3) and usage.cost == pytest.approx(330e-6)
    await chat(stage, *prompts(8, 20))
    assert await events_of(stage, WindowCompacted), "later it is tried again"


async def test_a_summarizer_that_hangs_is_given_up_and_trim_decides() -> None:
    """Case 37: and the run that waited for it ends."""

    model = Summarizer(delay_s=900.0)
    stage = await opened(summarize(model), compaction_timeout_s=10.0)
    await chat(stage, *prompts(0, 12), pause_s=0.0)
    failed = await events_of(stage, CompactionFailed)
    assert failed and "no result within 10 s" in failed[0].why
    assert {event.strategy for event in await events_of(stage, WindowCompacted)} == {"Trim"}


async def test_a_summarizer_that_fails_again_and_again_is_asked_less_and_less() -> None:
    model = Summarizer(*[ValueError("broken")] * 1000)
    stage = await opened(summarize(model, otherwise=Trim(slack=0)), max_context_tokens=6000)
    await chat(stage, *prompts(0, 90), pause_s=8.0)
    over = len([1 for request in stage.engine.given if len("".join(said(request))) > 2000])
    assert over > 20 and 3 <= len(model.shown) <= 18, "not at each end of a run"


async def test_blocks_leave_the_window_only_after_all_memories_have_saved_them() -> None:
    """Case 42: a failing memory affects no other, a retry saves nothing twice, a static memory is never written."""

    good, bad, static = Notebook(), Notebook(failures=4), Notebook(read_only=True)
    stage = await opened(FlushToMemory([good, bad, static]))
    await chat(stage, System(text="be kind"), *prompts(0, 7), pause_s=0.0)
    await asyncio.sleep(20)
    failed = await events_of(stage, CompactionFailed)
    assert len(failed) == 3 and all("Notebook: the disk is full" in event.why for event in failed)
    turn = await stage.core.reads.latest()
    assert turn and not turn.record.carried and good.items and not bad.items
    assert good.given == len(good.items), "the memory got no item twice in this compaction"
    number = 7
    while not await events_of(stage, WindowCompacted):
        await chat(stage, *prompts(number, number + 1), pause_s=20.0)
        number += 1
    assert set(bad.items) == set(good.items)
    turn = await stage.core.reads.latest()
    assert turn
    removed_texts = prompts(0, number - len(said((await stage.core.reads.latest()).blocks)))  # type: ignore[union-attr]
    items = sorted(good.items.values(), key=lambda item: item.source.turn_index or 0)
    await chat(stage, "what is left?")
    remaining_texts = said(stage.engine.given[-1])
    for index, (item, prompt) in enumerate(zip(items, prompts(0, number), strict=False)):
        assert prompt in item.text and f"as to {prompt}" in item.text and prompt not in remaining_texts
        assert item.source.session_id == SESSION and item.source.turn_index == index + 1
    assert len(items) + len(remaining_texts) - 1 == number and len(removed_texts) <= number, "each has one place"
    assert good.scopes == {Scope(user_id="default", session_id=SESSION)}


async def test_compact_says_what_it_would_do_and_does_it_when_asked() -> None:
    stage = await opened(summarize(Summarizer(), trigger_ratio=0.5), max_context_tokens=3000)
    assert await stage.core.compaction.compact(explain=True) is None
    await chat(stage, *prompts(0, 10))
    assert await stage.core.compaction.compact() is None, "under the trigger there is nothing to do"
    stage.config = stage.core.engines.config
    small = summarize(Summarizer(ValueError("once")), trigger_ratio=0.2)
    stage.core.use(stage.engine, stage.config, small)
    before = await stage.core.reads.latest()
    would = await stage.core.compaction.compact(explain=True)
    assert would and before == await stage.core.reads.latest() and not small.model.shown and not would.done
    assert "summarised: blocks 0 to 17" in str(would) and would.tokens_after < would.tokens_before
    did = await stage.core.compaction.compact()
    assert did and did.done and did.summary == "summary 2" and did.tokens_after < would.tokens_after
    assert len(await events_of(stage, CompactionFailed)) == 1
    small.model.answers = [ValueError("again")] * 3
    await chat(stage, *prompts(10, 20), pause_s=0.0)
    await asyncio.sleep(20)
    small.model.answers = [ValueError("again")] * 3
    with pytest.raises(CompactionError, match="ValueError: again"):
        await stage.core.compaction.compact()


async def test_a_session_over_its_budget_pays_for_no_summary() -> None:
    model = Summarizer()
    stage = await opened(summarize(model), session_budget=Budget(calls=1))
    await chat(stage, *prompts(0, 8))
    assert len(model.shown) == 1
    outcome = await chat(stage, *prompts(8, 16))
    assert len(model.shown) == 1 and outcome.run.code == "budget"


async def test_a_summary_survives_its_process_and_is_not_made_again() -> None:
    """Case 43."""

    model = Summarizer()
    stage = await opened(summarize(model))
    await chat(stage, *prompts(0, 8))
    assert len(model.shown) == 1
    stage.new_core()
    await chat(stage, "and?")
    assert said(stage.engine.given[-1])[0] == "summary 1" and len(model.shown) == 1


async def test_a_process_that_compacts_does_not_leave_and_a_session_that_is_deleted_stops_it() -> None:
    model = Summarizer(delay_s=5.0)
    stage = await opened(summarize(model))
    await chat(stage, *prompts(0, 8), pause_s=0.1)
    assert model.shown and not await stage.core.ownership.leave()
    await stage.core.forgetting.delete()
    await asyncio.sleep(10)
    stage = await opened(summarize(Summarizer(delay_s=5.0)))
    await chat(stage, *prompts(0, 8), pause_s=0.1)
    await asyncio.sleep(10)
    assert await stage.core.ownership.leave()


async def test_the_usage_of_a_commit_is_counted_once_though_its_answer_was_lost() -> None:
    """The commit is stored and only its answer is lost: the attempt is reported and charged once."""

    class Forgetful:
        def __init__(self, inner: Any) -> None:
            self.inner = inner
            self.loses = False

        def __getattr__(self, verb: str) -> Any:
            return getattr(self.inner, verb)

        async def commit(self, *args: Any) -> None:
            await self.inner.commit(*args)
            kinds = {type(event) for event in args[2].events}
            if self.loses and kinds & {CompactionFailed, WindowCompacted}:
                self.loses = False
                raise StoreError("the answer was lost")

    for answers in ((), (ValueError("once"),)):
        model = Summarizer(*answers)
        stage = Stage(Talker(), overflow=summarize(model), **WINDOW)
        stage.store = Forgetful(stage.store)
        stage.new_core()
        await stage.create()
        stage.store.loses = True
        await chat(stage, *prompts(0, 7), pause_s=0.0)
        await asyncio.sleep(10)
        assert not stage.store.loses
        assert len(await events_of(stage, WindowCompacted)) == 1
        assert len(await events_of(stage, CompactionFailed)) == len(answers)
        usage = (await stage.core.reads.session()).usage
        assert usage.calls == len(model.shown) == 1 + len(answers)
        await chat(stage, "and?")
        assert said(stage.engine.given[-1])[0].startswith("summary")


async def test_a_text_too_long_for_the_summarizer_is_summarised_in_parts() -> None:
    """The model still sees each block once; a part that fails is repeated, the parts before it are not."""

    model = Summarizer("first", ValueError("once"))
    stage = await opened(None)
    await chat(stage, *prompts(0, 60), pause_s=0.0)
    stage.overflow = summarize(model, model_window=3200)
    stage.new_core()
    await chat(stage, "and?", pause_s=0.0)
    assert said(stage.engine.given[-1]) == [f"summary {len(model.shown)}", "and?"]
    counter = ByteCounter()
    assert len(model.shown) > 3
    assert all(sum(map(counter.count, shown)) <= 3200 - 200 for shown in model.shown)
    good = ["\n".join(said(shown)) for shown in model.shown if shown is not model.shown[1]]
    for prompt in prompts(0, 60):
        assert sum(prompt in text for text in good) == 1
    assert "first" in good[1] and all(f"summary {number}" in text for number, text in enumerate(good[2:], 3))
    assert len(await events_of(stage, CompactionFailed)) == 1


async def test_one_compaction_goes_on_at_a_time() -> None:
    model = Summarizer(delay_s=5.0)
    stage = await opened(summarize(model, trigger_ratio=0.5))
    number = 0
    while not model.shown:
        await chat(stage, *prompts(number, number + 1), pause_s=0.0)
        number += 1
    results = await asyncio.gather(*(stage.core.compaction.compact() for _ in range(3)))
    assert len(model.shown) == 1 and results == [None] * 3, "after the first there was nothing to do"
    assert not await events_of(stage, CompactionFailed)


async def test_compactions_requested_while_another_is_under_way_share_the_next_one() -> None:
    """Cancelled callers share it too: else each of a thousand would cost a summary."""

    model = Summarizer(delay_s=5.0)
    stage = await opened(summarize(model, trigger_ratio=0.5))
    number = 0
    while not model.shown:
        await chat(stage, *prompts(number, number + 1), pause_s=0.0)
        number += 1
    requests = [asyncio.ensure_future(stage.core.compaction.compact()) for _ in range(1000)]
    abandoned = requests[:-1]
    await asyncio.sleep(0.1)
    tasks = len(asyncio.all_tasks())
    for request in abandoned:
        request.cancel()
    await asyncio.wait(abandoned)
    await requests[-1]
    assert len(model.shown) <= 2 and tasks < 1010, "one task waits for all of them"


# Models and memories that misbehave


class Closing(Summarizer):
    """Also has something to close, which may fail."""

    def __init__(self, *answers: Any, close: Any = None, **settings: Any) -> None:
        super().__init__(*answers, **settings)
        self.fails = close
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1
        if isinstance(self.fails, Exception):
            raise self.fails
        await asyncio.sleep(self.fails or 0)


@pytest.mark.parametrize("close", [None, OSError("the socket broke"), 1e9])
async def test_a_summary_is_good_whatever_becomes_of_its_engine_afterwards(close: Any) -> None:
    model = Closing(close=close)
    stage = await opened(summarize(model))
    await chat(stage, *prompts(0, 7), pause_s=0.0)
    await asyncio.sleep(60)
    assert len(model.shown) == model.closed == len(await events_of(stage, WindowCompacted)) == 1
    assert not stage.core.compaction.is_under_way


async def test_an_engine_that_is_not_built_in_time_delays_no_caller() -> None:
    """Case 40."""

    model = Summarizer()
    stage = await opened(summarize(model), compaction_timeout_s=5.0)

    async def off_loop(call: Any, *args: Any) -> Any:
        if getattr(call, "__self__", None) is model:
            await asyncio.sleep(1e9)
        return call(*args)

    stage.core.engines.off_loop = off_loop
    stage.core.use(stage.engine, stage.config, stage.overflow)
    outcome = await chat(stage, *prompts(0, 12), pause_s=0.0)
    assert outcome.run.state == "completed"
    assert {event.why for event in await events_of(stage, CompactionFailed)} == {"TimeoutError: no result within 5 s"}


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), SystemExit(1), KeyboardInterrupt()])
async def test_a_model_or_a_memory_that_wants_to_end_it_all_only_fails(raised: BaseException) -> None:
    class Model(Summarizer):
        async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
            await super().run(turn, context)
            raise raised

    class Memory(Notebook):
        async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> list[str]:
            raise raised

    for overflow in (summarize(Model()), FlushToMemory([Memory()], otherwise=Trim())):
        stage = await opened(overflow)
        outcome = await chat(stage, *prompts(0, 12), pause_s=0.0)
        assert outcome.run.state == "completed"
        failed = await events_of(stage, CompactionFailed)
        assert failed and all("cancelled itself" in event.why or " raised " in event.why for event in failed)
        assert "Trim" in {event.strategy for event in await events_of(stage, WindowCompacted)}
        if isinstance(overflow, Summarize):
            call_count = len(overflow.model.shown)
            assert (await stage.core.reads.session()).usage.input_tokens == 100 * call_count, "each is paid for"


async def test_a_memory_that_hangs_is_given_up() -> None:
    class Memory(Notebook):
        async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> list[str]:
            await asyncio.sleep(1e9)
            return []

    stage = await opened(FlushToMemory([Memory()], otherwise=Trim()), compaction_timeout_s=5.0)
    outcome = await chat(stage, *prompts(0, 12), pause_s=0.0)
    assert outcome.run.state == "completed"


async def test_an_answer_that_met_its_limit_is_no_summary() -> None:
    class Model(Summarizer):
        async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
            context.report(stop_reason="length", usage=Usage(calls=7))
            return await super().run(turn, context)

    model = Model()
    stage = await opened(summarize(model))
    await chat(stage, *prompts(0, 8), pause_s=0.0)
    await asyncio.sleep(20)
    assert len(await events_of(stage, CompactionFailed)) == 3 and not await events_of(stage, WindowCompacted)
    assert (await stage.core.reads.session()).usage.calls == 3, "an attempt is one call, whatever the engine counts"


async def test_a_part_that_fails_for_good_leaves_all_as_it_was() -> None:
    model = Summarizer("first", *[ValueError("broken")] * 9)
    stage = await opened(None)
    await chat(stage, *prompts(0, 60), pause_s=0.0)
    stage.core.use(stage.engine, stage.config, summarize(model, model_window=3200))
    with pytest.raises(CompactionError):
        await stage.core.compaction.compact()
    turn = await stage.core.reads.latest()
    assert turn and said(turn.blocks) == prompts(0, 60) and not turn.record.carried


# Where things meet


async def test_a_partial_save_in_a_memory_does_not_suffice_and_otherwise_decides() -> None:
    class Half(Notebook):
        async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> list[str]:
            return await super().remember(scope, items[:1])

    stage = await opened(FlushToMemory([Half()], max_ratio=0.2, trigger_ratio=1.0, otherwise=Trim()))
    await chat(stage, *prompts(0, 7), pause_s=0.0)
    outcome = await chat(stage, "z" * 450, pause_s=0.0)
    assert outcome.run.state == "completed"
    assert sum(map(ByteCounter().count, stage.engine.given[-1])) + 3 <= 600


async def test_an_ended_session_compacts_no_more_and_its_usage_is_counted() -> None:
    model = Summarizer(delay_s=5.0)
    stage = await opened(summarize(model))
    await chat(stage, *prompts(0, 8), pause_s=0.1)
    assert len(model.shown) == 1
    await stage.core.admission.end_session()
    await asyncio.sleep(60)
    assert len(model.shown) == 1 and not await events_of(stage, WindowCompacted)
    assert (await stage.core.reads.session()).usage.input_tokens == 100
    events = await stage.events()
    assert events[-1].kind == "session_ended"


async def test_no_model_is_asked_for_more_than_the_session_may_spend() -> None:
    """Also between the parts of one summary; the failure is final and reported once."""

    model = Summarizer()
    stage = await opened(None)
    await chat(stage, *prompts(0, 60), pause_s=0.0)
    config = replace(stage.config, session_budget=Budget(calls=2))
    stage.core.use(stage.engine, config, summarize(model, model_window=3200))
    with pytest.raises(CompactionError, match="session_budget"):
        await stage.core.compaction.compact()
    assert len(model.shown) == 2 and len(await events_of(stage, CompactionFailed)) == 1
    stage.core.use(stage.engine, config, DeleteOldest(50))
    assert await stage.core.compaction.compact(), "a plan without costs is carried out"


async def test_a_fork_of_a_fork_keeps_what_its_summary_stands_for() -> None:
    stage = await opened(None)
    now = asyncio.get_running_loop().time

    def core(name: str, overflow: Any = None) -> SessionCore:
        return SessionCore(
            SessionKey(name), stage.store, stage.engine, stage.config, overflow=overflow, clock=now, off_loop=inline
        )

    async def say(on: SessionCore, text: str) -> None:
        await on.admission.start([text], run_id=text)
        await on.reads.wait(text)

    await chat(stage, "one " * 20, "two " * 20)
    await stage.core.forking.fork(None, "A")
    first = core("A")
    await say(first, "three")
    await first.forking.fork(None, "B")
    second = core("B", Summarize(Summarizer("s"), trigger_ratio=0.1, keep_turns=1, max_summary_tokens=59))
    assert await second.compaction.compact()
    await second.forking.fork(None, "C")
    third = core("C")
    await say(third, "four")
    await third.forking.fork(None, "D")
    for session_core in (stage.core, first, second, third):
        await session_core.forgetting.delete()
    fourth = core("D")
    turn = await fourth.reads.latest()
    assert turn
    (summary,) = (block for block in turn.blocks if isinstance(block, Summary))
    assert said(await fourth.reads.expand(summary)) == ["one " * 20, "two " * 20]


async def test_nobody_expands_what_was_rolled_back() -> None:
    stage = await opened(Trim())
    await chat(stage, "hello")
    await stage.core.admission.start(["my secret"], run_id="gone")
    await stage.core.admission.start(["never mind"], run_id="kept", if_busy="rollback")
    await stage.core.reads.wait("kept")
    session = await stage.core.reads.session()
    with pytest.raises(InvalidInputError, match="not a summary of session"):
        await stage.core.reads.expand(Summary(text="", of=((session.log, 0, session.log_size),)))


async def test_a_flush_reads_only_the_turns_that_it_hands_over() -> None:
    memory = Notebook()
    stage = await opened(FlushToMemory([memory]))
    await chat(stage, *prompts(0, 100), pause_s=0.5)
    stage.new_core()
    read, turns = 0, stage.store.turns

    async def counted(*args: Any, **settings: Any) -> Any:
        nonlocal read
        page = await turns(*args, **settings)
        read += len(page)
        return page

    stage.store.turns = counted
    await chat(stage, *prompts(100, 105), pause_s=0.5)
    assert 0 < read < 40
    assert all(item.source.turn_index is not None for item in memory.items.values())


def test_a_cancelled_compaction_leaves_no_coroutine_unawaited() -> None:
    """As a loop does with its tasks when it ends."""

    async def story() -> None:
        begun: list[str] = []

        async def work() -> None:
            begun.append("begun")

        calling = asyncio.ensure_future(within(work, 60.0, 60.0))
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert len(tasks) == 2 and calling in tasks and begun == []

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(story())
        gc.collect()
