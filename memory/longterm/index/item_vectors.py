"""`ItemVectors`: computes the vectors of a store's items, and writes them to an index or deletes them there."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from turnwise.errors import ConfigError, StoreError
from turnwise.memory.background import watch
from turnwise.memory.longterm.index.locations import SYNC_CHANGES
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.rows import Pending
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.recall.passages import item_key, vector_keys, vectors_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from turnwise.memory.longterm.recall.user_index import UserIndex

    Making: TypeAlias = tuple[Future[NDArray[np.float32]], float, threading.Event]
    """Vectors that are being computed, the seconds to wait for them, and the event that ends the work."""
    QueryVectors: TypeAlias = tuple[NDArray[np.float32] | None, str | None]
    """Vectors, or None and the reason; no reason if none were to be computed."""
    Rows: TypeAlias = Sequence[NDArray[np.float32]]
    _ItemVectors: TypeAlias = tuple[Pending, Mapping[str, NDArray[np.float32]]]
    """An item with its vectors, by their keys."""

Argument = TypeVar("Argument")

BATCH = 64
"""Maximum texts per call of the embedding function."""

DELETED = 4
"""Maximum items whose vectors are deleted in one step. Chroma serves others between two steps."""

NOTED = 64
"""Maximum items read at once from the list of items whose vectors are to be deleted."""

PUSHED = 50
"""Number of no-op deletions in one step of `overwrite`. Chroma serves others between two steps."""

HELD = 512
"""Maximum vectors that wait in memory for the index. With more, `hold` waits until the index has them."""

QUICK_S, QUICK_CHARS = 0.01, 1_000
"""For how long the event loop embeds queries, and about how many characters of them between two looks at the time."""

REST = 2.0
"""The pause after each step of a deletion, as a multiple of the step's duration."""

_log = logging.getLogger(__name__)


