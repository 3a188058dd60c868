"""`VectorMemory`: a long-term memory that ranks items by words, neighbouring items and vectors together."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from turnwise.errors import ConfigError, StoreError
from turnwise.memory.background import check_awaited, on_thread
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
from turnwise.memory.longterm.index.item_vectors import BATCH, ItemVectors
from turnwise.memory.longterm.index.locations import ChromaFolder, PostgresVectors
from turnwise.memory.longterm.index.vector_index import EmbeddingFunction, VectorIndex, no_vectors
from turnwise.memory.longterm.items.base import ItemFilter, delete_sessions
from turnwise.memory.longterm.items.changes import pin, update
from turnwise.memory.longterm.items.mentions import mentions_in
from turnwise.memory.longterm.items.rows import Loaded, Pending, key_of
from turnwise.memory.longterm.items.rules import trouble_of_past
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.items.texts import still_contained, to_delete
from turnwise.memory.longterm.lexical import profile_of, with_wishes, within_limits
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.passages import vectors_of
from turnwise.memory.longterm.recall.prominence import UNRELATED, spread_out
from turnwise.memory.longterm.recall.query import parse, vector_texts
from turnwise.memory.longterm.recall.ranking import Weights
from turnwise.memory.longterm.recall.user_indexes import LOADED, UserIndexes
from turnwise.memory.longterm.retention.deletion import texts_of
from turnwise.memory.longterm.retention.retention import Expiry, Retention, Uses
from turnwise.memory.stores.base import Page
from turnwise.memory.values.ranges import check_seconds, check_whole_number
from turnwise.memory.values.required_arguments import needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from turnwise.memory.longterm.index.item_vectors import QueryVectors
    from turnwise.memory.longterm.index.vector_index import Health
    from turnwise.memory.longterm.recall.user_index import Match, UserIndex

SPACE = "vectors"
"""The space of the items of a memory that is opened by a path or a URL; see `ItemStore`."""

QUICK = 26_000
"""Maximum passages for answering a batch on the event loop: those of the queries' users, and `ASKED` per query."""

QUICK_EACH = 2_000
"""Maximum passages per user for answering on the event loop."""

QUICK_CHARS = 8_000
"""Maximum characters of the queries of a batch that is answered on the event loop."""

ASKED = 200
"""Number of passages that a query counts as; see `QUICK`."""

