"""The tables of `FullText`, in SQLite."""

from __future__ import annotations

import json

import sqlalchemy as sa

from turnwise.memory.sql_database import Schema
from turnwise.memory.terms import stems_of

tables = sa.MetaData()

_WORDS_OF_THEIR_OWN = (
    """CREATE TABLE turnwise_vector_terms (
        owner INTEGER NOT NULL, word TEXT NOT NULL, row INTEGER NOT NULL, PRIMARY KEY (owner, word, row)
    ) WITHOUT ROWID""",
    """INSERT INTO turnwise_vector_terms SELECT row >> 32, value, row FROM turnwise_vector_items, json_each(
        turnwise_stems(text, json_extract(record, '$.created_at'))
    )""",
    "DROP TABLE turnwise_vector_words",
)

_TIMES = (
    "ALTER TABLE turnwise_vector_forgotten ADD COLUMN at DOUBLE PRECISION",
    "CREATE INDEX turnwise_vector_forgotten_at ON turnwise_vector_forgotten (at)",
)

SCHEMA = Schema(name="vector_memory", version=2, tables=tables, migrations={1: (*_WORDS_OF_THEIR_OWN, *_TIMES)})

owners = sa.Table(
    "turnwise_vector_owners",
    tables,
    sa.Column("owner", sa.Integer, primary_key=True),
    sa.Column("user_id", sa.Text, nullable=False, unique=True),
    sa.Column("changes", sa.Integer, nullable=False),
    sa.Column("rows", sa.Integer, nullable=False),
    sqlite_autoincrement=True,  # so that nobody gets the number of one who was forgotten
)

items = sa.Table(
    "turnwise_vector_items",
    tables,
    sa.Column("row", sa.Integer, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("agent", sa.Text),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("used", sa.Double, nullable=False),  # before the text, so that SQLite need not read that to come to it
    sa.Column("superseded_by", sa.Text),
    sa.Column("embedded", sa.Text),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
    sa.Index("turnwise_vector_items_embedded", "embedded"),
    sa.Index("turnwise_vector_items_used", "used"),
    sa.Index("turnwise_vector_items_superseded", "superseded_by", sqlite_where=sa.text("superseded_by IS NOT NULL")),
)

forgotten = sa.Table(
    "turnwise_vector_forgotten",
    tables,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("at", sa.Double),  # none if it was forgotten under version 1
    sa.Index("turnwise_vector_forgotten_at", "at"),
)

dropped = sa.Table("turnwise_vector_dropped", tables, sa.Column("key", sa.Text, primary_key=True))

terms = sa.Table(
    "turnwise_vector_terms",
    tables,
    sa.Column("owner", sa.Integer, primary_key=True),
    sa.Column("word", sa.Text, primary_key=True),
    sa.Column("row", sa.Integer, primary_key=True),
    sqlite_with_rowid=False,  # so that the words of a user are one range: found, and deleted, without another's
)


def stems_for_sqlite(text: str, created_at: float) -> str:
    """Return the stems of an item as JSON, for the migration from version 1, which had them from FTS5."""
    return json.dumps(sorted(stems_of(text, created_at)))
