"""The service in tests: a manager with engines of all kinds, the app in process, and the app on a real uvicorn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from engines import ScriptedEngine
from tools.agent_tools import driver, pay
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.http import BearerTokens, HttpSettings, Identity, create_app
from turnwise.memories import LexicalMemory, WorkingMemory

USERS: dict[str, str | Identity] = {"ann": "ann", "bob": Identity("bob"), "root": Identity("root", is_operator=True)}
TOKENS = BearerTokens({f"{name}'s-secret-token": user for name, user in USERS.items()})
ANN, BOB, ROOT = ({"Authorization": f"Bearer {name}'s-secret-token"} for name in USERS)

WAIT_S = 60.0


def manager_of(folder: Path, provider_url: str | None = None, **settings: Any) -> AsyncSessionManager:
    """Return a manager whose sessions have an engine `echo`, `slow` or `scripted`; or `agent`, with a provider."""
    engines: dict[str, Any] = {"echo": EchoEngine(), "slow": EchoEngine(0.01), "scripted": ScriptedEngine()}
    if provider_url:
        tools = ToolRegistry(pay, driver)
        engines["agent"] = OpenAIEngine("local", base_url=provider_url, api_key="none", tools=tools, max_retries=0)
        settings["memory"] = [LexicalMemory(folder / "facts.db", name="facts")]
        settings["working_memory"] = WorkingMemory(f"sqlite:///{folder}/notes.db")
    arguments: dict[str, Any] = {"placement": InProcess(), **settings}
    return AsyncSessionManager(f"sqlite:///{folder}/chats.db", engine=engines, **arguments)


@asynccontextmanager
async def in_process(
    folder: Path, provider_url: str | None = None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the app without a server, as Ann's client. It does not stream. `settings` are those of `HttpSettings`."""
    async with manager_of(folder, provider_url) as manager:
        app = create_app(manager, auth=TOKENS, settings=HttpSettings(**settings))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=ANN, timeout=60) as client:
            yield client


@asynccontextmanager
async def on_server(app: FastAPI, **options: Any) -> AsyncIterator[str]:
    """Serve an app on a real uvicorn on loopback; yield its URL."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=5, **options)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), serving
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        if isinstance(app, FastAPI):
            app.state.service.stop()
        server.should_exit = True
        await serving


@asynccontextmanager
async def served(
    folder: Path, settings: Mapping[str, Any] | None = None, *, auth: bool = True, **options: Any
) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """Serve the app on a real uvicorn; yield it with Ann's client."""
    async with manager_of(folder) as manager:
        app = create_app(manager, auth=TOKENS if auth else None, settings=HttpSettings(**(settings or {})))
        async with (
            on_server(app, **options) as url,
            httpx.AsyncClient(
                base_url=url, headers=ANN, timeout=60, limits=httpx.Limits(max_connections=None)
            ) as client,
        ):
            yield app, client


class Frames:
    """Reads server-sent events from bytes; an incomplete event waits for the rest of its bytes."""

    def __init__(self) -> None:
        self._incomplete = b""

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Return the events that are complete: `id`, `event` and `data`."""
        *whole, self._incomplete = (self._incomplete + chunk).split(b"\n\n")
        return list(filter(None, map(_frame, whole)))


def _frame(text: bytes) -> dict[str, Any] | None:
    fields = dict(line.split(": ", 1) for line in text.decode().split("\n") if ": " in line and line[0] != ":")
    return {**fields, "data": json.loads(fields["data"])} if "data" in fields else None


def frames_of(text: str) -> Sequence[dict[str, Any]]:
    """Return the server-sent events of a whole answer."""
    return Frames().feed(text.encode())


async def frames(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the server-sent events of a streamed answer."""
    reader = Frames()
    async for chunk in response.aiter_bytes():
        for frame in reader.feed(chunk):
            yield frame
