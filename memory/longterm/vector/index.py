"""`VectorIndex`: embeds texts and stores their vectors by key, without the texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from turnwise.errors import StoreError, TurnwiseError
from turnwise.memory.longterm.search.embedding_function import portable
from turnwise.memory.longterm.vector.chroma_process import CHROMA_PROCESS
from turnwise.memory.longterm.vector.default_embedding import ChromaDefault
from turnwise.memory.longterm.vector.locations import ChromaFolder, ChromaInMemory, ChromaPlace, PostgresVectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from turnwise.memory.longterm.vector.collection import Health, VectorCollection
    from turnwise.memory.longterm.vector.sql_vectors import SQLVectors

    Vectors = NDArray[np.float32]

MAX_EMBEDDED = 8_000
"""How many characters of a text are embedded: more says nothing clearer, and models refuse it."""


class EmbeddingFunction(Protocol):
    """What any of Chroma's embedding functions can do: turn texts into vectors of one dimension, in their order."""

    def __call__(self, input: Any) -> Any:
        """Return a vector for each text."""


class VectorIndex:
    """Embeds texts and stores their vectors, in one collection for each embedding function.

    Sends each operation to a `VectorCollection`, to Chroma's own process (see `ChromaProcess`) or to `SQLVectors`.
    Access control is the caller's: `get` and `delete` work by key only. Chroma stores a hash of the user id and no
    text. A key's vector never changes. The collection is opened at first use, so a server may start later; after a
    failure it is opened again. Thread-safe; each method blocks. Pickles as its settings.

    Args:
        place: where Chroma keeps its data, or a PostgreSQL.
        embedding: the embedding function; Chroma's default if left out.
        name: the prefix of its collections' names. Memories that share a server need different ones.
    """

    def __init__(
        self,
        place: ChromaPlace | PostgresVectors,
        embedding: EmbeddingFunction | None = None,
        *,
        name: str = "turnwise",
    ) -> None:
        self._place = place
        self._function: Any = ChromaDefault() if embedding is None else embedding
        self._name = name
        self.embedding = _identity(self._function)
        """Names the embedding function and its settings. Vectors of another cannot be compared with its."""
        self._dimensions: int | None = None
        self._is_open = False
        self._collection: VectorCollection | SQLVectors | None = None
        """None until it is needed, and for a folder, whose collections are in Chroma's process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(VectorIndex, name=self._name), (self._place, portable(self._function))

    def __repr__(self) -> str:
        return f"VectorIndex({self._place!r}, {self._function!r}, name={self._name!r})"

    # Embedding

    @property
    def is_ready(self) -> bool:
        """Whether vectors can be made: an embedding function may say by its own `is_ready` that they cannot yet."""
        return bool(getattr(self._function, "is_ready", True))

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' vectors, one a row, each of length 1. One call of the embedding function.

        Raises:
            StoreError: the function fails, or returns something else.
        """
        return self._embed(self._function, texts)

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        """Return the queries' vectors, one a row: some models make others of them than of texts."""
        return self._embed(getattr(self._function, "embed_query", self._function), queries)

    def _embed(self, function: Callable[[Any], Any], texts: Sequence[str]) -> Vectors:
        import numpy as np

        from turnwise.memory.longterm.vector.collection import translated

        if not texts:
            return np.zeros((0, self._dimensions or 0), np.float32)
        with translated(f"embedding function {self.embedding}"):
            vectors = np.asarray(function([text[:MAX_EMBEDDED] for text in texts]), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():  # noqa: PLR2004
            raise StoreError(
                f"embedding function {self.embedding}: it returned {vectors.shape} for {len(texts)} texts, "
                "not a vector of finite numbers for each"
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Vectors = vectors / np.maximum(lengths, 1e-12)
        return unit

    # Vectors

    def add(
        self, keys: Sequence[str], users: Sequence[str], vectors: Vectors, *, items: Sequence[str] | None = None
    ) -> None:
        """Keep the vectors. A key that is there is left as it is, or gets what is the same.

        Args:
            items: the key of the item that each is of; its own, if left out. `delete` takes those of items, too.

        Raises:
            ConfigError: the collection's vectors are of another dimension.
            StoreError: Chroma cannot be reached or does not do it; some of the vectors may be kept.
        """
        if len(keys):
            self._ask("add", keys, users, vectors, keys if items is None else items)

    def get(self, keys: Sequence[str]) -> dict[str, Vectors]:
        """Return the vectors of those keys that are there."""
        return cast("dict[str, Vectors]", self._ask("get", keys))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the vectors of these keys, and of items of these, of all embedding functions."""
        self._ask("delete", keys)

    def push(self, changes: int) -> None:
        """Submit this many no-op deletions, so that Chroma reaches `SYNC_CHANGES` and writes its index files."""
        self._ask("push", changes)

    def overwrite(self, keys: Collection[str]) -> int:
        """Overwrite what deletions have left in Chroma's files, after it has written those of its index.

        Returns how many of these keys are there still, or in files that Chroma has not written since.
        """
        return cast(int, self._ask("overwrite", keys))

    def search(self, user: str, vector: Vectors, limit: int) -> list[str]:
        """Return the keys of the user's vectors nearest to this one, by Chroma's own search."""
        return cast("list[str]", self._ask("search", user, vector, limit))

    def count(self) -> int:
        """Return how many vectors there are."""
        return cast(int, self._ask("count"))

    def keys(self) -> set[str]:
        """Return the keys of all vectors."""
        return cast("set[str]", self._ask("keys"))

    def check(self, keys: Sequence[str], sample: int, others: Collection[str] = ()) -> Health:
        """Look these up by key, and search for the first of them by their own vectors.

        Args:
            keys: those that should be there.
            sample: how many to search for.
            others: keys that may be there.
        """
        return cast("Health", self._ask("check", keys, sample, others))

    def drop(self) -> None:
        """Delete the collection with all its vectors, its files included."""
        self._ask("drop")

    def drop_others(self) -> int:
        """Delete the collections of this name that other embedding functions made; return how many."""
        return cast(int, self._ask("drop_others"))

    def scrub(self) -> None:
        """Write the files anew, as far as the place lets one: O(all)."""
        self._ask("scrub")

    def paths(self) -> Sequence[Path] | None:
        """Return the folders of this machine that vectors are kept in; None if a server keeps them."""
        return self._place.paths()

    def check_dimensions(self, vectors: Vectors) -> None:
        """Raise ConfigError if the vectors cannot be in the collection, as far as it was opened and has any."""
        from turnwise.memory.longterm.vector.collection import check_dimensions

        check_dimensions(self._dimensions, vectors, self.embedding)

    def close(self) -> None:
        """Let go of what it has opened. Closing twice is fine."""
        if self._is_open:
            self._is_open = False
            self._ask("close")

    def _ask(self, verb: str, *args: Any) -> Any:
        """Have the collection carry out a verb, here or in Chroma's process."""
        self._is_open = verb != "close"
        if isinstance(self._place, ChromaFolder):
            answer, self._dimensions = CHROMA_PROCESS.ask((self._place, self._name, self.embedding), verb, *args)
            if isinstance(answer, TurnwiseError):
                raise answer
            return answer
        if self._collection is None:
            self._collection = self._open()
        try:
            return getattr(self._collection, verb)(*args)
        finally:
            self._dimensions = self._collection.dimensions

    def _open(self) -> VectorCollection | SQLVectors:
        if isinstance(self._place, PostgresVectors):
            from turnwise.memory.longterm.vector.sql_vectors import SQLVectors

            return SQLVectors(self._place.url, self._name, self.embedding)
        from turnwise.memory.longterm.vector.collection import VectorCollection

        return VectorCollection(self._place, self._name, self.embedding)


class NoVectors(VectorIndex):
    """An index that has nothing, for memories that find by words alone."""

    def __init__(self) -> None:
        super().__init__(ChromaInMemory(), _NoEmbedding())

    def __reduce__(self) -> tuple[Any, ...]:
        return NoVectors, ()

    def __repr__(self) -> str:
        return "NoVectors()"

    def get(self, keys: Sequence[str]) -> dict[str, Vectors]:
        return {}

    def keys(self) -> set[str]:
        return set()

    def count(self) -> int:
        return 0

    def delete(self, keys: Sequence[str]) -> None:
        """Do nothing: there is nothing."""

    def push(self, changes: int) -> None:
        """Do nothing: there are no files."""

    def check(self, keys: Sequence[str], sample: int, others: Collection[str] = ()) -> Health:
        from turnwise.memory.longterm.vector.collection import Health

        return Health(count=0, missing=0, searched=0, found=0, strays=0)

    def drop(self) -> None:
        """Do nothing: there is nothing."""

    def drop_others(self) -> int:
        return 0

    def scrub(self) -> None:
        """Do nothing: there are no files."""


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
