"""Migration: copies the memories of a flat namespace into a fact store, each with its category."""

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
from turnwise.memory.conversation.ids import check_id
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.base import FactStore, kept
from turnwise.memory.longterm.migration.namespace import FlatNamespace
from turnwise.memory.longterm.migration.skips import Skipped, SkipReason
from turnwise.memory.longterm.migration.sources import read_flat
from turnwise.memory.longterm.migration.values import FlatMemory, has_unknown_type, item_of
from turnwise.memory.longterm.types import MemoryType

_PAGE = 1000
"""The most memories that are in memory at once."""

SKIPS_LISTED = 1000
"""How many of those that were skipped a report lists; it counts all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationReport:
    """What became of each memory that was read: `read == written + known + sum(skipped.values())`."""

    dry_run: bool
    """Whether nothing was written: then `written` would be."""
    read: int
    written: int
    known: int
    """Those that the target had already, or that were forgotten there; they stay as they are."""
    skipped: Mapping[SkipReason, int]
    skips: tuple[Skipped, ...]
    """The first of those that were skipped, at most `SKIPS_LISTED`."""
    by_user: Mapping[str, int]
    """How many were written or known, by user; 0 for one who was named and has none."""
    by_type: Mapping[MemoryType, int]
    """How many were written or known, by type."""
    unknown_types: int
    """How many are `general` only because their type is none of ours."""
    without_expiry: int
    """How many were to expire later, which items do not."""


async def migrate(
    source: str | Path,
    facts: FactStore,
    *,
    users: Collection[str] | None = None,
    namespace: str = "memories",
    agent: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> MigrationReport:
    """Copy the memories that stand directly in a flat namespace into a store of facts; return what became of each.

    The source is read only, as it was at one moment; see `read_flat` for what it may be. Each memory becomes an item of
    its type, with its times and no session, for `LexicalMemory` and `ExtractiveMemory` to find. Its id is made of its
    namespace and key: so a migration may be repeated, also after it was killed, changes nothing that is there, and
    brings nothing back that was forgotten since. Of lines with the same namespace and key the first is taken.

    Pages are written as they are read, each user's part of one in a transaction; no more than a page is held, and a
    number for each user. An error ends it, and leaves what was written until then.

    Args:
        users: only theirs; a dot in one is the user's own then. Everybody's if left out, but for users with a dot in a
            source that does not tell segments apart.
        namespace: the segments behind the user; or all of them, with `{user}` for the user.
        agent: whose the episodic and procedural ones become; all of the user's agents' if left out.
        dry_run: write nothing. What was forgotten in the target counts as what would be written.
        progress: told after each page how many memories were read so far.

    Raises:
        ConfigError: the source, the users or the namespace cannot be used.
        InvalidIdError: the agent, the namespace or a user cannot be one.
        StoreError: the source cannot be read, or the target written.
    """
    if agent is not None:
        check_id("agent", agent)
    chosen = FlatNamespace(namespace, users)
    tally = _Tally(chosen.users or (), agent)
    found = read_flat(source, chosen)
    loop = asyncio.get_running_loop()
    # One thread, so that what is being read when this is cancelled has ended before the source is closed.
    reader = ThreadPoolExecutor(1, thread_name_prefix="turnwise-migration")
    try:
        while page := await loop.run_in_executor(reader, lambda: [*islice(found, _PAGE)]):
            for user_id, items in tally.sort(page).items():
                scope = Scope(user_id=user_id, agent=agent)
                if dry_run:
                    tally.written += len(items) - len(await facts.get(scope, [item.id for item in items]))
                else:
                    tally.written += len(await facts.put(scope, items))
            if progress is not None:
                progress(tally.read)
    finally:
        await loop.run_in_executor(reader, found.close)
        reader.shutdown(wait=False)
    return tally.report(dry_run)


class _Tally:
    """Sorts what is read, and counts."""

    def __init__(self, users: Collection[str], agent: str | None) -> None:
        self._agent = agent
        self._now = time.time()
        self.read = self.written = 0
        self._skipped = Counter[SkipReason]()
        self._skips: list[Skipped] = []
        self._by_user = Counter[str](dict.fromkeys(sorted(users), 0))
        self._by_type = Counter[MemoryType]()
        self._unknown_types = self._without_expiry = 0

    def sort(self, page: Iterable[FlatMemory | Skipped]) -> dict[str, list[MemoryItem]]:
        """Return the items of a page by user, each once."""
        items: dict[str, dict[str, MemoryItem]] = {}
        for found in page:
            self.read += 1
            item = self._item(found)
            if isinstance(item, Skipped):
                self._skipped[item.reason] += 1
                self._skips += [item] if len(self._skips) < SKIPS_LISTED else []
            elif isinstance(found, FlatMemory):
                self._by_user[found.user_id] += 1
                self._by_type[item.type] += 1
                self._unknown_types += has_unknown_type(found.value)
                self._without_expiry += found.expires_at is not None
                items.setdefault(found.user_id, {}).setdefault(item.id, item)
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

    def _item(self, found: FlatMemory | Skipped) -> MemoryItem | Skipped:
        if isinstance(found, Skipped):
            return found
        if found.expires_at is not None and found.expires_at <= self._now:
            return Skipped(found.prefix, found.key, SkipReason.EXPIRED)
        try:
            item = item_of(found)
        except RecursionError as error:  # reading it needed a little less of the stack
            return Skipped(found.prefix, found.key, SkipReason.UNREADABLE, str(error))
        if item is None:
            return Skipped(found.prefix, found.key, SkipReason.NO_TEXT)
        try:
            return kept(Scope(user_id=found.user_id, agent=self._agent), item)
        except InvalidMemoryError as error:
            return Skipped(found.prefix, found.key, SkipReason.REFUSED, error.why)
