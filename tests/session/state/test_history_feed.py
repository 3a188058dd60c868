"""Events in a store of their own, behind the commits of the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from engines import ScriptedEngine
from schedules import SESSION
from stored.audit import check_session, events_of
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.stored_source import StoredSource
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state import event_forwarder as history_feed, journal, ownership
from turnwise.actors.session.state.reads import SessionReads
from turnwise.errors import ConfigError, CorruptRecordError, SessionFencedError, SessionNotFoundError, StoreError
from turnwise.memory.conversation.events import without_blocks
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore


class Failing(InMemoryHistory):
    """A history that takes nothing while it is down."""

    down = True

    async def append(self, *args: Any) -> None:
        if self.down:
            raise StoreError("the history is away")
        await super().append(*args)


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 30))


async def core_with(history: Any) -> tuple[SessionCore, InMemoryStore]:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))
    return SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history), store


async def run(core: SessionCore, *names: str) -> None:
    for name in names:
        await core.admission.start([name], run_id=name)
        await core.reads.wait(name)


async def test_events_move_to_the_history_and_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 30: pages go through both stores, in order, without gap or duplicate."""
    monkeypatch.setattr(journal, "DELETE_EVERY", 1)

    history = InMemoryHistory()
    core, store = await core_with(history)
    plain, _ = await core_with(None)
    for session_core in (core, plain):
        await session_core.admission.append(["appended"], key="key")
        for name in "abcdef":
            await run(session_core, name)
            await asyncio.sleep(0.01)
    keys = [event.key for event in await store.events(SessionKey(SESSION))]
    assert len(keys) < 4 and "key" in keys, "copied events leave the store, except events with keys"
    assert await core.admission.append(["appended"], key="key") == 0
    again = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history)
    for limit in (1, 3, 5, 100):
        events: list[Any] = []
        while page := (await again.reads.events(events[-1].seq if events else 0, limit))[0]:
            events += page
        shown = [(event.kind, getattr(event, "text", "")) for event in events if not event.live]
        expected = [(event.kind, getattr(event, "text", "")) for event in (await plain.reads.events())[0]]
        assert shown == [event for event in expected if event[0] != "text_delta"]
    await check_session(store, SESSION, history=history)


async def test_a_history_that_is_away_fails_no_run_and_is_caught_up(caplog: pytest.LogCaptureFixture) -> None:
    """Case 59: a failing sink fails no run; its events wait in the session's store, across processes too."""

    history = Failing()
    core, store = await core_with(history)
    await run(core, "a", "b")
    await asyncio.sleep(0.1)
    assert len(await store.events(SessionKey(SESSION))) == 4 and await history.last_seq(SessionKey(SESSION)) == 0
    assert len([record for record in caplog.records if "history" in record.message]) == 1, "the failure is logged once"
    history.down = False
    again = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history)
    await again.transactor.activate()
    while len(await history.events(SessionKey(SESSION))) < 4:
        await asyncio.sleep(0.01)
    assert [event.kind for event in await events_of(store, SessionKey(SESSION), history)] == [
        "run_started",
        "run_completed",
    ] * 2


async def test_deleting_a_session_deletes_its_history() -> None:
    history = InMemoryHistory()
    core, _ = await core_with(history)
    await run(core, "a")
    while not await history.last_seq(SessionKey(SESSION)):
        await asyncio.sleep(0.01)
    await core.forgetting.delete()
    assert await history.events(SessionKey(SESSION)) == []


async def test_a_process_that_leaves_first_hands_its_events_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_feed, "PAGE", 1)

    history = InMemoryHistory()
    core, store = await core_with(history)
    await run(core, "a", "b")
    assert await core.ownership.leave()
    copied = await history.events(SessionKey(SESSION))
    assert list(map(without_blocks, copied)) == await store.events(SessionKey(SESSION))
    head = core.state.head
    assert head and rebuild(copied) == list(
        (await SessionReads(StoredSource(SessionKey(SESSION), store, None)).turn(head.index)).blocks
    )


