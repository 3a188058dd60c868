"""Subscriptions over HTTP hand out each event once, whatever becomes of their stream."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patience import within
from servers.cuts import Cuts, Ends, Refusal
from servers.over_http import over_http
from servers.threaded_service import served
from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.actors.client import event_push
from turnwise.client import AsyncRemoteManager, RemoteManager
from turnwise.client.blocking import subscription as blocking_subscription
from turnwise.errors import InvalidInputError, OperatorsOnlyError, SessionNotFoundError, SessionOwnerError
from turnwise.http import BearerTokens, Identity
from turnwise.http.native import events as routes
from turnwise.memory.conversation.events import AnyEvent

until = within(30.0)

TOKENS: dict[str, str | Identity] = {"the-token-of-ann": "ann", "the-token-of-root": Identity("root", is_operator=True)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store = f"sqlite:///{tmp_path_factory.mktemp('subscriptions')}/chats.db"
    with served(store, engine=EchoEngine(), placement=InProcess(), auth=BearerTokens(TOKENS)) as service:
        yield service


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams say cursors often, and pauses between attempts are short."""
    monkeypatch.setattr(routes, "CURSOR_S", 0.02)
    for module in (event_push, blocking_subscription):
        monkeypatch.setattr(module, "AGAIN_S", 0.001)


def seqs(events: list[AnyEvent], session_id: str) -> list[int]:
    return [event.seq for event in events if event.session_id == session_id]


def stored(manager: SessionManager | RemoteManager, session_id: str, user_id: str = "ann") -> list[int]:
    return [event.seq for event in manager.get(session_id, user_id=user_id).events() if not event.live]


def test_users_get_their_own_events_and_operators_those_of_all(service: Any) -> None:
    of_ann, of_all, of_one = list[AnyEvent](), list[AnyEvent](), list[AnyEvent]()
    with (
        RemoteManager(service.url, token="the-token-of-ann") as ann,
        RemoteManager(service.url, token="the-token-of-root") as root,
    ):
        with pytest.raises(OperatorsOnlyError):
            ann.subscribe(print, user_id="bob")
        for verb in (ann.hosts, ann.sweep, lambda: ann.drain("node")):
            with pytest.raises(OperatorsOnlyError):
                verb()
        root.open("first", user_id="bob").run("before").wait()
        with (
            ann.subscribe(of_ann.append),
            root.subscribe(of_all.append, kinds=["run_completed"]),
            root.subscribe(of_one.append, session_id="first", user_id="bob") as one,
        ):
            ann.open("own").run("hello").wait()
            root.get("first", user_id="bob").run("after").wait()
            until(lambda: len(of_all) == 2 and of_one and of_one[-1].kind == "run_completed")
            until(lambda: seqs(of_ann, "own") == stored(root, "own"))
        assert {event.user_id for event in of_ann} == {"ann"} and {event.user_id for event in of_all} == {"ann", "bob"}
        assert seqs(of_one, "first") == stored(root, "first", "bob")[-len(of_one) :]
        root.get("first", user_id="bob").run("missed").wait()
        later = list[AnyEvent]()
        with root.subscribe(later.append, session_id="first", user_id="bob", cursor=one.cursor):
            until(lambda: later and later[-1].kind == "run_completed")
        assert [event.text for event in later if event.kind == "run_completed"] == ["missed"]


def test_what_cannot_be_subscribed_to_is_refused_at_once(service: Any) -> None:
    with RemoteManager(service.url, token="the-token-of-ann") as ann:
        ann.open("refused")
        with pytest.raises(SessionNotFoundError):
            ann.subscribe(print, session_id="nowhere")
        with pytest.raises(SessionOwnerError):
            ann.subscribe(print, session_id="refused", agent="another")
        for wrong in ({"cursor": "no cursor"}, {"kinds": ["no kind"]}, {"labels": {"a": 1}}, {"if_raises": "perhaps"}):
            with pytest.raises(InvalidInputError):
                ann.subscribe(print, **wrong)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("pieces", [1, 2, 3, 5])
def test_a_stream_that_is_cut_hands_out_each_event_once(tmp_path: Path, pieces: int) -> None:
    cuts, events = Cuts(), list[AnyEvent]()
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), through=cuts.through) as manager:
        chats = [manager.open(f"chat {number}", user_id="ann") for number in range(3)]
        with manager.subscribe(events.append, user_id="ann"):
            cuts.then(always=pieces)
            for number in range(4):
                for chat in chats:
                    chat.append(f"prompt {number}")
                    chat.add_event("custom")
            cuts.then()
            until(lambda: all(seqs(events, chat.session_id) == stored(manager, chat.session_id) for chat in chats))


@pytest.mark.usefixtures("quick")
def test_where_no_stream_comes_through_pages_have_the_events(tmp_path: Path) -> None:
    """An answer is cut after half an event, or refused, as by a proxy that knows no streams."""
    cuts, events = Cuts(), list[AnyEvent]()
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), through=cuts.through) as manager:
        chat = manager.open("chat", user_id="ann")
        with manager.subscribe(events.append, user_id="ann"):
            cuts.then(*[Ends(5), None, Refusal(429, "too_many_streams"), None] * 3, path="/v1/events")
            for number in range(6):
                chat.add_event(f"event {number}")
            until(lambda: seqs(events, "chat") == stored(manager, "chat"))


