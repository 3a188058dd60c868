"""The stores of the siege: how each is crashed, frozen, copied and restored, and what it contains.

The content is read with `sqlite3`, `psycopg` and `redis`, without code of turnwise.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg import sql
from siege_engine import TASK, TOKEN

from servers.postgres_server import PostgresServer
from servers.redis_server import RedisServer

TABLES = ("sessions", "borrowed", "blocks", "turns", "runs", "events", "deliveries")

TERMINAL = ("run_completed", "run_cancelled", "run_failed", "run_interrupted")

IMPORTED = "imported"
"""The prefix of imported sessions' ids. Their blocks are copies, so they do not count as doubled."""


@dataclass(slots=True)
class Found:
    """The content of a store."""

    tokens: dict[str, list[str]] = field(default_factory=dict)
    """For each token, the users of the sessions whose logs have a prompt, or a text that was said, with it; one user if
    all is well."""
    tasks: dict[str, list[str]] = field(default_factory=dict)
    """The same for each task of an agent."""
    runs: dict[str, str] = field(default_factory=dict)
    """The states of runs by id."""
    ends: dict[str, int] = field(default_factory=dict)
    """The number of terminal events of each run."""
    broken: list[str] = field(default_factory=list)
    """Violations in the store itself."""

    def add_block(self, body: str, user: str) -> None:
        """Count the tokens of one stored block."""
        if json.loads(body)["kind"] in ("user", "text"):
            for owner, number in TOKEN.findall(body):
                self.tokens.setdefault(f"tok.{owner}.{number}", []).append(user)
            for owner, number, part in TASK.findall(body):
                self.tasks.setdefault(f"task.{owner}.{number}.{part}", []).append(user)

    def add_log(self, name: str, positions: Iterable[int], size: int) -> None:
        """Check that a log has each position up to its size."""
        if (ordered := sorted(positions)) != list(range(size)):
            self.broken.append(f"{name}: its log of {size} has {len(ordered)} blocks, {ordered[:3]} to {ordered[-3:]}")


class Store(Protocol):
    """An attacked store."""

    url: str

    def crash(self) -> None:
        """Kill its server and start it again."""

    def freeze(self, seconds: float) -> None:
        """Stop its server for a while."""

    def cut(self) -> int:
        """End all connections to it; return how many."""

    def copy(self) -> Any:
        """Return a copy of its content."""

    def put_back(self, copy: Any) -> None:
        """Restore a copy in one step, while the store is in use."""

    def read(self) -> Found:
        """Return its content."""

    def close(self) -> None:
        """Stop its server."""


