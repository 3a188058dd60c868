"""Which Ray a file of SQLite belongs to: a lock beside the file, held by the processes of that Ray."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from pathlib import Path

from turnwise.errors import ConfigError, StoreError
from turnwise.memory.stores.sharing import RayId

LOOK_S = 0.05
"""How often the lock is looked at while others have it, in seconds."""

PATIENCE_S = 0.5
"""How long others may hold the lock, such as to look at it, before another Ray is refused, in seconds."""

ENDING_S = 20.0
"""How long to wait for a Ray that has ended, and cannot be reached: its processes end soon, too; in seconds."""


class SQLiteOwner:
    """This process's share of its Ray's claim on a file of SQLite: until `release`, or until the process ends.

    The claim is one of SQLite's own locks, on a file `<name>.lock`: they are there on every system, and go with the
    process that holds them, however it ends. Who gets the lock alone writes down its Ray, then shares the lock, and
    reads there whose it is by then. Others of the same Ray share it; of another Ray nobody does.

    Args:
        file: with links resolved, so that there is one lock for it.
        name: of the store, as it may be shown.

    Raises:
        ConfigError: another Ray has the file; nothing was changed.
        StoreError: the lock cannot be written.
    """

    def __init__(self, file: Path, name: str, ray: RayId) -> None:
        self._path = file.with_name(f"{file.name}.lock")
        self._name = name
        self._ray = ray
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        began = time.monotonic()
        while (holder := self._try()) is not None:
            waited_s = time.monotonic() - began
            if waited_s > ENDING_S or (waited_s > PATIENCE_S and _is_reached(holder)):
                raise ConfigError("store", name, _why(holder))
            time.sleep(LOOK_S)

    def release(self) -> None:
        """Let go of the file. A process that was forked from the one that has it changes nothing."""
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
        self._connection = None

    def _try(self) -> RayId | None:
        """Take a share of the lock; return who has it if that is another Ray, or somebody who does not say."""
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            _claim(connection, self._ray)
            holder = _share(connection)
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                return RayId("", "")
            why = f"{self._path} cannot be written, which says which Ray has the store ({error})"
            raise StoreError(f"store {self._name}: {why}; make it writable, or open it with read_only=True") from error
        if holder == self._ray:
            self._connection = connection
            return None
        connection.close()
        return holder


def _claim(connection: sqlite3.Connection, ray: RayId) -> None:
    """Write down whose the file is, if nobody else has the lock."""
    connection.execute("PRAGMA synchronous = OFF")  # it says nothing after a crash of the machine
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return
        raise
    connection.execute("CREATE TABLE IF NOT EXISTS owner (address TEXT NOT NULL, session TEXT NOT NULL)")
    connection.execute("DELETE FROM owner")
    connection.execute("INSERT INTO owner VALUES (?, ?)", (ray.address, ray.session))
    connection.execute("COMMIT")


def _share(connection: sqlite3.Connection) -> RayId:
    """Return whose the file is; the lock is shared from then on, until the connection is closed."""
    connection.execute("BEGIN")
    return RayId(*connection.execute("SELECT address, session FROM owner").fetchone())


def _is_reached(ray: RayId) -> bool:
    """Return whether something answers at the head of a Ray."""
    host, _, port = ray.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except (OSError, ValueError):
        return False
    return True


def _why(holder: RayId) -> str:
    who = (
        f"another Ray has it open, at {holder.address}"
        if holder.address
        else "its lock is held, and nobody says by whom"
    )
    return (
        f"{who}, and two would interrupt each other's runs: let all processes share one, by `ray start --head` and"
        " RAY_ADDRESS; or open it with read_only=True, or use PostgreSQL"
    )
