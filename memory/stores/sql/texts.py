"""The index of what was said, in SQLite's FTS5 and in PostgreSQL's text search.

Both have the words of each message with a prefix that names the user, so a search reads nothing of other users, and
takes no longer for them. Neither keeps texts: these are in the blocks.

FTS5 keeps which texts have a word, and not where: that would take half as much space again. So a search for words that
follow each other reads the texts that have all of them.

FTS5 takes ten times as long for one text at a time as for many. So a commit stores only the row of a text; each
`BATCH` texts, a commit adds the words of all new ones to the index. A search reads the texts that are not in it yet.

FTS5 deletes by adding: the words of a deleted text stay in the file until they are merged with their deletions. So a
commit that wipes texts merges the index of the session: all of it, as SQLite before 3.42 has no other way. To bound the
time, sessions are spread over `PARTS` indexes.
"""

# ruff: noqa: S608 - names of tables and conditions are constants of this file; values are parameters

from __future__ import annotations

import base64
import hashlib
import heapq
import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Protocol

import sqlalchemy as sa

from turnwise.memory.conversation.branches import Branch, is_shown
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.stores.base import NO_CALLER
from turnwise.memory.stores.search.query import Query
from turnwise.memory.stores.search.records import MessageText, SearchedRole, TextFilter, TextHit, text_of_blocks
from turnwise.memory.stores.search.words import plain_words
from turnwise.memory.stores.sql import schema
from turnwise.memory.stores.sql.rows import read_spans, read_title, spans_text, whole_body
from turnwise.memory.values.ranges import MAX_COUNT

PARTS = 16
"""How many indexes a SQLite file has. A session's texts are all in one."""

_COLUMNS = ("session", "idx", "number", "role", "at", "spans")


BATCH = 128
"""How many texts are added to the index at once."""

_LOOK_EVERY = 16
"""How many texts are stored until a commit looks how many are not in the index."""


@dataclass(frozen=True)
class TextRow:
    """A text as a row, and its words for the index of PostgreSQL."""

    row: tuple[Any, ...]
    words: str = ""


class TextIndex(Protocol):
    """Writes and searches the index within a transaction, on the driver's own cursor."""

    def row_of(self, key: int, user_id: str, text: MessageText, run: RunRecord | None = None) -> TextRow:
        """Return the row of a text of a session.

        Args:
            run: the run of its turn, if that is stored with it. A run that has ended does not change any more.
        """

    def insert(self, cursor: Any, rows: Sequence[TextRow]) -> None:
        """Insert texts of one or several sessions, whose blocks are stored."""

    def drop(self, cursor: Any, key: int, user_id: str, turns: Sequence[int]) -> None:
        """Delete the texts of these turns of a session. Call it before their blocks are deleted."""

    def drop_sessions(self, cursor: Any, users: Mapping[int, str]) -> None:
        """Delete the texts of sessions, by their keys with their users. Call it before their blocks are deleted."""

    def wipe(self, cursor: Any, key: int) -> None:
        """Remove what `drop` has left of deleted words in the part of the index that a session is in."""

    def search(self, cursor: Any, texts: TextFilter, before: int, limit: int) -> list[TextHit]:
        """See `Searchable.search_texts`.

        Args:
            before: see `parse_hit_cursor`.
        """

    def count(self, cursor: Any, texts: TextFilter, limit: int) -> int:
        """See `Searchable.count_texts`."""


def text_index(dialect: sa.Dialect) -> TextIndex:
    """Return the index of a dialect."""
    return SQLiteTexts() if dialect.name == "sqlite" else PostgresTexts()


@lru_cache(maxsize=1000)
def _prefix(user_id: str) -> str:
    """Return what the words of a user's texts begin with: 7 letters and digits, which other users may have too."""
    digest = hashlib.blake2b(user_id.encode(errors="surrogatepass"), digest_size=5).digest()
    return base64.b32encode(digest).decode().lower()[:_PREFIX_CHARS]


_PREFIX_CHARS = 7


def _row(key: int, text: MessageText, run: RunRecord | None) -> tuple[Any, ...]:
    at_of_run = run and (run.created_at if text.role == "user" else run.ended_at)
    at = None if text.at == at_of_run else text.at
    return key, text.turn_index, text.number, _SHORT_ROLES[text.role], at, _spans_text(text.spans, key)


