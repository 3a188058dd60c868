"""`VectorIndex`: embeds texts and stores their vectors by key, without the texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.errors import StoreError
from turnwise.memory.longterm.index.default_embedding import ChromaDefault
from turnwise.memory.longterm.index.errors import translated
from turnwise.memory.longterm.index.vectors import VectorFiles, Vectors, VectorsPlace, check_dimensions
from turnwise.memory.longterm.recall.embedding_function import portable
from turnwise.memory.longterm.recall.loading import LoadableAhead

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

MAX_EMBEDDED = 8_000
"""How many characters of a text are embedded: more do not improve the vector, and models refuse them."""


class EmbeddingFunction(Protocol):
    """The protocol of Chroma's embedding functions: turns texts into vectors of one dimension, in order.

    If its class has `is_quick = True`, the event loop computes the vectors of queries: set it only where a vector takes
    a tenth of a millisecond and nothing is waited for, such as where words are looked up in a table. Subclasses do not
    inherit it, since what they add may wait.
    """

    def __call__(self, input: Any) -> Any:
        """Return a vector for each text."""


class VectorIndex:
    """Embeds texts and stores their vectors, without the texts. Thread-safe; each method blocks. Pickles as settings.

    The storage is opened at first use, so a server may start later; see `Vectors`.

    Args:
        place: where the vectors are: `ChromaFolder`, `ChromaServer` or `PostgresVectors`, or an object of yours with
            the method of `VectorsPlace`.
        embedding: the embedding function; Chroma's default if left out.
        name: the prefix of its collections' names. Memories that share a server need different ones.
    """

    def __init__(
        self, place: VectorsPlace, embedding: EmbeddingFunction | None = None, *, name: str = "turnwise"
    ) -> None:
        self._place = place
        self._function: Any = ChromaDefault() if embedding is None else embedding
        self._name = name
        self.embedding = _identity(self._function)
        """The name of the embedding function with its settings. Vectors of different functions cannot be compared."""
        self._vectors = place.open(name, self.embedding)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), name=self._name), (self._place, portable(self._function))

    def __repr__(self) -> str:
        return f"VectorIndex({self._place!r}, {self._function!r}, name={self._name!r})"

    # Embedding

    @property
    def is_ready(self) -> bool:
        """Whether vectors can be made: the attribute `is_ready` of the embedding function, True if it has none."""
        return bool(getattr(self._function, "is_ready", True))

    @property
    def is_quick(self) -> bool:
        """Whether an event loop may compute vectors: see `EmbeddingFunction`."""
        return vars(type(self._function)).get("is_quick") is True

    def embed(self, texts: Sequence[str]) -> Array:
        """Return the texts' vectors, one a row, each of length 1. One call of the embedding function.

        Raises:
            StoreError: the function fails, or returns something else.
        """
        return self._embed(self._function, texts)

    def embed_queries(self, queries: Sequence[str]) -> Array:
        """Return the queries' vectors, one a row: some models embed queries and texts differently."""
        return self._embed(getattr(self._function, "embed_query", self._function), queries)

    def _embed(self, function: Callable[[Any], Any], texts: Sequence[str]) -> Array:
        import numpy as np

        if not texts:
            return np.zeros((0, self._vectors.dimensions or 0), np.float32)
        with translated(f"embedding function {self.embedding}"):
            vectors = np.asarray(function([text[:MAX_EMBEDDED] for text in texts]), dtype=np.float32)
        lengths: Any = None
        if vectors.ndim == 2 and len(vectors) == len(texts):  # noqa: PLR2004
            lengths = np.sqrt(np.add.reduce(vectors * vectors, axis=1, keepdims=True))
        if lengths is None or not (np.isfinite(lengths).all() or np.isfinite(vectors).all()):
            raise StoreError(
                f"embedding function {self.embedding}: it returned {vectors.shape} for {len(texts)} texts, "
                "not a vector of finite numbers for each"
            )
        unit: Array = vectors / np.maximum(lengths, 1e-12)
        return unit

    def load_ahead(self) -> None:
        """See `LoadableAhead`: what the embedding function and the storage have to load before they are used first."""
        for part in (self._function, self._vectors):
            if isinstance(part, LoadableAhead):
                part.load_ahead()

    # Vectors

    def add(
        self, keys: Sequence[str], users: Sequence[str], vectors: Array, *, items: Sequence[str] | None = None
    ) -> None:
        """See `Vectors.add`. `items` are the keys themselves if left out."""
        if len(keys):
            self._vectors.add(keys, users, vectors, keys if items is None else items)

    def get(self, keys: Sequence[str]) -> dict[str, Array]:
        """See `Vectors.get`."""
        return self._vectors.get(keys)

    def delete(self, keys: Sequence[str] | None) -> None:
        """See `Vectors.delete`."""
        self._vectors.delete(keys)

    def keys(self) -> set[str]:
        """See `Vectors.keys`."""
        return self._vectors.keys()

    def check(self, keys: Sequence[str], others: Collection[str] = ()) -> Health:
        """Return whether the vectors of these keys are there: O(all vectors).

        Args:
            others: keys that may be there.
        """
        stored = self.keys()
        missing, strays = len(set(keys) - stored), len(stored.difference(keys, others))
        return Health(count=len(stored), missing=missing, strays=strays)

    def push(self, changes: int) -> None:
        """See `VectorFiles.push`; does nothing if they are in no files."""
        if isinstance(self._vectors, VectorFiles):
            self._vectors.push(changes)

    def overwrite(self, keys: Collection[str]) -> int:
        """See `VectorFiles.overwrite`; without files, returns how many of the keys are there."""
        if isinstance(self._vectors, VectorFiles):
            return self._vectors.overwrite(keys)
        return len(self.get(list(keys)))

    def scrub(self) -> None:
        """See `VectorFiles.scrub`; does nothing if they are in no files."""
        if isinstance(self._vectors, VectorFiles):
            self._vectors.scrub()

    def paths(self) -> Sequence[Path] | None:
        """Return the folders of this machine with vectors; None if they are not in its files."""
        return self._vectors.paths() if isinstance(self._vectors, VectorFiles) else None

    def check_dimensions(self, vectors: Array) -> None:
        """Raise ConfigError if the vectors have another length than the stored ones, as far as that is known."""
        check_dimensions(self._vectors.dimensions, vectors, self.embedding)

    def close(self) -> None:
        """Close the storage. Closing twice is fine."""
        self._vectors.close()


