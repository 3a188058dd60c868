"""What a server does with clients that send no request, and with workers that do not start."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import serve_objects
import uvicorn
from fastapi import FastAPI

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.cli import console
from turnwise.http import HttpSettings, Service, create_app
from turnwise.http.assembly import assemble
from turnwise.http.config import load
from turnwise.http.server import processes
from turnwise.http.server.processes import _Server, _Workers

MEGABYTE = b"x" * (1 << 20)


def server_of(kind: str) -> uvicorn.Server:
    if kind == "service":
        engines = {"main": {"object": "serve_objects:engine"}}
        return _Server(assemble(*load(store="memory://endless", engines=engines, placement="in_process")), lambda: None)
    manager = AsyncSessionManager("memory://endless", engine=EchoEngine(), placement=InProcess(), read_only=True)
    return console.server_of(FastAPI(), Service(manager, HttpSettings(), None))


@pytest.mark.parametrize("kind", ["service", "console"])
@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nHost: here\r\nX-Endless: "])
async def test_a_header_that_never_ends_is_not_read_for_ever(kind: str, begin: bytes) -> None:
    server = server_of(kind)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        serving = asyncio.create_task(server.serve([bound]))
        _, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(begin)
        sent = 0
        with suppress(ConnectionError):
            while sent < 16:
                writer.write(MEGABYTE)
                await writer.drain()
                sent += 1
        writer.close()
        server.should_exit = True
        await serving
    assert sent < 16, "it read sixteen megabytes"


async def test_a_service_does_not_look_for_garbage_among_what_it_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []

    class Server:
        async def serve(self, sockets: list[socket.socket]) -> None:
            frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(processes, "_Server", lambda assembly, ready: Server())
    engines = {"main": {"object": "serve_objects:engine"}}
    assembly = assemble(*load(store="memory://frozen", engines=engines, placement="in_process"))
    gc.unfreeze()
    try:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            await processes.serve_here(assembly, bound, lambda: None)
    finally:
        gc.unfreeze()
    assert frozen[0] > 100_000


@pytest.mark.by_turns
def test_a_worker_whose_replacement_does_not_start_is_replaced_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("turnwise.http.server.processes._work", serve_objects.work)
    monkeypatch.setattr("turnwise.http.server.processes.RETRY_S", 0.01)
    config, source = load(store=str(tmp_path / "broken"), workers=2)
    killed: list[int] = []

    def ready() -> None:
        Path(config.store).touch()
        killed.extend(worker.pid or 0 for worker in multiprocessing.active_children())
        os.kill(killed[0], signal.SIGKILL)

    with socket.create_server(("127.0.0.1", 0)) as bound:
        _Workers(config, source, bound, ready).run()
    messages = [record.getMessage() for record in caplog.records]
    assert len(killed) == 2
    assert ["did not start" in text for text in messages] == [False, True], messages


async def test_a_service_on_the_loopback_of_ipv6_answers_there() -> None:
    engines = {"main": {"object": "serve_objects:engine"}}
    app = assemble(*load(store="memory://v6", host="::1", engines=engines)).app
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport) as client:
        assert (await client.get("http://[::1]:8000/health")).is_success
        assert (await client.get("http://[::2]:8000/health")).status_code == 400


async def test_a_stopping_server_does_not_wait_forever_for_background_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("turnwise.http.app.DRAINED_S", 0.01)
    app = create_app(AsyncSessionManager("memory://drained", engine=EchoEngine(), placement=InProcess()))
    never = asyncio.Event()
    async with app.router.lifespan_context(app):
        app.state.service.spawn(never.wait(), "what never ends")
    assert "is not done" in caplog.text
    never.set()
    await app.state.service.drained()
