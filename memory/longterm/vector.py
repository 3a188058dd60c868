"""`VectorMemory`: a long-term memory that ranks items by words, neighbouring items and vectors together."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from turnwise.errors import ConfigError, StoreError
from turnwise.memory.background import check_awaited, has_time, on_thread, watch
from turnwise.memory.longterm.base import (
    ItemChanges,
    Label,
    MemoryItem,
    Recall,
    Reminder,
    Scope,
    TurnPlace,
    is_local,
    recalled,
)
from turnwise.memory.longterm.index.default_embedding import ChromaDefault
from turnwise.memory.longterm.index.locations import SYNC_CHANGES, ChromaFolder, PostgresVectors
from turnwise.memory.longterm.index.vector_index import EmbeddingFunction, VectorIndex, no_vectors
from turnwise.memory.longterm.items.base import ItemFilter
from turnwise.memory.longterm.items.changes import pin, update
from turnwise.memory.longterm.items.mentions import mentions_in
from turnwise.memory.longterm.items.rows import ROWS, Loaded, Pending, Revision, key_of
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.items.texts import still_contained, to_delete
from turnwise.memory.longterm.lexical import profile_of, with_wishes, within_limits
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.passages import item_key, vector_keys, vectors_of
from turnwise.memory.longterm.recall.prominence import UNRELATED, spread_out
from turnwise.memory.longterm.recall.query import parse
from turnwise.memory.longterm.recall.ranking import Weights
from turnwise.memory.longterm.retention.deletion import texts_of
from turnwise.memory.longterm.retention.retention import Expiry, Retention, Uses
from turnwise.memory.stores.base import Page
from turnwise.memory.values.ranges import check_seconds, check_whole_number
from turnwise.memory.values.required_arguments import needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from turnwise.memory.longterm.index.vector_index import Health
    from turnwise.memory.longterm.recall.index_growth import Growth
    from turnwise.memory.longterm.recall.user_index import Match, UserIndex

    _Match = tuple[list[MemoryItem], Match]
    """A profile, and the matches of items with a query by words."""

    _Making = tuple[Future[NDArray[np.float32]], float, threading.Event]
    """Vectors that are being computed, the seconds to wait for them, and the event that ends the work."""
    _Vectors = tuple[NDArray[np.float32] | None, str | None]
    _Rows = Sequence[NDArray[np.float32]]
    _ItemVectors = tuple[Pending, Mapping[str, NDArray[np.float32]]]
    """An item with its vectors, by their keys."""

Argument = TypeVar("Argument")

SPACE = "vectors"
"""The space of the items of a memory that is opened by a path or a URL; see `ItemStore`."""

LOADED = 2_000
"""Maximum new items of a user that are read at once."""

FETCHED = 1_000
"""Maximum vectors that are read at once when much is new of a user."""

BATCH = 64
"""Maximum texts per call of the embedding function. Also the number of forgotten items whose vectors `forget` deletes;
`catch_up` deletes the rest."""

DELETED = 4
"""Maximum items whose vectors are deleted in one step. Chroma serves others between two steps."""

NOTED = 64
"""Maximum items read at once from the list of items whose vectors are to be deleted."""

PUSHED = 50
"""Number of no-op deletions in one step of `overwrite`. Chroma serves others between two steps."""

HELD = 512
"""Maximum vectors that wait in memory for Chroma. With more, `remember` waits until Chroma has them."""

QUICK = 20_000
"""Maximum passages for answering a batch on the event loop: those of the queries' users, and `ASKED` per query."""

QUICK_EACH = 2_000
"""Maximum passages per user for answering on the event loop."""

QUICK_CHARS = 4_000
"""Maximum characters of the queries of a batch that is answered on the event loop."""

ASKED = 200
"""Number of passages that a query counts as; see `QUICK`."""

REST = 2.0
"""The pause after each step of a deletion, as a multiple of the step's duration."""


_log = logging.getLogger(__name__)

DEFAULT = ChromaDefault()
"""Chroma's own default embedding."""