@dataclass(frozen=True, kw_only=True)
class Health:
    """The result of checking the index."""

    count: int
    """How many vectors there are."""
    missing: int
    """How many expected vectors are missing."""
    strays: int
    """How many vectors of deleted items there are; `rebuild` removes them."""

    @property
    def ok(self) -> bool:
        """Whether no vector is missing."""
        return not self.missing


def no_vectors() -> VectorIndex:
    """Return an empty index, for memories that find items by words alone."""
    return VectorIndex(NoVectors(), _NoEmbedding())


@dataclass(frozen=True)
class NoVectors:
    """A place that stores no vectors."""

    dimensions: int | None = None

    def open(self, name: str, embedding: str) -> Vectors:
        """Return itself."""
        return self

    def add(self, keys: Sequence[str], users: Sequence[str], vectors: Array, items: Sequence[str]) -> None:
        """Store nothing."""

    def get(self, keys: Sequence[str]) -> dict[str, Array]:
        return {}

    def delete(self, keys: Sequence[str] | None) -> None:
        """Do nothing: there is nothing."""

    def keys(self) -> set[str]:
        return set()

    def push(self, changes: int) -> None:
        """Do nothing: there are no files."""

    def overwrite(self, keys: Collection[str]) -> int:
        return 0

    def scrub(self) -> None:
        """Do nothing: there are no files."""

    def paths(self) -> list[Path]:
        return []

    def close(self) -> None:
        """Do nothing: nothing is open."""


class _NoEmbedding:
    is_ready = False

    def __call__(self, input: Any) -> Any:
        raise StoreError("this memory has no embedding function")


def _identity(function: Any) -> str:
    """Return a name for the function with its settings, as Chroma would write them down."""
    try:
        name, config = function.name(), function.get_config()
    except (AttributeError, NotImplementedError, TypeError):
        name, config = NotImplemented, NotImplemented
    if not isinstance(name, str) or not isinstance(config, dict):
        return f"{type(function).__module__}.{type(function).__qualname__}"
    return f"{name} {json.dumps(config, sort_keys=True, default=str)}"
