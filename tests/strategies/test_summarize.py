"""`Summarize`: what the model sees, which answers are accepted, and when a summary is due."""

from __future__ import annotations

import json
import os
import re
from random import Random
from typing import Any

import pytest

from scale import share
from turnwise.errors import SummaryRefusedError, WindowOverflowError
from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Document,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
)
from turnwise.memory.conversation.spans import Span
from turnwise.memory.providers import anthropic, openai_chat as chat, openai_responses as responses
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.conformance_conversations import COUNTER, Case, Conversation, random_case
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.plan import Plan
from turnwise.strategies.ranges import Range
from turnwise.strategies.strategy import decide
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.summary_task import SummaryTask
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget
from turnwise.testing.local_provider.message_rules import check_anthropic, check_chat, check_responses
from windows.conversations import (
    Engine,
    Memory,
    exchange,
    exchanges,
    read,
    read_ranges,
    rolling,
    said_in,
    seeds,
    summarize,
    talk,
    tokens,
)


def test_the_model_sees_each_removed_block_once() -> None:
    """Case 37: results of tools, errors and pictures as well."""
    removed: list[Block] = [
        *exchange(1),
        *(User(text="q002"), Image(url="https://example.org/cat.png"), Document(name="notes.txt", text="d002")),
        Thinking(text="t002", signature="SECRET"),
        *(ToolUse(call_id="c1", name="look", input={"at": "i002"}), ToolUse(call_id="c2", name="look")),
        *(ToolResult(call_id="c1", text="r002\n{}]"), ToolResult(call_id="c2", text="e002", is_error=True)),
        *(Text(text="a002", interrupted=True), CacheCheckpoint(), Unknown(stored_kind="hologram")),
    ]
    kept_blocks = [*exchange(3), User(text="q004")]
    window = talk(System(text="SYSTEM"), *removed, *kept_blocks).window()
    plan = decide(rolling(), window, TokenBudget(600))
    assert plan and plan.summary
    assert plan.summary.model == Engine()
    assert read_ranges(window, plan.keep) == kept_blocks, "the trailing prompt stays, and the exchange before it"
    request = plan.summary.request(window)
    shown = said_in(request)
    for word in ("q001", "a001", "q002", "d002", "t002", "i002", "r002", "e002", "a002"):
        assert shown.count(word) == 1, word
    for word in ("q003", "a003", "q004", "SECRET", "SYSTEM", "hologram"):
        assert word not in shown, word
    assert isinstance(request[0], System)
    assert [block for block in request if isinstance(block, Image)] == [Image(url="https://example.org/cat.png")]
    assert not any(isinstance(block, ToolUse | ToolResult | Thinking) for block in request), "it needs no tools"
    check_chat(chat.encode(request))
    check_responses(responses.encode(request)[1])
    check_anthropic(anthropic.encode(request)[1], thinking=False)
    lines = [line for block in request[1:] if isinstance(block, User) for line in block.text.splitlines()]
    shown_lines = [json.loads(line) for line in lines if line.startswith("{")]
    assert {"result of call": "c1", "text": "r002\n{}]"} in shown_lines
    assert {"result of call": "c2", "error": "e002"} in shown_lines
    block = plan.summary.block(window, "They met.")
    assert block.of == (("own", 1, 1 + len(removed)),), "it names what it stands for, and not the system prompt"


def test_in_random_conversations_the_model_sees_exactly_the_removed_blocks() -> None:
    """Case 37."""
    summaries = 0
    for seed in seeds(700_000, share(1000)):
        dice = Random(seed)
        conversation, budget = random_case(dice)
        window = conversation.window()
        strategy = summarize(Case(conversation, budget))
        try:
            plan = decide(strategy, window, budget)
        except WindowOverflowError:
            continue
        if not plan or not plan.summary:
            continue
        summaries += 1
        removed = [index for part in plan.summary.ranges for index in range(*part)]
        removed = [index for index in removed if not isinstance(window.block(index), System)]
        kept_places = [index for part in plan.keep for index in range(*part)]
        assert removed + kept_places == [
            index for index, block in enumerate(read(window)) if not isinstance(block, System)
        ], seed
        assert plan.summary.block(window, "").of == window.spans_of(Range(index, index + 1) for index in removed), seed
    assert summaries > share(350) or os.environ.get("TURNWISE_SEED")


