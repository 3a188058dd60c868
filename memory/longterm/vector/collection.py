"""`VectorCollection`: stores vectors in Chroma, in this process or within `ChromaProcess`."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from turnwise.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from turnwise.memory.longterm.vector.locations import ChromaPlace

    Vectors = NDArray[np.float32]

PAGE = 2_000
"""How many vectors are read or written at once; Chroma has a limit of its own, a little over 5,000."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """The result of checking the index."""

    count: int
    """How many vectors there are."""
    missing: int
    """How many of those that should be there are not."""
    searched: int
    """How many were searched for."""
    found: int
    """How many of those were found."""
    strays: int
    """How many vectors there are of items that are gone; `rebuild` leaves them out."""

    @property
    def ok(self) -> bool:
        """Whether none is missing, and all that were searched for were found."""
        return not self.missing and self.found == self.searched


class VectorCollection:
    """Stores vectors in Chroma, in one collection for each embedding function.

    It runs in this process or within `ChromaProcess`. Access control is the caller's: `get` and `delete` work by key
    only. Chroma stores a hash of the user id and no text. A key's vector never changes. The collection is opened at
    first use, so a server may start later; after a failure it is opened again. Thread-safe. Each method may be
    repeated.

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
        """Of the vectors that are kept; None while there are none, or it was not opened yet."""
        self._client: Any = None
        self._collection: Any = None
        self._lock = threading.RLock()

    def add(self, keys: Sequence[str], users: Sequence[str], vectors: Vectors, items: Sequence[str]) -> None:
        """Keep the vectors. A key that is there is left as it is, or gets what is the same.

        Args:
            items: the key of the item that each is of. `delete` takes those of items, too.

        Raises:
            ConfigError: the collection's vectors are of another dimension.
            StoreError: some of the vectors may be kept.
        """
        with self._opened() as collection:
            check_dimensions(self.dimensions, vectors, self._embedding)
            self.dimensions = vectors.shape[1]
            for page in _pages(len(keys)):
                metadatas = [{"user": _alias(user)} for user in users[page]]
                for metadata, key, item in zip(metadatas, keys[page], items[page], strict=True):
                    if item != key:
                        metadata["item"] = item
                collection.upsert(ids=list(keys[page]), embeddings=vectors[page], metadatas=metadatas)

    def get(self, keys: Sequence[str]) -> dict[str, Vectors]:
        """Return the vectors of those keys that are there."""
        found: dict[str, Vectors] = {}
        with self._opened() as collection:
            for page in _pages(len(keys)):
                got = collection.get(ids=list(keys[page]), include=["embeddings"])
                found |= zip(got["ids"], np.asarray(got["embeddings"], dtype=np.float32), strict=True)
        return found

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the vectors of these keys, and of items of these, of all embedding functions.

        Chroma only marks a vector in its index as deleted, so another is put in its place first, made by chance. That
        takes some milliseconds each, so better delete a few at a time.
        """
        with self._opened() as collection:
            for each in (collection, *self._others()):
                for page in _pages(len(keys)):
                    for found in _of_keys(each, list(keys[page])):
                        there = list(found["ids"])
                        chance = np.random.default_rng().normal(size=np.shape(found["embeddings"]))
                        each.update(ids=there, embeddings=chance.astype(np.float32))
                        each.delete(ids=there)

    def push(self, changes: int) -> None:
        """Submit this many no-op deletions, so that Chroma reaches `SYNC_CHANGES` and writes its index files."""
        with self._opened() as collection:
            for each in (collection, *self._others()):
                each.delete(ids=[f"nothing-{number}" for number in range(changes)])

    def overwrite(self, keys: Collection[str]) -> int:
        """Overwrite what deletions have left in Chroma's files, after it has written those of its index.

        Returns how many of these keys are there still, or in files that Chroma has not written since.
        """
        with self._lock, translated(f"vectors in {self._place!r}"):
            self._place.blank()
        with translated(f"vectors in {self._place!r}"):
            return self._place.overwrite(keys)

    def search(self, user: str, vector: Vectors, limit: int) -> list[str]:
        """Return the keys of the user's vectors nearest to this one, by Chroma's own search."""
        with self._opened() as collection:
            found = collection.query(
                query_embeddings=vector.reshape(1, -1), n_results=limit, where={"user": _alias(user)}, include=[]
            )
        return list(found["ids"][0])

    def count(self) -> int:
        """Return how many vectors there are."""
        with self._opened() as collection:
            return int(collection.count())

    def keys(self) -> set[str]:
        """Return the keys of all vectors."""
        found: set[str] = set()
        with self._opened() as collection:
            for page in _pages(collection.count()):
                found |= set(collection.get(limit=PAGE, offset=page.start, include=[])["ids"])
        return found

    def check(self, keys: Sequence[str], sample: int, others: Collection[str]) -> Health:
        """See `VectorIndex.check`. Chroma keeps vectors in two places, which can lose touch with each other."""
        there = self.keys()
        vectors = self.get(keys[:sample])
        with self._opened() as collection:
            counted = int(collection.count())
            # Chroma's search is approximate: what a narrow one misses, a wide one may find.
            missed = _missed(collection, vectors, min(10, counted))
            missed = _missed(collection, {key: vectors[key] for key in missed}, min(200, counted))
        found = len(vectors) - len(missed)
        missing = len(set(keys) - there)
        strays = len(there.difference(keys, others))
        return Health(count=counted, missing=missing, searched=len(vectors), found=found, strays=strays)

    def drop(self) -> None:
        """Delete the collection with all its vectors, its files included."""
        with self._opened():
            self._client.delete_collection(self._name)
            self._collection = self.dimensions = None

    def drop_others(self) -> int:
        """Delete the collections of this name that other embedding functions made; return how many."""
        with self._opened():
            others = self._others()
            for other in others:
                self._client.delete_collection(other.name)
        return len(others)

    def scrub(self) -> None:
        """Write the files anew, as far as the place lets one: O(all)."""
        with self._lock, translated(f"vectors in {self._place!r}"):
            self.close()
            self._place.scrub()

    def close(self) -> None:
        """Let go of the client. Closing twice is fine."""
        with self._lock:
            client, self._client, self._collection = self._client, None, None
            if client is not None:
                self._place.disconnect(client)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield the collection; Chroma's errors become ours."""
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

    def _others(self) -> list[Any]:
        """Return the collections of this name that other embedding functions made."""
        ours = re.compile(re.escape(self._prefix) + "-[0-9a-f]{16}")
        found = self._client.list_collections()
        return [each for each in found if ours.fullmatch(each.name) and each.name != self._name]

    def _open(self) -> None:
        if self._client is None:
            self._client = self._place.connect()
        collection = self._client.get_or_create_collection(
            self._name,
            embedding_function=None,  # vectors are always given; Chroma never embeds, so it needs no model either
            configuration={"hnsw": {"space": "cosine"}},
            metadata={"embedding": self._embedding},
        )
        some = collection.peek(1)["embeddings"]
        self.dimensions = len(some[0]) if len(some) else None
        self._collection = collection


