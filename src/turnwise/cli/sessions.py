"""`turnwise sessions`: export a session to a file, import one from a file, sweep expired sessions."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.errors import ConfigError, TurnwiseError

if TYPE_CHECKING:
    from turnwise.memory.event_store.base import HistoryStore
    from turnwise.memory.stores.base import SessionStore

sessions = typer.Typer(help="Sessions of a store.", no_args_is_help=True)

_Store = Annotated[
    str,
    typer.Argument(help="The store of the sessions: sqlite:///file.db, postgresql://user@host/name or redis://host."),
]
_History = Annotated[
    str | None, typer.Option(help="The store of events, if they have their own: sqlite:///file.db or postgresql://...")
]
_STREAM = "-"


@sessions.command("export")
def export(
    store: _Store,
    session: Annotated[str, typer.Argument(help="The id of the session, which is only read.")],
    file: Annotated[str, typer.Argument(help="The file to write; - for standard output.")] = _STREAM,
    *,
    user: Annotated[
        str | None, typer.Option(help="The session's user; required if it was created with enforce_user.")
    ] = None,
    history: _History = None,
) -> None:
    """Export all records of a session as JSON Lines."""
    if file == _STREAM:
        _run(_export(store, session, sys.stdout.write, user, history))
        return
    part = Path(f"{file}.part")
    with _file_errors(), part.open("w", encoding="ascii", newline="\n") as out:
        try:
            _run(_export(store, session, out.write, user, history))
            out.flush()
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


@sessions.command("import")
def import_(
    store: _Store,
    file: Annotated[str, typer.Argument(help="A file that `export` or `sweep` has written; - for standard input.")],
    *,
    session: Annotated[
        str | None, typer.Option("--as", help="A new id for the session; its old id if omitted.")
    ] = None,
) -> None:
    """Import a session from a file, completely or not at all. Its time to live starts now."""
    with _file_errors(), ExitStack() as stack:
        # Bytes that are not ASCII are escaped rather than raising here, so that the importer can name their line.
        lines = sys.stdin
        if file != _STREAM:
            lines = stack.enter_context(Path(file).open(encoding="ascii", errors="backslashreplace"))
        typer.echo(_run(_import(store, lines, session)))


@sessions.command("sweep")
def sweep(
    store: _Store,
    *,
    archive: Annotated[Path | None, typer.Option(help="A folder to which each session is exported first.")] = None,
    history: _History = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Delete expired sessions that have no active run. Exits with 1 if one of them cannot be deleted."""
    done = _run(_sweep(store, archive, history))
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        for name in ("deleted", "archived", "busy", "used", "failed"):
            typer.echo(f"{name}: {len(getattr(done, name))}")
        for session, why in done.failed.items():
            typer.echo(f"{session!r}: {why}", err=True)
    if done.failed:
        raise typer.Exit(1)


@contextmanager
def _file_errors() -> Iterator[None]:
    """Print an OSError as one line, and exit with 1."""
    try:
        yield
    except OSError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return asyncio.run(work)
    except TurnwiseError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


async def _export(
    url: str, session: str, write: Callable[[str], object], user: str | None, history_url: str | None
) -> None:
    from turnwise.memory.archive.export import export_session
    from turnwise.memory.stores.urls import read_only

    async with AsyncExitStack() as stack:
        store, history = _open(stack, read_only(url), history_url and read_only(history_url))
        await export_session(store, session, write, user_id=user, history=history)


async def _import(url: str, lines: Iterable[str], session: str | None) -> str:
    from turnwise.memory.archive.export import import_session

    async with AsyncExitStack() as stack:
        store, _ = _open(stack, url, None)
        return (await import_session(store, lines, session_id=session, now=await store.now())).session_id


async def _sweep(url: str, archive: Path | None, history_url: str | None) -> Any:
    from turnwise.memory.archive.expiry import sweep as sweep_store

    async with AsyncExitStack() as stack:
        store, history = _open(stack, url, history_url)
        return await sweep_store(store, await store.now(), archive, history)


def _open(stack: AsyncExitStack, url: str, history_url: str | None) -> tuple[SessionStore, HistoryStore | None]:
    """Return the stores, to be closed with the stack."""
    from turnwise.memory.event_store.urls import open_history
    from turnwise.memory.stores.urls import open_store

    if url.startswith("memory:"):
        raise ConfigError("store", url, "a store in memory ends with its process: pass a file, a database or a Redis")
    store = open_store(url)
    stack.push_async_callback(store.close)
    history = open_history(history_url) if history_url else None
    if history:
        stack.push_async_callback(history.close)
    return store, history
