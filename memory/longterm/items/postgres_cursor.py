"""`PostgresCursor`: a cursor of psycopg that takes SQLite's statements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Self


class PostgresCursor:
    """A cursor of psycopg that takes SQLite's statements. A null character, which PostgreSQL refuses, is escaped."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Self:
        self._cursor.execute(_translated(statement), [_escaped(value) for value in values])
        return self

    def executemany(self, statement: str, many: Iterable[Sequence[Any]]) -> None:
        if rows := [[_escaped(value) for value in values] for values in many]:
            self._cursor.executemany(_translated(statement), rows)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [tuple(map(_unescaped, values)) for values in self._cursor.fetchall()]

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)


@lru_cache(512)
def _translated(statement: str) -> str:
    if statement.startswith(_OR_IGNORE):
        statement = f"INSERT INTO {statement.removeprefix(_OR_IGNORE)} ON CONFLICT DO NOTHING"
    return statement.replace("?", "%s")


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
