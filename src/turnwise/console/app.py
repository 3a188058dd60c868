"""`mount`: the console's pages in an app."""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import Any

from fastapi import FastAPI
from nicegui import Client, core, ui
from starlette.requests import Request
from starlette.responses import RedirectResponse

from turnwise.console.access import sockets
from turnwise.console.access.gate import Gate
from turnwise.console.access.sockets import PageSocket
from turnwise.console.access.viewer import SCOPE_KEY, Viewer
from turnwise.console.elements.style import STYLE
from turnwise.console.pages.conversation import conversation_page
from turnwise.console.pages.files import CONTENT, UPLOAD, download, upload
from turnwise.console.pages.hosts import hosts_page
from turnwise.console.pages.memories import memories_page
from turnwise.console.pages.schedules import schedules_page
from turnwise.console.pages.search import search_page
from turnwise.console.pages.sessions import sessions_page
from turnwise.console.pages.usage import usage_page
from turnwise.console.pages.webhooks import webhooks_page
from turnwise.errors import TurnwiseError
from turnwise.http.auth import Identity
from turnwise.http.server.log import escaped, indented
from turnwise.http.service import Service

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#2456c7"/>'
    '<path d="M8 11h16M8 16h10M8 21h13" stroke="#fff" stroke-width="3" stroke-linecap="round"/></svg>'
)


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
    app.mount(path, Gate(service, shell, console.started, viewer_of, _end_pages, joined=_joined), name="console")


class _Console:
    """Starts what the pages need at the first request, and ends it with the service."""

    def __init__(self, service: Service, shell: FastAPI) -> None:
        self._service = service
        self._shell = shell
        self._ready: asyncio.Future[None] | None = None

    async def started(self) -> None:
        """Wait until the pages can be served. If they could not be started, the next request tries it again."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._service.spawn(self._live(self._ready), "the console")
        await asyncio.shield(self._ready)

    async def _live(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._shell.router.lifespan_context(self._shell):
                ready.set_result(None)
                await self._service.stopping.wait()
        except Exception as error:
            if not ready.done():
                self._ready = None
                ready.set_exception(error)
            raise


class _Expected(logging.Filter):
    """Keeps errors of turnwise out of a log: the page shows them, and they may quote a user. Makes a line of others."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the log has to have this record."""
        if isinstance(record.msg, TurnwiseError):
            return False
        record.msg, record.args = escaped(record.getMessage()), ()
        if record.exc_info:
            record.exc_text = indented(logging.Formatter().formatException(record.exc_info))
        return True


@cache
def _shell() -> FastAPI:
    """Return the app with the pages; there is one in a process, as NiceGUI has one."""
    for name in ("nicegui", "engineio.server", "socketio.server"):
        log = logging.getLogger(name)
        log.addFilter(_Expected())
        for handler in list(log.handlers):  # by which packages write to stderr whatever the program has configured
            log.removeHandler(handler)
    shell = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    shell.get(f"/{CONTENT}")(download)
    shell.post(f"/{UPLOAD}")(upload)
    _add_pages()
    ui.run_with(
        shell,
        title="turnwise",
        favicon=ICON,
        dark=None,
        language="en-US",
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=8.0,
        binding_refresh_interval=None,
        session_middleware_kwargs={},
        gzip_middleware_factory=None,
    )
    sockets.install(core.sio)
    return shell


@cache
def _add_pages() -> None:
    """Make the pages known to NiceGUI, once in a process."""
    ui.add_head_html(STYLE, shared=True)
    ui.page("/sessions")(sessions_page)
    ui.page("/session")(conversation_page)
    ui.page("/search")(search_page)
    ui.page("/schedules")(schedules_page)
    ui.page("/webhooks")(webhooks_page)
    ui.page("/memories")(memories_page)
    ui.page("/usage")(usage_page)
    ui.page("/hosts")(hosts_page)
    ui.page("/")(_start)


def _start(request: Request) -> RedirectResponse:
    return RedirectResponse(Viewer.of(request.scope).url("sessions"))


def viewer_of(page: str) -> Viewer | None:
    client: Any = Client.instances.get(page)
    return client.request.scope.get(SCOPE_KEY) if client else None


def _joined(transport: str) -> PageSocket | None:
    return sockets.socket_of(core.sio, transport)


async def _end_pages(identity: Identity | None, page: str | None = None) -> None:
    """End a page, or all pages of an identity: it does nothing more, and browsers load it again, or the login."""
    for page_id in list(Client.instances):
        if (viewer := viewer_of(page_id)) and viewer.identity == identity and page in (None, page_id):
            viewer.ended.set()
            reload = "setTimeout(() => location.reload(), 200)"  # the cookie goes first
            await core.sio.emit("run_javascript", {"code": reload}, room=page_id)
            if client := Client.instances.get(page_id):
                client.delete()
