"""The command line: `turnwise`, or `python -m turnwise.cli`.

Each command imports what it needs when it runs. A TurnwiseError is printed as one line on stderr, with exit code 1;
wrong usage exits with 2.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from turnwise.cli.console import console
from turnwise.cli.serve import serve
from turnwise.cli.sessions import sessions
from turnwise.errors import ConfigError, TurnwiseError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.memory.longterm.items.base import FactStore
    from turnwise.memory.longterm.migration.migrate import MigrationReport

_SHOWN = 20
"""The number of users, and of skipped memories, that the report lists."""

app = typer.Typer(
    help="Sessions with language models, and what they remember.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # pretty tracebacks show values, and a URL may contain a password
)
memory = typer.Typer(help="Long-term memories.", no_args_is_help=True)
app.add_typer(memory, name="memory")
app.command()(console)
app.add_typer(sessions, name="sessions")
app.command()(serve)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnwise {version('turnwise')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Sessions with language models, and what they remember."""


class _ManyUsers(TyperCommand):
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
    from rich.console import Console

    # The printed text comes from the source, so it must not be read as markup.
    progress_console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    try:
        with progress_console.status("0 memories read") as status:

            def progress(read: int) -> None:
                status.update(f"{read} memories read")

            settings = {"users": user or None, "namespace": namespace, "agent": agent, "progress": progress}
            report = asyncio.run(_migrate(source, target, dry_run=dry_run, **settings))
    except TurnwiseError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps({field.name: getattr(report, field.name) for field in fields(report)}, default=_plain))
    else:
        _show(report, Console(markup=False, emoji=False, highlight=False))


async def _migrate(source: str, target: str, *, dry_run: bool, **settings: Any) -> MigrationReport:
    from turnwise.memory.longterm.migration import migrate as migration

    facts = await asyncio.to_thread(_open, target, dry_run)
    try:
        return await migration.migrate(source, facts, dry_run=dry_run, **settings)
    finally:
        await facts.close()


def _open(target: str, dry_run: bool) -> FactStore:
    """Return the target's fact store; in a dry run without existing tables, an empty one in memory."""
    from turnwise.memory.longterm.items.in_memory import InMemoryFacts
    from turnwise.memory.longterm.items.urls import open_facts
    from turnwise.memory.stores.urls import SQL_SCHEMES, resolve_url

    scheme = target.partition("://")[0]
    if scheme == "memory":
        raise ConfigError(
            "target", target, "a store in memory ends with this command: pass a file, a database or a Redis"
        )
    if dry_run and scheme in SQL_SCHEMES and not _has_tables(resolve_url(target)):
        return InMemoryFacts()
    return open_facts(target)


def _has_tables(url: str) -> bool:
    """Return whether the database has the fact tables; True if that is unknown, so that opening it raises the error."""
    from pathlib import Path

    import sqlalchemy as sa

    from turnwise.memory.longterm.items.sql_schema import facts

    try:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
            return False
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        with sa.create_engine(parsed, poolclass=sa.NullPool).connect() as connection:
            return sa.inspect(connection).has_table(facts.name)
    except (sa.exc.SQLAlchemyError, ValueError, ModuleNotFoundError):
        return True


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else dict(value)


def _show(report: MigrationReport, console: Console) -> None:
    """Print the report as tables."""
    from turnwise.memory.longterm.types import MemoryType

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
    users = dict(sorted(report.by_user.items(), key=lambda each: (-each[1], each[0])))
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
