"""The console shows conversations live, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from console_server import Console
from playwright.sync_api import Page, expect

from turnwise.actors.client.blocking.manager import SessionManager

pytestmark = pytest.mark.ray
pytest_plugins = ["console_pages"]  # which starts a Ray: ray_session

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

SCRIPT = "<script>document.title='owned';window.owned=1</script>"
HOSTILE = (
    SCRIPT,
    '<img src=x onerror="window.owned=1"><svg onload=window.owned=1>',
    "[click](javascript:window.owned=1) <a href='javascript:window.owned=1'>here</a>",
    "${window.owned=1} {{constructor.constructor('window.owned=1')()}} `+window.owned+`",
    "</textarea></pre></script><style>*{display:none}</style><iframe srcdoc='<script>parent.owned=1</script>'>",
    ':onclick="window.owned=1" v-html="x" @click=window.owned=1',
)
ANSI, RTL = "red \x1b[31malert\x1b]0;title\x07 end", "abc \u202egnp.exe\u2066 \u05e9\u05dc\u05d5\u05dd"


def conversation(console: Console, session_id: str) -> str:
    return f"{console.url}/session?id={session_id}&user=default"


def send(page: Page, text: str) -> None:
    field = page.get_by_label("Message")
    field.fill(text)
    field.press("Enter")


def test_a_prompt_is_answered_live_and_stays(
    console: Console, manager: SessionManager, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    page, file = open_page(f"{console.url}/"), tmp_path / "file"
    page.get_by_role("button", name="New conversation").click()
    send(page, f"until {file}")
    live = page.locator(".live .said.answer")
    expect(live).to_contain_text("3 4 5 ")
    send(page, "and this waits")  # which is stored, and runs later
    expect(page.get_by_text("running, 1 queued", exact=True)).to_be_visible()
    file.touch()
    expect(page.get_by_text(f"{file} is there", exact=True)).to_be_visible()
    expect(page.get_by_text("echo: and this waits", exact=True)).to_be_visible()
    expect(page.get_by_text("idle", exact=True)).to_be_visible()
    expect(live).to_be_hidden()
    page.reload()
    expect(page.get_by_text(f"{file} is there", exact=True)).to_be_visible()
    page.get_by_role("link", name="Sessions").click()
    row = page.locator("tbody tr").first
    expect(row).to_contain_text("idle")
    row.get_by_role("link").click()
    expect(page.get_by_text("echo: and this waits", exact=True)).to_be_visible()


def test_a_run_is_cancelled_answered_anew_and_forked_by_keyboard(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    manager.open("keys").run("first").wait()
    page = open_page(conversation(console, "keys"))
    expect(page.get_by_text("echo: first", exact=True)).to_be_visible()
    send(page, "slow 20000")
    expect(page.locator(".live .said.answer")).to_contain_text("3 4 5 ")
    page.keyboard.press("Escape")
    expect(page.locator("article.turn").nth(1)).to_contain_text("cancelled")
    turn = manager.get("keys").turn(1)
    assert turn.status == "cancelled"
    page.locator("article.turn").last.get_by_role("button", name="Edit").press("Enter")
    page.get_by_role("dialog").get_by_label("Message").fill("second")
    page.get_by_role("button", name="Answer it").press("Enter")
    second = page.locator("article.turn").nth(1)
    expect(second).to_contain_text("echo: second")
    expect(second).to_contain_text("2 of 2")
    second.get_by_role("button", name="Regenerate").press("Enter")
    expect(second).to_contain_text("3 of 3")
    expect(second.get_by_role("button", name="Show the version after")).to_be_disabled()
    for number in (2, 1):
        second.get_by_role("button", name="Show the version before").press("Enter")
        expect(second).to_contain_text(f"{number} of 3")
    expect(second).to_contain_text("cancelled")
    page.locator("article.turn").first.get_by_role("button", name="Fork from here").press("Enter")
    expect(page.get_by_text("forked from keys#0")).to_be_visible()
    page.go_back()
    expect(page.locator("article.turn")).to_have_count(2)
    second.get_by_role("button", name="Show the version after").click()
    expect(second).to_contain_text("echo: second")
    second.get_by_role("button", name="Fork from here").click()
    expect(page.get_by_text("forked from keys#2")).to_be_visible()
    expect(page.locator("article.turn").last).to_contain_text("echo: second")


def test_a_waiting_call_is_decided(console: Console, manager: SessionManager, open_page: Callable[..., Page]) -> None:
    execution = manager.open("calls").run("approve this")
    page = open_page(conversation(console, "calls"))
    ask = page.get_by_role("region", name="Decision about pay")
    expect(ask).to_contain_text("it costs money")
    second_page = open_page(conversation(console, "calls"))  # two browsers on one session
    ask.get_by_label("Arguments").fill('{"broken": my-secret')
    ask.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("they are not JSON")).to_be_visible()
    ask.get_by_label("Why not").fill("too dear")
    ask.get_by_role("button", name="Reject").click()
    for browser in (page, second_page):
        expect(browser.get_by_text("it was rejected", exact=True)).to_be_visible()
        expect(browser.get_by_role("region", name="Decision about pay")).to_have_count(0)
    assert execution.wait().text == "it was rejected"
    assert "my-secret" not in console.log.read_text()
    send(second_page, "approve with other arguments")
    ask.get_by_label("Arguments").fill('{"amount": 4}')
    ask.get_by_role("button", name="Approve").click()
    expect(second_page.get_by_text("it was approved", exact=True)).to_be_visible()
    expect(second_page.locator("article.turn").nth(1).locator("summary").first).to_contain_text('"amount": 4')
    send(second_page, "outside")
    ask.get_by_label("Result").fill("5 kg")
    ask.get_by_role("button", name="Send the result").click()
    expect(second_page.get_by_text("it was provided", exact=True)).to_be_visible()
    send(second_page, "from the other browser")
    expect(page.get_by_text("echo: from the other browser", exact=True)).to_be_visible()


def test_nothing_stored_or_streamed_is_read_as_html(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    session = manager.open("hostile", title=SCRIPT, agent="<b>agent</b>", metadata={"x": SCRIPT})
    for text in (*HOSTILE, ANSI, RTL):
        session.run(text).wait()
    session.run(f"look {HOSTILE[1]}").wait()
    page = open_page(conversation(console, "hostile"))
    for text in HOSTILE:
        expect(page.get_by_text(f"echo: {text}", exact=True)).to_be_visible()
    expect(page.get_by_text("echo: red \u241b[31malert\u241b]0;title\u2407 end", exact=True)).to_be_visible()
    expect(
        page.get_by_text("echo: abc \u27e8U+202E\u27e9gnp.exe\u27e8U+2066\u27e9 \u05e9\u05dc\u05d5\u05dd")
    ).to_be_visible()
    for details in page.locator("details").all():
        details.evaluate("element => element.open = true")
    send(page, f"slow {SCRIPT}")  # whose failure has the text too
    expect(page.locator("article.turn").nth(9)).to_contain_text("failed")
    assert page.evaluate("window.owned") is None and "owned" not in page.title()
    for tag in (
        "article script",
        "article img",
        "article svg",
        "article iframe",
        "article b",
        "article i",
        "article a",
    ):
        assert page.locator(tag).count() == 0, tag
    page.goto(f"{console.url}/sessions?q=%3Cscript&agent=%3Cb%3Eagent%3C%2Fb%3E&user=default")
    expect(page.locator("tbody")).to_contain_text(SCRIPT)
    assert page.evaluate("window.owned") is None


def test_a_message_of_a_megabyte_is_shown_in_parts(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    manager.open("long").run("<b>" + "x" * 1_000_000 + " the end").wait()
    page = open_page(conversation(console, "long"))
    answer = page.locator(".turn .said.answer")
    expect(answer).to_contain_text("echo: <b>xxx")
    while (more := answer.get_by_role("button", name="Show more")).count():
        label = more.inner_text()
        more.click()
        expect(answer.get_by_role("button", name=label, exact=True)).to_have_count(0)
    expect(answer).to_contain_text("the end")


def test_a_conversation_that_is_deleted_meanwhile_says_so(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    session = manager.open("short-lived")
    session.run("hello").wait()
    page = open_page(conversation(console, "short-lived"))
    expect(page.get_by_text("echo: hello", exact=True)).to_be_visible()
    session.delete()
    expect(page.get_by_role("alert")).to_contain_text("does not exist, or not any more")
    expect(page.get_by_label("Message")).to_be_hidden()
    for url in (conversation(console, "never-there"), f"{console.url}/session", f"{console.url}/session?id=%00"):
        page.goto(url)
        expect(page.get_by_role("alert")).to_contain_text("does not exist")


def test_nothing_goes_on_for_a_browser_that_has_left(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    execution = manager.open("left").run("slow 10000")
    pages = [open_page(conversation(console, "left")), open_page(f"{console.url}/sessions")]
    expect(pages[0].locator(".live .said.answer")).to_contain_text("3 4 5 ")
    expect(pages[1].locator("tbody")).to_contain_text("running")

    def theirs() -> list[str]:
        return [task for task in console.tasks() if "_follow" in task or "wait_for_result" in task]

    assert len(theirs()) >= 3
    for page in pages:
        page.context.close()
    deadline = time.monotonic() + 60
    while theirs():
        assert time.monotonic() < deadline, theirs()
        time.sleep(0.2)
    execution.cancel()


@pytest.mark.parametrize(("settings", "scheme"), [({}, "light"), (PHONE, "dark")], ids=["laptop", "phone"])
def test_pages_fit_the_screen_and_follow_the_systems_colours(
    console: Console, manager: SessionManager, open_page: Callable[..., Page], settings: dict[str, object], scheme: str
) -> None:
    manager.open("wide").run("a" * 400).wait()
    page = open_page(console.url, color_scheme=scheme, **settings)
    for url in (f"{console.url}/sessions", conversation(console, "wide")):
        page.goto(url)
        expect(page.get_by_text("wide").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(16, 20, 27)" if scheme == "dark" else "rgb(245, 246, 248)")
        unnamed = page.locator("button, input, textarea, a").evaluate_all(
            "all => all.filter(e => !(e.innerText || e.ariaLabel || e.labels?.length)).map(e => e.outerHTML)"
        )
        assert not unnamed
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    # The page of a dark system was dark before.
    page.wait_for_function("document.cookie.includes('turnwise_theme=dark')")
    expect(page.locator("body.body--dark")).to_have_count(1)
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()


def test_links_lead_to_sessions_whose_ids_have_any_character(
    console: Console, manager: SessionManager, open_page: Callable[..., Page]
) -> None:
    ids = ["a/b", "a?b=c&user=eve#d", "50%2Fä + 日本", "..."]
    for session_id in ids:
        manager.open(session_id).run(f"I am {session_id}").wait()
    page = open_page(f"{console.url}/sessions")
    for session_id in ids:
        page.get_by_role("link", name=session_id, exact=True).click()
        expect(page.get_by_text(f"I am {session_id}", exact=True).first).to_be_visible()
        page.get_by_role("link", name="Sessions").click()
