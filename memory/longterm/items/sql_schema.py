"""The tables of `SQLItems`, for every SQL database.

The digest of an item is of its space, its user's id and its own id: it has a fixed size, and the digests of deleted
items reveal none of them. A text's null characters are escaped in PostgreSQL, which cannot store them.
"""

from __future__ import annotations

import sqlalchemy as sa

from turnwise.memory.stores.sql.schema_version import WHERE, Schema

tables = sa.MetaData()

SCHEMA = Schema(name="items_version", version=1, tables=tables)

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite's integers have 8 bytes, and only a key that is called INTEGER is the row's own number."""

owners = sa.Table(
    "turnwise_item_owners",
    tables,
    sa.Column("owner", _NUMBER, primary_key=True),
    sa.Column("space", sa.Text, nullable=False),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("changes", _NUMBER, nullable=False),
    sa.Column("added", _NUMBER, nullable=False),
    sa.UniqueConstraint("space", "user_id"),
    sqlite_autoincrement=True,  # so that nobody gets the number of one who was forgotten
)

items = sa.Table(
    "turnwise_items",
    tables,
    sa.Column("row", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("owner", _NUMBER, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("used", sa.Double, nullable=False),  # before the text, so that SQLite need not read that to come to it
    sa.Column("embedded", sa.Text),  # NULL if it is to have no vectors, empty if it has none yet, or of what they are
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("agent", sa.Text),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("topic", sa.Text),
    sa.Column("name", sa.Text),
    sa.Column("aliases", sa.Text),  # a JSON list; NULL if empty
    sa.Column("session_id", sa.Text),
    sa.Column("turn_index", _NUMBER),
    sa.Column("spans", sa.Text),  # a JSON list; NULL if empty
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double),
    sa.Column("superseded_at", sa.Double),
    sa.Column("superseded_by", sa.Text),
    sa.Column("expires_at", sa.Double),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("pinned", sa.Boolean, nullable=False),
    sa.Column("uses", _NUMBER, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Index("turnwise_items_created", "owner", "created_at", "row"),
    sa.Index("turnwise_items_used", "used"),
    sa.Index("turnwise_items_superseded", "superseded_by", info={WHERE: sa.text("superseded_by IS NOT NULL")}),
    sa.Index("turnwise_items_embedded", "embedded", info={WHERE: sa.text("embedded IS NOT NULL")}),
)

deleted = sa.Table(
    "turnwise_items_deleted",
    tables,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Index("turnwise_items_deleted_at", "at"),
)

dropped = sa.Table(
    "turnwise_vectors_dropped",
    tables,
    sa.Column("space", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
)
"""Keys of deleted items, whose vectors the index may still have."""
