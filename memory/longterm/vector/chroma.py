"""`VectorIndex`: vectors in Chroma, made by any of its embedding functions, stored by key and without texts."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.errors import ConfigError, StoreError
from turnwise.memory.longterm.vector import chroma_files, folder_lock
from turnwise.memory.longterm.vector.default_embedding import ChromaDefault

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

PAGE = 2_000
"""How many vectors are read or written at once; Chroma has a limit of its own, a little over 5,000."""


SYNC_CHANGES = 1_000
"""After how many changes Chroma writes the files of its index, if a collection does not say otherwise."""

MAX_EMBEDDED = 8_000
"""How many characters of a text are embedded: more says nothing clearer, and models refuse it."""


class EmbeddingFunction(Protocol):
    """What any of Chroma's embedding functions can do: turn texts into vectors of one dimension, in their order."""

    def __call__(self, input: Any) -> Any:
        """Return a vector for each text."""


class ChromaPlace(Protocol):
    """Where Chroma keeps its data."""

    def connect(self) -> Any:
        """Return a client of `chromadb`. Called where it is used, in the process that owns it."""

    def disconnect(self, client: Any) -> None:
        """Let go of a client that `connect` returned."""

    def blank(self) -> None:
        """Blank what Chroma has filled with whatever its memory held. Only while no client writes."""

    def overwrite(self, keys: Collection[str]) -> int:
        """Overwrite what deletions have left, as far as that can be done from here, also while a client writes.

        Returns how many of these keys are there still.
        """

    def scrub(self) -> None:
        """Write all files anew, as far as that can be done from here, while no client is open."""

    def paths(self) -> Sequence[Path] | None:
        """Return the folders of this machine that it is kept in; None if a server keeps it."""