_AT = "coalesce(t.at, CASE t.role WHEN 'u' THEN r.created_at ELSE r.ended_at END)"
"""When the message of a text was said, which the row of its turn's run has too: see `_row`."""

_JOIN_RUNS = "LEFT JOIN turnwise_runs r ON r.session = t.session AND r.turn_index = t.idx"


_SHORT_ROLES = {"user": "u", "assistant": "a"}

_ROLES: dict[str, SearchedRole] = {"u": "user", "a": "assistant"}


def _spans_text(spans: Spans, key: int) -> str:
    """Return spans as `spans_text` does; most texts are one block of the session's own log: then its position."""
    if len(spans) == 1 and spans[0].log == str(key) and spans[0].stop == spans[0].start + 1:
        return str(spans[0].start)
    return spans_text(spans, key)


def _read_spans(text: str, key: int) -> Spans:
    spans = json.loads(text)
    return (Span(str(key), spans, spans + 1),) if isinstance(spans, int) else read_spans(spans, key)


class SQLiteTexts:
    """The index in SQLite's FTS5."""

    def row_of(self, key: int, user_id: str, text: MessageText, run: RunRecord | None = None) -> TextRow:
        return TextRow(_row(key, text, run))

    def insert(self, cursor: Any, rows: Sequence[TextRow]) -> None:
        if not rows:
            return
        values = [text.row for text in rows]
        try:
            _insert(cursor, _INSERT_SQLITE, values)
        except sqlite3.OperationalError:
            if _has_texts(cursor):
                raise
            cursor.execute(_TABLE_SQLITE)
            cursor.execute(_INDEX)
            _insert(cursor, _INSERT_SQLITE, values)
        newest = cursor.lastrowid
        if newest % _LOOK_EVERY < len(rows):
            indexed = _indexed(cursor)
            while newest - indexed >= BATCH:
                indexed = self._index(cursor, indexed, newest)

    def _index(self, cursor: Any, indexed: int, newest: int) -> int:
        """Add the next texts to the index; return the id of the last one."""
        rows = cursor.execute(_NEXT, (indexed, BATCH)).fetchall()
        texts = _stored_texts(cursor, [(key, spans) for _, key, spans, _ in rows])
        by_part: dict[str, list[tuple[int, str]]] = {}
        for (text_id, key, _, user_id), text in zip(rows, texts, strict=True):
            by_part.setdefault(_part(key), []).append((text_id, _document(_prefix(user_id), text)))
        for part in by_part.keys() - set(_parts(cursor)):
            cursor.execute(f"CREATE VIRTUAL TABLE {part} {_FTS}")
        for part, documents in by_part.items():
            _insert(cursor, f"INSERT INTO {part} (rowid, words) VALUES (?, ?)", documents)
        last = rows[-1][0] if rows else newest
        _set_indexed(cursor, last)
        return int(last)

    def drop(self, cursor: Any, key: int, user_id: str, turns: Sequence[int] | None) -> None:
        if not _has_texts(cursor):
            return
        part, prefix = _part(key), _prefix(user_id)
        of_turns = "" if turns is None else " AND idx IN (SELECT value FROM json_each(?))"
        values = (key,) if turns is None else (key, json.dumps([*turns]))
        rows = cursor.execute(f"SELECT id, spans FROM turnwise_texts WHERE session = ?{of_turns}", values).fetchall()
        if not rows:
            return
        indexed = _indexed(cursor)
        ids = [text_id for text_id, _ in rows if text_id <= indexed]
        texts = _stored_texts(cursor, [(key, spans) for text_id, spans in rows if text_id <= indexed])
        documents = [(text_id, _document(prefix, text)) for text_id, text in zip(ids, texts, strict=True)]
        _insert(cursor, f"INSERT INTO {part} ({part}, rowid, words) VALUES ('delete', ?, ?)", documents)
        cursor.execute(f"DELETE FROM turnwise_texts WHERE session = ?{of_turns}", values)
        (newest,) = cursor.execute("SELECT coalesce(max(id), 0) FROM turnwise_texts").fetchone()
        if newest < indexed:  # SQLite gives the ids above it again
            _set_indexed(cursor, newest)

    def drop_sessions(self, cursor: Any, users: Mapping[int, str]) -> None:
        for key, user_id in users.items():
            self.drop(cursor, key, user_id, None)

    def wipe(self, cursor: Any, key: int) -> None:
        if (part := _part(key)) in _parts(cursor):
            cursor.execute(f"INSERT INTO {part} ({part}) VALUES ('optimize')")

    def search(self, cursor: Any, texts: TextFilter, before: int, limit: int) -> list[TextHit]:
        if not _has_texts(cursor):
            return []
        indexed = _indexed(cursor)
        rows = list(itertools.islice(self._new(cursor, texts, indexed, before), limit))
        if len(rows) < limit:
            indexed_rows: list[tuple[Any, ...]] = []
            for statement, values in self._indexed_rows(cursor, texts, before):
                with closing(cursor.connection.cursor()) as reader:
                    matches = reader.execute(statement, values)
                    indexed_rows += itertools.islice(_in_sequence(cursor, matches, texts.query), limit - len(rows))
            rows += heapq.nlargest(limit - len(rows), indexed_rows, key=itemgetter(0))
        return [_hit(row) for row in rows]

    def _new(self, cursor: Any, texts: TextFilter, indexed: int, before: int) -> Iterator[tuple[Any, ...]]:
        """Yield the matching rows that are not in the index yet, the newest first."""
        conditions, values = _conditions(texts, "?")
        statement = (
            f"SELECT {_SELECTED} FROM turnwise_texts t CROSS JOIN turnwise_sessions s ON s.key = t.session "
            f"{_JOIN_RUNS} WHERE t.id > ? AND t.id < ? AND {conditions} ORDER BY t.id DESC"
        )
        rows = cursor.execute(statement, (indexed, before, *values)).fetchall()
        stored_texts = _stored_texts(cursor, [(row[1], row[6]) for row in rows])
        yield from (row for row, text in zip(rows, stored_texts, strict=True) if texts.query.matches(text))

    def count(self, cursor: Any, texts: TextFilter, limit: int) -> int:
        if not _has_texts(cursor):
            return 0
        count = sum(1 for _ in itertools.islice(self._new(cursor, texts, _indexed(cursor), MAX_COUNT), limit))
        for statement, values in self._indexed_rows(cursor, texts, MAX_COUNT):
            if count >= limit:
                break
            with closing(cursor.connection.cursor()) as reader:
                matches = _in_sequence(cursor, reader.execute(statement, values), texts.query)
                count += sum(1 for _ in itertools.islice(matches, limit - count))
        return count

    def _indexed_rows(self, cursor: Any, texts: TextFilter, before: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield statements, with their values, for the rows in the index that have all words, the newest first."""
        conditions, values = _conditions(texts, "?")
        queries = [_fts_query(prefixes, texts.query) for prefixes in _prefixes(cursor, texts, "?")]
        for part, query in itertools.product(_parts(cursor), queries):
            # CROSS JOIN, so that the index is read first, in its order, and only as far as needed.
            statement = (
                f"SELECT {_SELECTED} FROM {part} w CROSS JOIN turnwise_texts t ON t.id = w.rowid "
                f"CROSS JOIN turnwise_sessions s ON s.key = t.session {_JOIN_RUNS} "
                f"WHERE w.{part} MATCH ? AND w.rowid < ? AND {conditions} ORDER BY w.rowid DESC"
            )
            yield statement, (query, before, *values)


class PostgresTexts:
    """The index in PostgreSQL's text search: a GIN index of the words, which are stored beside each row."""

    def row_of(self, key: int, user_id: str, text: MessageText, run: RunRecord | None = None) -> TextRow:
        prefix = _prefix(user_id)
        lexemes = [f"'{prefix}{word}':{place}" for place, word in enumerate(plain_words(text.text), 1)]
        return TextRow(_row(key, text, run), " ".join(lexemes))

    def insert(self, cursor: Any, rows: Sequence[TextRow]) -> None:
        _insert(cursor, _INSERT_POSTGRES, [(*text.row, text.words) for text in rows])

    def drop(self, cursor: Any, key: int, user_id: str, turns: Sequence[int]) -> None:
        cursor.execute("DELETE FROM turnwise_texts WHERE session = %s AND idx = ANY(%s)", (key, [*turns]))

    def drop_sessions(self, cursor: Any, users: Mapping[int, str]) -> None:
        keys = f"{{{','.join(map(str, users))}}}"  # as text, since the driver takes longer for an array of numbers
        cursor.execute("DELETE FROM turnwise_texts WHERE session = ANY(CAST(%s AS bigint[]))", (keys,))

    def wipe(self, cursor: Any, key: int) -> None:
        """Do nothing: PostgreSQL overwrites what was deleted when it vacuums, as with all rows."""

    def search(self, cursor: Any, texts: TextFilter, before: int, limit: int) -> list[TextHit]:
        conditions, values = _conditions(texts, "%s")
        statement = (
            f"{_MATCHES_POSTGRES} SELECT {_SELECTED} {_FROM_MATCHES} WHERE t.id < %s AND {conditions} "
            "ORDER BY t.id DESC LIMIT %s"
        )
        rows: list[tuple[Any, ...]] = []
        for prefixes in _prefixes(cursor, texts, "%s"):
            cursor.execute(statement, (_tsquery(prefixes, texts.query), before, *values, limit))
            rows += cursor.fetchall()
        return [_hit(row) for row in heapq.nlargest(limit, rows, key=itemgetter(0))]

    def count(self, cursor: Any, texts: TextFilter, limit: int) -> int:
        conditions, values = _conditions(texts, "%s")
        matching = f"SELECT 1 {_FROM_MATCHES} WHERE {conditions} LIMIT %s"
        statement = f"{_MATCHES_POSTGRES} SELECT count(*) FROM ({matching}) AS hits"
        count = 0
        for prefixes in _prefixes(cursor, texts, "%s"):
            cursor.execute(statement, (_tsquery(prefixes, texts.query), *values, limit - count))
            count += int(cursor.fetchone()[0])
        return count


_SELECTED = (
    f"t.id, t.session, t.idx, t.number, t.role, {_AT}, t.spans, s.session_id, s.user_id, s.title AS title, s.agent, "
    "s.branches"
)

_MATCHES_POSTGRES = (
    "WITH t AS MATERIALIZED (SELECT id, session, idx, number, role, at, spans FROM turnwise_texts "
    "WHERE words @@ CAST(%s AS tsquery))"
)
"""The texts that match, read by the index of words. Without `MATERIALIZED`, PostgreSQL reads the texts of all users by
their ids, the newest first, where it expects to find as many as the `LIMIT` asks for soon."""

_FROM_MATCHES = f"FROM t JOIN turnwise_sessions s ON s.key = t.session {_JOIN_RUNS}"

_NEXT = (
    "SELECT t.id, t.session, t.spans, s.user_id FROM turnwise_texts t CROSS JOIN turnwise_sessions s "
    "ON s.key = t.session WHERE t.id > ? ORDER BY t.id LIMIT ?"
)

_INSERT_SQLITE = f"INSERT INTO turnwise_texts ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_INSERT_POSTGRES = (
    f"INSERT INTO turnwise_texts ({', '.join(_COLUMNS)}, words) "
    f"VALUES ({', '.join(['%s'] * len(_COLUMNS))}, CAST(%s AS tsvector))"
)

