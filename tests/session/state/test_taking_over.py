"""A process that activates its session again takes it from nobody: checking and activating are one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.actors.session.core import SessionCore
from turnwise.errors import SessionFencedError, SessionRevertedError, StoreError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.urls import open_store
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.faulty_store import with_faults
from turnwise.testing.scripted_engine import ScriptedEngine


@pytest.fixture(params=["memory", "sqlite"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return open_store("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/a.db")


async def cut_off(inner: SessionStore) -> tuple[SessionCore, Any]:
    """Return a core that does not know whether its last commit was stored, and its store."""
    faults = Faults()
    store: Any = with_faults(inner, faults)
    await inner.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, ScriptedEngine(["one"], repeat=True))
    await core.admission.append(["first"], key="first")
    faults.plan = FaultPlan(rates={"unanswered": 1.0}, limit=1)
    with pytest.raises(StoreError):
        await core.admission.append(["second"], key="second")
    return core, store


def other_core(inner: SessionStore) -> SessionCore:
    return SessionCore(SessionKey("s"), inner, ScriptedEngine(["two"], repeat=True))


async def test_an_owner_that_activates_after_the_check_keeps_the_session(inner: SessionStore) -> None:
    core, store = await cut_off(inner)
    second_core, get = other_core(inner), store.get

    async def overtaken(session_id: str) -> SessionRecord:
        row: SessionRecord = await get(session_id)
        store.get = get
        await second_core.admission.append(["third"], key="third")
        return row

    store.get = overtaken
    with pytest.raises(SessionFencedError):
        await core.admission.append(["lost"], key="lost")
    assert core.ownership.is_lost
    await second_core.admission.append(["fourth"], key="fourth")
    assert (await inner.get(SessionKey("s"))).log_size == 4
    await inner.close()


async def test_an_owner_after_an_activation_that_failed_keeps_the_session(inner: SessionStore) -> None:
    core, store = await cut_off(inner)
    store.faults.plan = FaultPlan(rates={"error": 1.0}, points=("store.activate before",))
    with pytest.raises(StoreError):
        await core.transactor.activate()
    store.faults.plan = FaultPlan()
    second_core = other_core(inner)
    await second_core.admission.append(["third"], key="third")
    with pytest.raises(SessionFencedError):
        await core.transactor.activate()
    await second_core.admission.append(["fourth"], key="fourth")
    await inner.close()


async def test_a_process_knows_its_own_activation_although_the_answer_was_lost(inner: SessionStore) -> None:
    core, store = await cut_off(inner)
    store.faults.plan = FaultPlan(rates={"error": 1.0}, points=("store.activate after",))
    for _ in range(3):
        with pytest.raises(StoreError):
            await core.transactor.activate()
    store.faults.plan = FaultPlan()
    await core.admission.append(["third"], key="third")
    assert (await inner.get(SessionKey("s"))).log_size == 3
    await inner.close()


async def test_a_commit_that_arrives_after_the_check_is_the_process_s_own(inner: SessionStore) -> None:
    core, store = await cut_off(inner)
    await core.transactor.activate()
    commit, get, late = store.commit, store.get, list[Any]()

    async def delayed(*args: Any) -> None:
        late.append(args)
        raise StoreError("no answer came")

    async def meanwhile(session_id: str) -> SessionRecord:
        row: SessionRecord = await get(session_id)
        store.commit, store.get = commit, get
        await inner.commit(*late[0])
        return row

    store.commit = delayed
    with pytest.raises(StoreError):
        await core.admission.append(["third"], key="third")
    store.get = meanwhile
    assert await core.admission.append(["third"], key="third") == 0
    assert (await inner.get(SessionKey("s"))).log_size == 3
    await inner.close()


async def test_what_a_reversion_finds_is_taken_from_nobody(inner: SessionStore) -> None:
    core, store = await cut_off(inner)
    core.state.journal._is_reverted = True  # noqa: SLF001 - as a restore makes it known
    second_core, activate = other_core(inner), store.activate

    async def overtaken(*args: Any, **kwargs: Any) -> Any:
        store.activate = activate
        await second_core.admission.append(["third"], key="third")
        return await activate(*args, **kwargs)

    store.activate = overtaken
    with pytest.raises((SessionFencedError, SessionRevertedError)):
        await core.transactor.activate()
    await second_core.admission.append(["fourth"], key="fourth")
    await inner.close()
