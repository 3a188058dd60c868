"""`Similarity`: vector similarity of short texts and a query, with a cache of vectors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnwise.errors import StoreError
from turnwise.memory.longterm.search.embedding_function import portable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Similarity:
    """Vectors of short texts, made when they are first needed. Thread-safe. A pickle has the settings only.

    Args:
        embedding: a Chroma embedding function.
        held: how many vectors are cached, the most recently used.
    """

    def __init__(self, embedding: Any, *, held: int = 20_000) -> None:
        self._embedding = embedding
        self._held = held
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _similarity, (portable(self._embedding), self._held)

    def of(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the cosine of the query and each text, from -1 to 1. Makes what it has no vector of, in one call.

        Raises:
            StoreError: the embedding function failed, or its vectors have several dimensions.
        """
        import numpy as np

        if not texts:
            return np.zeros(0)
        with self._lock:
            found = {text: self._vectors[text] for text in texts if text in self._vectors}
        missing = [text for text in dict.fromkeys(texts) if text not in found]
        try:
            asked = getattr(self._embedding, "embed_query", self._embedding)([query])[0]
            made = dict(zip(missing, map(_unit, self._embedding(missing)), strict=True)) if missing else {}
            cosines: NDArray[np.float32] = np.stack([(found | made)[text] for text in texts]) @ _unit(asked)
        except Exception as error:
            raise StoreError(f"the embedding function failed: {error!r}"[:_WHY_CHARS]) from error
        with self._lock:
            self._vectors.update(made)
            for text in found:
                self._vectors.move_to_end(text)
            while len(self._vectors) > self._held:
                self._vectors.popitem(last=False)
        return cosines.astype(np.float64)


_WHY_CHARS = 300


def _similarity(embedding: Any, held: int) -> Similarity:
    return Similarity(embedding, held=held)


def _unit(vector: Any) -> NDArray[np.float32]:
    import numpy as np

    array = np.asarray(vector, dtype=np.float32)
    return array / (float(np.linalg.norm(array)) or 1.0)
