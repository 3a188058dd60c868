"""The app answers over HTTP as the Python API does."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from patience import WAIT_S
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import ConfigError
from turnwise.http import BearerTokens, Identity, create_app
from turnwise.http.config import load

TOKENS = BearerTokens({"ann's-secret-token": "ann", "bob's-secret-token": Identity("bob")})
ANN, BOB = ({"Authorization": f"Bearer {name}'s-secret-token"} for name in ("ann", "bob"))

SSE = {"Accept": "text/event-stream"}


@asynccontextmanager
async def service(folder: Path, **options: object) -> AsyncIterator[httpx.AsyncClient]:
    manager = AsyncSessionManager(f"sqlite:///{folder}/chats.db", engine=EchoEngine(), placement=InProcess())
    async with manager:
        app = create_app(manager, auth=TOKENS, **options)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=ANN) as client:
            yield client


async def test_a_run_is_started_followed_and_waited_for(tmp_path: Path) -> None:
    async with service(tmp_path) as client:
        assert (await client.post("/v1/sessions", json={"id": "chat"})).json()["id"] == "chat"
        run = (await client.post("/v1/sessions/chat/runs", json={"prompt": "hello"})).json()
        done = (await client.get(f"/v1/runs/{run['id']}/wait")).json()
        assert done["state"] == "completed" and "hello" in done["text"]
        text = (await client.get(f"/v1/runs/{run['id']}/events?stream=true")).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        assert [events[0]["kind"], events[-1]["kind"]] == ["run_started", "run_completed"]
        later = await client.get(
            f"/v1/runs/{run['id']}/events", headers={**SSE, "Last-Event-ID": str(events[-2]["seq"])}
        )
        assert later.text.count("data: ") == 1
        another = await client.post("/v1/sessions/chat/runs", json={"prompt": "hello"}, headers=BOB)
        assert another.status_code == 404 and another.json()["error"] == "session_not_found"
        nobody = await client.post("/v1/sessions/chat/runs", json={"prompt": "hi"}, headers={"Authorization": "Bearer"})
        assert nobody.status_code == 401 and nobody.headers["www-authenticate"] == "Bearer"


async def test_an_app_of_a_configuration_opens_and_closes_its_own_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[AsyncSessionManager] = []
    close = AsyncSessionManager.close

    async def closing(manager: AsyncSessionManager) -> None:
        closed.append(manager)
        await close(manager)

    monkeypatch.setattr(AsyncSessionManager, "close", closing)
    engines = {"main": {"object": "serve_objects:engine"}}
    config, _ = load(store=f"sqlite:///{tmp_path}/chats.db", engines=engines, placement="in_process")
    app = create_app(config)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
        async with app.router.lifespan_context(app):
            await client.post("/v1/sessions", json={"id": "chat"})
            done = await client.post("/v1/sessions/chat/runs?wait_s=60", json={"prompt": "hello"})
            assert done.json()["text"] == "hello" and not closed
        assert len(closed) == 1
    with pytest.raises(ConfigError, match="omit these"):
        create_app(config, auth=TOKENS)


KILLED = """
import sys, time
from turnwise import EchoEngine, InProcess, SessionManager
manager = SessionManager(sys.argv[1], engine=EchoEngine(token_delay_s=0.05), placement=InProcess())
print(manager.open("chat").run("word " * 1000).run_id, flush=True)
time.sleep(60)
"""


def kill_in_a_run(url: str) -> None:
    killed = subprocess.Popen([sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, text=True)
    assert killed.stdout
    killed.stdout.readline()
    killed.kill()
    killed.communicate()


async def test_after_a_kill_an_app_goes_on_with_runs_before_its_first_request(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    await asyncio.to_thread(kill_in_a_run, url)
    manager = AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess())
    app = create_app(manager)
    async with (
        app.router.lifespan_context(app),
        AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess(), read_only=True) as reader,
    ):
        async with asyncio.timeout(WAIT_S):
            while [run.state for run in await reader.runs()] != ["interrupted"]:
                await asyncio.sleep(0.02)
    await manager.close()
