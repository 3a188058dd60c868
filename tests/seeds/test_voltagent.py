"""The code listings of VoltAgent's page on memory, with turnwise."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from engines import ScriptedEngine
from turnwise import AsyncSessionManager, InProcess, RunCancelledError, SessionManager
from turnwise.actors.client.blocking import run_once as once
from turnwise.errors import EmptyTurnError, InvalidInputError, SessionNotFoundError, TurnNotFoundError

NAMESPACE = "seeds-voltagent"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Conversations in one place, the history of runs in another."""
    folder = tmp_path_factory.mktemp("voltagent")
    stores = {"store": f"sqlite:///{folder}/chats.db", "history_store": f"sqlite:///{folder}/history.db"}
    return {**stores, "engine": ScriptedEngine(), "namespace": NAMESPACE, "placement": InProcess()}


@pytest.fixture(scope="module")
def manager(settings: dict[str, Any]) -> Iterator[SessionManager]:
    with SessionManager(**settings) as session_manager:
        yield session_manager


def test_user_and_conversation_ids(manager: SessionManager) -> None:
    """One conversation by its id; a new one without."""
    thread = "case-987-abc"
    manager.open(thread, user_id="user-456").run("My router is not working.").wait()
    turn = manager.open(thread, user_id="user-456").run("I tried restarting it, still no luck.").wait()
    assert [block.text for block in turn.blocks if block.kind == "user"] == [
        "My router is not working.",
        "I tried restarting it, still no luck.",
    ]
    first, second = (manager.open(user_id="user-123") for _ in range(2))
    assert first.session_id != second.session_id and first.latest() is second.latest() is None


def test_a_run_without_memory(manager: SessionManager) -> None:
    """`memory: false`: nothing is stored or retrieved; the handle is that of any run."""
    before = len(manager.list(limit=1000)), len(manager.runs(limit=1000))
    handle = manager.run_once("slow 3", user_id="zoe", metadata={"a": 1})
    assert handle.wait().text == "slow 3" and "text_delta" in {event.kind for event in handle.events()}
    turn = manager.run_once("hello").wait()
    assert turn.index == 0 and len(turn.blocks) == 2 and turn.session_id != handle.session_id
    kinds: list[str] = []
    slow = manager.run_once("slow 100000", on_event=lambda event: kinds.append(event.kind))
    assert slow.cancel() and slow.is_done() and pickle.loads(pickle.dumps(slow)).status() == "cancelled"
    with pytest.raises(RunCancelledError):
        slow.wait()
    assert kinds[-1] == "run_cancelled"
    assert before == (len(manager.list(limit=1000)), len(manager.runs(limit=1000)))
    assert manager.execution(handle.run_id, user_id="zoe").wait().text == "slow 3", "from any process, for a while"
    with pytest.raises(EmptyTurnError):
        manager.run_once()


def test_what_was_run_once_is_gone_soon(manager: SessionManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "ONCE_TTL_S", 0.0)
    monkeypatch.setattr(once, "ONCE_SWEEP_S", 0.0)
    handles = [manager.run_once(f"prompt {number}") for number in range(3)]
    running = manager.run_once("slow 100000")
    for handle in handles:
        with suppress(SessionNotFoundError):
            handle.wait()
    manager.run_once("again").wait()
    assert running.is_running() and running.cancel()
    for handle in handles:
        with pytest.raises(SessionNotFoundError):
            handle.info()


def test_conversations_are_made_found_updated_and_deleted(manager: SessionManager) -> None:
    began = time.time() - 60
    for number in range(3):
        manager.open(f"trip-{number}", user_id="ann", title=f"Trip {number} to Paris", metadata={"paid": number > 0})
    manager.open("taxes", user_id="ann", agent="clerk", title="Taxes")

    assert [session.session_id for session in manager.list(user_id="ann", title="paris")] == [
        "trip-2",
        "trip-1",
        "trip-0",
    ]
    page = manager.list(user_id="ann", title="TRIP", metadata={"paid": True}, limit=1)
    assert [session.title for session in page] == ["Trip 2 to Paris"]
    page = manager.list(user_id="ann", title="TRIP", metadata={"paid": True}, limit=1, cursor=page.cursor)
    assert [session.title for session in page] == ["Trip 1 to Paris"] and page.cursor is None
    assert len(manager.list(user_id="ann", since=began)) == 4 and not len(manager.list(user_id="ann", until=began))

    trip = manager.get("trip-0", user_id="ann")
    changed = trip.update(title="Trip to Rome", metadata={"paid": True, "class": "first"})
    assert changed.session_id == "trip-0" and trip.info().session == changed
    assert trip.update(metadata={"class": None}).metadata == {"paid": True}
    assert trip.update(metadata={"all": "new"}, merge=False).metadata == {"all": "new"}
    assert manager.list(user_id="ann", order_by="updated_at").items[0].title == "Trip to Rome"

    assert manager.open("trip-0", user_id="ann", metadata={"all": "new"}).session_id == trip.session_id, (
        "it is as asked for"
    )
    with pytest.raises(InvalidInputError, match=r"'trip-0' exists with another metadata .*if_exists='update'"):
        manager.open("trip-0", user_id="ann", metadata={"all": "newer"})
    with pytest.raises(InvalidInputError, match=r"title='Rome'.*if_exists='update'"):
        manager.open("trip-0", user_id="ann", title="Rome")
    manager.open("trip-0", user_id="ann", title="Rome", if_exists="keep")
    assert trip.info().session.title == "Trip to Rome"
    manager.open("trip-0", user_id="ann", title="Rome", metadata={"more": 1}, if_exists="update")
    assert (trip.info().session.title, trip.info().session.metadata) == ("Rome", {"all": "new", "more": 1})

    trip.delete()
    with pytest.raises(SessionNotFoundError):
        manager.get("trip-0", user_id="ann")


