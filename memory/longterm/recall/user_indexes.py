"""`UserIndexes`: holds the indexes of users' items in memory, and brings them up to date with the store."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from turnwise.memory.background import has_time, on_thread
from turnwise.memory.longterm.items.rows import ROWS, Loaded, Revision
from turnwise.memory.longterm.items.sql import SQLItems

if TYPE_CHECKING:
    # They need numpy, which a process that makes a memory for others need not load.
    from turnwise.memory.longterm.recall.index_growth import Growth
    from turnwise.memory.longterm.recall.user_index import UserIndex

LOADED = 2_000
"""Maximum new items of a user that are read at once."""

FETCHED = 1_000
"""Maximum vectors that are read at once when much is new of a user."""


class UserIndexes:
    """The indexes of users' items, the least recently used first, up to a number of bytes.

    An index grows by what is new in the store, in steps that stay: a step whose caller is cancelled or has no time left
    is not repeated. For one event loop, and its threads.

    Args:
        store: the items.
        give_vectors: gives indexes by user the vectors that they lack, of some keys or all; returns the users whose
            vectors it had to read, and why it could not.
        most_bytes: about the most bytes of all indexes.
    """

    def __init__(
        self,
        store: SQLItems,
        give_vectors: Callable[[Mapping[str, UserIndex], Collection[str] | None], tuple[list[str], str | None]],
        most_bytes: int,
    ) -> None:
        self._store = store
        self._give_vectors = give_vectors
        self._most_bytes = most_bytes
        self._indexes: dict[str, UserIndex] = {}
        """The least recently used first."""
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        """Held while the indexes change, since threads compute answers."""
        self._incomplete: set[str] = set()
        """Users whose index is known to lack items."""
        self._growth_locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """The lock of each user, held while the user's index is brought up to date."""

    def of(self, users: Iterable[str]) -> dict[str, UserIndex]:
        """Return the indexes that are in memory of these users."""
        with self._lock:
            return {user: self._indexes[user] for user in users if user in self._indexes}

    def current(self, users: Collection[str]) -> dict[str, UserIndex] | None:
        """Return the indexes of these users if all are in memory and up to date; None if not, or if that has to wait.

        Takes microseconds and waits for nothing; see `SQLItems.revisions`.
        """
        user_indexes = self.of(users)
        revisions = {user: user_index.revision for user, user_index in user_indexes.items()}
        return user_indexes if revisions == self._store.revisions(users) else None

    def note_used(self, users: Iterable[str]) -> None:
        """Mark these users' indexes as the most recently used."""
        with self._lock:
            for user in users:
                if (user_index := self._indexes.pop(user, None)) is not None:
                    self._indexes[user] = user_index

    def release(self, users: Iterable[str] | None = None) -> None:
        """Release the indexes of these users, or all."""
        with self._lock:
            for user in list(self._indexes if users is None else users):
                self._release(user)

    async def prepare(self, user: str) -> None:
        """See `VectorMemory.prepare`."""
        user_index, current = self._indexes.get(user), self._store.revisions([user])
        if user_index is not None and (
            user not in self._incomplete if current is None else current[user] == user_index.revision
        ):
            return
        async with self._growth_locks.setdefault(user, asyncio.Lock()):
            await self._grow(user)

    async def refresh(self, users: Iterable[str]) -> None:
        """Bring the indexes of these users in memory up to date, so that their next recall need not do it."""
        if user_indexes := self.of(users):
            revisions = {user: user_index.revision for user, user_index in user_indexes.items()}
            loaded = await self._store.load(user_indexes, revisions, most=LOADED)
            await on_thread(self.updated, loaded, user_indexes)

    def updated(
        self, loaded: Mapping[str, Loaded], held_indexes: Mapping[str, UserIndex]
    ) -> tuple[dict[str, UserIndex], dict[str, str]]:
        """Return the users' indexes as of the loaded revisions, with all available vectors. Blocks.

        Also returns why items or vectors are missing, by user.
        """
        user_indexes: dict[str, UserIndex] = {}
        troubles: dict[str, str] = {}
        for user, rows in loaded.items():
            growth = _growth(held_indexes.get(user), rows)
            growth.step()  # one only, as others wait; `prepare` takes the others
            user_indexes[user] = growth.index
            if not (rows.is_all and growth.is_done):
                troubles[user] = _INCOMPLETE
        complete = {user: user_index for user, user_index in user_indexes.items() if user not in troubles}
        users, trouble = self._give_vectors(complete, None)
        for user, user_index in user_indexes.items():
            self._hold(user, user_index, is_incomplete=user in troubles)
        return user_indexes, troubles | ({} if trouble is None else dict.fromkeys(users, trouble))

    async def _grow(self, user: str) -> None:
        user_index, is_all = self._indexes.get(user), False
        while not is_all:
            revisions = {} if user_index is None else {user: user_index.revision}
            loaded = (await self._store.load([user], revisions, most=LOADED))[user]
            growth = await on_thread(_growth, user_index, loaded)
            while not growth.is_done:
                await on_thread(growth.step)
                self._hold(user, growth.index, is_incomplete=not (loaded.is_all and growth.is_done))
                if not growth.is_done and not has_time():
                    return
            user_index, is_all = growth.index, loaded.is_all
            self._hold(user, user_index, is_incomplete=not is_all)
            if not is_all and not has_time():
                return
        if user_index is None or len(missing := user_index.missing()) <= FETCHED:
            return
        for start in range(0, len(missing), FETCHED):
            await on_thread(self._give_vectors, {user: user_index}, missing[start : start + FETCHED])
            if not has_time():
                return

    def _hold(self, user: str, user_index: UserIndex, *, is_incomplete: bool) -> None:
        """Hold a user's index in memory, and release the least recently used ones."""
        with self._lock:
            self._release(user)
            self._indexes[user] = user_index
            self._sizes[user] = user_index.bytes
            self._bytes += self._sizes[user]
            if is_incomplete:
                self._incomplete.add(user)
            while self._bytes > self._most_bytes and len(self._indexes) > 1:
                self._release(next(iter(self._indexes)))

    def _release(self, user: str) -> None:
        self._incomplete.discard(user)
        if self._indexes.pop(user, None) is not None:
            self._bytes -= self._sizes.pop(user)


def _growth(user_index: UserIndex | None, loaded: Loaded) -> Growth:
    """Return the growth of a user's index in memory to the loaded rows."""
    from turnwise.memory.longterm.recall.index_growth import Growth, growth_between
    from turnwise.memory.longterm.recall.user_index import UserIndex

    if user_index is not None and loaded.base != user_index.revision:
        return growth_between(user_index, loaded.more, loaded.revision)
    owner, changes, _ = loaded.revision
    return Growth(
        UserIndex() if user_index is None else user_index,
        loaded.more,
        (),
        loaded.revision,
        revision_at=lambda row: Revision(owner, changes, row.row - owner * ROWS + 1),
    )


_INCOMPLETE = "not all items are indexed yet: later recalls find the others"
