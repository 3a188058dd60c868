"""`PostgresCursor`: a cursor of psycopg that takes SQLite's statements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Self


class PostgresCursor:
    """A cursor of psycopg that takes SQLite's statements. A null character, which PostgreSQL refuses, is escaped.

    A list of values, such as in `IN (?, ?)` or `VALUES (?, ?), (?, ?)`, is sent as an array for each of its columns. So
    the statement is the same for any number of values: neither the driver nor the server reads it again.
    """

    def __init__(self, cursor: Any) -> None:
        from psycopg.types.string import StrDumper  # here, since only PostgreSQL needs the driver

        self._cursor = cursor
        cursor.adapters.register_dumper(str, StrDumper)  # else the server has to guess of what an array is

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Self:
        text, sizes = _translated(statement)
        self._cursor.execute(text, _with_arrays(sizes, values))
        return self

    def executemany(self, statement: str, many: Iterable[Sequence[Any]]) -> None:
        text, sizes = _translated(statement)
        if rows := [_with_arrays(sizes, values) for values in many]:
            self._cursor.executemany(text, rows)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [tuple(map(_unescaped, values)) for values in self._cursor.fetchall()]

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)


@lru_cache(512)
def _translated(statement: str) -> tuple[str, Sequence[tuple[int, int]]]:
    """Return a statement as psycopg takes it, and how many rows and columns of values each `?` or list takes."""
    if statement.startswith(_OR_IGNORE):
        statement = f"INSERT INTO {statement.removeprefix(_OR_IGNORE)} ON CONFLICT DO NOTHING"
    sizes: list[tuple[int, int]] = []

    def translated(found: re.Match[str]) -> str:
        count = found[0].count("?")
        columns = found["row"].count("?") if found["row"] else 1
        sizes.append((_ONE if found[0] == "?" else count // columns, columns))
        if found["row"]:
            return f"SELECT * FROM unnest({', '.join(['%s'] * columns)})"  # noqa: S608 - has no values
        return "%s" if found[0] == "?" else "= ANY(%s)"

    return _PARAMETERS.sub(translated, statement), sizes


_ONE = 0
"""Stands for the rows of a value that is no list."""

_PARAMETERS = re.compile(r"IN \(\?(?:, \?)*\)|VALUES (?P<row>\(\?(?:, \?)*\))(?:, (?P=row))+|\?")


def _with_arrays(sizes: Sequence[tuple[int, int]], values: Sequence[Any]) -> list[Any]:
    """Return the values of a statement, those of each list as an array for each of its columns."""
    escaped = map(_escaped, values)
    arguments: list[Any] = []
    for rows, columns in sizes:
        if rows == _ONE:
            arguments.append(next(escaped))
        else:
            listed = list(islice(escaped, rows * columns))
            arguments += [listed[column::columns] for column in range(columns)]
    return arguments


_OR_IGNORE = "INSERT OR IGNORE INTO "
_MARK = "\ufdd0"
"""A noncharacter of Unicode, which begins an escape sequence."""


def _escaped(value: Any) -> Any:
    if isinstance(value, str) and ("\0" in value or _MARK in value):
        return value.replace(_MARK, _MARK * 2).replace("\0", f"{_MARK}0")
    return value


def _unescaped(value: Any) -> Any:
    if isinstance(value, str) and _MARK in value:
        return _ESCAPED.sub(lambda match: "\0" if match[0] == f"{_MARK}0" else _MARK, value)
    return value


_ESCAPED = re.compile(f"{_MARK}0|{_MARK}{_MARK}")