def test_each_summary_includes_the_previous_one() -> None:
    """Cases 37 and 43: each exchange is summed up once, however long it goes on."""
    conversation, budget = talk(System(text="Be brief.")), TokenBudget(600)
    strategy = rolling()
    summed_up: list[str] = []
    texts: list[str] = []
    for number in range(60):
        conversation.add([User(text=f"<q{number}>" + "." * 40)])
        plan = check_case_of(strategy, conversation, budget, texts, summed_up)
        if plan is None and number == 59:
            break
        conversation.add([Text(text=f"<a{number}>" + "." * 40)])
    assert len(texts) > 4
    assert summed_up == [f"<{side}{number}>" for number in range(len(summed_up) // 2) for side in "qa"]
    assert len(summed_up) > 2 * 45
    window = conversation.window()
    assert window.summaries == (1,) and window.system == 0
    assert len(window) < 20
    (summary,) = (block for block in read(window) if isinstance(block, Summary))
    (before, *_) = conversation.cache.read([Span(*summary.of[0])])
    assert isinstance(before, Summary) and before.text == texts[-2], "which can be expanded in turn"


def check_case_of(
    strategy: Summarize, conversation: Conversation, budget: TokenBudget, texts: list[str], summed_up: list[str]
) -> Plan | None:
    """Act like a session: decide, request the summary, and replace the summarized blocks."""
    window = conversation.window()
    plan = decide(strategy, window, budget)
    if plan is None:
        assert not strategy.due(window, budget)
        return None
    assert plan.summary and strategy.due(window, budget)
    shown = said_in(plan.summary.request(window))
    summed_up += [
        part + ">" for part in shown.replace("<", "\n<").replace(">", "\n").splitlines() if part.startswith("<")
    ]
    assert all(shown.count(text) == (index == len(texts) - 1) for index, text in enumerate(texts))
    text = plan.summary.accept([Text(text=f"Summary {len(texts):03}.")], COUNTER)
    texts.append(text)
    span = conversation.store("own", [plan.summary.block(window, text)])
    conversation.spans = plan.spans(window, span)
    assert decide(strategy, conversation.window(), budget) is None
    return plan


REFUSED = [
    ([], "empty"),
    ([Text(text=" \n")], "empty"),
    ([Thinking(text="They met.")], "empty"),
    ([ToolUse(call_id="a", name="look")], "tool_call"),
    ([Text(text="Let me look."), ToolUse(call_id="a", name="look")], "tool_call"),
    ([Text(text="They m", interrupted=True)], "cut"),
    ([Text(text="x" * 60)], "oversize"),
]


@pytest.mark.parametrize(("answer", "kind"), REFUSED)
def test_an_answer_that_is_not_a_summary_is_refused(answer: list[Block], kind: str) -> None:
    """Case 37."""
    task = SummaryTask(ranges=(Range(0, 1),), max_tokens=100, model=None)
    with pytest.raises(SummaryRefusedError) as caught:
        task.accept(answer, COUNTER)
    assert caught.value.kind == kind


def test_a_summary_has_at_most_the_given_length() -> None:
    task = SummaryTask(ranges=(Range(0, 1),), max_tokens=100, model=None)
    least = COUNTER.count(Summary(text=""))
    assert task.accept([Thinking(text="Hm."), Text(text="x" * (99 - least)), Text(text="y ")], COUNTER).endswith("xy")
    with pytest.raises(SummaryRefusedError, match="oversize"):
        task.accept([Text(text="x" * (101 - least))], COUNTER)


def test_an_exchange_that_fits_no_request_is_a_part_of_its_own() -> None:
    window = talk(*exchange(1), *exchange(2, length=5000), *exchange(3), User(text="and?")).window()
    task = SummaryTask(ranges=(Range(0, 6),), max_tokens=100, model=None)
    assert task.parts(window, 3000) == [(Range(0, 2),), (Range(2, 4),), (Range(4, 6),)]


def test_the_newest_turns_are_kept_or_fewer() -> None:
    blocks = exchanges(*range(20), length=20)
    budget = TokenBudget(tokens(blocks))
    exchange_tokens = tokens(exchange(1, 20))

    def kept_exchanges(**settings: Any) -> int:
        plan = decide(rolling(**settings), talk(*blocks).window(), budget)
        assert plan
        return sum(stop - start for start, stop in plan.keep) // 2

    assert [kept_exchanges(keep_turns=turns) for turns in (1, 2, 5, 99)] == [1, 2, 5, 13]
    assert [
        kept_exchanges(keep_turns=9, keep_tokens=room)
        for room in (1, exchange_tokens, 3 * exchange_tokens - 1, 3 * exchange_tokens)
    ] == [1, 1, 2, 3]


def test_the_window_is_summarized_above_the_trigger_only() -> None:
    blocks = exchanges(*range(20))
    window = talk(*blocks).window()
    for ratio in (0.5, 0.8, 1.0):
        strategy = rolling(trigger_ratio=ratio)
        limit = int(tokens(blocks) / ratio)
        assert (
            not strategy.due(window, TokenBudget(limit + 2))
            and decide(strategy, window, TokenBudget(limit + 2)) is None
        )
        assert strategy.due(window, TokenBudget(limit - 2)) and decide(strategy, window, TokenBudget(limit - 2))


def test_without_room_for_a_summary_the_other_strategy_decides() -> None:
    """Strategies compose: `Trim` is the last resort of `Summarize`."""
    blocks = [*exchanges(*range(9)), User(text="x" * 150)]
    window = talk(*blocks).window()
    fits = decide(rolling(), window, TokenBudget(300))
    assert fits and fits.summary and fits.otherwise == Trim()
    tight = decide(rolling(), window, TokenBudget(200))
    assert tight and tight.strategy == "Trim" and not tight.summary
    two = decide(rolling(otherwise=DeleteOldest(9)), window, TokenBudget(200))
    assert two and two.strategy == "DeleteOldest"
    assert two.otherwise is None


def test_a_window_with_only_its_newest_turn_stays_while_it_fits() -> None:
    """There is no endless loop over a window that cannot shrink."""
    window = talk(Summary(text="They met. " * 20), User(text="x" * 500)).window()
    budget = TokenBudget(800)
    assert decide(rolling(), window, budget) is None
    assert not rolling().due(window, budget)
    assert not FlushToMemory([Memory()]).due(window, budget)


@pytest.mark.parametrize("per_word", [1, 6, 20])
def test_the_word_limit_of_a_summary_fits_its_token_limit(per_word: int) -> None:
    class Counter(ByteCounter):
        def text(self, text: str) -> int:
            return per_word * len(text.split())

    conversation = Conversation(Counter())
    conversation.add([User(text="hello " * 100), Text(text="hi"), User(text="and?")])
    task = SummaryTask(ranges=(Range(0, 2),), max_tokens=900, model=None)
    (*_, last) = task.request(conversation.window())
    assert isinstance(last, User)
    words = int(re.findall(r"no more than (\d+) words", last.text)[-1])
    assert words == int(900 / per_word / 1.5)
