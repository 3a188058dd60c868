"""What notebooks show of sessions, turns, runs and memory items: small tables, in which no text is HTML."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.event_page import EventPage
from turnwise.actors.hosting.wire import ClientOutcome, SessionInfo, SessionRef
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock, Document, Image, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.conversation.calls.tool_calls import PendingCall
from turnwise.memory.conversation.events import CustomEvent, TextDelta
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.chat_messages import ChatMessage
from turnwise.memory.conversation.views.notebook_display import MOST_CHARS, MOST_ROWS, Rows
from turnwise.memory.conversation.views.steps import Step
from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.recall.recalled_content import RecalledContent
from turnwise.memory.stores.base import Page
from turnwise.memory.values.frozen_json import FrozenDict

EVIL = "</td></table><script>alert(1)</script><img src=x onerror='alert(1)'>\"' $x^2$ {{x}} \x1b[2J\u202eevil"
SHOWN = "</td></table><script>alert(1)</script><img src=x onerror='alert(1)'>\"' $x^2$ {{x}} ␛[2J⟨U+202E⟩evil"


class Reader(HTMLParser):
    """Reads HTML as a browser does: its tags, and its texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= set(attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(thing: Any) -> list[str]:
    """Return the texts that a notebook shows of an object, after checking that they are in a table and nothing else."""
    html = thing._repr_html_()
    assert isinstance(html, str)
    reader = Reader(html)
    assert reader.tags <= {"table", "caption", "tr", "th", "td"}
    assert {name for name, _ in reader.attributes} <= {"class", "style"}
    assert len(reader.attributes) <= 3, "no attribute has a value from outside"
    assert "tex2jax_ignore mathjax_ignore" in html, "a notebook would typeset dollars"
    assert html.count("<table") == html.count("</table>") == 1
    return reader.texts


def turn(*output: AnyBlock, prompt: str = EVIL) -> Turn:
    cache = BlockCache()
    cache.add("log", 0, [User(text=prompt), *output])
    record = TurnRecord(
        index=3,
        status="completed",
        prompt=(Span("log", 0, 1),),
        output=(Span("log", 1, 1 + len(output)),),
        usage=Usage(input_tokens=1200, output_tokens=30, cost=0.25),
    )
    return Turn(EVIL, record, cache)


def run(**more: Any) -> RunRecord:
    values: dict[str, Any] = {"run_id": EVIL, "session_id": EVIL, "turn_index": 0, "state": "failed", "first_seq": 1}
    return RunRecord(**{**values, "created_at": 1.7e9, "why": EVIL, "labels": FrozenDict({EVIL: EVIL}), **more})


SESSION = SessionRecord(session_id=EVIL, title=EVIL, user_id=EVIL, agent=EVIL, updated_at=1.7e9)
ITEM = MemoryItem(id=EVIL, text=EVIL, topic=EVIL, memory=EVIL, words=(EVIL,), score=0.75, created_at=1.7e9)
MESSAGE = ChatMessage(
    session_id=EVIL,
    turn_index=0,
    number=0,
    role="user",
    text=EVIL,
    at=1.7e9,
    turn_status="completed",
    run_id=None,
    blocks=(),
)
BLOCKS: list[AnyBlock] = [
    Text(text=EVIL),
    Thinking(text=EVIL),
    ToolUse(call_id=EVIL, name=EVIL, input=FrozenDict({EVIL: EVIL})),
    ToolResult(call_id=EVIL, text=EVIL, is_error=True),
    Document(name=EVIL, text=EVIL),
    Image(url=f"https://example.org/{EVIL}"),
]
CLIENT: Any = None
"""Nothing here may ask it."""

REF = SessionRef(SessionKey(EVIL, EVIL))

THINGS: dict[str, Callable[[], Any]] = {
    "a session": lambda: Session(CLIENT, REF, EVIL),
    "an async session": lambda: AsyncSession(CLIENT, REF, EVIL),
    "a page of sessions": lambda: Page((SESSION,), EVIL, (REF.key,)),
    "a session's record": lambda: SESSION,
    "a session's info": lambda: SessionInfo(
        session=SESSION, active_run_id=EVIL, queued_run_ids=(EVIL,), pid=7, node_id=EVIL
    ),
    "a turn": lambda: turn(*BLOCKS),
    "turns": lambda: Rows([turn(Text(text=EVIL))]),
    "a run": run,
    "runs": lambda: Rows([run()]),
    "a page of runs": lambda: Page((run(),), None),
    "a handle": lambda: ExecutionHandle(CLIENT, REF, EVIL, 0),
    "an async handle": lambda: AsyncExecutionHandle(CLIENT, REF, EVIL, 0, ClientOutcome("failed", EVIL, None, None)),
    "messages": lambda: Page((MESSAGE,), None),
    "events": lambda: EventPage(
        [
            TextDelta(session_id=EVIL, seq=1, at=1.7e9, text=EVIL),
            CustomEvent(session_id=EVIL, seq=2, at=1.7e9, name=EVIL),
        ]
    ),
    "steps": lambda: Rows([Step(kind="tool", name=EVIL, started_at=1.7e9, seconds=0.5)]),
    "waiting calls": lambda: Rows(
        [PendingCall(call_id=EVIL, name=EVIL, input=FrozenDict({"a": EVIL}), wants="approval", why=EVIL)]
    ),
    "an item of memory": lambda: ITEM,
    "recalled items": lambda: Rows([ITEM]),
    "recalls apart": lambda: RecalledContent(static=(ITEM,), failed={EVIL: EVIL}),
}


@pytest.mark.parametrize("make", THINGS.values(), ids=THINGS)
def test_any_stored_text_is_shown_as_text(make: Callable[[], Any]) -> None:
    texts = shown(make())
    assert any(SHOWN in text for text in texts)
    assert not any("\x1b" in text or "\u202e" in text for text in texts)


def test_values_are_shown_as_people_read_them() -> None:
    texts = shown(run(why=None, usage=Usage(input_tokens=1200, output_tokens=3, cost=0.5)))
    assert "2023-11-14 22:13:20" in texts and "1,200 + 3 tokens, 0.5" in texts and "None" not in texts
    assert "0.75" in shown(ITEM)
    used, result = shown(
        turn(ToolUse(call_id="1", name="book", input=FrozenDict({"seats": 2})), ToolResult(call_id="1", text="ok"))
    )[-4::3]
    assert (used, result) == ('book({"seats": 2})', "ok")


def test_tables_are_small() -> None:
    long = "x" * 10_000
    assert max(map(len, shown(turn(Text(text=long))))) < MOST_CHARS + 40
    many = Rows([turn(Text(text="hi"), prompt=f"prompt {number}") for number in range(500)])
    texts = shown(many)
    assert texts[0] == f"Turn: the first {MOST_ROWS} of 500"
    assert f"prompt {MOST_ROWS - 1}" in texts and f"prompt {MOST_ROWS}" not in texts


def test_nothing_is_shown_as_an_empty_table() -> None:
    empties: tuple[Any, ...] = (Rows(), Page((), None), EventPage(), RecalledContent())
    for empty in empties:
        assert shown(empty) == ["items: 0"]


def test_a_value_that_cannot_be_read_is_shown_as_its_error() -> None:
    """Never an exception, which would hide the result of the cell."""
    damaged = Turn("chat", TurnRecord(index=0, status="completed", prompt=(Span("gone", 0, 1),)), BlockCache())
    assert any("CorruptRecordError" in text for text in shown(damaged))
    assert any("CorruptRecordError" in text for text in shown(Rows([damaged])))

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError(EVIL)

    broken: Any = Broken()
    assert any(SHOWN in text for text in shown(Rows([Step(kind="tool", name=broken, started_at=1.0, seconds=None)])))


def test_a_list_that_shows_itself_is_a_list() -> None:
    rows = Rows([1, 2])
    assert rows == [1, 2] and repr(rows) == "[1, 2]"
    assert pickle.loads(pickle.dumps(rows)) == [1, 2]
    assert "<b>" not in Rows(["<b>"])._repr_html_()
