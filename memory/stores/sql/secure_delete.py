"""`SecureDeleteDatabase`: the base of SQL stores whose deleted text must not stay readable in files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from turnwise.errors import StoreError
from turnwise.memory.stores.sql.database import SQLDatabase
from turnwise.memory.stores.sql.schema_version import Schema
from turnwise.memory.stores.sql.touched_pages import note_pages, notes_pages
from turnwise.memory.stores.urls import resolve_url

Result = TypeVar("Result")

_LOG_HEADER, _FRAME_HEADER = 32, 24
"""Bytes before the pages of a WAL file, and before each page in it."""

_EMPTYING_MS = 1000
"""How long to wait for readers before SQLite's log can be emptied, in milliseconds."""


class SecureDeleteDatabase(SQLDatabase):
    """Base of stores of users' text. Pickling keeps the settings only, including the URL's password.

    Text deleted from a SQLite file is overwritten there, and the log is emptied unless another process is reading.
    PostgreSQL overwrites deleted text later, when it vacuums.
    """

    schema: Schema
    """The tables of the subclass."""

    def __init__(
        self, url: str, *, lock_timeout_s: float = 30.0, connections: int = 4, make_schema: bool = True
    ) -> None:
        if isinstance(url, str) and url.startswith("sqlite"):
            url = resolve_url(url)  # absolute, so that a pickle names the same file everywhere
        limits: dict[str, Any] = {
            "lock_timeout_s": lock_timeout_s,
            "connections": connections,
            "make_schema": make_schema,
        }
        super().__init__(url, self.schema, **limits)
        self._settings: dict[str, Any] = {"url": url, **limits}
        self._is_sqlite = self._engine.dialect.name == "sqlite"
        if self._is_sqlite:
            sa.event.listen(self._engine, "connect", _turn_on_secure_delete)

    async def scrub(self) -> None:
        """Rewrite a SQLite file, so that it contains nothing that was deleted. O(size of the file).

        Other stores of the same file wait meanwhile. Does nothing on PostgreSQL, which vacuums by itself.

        Raises:
            StoreError: another process reads or writes for longer than the lock timeout; try again.
        """
        if self._is_sqlite:
            await self._on_thread(self._rewrite)

    def paths(self) -> list[Path]:
        """Return the SQLite file and its possible side files (log and shared memory); none for PostgreSQL."""
        if not self._is_sqlite:
            return []
        file = Path(self._engine.url.database or "").absolute()
        return [file, *(file.with_name(f"{file.name}-{kind}") for kind in ("wal", "shm", "journal"))]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._settings), ()

    def _lock_user(self, connection: sa.Connection, user_id: str) -> None:
        """Make this the only transaction that writes items of this user; on SQLite, the only one that writes at all."""
        if not self._is_sqlite:
            name = f"{self.schema.name} {user_id}".encode(errors="surrogatepass")
            number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), signed=True)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(number)))

    async def _erase(self, *works: Callable[[sa.Connection], Result]) -> list[Result]:
        """Run each of `works` in a transaction of its own, and return their results.

        Then empties SQLite's log, so that no deleted text remains in it. Inside `touched_pages.noting`, the pages that
        were written are recorded.

        Args:
            works: each returns something true if it has deleted anything; both are left out where none has.
        """
        done: list[Result] = []
        try:
            for work in works:
                result = await self._on_thread(partial(copy_context().run, self._erased, work))
                done.append(result)
            return done
        finally:
            if any(done):
                await self._empty_log_after_deletion()

    def _erase_here(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Do what `_erase` does, in the calling thread, which it blocks."""
        result = self._here(partial(self._erased, work))
        if result and self._is_sqlite:
            with suppress(StoreError):  # whatever it is, the next call meets it
                self._here(self._empty_log)
        return result

    def _erased(self, work: Callable[[sa.Connection], Result]) -> Result:
        if not (self._is_sqlite and notes_pages()):
            return self._connected(self._engine, work)
        result, pages = self._noting_pages(work)
        note_pages(self.paths()[0], pages)
        return result

    async def _empty_log_after_deletion(self) -> None:
        """Empty SQLite's log after a deletion. Raises nothing: the deletion is done, and an error may be at hand."""
        if self._is_sqlite:
            with suppress(StoreError):  # whatever it is, the next call meets it
                await self._on_thread(self._empty_log)

    def _noting_pages(self, work: Callable[[sa.Connection], Result]) -> tuple[Result, set[int]]:
        """Run the work; return its result and the pages that it wrote, and those that were in SQLite's log before."""
        file, log, *_ = self.paths()
        # While this connection reads, SQLite does not restart the log, so the log has all pages that the work writes.
        with closing(self._driver.connect(file, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT 1 FROM sqlite_master").fetchone()
            result = self._connected(self._engine, work)
            return result, _pages_in(log) if result else set()

    def _rewrite(self) -> None:
        with self._engine.connect() as connection:
            cursor = connection.connection.cursor()
            cursor.execute("VACUUM")
            (is_busy, *_) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise StoreError(
                f"store {self._name}: another process reads it, so its log still has deleted text; try again"
            )

    def _empty_log(self) -> None:
        """Move SQLite's log, which may still hold deleted text, into its file, and empty the log."""
        # The deletion is done, so this must neither fail nor wait long; the next deletion tries again.
        with suppress(self._driver.Error, exc.SQLAlchemyError), self._engine.connect() as connection:
            cursor = connection.connection.cursor()
            (timeout_ms,) = cursor.execute("PRAGMA busy_timeout").fetchone()
            cursor.execute(f"PRAGMA busy_timeout = {min(timeout_ms, _EMPTYING_MS)}")
            try:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                cursor.execute(f"PRAGMA busy_timeout = {timeout_ms}")


def _pages_in(log: Path) -> set[int]:
    """Return the numbers of the pages in a SQLite log. Outdated pages may be among them, which does no harm."""
    try:
        log_bytes = log.read_bytes()
    except FileNotFoundError:
        return set()
    if len(log_bytes) < _LOG_HEADER:
        return set()
    size = int.from_bytes(log_bytes[8:12], "big") + _FRAME_HEADER
    return {
        int.from_bytes(log_bytes[offset : offset + 4], "big") for offset in range(_LOG_HEADER, len(log_bytes), size)
    }


def _turn_on_secure_delete(connection: Any, _: object) -> None:
    connection.execute("PRAGMA secure_delete = ON")
