"""`turnwise files`: lists, puts, gets and removes the files of a session."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from turnwise.cli.common import (
    AsJson,
    Command,
    Files,
    Limit,
    Namespace,
    Server,
    SessionId,
    Store,
    User,
    find_session,
    missing,
    reading,
    run,
)
from turnwise.cli.output import Cell, Column, note, one_line, print_json, print_table, write
from turnwise.cli.session_control import changing
from turnwise.console.elements.text import file_size, moment
from turnwise.errors import FileNotStoredError, InvalidInputError

if TYPE_CHECKING:
    from turnwise.actors.client.files import AsyncFiles
    from turnwise.memory.files.records import FileRecord

files = typer.Typer(help="The files of a session.", no_args_is_help=True)

_STREAM = "-"

_LOOKED_AT = 1_000
"""Among how many files a similar id is looked for."""

FileId = Annotated[str, typer.Argument(metavar="FILE", help="The file, as `turnwise files ls` names it.")]


@files.command("ls", cls=Command)
def list_(
    store: Store,
    session: SessionId,
    *,
    server: Server = None,
    user: User = None,
    limit: Limit = 100,
    after: Annotated[str, typer.Option(metavar="FILE", help="Go on behind this file.")] = "",
    place: Files = None,
    as_json: AsJson = False,
) -> None:
    """List the files of a session, in the order in which they were put."""

    async def work() -> None:
        async with reading(store, files=place) as manager:
            records = await (await find_session(manager, session, user)).files.list(after, limit + 1)
        if as_json:
            from turnwise.http.native.files import FilePage

            print_json(FilePage.of(records, limit).model_dump(mode="json"))
            return
        names = ("file", "name", "type", "size", "stored")
        columns = [Column(name, right=name == "size", cut=name == "name") for name in names]
        print_table(columns, [_row(file) for file in records[:limit]])
        if len(records) > limit:
            note(
                f"there are more files: --limit shows more at once, --after {records[limit - 1].file_id} the next ones"
            )

    run(work())


def _row(file: FileRecord) -> list[Cell]:
    return [file.file_id, file.name, file.media_type, file_size(file.size), moment(file.created_at)]


@files.command("put", cls=Command)
def put(
    store: Store,
    session: SessionId,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file to store; - for standard input.")],
    *,
    server: Server = None,
    name: Annotated[str | None, typer.Option(help="Its name in the session; that of the path if omitted.")] = None,
    media_type: Annotated[
        str | None, typer.Option("--type", help="Such as application/pdf; told by its first bytes and name if omitted.")
    ] = None,
    user: User = None,
    place: Files = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Store a file among those of a session, and print its id, by which prompts name it."""
    title = name or ("stdin" if path == _STREAM else Path(path).name)

    async def work(data: BinaryIO) -> FileRecord:
        async with changing(store, namespace, place) as manager:
            handle = await find_session(manager, session, user)
            return await handle.files.put(title, data, media_type=media_type)

    with ExitStack() as stack:
        file = run(work(sys.stdin.buffer if path == _STREAM else stack.enter_context(Path(path).open("rb"))))
    if as_json:
        from turnwise.http.native.files import FileShown

        print_json(FileShown.of(file).model_dump(mode="json"))
    else:
        write(file.file_id)


@files.command("get", cls=Command)
def get(
    store: Store,
    session: SessionId,
    file: FileId,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="The file to write; - for standard output.")] = _STREAM,
    *,
    server: Server = None,
    user: User = None,
    place: Files = None,
) -> None:
    """Write the bytes of a file. Its name in the session is never taken for a path."""

    async def work(out: BinaryIO) -> None:
        async with reading(store, files=place) as manager:
            of = (await find_session(manager, session, user)).files
            await _check(of, file)
            async for piece in of.read(file):
                out.write(piece)
            out.flush()

    if path == _STREAM:
        run(work(sys.stdout.buffer))
        return
    part = Path(f"{path}.part")
    try:
        with part.open("wb") as out:
            run(work(out))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


async def _check(of: AsyncFiles, file_id: str) -> None:
    """Raise unless there is a file.

    Raises:
        NotFoundError: the message names the nearest id.
    """
    try:
        await of.info(file_id)
    except (FileNotStoredError, InvalidInputError):
        there = await of.list(limit=_LOOKED_AT)
        raise missing("file", file_id, [file.file_id for file in there]) from None


@files.command("rm", cls=Command)
def rm(
    store: Store,
    session: SessionId,
    file: FileId,
    *,
    server: Server = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    user: User = None,
    place: Files = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Delete a file of a session. Messages that name it stay; later requests to models say that it was deleted."""
    if not yes:
        typer.confirm(f"Delete file {file!r}? It cannot be restored.", abort=True, err=True)

    async def work() -> None:
        async with changing(store, namespace, place) as manager:
            of = (await find_session(manager, session, user)).files
            await _check(of, file)
            await of.delete(file)
        if as_json:
            print_json({"file_id": file, "deleted": True})
        else:
            write(one_line(f"file {file} is deleted"))

    run(work())
