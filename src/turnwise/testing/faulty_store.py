"""Wraps any store and injects faults."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from turnwise.errors import StoreError
from turnwise.testing.crash import crash
from turnwise.testing.faults import Faults, Kind
from turnwise.testing.schedules import pause

Store = TypeVar("Store")

VERB: tuple[Kind, ...] = ("delay", "error", "crash")
"""The faults of each verb."""


class FaultyStore:
    """Passes each verb on to `inner`, with two points of faults: `store.<verb> before` and `store.<verb> after`.

    At either it may be late, raise StoreError, or crash; at a commit the session may be taken over. After the verb has
    acted, a StoreError leaves its caller in doubt, as a lost connection does. `close` has no faults. For any store, of
    sessions, events or anything else whose verbs are coroutines; `with_faults` is the same with the type of what it
    wraps.

    Args:
        delay_s: how long a `delay` takes at most, in seconds.
        paces: let verbs take a little random time anyway.
        for_real: a crash kills this operating system process, if no process is simulated here.
        name: what the points are called, in place of `store`.
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

        for verb in dir(inner):
            if not verb.startswith("_") and verb != "close" and inspect.iscoroutinefunction(getattr(inner, verb)):
                setattr(self, verb, self._faulty(verb))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def close(self) -> None:
        """Close what is inside."""
        await self.inner.close()

    def _faulty(self, verb: str) -> Callable[..., Awaitable[Any]]:
        before, after = f"{self._name}.{verb} before", f"{self._name}.{verb} after"

        async def faulty(*args: Any, **kwargs: Any) -> Any:
            owned = args[0] if verb == "commit" else None
            await self._pass(before, owned)
            result = await getattr(self.inner, verb)(*args, **kwargs)
            await self._pass(after, owned)
            return result

        return faulty

    async def _pass(self, point: str, owned: str | None) -> None:
        if self._paces:
            await pause(self.faults.dice)
        match self.faults.strike(point, *VERB, *(("fence",) if owned else ())):
            case "delay":
                await asyncio.sleep(self.faults.dice.random() * self._delay_s)
            case "error":
                raise StoreError(f"injected at {point}: try again")
            case "crash":
                await crash(for_real=self._for_real)
            case "fence":
                await self.inner.activate(owned)


def with_faults(inner: Store, faults: Faults, **settings: Any) -> Store:
    """Return a `FaultyStore` around `inner`, which type checkers take for one of its kind."""
    return cast(Store, FaultyStore(inner, faults, **settings))
