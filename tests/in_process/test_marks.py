"""Marks of messages, on every store: shown, listed, counted, followed, exported, and deleted with their message."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from servers.over_http import manager_at
from stored.open_stores import closing
from turnwise import AsyncSessionManager, EchoEngine, InProcess, Session, SessionManager
from turnwise.errors import InvalidInputError, TooManyError, TurnNotFoundError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.marks import find_marks
from turnwise.stores import Encryption, SQLStore, export_session, import_session


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis", "encrypted", "over HTTP"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The store of a manager, and its encryption."""
    urls = {"memory": f"memory://{tmp_path.name}", "sqlite": f"sqlite:///{tmp_path}/chats.db"}
    if request.param == "over HTTP":
        return {"store": urls["sqlite"], "remotely": True}
    if request.param == "encrypted":
        return {"store": urls["sqlite"], "encryption": Encryption(key=lambda user_id: b"k" * 32)}
    fixtures = {"postgresql": "database", "redis": "redis_url"}
    return {"store": urls.get(request.param) or request.getfixturevalue(fixtures[request.param])}


def manager_of(**settings: Any) -> AbstractContextManager[SessionManager]:
    return manager_at(engine=EchoEngine(), **settings)


def say(chat: Session, *texts: str) -> None:
    for text in texts:
        chat.run(text).wait()


def marks_of(manager: SessionManager, **filters: Any) -> list[tuple[str, str, Any]]:
    return [(marked.id, marked.mark.name, marked.mark.value) for marked in manager.marks("ann", **filters)]


def test_marks_are_set_replaced_shown_listed_and_removed(settings: dict[str, Any]) -> None:
    with manager_of(**settings) as manager:
        chat, other = manager.open("a", user_id="ann"), manager.open("b", user_id="ann")
        say(chat, "hello", "goodbye")
        say(other, "hi")
        answer = chat.messages()[1]
        mark = chat.mark(answer, "thumb", "up", by="Rita")
        assert mark and (mark.name, mark.value, mark.by) == ("thumb", "up", "Rita")
        assert chat.mark(answer.id, "thumb", "up", by="Rita") == mark, "repeating it changes nothing"
        assert chat.mark(answer, "thumb", "down", by="Sam") != mark
        chat.mark("a#1:0", "note", {"text": "ünïcode", "stars": [1, 2.5]})
        other.mark("b#0:0", "flag", value=True)
        messages = chat.messages()
        assert [sorted(message.marks) for message in messages] == [[], ["thumb"], ["note"], []]
        assert messages[2].marks["note"].value["stars"] == (1, 2.5)
        listed = [
            ("b#0:0", "flag", True),
            ("a#0:1", "thumb", "down"),
            ("a#1:0", "note", {"text": "ünïcode", "stars": (1, 2.5)}),
        ]
        assert marks_of(manager) == listed
        assert marks_of(manager, name="thumb") == listed[1:2] and marks_of(manager, session_id="a") == listed[1:]
        assert manager.count_marks("ann") == {"thumb": 1, "note": 1, "flag": 1}
        assert manager.count_marks("ann", session_id="b") == {"flag": 1} and manager.count_marks("bob") == {}
        pages, cursor = [], None
        while True:
            page = manager.marks("ann", limit=1, cursor=cursor)
            pages += [marked.id for marked in page]
            if (cursor := page.cursor) is None:
                break
        assert pages == ["b#0:0", "a#0:1", "a#1:0"]
        assert chat.mark(answer, "thumb", None) is None and chat.mark(answer, "thumb", None) is None
        assert marks_of(manager) == [listed[0], listed[2]]
        kinds = [(event.name, event.value, event.by) for event in chat.events() if event.kind == "message_marked"]
        assert [kind[:2] for kind in kinds] == [
            ("thumb", "up"),
            ("thumb", "down"),
            ("note", {"text": "ünïcode", "stars": (1, 2.5)}),
            ("thumb", None),
        ]
        say(chat, "and on")
        assert len(chat.messages()) == 6 and len(marks_of(manager)) == 2, "a later turn leaves marks as they are"
    if not settings["store"].startswith("memory"):
        with manager_of(**settings) as manager:  # a new process, as it were
            say(manager.open("a", user_id="ann"), "later")
            assert marks_of(manager) == [listed[0], listed[2]]


def test_marks_go_with_their_message(settings: dict[str, Any]) -> None:
    with manager_of(**settings) as manager:
        chat = manager.open("a", user_id="ann")
        say(chat, "one", "two", "three")
        for message in chat.messages():
            chat.mark(message, "seen", 1)
        fork = chat.fork(session_id="fork")
        assert [message.marks for message in fork.messages()] == [{}, {}]
        chat.remove(chat.messages()[-1])
        assert [marked[0] for marked in marks_of(manager)] == ["a#0:0", "a#0:1", "a#1:0", "a#1:1", "a#2:0"]
        chat.remove(chat.messages()[0])
        assert manager.count_marks("ann") == {"seen": 4}
        chat.clear(keep_last=1)
        assert marks_of(manager) == [("a#2:0", "seen", 1)] and chat.info().session.marks == 1
        chat.delete()
        assert marks_of(manager) == []


def test_wrong_marks_are_refused(settings: dict[str, Any]) -> None:
    with manager_of(**settings) as manager:
        chat = manager.open("a", user_id="ann")
        chat.append("waits")
        with pytest.raises(InvalidInputError, match="has not ended: wait for its run"):
            chat.mark(chat.messages()[0], "thumb", 1)
        say(chat, "hello")
        for wrong in ("a#0:7", "b#0:0", "a#0", "", "a#x:1"):
            with pytest.raises(InvalidInputError, match="message"):
                chat.mark(wrong, "thumb", 1)
        with pytest.raises(TurnNotFoundError):
            chat.mark("a#9:0", "thumb", 1)
        for value in ("x" * 5000, float("nan"), object(), {1: 2}):
            with pytest.raises(InvalidInputError, match="value"):
                chat.mark("a#0:0", "thumb", value)
        for name in ("", "x" * 65):
            with pytest.raises(InvalidInputError, match="name"):
                chat.mark("a#0:0", name, 1)
        for number in range(32):
            chat.mark("a#0:0", f"mark {number}", number)
        with pytest.raises(TooManyError, match="MAX_MARKS"):
            chat.mark("a#0:0", "one more", 1)
        assert manager.open("a", user_id="ann").info().session.marks == 32


def test_search_filters_by_mark(tmp_path: Path) -> None:
    with manager_of(store=f"sqlite:///{tmp_path}/chats.db") as manager:
        chat = manager.open("a", user_id="ann")
        say(chat, "a good answer", "a bad answer")
        chat.mark("a#0:1", "thumb", "up")
        assert [hit.id for hit in manager.search("ann", "answer", mark="thumb")] == ["a#0:1"]


async def test_marks_are_exported_and_imported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        chat = await manager.open("a", user_id="ann")
        await (await chat.run("hello")).wait()
        await chat.mark("a#0:1", "stars", 4, by="Rita")
        before = (await manager.marks("ann")).items
    async with closing(SQLStore(url)) as store, closing(SQLStore(f"sqlite:///{tmp_path}/copy.db")) as copy:
        lines: list[str] = []
        await export_session(store, SessionKey("a", "ann"), lines.append)
        await import_session(copy, lines)
        assert (await find_marks(copy, "ann")).items == before
        assert (await copy.get(SessionKey("a", "ann"))).marks == 1
