"""Every refusal has a word for programs, in the form of the API that was asked, also if no route has answered it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.cli.mcp import _Guarded
from turnwise.http import BearerTokens, answer_errors, create_app
from turnwise.http.assembly import assemble
from turnwise.http.config import load
from turnwise.http.middleware.origins import KnownHosts
from turnwise.http.middleware.paths import InPath, SegmentPaths, header_of_id, id_of_header, path_of

NATIVE = [
    ("GET", "/nope", b"", 404, "not_found"),
    ("GET", "/v1/nope", b"", 404, "not_found"),
    ("PUT", "/v1/sessions", b"", 405, "method_not_allowed"),
    ("DELETE", "/health", b"", 405, "method_not_allowed"),
    ("POST", "/v1/sessions", b"{", 422, "invalid_request"),
    ("POST", "/v1/sessions", b"\xff", 400, "bad_request"),
    ("POST", "/v1/sessions", b"[]", 422, "invalid_request"),
    ("POST", "/v1/sessions", b'{"id": ".."}', 422, "invalid_id"),
    ("POST", "/v1/sessions", b'{"id": "."}', 422, "invalid_id"),
    ("GET", "/v1/sessions/%252e%252e%00", b"", 422, "invalid_id"),
]
OPENAI = [
    ("GET", "/openai/v1/nope", b"", 404, "unknown_url"),
    ("POST", "/openai/v1/responses", b"{", 400, "invalid_json"),
    ("POST", "/openai/v1/chat/completions", b"[]", 400, "invalid_value"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "word"), [*NATIVE, *OPENAI])
async def test_each_refusal_has_a_word(method: str, path: str, body: bytes, status: int, word: str) -> None:
    app = create_app(AsyncSessionManager("memory://words", engine=EchoEngine()))
    async with client_of(app) as client:
        answer = await client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    if path.startswith("/openai/"):
        assert answer.json()["error"]["code"] == word
    else:
        assert answer.json()["error"] == word
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "remedy"),
    [("/v1/sessions/chat", "POST /v1/sessions creates one"), ("/v1/runs/first", "GET /v1/runs lists them")],
)
async def test_what_is_missing_is_found_by_a_request(path: str, remedy: str) -> None:
    app = create_app(AsyncSessionManager("memory://words", engine=EchoEngine(), placement=InProcess()))
    async with client_of(app) as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["detail"].endswith(f": {remedy}") and "()" not in answer.text


async def test_remedies_in_an_app_of_ones_own_name_no_route_of_the_service() -> None:
    app = FastAPI()
    answer_errors(app)
    async with AsyncSessionManager("memory://words", engine=EchoEngine(), placement=InProcess()) as manager:

        @app.get("/chats/{chat}")
        async def chat(chat: str) -> str:
            return (await manager.get(chat)).session_id

        @app.get("/answers/{run}")
        async def answer(run: str) -> str:
            return (await manager.execution(run)).run_id

        async with client_of(app) as client:
            answers = [await client.get(path) for path in ("/chats/one", "/answers/one")]
    assert [answer.status_code for answer in answers] == [404, 404]
    details = [answer.json()["detail"] for answer in answers]
    assert details[0].endswith(": open() creates one") and details[1].endswith(": runs() lists those there are")


@pytest.mark.parametrize("verb", ["runs", "schedules"])
async def test_a_request_cannot_pass_for_a_session(verb: str) -> None:
    app = create_app(AsyncSessionManager("memory://words", engine=EchoEngine(), placement=InProcess()))
    async with client_of(app) as client:
        await client.post("/v1/sessions", json={"id": "chat"})
        body = {"prompt": "hello", "labels": {"from_session": "bob"}}
        when = {"after_s": 1_000} if verb == "schedules" else {}
        answer = await client.post(f"/v1/sessions/chat/{verb}", json=body | when)
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
    assert "'from_session' is reserved for messages between sessions" in answer.json()["detail"]


async def test_an_idempotency_key_of_a_run_that_is_not_stored_is_refused() -> None:
    app = create_app(AsyncSessionManager("memory://words", engine=EchoEngine()))
    async with client_of(app) as client:
        answer = await client.post("/v1/run", json={"prompt": "hello"}, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 422 and "would run again" in answer.text, answer.text


async def test_a_service_that_stops_says_so_in_a_word() -> None:
    app = create_app(AsyncSessionManager("memory://words", engine=EchoEngine()))
    app.state.service.stop()
    async with client_of(app) as client:
        answer = await client.get("/health/ready")
    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[::2]", ""])
async def test_another_host_is_refused_in_the_form_of_the_api(host: str) -> None:
    app = assemble(*load(store="memory://words", engines={"main": {"object": "serve_objects:engine"}})).app
    async with client_of(app) as client:
        native = await client.get("/health", headers={"Host": host})
        assert (native.status_code, native.json()["error"]) == (400, "unknown_host")
        openai = await client.get("/openai/v1/models", headers={"Host": host})
        assert (openai.status_code, openai.json()["error"]["code"]) == (400, "unknown_host")
        for own in ("127.0.0.1:8000", "localhost", "[::1]:8000", "LOCALHOST"):
            assert (await client.get("/health", headers={"Host": own})).status_code == 200


async def test_a_websocket_to_another_host_is_closed() -> None:
    """A page of another site may open one, after DNS rebinding, without asking the server first."""
    let_in: list[Any] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        let_in.append(scope)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    for host in (b"evil.example", b"127.0.0.1:8000"):
        scope = {"type": "websocket", "path": "/console/", "headers": [(b"host", host)]}
        await KnownHosts(app, ["127.0.0.1"])(scope, receive, send)
    assert [scope["headers"] for scope in let_in] == [[(b"host", b"127.0.0.1:8000")]]
    assert sent == [{"type": "websocket.close", "code": 1008}]


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://127.0.0.1"
    )


RIGHT = ["Bearer a-secret-of-ann's", "bearer a-secret-of-ann's", "BEARER   a-secret-of-ann's "]
WRONG = ["a-secret-of-ann's", "Basic a-secret-of-ann's", "Bearer", "Bearer a-secret-of-ann's x", "Bearer \xe9", ""]


@pytest.mark.parametrize("header", [*RIGHT, *WRONG])
async def test_the_scheme_of_a_token_is_in_any_case(header: str) -> None:
    headers = [(b"authorization", header.encode("latin-1"))]
    scope: dict[str, Any] = {"type": "http", "headers": headers}
    tokens = BearerTokens({"a-secret-of-ann's": "ann"})
    assert (tokens(HTTPConnection(scope)) is not None) == (header in RIGHT)
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append("app")

    async def send(message: Any) -> None:
        reached.append(str(message.get("status", message.get("body"))))

    await _Guarded(app, "a-secret-of-ann's")(scope, None, send)
    assert reached[0] == ("app" if header in RIGHT else "401")
    assert header in RIGHT or '"error": "unauthorized"' in reached[1]


ODD = ["a/b", "a?b", "a#b", "a b", " a ", "%2e%2e", "a%2Fb", "...", "../a", "a/..", "文字", "é", "a\\b", "a;b", "'\"<>"]


@pytest.mark.parametrize("id", ODD)
async def test_an_id_is_reached_by_its_path_and_by_a_header(id: str) -> None:
    app = FastAPI()
    app.add_middleware(SegmentPaths)

    @app.get("/v1/sessions/{session_id}/turns")
    async def turns(session_id: InPath) -> dict[str, str]:
        return {"id": session_id}

    async with client_of(app) as client:
        assert (await client.get(path_of("", "v1", "sessions", id, "turns"))).json() == {"id": id}
    assert id_of_header(header_of_id(id)) == id
