"""Overflow strategies: what goes when a conversation outgrows its window, and what never does.

The laws are tried on 20,000 random conversations; a failing one prints its seed, and
`TURNWISE_SEED=<seed> pytest tests/strategies/test_strategies.py -k laws` replays it.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from scale import share
from turnwise.conformance import check_strategy
from turnwise.errors import ConfigError, StrategyError, SummaryRefusedError, WindowOverflowError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import (
    AnyBlock,
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
from turnwise.memory.longterm.base import MemoryItem, Scope, is_read_only
from turnwise.memory.providers import anthropic, openai_chat as chat, openai_responses as responses
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.conformance import check_case
from turnwise.strategies.conformance_conversations import COUNTER, Case, Conversation, random_case
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush import FlushToMemory
from turnwise.strategies.flush_task import FlushTask, unacknowledged
from turnwise.strategies.plan import LAWS, Plan, plan_for, refusals
from turnwise.strategies.ranges import Range, gaps, merge, overlap
from turnwise.strategies.strategy import OverflowStrategy, decide
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.summary_task import SummaryTask
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget, Window
from wire_rules import check_anthropic, check_chat, check_responses

HELLO, YES = User(text="Hello"), Text(text="Yes.")


def seeds(start: int, count: int) -> Iterable[int]:
    only = os.environ.get("TURNWISE_SEED")
    return [int(only)] if only else range(start, start + count)


def talk(*blocks: Block) -> Conversation:
    conversation = Conversation()
    conversation.add(blocks)
    return conversation


def exchange(number: int, length: int = 10) -> list[Block]:
    return [User(text=f"q{number:03}".ljust(length, ".")), Text(text=f"a{number:03}".ljust(length, "."))]


def exchanges(*numbers: int, length: int = 10) -> list[Block]:
    return [block for number in numbers for block in exchange(number, length)]


def tokens(blocks: Sequence[Block]) -> int:
    return sum(map(COUNTER.count, blocks))


def after(strategy: OverflowStrategy, budget: TokenBudget, *blocks: Block) -> list[Block]:
    """Return the request's blocks once the strategy has had its way, all laws held."""
    conversation = talk(*blocks)
    check_case(strategy, Case(conversation, budget))
    return read(conversation.window())


def read(window: Window) -> list[Block]:
    return list(window.blocks([Range(0, len(window))]))


class Memory:
    """A long-term memory in a dict, which may be told to fail."""

    def __init__(self, name: str = "memory", *, read_only: bool = False) -> None:
        self.name = name
        self.read_only = read_only
        self.items: dict[str, MemoryItem] = {}
        self.fails_from = 10**9
        self.writes = 0

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        assert not self.read_only
        durable = []
        for item in items[: self.fails_from]:
            self.writes += item.id not in self.items
            self.items.setdefault(item.id, item)
            durable.append(item.id)
        return durable

    async def recall(self, scope: Scope, query: str, *, limit: int = 10, **filters: Any) -> Sequence[MemoryItem]:
        return [item for item in self.items.values() if query in item.text][:limit]

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        if id not in self.items:
            return False
        self.items[id] = replace(self.items[id], text=text or self.items[id].text)
        return True

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, **which: Any) -> int:
        gone = [name for name in self.items if ids is None or name in ids]
        return len([self.items.pop(name) for name in gone])

    async def close(self) -> None:
        pass


# The laws, on random conversations


