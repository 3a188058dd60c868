"""What a server does with clients that are slow, silent or many, on real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from filled import filled

from servers.served import half_open, patient, with_files
from turnwise.cli import console, mcp
from turnwise.http.config import load
from turnwise.http.server import connections, processes
from turnwise.http.server.connections import ConnectionLimits, protocol_of
from turnwise.http.server.listening import Server, listen
from turnwise.testing import LocalProvider

END_S = 30.0
"""How long a test waits for what must happen."""

HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 100000\r\n\r\n"


class App:
    """Answers GET at once, after `go_on` at /wait, without an end at /endless, and POST when it has the body."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waiting: asyncio.Queue[None] = asyncio.Queue()
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            with suppress(Exception):
                while True:
                    await send({"type": "websocket.send", "bytes": b"x" * 65_536})
            self.left.set()
        if scope["type"] != "http":
            return
        if scope["method"] == "POST":
            message = await receive()
            while message.get("more_body"):
                message = await receive()
        if scope["path"] == "/wait":
            self.waiting.put_nowait(None)
            await self.go_on.wait()
        length = [] if scope["path"] == "/endless" else [(b"content-length", b"5")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        if scope["path"] == "/endless":
            client_gone = asyncio.ensure_future(until_it_leaves(receive))
            while not client_gone.done():
                sent = asyncio.ensure_future(
                    send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
                )
                await asyncio.wait({client_gone, sent}, return_when=asyncio.FIRST_COMPLETED)
                sent.cancel()
            self.left.set()
            return
        await send({"type": "http.response.body", "body": b"hello"})


async def until_it_leaves(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def serving(app: App, **limits: Any) -> AsyncIterator[int]:
    """Serve the app with these limits; yield the port."""
    with listen("127.0.0.1", 0) as bound:
        server = Server(app, protocol_of(ConnectionLimits(**limits), 4096))
        task = asyncio.create_task(server.serve([bound]))
        try:
            yield bound.getsockname()[1]
        finally:
            app.go_on.set()
            server.should_exit = True
            await task


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SWEEP_S", 0.05)


async def answer_to(port: int, *parts: bytes, again: bytes = b"") -> bytes:
    """Send these bytes, then others again and again; return what came until the connection was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)

    async def send_again() -> None:
        with suppress(ConnectionError):
            while again:
                writer.write(again)
                await writer.drain()
                await asyncio.sleep(0.02)

    sending = asyncio.create_task(send_again())
    try:
        return await asyncio.wait_for(reader.read(), END_S)
    finally:
        sending.cancel()
        writer.close()


def error_of(answer: bytes) -> tuple[int, str]:
    """Return the status and the word of a problem."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, problem = int(head.split()[1]), json.loads(body)
    assert problem["status"] == status
    return status, problem["error"]


@pytest.mark.parametrize(
    ("parts", "again"),
    [
        ([b"GET / HT"], b""),
        ([b"GET / HTTP/1.1\r\n"], b"x"),
        ([b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"], b"G"),
    ],
    ids=["a part", "a byte at a time", "after an answer"],
)
async def test_a_header_has_a_time_limit(parts: list[bytes], again: bytes) -> None:
    async with serving(App(), max_header_s=0.3) as port:
        answer = await answer_to(port, *parts, again=again)
    assert error_of(answer[answer.rindex(b"HTTP/1.1 ") :]) == (408, "request_timeout")


async def test_a_connection_that_sends_nothing_is_closed() -> None:
    async with serving(App(), max_header_s=0.3) as port:
        assert await answer_to(port) == b""


@pytest.mark.parametrize("again", [b"", b"x"], ids=["nothing", "a byte at a time"])
async def test_a_body_that_does_not_go_on_is_given_up(again: bytes) -> None:
    async with serving(App(), max_stall_s=0.3) as port:
        assert error_of(await answer_to(port, HEAD, again=again)) == (408, "request_timeout")


async def test_a_large_body_that_goes_on_takes_as_long_as_it_takes() -> None:
    async with serving(App(), max_stall_s=0.3, max_header_s=0.3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        for _ in range(10):
            await asyncio.sleep(0.1)
            writer.write(b"x" * 10_000)
            await writer.drain()
        assert b"200 OK" in await asyncio.wait_for(reader.readline(), END_S)
        writer.close()


UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
UPGRADE += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


@pytest.mark.parametrize("more", [b"", UPGRADE], ids=["http", "websocket"])
async def test_a_client_that_never_reads_its_answer_is_let_go(more: bytes) -> None:
    app = App()
    async with serving(app, max_stall_s=0.3) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.send(b"GET /endless HTTP/1.1\r\nHost: here\r\n" + more + b"\r\n")
            await asyncio.wait_for(app.left.wait(), END_S)


async def test_a_full_server_closes_the_oldest_connection_without_a_request() -> None:
    app = App()
    async with serving(app, max_connections=8) as port:
        waiting = asyncio.create_task(answer_to(port, b"GET /wait HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"))
        await asyncio.wait_for(app.waiting.get(), END_S)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(7)]
        await answer_of_somebody_else(port)
        assert await asyncio.wait_for(silent[0][0].read(), END_S) == b"", "the oldest one"
        assert not any(reader.at_eof() for reader, _ in silent[1:])
        app.go_on.set()
        assert (await waiting).endswith(b"hello"), "what is being answered is not cut off"
        for _, writer in silent:
            writer.close()


async def answer_of_somebody_else(port: int) -> None:
    answer = await answer_to(port, b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"hello"), answer


@pytest.mark.parametrize(
    "begin", [b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"]
)
async def test_a_full_server_closes_what_waits_for_its_client(begin: bytes) -> None:
    async with serving(App(), max_connections=8) as port:
        idle = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begin)
            idle.append((reader, writer))
        await answer_of_somebody_else(port)
        for _, writer in idle:
            writer.close()


async def test_a_server_that_answers_as_many_as_it_may_says_so() -> None:
    app = App()
    async with serving(app, max_connections=8) as port:
        busy = [
            asyncio.create_task(answer_to(port, b"GET /wait HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"))
            for _ in range(8)
        ]
        for _ in busy:
            await asyncio.wait_for(app.waiting.get(), END_S)
        for _ in range(3):
            refused = await answer_to(port, b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            assert error_of(refused) == (503, "too_many_connections")
        app.go_on.set()
        assert all(response.endswith(b"hello") for response in await asyncio.gather(*busy))


@pytest.mark.parametrize(
    ("sent", "status", "error"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100, 400, "invalid_request"),
        (b"nonsense\r\n\r\n", 400, "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: here\r\nX-Long: " + b"x" * 200_000, 431, "header_too_large"),
        (
            b"GET / HTTP/1.1\r\nHost: here\r\n" + UPGRADE + b"X-Long: " + b"x" * 9000 + b"\r\n\r\n",
            431,
            "header_too_large",
        ),
        (b"GET / HTTP/1.1\r\nHost: here\r\n" + UPGRADE + b"X: y\r\n" * 200 + b"\r\n", 431, "header_too_large"),
        (b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "not_implemented"),
    ],
    ids=["TLS", "nonsense", "long header", "long header of a websocket", "many headers of a websocket", "encoding"],
)
async def test_what_is_no_request_is_answered_with_a_problem(sent: bytes, status: int, error: str) -> None:
    async with serving(App()) as port:
        assert error_of(await answer_to(port, sent)) == (status, error)


async def test_a_long_header_is_refused_in_the_form_of_its_api() -> None:
    async with serving(App()) as port:
        answer = await answer_to(port, b"GET /openai/v1/models HTTP/1.1\r\nHost: here\r\nX-Long: " + b"x" * 200_000)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "header_too_large"


def of_serve() -> socket.socket:
    engines = {"main": {"object": "serve_objects:engine"}}
    return processes.listen(*load(store="memory://delay", engines=engines, port=0))


def of_console() -> socket.socket:
    return console.bound_socket("127.0.0.1", 0)


def of_mcp() -> socket.socket:
    taken: list[socket.socket] = []

    async def serve(_: Server, sockets: list[socket.socket]) -> None:
        taken.extend(sockets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "serve", serve)
        patch.setattr("turnwise.http.server.log.configure_logging", lambda: None)
        asyncio.run(mcp.serve_app(App, "127.0.0.1", 0))
    return taken[0]


@pytest.mark.parametrize("bound", [of_serve, of_console, of_mcp])
def test_no_answer_waits_for_an_acknowledgement(bound: Callable[[], socket.socket]) -> None:
    async def accepted(listener: socket.socket) -> bool:
        is_nodelay: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nodelay = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                is_nodelay.set_result(bool(nodelay))
                transport.close()

        async with await asyncio.get_running_loop().create_server(Protocol, sock=listener):
            with socket.create_connection(listener.getsockname()[:2]):
                return await asyncio.wait_for(is_nodelay, END_S)

    with bound() as listener:
        assert asyncio.run(accepted(listener))


def test_no_answer_of_the_local_provider_waits_for_an_acknowledgement() -> None:
    with LocalProvider() as provider:
        client = HTTPConnection("127.0.0.1", provider.port, timeout=END_S)
        client.request("GET", "/v1/models")
        client.getresponse().read()
        (writer,) = provider._open  # noqa: SLF001 - the server's end of the connection
        assert writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.close()


# Real processes that may open few files

FILES = 256


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(f"sqlite:///{tmp_path_factory.mktemp('few')}/chats.db")


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("words", "path", "status"),
    [(["console"], "/console/login", 303), (["mcp", "--user", "ann", "--read-only"], "/mcp", 406)],
    ids=["console", "mcp"],
)
def test_half_open_connections_lock_nobody_out(
    words: list[str], path: str, status: int, store: str, tmp_path: Path
) -> None:
    command, *options = words
    log = tmp_path / "log"
    args = with_files(FILES, sys.executable, "-m", "turnwise", command, store, *options, "--port", "0")
    with log.open("wb") as file, subprocess.Popen(args, stdout=file, stderr=file) as process:
        try:
            port = patient(lambda: port_in(log))
            for _ in half_open(port, 3 * FILES):
                assert status_of(port, path) == status
            assert status_of(port, path) == status
        finally:
            process.terminate()
    assert log.stat().st_size < 10_000, log.read_text()[:2000]


def port_in(log: Path) -> int:
    _, separator, rest = log.read_text().partition("http://127.0.0.1:")
    return int(rest.partition("/")[0]) if separator and "/" in rest else 0


def status_of(port: int, path: str) -> int:
    client = HTTPConnection("127.0.0.1", port, timeout=END_S)
    try:
        client.request("GET", path)
        return client.getresponse().status
    finally:
        client.close()


async def test_a_connection_that_cannot_be_checked_ends_no_check_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def close_if_stalled(self, now: float, limits: ConnectionLimits) -> None:
            raise OSError("its transport is gone")

    class Whole:
        checks = 0

        def close_if_stalled(self, now: float, limits: ConnectionLimits) -> None:
            self.checks += 1

    monkeypatch.setattr(connections, "SWEEP_S", 0.001)
    held, whole = connections.Connections(ConnectionLimits()), Whole()
    both: list[Any] = [Broken(), whole]
    for connection in both:
        held.admit(connection)
    while whole.checks < 3:
        await asyncio.sleep(0.001)
    for connection in both:
        held.lost(connection)
