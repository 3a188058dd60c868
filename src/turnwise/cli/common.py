"""What the commands share: how they get the URL of a store, how they read it, and how errors end.

The store is a command's first argument. It may be left out where `TURNWISE_STORE` names it: an argument in its place
that has no scheme, as in `scheme://`, is the next one.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
import signal
import sqlite3
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from turnwise.cli.output import note, one_line
from turnwise.errors import (
    ConfigError,
    NotFoundError,
    RunNotFoundError,
    SessionNotFoundError,
    StoreError,
    TurnNotFoundError,
    TurnwiseError,
    shown,
)
from turnwise.memory.values.plain_text import plain
from turnwise.memory.values.ranges import MAX_COUNT

if TYPE_CHECKING:
    from turnwise.actors.client.execution import AsyncExecutionHandle
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.client.session import AsyncSession
    from turnwise.actors.hosting.placement import Placement
    from turnwise.memory.conversation.runs import RunRecord
    from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
    from turnwise.memory.stores.base import SessionStore
    from turnwise.memory.stores.sql.sqlite_owner import Holder

STORE = "TURNWISE_STORE"
"""The variable that names the store of commands that are given none."""

FAILED, INTERRUPTED, TERMINATED = 1, 130, 143
"""Exit codes. Wrong usage has 2, as Typer decides."""

_NEAR = 60
"""How similar an id must be to be suggested, in percent."""

LOOKED_AT = 1_000
"""Among how many ids, the newest, a similar one is looked for."""

_COMPLETED, _COMPLETE_S = 200, 2.0
"""Among how many sessions, the newest, a shell completes ids, and how long it waits for a store, in seconds."""

_AWAY_S = 3.0
"""How long a service that is away is tried again, in seconds."""

_SUFFIXES = (".db", ".sqlite", ".sqlite3")
"""Of paths that are taken for a store's, although a store is named by its URL."""

_SCHEME = re.compile(r"(?!https?:)[A-Za-z][A-Za-z0-9+.-]*://")
"""What the URL of a store begins with. One of the web is that of a webhook."""

Result = TypeVar("Result")