@pytest.mark.usefixtures("quick")
def test_a_function_that_raises_gets_its_event_again_over_http(tmp_path: Path) -> None:
    calls, cursors = list[int](), list[str]()
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()) as manager:
        chat = manager.open("chat", user_id="ann")

        def fails_twice(event: AnyEvent) -> None:
            calls.append(event.seq)
            cursors.append(subscription.cursor)
            if len(calls) <= 2:
                raise RuntimeError

        subscription = manager.subscribe(fails_twice, user_id="ann")
        chat.add_event("one")
        chat.add_event("two")
        until(lambda: len(calls) == 4)
        assert calls == [calls[0]] * 3 + [calls[0] + 1] and cursors[0] == cursors[2] != cursors[3]
        subscription.close()
        subscription.close()
        chat.add_event("three")
        events = list[AnyEvent]()
        with manager.subscribe(events.append, user_id="ann", cursor=cursors[2]):
            until(lambda: len(events) == 3)
        assert [event.seq for event in events] == stored(manager, "chat")[-3:] and len(calls) == 4


def test_closing_waits_for_the_call_that_is_running(tmp_path: Path) -> None:
    began, may_end, done = threading.Event(), threading.Event(), list[int]()
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()) as manager:

        def slow(event: AnyEvent) -> None:
            began.set()
            may_end.wait(30.0)
            done.append(event.seq)

        subscription = manager.subscribe(slow, user_id="ann")
        chat = manager.open("chat", user_id="ann")
        chat.add_event("one")
        chat.add_event("two")
        assert began.wait(30.0)
        closing = threading.Thread(target=subscription.close)
        closing.start()
        may_end.set()
        closing.join()
        assert len(done) == 1


async def test_coroutines_subscribe_too_and_close_while_nothing_comes(service: Any) -> None:
    async with AsyncRemoteManager(service.url, token="the-token-of-ann") as manager:
        events: asyncio.Queue[AnyEvent] = asyncio.Queue()
        subscription = await manager.subscribe(events.put)
        chat = await manager.open("coroutines")
        await chat.add_event("one")
        assert (await events.get()).session_id == "coroutines"
        await subscription.close()
        await manager.subscribe(events.put)  # closed with its manager


def test_cursors_of_both_kinds_of_managers_are_alike(tmp_path: Path) -> None:
    store, settings = f"sqlite:///{tmp_path}/chats.db", {"engine": EchoEngine(), "placement": InProcess()}
    events = list[AnyEvent]()
    with SessionManager(store, **settings) as local:  # type: ignore[arg-type]
        chat = local.open("chat", user_id="ann")
        with local.subscribe(events.append, user_id="ann") as first:
            chat.add_event("one")
            until(lambda: len(events) == 1)
        chat.add_event("two")
    with over_http(store, engine=EchoEngine()) as remote:
        with remote.subscribe(events.append, user_id="ann", cursor=first.cursor) as second:
            until(lambda: len(events) == 2)
        remote.get("chat", user_id="ann").add_event("three")
    with (
        SessionManager(store, **settings) as local,  # type: ignore[arg-type]
        local.subscribe(events.append, user_id="ann", cursor=second.cursor),
    ):
        until(lambda: len(events) == 3)
    assert [event.name for event in events if event.kind == "custom"] == ["one", "two", "three"]


def test_an_operator_sweeps_and_sees_processes(tmp_path: Path) -> None:
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()) as manager:
        manager.open("old", user_id="ann", ttl_s=0.001)
        manager.open("new", user_id="ann").run("hello").wait()
        (host,) = manager.hosts()
        assert host.is_packed and host.pid and host.load and ("new", "ann") in host.load.recent
        swept = [*manager.sweep().deleted]
        while not swept:
            swept += manager.sweep().deleted
        assert swept == [("old", "ann")] and manager.count(user_id="ann") == 1
        with pytest.raises(InvalidInputError, match="without an archive"):
            manager.sweep(tmp_path)
        with pytest.raises(InvalidInputError, match="name one"):
            manager.drain()


def test_a_sweep_over_http_is_many_requests_of_which_each_has_a_short_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwise.client.blocking.manager.PAGE", 2)
    names = [f"s{number}" for number in range(5)]
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()) as manager:
        for name in (*names, "more", "last"):
            manager.open(name, user_id="ann", ttl_s=0.001)
        manager.open("new", user_id="ann")
        sizes = list[int]()
        connection: Any = manager._connection  # type: ignore[attr-defined] # noqa: SLF001 - which sends each request
        ask = connection.ask

        def noted(request: Any, *args: Any) -> Any:
            answer = ask(request, *args)
            if request.path.endswith("sweep"):
                sizes.append(sum(len(answer.data[outcome]) for outcome in ("deleted", "busy", "used", "failed")))
            return answer

        monkeypatch.setattr(connection, "ask", noted)
        first = manager.sweep(limit=3)
        assert sizes == [2, 1] and first.cursor
        second = manager.sweep(cursor=first.cursor, limit=2)
        rest = manager.sweep(cursor=second.cursor)
        assert sizes == [2, 1, 2, 2] and rest.cursor is None
        swept = [key.session_id for key in (first + second + rest).deleted]
        assert swept == [*names, "more", "last"] and manager.count() == 1
        with pytest.raises(InvalidInputError, match="cursor"):
            manager.sweep(cursor="nowhere")
        with pytest.raises(InvalidInputError, match="limit"):
            manager.sweep(limit=0)