class ItemVectors:
    """The vectors of a store's items, in an index.

    New vectors are used from memory at once, and are written `keep_s` later, many together. Those that a killed process
    had not written are computed again by `catch_up`: the store lists the items that have none, and the deleted items
    whose vectors are still there. After a failure no vectors are used for `pause_s`. For one event loop.

    Args:
        store: the items.
        index: their vectors. It is closed with this.
        pause_s, embed_s, query_s, keep_s: see `VectorMemory`.
    """

    def __init__(
        self, store: SQLItems, index: VectorIndex, *, pause_s: float, embed_s: float, query_s: float, keep_s: float
    ) -> None:
        self._store = store
        self._index = index
        self.trouble: str | None = None
        """Why no vectors are used for `pause_s`, or were not used until they work again; None if they work."""
        self._has_taken = False
        """Whether the store knows that the vectors are made by this embedding."""
        self._rival = ""
        """The embedding by which another process makes them since then; empty if none does."""
        self._pause_s = pause_s
        self._again_at = 0.0
        self._embed_s = embed_s
        self._query_s = query_s
        self._keep_s = keep_s
        self._embedders = ThreadPoolExecutor(2, "turnwise-embedding")
        """Threads of their own, so that a call that hangs blocks no other work."""
        self._deletion_lock = asyncio.Lock()
        self._unwritten: dict[str, _ItemVectors] = {}
        """The items whose vectors are to be written to the index, by their keys."""
        self._flush_lock = asyncio.Lock()
        """Held while vectors are written to the index."""
        self._flush_task: asyncio.Task[None] | None = None
        self._without_vectors = 0
        """How many items had no vectors when `catch_up` began to compute them; 0 if all have vectors."""
        self._computed_count = 0
        """For how many of these items `catch_up` has computed them."""

    @property
    def is_ready(self) -> bool:
        """See `VectorIndex.is_ready`."""
        return self._index.is_ready

    def recover(self) -> None:
        """Record that vectors work."""
        if not self._rival:
            self.trouble = None

    async def close(self) -> None:
        """Close the index. Call `flush` before: what is held is lost, and `catch_up` computes it again."""
        if self._flush_task:
            self._flush_task.cancel()
        self._embedders.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._index.close)

    # Computing

    def at_once(self, queries: Sequence[str]) -> QueryVectors | None:
        """Return the vectors of queries if the embedding function is quick; None if it is not, or if they take long.

        For an event loop: a thread takes several times as long to begin and to be waited for.

        Raises:
            ConfigError: they have another dimension than the stored vectors.
        """
        if not queries or not self._index.is_quick or self._is_paused() or not self._index.is_ready:
            return None
        try:
            vectors = _embedded_quickly(self._index.embed_queries, queries)
        except StoreError as error:
            self._pause(error)
            return None, str(error)
        if vectors is None:
            return None
        self._index.check_dimensions(vectors)
        return vectors, None

    def begin(self, texts: Sequence[str], *, queries: bool = False) -> Making | None:
        """Begin to compute the vectors of texts or queries on a thread; None if there can be none now."""
        if not texts or self._is_paused() or not self._index.is_ready:
            return None
        embed, limit_s = (self._index.embed_queries, self._query_s) if queries else (self._index.embed, self._embed_s)
        given_up = threading.Event()
        return self._embedders.submit(_embedded, embed, texts, given_up.is_set), limit_s, given_up

    async def result_of(self, making: Making | None) -> QueryVectors:
        """Return the vectors that `begin` began to compute, or None and the reason.

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

    async def of_texts(self, texts: Sequence[str]) -> Mapping[str, Rows] | None:
        """Return the vectors of each text's passages; None if there can be none now.

        Raises:
            ConfigError: they have another dimension than the stored vectors.
        """
        parts = {text: [part for _, part in vectors_of("", text)] for text in texts}
        texts_of_parts = [part for text_parts in parts.values() for part in text_parts]
        vectors, _ = await self.result_of(self.begin(texts_of_parts))
        return None if vectors is None else _by_text(parts, vectors)

    # Reading

    def give(
        self, user_indexes: Mapping[str, UserIndex], requested_keys: Collection[str] | None = None
    ) -> tuple[list[str], str | None]:
        """Give users' indexes the vectors that they lack. Blocks.

        Returns the users some of whose vectors are not in memory, and why they could not be read; None if they were.

        Args:
            requested_keys: the keys of the vectors to give; all that are missing if left out.
        """
        if not self._index.is_ready:
            return [], None
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

    def _held_vectors(self, keys: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return those of these vectors that are not written yet."""
        waiting = {key: fresh for key in keys if (fresh := self._unwritten.get(item_key(key)))}
        return {key: vector for key, (_, vectors) in waiting.items() if (vector := vectors.get(key)) is not None}

    # Writing

    async def hold(self, pending: Sequence[Pending], vectors: Mapping[str, Rows]) -> None:
        """Hold the vectors of new items, by text, until they are written to the index."""
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
        """Write the vectors of new items to the index now. If that fails, `catch_up` computes them again."""
        async with self._flush_lock:
            batch = dict(self._unwritten)
            if not batch:
                return
            try:
                await self._add(list(batch.values()))
                if not self._deletion_lock.locked():
                    await self._delete_dropped(DELETED)
                self.recover()
            except (StoreError, ConfigError) as error:
                self._pause(error)
            finally:
                for key, fresh in batch.items():
                    if self._unwritten.get(key) is fresh:
                        del self._unwritten[key]

    async def catch_up(self, limit: int) -> int:
        """See `VectorMemory.catch_up`."""
        await self.flush()
        is_ready = self._index.is_ready and await self._is_ours()
        pending = await self._store.pending(self._index.embedding, limit) if is_ready else []
        if pending := [item for item in pending if item.key not in self._unwritten]:
            await self._compute(pending, limit)
        for _ in range(0, limit, NOTED):
            if not await self._delete_dropped():
                break
        self.recover()
        remaining = len(await self._store.pending(self._index.embedding, limit)) if is_ready else 0
        if not remaining:
            self._without_vectors = 0
        return remaining + len(await self._store.dropped(limit))

    async def _is_ours(self) -> bool:
        """Return whether the vectors are made by this embedding: by that of the process that has begun last.

        Two that both made them would each make all of them anew, after each item that the other one saves.
        """
        own = self._index.embedding
        if not self._has_taken:
            before = await self._store.take_embedding(own)
            self._has_taken = True
            if before not in ("", own):
                remedy = "programs that still make them so find items by words alone: give all the same embedding"
                changed = "%r: vectors were made by %s, and are made anew by %s; %s"
                _log.warning(changed, self._store, before, own, remedy)
        elif not self._rival and (other := await self._store.embedding()) not in ("", own):
            self._rival = other
            remedy = "give all the same embedding, or this one a space of its own; until then it uses words alone"
            self.trouble = f"another program makes this memory's vectors by {other}, and this one by {own}: {remedy}"
            _log.warning("%r: %s", self._store, self.trouble)
        return not self._rival

    async def _compute(self, pending: Sequence[Pending], limit: int) -> None:
        """Compute about `limit` vectors of the first of these items, and log the progress."""
        if not self._without_vectors:
            self._without_vectors, self._computed_count = await self._store.lacking(self._index.embedding), 0
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
        before, self._computed_count = self._computed_count, self._computed_count + len(done)
        if (
            self._without_vectors > limit
            and 10 * before // self._without_vectors < 10 * self._computed_count // self._without_vectors
        ):
            _log.info("%r: %d of %d items have their vectors", self._store, self._computed_count, self._without_vectors)

    async def _add(self, items: Sequence[_ItemVectors]) -> None:
        """Write the vectors of items to the index."""
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

    # Deleting

    async def delete(self, count: int) -> None:
        """Delete the vectors of about so many deleted items. A failure is kept as `trouble`; `catch_up` goes on."""
        await self.flush()  # else it would give the index what is deleted here
        try:
            for _ in range(0, count, NOTED):
                if not await self._delete_dropped():
                    break
        except StoreError as error:
            self._pause(error)

    async def delete_all(self) -> None:
        """Delete all vectors, also from the index's files, so that `catch_up` computes them again.

        Raises:
            StoreError: the embedding function is not ready, and no vector was deleted; or the index fails.
        """
        if not self._index.is_ready:
            reason = "is not ready: no vector was deleted, try again later"
            raise StoreError(f"embedding function {self._index.embedding} {reason}")
        self._has_taken, self._rival = False, ""
        await self.flush()
        await asyncio.to_thread(self._index.delete, None)
        await asyncio.to_thread(self._index.scrub)
        await self._store.unmark()

    async def overwrite(self, keys: Collection[str]) -> None:
        """See `VectorMemory.overwrite`."""
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

    async def scrub(self) -> None:
        """Delete what is to be deleted, and rewrite the index's files."""
        await self.overwrite([])
        await asyncio.to_thread(self._index.scrub)

    async def _delete_dropped(self, limit: int = NOTED) -> int:
        """Delete the vectors of some deleted items; return of how many, 0 if there are none."""
        async with self._deletion_lock:
            if keys := await self._store.dropped(limit):
                for start in range(0, len(keys), DELETED):
                    await _on_thread_with_rest(self._index.delete, keys[start : start + DELETED])
                await self._store.undrop(keys)
            return len(keys)

    def _is_paused(self) -> bool:
        return bool(self._rival) or (self.trouble is not None and time.monotonic() < self._again_at)

    def _pause(self, error: StoreError | ConfigError) -> None:
        if self._rival:
            return
        self.trouble, self._again_at = str(error), time.monotonic() + self._pause_s


