"""The laws of `OverflowStrategy`, checked on random conversations. Needs no test framework.

`check_strategy(make)` checks a strategy of your own. It compares the requests before and after block by block, so it
does not depend on `Plan.check`, which compares ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from turnwise.errors import StrategyError, TurnwiseError, WindowOverflowError
from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Document,
    Image,
    Summary,
    System,
    Unknown,
    User,
)
from turnwise.memory.conversation.calls.call_pairs import pairs_of
from turnwise.strategies.conformance_conversations import COUNTER, Case, random_budget, random_case, random_exchange
from turnwise.strategies.plan import Law, Plan, refusals
from turnwise.strategies.ranges import Range
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.window import TokenBudget, Window


def check_strategy(make: Callable[[Case], OverflowStrategy], seeds: Iterable[int] = range(1000), grow: int = 1) -> None:
    """Check all laws on random conversations, each of which continues for some exchanges after the first decision.

    Args:
        make: returns the strategy for a case; its settings may depend on the budget.
        seeds: the seeds of the conversations. The same seed gives the same conversation.
        grow: how many exchanges follow the first decision.

    Raises:
        AssertionError: the strategy breaks a law; names it, and the seed.
    """
    for seed in seeds:
        dice = Random(seed)  # noqa: S311 - nothing is secret here
        case = random_case(dice)
        try:
            for _ in range(grow + 1):
                check_case(make(case), case)
                case.conversation.add(random_exchange(dice))
                case = case._replace(budget=random_budget(dice, case.conversation.window()))
        except (AssertionError, TurnwiseError) as error:
            raise AssertionError(f"{error} (seed {seed})") from error


def check_case(strategy: OverflowStrategy, case: Case) -> Plan | None:
    """Check all laws on one conversation, and carry the plan out, if there is one.

    Raises:
        AssertionError: the strategy breaks a law; names it.
    """
    conversation, budget = case
    window = conversation.window()
    before = _Request(window, conversation.newest_turn)
    tokens_before = before.tokens(budget)
    try:
        plan = strategy.decide(window, budget)
    except WindowOverflowError as error:
        smallest_request = [*before.systems[-1:], *before.summaries, *before.newest()]
        needed_tokens = budget.overhead + sum(COUNTER.count(before.blocks[position]) for position in smallest_request)
        _require("budget met", needed_tokens > budget.max_tokens, f"{error}, but {needed_tokens} tokens would do")
        _require(
            "budget met",
            (error.needed, error.max_tokens) == (needed_tokens, budget.max_tokens),
            f"{error} of {needed_tokens}",
        )
        return None
    except Exception as error:
        raise AssertionError(f"decides: it raised {error!r}") from error
    second_plan = strategy.decide(conversation.window(), budget)
    _require(
        "decides the same again", plan == strategy.decide(window, budget) == second_plan, f"{plan}, then {second_plan}"
    )
    _require("decides the same again", _Request(window, conversation.newest_turn) == before, "the window has changed")
    if plan is None:
        _require(
            "budget met",
            tokens_before <= budget.max_tokens,
            f"it does nothing at {tokens_before} of {budget.max_tokens} tokens",
        )
        _require("leaves nothing to do", not strategy.due(window, budget), "it is due, and does nothing")
        return None
    try:
        plan.check(window, budget)
    except StrategyError as error:
        raise AssertionError(f"{error.law}: {error.why}") from error
    conversation.carry_out(plan)
    window_after = conversation.window()
    after = _Request(window_after)
    for law in (_order, _system, _newest, _pairs, _summaries, _once, _valid):
        law(before, after, plan, window)
    remaining = after.tokens(budget)
    _require(
        "something goes", remaining < tokens_before, f"the request takes {remaining} tokens, and {tokens_before} before"
    )
    _require("budget met", remaining <= budget.max_tokens, f"{remaining} of {budget.max_tokens} tokens")
    stated_tokens = (plan.tokens_before, plan.tokens_after)
    _require(
        "budget met",
        stated_tokens[0] == tokens_before and stated_tokens[1] >= remaining,
        f"it states {stated_tokens} tokens, and the requests have {tokens_before} and {remaining}",
    )
    more = strategy.decide(window_after, budget)
    _require("leaves nothing to do", more is None, f"it then decides {more}")
    _require("leaves nothing to do", not strategy.due(window_after, budget), "it is due once more")
    return plan


def _require(law: Law, holds: bool, reason: str) -> None:
    if not holds:
        raise AssertionError(f"{law}: {reason}")


# The content of a request, found without the methods of the window


Place = tuple[str, int]


class _Request:
    """The blocks of a request and where they are stored."""

    def __init__(self, window: Window, newest_turn: int | None = None) -> None:
        self.newest_turn = newest_turn
        self.places = _places(window.spans)
        self.blocks: list[Block] = list(window.blocks([Range(0, len(window))]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Request) and (self.places, self.blocks) == (other.places, other.blocks)

    __hash__ = None  # type: ignore[assignment]

    @property
    def systems(self) -> list[int]:
        return [index for index, block in enumerate(self.blocks) if isinstance(block, System)]

    @property
    def summaries(self) -> list[int]:
        return [index for index, block in enumerate(self.blocks) if isinstance(block, Summary)]

    def tokens(self, budget: TokenBudget) -> int:
        sent_positions = [
            *self.systems[-1:],
            *(index for index, block in enumerate(self.blocks) if not isinstance(block, System)),
        ]
        return budget.overhead + sum(COUNTER.count(self.blocks[position]) for position in sent_positions)

    def pairs(self) -> list[tuple[int, int]]:
        """Return each call with its result."""
        return pairs_of(self.blocks)

    def newest(self) -> list[int]:
        """Return the newest turn: from its first prompt on, without system prompts and summaries."""
        pairs = self.pairs()
        prompts = [
            index
            for index, block in enumerate(self.blocks)
            if isinstance(block, Image | Document) or (isinstance(block, User) and block.text.strip())
            if not any(call < index < result for call, result in pairs)
        ]
        begin = prompts[-1] if prompts else 0
        for index in reversed(range(begin)):
            if isinstance(self.blocks[index], User | Image | Document):
                if self.newest_turn is not None and index < self.newest_turn <= begin:
                    break
                begin = index
            elif not isinstance(self.blocks[index], System | Summary | CacheCheckpoint | Unknown):
                break
        else:
            begin = 0
        apart = {*self.systems, *self.summaries}
        return [index for index in range(begin, len(self.blocks)) if index not in apart]


def _places(spans: Iterable[tuple[str, int, int]]) -> list[Place]:
    return [(log, index) for log, start, stop in spans for index in range(start, stop)]


# The laws


def _order(before: _Request, after: _Request, plan: Plan, window: Window) -> None:
    positions = {place: number for number, place in enumerate(before.places)}
    count = 1 + bool(plan.summary) if before.systems else int(bool(plan.summary))
    order = [positions.get(place, -1) for place in after.places[count:]]
    _require("order kept", order == sorted(set(order)) and -1 not in order, f"{order}")


def _system(before: _Request, after: _Request, plan: Plan, window: Window) -> None:
    expected = [before.places[position] for position in before.systems[-1:]]
    systems = [after.places[position] for position in after.systems]
    _require("system prompt once", systems == expected == after.places[: len(expected)], f"{systems}, not {expected}")


def _newest(before: _Request, after: _Request, plan: Plan, window: Window) -> None:
    newest = [before.places[position] for position in before.newest()]
    removed = set(newest) - set(after.places)
    _require("newest turn kept", not removed, f"{sorted(removed)} of {newest} go")


def _pairs(before: _Request, after: _Request, plan: Plan, window: Window) -> None:
    remaining = set(after.places)
    for call, result in before.pairs():
        is_whole = (before.places[call] in remaining) == (before.places[result] in remaining)
        _require("tool pairs whole", is_whole, f"{before.blocks[call]} is separated from its result")


def _summaries(before: _Request, after: _Request, plan: Plan, window: Window) -> None:
    folded = _places(plan.summary.block(window, "").of) if plan.summary else []
    removed = {before.places[position] for position in before.summaries} - set(after.places) - set(folded)
    _require("summaries kept or folded in", not removed, f"{sorted(removed)} go")


def _once(before: _Request, after: _Request, plan: Plan, window: Window) -> None:
    folded = _places(plan.summary.block(window, "").of) if plan.summary else []
    flushed = (
        [place for item in plan.flush.items(window, "s") for place in _places(item.source.spans)] if plan.flush else []
    )
    for removed in (folded, flushed):
        twice = set(removed) & set(after.places)
        _require(
            "nothing twice",
            not twice and len(removed) == len(set(removed)),
            f"{sorted(twice)} go and stay, of {removed}",
        )


def _valid(before: _Request, after: _Request, plan: Plan, window: Window) -> None:
    new_refusals = set(refusals(after.blocks)) - set(refusals(before.blocks))
    _require("valid for providers", not new_refusals, f"{sorted(new_refusals)}: {refusals(after.blocks)}")
