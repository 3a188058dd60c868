"""`SessionEngines`: the engine, settings and memories of each run; builds runners once and closes them after use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from turnwise.actors.inference.attempt import leave_behind
from turnwise.actors.inference.engine import Closable, InferenceRunner, SessionView
from turnwise.actors.inference.named_engines import NamedEngines, chosen_name
from turnwise.actors.session.engines.run_resources import RunResources
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import EngineError
from turnwise.memory.background import shielded
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.values.frozen_json import FrozenDict

_log = logging.getLogger(__name__)


class SessionEngines:
    """The engine of the next runs, and the engines that open runs keep until their end.

    Args:
        off_loop: runs a blocking function off the event loop.
    """

    def __init__(
        self,
        run_resources: RunResources,
        state: SessionState,
        tasks: SessionTasks,
        off_loop: Callable[..., Awaitable[Any]],
    ) -> None:
        self.off_loop = off_loop
        self._state = state
        self._tasks = tasks
        self.whole = run_resources
        """The manager's resources, with all of its engines."""
        self.config = run_resources.config
        """The settings of runs that start next."""
        self._former: list[RunResources] = []
        """Earlier resources that open runs still use."""
        self._resources_by_run: dict[str, RunResources] = {}
        """The resources of open runs that an earlier process began, by run id."""

    @property
    def current(self) -> RunResources:
        """The resources of runs that start next, without labels: those with the session's engine."""
        return self.of_next(self.whole)[1]

    def of_next(
        self, run_resources: RunResources, labels: Mapping[str, str] = FrozenDict()
    ) -> tuple[str | None, RunResources]:
        """Return the name of the engine of the next run with these labels, and the resources that have it."""
        session, whole = self._state.journal.session, run_resources.whole
        if session.engine is None and not isinstance(whole.builder, NamedEngines):
            return None, whole
        name = chosen_name(whole.builder, session.engine, session.key, labels)
        return name, whole.of_engine(name)

    def of_run(self, record: RunRecord) -> RunResources:
        """Return the resources of a run that an earlier process began."""
        whole = self._resources_by_run.get(record.run_id, self.whole).whole
        return whole.of_engine(chosen_name(whole.builder, record.engine, record.session_key, record.labels))

    def ids(self) -> dict[str, str]:
        """Return the engine ids of all open runs, by run id, as of the last activation."""
        engine_ids = {run_id: run_resources.engine_id for run_id, run_resources in self._resources_by_run.items()}
        return engine_ids | {run.run_id: run.run_resources.engine_id for run in self._state.open_runs}

    # Changes

    def switch(self, run_resources: RunResources) -> None:
        """Use these resources for later runs; open runs keep theirs."""
        self._former.append(self.whole)
        self.whole, self.config = run_resources, run_resources.config
        self.close_unused()

    def assign(self, run_resources: RunResources, runs: Collection[str]) -> None:
        """Assign these resources to runs that an earlier process began."""
        self._former.append(run_resources)
        self._resources_by_run.update(dict.fromkeys(runs, run_resources))

    def keep_resources(self, runs: Iterable[ActiveRun]) -> None:
        """Keep the resources of open runs until an activation has succeeded: it may fail and be repeated."""
        self._resources_by_run |= {run.run_id: run.run_resources for run in runs}

    def drop_kept(self) -> None:
        """Drop what `keep_resources` kept, since an activation has succeeded."""
        self._resources_by_run = {}
        self.close_unused()

    # Runners

    async def runner(self, run: ActiveRun) -> InferenceRunner:
        """Return the runner of the run's engine.

        It is built once, even if the first caller is cancelled. If that fails, the next caller builds it again.
        """
        run_resources = run.run_resources
        if run_resources.runner:
            return run_resources.runner
        if run_resources.building is None:
            run_resources.building = self._tasks.spawn(self._build(run_resources, run.session))
        return await shielded(run_resources.building, self._tasks.name("building an engine"))

    async def _build(self, run_resources: RunResources, session: SessionView) -> InferenceRunner:
        try:
            runner: InferenceRunner = await self.off_loop(run_resources.builder.build, session)
        except (SystemExit, KeyboardInterrupt) as error:  # raised in a task, it would end the process
            raise EngineError(f"the engine raised {type(error).__name__} when it was built") from error
        finally:
            run_resources.building = None
        if run_resources.is_retired:  # so no run waits for it any more
            self._begin_closing(run_resources, runner)
        else:
            run_resources.runner = runner
        return runner

    def _begin_closing(self, run_resources: RunResources, runner: InferenceRunner) -> None:
        closing = close_runner(runner, self.config.cancel_grace_s)
        run_resources.closing = self._tasks.spawn_logged(closing, "closing its engine")

    def close_unused(self) -> None:
        """Close the runners that no run needs any more. Does not wait."""
        if not self._former:
            return
        open_runs = (run.run_resources for run in self._state.open_runs)
        used = {id(run_resources.whole) for run_resources in (self.whole, *open_runs, *self._resources_by_run.values())}
        unused = [run_resources for run_resources in self._former if id(run_resources) not in used]
        self._former = [run_resources for run_resources in self._former if id(run_resources) in used]
        self._close_soon(unused)

    def close_all(self) -> None:
        """Close all runners, since this process no longer owns the session. Does not wait."""
        self._close_soon(self.remove_all())

    def remove_all(self) -> list[RunResources]:
        """Return all resources, current and former ones, to be passed to `close`."""
        unused, self._former = [self.whole, *self._former], []
        return unused

    async def close(self, unused: Iterable[RunResources]) -> None:
        """Close the runners, and wait until they are closed, also those that are being built.

        A build that takes longer than `cancel_grace_s` is not waited for; its runner is closed once it is built.
        """
        await asyncio.gather(*map(self._retire, unused))

    def _close_soon(self, unused: Iterable[RunResources]) -> None:
        for run_resources in unused:
            self._tasks.spawn_logged(self._retire(run_resources), "closing its engine")

    async def _retire(self, run_resources: RunResources) -> None:
        """Close the runner, or wait for whoever closes it: `_build`, if it is still being built."""
        for resources in run_resources.all_resources:
            resources.is_retired = True
            if runner := resources.runner:
                resources.runner = None
                self._begin_closing(resources, runner)
            elif resources.building:
                await asyncio.wait({resources.building}, timeout=self.config.cancel_grace_s)
            if resources.closing:
                await asyncio.wait({resources.closing})
        run_resources.release()


async def close_runner(runner: object, grace_s: float) -> None:
    """Close a runner that can be closed.

    Its errors are logged. If it takes longer than `grace_s` seconds, it is abandoned.
    """
    if isinstance(runner, Closable):
        closing = asyncio.ensure_future(_close(runner))
        await asyncio.wait({closing}, timeout=grace_s)
        if not closing.done():
            closing.cancel()
            leave_behind(closing)


async def _close(runner: Closable) -> None:
    try:
        await runner.close()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the engine's own code may raise anything
        _log.warning("%s could not be closed: %r", type(runner).__name__, error)
