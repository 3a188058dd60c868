"""What goes on between SQL stores and their databases, seen and delayed by events of SQLAlchemy and of the driver."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from turnwise.memory.stores.sql.commits import CommitWriter
from turnwise.memory.stores.sql.store import SQLStore

Write = Callable[[], Any]
"""Writes a group of commits."""


_listeners: dict[str, list[Callable[..., object]]] = {"connect": [], "begin": [], "commit": []}


def _call(event: str, *args: object) -> None:
    for listener in tuple(_listeners[event]):
        listener(*args)


for _event in _listeners:  # once and for all: threads of other stores may be at an event when a test ends
    sa.event.listen(sa.Engine, _event, partial(_call, _event))


@contextmanager
def listening(event: str, listener: Callable[..., object]) -> Iterator[None]:
    """Call a function at an event of SQLAlchemy, of all engines in this process."""
    _listeners[event].append(listener)
    try:
        yield
    finally:
        _listeners[event].remove(listener)


@contextmanager
def driver_connections() -> Iterator[list[Any]]:
    """Yield a list that gets the driver's connections that are opened in the block."""
    connections: list[Any] = []
    with listening("connect", lambda connection, _: connections.append(connection)):
        yield connections


@contextmanager
def traced() -> Iterator[list[str]]:
    """Yield a list that gets what SQLite carries out on the connections that are opened in the block."""
    statements: list[str] = []
    with listening("connect", lambda connection, _: connection.set_trace_callback(statements.append)):
        yield statements


@contextmanager
def disk_for_sqlite() -> Iterator[Callable[[int], None]]:
    """Yield a function that limits the pages of SQLite files, as a full disk does, for connections opened meanwhile."""
    pages = 2**30

    def limit(count: int) -> None:
        nonlocal pages
        pages = count
        for connection in connections:
            with suppress(sqlite3.ProgrammingError):  # it is closed
                connection.execute(f"PRAGMA max_page_count = {pages}")

    with (
        driver_connections() as connections,
        listening("connect", lambda connection, _: connection.execute(f"PRAGMA max_page_count = {pages}")),
    ):
        yield limit


@asynccontextmanager
async def busy(store: SQLStore) -> AsyncIterator[None]:
    """Keep the only thread of a store busy with a read, so that calls wait meanwhile."""
    go_on, is_busy = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        if not is_busy.is_set():
            is_busy.set()
            go_on.wait(60)

    with listening("begin", hold):
        read = asyncio.ensure_future(store.count())
        await asyncio.to_thread(is_busy.wait, 60)
        try:
            yield
        finally:
            go_on.set()
            await read


def around_commits(monkeypatch: pytest.MonkeyPatch, around: Callable[[Write, Any, Sequence[Any]], Any]) -> None:
    """Call `around`, instead of writing a group of commits, with what writes it, the driver's cursor and the group."""
    write = CommitWriter.write

    def instead(writer: CommitWriter, cursor: Any, group: Sequence[Any]) -> Any:
        return around(lambda: write(writer, cursor, group), cursor, group)

    monkeypatch.setattr(CommitWriter, "write", instead)
