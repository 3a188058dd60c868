"""What a service refuses before it looks at a session, in the form of the API that was asked."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import OverloadedError, StoreError, TurnwiseError
from turnwise.http import HttpSettings, Service, create_app, problems
from turnwise.http.middleware.size_limits import within_limits
from turnwise.http.openai.errors import answer_of
from turnwise.http.problems import TooManyStreams


@pytest.mark.parametrize("part", ["header", "body"])
async def test_what_is_too_large_is_named_with_its_limit(part: str) -> None:
    settings = HttpSettings(max_body_bytes=1000, max_header_bytes=500)
    app = create_app(AsyncSessionManager("memory://limits", engine=EchoEngine()), settings=settings)
    content, headers = (b"x" * 1001, {}) if part == "body" else (b"{}", {"X-Large": "x" * 600})
    status = 413 if part == "body" else 431
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        response = await client.post("/v1/sessions", content=content, headers=headers)
        assert response.status_code == status and response.headers["content-type"] == "application/problem+json"
        assert response.json()["error"] == f"{part}_too_large" and "bytes" in response.json()["detail"]
        response = await client.post("/openai/v1/responses", content=content, headers=headers)
        assert response.status_code == status and response.json()["error"]["code"] == f"{part}_too_large"


async def test_a_413_of_another_cause_is_left_alone() -> None:
    form_is_too_large = PlainTextResponse("the form is too large", 413)
    app = within_limits(form_is_too_large, HttpSettings(max_body_bytes=1000))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        small, large = [await client.post("/login", content=b"x" * size) for size in (999, 1001)]
    assert (small.status_code, small.text) == (413, "the form is too large")
    assert large.status_code == 413 and large.json()["error"] == "body_too_large"


@pytest.mark.parametrize("origins", [(), ("https://page.example",)])
async def test_only_listed_origins_may_use_a_service_from_a_browser(origins: tuple[str, ...]) -> None:
    settings = HttpSettings(cors_origins=origins)
    app = create_app(AsyncSessionManager("memory://origins", engine=EchoEngine()), settings=settings)
    names = "Authorization, X-On-Disconnect, X-Stainless-Lang, X-Stainless-Retry-Count"  # two of OpenAI's clients
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": names}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        for origin in ("https://page.example", "https://other.example"):
            response = await client.options("/v1/sessions", headers={"Origin": origin, **asks})
            allowed = response.headers.get("access-control-allow-origin")
            assert allowed == (origin if origin in origins else None)
            assert response.is_success == (origin in origins)
            shown = (await client.get("/health", headers={"Origin": origin})).headers
            readable = shown.get("access-control-expose-headers", "").lower().split(", ")
            assert ({"retry-after", "location", "x-should-retry", "x-run-id"} <= {*readable}) == bool(origins)


@pytest.mark.parametrize("origins", [(), ("https://page.example",), ("*",)])
async def test_pages_of_other_sites_change_nothing_in_a_service_without_users(origins: tuple[str, ...]) -> None:
    app = create_app(
        AsyncSessionManager("memory://foreign", engine=EchoEngine()), settings=HttpSettings(cors_origins=origins)
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        for origin in ("https://page.example", "null", "http://service", None):
            headers = {"Origin": origin} if origin else {}
            is_allowed = origin in (None, "http://service") or bool({"*", origin} & {*origins})
            status = (await client.post("/v1/nothing", headers=headers)).status_code
            assert status == (404 if is_allowed else 403), origin
            assert (await client.get("/health", headers=headers)).is_success
        elsewhere = {"Origin": "https://evil.example"}
        if "*" not in origins:
            ended = await client.post("/v1/sessions/chat/end", headers=elsewhere)
            assert ended.status_code == 403 and ended.json()["error"] == "foreign_origin"
            response = await client.post("/openai/v1/conversations", headers=elsewhere)
            assert response.status_code == 403 and response.json()["error"]["code"] == "foreign_origin"


async def test_a_log_shows_no_control_characters_of_an_address(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    problems.install(app)

    @app.get("/{kind}/{rest}")
    async def failing(kind: str, rest: str) -> None:
        raise StoreError("store s: no answer") if kind == "away" else ValueError(kind)

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        assert (await client.get("/away/%1b%5b2J%0aERROR")).status_code == 503
        assert (await client.get("/broken/%1b%5b2J%0aERROR")).status_code == 500
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("turnwise")]
    assert len(messages) == 2 and all(text.isprintable() for text in messages)


@pytest.mark.parametrize(
    ("error", "status"), [(OverloadedError("s", "mailbox", 100), 429), (StoreError("store s: no answer"), 503)]
)
def test_clients_of_openai_are_told_when_to_retry(error: TurnwiseError, status: int) -> None:
    response = answer_of(error)
    assert response.status_code == status and int(response.headers["retry-after"]) > 0


async def test_no_more_streams_are_open_than_may_be() -> None:
    manager = AsyncSessionManager("memory://streams", engine=EchoEngine())
    service = Service(manager, HttpSettings(max_streams=2, max_streams_per_user=1), None)

    async def refused(user_id: str | None, which: str) -> None:
        with pytest.raises(TooManyStreams, match=f"^{which} are open"), service.count_stream(user_id):
            pass

    with service.count_stream("ann"):
        await refused("ann", "1 streams of this user")
        with service.count_stream("bob"):
            await refused("carol", "2 streams")
            await refused(None, "2 streams")
        with service.count_stream("carol"):
            pass
    with service.count_stream(None), service.count_stream(None):  # nobody is asked who they are
        await refused(None, "2 streams")


async def test_a_service_that_stops_or_lost_its_store_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(self: AsyncSessionManager, **_: object) -> int:
        raise StoreError("store s: no answer")

    app = create_app(AsyncSessionManager("memory://ready", engine=EchoEngine()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        monkeypatch.setattr(AsyncSessionManager, "count", away)
        response = await client.get("/health/ready")
        assert response.status_code == 503 and response.json()["error"] == "store" and response.headers["retry-after"]
        app.state.service.stop()
        response = await client.get("/health/ready")
        assert response.status_code == 503 and response.json()["detail"] == "the service stops"
        assert (await client.get("/health")).is_success
