"""What a server does with clients that send no request, and with workers that do not start."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest
import uvicorn
from fastapi import FastAPI

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.cli import console
from turnwise.http import HttpSettings, Service
from turnwise.http.assembly import assemble
from turnwise.http.config import load
from turnwise.http.server import _Server

MEGABYTE = b"x" * (1 << 20)


def server_of(kind: str) -> uvicorn.Server:
    if kind == "service":
        engines = {"main": {"object": "serve_objects:engine"}}
        return _Server(assemble(*load(store="memory://endless", engines=engines)), lambda: None)
    manager = AsyncSessionManager("memory://endless", engine=EchoEngine(), read_only=True)
    return console._server(FastAPI(), Service(manager, HttpSettings(), None))


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
