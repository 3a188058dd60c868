"""What a report of a deletion counts, and when it is verified."""

from pathlib import Path
from typing import Any

import pytest

from engines import ScriptedEngine
from stored.open_stores import closing
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.longterm.retention.deletion import Erasure
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return InMemoryStore() if request.param == "memory" else SQLStore(f"sqlite:///{tmp_path}/store.db")


async def talk(store: Any, turns: int) -> SessionCore:
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, ScriptedEngine())
    for index in range(turns):
        run = await core.admission.start(["hello"], run_id=f"r{index}")
        await core.reads.wait(run.run_id)
    return core


async def test_the_report_of_a_deleted_session_counts_its_turns(store: Any) -> None:
    async with closing(store):
        core = await talk(store, 2)
        report = await core.forgetting.delete()
        assert (report.sessions, report.turns) == (1, 2) and not report.verified
        core = await talk(store, 0)
        assert (await core.forgetting.delete()).turns == 0


async def test_a_deletion_is_verified_where_there_is_no_memory(store: Any) -> None:
    async with closing(store):
        core = await talk(store, 3)
        assert (await core.forgetting.forget_turn(0, verify=True)).verified
        assert not (await core.forgetting.forget_turn(1)).verified, "nobody asked"
        assert (await core.forgetting.clear(verify=True)).verified
        assert not (await core.forgetting.delete(memory=False, verify=True)).verified, "memories keep what they have"


def test_a_memory_that_was_not_verified_leaves_a_deletion_unverified() -> None:
    clean = Erasure(items=1, files=1, found=(), verified=True)
    assert Forgotten(items={"a": 1}, erased={"a": clean}, was_checked=True).verified
    assert not Forgotten(items={"a": 1, "b": 1}, erased={"a": clean}, was_checked=True).verified
    total = Forgotten(was_checked=True) + Forgotten(sessions=1, turns=2)
    assert total.verified and (total.sessions, total.turns) == (1, 2)


def test_a_verified_deletion_does_not_hide_another_one_of_the_same_memory() -> None:
    clean = Erasure(items=1, files=2, found=(), verified=True)
    dirty = Erasure(items=2, files=1, found=("a.db",), verified=False)
    parts = [Forgotten(items={"a": part.items}, erased={"a": part}, was_checked=True) for part in (dirty, clean)]
    for total in (parts[0] + parts[1], parts[1] + parts[0]):
        assert total.erased["a"] == Erasure(items=3, files=2, found=("a.db",), verified=False)
        assert total.items == {"a": 3} and not total.verified


def test_a_deletion_that_nobody_verified_is_not_hidden() -> None:
    clean = Erasure(items=1, files=1, found=(), verified=True)
    checked = Forgotten(items={"a": 1}, erased={"a": clean}, was_checked=True)
    for total in (checked + Forgotten(items={"a": 2}), Forgotten(items={"a": 2}) + checked):
        assert not total.verified and total.erased["a"].items == 3
    assert (checked + Forgotten(items={"a": 0})).verified
