"""Where a flat namespace is read from: a store of LangGraph's in SQLite or PostgreSQL, or lines of JSON."""

from __future__ import annotations

import codecs
import json
import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError, StoreError, StoreURLError
from turnwise.memory.longterm.migration.namespace import FlatNamespace
from turnwise.memory.longterm.migration.skips import Skipped, SkipReason
from turnwise.memory.longterm.migration.values import FlatMemory, seconds
from turnwise.memory.stores.urls import redact

_TAKEN = "pass sqlite:///file.db, postgresql://user@host/name, or the path of a SQLite file or of lines of JSON"

_POSTGRESQL = ("postgresql", "postgresql+psycopg", "postgres")

_NEEDED = frozenset({"prefix", "key", "value"})

_TIMES = ("created_at", "updated_at", "expires_at")
"""Columns that tables of older versions may lack."""

_HERE = (
    "substr(prefix, 1, :before_size) = :before AND substr(prefix, length(prefix) - :after_size + 1) = :after "
    "AND length(prefix) > :before_size + :after_size"
)
"""Does not use LIKE, which has wildcards and, in SQLite, ignores case."""


def read_flat(source: str | Path, namespace: FlatNamespace) -> Generator[FlatMemory | Skipped]:
    """Yield the memories of a namespace, and those that cannot be read. A database is read by prefix and key.

    A database is read as it was at one moment, and a file up to its size at the start. SQLite is opened with `mode=ro`,
    and the rows are copied to a temporary file first, so that writers do not wait. PostgreSQL is read in a read-only
    transaction.

    Args:
        source: `sqlite:///file.db`, `postgresql://user@host/name`, or the path of a SQLite file or of lines of JSON:
            `{"namespace": ["sarah", "memories"], "key": "...", "value": {...}}`, with `created_at`, `updated_at` and
            `expires_at` if known. Lines may also have the columns of a table: `prefix` with dots, `value` as text.

    Raises:
        ConfigError: the source is none of these.
        StoreURLError: the driver is not installed.
        StoreError: the source cannot be reached or read.
    """
    name = redact(str(source))
    scheme, separator, rest = str(source).partition("://")
    if separator and scheme in _POSTGRESQL:
        yield from _read_postgresql(f"postgresql+psycopg://{rest}", name, namespace)
        return
    if separator and not (scheme.startswith("sqlite") and rest.startswith("/")):
        raise ConfigError("source", name, _TAKEN)
    path = Path(rest[1:].partition("?")[0] if separator else source).expanduser()
    if not path.is_file():
        raise ConfigError("source", name, f"there is no such file; {_TAKEN}")
    try:
        with path.open("rb") as file:
            is_database = file.read(16) == b"SQLite format 3\0"
        if not is_database and separator:
            reason = "the file is not a SQLite database; for lines of JSON, pass the path without sqlite:///"
            raise ConfigError("source", name, reason)
        yield from (_read_sqlite if is_database else _read_lines)(path, namespace)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"source {name}: {error}; check read permission and file integrity") from error


def _read_sqlite(path: Path, namespace: FlatNamespace) -> Iterator[FlatMemory | Skipped]:
    # A database without a name is a temporary file that SQLite deletes when it is closed.
    with closing(
        sqlite3.connect("", uri=True, timeout=30, isolation_level=None, check_same_thread=False)
    ) as connection:
        connection.execute("ATTACH ? AS source", (f"{path.resolve().as_uri()}?mode=ro",))
        columns = _columns(str(path), (row[1] for row in connection.execute("PRAGMA source.table_info(store)")))
        if namespace.prefixes is None:
            condition, values = _HERE, _bounds(namespace)
        else:
            condition = "prefix IN (SELECT value FROM json_each(:prefixes))"
            values = {"prefixes": json.dumps(namespace.prefixes)}
        chosen = ", ".join(column if column in columns else f"NULL AS {column}" for column in _TIMES)
        select = f"SELECT prefix, key, value, {chosen} FROM source.store WHERE {condition} ORDER BY prefix, key"  # noqa: S608 - nothing in it is from outside
        connection.execute(f"CREATE TABLE copy AS {select}", values)
        connection.execute("DETACH source")
        connection.text_factory = bytes  # so that invalid UTF-8 raises no error here
        for row in connection.execute("SELECT * FROM copy ORDER BY rowid"):
            prefix, key, value, *times = row
            yield from _row(namespace, prefix, key, value, times)


