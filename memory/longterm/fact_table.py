"""`FactTable`: facts in a table of an application's own SQL database, which is only read."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from turnwise.errors import InvalidMemoryError
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.rules import checked_item
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.stores.sql.database import SQLDatabase, transaction
from turnwise.memory.stores.sql.schema_version import Schema
from turnwise.memory.stores.urls import read_only, resolve_url
from turnwise.memory.values.ranges import check_seconds


class FactTable(SQLDatabase):
    """A table with one fact per row. Nothing is written to its database. A pickle has the settings only.

    The rows are read at first use, and again after `refresh_s`. If that fails, the earlier rows are used, with the
    failure as `trouble`.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`.
        table: the name of a table or view.
        id: the column of the facts' ids, which are unique; values of any type are ids as text.
        text: the column of the texts.
        topic: the column of the topics; None for no topics.
        type: the type of all facts.
        refresh_s: how long the rows are used until they are read again, in seconds; 0 reads them at each recall.
        lock_timeout_s: how long a query may take until a StoreError, in seconds.

    Raises:
        ConfigError: `refresh_s` is negative.
        StoreURLError: the URL names no database that can be used here.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        id: str = "id",
        text: str = "text",
        topic: str | None = None,
        type: MemoryType = MemoryType.FACTS,
        refresh_s: float = 60.0,
        lock_timeout_s: float = 10.0,
    ) -> None:
        check_seconds("FactTable.refresh_s", refresh_s)
        url = resolve_url(url)
        super().__init__(read_only(url), _NO_SCHEMA, lock_timeout_s=lock_timeout_s, connections=1)
        self._settings: dict[str, Any] = {
            "url": url,
            "table": table,
            "id": id,
            "text": text,
            "topic": topic,
            "type": MemoryType(type),
            "refresh_s": refresh_s,
            "lock_timeout_s": lock_timeout_s,
        }
        self._items: tuple[MemoryItem, ...] | None = None
        self._read_at = 0.0
        self._reading = asyncio.Lock()
        self.trouble: str | None = None
        """Why the rows could not be read again; None if they could."""

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._settings), ()

    def __repr__(self) -> str:
        return f"FactTable({self._name!r}, {self._settings['table']!r})"

    async def items(self) -> Sequence[MemoryItem]:
        """Return the facts in the order of their ids.

        Raises:
            StoreError: the table cannot be read, and never was.
            InvalidMemoryError: a row has no id or no text; the error names it.
        """
        async with self._reading:
            if self._items is None or time.monotonic() - self._read_at >= self._settings["refresh_s"]:
                try:
                    self._items = await self._read(self._rows)
                    self.trouble = None
                except Exception as error:
                    if self._items is None:
                        raise
                    self.trouble = str(error)
                self._read_at = time.monotonic()
            return self._items

    def _rows(self, connection: sa.Connection) -> tuple[MemoryItem, ...]:
        names = [self._settings[name] for name in ("id", "text", "topic")]
        columns: list[Any] = [sa.column(name) for name in names if name is not None]
        select = sa.select(*columns).select_from(sa.table(self._settings["table"])).order_by(columns[0])
        rows = connection.execute(select).all()
        items = {str(row[0]): self._item(*row) for row in rows}
        if len(items) < len(rows):
            raise InvalidMemoryError(names[0], f"the column of ids in {self!r} has one value twice")
        return tuple(items.values())

    def _item(self, id: Any, text: Any, topic: Any = None) -> MemoryItem:
        if id is None or not isinstance(text, str):
            raise InvalidMemoryError(str(id), f"its row in {self!r} has no id or no text")
        topic_text = None if topic is None else str(topic)
        return checked_item(_EVERYONE, MemoryItem(id=str(id), text=text, type=self._settings["type"], topic=topic_text))

    def _enter(self, connection: Any) -> None:
        """Do nothing: the tables belong to the application."""

    def _prepare(self) -> None:
        """Do nothing, likewise."""
        if self._file:
            with transaction(self._reader) as connection:
                self._file.remember(connection)
        self._ready = True


_NO_SCHEMA = Schema(name="none", version=0, tables=sa.MetaData())

_EVERYONE = Scope(user_id="everyone")
