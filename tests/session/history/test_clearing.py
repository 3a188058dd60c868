"""How a session's older messages are removed for good; on `SessionCore` alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines import ScriptedEngine
from memories.session_memories import Book, MemoryStage
from scale import of_cases
from schedules import SESSION
from turnwise import InProcess, LexicalMemory, SessionManager
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.session.core import SessionCore
from turnwise.errors import LongTermMemoryError, SessionBusyError, SessionChangedError, StoreError, TurnNotFoundError
from turnwise.memory.conversation.blocks import CLEARED, User, decode, encode
from turnwise.memory.conversation.events import Event, PromptAppended, TurnsCleared
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.ids import new_id
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.faulty_engine import FaultyEngine
from turnwise.testing.world import World
from windows.stage import Summarizer, chat, opened, prompts, said, summarize


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def talk(core: SessionCore, *prompts: str) -> None:
    for prompt in prompts:
        run = await core.admission.start([prompt], run_id=new_id())
        await core.reads.wait(run.run_id)


@pytest.mark.virtual_time
async def test_a_session_that_is_cleared_begins_anew_and_memories_forget_its_turns() -> None:
    book = Book()
    stage = await MemoryStage.opened(book)
    for prompt in ("one", "two", "three"):
        await stage.say(prompt)
    await stage.core.admission.append(["pending"], "key")
    await stage.core.ingestion.wait_for_memory()
    report = await stage.core.forgetting.clear()
    assert (report.turns, report.items, report.waiting) == (4, {"memory 0": 3}, 0) and not book.items
    for core in (stage.core, stage.new_core()):
        assert await core.reads.latest() is None and await core.reads.turns() == []
        assert [run.state for run in await core.reads.runs()] == ["completed"] * 3
        outcome = await core.reads.wait("run-('two',)-{}")
        assert outcome.run.state == "completed" and outcome.turn is None
        events = (await core.reads.events())[0]
        assert {type(event) for event in events} == {PromptAppended, TurnsCleared}, "those with a key stay"
        with pytest.raises(TurnNotFoundError):
            await core.reads.turn(1)
    turn = await stage.say("four")
    assert turn.index == 4 and turn.parent is None and said(stage.engine.given[-1]) == ["four"]
    assert (await stage.core.forgetting.clear()).turns == 1 and (await stage.core.forgetting.clear()).turns == 0


@pytest.mark.parametrize("clock", [time.time, lambda: 5.0])
async def test_a_session_that_changed_since_it_was_read_is_not_cleared(clock: Callable[[], float]) -> None:
    """The same holds if the clock stood still meanwhile, as one that was set back does."""
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION, updated_at=5.0))
    core = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), clock=clock)
    await core.admission.append(["one"], "a")
    read = (await core.reads.session()).updated_at
    await core.admission.append(["two"], "b")
    with pytest.raises(SessionChangedError):
        await core.forgetting.clear(updated_at=read)
    assert len(await core.reads.turns()) == 1
    again = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    read = (await core.reads.session()).updated_at
    assert (await again.forgetting.clear(updated_at=read, key="clear")).turns == 1
    await again.admission.append(["three"], "c")
    again = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    assert (await again.forgetting.clear(updated_at=read, key="clear")).turns == 1, (
        "as Ray repeats a call whose answer is lost"
    )
    assert len(await again.reads.turns()) == 1


@pytest.mark.virtual_time
async def test_turns_that_stay_lose_what_they_were_given_of_the_others() -> None:
    stage = await MemoryStage.opened()
    for prompt in ("one", "two", "three"):
        await stage.say(prompt)
    await stage.core.admission.append(["pending"], "key")
    assert (await stage.core.forgetting.clear(keep_last=2)).turns == 2
    third, pending = await stage.core.reads.turns()
    assert said(third.blocks)[0] == "three" and (third.index, third.parent) == (2, None)
    assert said(pending.blocks)[-1] == "pending" and pending.parent == third.id and "'one'" not in str(pending.blocks)
    await stage.say("four")
    assert [text for text in said(stage.engine.given[-1]) if "one" in text or "two" in text] == []
    assert said(stage.engine.given[-1])[0] == "three"
    stage.new_core()
    assert (await stage.core.reads.turns())[0] == third
    log = (await stage.core.reads.session()).log
    assert (await stage.store.blocks([Span(log, 0, 4)])) == [encode(CLEARED)] * 4
    assert (await stage.core.forgetting.clear(keep_last=99)).turns == 0


@pytest.mark.virtual_time
async def test_a_summary_of_what_is_cleared_goes_too() -> None:
    stage = await opened(summarize(Summarizer()))
    await chat(stage, *prompts(0, 30))
    latest = await stage.core.reads.latest()
    assert latest and said(latest.blocks)[0].startswith("summary")
    report = await stage.core.forgetting.clear(keep_last=2)
    assert report.turns == 28 and report.summaries > 0
    session = await stage.core.reads.session()
    log = [decode(text) for text in await stage.store.blocks([Span(session.log, 0, session.log_size)])]
    assert said(log) == prompts(28, 30)
    await chat(stage, *prompts(30, 60))
    latest = await stage.core.reads.latest()
    assert latest and said(latest.blocks)[0].startswith("summary"), "later ones are made again"


@pytest.mark.virtual_time
async def test_what_a_fork_uses_stays_and_a_fork_can_be_cleared() -> None:
    stage = await MemoryStage.opened()
    for prompt in ("one", "two"):
        await stage.say(prompt)
    await stage.core.forking.fork(0, "fork")
    await stage.core.forgetting.clear()
    fork = SessionCore(SessionKey("fork", "ada"), stage.store, ScriptedEngine())
    await talk(fork, "three")
    latest = await fork.reads.latest()
    assert latest and said(latest.blocks)[0] == "one"
    await fork.forgetting.clear(keep_last=1)
    latest = await fork.reads.latest()
    assert latest and said(latest.blocks)[0] == "three" and latest.index == 1
    await talk(fork, "four")
    latest = await fork.reads.latest()
    assert latest and "'one'" not in str(latest.blocks)


@pytest.mark.virtual_time
async def test_a_busy_session_is_not_cleared_and_neither_is_one_whose_memory_fails() -> None:
    book = Book()
    stage = await MemoryStage.opened(book, engine=ScriptedEngine())
    await stage.say("one")
    await stage.core.admission.start(["slow 100000"], run_id="slow")
    with pytest.raises(SessionBusyError, match="slow"):
        await stage.core.forgetting.clear()
    await stage.core.admission.cancel("enough")
    book.fails = OSError("away")
    with pytest.raises(LongTermMemoryError, match="Repeat"):
        await stage.core.forgetting.clear()
    assert len(await stage.core.reads.turns()) == 2
    assert (await stage.core.forgetting.clear(memory=False)).turns == 2 and len(await stage.core.reads.turns()) == 0


async def test_no_file_and_no_history_has_the_text_afterwards(tmp_path: Path) -> None:
    secret = "a secret that is found in no other text"
    store, history = SQLStore(f"sqlite:///{tmp_path}/chats.db"), SQLHistory(f"sqlite:///{tmp_path}/history.db")
    await store.create(SessionRecord(session_id=SESSION))
    core = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history)
    await talk(core, secret, "kept")
    assert secret.encode() in bytes_of(tmp_path)
    await core.forgetting.clear(keep_last=1)
    assert [event.turn_index for event in await history.events(SessionKey(SESSION)) if event.key is None][:1] == [1]
    assert secret.encode() not in bytes_of(tmp_path), "nor has SQLite's log, while both are open"
    for backend in (store, history):
        await backend.close()
    assert secret.encode() not in bytes_of(tmp_path)
    again = SessionCore(SessionKey(SESSION), SQLStore(f"sqlite:///{tmp_path}/chats.db"), ScriptedEngine())
    (turn,) = await again.reads.turns()
    assert said(turn.blocks)[0] == "kept"
    await talk(again, "more")
    await again.state.journal.store.close()


@pytest.mark.parametrize("keep_last", [0, 1, 2])
async def test_the_events_that_stay_tell_what_stays(keep_last: int) -> None:
    store, history = InMemoryStore(), InMemoryHistory()
    await store.create(SessionRecord(session_id=SESSION))
    core = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history)
    forwarder = core.state.journal.forwarder
    assert forwarder
    await talk(core, "one", "two", "three")
    await core.forgetting.forget_turn(1)  # so the next run has its whole input in its event
    await talk(core, "four")
    await core.admission.append(["pending"], "key")
    await forwarder.flush(5)
    for prompt in ("five", "six"):
        await core.forgetting.clear(keep_last)
        await forwarder.flush(5)
        turns = await core.reads.turns()
        cleared_texts = {"one", "two", "three", "four", "pending", "five"} - {
            text for turn in turns for text in said(turn.new_blocks)
        }
        stored = str(await history.events(SessionKey(SESSION)))
        assert not [text for text in cleared_texts if f"'{text}'" in stored]
        await talk(core, prompt)
        await forwarder.flush(5)
        latest = await core.reads.latest()
        assert latest and rebuild(await history.events(SessionKey(SESSION))) == list(latest.blocks)
        assert rebuild((await core.reads.events())[0]) == list(latest.blocks)


class AwayOnce(InMemoryHistory):
    """A store whose first delete fails."""

    is_away = True

    async def delete(self, key: SessionKey, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()) -> None:
        if self.is_away:
            self.is_away = False
            raise StoreError("the history is away")
        await super().delete(key, turns_up_to=turns_up_to, instead=instead)


async def test_a_clear_that_the_history_store_interrupted_can_be_repeated() -> None:
    """The event of the remaining turn has the whole input of its run; the second clear removes that input."""
    store, history = InMemoryStore(), AwayOnce()
    await store.create(SessionRecord(session_id=SESSION))
    core = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history)
    forwarder = core.state.journal.forwarder
    assert forwarder
    await talk(core, "one", "two")
    await core.forgetting.forget_turn(1)  # so the next run has its whole input in its event
    await talk(core, "three")
    with pytest.raises(StoreError, match="the history is away"):
        await core.forgetting.clear(keep_last=1)
    assert "'one'" in str(await history.events(SessionKey(SESSION)))
    await core.forgetting.clear(keep_last=1)
    await talk(core, "four")
    await forwarder.flush(5)
    events, latest = await history.events(SessionKey(SESSION)), await core.reads.latest()
    assert "'one'" not in str(events) and "'three'" in str(events)
    assert latest and rebuild(events) == list(latest.blocks)


async def test_an_encrypted_session_can_be_cleared() -> None:
    store: Any = EncryptedStore(InMemoryStore(), Encryption(lambda user: user.encode().ljust(32, b".")))
    await store.create(SessionRecord(session_id=SESSION))
    core = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    await talk(core, "one", "two")
    await core.forgetting.clear(keep_last=1)
    session = await core.reads.session()
    assert (await store.blocks([Span(session.log, 0, 2)])) == [encode(CLEARED)] * 2
    (turn,) = await SessionCore(SessionKey(SESSION), store, ScriptedEngine()).reads.turns()
    assert said(turn.blocks)[0] == "two"


@pytest.mark.usefixtures("quiet")
def test_no_fault_at_any_point_leaves_a_session_half_cleared() -> None:
    async def life(faults: Faults) -> None:
        world = World(faults, engine=FaultyEngine(faults, word_s=0.01))
        await world.create()
        for prompt in ("one", "two"):
            await world.ask("admission.start", [prompt], run_id=prompt, timeout_s=5.0)
            await world.ask("reads.wait", prompt)
        await world.ask("forgetting.clear", 1)
        store = world.store.inner
        (turn,) = await store.turns(SessionKey("session"))
        assert turn.index == 1 and turn.parent is None
        session = await store.get(SessionKey("session"))
        cleared = [text == encode(CLEARED) for text in await store.blocks([Span(session.log, 0, session.log_size)])]
        assert cleared.index(False) == turn.prompt[0].start and True not in cleared[cleared.index(False) :]
        await world.ask("admission.start", ["three"], run_id="three", timeout_s=5.0)
        outcome = await world.ask("reads.wait", "three")
        assert outcome.turn and outcome.turn.parent == "session#1"

    assert exhaust(life, **of_cases())["kill"] > 20


def test_all_sessions_of_a_user_are_cleared_but_those_that_have_a_run(tmp_path: Path) -> None:
    def answer(turn: Turn) -> str:
        if turn.asked[0] == User(text="busy"):
            time.sleep(60)
        return "noted"

    memory = LexicalMemory(str(tmp_path / "items.db"))
    sessions = [("one", "ann", "x"), ("two", "ann", None), ("used", "ann", None), ("one", "bob", "x")]
    with SessionManager("memory://", engine=FunctionEngine(answer), memory=[memory], placement=InProcess()) as manager:
        for name, user, agent in sessions:
            manager.open(name, user_id=user, agent=agent).run(f"{user} has boats in {name}").wait()
        run = manager.open("used", user_id="ann").run("busy")
        assert (cleared := manager.clear("ann", agent="x")).turns == 1 and not cleared.in_use
        cleared = manager.clear("ann", verify=True)
        assert (cleared.turns, cleared.in_use, cleared.verified) == (1, ("used",), True)
        chat = manager.get("used", user_id="ann")
        chat.memory.wait()
        assert [item.text for item in chat.memory.list()] == ["user: ann has boats in used\nassistant: noted"]
        assert len(manager.get("one", user_id="bob").turns()) == 1 and manager.count(user_id="ann") == 3
        run.cancel()
        assert manager.clear("ann", keep_last=1).turns == 1 and len(chat.turns()) == 1
        assert manager.clear("ann").turns == 1 and manager.clear("ann") == Forgotten()
