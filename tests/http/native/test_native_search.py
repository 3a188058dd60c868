"""Search and marks by the native API: each user reaches own messages only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from servers.http_service import ANN, BOB, TOKENS
from turnwise import AsyncSessionManager, EchoEngine, InProcess
from turnwise.http import create_app


@asynccontextmanager
async def service(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a store in this process, as Ann's client, whose session "chat" has two turns."""
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        transport = httpx.ASGITransport(create_app(manager, auth=TOKENS), raise_app_exceptions=False)
        options: dict[str, Any] = {"base_url": "http://service", "headers": ANN, "timeout": 60}
        async with httpx.AsyncClient(transport=transport, **options) as client:
            await client.post("/v1/sessions", json={"id": "chat", "title": "A trip"})
            for prompt in ("the night train to Zürich", "then we walk"):
                run = await client.post("/v1/sessions/chat/runs", json={"prompt": prompt})
                await client.get(f"/v1/runs/{run.json()['id']}/wait", params={"timeout_s": 20})
            yield client


async def test_messages_are_searched(tmp_path: Path) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db") as client:
        page = (await client.get("/v1/search", params={"text": "zurich tra", "limit": 1})).json()
        (hit,) = page["items"]
        assert (hit["id"], hit["title"], hit["role"]) == ("chat#0:1", "A trip", "assistant")
        assert hit["snippet"] == "the night train to Zürich" and hit["ranges"] == [[10, 15], [19, 25]]
        following = (await client.get("/v1/search", params={"text": "zurich tra", "cursor": page["cursor"]})).json()
        assert [item["id"] for item in following["items"]] == ["chat#0:0"] and following["cursor"] is None
        found = await client.get("/v1/search", params={"text": "we", "role": "user", "order": "rank"})
        assert [item["id"] for item in found.json()["items"]] == ["chat#1:0"]
        assert (await client.get("/v1/search", params={"text": "train"}, headers=BOB)).json()["items"] == []
        for wrong in ({"text": ""}, {"text": "?!"}, {"text": "a", "order": "best"}, {"text": "a", "cursor": "x"}, {}):
            assert (await client.get("/v1/search", params=wrong)).status_code == 422


async def test_messages_are_marked(tmp_path: Path) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db") as client:
        place = "/v1/sessions/chat/messages/0:1/marks/thumb"
        mark = (await client.put(place, json={"value": "up"})).json()
        assert (mark["name"], mark["value"], mark["by"]) == ("thumb", "up", "ann")
        note = {"value": {"text": "nice", "stars": [4]}}
        assert (await client.put("/v1/sessions/chat/messages/1:0/marks/note", json=note)).status_code == 200
        listed = (await client.get("/v1/marks")).json()
        assert [(item["id"], item["mark"]["value"]) for item in listed["items"]] == [
            ("chat#0:1", "up"),
            ("chat#1:0", note["value"]),
        ]
        assert (await client.get("/v1/marks/count")).json() == {"marks": {"thumb": 1, "note": 1}}
        messages = (await client.get("/v1/sessions/chat/messages")).json()["items"]
        assert [list(message["marks"]) for message in messages] == [[], ["thumb"], ["note"], []]
        found = (await client.get("/v1/search", params={"text": "train", "mark": "thumb"})).json()
        assert [hit["id"] for hit in found["items"]] == ["chat#0:1"]
        assert (await client.get("/v1/marks", headers=BOB)).json()["items"] == []
        assert (await client.put(place, json={"value": 1}, headers=BOB)).status_code == 404
        for wrong in ({"value": None}, {}, {"value": "x" * 5000}):
            assert (await client.put(place, json=wrong)).status_code == 422
        missing = "/v1/sessions/chat/messages/0:9/marks/thumb"
        assert (await client.put(missing, json={"value": 1})).status_code == 422
        for _ in range(2):
            assert (await client.delete(place)).status_code == 204
        assert [item["id"] for item in (await client.get("/v1/marks")).json()["items"]] == ["chat#1:0"]


async def test_a_store_that_cannot_search_answers_with_a_conflict(redis_url: str) -> None:
    async with service(redis_url) as client:
        refused = await client.get("/v1/search", params={"text": "train"})
        assert refused.status_code == 409 and "SQLite or PostgreSQL" in refused.json()["detail"]
