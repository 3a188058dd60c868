"""`RunResources`: the engine, settings, strategy and memories that a session's runs use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from turnwise.actors.inference.cache_hints import CacheHints
from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, RequestFrame, SessionView
from turnwise.actors.inference.named_engines import MissingEngine, NamedEngines, engine_named, first_engine
from turnwise.actors.inference.observing import NO_OPERATION, Operation, observer_of
from turnwise.actors.inference.shadow import Shadow, answering
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.window.compaction_tasks import Compactor, frame_of
from turnwise.errors import ConfigError, InvalidInputError, shown
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.keep_last import KeepLast
from turnwise.strategies.of_run import strategy_of
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.trim import Trim


class RunResources:
    """A manager's engine, settings, overflow strategy and memories. A run keeps those that it was started with.

    The runner is made when a run first needs it, and serves all runs that use these resources.

    Args:
        engine_id: identifies the engine together with its settings; see `identity`.
    """

    def __init__(
        self,
        builder: EngineBuilder,
        config: SessionConfig,
        overflow: OverflowStrategy | None,
        memories: Sequence[MemorySlot],
        working: WorkingMemory | None,
        *,
        engine_id: str,
        off_loop: Callable[..., Awaitable[Any]],
    ) -> None:
        self.shadow = builder if isinstance(builder, Shadow) else None
        """What answers beside the engine; None if nothing does."""
        self.builder = builder = answering(builder)
        self._whole: RunResources | None = None
        self._parts = overflow, off_loop
        self._by_engine: dict[str | None, RunResources] = {}
        self.config = config
        self.observer = observer_of(config.telemetry)
        """Tells telemetry about runs; None without telemetry."""
        self.engine_id = engine_id
        self._engine = first_engine(builder)
        hints = getattr(self._engine, "cache_hints", None)
        self.hints: CacheHints | None = hints if isinstance(hints, CacheHints) else None
        """What is told when a prefix is needed again; None if nobody is."""
        self.compactor = self._compactor(overflow) if overflow else None
        used = tuple(slot for slot in memories if slot.is_used)
        self.memories: Sequence[MemorySlot]
        """The memories that runs search and save in."""
        self.working: WorkingMemory | None
        self.memories, self.working = (used, working) if config.memory.enabled else ((), None)
        self.all_memories = tuple(memories)
        """All memories that may have items of the session, and must forget them."""
        self.notes = working
        """The working memory, whether runs use it or not."""
        self.runner: InferenceRunner | None = None
        self.building: asyncio.Task[InferenceRunner] | None = None
        """Builds the runner; None if nothing does, also after a build that failed: the next run builds it again."""
        self.closing: asyncio.Task[None] | None = None
        """Closes the runner; None until the runner is to be closed."""
        self.is_retired = False
        """Whether no run will need the runner any more."""

    @property
    def whole(self) -> RunResources:
        """The resources from which `of_engine` made these; else these."""
        return self._whole or self

    @cached_property
    def frame(self) -> RequestFrame:
        """What the engine says of its requests."""
        return frame_of(self.builder)

    @property
    def first_name(self) -> str:
        """The name of the engine of sessions without a name; empty if the manager's only engine has none."""
        builder = self.whole.builder
        return next(iter(builder.engines)) if isinstance(builder, NamedEngines) else ""

    def of_engine(self, name: str | None) -> RunResources:
        """Return the resources with the manager's engine of this name, the first one for None; all else is the same."""
        if name is None and not isinstance(self.builder, NamedEngines):
            return self
        if name not in self._by_engine:
            overflow, off_loop = self._parts
            builder = engine_named(self.builder, name)
            arguments = (builder, self.config, overflow, self.all_memories, self.notes)
            run_resources = RunResources(*arguments, engine_id=self.engine_id, off_loop=off_loop)
            run_resources._whole = self
            self._by_engine[name] = run_resources
        return self._by_engine[name]

    def _compactor(self, strategy: OverflowStrategy) -> Compactor | None:
        if isinstance(self._engine, MissingEngine):  # runs fail, and the window's size is unknown
            return None
        return Compactor(strategy, self._engine, self.config, self._parts[1])

    def compactor_of(self, record: RunRecord) -> Compactor | None:
        """Return the compactor for a run's requests, with its own strategy if it has one; None if there is no strategy.

        Its own strategy has no slack: it removes no more than it must.

        Raises:
            InvalidInputError: its own strategy needs the size of the model's window, which is not known.
        """
        if record.overflow is None:
            return self.compactor
        strategy = strategy_of(record.overflow)
        if isinstance(strategy, Trim | KeepLast):
            # The next run has the whole window again, so what slack removes here would be missed and save nothing.
            strategy = replace(strategy, slack=0)
        if self.compactor:
            return self.compactor.using(strategy)
        try:
            return self._compactor(strategy)
        except ConfigError as error:
            raise InvalidInputError("overflow", shown(record.overflow), str(error)) from None

    def follow(
        self, session: SessionView, record: RunRecord, caller: Mapping[str, str] | None = None, depth: int = 0
    ) -> Operation:
        """Have telemetry follow a run; see `Observer.run`."""
        return self.observer.run(session, record, caller or {}, depth) if self.observer else NO_OPERATION

    @property
    def all_resources(self) -> list[RunResources]:
        """These resources, and those that `of_engine` has made from them."""
        return [self, *self._by_engine.values()]

    def release(self) -> None:
        """Release the resources that `of_engine` has made, once all of them are closed: they refer to these."""
        self._by_engine.clear()
