"""Stores as LangGraph makes them, and lines of JSON, for tests of migration."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from turnwise.memory.longterm.items.base import ItemStore, StoredItem
from turnwise.memory.longterm.migration.migrate import MigrationReport, migrate

# As langgraph-checkpoint-sqlite makes it; versions before 2.0.8 lack the last two columns.
SQLITE = """
CREATE TABLE IF NOT EXISTS store (
    prefix text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (prefix, key)
);
CREATE INDEX IF NOT EXISTS store_prefix_idx ON store (prefix);
"""
SQLITE_TTL = """
ALTER TABLE store ADD COLUMN expires_at TIMESTAMP;
ALTER TABLE store ADD COLUMN ttl_minutes REAL;
CREATE INDEX IF NOT EXISTS idx_store_expires_at ON store (expires_at) WHERE expires_at IS NOT NULL;
"""


# As langgraph-checkpoint-postgres makes it.
POSTGRESQL = """
CREATE TABLE IF NOT EXISTS store (
    prefix text NOT NULL,
    key text NOT NULL,
    value jsonb NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (prefix, key)
);
ALTER TABLE store
ADD COLUMN IF NOT EXISTS expires_at TIMESTAMP WITH TIME ZONE,
ADD COLUMN IF NOT EXISTS ttl_minutes INT;
"""


CREATED, UPDATED = datetime(2025, 1, 15, 10, 30, tzinfo=UTC), datetime(2025, 3, 1, 12, 0, tzinfo=UTC)


Row = tuple[str, str, Any]


Put = Callable[[Iterable[Row]], None]


SARAH: list[Row] = [
    ("sarah.memories", "p", {"content": "Sarah prefers oat milk in coffee", "memory_type": "preferences"}),
    ("sarah.memories", "f", {"content": "Sarah lives in Warsaw", "memory_type": "facts", "topic": "home"}),
    ("sarah.memories", "s", {"content": "We planned the move to Berlin", "memory_type": "session_summary"}),
    ("sarah.memories", "w", {"content": "Run the tests before a commit", "memory_type": "instructions"}),
]


def sqlite_store(path: Path, rows: Iterable[Row], *, ttl: bool = True) -> Path:
    """Make a store as LangGraph does, with values as bytes, which is how SqliteStore binds them."""
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(SQLITE + (SQLITE_TTL if ttl else ""))
        connection.executemany(
            "INSERT OR REPLACE INTO store (prefix, key, value, created_at, updated_at) VALUES (?, ?, ?, ?, ?)",
            (
                (
                    prefix,
                    key,
                    json.dumps(value).encode(),
                    f"{CREATED:%Y-%m-%d %H:%M:%S}",
                    f"{UPDATED:%Y-%m-%d %H:%M:%S}",
                )
                for prefix, key, value in rows
            ),
        )
    connection.close()
    return path


def postgresql_store(url: str, rows: Iterable[Row]) -> str:
    with psycopg.connect(url) as connection:
        connection.execute(POSTGRESQL)
        connection.cursor().executemany(
            "INSERT INTO store (prefix, key, value, created_at, updated_at) VALUES (%s, %s, %s, %s, %s)",
            [(prefix, key, json.dumps(value), CREATED, UPDATED) for prefix, key, value in rows],
        )
    return url


def lines_of(path: Path, records: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def record(prefix: str, key: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"namespace": prefix.split("."), "key": key, "value": value, **more}


def dated(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    times = {"created_at": CREATED.isoformat(), "updated_at": UPDATED.isoformat()}
    return (record(*row, **times) for row in rows)


def run(source: str | Path, facts: ItemStore, **settings: Any) -> MigrationReport:
    return asyncio.run(migrate(source, facts, **settings))


def facts_in(facts: ItemStore, user_id: str | None = None) -> dict[str, list[StoredItem]]:
    """Return all that is in the store by user."""

    async def scan() -> dict[str, list[StoredItem]]:
        facts_by_user: dict[str, list[StoredItem]] = {}
        for fact in await facts.scan(user_id, limit=100_000):
            facts_by_user.setdefault(fact.user_id, []).append(fact)
        return facts_by_user

    return asyncio.run(scan())


def texts(facts: ItemStore) -> dict[str, list[str]]:
    return {user: sorted(fact.item.text for fact in user_facts) for user, user_facts in facts_in(facts).items()}


def many(count: int, users: int, *, size: int = 10) -> Iterator[Row]:
    return (
        (f"u{number % users}.memories", f"k{number}", {"content": f"{number} {'x' * size}"}) for number in range(count)
    )
