"""Storage settings of a `VectorIndex`: a folder, a Chroma server, memory, or PostgreSQL."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from turnwise.errors import ConfigError
from turnwise.memory.longterm.index import chroma_files, folder_lock
from turnwise.memory.longterm.index.vectors import Vectors, VectorsPlace
from turnwise.memory.values.ranges import check_seconds, check_whole_number

SYNC_CHANGES = 1_000
"""After how many changes Chroma writes the files of its index, unless a collection has its own number."""


class ChromaPlace(VectorsPlace, Protocol):
    """Where Chroma keeps its data."""

    def connect(self) -> Any:
        """Return a client of `chromadb`. Called in the process that uses it."""

    def disconnect(self, client: Any) -> None:
        """Release a client that `connect` returned."""

    def blank(self) -> None:
        """Zero the unused space in Chroma's index files. Call it only while no client writes."""

    def overwrite(self, keys: Collection[str]) -> int:
        """Overwrite deleted data, as far as this process can, also while a client writes.

        Returns how many of these keys are still there.
        """

    def scrub(self) -> None:
        """Rewrite all files, as far as this process can, while no client is open."""

    def paths(self) -> Sequence[Path] | None:
        """Return the folders of this machine with the data; None if a server has it."""


@dataclass(frozen=True)
class ChromaFolder:
    """A folder of this machine. Only one process at a time can open it: another one gets a StoreError.

    Chroma's part of the work is done in a process of its own; see `ChromaProcess`.
    """

    path: str | Path
    """A relative path is made absolute at once."""

    def __post_init__(self) -> None:
        _check_installed(type(self).__name__)
        object.__setattr__(self, "path", Path(self.path).expanduser().absolute())

    def open(self, name: str, embedding: str) -> Vectors:
        """See `VectorsPlace.open`."""
        from turnwise.memory.longterm.index.chroma_process import ProcessVectors

        return ProcessVectors(self, name, embedding)

    def connect(self) -> Any:
        import chromadb

        folder_lock.acquire(self.path)  # Chroma has no lock of its own, and processes do not see each other's vectors
        try:
            return chromadb.PersistentClient(str(self.path), settings=_settings())
        except BaseException:
            folder_lock.release(self.path)
            raise

    def disconnect(self, client: Any) -> None:
        try:
            client.close()
            chroma_files.zero_unused_space(Path(self.path))
        finally:
            folder_lock.release(self.path)

    def scrub(self) -> None:
        """Remove all deleted data from Chroma's files. Only while no client has them open."""
        folder = Path(self.path)
        if (folder / chroma_files.DATABASE).exists():
            folder_lock.acquire(self.path)
            try:
                chroma_files.rewrite(folder)
            finally:
                folder_lock.release(self.path)

    def blank(self) -> None:
        chroma_files.zero_unused_space(Path(self.path))

    def overwrite(self, keys: Collection[str]) -> int:
        return chroma_files.overwrite(Path(self.path), keys)

    def paths(self) -> list[Path]:
        return [Path(self.path).absolute()]


@dataclass(frozen=True, kw_only=True)
class ChromaServer:
    """A server that `chroma run` started. Deleted data stays in its files until somebody runs `chroma vacuum`."""

    host: str = "localhost"
    port: int = 8000
    ssl: bool = False
    timeout_s: float = 10.0
    """How long one request may take, in seconds."""

    def __post_init__(self) -> None:
        _check_installed(type(self).__name__)
        check_whole_number("ChromaServer.port", self.port, 1, 65535)
        check_seconds("ChromaServer.timeout_s", self.timeout_s, may_be_0=False)

    def open(self, name: str, embedding: str) -> Vectors:
        """See `VectorsPlace.open`."""
        from turnwise.memory.longterm.index.collection import VectorCollection

        return VectorCollection(self, name, embedding)

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
        """Do nothing: only the server can change its files."""

    def overwrite(self, keys: Collection[str]) -> int:
        """Do nothing: only the server can change its files."""
        return 0

    def scrub(self) -> None:
        """Do nothing: only the server can change its files."""

    def paths(self) -> None:
        return None


@dataclass(frozen=True)
class PostgresVectors:
    """A table of PostgreSQL, without Chroma. Recall reads a user's vectors, so it needs no index and no extension."""

    url: str = field(repr=False)
    """`postgresql://user:password@host/name`; it may be that of other stores."""

    def open(self, name: str, embedding: str) -> Vectors:
        """See `VectorsPlace.open`."""
        from turnwise.memory.longterm.index.sql_vectors import SQLVectors

        return SQLVectors(self.url, name, embedding)


@dataclass(frozen=True)
class ChromaInMemory:
    """Chroma in this process's memory, shared by all indexes of the process. For tests."""

    def __post_init__(self) -> None:
        _check_installed(type(self).__name__)

    def open(self, name: str, embedding: str) -> Vectors:
        """See `VectorsPlace.open`."""
        from turnwise.memory.longterm.index.collection import VectorCollection

        return VectorCollection(self, name, embedding)

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


def _check_installed(kind: str) -> None:
    """Check that Chroma is installed, without importing it, which takes a second.

    Raises:
        ConfigError: it is not.
    """
    try:
        is_installed = find_spec("chromadb") is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        reason = "needs Chroma: pip install chromadb, or pass embedding=None, which searches by words"
        raise ConfigError("embedding", kind, reason)


def _settings() -> Any:
    from chromadb.config import Settings

    return Settings(anonymized_telemetry=False)


def _http_sessions(client: Any) -> list[Any]:
    """Return the httpx clients of a Chroma client; none if it has none."""
    servers: list[Any] = [getattr(part, "_server", None) for part in (client, getattr(client, "_admin_client", None))]
    return [server._session for server in servers if hasattr(server, "_session")]  # noqa: SLF001 - no other way to them