def test_messages_of_a_conversation_by_pages(manager: SessionManager) -> None:
    chat = manager.open("long", user_id="dan")
    for number in range(3):
        chat.run(f"prompt {number}").wait()
    page = chat.messages(limit=4)
    assert [(message.role, message.text) for message in page] == [
        *(("user", "prompt 1"), ("assistant", "prompt 1"), ("user", "prompt 2"), ("assistant", "prompt 2")),
    ]
    assert {message.run_id for message in page} == {run.run_id for run in chat.runs(after=0)} and page.items[0].at > 0
    page = chat.messages(limit=4, before=page.cursor, newest_first=True)
    assert [message.role for message in page] == ["assistant", "user"] and page.cursor is None

    events = chat.events(limit=4)
    more = chat.events(after=events.next or 0)
    assert len(events) == 4 and more.next is None and [*events, *more] == chat.events()
    assert chat.events(limit=len(chat.events())).next is None, "the last page says so, however long it is"


def test_messages_are_cleared_and_the_conversation_stays(manager: SessionManager) -> None:
    chat = manager.open("cleared", user_id="eve", title="A title")
    handles = [chat.run(f"prompt {number}", if_busy="enqueue") for number in range(6)]
    turn = handles[-1].wait()
    done = chat.clear(keep_last=1)
    assert done.turns == turn.index and [message.text for message in chat.messages()] == ["prompt 5", "prompt 5"]
    assert chat.clear().turns == 1 and not len(chat.messages()) and chat.latest() is None
    with pytest.raises(TurnNotFoundError):
        chat.execution(handles[-1].run_id).wait()
    assert chat.info().session.title == "A title" and len(chat.runs()) == len(handles)
    assert chat.run("anew").wait().parent is None and len(chat.messages()) == 2


def test_the_history_of_an_agent(manager: SessionManager) -> None:
    """Entries, their steps and their events, of all conversations of an agent."""
    for number in range(3):
        chat = manager.open(f"help-{number}", user_id=f"user-{number}", agent="helper")
        chat.run("hello").wait()
    manager.get("help-2", user_id="user-2").run("raise").cancel()
    page = manager.runs(agent="helper", limit=3)
    assert [run.session_id for run in page] == ["help-2", "help-2", "help-1"] and page.cursor
    assert [run.session_id for run in manager.runs(agent="helper", limit=3, cursor=page.cursor)] == ["help-0"]
    assert [run.session_id for run in manager.runs(agent="helper", state="failed")] == ["help-2"]
    assert len(manager.runs(user_id="user-2")) == 2 and not len(manager.runs(since=time.time() + 60))
    handle = manager.execution(page.items[-1].run_id, user_id=page.items[-1].user_id)
    assert handle.info() == page.items[-1] and [event.kind for event in handle.events()][-1] == "run_completed"
    assert handle.steps()


async def test_the_same_awaited(manager: SessionManager, settings: dict[str, Any]) -> None:
    async with AsyncSessionManager(**settings) as opened:
        chat = await opened.open("awaited", user_id="bob", title="A title", metadata={"a": 1})
        await (await chat.run("hello"))
        assert (await chat.update(title="Another", metadata={"b": 2})).metadata == {"a": 1, "b": 2}
        assert [session.session_id for session in await opened.list(title="another", user_id="bob")] == ["awaited"]
        assert [run.session_id for run in await opened.runs(user_id="bob")] == ["awaited"]
        assert [message.text for message in await chat.messages()] == ["hello", "hello"]
        assert (await (await opened.run_once("hello", user_id="bob"))).text == "hello"
        assert (await chat.events(limit=1)).next == 1 and (await chat.events(after=1)).next is None
        with pytest.raises(InvalidInputError, match="if_exists"):
            await opened.open("awaited", user_id="bob", title="A title")
