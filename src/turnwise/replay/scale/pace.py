"""`Pace`: permits for turns, by rates and a budget, over all processes of a replay. It does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnwise.actors.session.engines.budget import exceeded
from turnwise.memory.conversation.usage import Usage
from turnwise.replay.scale.settings import AtScale

BURST_S = 1.0
"""How much of a rate may be used at once, in seconds: any minute has at most a rate, and what this long allows."""


CANCELLED = "the replay was cancelled"
"""Why no more turns are asked, and those that are being asked are given up."""


@dataclass
class Bucket:
    """A rate: what may be used flows in steadily, up to what `BURST_S` allows. It may be overdrawn.

    Args:
        per_minute: how much flows in.
    """

    per_minute: float
    level: float = field(init=False)
    at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.level = self._most

    @property
    def _most(self) -> float:
        return max(1.0, self.per_minute * BURST_S / 60)

    def wait_s(self, now: float) -> float:
        """Return after how many seconds something may be used; 0 at once."""
        flow = self.per_minute / 60
        if self.at is not None:
            self.level = min(self._most, self.level + flow * max(0.0, now - self.at))
        self.at = now
        least = min(1.0, self._most)
        return 0.0 if self.level >= least - 1e-9 else (least - self.level) / flow

    def use(self, amount: float) -> None:
        """Use so much, or give it back if it is negative."""
        self.level = min(self._most, self.level - amount)


@dataclass(frozen=True)
class Permit:
    """Whether a turn may be asked: at once, later, or not any more."""

    wait_s: float = 0.0
    """After how many seconds to ask for a permit again; 0: the turn may be asked now."""
    tokens: float = 0.0
    """How many tokens the turn counts as until it has ended."""
    stopped: str | None = None
    """Why no more turns are asked."""


@dataclass(frozen=True)
class Tally:
    """What turns have taken that have ended."""

    turns: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.turns + other.turns, self.failed + other.failed, self.usage + other.usage)


class Pace:
    """Hands out permits, and adds up what turns have taken.

    A turn that has a permit is settled once, when it has ended. One of a process that has died is never settled: it
    counts as one call and as the average number of tokens.

    Args:
        clock: the time in seconds, from any beginning.
        before: what turns took that were answered before, which counts for the budget.
    """

    def __init__(self, limits: AtScale, clock: Callable[[], float], before: Tally = Tally()) -> None:
        self._clock = clock
        self._requests = Bucket(limits.requests_per_minute) if limits.requests_per_minute else None
        self._tokens = Bucket(limits.tokens_per_minute) if limits.tokens_per_minute else None
        self._limits = limits.budget.limits if limits.budget else {}
        self._paused_until = 0.0
        self._settled = Tally()
        """Of turns that had a permit."""
        self.tally = before
        self.stopped: str | None = None

    def take(self) -> Permit:
        """Return a permit for one turn."""
        if self.stopped is None and (reached := exceeded(self._limits, self.tally.usage)):
            self.stopped = f"the budget is used up: {reached}"
        if self.stopped is not None:
            return Permit(stopped=self.stopped)
        now = self._clock()
        waits = [bucket.wait_s(now) for bucket in (self._requests, self._tokens) if bucket]
        if (wait_s := max([self._paused_until - now, *waits])) > 0:
            return Permit(wait_s=wait_s)
        tokens = _tokens_of(self._settled.usage) / self._settled.turns if self._settled.turns else 0.0
        if self._requests:
            self._requests.use(1)
        if self._tokens:
            self._tokens.use(tokens)
        return Permit(tokens=tokens)

    def settle(self, permit: Permit, tally: Tally) -> None:
        """Count what a turn has taken that had a permit."""
        self._settled += tally
        self.count(tally)
        if self._requests:
            self._requests.use(max(1, tally.usage.calls) - 1)  # engines need not count calls
        if self._tokens:
            self._tokens.use(_tokens_of(tally.usage) - permit.tokens)

    def count(self, tally: Tally) -> str | None:
        """Count what turns without permits have taken; return why no more turns are asked, or None."""
        self.tally += tally
        return self.stopped

    def pause(self, seconds: float) -> None:
        """Hand out no permit for so long, since the provider is away or refuses for now."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def stop(self, why: str) -> None:
        """Hand out no more permits."""
        self.stopped = self.stopped or why

    def why_stopped(self) -> str | None:
        """Return why no more permits are handed out."""
        return self.stopped

    def totals(self) -> Tally:
        """Return what turns have taken so far."""
        return self.tally


def _tokens_of(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens


class PaceCalls(Protocol):
    """Calls a method of the one `Pace` of a replay, which may be in another process."""

    async def call(self, name: str, *arguments: Any) -> Any:
        """Return what the method of this name returns."""

    def end(self) -> None:
        """Give it up. May block."""


class LocalPace:
    """Calls a `Pace` of this process."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    async def call(self, name: str, *arguments: Any) -> Any:
        """See `PaceCalls.call`."""
        return getattr(self._pace, name)(*arguments)

    def end(self) -> None:
        """See `PaceCalls.end`."""


class Permits:
    """One process's side of a `Pace`: waits for permits, and says what turns have taken.

    Without limits nothing is asked for, and what turns have taken is said once in a second.

    Args:
        sleep: waits so many seconds.
    """

    def __init__(
        self, pace: PaceCalls, *, is_limited: bool, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    ) -> None:
        self._pace = pace
        self._is_limited = is_limited
        self._sleep = sleep
        self._unsaid = Tally()
        self.stopped: str | None = None

    async def take(self) -> Permit | None:
        """Wait until one more turn may be asked; return None if none may be asked any more."""
        while self.stopped is None:
            if not self._is_limited:
                return Permit()
            permit: Permit = await self._pace.call("take")
            if permit.stopped is None and permit.wait_s <= 0:
                return permit
            self.stopped = permit.stopped
            if self.stopped is None:
                await self._sleep(permit.wait_s)
        return None

    async def settle(self, permit: Permit, tally: Tally) -> None:
        """Say what a turn has taken."""
        if self._is_limited:
            await self._pace.call("settle", permit, tally)
        else:
            self._unsaid += tally

    async def pause(self, seconds: float) -> None:
        """See `Pace.pause`."""
        await self._pace.call("pause", seconds)

    async def report(self) -> None:
        """Say what has not been said yet, and learn whether turns are still asked."""
        unsaid, self._unsaid = self._unsaid, Tally()
        self.stopped = await self._pace.call("count", unsaid) or self.stopped
