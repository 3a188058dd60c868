"""The console asks who is there, and shows each user what is theirs."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from console_engine import Engine
from console_server import NAMESPACE, TOKENS, Console
from playwright.sync_api import Page, expect

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Packed

pytestmark = pytest.mark.ray
pytest_plugins = ["console_pages"]  # which starts a Ray: ray_session


@pytest.fixture(scope="module")
def guarded(address: str, folder: Path) -> Iterator[Console]:
    """A console with users, each of whom has a conversation `chat`."""
    with Console(folder, address, users=True) as console:
        settings = {"engine": Engine(), "placement": Packed(hosts=1), "namespace": NAMESPACE}
        with SessionManager(console.store, **settings) as manager:  # type: ignore[arg-type]
            for user in ("ann", "bob"):
                manager.open("chat", user_id=user, title=f"{user}'s talk").run(f"{user} was here").wait()
        yield console


def log_in(page: Page, name: str) -> None:
    page.get_by_label("Token").fill(TOKENS[name])
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/session"))


def test_a_user_logs_in_and_sees_what_is_theirs(guarded: Console, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{guarded.url}/session?id=chat&user=bob")
    expect(page).to_have_url(re.compile("/console/login"))
    log_in(page, "ann")  # and comes to where she wanted to go, where is nothing that is shared with her
    expect(page.get_by_role("alert")).to_contain_text("does not exist")
    page.goto(f"{guarded.url}/session?id=chat")
    expect(page.get_by_text("echo: ann was here", exact=True)).to_be_visible()
    expect(page.get_by_text("bob was here")).to_have_count(0)
    page.get_by_role("link", name="Sessions").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("ann's talk")
    expect(page.get_by_label("User", exact=True)).to_have_count(0)
    (cookie,) = (cookie for cookie in page.context.cookies() if cookie["name"] == "turnwise_token")
    assert cookie["httpOnly"] and cookie["sameSite"] == "Lax" and cookie["path"] == "/console"
    assert TOKENS["ann"] not in page.content() and "secret" not in page.url
    second_page = page.context.new_page()
    second_page.goto(f"{guarded.url}/sessions")
    expect(second_page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(re.compile("/console/login"))
    expect(second_page).to_have_url(re.compile("/console/login"))
    page.goto(f"{guarded.url}/sessions")
    expect(page).to_have_url(re.compile("/console/login"))


def test_an_operator_sees_all_users_and_acts_for_each(guarded: Console, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{guarded.url}/")
    log_in(page, "root")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_label("User", exact=True).fill("bob")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="bob's talk").click()
    expect(page.get_by_text("echo: bob was here", exact=True)).to_be_visible()
    page.get_by_label("Message").fill("from the operator")
    page.keyboard.press("Enter")
    expect(page.get_by_text("echo: from the operator", exact=True)).to_be_visible()


def answer(console: Console, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(console.url).netloc, timeout=30)
    connection.request(method, f"/console{path}", headers={name.replace("_", "-"): headers[name] for name in headers})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


SOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
SOCKET |= {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}


def test_pages_and_websockets_are_for_those_who_logged_in(guarded: Console, open_page: Callable[..., Page]) -> None:
    assert answer(guarded, "/sessions").status == 303
    assert answer(guarded, "/_nicegui/x").status == 401
    assert answer(guarded, "/sessions", Authorization="Bearer wrong").status == 303
    ann, bob = ({"Authorization": f"Bearer {TOKENS[name]}"} for name in ("ann", "bob"))
    assert answer(guarded, "/sessions", **ann).status == 200
    page = open_page(f"{guarded.url}/")
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    log_in(page, "ann")
    expect(page.locator("tbody tr")).to_have_count(1)
    path = sockets[-1].partition("/console")[2]
    host = urlsplit(guarded.url).netloc
    assert answer(guarded, path, **SOCKET, **ann, Origin=f"http://{host}").status == 101
    assert answer(guarded, path, **SOCKET).status == 403
    assert answer(guarded, path, **SOCKET, **bob).status == 403, "it is a page of ann's"
    assert answer(guarded, path, **SOCKET, **ann, Origin="http://evil.example").status == 403
    assert answer(guarded, path.replace("websocket", "polling"), **bob).status == 403
    nobodys = re.sub("client_id=[^&]*&", "", path)
    assert answer(guarded, nobodys, **SOCKET, **ann).status == 403
    assert answer(guarded, "/logout", "POST", Origin="http://evil.example").status == 403
    response = answer(guarded, "/login?next=//evil.example/console/", **ann)
    assert response.status == 200 and "default-src 'self'" in (response.headers["content-security-policy"])
    log = guarded.log.read_text()
    assert "secret" not in log and "was here" not in log
