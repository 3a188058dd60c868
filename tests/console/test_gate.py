"""The console's gate: who is let in, and where a login leads; without a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.console.access.gate import COOKIE, Gate
from turnwise.console.access.viewer import Viewer
from turnwise.errors import SessionNotFoundError
from turnwise.http import BearerTokens, HttpSettings, Identity, Service

TOKEN = 'a-secret;with "signs'.replace(" ", "-") + "-%3d"


@asynccontextmanager
async def guarded(
    prefix: str = "", *, path: str = "/console", has_auth: bool = True, ended: list[Identity] | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    ended = [] if ended is None else ended

    async def pages(scope: Scope, receive: Receive, send: Send) -> None:
        viewer = Viewer.of(scope)
        who = f"{viewer.identity.user_id if viewer.identity else None} at {viewer.url('sessions', q='a b')}"
        await PlainTextResponse(who)(scope, receive, send)

    async def ready() -> None:
        pass

    manager = AsyncSessionManager("memory://gate", engine=EchoEngine(), read_only=True)
    service = Service(manager, HttpSettings(), BearerTokens({TOKEN: Identity("ann")}) if has_auth else None)
    app = FastAPI()
    app.mount(path, Gate(service, pages, ready, lambda _: None, ended.append))
    outer = FastAPI()
    outer.mount(prefix or "/", app)
    transport = httpx.ASGITransport(outer)
    async with httpx.AsyncClient(transport=transport, base_url=f"https://here{prefix}{path}") as client:
        yield client


@pytest.mark.parametrize("prefix", ["", "/under/another"])
async def test_a_login_leads_where_the_viewer_wanted_to_go(prefix: str) -> None:
    ended: list[Identity] = []
    async with guarded(prefix, ended=ended) as client:
        redirect = await client.get("/session?id=chat&user=bob")
        assert redirect.status_code == 303
        login = redirect.headers["location"]
        assert login.startswith(f"{prefix}/console/login?next=")
        page = await client.get(f"https://here{login}")
        assert page.status_code == 200 and f'action="{prefix}/console/login?next=' in page.text
        wrong = await client.post(f"https://here{login}", data={"token": "x" * 20})
        assert wrong.status_code == 401 and "not valid" in wrong.text and "set-cookie" not in wrong.headers
        right = await client.post(f"https://here{login}", data={"token": TOKEN}, headers={"Origin": "https://here"})
        assert right.status_code == 303
        assert right.headers["location"] == f"{prefix}/console/session?id=chat&user=bob"
        cookie = right.headers["set-cookie"]
        assert all(part in cookie for part in ("HttpOnly", "SameSite=lax", "Secure", f"Path={prefix}/console"))
        assert (await client.get("/sessions")).text == f"ann at {prefix}/console/sessions?q=a+b"
        assert (await client.post("/logout", headers={"Origin": "https://here"})).status_code == 303
        assert COOKIE not in client.cookies and ended == [Identity("ann")]
        assert (await client.get("/sessions")).status_code == 303


@pytest.mark.parametrize(
    "target", ["//evil.example/", "https://evil.example", "/elsewhere", "/console/\\evil", "javascript:alert(1)"]
)
async def test_a_login_leads_nowhere_else(target: str) -> None:
    async with guarded() as client:
        page = await client.post(f"/login?next={quote(target, safe='')}", data={"token": TOKEN})
        assert page.headers["location"] == "/console/"


async def test_a_login_of_a_console_at_the_root_leads_to_no_other_site() -> None:
    async with guarded(path="") as client:
        page = await client.post("/login?next=//evil.example/", data={"token": TOKEN})
        assert page.headers["location"] == "/"


async def test_only_operators_and_members_see_another_users_session() -> None:
    async with AsyncSessionManager("memory://viewers", engine=EchoEngine(), placement=InProcess()) as manager:
        for user in ("ann", "bob"):
            await manager.open("chat", user_id=user)
        service = Service(manager, HttpSettings(), None)
        ann, operator = (Viewer(service, Identity("ann", is_operator=is_operator), "") for is_operator in (False, True))
        assert (await ann.session("chat", "")).user_id == (await ann.session("chat", "ann")).user_id == "ann"
        with pytest.raises(SessionNotFoundError):
            await ann.session("chat", "bob")
        shared = await manager.get("chat", user_id="bob")
        await shared.add_member("ann", "reader")
        session = await ann.session("chat", "bob")
        assert (session.user_id, session.as_user) == ("bob", "ann")
        assert ann.session_url("chat", "bob").endswith("&user=bob") and "user" not in ann.session_url("chat", "ann")
        await shared.remove_member("ann")
        with pytest.raises(SessionNotFoundError):
            await ann.session("chat", "bob")
        assert (await operator.session("chat", "bob")).user_id == "bob"


async def test_what_is_no_login_is_refused() -> None:
    async with guarded() as client:
        elsewhere = {"Origin": "https://evil.example"}
        assert (await client.post("/login", data={"token": TOKEN}, headers=elsewhere)).status_code == 403
        assert (await client.post("/login", data={"token": TOKEN}, headers={"Origin": "null"})).status_code == 403
        assert (await client.post("/login", content=b"token=" + b"x" * 10_000)).status_code == 413
        assert (await client.post("/login", content=b"\xff\xfe")).status_code == 401
        assert (await client.get("/logout")).status_code == 405
        assert (await client.post("/sessions")).status_code == 401
        client.cookies.set(COOKIE, "%ff%00;x")
        assert (await client.get("/sessions")).status_code == 303
        headers = (await client.get("/login")).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"] and headers["cache-control"] == "no-store"


async def test_without_authentication_everybody_is_let_in() -> None:
    async with guarded(has_auth=False) as client:
        assert (await client.get("/sessions")).text == "None at /console/sessions?q=a+b"
        assert (await client.get("/login?next=/console/usage")).headers["location"] == "/console/usage"
        refused = await client.post("/_nicegui_ws/socket.io/", headers={"Origin": "https://here"})
        assert refused.status_code == 403, "no page of this id exists"


@pytest.mark.parametrize("kind", ["websocket", "http"])
async def test_each_open_page_counts_as_a_stream_of_its_user(kind: str) -> None:
    leave = asyncio.Event()

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await leave.wait()

    async def ready() -> None:
        pass

    manager = AsyncSessionManager("memory://gate", engine=EchoEngine(), read_only=True)
    service = Service(manager, HttpSettings(max_streams_per_user=1), BearerTokens({TOKEN: Identity("ann")}))
    gate = Gate(service, page, ready, lambda name: Viewer(service, Identity(name), "/console"), print)

    async def connect(page_of: str, method: str = "GET") -> list[str]:
        sent: list[str] = []

        async def send(message: Message) -> None:
            sent.append(message["type"])

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        headers = [(b"authorization", b"Bearer " + TOKEN.encode()), (b"host", b"here")]
        query = f"client_id={page_of}".encode()
        scope = {"type": kind, "path": "/_nicegui_ws/socket.io/", "query_string": query, "headers": headers}
        await gate({**scope, "method": method}, receive, send)
        return sent

    first = asyncio.create_task(connect("ann"))
    await asyncio.sleep(0)
    refusal = ["websocket.close"] if kind == "websocket" else ["http.response.start", "http.response.body"]
    assert await connect("bob") == refusal, "it is a page of somebody else"
    assert await connect("ann") == refusal
    if kind == "http":
        assert await connect("ann", "POST") == [], "the page sends something while its GET waits"
    leave.set()
    assert await first == []
    assert await connect("ann") == []