def complete_session(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return ids of sessions that begin so, for a shell; none if the store cannot be read at once."""
    try:
        return asyncio.run(_ids(str(ctx.params.get("store") or ""), incomplete))
    except Exception:  # noqa: BLE001 - a shell that completes shows no errors
        return []


async def _ids(store: str, incomplete: str) -> list[str]:
    from turnwise.memory.stores.urls import open_store, read_only

    with still(store) as url:
        opened = open_store(read_only(url))
        try:
            page = await asyncio.wait_for(opened.query(order_by="updated_at", limit=_COMPLETED), _COMPLETE_S)
        finally:
            await opened.close()
    ids = dict.fromkeys(session.session_id for session in page)
    return [plain(session_id) for session_id in ids if session_id.startswith(incomplete)]


Store = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        envvar=STORE,
        help="The store of the sessions: sqlite:///file.db, postgresql://user@host/name or redis://host.",
    ),
]
AUTHORIZATION = "TURNWISE_TOKEN"
"""The variable that has the token for the service that `--server` names."""

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Instead of a store, the service that has the sessions; TURNWISE_TOKEN is the token for it.",
    ),
]
History = Annotated[
    str | None,
    typer.Option("--history", metavar="URL", help="The store of events, if they have their own."),
]
User = Annotated[
    str | None,
    typer.Option("--user", help="The session's user; 'default' if omitted."),
]
OfUser = Annotated[str | None, typer.Option("--user", help="Only of this user.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only of users of this tenant.")]
OfAgent = Annotated[str | None, typer.Option("--agent", help="Only of this agent.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session.", autocompletion=complete_session)]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=MAX_COUNT, help="How many at most.")]
Cursor = Annotated[str | None, typer.Option(help="Go on where the last answer ended: its cursor.")]
Files = Annotated[
    str | None, typer.Option("--files", help="Where the bytes of files are, if not in the folder beside a SQLite file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", help="The Ray namespace of the sessions' processes; found if left out.")
]
NAMESPACE = "turnwise"
"""The namespace where no process has the sessions, as that of managers."""


class Commands(TyperGroup):
    """The group of all commands. An error is one line on standard error; with `--debug`, a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()
            return done
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except BrokenPipeError:  # the reader of the output has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"error: {_message_of(error)}", err=True)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


class Command(TyperCommand):
    """A command whose first argument may be a store, and that prints nothing but its own output."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._with_store(ctx, args))

    def _with_store(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments with the store before them if it was left out."""
        names = {param.name for param in self.params}
        if not names & {"store", "server"}:
            return args
        options, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        if options.get("help"):
            return args
        if "store" not in names:
            service_url(ctx, options, has_store=False)
            return args
        store = options.get("store")
        has_store = isinstance(store, str) and _SCHEME.match(store) is not None
        service = service_url(ctx, options, has_store=has_store)
        default = None if has_store else service or store_variable(ctx)
        if has_store or (default is None and ctx.resilient_parsing):
            return args
        return [default or self._refuse(ctx, store), *args]

    def _refuse(self, ctx: Any, first: object) -> str:
        """Refuse a command without a store; `first` is its first argument."""
        if is_service(first) and any(param.name == "server" for param in self.params):
            reason = "give a store first; a service is given by --server URL"
        elif isinstance(first, str) and (Path(first).suffix in _SUFFIXES or Path(first).is_file()):
            reason = f"give the URL of the store: sqlite:///{first} for this file"
        else:
            reason = f"give a store first, such as sqlite:///turnwise.db, or name it by {STORE}"
        return ctx.fail(reason)  # type: ignore[no-any-return]

    def invoke(self, ctx: Any) -> Any:
        with _quiet(is_debugged=bool(ctx.find_root().params.get("debug"))):
            return super().invoke(ctx)


_OF_PLACES = {"--address": "a Ray", **dict.fromkeys(("--namespace", "--history", "--files"), "a store")}
"""Options that say where sessions, their events, files and exports are, and what each is about."""


def service_url(ctx: Any, options: Mapping[str, Any], *, has_store: bool) -> str | None:
    """Return the URL of the service that `--server` names, which takes the place of a store's; None if it names none.

    Wrong usage is `--server` beside what is about a store, since one of them would be ignored.

    Args:
        options: the command's parameters that are given, by their names.
        has_store: whether the first argument is the URL of a store.
    """
    server = options.get("server")
    if not isinstance(server, str):
        return None
    if not is_service(server):
        quoted = "" if "@" in server else f", not {shown(server)}"
        ctx.fail(f"--server: give the URL of a service, such as https://chat.example.com{quoted}")
    if has_store:
        ctx.fail("give a store or --server, not both: --server takes the place of the store")
    for param in ctx.command.params:
        for name in set(param.opts).intersection(_OF_PLACES):
            if isinstance(options.get(param.name), str):
                about = _OF_PLACES[name]
                ctx.fail(f"{name} is about {about}, and --server names a service, which knows it: leave {name} out")
    return server


def store_variable(ctx: Any) -> str | None:
    """Return the URL of the store that `TURNWISE_STORE` names, if it names one."""
    store = os.environ.get(STORE)
    if is_service(store):
        ctx.fail(f"{STORE} must name a store, not a service: give a service by --server URL")
    return store


def is_service(store: object) -> bool:
    """Return whether `--server` has put the URL of a service in the place of a store's."""
    return isinstance(store, str) and store.startswith(("http://", "https://"))


def remote_settings() -> dict[str, Any]:
    """Return the settings of the manager of a service: a command does not wait long for one that is away."""
    return {"token": os.environ.get(AUTHORIZATION) or None, "retry_s": _AWAY_S}


@asynccontextmanager
async def of_service(url: str) -> AsyncIterator[AsyncSessionManager]:
    """Yield the manager of a service, which has the verbs that commands use of a manager.

    Raises:
        TurnwiseError: the service cannot be reached, or does not accept the token.
    """
    from turnwise.client.manager import AsyncRemoteManager

    async with AsyncRemoteManager(url, **remote_settings()) as manager:
        yield cast("AsyncSessionManager", manager)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Carry out what a command does. Ctrl-C ends it, also while it waits for a file, and the command exits with 130.

    SIGTERM ends it likewise, with 143 as from a shell.
    """
    try:
        if _is_main():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # Ray's own prints addresses
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not _is_main():
            return asyncio.run(work)
        early: list[int] = []  # Ctrl-C that came while the event loop was made: half of one cannot be closed
        signal.signal(signal.SIGINT, lambda number, _: early.append(number))
        try:
            with asyncio.Runner() as runner:
                runner.get_loop().set_exception_handler(_say_unless_interrupted)
                signal.signal(signal.SIGINT, _interrupt)  # asyncio's only cancels the task, which may be blocked
                if early:
                    raise KeyboardInterrupt
                return runner.run(work)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    finally:
        work.close()  # else Python says that it never began, if Ctrl-C came before


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _say_unless_interrupted(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what asyncio reports, but not that Ctrl-C ended a task which the command had started."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@asynccontextmanager
async def reading(
    store: str,
    history: str | None = None,
    *,
    namespace: str = NAMESPACE,
    live: bool = False,
    placement: Placement | None = None,
    files: str | None = None,
) -> AsyncIterator[AsyncSessionManager]:
    """Open a store to read it, in this process: no Ray is started, no file is created, no session is taken over.

    It is as of the sessions' last commits.

    Args:
        live: whether changes are looked for. Meanwhile, SQLite keeps two files beside its own, as it does for all who
            write.
        placement: `Dedicated()` lets the sessions that are live on the Ray of this process answer for themselves. If
            omitted, nothing of Ray is imported.
        files: where the bytes of files are; if omitted, where the store has them by itself.

    Raises:
        TurnwiseError: the store cannot be read, is encrypted, its file does not exist, or changed meanwhile.
    """
    if is_service(store):
        async with of_service(store) as remote:
            yield remote
        return
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.hosting.placement import InProcess
    from turnwise.actors.inference.echo import EchoEngine

    with ExitStack() as stack:
        if live:
            for url in filter(None, (store, history)):
                stack.enter_context(_watched(url))
        else:
            store = stack.enter_context(still(store))
            history = history and stack.enter_context(still(history))
        settings: dict[str, Any] = {"history_store": history, "namespace": namespace, "read_only": True, "files": files}
        opened = AsyncSessionManager(
            store, engine=EchoEngine(), overflow=None, placement=placement or InProcess(), **settings
        )
        async with opened as manager:
            await manager.list(limit=1)  # raises StillEncryptedError: the keys are in the programs that use the store
            if text := await standby(store):
                note(text)
            yield manager


async def standby(url: str) -> str:
    """Say how far a store may be behind, if it is on a standby of PostgreSQL; empty if it is not."""
    if not url.startswith("postgresql"):
        return ""
    from turnwise.memory.stores.sql.store import SQLStore
    from turnwise.memory.stores.urls import read_only

    store = SQLStore(read_only(url), connections=1)
    try:
        is_standby, age_s = await store.behind()
    finally:
        await store.close()
    if not is_standby:
        return ""
    newest = "it has got no commit since it started" if age_s is None else f"its newest commit is {age_s:.1f} s old"
    return f"a read-only standby: {newest}, and what its primary has committed since is missing"


def imported(option: str, path: str) -> Any:
    """Return the object at an import path, such as `my_agents.tools:weather`.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, name = path.partition(":")
    if not (module and name):
        raise ConfigError(option, path, "write module:object, such as my_agents:candidate")
    try:
        return attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # a module may raise anything
        reason = f"it cannot be imported ({type(error).__name__}: {error}): is its folder in PYTHONPATH?"
        raise ConfigError(option, path, reason) from error


def joined(namespace: str | None, store: str, session: SessionKey | None = None) -> tuple[Placement, str]:
    """Connect to the Ray that is here, if there is one; return where it has the sessions of a store, or this session.

    Returns: their placement and their namespace.

    Where no Ray is, sessions run in this process, and nothing of Ray is imported. Runs of other sessions that were lost
    wait for a program with their engine.

    Raises:
        ConfigError: the Ray cannot be joined or started, or the processes are in another namespace.
    """
    from turnwise.actors.cluster.ray_address import ray_to_join
    from turnwise.actors.hosting.placement import InProcess

    if ray_to_join() is None:
        return InProcess(resume_lost=False), namespace or NAMESPACE
    from turnwise.actors.cluster.hosts import placement_in_use
    from turnwise.actors.cluster.ray_runtime import connect

    connect(logs=False)
    in_use = namespace_of(store, namespace)
    return placement_in_use(in_use, store, session), in_use


def namespace_of(store: str, named: str | None) -> str:
    """Return the namespace of a store's processes in the Ray to which this process is connected. Blocks.

    Raises:
        ConfigError: they are in another one than the named one, or in several.
    """
    from turnwise.actors.cluster.hosts import namespace_in_use

    return namespace_in_use(store, named) or NAMESPACE


@contextmanager
def still(url: str) -> Iterator[str]:
    """Yield the URL by which a command reads a store once.

    With this option, SQLite creates no files beside a file that no process has open, so it also reads in folders
    without write permission.

    Raises:
        TurnwiseError: the file does not exist, or somebody changed it meanwhile.
    """
    path = file_of(url)
    if path is None or Path(f"{path}-wal").exists():
        yield url
        return
    before = _state_of(path)
    yield f"{url}{'&' if '?' in url else '?'}immutable=1"
    if _state_of(path) != before:
        raise StoreError(f"store {url}: it was changed while it was read: repeat the command")


@contextmanager
def _watched(url: str) -> Iterator[None]:
    """While this lasts, a store is read again and again. The files that SQLite made for that are then removed.

    Raises:
        TurnwiseError: the file does not exist.
    """
    path = file_of(url)
    if path is None or Path(f"{path}-wal").exists():
        yield
        return
    try:
        yield
    finally:
        # SQLite removes its files, under its own locks, when the last connection that may write is closed.
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()


def file_of(url: str) -> Path | None:
    """Return the file of a store that is to be read; None for a server.

    Raises:
        StoreURLError: it is not the URL of a store.
        NotFoundError: the file does not exist.
        ConfigError: the store is in a memory.
    """
    from turnwise.memory.stores.urls import redact, resolve_url

    resolved = resolve_url(url)
    if resolved.startswith("memory:"):
        raise ConfigError("store", url, "a store in memory ends with its process: pass a file, a database or a Redis")
    path = sqlite_file(resolved)
    if path is not None and not path.exists():
        raise NotFoundError(f"store {redact(url)}: there is no file {path}: check the path")
    return path


def _state_of(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


async def check_plain(store: SessionStore) -> None:
    """Look whether a store is encrypted, before something is added to it: it is as a whole, or not at all.

    Raises:
        StillEncryptedError: it is.
    """
    from turnwise.memory.stores.encrypted.records import check_session

    for newest in await store.query(limit=1):
        check_session(newest)


def check_shared(store: str, file: Path | None) -> Holder | None:
    """Return who has the file of a store open, after refusing a process without Ray, which shares it with nobody.

    Raises:
        ConfigError: names the process.
    """
    from turnwise.memory.stores.sql.sqlite_owner import lock_holder
    from turnwise.memory.stores.urls import redact

    holder = lock_holder(file) if file else None
    if holder and holder.owner.is_process:
        reason = f"{holder.owner.name} has it open, and no other may change it: use that program, or end it first"
        raise ConfigError("store", redact(store), f"{reason}; commands that read work beside it")
    return holder


def check_free(store: str) -> None:
    """Refuse a wrong URL, a file that another Ray or process has open, and an encrypted store, before Ray is started.

    Raises:
        StoreURLError, ConfigError, StillEncryptedError: see above.
    """
    from turnwise.actors.cluster.ray_address import local_ray
    from turnwise.memory.stores.store_owner import naming
    from turnwise.memory.stores.urls import redact, resolve_url

    file = sqlite_file(resolve_url(store))
    holder = check_shared(store, file)
    if holder and not os.environ.get("RAY_ADDRESS") and holder.owner.address != local_ray():
        address = holder.owner.address
        reason = f"{f'the Ray at {address}' if address else 'somebody'} has it open, and no other may use it"
        do = f"set {naming(address)}, or end process {holder.pid}" if address else f"end process {holder.pid}"
        raise ConfigError("store", redact(store), f"{reason}: {do}")
    if not store.startswith("memory:") and (file is None or file.exists()):
        asyncio.run(_check_plain(store))


async def _check_plain(url: str) -> None:
    from turnwise.memory.stores.urls import open_store

    store = open_store(url)
    try:
        await check_plain(store)
    finally:
        await store.close()


def sqlite_file(resolved: str) -> Path | None:
    """Return the file of a store's resolved URL; None for a server."""
    if not resolved.startswith("sqlite"):
        return None
    import sqlalchemy as sa

    from turnwise.memory.stores.sql.sqlite_file import path_of

    return path_of(sa.make_url(resolved))


async def find_session(manager: AsyncSessionManager, session_id: str, user_id: str | None = None) -> AsyncSession:
    """Return the session with this id.

    Raises:
        NotFoundError: there is none; the message names the nearest id, or says that a user must be given.
    """
    try:
        return await manager.get(session_id, user_id=user_id)
    except SessionNotFoundError:
        page = await manager.list(order_by="updated_at", limit=LOOKED_AT, agents=True)
        raise no_session(session_id, page) from None


async def find_run(manager: AsyncSessionManager, run_id: str, user_id: str | None = None) -> AsyncExecutionHandle:
    """Return the handle of the run with this id.

    Raises:
        NotFoundError: there is none; the message names the nearest id, or says that a user must be given.
    """
    try:
        return await manager.execution(run_id, user_id=user_id)
    except RunNotFoundError:
        raise no_run(run_id, await manager.runs(limit=LOOKED_AT)) from None


def no_run(run_id: str, there: Iterable[RunRecord], kind: str = "run") -> NotFoundError:
    """Return the error of a run that was not found, made of runs that are there."""
    owners = {run.run_id: run.user_id for run in there}
    if run_id in owners:
        return NotFoundError(f"run {run_id!r} is of another user: give --user {owners[run_id]}")
    return missing(kind, run_id, list(owners))


def no_session(session_id: str, there: Iterable[SessionRecord]) -> NotFoundError:
    """Return the error of a session that was not found, made of sessions that are there."""
    owners: dict[str, list[str]] = {}
    for session in there:
        owners.setdefault(session.session_id, []).append(session.user_id)
    if session_id in owners:
        users = " or ".join(f"--user {user}" for user in sorted(owners[session_id]))
        return NotFoundError(f"session {session_id!r} is of another user: give {users}")
    return missing("session", session_id, list(owners))


def missing(kind: str, id: str, there: list[str]) -> NotFoundError:
    """Return the error of an id that does not exist, with the nearest one of those that do."""
    from rapidfuzz import fuzz, process

    longer = [candidate for candidate in there if candidate.startswith(id)]
    nearest = process.extractOne(id, there, scorer=fuzz.ratio, score_cutoff=_NEAR)
    near = longer[0] if len(longer) == 1 else nearest[0] if nearest else None
    hint = f"; did you mean {near!r}?" if near else ""
    return NotFoundError(f"there is no {kind} {id!r}{hint}")


def _message_of(error: Exception) -> str:
    """Return an error in one line."""
    if isinstance(error, TurnNotFoundError):
        reason = "`turnwise show STORE SESSION` lists those it has (a discarded turn leaves a gap)"
        return one_line(f"session {error.session_id!r} has no turn {error.index!r}: {reason}")
    if isinstance(error, TurnwiseError):
        return one_line(error)
    if isinstance(error, OSError):
        return one_line(str(error) or type(error).__name__)
    return one_line(
        f"{type(error).__name__}: {error}; this is a mistake of turnwise: `turnwise --debug ...` shows where"
    )


@contextmanager
def _quiet(*, is_debugged: bool) -> Iterator[None]:
    """Print warnings of turnwise as lines of their own, and no others; with `--debug`, all."""
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal that cannot show all characters
    if is_debugged:
        yield
        return
    handler, silent = _Warnings(logging.WARNING), logging.NullHandler()
    own, root = logging.getLogger("turnwise"), logging.getLogger()
    own.addHandler(handler)
    root.addHandler(silent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        own.removeHandler(handler)
        root.removeHandler(silent)


class _Warnings(logging.Handler):
    """Prints records as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"{record.levelname.lower()}: {one_line(record.getMessage())}", err=True)
