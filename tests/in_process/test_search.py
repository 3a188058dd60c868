"""Search over what was said, by both families, on real stores: what is found, and what leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patience import within
from servers.over_http import manager_at
from stored.open_stores import closing
from turnwise import AsyncSessionManager, EchoEngine, InProcess, Session, SessionManager
from turnwise.blocks import Document
from turnwise.engines import tool
from turnwise.errors import InvalidInputError, SearchUnavailableError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.search.finding import find_messages
from turnwise.memory.stores.search.query import parse_query
from turnwise.memory.stores.search.records import TextFilter
from turnwise.stores import Encryption, SQLStore, export_session, import_session
from turnwise.testing.scripted_engine import Pause, ScriptedEngine

until = within(30.0)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    return f"sqlite:///{tmp_path}/chats.db" if request.param == "sqlite" else str(request.getfixturevalue("database"))


@pytest.fixture(params=["memory", "sqlite", "postgresql", "over HTTP"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionManager]:
    urls = {"memory": f"memory://{tmp_path.name}"}
    if request.param == "postgresql":
        urls["postgresql"] = request.getfixturevalue("database")
    url = urls.get(request.param, f"sqlite:///{tmp_path}/chats.db")
    with manager_at(url, engine=EchoEngine(), remotely=request.param == "over HTTP") as manager:
        yield manager


def manager_of(url: str, **settings: Any) -> AbstractContextManager[SessionManager]:
    return manager_at(url, **{"engine": EchoEngine(), **settings})


def say(chat: Session, *texts: str) -> None:
    for text in texts:
        chat.run(text).wait()


def ids(manager: SessionManager, text: str, user_id: str = "ann", **filters: Any) -> list[str]:
    return [hit.id for hit in manager.search(user_id, text, **filters)]


def test_texts_of_documents_are_found_and_go_with_their_turn(manager: SessionManager) -> None:
    chat = manager.open("trip", user_id="ann")
    pieces = Document(chunks=("platform nine", "at noon"), name="plan")
    chat.run("look", Document(text="Zürich by night train", name="a.txt"), pieces).wait()
    (hit,) = manager.search("ann", "night train")
    assert (hit.role, hit.turn_index, hit.snippet) == (
        "user",
        0,
        "look\nZürich by night train\nplatform nine\n\nat noon",
    )
    assert len(manager.search("ann", "platform noon")) == 1 and not manager.search("ann", "trainplatform")
    chat.remove(chat.turns()[0])
    assert not manager.search("ann", "night train") and not manager.search("ann", "platform")


def test_prompts_and_answers_are_found_with_snippets(manager: SessionManager) -> None:
    chat = manager.open("trip", user_id="ann", title="A trip", agent="clerk")
    manager.open("other", user_id="bob").run("The night train of Bob.").wait()
    say(chat, "We take the night train to Zürich.", "Then we walk.")
    hits = manager.search("ann", "zurich nig")
    assert [(hit.id, hit.role, hit.title, hit.agent) for hit in hits] == [
        ("trip#0:1", "assistant", "A trip", "clerk"),
        ("trip#0:0", "user", "A trip", "clerk"),
    ]
    assert hits[0].snippet == "We take the night train to Zürich."
    assert [hits[0].snippet[start:stop] for start, stop in hits[0].ranges] == ["night", "Zürich"]
    messages = {message.id: message for message in chat.messages()}
    assert [messages[hit.id].text for hit in hits] == ["We take the night train to Zürich."] * 2
    assert [messages[hit.id].at for hit in hits] == [hit.at for hit in hits]
    assert ids(manager, "walk", role="user") == ["trip#1:0"] and ids(manager, "train", "bob") == [
        "other#0:1",
        "other#0:0",
    ]
    assert ids(manager, "we", since=messages["trip#1:0"].at) == ["trip#1:1", "trip#1:0"]
    page = manager.search("ann", "we", limit=3)
    rest = manager.search("ann", "we", cursor=page.cursor)
    assert [len(page), len(rest), rest.cursor] == [3, 1, None]
    say(chat, "walk walk walk")
    ranked = manager.search("ann", "walk", order="rank", limit=2)
    assert [hit.id for hit in ranked] == ["trip#2:1", "trip#2:0"]
    following = manager.search("ann", "walk", order="rank", cursor=ranked.cursor)
    assert [hit.id for hit in following] == ["trip#1:1", "trip#1:0"]
    for text in ("", "!?", "x" * 1001):
        with pytest.raises(InvalidInputError, match="text"):
            manager.search("ann", text)


async def test_both_families_search(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        run = await (await manager.open("trip", user_id="ann")).run("hello there")
        await run.wait()
        assert [hit.id for hit in await manager.search("ann", "hello")] == ["trip#0:1", "trip#0:0"]


def test_each_way_to_say_something_is_searched(manager: SessionManager, tmp_path: Path) -> None:
    chat = manager.open("a", user_id="ann")
    chat.append("appended apricot", "another apricot")
    assert ids(manager, "apricot") == ["a#0:1", "a#0:0"]
    say(chat, "third apricot")
    assert sorted(ids(manager, "apricot", role="user")) == ["a#0:0", "a#0:1", "a#0:2"]
    chat.import_messages(
        [{"role": "user", "content": "imported cherry"}, {"role": "assistant", "content": "a cherry answer"}]
    )
    assert ids(manager, "cherry") == ["a#1:1", "a#1:0"]
    fork = chat.fork(session_id="b")
    assert ids(manager, "cherry") == ["b#1:1", "b#1:0", "a#1:1", "a#1:0"]
    say(fork, "only the fork has a quince")
    assert ids(manager, "quince", session_id="a") == [] and len(ids(manager, "quince")) == 2
    chat.say("The kitchen has plums.").wait()
    assert ids(manager, "plums") == ["a#2:0"]


def test_a_prompt_is_found_with_the_first_result_of_its_run(url: str) -> None:
    """A run that is queued or at work has none. One that waits for a decision has, or that was cancelled."""
    pay = tool(lambda: "paid", name="pay", description="Pays.", approval=True)
    engines = {
        "busy": ScriptedEngine([[Pause(math.inf)], "an answer about plums"]),
        "asks": ScriptedEngine([[("pay", {})], "done"], tools=[pay]),
    }
    with manager_of(url, engine=engines) as manager:
        chat = manager.open("busy", user_id="ann", engine="busy")
        chat.append("appended plums")
        assert ids(manager, "plums") == ["busy#0:0"]
        first = chat.run("plums at work")
        second = chat.run("queued plums", if_busy="enqueue")
        until(lambda: first.info().state == "running")
        assert ids(manager, "plums") == []
        first.cancel()
        second.wait()
        assert ids(manager, "plums") == ["busy#1:1", "busy#1:0", "busy#0:1", "busy#0:0"]
        waits = manager.open("asks", user_id="ann", engine="asks").run("cherries")
        assert waits.wait(until="settled").status == "running" and ids(manager, "cherries") == ["asks#0:0"]
        (call,) = waits.pending()
        waits.approve(call.call_id)
        waits.wait()
        assert ids(manager, "cherries") == ["asks#0:0"]


@pytest.mark.parametrize("way", ["clear", "delete", "forget", "forget_turn", "remove", "remove_pending"])
def test_what_is_taken_away_is_not_found(manager: SessionManager, way: str) -> None:
    chat, other = manager.open("a", user_id="ann"), manager.open("other", user_id="bob")
    say(chat, "the secret melon", "a melon that stays")
    say(other, "the melon of Bob")
    before = ids(manager, "melon")
    assert len(before) == 4
    if way == "clear":
        chat.clear(keep_last=1)
    elif way == "delete":
        chat.delete()
    elif way == "forget":
        manager.forget("ann")
    elif way == "forget_turn":
        chat.memory.forget(0)
    elif way == "remove":
        assert chat.remove(chat.messages()[0]) == 1
    else:
        chat.append("a waiting melon", "waits too")
        assert len(ids(manager, "melon")) == 5
        assert chat.remove(chat.messages()[-2]) == 1
    remaining = {"remove": before[:3], "remove_pending": before, "clear": before[:2], "forget_turn": before[:2]}
    assert ids(manager, "melon") == remaining.get(way, [])
    assert len(ids(manager, "melon", "bob")) == 2
    if way == "remove_pending":
        assert ids(manager, "waits") == ["a#2:0"]


def test_deleted_words_leave_the_sqlite_file_with_the_commit(tmp_path: Path) -> None:
    file = tmp_path / "chats.db"

    def traces(word: str) -> int:
        return sum(
            path.read_bytes().lower().count(word.encode()) for path in tmp_path.iterdir() if "chats" in path.name
        )

    with manager_of(f"sqlite:///{file}") as manager:
        chat, other = manager.open("a", user_id="ann"), manager.open("b", user_id="ann")
        for number in range(80):  # enough for texts to be in the index
            say(chat, f"xylophone{number} and zanzibar")
            say(other, f"filler number {number}")
        assert len(ids(manager, "zanzibar", limit=200)) == 160
        chat.clear(keep_last=10)
        assert len(ids(manager, "zanzibar", limit=200)) == 20
        assert traces("xylophone3 ") == traces("xylophone31") == 0 < traces("xylophone79")
        chat.delete()
        assert not ids(manager, "zanzibar") and traces("xylophone") == traces("zanzibar") == 0
        assert len(ids(manager, "filler", limit=200)) == 160


async def test_an_imported_archive_is_searched(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        await (await (await manager.open("a", user_id="ann")).run("the archived olive")).wait()
        at = [hit.at for hit in await manager.search("ann", "olive")]
    async with closing(SQLStore(url)) as store, closing(SQLStore(f"sqlite:///{tmp_path}/copy.db")) as copy:
        lines: list[str] = []
        await export_session(store, SessionKey("a", "ann"), lines.append)
        await import_session(copy, lines)
        texts = TextFilter(query=parse_query("olive"), user_id="ann")
        hits = [await find_messages(each, texts) for each in (store, copy)]
        assert [hit.at for hit in hits[1]] == at
        assert [replace(hit, at=0.0) for hit in hits[0]] == [replace(hit, at=0.0) for hit in hits[1]]


@pytest.mark.parametrize("kind", ["redis", "encrypted"])
def test_a_store_that_cannot_search_says_what_to_do(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    settings: dict[str, Any] = {}
    url = f"sqlite:///{tmp_path}/chats.db"
    if kind == "redis":
        url = request.getfixturevalue("redis_url")
    else:
        settings["encryption"] = Encryption(key=lambda user_id: b"k" * 32)
    with manager_of(url, **settings) as manager:
        chat = manager.open("a", user_id="ann")
        say(chat, "hello")
        with pytest.raises(SearchUnavailableError, match="SQLite or PostgreSQL, without encryption"):
            manager.search("ann", "hello")
        chat.fork(session_id="b")


def test_only_the_version_of_a_turn_that_is_shown_is_found(manager: SessionManager) -> None:
    chat = manager.open("trip", user_id="ann")
    say(chat, "the train to Paris", "and home")
    chat.rerun("the train to Rome", at=0).wait()
    assert ids(manager, "train") == ["trip#2:1", "trip#2:0"] and ids(manager, "home") == []
    assert [hit.id for hit in manager.search("ann", "train", order="rank")] == ["trip#2:1", "trip#2:0"]
    chat.choose(0)
    assert ids(manager, "train") == ["trip#0:1", "trip#0:0"] and ids(manager, "home") == ["trip#1:1", "trip#1:0"]


def test_members_find_what_others_share_with_them(manager: SessionManager) -> None:
    plan, own = manager.open("plan", user_id="ann", title="The plan"), manager.open("plan", user_id="tom")
    say(plan, "the olive tree")
    say(manager.open("secret", user_id="ann"), "the olive oil")
    say(own, "my olive")

    def found(**filters: Any) -> list[tuple[str, str]]:
        return [(hit.user_id, hit.id) for hit in manager.search("tom", "olive", **filters)]

    mine, shared = [("tom", "plan#0:1"), ("tom", "plan#0:0")], [("ann", "plan#0:1"), ("ann", "plan#0:0")]
    assert found() == mine
    plan.add_member("tom", "reader")
    assert found() == [*mine, *shared] == found(session_id="plan")
    assert set(found(order="rank")) == {*mine, *shared}
    assert found(shared=False) == mine
    assert [hit.title for hit in manager.search("tom", "tree")] == ["The plan"] * 2
    plan.mark(plan.messages()[0], "flag", True)
    assert found(mark="flag") == [("ann", "plan#0:0")]
    for user_id in ("ann", "eve"):
        assert {hit.user_id for hit in manager.search(user_id, "olive")} <= {"ann"} - {"eve"}
    assert not ids(manager, "olive", "eve") and len(ids(manager, "olive")) == 4
    fork = plan.fork(session_id="branch")
    assert found() == [*mine, *shared], "a fork is shared with nobody"
    fork.add_member("tom")
    assert len(found()) == 6
    fork.delete()
    plan.remove_member("tom")
    assert found() == mine
    plan.add_member("tom")
    plan.delete()
    assert found() == mine


async def test_a_member_of_many_users_sessions_finds_each(url: str) -> None:
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        for number in range(70):  # more than one query of the index looks for
            session = await manager.open("s", user_id=f"user-{number}")
            await session.append(f"the olive {number}")
            if number % 2:
                await session.add_member("tom")
        hits, cursor = list[Any](), None
        while True:
            page = await manager.search("tom", "olive", limit=8, cursor=cursor)
            hits += page
            if (cursor := page.cursor) is None:
                break
        assert [hit.user_id for hit in hits] == [f"user-{number}" for number in range(69, 0, -2)]
