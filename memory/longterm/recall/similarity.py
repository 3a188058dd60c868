"""`Similarity`: vector similarity of short texts and a query, with a cache of vectors."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from turnwise.errors import StoreError
from turnwise.memory.longterm.recall.embedding_function import portable
from turnwise.memory.longterm.recall.prominence import UNRELATED, Similarities, common_of, level_of, prominences_of
from turnwise.memory.longterm.recall.query import vector_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


BATCH = 64
"""The most texts of one call of the embedding function."""

MOST_CHARS = 8_000
"""How many characters of a text are embedded."""


class Similarity:
    """Vectors of short texts, made when they are first needed. Thread-safe. A pickle has the settings only.

    Args:
        embedding: a Chroma embedding function.
        held: how many vectors are cached, the most recently used.
        limit_s: how long the embedding function may take for one query, in seconds. What it has made until then, and
            the call that is under way, is cached; the next query goes on from there.
    """

    def __init__(self, embedding: Any, *, held: int = 20_000, limit_s: float = 1.0) -> None:
        self._embedding = embedding
        self._cache_size = held
        self._limit_s = limit_s
        self._threads = ThreadPoolExecutor(2, "turnwise-similarity")
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {"embedding": portable(self._embedding), "held": self._cache_size, "limit_s": self._limit_s}
        return functools.partial(_similarity, **settings), ()

    def near(self, query: str, texts: Sequence[str], *, is_reminder: bool = False) -> Similarities | None:
        """Return how similar the texts are to the `vector_texts` of a query; None without texts or words.

        Makes the vectors that it does not have, `BATCH` at once. Blocks for `limit_s` at most. If the dimension of the
        function's vectors changed, cached ones are made anew.

        Raises:
            StoreError: the embedding function failed, took too long, or its vectors differ in dimension.
        """
        queries, own, _ = vector_texts(query, is_reminder=is_reminder)
        if not texts or not queries:
            return None
        given_up = threading.Event()
        texts = [text[:MOST_CHARS] for text in texts]
        needs_prominences = is_reminder or own > 1
        work = self._threads.submit(self._near, queries, texts, given_up.is_set, needs_prominences)
        try:
            return work.result(self._limit_s)
        except TimeoutError as error:
            work.cancel()
            given_up.set()
            raise StoreError(f"the embedding function has not answered within {self._limit_s:g} s") from error

    def close(self) -> None:
        """Start no further calls; do not wait for running ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _near(
        self, queries: Sequence[str], texts: Sequence[str], is_given_up: Callable[[], bool], needs_prominences: bool
    ) -> Similarities:
        import numpy as np

        texts = [*texts, *UNRELATED] if needs_prominences else texts
        with self._lock:
            vectors = {text: self._vectors[text] for text in texts if text in self._vectors}
        missing = [text for text in dict.fromkeys(texts) if text not in vectors]
        try:
            embed_queries = getattr(self._embedding, "embed_query", self._embedding)
            query_vectors = np.stack([_unit(vector) for vector in embed_queries(queries)])
            if any(vector.shape != query_vectors.shape[1:] for vector in vectors.values()):
                vectors, missing = {}, [*dict.fromkeys(texts)]
            for start in range(0, len(missing), BATCH):
                if is_given_up():
                    raise TimeoutError("nobody waits for it any more")
                batch = missing[start : start + BATCH]
                new_vectors = dict(zip(batch, map(_unit, self._embedding(batch)), strict=True))
                self._cache_vectors(new_vectors)
                vectors |= new_vectors
            rows = np.stack([vectors[text] for text in texts])
            similarities = (query_vectors @ rows.T).astype(np.float64)
            common = common_of(rows[: len(texts) - len(UNRELATED)] if needs_prominences else rows)
        except Exception as error:
            raise StoreError(f"the embedding function failed: {error!r}"[:_WHY_CHARS]) from error
        self._cache_vectors(vectors)
        if not needs_prominences:
            return Similarities(similarities, common=common)
        count = len(texts) - len(UNRELATED)
        unrelated = (rows[count:] @ rows[:count].T).astype(np.float64)
        similarities = similarities[:, :count]
        return Similarities(similarities, prominences_of(similarities, level_of(unrelated)), common)

    def _cache_vectors(self, vectors: dict[str, NDArray[np.float32]]) -> None:
        """Cache these vectors, as the most recently used."""
        with self._lock:
            for text, vector in vectors.items():
                self._vectors[text] = vector
                self._vectors.move_to_end(text)
            while len(self._vectors) > self._cache_size:
                self._vectors.popitem(last=False)


_WHY_CHARS = 300


def _similarity(embedding: Any, held: int, limit_s: float) -> Similarity:
    return Similarity(embedding, held=held, limit_s=limit_s)


def _unit(vector: Any) -> NDArray[np.float32]:
    import numpy as np

    array = np.asarray(vector, dtype=np.float32)
    return array / (float(np.linalg.norm(array)) or 1.0)
