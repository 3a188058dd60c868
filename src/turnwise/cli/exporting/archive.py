"""`turnwise export`, `import` and `sweep`: sessions as files."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import (
    FAILED,
    AsJson,
    Files,
    History,
    Server,
    SessionId,
    Store,
    User,
    check_plain,
    file_of,
    is_service,
    no_session,
    of_service,
    run,
    still,
)
from turnwise.cli.output import note, print_json, progress, write
from turnwise.errors import ConfigError, SessionNotFoundError, StoreError

if TYPE_CHECKING:
    from turnwise.memory.archive.expiry import Swept
    from turnwise.memory.conversation.sessions import SessionKey
    from turnwise.memory.event_store.base import HistoryStore
    from turnwise.memory.files.access import FileAccess
    from turnwise.memory.stores.base import SessionStore

_STREAM = "-"


def export(
    store: Store,
    session: SessionId,
    file: Annotated[str, typer.Argument(help="The file to write; - for standard output.")] = _STREAM,
    *,
    user: User = None,
    history: History = None,
    files: Files = None,
) -> None:
    """Export all records of a session as JSON Lines."""
    if file == _STREAM:
        run(_export(store, session, sys.stdout.write, user, history, files))
        return
    part = Path(f"{file}.part")
    with progress("export") as done, part.open("w", encoding="ascii", newline="\n") as out:
        try:
            run(_export(store, session, _counting(out.write, done), user, history, files))
            out.flush()
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def import_(
    store: Store,
    file: Annotated[str, typer.Argument(help="A file that `export` or `sweep` has written; - for standard input.")],
    *,
    session: Annotated[
        str | None, typer.Option("--as", help="A new id for the session; its old id if omitted.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="The user whose session it becomes; that of the archive if omitted.")
    ] = None,
    files: Files = None,
    as_json: AsJson = False,
) -> None:
    """Import a session from a file, completely or not at all. Its time to live starts now."""
    with ExitStack() as stack:
        # Bytes that are not ASCII are escaped rather than raising here, so that the importer can name their line.
        lines, size = sys.stdin, None
        if file != _STREAM:
            lines = stack.enter_context(Path(file).open(encoding="ascii", errors="backslashreplace"))
            size = Path(file).stat().st_size
        done = stack.enter_context(progress("import", size))
        imported = run(_import(store, _measured(lines, done), session, user, files))
    if as_json:
        print_json(imported._asdict())
    else:
        write(imported.session_id)


def sweep(
    store: Store,
    *,
    server: Server = None,
    archive: Annotated[Path | None, typer.Option(help="A folder to which each session is exported first.")] = None,
    history: History = None,
    files: Files = None,
    every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=1.0, help="Sweep again and again, with such pauses, until it is ended."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete expired sessions that have no active run. Exits with 1 if one of them cannot be deleted.

    With --server, the service does it, and the token has to be an operator's.
    """
    if every is not None:
        run(_sweep_for_ever(store, archive, history, files, every, as_json=as_json))
        return
    with progress("sweep") as count:
        done = run(_sweep(store, archive, history, files, count))
    _print_swept(done, as_json=as_json)
    if done.failed:
        raise typer.Exit(FAILED)


def _print_swept(done: Swept, *, as_json: bool) -> None:
    if as_json:
        outcomes = ("deleted", "archived", "busy", "used")
        sessions = {outcome: [key._asdict() for key in getattr(done, outcome)] for outcome in outcomes}
        print_json({**sessions, "failed": [{**key._asdict(), "why": reason} for key, reason in done.failed.items()]})
    else:
        for name in ("deleted", "archived", "busy", "used", "failed"):
            write(f"{name}: {len(getattr(done, name))}")
        for key, reason in done.failed.items():
            note(f"{key.full_name}: {reason}")


def _counting(write_line: Callable[[str], object], done: Callable[[int], None]) -> Callable[[str], None]:
    """Return a function that writes a line, and says how many there have been."""
    count = 0

    def counted(line: str) -> None:
        nonlocal count
        write_line(line)
        count += 1
        done(count)

    return counted


def _measured(lines: Iterable[str], done: Callable[[int], None]) -> Iterator[str]:
    """Yield the lines, and say how many characters there have been."""
    size = 0
    for line in lines:
        yield line
        size += len(line)
        done(size)


async def _export(  # noqa: PLR0917 - the arguments of a command
    url: str,
    session: str,
    write_line: Callable[[str], object],
    user: str | None,
    history_url: str | None,
    files_url: str | None,
) -> None:
    from turnwise.memory.archive.export import export_session
    from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
    from turnwise.memory.stores.urls import read_only

    async with AsyncExitStack() as stack:
        urls = [opened and read_only(stack.enter_context(still(opened))) for opened in (url, history_url)]
        store, history = _open(stack, str(urls[0]), urls[1])
        key = SessionKey(session, DEFAULT_USER if user is None else user)
        try:
            await export_session(store, key, write_line, history=history, files=_files(store, url, files_url))
        except SessionNotFoundError:
            raise no_session(session, await store.query(order_by="updated_at", limit=1_000)) from None


async def _import(
    url: str, lines: Iterable[str], session: str | None, user: str | None, files_url: str | None
) -> SessionKey:
    from turnwise.memory.archive.export import import_session

    async with AsyncExitStack() as stack:
        store, _ = _open(stack, url, None)
        await check_plain(store)
        now = await store.now()
        files = _files(store, url, files_url)
        imported = await import_session(store, lines, session_id=session, user_id=user, now=now, files=files)
        return imported.key


async def _sweep(
    url: str, archive: Path | None, history_url: str | None, files_url: str | None, count: Callable[[int], None]
) -> Any:
    from turnwise.memory.archive.expiry import sweep as sweep_store

    if is_service(url):
        async with of_service(url) as manager:
            return await manager.sweep(archive)
    file_of(url)
    async with AsyncExitStack() as stack:
        store, history = _open(stack, url, history_url)
        files = _files(store, url, files_url)
        return await sweep_store(store, await store.now(), archive, history, count, files=files)


async def _sweep_for_ever(
    url: str, archive: Path | None, history_url: str | None, files_url: str | None, pause_s: float, *, as_json: bool
) -> None:
    """Sweep until the process is ended. A store that is away is swept when it is back."""
    while True:
        try:
            _print_swept(await _sweep(url, archive, history_url, files_url, lambda _: None), as_json=as_json)
            sys.stdout.flush()
        except StoreError as error:
            note(str(error))
        await asyncio.sleep(pause_s)


def _files(store: SessionStore, url: str, files_url: str | None) -> FileAccess | None:
    """Return the files of a store; None if there is no place for them."""
    from turnwise.actors.session.config import SessionConfig
    from turnwise.memory.files.access import FileAccess
    from turnwise.memory.files.fsspec_files import FsspecFiles
    from turnwise.memory.files.index import file_index, keeps_files
    from turnwise.memory.files.urls import check_files_url, files_beside
    from turnwise.memory.stores.urls import resolve_url

    place = check_files_url(files_url) if files_url else files_beside(resolve_url(url))
    if place is None or not keeps_files(store):
        return None
    return FileAccess(file_index(store), FsspecFiles(place), SessionConfig().file_limits)


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
