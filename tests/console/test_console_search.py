"""Search over all conversations, and thumbs below answers, in a browser. Needs no Ray."""

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
    """A service in one process, with the console, and a conversation `chat` of each user with a turn."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({token: name for name, token in TOKENS.items()}), encoding="utf-8")
    words = ("--demo", "--port", "0", "--placement", "in_process", "--console", "--tokens", str(tokens))
    with served(f"sqlite:///{folder}/chats.db", *words, RAY_TMPDIR=str(folder)) as service:
        for name in TOKENS:
            with api(service, name) as client:
                client.post("/v1/sessions", json={"id": "chat"}).raise_for_status()
                prompt = {"prompt": f"The <b>walrus</b> of {name}"}
                run = client.post("/v1/sessions/chat/runs", json=prompt).raise_for_status().json()
                client.get(f"/v1/runs/{run['id']}/wait", params={"timeout_s": 30}).raise_for_status()
        yield service


def api(service: Served, name: str) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {TOKENS[name]}"}, timeout=60)


def test_a_user_finds_what_was_said_and_marks_an_answer(service: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{service.url}/console/search")
    page.get_by_label("Token").fill(TOKENS["ann"])
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/search"))
    page.get_by_label("Search all conversations").fill("walr")
    hits = page.locator("article.hit")
    expect(hits.last).to_contain_text("The <b>walrus</b> of ann")
    expect(hits.last.locator("mark")).to_have_text("walrus")
    expect(page.get_by_text("of bob")).to_have_count(0)
    page.get_by_label("Search all conversations").fill("unicorn")
    expect(page.get_by_text("No message matches.")).to_be_visible()
    page.get_by_label("Search all conversations").fill("walrus")
    hits.last.get_by_role("link").click()
    thumb = page.get_by_role("button", name="Good answer")
    thumb.click()
    expect(thumb).to_have_attribute("aria-pressed", "true")
    with api(service, "ann") as client:
        (marked,) = client.get("/v1/marks").json()["items"]
        assert (marked["id"], marked["mark"]["value"], marked["mark"]["by"]) == ("chat#0:1", "up", "ann")
    thumb.click()
    expect(thumb).to_have_attribute("aria-pressed", "false")
