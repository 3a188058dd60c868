"""The tables of `SQLStore`, for every SQL database.

Times are seconds since the epoch; `spans` and other nested values are JSON text. Rows stay small, because a turn takes
many rows, and most of the stored bytes should be text.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from turnwise.memory.conversation.ledger import NUMBERS, LedgerKey
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.sql.schema_version import BY_KEY, WHERE, Schema

tables = MetaData()

SCHEMA = Schema(name="schema_version", version=1, tables=tables)

# The key is also the name of the session's log.
_Key = BigInteger().with_variant(Integer(), "sqlite")

USAGE: dict[str, type[int | float]] = {
    field.name: float if isinstance(field.default, float) else int for field in fields(Usage)
}
"""Usage columns of a session and their types, so that SQL can sum them. Usage of turns and runs is JSON text."""

sessions = Table(
    "turnwise_sessions",
    tables,
    Column("key", _Key, primary_key=True, autoincrement=False),
    Column("session_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("agent", Text),
    Column("metadata", Text),
    Column("title", Text),
    Column("engine", Text),
    Column("status", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("parent", Text),
    Column("called_by", Text, nullable=False),  # empty without a caller, since an index orders by it
    Column("depth", BigInteger, nullable=False),
    Column("budget", Text),
    Column("prefix_key", Text),
    Column("agents_usage", Text),
    Column("namespace", Text),
    Column("log_size", BigInteger, nullable=False),
    Column("next_index", BigInteger, nullable=False),
    Column("branches", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("memory", Text),
    Column("saved", BigInteger, nullable=False),
    Column("ttl_s", Double),
    Column("model", Text),
    Column("params", Text),
    Column("marks", BigInteger, nullable=False),
    Column("members", Text),
    *(Column(name, BigInteger if number is int else Double, nullable=False) for name, number in USAGE.items()),
    UniqueConstraint("user_id", "session_id"),
    Index("turnwise_sessions_created", "created_at", "key"),
    Index("turnwise_sessions_user", "user_id", "called_by", "created_at", "key"),
)

# An index of the column `members`, by which the sessions of a member are found.
members = Table(
    "turnwise_members",
    tables,
    Column("user_id", Text, nullable=False),
    Column("session", _Key, nullable=False),
    PrimaryKeyConstraint("user_id", "session"),
    Index("turnwise_members_session", "session"),
    info={BY_KEY: True},
)

borrowed = Table(
    "turnwise_borrowed",
    tables,
    Column("session", _Key, nullable=False),
    Column("log", _Key, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    PrimaryKeyConstraint("session", "log", "start"),
    Index("turnwise_borrowed_log", "log"),
    info={BY_KEY: True},
)

blocks = Table(
    "turnwise_blocks",
    tables,
    Column("log", _Key, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("log", "at"),
)

# The row of a run has what its turn has too: see `turn_row`.
turns = Table(
    "turnwise_turns",
    tables,
    Column("session", _Key, nullable=False),
    Column("idx", BigInteger, nullable=False),
    Column("parent", Text),  # NULL: the turn before it
    Column("turn_id", Text),
    Column("run_id", Text),
    Column("status", Text, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("appended", Text),
    Column("input", Text, nullable=False),
    Column("output", Text, nullable=False),
    Column("carried", Text),
    Column("usage", Text),
    Column("stop_reason", Text),
    Column("created_at", Double),  # NULL: that of its run
    Column("metadata", Text),
    Column("forgotten", Boolean),
    Column("removed", Text),
    Column("marks", Text),
    PrimaryKeyConstraint("session", "idx"),
    info={BY_KEY: True},
)
_has_ttl = sessions.c.ttl_s.is_not(None)
# Indexed by key, not by the time of expiry: that changes with every commit, and each would write to the index.
Index("turnwise_sessions_ttl", sessions.c.key, info={WHERE: _has_ttl})

# Open turns that have a run are found by the run, so that a turn with a run writes to no further index.
_pending_turn = text("status = 'pending'")
Index("turnwise_turns_pending", turns.c.session, turns.c.idx, info={WHERE: _pending_turn})

runs = Table(
    "turnwise_runs",
    tables,
    Column("run_id", Text, nullable=False, unique=True),  # most are bytes in SQLite: see `packed_id`
    Column("session", _Key, nullable=False),
    Column("turn_index", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("why", Text),
    Column("labels", Text),
    Column("timeout_s", Double),
    Column("idempotency_key", Text),
    Column("fingerprint", Text),
    Column("code", Text),
    Column("successor", Text),
    Column("usage", Text),
    Column("stop_reason", Text),
    Column("calls", Text),
    Column("resumes", BigInteger, nullable=False),
    Column("memory", Text),
    Column("model", Text),
    Column("params", Text),
    Column("output", Text),
    Column("instructions", Text),
    Column("tools", Text),
    Column("overflow", Text),
    Column("joins", Boolean),  # NULL if not
    Column("trace", Text),
    Column("parent", Text),
    Column("engine", Text),
    Column("author", Text),
    PrimaryKeyConstraint("session", "turn_index"),
    info={BY_KEY: True},
)
_open_run = text("state IN ('queued', 'running', 'awaiting_approval')")
Index("turnwise_runs_open", runs.c.session, runs.c.turn_index, info={WHERE: _open_run})
Index(
    "turnwise_runs_key",
    runs.c.session,
    runs.c.idempotency_key,
    unique=True,
    info={WHERE: runs.c.idempotency_key.is_not(None)},
)


def event_columns() -> list[Column[Any]]:
    """Return the columns of an event, without its session, in the order of the fields of `EventRow`."""
    return [
        Column("seq", BigInteger, nullable=False),
        Column("at", Double, nullable=False),
        Column("turn_index", BigInteger),
        Column("run_id", Text),
        Column("event_key", Text),
        Column("kind", Text, nullable=False),
        Column("body", Text, nullable=False),
    ]


events = Table(
    "turnwise_events",
    tables,
    Column("session", _Key, nullable=False),
    *event_columns(),
    PrimaryKeyConstraint("session", "seq"),
    info={BY_KEY: True},
)
Index(
    "turnwise_events_key",
    events.c.session,
    events.c.event_key,
    unique=True,
    info={WHERE: events.c.event_key.is_not(None)},
)

ledger = Table(
    "turnwise_ledger",
    tables,
    *(Column(name, Text, nullable=False) for name in LedgerKey._fields),
    *(Column(name, BigInteger, nullable=False) for name in NUMBERS),
    # A session's rows stand together, so that its commits find them and its deletion does. No two sessions share a row.
    PrimaryKeyConstraint("user_id", "session_id", "day", "kind", "model", "tool", "agent", "tenant", "engine"),
    info={BY_KEY: True},
)

counters = Table(
    "turnwise_quota_counters",
    tables,
    Column("user_id", Text, nullable=False),  # empty for a counter of all users
    Column("agent", Text, nullable=False),
    Column("quota_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("starts", BigInteger, nullable=False),
    Column("ends", BigInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
    PrimaryKeyConstraint("user_id", "agent", "quota_id", "tenant"),
    info={BY_KEY: True},
)

# Sorted by code points in every database, since pages go by ids.
_SortedText = Text(collation="C").with_variant(Text(), "sqlite")

users = Table(
    "turnwise_users",
    tables,
    Column("user_id", Text, primary_key=True),
    Column("tenant", _SortedText, nullable=False),
    Index("turnwise_users_tenant", "tenant", "user_id"),
    info={BY_KEY: True},
)

deliveries = Table(
    "turnwise_deliveries",
    tables,
    Column("session", _Key, nullable=False),
    Column("key", Text, nullable=False),
    Column("delivery_id", _SortedText, nullable=False),
    Column("user_id", Text, nullable=False),  # the session's, so that those of a user are listed by an index
    Column("to_session", Text),
    Column("namespace", Text),
    Column("engine_id", Text),
    Column("revision", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("payload", Text),
    Column("occurs_at", Double, nullable=False),
    Column("due_at", Double),
    Column("schedule", Text),
    Column("missed", Text, nullable=False),
    Column("if_busy", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("why", Text),
    PrimaryKeyConstraint("session", "key"),
    UniqueConstraint("user_id", "delivery_id"),
)
Index(
    "turnwise_deliveries_due",
    deliveries.c.due_at,
    deliveries.c.delivery_id,
    info={WHERE: deliveries.c.due_at.is_not(None)},
)

files = Table(
    "turnwise_files",
    tables,
    Column("user_id", Text, nullable=False),
    Column("session_id", Text, nullable=False),  # empty for a file of its user alone
    Column("file_id", _SortedText, nullable=False),
    Column("name", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    PrimaryKeyConstraint("user_id", "session_id", "file_id"),
    info={BY_KEY: True},
)

file_objects = Table(
    "turnwise_file_objects",
    tables,
    Column("object_id", _SortedText, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("digest", Text),
    Column("size", BigInteger, nullable=False),
    Column("uses", BigInteger, nullable=False),
    Column("reserved_at", Double),  # NULL once it was used, or is unused
    info={BY_KEY: True},
)
Index(
    "turnwise_file_objects_digest",
    file_objects.c.user_id,
    file_objects.c.digest,
    unique=True,
    info={WHERE: file_objects.c.uses > 0},
)
Index("turnwise_file_objects_unused", file_objects.c.object_id, info={WHERE: file_objects.c.uses == 0})
