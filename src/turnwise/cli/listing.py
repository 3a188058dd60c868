"""`turnwise ls`, `runs` and `schedules`: what there is in a store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnwise.cli.common import (
    AsJson,
    Cursor,
    History,
    Limit,
    OfAgent,
    OfTenant,
    OfUser,
    Server,
    Store,
    complete_session,
    find_session,
    reading,
    run,
)
from turnwise.cli.output import Cell, Column, note, print_json, print_table
from turnwise.console.elements.text import ago, moment, number
from turnwise.errors import SessionNotFoundError

if TYPE_CHECKING:
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.hosting.wire import SessionInfo
    from turnwise.memory.conversation.runs import RunRecord
    from turnwise.memory.conversation.sessions import SessionRecord
    from turnwise.memory.deliveries.records import Delivery
    from turnwise.memory.stores.base import Page

_LOOKS = 8
"""How many sessions are read at once."""

_PAGE = 500

_PROMPT_CHARS = 200
"""How many characters of a schedule's prompt are shown."""

_STYLES = {
    "running": "yellow",
    "queued": "yellow",
    "awaiting_approval": "magenta",
    "failed": "red",
    "interrupted": "red",
    "ended": "dim",
    "completed": "green",
}


def ls(
    store: Store,
    *,
    server: Server = None,
    user: OfUser = None,
    agent: OfAgent = None,
    tenant: OfTenant = None,
    status: Annotated[Literal["active", "ended"] | None, typer.Option(help="Only with this status.")] = None,
    title: Annotated[str | None, typer.Option(help="Only with this part of a title.")] = None,
    agents: Annotated[bool, typer.Option("--agents", help="Also those of agents that other sessions called.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
    history: History = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, the ones used last first."""
    query = {"user_id": user, "agent": agent, "status": status, "title": title, "limit": limit, "cursor": cursor}
    query |= {"agents": agents, "tenant": tenant}
    run(_ls(store, history, query, as_json))


async def _ls(store: str, history: str | None, query: dict[str, Any], as_json: bool) -> None:
    async with reading(store, history) as manager:
        page = await manager.list(order_by="updated_at", **query)
        at_once = asyncio.Semaphore(_LOOKS)
        states = await asyncio.gather(*(_state(manager, session, at_once) for session in page))
    if as_json:
        from turnwise.http.native.models import SessionShown

        shown = [
            {**SessionShown.of(session).model_dump(mode="json"), "state": state}
            for session, state in zip(page, states, strict=True)
        ]
        print_json({"items": shown, "cursor": page.cursor, "unreadable": [key._asdict() for key in page.unreadable]})
        return
    names = ("session", "title", "user", "agent", "state", "turns", "tokens", "changed")
    columns = [Column(name, right=name in ("turns", "tokens"), cut=name == "title") for name in names]
    now = time.time()
    print_table(columns, [_session_row(session, state, now) for session, state in zip(page, states, strict=True)])
    _note_more(page, "sessions")


async def _state(manager: AsyncSessionManager, session: SessionRecord, at_once: asyncio.Semaphore) -> str:
    """Return what a session does: the state of its active run, `idle` without one, or `ended`."""
    if session.status == "ended":
        return "ended"
    async with at_once:
        try:
            handle = await manager.get(session.session_id, user_id=session.user_id)
            info: SessionInfo = await handle.info()
            if info.active_run_id is None:
                return "idle"
            return await (await handle.execution(info.active_run_id)).status()
        except SessionNotFoundError:
            return "deleted"


def _session_row(session: SessionRecord, state: str, now: float) -> list[Cell]:
    tokens = session.usage.input_tokens + session.usage.output_tokens
    return [
        session.session_id,
        session.title or "",
        session.user_id,
        session.agent or "",
        (state, _STYLES.get(state, "")),
        number(session.next_index),
        number(tokens),
        ago(session.updated_at, now),
    ]


def runs(
    store: Store,
    session: Annotated[
        str | None, typer.Argument(help="A session; all sessions if omitted.", autocompletion=complete_session)
    ] = None,
    *,
    server: Server = None,
    user: OfUser = None,
    agent: OfAgent = None,
    state: Annotated[
        Literal["queued", "running", "awaiting_approval", "completed", "cancelled", "failed", "interrupted"] | None,
        typer.Option(help="Only in this state."),
    ] = None,
    parent: Annotated[str | None, typer.Option(help="Only those that were started on behalf of this run.")] = None,
    engine: Annotated[str | None, typer.Option(help="Only those of the engine of this name.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    history: History = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    query = {"user_id": user, "agent": agent, "state": state, "parent": parent, "limit": limit, "cursor": cursor}
    query["engine"] = engine
    run(_runs(store, history, session, query, as_json))


async def _runs(store: str, history: str | None, session: str | None, query: dict[str, Any], as_json: bool) -> None:
    async with reading(store, history) as manager:
        page = await (manager.runs(**query) if session is None else _runs_of(manager, session, query))
    if as_json:
        from turnwise.http.native.models import RunPage

        print_json(RunPage.of(page))
        return
    has_engines = len({run.engine for run in page}) > 1
    engine = ("engine",) if has_engines else ()
    names = ("run", "session", "user", "turn", "state", *engine, "model", "tokens", "seconds", "created", "why")
    columns = [Column(name, right=name in ("turn", "tokens", "seconds"), cut=name == "why") for name in names]
    now = time.time()
    print_table(columns, [_run_row(run, now, has_engines=has_engines) for run in page])
    _note_more(page, "runs")


async def _runs_of(manager: AsyncSessionManager, session_id: str, query: dict[str, Any]) -> Page[RunRecord]:
    """Return the newest runs of one session that match."""
    from turnwise.memory.stores.base import Page
    from turnwise.memory.stores.reading import read_runs

    session = await find_session(manager, session_id, query["user_id"])
    runs: list[RunRecord] = []
    end = (await session.info()).session.next_index
    while end > 0 and len(runs) < query["limit"]:
        start = max(0, end - _PAGE)
        page = await read_runs(session.runs, start, end)
        runs += reversed([run for run in page if _matches(run, query)])
        end = start
    return Page(tuple(runs[: query["limit"]]), None)


def _matches(record: RunRecord, query: Mapping[str, Any]) -> bool:
    return all(query[name] in (None, getattr(record, name)) for name in ("state", "parent", "engine"))


def _run_row(record: RunRecord, now: float, *, has_engines: bool) -> list[Cell]:
    spent = record.usage
    return [
        record.run_id,
        record.session_id,
        record.user_id,
        str(record.turn_index),
        (record.state, _STYLES.get(record.state, "")),
        *([record.engine or ""] if has_engines else []),
        record.model or "",
        number(spent.input_tokens + spent.output_tokens) if spent else "",
        f"{spent.seconds:.1f}" if spent else "",
        ago(record.created_at, now),
        record.why or "",
    ]


def schedules(
    store: Store,
    session: Annotated[
        str | None, typer.Argument(help="A session; all sessions if omitted.", autocompletion=complete_session)
    ] = None,
    *,
    server: Server = None,
    user: OfUser = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List what sessions are to do later: when, what, how often it failed, and why."""
    run(_schedules(store, session, user, {"limit": min(limit, _PAGE), "cursor": cursor}, as_json))


async def _schedules(store: str, session: str | None, user: str | None, query: dict[str, Any], as_json: bool) -> None:
    async with reading(store) as manager:
        if session is None:
            page = await manager.schedules(user_id=user, **query)
        else:
            page = await (await find_session(manager, session, user)).schedules(**query)
    if as_json:
        from turnwise.http.native.schedule_models import SchedulePage

        print_json(SchedulePage.of(page))
        return
    names = ("schedule", "session", "user", "next", "recurs", "prompt", "attempts", "why")
    columns = [Column(name, right=name == "attempts", cut=name in ("prompt", "why")) for name in names]
    print_table(columns, list(map(_schedule_row, page)))
    _note_more(page, "schedules")


def _schedule_row(schedule: Delivery) -> list[Cell]:
    from turnwise.memory.deliveries.texts import prompt_text_of, recurrence_of

    return [
        schedule.key,
        schedule.session_id,
        schedule.user_id,
        ("given up", "red") if schedule.due_at is None else moment(schedule.due_at),
        recurrence_of(schedule),
        prompt_text_of(schedule, _PROMPT_CHARS),
        number(schedule.attempts) if schedule.attempts else "",
        schedule.why or "",
    ]


def _note_more(page: Page[Any], kind: str) -> None:
    """Say on standard error what the table lacks."""
    if page.unreadable:
        names = ", ".join(key.full_name for key in page.unreadable)
        note(f"{len(page.unreadable)} sessions cannot be read: {names}")
    if page.cursor:
        note(f"there are more {kind}: --limit shows more at once, --cursor '{page.cursor}' the next ones")
