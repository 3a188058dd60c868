"""`turnwise chat`: talk with a model in a terminal."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from turnwise.cli.common import (
    STORE,
    AsJson,
    Command,
    Namespace,
    Server,
    check_free,
    imported,
    is_service,
    joined,
    no_session,
    remote_settings,
    service_url,
    store_variable,
)
from turnwise.cli.output import console
from turnwise.errors import ConfigError, NotFoundError, SessionNotFoundError
from turnwise.memory.stores.urls import redact, resolve_url

if TYPE_CHECKING:
    from turnwise.actors.client.blocking.manager import SessionManager
    from turnwise.actors.client.blocking.session import Session
    from turnwise.actors.inference.engine import EngineBuilder
    from turnwise.cli.chat.answers import Answers
    from turnwise.memory.conversation.sessions import SessionKey

DEFAULT_STORE = "sqlite:///turnwise.db"
DEFAULT_MODEL = "gpt-5-mini"

_LOOKED_AT = 1_000
"""Among how many sessions, the newest, one with a similar id is looked for."""


class ChatCommand(Command):
    """A command whose first argument may be a store, and that has a store of its own if none is named."""

    def _with_store(self, ctx: Any, args: list[str]) -> list[str]:
        options, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        if options.get("help") or ctx.resilient_parsing:
            return args
        store = options.get("store") or ""
        service = service_url(ctx, options, has_store="://" in store)
        if is_service(store):
            ctx.fail("give a service by --server URL")
        return args if "://" in store else [service or store_variable(ctx) or "", *args]


def chat(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            envvar=STORE,
            show_default=False,
            help="Where the conversation is kept: sqlite:///file.db, postgresql://user@host/name or redis://host;"
            " sqlite:///turnwise.db if omitted, and with --demo one that goes with the chat.",
        ),
    ] = "",
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="The id of the session to go on with; a new one if omitted."),
    ] = None,
    *,
    server: Server = None,
    create: Annotated[bool, typer.Option("--create", help="Make the session if there is none with this id.")] = False,
    user: Annotated[str | None, typer.Option(help="The user who talks; 'default' if omitted.")] = None,
    model: Annotated[
        str | None, typer.Option(help=f"The model; OPENAI_MODEL, else {DEFAULT_MODEL}. OPENAI_API_KEY has its key.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="The URL of a server that speaks OpenAI's API.")] = None,
    system: Annotated[str | None, typer.Option(help="Instructions to the model.")] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option("--tool", help="A tool that the model may call, such as my_tools:weather; repeatable."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Where long-term memories are kept, such as sqlite:///memory.db; none if omitted."),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Where OPENAI_API_KEY is not set, simulate a model: no key, no network.")
    ] = False,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Talk with a model. Answers stream. Ctrl+C stops an answer and keeps its text; pressed twice, it leaves.

    The conversation is stored: go on with it by its id. It runs in this process, or in a Ray if RAY_ADDRESS names one
    or one runs on this machine: there, an answer is finished even when this terminal is closed. The lines of a pipe are
    prompts; their answers are printed, and nothing else.
    """
    with ExitStack() as stack:
        settings: dict[str, Any] = {
            "create": create,
            "user": user,
            "memory": memory,
            "namespace": namespace,
            "as_json": as_json,
            "is_kept": bool(store or not demo),
        }
        if server is not None and (system or tools or memory or model or base_url or demo):
            raise ConfigError("--server", server, "its engine answers: leave out what says how a model does")
        if demo and not store:
            store = stack.enter_context(demo_store())
        engine, name = (None, server) if server else engine_of(model, base_url, system, tools or (), demo=demo)
        code = _talk(store or DEFAULT_STORE, engine, name, session, **settings)
    raise typer.Exit(code)


@contextmanager
def demo_store() -> Iterator[str]:
    """Yield the URL of a store that goes with the program: in this process or, as a Ray would keep that, in a file."""
    from turnwise.actors.cluster.ray_address import ray_to_join

    if ray_to_join() is None:
        yield "memory://demo"
        return
    with TemporaryDirectory(prefix="turnwise-", ignore_cleanup_errors=True) as folder:
        yield f"sqlite:///{folder}/sessions.db"