_PART_NAMES = [f"turnwise_words_{number}" for number in range(PARTS)]

_FTS = (
    "USING fts5(words, content='', columnsize=0, detail=none, "
    "tokenize=\"unicode61 remove_diacritics 0 categories 'L* N* M* Co'\")"
)


def _ddl(statement: str) -> sa.DDL:
    make: Any = sa.DDL
    ddl: sa.DDL = make(statement)
    return ddl


_ROW = (
    "session BIGINT NOT NULL, idx BIGINT NOT NULL, number BIGINT NOT NULL, role TEXT NOT NULL, "
    "at DOUBLE PRECISION, spans TEXT NOT NULL"
)
"""The columns of a text: which message it is of, and where its blocks are. Ids grow in the order of storing."""

_TABLE_SQLITE = f"CREATE TABLE IF NOT EXISTS turnwise_texts (id INTEGER PRIMARY KEY, {_ROW})"
_TABLE_POSTGRES = (
    f"CREATE TABLE turnwise_texts (id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, {_ROW}, "
    "words tsvector NOT NULL)"
)
_INDEX = "CREATE INDEX IF NOT EXISTS turnwise_texts_session ON turnwise_texts (session, idx)"

for _statement in (
    _TABLE_POSTGRES,
    _INDEX,
    "CREATE INDEX turnwise_texts_words ON turnwise_texts USING gin (words)",
):
    sa.event.listen(schema.turns, "after_create", _ddl(_statement).execute_if(dialect="postgresql"))


