"""Plans and strategies of others: each broken law is reported by its name."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from scale import share
from turnwise.conformance import check_strategy
from turnwise.errors import StrategyError
from turnwise.memory.conversation.spans import Span
from turnwise.strategies.conformance import check_case
from turnwise.strategies.conformance_conversations import Case
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush_task import FlushTask
from turnwise.strategies.plan import LAWS, Plan, plan_for
from turnwise.strategies.ranges import Range
from turnwise.strategies.strategy import OverflowStrategy, decide
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.summary_task import SummaryTask
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget, Window
from windows.conversations import (
    FULL,
    Engine,
    Memory,
    exchanges,
    read,
    rolling,
    talk,
    tokens,
)

# Strategies of others


@dataclass(frozen=True)
class Custom:
    """A strategy written by a user."""

    keeps: Callable[[Window], Sequence[tuple[int, int]]]
    more: Callable[[Window], dict[str, Any]] = lambda window: {}
    always: bool = False

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        if window.taken(budget) <= budget.max_tokens and not self.always:
            return None
        keep = tuple(Range(*part) for part in self.keeps(window))
        return plan_for(window, budget, strategy="Custom", keep=keep, reason="so it is", **self.more(window))

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return False


def task(*parts: tuple[int, int], max_tokens: int = 10) -> dict[str, Any]:
    return {"summary": SummaryTask(ranges=tuple(Range(*part) for part in parts), max_tokens=max_tokens, model=None)}


SHARED = Memory()


def to_memory(*parts: tuple[int, int]) -> dict[str, Any]:
    return {"flush": FlushTask(ranges=tuple(Range(*part) for part in parts), memories=(SHARED,))}


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
def test_a_plan_that_breaks_a_law_is_refused_by_its_name(law: str, strategy: Custom) -> None:
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


def test_a_plan_that_obeys_the_laws_passes() -> None:
    """Even if it does not remove the oldest blocks."""
    window = talk(*FULL).window()
    budget = TokenBudget(window.total - 10)
    check_case(Custom(lambda w: [(1, 6), (9, 13)]), Case(talk(*FULL), budget))
    plan = decide(Custom(lambda w: [(1, 6), (9, 13)], lambda w: to_memory((6, 9))), window, budget)
    assert plan and plan.flush
    assert [item.text for item in plan.flush.items(window, "s")] == ["user: Hello\nassistant: Yes."]


def test_a_failing_strategy_is_a_strategy_error() -> None:
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

    for strategy, law, reason in [
        (Nonsense(), "decides", "list"),
        (Failing(), "decides", "ZeroDivisionError"),
        (Idle(), "budget met", "does not change"),
    ]:
        with pytest.raises(StrategyError, match=reason) as caught:
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
        return plan_for(window, budget, strategy="Greedy", keep=window.kept_from(oldest), reason="it is there")

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
def test_the_laws_find_errors_over_several_plans(make: Callable[[Case], OverflowStrategy], law: str) -> None:
    with pytest.raises(AssertionError, match=rf"^{law}: .*\(seed \d+\)$"):
        check_strategy(make, range(200))


def test_a_custom_strategy_passes_the_laws() -> None:
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

    check_strategy(lambda case: Newest(), range(share(2000, 30)))


# Plans


def test_a_plan_explains_itself() -> None:
    window = talk(*FULL).window()
    limit = window.total - 40
    plan = decide(Trim(slack=0), window, TokenBudget(limit))
    assert plan
    newest = tokens(FULL[9:])
    assert str(plan.explain()).splitlines() == [
        f"Trim: {window.total} tokens become {plan.tokens_after} at most",
        f"dropped: blocks 2 to 5, {tokens(FULL[2:6])} tokens, it is oldest, and a request may take {limit} tokens",
        f"kept: blocks 0 to 0, {tokens(FULL[:1])} tokens, it is the system prompt",
        f"kept: blocks 1 to 1, {tokens(FULL[1:2])} tokens, it is a summary",
        f"kept: blocks 6 to 12, {tokens(FULL[6:9]) + newest} tokens, it is newer, and fits",
    ]


def test_a_plan_takes_a_span_exactly_if_it_has_a_summary() -> None:
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
def test_strategies_and_plans_can_be_pickled(strategy: OverflowStrategy) -> None:
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    plan = strategy.decide(talk(*exchanges(*range(99), length=60)).window(), TokenBudget(10_000))
    assert plan and pickle.loads(pickle.dumps(plan)) == plan


def test_removed_blocks_stay_in_the_log() -> None:
    """Nothing is rewritten: a turn that spans it reads as before."""
    conversation = talk(*FULL)
    before = conversation.spans
    check_case(Trim(), Case(conversation, TokenBudget(conversation.window().total - 40)))
    assert conversation.spans != before
    assert list(conversation.cache.read(before)) == FULL
