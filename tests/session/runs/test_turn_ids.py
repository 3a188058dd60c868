"""Turns with an id of the caller's own."""

from __future__ import annotations

import pytest

from engines import ScriptedEngine
from schedules import SESSION
from turnwise.actors.session.core import SessionCore
from turnwise.errors import SessionBusyError, TurnIdTakenError, TurnNotFoundError
from turnwise.memory.conversation.events import RunQueued, RunStarted
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: object) -> SessionStore:
    return InMemoryStore() if request.param == "memory" else SQLStore(f"sqlite:///{tmp_path}/s.db")


async def a_core(store: SessionStore) -> SessionCore:
    await store.create(SessionRecord(session_id=SESSION))
    return SessionCore(SessionKey(SESSION), store, ScriptedEngine())


async def test_a_turn_is_found_by_its_own_id_also_by_the_next_process(store: SessionStore) -> None:
    core = await a_core(store)
    await core.admission.append(["earlier"], key="k")
    await core.admission.start(["hello"], run_id="a", turn_id="turn-1")
    await core.reads.wait("a")
    for session_core in (core, SessionCore(SessionKey(SESSION), store, ScriptedEngine())):
        turn = await session_core.reads.turn("turn-1")
        assert (turn.index, turn.turn_id, turn.run_id) == (0, "turn-1", "a")
        assert turn == await session_core.reads.turn(0)
        with pytest.raises(TurnNotFoundError, match="'turn-2'"):
            await session_core.reads.turn("turn-2")
    (started,) = [event for event in await store.events(SessionKey(SESSION)) if isinstance(event, RunStarted)]
    assert (started.turn_id, started.turn_index, started.run_id) == ("turn-1", 0, "a")
    await store.close()


async def test_an_id_that_the_session_had_is_refused_and_nothing_is_stored(store: SessionStore) -> None:
    core = await a_core(store)
    first = await core.admission.start(["hello"], run_id="a", turn_id="t")
    assert await core.admission.start(["hello"], run_id="a", turn_id="t") == first, "the second delivery of a start"
    await core.reads.wait("a")
    before = await store.events(SessionKey(SESSION))
    for session_core in (core, SessionCore(SessionKey(SESSION), store, ScriptedEngine())):
        with pytest.raises(TurnIdTakenError, match=r"'t'.*'a'"):
            await session_core.admission.start(["other"], run_id="b", turn_id="t")
        assert await store.events(SessionKey(SESSION)) == before
        assert await session_core.admission.start(["hello"], run_id="a", turn_id="t") == first
    await session_core.admission.start(["other"], run_id="b", turn_id="u")
    await session_core.reads.wait("b")
    assert [turn.turn_id for turn in await session_core.reads.turns()] == ["t", "u"]
    await store.close()


async def test_a_queued_turn_has_its_id_and_a_discarded_one_keeps_it_taken(store: SessionStore) -> None:
    core = await a_core(store)
    await core.admission.start(["slow 500"], run_id="a", turn_id="one")
    with pytest.raises(SessionBusyError):
        await core.admission.start(["x"], run_id="x", turn_id="two")
    await core.admission.start(["y"], run_id="b", turn_id="two", if_busy="enqueue")
    assert (await core.reads.turn("two")).run_id == "b"
    await core.admission.start(["z"], run_id="c", turn_id="three", if_busy="rollback")
    await core.reads.wait("c")
    for turn_id in ("one", "two"):
        with pytest.raises(TurnNotFoundError):
            await core.reads.turn(turn_id)
        with pytest.raises(TurnIdTakenError):
            await core.admission.start(["again"], run_id="d", turn_id=turn_id)
        with pytest.raises(TurnIdTakenError):
            await core.admission.check_start(["again"], run_id="d", turn_id=turn_id)
    assert await core.admission.check_start(["again"], run_id="d", turn_id="four") is None
    queued = [event for event in await store.events(SessionKey(SESSION)) if isinstance(event, RunQueued)]
    assert [event.turn_id for event in queued] == ["two", "three"]
    assert [turn.turn_id for turn in await core.reads.turns()] == ["three"]
    await store.close()


async def test_a_fork_has_ids_of_its_own() -> None:
    store = InMemoryStore()
    core = await a_core(store)
    await core.admission.start(["hello"], run_id="a", turn_id="t")
    await core.reads.wait("a")
    await core.forking.fork(None, "fork")
    fork = SessionCore(SessionKey("fork"), store, ScriptedEngine())
    await fork.admission.start(["again"], run_id="b", turn_id="t")
    await fork.reads.wait("b")
    assert (await fork.reads.turn("t")).run_id == "b"
