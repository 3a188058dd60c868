"""`turnwise console` shows a store that it only reads: large ones, and one that is away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from console_engine import Engine
from console_server import NAMESPACE, Console
from playwright.sync_api import Page, expect

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.urls import open_store

pytestmark = pytest.mark.ray
pytest_plugins = ["console_pages"]  # which starts a Ray: ray_session

SESSIONS, TURNS = 10_000, 1_000
ENDED = (17, 27, 37)
"""Sessions that have ended, of `user-7`."""


async def fill(url: str) -> None:
    store = open_store(url)
    for start in range(0, SESSIONS, 500):
        records = [
            SessionRecord(
                session_id=f"many-{n:05}",
                user_id=f"user-{n % 10}",
                title=f"Talk {n}",
                created_at=n,
                updated_at=n,
                status="ended" if n in ENDED else "active",
            )
            for n in range(start, start + 500)
        ]
        await asyncio.gather(*map(store.create, records))
    await store.close()


@pytest.fixture(scope="module")
def manager(address: str, folder: Path) -> Iterator[SessionManager]:
    settings = {"engine": Engine(), "placement": Packed(hosts=1), "namespace": NAMESPACE}
    with SessionManager(f"sqlite:///{folder}/chats.db", **settings) as manager:  # type: ignore[arg-type]
        yield manager


@pytest.fixture(scope="module")
def console(manager: SessionManager, address: str, folder: Path) -> Iterator[Console]:
    """What the command serves for a store with many sessions, and one with many turns."""
    asyncio.run(fill(f"sqlite:///{folder}/chats.db"))
    program = ["-m", "turnwise", "console", f"sqlite:///{folder}/chats.db", "--port", "0", "--namespace", NAMESPACE]
    with Console(folder, address, program=program) as console:
        yield console


def test_ten_thousand_sessions_are_listed_in_pages_and_searched(
    console: Console, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{console.address}/")
    rows = page.locator("tbody tr")
    expect(page.get_by_text(f"{SESSIONS:,} sessions")).to_be_visible()
    expect(rows.first).to_contain_text("Talk 9999")
    page.get_by_role("button", name="Next page").click()
    expect(rows.first).to_contain_text("Talk 9974")
    expect(rows).to_have_count(25)
    page.get_by_role("button", name="Previous page").click()
    expect(rows.first).to_contain_text("Talk 9999")
    page.get_by_label("Search titles and ids").fill("talk 4711")
    expect(rows).to_have_count(1)
    page.get_by_label("Search titles and ids").fill("many-00042")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("Talk 42")
    page.get_by_label("Search titles and ids").fill("")
    page.get_by_label("User", exact=True).fill("user-7")
    expect(rows.first).to_contain_text("Talk 9997")
    page.get_by_role("combobox", name="Status").click()
    page.get_by_role("option", name="Ended").click()
    expect(rows).to_have_count(len(ENDED))
    expect(rows.first).to_contain_text("ended")
    page.get_by_role("combobox", name="Status").click()
    page.get_by_role("option", name="Active").click()
    expect(rows).to_have_count(25)
    expect(rows.first).to_contain_text("Talk 9997")
    expect(page.get_by_role("button", name="New conversation")).to_have_count(0)


def test_a_long_conversation_is_loaded_in_pages_and_followed_read_only(
    console: Console, manager: SessionManager, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    session, file = manager.open("long"), tmp_path / "file"
    for n in range(TURNS):
        session.run(f"question {n}").wait()
    execution = session.run(f"until {file}")
    page = open_page(f"{console.url}/session?id=long&user=default")
    turns = page.locator("article.turn")
    expect(page.locator(".live .said.answer")).to_contain_text("3 4 5 ")
    expect(turns.last).to_contain_text(f"until {file}")
    few = turns.count()
    assert few <= 60
    page.get_by_role("button", name="Show earlier messages").click()
    expect(turns).to_have_count(few + 30)
    file.touch()
    expect(turns.last).to_contain_text(f"{file} is there")
    assert execution.wait().text == f"{file} is there"
    for name in ("Send", "Rename", "Fork", "End", "Delete", "Edit", "Regenerate", "Fork from here", "Cancel the run"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(page.locator("textarea")).to_have_count(0)
    turns.last.get_by_role("button", name="Inspect").click()
    expect(page.get_by_role("complementary")).to_contain_text("blocks before the answer")
    page.goto(f"{console.url}/memories?user=default")
    expect(page.get_by_text("what only reads starts none")).to_be_visible()


def test_a_store_that_is_away_is_said_and_tried_again(
    console: Console, folder: Path, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{console.url}/sessions")
    expect(page.locator("tbody tr")).to_have_count(25)
    file = folder / "chats.db"
    away = file.rename(folder / "away.db")
    expect(page.get_by_role("alert").first).to_contain_text("Trying again")
    page.goto(f"{console.url}/session?id=many-00001&user=user-1")  # which is made without the store
    expect(page.get_by_role("alert").first).to_contain_text("Trying again")
    away.rename(file)
    expect(page.get_by_text("Talk 1", exact=True)).to_be_visible()
    expect(page.get_by_role("alert").first).to_be_hidden()
