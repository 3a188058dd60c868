"""What sessions are to do later, in a browser: on a page of its own and beside a conversation. Needs no Ray."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from servers.served import Served, served

pytest_plugins = ["console_pages"]

TOKENS = {name: f"a-long-secret-of-{name}" for name in ("ann", "bob")}


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    """A service in one process, with the console, and a conversation `chat` of each user."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({token: name for name, token in TOKENS.items()}), encoding="utf-8")
    words = ("--demo", "--port", "0", "--placement", "in_process", "--console", "--tokens", str(tokens))
    with served(f"sqlite:///{folder}/chats.db", *words, RAY_TMPDIR=str(folder)) as service:
        for name in TOKENS:
            with api(service, name) as client:
                client.post("/v1/sessions", json={"id": "chat"}).raise_for_status()
        yield service


def api(service: Served, name: str) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {TOKENS[name]}"}, timeout=60)


def add(service: Served, name: str, key: str, **body: object) -> None:
    with api(service, name) as client:
        client.post("/v1/sessions/chat/schedules", json={"prompt": key, "key": key, **body}).raise_for_status()


def keys(service: Served, name: str) -> set[str]:
    with api(service, name) as client:
        return {schedule["key"] for schedule in client.get("/v1/schedules").json()["items"]}


def log_in(page: Page, name: str) -> None:
    page.get_by_label("Token").fill(TOKENS[name])
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/(session|schedules)"))


def test_a_user_sees_their_schedules_come_and_cancels_one(service: Served, open_page: Callable[..., Page]) -> None:
    add(service, "bob", "bob's tea", after_s=3600)
    page = open_page(f"{service.url}/console/schedules")
    log_in(page, "ann")
    expect(page.get_by_text("There are no schedules.")).to_be_visible()
    add(service, "ann", "<b>news</b>", cron="0 9 * * MON-FRI", timezone="Europe/Lisbon")
    add(service, "ann", "tea", at="2090-05-01T09:00:00+02:00")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("<b>news</b>")
    expect(rows.first).to_contain_text("0 9 * * MON-FRI Europe/Lisbon")
    expect(rows.last).to_contain_text("2090-05-01 07:00:00 UTC")
    expect(rows.last).to_contain_text("once")
    expect(page.get_by_text("bob's tea")).to_have_count(0)

    page.get_by_role("button", name="Cancel tea").click()
    page.get_by_role("button", name="Back").click()
    expect(page.get_by_role("alertdialog")).to_have_count(0)
    assert keys(service, "ann") == {"<b>news</b>", "tea"}
    page.get_by_role("button", name="Cancel tea").click()
    page.get_by_role("button", name="Cancel the schedule").click()
    expect(rows).to_have_count(1)
    assert keys(service, "ann") == {"<b>news</b>"} and keys(service, "bob") == {"bob's tea"}


def test_a_conversation_has_its_schedules_beside_it(service: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{service.url}/console/session?id=chat")
    log_in(page, "bob")
    section = page.get_by_role("region", name="Schedules of this conversation")
    expect(section.get_by_role("row", name="bob's tea")).to_contain_text("waits")
    add(service, "bob", "soon", after_s=1)
    expect(page.get_by_text("You said: soon").first).to_be_visible()
    expect(section.locator("tbody tr")).to_have_count(1)
    section.get_by_role("button", name="Cancel bob's tea").click()
    page.get_by_role("button", name="Cancel the schedule").click()
    expect(section).to_be_hidden()
    assert keys(service, "bob") == set()
