"""`FaultyStore`: wraps any store and injects faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from turnwise.errors import StoreError
from turnwise.memory.stores.base import verbs_of
from turnwise.testing.faults import Faults, Kind
from turnwise.testing.process import crash
from turnwise.testing.schedules import pause

Store = TypeVar("Store")

VERB: tuple[Kind, ...] = ("delay", "error", "crash")
"""The faults that each method can have."""

BEFORE_COMMIT: tuple[Kind, ...] = (*VERB, "fence")

AFTER_COMMIT: tuple[Kind, ...] = ("delay", "unanswered", "crash", "fence")
"""The faults of a commit. An error after it is a fault of its own, since the commit is stored."""


class FaultyStore:
    """Delegates each method to `inner`, with two points of faults: `store.<method> before` and `store.<method> after`.

    At each point the call may be delayed, raise StoreError, or crash; at a commit, another process may activate the
    session. A StoreError after the method leaves the outcome unknown to the caller, as a lost connection does; after a
    commit this fault is called `unanswered`. `close` has no faults. `inner` may be any store, of sessions, events or
    other things, whose methods are coroutine functions; `with_faults` returns the wrapper with the type of `inner`.

    Args:
        delay_s: the longest `delay`, in seconds.
        paces: whether methods also take a little random time without a fault.
        for_real: whether a crash without a simulated process kills this operating system process.
        name: the first word of the points' names, instead of `store`.
    """

    def __init__(
        self,
        inner: Any,
        faults: Faults,
        *,
        delay_s: float = 0.5,
        paces: bool = False,
        for_real: bool = False,
        name: str = "store",
    ) -> None:
        self.inner = inner
        self.faults = faults
        self._delay_s = delay_s
        self._paces = paces
        self._for_real = for_real
        self._name = name

        for verb in verbs_of(inner):
            setattr(self, verb, self._faulty(verb))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def close(self) -> None:
        """Close the inner store."""
        await self.inner.close()

    def _faulty(self, verb: str) -> Callable[..., Awaitable[Any]]:
        before, after = f"{self._name}.{verb} before", f"{self._name}.{verb} after"

        async def faulty(*args: Any, **kwargs: Any) -> Any:
            owned = args[0] if verb == "commit" else None
            await self._pass(before, BEFORE_COMMIT if owned else VERB, owned)
            result = await getattr(self.inner, verb)(*args, **kwargs)
            await self._pass(after, AFTER_COMMIT if owned else VERB, owned)
            return result

        return faulty

    async def _pass(self, point: str, offers: tuple[Kind, ...], owned: str | None) -> None:
        if self._paces:
            await pause(self.faults.dice)
        match self.faults.strike(point, *offers):
            case "delay":
                await asyncio.sleep(self.faults.dice.random() * self._delay_s)
            case "error":
                raise StoreError(f"injected at {point}: try again")
            case "unanswered":
                raise StoreError(f"injected at {point}: it is stored, and its answer is lost: try again")
            case "crash":
                await crash(for_real=self._for_real)
            case "fence":
                await self.inner.activate(cast(str, owned))


def with_faults(inner: Store, faults: Faults, **settings: Any) -> Store:
    """Return a `FaultyStore` around `inner`, with the type of `inner`."""
    return cast(Store, FaultyStore(inner, faults, **settings))
