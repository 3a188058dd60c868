"""A request that is too large is refused in the form of the API that was asked."""

from __future__ import annotations

import httpx
import pytest

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.http import HttpSettings, create_app


@pytest.mark.parametrize("part", ["header", "body"])
async def test_what_is_too_large_is_named_with_its_limit(part: str) -> None:
    settings = HttpSettings(max_body_bytes=1000, max_header_bytes=500)
    app = create_app(AsyncSessionManager("memory://limits", engine=EchoEngine()), settings=settings)
    content, headers = (b"x" * 1001, {}) if part == "body" else (b"{}", {"X-Large": "x" * 600})
    status = 413 if part == "body" else 431
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        found = await client.post("/v1/sessions", content=content, headers=headers)
        assert found.status_code == status and found.headers["content-type"] == "application/problem+json"
        assert found.json()["error"] == f"{part}_too_large" and "bytes" in found.json()["detail"]
        found = await client.post("/openai/v1/responses", content=content, headers=headers)
        assert found.status_code == status and found.json()["error"]["code"] == f"{part}_too_large"
