"""Quotas in a browser: what is used of them. Needs no Ray."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from servers.served import Served, served
from turnwise.stores import Quota

pytest_plugins = ["console_pages"]

TOKENS = {name: f"a-long-secret-of-{name}" for name in ("ann", "root")}
QUOTA = Quota(user_id="ann", runs=1, per="month")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    """A service in one process, with the console."""
    tokens = folder / "tokens.json"
    users = {TOKENS["ann"]: "ann", TOKENS["root"]: {"user": "root", "operator": True}}
    tokens.write_text(json.dumps(users), encoding="utf-8")
    words = ("--demo", "--port", "0", "--placement", "in_process", "--console", "--tokens", str(tokens))
    with served(f"sqlite:///{folder}/chats.db", *words, RAY_TMPDIR=str(folder)) as service:
        yield service


def api(service: Served, name: str) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {TOKENS[name]}"}, timeout=60)


def test_the_page_of_usage_shows_quotas(service: Served, open_page: Callable[..., Page]) -> None:
    with api(service, "root") as root, api(service, "ann") as ann:
        root.put("/v1/quotas", json={"user": "ann", "runs": 1, "per": "month"}).raise_for_status()
        ann.post("/v1/sessions", json={"id": "chat"}).raise_for_status()
        run = ann.post("/v1/sessions/chat/runs?wait_s=60", json={"prompt": "hello"})
        assert run.json()["state"] == "completed", run.text
    page = open_page(f"{service.url}/console/usage")
    page.get_by_label("Token").fill(TOKENS["ann"])
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/usage"))
    row = page.get_by_label("Quotas").get_by_label(QUOTA.quota_id)
    expect(row).to_contain_text("user 'ann'")
    expect(row.locator("td").nth(2)).to_have_text("1")
    expect(row.locator("td").nth(3)).to_have_text("1")


def test_operators_choose_a_tenant_on_the_page_of_usage(service: Served, open_page: Callable[..., Page]) -> None:
    with api(service, "root") as root:
        for user, tenant in (("ann", "acme"), ("root", "other")):
            root.put(f"/v1/users/{user}/tenant", json={"tenant": tenant}).raise_for_status()
        for quota in ({"tenant": "*", "runs": 5}, {"tenant": "other", "runs": 7}):
            root.put("/v1/quotas", json={**quota, "per": "month"}).raise_for_status()
    page = open_page(f"{service.url}/console/usage?tenant=acme&by=tenant")
    page.get_by_label("Token").fill(TOKENS["root"])
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/usage"))
    quotas = page.get_by_label("Quotas")
    row = quotas.get_by_label(Quota(tenant="*", runs=5, per="month").quota_id)
    expect(row).to_contain_text("each tenant")
    expect(row.locator("td").nth(2)).to_have_text("0")
    expect(quotas.get_by_label(Quota(tenant="other", runs=7, per="month").quota_id)).to_have_count(0)
