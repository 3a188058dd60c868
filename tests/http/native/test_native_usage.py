"""What was spent, by the native API: users see their own, operators all, as JSON or CSV."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from servers.http_service import ANN, BOB, ROOT, TOKENS
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.http import create_app

USAGE = "/v1/usage"


async def test_users_see_what_they_have_spent_and_operators_all(tmp_path: Path) -> None:
    """Also what deleted sessions have spent, and what forgotten users have, without them."""
    manager = AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), placement=InProcess())
    async with manager:
        transport = httpx.ASGITransport(create_app(manager, auth=TOKENS), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            for user, count in ((ANN, 2), (BOB, 1)):
                await client.post("/v1/sessions", json={"id": "chat", "agent": "travel"}, headers=user)
                for _ in range(count):
                    run = (await client.post("/v1/sessions/chat/runs", json={"prompt": "hi"}, headers=user)).json()
                    await client.get(f"/v1/runs/{run['id']}/wait", headers=user)

            async def spent(headers: dict[str, str], **query: Any) -> Any:
                answer = await client.get(USAGE, params=query, headers=headers)
                assert answer.status_code == 200, answer.text
                return answer.json()

            own = await spent(ANN)
            assert own["total"]["runs"] == 2 and own["by"] == [] and len(own["rows"]) == 1
            today = datetime.now(UTC).date().isoformat()
            own = await spent(ANN, by="day,session", since=today)
            assert [(row["session"], row["runs"]) for row in own["rows"]] == [("chat", 2)]
            assert "model" not in own["rows"][0] and own["since"] == today <= own["rows"][0]["day"]
            assert [row["user"] for row in (await spent(ROOT, by=["user"]))["rows"]] == ["ann", "bob"]
            assert (await spent(ROOT, user="bob", agent="travel"))["total"]["runs"] == 1
            refused = await client.get(USAGE, params={"user": "bob"}, headers=ANN)
            assert (refused.status_code, refused.json()["error"]) == (403, "operators_only")
            for query in ({"by": "week"}, {"since": "yesterday"}, {"since": "2026-11-30", "until": "2026-11-29"}):
                assert (await client.get(USAGE, params=query, headers=ANN)).status_code == 422, query

            await client.delete("/v1/sessions/chat", headers=ANN)
            assert [row["session"] for row in (await spent(ANN, by="session"))["rows"]] == [""]
            assert [row["engine"] for row in (await spent(ANN, by="engine"))["rows"]] == [""]
            await client.delete("/v1/user", headers=BOB)
            assert (await spent(BOB))["total"]["runs"] == 0
            assert [(row["user"], row["runs"]) for row in (await spent(ROOT, by="user"))["rows"]] == [
                ("", 1),
                ("ann", 2),
            ]

            for headers, params in (({"Accept": "text/csv"}, {}), ({}, {"format": "csv"})):
                table = await client.get(USAGE, params={"by": "user", **params}, headers=ROOT | headers)
                assert table.headers["content-type"].startswith("text/csv")
                head, *lines = table.text.splitlines()
                assert head.startswith("user,runs,calls,") and [line.split(",")[:2] for line in lines] == [
                    ["", "1"],
                    ["ann", "2"],
                ]
