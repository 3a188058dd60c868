"""`SessionCore`: one session's state machine, without Ray; puts the parts of this package together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.named_engines import MissingEngine, engine_named
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.additions import Additions
from turnwise.actors.session.admission import RunAdmission, Started, StartOptions
from turnwise.actors.session.approvals import Approvals
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.forgetting import Forgetting
from turnwise.actors.session.forking import Forking
from turnwise.actors.session.importing import Importing
from turnwise.actors.session.journal import Journal
from turnwise.actors.session.memory_ingestion import MemoryIngestion
from turnwise.actors.session.memory_retrieval import MemoryRetrieval
from turnwise.actors.session.next_window import NextWindow
from turnwise.actors.session.ownership import Ownership
from turnwise.actors.session.plan_runner import PlanRunner
from turnwise.actors.session.prompt_joining import PromptJoining
from turnwise.actors.session.reads import SessionReads
from turnwise.actors.session.recovery import Recovery
from turnwise.actors.session.removals import Removals
from turnwise.actors.session.request_fitting import RequestFitting
from turnwise.actors.session.run_driver import RunDriver
from turnwise.actors.session.run_resources import RunResources
from turnwise.actors.session.saving_progress import SavingProgress
from turnwise.actors.session.session_engines import SessionEngines
from turnwise.actors.session.session_tasks import SessionTasks
from turnwise.actors.session.spending import Spending
from turnwise.actors.session.state import SessionState
from turnwise.actors.session.transactor import Transactor
from turnwise.actors.session.window_compaction import WindowCompaction
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.frozen_json import freeze, plain_json
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.prompts import Prompt
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.conversation.tool_calls import ApprovalDecision
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.providers.message_reading import Given
from turnwise.memory.stores.base import Activation, SessionStore
from turnwise.memory.stores.encrypted.records import is_sealed
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.compaction import Compaction
from turnwise.strategies.strategy import OverflowStrategy


class SessionCore:
    """One session: its history, its one active run and its queue. Plain asyncio, on one event loop.

    Invariants, each checked by tests:

    1. At most one run is active. The check and the activation are one step; a finished run is inactive before any
       waiter wakes.
    2. What a call has stored is durable when the call returns. A commit (blocks, turns, runs, events) is stored whole
       or not at all.
    3. A run has exactly one terminal event, and it is that run's last.
    4. The next request to a provider is always valid, whatever was cancelled, failed or crashed.
    5. A late result changes nothing, whether an engine ignored a cancel or another process has taken over the session:
       the run's context is closed, and the store refuses the stale epoch.

    Every state change runs alone, behind one lock, as decide, commit, apply; see `Transactor`. Reads take no lock. A
    turn costs two commits: one starts the run, one ends it (and starts the next run of the queue).

    This class constructs the parts and forwards each method to the part that implements and documents it. The parts
    use each other's public methods only.
    """

    def __init__(
        self,
        key: SessionKey,
        store: SessionStore,
        builder: EngineBuilder,
        config: SessionConfig | None = None,
        *,
        overflow: OverflowStrategy | None = None,
        memories: Sequence[MemorySlot] = (),
        working: WorkingMemory | None = None,
        history: HistoryStore | None = None,
        clock: Callable[[], float] | None = None,
        off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread,
        engine_id: str = "",
    ) -> None:
        self.session_id = key.session_id
        run_resources = RunResources(
            builder, config or SessionConfig(), overflow, memories, working, engine_id=engine_id, off_loop=off_loop
        )
        tasks = SessionTasks(key.session_id)
        self.state = state = SessionState(key, Journal(key, store, clock, history))
        self.engines = engines = SessionEngines(run_resources, state, tasks, off_loop)
        progress, spending = SavingProgress(engines), Spending(state, engines)
        self.transactor = transactor = Transactor(state, tasks, engines, progress, self._recover)
        self.reads = SessionReads(state, transactor.loaded)
        self.retrieval = MemoryRetrieval(state, engines, tasks)
        self.ingestion = MemoryIngestion(state, transactor, engines, tasks, progress)
        plans = PlanRunner(state, transactor, spending)
        self.compaction = WindowCompaction(state, transactor, engines, tasks, plans)
        self._next_window = NextWindow(state, transactor, engines, plans, self.compaction)
        fitting = RequestFitting(state, transactor, plans, self.compaction, self.retrieval)
        joining = PromptJoining(state, engines, spending)
        driver = RunDriver(
            state,
            transactor,
            engines,
            tasks,
            spending=spending,
            joining=joining,
            compaction=self.compaction,
            fitting=fitting,
            retrieval=self.retrieval,
            ingestion=self.ingestion,
            progress=progress,
        )
        self._recovery = Recovery(state, transactor, engines, driver, self.ingestion)
        self._admission = RunAdmission(
            state, transactor, engines, driver=driver, retrieval=self.retrieval, reads=self.reads
        )
        self._approvals = Approvals(state, transactor, engines, driver=driver, joining=joining)
        self._forgetting = Forgetting(
            state,
            transactor,
            engines,
            compaction=self.compaction,
            retrieval=self.retrieval,
            ingestion=self.ingestion,
            progress=progress,
        )
        self._removals = Removals(state, transactor)
        self._additions = Additions(state, transactor)
        self._forking = Forking(state, transactor, self._forgetting)
        self._importing = Importing(state, transactor, engines, self.ingestion, progress)
        self.ownership = Ownership(state, transactor, engines, self.compaction, self.ingestion)

    async def _recover(self, found: Activation, begun: set[str]) -> None:
        await self._recovery.recover(found, begun)

    # Owning the session: see Transactor, Ownership, SessionEngines

    async def activate(self) -> None:
        """See `Transactor.activate`."""
        await self.transactor.activate()

    def use(
        self,
        builder: EngineBuilder,
        config: SessionConfig,
        overflow: OverflowStrategy | None = None,
        memories: Sequence[MemorySlot] = (),
        working: WorkingMemory | None = None,
        *,
        engine_id: str = "",
        runs: Collection[str] | None = None,
    ) -> None:
        """Switch to another engine, settings, overflow strategy and memories, from the next run on.

        Open runs keep their current engine and settings. If the open runs are not loaded yet, call `activate` first.

        Args:
            engine_id: identifies this engine together with its settings, strategy and memories.
            runs: if given, only these runs, which an earlier process left open, use the engine; the session does not
                switch.
        """
        off_loop = self.engines.off_loop
        run_resources = RunResources(
            builder, config, overflow, memories, working, engine_id=engine_id, off_loop=off_loop
        )
        if runs is None:
            self.engines.switch(run_resources)
            self.ingestion.restart()
        else:
            self.engines.assign(run_resources, runs)

    # Prompts and runs: see RunAdmission, Approvals

    def append(self, prompts: Sequence[Prompt], key: str) -> Coroutine[Any, Any, int]:
        """See `RunAdmission.append`."""
        return self._admission.append(prompts, key)

    def start(self, prompts: Sequence[Prompt], **options: Unpack[StartOptions]) -> Coroutine[Any, Any, Started]:
        """See `RunAdmission.start`."""
        return self._admission.start(prompts, **options)

    def check_start(
        self, prompts: Sequence[Prompt], **options: Unpack[StartOptions]
    ) -> Coroutine[Any, Any, str | None]:
        """See `RunAdmission.check_start`."""
        return self._admission.check_start(prompts, **options)

    def cancel(
        self, reason: str, run_id: str | None = None, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, bool | None]:
        """See `RunAdmission.cancel`."""
        return self._admission.cancel(reason, run_id, timeout_s)

    async def decide(self, run_id: str, call_id: str, decision: ApprovalDecision) -> None:
        """See `Approvals.decide`; for a merged run, of the run that has its prompts."""
        await self._approvals.decide(await self.reads.leading(run_id), call_id, decision)

    async def add_event(self, name: str, data: Mapping[str, Any] | None, key: str, run_id: str | None = None) -> int:
        """See `Additions.add_event`; for a merged run, of the run that has its prompts."""
        whose = None if run_id is None else await self.reads.leading(run_id)
        return await self._additions.add_event(name, data, key, whose)

    def import_turns(
        self, given: Given, idempotency_key: str | None = None, after: int | None = None, memory: MemoryUse = "off"
    ) -> Coroutine[Any, Any, int]:
        """See `Importing.import_turns`."""
        return self._importing.import_turns(given, idempotency_key, after, memory)

    def check_import(
        self, given: Given, idempotency_key: str, after: int | None = None
    ) -> Coroutine[Any, Any, int | None]:
        """See `Importing.check_import`."""
        return self._importing.check_import(given, idempotency_key, after)

    def stored_prefix(self, most: int) -> Coroutine[Any, Any, tuple[int, str, int]]:
        """See `Importing.stored_prefix`."""
        return self._importing.stored_prefix(most)

    # The session as a whole

    async def end(self, reason: str = "session ended", timeout_s: float | None = None) -> bool:
        """See `RunAdmission.end_session`."""
        await self.compaction.stop()
        return await self._admission.end_session(reason, timeout_s)

    async def refresh(self) -> None:
        """Make an empty commit, which restarts the session's time to live (`ttl_s`); durable on return."""
        await self._store_row()

    async def update(self, title: str | None, metadata: Mapping[str, Any] | None, merge: bool = True) -> SessionRecord:
        """Change the session's title and metadata, in one commit; return its row. May be repeated.

        Args:
            title: None to keep the title; an empty one removes it.
            metadata: None to keep the metadata.
            merge: add these names and replace their values, and remove the names whose value is None; otherwise
                replace the metadata as a whole.

        Raises:
            InvalidInputError: the metadata would become too large, or look encrypted; nothing was changed.
        """

        async def change() -> SessionRecord:
            session = self.state.journal.session
            changed = replace(session, title=session.title if title is None else title or None)
            if metadata is not None:
                left = {name: value for name, value in session.metadata.items() if merge and name not in metadata}
                added = {name: value for name, value in metadata.items() if value is not None or not merge}
                plain = plain_json("metadata", left | added, self.engines.config.max_metadata_bytes)
                changed = replace(changed, metadata=freeze(plain))
                if is_sealed(changed.metadata):  # such a session could not be listed
                    why = "it looks like encrypted metadata: choose other names"
                    raise InvalidInputError("metadata", shown(plain), why)
            if changed != session:
                await self.transactor.commit(changed)
            return self.state.journal.session

        return await self.transactor.run(change)

    async def use_engine(self, name: str | None) -> None:
        """Set the engine of later runs by its name, None for the manager's first; durable on return.

        Open runs keep theirs.

        Raises:
            ConfigError: the manager has no engine of this name; nothing was changed.
        """
        builder = engine_named(self.engines.whole.builder, name)
        if isinstance(builder, MissingEngine):
            raise builder.error(self.session_id)
        await self._store_row(engine=name)

    async def use_memory(self, use: MemoryUse) -> None:
        """Set the default for later runs' use of long-term memory; durable on return."""
        await self._store_row(memory=use)

    async def _store_row(self, **changes: Any) -> None:
        async def change() -> None:
            await self.transactor.commit(replace(self.state.journal.session, **changes))

        await self.transactor.run(change)

    def fork(self, at: int | None, session_id: str) -> Coroutine[Any, Any, SessionRecord]:
        """See `Forking.fork`."""
        return self._forking.fork(at, session_id)

    def delete(
        self, *, memory: bool = True, verify: bool = False, updated_at: float | None = None
    ) -> Coroutine[Any, Any, Forgotten]:
        """See `Forgetting.delete`."""
        return self._forgetting.delete(memory=memory, verify=verify, updated_at=updated_at)

    # Memory and the window: see Forgetting, MemoryIngestion, MemoryRetrieval, WindowCompaction

    def forget_turn(self, index: int, *, verify: bool = False) -> Coroutine[Any, Any, Forgotten]:
        """See `Forgetting.forget_turn`."""
        return self._forgetting.forget_turn(index, verify=verify)

    def clear(
        self,
        keep_last: int = 0,
        *,
        memory: bool = True,
        verify: bool = False,
        updated_at: float | None = None,
        key: str | None = None,
    ) -> Coroutine[Any, Any, Forgotten]:
        """See `Forgetting.clear`."""
        return self._forgetting.clear(keep_last, memory=memory, verify=verify, updated_at=updated_at, key=key)

    def remove(self, index: int, spans: Spans, key: str) -> Coroutine[Any, Any, int]:
        """See `Removals.remove`."""
        return self._removals.remove(index, spans, key)

    def wait_for_memory(self, timeout_s: float | None = None) -> Coroutine[Any, Any, bool | None]:
        """See `MemoryIngestion.wait_for_memory`."""
        return self.ingestion.wait_for_memory(timeout_s)

    def compact(self, *, explain: bool = False) -> Coroutine[Any, Any, Compaction | None]:
        """See `WindowCompaction.compact`."""
        return self.compaction.compact(explain=explain)

    def window(self, message: str | None = None) -> Coroutine[Any, Any, Turn | None]:
        """See `NextWindow.read`."""
        return self._next_window.read(message)