def engine_of(
    model: str | None, base_url: str | None, system: str | None, tools: Sequence[str], *, demo: bool
) -> tuple[EngineBuilder, str]:
    """Return the engine, and the name of its model.

    Args:
        demo: simulate a model, if neither a key nor a URL of one is there.
    """
    imported = [tool for path in tools for tool in _tools(path)]
    if demo and not (base_url or os.environ.get("OPENAI_API_KEY")):
        from turnwise.cli.chat.demo_engine import MODEL, demo_engine

        return demo_engine(), model or MODEL
    from turnwise.actors.inference.openai.engine import OpenAIEngine

    # They travel with the engine, as a Ray that runs already has the environment of those who started it.
    key, base_url = os.environ.get("OPENAI_API_KEY"), base_url or os.environ.get("OPENAI_BASE_URL")
    if not key and not base_url:
        reason = "this environment variable has the key, and is not set: set it, give --base-url, or try --demo"
        raise ConfigError("OPENAI_API_KEY", key, reason)
    chosen = model or os.environ.get("OPENAI_MODEL") or DEFAULT_MODEL
    return OpenAIEngine(chosen, base_url=base_url, api_key=key, system=system, tools=imported), chosen


def _tools(path: str) -> list[Any]:
    """Return the tool at an import path, or the tools of a list, such as `mcp_tools` returns."""
    from turnwise.actors.inference.tools.tool import Tool

    value = imported("--tool", path)
    tools = value if isinstance(value, list) else [value]
    for tool in tools:
        if not isinstance(tool, Tool):
            raise ConfigError("--tool", path, f"it is a {type(tool).__name__}: make it with @tool")
    return tools


def _talk(
    store: str,
    engine: EngineBuilder | None,
    model: str,
    session_id: str | None,
    *,
    create: bool,
    user: str | None,
    memory: str | None,
    namespace: str | None,
    as_json: bool,
    is_kept: bool,
) -> int:
    """Hold the conversation; return the exit code.

    Args:
        engine: None if the store is that of a service, which answers by its own.
    """
    from turnwise.actors.cluster.ray_address import ray_to_join
    from turnwise.cli.chat.answers import Answers
    from turnwise.cli.chat.conversation import HELP, Conversation
    from turnwise.cli.chat.line_editor import LineEditor

    if not is_service(store):
        check_free(store)
    lines = LineEditor([f"{command} " for command in HELP])
    answers = Answers(console(), console(stderr=not (lines.is_terminal and sys.stdout.isatty())))
    if not is_service(store) and ray_to_join():
        answers.wait("connecting to Ray")
    try:
        from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey

        key = None if session_id is None else SessionKey(session_id, DEFAULT_USER if user is None else user)
        manager = _manager(store, engine, key, memory, namespace)
    finally:
        answers.end_line()
    with manager:
        session, is_new = _open(manager, session_id, create, user)
        if lines.is_terminal:
            _greet(answers, store, session, model, is_new)
        talk = Conversation(session, lines, answers, as_json=as_json, is_new=is_new)
        if not is_new:
            talk.resume()
        code = talk.talk()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to stop
        if is_new and session.latest() is None:
            session.delete()  # nobody would look for it
        elif lines.is_terminal and is_kept:
            user_option = "" if user is None else f" --user {shlex.quote(user)}"
            place = f"--server {store}" if is_service(store) else redact(store)
            answers.note(f"go on with: turnwise chat {place} {talk.session.session_id}{user_option}")
    return code


def _manager(
    store: str, engine: EngineBuilder | None, key: SessionKey | None, memory: str | None, named: str | None
) -> SessionManager:
    """Join Ray if there is one, and open the store; or use a service."""
    if engine is None:
        from turnwise.client.blocking.manager import RemoteManager

        return cast("SessionManager", RemoteManager(store, **remote_settings()))
    from turnwise.actors.client.blocking.manager import SessionManager

    memories = []
    if memory:
        from turnwise.memory.longterm.lexical import LexicalMemory

        memories = [LexicalMemory(memory)]
    placement, namespace = joined(named, store, key)
    return SessionManager(store, engine=engine, memory=memories, placement=placement, namespace=namespace)


def _open(manager: SessionManager, session_id: str | None, create: bool, user: str | None) -> tuple[Session, bool]:
    """Return the session, and whether it is new."""
    if session_id is None:
        return manager.open(user_id=user), True
    try:
        return manager.get(session_id, user_id=user), False
    except SessionNotFoundError:
        if create:
            return manager.open(session_id, user_id=user), True
        page = manager.list(user_id=user, order_by="updated_at", limit=_LOOKED_AT)
        raise NotFoundError(f"{no_session(session_id, page)}; --create makes it") from None


def _greet(answers: Answers, store: str, session: Session, model: str, is_new: bool) -> None:
    is_file = store.startswith("sqlite")
    where = resolve_url(store).partition(":///")[2].partition("?")[0] if is_file else redact(store)
    answers.note(f"{'new session' if is_new else 'session'} {session.session_id} with {model}, kept in {where}")
    answers.note("Ctrl+C stops an answer, Ctrl+D leaves, /help lists the commands")
