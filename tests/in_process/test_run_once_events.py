"""What an event store keeps of runs without a session: their events, until their user is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from turnwise.actors.client.blocking import run_once as once
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.hosting.store_spec import StoreSpec
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.blocks import Text, User
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.urls import open_history

Result = TypeVar("Result")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/events.db"


@pytest.fixture
def manager(tmp_path: Path, url: str) -> Iterator[SessionManager]:
    with SessionManager(f"sqlite:///{tmp_path}/chats.db", history_store=url, **SETTINGS) as manager:
        yield manager


SETTINGS: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}


def read(url: str, work: Callable[[HistoryStore], Awaitable[Result]]) -> Result:
    async def open_and_read() -> Result:
        history = open_history(url)
        try:
            return await work(history)
        finally:
            await history.close()

    return asyncio.run(open_and_read())


def events_of(url: str, run: ExecutionHandle, user_id: str) -> list[AnyEvent]:
    return read(url, lambda history: history.events(SessionKey(run.session_id, user_id)))


def test_the_event_store_keeps_the_events_of_runs_that_are_gone(
    manager: SessionManager, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "ONCE_TTL_S", 0.0)
    monkeypatch.setattr(once, "ONCE_SWEEP_S", 0.0)
    first = manager.run_once("hello", user_id="zoe", labels={"source": "web"})
    assert first.wait().text == "hello"
    manager.run_once("again", user_id="zoe").wait()  # deletes what has expired
    with pytest.raises(SessionNotFoundError):
        first.info()
    assert manager.list().items == ()
    events = events_of(url, first, "zoe")
    assert [event.kind for event in events] == ["run_started", "run_completed"]
    assert {event.labels["source"] for event in events} == {"web"}
    assert rebuild(events) == [User(text="hello"), Text(text="hello")]


def test_to_forget_a_user_deletes_the_events_too(
    manager: SessionManager, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "ONCE_TTL_S", 0.0)
    monkeypatch.setattr(once, "ONCE_SWEEP_S", 0.0)
    gone = manager.run_once("secret", user_id="zoe")
    gone.wait()
    others = manager.run_once("hello", user_id="ann")
    others.wait()
    still = manager.run_once("slow " * 100, user_id="zoe")
    manager.forget("zoe")
    with pytest.raises(SessionNotFoundError):
        still.info()
    assert events_of(url, gone, "zoe") == events_of(url, still, "zoe") == []
    manager.close()  # which waits for what arrives
    assert len(events_of(url, others, "ann")) == 2


async def test_without_an_event_store_nothing_is_kept(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chats.db"
    async with (
        AsyncSessionManager(store, **SETTINGS) as plain,
        AsyncSessionManager(store, history_store=f"sqlite:///{tmp_path}/events.db", **SETTINGS) as keeping,
    ):
        run = await plain.run_once("hello")
        assert (await run).text == "hello"
        assert (await (await keeping.run_once("hello"))).text == "hello"
        assert (await (await plain.execution(run.run_id))).text == "hello"
        with pytest.raises(Exception, match=run.run_id):
            await keeping.execution(run.run_id)
    history = open_history(f"sqlite:///{tmp_path}/events.db")
    assert await history.events(SessionKey(run.session_id)) == []
    await history.close()


async def test_first_calls_at_once_open_as_many_stores_as_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one would never be closed."""
    opened = 0

    def open_store(spec: StoreSpec, runtime: Any) -> Any:
        nonlocal opened
        opened += 1
        return really_open(spec, runtime)

    really_open = StoreSpec.open_store
    monkeypatch.setattr(StoreSpec, "open_store", open_store)
    counts = []
    for calls in (1, 6):
        opened = 0
        async with AsyncSessionManager(f"sqlite:///{tmp_path}/{calls}.db", **SETTINGS) as manager:
            await asyncio.gather(*(manager.run_once(f"hello {number}") for number in range(calls)))
            counts.append(opened)
    assert counts[0] == counts[1]
