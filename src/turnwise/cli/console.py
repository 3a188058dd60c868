"""`turnwise console`: look at the sessions of a store in a browser."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnwise.cli.common import Store
from turnwise.cli.tail import place_of_live_sessions
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.http.server.listening import Server
    from turnwise.http.service import Service

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def console(
    store: Store,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 takes any.")] = 8001,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help='A JSON file of tokens and their users: {"token": "ann", "other": {"user": "root",'
            ' "operator": true}}. An operator sees the sessions of all users.'
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Change nothing. So it is without --config and --model, too.")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option(help="The Ray namespace of the service; found if left out. With --config, the file's.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The TOML file of `turnwise serve`, with engines and memories, to act by.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model that answers what is sent here.")] = None,
    base_url: Annotated[str | None, typer.Option(help="The URL of a server that speaks OpenAI's API.")] = None,
) -> None:
    """Serve the web console: sessions, conversations, memories, usage and hosts.

    Without an engine it only reads, beside the service that has the sessions: it starts no Ray and changes nothing. It
    follows answers as they stream if RAY_ADDRESS names the Ray of that service.
    """
    if config or model or base_url:
        if read_only:
            typer.echo(
                "error: what only reads needs no engine: leave out --read-only, or --config and --model", err=True
            )
            raise typer.Exit(2)
        from turnwise.actors.cluster.ray_address import ray_to_join
        from turnwise.cli.serve import serve

        # The file says where sessions run.
        placement: Literal["in_process"] | None = None if config or ray_to_join() else "in_process"
        settings: dict[str, Any] = {"host": host, "port": port, "tokens": tokens, "config": config}
        serve(store, model=model, base_url=base_url, placement=placement, console=True, **settings)
        return
    asyncio.run(_read(store, namespace, host, port, tokens))


async def _read(store: str, namespace: str | None, host: str, port: int, tokens: Path | None) -> None:
    """Serve a console that only reads, until SIGTERM or SIGINT."""
    try:
        from fastapi import FastAPI
        from starlette.responses import RedirectResponse

        from turnwise.console.app import mount
        from turnwise.http.auth import BearerTokens
        from turnwise.http.middleware.origins import KnownHosts
        from turnwise.http.middleware.size_limits import within_limits
        from turnwise.http.server.listening import raise_file_limit, url_of
        from turnwise.http.server.log import configure_logging
        from turnwise.http.service import Service
        from turnwise.http.settings import HttpSettings
    except ModuleNotFoundError as error:
        reason = f"there is no module {error.name}: pip install 'turnwise[console]'"
        raise ConfigError("turnwise console", "console", reason) from None
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.hosting.placement import InProcess
    from turnwise.actors.inference.echo import EchoEngine
    from turnwise.memory.stores.urls import redact

    if tokens is None and host not in _LOOPBACK:
        reason = (
            "without tokens, everybody who reaches it may read everything: give --tokens FILE, or listen on 127.0.0.1"
        )
        raise ConfigError("--host", host, reason)
    raise_file_limit()
    auth = BearerTokens.from_file(tokens) if tokens else None
    place = await asyncio.to_thread(place_of_live_sessions, store, namespace)
    place["placement"] = place["placement"] or InProcess()
    manager = AsyncSessionManager(store, engine=EchoEngine(), read_only=True, **place)
    async with manager:
        service = Service(manager, HttpSettings(), auth)
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        mount(app, service)
        app.get("/")(lambda: RedirectResponse("/console/"))
        if auth is None:
            app.add_middleware(KnownHosts, hosts=[*_LOOPBACK, "[::1]"])
        with bound_socket(host, port) as listener:
            typer.echo(f"turnwise shows {redact(store)} at {url_of(listener)}/console/")
            configure_logging()
            await server_of(within_limits(app, service.settings), service).serve([listener])


def bound_socket(host: str, port: int) -> socket.socket:
    from turnwise.http.server.listening import listen

    try:
        return listen(host, port)
    except OSError as error:
        reason = (
            f"the port cannot be opened ({error}): stop the program that uses it, or choose another; 0 takes a free one"
        )
        raise ConfigError("--port", port, reason) from None


def server_of(app: object, service: Service) -> Server:
    """Return a server that ends the pages when it stops."""
    from turnwise.http.server.listening import Server

    return Server(app, service.settings.protocol, stopping=service.stop)
