"""`turnwise search` and `marks`: finds what was said in a user's sessions, and lists marks of messages."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnwise.cli.common import AsJson, Cursor, Limit, OfAgent, Server, Store, reading, run
from turnwise.cli.output import Cell, Column, note, print_json, print_table
from turnwise.console.elements.text import ago

if TYPE_CHECKING:
    from turnwise.memory.conversation.marks import MarkedMessage
    from turnwise.memory.stores.search.finding import SearchHit

_OMITTED = "; 'default' if omitted, and that of the token with --server."


def search(
    store: Store,
    text: Annotated[str, typer.Argument(help='Words that all occur; "words in quotes" follow each other.')],
    *,
    server: Server = None,
    user: Annotated[str | None, typer.Option(help=f"The user whose sessions are searched{_OMITTED}")] = None,
    session: Annotated[str | None, typer.Option(help="Only in this session.")] = None,
    agent: OfAgent = None,
    mark: Annotated[str | None, typer.Option(help="Only messages that have a mark of this name.")] = None,
    role: Annotated[Literal["user", "assistant"] | None, typer.Option(help="Only prompts, or only answers.")] = None,
    own: Annotated[bool, typer.Option("--own", help="Not in sessions that others share with the user.")] = False,
    order: Annotated[Literal["newest", "rank"], typer.Option(help="The newest or the best match first.")] = "newest",
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """Search what was said in a user's sessions. The store must be SQLite or PostgreSQL, without encryption."""
    query: dict[str, Any] = {"session_id": session, "agent": agent, "role": role, "mark": mark}
    query |= {"order": order, "limit": limit, "cursor": cursor, "shared": not own}
    run(_search(store, user, text, query, as_json))


async def _search(store: str, user: str | None, text: str, query: dict[str, Any], as_json: bool) -> None:
    async with reading(store, None) as manager:
        page = await manager.search(user, text, **query)
    if as_json:
        from turnwise.http.native.models import SearchPage

        print_json(SearchPage.of(page).model_dump(mode="json"))
        return
    names = ("session", "user", "turn", "role", "said", "text")
    columns = [Column(name, right=name == "turn", cut=name == "text") for name in names]
    now = time.time()
    print_table(columns, [_row(hit, now) for hit in page])
    if page.cursor:
        note(f"there are more messages: --limit shows more at once, --cursor '{page.cursor}' the next ones")


def _row(hit: SearchHit, now: float) -> list[Cell]:
    return [hit.session_id, hit.user_id, str(hit.turn_index), hit.role, ago(hit.at, now), " ".join(hit.snippet.split())]


def marks(
    store: Store,
    *,
    server: Server = None,
    user: Annotated[
        str | None, typer.Option("--user", help=f"The user whose messages have the marks{_OMITTED}")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only marks of this name.")] = None,
    session: Annotated[str | None, typer.Option(help="Only marks of this session's messages.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List the marks of a user's messages, such as thumbs and notes."""
    query = {"name": name, "session_id": session, "limit": limit, "cursor": cursor}
    run(_marks(store, user, query, as_json))


async def _marks(store: str, user: str | None, query: dict[str, Any], as_json: bool) -> None:
    async with reading(store, None) as manager:
        page = await manager.marks(user, **query)
    if as_json:
        from turnwise.http.native.marks import MarkPage

        print_json(MarkPage.of(page).model_dump(mode="json"))
        return
    names = ("message", "mark", "value", "by", "set")
    columns = [Column(name, cut=name == "value") for name in names]
    now = time.time()
    print_table(columns, [_mark_row(marked, now) for marked in page])
    if page.cursor:
        note(f"there are more marks: --limit shows more at once, --cursor '{page.cursor}' the next ones")


def _mark_row(marked: MarkedMessage, now: float) -> list[Cell]:
    mark = marked.mark
    value = (
        mark.value if isinstance(mark.value, str) else json.dumps(mark.value, ensure_ascii=False, separators=(",", ":"))
    )
    return [marked.id, mark.name, value or "", mark.by or "", ago(mark.at, now)]
