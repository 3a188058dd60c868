"""The title and the metadata of a session can be changed, also while it runs and through crashes."""

from __future__ import annotations

import pytest

from engines import ScriptedEngine
from scale import of_cases
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.frozen_json import freeze
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.faulty_engine import FaultyEngine
from turnwise.testing.world import World


async def new_core(**values: object) -> tuple[SessionCore, InMemoryStore]:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s", **values))  # type: ignore[arg-type]
    return SessionCore(SessionKey("s"), store, ScriptedEngine(), SessionConfig(max_metadata_bytes=60)), store


async def test_metadata_is_merged_or_replaced_and_a_title_is_kept_changed_or_removed() -> None:
    core, store = await new_core(metadata=freeze({"a": 1, "b": None, "c": {"deep": 1}}))
    changed = await core.row.update("Paris", {"a": None, "c": {"other": 2}, "d": [1]})
    assert (changed.title, changed.metadata) == ("Paris", {"b": None, "c": {"other": 2}, "d": (1,)})
    assert await store.get(SessionKey("s")) == changed
    assert await core.row.update(None, None) == changed, "nothing to change stores nothing"
    changed = await core.row.update(None, {"x": None}, merge=False)
    assert (changed.title, changed.metadata) == ("Paris", {"x": None})
    assert (await core.row.update("", None)).title is None


async def test_metadata_that_are_too_large_together_are_refused_and_nothing_is_changed() -> None:
    core, store = await new_core(metadata=freeze({"a": "x" * 20}))
    before = (await core.row.update("kept", None)).metadata
    for metadata in ({"b": "y" * 40}, {"turnwise.sealed": "tw1:", "a": None}):
        with pytest.raises(InvalidInputError, match="metadata"):
            await core.row.update("not kept", metadata)
    session = await store.get(SessionKey("s"))
    assert (session.title, session.metadata) == ("kept", before)
    await core.row.update(None, {"b": "y" * 40}, merge=False)


async def test_a_running_and_an_ended_session_can_be_renamed() -> None:
    core, store = await new_core()
    await core.admission.start(["slow 100000"], run_id="run")
    await core.row.update("while it runs", None)
    await core.admission.cancel("enough")
    await core.admission.end_session()
    await core.row.update(None, {"after": "the end"})
    session = await store.get(SessionKey("s"))
    assert (session.title, session.metadata, session.status) == ("while it runs", {"after": "the end"}, "ended")


@pytest.mark.usefixtures("quiet")
def test_no_fault_at_any_point_loses_a_change() -> None:
    async def life(faults: Faults) -> None:
        world = World(faults, engine=FaultyEngine(faults, word_s=0.01))
        await world.create()
        await world.ask("row.update", "first", {"a": 1})
        await world.start("one", timeout_s=5.0)
        await world.ask("row.update", None, {"b": 2})
        await world.wait("one")
        await world.ask("row.update", "last", {"a": None})
        session = await world.store.inner.get(SessionKey("session"))
        assert (session.title, session.metadata) == ("last", {"b": 2})
        (await world.audit()).check()

    assert exhaust(life, **of_cases())["kill"] > 20
