"""`turnwise memory`: what long-term memories keep."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from turnwise.cli.common import STORE, AsJson, Command, Cursor, Limit, file_of, run, still
from turnwise.cli.output import Column, console, note, one_line, print_json, print_table, progress, write
from turnwise.console.elements.text import ago
from turnwise.errors import ConfigError, LongTermMemoryError, NotFoundError

if TYPE_CHECKING:
    import sqlalchemy as sa
    from rich.console import Console

    from turnwise.memory.longterm.base import MemoryItem
    from turnwise.memory.longterm.items.base import ItemStore
    from turnwise.memory.longterm.migration.migrate import MigrationReport
    from turnwise.memory.longterm.retention.deletion import Erasure
    from turnwise.memory.longterm.vector import VectorMemory
    from turnwise.memory.stores.base import Page

Result = TypeVar("Result")

_SHOWN = 20
"""The number of users, and of skipped memories, that the report lists."""

memory = typer.Typer(help="Long-term memories.", no_args_is_help=True)

Items = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        envvar=STORE,
        help="Where the items are: sqlite:///file.db, postgresql://user@host/name or redis://host, as LexicalMemory,"
        " ExtractiveMemory and VectorMemory take it.",
    ),
]
OfSpace = Annotated[
    str | None,
    typer.Option(
        "--space",
        help="The space of the items: 'items' for LexicalMemory and ExtractiveMemory, 'vectors' for VectorMemory, or"
        " another. Without it the command looks; if both are there, it takes 'items'.",
    ),
]
OfOneUser = Annotated[str, typer.Option("--user", help="The user.")]
Agent = Annotated[str | None, typer.Option("--agent", help="The agent; semantic items are of all agents.")]


@memory.command("ls", cls=Command)
def list_(
    store: Items,
    *,
    user: Annotated[str | None, typer.Option("--user", help="Only of this user, the newest first.")] = None,
    agent: Agent = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    space: OfSpace = None,
    as_json: AsJson = False,
) -> None:
    """List the items that a memory keeps."""
    run(_list(store, user, agent, limit, cursor, space=space, as_json=as_json))


async def _list(
    store: str,
    user: str | None,
    agent: str | None,
    limit: int,
    cursor: str | None,
    *,
    space: str | None,
    as_json: bool,
) -> None:
    from turnwise.memory.longterm.base import Scope

    async with _reading(store, _space_of(store, space)) as items:
        page: Page[Any]
        if user is None:
            page = await items.scan(cursor=cursor, limit=limit)
            items_shown = [(stored.user_id, stored.item) for stored in page]
        else:
            page = await items.query(Scope(user_id=user, agent=agent), cursor=cursor, limit=limit)
            items_shown = [(user, item) for item in page]
    _print_items(items_shown, page.cursor, as_json=as_json)
    if page.cursor and not as_json:
        note(f"there are more items: --limit shows more at once, --cursor '{page.cursor}' the next ones")


@memory.command("search", cls=Command)
def search(
    store: Items,
    query: Annotated[str, typer.Argument(help="A text, such as a prompt.")],
    *,
    user: OfOneUser,
    agent: Agent = None,
    limit: Limit = 10,
    as_of: Annotated[
        str | None, typer.Option(help="What was valid then: 2026-11-29T22:00, in local time, or with a zone as +00:00.")
    ] = None,
    space: OfSpace = None,
    as_json: AsJson = False,
) -> None:
    """Find a user's items by the words of a text, as a recall does, but without vectors. Counts as no use of them."""
    time_s = None if as_of is None else _time_of(as_of)
    run(_search(store, query, user, agent, limit, as_of=time_s, space=space, as_json=as_json))


