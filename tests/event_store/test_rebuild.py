"""Conversations that are rebuilt from their events alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines import ScriptedEngine
from turnwise.actors.session.core import SessionCore
from turnwise.errors import TranscriptError
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.blocks import Block, Summary, User
from turnwise.memory.conversation.events import AnyEvent, RunStarted, SessionReverted, WindowCompacted
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.encrypted import EncryptedHistory
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.strategies.trim import Trim


@pytest.fixture(params=["memory", "sqlite", "encrypted"])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> HistoryStore:
    if request.param == "memory":
        return InMemoryHistory()
    stored = SQLHistory(f"sqlite:///{tmp_path}/h.db")
    return stored if request.param == "sqlite" else EncryptedHistory(stored, Encryption(lambda _: bytes(32)))


async def a_core(store: Any, history: Any, session_id: str = "s", **parts: Any) -> SessionCore:
    if session_id == "s":
        await store.create(SessionRecord(session_id=session_id))
    return SessionCore(SessionKey(session_id), store, ScriptedEngine(), history=history, **parts)


async def say(core: SessionCore, *prompts: str, **options: Any) -> list[Block]:
    """Run the prompts, one after the other; return the blocks of the last turn."""
    for prompt in prompts:
        await core.admission.start([prompt], run_id=f"{core.session_id} {prompt}", **options)
        outcome = await core.reads.wait(f"{core.session_id} {prompt}")
        assert outcome.run.state == "completed", outcome
    turn = await core.reads.latest()
    assert turn
    return list(turn.blocks)


async def stored_events(core: SessionCore, history: HistoryStore) -> Sequence[AnyEvent]:
    """Return what the event store has, once it has all events."""
    forwarder = core.state.journal.forwarder
    assert forwarder
    await forwarder.flush(10)
    return await history.events(core.state.key)


async def test_a_history_is_enough_to_rebuild_the_conversation(history: HistoryStore) -> None:
    core = await a_core(InMemoryStore(), history)
    await core.admission.append(["earlier"], key="k")
    blocks = await say(core, "one", "two")
    events = await stored_events(core, history)
    assert rebuild(events) == blocks
    assert [block.text for block in blocks if isinstance(block, User)] == ["earlier", "one", "two"]
    assert rebuild(events[:2]) == blocks[:2], "the prompts of the first run, before its answer"
    of_two = await history.events(SessionKey("s"), run_id="s two")
    assert rebuild(of_two) == blocks[-2:], "one run's own part"
    (first,) = [event for event in events if event.kind == "prompt_appended"]
    assert first.blocks == (User(text="earlier"),)
    await history.close()


async def test_a_discarded_turn_is_not_rebuilt(history: HistoryStore) -> None:
    core = await a_core(InMemoryStore(), history)
    blocks = await say(core, "one")
    await core.admission.start(["slow 500"], run_id="slow")
    assert rebuild(await stored_events(core, history)) == [*blocks, User(text="slow 500")]
    after = await say(core, "three", if_busy="rollback")
    assert rebuild(await stored_events(core, history)) == after
    assert [block.text for block in after if isinstance(block, User)] == ["one", "three"]
    await history.close()


async def test_a_compacted_conversation_is_rebuilt(history: HistoryStore) -> None:
    core = await a_core(InMemoryStore(), history, overflow=Trim(max_tokens=60))
    blocks = await say(core, *(f"{number} of many words that fill the window soon enough" for number in range(9)))
    assert len(blocks) < 18
    events = await stored_events(core, history)
    assert rebuild(events) == blocks
    assert any(isinstance(event, WindowCompacted) and event.input_blocks for event in events)
    await history.close()


async def test_a_forks_history_does_not_need_its_parents(history: HistoryStore) -> None:
    store = InMemoryStore()
    core = await a_core(store, history)
    parents = await say(core, "one", "two")
    await core.forking.fork(0, "fork")
    fork = await a_core(store, history, "fork")
    blocks = await say(fork, "three", "four")
    assert blocks[:2] == parents[:2]
    events = await stored_events(fork, history)
    assert rebuild(events) == blocks
    read, _, _ = await fork.reads.events()
    assert rebuild(read) == blocks, "also from the session's own events"
    reopened = SessionCore(SessionKey("fork"), store, ScriptedEngine())
    read, _, _ = await reopened.reads.events()
    assert [event.kind for event in events if event.kind == "run_started"] == ["run_started"] * 2
    lines: list[str] = []
    await export_session(store, SessionKey("fork"), lines.append, history=history)
    elsewhere = InMemoryStore()
    await import_session(elsewhere, lines)
    fork_events, _, _ = await SessionCore(SessionKey("fork"), elsewhere, ScriptedEngine()).reads.events()
    assert rebuild(fork_events) == blocks, "also from an archive"
    await history.close()


@pytest.mark.parametrize("fork_id", ["a", "a#b", "another"])
async def test_a_forks_history_is_whole_whatever_its_id_has_of_its_parents(fork_id: str) -> None:
    store, history = InMemoryStore(), InMemoryHistory()
    await store.create(SessionRecord(session_id="a#b"))
    core = SessionCore(SessionKey("a#b"), store, ScriptedEngine(), history=history)
    await say(core, "one")
    await core.forking.fork(None, "fork")
    lines: list[str] = []
    await export_session(store, SessionKey("fork"), lines.append, history=history)
    await import_session(store, lines, session_id=fork_id, user_id="bob")
    fork = SessionCore(SessionKey(fork_id, "bob"), store, ScriptedEngine(), history=history)
    blocks = await say(fork, "two", "three")
    assert rebuild((await fork.reads.events())[0]) == blocks and len(blocks) == 6


async def test_events_without_the_conversation_are_refused() -> None:
    about: dict[str, Any] = {"session_id": "s", "at": 1.5, "run_id": "r", "turn_index": 3}
    with pytest.raises(TranscriptError, match=r"event 7 \(run_started\) of session 's' has no prompts"):
        rebuild([RunStarted(seq=7, prompt=(("", 0, 1),), **about)])
    with pytest.raises(TranscriptError, match=r"event 7 .*has no input_blocks"):
        rebuild([RunStarted(seq=7, blocks=(User(text="hi"),), input=(("", 0, 3),), **about)])
    with pytest.raises(TranscriptError, match=r"event 8 .*lost turns"):
        rebuild([SessionReverted(seq=8, session_id="s", at=1.5)])
    assert rebuild([]) == []


def test_a_summary_is_part_of_what_is_rebuilt() -> None:
    about: dict[str, Any] = {"session_id": "s", "at": 1.5, "run_id": "r", "turn_index": 3}
    summary, prompt = Summary(text="They met."), User(text="hi")
    input_fields: dict[str, Any] = {"input": (("", 4, 5), ("", 6, 7)), "input_blocks": (summary, prompt)}
    assert rebuild([RunStarted(seq=7, blocks=(prompt,), **input_fields, **about)]) == [summary, prompt]
