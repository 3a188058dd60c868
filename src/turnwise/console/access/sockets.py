"""`PageSocket`: lets a browser's socket act for its own page only, as long as that page's login lasts.

NiceGUI acts for the page that a message names, whoever sends it. So each handler of a message is replaced here:

| message | is |
|---|---|
| `connect`, `disconnect` | handed on if the socket does so; a message of that name is dropped |
| `handshake`, `event`, `ack` | handed on if it names the socket's page, has the right form, and the login is valid |
| `javascript_response` | dropped: no page asks a browser for a value |
| `log` | dropped: what a browser says is not what happened here |
| any other | dropped by Socket.IO |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import socketio  # type: ignore[import-untyped]

from turnwise.console.access.viewer import Viewer

SOCKET_KEY = "turnwise.socket"
"""Where the gate puts the socket into a connection's scope."""

_LONGEST = 100
"""How many characters an id has that a browser makes up."""

_MOST_DIGITS = 15

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class PageSocket:
    """A socket of a page.

    Args:
        page: the page's id.
        owner: whom the page was made for.
        is_valid: asks again who is there: whether that is still the owner; None if it cannot be known now.
    """

    page: str
    owner: Viewer
    is_valid: Callable[[], Awaitable[bool | None]]
    order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a message is checked and carried out, so that the next one comes after it."""

    async def may_act(self) -> bool:
        """Return whether the socket may do something now. If its login has ended, also while this asked, it may not.

        The whole page ends with it.
        """
        if self.owner.ended.is_set():
            return False
        valid = await self.is_valid()
        if valid is False:
            self.owner.ended.set()
        return valid is True and not self.owner.ended.is_set()


def socket_of(sio: socketio.AsyncServer, transport: str) -> PageSocket | None:
    """Return the socket of a connection of Engine.IO, by the connection's id."""
    environ = sio.environ.get(transport) or {}
    page_socket: PageSocket | None = environ.get("asgi.scope", {}).get(SOCKET_KEY)
    return page_socket


def install(sio: socketio.AsyncServer) -> None:
    """Take the place of NiceGUI's handlers of messages, which from then on get only what was checked."""
    originals = dict(sio.handlers["/"])

    def socket(sid: str) -> PageSocket | None:
        return socket_of(sio, sio.manager.eio_sid_from_sid(sid, "/"))

    async def connect(sid: str, *_: Any) -> None:
        if sio.manager.is_connected(sid, "/"):
            return  # a message of this name: while Socket.IO connects a socket, it is not connected
        page_socket, environ = socket(sid), sio.get_environ(sid)
        query = {name: values[0] for name, values in parse_qs(environ.get("QUERY_STRING", "")).items()}
        is_fit = query.get("implicit_handshake") != "true" or _handshake(query) is not None
        if (
            page_socket is None
            or query.get("client_id") != page_socket.page
            or not is_fit
            or not await page_socket.may_act()
        ):
            raise socketio.exceptions.ConnectionRefusedError("Implicit handshake failed")  # at which browsers reload
        await originals["connect"](sid, environ)

    def disconnect(sid: str, *_: Any) -> None:
        if not sio.manager.is_connected(sid, "/"):  # else it is a message of this name
            originals["disconnect"](sid)

    def checked(name: str, form: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        async def handle(sid: str, message: Any = None, *_: Any) -> Any:
            page_socket = socket(sid)
            if page_socket is None or not isinstance(message, dict) or message.get("client_id") != page_socket.page:
                return False
            try:
                if (fit := form(message)) is None:
                    return False
                async with page_socket.order:
                    if not await page_socket.may_act():
                        return False
                    done = originals[name](sid, {**fit, "client_id": page_socket.page})
                    return await done if asyncio.iscoroutine(done) else done
            except Exception as error:  # noqa: BLE001 - such as a listener that the page does not have
                _log.warning("a page of the console got a message that it could not take: %s", type(error).__name__)
                return False

        sio.on(name, handle)

    sio.handlers["/"] = {}
    sio.on("connect", connect)
    sio.on("disconnect", disconnect)
    checked("handshake", _handshake)
    checked("event", _event)
    checked("ack", _ack)


def _handshake(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a handshake says; None if it does not have the right form."""
    names = ("tab_id", "document_id", "old_tab_id")
    ids = {name: message.get(name) for name in names}
    last = message.get("next_message_id", "0")
    if not (_is_id(ids["tab_id"]) and _is_id(ids["document_id"])) or not _is_count(last):
        return None
    if ids["old_tab_id"] is not None and not _is_id(ids["old_tab_id"]):
        return None
    return {**ids, "next_message_id": int(last)}


def _event(message: dict[str, Any]) -> dict[str, Any] | None:
    args = message.get("args", [])
    is_fit = (
        type(message.get("id")) is int
        and _is_id(message.get("listener_id"))
        and isinstance(args, list)
        and all(argument is None or isinstance(argument, str) for argument in args)
    )
    return {"id": message["id"], "listener_id": message["listener_id"], "args": args} if is_fit else None


def _ack(message: dict[str, Any]) -> dict[str, Any] | None:
    last = message.get("next_message_id")
    return {"next_message_id": int(last)} if last is not None and _is_count(last) else None


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST


def _is_count(value: Any) -> bool:
    text = str(value) if type(value) in (int, str) else ""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