def check_dimensions(dimensions: int | None, vectors: Vectors, embedding: str) -> None:
    """Raise ConfigError if vectors of an embedding cannot be where others are of so many dimensions, if of any."""
    if dimensions is not None and vectors.shape[1] != dimensions:
        why = f"its vectors have {vectors.shape[1]} dimensions, those that are kept {dimensions}"
        raise ConfigError("embedding", embedding, f"{why}: rebuild() makes them anew")


def _alias(user: str) -> str:
    return blake2b(user.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _of_keys(collection: Any, keys: list[str]) -> Iterator[Any]:
    """Yield the vectors of these keys, then those of passages of items of these. Who is given some deletes them."""
    if len((found := collection.get(ids=keys, include=["embeddings"]))["ids"]):
        yield found
    is_part = {"item": {"$in": keys}}
    while len((found := collection.get(where=is_part, limit=PAGE, include=["embeddings"]))["ids"]):
        yield found


def _pages(count: int) -> Iterator[slice]:
    return (slice(start, start + PAGE) for start in range(0, count, PAGE))


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Convert errors of Chroma and of embedding functions to StoreError. Only this function does so."""
    try:
        yield
    except (ConfigError, StoreError):
        raise
    except Exception as error:
        why = str(error) or type(error).__name__
        raise StoreError(f"{what}: {why}; check that it exists and that no other process uses it") from error


def _missed(collection: Any, vectors: Mapping[str, Any], width: int) -> list[str]:
    """Return the keys that are not among the `width` nearest to their own vectors."""
    missed = []
    for page in _pages(len(vectors)):
        some = list(vectors)[page]
        stack = np.array([vectors[key] for key in some])
        near = collection.query(query_embeddings=stack, n_results=width, include=["distances"])
        for key, ids, distances in zip(some, near["ids"], near["distances"], strict=True):
            # Of vectors that are all the same, a search returns some.
            is_same = len(ids) > 0 and abs(distances[-1] - distances[0]) < 1e-4  # noqa: PLR2004
            missed += [] if key in ids or is_same else [key]
    return missed