def _time_of(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no time such as 2026-11-29T22:00", param_hint="--as-of") from None


async def _search(
    store: str,
    query: str,
    user: str,
    agent: str | None,
    limit: int,
    *,
    as_of: float | None,
    space: str | None,
    as_json: bool,
) -> None:
    from turnwise.memory.longterm.base import Scope, trouble_of
    from turnwise.memory.longterm.items.sql import SQLItems
    from turnwise.memory.longterm.lexical import LexicalMemory
    from turnwise.memory.longterm.vector import SPACE, VectorMemory

    scope, space = Scope(user_id=user, agent=agent), _space_of(store, space)
    async with _reading(store, space) as opened:
        if space == SPACE and isinstance(opened, SQLItems):
            items = await VectorMemory(opened, embedding=None).recall(scope, query, limit=limit, as_of=as_of)
        elif as_of is not None:
            items = await LexicalMemory(opened).recall(scope, query, limit=limit, as_of=as_of)
        else:
            memory = LexicalMemory(opened)
            items = await memory.ranked(scope, query, await memory.items(scope), limit=limit)
    if trouble := trouble_of(items):
        note(trouble)
    _print_items([(user, item) for item in items], None, as_json=as_json)


@memory.command("forget", cls=Command)
def forget(
    store: Items,
    ids: Annotated[list[str] | None, typer.Argument(help="The ids of the items.")] = None,
    *,
    user: OfOneUser,
    agent: Agent = None,
    session: Annotated[str | None, typer.Option("--session", help="All items from this session.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All items of the user.")] = False,
    space: OfSpace = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete items of a user for good, and check that none of their texts is left. Exits with 1 if some is."""
    if sum((bool(ids), session is not None, everything)) != 1:
        raise typer.BadParameter("give the ids of items, or --session, or --all")
    if not yes:
        subject = f"{len(ids)} items" if ids else f"all items from session {session!r}" if session else "all items"
        typer.confirm(one_line(f"Delete {subject} of user {user!r}? They cannot be restored."), abort=True, err=True)
    done = run(_forget(store, user, agent, ids or None, session, space=space))
    if as_json:
        print_json(asdict(done))
    else:
        write(one_line(f"{done.items} items deleted" + (f"; not verified: {done.why}" if done.why else "")))
    if ids and not done.items:
        raise NotFoundError(
            f"user {user!r} has no item {', '.join(map(repr, ids))}: `turnwise memory ls` lists its items"
        )
    if done.found:
        raise LongTermMemoryError(
            f"texts of the deleted items are still in {', '.join(done.found)}: repeat the command"
        )


async def _forget(
    store: str, user: str, agent: str | None, ids: list[str] | None, session: str | None, *, space: str | None
) -> Erasure:
    from turnwise.memory.longterm.base import Scope
    from turnwise.memory.longterm.items.urls import open_items
    from turnwise.memory.longterm.lexical import LexicalMemory
    from turnwise.memory.longterm.retention.deletion import erase
    from turnwise.memory.longterm.vector import SPACE, VectorMemory

    file_of(store)
    opened: LexicalMemory | VectorMemory
    if (space := _space_of(store, space)) == SPACE:
        opened = VectorMemory(store)
    else:
        opened = LexicalMemory(await asyncio.to_thread(open_items, store, space=space))
    try:
        return await erase(opened, Scope(user_id=user, agent=agent, session_id=session), ids)
    finally:
        await opened.close()


@asynccontextmanager
async def _reading(store: str, space: str) -> AsyncIterator[ItemStore]:
    """Open the items of a store to read them; see `common.still`."""
    from turnwise.memory.longterm.items.urls import open_items
    from turnwise.memory.stores.urls import read_only

    with still(store) as url:
        items = await asyncio.to_thread(open_items, read_only(url), space=space)
        try:
            yield items
        finally:
            await items.close()


def _space_of(store: str, space: str | None) -> str:
    """Return the space that the caller names, or else that of the items that are there."""
    import sqlalchemy as sa

    from turnwise.memory.longterm.items.base import SPACE
    from turnwise.memory.longterm.items.sql_schema import owners
    from turnwise.memory.longterm.vector import SPACE as VECTORS
    from turnwise.memory.stores.urls import SQL_SCHEMES, read_only

    if space is not None or store.partition("://")[0] not in SQL_SCHEMES:
        return space or SPACE
    with still(store) as url:
        spaces = _asked(
            read_only(url), lambda connection: connection.scalars(sa.select(owners.c.space).distinct()).all()
        )
    return VECTORS if spaces and VECTORS in spaces and SPACE not in spaces else SPACE


def _print_items(items: Sequence[tuple[str, MemoryItem]], cursor: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"items": [_plain_item(user, item) for user, item in items], "cursor": cursor})
        return
    names = ("item", "user", "type", "about", "created", "session", "score", "text")
    columns = [Column(name, right=name == "score", cut=name == "text") for name in names]
    now = time.time()
    rows = [
        (
            item.id,
            user,
            str(item.type),
            item.topic or item.name or "",
            ago(item.created_at, now) if item.created_at else "",
            item.source.session_id or "",
            "" if item.score is None else f"{item.score:.2f}",
            item.text,
        )
        for user, item in items
    ]
    print_table(columns, rows)


_SHOWN_FIELDS = (
    *("id", "text", "type", "topic", "name", "aliases", "created_at", "updated_at", "superseded_at", "superseded_by"),
    *("expires_at", "status", "pinned", "uses", "score"),
)


def _plain_item(user: str, item: MemoryItem) -> dict[str, Any]:
    source = {"session_id": item.source.session_id, "turn_index": item.source.turn_index}
    return {"user_id": user, **{name: getattr(item, name) for name in _SHOWN_FIELDS}, "source": source}


class _ManyUsers(Command):
    """A command whose option `--user-ids` takes all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*_one_each(args)])


def _one_each(words: list[str]) -> Iterator[str]:
    """Yield the words with `--user-ids` before each of its values."""
    is_among = has_value = False
    for word in words:
        if word.startswith("-"):
            is_among, has_value = word == _USER_IDS, False
        elif is_among and has_value:
            yield _USER_IDS
        else:
            has_value = is_among
        yield word


_USER_IDS = "--user-ids"


