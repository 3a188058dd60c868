"""The report of a replay, as somebody who has to decide sees it: in a real Chromium."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from processes.programs import path_to
from turnwise.memory.conversation.usage import Usage
from turnwise.replay.records import Answer, Call, Message, TurnReplay
from turnwise.replay.report.overview import Overview
from turnwise.replay.report.page import write_report
from turnwise.replay.statistics import Summing

OLD, NEW = (
    {"class": "OpenAIEngine", "model": model, "system": system, "tools": ["refund"]}
    for model, system in (("old", "Be brief."), ("new", "Be brief, and kind."))
)
SETTINGS = {
    "variant": {"engines": {"": NEW}, "overflow": None, "memories": None, "forward": False},
    "floor": {"engines": {"": OLD}, "overflow": None, "memories": None, "forward": False},
    "tools": "stop",
    "graders": [],
    "prices": {"new": {"input": 1.5, "output": 3.0}},
    "seed": 0,
    "select": {"agent": "shop", "labels": {}, "statuses": ["completed", "failed"], "sample": 24, "seed": 7},
}


def answered(text: str, cost: float, **fields: Any) -> Answer:
    usage = Usage(input_tokens=10, output_tokens=5, cost=cost, seconds=1.0)
    return Answer(**{"status": "completed", "text": text, "usage": usage, **fields})


def turn(number: int, index: int, **fields: Any) -> TurnReplay:
    """Return a record whose new answer costs twice as much as the other two, and has other words."""
    same = {"same": True, "text": True, "calls": True, "similarity": 1.0}
    values: dict[str, Any] = {
        "session_id": f"chat {number}",
        "user_id": "ann",
        "agent": "shop",
        "turn_index": index,
        "run_id": None,
        "labels": {"channel": "mail"} if number % 2 else {},
        "created_at": 1_700_000_000.0,
        "position": index,
        "window_blocks": 12 * index,
        "prompt": "How long does it take?",
        "earlier": (Message("user", "Good day."), Message("assistant", "Good day to you.")) if index else (),
        "recorded": answered("Three days.", 0.01, model="old"),
        "answer": answered("With pleasure: it is done on Friday at noon.", 0.02 + index * 0.001, model="new"),
        "floor": answered("Three days.", 0.01, model="old"),
        "change": {"same": False, "text": False, "calls": True, "similarity": 0.2},
        "floor_change": same,
    }
    return TurnReplay(**{**values, **fields})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path_to("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Return a function that opens the report of some records; errors in it fail the test."""
    errors: list[str] = []
    page = browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))

    def opened(turns: list[TurnReplay], width: int = 1400, **settings: Any) -> Page:
        summing, overview, path = Summing(), Overview(), tmp_path / "report.html"
        for each in turns:
            summing.add(each)
            overview.add(each)
        write_report(path, summing.summary(), turns, settings={**SETTINGS, **settings}, overview=overview)
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(path.as_uri())
        return page

    yield opened
    page.close()
    assert not errors


def some_turns() -> list[TurnReplay]:
    return [turn(number, index) for number in range(12) for index in range(2)]


def row_of(page: Page, name: str, table: str = "#metrics") -> list[str]:
    row = page.locator(f"{table} tr").filter(has=page.get_by_role("cell", name=name, exact=True))
    return row.locator("td").all_inner_texts()


def test_the_head_says_what_was_compared_in_words(show: Callable[..., Page]) -> None:
    page = show(some_turns())
    expect(page.locator("h1")).to_have_text("Replay: old → new")
    about, made = page.locator("#about").inner_text(), page.locator("#settings").inner_text()
    assert "24 turns of 12 conversations" in about
    assert "turns that completed or failed, of agent shop; a sample of 24 (seed 7)" in about
    assert "asked from 2023-11-14 22:13" in about
    assert "720 tokens, the recorded engine's included. It has cost 0.732" in about
    assert "new: 1.5 in, 3 out" in made and not {"{", "Price"} & set(made.split())
    expect(page.locator("#prompts ins")).to_have_text(", and kind")


