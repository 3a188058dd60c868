"""`SQLiteFile`: opens a SQLite file, and detects that it or its log was deleted or replaced while open."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa

from turnwise.errors import StoreError

LOOK_S = 0.001
"""How often a waiting writer checks whether the file is free, in seconds."""


class SQLiteFile:
    """The file that an engine has open.

    A process that has a file open can still write to it after the file was deleted or replaced, and those writes are
    lost. So each transaction checks that the path still names the same file. The same holds for the log (`-wal`), which
    has the last commits, and for its index (`-shm`), by which processes wait for each other. SQLite itself deletes them
    only when nobody has the file open, and the pool of the engine has it open until the end.

    Args:
        name: the store's name in messages.
        lock_timeout_s: how long to wait for another process's transaction, in seconds.
        is_read_only: whether the engine opens it for reading.
    """

    def __init__(self, engine: sa.Engine, name: str, lock_timeout_s: float, is_read_only: bool) -> None:
        self._name = name
        self._inodes: dict[str, tuple[int, int]] = {}
        """By path."""
        _configure(engine, lock_timeout_s, is_read_only)

    def remember(self, connection: sa.Connection) -> None:
        """Remember the identity of the files that the connection has open."""
        databases = connection.exec_driver_sql("PRAGMA database_list")
        path = next(path for _, name, path in databases if name == "main")
        connection.exec_driver_sql("SELECT 1 FROM sqlite_master").all()  # the first read opens the log
        inodes = {name: _inode(name) for name in (path, *(f"{path}-{part}" for part in _SIDES))}
        self._inodes = {name: inode for name, inode in inodes.items() if inode}

    def check(self) -> None:
        """Raise if a remembered file is gone or was replaced.

        Raises:
            StoreError: the file or its log was deleted or replaced; the last writes may be lost.
        """
        for path, inode in self._inodes.items():
            if (inode_now := _inode(path)) != inode:
                change = "deleted" if inode_now is None else "replaced"
                name, remedy = _SIDES.get(path.rpartition("-")[2], _MAIN)
                raise StoreError(f"store {self._name}: {name} was {change} while it was open: {remedy}")


_LOST = "stop the processes that use the database; commits that are not in its file by then are lost"
_MAIN = "the database file", "restore it, or stop the processes that use it"
_SIDES = {"wal": ("the database's log (-wal)", _LOST), "shm": ("the index of the database's log (-shm)", _LOST)}
"""The files beside a SQLite file in WAL mode, by the end of their names; and what to do."""


def path_of(url: sa.URL) -> Path:
    """Return the path of a URL's file, with links resolved."""
    database = url.database or ""
    if database.startswith("file:"):
        database = unquote(urlsplit(database).path)
    return Path(database).resolve()


def begin_writing(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Begin a transaction that takes the write lock immediately.

    Upgrading a read lock later can fail without waiting.

    Waits for other writers by trying every `LOOK_S` seconds. SQLite's own wait tries less and less often, at last every
    0.1 s: of two processes that write all the time, one would then repeatedly stall for half a second.

    Args:
        connection: a connection whose busy_timeout is 0.

    Raises:
        sqlite3.OperationalError: the file was not free within `timeout_s`.
    """
    deadline: float | None = None
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            now = time.monotonic()
            deadline = now + timeout_s if deadline is None else deadline
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or now > deadline:
                raise
        time.sleep(LOOK_S)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - faster than Path.stat, and each transaction looks
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _configure(engine: sa.Engine, lock_timeout_s: float, is_read_only: bool) -> None:
    patience = f"PRAGMA busy_timeout = {int(lock_timeout_s * 1000)}"

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions on its own
        connection.execute(patience)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 8000")  # pages; for processes that end before a checkpoint
        if not is_read_only:
            _use_wal(connection, lock_timeout_s)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("turnwise_read"):
            connection.exec_driver_sql("BEGIN")
            return
        driver: Any = connection.connection.dbapi_connection
        driver.execute("PRAGMA busy_timeout = 0")
        try:
            begin_writing(driver, lock_timeout_s)
        finally:
            driver.execute(patience)


def _use_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Switch the file to WAL. If two processes open a new file at once, SQLite refuses one without waiting; retry."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