TOGETHER = 6_400
"""About how many passages are ranked at once: their numbers stay in the processor's cache."""

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
        self._times = {"pause_s": pause_s, "embed_s": embed_s, "query_s": query_s, "keep_s": keep_s}
        for setting, value in self._times.items():
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
        self._vectors = ItemVectors(self._store, index, **self._times)
        self._indexes = UserIndexes(self._store, self._vectors.give, cache_bytes)
        self._retention = retention
        self._clock = clock
        self._uses = Uses(self._store.touch)
        self._unrelated: NDArray[np.float32] | None = None
        """The vectors of `UNRELATED`, once they were needed."""

    def __reduce__(self) -> tuple[Any, ...]:
        settings: dict[str, Any] = {
            "weights": self._weights,
            "cache_bytes": self._cache_bytes,
            **self._times,
            "retention": self._retention,
            "clock": self._clock,
        }
        return partial(type(self), **settings), (self._store, self._index), self.label

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
        request = Recall(scope=scope, query=query, limit=limit, types=types, as_of=as_of, per_category=per_category)
        return (await self._answer(request)).items

    async def remind(
        self,
        scope: Scope,
        prompt: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
        per_category: bool = False,
    ) -> Reminder:
        """See `Reminding`. The profile has pinned items and standing wishes. Reads the file once for both parts."""
        more = {"is_reminder": True, "per_category": per_category}
        return await self._answer(Recall(scope=scope, query=prompt, limit=limit, types=types, as_of=as_of, **more))

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
        vectors = await self._vectors.of_texts([] if text is None else [text])
        item = await update(self._store, scope, id, text, at=self._clock(), type=type, **changes)
        if item is not None and vectors is not None and item.text in vectors:
            await self._vectors.hold([Pending(user_id=scope.user_id, id=id, text=item.text)], vectors)
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
        await self._unindex({scope.user_id: deleted[:BATCH]})
        return len(deleted)

    async def forget_sessions(self, sessions: Mapping[str, Collection[str]]) -> None:
        """See `SessionsForgetting`, and `forget`."""
        deleted = await delete_sessions(self._store, sessions)
        await self._unindex({user_id: ids[:BATCH] for user_id, ids in deleted.items()})

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
            await self._unindex(deleted)
            swept += sum(map(len, deleted.values()))
        return swept

    async def close(self) -> None:
        await self._vectors.flush()
        self._indexes.release()
        await self._uses.close()
        await self._store.close()
        await self._vectors.close()

    async def load_ahead(self) -> None:
        """See `LoadsAhead`: Chroma, if it has a folder, and Chroma's default embedding, if it was downloaded."""
        await asyncio.to_thread(self._index.load_ahead)

    async def prepare(self, scope: Scope) -> None:
        """Bring the user's index up to date in steps, as far as there is time. Other work runs between the steps.

        A later recall in a batch then takes little time. If the call is cancelled, the next one continues.

        Raises:
            StoreError: the items cannot be read.
        """
        await self._indexes.prepare(scope.user_id)

    # Many at once

    async def remember_many(self, batch: Sequence[tuple[Scope, Sequence[MemoryItem]]]) -> list[Collection[str]]:
        """Do each `remember` of the batch: one transaction, one call of the embedding function."""
        vectors = await self._vectors.of_texts([item.text for _, items in batch for item in items])
        now = self._clock()
        fresh = await self._store.add(batch, at=now, with_vectors=True)
        if self._retention is not None:
            for scope, items in batch:
                self._uses.note(scope.user_id, [item.id for item in items], now)
        if vectors is not None:
            await self._vectors.hold(fresh, vectors)
        await self._indexes.refresh({scope.user_id for scope, _ in batch})
        return [{item.id for item in items} for _, items in batch]

    async def recall_many(self, batch: Sequence[Recall]) -> list[Sequence[MemoryItem]]:
        """Answer each request of the batch with one call of the embedding function and one read of the file."""
        return [answer.items for answer in await self.answer_many(batch)]

    async def answer_many(self, batch: Sequence[Recall]) -> list[Reminder]:
        """Answer each request of the batch as `recall_many` does, with the profile if it is requested."""
        if not batch:
            return []
        users = dict.fromkeys(request.scope.user_id for request in batch)
        return await self._answer_of(batch, self._indexes.current(users))

    async def _answer(self, request: Recall) -> Reminder:
        user = request.scope.user_id
        if (user_indexes := self._indexes.current([user])) is None:
            await self.prepare(request.scope)
            user_indexes = self._indexes.current([user])
        return (await self._answer_of([request], user_indexes))[0]

    async def _answer_of(self, batch: Sequence[Recall], current: Mapping[str, UserIndex] | None) -> list[Reminder]:
        """Answer each request of the batch.

        Args:
            current: the users' indexes, if all are up to date.
        """
        users = dict.fromkeys(request.scope.user_id for request in batch)
        now = self._clock()
        expiry = self._expiry(now, users)
        texts = self._texts_of(batch)
        vectors = self._vectors.at_once(texts)
        making = None if vectors is not None else self._vectors.begin(texts, queries=True)
        if current is not None and expiry is None and self._is_quick(batch, current):
            vectors = vectors or await self._vectors.result_of(making)
            self._take_unrelated(batch, vectors[0])
            before = self.trouble
            answers = self._answers(batch, current, vectors, now)
            self._indexes.note_used(users)
        else:
            user_indexes = self._indexes.of(users)
            revisions = {user: user_index.revision for user, user_index in user_indexes.items()}
            new_vectors, loaded = await asyncio.gather(
                self._vectors.result_of(making), self._store.load(users, revisions, expiry, most=LOADED)
            )
            vectors = vectors or new_vectors
            self._take_unrelated(batch, vectors[0])
            before = self.trouble
            answers = await on_thread(self._answer_loaded, batch, loaded, vectors, user_indexes, now)
        if vectors[0] is not None and self.trouble is before:
            self._vectors.recover()
        if self._retention is not None and self._retention.refresh:
            of_now = (pair for pair in zip(batch, answers, strict=True) if pair[0].as_of is None)
            for request, answer in of_now:
                self._uses.note(request.scope.user_id, [item.id for item in (*answer.profile, *answer.items)], now)
        return answers

    async def _unindex(self, deleted: Mapping[str, Collection[str]]) -> None:
        """Remove deleted items, by user, from the indexes in memory, and delete their vectors."""
        if not deleted:
            return
        try:
            await self._indexes.refresh(deleted)
        except StoreError:
            self._indexes.release(deleted)
        await self._vectors.delete(sum(map(len, deleted.values())))

    # What keeps it whole

    @property
    def trouble(self) -> str | None:
        """See `ItemVectors.trouble`."""
        return self._vectors.trouble

    async def flush(self) -> None:
        """See `ItemVectors.flush`."""
        await self._vectors.flush()

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
        return await self._vectors.catch_up(limit)

    async def rebuild(self) -> int:
        """Compute the vectors of all items again, into a new collection; return the number of items.

        Afterwards Chroma's files contain nothing of the old collection, deleted vectors included. Needed when the
        dimension of the embedding function's vectors changes; if its name or config changes, `catch_up` is enough.

        Call it while nothing else uses the memory. Until it returns, recalls may find items by words alone. If it fails
        or the process ends, call it again.

        Raises:
            StoreError: the embedding function is not ready, and no vector was deleted; or it fails, or Chroma does.
        """
        await self._vectors.delete_all()
        self._indexes.release()
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
        await self._vectors.overwrite(keys)

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
            await self._vectors.scrub()

    def paths(self) -> Sequence[Path]:
        """Return all files and folders with items or vectors; none if a server has the vectors."""
        folders = self._index.paths()
        return [] if folders is None else [*self._store.paths(), *folders]

    # Ranking

    def _texts_of(self, batch: Sequence[Recall]) -> list[str]:
        """Return the texts whose vectors the requests need: those of each request in turn, then unrelated ones."""
        texts = [text for request in batch for text in _texts(request)]
        is_first = self._unrelated is None and any(map(_needs_prominences, batch))
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
        return not self._vectors.is_ready or not any(user_index.missing() for user_index in user_indexes.values())

    def _answer_loaded(
        self,
        batch: Sequence[Recall],
        loaded: Mapping[str, Loaded],
        vectors: QueryVectors,
        held: dict[str, UserIndex],
        now: float,
    ) -> list[Reminder]:
        user_indexes, troubles = self._indexes.updated(loaded, held)
        expired = {user: rows.expired for user, rows in loaded.items()}
        return self._answers(batch, user_indexes, vectors, now, troubles=troubles, expired=expired)

    def _answers(
        self,
        batch: Sequence[Recall],
        user_indexes: Mapping[str, UserIndex],
        query_vectors: QueryVectors,
        now: float,
        *,
        troubles: Mapping[str, str] = MappingProxyType({}),
        expired: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> list[Reminder]:
        """Return the answers, given the vectors of `_texts_of`.

        Args:
            troubles: by user, why items or vectors are missing.
            expired: by user, the numbers of expired rows.
        """
        from turnwise.memory.longterm.recall.user_index import rank_all

        vectors, trouble = query_vectors
        answers: list[Reminder] = []
        start = 0
        for requests in _in_parts(batch, user_indexes):
            check_awaited()
            profiles, matches = [], []
            for request in requests:
                user, rows = request.scope.user_id, None
                if vectors is not None:
                    start, first = start + len(_texts(request)), start
                    rows = vectors[first:start]
                profile, match = self._match(request, user_indexes[user], rows, now, expired.get(user, ()))
                profiles.append(profile)
                matches.append(match)
            of_all = zip(requests, profiles, rank_all(matches, self._weights), strict=True)
            for request, profile, best in of_all:
                scope, as_of, items = request.scope, request.as_of, best
                if profile:
                    items = within_limits(profile, best, request.limit, per_category=request.per_category)
                why_fewer = trouble or troubles.get(scope.user_id)
                if why_fewer is None and as_of is not None:
                    changed = user_indexes[scope.user_id].changed_since(scope, _filter_of(request, now))
                    why_fewer = trouble_of_past(changed)
                answers.append(Reminder(profile=profile, items=recalled(items, why_fewer)))
        return answers

    def _match(
        self,
        request: Recall,
        user_index: UserIndex,
        vectors: NDArray[np.float32] | None,
        now: float,
        expired: Sequence[int],
    ) -> tuple[list[MemoryItem], Match]:
        """Return the profile that a request asks for, and what of its user's items matches it.

        Args:
            vectors: those of the request's `_texts`.
            expired: the numbers of the user's expired rows.
        """
        scope, query, is_reminder, which = request.scope, request.query, request.is_reminder, _filter_of(request, now)
        profile: list[MemoryItem] = []
        if is_reminder:
            pinned, wishes = (part(scope, which, expired) for part in (user_index.pinned, user_index.wishes))
            profile = with_wishes(profile_of(pinned, ()), wishes)
        near = user_index.near(vectors, self._unrelated if _needs_prominences(request) else None)
        match = user_index.match(
            parse(query),
            scope,
            which,
            expired=expired,
            limit=max(request.limit, 0) + len(profile),
            near=spread_out(near, query, is_fact=user_index.arranged.is_fact, is_reminder=is_reminder),
            per_category=request.per_category,
            is_reminder=is_reminder,
        )
        return profile, match


def _filter_of(request: Recall, now: float) -> ItemFilter:
    """Return which items a request is for."""
    as_of = request.as_of
    return ItemFilter(types=request.types, as_of=as_of, live_at=now if as_of is None else as_of)


def _in_parts(batch: Sequence[Recall], user_indexes: Mapping[str, UserIndex]) -> Iterator[Sequence[Recall]]:
    """Cut a batch into parts that are ranked at once: about `TOGETHER` passages each."""
    start = count = 0
    for stop, request in enumerate(batch):
        more = len(user_indexes[request.scope.user_id].rows)
        if count and count + more > TOGETHER:
            yield batch[start:stop]
            start, count = stop, 0
        count += more
    yield batch[start:]


def _texts(request: Recall) -> Sequence[str]:
    """Return the texts of a request that are compared by vectors; see `vector_texts`."""
    return vector_texts(request.query, is_reminder=request.is_reminder).texts if request.query else ()


def _needs_prominences(request: Recall) -> bool:
    """Return whether the sentences of a request are compared with unrelated texts."""
    return request.is_reminder or vector_texts(request.query, is_reminder=False).own > 1


def _url(path: str | Path) -> str:
    """Return the URL of a file of SQLite, if it is not one already."""
    if not isinstance(path, str | Path):
        raise ConfigError("VectorMemory.path", path, "pass the path of a SQLite file, or the URL of a store")
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
