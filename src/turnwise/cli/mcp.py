"""`turnwise mcp`: one user's sessions and memories as an MCP server."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.chat.command import DEFAULT_MODEL, DEFAULT_STORE, demo_store, engine_of
from turnwise.cli.common import STORE, Namespace, check_free, file_of, joined, run
from turnwise.cli.serve import TOKEN
from turnwise.errors import ConfigError, TooManyError

if TYPE_CHECKING:
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.inference.engine import EngineBuilder
    from turnwise.memory.longterm.base import LongTermMemory

LOOPBACK = ("127.0.0.1", "::1", "localhost")

MAX_HEADER_BYTES, MAX_BODY_BYTES, MAX_BODY_VALUES = 32 << 10, 4 << 20, 20_000
"""How large the header of a request over HTTP may be."""


def mcp(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            envvar=STORE,
            show_default=False,
            help="The store of the sessions: sqlite:///file.db, postgresql://user@host/name or redis://host;"
            " sqlite:///turnwise.db if omitted, and with --demo one that goes with the server.",
        ),
    ] = "",
    *,
    user: Annotated[str, typer.Option(help="The user whose sessions and memories they are; no client reaches others.")],
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Offer nothing that changes anything; needs no Ray and no key.")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(help="Where long-term memories are kept, such as sqlite:///memory.db; none if omitted."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help=f"The model; OPENAI_MODEL, else {DEFAULT_MODEL}. OPENAI_API_KEY has its key.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="The URL of a server that speaks OpenAI's API.")] = None,
    system: Annotated[str | None, typer.Option(help="Instructions to the model.")] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option("--tool", help="A tool that the model may call, such as my_tools:weather; repeatable."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve streamable HTTP at this port; stdio if omitted.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on, with --port.")] = "127.0.0.1",
    demo: Annotated[
        bool, typer.Option("--demo", help="Where OPENAI_API_KEY is not set, simulate a model: no key, no network.")
    ] = False,
    namespace: Namespace = None,
) -> None:
    """Serve one user's sessions and memories to MCP clients: list, show, send, recall, save.

    By standard input and output, as clients start it, or by HTTP with --port; clients over HTTP then need the bearer
    token of TURNWISE_TOKEN, if that is set, and other machines are let in only with one.
    """
    token = os.environ.get(TOKEN)
    if port is not None and host not in LOOPBACK and not token:
        reason = f"without a token, everybody who reaches it acts as {user!r}: set {TOKEN}, or listen on 127.0.0.1"
        raise ConfigError("--host", host, reason)
    with ExitStack() as stack:
        if demo and not store:
            store = stack.enter_context(demo_store())
        store = store or DEFAULT_STORE
        if read_only:
            file_of(store)
            engine = None
        else:
            engine, _ = engine_of(model, base_url, system, tools or (), demo=demo)
            check_free(store)
        run(_serve(store, user, engine, memory, namespace, host=host, port=port, token=token))


async def _serve(
    store: str,
    user: str,
    engine: EngineBuilder | None,
    memory: str | None,
    namespace: str | None,
    *,
    host: str,
    port: int | None,
    token: str | None,
) -> None:
    from turnwise.adapters.mcp.server import mcp_server

    async with _opened(store, engine, memory, namespace) as (manager, memories):
        server = mcp_server(manager, user_id=user, memory=memories)
        if port is None:
            await server.run_stdio_async()
            return
        from turnwise.http.middleware.counts import CountLimits

        app: Any = CountLimits(
            server.streamable_http_app(host=host),
            refused=_refused,
            max_values=MAX_BODY_VALUES,
            max_bytes=MAX_BODY_BYTES,
        )
        await serve_app(_Guarded(app, token) if token else app, host, port)


@asynccontextmanager
async def _opened(
    store: str, engine: EngineBuilder | None, memory: str | None, namespace: str | None
) -> AsyncIterator[tuple[AsyncSessionManager, LongTermMemory | None]]:
    """Open the store: to read only if there is no engine."""
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.hosting.placement import InProcess
    from turnwise.actors.inference.echo import EchoEngine
    from turnwise.memory.longterm.lexical import LexicalMemory
    from turnwise.memory.stores.urls import read_only

    settings: dict[str, Any] = {}
    if engine is None:
        settings |= {"engine": EchoEngine(), "read_only": True, "overflow": None, "placement": InProcess()}
    else:
        placement, in_use = await asyncio.to_thread(joined, namespace, store)
        memories = [LexicalMemory(memory)] if memory else []
        settings |= {"engine": engine, "placement": placement, "namespace": in_use, "memory": memories}
    opened = LexicalMemory(read_only(memory) if engine is None else memory) if memory else None
    try:
        async with AsyncSessionManager(store, **settings) as manager:
            yield manager, opened
    finally:
        if opened:
            await opened.close()


async def serve_app(app: Any, host: str, port: int) -> None:
    """Serve an app until Ctrl-C or SIGTERM, and say where."""
    from turnwise.http.server.connections import ConnectionLimits, protocol_of
    from turnwise.http.server.listening import Server, listen, raise_file_limit, url_of
    from turnwise.http.server.log import configure_logging

    raise_file_limit()
    try:
        bound = listen(host, port)
    except OSError as error:
        raise ConfigError("--port", port, f"cannot listen on {host}: {error.strerror}") from error
    typer.echo(f"turnwise serves MCP at {url_of(bound)}/mcp", err=True)
    configure_logging()
    await Server(app, protocol_of(ConnectionLimits(), MAX_HEADER_BYTES)).serve([bound])


_UNAUTHORIZED = json.dumps(
    {
        "type": "urn:turnwise:unauthorized",
        "title": "Unauthorized",
        "status": 401,
        "detail": "send a valid token: 'Authorization: Bearer <token>'",
        "error": "unauthorized",
    }
).encode()


def _refused(scope: Any, error: TooManyError) -> Any:
    """Return the answer to a request that brings too much."""
    from starlette.responses import JSONResponse

    status = 413 if error.limit == "max_body_bytes" else 422
    problem = {"type": "urn:turnwise:too_many", "title": "Too many", "status": status, "detail": str(error)}
    return JSONResponse(problem | {"error": "too_many"}, status, media_type="application/problem+json")


class _Guarded:
    """Lets requests with the token through, and answers others with 401."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._token = token.encode("utf-8", "surrogateescape")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from turnwise.http.auth import bearer_token

        header = dict(scope.get("headers", ())).get(b"authorization", b"")
        token = bearer_token(header.decode("latin-1"))
        is_right = token is not None and hmac.compare_digest(token.encode("latin-1"), self._token)
        if scope["type"] != "http" or is_right:
            await self._app(scope, receive, send)
            return
        headers = [(b"www-authenticate", b"Bearer"), (b"content-type", b"application/problem+json")]
        headers.append((b"content-length", str(len(_UNAUTHORIZED)).encode()))
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": _UNAUTHORIZED})