class SQLiteFile:
    """A file. It has no crash of its own; while frozen, another connection has its write lock."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "chats.db"
        self.url = f"sqlite:///{self._path}"

    def crash(self) -> None:
        """Nothing: no server is there."""

    def freeze(self, seconds: float) -> None:
        with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")
        connection.close()

    def cut(self) -> int:
        return 0  # no connection is there

    def copy(self) -> sqlite3.Connection:
        copy = sqlite3.connect(":memory:", check_same_thread=False)
        with closing(sqlite3.connect(self._path, timeout=60)) as connection, connection:
            connection.backup(copy)
        connection.close()
        return copy

    def put_back(self, copy: sqlite3.Connection) -> None:
        with closing(sqlite3.connect(self._path, timeout=60)) as connection, connection:
            copy.backup(connection)
        connection.close()

    def read(self) -> Found:
        with closing(sqlite3.connect(self._path, timeout=60)) as connection, connection:
            records = _read_tables(connection.execute)
        connection.close()
        return records

    def close(self) -> None:
        """Nothing: no server is there."""


class Postgres:
    """A server that the tests start."""

    def __init__(self, folder: Path) -> None:
        self._server = PostgresServer(folder)
        self.url = self._server.url()
        self._copies = 0

    def crash(self) -> None:
        self._server.restart("immediate")

    def freeze(self, seconds: float) -> None:
        with self._server.frozen():
            time.sleep(seconds)

    def cut(self) -> int:
        with psycopg.connect(self.url) as connection:
            condition = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
            return len(
                connection.execute(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {condition}"
                ).fetchall()
            )

    def copy(self) -> tuple[str, list[tuple[str, int]]]:
        self._copies += 1
        schema = f"copy_{self._copies}"
        with psycopg.connect(self.url) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            for table in TABLES:
                name = f"turnwise_{table}"
                connection.execute(
                    sql.SQL("CREATE TABLE {} AS TABLE {}").format(sql.Identifier(schema, name), sql.Identifier(name))
                )
            counters = connection.execute("SELECT sequencename, COALESCE(last_value, 1) FROM pg_sequences").fetchall()
        return schema, counters

    def put_back(self, copy: tuple[str, list[tuple[str, int]]]) -> None:
        schema, counters = copy
        with psycopg.connect(self.url) as connection:
            names = [sql.Identifier(f"turnwise_{table}") for table in TABLES]
            connection.execute(sql.SQL("LOCK {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(", ").join(names)))
            for table in TABLES:
                name = f"turnwise_{table}"
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
                connection.execute(
                    sql.SQL("INSERT INTO {} SELECT * FROM {}").format(
                        sql.Identifier(name), sql.Identifier(schema, name)
                    )
                )
            for name, value in counters:
                connection.execute("SELECT setval(%s, %s)", (name, value))

    def read(self) -> Found:
        with psycopg.connect(self.url) as connection:
            return _read_tables(lambda query: connection.execute(query.encode()))

    def close(self) -> None:
        self._server.stop("immediate")


class RedisStore:
    """A Redis that writes each command to its file."""

    def __init__(self, folder: Path) -> None:
        self._server = RedisServer(folder)
        self._server.start()
        self.url = self._server.url

    def crash(self) -> None:
        self._server.kill()
        self._server.start()

    def freeze(self, seconds: float) -> None:
        with self._server.frozen():
            time.sleep(seconds)

    def cut(self) -> int:
        with self._server.client as client:
            return int(client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))

    def copy(self) -> dict[bytes, bytes]:
        with self._server.client as client, client.pipeline(transaction=True) as pipe:
            while True:
                keys = list(client.scan_iter(count=1000))
                for key in keys:
                    pipe.dump(key)
                bodies = pipe.execute()
                # A key that came meanwhile would be half of a commit: take the copy again until nothing has come.
                if sorted(keys) == sorted(client.scan_iter(count=1000)):
                    return {key: body for key, body in zip(keys, bodies, strict=True) if body is not None}

    def put_back(self, copy: dict[bytes, bytes]) -> None:
        with self._server.client as client, client.pipeline(transaction=True) as pipe:
            pipe.flushall()
            for key, body in copy.items():
                pipe.restore(key, 0, body)
            pipe.execute()

    def read(self) -> Found:
        records = Found()
        with self._server.client as client:
            ids = next(key for key in client.scan_iter(match="*:ids"))
            base = ids.removesuffix(b":ids")
            for key, number in client.hgetall(ids).items():
                name, user = json.loads(key)
                if name.startswith(IMPORTED):
                    continue
                whole = base + b":" + number
                (row,) = client.hmget(whole, "row")
                changing = json.loads(row)
                log = client.hgetall(whole + b":log")
                own = {int(position): body.decode() for position, body in log.items()}
                records.add_log(name, own, changing.get("log_size", 0))
                for body in own.values():
                    records.add_block(body, user)
                for text in client.zrange(whole + b":runs", 0, -1):
                    run = json.loads(text[20:])
                    records.runs[run["run_id"]] = run.get("state", "")
                for text in [*client.zrange(whole + b":events", 0, -1), *client.zrange(whole + b":keyed", 0, -1)]:
                    kind, _, _, run_id, _ = json.loads(text[19:].split(b"\n", 1)[0])
                    if kind in TERMINAL:
                        records.ends[run_id] = records.ends.get(run_id, 0) + 1
        return records

    def close(self) -> None:
        self._server.kill()


def _read_tables(ask: Any) -> Found:
    records = Found()
    sessions = {
        key: (session_id, user, size)
        for key, session_id, user, size in ask("SELECT key, session_id, user_id, log_size FROM turnwise_sessions")
        if not session_id.startswith(IMPORTED)
    }
    logs: dict[int, dict[int, str]] = {}
    for log, position, body in ask("SELECT log, at, body FROM turnwise_blocks"):
        is_short = not body.startswith("{")  # as t"..." or u"..."
        logs.setdefault(log, {})[position] = f'{{"kind":"text","text":{body[1:]}}}' if is_short else body
    for key, (name, user, size) in sessions.items():
        own = logs.get(key, {})
        records.add_log(name, own, size)
        for body in own.values():
            records.add_block(body, user)
    for key, run_id, state in ask("SELECT session, run_id, state FROM turnwise_runs"):
        if key in sessions:
            records.runs[_text_of(run_id)] = state
    terminal = ", ".join(f"'{kind}'" for kind in (*TERMINAL, "c"))  # that of most runs is short: see `run_event_row`
    of_run = "turnwise_runs r ON r.session = e.session AND r.turn_index = e.turn_index"
    for key, run_id in ask(
        f"SELECT e.session, r.run_id FROM turnwise_events e JOIN {of_run} WHERE e.kind IN ({terminal})"
    ):
        if key in sessions:
            records.ends[_text_of(run_id)] = records.ends.get(_text_of(run_id), 0) + 1
    return records


def _text_of(run_id: str | bytes) -> str:
    return run_id.hex() if isinstance(run_id, bytes) else run_id


STORES: dict[str, type[SQLiteFile | Postgres | RedisStore]] = {
    "sqlite": SQLiteFile,
    "postgresql": Postgres,
    "redis": RedisStore,
}
