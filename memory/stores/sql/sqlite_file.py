"""A file of SQLite: how it is opened, and whether it is still the one that was opened."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa

from turnwise.errors import StoreError

LOOK_S = 0.001
"""How often a writer looks whether the file is free."""


class SQLiteFile:
    """The file that an engine has open.

    A process that has a file open goes on with it after somebody has deleted it or put another in its place, and what
    it writes is lost. So each transaction looks whether the file is where it was.

    Args:
        name: of the store, as it may be shown.
        lock_timeout_s: how long to wait for another process's transaction.
        is_read_only: whether the engine opens it for reading.
    """

    def __init__(self, engine: sa.Engine, name: str, lock_timeout_s: float, is_read_only: bool) -> None:
        self._name = name
        self._path = Path()
        self._inode: tuple[int, int] | None = None
        _configure(engine, lock_timeout_s, is_read_only)

    def remember(self, connection: sa.Connection) -> None:
        """Take the file that the connection is to for the one."""
        databases = connection.exec_driver_sql("PRAGMA database_list")
        self._path = Path(next(path for _, name, path in databases if name == "main"))
        self._inode = _inode(self._path)

    def check(self) -> None:
        """Raise if it is gone or another, once it has been remembered.

        Raises:
            StoreError: it was deleted or replaced; what was written last may be lost.
        """
        if self._inode is None or (found := _inode(self._path)) == self._inode:
            return
        what = "is gone" if found is None else "is another than the one that was opened"
        raise StoreError(f"store {self._name}: its file {what}: put that back, or end all processes that have it open")


def path_of(url: sa.URL) -> Path:
    """Return where the file of a URL is, with links resolved."""
    database = url.database or ""
    if database.startswith("file:"):
        database = unquote(urlsplit(database).path)
    return Path(database).resolve()


def begin_writing(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Begin a transaction that has the file's lock at once, as one that upgrades from reading can fail without waiting.

    Waits for others by looking every `LOOK_S`. SQLite's own wait looks less and less often, at last every 0.1 s: of two
    processes that write all the time, one then stands still for half a second again and again.

    Args:
        connection: its busy_timeout is 0.

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


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _configure(engine: sa.Engine, lock_timeout_s: float, is_read_only: bool) -> None:
    patience = f"PRAGMA busy_timeout = {int(lock_timeout_s * 1000)}"

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction on its own
        connection.execute(patience)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 8000")  # pages; for processes that end before they make one
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
    """Switch the file to WAL. Of two that open a new file at once SQLite refuses one, and does not let it wait."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
