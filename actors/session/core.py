"""`SessionCore`: one session's state machine, without Ray; puts the parts of this package together."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.engines.cache_hinting import CacheHinting
from turnwise.actors.session.engines.run_resources import RunResources
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.engines.side_bill import SideBill
from turnwise.actors.session.engines.spending import Spending
from turnwise.actors.session.history.additions import Additions
from turnwise.actors.session.history.block_removals import Removals
from turnwise.actors.session.history.forgetting import Forgetting
from turnwise.actors.session.history.forking import Forking
from turnwise.actors.session.history.importing import Importing
from turnwise.actors.session.history.marking import Marking
from turnwise.actors.session.history.membership import Membership
from turnwise.actors.session.history.pruning import Pruning
from turnwise.actors.session.history.titles import Titles
from turnwise.actors.session.history.versions import Versions
from turnwise.actors.session.memory.memory_ingestion import MemoryIngestion
from turnwise.actors.session.memory.memory_retrieval import MemoryRetrieval
from turnwise.actors.session.memory.unsaved_turns import SavingProgress
from turnwise.actors.session.runs.admission import RunAdmission
from turnwise.actors.session.runs.agents import AgentCalls
from turnwise.actors.session.runs.approvals import Approvals
from turnwise.actors.session.runs.inbox import Inbox
from turnwise.actors.session.runs.prompt_joining import PromptJoining
from turnwise.actors.session.runs.quota_checks import QuotaChecks
from turnwise.actors.session.runs.recovery import Recovery
from turnwise.actors.session.runs.run_driver import RunDriver
from turnwise.actors.session.runs.scheduling import Scheduling
from turnwise.actors.session.runs.session_reminders import SessionReminders
from turnwise.actors.session.runs.shadows import Shadows
from turnwise.actors.session.session_files import SessionFiles
from turnwise.actors.session.session_row import SessionRow
from turnwise.actors.session.state.alarm import NO_ALARM, Alarm
from turnwise.actors.session.state.journal import Journal
from turnwise.actors.session.state.outbox import NO_OUTBOX, Outbox
from turnwise.actors.session.state.ownership import Ownership
from turnwise.actors.session.state.quota_book import QuotaBook
from turnwise.actors.session.state.reads import LiveSource, SessionReads
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.next_window import NextWindow
from turnwise.actors.session.window.plan_runner import PlanRunner
from turnwise.actors.session.window.request_fitting import RequestFitting
from turnwise.actors.session.window.window_compaction import WindowCompaction
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.files.base import FileStore
from turnwise.memory.stores.base import Activation, SessionStore
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.strategy import OverflowStrategy


class SessionCore:
    """One session: its history, its one active run and its queue. Plain asyncio, on one event loop.

    Invariants, each checked by tests:

    1. At most one run is active. The check and the activation are one step; a finished run is inactive before any
       waiter wakes.
    2. What a call has stored is durable when the call returns. A commit (blocks, turns, runs, events) is stored whole
       or not at all.
    3. A run has exactly one terminal event, and it is that run's last; only what callers add comes behind it.
    4. The next request to a provider is always valid, whatever was cancelled, failed or crashed.
    5. A late result changes nothing, whether an engine ignored a cancel or another process has taken over the session:
       the run's context is closed, and the store refuses the stale epoch.

    Every state change runs alone, behind one lock, as decide, commit, apply; see `Transactor`. Reads take no lock. A
    turn costs two commits: one starts the run, one ends it (and starts the next run of the queue).

    This class constructs the parts, which callers use directly: `core.admission.start(...)`, `core.reads.turns()`. The
    parts use each other's public methods only.
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
        files: FileStore | None = None,
        clock: Callable[[], float] | None = None,
        off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread,
        engine_id: str = "",
        alarm: Alarm = NO_ALARM,
        outbox: Outbox = NO_OUTBOX,
        quotas: QuotaBook | None = None,
    ) -> None:
        self.session_id = key.session_id
        run_resources = RunResources(
            builder, config or SessionConfig(), overflow, memories, working, engine_id=engine_id, off_loop=off_loop
        )
        tasks = SessionTasks(key)
        self.state = state = SessionState(key, Journal(key, store, clock, history))
        self.engines = engines = SessionEngines(run_resources, state, tasks, off_loop)
        progress, spending = SavingProgress(engines), Spending(state, engines)
        self.files = SessionFiles(state, engines, files)
        self._hinting = hinting = CacheHinting(state, engines, tasks)
        self.transactor = transactor = Transactor(
            state,
            tasks,
            engines,
            progress,
            recover=self._recover,
            alarm=alarm,
            outbox=outbox,
            quotas=quotas,
            committed=hinting.committed,
        )
        self.reads = SessionReads(LiveSource(state, transactor.loaded))
        bill = SideBill(spending, transactor)
        self.ingestion = MemoryIngestion(state, transactor, engines, tasks, progress, bill=bill)
        self.retrieval = MemoryRetrieval(state, engines, tasks, self.ingestion, bill)
        plans = PlanRunner(state, transactor, spending)
        self.compaction = WindowCompaction(state, transactor, engines, tasks, plans, hinting=hinting)
        self.next_window = NextWindow(state, transactor, engines, plans, self.compaction)
        fitting = RequestFitting(state, transactor, plans, self.compaction, self.retrieval)
        titles = Titles(state, transactor, engines, tasks, spending=spending, bill=bill)
        self.forgetting = Forgetting(
            state,
            transactor,
            engines,
            compaction=self.compaction,
            retrieval=self.retrieval,
            ingestion=self.ingestion,
            progress=progress,
            alarm=alarm,
        )
        self._pruning = pruning = Pruning(state, transactor, engines, tasks, self.forgetting)
        joining = PromptJoining(state, engines, spending)
        agents = AgentCalls(state, spending)
        quota_checks = QuotaChecks(state, quotas)
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
            agents=agents,
            titles=titles,
            shadows=Shadows(state, engines, tasks, bill),
            quotas=quota_checks,
            pruning=pruning,
            files=self.files,
        )
        self._recovery = Recovery(state, transactor, engines, driver, self.ingestion)
        self.versions = Versions(state, transactor)
        self.admission = RunAdmission(
            state,
            transactor,
            engines,
            driver=driver,
            retrieval=self.retrieval,
            compaction=self.compaction,
            reads=self.reads,
            versions=self.versions,
            quotas=quota_checks,
            files=self.files,
        )
        self.scheduling = Scheduling(state, transactor, engines, admission=self.admission, alarm=alarm)
        self.reminders = SessionReminders(state, self.scheduling)
        driver.schedules = weakref.proxy(self.reminders)
        self.approvals = Approvals(
            state, transactor, engines, driver=driver, joining=joining, reads=self.reads, agents=agents
        )
        self.inbox = Inbox(state, transactor, self.admission, self.approvals)
        self.removals = Removals(state, transactor)
        self.marking = Marking(state, transactor)
        self.membership = Membership(state, transactor)
        self.additions = Additions(state, transactor, engines, self.reads)
        self.row = SessionRow(state, transactor, engines)
        self.forking = Forking(state, transactor, self.forgetting, alarm, hinting)
        self.importing = Importing(
            state,
            transactor,
            engines,
            ingestion=self.ingestion,
            progress=progress,
            pruning=pruning,
            files=self.files,
        )
        self.ownership = Ownership(state, transactor, engines, self.compaction, self.ingestion)

    async def _recover(self, activation: Activation, begun: set[str]) -> None:
        await self._recovery.recover(activation, begun)
        self._pruning.watch()

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
