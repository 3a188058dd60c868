"""Events of chosen kinds: found among many others, waited for, and read on behind those that were looked through."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from schedules import SESSION
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state import reads
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.views.event_filter import event_filter
from turnwise.memory.stores.conformance.fixtures import own
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.ids import new_id

MakeManager = Callable[..., SessionManager]


def test_a_page_has_only_events_of_the_kinds(make_manager: MakeManager) -> None:
    chat = make_manager(engine=EchoEngine()).open("chat")
    for prompt in ("one two three", "four"):
        chat.run(prompt).wait()
    kinds = {"run_started", "run_completed", "text_delta"}
    page = chat.events(kinds=kinds)
    assert page == [event for event in chat.events() if event.kind in kinds] and page.next is None
    assert [event.kind for event in chat.events(kinds=["run_completed"])] == ["run_completed"] * 2
    assert chat.events(kinds=[]) == chat.events(kinds=["session_ended"]) == []


def test_pages_are_indexed_as_lists_are(make_manager: MakeManager) -> None:
    manager = make_manager(engine=EchoEngine())
    chat = manager.open("chat")
    chat.run("hello").wait()
    page = chat.messages()
    assert [page[0].text, page[-1].role, page[0:1]] == ["hello", "assistant", page.items[:1]]
    assert manager.list()[0].session_id == "chat"
    with pytest.raises(IndexError):
        page[2]


def test_small_pages_lead_through_all_events_of_rare_kinds(
    make_manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "FILTERED_PAGES", 2)
    chat = make_manager(engine=EchoEngine()).open("chat")
    for number in range(4):
        for step in range(9):
            chat.add_event("step", {"step": step})
        chat.run(str(number)).wait()
    ends, after, pages, empty = list[AnyEvent](), 0, 0, 0
    while True:
        page = chat.events(after, 3, kinds=["run_completed"])
        ends += page
        pages, empty = pages + 1, empty + (not page)
        if page.next is None:
            break
        after = page.next
    assert [event.seq for event in ends] == [event.seq for event in chat.events() if event.kind == "run_completed"]
    assert len(ends) == 4 and empty and pages < 20


def test_a_wait_looks_through_all_that_is_there(make_manager: MakeManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "FILTERED_PAGES", 1)
    chat = make_manager(engine=EchoEngine()).open("chat")
    for step in range(20):
        chat.add_event("step", {"step": step})
    chat.run("hello").wait()
    (end,) = chat.events(0, 3, kinds=["run_completed"], wait_s=60)
    assert end.kind == "run_completed"


@pytest.mark.virtual_time
async def test_one_request_looks_through_so_many_pages_even_if_it_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "FILTERED_PAGES", 2)
    store = InMemoryStore()
    await own(store, SESSION)
    core = SessionCore(SessionKey(SESSION), store, EchoEngine())
    await core.transactor.activate()
    for step in range(20):
        await core.additions.add_event("step", {"step": step}, new_id())
    assert await core.reads.events(0, 3, only=event_filter(["run_completed"], None), timeout_s=60.0) == ([], 6, False)


def test_a_wait_ends_with_the_first_event_of_the_kinds_and_not_with_others(make_manager: MakeManager) -> None:
    chat = make_manager(engine=EchoEngine()).open("chat")
    last = chat.add_event("note")
    waited: list[Any] = []
    waiting = threading.Thread(target=lambda: waited.extend(chat.events(last, kinds=["run_completed"], wait_s=60)))
    waiting.start()
    for _ in range(3):
        chat.add_event("note")
    assert waiting.is_alive()
    chat.run("hello").wait()
    waiting.join(60)
    assert [event.kind for event in waited] == ["run_completed"]
    assert chat.events(chat.events()[-1].seq, kinds=["custom"], wait_s=0.05) == []


async def test_kinds_that_are_none_are_refused_by_name() -> None:
    async with AsyncSessionManager("memory://kinds", engine=EchoEngine(), placement=InProcess()) as manager:
        chat = await manager.open("chat")
        for kinds in (["run_ended"], "run_completed", [1]):
            with pytest.raises(InvalidInputError, match="kinds"):
                await chat.events(kinds=kinds)  # type: ignore[arg-type]
        await asyncio.gather(*(chat.events(kinds=["run_started"], wait_s=0.01) for _ in range(20)))