def summarize(case: Case, **settings: Any) -> OverflowStrategy:
    budget = case.budget.max_tokens
    if budget < 120:
        return Trim()  # no summary fits, and Summarize says so: see the bad settings below
    most = max(64, min(budget // 4, 300))
    return Summarize(None, max_summary_tokens=most, keep_turns=1 + budget % 3, **settings)


@pytest.mark.parametrize(
    ("make", "start"),
    [
        (lambda case: Trim(), 0),
        (lambda case: Trim(max(1, case.budget.max_tokens * 2 // 3)), 100_000),
        (lambda case: DeleteOldest(1 + case.budget.max_tokens % 4), 200_000),
        (summarize, 300_000),
        (lambda case: summarize(case, trigger_ratio=1, keep_tokens=max(1, case.budget.max_tokens // 5)), 400_000),
        (lambda case: FlushToMemory([Memory()], max_ratio=0.5), 500_000),
    ],
    ids=["Trim", "Trim-max_tokens", "DeleteOldest", "Summarize", "Summarize-keep_tokens", "FlushToMemory"],
)
def test_the_laws_hold_on_random_conversations(make: Callable[[Case], OverflowStrategy], start: int) -> None:
    """Cases 34, 35 and 36: 20,100 conversations with `make races`, each of which goes on for two exchanges more."""
    check_strategy(make, seeds(start, share(3350)))


def test_random_conversations_hold_what_they_should() -> None:
    """Nothing is shown by conversations that are all alike."""
    kinds: dict[str, int] = {}
    for seed in range(400):
        conversation, budget = random_case(Random(seed))
        window = conversation.window()
        assert not refusals(read(window)), seed
        for block in read(window):
            kinds[block.kind] = kinds.get(block.kind, 0) + 1
        parts = list(window.exchanges())
        kinds["many exchanges"] = kinds.get("many exchanges", 0) + (len(parts) > 3)
        kinds["many spans"] = kinds.get("many spans", 0) + (len(conversation.spans) > 2)
        kinds["fits"] = kinds.get("fits", 0) + (window.taken(budget) <= budget.max_tokens)
        kinds["fits in parts"] = kinds.get("fits in parts", 0) + (
            window.tokens_from(window.newest.start, budget) <= budget.max_tokens < window.taken(budget)
        )
    assert min(kinds.values()) > 20, kinds
    assert len(kinds) == 12 + 4, kinds


def test_what_is_left_is_taken_on_the_wire() -> None:
    """Case 36: by rules that know nothing of blocks."""
    for seed in seeds(600_000, share(500, 4)):
        dice = Random(seed)
        conversation, budget = random_case(dice)
        for strategy in (Trim(), DeleteOldest(2), summarize(Case(conversation, budget))):
            left = Conversation()
            left.add(read(conversation.window()))
            try:
                check_case(strategy, Case(left, budget))
            except AssertionError as error:
                raise AssertionError(f"{error} (seed {seed})") from error
            left.add([HELLO])
            blocks = read(left.window())
            check_chat(chat.encode(blocks))
            check_responses(responses.encode(blocks)[1])
            check_anthropic(anthropic.encode(blocks)[1], thinking=False)


# Windows


def test_an_exchange_begins_with_what_the_user_says() -> None:
    call, result = ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="seen")
    image = Image(url="https://example.org/cat.png")
    window = talk(
        *(System(text="Be brief."), YES),  # before any prompt
        *(
            User(text=" "),
            image,
            HELLO,
            CacheCheckpoint(),
            Thinking(text="Hm."),
            call,
            result,
            YES,
            Unknown(stored_kind="x"),
        ),
        *(HELLO, System(text="Be long."), call, result),
        *(User(text=" "), YES),  # the user has said nothing
        *(Summary(text="They met."), HELLO),
    ).window()
    assert list(window.exchanges()) == [Range(18, 19), Range(11, 18), Range(2, 11), Range(0, 2)]
    assert window.newest == Range(18, 19)
    assert [window.end_of_oldest(count) for count in range(1, 4)] == [11, 18, 18]
    assert window.system == 12 and window.summaries == (17,)


def test_a_prompt_between_a_call_and_its_result_begins_nothing() -> None:
    call, result = ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="seen")
    window = talk(HELLO, call, HELLO, result, YES, HELLO, call, result, YES).window()
    assert list(window.exchanges()) == [Range(5, 9), Range(0, 5)]
    assert window.end_of_oldest(1) == 5


def test_the_window_tells_what_reading_all_blocks_would() -> None:
    for seed in range(200):
        dice = Random(seed)
        window = random_case(dice).conversation.window()
        blocks = read(window)
        assert [window.block(at) for at in range(len(window))] == blocks
        assert [
            block for start in range(0, len(blocks), 3) for block in window.blocks([Range(start, start + 3)])
        ] == blocks
        systems = [at for at, block in enumerate(blocks) if isinstance(block, System)]
        assert window.system == (systems[-1] if systems else None)
        assert list(window.places(System)) == systems
        assert window.summaries == tuple(at for at, block in enumerate(blocks) if isinstance(block, Summary))
        for _ in range(5):
            start, stop = sorted(dice.choices(range(len(blocks) + 1), k=2))
            assert window.tokens(start, stop) == tokens([b for b in blocks[start:stop] if not isinstance(b, System)])
            assert list(window.places(System, Range(start, stop))) == [at for at in systems if start <= at < stop]
        parts = list(window.exchanges())
        assert merge(parts) == ((Range(0, len(blocks)),) if blocks else ())
        for number, part in enumerate(reversed(parts[1:]), 1):
            assert window.end_of_oldest(number) == part.stop
        assert window.end_of_oldest(len(parts)) == window.newest.start
        with pytest.raises(IndexError):
            window.block(len(blocks))


def test_ranges_are_told_as_sets_of_places_would() -> None:
    def places(ranges: Iterable[Range]) -> set[int]:
        return {at for start, stop in ranges for at in range(start, stop)}

    dice = Random(1)
    for _ in range(500):
        some, others = (
            merge(Range(start, start + dice.randrange(4)) for start in dice.choices(range(12), k=3)) for _ in range(2)
        )
        assert places(overlap(some, others)) == places(some) & places(others)
        assert places(gaps(some, Range(2, 12))) == set(range(2, 12)) - places(some)


# Cost


class CountingCache(BlockCache):
    """Says how many blocks were read."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks_read = 0

    def read(self, spans: Iterable[Span]) -> tuple[AnyBlock, ...]:
        found = super().read(spans)
        self.blocks_read += len(found)
        return found


def long_conversation(blocks: int, cache: BlockCache | None = None) -> Conversation:
    """Return a conversation of so many blocks, in exchanges of four, with a call each."""
    conversation = Conversation()
    conversation.cache = cache or conversation.cache
    conversation.add([System(text="Be brief.")])
    turn = [
        User(text="What is it like?"),
        ToolUse(call_id="a", name="look"),
        ToolResult(call_id="a", text="It is raining."),
        Text(text="It rains."),
    ]
    for _ in range(blocks // 4):
        conversation.add(turn)
    return conversation


STRATEGIES: list[OverflowStrategy] = [
    Trim(),
    DeleteOldest(3),
    Summarize(None, max_summary_tokens=100, keep_turns=20),
    FlushToMemory([Memory()]),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_deciding_on_a_long_history_reads_no_more_than_on_a_short_one(strategy: OverflowStrategy) -> None:
    cost = []
    for size in (1_000, 100_000):
        cache = CountingCache()
        conversation = long_conversation(size, cache)
        window = conversation.window()
        cache.blocks_read = 0
        plan = decide(strategy, window, TokenBudget(2000))
        assert plan
        cost.append(cache.blocks_read)
    assert cost[1] <= 1.1 * cost[0]
    assert cost[0] < 400


def test_counting_a_new_turn_reads_that_turn_only() -> None:
    cache = CountingCache()
    conversation = long_conversation(10_000, cache)
    conversation.window()
    cache.blocks_read = 0
    conversation.add([HELLO, YES])
    conversation.window()
    assert cache.blocks_read == 2


# Trim and DeleteOldest


def test_the_last_system_prompt_stays_once_and_counts_once() -> None:
    """Case 34."""
    old, new = System(text="Be brief." * 20), System(text="Be long.")
    blocks = [old, *exchanges(1, 2), new, *exchanges(3)]
    room = tokens([new, *exchanges(2, 3)])
    for strategy in (Trim(), DeleteOldest(1)):
        assert after(strategy, TokenBudget(room), *blocks) == [new, *exchanges(2, 3)]
        assert after(strategy, TokenBudget(room - 1), *blocks) == [new, *exchanges(3)]
        assert after(strategy, TokenBudget(tokens([new, *exchanges(1, 2, 3)])), *blocks) == blocks
    assert [block.kind for block in after(Trim(), TokenBudget(room), new, *exchanges(1, 2, 3), new)] == [
        "system",
        *["user", "text"] * 2,
    ]


@pytest.mark.parametrize(
    "strategy", [Trim(), Trim(10**6), DeleteOldest(1), DeleteOldest(2), DeleteOldest(10**9)], ids=repr
)
def test_what_fits_stays(strategy: OverflowStrategy) -> None:
    """Case 35."""
    assert after(strategy, TokenBudget(1)) == []
    assert after(strategy, TokenBudget(tokens([HELLO])), HELLO) == [HELLO]
    assert after(strategy, TokenBudget(tokens(exchanges(*range(9)))), *exchanges(*range(9))) == exchanges(*range(9))


def test_trim_drops_the_oldest_until_the_rest_fits() -> None:
    """Case 35: one message, many, more than fit."""
    blocks = exchanges(*range(10))
    for kept in range(1, 10):
        left = exchanges(*range(10 - kept, 10))
        assert after(Trim(), TokenBudget(tokens(left)), *blocks) == left
        assert after(Trim(tokens(left)), TokenBudget(10**6), *blocks) == left
        assert after(Trim(), TokenBudget(tokens(left) + 27), *blocks) == left
    assert after(Trim(1), TokenBudget(10**6), *blocks) == exchanges(9), "the newest stays, whatever its own limit is"


def test_delete_drops_so_many_and_more_if_they_are_not_enough() -> None:
    """Case 35: fewer than there are, as many, more."""
    blocks = exchanges(*range(5))
    over = TokenBudget(tokens(blocks) - 1)
    for count, left in [(1, [1, 2, 3, 4]), (3, [3, 4]), (4, [4]), (5, [4]), (10**9, [4])]:
        assert after(DeleteOldest(count), over, *blocks) == exchanges(*left)
    assert after(DeleteOldest(1), TokenBudget(tokens(exchanges(3, 4))), *blocks) == exchanges(3, 4)


def test_a_greeting_goes_first() -> None:
    greeting = Text(text="How may I help?")
    system = System(text="Be brief.")
    blocks = [system, CacheCheckpoint(), greeting, *exchanges(1, 2)]
    budget = TokenBudget(tokens(blocks) - 1)
    assert after(Trim(), budget, *blocks) == [system, *exchanges(1, 2)]
    assert after(DeleteOldest(1), budget, *blocks) == [system, *exchanges(2)]


def test_a_summary_outlives_what_follows_it() -> None:
    summary = Summary(text="They met.", of=(("gone", 0, 9),))
    for strategy in (Trim(), DeleteOldest(1), FlushToMemory([Memory()], max_ratio=1, trigger_ratio=1)):
        left = [System(text="Be brief."), summary, *exchanges(2)]
        assert after(strategy, TokenBudget(tokens(left)), System(text="Be brief."), summary, *exchanges(1, 2)) == left


# What does not fit


@pytest.mark.parametrize("strategy", [Trim(), Trim(5), DeleteOldest(1), FlushToMemory([Memory()])], ids=repr)
def test_a_newest_turn_that_cannot_fit_is_an_error_that_says_what_takes_how_much(strategy: OverflowStrategy) -> None:
    """Case 38: and nothing goes round in circles."""
    system, summary, prompt = System(text="Be brief."), Summary(text="They met."), User(text="x" * 500)
    window = talk(system, summary, *exchanges(1, 2), prompt).window()
    with pytest.raises(WindowOverflowError) as caught:
        decide(strategy, window, TokenBudget(400, overhead=77))
    error = caught.value
    assert (error.max_tokens, error.newest, error.summary) == (400, tokens([prompt]), tokens([summary]))
    assert error.overhead == 77 + tokens([system])
    assert error.needed == error.overhead + error.summary + error.newest
    for said in (str(error.overhead), str(error.newest), "400", "max_context_tokens"):
        assert said in str(error)


def test_a_system_prompt_and_tools_that_alone_are_too_much_are_an_error() -> None:
    """Case 38."""
    cases: list[tuple[list[Block], int]] = [([System(text="x" * 100), HELLO], 0), ([HELLO], 99)]
    for blocks, overhead in cases:
        with pytest.raises(WindowOverflowError, match="for the system prompt and tools"):
            decide(Trim(), talk(*blocks).window(), TokenBudget(100, overhead))


def test_a_prompt_that_does_not_fit_beside_the_summary_is_told_so() -> None:
    """The summary is all that is left of what was before: it does not go in silence."""
    window = talk(Summary(text="x" * 200), *exchanges(1), User(text="y" * 200)).window()
    with pytest.raises(WindowOverflowError) as caught:
        decide(Trim(), window, TokenBudget(300))
    assert caught.value.summary == window.tokens(0, 1)
    assert decide(rolling(), window, TokenBudget(310)), "it can be folded into a shorter one"


def test_the_trigger_counts_system_prompt_and_tools() -> None:
    """Case 39."""
    blocks = exchanges(*range(10))
    room = tokens(blocks)
    tools = [{"name": "look", "parameters": {"type": "object"}}]
    overhead = COUNTER.overhead("Be brief.", tools)
    assert overhead > 50
    for strategy in (Trim(), DeleteOldest(1)):
        assert decide(strategy, talk(*blocks).window(), TokenBudget(room)) is None
        assert decide(strategy, talk(*blocks).window(), TokenBudget(room, 1)) is not None
        assert decide(strategy, talk(System(text=""), *blocks).window(), TokenBudget(room)) is not None
    rolling = Summarize(None, trigger_ratio=0.5, max_summary_tokens=64)
    assert not rolling.due(talk(*blocks).window(), TokenBudget(2 * room))
    assert rolling.due(talk(*blocks).window(), TokenBudget(2 * room, overhead))
    assert rolling.due(talk(System(text="Be brief."), *blocks).window(), TokenBudget(2 * room))


# Summarize


def said_in(request: Sequence[Block]) -> str:
    return "\n".join(getattr(block, "text", None) or "" for block in request)


@dataclass(frozen=True)
class Engine:
    """Stands for the engine that sums up."""

    name: str = "small"


def rolling(**settings: Any) -> Summarize:
    return Summarize(Engine(), **{"max_summary_tokens": 100, "keep_turns": 2, **settings})


def test_the_model_sees_exactly_what_goes_once() -> None:
    """Case 37: results of tools, errors and pictures as well."""
    gone: list[Block] = [
        *exchange(1),
        *(User(text="q002"), Image(url="https://example.org/cat.png"), Document(name="notes.txt", text="d002")),
        Thinking(text="t002", signature="SECRET"),
        *(ToolUse(call_id="c1", name="look", input={"at": "i002"}), ToolUse(call_id="c2", name="look")),
        *(ToolResult(call_id="c1", text="r002\n{}]"), ToolResult(call_id="c2", text="e002", is_error=True)),
        *(Text(text="a002", interrupted=True), CacheCheckpoint(), Unknown(stored_kind="hologram")),
    ]
    kept = [*exchange(3), User(text="q004")]
    window = talk(System(text="SYSTEM"), *gone, *kept).window()
    plan = decide(rolling(), window, TokenBudget(600))
    assert plan and plan.summary
    assert plan.summary.model == Engine()
    assert read_ranges(window, plan.keep) == kept, "the trailing prompt stays, and the exchange before it"
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
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert {"result of call": "c1", "text": "r002\n{}]"} in told
    assert {"result of call": "c2", "error": "e002"} in told
    block = plan.summary.block(window, "They met.")
    assert block.of == (("own", 1, 1 + len(gone)),), "it names what it stands for, and not the system prompt"


def read_ranges(window: Window, ranges: Sequence[Range]) -> list[Block]:
    return list(window.blocks(ranges))


def test_in_random_conversations_too_the_model_sees_what_goes_and_nothing_else() -> None:
    """Case 37."""
    seen = 0
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
        seen += 1
        gone = [at for part in plan.summary.ranges for at in range(*part)]
        gone = [at for at in gone if not isinstance(window.block(at), System)]
        kept = [at for part in plan.keep for at in range(*part)]
        assert gone + kept == [at for at, block in enumerate(read(window)) if not isinstance(block, System)], seed
        assert plan.summary.block(window, "").of == window.spans_of(Range(at, at + 1) for at in gone), seed
    assert seen > share(350) or os.environ.get("TURNWISE_SEED")


def test_a_summary_takes_in_the_one_before_and_moves_on() -> None:
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
    """Do as a session does: decide, ask, put the summary in the place of what it stands for."""
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
    assert all(shown.count(text) == (at == len(texts) - 1) for at, text in enumerate(texts))
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
def test_what_is_no_summary_is_refused(answer: list[Block], kind: str) -> None:
    """Case 37."""
    task = SummaryTask(ranges=(Range(0, 1),), max_tokens=100, model=None)
    with pytest.raises(SummaryRefusedError) as caught:
        task.accept(answer, COUNTER)
    assert caught.value.kind == kind


def test_a_summary_may_be_as_long_as_was_said_and_no_longer() -> None:
    task = SummaryTask(ranges=(Range(0, 1),), max_tokens=100, model=None)
    least = COUNTER.count(Summary(text=""))
    assert task.accept([Thinking(text="Hm."), Text(text="x" * (99 - least)), Text(text="y ")], COUNTER).endswith("xy")
    with pytest.raises(SummaryRefusedError, match="oversize"):
        task.accept([Text(text="x" * (101 - least))], COUNTER)


def test_what_is_kept_is_the_newest_turns_or_fewer() -> None:
    blocks = exchanges(*range(20), length=20)
    budget = TokenBudget(tokens(blocks))
    one = tokens(exchange(1, 20))

    def kept(**settings: Any) -> int:
        plan = decide(rolling(**settings), talk(*blocks).window(), budget)
        assert plan
        return sum(stop - start for start, stop in plan.keep) // 2

    assert [kept(keep_turns=turns) for turns in (1, 2, 5, 99)] == [1, 2, 5, 13]
    assert [kept(keep_turns=9, keep_tokens=room) for room in (1, one, 3 * one - 1, 3 * one)] == [1, 1, 2, 3]


def test_the_window_is_summed_up_past_the_trigger_and_not_before() -> None:
    blocks = exchanges(*range(20))
    window = talk(*blocks).window()
    for ratio in (0.5, 0.8, 1.0):
        strategy = rolling(trigger_ratio=ratio)
        at = int(tokens(blocks) / ratio)
        assert not strategy.due(window, TokenBudget(at + 2)) and decide(strategy, window, TokenBudget(at + 2)) is None
        assert strategy.due(window, TokenBudget(at - 2)) and decide(strategy, window, TokenBudget(at - 2))


def test_where_no_summary_helps_another_strategy_decides() -> None:
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


def test_a_window_that_is_full_of_its_newest_turn_is_left_alone_while_it_fits() -> None:
    """No endless loop over what cannot be made smaller."""
    window = talk(Summary(text="They met. " * 20), User(text="x" * 500)).window()
    budget = TokenBudget(800)
    assert decide(rolling(), window, budget) is None
    assert not rolling().due(window, budget)
    assert not FlushToMemory([Memory()]).due(window, budget)


# FlushToMemory


def flush(plan: Plan, window: Window, memories: Sequence[Memory]) -> list[Collection[str]]:
    """Do the first phase as a session does."""
    assert plan.flush
    scope = Scope(user_id="sarah", session_id="s")
    items = plan.flush.items(window, "s")
    return [asyncio.run(memory.remember(scope, items)) for memory in memories]


def unsaved(plan: Plan, window: Window, acknowledged: Collection[Collection[str]]) -> Sequence[Range]:
    """Return the exchanges that some memory has not acknowledged."""
    assert plan.flush
    return unacknowledged(plan.flush.hand_over(window, "s"), acknowledged)


def test_what_goes_is_handed_over_whole_with_where_it_comes_from() -> None:
    """Case 42."""
    memory = Memory()
    call, result = ToolUse(call_id="a", name="look", input={"at": "Paris"}), ToolResult(call_id="a", text="rain")
    blocks = [
        System(text="Be brief."),
        Summary(text="They met."),
        User(text="Paris?"),
        call,
        result,
        YES,
        *exchanges(*range(8)),
    ]
    conversation = talk(*blocks)
    window = conversation.window()
    plan = decide(FlushToMemory([memory]), window, TokenBudget(300))
    assert plan and plan.flush
    assert plan.flush.memories == (memory,)
    acknowledged = flush(plan, window, [memory])
    assert unsaved(plan, window, acknowledged) == ()
    assert plan.retaining(window, TokenBudget(300), ()) is plan
    first, *_ = memory.items.values()
    assert first.text == 'user: Paris?\nassistant calls look: {"at": "Paris"}\nresult: rain\nassistant: Yes.'
    assert first.blocks == tuple(blocks[2:6])
    assert (first.source.session_id, first.source.spans) == ("s", (Span("own", 2, 6),))
    kept = list(window.blocks(plan.keep))
    assert [block for item in memory.items.values() for block in item.blocks] + kept[1:] == blocks[2:]
    assert kept[0] == Summary(text="They met.")
    assert window.tokens_from(plan.keep[-1].start, TokenBudget(300)) <= 150


def test_a_memory_that_fails_keeps_in_the_window_what_it_has_not_and_a_retry_makes_no_duplicates() -> None:
    """Case 42: one memory's failure is not another's."""
    good, bad, static = Memory("good"), Memory("bad"), Memory("static", read_only=True)
    strategy = FlushToMemory([static, good, bad])
    budget = TokenBudget(300)
    conversation = talk(*exchanges(*range(10)))
    window = conversation.window()
    plan = decide(strategy, window, budget)
    assert plan and plan.flush and plan.flush.memories == (good, bad)
    everything = len(plan.flush.items(window, "s"))
    bad.fails_from = 2
    stay = unsaved(plan, window, flush(plan, window, [good, bad]))
    assert len(stay) == everything - 2
    less = plan.retaining(window, budget, stay)
    assert less and less.flush
    less.check(window, TokenBudget(10**6))
    assert list(window.blocks(less.keep)) == exchanges(*range(2, 10))
    assert "has not acknowledged" in str(less.explain())
    assert less.tokens_after == tokens(exchanges(*range(2, 10)))
    conversation.spans = less.spans(window)
    bad.fails_from = 10**9
    conversation.add(exchange(10))
    window = conversation.window()
    again = decide(strategy, window, budget)
    assert again and again.flush
    assert unsaved(again, window, flush(again, window, [good, bad])) == ()
    for memory in (good, bad):
        texts = [item.text for item in memory.items.values()]
        assert len(texts) == len(set(texts)) == memory.writes
    assert set(good.items) == set(bad.items)
    assert static.items == {} and is_read_only(static)


def test_where_no_memory_acknowledges_nothing_goes() -> None:
    """Case 42."""
    memory = Memory()
    memory.fails_from = 0
    window = talk(*exchanges(*range(10))).window()
    plan = decide(FlushToMemory([memory], otherwise=Trim()), window, TokenBudget(200))
    assert plan and plan.flush
    stay = unsaved(plan, window, flush(plan, window, [memory]))
    assert plan.retaining(window, TokenBudget(200), stay) is None
    assert unsaved(plan, window, []) == stay
    assert plan.otherwise == Trim(), "who decides then"


def test_whichever_exchanges_stay_the_rest_of_the_laws_holds() -> None:
    """Case 42: on random conversations, with random failures."""
    for seed in seeds(800_000, share(1500, 4)):
        dice = Random(seed)
        conversation, budget = random_case(dice)
        window = conversation.window()
        try:
            plan = decide(FlushToMemory([Memory()]), window, budget)
        except WindowOverflowError:
            continue
        if plan is None or plan.flush is None:
            continue
        ids = [item.id for item in plan.flush.items(window, "s")]
        assert len(ids) == len(set(ids)) > 0, seed
        acknowledged = [dice.sample(ids, dice.randrange(len(ids) + 1)) for _ in range(2)]
        stay = unsaved(plan, window, acknowledged)
        less = plan.retaining(window, budget, stay)
        if less is None:
            continue
        less.check(window, TokenBudget(10**6))
        both = set(acknowledged[0]) & set(acknowledged[1])
        assert less.flush
        assert {item.id for item in less.flush.items(window, "s")} == both, seed


# Bad settings


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: Trim(0), "Trim.max_tokens"),
        (lambda: Trim(-5), "Trim.max_tokens"),
        (lambda: DeleteOldest(0), "DeleteOldest.count"),
        (lambda: DeleteOldest(-1), "DeleteOldest.count"),
        (lambda: Summarize(None, trigger_ratio=-0.1), "Summarize.trigger_ratio"),
        (lambda: Summarize(None, trigger_ratio=0), "Summarize.trigger_ratio"),
        (lambda: Summarize(None, trigger_ratio=1.01), "Summarize.trigger_ratio"),
        (lambda: Summarize(None, trigger_ratio=float("nan")), "Summarize.trigger_ratio"),
        (lambda: Summarize(None, keep_turns=0), "Summarize.keep_turns"),
        (lambda: Summarize(None, keep_tokens=0), "Summarize.keep_tokens"),
        (lambda: Summarize(None, max_summary_tokens=0), "Summarize.max_summary_tokens"),
        (lambda: Summarize(None, prompt=" "), "Summarize.prompt"),
        (lambda: FlushToMemory([]), "FlushToMemory.memories"),
        (lambda: FlushToMemory([Memory(read_only=True)]), "FlushToMemory.memories"),
        (lambda: FlushToMemory([Memory()], max_ratio=0), "FlushToMemory.max_ratio"),
        (lambda: FlushToMemory([Memory()], max_ratio=0.9), "FlushToMemory.max_ratio"),
        (lambda: FlushToMemory([Memory()], trigger_ratio=-1), "FlushToMemory.trigger_ratio"),
        (lambda: TokenBudget(0), "max_tokens"),
        (lambda: TokenBudget(5, -1), "overhead"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(make: Callable[[], object], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"keep_tokens": 200}, "Summarize.keep_tokens"),
        ({"keep_tokens": 141}, "Summarize.keep_tokens"),
        ({"max_summary_tokens": 241}, "Summarize.max_summary_tokens"),
    ],
)
def test_keeping_more_than_pulls_the_trigger_is_refused(settings: dict[str, int], setting: str) -> None:
    window = talk(*exchanges(1)).window()
    for ask in (decide, lambda strategy, window, budget: strategy.due(window, budget)):
        with pytest.raises(ConfigError, match="under the trigger, 240 of 300") as caught:
            ask(rolling(**settings), window, TokenBudget(300))
        assert caught.value.setting == setting
    assert decide(rolling(keep_tokens=140), window, TokenBudget(300)) is None


# Strategies of others


@dataclass(frozen=True)
class Custom:
    """A strategy that somebody has written."""

    keeps: Callable[[Window], Sequence[tuple[int, int]]]
    more: Callable[[Window], dict[str, Any]] = lambda window: {}
    always: bool = False

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        if window.taken(budget) <= budget.max_tokens and not self.always:
            return None
        keep = tuple(Range(*part) for part in self.keeps(window))
        return plan_for(window, budget, strategy="Custom", keep=keep, why="so it is", **self.more(window))

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return False


def task(*parts: tuple[int, int], max_tokens: int = 10) -> dict[str, Any]:
    return {"summary": SummaryTask(ranges=tuple(Range(*part) for part in parts), max_tokens=max_tokens, model=None)}


SHARED = Memory()


def to_memory(*parts: tuple[int, int]) -> dict[str, Any]:
    return {"flush": FlushTask(ranges=tuple(Range(*part) for part in parts), memories=(SHARED,))}


CALL, RESULT = ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="seen")
FULL: list[Block] = [
    *(System(text="Be brief."), Summary(text="They met.")),
    *(HELLO, CALL, RESULT, YES),  # 2 to 5
    *(HELLO, Thinking(text="Hm.", signature="EqoB"), YES),  # 6 to 8
    *(HELLO, CALL, RESULT, YES),  # 9 to 12
]

BROKEN: list[tuple[str, Custom]] = [
    ("order kept", Custom(lambda w: [(9, 13), (1, 2)])),
    ("order kept", Custom(lambda w: [(1, 2), (9, 11), (10, 13)])),
    ("order kept", Custom(lambda w: [(1, 2), (9, 99)])),
    ("order kept", Custom(lambda w: [(1, 2), (3, 3), (9, 13)])),
    ("order kept", Custom(lambda w: [(-4, 13)])),
    ("order kept", Custom(lambda w: [(1, 2), (9, 13)], lambda w: task((2, 9)))),
    ("system prompt once", Custom(lambda w: [(0, 2), (9, 13)])),
    ("newest turn kept", Custom(lambda w: [(1, 9)])),
    ("newest turn kept", Custom(lambda w: [(1, 2), (10, 13)])),
    ("newest turn kept", Custom(lambda w: [(1, 2)])),
    ("summaries kept or folded in", Custom(lambda w: [])),
    ("tool pairs whole", Custom(lambda w: [(1, 2), (4, 13)])),
    ("tool pairs whole", Custom(lambda w: [(1, 4), (5, 13)])),
    ("tool pairs whole", Custom(lambda w: [(1, 4), (9, 13)])),
    ("summaries kept or folded in", Custom(lambda w: [(9, 13)])),
    ("summaries kept or folded in", Custom(lambda w: [(9, 13)], lambda w: task((2, 9)))),
    ("nothing twice", Custom(lambda w: [(1, 2), (6, 13)], lambda w: to_memory((2, 9)))),
    ("something goes", Custom(lambda w: [(1, 13)])),
    ("something goes", Custom(lambda w: [(6, 13)], lambda w: task((1, 6), max_tokens=95))),
    ("valid for providers", Custom(lambda w: [(1, 8), (9, 13)])),
    ("budget met", Custom(lambda w: [(1, 6), (9, 13)])),
    (
        "budget met",
        Custom(
            lambda w: [(9, 13)],
            lambda w: {"summary": replace(task((1, 9))["summary"], max_tokens=tokens(FULL[1:9]) - 30)},
        ),
    ),
]


@pytest.mark.parametrize(("law", "strategy"), BROKEN)
def test_a_plan_that_breaks_a_law_is_refused_with_the_laws_name(law: str, strategy: Custom) -> None:
    """Whatever it would do, the conversation stays as it is."""
    conversation = talk(*FULL)
    window = conversation.window()
    budget = TokenBudget(window.total - 60)
    with pytest.raises(StrategyError) as caught:
        decide(strategy, window, budget)
    assert (caught.value.strategy, caught.value.law) == ("Custom", law)
    assert law in str(caught.value)
    with pytest.raises(AssertionError, match=f"^{law}: "):
        check_case(strategy, Case(conversation, budget))
    assert read(conversation.window()) == FULL
    assert law in LAWS


def test_a_plan_that_holds_to_the_laws_passes() -> None:
    """However odd it is: what goes need not be the oldest."""
    window = talk(*FULL).window()
    budget = TokenBudget(window.total - 10)
    check_case(Custom(lambda w: [(1, 6), (9, 13)]), Case(talk(*FULL), budget))
    plan = decide(Custom(lambda w: [(1, 6), (9, 13)], lambda w: to_memory((6, 9))), window, budget)
    assert plan and plan.flush
    assert [item.text for item in plan.flush.items(window, "s")] == ["user: Hello\nassistant: Yes."]


def test_a_strategy_that_fails_is_told_as_one_that_breaks_a_law() -> None:
    window, budget = talk(*FULL).window(), TokenBudget(10)

    class Nonsense:
        def due(self, window: Window, budget: TokenBudget) -> bool:
            return False

        def decide(self, window: Window, budget: TokenBudget) -> Any:
            return [Range(0, 1)]

    class Failing(Nonsense):
        def decide(self, window: Window, budget: TokenBudget) -> Any:
            raise ZeroDivisionError("oh")

    class Idle(Nonsense):
        def decide(self, window: Window, budget: TokenBudget) -> Any:
            return None

    for strategy, law, why in [
        (Nonsense(), "decides", "list"),
        (Failing(), "decides", "ZeroDivisionError"),
        (Idle(), "budget met", "does not change"),
    ]:
        with pytest.raises(StrategyError, match=why) as caught:
            decide(strategy, window, budget)
        assert caught.value.law == law


@dataclass
class Moody:
    """Decides otherwise each time."""

    times: int = 0

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        self.times += 1
        return Trim(window.tokens() - self.times).decide(window, budget)

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return False


@dataclass(frozen=True)
class Greedy:
    """Has always something to do."""

    is_due: bool = False

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        plan = Trim().decide(window, budget)
        oldest = window.end_of_oldest(1)
        if plan or self.is_due or not oldest:
            return plan
        return plan_for(window, budget, strategy="Greedy", keep=window.kept_from(oldest), why="it is there")

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return self.is_due


@dataclass(frozen=True)
class Hasty:
    """Gives up at once."""

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        if window.taken(budget) > budget.max_tokens:
            raise window.overflow(budget)
        return None

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return False


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (lambda case: Moody(), "decides the same again"),
        (lambda case: Greedy(), "leaves nothing to do"),
        (lambda case: Greedy(is_due=True), "leaves nothing to do"),
        (lambda case: Hasty(), "budget met"),
        (lambda case: Custom(lambda w: [(w.newest.start + 1, len(w))]), ".*"),
    ],
)
def test_the_contract_finds_what_one_plan_does_not_show(make: Callable[[Case], OverflowStrategy], law: str) -> None:
    with pytest.raises(AssertionError, match=rf"^{law}: .*\(seed \d+\)$"):
        check_strategy(make, range(200))


def test_a_strategy_of_ones_own_passes_the_contract() -> None:
    """One that keeps the newest turn alone."""

    def newest(window: Window) -> Sequence[tuple[int, int]]:
        return list(window.kept_from(window.newest.start))

    @dataclass(frozen=True)
    class Newest:
        def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
            if window.taken(budget) <= budget.max_tokens:
                return None
            if window.tokens_from(window.newest.start, budget) > budget.max_tokens:
                raise window.overflow(budget)
            return Custom(newest).decide(window, budget)

        def due(self, window: Window, budget: TokenBudget) -> bool:
            return False

    check_strategy(lambda case: Newest(), range(300))


# Plans


def test_a_plan_explains_itself() -> None:
    window = talk(*FULL).window()
    limit = window.total - 40
    plan = decide(Trim(), window, TokenBudget(limit))
    assert plan
    newest = tokens(FULL[9:])
    assert str(plan.explain()).splitlines() == [
        f"Trim: {window.total} tokens become {plan.tokens_after} at most",
        f"dropped: blocks 2 to 5, {tokens(FULL[2:6])} tokens, it is oldest, and a request may take {limit} tokens",
        f"kept: blocks 0 to 0, {tokens(FULL[:1])} tokens, it is the system prompt",
        f"kept: blocks 1 to 1, {tokens(FULL[1:2])} tokens, it is a summary",
        f"kept: blocks 6 to 12, {tokens(FULL[6:9]) + newest} tokens, it is newer, and fits",
    ]


def test_a_plan_with_a_summary_needs_its_place_and_one_without_takes_none() -> None:
    window = talk(*exchanges(*range(20))).window()
    trim, sum_up = decide(Trim(), window, TokenBudget(300)), decide(rolling(), window, TokenBudget(300))
    assert trim and sum_up
    for plan, span in [(trim, Span("own", 40, 41)), (sum_up, None)]:
        with pytest.raises(ValueError, match="a plan with a summary takes its span"):
            plan.spans(window, span)
    assert sum_up.spans(window, Span("own", 40, 41)) == (Span("own", 40, 41), Span("own", 36, 40))


@pytest.mark.parametrize(
    "strategy", [Trim(), DeleteOldest(2), Summarize(Engine()), Summarize(Engine(), otherwise=Trim(9))]
)
def test_a_strategy_and_its_plan_travel(strategy: OverflowStrategy) -> None:
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    plan = strategy.decide(talk(*exchanges(*range(99), length=60)).window(), TokenBudget(10_000))
    assert plan and pickle.loads(pickle.dumps(plan)) == plan


def test_what_was_dropped_is_still_there() -> None:
    """Nothing is rewritten: a turn that spans it reads as before."""
    conversation = talk(*FULL)
    before = conversation.spans
    check_case(Trim(), Case(conversation, TokenBudget(conversation.window().total - 40)))
    assert conversation.spans != before
    assert list(conversation.cache.read(before)) == FULL


@pytest.mark.parametrize("per_word", [1, 6, 20])
def test_the_words_that_a_summary_may_have_are_as_many_as_fit(per_word: int) -> None:
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
