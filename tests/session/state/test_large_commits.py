"""A commit may have any number of events: followers of a session get each of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from stored.sql_traffic import listening
from turnwise.actors.hosting.stored_source import StoredSource
from turnwise.actors.session.core import SessionCore
from turnwise.errors import StoreError
from turnwise.memory.conversation.events import PromptAppended, RunStarted
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.providers.message_reading import read_messages
from turnwise.memory.stores.urls import open_store
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.faulty_store import with_faults
from turnwise.testing.scripted_engine import ScriptedEngine

TURNS = 1_020

pytestmark = pytest.mark.usefixtures("quiet")


def conversation(turns: int) -> Any:
    pairs = [[{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": f"a{n}"}] for n in range(turns)]
    return read_messages([message for pair in pairs for message in pair])


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_follower_gets_all_events_of_a_commit_without_an_answer(
    kind: str, history: bool, tmp_path: Path
) -> None:
    faults = Faults()
    inner = open_store("memory://" if kind == "memory" else f"sqlite:///{tmp_path}/a.db")
    store = with_faults(inner, faults)
    events_apart = InMemoryHistory() if history else None
    await inner.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, ScriptedEngine(["one"]), history=events_apart)
    await core.admission.append(["first"], key="first")
    await core.admission.start([], run_id="run")
    await core.reads.wait("run", 60.0)
    _, after, _ = await core.reads.events()
    faults.plan = FaultPlan(rates={"unanswered": 1.0}, limit=1)
    with pytest.raises(StoreError):
        await core.importing.import_turns(conversation(TURNS))
    received: list[Any] = []
    while (page := await core.reads.events(after, 700))[0]:
        received += page[0]
        after = page[1]
    assert [event.turn_index for event in received] == list(range(1, TURNS + 1))
    assert await core.importing.import_turns(conversation(TURNS)) == TURNS
    stored, again, after = StoredSource(SessionKey("s"), inner, events_apart), list[Any](), 0
    while events := list(await stored.stored_events(after, 700)):
        again += events
        after = events[-1].seq
    assert len(again) == TURNS + 3
    if core.state.journal.forwarder:
        await core.state.journal.forwarder.flush(60.0)
        assert core.state.journal.forwarder.copied == again[-1].seq
    await inner.close()


async def test_a_history_replaces_more_events_than_a_statement_takes_values(tmp_path: Path) -> None:
    most, count = 2_000, 3_000
    history = SQLHistory(f"sqlite:///{tmp_path}/events.db")
    places = (("s", 0, 1),)
    events = [
        RunStarted(session_id="s", seq=seq, at=1.0, turn_index=seq, run_id=f"r{seq}", input=places)
        for seq in range(1, count + 1)
    ]
    first = PromptAppended(session_id="s", seq=count + 1, at=1.0, turn_index=0)
    with listening("connect", lambda driver, _: driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, most)):
        await history.append(SessionKey("s"), [*events, first])
    bare = [event.model_copy(update={"input": None}) for event in events]
    await history.delete(SessionKey("s"), turns_up_to=0, instead=bare)
    last = await history.events(SessionKey("s"), after=count - 1)
    assert [(event.seq, getattr(event, "input", 0)) for event in last] == [(count, None)]
    assert len(await history.events(SessionKey("s"), limit=count + 1)) == count
    await history.close()
