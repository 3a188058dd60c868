"""The tables of `SQLFacts`, for every SQL database.

Free text is stored as JSON, since PostgreSQL text cannot hold NUL. The key of an item is a digest of the user's id and
its own id: it has a fixed size, and the digests of deleted items reveal neither id.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, LargeBinary, MetaData, Table, Text

from turnwise.memory.stores.sql.database import Schema

tables = MetaData()

SCHEMA = Schema(name="facts_version", version=1, tables=tables)

facts = Table(
    "turnwise_facts",
    tables,
    Column("key", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("user_id", Text, nullable=False),
    Column("agent", Text),
    Column("id", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("topic", Text),
    Column("session_id", Text),
    Column("turn_index", BigInteger),
    Column("spans", Text),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double),
    Column("superseded_at", Double),
    Column("superseded_by", Text),
    Column("used", Double, nullable=False),
    Column("name", Text),
    Column("aliases", Text),  # a JSON list; NULL if empty
    Column("expires_at", Double),
    Column("status", Text),  # NULL if active
    Column("pinned", Boolean),  # NULL if not pinned
    Column("uses", BigInteger),  # NULL for 0
    Index("turnwise_facts_created", "user_id", "created_at", "key"),
    Index("turnwise_facts_session", "user_id", "session_id", "created_at", "key"),
    Index("turnwise_facts_superseded", "user_id", "superseded_by"),
    Index("turnwise_facts_used", "used", "key"),
    sqlite_autoincrement=True,  # so that the key of a deleted item is not used again
)

deleted = Table(
    "turnwise_facts_deleted",
    tables,
    Column("digest", LargeBinary, primary_key=True),
    Column("at", Double, nullable=False),
    Index("turnwise_facts_deleted_at", "at"),
)
