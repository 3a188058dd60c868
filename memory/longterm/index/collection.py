"""`VectorCollection`: stores vectors in Chroma, in this process or within `ChromaProcess`."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turnwise.errors import ConfigError
from turnwise.memory.longterm.index.errors import translated
from turnwise.memory.longterm.index.vectors import check_dimensions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from turnwise.memory.longterm.index.locations import ChromaPlace

    Array = NDArray[np.float32]

PAGE = 2_000
"""How many vectors are read or written at once; Chroma has a limit of its own, a little over 5,000."""


class VectorCollection:
    """Stores vectors in Chroma, in one collection for each embedding function.

    Implements `Vectors`, in this process or within `ChromaProcess`. Chroma stores a hash of the user id and no text.

    Args:
        place: where Chroma keeps its data.
        name: what the names of the collections begin with.
        embedding: the name of the embedding function, with its settings.

    Raises:
        StoreError: by each verb: Chroma cannot be reached or does not do it.
    """

    def __init__(self, place: ChromaPlace, name: str, embedding: str) -> None:
        self._place = place
        self._prefix = name
        self._embedding = embedding
        self._name = f"{name}-{blake2b(embedding.encode(), digest_size=8).hexdigest()}"
        self.dimensions: int | None = None
        """The length of the stored vectors; None while there are none, or before the collection is opened."""
        self._client: Any = None
        self._collection: Any = None
        self._lock = threading.RLock()

    def add(self, keys: Sequence[str], users: Sequence[str], vectors: Array, items: Sequence[str]) -> None:
        """See `Vectors.add`."""
        with self._opened() as collection:
            check_dimensions(self.dimensions, vectors, self._embedding)
            self.dimensions = vectors.shape[1]
            for page in _pages(len(keys)):
                metadatas = [{"user": _alias(user)} for user in users[page]]
                for metadata, key, item in zip(metadatas, keys[page], items[page], strict=True):
                    if item != key:
                        metadata["item"] = item
                collection.upsert(ids=list(keys[page]), embeddings=vectors[page], metadatas=metadatas)

    def get(self, keys: Sequence[str]) -> dict[str, Array]:
        """Return the stored vectors of these keys."""
        vectors: dict[str, Array] = {}
        with self._opened() as collection:
            for page in _pages(len(keys)):
                records = collection.get(ids=list(keys[page]), include=["embeddings"])
                vectors |= zip(records["ids"], np.asarray(records["embeddings"], dtype=np.float32), strict=True)
        return vectors

    def delete(self, keys: Sequence[str] | None) -> None:
        """See `Vectors.delete`. All vectors are deleted with their files.

        Chroma only marks a vector in its index as deleted, so a random vector replaces it first. That takes some
        milliseconds for each vector, so delete few at a time.
        """
        if keys is None:
            self._delete_collections()
            return
        with self._opened() as collection:
            for target in (collection, *self._other_collections()):
                for page in _pages(len(keys)):
                    for records in _of_keys(target, list(keys[page])):
                        stored_keys = list(records["ids"])
                        chance = np.random.default_rng().normal(size=np.shape(records["embeddings"]))
                        target.update(ids=stored_keys, embeddings=chance.astype(np.float32))
                        target.delete(ids=stored_keys)

    def push(self, changes: int) -> None:
        """Submit this many no-op deletions, so that Chroma reaches `SYNC_CHANGES` and writes its index files."""
        with self._opened() as collection:
            for target in (collection, *self._other_collections()):
                target.delete(ids=[f"nothing-{number}" for number in range(changes)])

    def overwrite(self, keys: Collection[str]) -> int:
        """Overwrite deleted data in Chroma's files, after Chroma has written the files of its index.

        Returns how many of these keys are still there, or in files that Chroma has not written since their deletion.
        """
        with self._lock, translated(f"vectors in {self._place!r}"):
            self._place.blank()
        with translated(f"vectors in {self._place!r}"):
            return self._place.overwrite(keys)

    def keys(self) -> set[str]:
        """See `Vectors.keys`."""
        keys: set[str] = set()
        with self._opened() as collection:
            for page in _pages(collection.count()):
                keys |= set(collection.get(limit=PAGE, offset=page.start, include=[])["ids"])
        return keys

    def _delete_collections(self) -> None:
        """Delete all collections of this name."""
        with self._opened():
            for collection in (self._collection, *self._other_collections()):
                self._client.delete_collection(collection.name)
            self._collection = self.dimensions = None

    def paths(self) -> Sequence[Path] | None:
        """See `VectorFiles.paths`."""
        return self._place.paths()

    def scrub(self) -> None:
        """Rewrite the files, as far as the place allows: O(all)."""
        with self._lock, translated(f"vectors in {self._place!r}"):
            self.close()
            self._place.scrub()

    def load_ahead(self) -> None:
        """See `LoadableAhead`. The collection stays closed."""
        import chromadb  # noqa: F401

    def close(self) -> None:
        """Release the client. Closing twice is fine."""
        with self._lock:
            client, self._client, self._collection = self._client, None, None
            if client is not None:
                self._place.disconnect(client)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield the collection; convert Chroma's errors to StoreError."""
        with self._lock, translated(f"vectors in {self._place!r}"):
            if self._collection is None:
                self._open()
            try:
                yield self._collection
            except ConfigError:
                raise
            except BaseException:
                self._collection = None  # it may have been deleted by another, or the server be another one
                raise

    def _other_collections(self) -> list[Any]:
        """Return the collections of this name that other embedding functions made."""
        pattern = re.compile(re.escape(self._prefix) + "-[0-9a-f]{16}")
        collections = self._client.list_collections()
        return [
            collection
            for collection in collections
            if pattern.fullmatch(collection.name) and collection.name != self._name
        ]

    def _open(self) -> None:
        if self._client is None:
            self._client = self._place.connect()
        collection = self._client.get_or_create_collection(
            self._name,
            embedding_function=None,  # vectors are always given; Chroma never embeds, so it needs no model either
            configuration={"hnsw": {"space": "cosine"}},
            metadata={"embedding": self._embedding},
        )
        sample = collection.peek(1)["embeddings"]
        self.dimensions = len(sample[0]) if len(sample) else None
        self._collection = collection


def _alias(user: str) -> str:
    return blake2b(user.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _of_keys(collection: Any, keys: list[str]) -> Iterator[Any]:
    """Yield the vectors of these keys, then those of passages of items with these keys. The caller deletes them."""
    if len((records := collection.get(ids=keys, include=["embeddings"]))["ids"]):
        yield records
    is_part = {"item": {"$in": keys}}
    while len((records := collection.get(where=is_part, limit=PAGE, include=["embeddings"]))["ids"]):
        yield records


def _pages(count: int) -> Iterator[slice]:
    return (slice(start, start + PAGE) for start in range(0, count, PAGE))