def _embedded_quickly(
    embed: Callable[[Sequence[str]], NDArray[np.float32]], texts: Sequence[str]
) -> NDArray[np.float32] | None:
    """Return the vectors of texts; None if a text is long, or once `QUICK_S` are over."""
    if max(map(len, texts)) > QUICK_CHARS:
        return None
    if sum(map(len, texts)) <= QUICK_CHARS:
        return embed(texts)
    import numpy as np

    batches, start, until = [], 0, time.monotonic() + QUICK_S
    while start < len(texts):
        if time.monotonic() > until:
            return None
        stop, chars = start + 1, len(texts[start])
        while stop < len(texts) and chars < QUICK_CHARS:
            chars += len(texts[stop])
            stop += 1
        batches.append(embed(texts[start:stop]))
        start = stop
    return np.concatenate(batches)


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


def _keyed(item: Pending, vectors: Rows) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of an item by their keys."""
    return dict(zip(vector_keys(item.key, len(vectors)), vectors, strict=True))


def _by_text(parts: Mapping[str, Sequence[str]], vectors: Iterable[NDArray[np.float32]]) -> dict[str, Rows]:
    """Return the vectors of each text, one for each of its parts, in order."""
    remaining = iter(vectors)
    return {text: [next(remaining) for _ in texts] for text, texts in parts.items()}


async def _on_thread_with_rest(work: Callable[[Argument], object], argument: Argument) -> None:
    """Do some work on a thread, then pause so that other work can run."""
    began = time.monotonic()
    await asyncio.to_thread(work, argument)
    await asyncio.sleep(REST * (time.monotonic() - began))
