"""`SQLCheckpoints`: LangGraph's checkpoints in an SQL database, which may be a session store's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, PrimaryKeyConstraint, Table, Text

from turnwise.adapters.langgraph.checkpoints import Commit, Place, Row, Space
from turnwise.adapters.langgraph.encoding import Ranges
from turnwise.memory.stores.sql.database import insert_into
from turnwise.memory.stores.sql.schema_version import BY_KEY, WHERE, Schema
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase
from turnwise.memory.stores.sql.statements import Statement
from turnwise.memory.values.ids import new_key

Result = TypeVar("Result")

_AT_ONCE = 200
"""The most ids or ranges that a statement names, since databases limit the values of a statement."""

tables = MetaData()

SCHEMA = Schema(name="langgraph_checkpoints_version", version=1, tables=tables)

_ID = Text(collation="C").with_variant(Text(), "sqlite")
"""Ids sort by their bytes in all databases."""

spaces = Table(
    "turnwise_langgraph_spaces",
    tables,
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("thread_id", Text, nullable=False),
    Column("ns", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("head", _ID),
    Column("state", Text, nullable=False),
    Index("turnwise_langgraph_spaces_place", "thread_id", "ns", unique=True),
    info={BY_KEY: True},
)

checkpoints = Table(
    "turnwise_langgraph_checkpoints",
    tables,
    Column("space", BigInteger, nullable=False),
    Column("id", _ID, nullable=False),
    Column("parent", Text),
    Column("run_id", Text),
    Column("record", LargeBinary, nullable=False),
    PrimaryKeyConstraint("space", "id"),
    Index("turnwise_langgraph_checkpoints_id", "id"),
    Index("turnwise_langgraph_checkpoints_run", "run_id", info={WHERE: sa.text("run_id IS NOT NULL")}),
    info={BY_KEY: True},
)

elements = Table(
    "turnwise_langgraph_elements",
    tables,
    Column("space", BigInteger, nullable=False),
    Column("channel", Text, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("space", "channel", "position"),
    info={BY_KEY: True},
)

writes = Table(
    "turnwise_langgraph_writes",
    tables,
    Column("space", BigInteger, nullable=False),
    Column("checkpoint_id", _ID, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("space", "checkpoint_id", "number"),
    info={BY_KEY: True},
)

_PARTS = (checkpoints, elements, writes)


class _Statements:
    """The statements that each turn of a graph makes, compiled once."""

    def __init__(self, dialect: sa.Dialect) -> None:
        self.latest, self.latest_writes = _of_checkpoint(spaces.c.head, dialect)
        self.named, self.named_writes = _of_checkpoint(sa.bindparam("id", type_=_ID), dialect)
        new_space = insert_into(spaces, dialect).on_conflict_do_nothing()
        is_before = (spaces.c.key == sa.bindparam("its_key"), spaces.c.revision == sa.bindparam("before"))
        checkpoint = insert_into(checkpoints, dialect)
        content = {name: checkpoint.excluded[name] for name in ("parent", "run_id", "record")}
        checkpoint = checkpoint.on_conflict_do_update(index_elements=["space", "id"], set_=content)
        self.new_space = Statement(new_space, dialect, [column.name for column in spaces.columns])
        self.space = Statement(sa.update(spaces).where(*is_before), dialect, ["revision", "head", "state"])
        self.element = Statement(sa.insert(elements), dialect, [column.name for column in elements.columns])
        self.checkpoint = Statement(checkpoint, dialect, [column.name for column in checkpoints.columns])
        self.writes = Statement(sa.insert(writes), dialect, [column.name for column in writes.columns])


class SQLCheckpoints(SecureDeleteDatabase):
    """Stores checkpoints in tables of their own, through SQLAlchemy Core. See `CheckpointStore`.

    Deleted data in a SQLite file is overwritten, and a pickle has the settings: see `SecureDeleteDatabase`.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`; it may be that of other stores.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError.
        connections: the most connections to PostgreSQL at once.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    schema = SCHEMA

    @cached_property
    def _sql(self) -> _Statements:
        return _Statements(self._engine.dialect)

    def read(self, place: Place, id: str | None) -> tuple[Space, Row | None, list[bytes]] | None:
        first = self._sql.latest if id is None else self._sql.named
        pending = self._sql.latest_writes if id is None else self._sql.named_writes
        named = {"thread_id": place[0], "ns": place[1], "id": id}

        def read(cursor: Any) -> tuple[Space, Row | None, list[bytes]] | None:
            cursor.execute(first.text, first.bind(named))
            if (found := cursor.fetchone()) is None:
                return None
            key, revision, head, state, row_id, *rest = found
            cursor.execute(pending.text, pending.bind(named))
            row = None if row_id is None else Row(row_id, *rest)
            return Space.of(key, revision, head, state), row, [data for (data,) in cursor.fetchall()]

        return self._here(lambda: self._look(read), opens=not self.is_local)

    def values(self, key: int, ranges: Ranges) -> dict[tuple[str, int], bytes]:
        conditions = [
            (elements.c.channel == channel) & (elements.c.position >= start) & (elements.c.position < end)
            for channel, spans in ranges.items()
            for start, end in spans
        ]
        columns = (elements.c.channel, elements.c.position, elements.c.data)

        def read(connection: sa.Connection) -> dict[tuple[str, int], bytes]:
            values: dict[tuple[str, int], bytes] = {}
            for chunk in _chunks(conditions):
                select = sa.select(*columns).where(elements.c.space == key, sa.or_(*chunk))
                values |= {(channel, index): data for channel, index, data in connection.execute(select).all()}
            return values

        return self._reading(read)

    def page(
        self, thread_id: str | None, ns: str | None, *, before: str | None, limit: int
    ) -> list[tuple[Place, Space, Row]]:
        select = sa.select(spaces, checkpoints).join(checkpoints, checkpoints.c.space == spaces.c.key)
        select = select.where(*([] if thread_id is None else [spaces.c.thread_id == thread_id]))
        select = select.where(*([] if ns is None else [spaces.c.ns == ns]))
        ordered = select.order_by(checkpoints.c.id.desc(), spaces.c.thread_id, spaces.c.ns)
        first = ordered.where(*([] if before is None else [checkpoints.c.id < before])).limit(limit)

        def read(connection: sa.Connection) -> list[Any]:
            rows = [*connection.execute(first).all()]
            if len(rows) == limit:
                last = rows[-1].id
                rest = connection.execute(ordered.where(checkpoints.c.id == last)).all()
                rows = [row for row in rows if row.id != last] + [*rest]
            return rows

        return [
            ((row.thread_id, row.ns), _space(row), Row(row.id, row.parent, row.run_id, row.record))
            for row in self._reading(read)
        ]

    def writes(self, key: int, ids: Sequence[str]) -> dict[str, list[bytes]]:
        def read(connection: sa.Connection) -> dict[str, list[bytes]]:
            writes_by_id: dict[str, list[bytes]] = {}
            for chunk in _chunks(ids):
                select = sa.select(writes.c.checkpoint_id, writes.c.data)
                select = select.where(writes.c.space == key, writes.c.checkpoint_id.in_(chunk))
                for name, data in connection.execute(select.order_by(writes.c.number)).all():
                    writes_by_id.setdefault(name, []).append(data)
            return writes_by_id

        return self._reading(read)

    def early_writes(self, key: int) -> dict[str, list[bytes]]:
        joined = writes.outerjoin(
            checkpoints, (checkpoints.c.space == writes.c.space) & (checkpoints.c.id == writes.c.checkpoint_id)
        )
        select = sa.select(writes.c.checkpoint_id, writes.c.data).select_from(joined)
        select = select.where(writes.c.space == key, checkpoints.c.id.is_(None)).order_by(writes.c.number)

        def read(connection: sa.Connection) -> dict[str, list[bytes]]:
            writes_by_id: dict[str, list[bytes]] = {}
            for name, data in connection.execute(select).all():
                writes_by_id.setdefault(name, []).append(data)
            return writes_by_id

        return self._reading(read)

    def spaces(self, thread_id: str) -> list[tuple[Place, Space]]:
        select = sa.select(spaces).where(spaces.c.thread_id == thread_id)
        return [((row.thread_id, row.ns), _space(row)) for row in self._reading(lambda c: c.execute(select).all())]

    def with_runs(self, run_ids: Sequence[str]) -> list[Place]:
        def read(connection: sa.Connection) -> list[Place]:
            places: set[Place] = set()
            for chunk in _chunks(run_ids):
                select = sa.select(spaces.c.thread_id, spaces.c.ns).join(
                    checkpoints, checkpoints.c.space == spaces.c.key
                )
                rows = connection.execute(select.where(checkpoints.c.run_id.in_(chunk)).distinct()).all()
                places |= {(row.thread_id, row.ns) for row in rows}
            return sorted(places)

        return self._reading(read)

    def commit(self, place: Place, commit: Commit) -> bool:
        if commit.removed:
            return self._erase_here(lambda connection: self._commit(connection, place, commit))
        return self._here(
            lambda: self._transact(lambda cursor: self._add(cursor, place, commit)), opens=not self.is_local
        )

    def _reading(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run `work` in a transaction that only reads, at one moment."""
        return self._here(lambda: self._connected(self._snapshots, work))

    def _add(self, cursor: Any, place: Place, commit: Commit) -> bool:
        """Store what a commit adds, on the driver's cursor; return whether the space was as the commit expects it."""
        after = commit.after
        state = {"revision": after.revision, "head": after.head, "state": after.to_json()}
        if commit.before is None:
            named = {"key": after.key, "thread_id": place[0], "ns": place[1]}
            is_done = self._sql.new_space.write(cursor, [self._sql.new_space.bind(named | state)])
        else:
            before = {"its_key": after.key, "before": commit.before.revision}
            is_done = self._sql.space.write(cursor, [self._sql.space.bind(before | state)])
        if not is_done:
            return False
        key, sql = after.key, self._sql
        values = [{"space": key, "channel": name, "position": at, "data": data} for name, at, data in commit.values]
        sql.element.write(cursor, list(map(sql.element.bind, values)))
        rows = [
            {"space": key, "id": row.id, "parent": row.parent, "run_id": row.run_id, "record": row.record}
            for row in commit.rows
        ]
        sql.checkpoint.write(cursor, list(map(sql.checkpoint.bind, rows)))
        pending = [
            {"space": key, "checkpoint_id": name, "number": at, "data": data} for name, at, data in commit.writes
        ]
        sql.writes.write(cursor, list(map(sql.writes.bind, pending)))
        return True

    def _commit(self, connection: sa.Connection, place: Place, commit: Commit) -> bool:
        """Store what a commit adds, and delete what it removes."""
        after = commit.after
        if not self._add(connection.connection.cursor(), place, commit):
            return False
        for chunk in _chunks(commit.removed):
            connection.execute(
                sa.delete(checkpoints).where(checkpoints.c.space == after.key, checkpoints.c.id.in_(chunk))
            )
            connection.execute(sa.delete(writes).where(writes.c.space == after.key, writes.c.checkpoint_id.in_(chunk)))
        for channel, spans in commit.removed_values.items():
            for start, end in spans:
                inside = (elements.c.position >= start, elements.c.position < end)
                connection.execute(
                    sa.delete(elements).where(elements.c.space == after.key, elements.c.channel == channel, *inside)
                )
        return True

    def delete(self, thread_id: str) -> None:
        def delete(connection: sa.Connection) -> int:
            # The spaces first: another writer to one of them waits, and then finds it deleted.
            matching = sa.select(spaces.c.key).where(spaces.c.thread_id == thread_id)
            keys = [
                *connection.scalars(matching if self._is_sqlite else matching.order_by(spaces.c.key).with_for_update())
            ]
            for chunk in _chunks(keys):
                connection.execute(sa.delete(spaces).where(spaces.c.key.in_(chunk)))
                for table in _PARTS:
                    connection.execute(sa.delete(table).where(table.c.space.in_(chunk)))
            return len(keys)

        self._erase_here(delete)

    def copy(self, source: str, target: str) -> bool:
        def copy(connection: sa.Connection) -> bool:
            self._lock_user(connection, target)
            if connection.scalar(sa.select(spaces.c.key).where(spaces.c.thread_id == target).limit(1)) is not None:
                return False
            select = sa.select(spaces).where(spaces.c.thread_id == source).order_by(spaces.c.key)
            for row in connection.execute(select if self._is_sqlite else select.with_for_update()).all():
                space = replace(_space(row), key=new_key(), writer=None)
                state = {"revision": space.revision, "head": space.head, "state": space.to_json()}
                connection.execute(sa.insert(spaces).values(key=space.key, thread_id=target, ns=row.ns, **state))
                for table in _PARTS:
                    columns = [column for column in table.c if column.name != "space"]
                    rows = sa.select(sa.literal(space.key, BigInteger), *columns).where(table.c.space == row.key)
                    connection.execute(
                        sa.insert(table).from_select(["space", *(column.name for column in columns)], rows)
                    )
            return True

        return self._here(lambda: self._connected(self._engine, copy))


def _of_checkpoint(id: sa.ColumnElement[Any], dialect: sa.Dialect) -> tuple[Statement, Statement]:
    """Return what reads a space with its checkpoint of this id, and what reads the pending writes under the id."""
    here = spaces.c.thread_id == sa.bindparam("thread_id"), spaces.c.ns == sa.bindparam("ns")
    columns = (*(spaces.c[name] for name in ("key", "revision", "head", "state")), *list(checkpoints.c)[1:])
    joined = spaces.outerjoin(checkpoints, (checkpoints.c.space == spaces.c.key) & (checkpoints.c.id == id))
    own = spaces.join(writes, (writes.c.space == spaces.c.key) & (writes.c.checkpoint_id == id))
    first = sa.select(*columns).select_from(joined).where(*here)
    pending = sa.select(writes.c.data).select_from(own).where(*here).order_by(writes.c.number)
    return Statement(first, dialect), Statement(pending, dialect)


def _space(row: Any) -> Space:
    return Space.of(row.key, row.revision, row.head, row.state)


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(values), _AT_ONCE):
        yield values[first : first + _AT_ONCE]