def _read_postgresql(url: str, name: str, namespace: FlatNamespace) -> Iterator[FlatMemory | Skipped]:
    import sqlalchemy as sa

    if namespace.prefixes is None:
        condition, values = _HERE, _bounds(namespace)
    else:
        condition, values = "prefix = ANY(:prefixes)", {"prefixes": namespace.prefixes}
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise ConfigError("source", name, f"it is not a database URL; {_TAKEN}") from None
    with _translated(name):
        engine = sa.create_engine(parsed, poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execution_options(postgresql_readonly=True, yield_per=100)
            table_columns = (
                sa.inspect(connection).get_columns("store") if sa.inspect(connection).has_table("store") else ()
            )
            columns = _columns(name, (column["name"] for column in table_columns))
            chosen = ", ".join(f"extract(epoch from {time})" if time in columns else "NULL" for time in _TIMES)
            select = (
                f"SELECT prefix, key, CAST(value AS text), {chosen} FROM store WHERE {condition} ORDER BY prefix, key"  # noqa: S608 - nothing in it is from outside
            )
            for prefix, key, value, *times in connection.execute(sa.text(select), values):
                yield from _row(namespace, prefix, key, value, [time and float(time) for time in times])


@contextmanager
def _translated(name: str) -> Iterator[None]:
    from sqlalchemy import exc

    try:
        yield
    except ModuleNotFoundError as error:
        reason = f"its driver is missing ({error}): pip install 'turnwise[postgres]'"
        raise StoreURLError(name, reason) from error
    except exc.SQLAlchemyError as error:
        cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig else error
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        raise StoreError(
            f"source {name}: {reason}; check that it is reachable and that its user may read it"
        ) from error


def _bounds(namespace: FlatNamespace) -> dict[str, Any]:
    before, after = namespace.before, namespace.after
    return {"before": before, "after": after, "before_size": len(before), "after_size": len(after)}


def _columns(name: str, column_names: Iterable[str]) -> set[str]:
    """Return the columns of the table.

    Raises:
        ConfigError: it is not the table of a store.
    """
    columns = set(column_names)
    if not columns >= _NEEDED:
        reason = f"has no table 'store' with {', '.join(sorted(_NEEDED))}, so it is not a store of LangGraph"
        raise ConfigError("source", name, reason)
    return columns


def _row(
    namespace: FlatNamespace, prefix: Any, key: Any, value: Any, times: Iterable[Any]
) -> Iterator[FlatMemory | Skipped]:
    """Yield the memory of a table row."""
    try:
        moments = (seconds(_text(time)) for time in times)
        yield from _memory(namespace, str(_text(prefix)), str(_text(key)), json.loads(value), *moments)
    except (ValueError, TypeError, RecursionError) as error:
        yield Skipped(_shown(prefix), _shown(key), SkipReason.UNREADABLE, str(error))


def _read_lines(path: Path, namespace: FlatNamespace) -> Iterator[FlatMemory | Skipped]:
    with path.open("rb") as file:
        remaining = os.fstat(file.fileno()).st_size
        number = 0
        while remaining > 0 and (line := file.readline(remaining)):
            remaining -= len(line)
            number += 1
            try:
                if text := line.removeprefix(codecs.BOM_UTF8).decode().strip():
                    yield from _line(namespace, json.loads(text))
            except (ValueError, RecursionError) as error:
                yield Skipped(f"line {number}", None, SkipReason.UNREADABLE, str(error))


def _line(namespace: FlatNamespace, record: Any) -> Iterator[FlatMemory | Skipped]:
    """Yield the memory of a line.

    Raises:
        ValueError: the line does not have the expected form.
    """
    if not isinstance(record, Mapping):
        raise ValueError("it is not an object")
    place, key, value = record.get("namespace", record.get("prefix")), record.get("key"), record.get("value")
    if isinstance(place, list) and all(isinstance(segment, str) for segment in place):
        place = tuple(place)
    if not isinstance(place, str | tuple) or not isinstance(key, str):
        raise ValueError("it needs a namespace, a list or a text, and a key, a text")
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json.loads(value)
    yield from _memory(namespace, place, key, value, *(seconds(record.get(time)) for time in _TIMES))


def _memory(
    namespace: FlatNamespace, place: str | tuple[str, ...], key: str, value: Any, *times: float | None
) -> Iterator[FlatMemory | Skipped]:
    """Yield the memory if its user was requested."""
    user = namespace.owner(place)
    prefix = place if isinstance(place, str) else ".".join(place)
    if user is None:
        return
    if namespace.is_ambiguous(place, user):
        reason = f"of user {user!r}, or of a namespace below another user's; if it is a user, name it"
        yield Skipped(prefix, key, SkipReason.AMBIGUOUS_USER, reason)
        return
    yield FlatMemory(prefix, user, key, value, *times)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _shown(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
