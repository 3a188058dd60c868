"""What the service answers when a limit is reached, or its store is away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
from test_readiness import fill_up

from servers.http_service import manager_of
from stored.open_stores import closing
from turnwise.actors.hosting.placement import InProcess
from turnwise.http import create_app
from turnwise.memory.stores.sql.store import SQLStore


def move(folder: Path, to: Path) -> None:
    """Move the files of the store."""
    to.mkdir(exist_ok=True)
    for file in [entry for entry in folder.iterdir() if entry.name.startswith("chats.db")]:
        file.rename(to / file.name)


async def test_a_client_over_its_limit_is_told_when_to_retry(tmp_path: Path) -> None:
    placement = InProcess(max_resident=1)
    async with manager_of(tmp_path, placement=placement) as manager:
        transport = httpx.ASGITransport(create_app(manager), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client:
            for name in ("chat", "other"):
                await client.post("/v1/sessions", json={"id": name, "engine": "scripted"})
            run = (await client.post("/v1/sessions/chat/runs", json={"prompt": "slow 3000"})).json()
            refused = await client.post("/v1/sessions/other/runs", json={"prompt": "hello"})
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1", refused.text
            problem = {"error": "overloaded", "limit": "max_resident", "value": 1, "session_id": "other"}
            assert refused.json().items() >= problem.items()
            cancelled = await client.post(f"/v1/runs/{run['id']}/cancel", json={})
            assert cancelled.json() == {"cancelled": True}

            move(tmp_path, tmp_path / "away")
            for answer in (
                await client.get("/v1/sessions"),
                await client.post("/v1/sessions", json={}),
                await client.get("/v1/usage"),
                await client.get("/v1/runs/unknown"),
            ):
                assert answer.status_code == 503 and answer.headers["retry-after"] == "1", answer.text
                assert answer.headers["content-type"] == "application/problem+json"
            move(tmp_path / "away", tmp_path)
            assert (await client.get("/v1/sessions")).is_success


async def test_a_service_with_a_full_disk_is_not_ready(tmp_path: Path, limit_pages: Callable[[int], None]) -> None:
    async with manager_of(tmp_path) as manager:
        transport = httpx.ASGITransport(create_app(manager))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            assert (await client.get("/health/ready")).status_code == 200
            async with closing(SQLStore(f"sqlite:///{tmp_path}/chats.db")) as store:
                await fill_up(store, limit_pages)
            answer = await client.get("/health/ready")
            assert answer.status_code == 503 and answer.json()["error"] == "store", answer.text
            limit_pages(2**30)
            assert (await client.get("/health/ready")).status_code == 200