def _has_texts(cursor: Any) -> bool:
    """Return whether a text was ever stored: the table is made with the first one, so that empty files stay small."""
    return cursor.execute("SELECT 1 FROM sqlite_master WHERE name = 'turnwise_texts'").fetchone() is not None


def _parts(cursor: Any) -> list[str]:
    """Return the names of the indexes that there are: each is made with its first text, since it takes 12 kB."""
    names = {name for (name,) in cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [name for name in _PART_NAMES if name in names]


def _part(key: int) -> str:
    return _PART_NAMES[key % PARTS]


def _indexed(cursor: Any) -> int:
    """Return the id up to which texts are in the index."""
    row = cursor.execute("SELECT value FROM turnwise_meta WHERE name = 'indexed_texts'").fetchone()
    return int(row[0]) if row else 0


def _set_indexed(cursor: Any, text_id: int) -> None:
    cursor.execute("INSERT OR REPLACE INTO turnwise_meta (name, value) VALUES ('indexed_texts', ?)", (str(text_id),))


def _document(prefix: str, text: str) -> str:
    return " ".join([f"{prefix}{word}" for word in plain_words(text)])


def _insert(cursor: Any, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows by a statement for one, many at once.

    The driver releases the GIL for each statement, and a busy event loop then keeps it for long.
    """
    head, values = statement.split("VALUES ")
    while rows:
        count = _ROWS if len(rows) >= _ROWS else len(rows) % _ROWS_MORE or _ROWS_MORE
        cursor.execute(f"{head}VALUES {', '.join([values] * count)}", [*itertools.chain(*rows[:count])])
        rows = rows[count:]


_ROWS, _ROWS_MORE = BATCH, 8
"""How many rows are inserted at once: few different numbers, since SQLite's driver keeps the statements."""


def _stored_texts(cursor: Any, texts: Sequence[tuple[int, str]]) -> list[str]:
    """Return the texts of messages from their blocks; an empty one for each whose blocks cannot be read.

    Args:
        texts: the key of a message's session, and the spans of the message.
    """
    numbers: list[int] = []
    places: list[tuple[int, int, int]] = []
    for number, (key, spans) in enumerate(texts):
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            own = [(int(log), start, stop) for log, start, stop in _read_spans(spans, key)]
            places += own
            numbers += [number] * len(own)
    bodies: list[list[str]] = [[] for _ in texts]
    for place, body in cursor.execute(_BODIES, (json.dumps(places),)).fetchall() if places else ():
        bodies[numbers[place]].append(body)
    return [_text_of(own) for own in bodies]


def _text_of(bodies: Sequence[str]) -> str:
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return text_of_blocks(map(whole_body, bodies))
    return ""


_BODIES = (
    "SELECT place.key, b.body FROM json_each(?) place CROSS JOIN turnwise_blocks b "
    "ON b.log = json_extract(place.value, '$[0]') AND b.at >= json_extract(place.value, '$[1]') "
    "AND b.at < json_extract(place.value, '$[2]') ORDER BY place.key, b.at"
)
"""The blocks of a list of places."""


def _conditions(texts: TextFilter, place: str) -> tuple[str, list[Any]]:
    conditions: dict[str, Any] = {
        "s.agent =": texts.agent,
        "s.session_id =": texts.session_id,
        "s.called_by =": None if texts.agents else NO_CALLER,
        "t.role =": texts.role and _SHORT_ROLES[texts.role],
        f"{_AT} >=": texts.since,
        f"{_AT} <": texts.until,
    }
    used = {condition: value for condition, value in conditions.items() if value is not None}
    values = [*used.values(), *([] if texts.mark is None else [texts.mark])]
    has_mark = [] if texts.mark is None else [_HAS_MARK[place]]
    whose, users = f"s.user_id = {place}", [texts.user_id]
    if texts.shared:
        whose, users = f"({whose} OR {_IS_MEMBER.format(place)})", [texts.user_id] * 2
    return " AND ".join([whose, *(f"{condition} {place}" for condition in used), *has_mark]), [*users, *values]


_IS_MEMBER = "EXISTS (SELECT 1 FROM turnwise_members sharer WHERE sharer.user_id = {} AND sharer.session = t.session)"

_OWNERS = (
    "SELECT DISTINCT s.user_id FROM turnwise_members sharer JOIN turnwise_sessions s ON s.key = sharer.session "
    "WHERE sharer.user_id = {}"
)

_USERS_AT_ONCE = 64
"""The words of how many users are looked for by one query of the index."""


def _prefixes(cursor: Any, texts: TextFilter, place: str) -> list[list[str]]:
    """Return the prefixes of all users whose sessions are searched, each once, in parts for one query each.

    They only narrow what the index reads: each row that is found is of a session that matches `_conditions`.
    """
    users = [texts.user_id]
    if texts.shared:
        cursor.execute(_OWNERS.format(place), (texts.user_id,))
        users += [user_id for (user_id,) in cursor.fetchall()]
    prefixes = list(dict.fromkeys(map(_prefix, users)))
    return [prefixes[start : start + _USERS_AT_ONCE] for start in range(0, len(prefixes), _USERS_AT_ONCE)]


_HAS_MARK = {
    "?": "EXISTS ("
    "SELECT 1 FROM turnwise_turns m, json_each(m.marks) message, json_each(message.value) mark "
    "WHERE m.session = t.session AND m.idx = t.idx AND m.marks IS NOT NULL "
    "AND message.key = CAST(t.number AS TEXT) AND mark.key = ?)",
    "%s": "EXISTS ("
    "SELECT 1 FROM turnwise_turns m WHERE m.session = t.session AND m.idx = t.idx AND m.marks IS NOT NULL "
    "AND (CAST(replace(m.marks, '\\u0000', '\\u0020') AS json) -> CAST(t.number AS text) -> CAST(%s AS text)) "
    "IS NOT NULL)",
}
"""The condition that a text's message has a mark, by how the driver takes parameters. PostgreSQL reads no JSON with the
character NUL."""


def _in_sequence(cursor: Any, rows: Iterator[tuple[Any, ...]], query: Query) -> Iterator[tuple[Any, ...]]:
    """Yield those of the rows, which have all words of a query, whose texts have its words in their sequence."""
    if all(len(term.words) == 1 for term in query.terms):
        yield from rows
        return
    while some := list(itertools.islice(rows, _READ_AT_ONCE)):
        texts = _stored_texts(cursor, [(row[1], row[6]) for row in some])
        yield from (row for row, text in zip(some, texts, strict=True) if query.matches(text))


_READ_AT_ONCE = 32
"""How many texts are read at once to look for words that follow each other."""


def _fts_query(prefixes: Sequence[str], query: Query) -> str:
    """Return a query for FTS5 that finds what has all words. Words have no quotes, so each is a string of it."""

    def terms(prefix: str) -> str:
        return " AND ".join(
            f'"{prefix}{word}"{"*" if term.is_prefix and index == len(term.words) else ""}'
            for term in query.terms
            for index, word in enumerate(term.words, 1)
        )

    return " OR ".join(f"({terms(prefix)})" for prefix in prefixes)


def _tsquery(prefixes: Sequence[str], query: Query) -> str:
    """Return a query for PostgreSQL. Words have no quotes, so each is a lexeme in quotes."""
    return " | ".join(f"({_terms_of(prefix, query)})" for prefix in prefixes)


def _terms_of(prefix: str, query: Query) -> str:

    def lexeme(word: str, *, is_prefix: bool) -> str:
        return f"'{prefix}{word}'{':*' if is_prefix else ''}"

    return " & ".join(
        " <-> ".join(
            lexeme(word, is_prefix=term.is_prefix and index == len(term.words) - 1)
            for index, word in enumerate(term.words)
        )
        for term in query.terms
    )


def _hit(row: Sequence[Any]) -> TextHit:
    text_id, session, index, number, role, at, spans, session_id, user_id, title, agent, branches = row
    return TextHit(
        session=SessionKey(session_id, user_id),
        title=read_title(title),
        agent=agent,
        turn_index=index,
        number=number,
        role=_ROLES[role],
        at=at,
        spans=_read_spans(spans, session),
        cursor=str(text_id),
        is_shown=not branches or is_shown(tuple(Branch(*pair) for pair in json.loads(branches)), index),
    )
