"""Heartbeats of a silent stream, and what they do not hold up; without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.http import HttpSettings, Service
from turnwise.http.service import Caller
from turnwise.http.sse import HEARTBEAT, EventStream


async def test_a_stream_with_a_blocked_heartbeat_ends_when_the_server_stops() -> None:
    manager = AsyncSessionManager("memory://heartbeat", engine=EchoEngine())
    service = Service(manager, HttpSettings(heartbeat_s=0.01), None)
    never, beating = asyncio.Event(), asyncio.Event()
    sent: list[bytes] = []

    async def silence() -> AsyncGenerator[bytes, None]:
        await never.wait()
        yield b""

    async def receive() -> Message:
        await never.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if message.get("body") == HEARTBEAT:
            beating.set()
            await never.wait()

    stream = EventStream(Caller(service, None, "keep"), silence(), farewell=b"bye")
    serving = asyncio.create_task(stream({"type": "http"}, receive, send))
    await beating.wait()
    service.stop()
    await asyncio.wait({serving}, timeout=30)
    assert serving.done() and sent[-2:] == [HEARTBEAT, b"bye"]
