"""What a service refuses before it looks at a session, in the form of the API that was asked."""

from __future__ import annotations

import httpx
import pytest

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import OverloadedError, StoreError, TurnwiseError
from turnwise.http import HttpSettings, create_app
from turnwise.http.openai.errors import answer_of


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


@pytest.mark.parametrize("origins", [(), ("https://page.example",)])
async def test_pages_of_other_origins_may_use_a_service_only_if_it_names_them(origins: tuple[str, ...]) -> None:
    settings = HttpSettings(cors_origins=origins)
    app = create_app(AsyncSessionManager("memory://origins", engine=EchoEngine()), settings=settings)
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization, X-On-Disconnect"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        for origin in ("https://page.example", "https://other.example"):
            found = await client.options("/v1/sessions", headers={"Origin": origin, **asks})
            allowed = found.headers.get("access-control-allow-origin")
            assert allowed == (origin if origin in origins else None)
            assert found.is_success == (origin in origins)


@pytest.mark.parametrize(
    ("error", "status"), [(OverloadedError("s", "mailbox", 100), 429), (StoreError("store s: no answer"), 503)]
)
def test_clients_of_openai_are_told_to_come_again_when_a_session_or_a_store_cannot_answer(
    error: TurnwiseError, status: int
) -> None:
    found = answer_of(error)
    assert found.status_code == status and int(found.headers["retry-after"]) > 0