@needs(items="pass where the items are kept, such as VectorMemory('items.db')")
class VectorMemory:
    """Finds items of one user by their words, by the words of neighbouring items, and by vectors.

    `VectorMemory("memory.db")` stores items in that file, and vectors in the folder `memory.db-vectors`. Chroma's
    default embedding computes the vectors once it is on this machine; see `ChromaDefault`. Until then, and always with
    `embedding=None`, items are found by words alone. `VectorMemory("postgresql://...")` keeps items and vectors in that
    database, so that a cluster needs no file.

    Items are durable in the SQLite file when `remember` returns. Their vectors are used at once, and are written to
    Chroma `keep_s` later, many together; `catch_up` computes those again that a killed process had not written. Each
    passage of a long item has a vector, up to `MOST_VECTORS` of them. While Chroma or the embedding function fails, a
    recall uses words alone and returns a `DegradedRecall`; `catch_up` computes the missing vectors later. Users are
    isolated: one user's items never affect another user's results.

    Each item is indexed in memory once: of an item the first `item_words.MOST_WORDS` different words in the first
    `passages.MOST_PASSAGES` passages, which is all of a text of 50 KB. If a user has many new items, as after a
    restart, they are read and indexed in steps, between which other users are answered. A recall that has no time for
    all steps finds the indexed items, as a `DegradedRecall`, and the next recall continues.

    Pickles as its settings. For one event loop. Each verb takes one transaction, and one call of the embedding function
    for each `BATCH` texts.

    Args:
        items: the store of the items; or the path of the SQLite file, or the URL of the PostgreSQL, that has them in
            the space `SPACE`.
        index: their vectors. It is closed with this. If left out, a folder beside the file, or that PostgreSQL.
        embedding: any of Chroma's embedding functions, which computes the vectors; None for no vectors. One that does
            not pickle is sent as its `name()` and `get_config()`, and is built in the actor with the keys from the
            environment there. Not allowed together with `index`, which has an embedding function of its own.
        weights: the weights of the ranking.
        cache_bytes: about the most bytes of the users' items, words and vectors in memory. A recall for a user who is
            not in memory takes some milliseconds more for each hundred items.
        pause_s: how long no vectors are used after a failure, in seconds.
        embed_s: how long the embedding function may take for items, and query_s: for queries, in seconds; after that
            the memory works without vectors.
        keep_s: how long the vectors of new items are held in memory before they are written to Chroma, in seconds.
            Chroma takes 15 ms to write one vector and 1 ms for each further one, so many are written together. With 0
            they are written when `remember` returns.
        retention: how long unused items are kept; without it, they never expire.
        clock: returns the time of uses and updates, in seconds since the epoch.
        name: its name in sessions, see `Label`; `max_tokens` likewise.
    """

    limits_categories = True
    """See `base.limits_categories`."""

    @property
    def is_local(self) -> bool:
        """Whether the items, or their vectors, are in files on one machine."""
        return is_local(self._store) or bool(self._index.paths())

    def __init__(
        self,
        items: SQLItems | str | Path,
        index: VectorIndex | None = None,
        *,
        embedding: EmbeddingFunction | None = DEFAULT,
        weights: Weights | None = None,
        cache_bytes: int = 256 << 20,
        pause_s: float = 5.0,
        embed_s: float = 60.0,
        query_s: float = 1.0,
        keep_s: float = 2.0,
        retention: Retention | None = None,
        clock: Callable[[], float] = time.time,
        name: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        check_whole_number("VectorMemory.cache_bytes", cache_bytes, most=sys.maxsize)
        for setting, value in {"pause_s": pause_s, "embed_s": embed_s, "query_s": query_s, "keep_s": keep_s}.items():
            check_seconds(f"VectorMemory.{setting}", value, may_be_0=setting in ("pause_s", "keep_s"))
        self.label = Label(name=name, max_tokens=max_tokens)
        """Its name and limit in sessions."""
        self._store = items if isinstance(items, SQLItems) else SQLItems(_url(items), space=SPACE)
        if index is None:
            index = no_vectors() if embedding is None else VectorIndex(_place_of(self._store, items), embedding)
        elif embedding is not DEFAULT:
            raise ConfigError("VectorMemory.embedding", embedding, "give it to the index")
        self._index = index
        self._weights = weights or Weights()
        self._cache_bytes = cache_bytes
        self._user_indexes: dict[str, UserIndex] = {}
        """The least recently used first."""
        self._sizes: dict[str, int] = {}
        self._held_bytes = 0
        self._lock = threading.Lock()
        """Held while the indexes change, since threads compute answers."""
        self._incomplete: set[str] = set()
        """Users whose index is known to lack items."""
        self._growth_locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """The lock of each user, held while the user's index is brought up to date."""
        self.trouble: str | None = None
        """Why no vectors are used for `pause_s`, or were not used until they work again; None if they work."""
        self._pause_s = pause_s
        self._again_at = 0.0
        self._embed_s = embed_s
        self._query_s = query_s
        self._keep_s = keep_s
        self._embedders = ThreadPoolExecutor(2, "turnwise-embedding")
        """Threads of their own, so that a call that hangs blocks no other work."""
        self._retention = retention
        self._clock = clock
        self._uses = Uses(self._store.touch)
        self._deletion_lock = asyncio.Lock()
        self._unwritten: dict[str, _ItemVectors] = {}
        """The items whose vectors are to be written to Chroma, by their keys."""
        self._flush_lock = asyncio.Lock()
        """Held while vectors are written to Chroma."""
        self._flush_task: asyncio.Task[None] | None = None
        self._without_vectors = 0
        """How many items had no vectors when `catch_up` began to compute them; 0 if all have vectors."""
        self._made_count = 0
        """For how many of these items `catch_up` has computed them."""
        self._unrelated: NDArray[np.float32] | None = None
        """The vectors of `UNRELATED`, once they were needed."""

    def __reduce__(self) -> tuple[Any, ...]:
        settings: dict[str, Any] = {
            "weights": self._weights,
            "cache_bytes": self._cache_bytes,
            "pause_s": self._pause_s,
            "embed_s": self._embed_s,
            "query_s": self._query_s,
            "keep_s": self._keep_s,
            "retention": self._retention,
            "clock": self._clock,
        }
        return partial(VectorMemory, **settings), (self._store, self._index), self.label

    def __setstate__(self, label: Label) -> None:
        self.label = label

    # The verbs of a long-term memory

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        return (await self.remember_many([(scope, items)]))[0]

    async def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
        per_category: bool = False,
    ) -> Sequence[MemoryItem]:
        await self.prepare(scope)
        request = Recall(scope=scope, query=query, limit=limit, types=types, as_of=as_of, per_category=per_category)
        return (await self.answer_many([request]))[0].items

    async def remind(
        self,
        scope: Scope,
        prompt: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        per_category: bool = False,
    ) -> Reminder:
        """See `Reminding`. The profile has pinned items and standing wishes. Reads the file once for both parts."""
        await self.prepare(scope)
        more = {"is_reminder": True, "per_category": per_category}
        request = Recall(scope=scope, query=prompt, limit=limit, types=types, **more)
        return (await self.answer_many([request]))[0]

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        """See `Pinning.pin`."""
        return await pin(self._store, scope, id, pinned)

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> bool:
        vectors = await self._vectors_of_texts([] if text is None else [text])
        item = await update(self._store, scope, id, text, at=self._clock(), type=type, **changes)
        if item is not None and vectors is not None and item.text in vectors:
            await self._hold_vectors([Pending(user_id=scope.user_id, id=id, text=item.text)], vectors)
        return item is not None

    async def list_items(
        self,
        scope: Scope,
        *,
        types: Collection[MemoryType] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[MemoryItem]:
        """See `Listing.list_items`."""
        return await self._store.query(scope, ItemFilter(types=types), cursor=cursor, limit=limit)

    async def mentions(
        self,
        scope: Scope,
        text: str | None = None,
        *,
        turns: Collection[TurnPlace] = (),
        ids: Collection[str] = (),
    ) -> list[MemoryItem]:
        """See `Mentioning.mentions`."""
        return await mentions_in(self._store, scope, text, turns=turns, ids=ids)

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        """See `LongTermMemory.forget`.

        On return all these items are deleted, and the vectors of up to `BATCH` of them; `catch_up` deletes the rest.
        """
        deleted = await self._store.delete(scope, ids, turn_index=turn_index)
        await self._remove({scope.user_id: deleted[:BATCH]})
        return len(deleted)

    async def sweep(self) -> int:
        """Delete the expired items of all users for good, in batches; return how many.

        Raises:
            StoreError: the store fails. Items deleted before that stay deleted; the next sweep deletes the rest.
        """
        if self._retention is None:
            return 0
        since, types = self._retention.since(self._clock()), self._retention.expiring(None)
        await self._uses.write()
        swept = 0
        while deleted := await self._store.sweep(since, types=types):
            await self._remove(deleted)
            swept += sum(map(len, deleted.values()))
        return swept

    async def close(self) -> None:
        if self._flush_task:
            self._flush_task.cancel()
        await self.flush()
        with self._lock:
            for user in list(self._user_indexes):
                self._release(user)
        await self._uses.close()
        await self._store.close()
        self._embedders.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._index.close)

    async def prepare(self, scope: Scope) -> None:
        """Bring the user's index up to date in steps, as far as there is time. Other work runs between the steps.

        A later recall in a batch then takes little time. If the call is cancelled, the next one continues.

        Raises:
            StoreError: the items cannot be read.
        """
        user = scope.user_id
        user_index, current = self._user_indexes.get(user), self._store.revisions([user])
        if user_index is not None and (
            user not in self._incomplete if current is None else current[user] == user_index.revision
        ):
            return
        async with self._growth_locks.setdefault(user, asyncio.Lock()):
            await self._grow(user)

    async def _grow(self, user: str) -> None:
        user_index, is_all = self._user_indexes.get(user), False
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
        if user_index is None or not self._index.is_ready or len(missing := user_index.missing()) <= FETCHED:
            return
        for start in range(0, len(missing), FETCHED):
            await on_thread(self._give_vectors, {user: user_index}, missing[start : start + FETCHED])
            if not has_time():
                return

    def _hold(self, user: str, user_index: UserIndex, *, is_incomplete: bool) -> None:
        """Hold a user's index in memory, and release the least recently used ones."""
        with self._lock:
            self._release(user)
            self._user_indexes[user] = user_index
            self._sizes[user] = user_index.bytes
            self._held_bytes += self._sizes[user]
            if is_incomplete:
                self._incomplete.add(user)
            while self._held_bytes > self._cache_bytes and len(self._user_indexes) > 1:
                self._release(next(iter(self._user_indexes)))

    # Many at once

    async def remember_many(self, batch: Sequence[tuple[Scope, Sequence[MemoryItem]]]) -> list[Collection[str]]:
        """Do each `remember` of the batch: one transaction, one call of the embedding function."""
        vectors = await self._vectors_of_texts([item.text for _, items in batch for item in items])
        now = self._clock()
        fresh = await self._store.add(batch, at=now, with_vectors=True)
        if self._retention is not None:
            for scope, items in batch:
                self._uses.note(scope.user_id, [item.id for item in items], now)
        if vectors is not None:
            await self._hold_vectors(fresh, vectors)
        await self._refresh([scope.user_id for scope, _ in batch])
        return [{item.id for item in items} for _, items in batch]

    async def recall_many(self, batch: Sequence[Recall]) -> list[Sequence[MemoryItem]]:
        """Answer each request of the batch with one call of the embedding function and one read of the file."""
        return [answer.items for answer in await self.answer_many(batch)]

    async def answer_many(self, batch: Sequence[Recall]) -> list[Reminder]:
        """Answer each request of the batch as `recall_many` does, with the profile if it is requested."""
        if not batch:
            return []
        with self._lock:
            user_indexes = {
                user: self._user_indexes[user]
                for request in batch
                if (user := request.scope.user_id) in self._user_indexes
            }
        revisions = {user: user_index.revision for user, user_index in user_indexes.items()}
        users = dict.fromkeys(request.scope.user_id for request in batch)
        now = self._clock()
        expiry = self._expiry(now, users)
        embedding = self._begin_vectors(self._texts_of(batch), queries=True)
        if expiry is None and self._store.revisions(users) == revisions and self._is_quick(batch, user_indexes):
            matches = [self._match(request, user_indexes[request.scope.user_id], now) for request in batch]
            vectors = await self._vectors_of(embedding)
            self._take_unrelated(batch, vectors[0])
            before = self.trouble
            answers = self._ranked(batch, user_indexes, matches, vectors, {})
            self._note_recalled(users)
        else:
            vectors, loaded = await asyncio.gather(
                self._vectors_of(embedding), self._store.load(users, revisions, expiry, most=LOADED)
            )
            self._take_unrelated(batch, vectors[0])
            before = self.trouble
            answers = await on_thread(self._answer, batch, loaded, vectors, user_indexes, now)
        if vectors[0] is not None and self.trouble is before:
            self._recover()
        if self._retention is not None and self._retention.refresh:
            for request, answer in zip(batch, answers, strict=True):
                self._uses.note(request.scope.user_id, [item.id for item in (*answer.profile, *answer.items)], now)
        return answers

    # What keeps it whole

    async def catch_up(self, *, limit: int = BATCH) -> int:
        """Make the vectors of items that have none, and delete those of up to `limit` deleted items.

        Call it until it returns 0: when the memory is opened, after `remember` or `forget`, and after a failure. In a
        session manager, the memory's actor does so in the background.

        Returns how many items still lack vectors, counted up to `limit`, plus how many vectors are still to be
        deleted. While the embedding function is not ready, no item counts as lacking vectors.

        Args:
            limit: about how many vectors one call makes.

        Raises:
            StoreError: the embedding function or Chroma still fails; nothing is lost.
        """
        await self.flush()
        is_ready = self._index.is_ready
        pending = await self._store.pending(self._index.embedding, limit) if is_ready else []
        if pending := [item for item in pending if item.key not in self._unwritten]:
            await self._make(pending, limit)
        for _ in range(0, limit, NOTED):
            if not await self._delete_dropped():
                break
        self._recover()
        remaining = len(await self._store.pending(self._index.embedding, limit)) if is_ready else 0
        if not remaining:
            self._without_vectors = 0
        return remaining + len(await self._store.dropped(limit))

    async def rebuild(self) -> int:
        """Compute the vectors of all items again, into a new collection; return the number of items.

        Afterwards Chroma's files contain nothing of the old collection, deleted vectors included. Needed when the
        dimension of the embedding function's vectors changes; if its name or config changes, `catch_up` is enough.

        Call it while nothing else uses the memory. Until it returns, recalls may find items by words alone. If it fails
        or the process ends, call it again.

        Raises:
            StoreError: the embedding function is not ready, and no vector was dropped; or it fails, or Chroma does.
        """
        if not self._index.is_ready:
            reason = "is not ready: no vector was dropped, try again later"
            raise StoreError(f"embedding function {self._index.embedding} {reason}")
        await self.flush()
        await asyncio.to_thread(self._index.delete, None)
        await asyncio.to_thread(self._index.scrub)
        await self._store.unmark()
        with self._lock:
            for user in list(self._user_indexes):
                self._release(user)
        while await self.catch_up():
            pass
        return await self._store.count()

    async def check(self) -> Health:
        """Check that the index has the expected vectors.

        `Health.ok` ignores `strays`: vectors of deleted items.
        """
        await self.flush()
        keys, other_keys = await self._store.keys(self._index.embedding)
        return await asyncio.to_thread(self._index.check, keys, other_keys)

    # Erasing

    async def texts(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        """Return texts and topics of the items that `forget` would delete with these arguments."""
        return texts_of(await to_delete(self._store, scope, ids, turn_index))

    async def keys(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        """Return the keys of the vectors of the items that `forget` would delete with these arguments."""
        items = await to_delete(self._store, scope, ids, turn_index)
        keys = [(key_of(scope.user_id, item.id, item.text), item.text) for item in items]
        return list(dict.fromkeys(name for key, text in keys for name in (key, *(n for n, _ in vectors_of(key, text)))))

    async def still_contains(self, texts: Collection[str]) -> set[str]:
        """Return those of these texts that an item of any user still contains, whole or as a part of its text."""
        return await still_contained(self._store, texts)

    async def overwrite(self, keys: Collection[str]) -> None:
        """Overwrite deleted vectors in Chroma's files, and check that no vector of these keys is left.

        Works in small steps; recalls and saves run between them. The cost grows with the number of deleted vectors, and
        with the number that Chroma has not written into its files yet: at most some thousands. On a server, checks only
        that the vectors are deleted; the server decides when its files lose them.

        Raises:
            StoreError: Chroma fails, or a vector is still there. Nothing is lost; call it again.
        """
        await self.flush()
        while await self._delete_dropped():
            pass
        remaining = len(await asyncio.to_thread(self._index.get, list(keys)))
        if self._index.paths():
            for _ in range(0, SYNC_CHANGES, PUSHED):
                await _on_thread_with_rest(self._index.push, PUSHED)
            remaining += await asyncio.to_thread(self._index.overwrite, keys)
        if remaining:
            raise StoreError(f"{remaining} deleted vectors could not be erased; repeat the deletion")

    async def scrub(self, files: Collection[str] | None = None) -> None:
        """Rewrite all files, or only the given ones: O(size of the files). Recalls and saves wait until it is done.

        On a server, deleted data is deleted from the tables; the server decides when its files lose it.

        Raises:
            StoreError: Chroma fails, or another process uses the file. Nothing is lost; call it again.
        """
        of_text = {str(path) for path in self._store.paths()}
        if files is None or not of_text.isdisjoint(files):
            await self._store.scrub()
        if files is None or not of_text.issuperset(files):
            await self.overwrite([])
            await asyncio.to_thread(self._index.scrub)

    def paths(self) -> Sequence[Path]:
        """Return all files and folders with items or vectors; none if a server has the vectors."""
        folders = self._index.paths()
        return [] if folders is None else [*self._store.paths(), *folders]

    # Vectors

    def _begin_vectors(self, texts: Sequence[str], *, queries: bool = False) -> _Making | None:
        """Begin to compute the vectors of texts or queries on a thread; None if there can be none now."""
        if not texts or self._is_paused() or not self._index.is_ready:
            return None
        embed, limit_s = (self._index.embed_queries, self._query_s) if queries else (self._index.embed, self._embed_s)
        given_up = threading.Event()
        return self._embedders.submit(_embedded, embed, texts, given_up.is_set), limit_s, given_up

    async def _vectors_of(self, making: _Making | None) -> _Vectors:
        """Return the vectors that `_begin_vectors` began to compute, or None and the reason.

        Raises:
            ConfigError: they have another dimension than the stored vectors.
        """
        if making is None:
            return None, self.trouble
        try:
            vectors = await _embedding_result(*making)
        except StoreError as error:
            self._pause(error)
            return None, str(error)
        self._index.check_dimensions(vectors)
        return vectors, None

    async def _vectors_of_texts(self, texts: Sequence[str]) -> Mapping[str, _Rows] | None:
        """Return the vectors of each text's passages; None if there can be none now.

        Raises:
            ConfigError: they have another dimension than the stored vectors.
        """
        parts = {text: [part for _, part in vectors_of("", text)] for text in texts}
        vectors, _ = await self._vectors_of(
            self._begin_vectors([part for texts_of_one in parts.values() for part in texts_of_one])
        )
        return None if vectors is None else _by_text(parts, vectors)

    async def _hold_vectors(self, pending: Sequence[Pending], vectors: Mapping[str, _Rows]) -> None:
        """Hold the vectors of new items, by text, until they are written to Chroma."""
        for item in pending:
            self._unwritten[item.key] = item, _keyed(item, vectors[item.text])
        if not self._keep_s or sum(len(vectors_of_item) for _, vectors_of_item in self._unwritten.values()) > HELD:
            await self.flush()
        elif self._unwritten and (self._flush_task is None or self._flush_task.done()):
            self._flush_task = asyncio.create_task(self._flush_later())
            watch(self._flush_task, f"keeping vectors of {self._store!r}")

    async def _flush_later(self) -> None:
        await asyncio.sleep(self._keep_s)
        await self.flush()

    async def flush(self) -> None:
        """Write the vectors of new items to Chroma now. If that fails, `catch_up` computes them again."""
        async with self._flush_lock:
            batch = dict(self._unwritten)
            if not batch:
                return
            try:
                await self._add(list(batch.values()))
                if not self._deletion_lock.locked():
                    await self._delete_dropped(DELETED)
                self._recover()
            except (StoreError, ConfigError) as error:
                self._pause(error)
            finally:
                for key, fresh in batch.items():
                    if self._unwritten.get(key) is fresh:
                        del self._unwritten[key]

    async def _make(self, pending: Sequence[Pending], limit: int) -> None:
        """Compute about `limit` vectors of the first of these items, and log the progress."""
        if not self._without_vectors:
            self._without_vectors, self._made_count = await self._store.lacking(self._index.embedding), 0
        parts: dict[str, list[str]] = {}
        for item in pending:
            if sum(map(len, parts.values())) < limit:
                parts[item.text] = [part for _, part in vectors_of("", item.text)]
        texts = [part for item_parts in parts.values() for part in item_parts]
        batches = [
            await _embedding_result(
                self._embedders.submit(self._index.embed, texts[start : start + BATCH]), self._embed_s
            )
            for start in range(0, len(texts), BATCH)
        ]
        by_text = _by_text(parts, [vector for vectors in batches for vector in vectors])
        done = [item for item in pending if item.text in parts]
        await self._add([(item, _keyed(item, by_text[item.text])) for item in done])
        before, self._made_count = self._made_count, self._made_count + len(done)
        if (
            self._without_vectors > limit
            and 10 * before // self._without_vectors < 10 * self._made_count // self._without_vectors
        ):
            _log.info("%r: %d of %d items have their vectors", self._store, self._made_count, self._without_vectors)

    async def _add(self, items: Sequence[_ItemVectors]) -> None:
        """Write the vectors of items to Chroma."""
        import numpy as np

        all_of = [(item, key, vector) for item, vectors in items for key, vector in vectors.items()]
        await asyncio.to_thread(
            self._index.add,
            [key for _, key, _ in all_of],
            [item.user_id for item, _, _ in all_of],
            np.array([vector for _, _, vector in all_of]),
            items=[item.key for item, _, _ in all_of],
        )
        await self._store.mark([item for item, _ in items], self._index.embedding)

    async def _remove(self, deleted: Mapping[str, Collection[str]]) -> None:
        """Remove deleted items, by user, from the indexes in memory, and delete their vectors."""
        if not deleted:
            return
        try:
            await self._refresh(deleted)
        except StoreError:
            with self._lock:
                for user in deleted:
                    self._release(user)
        await self.flush()  # else it would give Chroma what is deleted here
        try:
            for _ in range(0, sum(map(len, deleted.values())), NOTED):
                if not await self._delete_dropped():
                    break
        except StoreError as error:
            self._pause(error)

    async def _delete_dropped(self, limit: int = NOTED) -> int:
        """Delete some vectors of deleted items from Chroma; return how many, 0 if there are none."""
        async with self._deletion_lock:
            if keys := await self._store.dropped(limit):
                for start in range(0, len(keys), DELETED):
                    await _on_thread_with_rest(self._index.delete, keys[start : start + DELETED])
                await self._store.undrop(keys)
            return len(keys)

    def _is_paused(self) -> bool:
        return self.trouble is not None and time.monotonic() < self._again_at

    def _pause(self, error: StoreError | ConfigError) -> None:
        self.trouble, self._again_at = str(error), time.monotonic() + self._pause_s

    def _recover(self) -> None:
        self.trouble = None

    # Ranking

    def _texts_of(self, batch: Sequence[Recall]) -> list[str]:
        """Return the texts whose vectors the requests need: those of each request in turn, then unrelated ones."""
        texts = [text for request in batch for text in _texts(request)]
        is_first = self._unrelated is None and any(request.is_reminder for request in batch)
        return [*texts, *UNRELATED] if texts and is_first else texts

    def _take_unrelated(self, batch: Sequence[Recall], vectors: NDArray[np.float32] | None) -> None:
        """Keep the vectors of the unrelated texts, if they were computed with those of the batch."""
        count = sum(len(_texts(request)) for request in batch)
        if vectors is not None and len(vectors) > count:
            self._unrelated = vectors[count:]

    def _expiry(self, now: float, users: Collection[str]) -> Expiry | None:
        if self._retention is None:
            return None
        since = self._retention.since(now)
        used = {user: self._uses.noted(user, since) for user in users}
        return Expiry(since, sorted(self._retention.expiring(None)), used)

    def _is_quick(self, batch: Sequence[Recall], user_indexes: Mapping[str, UserIndex]) -> bool:
        """Return whether a batch takes only milliseconds: the users have few items, and no vectors must be read."""
        sizes = [len(user_indexes[request.scope.user_id].rows) for request in batch]
        if max(sizes) > QUICK_EACH or sum(sizes) + ASKED * len(sizes) > QUICK:
            return False
        if sum(len(request.query) for request in batch) > QUICK_CHARS:
            return False
        return not self._index.is_ready or not any(user_index.missing() for user_index in user_indexes.values())

    def _note_recalled(self, users: Iterable[str]) -> None:
        """Mark these users' indexes as the most recently used."""
        with self._lock:
            for user in users:
                if (user_index := self._user_indexes.pop(user, None)) is not None:
                    self._user_indexes[user] = user_index

    def _answer(
        self,
        batch: Sequence[Recall],
        loaded: Mapping[str, Loaded],
        vectors: _Vectors,
        held: dict[str, UserIndex],
        now: float,
    ) -> list[Reminder]:
        user_indexes, troubles = self._updated_indexes(loaded, held)
        users = [request.scope.user_id for request in batch]
        matches = [
            self._match(request, user_indexes[user], now, loaded[user].expired)
            for request, user in zip(batch, users, strict=True)
        ]
        return self._ranked(batch, user_indexes, matches, vectors, troubles)

    def _match(self, request: Recall, user_index: UserIndex, now: float, expired: Sequence[int] = ()) -> _Match:
        """Return the profile, if it is requested, and the matches of items with the query by words."""
        which = ItemFilter(
            types=request.types, as_of=request.as_of, live_at=now if request.as_of is None else request.as_of
        )
        profile: list[MemoryItem] = []
        if request.is_reminder:
            pinned, wishes = (part(request.scope, which, expired) for part in (user_index.pinned, user_index.wishes))
            profile = with_wishes(profile_of(pinned, ()), wishes)
        return profile, user_index.match(
            parse(request.query), request.scope, which, weights=self._weights, expired=expired
        )

    def _ranked(
        self,
        batch: Sequence[Recall],
        user_indexes: Mapping[str, UserIndex],
        matches: Sequence[_Match],
        query_vectors: _Vectors,
        troubles: Mapping[str, str],
    ) -> list[Reminder]:
        """Return the answers, given the vectors of `_texts_of`."""
        vectors, trouble = query_vectors
        answers: list[Reminder] = []
        for request, (profile, match) in zip(batch, matches, strict=True):
            check_awaited()
            user_index, rows = user_indexes[request.scope.user_id], None
            if vectors is not None:
                count = len(_texts(request))
                rows, vectors = vectors[:count], vectors[count:]
            most, per_category = max(request.limit, 0) + len(profile), request.per_category
            if request.is_reminder:
                near = spread_out(user_index.near(rows, self._unrelated), match.query)
                ranked = user_index.remind(match, limit=most, near=near, per_category=per_category)
            else:
                ranked = user_index.rank(match, limit=most, near=user_index.near(rows), per_category=per_category)
            best = within_limits(profile, ranked, request.limit, per_category=request.per_category)
            items = recalled(best, trouble or troubles.get(request.scope.user_id))
            answers.append(Reminder(profile=profile, items=items))
        return answers

    def _updated_indexes(
        self, loaded: Mapping[str, Loaded], held_indexes: dict[str, UserIndex]
    ) -> tuple[dict[str, UserIndex], dict[str, str]]:
        """Return the users' indexes as of the loaded revisions, with all available vectors.

        Also returns why vectors are missing, by user.
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
        users, trouble = self._give_vectors(complete) if self._index.is_ready else ([], None)
        for user, user_index in user_indexes.items():
            self._hold(user, user_index, is_incomplete=user in troubles)
        return user_indexes, troubles | ({} if trouble is None else dict.fromkeys(users, trouble))

    def _give_vectors(
        self, user_indexes: Mapping[str, UserIndex], requested_keys: Collection[str] | None = None
    ) -> tuple[list[str], str | None]:
        """Give indexes the vectors that they lack; return the users whose vectors were read from Chroma, and its error.

        Args:
            requested_keys: the keys of the vectors to give; all that are missing if left out.
        """
        missing_keys: dict[str, set[str]] = {}
        for user, user_index in user_indexes.items():
            if missing := user_index.missing() if requested_keys is None else list(requested_keys):
                user_index.take(self._held_vectors(missing))
                missing = user_index.missing() if requested_keys is None else missing
                if missing:
                    missing_keys[user] = set(missing)
        if not missing_keys or self._is_paused():
            return [*missing_keys], self.trouble if self._is_paused() else None
        try:
            vectors = self._index.get([key for keys in missing_keys.values() for key in keys])
        except StoreError as error:
            self._pause(error)
            return [*missing_keys], str(error)
        for user, keys in missing_keys.items():
            user_indexes[user].take({key: vectors[key] for key in keys if key in vectors})
        return [*missing_keys], None

    async def _refresh(self, users: Collection[str]) -> None:
        """Bring the indexes of these users in memory up to date, so that their next recall need not do it."""
        with self._lock:
            user_indexes = {user: self._user_indexes[user] for user in users if user in self._user_indexes}
        if user_indexes:
            revisions = {user: user_index.revision for user, user_index in user_indexes.items()}
            loaded = await self._store.load(user_indexes, revisions, most=LOADED)
            await on_thread(self._updated_indexes, loaded, user_indexes)

    def _held_vectors(self, keys: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return those of these vectors that are not written to Chroma yet."""
        waiting = {key: fresh for key in keys if (fresh := self._unwritten.get(item_key(key)))}
        return {key: vector for key, (_, vectors) in waiting.items() if (vector := vectors.get(key)) is not None}

    def _release(self, user: str) -> None:
        self._incomplete.discard(user)
        if self._user_indexes.pop(user, None) is not None:
            self._held_bytes -= self._sizes.pop(user)


def _texts(request: Recall) -> Sequence[str]:
    """Return the texts of a request that are compared by vectors: its query, or the sentences of a prompt."""
    if not request.is_reminder:
        return [request.query] if request.query else []
    query = parse(request.query)
    return [query.texts[part] for part in query.told_apart()]


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


def _embedded(
    embed: Callable[[Sequence[str]], NDArray[np.float32]], texts: Sequence[str], is_given_up: Callable[[], bool]
) -> NDArray[np.float32]:
    """Return the vectors of texts, computed in batches; stop when nobody waits for them."""
    batches = [embed(texts[:BATCH])]
    for start in range(BATCH, len(texts), BATCH):
        if is_given_up():
            raise StoreError("nobody waits for the vectors any more")
        batches.append(embed(texts[start : start + BATCH]))
    if len(batches) == 1:
        return batches[0]
    import numpy as np

    return np.concatenate(batches)


async def _embedding_result(
    work: Future[NDArray[np.float32]], limit_s: float, given_up: threading.Event | None = None
) -> NDArray[np.float32]:
    """Return the vectors that `work` computes; StoreError if that takes too long. Cancelling ends the work."""
    try:
        if work.done():
            return work.result()
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(work)
    except TimeoutError:
        raise StoreError(f"the embedding function has not answered within {limit_s:g} s") from None
    finally:
        if given_up is not None:
            given_up.set()


def _keyed(item: Pending, vectors: _Rows) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of an item by their keys."""
    return dict(zip(vector_keys(item.key, len(vectors)), vectors, strict=True))


def _by_text(parts: Mapping[str, Sequence[str]], vectors: Iterable[NDArray[np.float32]]) -> dict[str, _Rows]:
    """Return the vectors of each text, one for each of its parts, in order."""
    remaining = iter(vectors)
    return {text: [next(remaining) for _ in texts] for text, texts in parts.items()}


def _url(path: str | Path) -> str:
    """Return the URL of a file of SQLite, if it is not one already."""
    return path if isinstance(path, str) and "://" in path else f"sqlite:///{Path(path).expanduser().absolute()}"


def _place_of(store: SQLItems, place: object) -> ChromaFolder | PostgresVectors:
    """Return the place of the items' vectors: a folder beside their file, or their PostgreSQL database.

    Raises:
        ConfigError: they are in a PostgreSQL whose URL is not known.
    """
    if store.is_local:
        return ChromaFolder(f"{store.paths()[0]}-vectors")
    if not isinstance(place, str):
        raise ConfigError("VectorMemory.index", None, "pass an index, such as VectorIndex(PostgresVectors(url))")
    return PostgresVectors(place)


_INCOMPLETE = "not all items are indexed yet: later recalls find the others"


async def _on_thread_with_rest(work: Callable[[Argument], object], argument: Argument) -> None:
    """Do some work on a thread, then pause so that other work can run."""
    began = time.monotonic()
    await asyncio.to_thread(work, argument)
    await asyncio.sleep(REST * (time.monotonic() - began))
