"""A socket of the console acts for its own page only, as long as that page's login lasts; without a browser."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from nicegui import Client
from starlette.requests import HTTPConnection
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.console import app as console_app, mount
from turnwise.console.access import gate
from turnwise.console.elements.tags import button
from turnwise.http import HttpSettings, Identity, Service
from turnwise.http.server.listening import Server, listen

END_S = 30.0


@dataclass
class Console:
    """A console that is served in this process to users whose token is their name."""

    address: str = ""
    tokens: dict[str, str] = field(default_factory=lambda: {"ann": "ann", "bob": "bob"})

    def auth(self, connection: HTTPConnection) -> Identity | None:
        name = self.tokens.get(connection.headers.get("authorization", "").partition(" ")[2])
        return Identity(name) if name else None

    async def page(self, user: str) -> Page:
        """Open a page with a button."""
        before = set(Client.instances)
        async with httpx.AsyncClient() as client:
            answer = await client.get(
                f"http://{self.address}/console/hosts", headers={"Cookie": f"{gate.COOKIE}={user}"}
            )
        assert answer.status_code == 200
        (client_id,) = set(Client.instances) - before
        page = Page(self, user, client_id)
        with Client.instances[client_id].content:
            element: Any = button("Count", lambda: page.clicks.append(user))
        page.element = element.id
        (listener,) = element._event_listeners.values()  # noqa: SLF001 - as the page in a browser knows it
        page.listener = listener.id
        return page

    async def log_out(self, user: str) -> None:
        async with httpx.AsyncClient() as client:
            headers = {"Cookie": f"{gate.COOKIE}={user}"}
            assert (await client.post(f"http://{self.address}/console/logout", headers=headers)).status_code == 303


@dataclass
class Page:
    console: Console
    user: str
    id: str
    element: int = 0
    listener: str = ""
    clicks: list[str] = field(default_factory=list)

    @property
    def click(self) -> dict[str, Any]:
        """The message that clicks the button."""
        return {"client_id": self.id, "id": self.element, "listener_id": self.listener, "args": []}

    @property
    def query(self) -> str:
        ids = f"client_id={self.id}&tab_id=tab-{self.id}&document_id=document-{self.id}"
        return f"EIO=4&implicit_handshake=true&next_message_id=0&{ids}"

    @property
    def path(self) -> str:
        return f"{self.console.address}/console/_nicegui_ws/socket.io/"

    @asynccontextmanager
    async def socket(self, user: str = "") -> AsyncIterator[Socket]:
        headers = {"Cookie": f"{gate.COOKIE}={user or self.user}"}
        async with connect(
            f"ws://{self.path}?{self.query}&transport=websocket", additional_headers=headers
        ) as websocket:
            socket = Socket(websocket, self.id)
            await websocket.send("40")
            await socket.until("40")
            yield socket


@dataclass
class Socket:
    """A socket as Socket.IO uses it."""

    made: ClientConnection
    page: str
    came: list[str] = field(default_factory=list)

    async def emit(self, name: str, *args: Any) -> None:
        await self.made.send("42" + json.dumps([name, *args]))

    async def until(self, begin: str) -> str:
        """Read until a packet that begins so, and answer pings."""
        async with asyncio.timeout(END_S):
            while True:
                packet = str(await self.made.recv())
                self.came.append(packet)
                if packet == "2":
                    await self.made.send("3")
                if packet.startswith(begin):
                    return packet

    async def settled(self) -> None:
        """Wait until all that was sent has been done: the message after it is answered."""
        await self.made.send("4299" + json.dumps(["ack", {"client_id": self.page, "next_message_id": 0}]))
        await self.until("4399")

    async def closed(self) -> None:
        with suppress(ConnectionClosed):
            await self.until("no packet begins so")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "CHECK_S", 0.05)


@asynccontextmanager
async def served() -> AsyncIterator[Console]:
    console = Console()
    manager = AsyncSessionManager("memory://sockets", engine=EchoEngine(), read_only=True)
    service = Service(manager, HttpSettings(), console.auth)
    app = FastAPI()
    mount(app, service)
    with listen("127.0.0.1", 0) as bound:
        console.address = f"127.0.0.1:{bound.getsockname()[1]}"
        server = Server(app, HttpSettings().protocol, stopping=service.stop)
        serving = asyncio.create_task(server.serve([bound]))
        try:
            yield console
        finally:
            server.should_exit = True
            await serving
            await service.drained()


async def test_a_socket_acts_for_its_own_page_only() -> None:
    async with served() as console:
        ann, bob = await console.page("ann"), await console.page("bob")
        async with bob.socket() as bobs, ann.socket() as socket:
            await socket.emit("event", bob.click)
            await socket.emit("handshake", {"client_id": bob.id, "tab_id": f"tab-{bob.id}", "document_id": "x"})
            await socket.emit("connect", {"QUERY_STRING": bob.query})
            await socket.emit("disconnect")
            await socket.emit("event", bob.click)
            await socket.emit("event", ann.click)
            await socket.settled()
            assert (ann.clicks, bob.clicks) == (["ann"], [])
            assert len(Client.instances[bob.id]._socket_to_document_id) == 1  # noqa: SLF001 - NiceGUI shows its sockets nowhere else
            await bobs.emit("event", bob.click)
            await bobs.settled()
            assert bob.clicks == ["bob"]


async def test_a_page_that_was_made_for_another_login_takes_no_socket() -> None:
    async with served() as console:
        ann = await console.page("ann")
        with pytest.raises(InvalidStatus):
            async with ann.socket("bob"):
                pass


async def test_what_stands_for_a_socket_goes_on_with_its_own_only() -> None:
    async with served() as console:
        ann, bob = await console.page("ann"), await console.page("bob")
        headers = {name: {"Cookie": f"{gate.COOKIE}={name}"} for name in ("ann", "bob")}
        async with httpx.AsyncClient() as client:
            opened = await client.get(f"http://{ann.path}?{ann.query}&transport=polling", headers=headers["ann"])
            sid = json.loads(opened.text[1:])["sid"]
            address = f"http://{bob.path}?{bob.query}&transport=polling&sid={sid}"
            assert (await client.post(address, content="40", headers=headers["bob"])).status_code == 403
            own = f"http://{ann.path}?{ann.query}&transport=polling&sid={sid}"
            assert (await client.post(own, content="40", headers=headers["bob"])).status_code == 403
            assert (await client.post(own, content="40", headers=headers["ann"])).status_code == 200
            await client.post(own, content="42" + json.dumps(["event", bob.click]), headers=headers["ann"])
            await client.post(own, content="42" + json.dumps(["event", ann.click]), headers=headers["ann"])
            ack = "4299" + json.dumps(["ack", {"client_id": ann.id, "next_message_id": 0}])
            await client.post(own, content=ack, headers=headers["ann"])
            answered = ""
            async with asyncio.timeout(END_S):
                while "4399" not in answered:
                    answered = (await client.get(own, headers=headers["ann"])).text
            await console.log_out("ann")
            assert (await client.get(own, headers=headers["ann"])).status_code == 403
        assert (ann.clicks, bob.clicks) == (["ann"], [])


async def test_a_logout_ends_the_sockets_and_pages_of_its_user() -> None:
    async with served() as console:
        ann, bob = await console.page("ann"), await console.page("bob")
        async with ann.socket() as socket, bob.socket() as bobs:
            await console.log_out("ann")
            with suppress(ConnectionClosed):
                await socket.emit("event", ann.click)
            await socket.closed()
            assert any("location.reload" in packet for packet in socket.came)
            assert ann.clicks == [] and ann.id not in Client.instances
            await bobs.emit("event", bob.click)
            await bobs.settled()
            assert bob.clicks == ["bob"]


@pytest.mark.parametrize("is_used", [True, False])
async def test_a_token_that_is_not_valid_any_more_ends_its_pages(is_used: bool) -> None:
    async with served() as console:
        ann = await console.page("ann")
        async with ann.socket() as socket:
            del console.tokens["ann"]
            if is_used:
                await socket.emit("event", ann.click)
            await socket.closed()
            assert ann.clicks == [] and ann.id not in Client.instances


async def test_a_browser_writes_nothing_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as console:
        forged = "x\nERROR turnwise: forged\x1b[2J"
        ann = await console.page("ann")
        async with ann.socket() as socket:
            for level in ("debug", "info", "warning", "error"):
                await socket.emit("log", {"client_id": ann.id, "level": level, "message": forged})
            await socket.settled()
        async with httpx.AsyncClient() as client:
            path = "/console/no%0AERROR%20turnwise:%20forged%1b[2J"
            await client.get(f"http://{console.address}{path}", headers={"Cookie": f"{gate.COOKIE}=ann"})
        logging.getLogger("nicegui").warning("%s", forged)
        messages = [record.getMessage() for record in caplog.records if record.name.startswith(("nicegui", "turnwise"))]
        assert messages[-1:] and all(text.isprintable() for text in messages), messages


MALFORMED: list[list[Any]] = [
    [],
    ["text"],
    [None],
    [{}],
    [{"client_id": ["a"]}],
    [{"client_id": {}}],
    [{"id": "x"}],
    [{"id": True, "listener_id": "x"}],
    [{"listener_id": "no such listener"}],
    [{"listener_id": ["x"]}],
    [{"args": "x"}],
    [{"args": ["{"]}],
    [{"args": [{}]}],
    [{"next_message_id": "x"}],
    [{"next_message_id": -1}],
    [{"next_message_id": "9" * 5000}],
    [{"tab_id": {}, "document_id": "x"}],
    [{"tab_id": "x" * 5000, "document_id": "x"}],
    [{"request_id": "x", "result": 1}],
    [{"level": "x", "message": "x"}],
]


async def test_messages_that_nobody_expects_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as console:
        ann = await console.page("ann")
        async with ann.socket() as socket:
            for name in ("event", "handshake", "ack", "log", "javascript_response", "connect", "disconnect", "other"):
                for args in MALFORMED:
                    full = [
                        {**ann.click, **argument} if isinstance(argument, dict) and argument else argument
                        for argument in args
                    ]
                    await socket.emit(name, *full)
            await socket.settled()
            before = len(ann.clicks)  # some were right
            await socket.emit("event", ann.click)
            await socket.settled()
            assert len(ann.clicks) == before + 1
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("packet", ["", "9", "4", "49", "45x", '42{"a":1}', "42[]", "42[", b"\x00", "x"])
async def test_packets_that_cannot_be_read_write_nothing_past_the_log(
    packet: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as console:
        ann = await console.page("ann")
        async with ann.socket() as socket:
            await socket.made.send(packet)
            with suppress(ConnectionClosed):
                await socket.settled()
        assert not [record for record in caplog.records if record.name.startswith(("uvicorn", "asyncio"))]
        assert all(record.getMessage().isprintable() for record in caplog.records)
        assert not any(logging.getLogger(name).handlers for name in ("engineio.server", "socketio.server", "nicegui"))
        assert console_app.viewer_of(ann.id) is not None
