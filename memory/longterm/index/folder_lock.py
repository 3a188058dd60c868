"""A lock on a folder that only one process at a time may have open, such as Chroma's, which has no lock of its own."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from turnwise.errors import StoreError

NAME = "turnwise.lock"
"""The file in the folder that is locked."""

WAIT_S = 1.0
"""How long `acquire` waits for another process, in seconds: one whose parent was killed takes a moment to end."""

_connections: dict[Path, tuple[sqlite3.Connection, int]] = {}
"""The connection and the number of `acquire` calls of each folder that this process has locked."""

_guard = threading.Lock()
"""Guards `_connections`."""


def acquire(folder: str | Path) -> None:
    """Lock a folder for this process, until `release` was called as often as `acquire`, or the process ends.

    The folder is created if it does not exist. Waits up to `WAIT_S` for another process.

    Raises:
        StoreError: another process has locked it, or it cannot be written.
    """
    path = Path(folder).resolve()
    with _guard:
        if path in _connections:
            connection, count = _connections[path]
        else:
            connection, count = _connect_locked(path), 0
        _connections[path] = connection, count + 1


def release(folder: str | Path) -> None:
    """Undo one `acquire`; the last one releases the lock."""
    path = Path(folder).resolve()
    with _guard:
        connection, count = _connections.pop(path)
        if count > 1:
            _connections[path] = connection, count - 1
        else:
            connection.close()


def _connect_locked(path: Path) -> sqlite3.Connection:
    # SQLite's lock, since it works on every system, and is released when the process is killed.
    connection = None
    try:
        path.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path / NAME, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN EXCLUSIVE")
    except (OSError, sqlite3.Error) as error:
        if connection is not None:
            connection.close()
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            reason = "another process has it open: end that one, or let both use a server, ChromaServer()"
            raise StoreError(f"folder {path}: {reason}") from error
        raise StoreError(f"folder {path}: it cannot be opened: {error}") from error
    return connection
