"""`SQLiteOwner`: a lock beside a SQLite file, held by the processes of its one owner, such as a Ray cluster."""

from __future__ import annotations

import os
import socket
import sqlite3
import struct
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from turnwise.errors import ConfigError, StoreError
from turnwise.memory.stores.store_owner import StoreOwner, naming

LOOK_S = 0.05
"""How often a held lock is tried again, in seconds."""

PATIENCE_S = 0.5
"""How long to wait for a lock that another cluster holds briefly, for example to read the owner, in seconds."""

ENDING_S = 20.0
"""How long to wait for the processes of a Ray cluster that has ended, in seconds. They end soon after it."""


class SQLiteOwner:
    """This process's share of its owner's lock on a SQLite file, until `release` or the end of the process.

    The lock is one of SQLite's own, on a file `<name>.lock`: it works on every system, and the system releases it when
    the process ends. A process that gets the lock exclusively writes its owner into that file, then shares the lock and
    reads the owner again. Processes of the same owner share the lock; others are refused.

    Args:
        file: the SQLite file, with links resolved, so that it has one lock.
        name: the store's name in messages.

    Raises:
        ConfigError: another owner has the file; nothing was changed.
        StoreError: the lock cannot be written, or its folder does not exist.
    """

    def __init__(self, file: Path, name: str, owner: StoreOwner) -> None:
        self._path = file.with_name(f"{file.name}.lock")
        self._name = name
        self._owner = owner
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        began = time.monotonic()
        while (holder := self._try_lock()) is not None:
            waited_s = time.monotonic() - began
            if waited_s > ENDING_S or (waited_s > PATIENCE_S and _is_reached(holder)):
                raise ConfigError("store", name, _reason(holder))
            time.sleep(LOOK_S)

    def release(self) -> None:
        """Release the lock. Does nothing in a process that was forked from the one that took it."""
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
        self._connection = None

    def _try_lock(self) -> StoreOwner | None:
        """Take a share of the lock; return None if that succeeded, otherwise the owner that holds the lock.

        Its ids are empty if the holder is unknown.
        """
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            _claim(connection, self._owner)
            holder = _share(connection)
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                return StoreOwner("", "")
            check_folder(self._path, self._name)
            reason = f"the lock file {self._path} cannot be written ({error})"
            raise StoreError(
                f"store {self._name}: {reason}; make it writable, or open it with read_only=True"
            ) from error
        if holder == self._owner:
            self._connection = connection
            return None
        connection.close()
        return holder


def check_folder(file: Path, name: str) -> None:
    """Refuse a SQLite file in a folder that does not exist.

    Raises:
        StoreError: it does not.
    """
    if not file.parent.exists():
        raise StoreError(f"store {name}: the folder {file.parent} does not exist: create it, or correct the path")


def running_owner(file: Path) -> StoreOwner | None:
    """Return the owner that had a SQLite file last, if it still runs; None otherwise. Takes no lock."""
    path = file.with_name(f"{file.name}.lock")
    if not path.exists():
        return None
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=PATIENCE_S)
    try:
        row = connection.execute("SELECT address, session FROM owner").fetchone()
    except sqlite3.Error:  # it is being written, or is no lock of turnwise's
        return None
    finally:
        connection.close()
    owner = StoreOwner(*row) if row else None
    return owner if owner and _is_reached(owner) else None


@dataclass(frozen=True)
class Holder:
    """Who has a SQLite file open."""

    owner: StoreOwner
    """Its address is empty if it is not known."""
    pid: int
    """The id of a process that has it open: one of the Ray's, or the owner itself."""


def lock_holder(file: Path) -> Holder | None:
    """Return who has a SQLite file open; None if nobody has, or this process, or if this system does not say.

    The system is asked who holds the lock beside the file, so nothing is locked here.
    """
    lock = file.with_name(f"{file.name}.lock")
    if sys.platform != "linux" or not lock.exists():
        return None
    import fcntl

    first, size = 0x40000002, 510  # SQLite's shared lock
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first, size, 0)
    with lock.open("rb") as opened:
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(opened, fcntl.F_GETLK, request))
    if kind == fcntl.F_UNLCK:
        return None
    try:
        with closing(sqlite3.connect(f"{lock.as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT address, session FROM owner").fetchone()
    except sqlite3.Error:
        row = None
    return Holder(StoreOwner(*row) if row else StoreOwner("", ""), pid)


def _claim(connection: sqlite3.Connection, owner: StoreOwner) -> None:
    """Write the owner into the lock file, if no other process has the lock."""
    connection.execute("PRAGMA synchronous = OFF")  # the owner is meaningless after a crash of the machine
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return
        raise
    connection.execute("CREATE TABLE IF NOT EXISTS owner (address TEXT NOT NULL, session TEXT NOT NULL)")
    connection.execute("DELETE FROM owner")
    connection.execute("INSERT INTO owner VALUES (?, ?)", (owner.address, owner.session))
    connection.execute("COMMIT")


def _share(connection: sqlite3.Connection) -> StoreOwner:
    """Return the owner of the file. The connection shares the lock from then on, until it is closed."""
    connection.execute("BEGIN")
    return StoreOwner(*connection.execute("SELECT address, session FROM owner").fetchone())


def _is_reached(owner: StoreOwner) -> bool:
    """Return whether an owner is there: whether its head node accepts connections, or its process runs."""
    if owner.is_process:
        return owner.is_running_process
    host, _, port = owner.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except (OSError, ValueError):
        return False
    return True


def _reason(holder: StoreOwner) -> str:
    if holder.is_process:
        return (
            f"{holder.name} has it open, and two processes would interrupt each other's runs: close its managers, or"
            " use one process; let all programs use one Ray: run `ray start --head` before them; only to read, open it"
            " with read_only=True; or use PostgreSQL"
        )
    holder_text = f"{holder.name} has it open" if holder.address else "an unknown process holds its lock"
    name = f"set {naming(holder.address)}" if holder.address else "name it by RAY_ADDRESS"
    return (
        f"{holder_text}, and two clusters would interrupt each other's runs: let all programs use one: run"
        f" `ray start --head` before them, or {name}; only to read, open it with read_only=True; or use PostgreSQL"
    )
