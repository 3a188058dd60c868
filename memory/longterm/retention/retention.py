"""`Retention`: how long a memory keeps unused items, and the record of when items were used."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

from pydantic import PlainValidator

from turnwise.errors import StoreError
from turnwise.memory.background import MOST_PAUSE_S, log_failure
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.values.checked_settings import checked_settings
from turnwise.memory.values.ranges import seconds

PAUSE_S = 1.0
"""The longest that uses are collected before they are written, in seconds."""


MAX_KEEP_S = 1e10
"""The longest `keep_s`, in seconds: three centuries."""


def _sorted_types(types: Collection[MemoryType]) -> tuple[MemoryType, ...]:
    """Return the types, sorted, since a memory's actor is found by its settings."""
    return tuple(sorted(map(MemoryType, set(types))))


@dataclass(frozen=True)
@checked_settings("Retention.")
class Retention:
    """Items that were last used longer ago than `keep_s` expire: they are never recalled, and a sweep deletes them.

    An item is used when it is remembered or changed and, with `refresh`, when it is recalled or in the profile of a
    request; `created_at` does not count. An expired item that is remembered again or changed before a sweep is valid
    again.
    """

    keep_s: Annotated[float, PlainValidator(partial(seconds, may_be_0=False, most=MAX_KEEP_S))]
    """How long unused items are kept, in seconds."""
    _: KW_ONLY
    refresh: bool = True
    """Whether a recall, or being in the profile of a request, counts as a use."""
    types: Annotated[Collection[MemoryType], PlainValidator(_sorted_types)] | None = None
    """The types of items that expire; other types never do. All if left out."""

    def since(self, now: float) -> float:
        """Return the time since which an item must have been used to be unexpired."""
        return now - self.keep_s

    def expiring(self, types: Collection[MemoryType] | None) -> frozenset[MemoryType]:
        """Return the types among `types` that expire. None means all types."""
        requested = frozenset(MemoryType if types is None else types)
        return requested if self.types is None else requested.intersection(self.types)


@runtime_checkable
class Sweeping(Protocol):
    """The method that a memory with expiring items has in addition. Call it from time to time."""

    async def sweep(self) -> int:
        """Delete the expired items of all users for good, in batches; return how many.

        Raises:
            StoreError: the store fails. Items deleted before that stay deleted; the next sweep deletes the rest.
        """


class Expiry(NamedTuple):
    """Which items are expired."""

    before: float
    """An item that was last used before this time, in seconds since the epoch, is expired; see `types` and `used`."""
    types: Collection[MemoryType]
    """Only items of these types expire."""
    used: Mapping[str, Collection[str]]
    """By user, the ids of items whose recent use is not written yet: these items are not expired."""


class Use(NamedTuple):
    """A use of a user's items."""

    user_id: str
    ids: tuple[str, ...]
    at: float
    """The time of use, in seconds since the epoch: the latest of those within one second."""
    counts: bool = False
    """Whether the use is counted in `MemoryItem.uses`."""


class Uses:
    """Writes uses of items in the background, in batches, so that no recall waits for it.

    A use is lost if the process ends within a second. Uses that could not be written are tried again, after pauses that
    grow, and take effect meanwhile; `trouble` has the error. For one event loop.

    Args:
        write: stores uses. It must be idempotent, and count no use that is not later than the item's last one.
    """

    def __init__(self, write: Callable[[Sequence[Use]], Awaitable[None]]) -> None:
        self._write = write
        self._unwritten: _NotedByUser = {}
        """The uses that no batch has yet."""
        self._in_batch: _NotedByUser = {}
        """The uses that are being written. If that fails they are unwritten again."""
        self._lock = asyncio.Lock()
        """Held from taking a batch until it is written or has failed, so that no use is in two batches."""
        self._later: asyncio.Task[None] | None = None
        self.trouble: str | None = None
        """Why the last write of uses failed; None if it succeeded."""

    def note(self, user_id: str, ids: Collection[str], used_at: float, *, counts: bool = False) -> None:
        """Record that a user's items were used at this time. A counted use counts once per write."""
        if not ids:
            return
        _add(self._unwritten, user_id, dict.fromkeys(ids, _Noted(used_at, counts)))
        if self._later is None or self._later.done():
            self._later = asyncio.create_task(self._write_later())

    def noted(self, user_id: str, since: float) -> set[str]:
        """Return the ids of a user's items with a use since this time that is not written yet."""
        uses = (*self._unwritten.get(user_id, {}).items(), *self._in_batch.get(user_id, {}).items())
        return {name for name, noted in uses if noted.used_at >= since}

    async def write(self) -> None:
        """Write the recorded uses.

        Raises:
            StoreError: the write failed; the uses stay recorded.
        """
        async with self._lock:
            self._in_batch, self._unwritten = self._unwritten, {}
            batch = _grouped(self._in_batch)
            try:
                if batch:
                    await self._write(batch)
            except BaseException:  # a cancellation, too
                for user_id, noted in self._in_batch.items():
                    _add(self._unwritten, user_id, noted)
                raise
            else:
                self._drop_written(batch)
            finally:
                self._in_batch = {}
            self.trouble = None

    async def close(self) -> None:
        """Write the recorded uses if possible. Closing twice is fine."""
        if self._later is not None:
            self._later.cancel()
            await asyncio.wait([self._later])
        await self._try()

    async def _write_later(self) -> None:
        """Write uses until all are written, also those that are noted meanwhile."""
        pauses = GrowingPauses(PAUSE_S, MOST_PAUSE_S)
        pause_s = PAUSE_S
        while self._unwritten or self._in_batch:
            await asyncio.sleep(pause_s)
            if await self._try():
                pauses.reset()
                pause_s = PAUSE_S
            else:
                pause_s = pauses.next_s()

    async def _try(self) -> bool:
        """Write the recorded uses; return whether that succeeded."""
        try:
            await self.write()
        except Exception as error:  # noqa: BLE001 - it is logged, and the uses stay recorded
            self.trouble = str(error) if isinstance(error, StoreError) else type(error).__name__
            log_failure("writing the uses of a memory's items", error, "; they are kept, and tried again")
            return False
        return True

    def _drop_written(self, batch: Sequence[Use]) -> None:
        """Drop uses that were noted during the write of a batch and are not later than what it wrote."""
        for use in batch:
            noted = self._unwritten.get(use.user_id, {})
            for name in use.ids:
                if name in noted and noted[name].used_at <= use.at:
                    del noted[name]
            if not noted:
                self._unwritten.pop(use.user_id, None)


class _Noted(NamedTuple):
    used_at: float
    counts: bool


_NotedByUser = dict[str, dict[str, _Noted]]
"""By user, by item id: the latest use, and whether one counts."""


def _add(to: _NotedByUser, user_id: str, uses: Mapping[str, _Noted]) -> None:
    """Add uses of a user's items to those that were noted."""
    noted = to.setdefault(user_id, {})
    for name, use in uses.items():
        before = noted.get(name, use)
        noted[name] = _Noted(max(use.used_at, before.used_at), use.counts or before.counts)


def _grouped(noted_by_user: Mapping[str, Mapping[str, _Noted]]) -> list[Use]:
    uses = []
    for user_id, items in noted_by_user.items():
        alike: dict[tuple[int, bool], list[str]] = {}
        for name, (used_at, counts) in items.items():
            alike.setdefault((math.floor(used_at), counts), []).append(name)
        uses += [
            Use(user_id, tuple(ids), max(items[name].used_at for name in ids), counts)
            for (_, counts), ids in alike.items()
        ]
    return uses
