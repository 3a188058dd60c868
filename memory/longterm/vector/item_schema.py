"""The tables of `SQLItems`, in SQLite or PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

from turnwise.memory.stores.sql.database import WHERE, Schema

tables = sa.MetaData()

SCHEMA = Schema(name="vector_memory", version=1, tables=tables)

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite's integers have 8 bytes, and only a key that is called INTEGER is the row's own number."""

owners = sa.Table(
    "turnwise_vector_owners",
    tables,
    sa.Column("owner", _NUMBER, primary_key=True),
    sa.Column("user_id", sa.Text, nullable=False, unique=True),
    sa.Column("changes", _NUMBER, nullable=False),
    sa.Column("rows", _NUMBER, nullable=False),
    sqlite_autoincrement=True,  # so that nobody gets the number of one who was forgotten
)

items = sa.Table(
    "turnwise_vector_items",
    tables,
    sa.Column("row", _NUMBER, primary_key=True, autoincrement=False),
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
    sa.Index("turnwise_vector_items_superseded", "superseded_by", info={WHERE: sa.text("superseded_by IS NOT NULL")}),
)

forgotten = sa.Table(
    "turnwise_vector_forgotten",
    tables,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Index("turnwise_vector_forgotten_at", "at"),
)

dropped = sa.Table("turnwise_vector_dropped", tables, sa.Column("key", sa.Text, primary_key=True))
