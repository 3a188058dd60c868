"""`Pace`: rates, budget and pauses, by a clock of the test."""

import random
from typing import Any

import pytest

from turnwise import Budget
from turnwise.memory.conversation.usage import Usage
from turnwise.replay import AtScale
from turnwise.replay.scale.pace import LocalPace, Pace, Permit, Permits, Tally


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def usage(tokens: int = 0, calls: int = 1, cost: float = 0.0) -> Tally:
    return Tally(1, 0, Usage(input_tokens=tokens, calls=calls, cost=cost))


@pytest.mark.parametrize("seed", range(20))
def test_no_minute_has_more_requests_than_the_rate_and_a_second_of_it(seed: int) -> None:
    dice, clock = random.Random(seed), Clock()
    rate = dice.choice([1, 7, 60, 600])
    pace = Pace(AtScale(requests_per_minute=rate), clock)
    begun: list[float] = []
    for _ in range(400):
        permit = pace.take()
        if permit.wait_s:
            clock.now += permit.wait_s * dice.choice([0.5, 1.0, 1.5])
            continue
        begun.append(clock.now)
        if dice.random() < 0.7:
            pace.settle(permit, usage())
    for first in begun:
        assert sum(first <= time < first + 60 for time in begun) <= rate + max(1, rate / 60)
    assert len(begun) >= min(rate, 10) if clock.now > 60 else begun


async def test_tokens_are_those_of_a_minute_though_they_are_known_afterwards() -> None:
    clock = Clock()
    permits = Permits(LocalPace(Pace(AtScale(tokens_per_minute=6000), clock)), is_limited=True, sleep=clock.sleep)
    for _ in range(50):
        permit = await permits.take()
        assert permit is not None
        await permits.settle(permit, usage(tokens=600))
    assert 50 * 600 / 6000 * 60 - 15 <= clock.now <= 50 * 600 / 6000 * 60 + 15


async def test_calls_that_a_turn_has_made_delay_the_next_turns() -> None:
    clock = Clock()
    permits = Permits(LocalPace(Pace(AtScale(requests_per_minute=60), clock)), is_limited=True, sleep=clock.sleep)
    for _ in range(10):
        permit = await permits.take()
        assert permit is not None
        await permits.settle(permit, usage(calls=5))
    assert clock.now == pytest.approx(45, abs=5)


async def test_a_budget_is_exceeded_by_what_is_in_flight_only() -> None:
    pace = Pace(AtScale(budget=Budget(cost=1.0)), Clock())
    permits = Permits(LocalPace(pace), is_limited=True)
    in_flight: list[Permit] = []
    asked = 0
    while True:
        if len(in_flight) == 4:
            await permits.settle(in_flight.pop(0), usage(cost=0.3))
        permit = await permits.take()
        if permit is None:
            break
        asked += 1
        in_flight.append(permit)
    assert asked <= 4 + 4
    assert pace.why_stopped() is not None
    assert await permits.take() is None


def test_what_was_spent_before_counts_for_the_budget() -> None:
    pace = Pace(AtScale(budget=Budget(tokens=100)), Clock(), Tally(3, 0, Usage(input_tokens=100)))
    assert pace.take().stopped == pace.why_stopped() is not None


def test_a_pause_delays_all() -> None:
    clock = Clock()
    pace = Pace(AtScale(requests_per_minute=600), clock)
    pace.pause(5)
    assert pace.take().wait_s == 5
    clock.now = 5
    assert pace.take().wait_s == 0


async def test_without_limits_nothing_is_asked_for_and_totals_come_by_reports() -> None:
    class Counted(LocalPace):
        calls = 0

        async def call(self, name: str, *arguments: Any) -> Any:
            Counted.calls += 1
            return await super().call(name, *arguments)

    pace = Pace(AtScale(), Clock())
    permits = Permits(Counted(pace), is_limited=False)
    for _ in range(100):
        permit = await permits.take()
        assert permit is not None
        await permits.settle(permit, usage(tokens=1))
    assert Counted.calls == 0
    await permits.report()
    assert pace.totals().turns == pace.totals().usage.input_tokens == 100
