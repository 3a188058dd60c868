"""`mount`: the console's pages in an app."""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import Any

from fastapi import FastAPI
from nicegui import Client, ui

from turnwise.console import pages
from turnwise.console.gate import Gate
from turnwise.console.viewer import SCOPE_KEY, Viewer
from turnwise.errors import TurnwiseError
from turnwise.http.service import Service


def mount(app: FastAPI, service: Service, path: str = "/console") -> None:
    """Serve the console from this path of the app.

    It asks the service who is there: with its `Auth`, a page for the token comes first. Users reach what is theirs;
    an `Identity` with `is_operator` reaches the sessions of all users. With a manager that was made with
    `read_only=True`, nothing can be changed. The console starts with its first request and ends when `service.stop()`
    is called; a process has one console at a time.

    Args:
        service: of `create_app`, as `app.state.service`, or made for the console alone.
        path: without a slash at its end.
    """
    shell = _shell()
    console = _Console(service, shell)
    app.mount(path, Gate(service, shell, console.started, _owner), name="console")


class _Console:
    """Starts what the pages need at the first request, and ends it with the service."""

    def __init__(self, service: Service, shell: FastAPI) -> None:
        self._service = service
        self._shell = shell
        self._ready: asyncio.Event | None = None

    async def started(self) -> None:
        if self._ready is None:
            self._ready = asyncio.Event()
            self._service.spawn(self._live(self._ready), "the console")
        await self._ready.wait()

    async def _live(self, ready: asyncio.Event) -> None:
        async with self._shell.router.lifespan_context(self._shell):
            ready.set()
            await self._service.stopping.wait()


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Return whether a log has to have this: the page shows errors of turnwise, whose messages may quote a user."""
    return not isinstance(record.msg, TurnwiseError)


@cache
def _shell() -> FastAPI:
    """Return the app with the pages; there is one in a process, as NiceGUI has one."""
    logging.getLogger("nicegui").addFilter(_is_unexpected)
    shell = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    pages.register()
    ui.run_with(
        shell,
        title="turnwise",
        favicon=pages.ICON,
        dark=None,
        language="en-US",
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=8.0,
        binding_refresh_interval=None,
        session_middleware_kwargs={},
        gzip_middleware_factory=None,
    )
    return shell


def _owner(page: str) -> Viewer | None:
    client: Any = Client.instances.get(page)
    return client.request.scope.get(SCOPE_KEY) if client else None