@memory.command(cls=_ManyUsers)
def migrate(
    source: Annotated[
        str,
        typer.Argument(
            help="The memories to copy: sqlite:///file.db or postgresql://user@host/name of a LangGraph store, or the"
            " path of a SQLite file or of a JSON Lines file. The source is only read."
        ),
    ],
    target: Annotated[
        str, typer.Argument(help="Where to write them: sqlite:///file.db, postgresql://user@host/name or redis://host.")
    ],
    *,
    user: Annotated[
        list[str] | None,
        typer.Option(
            "--user",
            _USER_IDS,
            help="Copy only this user's memories; repeatable. All users if omitted. --user-ids takes several ids: write"
            " it after source and target.",
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(help="The part of the namespace after the user, or the whole namespace with {user} for the user."),
    ] = "memories",
    agent: Annotated[
        str | None,
        typer.Option(help="The agent that gets the episodic and procedural memories. All agents if omitted."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be copied, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Copy memories from a flat namespace, each into its category. May be repeated: nothing is copied twice."""
    with progress("migrate") as done:
        settings = {"users": user or None, "namespace": namespace, "agent": agent, "progress": done}
        report = run(_migrate(source, target, dry_run=dry_run, **settings))
    if as_json:
        typer.echo(json.dumps({field.name: getattr(report, field.name) for field in fields(report)}, default=_plain))
    else:
        _show(report, console())


async def _migrate(source: str, target: str, *, dry_run: bool, **settings: Any) -> MigrationReport:
    from turnwise.memory.longterm.migration import migrate as migration

    facts = await asyncio.to_thread(_open, target, dry_run)
    try:
        return await migration.migrate(source, facts, dry_run=dry_run, **settings)
    finally:
        await facts.close()


def _open(target: str, dry_run: bool) -> ItemStore:
    """Return the target's item store; in a dry run without existing tables, an empty one in memory."""
    from turnwise.memory.longterm.items.in_memory import InMemoryItems
    from turnwise.memory.longterm.items.urls import open_items
    from turnwise.memory.stores.urls import SQL_SCHEMES, resolve_url

    scheme = target.partition("://")[0]
    if scheme == "memory":
        raise ConfigError(
            "target", target, "a store in memory ends with this command: pass a file, a database or a Redis"
        )
    if dry_run and scheme in SQL_SCHEMES and not _has_tables(resolve_url(target)):
        return InMemoryItems()
    return open_items(target)


def _has_tables(url: str) -> bool:
    """Return whether the database has the tables of items; True if that is unknown, so that opening it fails."""
    import sqlalchemy as sa

    from turnwise.memory.longterm.items.sql_schema import items

    try:
        file_of(url)
    except NotFoundError:
        return False
    tables = _asked(url, lambda connection: sa.inspect(connection).get_table_names())
    return tables is None or items.name in tables


def _asked(url: str, ask: Callable[[sa.Connection], Result]) -> Result | None:
    """Return what a database answers; None if it cannot be read."""
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        with sa.create_engine(parsed, poolclass=sa.NullPool).connect() as connection:
            return ask(connection)
    except (sa.exc.SQLAlchemyError, ValueError, ModuleNotFoundError):
        return None


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else dict(value)


def _show(report: MigrationReport, console: Console) -> None:
    """Print the report as tables."""
    from turnwise.memory.longterm.memory_types import MemoryType

    written = "would be written" if report.dry_run else "written"
    counts = {
        "read": report.read,
        written: report.written,
        "already there, or forgotten": report.known,
        "skipped": sum(report.skipped.values()),
    }
    _table(console, "memories", counts)
    kinds = {f"{kind}, {kind.category}": report.by_type[kind] for kind in MemoryType if kind in report.by_type}
    _table(console, "by type", kinds)
    users = dict(sorted(report.by_user.items(), key=lambda user_count: (-user_count[1], user_count[0])))
    shown = dict(list(users.items())[:_SHOWN])
    if rest := len(users) - len(shown):
        shown[f"and {rest} more"] = sum(users.values()) - sum(shown.values())
    _table(console, "by user", shown)
    _table(console, "skipped", {str(reason): count for reason, count in report.skipped.items()})
    for skip in report.skips[:_SHOWN]:
        console.print(f"{skip.where!r} {skip.key!r}: {skip.reason} {skip.why!r}", soft_wrap=True)
    if (more := counts["skipped"] - len(report.skips[:_SHOWN])) > 0:
        console.print(f"{more} more were skipped; --json lists {len(report.skips)}")
    if report.unknown_types:
        console.print(f"memories of an unknown type that became general: {report.unknown_types}")
    if report.without_expiry:
        console.print(f"memories that lost their expiry date: {report.without_expiry}")


def _table(console: Console, head: str, rows: Mapping[str, int]) -> None:
    from rich.table import Table

    if not rows:
        return
    table = Table(show_edge=False)
    table.add_column(head, overflow="fold", min_width=28)
    table.add_column("", justify="right")
    for name, count in rows.items():
        table.add_row(name, str(count))
    console.print(table)
    console.print()
