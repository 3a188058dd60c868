"""`SQLGraphItems`: the items of `TurnwiseStore` in an SQL database, which may be a session store's database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Double, Index, LargeBinary, MetaData, PrimaryKeyConstraint, Table, Text

from turnwise.adapters.langgraph.items import Batch, ItemKey
from turnwise.memory.stores.sql.database import insert_into
from turnwise.memory.stores.sql.schema_version import WHERE, Schema
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase

tables = MetaData()

SCHEMA = Schema(name="langgraph_items_version", version=1, tables=tables)

_NAME = Text(collation="C").with_variant(Text(), "sqlite")
"""Namespaces sort by their bytes in all databases, so that a prefix is a range."""

items = Table(
    "turnwise_langgraph_items",
    tables,
    Column("namespace", _NAME, nullable=False),  # each label, followed by a dot
    Column("key", _NAME, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("vectors", LargeBinary),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("ttl_s", Double),
    Column("expires_at", Double),
    PrimaryKeyConstraint("namespace", "key"),
    Index("turnwise_langgraph_items_expiry", "expires_at", info={WHERE: sa.text("expires_at IS NOT NULL")}),
)


class SQLGraphItems(SecureDeleteDatabase):
    """Stores items in a table of their own, through SQLAlchemy Core.

    Deleted data in a SQLite file is overwritten, and a pickle has the settings: see `SecureDeleteDatabase`.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`; it may be that of other stores.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError.
        connections: the most connections to PostgreSQL at once.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    schema = SCHEMA

    async def read(self, batch: Batch) -> tuple[dict[ItemKey, Any], list[list[Any]], list[str]]:
        """Return rows by name, the rows of each search, and all namespaces, at one moment.

        A row has an attribute for each column. Those of a search have the latest updated first. Expired items are as if
        deleted.
        """
        return await self._read_snapshot(lambda connection: _rows(connection, batch))

    async def refresh(self, names: Sequence[ItemKey], now: float) -> None:
        """Let the times to live of these items begin again, in one transaction."""

        def refresh(connection: sa.Connection) -> None:
            for namespace, key in sorted(names):
                here = (items.c.namespace == namespace, items.c.key == key, items.c.expires_at > now)
                connection.execute(sa.update(items).where(*here).values(expires_at=now + items.c.ttl_s))

        await self._write(refresh)

    async def write(self, batch: Batch) -> None:
        """Store and delete items, and delete the expired ones, in one transaction."""

        def write(connection: sa.Connection) -> int:
            deleted = connection.execute(sa.delete(items).where(items.c.expires_at <= batch.now)).rowcount
            insert = insert_into(items, connection.dialect)
            # In the order of their names, so that two transactions never wait for each other.
            for name, row in sorted(batch.puts.items(), key=lambda put: put[0]):
                if row is None:
                    here = (items.c.namespace == name[0], items.c.key == name[1])
                    deleted += connection.execute(sa.delete(items).where(*here)).rowcount
                    continue
                key = {"namespace": name[0], "key": name[1], "created_at": batch.now}
                put = insert.values(**key, **row)
                connection.execute(put.on_conflict_do_update(index_elements=["namespace", "key"], set_=dict(row)))
            return deleted

        await self._erase(write)

    async def sweep(self, now: float) -> int:
        """Delete the expired items; return how many."""
        delete = sa.delete(items).where(items.c.expires_at <= now)
        (swept,) = await self._erase(lambda connection: connection.execute(delete).rowcount)
        return swept


def _rows(connection: sa.Connection, batch: Batch) -> tuple[dict[ItemKey, Any], list[list[Any]], list[str]]:
    live = items.c.expires_at.is_(None) | (items.c.expires_at > batch.now)
    rows_by_name: dict[ItemKey, Any] = {}
    for name in dict.fromkeys(batch.gets):
        select = sa.select(items).where(items.c.namespace == name[0], items.c.key == name[1], live)
        if row := connection.execute(select).one_or_none():
            rows_by_name[name] = row
    searches = []
    for search in batch.searches:
        select = sa.select(items).where(live, *_under(search.prefix))
        select = select.order_by(items.c.updated_at.desc(), items.c.namespace, items.c.key)
        searches.append([*connection.execute(select.limit(search.limit).offset(search.offset)).all()])
    names = sa.select(items.c.namespace).where(live).distinct()
    return rows_by_name, searches, [*connection.scalars(names)] if batch.lists_namespaces else []


def _under(prefix: str) -> list[sa.ColumnElement[bool]]:
    """Select the namespaces that begin with a prefix: '/' is the character after '.'."""
    return [items.c.namespace >= prefix, items.c.namespace < f"{prefix[:-1]}/"] if prefix else []
