"""The version of tables: which code may read and write them, how they are made, and how they are brought up.

Programs of two versions may use one database at once while it is upgraded. A schema says which is the oldest version
whose code still reads its tables correctly (`readable_from`), and the oldest whose code may write them
(`writable_from`). Both are stored beside the version, since an older program cannot know them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine.mock import MockConnection

from turnwise.errors import CorruptRecordError, SchemaVersionError

WHERE = "where"
"""The key for a partial index's predicate in its `info`. Dialect options would make SQLAlchemy load each dialect."""

BY_KEY = "by_key"
"""The key in a table's `info`, if its rows are few or small: SQLite then keeps them in their key's index alone."""

META = sa.Table(
    "turnwise_meta",
    sa.MetaData(),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

_READABLE, _WRITABLE = ".readable_from", ".writable_from"
"""What the names of the rows end with that are beside the row of a version."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The tables of one kind of store. Stores of several kinds may share a database."""

    name: str
    """The name of the row in `turnwise_meta` that has the version."""
    version: int
    """The version of the tables. Increase it with every change to the tables."""
    tables: sa.MetaData
    migrations: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By version: the statements that migrate its tables to the next version, in SQL for both SQLite and PostgreSQL."""
    readable_from: int | None = None
    """The oldest version whose code reads these tables correctly; None: this version."""
    writable_from: int | None = None
    """The oldest version whose code may write these tables, such as one before a nullable column; None: this one."""
    making: dict[str, Sequence[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By dialect: the statements that make the tables, once they were asked for. To compile them takes 10 ms."""

    @property
    def stored(self) -> StoredVersion:
        """What a database has whose tables are these."""
        return StoredVersion(self.version, self.readable_from or self.version, self.writable_from or self.version)

    @property
    def lock_key(self) -> int:
        """The second number of the advisory lock that users of these tables share on PostgreSQL."""
        return zlib.crc32(self.name.encode()) - (1 << 31)


@dataclass(frozen=True)
class StoredVersion:
    """The version of the tables in a database, and the oldest versions whose code may read and write them."""

    version: int
    readable_from: int
    writable_from: int

    @classmethod
    def of_rows(cls, schema: Schema, rows: Mapping[str, str], store: str) -> StoredVersion | None:
        """Return the version that these rows of `turnwise_meta` tell; None if they have none.

        Raises:
            CorruptRecordError: a row has no number.
        """
        texts = [rows.get(name) for name in names_of(schema)]
        if texts[0] is None:
            return None
        if not all(text is None or text.isdecimal() for text in texts):
            raise CorruptRecordError(f"{schema.name} of {store}", "it is no number")
        version, readable_from, writable_from = (int(text or texts[0]) for text in texts)
        return cls(version, readable_from, writable_from)


def names_of(schema: Schema) -> list[str]:
    """Return the names of the rows of `turnwise_meta` that have the version of these tables."""
    return [schema.name, f"{schema.name}{_READABLE}", f"{schema.name}{_WRITABLE}"]


def stored_version(connection: sa.Connection, schema: Schema, store: str) -> StoredVersion | None:
    """Return the version of the tables in a database; None if there are none.

    Raises:
        CorruptRecordError: the version is not readable.
    """
    if not sa.inspect(connection).has_table(META.name):
        return None
    select = sa.select(META.c.name, META.c.value).where(META.c.name.in_(names_of(schema)))
    return StoredVersion.of_rows(schema, {row.name: row.value for row in connection.execute(select)}, store)


def is_older(schema: Schema, stored: StoredVersion) -> bool:
    """Return whether this code has to bring the tables up, and can."""
    versions = range(stored.version, schema.version)
    return bool(versions) and all(version in schema.migrations for version in versions)


def is_breaking(schema: Schema, stored: StoredVersion) -> bool:
    """Return whether programs that may write the tables now may not write them after a migration."""
    return schema.stored.writable_from > stored.writable_from


def check_fits(schema: Schema, stored: StoredVersion, store: str, *, reads_only: bool) -> None:
    """Raise SchemaVersionError unless code of this schema may use tables of the stored version as they are.

    Args:
        store: what errors call the store.
        reads_only: whether the tables are only read.
    """
    known = schema.version
    if stored.version == known or (reads_only and stored.readable_from <= known < stored.version):
        return
    if stored.writable_from <= known < stored.version:
        return
    if stored.version < known:
        remedy = (
            "run `turnwise migrate` on it, as a role that may change its tables"
            if is_older(schema, stored)
            else f"no migration leads from {stored.version} to {known}: use an earlier turnwise to migrate it first"
        )
    else:
        remedy = f"use a turnwise with schema version {stored.writable_from} or later to write it"
        if stored.readable_from < stored.writable_from:
            remedy += f", and {stored.readable_from} or later to read it with read_only=True"
    raise SchemaVersionError(store, str(stored.version), known, remedy)


def statements_of(schema: Schema, stored: StoredVersion | None, dialect: sa.Dialect) -> Sequence[str]:
    """Return the SQL that makes the tables, or brings them up, and notes the version; none if they are up to date."""
    if stored is not None and not is_older(schema, stored):
        return []
    if stored is not None:
        return _compiled(schema, stored, dialect)
    if dialect.name not in schema.making:
        schema.making[dialect.name] = _compiled(schema, None, dialect)
    return schema.making[dialect.name]


def _compiled(schema: Schema, stored: StoredVersion | None, dialect: sa.Dialect) -> list[str]:
    statements: list[str] = []

    def note(statement: Any, *_: object, **__: object) -> None:
        compiled = statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
        if text := str(compiled).strip():
            statements.append(text)

    if stored is None:
        note(sa.schema.CreateTable(META, if_not_exists=True))
        _name_options(schema, dialect)
        schema.tables.create_all(cast(sa.Connection, MockConnection(dialect, note)), checkfirst=False)
    else:
        statements += [step for version in range(stored.version, schema.version) for step in schema.migrations[version]]
    for name in names_of(schema):
        note(sa.delete(META).where(META.c.name == name))
    for name, value in _rows_of(schema).items():
        note(sa.insert(META).values(name=name, value=value))
    return statements


def bring_up(connection: sa.Connection, schema: Schema, stored: StoredVersion | None) -> None:
    """Make the tables, or migrate them, in a transaction in which no other program does."""
    for statement in statements_of(schema, stored, connection.dialect):
        connection.exec_driver_sql(statement)


def _name_options(schema: Schema, dialect: sa.Dialect) -> None:
    """Give indexes and tables what their `info` asks for, by the names that this dialect has for it."""
    for table in schema.tables.tables.values():
        for index in table.indexes:
            if WHERE in index.info:
                index.kwargs[f"{dialect.name}_where"] = index.info[WHERE]
        if table.info.get(BY_KEY) and dialect.name == "sqlite":
            table.kwargs["sqlite_with_rowid"] = False


def _rows_of(schema: Schema) -> dict[str, str]:
    """Return the rows of `turnwise_meta` for a schema. What is the version itself has no row."""
    stored = schema.stored
    numbers = [stored.version, stored.readable_from, stored.writable_from]
    rows = zip(names_of(schema), numbers, strict=True)
    return {name: str(number) for name, number in rows if name == schema.name or number != stored.version}
