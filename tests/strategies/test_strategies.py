"""Overflow strategies: what they remove when a conversation outgrows its window, and what always stays.

The laws are checked on 20,000 random conversations; a failure prints its seed, and
`TURNWISE_SEED=<seed> pytest tests/strategies/test_strategies.py -k laws` replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from scale import share
from turnwise.conformance import check_strategy
from turnwise.errors import ConfigError, WindowOverflowError
from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Summary,
    System,
    Text,
    User,
)
from turnwise.memory.providers import anthropic, openai_chat as chat, openai_responses as responses
from turnwise.strategies.conformance import check_case
from turnwise.strategies.conformance_conversations import COUNTER, Case, Conversation, random_case
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.keep_last import KeepLast
from turnwise.strategies.plan import refusals
from turnwise.strategies.strategy import OverflowStrategy, decide
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget
from turnwise.testing.local_provider.message_rules import check_anthropic, check_chat, check_responses
from windows.conversations import (
    HELLO,
    CountingCache,
    Memory,
    after,
    exchanges,
    long_conversation,
    read,
    rolling,
    seeds,
    summarize,
    talk,
    tokens,
)


@pytest.mark.parametrize(
    ("make", "start"),
    [
        (lambda case: Trim(), 0),
        (lambda case: Trim(max(1, case.budget.max_tokens * 2 // 3)), 100_000),
        (lambda case: DeleteOldest(1 + case.budget.max_tokens % 4), 200_000),
        (lambda case: KeepLast(turns=1 + case.budget.max_tokens % 4), 600_000),
        (lambda case: KeepLast(messages=1 + case.budget.max_tokens % 9), 700_000),
        (summarize, 300_000),
        (lambda case: summarize(case, trigger_ratio=1, keep_tokens=max(1, case.budget.max_tokens // 5)), 400_000),
        (lambda case: FlushToMemory([Memory()], max_ratio=0.5), 500_000),
    ],
    ids=[
        "Trim",
        "Trim-max_tokens",
        "DeleteOldest",
        "KeepLast-turns",
        "KeepLast-messages",
        "Summarize",
        "Summarize-keep_tokens",
        "FlushToMemory",
    ],
)
def test_the_laws_hold_on_random_conversations(make: Callable[[Case], OverflowStrategy], start: int) -> None:
    """Cases 34, 35 and 36: 20,000 conversations with `make races`, each of which goes on for an exchange more."""
    check_strategy(make, seeds(start, share(2500, 30)))


def test_random_conversations_have_all_kinds_of_blocks() -> None:
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


def test_remaining_requests_are_valid_on_the_wire() -> None:
    """Case 36: by rules that know nothing of blocks."""
    for seed in seeds(600_000, share(500, 10)):
        dice = Random(seed)
        conversation, budget = random_case(dice)
        for strategy in (Trim(), DeleteOldest(2), summarize(Case(conversation, budget))):
            remaining = Conversation()
            remaining.add(read(conversation.window()))
            try:
                check_case(strategy, Case(remaining, budget))
            except AssertionError as error:
                raise AssertionError(f"{error} (seed {seed})") from error
            remaining.add([HELLO])
            blocks = read(remaining.window())
            check_chat(chat.encode(blocks))
            check_responses(responses.encode(blocks)[1])
            check_anthropic(anthropic.encode(blocks)[1], thinking=False)


STRATEGIES: list[OverflowStrategy] = [
    Trim(),
    DeleteOldest(3),
    KeepLast(turns=20),
    Summarize(None, max_summary_tokens=100, keep_turns=20),
    FlushToMemory([Memory()]),
]


def test_deciding_on_a_long_history_reads_no_more_blocks() -> None:
    caches = CountingCache(), CountingCache()
    windows = [long_conversation(size, cache).window() for size, cache in zip((1_000, 20_000), caches, strict=True)]
    for strategy in STRATEGIES:
        for cache, window in zip(caches, windows, strict=True):
            cache.blocks_read = 0
            assert decide(strategy, window, TokenBudget(2000))
        short, long = (cache.blocks_read for cache in caches)
        assert long <= 1.1 * short and short < 400, strategy


def test_the_last_turns_or_messages_stay_whatever_their_size() -> None:
    blocks, plenty = exchanges(1, 2, 3, 4), TokenBudget(10**6)
    for strategy, kept_numbers in [
        (KeepLast(turns=1), [4]),
        (KeepLast(turns=3), [2, 3, 4]),
        (KeepLast(turns=9), [1, 2, 3, 4]),
        (KeepLast(messages=1), [4]),  # the newest exchange stays whole
        (KeepLast(messages=4, slack=0), [3, 4]),
        (KeepLast(messages=5, slack=0), [3, 4]),
    ]:
        assert after(strategy, plenty, *blocks) == exchanges(*kept_numbers)
    assert after(KeepLast(turns=3, slack=0), TokenBudget(tokens(exchanges(3, 4))), *blocks) == exchanges(3, 4)


@pytest.mark.parametrize("settings", [{}, {"turns": 1, "messages": 2}, {"turns": 0}, {"messages": 0}], ids=repr)
def test_wrong_numbers_of_turns_and_messages_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="KeepLast"):
        KeepLast(**settings)


# Trim and DeleteOldest


def test_more_goes_than_must_so_that_requests_seldom_move() -> None:
    blocks = exchanges(*range(20))
    budget = TokenBudget(tokens(blocks) - 1)
    assert after(Trim(), budget, *blocks) == exchanges(*range(6, 20)), "three quarters stay, and one exchange less"
    assert after(Trim(slack=0.5), budget, *blocks) == exchanges(*range(11, 20))
    assert after(Trim(slack=1), budget, *blocks) == exchanges(19)
    plenty, more = TokenBudget(10**6), exchanges(*range(21))
    assert after(KeepLast(turns=20), plenty, *blocks) == blocks
    assert after(KeepLast(turns=20), plenty, *more) == exchanges(*range(7, 21))
    assert after(KeepLast(turns=20, slack=0), plenty, *more) == exchanges(*range(1, 21))
    assert after(KeepLast(turns=20, slack=1), plenty, *more) == exchanges(20), "the newest stays"
    assert after(KeepLast(messages=4, slack=1), plenty, *more) == exchanges(20)
    assert after(KeepLast(turns=20), budget, *more) == exchanges(*range(8, 21)), "nor do they fit"
    for wrong in (-0.1, 1.1):
        for strategy in (partial(Trim, slack=wrong), partial(KeepLast, turns=2, slack=wrong)):
            with pytest.raises(ConfigError, match="slack"):
                strategy()


def test_the_last_system_prompt_stays_once_and_counts_once() -> None:
    """Case 34."""
    old, new = System(text="Be brief." * 20), System(text="Be long.")
    blocks = [old, *exchanges(1, 2), new, *exchanges(3)]
    room = tokens([new, *exchanges(2, 3)])
    for strategy in (Trim(slack=0), DeleteOldest(1)):
        assert after(strategy, TokenBudget(room), *blocks) == [new, *exchanges(2, 3)]
        assert after(strategy, TokenBudget(room - 1), *blocks) == [new, *exchanges(3)]
        assert after(strategy, TokenBudget(tokens([new, *exchanges(1, 2, 3)])), *blocks) == blocks
    assert [block.kind for block in after(Trim(slack=0), TokenBudget(room), new, *exchanges(1, 2, 3), new)] == [
        "system",
        *["user", "text"] * 2,
    ]


@pytest.mark.parametrize(
    "strategy", [Trim(slack=0), Trim(10**6), DeleteOldest(1), DeleteOldest(2), DeleteOldest(10**9)], ids=repr
)
def test_a_window_that_fits_is_not_changed(strategy: OverflowStrategy) -> None:
    """Case 35."""
    assert after(strategy, TokenBudget(1)) == []
    assert after(strategy, TokenBudget(tokens([HELLO])), HELLO) == [HELLO]
    assert after(strategy, TokenBudget(tokens(exchanges(*range(9)))), *exchanges(*range(9))) == exchanges(*range(9))


def test_trim_drops_the_oldest_until_the_rest_fits() -> None:
    """Case 35: one message, many, more than fit."""
    blocks = exchanges(*range(10))
    for count in range(1, 10):
        remaining = exchanges(*range(10 - count, 10))
        assert after(Trim(slack=0), TokenBudget(tokens(remaining)), *blocks) == remaining
        assert after(Trim(tokens(remaining), slack=0), TokenBudget(10**6), *blocks) == remaining
        assert after(Trim(slack=0), TokenBudget(tokens(remaining) + 27), *blocks) == remaining
    assert after(Trim(1), TokenBudget(10**6), *blocks) == exchanges(9), "the newest stays, whatever its own limit is"


def test_delete_removes_the_given_number_and_more_if_necessary() -> None:
    """Case 35: fewer than there are, as many, more."""
    blocks = exchanges(*range(5))
    over = TokenBudget(tokens(blocks) - 1)
    for count, remaining_numbers in [(1, [1, 2, 3, 4]), (3, [3, 4]), (4, [4]), (5, [4]), (10**9, [4])]:
        assert after(DeleteOldest(count), over, *blocks) == exchanges(*remaining_numbers)
    assert after(DeleteOldest(1), TokenBudget(tokens(exchanges(3, 4))), *blocks) == exchanges(3, 4)


def test_a_greeting_is_removed_first() -> None:
    greeting = Text(text="How may I help?")
    system = System(text="Be brief.")
    blocks = [system, CacheCheckpoint(), greeting, *exchanges(1, 2)]
    budget = TokenBudget(tokens(blocks) - 1)
    assert after(Trim(slack=0), budget, *blocks) == [system, *exchanges(1, 2)]
    assert after(DeleteOldest(1), budget, *blocks) == [system, *exchanges(2)]


def test_a_summary_stays_when_later_blocks_are_removed() -> None:
    summary = Summary(text="They met.", of=(("gone", 0, 9),))
    for strategy in (Trim(), DeleteOldest(1), FlushToMemory([Memory()], max_ratio=1, trigger_ratio=1)):
        remaining = [System(text="Be brief."), summary, *exchanges(2)]
        assert (
            after(strategy, TokenBudget(tokens(remaining)), System(text="Be brief."), summary, *exchanges(1, 2))
            == remaining
        )


# What does not fit


@pytest.mark.parametrize("strategy", [Trim(), Trim(5), DeleteOldest(1), FlushToMemory([Memory()])], ids=repr)
def test_an_oversized_newest_turn_is_an_error_with_token_counts(strategy: OverflowStrategy) -> None:
    """Case 38: and nothing goes round in circles."""
    system, summary, prompt = System(text="Be brief."), Summary(text="They met."), User(text="x" * 500)
    window = talk(system, summary, *exchanges(1, 2), prompt).window()
    with pytest.raises(WindowOverflowError) as caught:
        decide(strategy, window, TokenBudget(400, overhead=77))
    error = caught.value
    assert (error.max_tokens, error.newest, error.summary) == (400, tokens([prompt]), tokens([summary]))
    assert error.overhead == 77 + tokens([system])
    assert error.needed == error.overhead + error.summary + error.newest
    for words_of_error in (str(error.overhead), str(error.newest), "400", "max_context_tokens"):
        assert words_of_error in str(error)


def test_an_oversized_system_prompt_or_tools_are_an_error() -> None:
    """Case 38."""
    cases: list[tuple[list[Block], int]] = [([System(text="x" * 100), HELLO], 0), ([HELLO], 99)]
    for blocks, overhead in cases:
        with pytest.raises(WindowOverflowError, match="for the system prompt and tools"):
            decide(Trim(), talk(*blocks).window(), TokenBudget(100, overhead))


def test_a_prompt_that_does_not_fit_beside_the_summary_is_an_error() -> None:
    """The summary is all that is left of the removed blocks, so it is not removed silently."""
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
def test_keeping_more_than_the_trigger_is_refused(settings: dict[str, int], setting: str) -> None:
    window = talk(*exchanges(1)).window()
    for ask in (decide, lambda strategy, window, budget: strategy.due(window, budget)):
        with pytest.raises(ConfigError, match="under the trigger, 240 of 300") as caught:
            ask(rolling(**settings), window, TokenBudget(300))
        assert caught.value.setting == setting
    assert decide(rolling(keep_tokens=140), window, TokenBudget(300)) is None
