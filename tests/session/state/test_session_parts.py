"""How a session's parts are connected, and what each part promises alone; test_session_core.py tests the whole."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engines import ScriptedEngine
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import SessionView, StepContext
from turnwise.actors.inference.named_engines import NamedEngines
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.memory.unsaved_turns import SavingProgress
from turnwise.actors.session.state.alarm import NO_ALARM
from turnwise.actors.session.state.journal import Journal
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor, UnknownOutcome
from turnwise.errors import SessionFencedError, StoreError
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.base import Activation, Commit
from turnwise.memory.stores.in_memory import InMemoryStore


def test_a_session_that_was_left_is_freed_without_the_garbage_collector() -> None:
    """Session processes collect garbage rarely, and a packed host closes thousands of sessions."""

    async def story() -> None:
        store = InMemoryStore()
        await store.create(SessionRecord(session_id="s"))
        core = SessionCore(SessionKey("s"), store, NamedEngines({"a": EchoEngine(), "b": EchoEngine()}))
        await core.admission.start(["hello"], run_id="run")
        await core.reads.wait("run")
        whole = core.engines.whole
        parts = (core, core.transactor, core.state, core.ingestion, whole, whole.of_engine("b"))
        references = [weakref.ref(part) for part in parts]
        del whole, parts
        assert await core.ownership.leave()
        await asyncio.sleep(0)
        del core
        assert [reference() for reference in references] == [None] * len(references)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()


class Doubtful(InMemoryStore):
    """A store whose next answer to a commit is lost; `lost` says whether the commit is stored."""

    lost: bool | None = None

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        lost, self.lost = self.lost, None
        if lost is not False:
            await super().commit(key, epoch, commit)
        if lost is not None:
            raise StoreError("its answer was lost")


class Bench:
    """A transactor alone: no runs, no memories."""

    def __init__(self) -> None:
        self.store = Doubtful()
        self.recovered: list[Activation] = []
        core = SessionCore(SessionKey("s"), self.store, ScriptedEngine())
        self.state = SessionState(SessionKey("s"), Journal(SessionKey("s"), self.store, None))
        progress = SavingProgress(core.engines)
        tasks = SessionTasks(SessionKey("s"))
        parts = self.state, tasks, core.engines, progress
        self.transactor = Transactor(*parts, recover=self._recover, alarm=NO_ALARM)

    async def _recover(self, activation: Activation, _: set[str]) -> None:
        self.recovered.append(activation)
        self.state.journal.log.publish()

    async def change(self, doubt: UnknownOutcome | None = None, **changes: Any) -> None:
        async def commit() -> None:
            if not (doubt and doubt.stored):
                session = replace(self.state.journal.session, **changes)
                await self.transactor.commit(session, [], doubt=doubt)

        await self.transactor.run(commit)


async def bench() -> Bench:
    new_bench = Bench()
    await new_bench.store.create(SessionRecord(session_id="s"))
    return new_bench


async def test_the_first_change_activates_the_session_and_later_ones_do_not() -> None:
    transactor_bench = await bench()
    await transactor_bench.change(ttl_s=1.0)
    await transactor_bench.change(ttl_s=2.0)
    assert len(transactor_bench.recovered) == 1 and (await transactor_bench.store.get(SessionKey("s"))).ttl_s == 2.0


@pytest.mark.parametrize("stored", [True, False])
async def test_after_an_unknown_outcome_the_next_change_loads_the_stored_state(stored: bool) -> None:
    transactor_bench = await bench()
    await transactor_bench.change(ttl_s=1.0)
    transactor_bench.store.lost = stored
    with pytest.raises(StoreError):
        await transactor_bench.change(ttl_s=2.0)
    await transactor_bench.change()
    assert len(transactor_bench.recovered) == 2
    row = await transactor_bench.store.get(SessionKey("s"))
    assert transactor_bench.recovered[1].session.ttl_s == row.ttl_s == (2.0 if stored else 1.0)


async def test_changes_run_one_at_a_time_and_to_their_end_when_their_caller_is_cancelled() -> None:
    transactor_bench, at_work, goes_on, done = await bench(), asyncio.Event(), asyncio.Event(), list[str]()

    async def slow() -> None:
        at_work.set()
        await goes_on.wait()
        done.append("slow")

    async def quick() -> None:
        done.append("quick")

    first = asyncio.create_task(transactor_bench.transactor.run(slow))
    await at_work.wait()
    second = asyncio.create_task(transactor_bench.transactor.run(quick))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert done == []
    goes_on.set()
    await second
    assert done == ["slow", "quick"]


async def test_a_session_that_was_given_up_is_neither_activated_nor_changed_again() -> None:
    transactor_bench = await bench()
    await transactor_bench.change()
    transactor_bench.state.journal.lose(SessionFencedError("s", 1))
    transactor_bench.state.journal.mark_stale()
    for ask in (transactor_bench.change, transactor_bench.transactor.loaded):
        with pytest.raises(SessionFencedError):
            await ask()
    assert len(transactor_bench.recovered) == 1


def turn(index: int, **changes: Any) -> TurnRecord:
    span = Span("log", index, index + 1)
    return replace(TurnRecord(index=index, status="completed", prompt=(span,)), **changes)


def progress_of(*names: str) -> SavingProgress:
    memories = [MemorySlot(memory=LexicalMemory(InMemoryItems()), name=name, section=None) for name in names]
    core = SessionCore(SessionKey("s"), InMemoryStore(), EchoEngine(), SessionConfig(), memories=memories)
    return SavingProgress(core.engines)


def test_the_mark_moves_when_the_last_memory_has_a_turn() -> None:
    progress = progress_of("first", "second")
    first, second = progress.writable
    progress.add_ended(turn(0), "on")
    progress.add_ended(turn(1), "on")
    progress.add_saved(first, progress.lacking(first))
    assert progress.saved == -1 and progress.lacking(first) == []
    progress.add_saved(second, progress.lacking(second)[:1])
    assert progress.saved == 0 and [own.index for own in progress.missing] == [1]
    assert progress.stamp(SessionRecord(session_id="s"), ()).saved == 0


def test_a_private_turn_moves_the_mark_and_a_turn_that_was_forgotten_is_no_longer_current() -> None:
    progress = progress_of("memory")
    progress.add_ended(turn(0), "off")
    progress.add_ended(turn(1), "on")
    missing_turn = progress.missing[1]
    assert [own.is_private for own in progress.missing] == [True, False] and progress.is_current(missing_turn)
    assert progress.make_private(1) and not progress.make_private(1)
    assert not progress.is_current(missing_turn)


def test_without_memories_the_turns_that_end_move_the_mark_and_an_unsaved_one_keeps_it() -> None:
    progress, row = progress_of(), SessionRecord(session_id="s")
    assert progress.stamp(row, [turn(3)]).saved == 3
    progress.add_ended(turn(0), "on")
    assert progress.is_behind and progress.stamp(row, [turn(4)]).saved == row.saved


class Late:
    """An engine whose runner takes long to be built."""

    def __init__(self) -> None:
        self.builds, self.goes_on = threading.Event(), threading.Event()
        self.is_closed = False

    def build(self, session: SessionView) -> Late:
        self.builds.set()
        self.goes_on.wait(60)
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        return []

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_closed = True


@pytest.mark.parametrize("patience_s", [60.0, 0.01])
async def test_closing_engines_waits_for_a_runner_that_is_being_built(patience_s: float) -> None:
    """But not longer than for one that is being closed; then it is closed later."""
    engine, store = Late(), InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, engine, SessionConfig(cancel_grace_s=patience_s))
    await core.admission.start(["hello"], run_id="run")
    await asyncio.to_thread(engine.builds.wait, 60)
    closing = asyncio.create_task(core.engines.close(core.engines.remove_all()))
    await asyncio.wait({closing}, timeout=0.05 if patience_s > 1 else 60)
    assert closing.done() == (patience_s < 1)
    engine.goes_on.set()
    await closing
    while patience_s < 1 and not engine.is_closed:
        await asyncio.sleep(0.001)
    assert engine.is_closed
