"""What the console shows beside a conversation: requests, steps, memories, usage and hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from console_engine import Engine
from console_server import NAMESPACE, Console
from playwright.sync_api import Page, expect

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.memory.longterm.lexical import LexicalMemory

pytestmark = pytest.mark.ray
pytest_plugins = ["console_pages"]  # which starts a Ray: ray_session

HOSTILE = "<img src=x onerror='window.owned=1'> \u202e"


@pytest.fixture(scope="module")
def console(address: str, folder: Path) -> Iterator[Console]:
    with Console(folder, address, memory=f"sqlite:///{folder}/memory.db") as console:
        yield console


@pytest.fixture(scope="module")
def manager(console: Console, folder: Path) -> Iterator[SessionManager]:
    memory = LexicalMemory(f"sqlite:///{folder}/memory.db")
    settings = {"engine": Engine(), "placement": Packed(hosts=1), "namespace": NAMESPACE, "memory": [memory]}
    with SessionManager(console.store, **settings) as manager:  # type: ignore[arg-type]
        yield manager


def test_the_inspector_shows_the_models_input_and_the_steps(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    session = manager.open("details", user_id="ann")
    session.memory.save(f"Ann lives in Lisbon {HOSTILE}")
    session.run("where does Ann live?").wait()
    session.run(f"steps {HOSTILE}").wait()
    page = open_page(f"{console.url}/session?id=details&user=ann")
    turns = page.locator("article.turn")
    side = page.get_by_role("complementary", name="Details of a turn")
    turns.nth(0).get_by_role("button", name="Inspect").click()
    expect(side).to_contain_text("Tokens sent")
    expect(side).to_contain_text("1 of 1 from LexicalMemory")
    side.get_by_role("button", name="Show what memory recalls").click()
    expect(side).to_contain_text("Ann lives in Lisbon <img src=x onerror='window.owned=1'> \u27e8U+202E\u27e9")
    turns.nth(1).get_by_role("button", name="Inspect").click()
    expect(side).to_contain_text("3 blocks before the answer")
    side.get_by_role("button", name="Steps").click()
    steps = side.locator("ol.steps")
    for text in ("Started", "search", "Event found", "Planner's note", "Completed", "onerror='window.owned=1'"):
        expect(steps).to_contain_text(text)
    expect(steps.locator("li.inner").filter(has_text="read").first).to_be_visible()
    assert page.evaluate("window.owned") is None and page.locator("aside img").count() == 0
    side.get_by_role("button", name="Close").click()
    expect(side).to_be_hidden()
    turns.nth(0).get_by_role("button", name="Forget").click()
    page.get_by_role("button", name="Forget it").click()
    expect(page.get_by_role("status", name="What was forgotten")).to_contain_text("none were found")
    assert session.turn(0).record.forgotten


def test_memories_are_searched_edited_pinned_deleted_and_forgotten(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    session = manager.open("of-bob", user_id="bob")
    session.run("hello").wait()
    session.memory.save(f"Bob plays chess {HOSTILE}", topic=HOSTILE)
    session.memory.save("Bob drinks tea.")
    page = open_page(f"{console.url}/memories")
    expect(page.get_by_text("Name a user.")).to_be_visible()
    page.get_by_label("User", exact=True).fill("bob")
    cards = page.get_by_role("article")
    tea, chess = cards.filter(has_text="tea"), cards.filter(has_text="chess")
    expect(chess).to_contain_text("onerror='window.owned=1'> \u27e8U+202E\u27e9")
    assert page.evaluate("window.owned") is None
    tea.get_by_role("button", name="Pin").click()
    expect(tea).to_contain_text("pinned")
    tea.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_label("Text").fill("Bob drinks green tea.")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(tea).to_contain_text("green tea")
    chess.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(chess).to_have_count(0)
    assert [item.text for item in session.memory.recall("tea")] == ["Bob drinks green tea."]
    page.get_by_label("Search, as a prompt would").fill("what tea does bob drink")
    expect(tea).to_contain_text("relevance")
    page.get_by_role("button", name="Forget this user").click()
    page.get_by_role("button", name="Forget the user").click()
    report = page.get_by_role("status", name="What was forgotten")
    expect(report).to_contain_text("none were found")
    expect(page.get_by_text("This user has no session")).to_be_visible()
    assert list(manager.list(user_id="bob")) == []


def test_a_subject_is_forgotten_after_a_look_at_what_says_it(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    session = manager.open("of-dora", user_id="dora")
    session.run("hello").wait()
    for text in (f"Dora drives a Volvo {HOSTILE}", "Dora drove a Volvo to Rome.", "Dora drinks tea."):
        session.memory.save(text)
    page = open_page(f"{console.url}/memories?user=dora")
    cards = page.get_by_role("article")
    expect(cards.filter(has_text="Rome")).to_have_count(1)
    page.get_by_role("button", name="Forget a subject").click()
    page.get_by_label("What to forget, in the user's words").fill("drive a Volvo")
    page.get_by_role("button", name="Find it").click()
    dialog = page.get_by_role("alertdialog", name="Forget drive a Volvo?")
    expect(dialog.get_by_role("checkbox", checked=True)).to_have_count(2)
    expect(dialog).to_contain_text("onerror='window.owned=1'> \u27e8U+202E\u27e9")
    assert page.evaluate("window.owned") is None
    dialog.get_by_role("checkbox", name="Dora drove a Volvo to Rome.").click()
    dialog.get_by_role("button", name="Forget what is ticked").click()
    expect(page.get_by_role("status")).to_contain_text("Forgotten: 1")
    expect(cards.filter(has_text="Dora drives")).to_have_count(0)
    texts = {item.text for item in session.memory.list()}
    assert {"Dora drove a Volvo to Rome.", "Dora drinks tea."} <= texts and not [
        text for text in texts if "drives" in text
    ]


def test_usage_budgets_and_hosts_are_shown(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    manager.open("spends", user_id="carol", title="Spends").run("hello").wait()
    page = open_page(f"{console.url}/usage?user=carol")
    expect(page.locator(".tile").first).to_contain_text("10")
    expect(page.get_by_role("img", name="Tokens by day")).to_be_visible()
    expect(page.get_by_role("region", name="Budgets")).to_contain_text("30 of 50,000")
    expect(page.get_by_role("region", name="Sessions")).to_contain_text("Spends")
    expect(page.get_by_role("region", name="Sessions")).to_contain_text("carol")
    page.get_by_role("link", name="Hosts").click()
    expect(page.locator(".tile").first).to_contain_text("1")
    page.locator("summary").filter(has_text="Packed host").click()
    expect(page.get_by_text("spends of carol")).to_be_visible()