def test_sessions_on_ray_keep_conversations_and_events_apart(
    make_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    chat = make_manager(history_store=url).open("chat")
    first = chat.run("hello")
    first.wait(30)
    kinds = [event.kind for event in first.events()]
    chat.run("again").wait(30)

    async def stored() -> tuple[list[str], int]:
        history, store = SQLHistory(url), SQLStore(f"sqlite:///{tmp_path}/chats.db")
        try:
            while len(events := await history.events(SessionKey("chat"))) < 4:
                await asyncio.sleep(0.05)
            return [event.kind for event in events], len(await store.turns(SessionKey("chat")))
        finally:
            await history.close()
            await store.close()

    assert asyncio.run(stored()) == (["run_started", "run_completed"] * 2, 2)
    assert kinds[0] == "run_started" and kinds[-1] == "run_completed"
    with pytest.raises(ConfigError, match="history_store"):
        make_manager(history_store="memory://here")


@pytest.mark.parametrize("down", [False, True])
async def test_a_session_that_has_left_leaves_nothing_running(down: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed host lives on: thousands come and go there, also while the history is away."""
    monkeypatch.setattr(ownership, "FLUSH_S", 0.05)

    before = asyncio.all_tasks()
    history = Failing()
    history.down = down
    core, store = await core_with(history)
    await run(core, "a", "b")
    assert await core.ownership.leave() and await core.ownership.leave()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert await history.last_seq(SessionKey(SESSION)) == (
        0 if down else (await store.events(SessionKey(SESSION)))[-1].seq
    )
    history.down = False
    again = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history)
    await again.transactor.activate()
    await again.ownership.leave()
    assert len(await history.events(SessionKey(SESSION))) == 4


async def test_a_session_is_deleted_without_its_events_once_the_history_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "FLUSH_S", 0.05)
    monkeypatch.setattr(history_feed, "FIRST_PAUSE_S", 0.01)
    history = Failing()
    core, store = await core_with(history)
    await run(core, "a")
    with pytest.raises(StoreError, match=f"'{SESSION}'.*try again"):
        await core.forgetting.delete(keeps_events=True)
    assert len(await store.events(SessionKey(SESSION))) == 2, "nothing was deleted"
    await run(core, "b")
    history.down = False
    monkeypatch.setattr(journal, "FLUSH_S", 30.0)
    assert (await core.forgetting.delete(keeps_events=True)).sessions == 1
    assert len(await history.events(SessionKey(SESSION))) == 4
    with pytest.raises(SessionNotFoundError):
        await store.get(SessionKey(SESSION))


async def test_an_owner_that_was_cut_off_deletes_no_history() -> None:
    """Case 47: its deletion is refused, and so it has to leave everything."""

    history = InMemoryHistory()
    stale, store = await core_with(history)
    await run(stale, "a")
    owner = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history)
    await run(owner, "b")
    await owner.ownership.leave()
    with pytest.raises(SessionFencedError):
        await stale.forgetting.delete()
    assert len(await history.events(SessionKey(SESSION))) == 4


async def test_a_deletion_that_fails_loses_no_event_of_those_that_the_store_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "DELETE_EVERY", 1)

    history = InMemoryHistory()
    core, store = await core_with(history)
    await run(core, "a")
    while await history.last_seq(SessionKey(SESSION)) < (await store.events(SessionKey(SESSION)))[-1].seq:
        await asyncio.sleep(0)

    async def fail(*_: Any, **__: Any) -> None:
        raise StoreError("away")

    monkeypatch.setattr(store, "delete", fail)
    with pytest.raises(StoreError, match="away"):
        await core.forgetting.delete()
    stored_seqs = [event.seq for event in await store.events(SessionKey(SESSION))]
    await run(core, "b", "c")
    await core.ownership.leave()
    seqs = {
        event.seq for event in (*await history.events(SessionKey(SESSION)), *await store.events(SessionKey(SESSION)))
    }
    assert seqs >= set(stored_seqs) and len(seqs) == len(stored_seqs) + 4


async def test_the_history_of_a_session_that_cannot_be_read_is_deleted_too() -> None:
    history, key = InMemoryHistory(), SessionKey(SESSION)
    core, store = await core_with(history)
    await run(core, "a")
    while not await history.last_seq(key):
        await asyncio.sleep(0)

    async def unreadable(*_: Any, **__: Any) -> Any:
        raise CorruptRecordError(f"session {SESSION!r}", "damaged")

    for verb in ("get", "activate", "state"):
        setattr(store, verb, unreadable)
    core = SessionCore(key, store, ScriptedEngine(), history=history)
    assert (await core.forgetting.delete()).sessions == 1
    assert await store.count() == 0 == await history.last_seq(key)
