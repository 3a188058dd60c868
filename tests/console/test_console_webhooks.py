"""Webhooks in a browser: what failed, and how it is sent again; the agents that a run has called. Needs no Ray."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from servers.served import Served, served
from servers.webhook_receiver import Receiver

pytest_plugins = ["console_pages"]

TOKENS = {name: f"a-long-secret-of-{name}" for name in ("ann", "root")}
"""Of a user and of an operator."""

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

CONFIG = """
[engines.lead]
object = "tools.agent_team:LEAD"
[engines.research]
object = "tools.agent_team:RESEARCH"
[engines.echo]
object = "tools.agent_team:ECHO"
"""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    """A service in one process, with the console and engines of a team."""
    tokens, config = folder / "tokens.json", folder / "serve.toml"
    users = {TOKENS["ann"]: "ann", TOKENS["root"]: {"user": "root", "operator": True}}
    tokens.write_text(json.dumps(users), encoding="utf-8")
    config.write_text(CONFIG, encoding="utf-8")
    words = ("--config", str(config), "--port", "0", "--placement", "in_process", "--console", "--tokens", str(tokens))
    with served(f"sqlite:///{folder}/chats.db", *words, RAY_TMPDIR=str(folder)) as service:
        yield service


def api(service: Served, name: str) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {TOKENS[name]}"}, timeout=60)


def say(service: Served, session: str, engine: str, name: str = "ann") -> None:
    """Have a new session of a user answer a prompt."""
    with api(service, name) as client:
        client.post("/v1/sessions", json={"id": session, "engine": engine}).raise_for_status()
        run = client.post(f"/v1/sessions/{session}/runs?wait_s=60", json={"prompt": f"<b>hello</b> {session}"})
        assert run.json()["state"] == "completed", run.text


def log_in(page: Page, name: str) -> None:
    page.get_by_label("Token").fill(TOKENS[name])
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/(session|webhooks)"))


def test_an_operator_sees_what_failed_and_sends_it_again_by_keyboard(
    service: Served, receiver: Receiver, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{service.url}/console/webhooks")
    log_in(page, "root")
    expect(page.get_by_text("There are no webhooks")).to_be_visible()
    body = {"url": receiver.url, "events": ["run.completed"], "allow_private": True}
    receiver.status = 410
    with api(service, "root") as client:
        webhook_id = client.post("/v1/webhooks", json=body).json()["id"]
        card = page.get_by_role("region", name=receiver.url)
        expect(card.get_by_text("enabled", exact=True)).to_be_visible()
        for session in ("one", "two"):
            client.patch(f"/v1/webhooks/{webhook_id}", json={"is_enabled": True})
            say(service, session, "echo")
            expect(card.get_by_text("disabled", exact=True)).to_be_visible()
        rows = card.locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("it answered 410")
        expect(card.get_by_text("<b>hello</b> one")).to_be_visible()
    receiver.status, before = 200, len(receiver.requests)
    card.get_by_role("button", name=re.compile("^Enable ")).focus()
    page.keyboard.press("Enter")
    expect(card.get_by_text("enabled", exact=True)).to_be_visible()
    card.get_by_role("button", name="Send run.completed of one again").focus()
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    card.get_by_role("button", name=re.compile("^Send all again")).focus()
    page.keyboard.press("Space")
    expect(rows).to_have_count(0)
    until = time.monotonic() + 60
    while len({headers["webhook-id"] for _, headers, _ in receiver.requests[before:]}) < 2:
        assert time.monotonic() < until, "both are sent"
        time.sleep(0.05)

    card.get_by_role("button", name=re.compile("^Delete ")).click()
    page.get_by_role("button", name="Back").click()
    expect(card).to_be_visible()
    card.get_by_role("button", name=re.compile("^Delete ")).click()
    page.get_by_role("button", name="Delete the webhook").click()
    expect(page.get_by_text("There are no webhooks")).to_be_visible()


def test_an_operator_adds_a_webhook_and_is_shown_its_secret_once(
    service: Served, receiver: Receiver, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{service.url}/console/webhooks")
    log_in(page, "root")
    page.get_by_role("button", name="Add a webhook").click()
    page.get_by_label("URL", exact=True).fill("http://10.0.0.1/")
    page.get_by_role("checkbox", name="run.failed").click()
    page.get_by_role("button", name="Add it").click()
    expect(page.get_by_text("10.0.0.1", exact=False)).to_be_visible()
    expect(page.get_by_role("region")).to_have_count(0)

    page.get_by_role("button", name="Add a webhook").click()
    page.get_by_label("URL", exact=True).fill(f" {receiver.url} ")
    page.get_by_label("Sessions of this user").fill("ann")
    page.get_by_role("checkbox", name="run.failed").click()
    page.get_by_role("checkbox", name="The URL may lead").click()
    page.get_by_role("button", name="Add it").click()
    expect(page.get_by_text(re.compile("^whsec_"))).to_be_visible()
    with api(service, "root") as client:
        (webhook,) = client.get("/v1/webhooks").json()["items"]
        assert (webhook["url"], webhook["events"], webhook["user_id"]) == (receiver.url, ["run.failed"], "ann")
        page.reload()
        expect(page.get_by_role("region", name=receiver.url)).to_contain_text("run.failed")
        expect(page.get_by_text(re.compile("whsec_"))).to_have_count(0)
        client.delete(f"/v1/webhooks/{webhook['id']}").raise_for_status()


def test_a_narrow_screen_shows_it_without_scrolling_sideways(
    service: Served, receiver: Receiver, open_page: Callable[..., Page]
) -> None:
    body = {"url": f"{receiver.url}&{'long' * 40}", "events": ["run.completed", "run.failed"], "allow_private": True}
    receiver.status = 410
    with api(service, "root") as client:
        client.post("/v1/webhooks", json=body).raise_for_status()
    say(service, "narrow", "echo")
    page = open_page(f"{service.url}/console/webhooks", **PHONE)
    log_in(page, "root")
    expect(page.get_by_text("it answered 410", exact=False)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    width = page.get_by_role("heading", name=receiver.url).evaluate("heading => heading.clientWidth")
    assert width > 250, "the URL has the width of the screen"


def test_users_are_told_that_webhooks_are_for_operators(service: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{service.url}/console/webhooks")
    log_in(page, "ann")
    expect(page.get_by_text("Webhooks are shown to operators.")).to_be_visible()
    expect(page.get_by_role("region")).to_have_count(0)


def test_the_steps_of_a_run_show_the_agents_that_it_has_called(service: Served, open_page: Callable[..., Page]) -> None:
    say(service, "team", "lead")
    page = open_page(f"{service.url}/console/session?id=team")
    log_in(page, "ann")
    page.get_by_role("button", name="Inspect").first.click()
    page.get_by_role("button", name="Steps").click()
    expect(page.get_by_text("Agent researcher has answered")).to_have_count(2)
    agents = page.get_by_role("list", name="Agents that it has called")
    expect(agents.get_by_role("listitem")).to_have_count(4)
    expect(agents.get_by_text("completed", exact=True)).to_have_count(4)
    indents = agents.get_by_role("listitem").evaluate_all("lines => lines.map(line => line.offsetLeft)")
    assert indents[0] == indents[2] < indents[1] == indents[3]
    agents.get_by_role("link", name="researcher").first.click()
    expect(page.get_by_text("found", exact=True)).to_be_visible()