def test_the_verdict_is_that_of_the_shown_interval(show: Callable[..., Page]) -> None:
    page = show(some_turns())
    name, recorded, floor, new, change, _, interval, verdict = row_of(page, "cost of 1,000 turns")
    assert (name, recorded, floor, new) == ("cost of 1,000 turns", "10", "10", "20.5")
    assert (change, interval, verdict) == ("2.05x", "2.05x … 2.05x", "more")
    assert row_of(page, "tokens in")[-3:] == ["", "1.00x … 1.00x", "no clear difference"]
    assert row_of(page, "different answers")[-2:] == ["+100.0 … +100.0\u00a0points", "more"]
    assert page.locator("#metrics .axis").first.locator("span").all_inner_texts() == ["0.1x", "0.5x", "1x", "2x", "10x"]
    assert page.locator("#tiles .tile > span:first-child").all_inner_texts()[:5] == [
        "refusals",
        "errors",
        "stopped at a tool call",
        "cost, of that asked again",
        "different answers",
    ]


def test_without_a_comparison_there_is_no_line_of_no_change(show: Callable[..., Page]) -> None:
    page = show([turn(number, 0, floor=None, floor_change=None) for number in range(12)], floor=None)
    row = page.locator("#metrics tr").filter(has=page.get_by_role("cell", name="different answers", exact=True))
    expect(row.locator(".none")).to_have_count(0)
    assert row.locator("td").all_inner_texts()[-2:] == ["100.0 … 100.0\u00a0%", ""]
    expect(page.locator("#prompts")).to_contain_text("The record has no system prompt")


def test_groups_stand_by_their_effect(show: Callable[..., Page]) -> None:
    page = show([*some_turns(), *(turn(number, 0, labels={"channel": "chat"}) for number in range(20, 23))])
    page.get_by_label("Measure").select_option("cost")
    names = page.locator("#groups td.name").all_inner_texts()
    assert names[:2] == ["all", "window of 10 to 39 blocks"] and "window below 10 blocks" in names
    assert "without a label" in names
    assert row_of(page, "channel=chat", "#groups")[-2:] == ["3 conversations: no interval", ""]


def test_cards_have_what_came_before_a_command_and_filters(show: Callable[..., Page]) -> None:
    sorry = answered("I'm sorry, but I can't help with that.", 0.02, is_refusal=True)
    stop = {"calls": (Call(name="refund", arguments={"n": 1}),), "why": "it called 'refund', which its record lacks"}
    page = show([turn(0, 1, answer=sorry), turn(1, 0, answer=answered("", 0.0, status="stopped", **stop)), turn(2, 0)])
    page.get_by_label("Kind of difference").select_option("new_refusals")
    card = page.locator("article")
    expect(card).to_have_count(1)
    expect(card.locator(".tag").first).to_have_text("new refusal")
    expect(card.locator("code")).to_have_text("turnwise show 'chat 0' 1 --user ann")
    expect(card.locator("ins, del")).to_have_count(0)  # nearly all words differ
    expect(card.get_by_text("Good day to you.")).to_be_hidden()
    card.get_by_text("The last 2 messages before").click()
    expect(card.get_by_text("Good day to you.")).to_be_visible()
    page.get_by_label("Kind of difference").select_option("stopped")
    assert card.inner_text().lower().count("stopped") == 1


def test_answers_without_texts_say_that_these_were_not_kept(show: Callable[..., Page]) -> None:
    unknown = {"unknown": ("length", "refusals", "cut"), "calls": (Call(name="refund", arguments={}),)}
    page = show([turn(0, 0, answer=answered("", 0.02, similarity=0.2, **unknown))])
    expect(page.locator("article .call")).to_have_text("refund (its arguments were not kept)")
    expect(page.locator("article")).to_contain_text("(its text was not kept)")
    expect(page.locator("#sure")).to_contain_text("One conversation: no intervals.")


def test_an_unknown_cost_is_no_cost_of_zero(show: Callable[..., Page]) -> None:
    page = show([turn(number, 0, answer=answered("Soon.", 0.0, model="new")) for number in range(12)])
    tile = page.locator(".tile").filter(has_text="cost")
    expect(tile.locator("b")).to_have_text("unknown")
    expect(tile).to_contain_text("no price is known of new")


def test_a_narrow_window_shows_plot_interval_and_verdict(show: Callable[..., Page]) -> None:
    page = show(some_turns(), width=500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 500
    row = page.locator("#metrics tr").filter(has=page.get_by_role("cell", name="cost of 1,000 turns", exact=True))
    for part in (row.locator(".plot"), row.locator(".interval"), row.get_by_text("more", exact=True)):
        box = part.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 500
