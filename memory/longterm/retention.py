"""How long a memory keeps what nobody uses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from turnwise.errors import ConfigError, StoreError
from turnwise.memory.background import log_failure
from turnwise.memory.longterm.types import MemoryType

PAUSE_S = 1.0
"""For how long uses are gathered before they are written down, at most."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What was last used longer ago than this is expired: it is never recalled, and a sweep deletes it.

    To remember an item, to change it, and, with `refresh`, to recall it or to have it in the profile of who asks is to
    use it; not to have been created. What is given or changed when it has expired and was not swept yet is in use
    again.
    """

    keep_s: float
    """How long what nobody uses is kept, in seconds."""
    _: KW_ONLY
    refresh: bool = True
    """Whether what is recalled, or in the profile of who asks, is used by that."""
    types: Collection[MemoryType] | None = None
    """What expires; what is of other types never does. All if left out."""

    def __post_init__(self) -> None:
        if not (self.keep_s > 0 and math.isfinite(self.keep_s)):
            raise ConfigError("Retention.keep_s", self.keep_s, "must be above 0 seconds, and finite")
        if self.types is not None:
            try:
                # In one order, as a memory's actor is found by its settings.
                types = tuple(sorted({MemoryType(kind) for kind in self.types}))
            except ValueError as error:
                raise ConfigError("Retention.types", self.types, str(error)) from error
            object.__setattr__(self, "types", types)

    def since(self, now: float) -> float:
        """Return the time since when something must have been used so that it is not expired."""
        return now - self.keep_s

    def expiring(self, types: Collection[MemoryType] | None) -> frozenset[MemoryType]:
        """Return those of these types that expire; all are meant by None."""
        meant = frozenset(MemoryType if types is None else types)
        return meant if self.types is None else meant.intersection(self.types)


@runtime_checkable
class Sweeping(Protocol):
    """A memory whose items expire also has this, for whoever calls it now and then."""

    async def sweep(self) -> int:
        """Delete what is expired, of all users, a batch at a time; return how many items. They do not come back.

        Raises:
            StoreError: the store fails; what was deleted by then is gone, the rest is for the next time.
        """


class Expiry(NamedTuple):
    """What is expired."""

    before: float
    """What was last used before this time, in seconds since the epoch,"""
    types: Collection[MemoryType]
    """and is of these types,"""
    used: Mapping[str, Collection[str]]
    """and is not among these ids of its user: their use is not written down yet."""


class Use(NamedTuple):
    """That a user's items were used."""

    user_id: str
    ids: tuple[str, ...]
    at: float
    """The latest time, in seconds since the epoch; of those within one second."""
    counts: bool = False
    """Whether it counts in `MemoryItem.uses`."""


class Uses:
    """Writes down what was used by and by, together, so that nobody who recalls waits for it.

    A use is lost if the process ends within a second. What could not be written is tried again with what comes next,
    and counts meanwhile; `trouble` says why. For one event loop.

    Args:
        write: writes uses down. It may be repeated.
    """

    def __init__(self, write: Callable[[Sequence[Use]], Awaitable[None]]) -> None:
        self._write = write
        self._noted: dict[str, dict[str, _Noted]] = {}
        """By item id, by user."""
        self._lock = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None
        self.trouble: str | None = None
        """Why uses could not be written the last time; None if they could."""

    def note(self, user_id: str, ids: Collection[str], at: float, *, counts: bool = False) -> None:
        """Note that a user's items were used at this time. What counts, counts once until it is written down."""
        if not ids:
            return
        noted = self._noted.setdefault(user_id, {})
        for name in ids:
            before = noted.get(name, _Noted(at, False))
            noted[name] = _Noted(max(at, before.at), counts or before.counts)
        if self._later is None or self._later.done():
            self._later = asyncio.create_task(self._write_later())

    def noted(self, user_id: str, since: float) -> set[str]:
        """Return the ids of a user's items that were used since this time, as far as it is not written yet."""
        return {name for name, noted in self._noted.get(user_id, {}).items() if noted.at >= since}

    async def write(self) -> None:
        """Write down what was noted.

        Raises:
            StoreError: it could not be; it stays noted.
        """
        async with self._lock:
            batch = _grouped(self._noted)
            if batch:
                await self._write(batch)
            for use in batch:
                noted = self._noted[use.user_id]
                for name in use.ids:
                    if noted[name].at <= use.at:  # else it was used again meanwhile
                        del noted[name]
                if not noted:
                    del self._noted[use.user_id]
            self.trouble = None

    async def close(self) -> None:
        """Write down what was noted, if that is possible still. Closing twice is fine."""
        if self._later is not None:
            self._later.cancel()
            await asyncio.wait([self._later])
        await self._try()

    async def _write_later(self) -> None:
        await asyncio.sleep(PAUSE_S)
        await self._try()

    async def _try(self) -> None:
        try:
            await self.write()
        except Exception as error:  # noqa: BLE001 - it is logged, and what was noted is written with what comes next
            self.trouble = str(error) if isinstance(error, StoreError) else type(error).__name__
            log_failure("noting which items of a memory were used", error, ", and is tried again with the next")


class _Noted(NamedTuple):
    at: float
    counts: bool


def _grouped(noted: Mapping[str, Mapping[str, _Noted]]) -> list[Use]:
    found = []
    for user_id, items in noted.items():
        alike: dict[tuple[int, bool], list[str]] = {}
        for name, (at, counts) in items.items():
            alike.setdefault((math.floor(at), counts), []).append(name)
        found += [
            Use(user_id, tuple(ids), max(items[name].at for name in ids), counts) for (_, counts), ids in alike.items()
        ]
    return found