@dataclass(frozen=True, slots=True)
class ChromaFolder:
    """A folder of this machine. One process at a time has it open: another is refused with a StoreError."""

    path: str | Path
    """Relative to where this is made, and absolute from then on."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).expanduser().absolute())

    def connect(self) -> Any:
        import chromadb

        folder_lock.take(self.path)  # Chroma has no lock of its own, and processes do not see each other's vectors
        try:
            return chromadb.PersistentClient(str(self.path), settings=_settings())
        except BaseException:
            folder_lock.leave(self.path)
            raise

    def disconnect(self, client: Any) -> None:
        try:
            client.close()
            chroma_files.blank_rooms(Path(self.path))
        finally:
            folder_lock.leave(self.path)

    def scrub(self) -> None:
        """Leave nothing of what was deleted in Chroma's files. Only while no client has them open."""
        folder = Path(self.path)
        if (folder / chroma_files.DATABASE).exists():
            folder_lock.take(self.path)
            try:
                chroma_files.rewrite(folder)
            finally:
                folder_lock.leave(self.path)

    def blank(self) -> None:
        chroma_files.blank_rooms(Path(self.path))

    def overwrite(self, keys: Collection[str]) -> int:
        return chroma_files.overwrite(Path(self.path), keys)

    def paths(self) -> list[Path]:
        return [Path(self.path).absolute()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChromaServer:
    """A server that `chroma run` started. What was deleted stands in its files until somebody runs `chroma vacuum`."""

    host: str = "localhost"
    port: int = 8000
    ssl: bool = False
    timeout_s: float = 10.0
    """How long one request may take."""

    def connect(self) -> Any:
        import chromadb

        # Chroma's requests have no timeout: a server that is not there or hangs would be waited for without end.
        socket.create_connection((self.host, self.port), self.timeout_s).close()
        client = chromadb.HttpClient(self.host, self.port, ssl=self.ssl, settings=_settings())
        for session in _http_sessions(client):
            session.timeout = self.timeout_s
        return client

    def disconnect(self, client: Any) -> None:
        client.close()
        for session in _http_sessions(client):
            session.close()  # Chroma leaves its connections to the garbage collector

    def blank(self) -> None:
        """Do nothing: a server's files are its own."""

    def overwrite(self, keys: Collection[str]) -> int:
        """Do nothing: a server's files are its own."""
        return 0

    def scrub(self) -> None:
        """Do nothing: a server's files are its own."""

    def paths(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ChromaInMemory:
    """Chroma in this process's memory, shared by all indexes of the process. For tests."""

    def connect(self) -> Any:
        import chromadb

        return chromadb.EphemeralClient(settings=_settings())

    def disconnect(self, client: Any) -> None:
        client.close()

    def blank(self) -> None:
        """Do nothing: there are no files."""

    def overwrite(self, keys: Collection[str]) -> int:
        """Do nothing: there are no files."""
        return 0

    def scrub(self) -> None:
        """Do nothing: there are no files."""

    def paths(self) -> list[Path]:
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
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


def _missed(collection: Any, vectors: Mapping[str, Any], width: int) -> list[str]:
    """Return the keys that are not among the `width` nearest to their own vectors."""
    import numpy as np

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


class VectorIndex:
    """Vectors under keys, in one collection of Chroma for each embedding function.

    Whose a vector is, is for the owner of the keys to know, who asks by key; Chroma has it as `user` too, hashed, and
    has no text. A key's vector never changes. The collection is opened at first use, so a server may come up later;
    after a failure it is opened anew. May be used by several threads. Pickles as its settings.

    Args:
        place: where Chroma keeps its data.
        embedding: what makes vectors of texts; Chroma's default if left out.
        name: what the names of its collections begin with; of each memory's own where several share a server.
    """

    def __init__(
        self, place: ChromaPlace, embedding: EmbeddingFunction | None = None, *, name: str = "turnwise"
    ) -> None:
        self._place = place
        self._function: Any = ChromaDefault() if embedding is None else embedding
        self._name = name
        self.embedding = _identity(self._function)
        """Names the embedding function and its settings. Vectors of another cannot be compared with its."""
        self._dimensions: int | None = None
        self._client: Any = None
        self._collection: Any = None
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(VectorIndex, name=self._name), (self._place, self._function)

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

        if not texts:
            return np.zeros((0, self._dimensions or 0), np.float32)
        with _translated(f"embedding function {self.embedding}"):
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
        if not len(keys):
            return
        with self._opened() as collection:
            self.check_dimensions(vectors)
            self._dimensions = vectors.shape[1]
            for page in _pages(len(keys)):
                metadatas = [{"user": _alias(user)} for user in users[page]]
                for metadata, key, item in zip(metadatas, keys[page], (items or keys)[page], strict=True):
                    if item != key:
                        metadata["item"] = item
                collection.upsert(ids=list(keys[page]), embeddings=vectors[page], metadatas=metadatas)

    def get(self, keys: Sequence[str]) -> dict[str, Vectors]:
        """Return the vectors of those keys that are there."""
        import numpy as np

        found: dict[str, Vectors] = {}
        with self._opened() as collection:
            for page in _pages(len(keys)):
                got = collection.get(ids=list(keys[page]), include=["embeddings"])
                found |= zip(got["ids"], np.asarray(got["embeddings"], dtype=np.float32), strict=True)
        return found

    def delete(self, keys: Sequence[str], *, others: bool = True) -> None:
        """Delete the vectors of these keys, and of items of these; with `others`, of all embedding functions.

        Chroma only marks a vector in its index as deleted, so another is put in its place first, made by chance. That
        takes some milliseconds each, so better delete a few at a time.
        """
        import numpy as np

        with self._opened() as collection:
            for each in (collection, *(self._others() if others else ())):
                for page in _pages(len(keys)):
                    for found in _of_keys(each, list(keys[page])):
                        there = list(found["ids"])
                        chance = np.random.default_rng().normal(size=np.shape(found["embeddings"]))
                        each.update(ids=there, embeddings=chance.astype(np.float32))
                        each.delete(ids=there)

    def push(self, changes: int) -> None:
        """Have Chroma take so many changes nearer to its index's files, which it writes after `SYNC_CHANGES`."""
        with self._opened() as collection:
            for each in (collection, *self._others()):
                each.delete(ids=[f"nothing-{number}" for number in range(changes)])

    def overwrite(self, keys: Collection[str]) -> int:
        """Overwrite what deletions have left in Chroma's files, after it has written those of its index.

        Returns how many of these keys are there still, or in files that Chroma has not written since.
        """
        with self._lock, _translated(f"vectors in {self._place!r}"):
            self._place.blank()
        with _translated(f"vectors in {self._place!r}"):
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

    # Health

    def check(self, keys: Sequence[str], sample: int, others: Collection[str] = ()) -> Health:
        """Look these up by key, and search for the first of them by their own vectors.

        Chroma keeps vectors in two places, which can lose touch with each other.

        Args:
            keys: those that should be there.
            sample: how many to search for.
            others: keys that may be there.
        """
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
            self._client.delete_collection(self._collection_name)
            self._collection = self._dimensions = None

    def drop_others(self) -> int:
        """Delete the collections of this name that other embedding functions made; return how many."""
        with self._opened():
            others = self._others()
            for other in others:
                self._client.delete_collection(other.name)
        return len(others)

    def scrub(self) -> None:
        """Write the files anew, as far as the place lets one: O(all)."""
        with self._lock, _translated(f"vectors in {self._place!r}"):
            self.close()
            self._place.scrub()

    def paths(self) -> Sequence[Path] | None:
        """Return the folders of this machine that vectors are kept in; None if a server keeps them."""
        return self._place.paths()

    def check_dimensions(self, vectors: Vectors) -> None:
        """Raise ConfigError if the vectors cannot be in the collection, as far as it was opened and has any."""
        with self._lock:
            if self._dimensions is not None and vectors.shape[1] != self._dimensions:
                why = f"its vectors have {vectors.shape[1]} dimensions, those that are kept {self._dimensions}"
                raise ConfigError("embedding", self.embedding, f"{why}: rebuild() makes them anew")

    def close(self) -> None:
        """Let go of the client. Closing twice is fine."""
        with self._lock:
            client, self._client, self._collection = self._client, None, None
            if client is not None:
                self._place.disconnect(client)

    @property
    def _collection_name(self) -> str:
        return f"{self._name}-{blake2b(self.embedding.encode(), digest_size=8).hexdigest()}"

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield the collection; Chroma's errors become ours."""
        with self._lock, _translated(f"vectors in {self._place!r}"):
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
        ours = re.compile(re.escape(self._name) + "-[0-9a-f]{16}")
        found = self._client.list_collections()
        return [each for each in found if ours.fullmatch(each.name) and each.name != self._collection_name]

    def _open(self) -> None:
        if self._client is None:
            self._client = self._place.connect()
        collection = self._client.get_or_create_collection(
            self._collection_name,
            embedding_function=None,  # vectors are always given; Chroma never embeds, so it needs no model either
            configuration={"hnsw": {"space": "cosine"}},
            metadata={"embedding": self.embedding},
        )
        some = collection.peek(1)["embeddings"]
        self._dimensions = len(some[0]) if len(some) else None
        self._collection = collection


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

    def delete(self, keys: Sequence[str], *, others: bool = True) -> None:
        """Do nothing: there is nothing."""

    def push(self, changes: int) -> None:
        """Do nothing: there are no files."""

    def check(self, keys: Sequence[str], sample: int, others: Collection[str] = ()) -> Health:
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


def _alias(user: str) -> str:
    return blake2b(user.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _settings() -> Any:
    from chromadb.config import Settings

    return Settings(anonymized_telemetry=False)


def _http_sessions(client: Any) -> list[Any]:
    """Return the httpx clients within one of Chroma's; none if it needs none."""
    servers: list[Any] = [getattr(part, "_server", None) for part in (client, getattr(client, "_admin_client", None))]
    return [server._session for server in servers if hasattr(server, "_session")]  # noqa: SLF001 - no other way to them


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
def _translated(what: str) -> Iterator[None]:
    """Convert errors of Chroma and of embedding functions to StoreError. Only this function does so."""
    try:
        yield
    except (ConfigError, StoreError):
        raise
    except Exception as error:
        raise StoreError(f"{what}: {str(error) or type(error).__name__}; is it there, and nobody else's?") from error
