"""`turnwise migrate`: makes and brings up the tables of a store, for programs whose role may not."""

from __future__ import annotations

import asyncio
import importlib
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import FAILED, AsJson, Store, run
from turnwise.cli.output import Column, note, print_json, print_table, write
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.memory.stores.sql.database import SQLDatabase


class Kind(StrEnum):
    """A kind of tables that a database may have."""

    SESSIONS = "sessions"
    EVENTS = "events"
    ITEMS = "items"
    VECTORS = "vectors"
    CHECKPOINTS = "checkpoints"
    GRAPH_ITEMS = "graph-items"


_STORES = {
    Kind.SESSIONS: "turnwise.memory.stores.sql.store:SQLStore",
    Kind.EVENTS: "turnwise.memory.event_store.sql:SQLHistory",
    Kind.ITEMS: "turnwise.memory.longterm.items.sql:SQLItems",
    Kind.VECTORS: "turnwise.memory.longterm.index.sql_vectors:SQLVectors",
    Kind.CHECKPOINTS: "turnwise.adapters.langgraph.checkpoints_sql:SQLCheckpoints",
    Kind.GRAPH_ITEMS: "turnwise.adapters.langgraph.items_sql:SQLGraphItems",
}
"""The stores that use them."""


def migrate(
    store: Store,
    *,
    tables: Annotated[
        list[Kind] | None,
        typer.Option(help="Tables to make or bring up; if omitted, those of sessions, and others that are there."),
    ] = None,
    grant: Annotated[
        str | None, typer.Option(metavar="ROLE", help="A role of PostgreSQL that may read and write the tables then.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 if there is something to do.")] = (
        False
    ),
    print_sql: Annotated[bool, typer.Option("--print-sql", help="Change nothing; print the SQL.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the tables of a store, or bring them up to this version.

    Programs do so by themselves at first use where their role may, unless they open the store with make_schema=False.
    """
    if store.startswith(("redis", "rediss", "memory")):
        states = run(_check_other(store))
    elif check or print_sql:
        states = run(_look(store, tables, with_sql=print_sql))
    else:
        states = run(_migrate(store, tables, grant))
    if print_sql:
        for state in states:
            for statement in state["sql"]:
                write(f"{statement};")
    elif as_json:
        print_json(states)
    else:
        columns = [Column("tables"), Column("found", right=True), Column("version", right=True), Column("state")]
        print_table(columns, [[str(state[column.name]) for column in columns] for state in states])
    if check and any(state["state"] not in _DONE for state in states):
        raise typer.Exit(FAILED)


_DONE = ("up to date", "later, and this turnwise may write it")


async def _migrate(url: str, tables: list[Kind] | None, grant: str | None) -> list[dict[str, Any]]:
    """Migrate one kind after the other; what is migrated stays so if a later one cannot be."""
    from turnwise.memory.stores.store_owner import StoreOwner

    states: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        for kind, database in await _opened(stack, url, tables):
            if database.is_local:
                await asyncio.to_thread(database.own, StoreOwner.of_this_process())
            before = await database.migrate()
            if grant is not None:
                await database.grant(grant)
            version = max(database.schema_version, before.version if before else 0)
            is_same = before is not None and before.version == version
            done = "made" if before is None else _state_of(database, before) if is_same else "migrated"
            states.append(_row(kind, before.version if before else None, version, done))
    return states


async def _look(url: str, tables: list[Kind] | None, *, with_sql: bool) -> list[dict[str, Any]]:
    from turnwise.memory.stores.urls import read_only

    states: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        for kind, database in await _opened(stack, read_only(url), tables):
            stored, statements = await database.schema_state()
            version = database.schema_version
            state = "missing" if stored is None else "older" if statements else _state_of(database, stored)
            row = _row(kind, stored.version if stored else None, version, state)
            states.append({**row, "sql": statements} if with_sql else row)
    return states


def _state_of(database: SQLDatabase, stored: Any) -> str:
    if stored.version == database.schema_version:
        return "up to date"
    if stored.writable_from <= database.schema_version < stored.version:
        return _DONE[1]
    return "not to be used by this turnwise"


async def _opened(stack: AsyncExitStack, url: str, tables: list[Kind] | None) -> list[tuple[Kind, SQLDatabase]]:
    opened: list[tuple[Kind, SQLDatabase]] = []
    for kind, path in _STORES.items():
        if tables and kind not in tables:
            continue
        database = await asyncio.to_thread(_open, kind, path, url)
        if database is None:
            if tables:
                raise ConfigError("tables", kind, "its package is not installed, or the database cannot have them")
            continue
        stack.push_async_callback(_close, database)
        if tables or kind is Kind.SESSIONS or (await database.schema_state())[0] is not None:
            opened.append((kind, database))
    return opened


def _open(kind: Kind, path: str, url: str) -> SQLDatabase | None:
    module, _, name = path.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, ConfigError):  # adapters raise the latter where their framework is not installed
        return None
    if kind is Kind.VECTORS:
        if not url.startswith("postgresql"):
            return None
        database: SQLDatabase = make(url, "any", "any")
    else:
        database = make(url)
    return database


async def _close(database: Any) -> None:
    closed = database.close()
    if closed is not None:
        await closed


async def _check_other(url: str) -> list[dict[str, Any]]:
    """Return the state of a store that has no tables: raises SchemaVersionError if it is of another version."""
    from turnwise.memory.stores.urls import open_store

    if url.startswith("memory"):
        raise ConfigError("store", url, "a store in memory has no tables, and ends with its process")
    store = await asyncio.to_thread(open_store, url)
    try:
        await store.count()
    finally:
        await store.close()
    note("Redis has no tables; keys are made when they are used")
    return [_row(Kind.SESSIONS, None, None, _DONE[0])]


def _row(kind: Kind, found: int | None, version: int | None, state: str) -> dict[str, Any]:
    return {"tables": kind.value, "found": found, "version": version, "state": state}
