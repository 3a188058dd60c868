"""`migrate`: copies the memories of a flat namespace, such as LangGraph's, into an item store."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from turnwise.errors import InvalidMemoryError
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.base import ItemStore
from turnwise.memory.longterm.items.rules import checked_item
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.migration.namespace import FlatNamespace
from turnwise.memory.longterm.migration.skips import Skipped, SkipReason
from turnwise.memory.longterm.migration.sources import read_flat
from turnwise.memory.longterm.migration.values import FlatMemory, has_unknown_type, item_of
from turnwise.memory.values.ids import check_id

_PAGE = 1000
"""The most source memories that are held in memory at once."""

SKIPS_LISTED = 1000
"""The most skipped memories that a report lists. It counts all of them."""


@dataclass(frozen=True, kw_only=True)
class MigrationReport:
    """The result of a migration: `read == written + known + sum(skipped.values())`."""

    dry_run: bool
    """Whether nothing was written; then `written` counts what would be written."""
    read: int
    written: int
    known: int
    """Memories that the target has, or that were deleted there; they are not changed."""
    skipped: Mapping[SkipReason, int]
    skips: tuple[Skipped, ...]
    """The first `SKIPS_LISTED` skipped memories."""
    by_user: Mapping[str, int]
    """How many were written or known, by user; 0 for a requested user without memories."""
    by_type: Mapping[MemoryType, int]
    """How many were written or known, by type."""
    unknown_types: int
    """How many became `general` because their type is unknown."""
    without_expiry: int
    """How many had an expiry in the future, which their items do not have."""


async def migrate(
    source: str | Path,
    facts: ItemStore,
    *,
    users: Collection[str] | None = None,
    namespace: str = "memories",
    agent: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> MigrationReport:
    """Copy the memories directly in a flat namespace into an item store; return a report.

    The source is not changed, and is read as it was at one moment; see `read_flat` for possible sources. Each memory
    becomes an item of its type, with its times and without a session, which `LexicalMemory` and `ExtractiveMemory` can
    find. The id of the item depends only on namespace and key. So a migration may be repeated, also after a crash: it
    does not change existing items, and does not bring back deleted ones. Of several lines with the same namespace and
    key, the first is used.

    Memories are read and written in pages, so memory use does not depend on their number. Each user's items of a page
    are one transaction. After an error, what was written before stays.

    Args:
        users: copy only memories of these users, whose names may contain dots. If left out, of all users, except users
            with a dot in the name if the source does not separate the segments of a namespace.
        namespace: the segments after the user; or all segments, with `{user}` for the user.
        agent: the owner of episodic and procedural memories; all of the user's agents if left out.
        dry_run: write nothing. Memories that were deleted in the target count as written. The ids of all items are held
            in memory.
        progress: called after each page with the number of memories read so far.

    Raises:
        ConfigError: the source, the users or the namespace cannot be used.
        InvalidIdError: the agent, the namespace or a user is not a valid id.
        StoreError: the source cannot be read, or the target cannot be written.
    """
    if agent is not None:
        check_id("agent", agent)
    chosen = FlatNamespace(namespace, users)
    tally = _Tally(chosen.users or (), agent)
    counted_ids: set[str] = set()
    """The ids of what a dry run has counted: a file may have a key on several pages."""
    memories = read_flat(source, chosen)
    loop = asyncio.get_running_loop()
    # One thread, so that a read in progress ends before the source is closed when this is cancelled.
    reader = ThreadPoolExecutor(1, thread_name_prefix="turnwise-migration")
    try:
        while page := await loop.run_in_executor(reader, lambda: [*islice(memories, _PAGE)]):
            for user_id, items in tally.sort(page).items():
                scope = Scope(user_id=user_id, agent=agent)
                if dry_run:
                    new = [item.id for item in items if item.id not in counted_ids]
                    tally.written += len(new) - len(await facts.get(scope, new))
                    counted_ids.update(new)
                else:
                    tally.written += len(await facts.put(scope, items))
            if progress is not None:
                progress(tally.read)
    finally:
        await loop.run_in_executor(reader, memories.close)
        reader.shutdown(wait=False)
    return tally.report(dry_run)


class _Tally:
    """Converts memories to items, and counts them."""

    def __init__(self, users: Collection[str], agent: str | None) -> None:
        self._agent = agent
        self._now_s = time.time()
        """When the migration began, since the epoch."""
        self.read = self.written = 0
        self._skipped = Counter[SkipReason]()
        self._skips: list[Skipped] = []
        self._by_user = Counter[str](dict.fromkeys(sorted(users), 0))
        self._by_type = Counter[MemoryType]()
        self._unknown_types = self._without_expiry = 0

    def sort(self, page: Iterable[FlatMemory | Skipped]) -> dict[str, list[MemoryItem]]:
        """Return the items of a page by user, each once."""
        items: dict[str, dict[str, MemoryItem]] = {}
        for memory in page:
            self.read += 1
            item = self._item(memory)
            if isinstance(item, Skipped):
                self._skipped[item.reason] += 1
                self._skips += [item] if len(self._skips) < SKIPS_LISTED else []
            elif isinstance(memory, FlatMemory):
                self._by_user[memory.user_id] += 1
                self._by_type[item.type] += 1
                self._unknown_types += has_unknown_type(memory.value)
                self._without_expiry += memory.expires_at is not None
                items.setdefault(memory.user_id, {}).setdefault(item.id, item)
        return {user_id: [*of_user.values()] for user_id, of_user in items.items()}

    def report(self, dry_run: bool) -> MigrationReport:
        return MigrationReport(
            dry_run=dry_run,
            read=self.read,
            written=self.written,
            known=self._by_type.total() - self.written,
            skipped=MappingProxyType(dict(self._skipped)),
            skips=tuple(self._skips),
            by_user=MappingProxyType(dict(self._by_user)),
            by_type=MappingProxyType(dict(self._by_type)),
            unknown_types=self._unknown_types,
            without_expiry=self._without_expiry,
        )

    def _item(self, memory: FlatMemory | Skipped) -> MemoryItem | Skipped:
        if isinstance(memory, Skipped):
            return memory
        if memory.expires_at is not None and memory.expires_at <= self._now_s:
            return Skipped(memory.prefix, memory.key, SkipReason.EXPIRED)
        try:
            item = item_of(memory)
        except RecursionError as error:  # it is nested so deeply that only reading it succeeded
            return Skipped(memory.prefix, memory.key, SkipReason.UNREADABLE, str(error))
        if item is None:
            return Skipped(memory.prefix, memory.key, SkipReason.NO_TEXT)
        try:
            return checked_item(Scope(user_id=memory.user_id, agent=self._agent), item)
        except InvalidMemoryError as error:
            return Skipped(memory.prefix, memory.key, SkipReason.REFUSED, error.why)
