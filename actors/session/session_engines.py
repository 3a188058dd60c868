"""Which engine, settings and memories each run of a session has; runners are built once and closed after use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from turnwise.actors.inference.attempt import leave_behind
from turnwise.actors.inference.engine import Closable, InferenceRunner, SessionView
from turnwise.actors.session.active_run import ActiveRun
from turnwise.actors.session.run_resources import Gear
from turnwise.actors.session.session_tasks import SessionTasks
from turnwise.actors.session.state import SessionState
from turnwise.errors import EngineError
from turnwise.memory.background import shielded

_log = logging.getLogger(__name__)


class SessionEngines:
    """The engine that the next runs have, and those that open runs keep to their end.

    Args:
        off_loop: how to call what may block.
    """

    def __init__(
        self, gear: Gear, state: SessionState, tasks: SessionTasks, off_loop: Callable[..., Awaitable[Any]]
    ) -> None:
        self.off_loop = off_loop
        self._state = state
        self._tasks = tasks
        self.current = gear
        """What the runs that start next have."""
        self.config = gear.config
        """Their settings."""
        self._former: list[Gear] = []
        """What runs have that have not ended, and the next ones do not."""
        self._of_run: dict[str, Gear] = {}
        """Likewise, by the ids of runs that an earlier process had begun."""

    def of_run(self, run_id: str) -> Gear:
        """Return what a run has that an earlier process had begun."""
        return self._of_run.get(run_id, self.current)

    def ids(self) -> dict[str, str]:
        """Return which engine each run that has not ended has, by run id. As of the last activation."""
        known = {run_id: gear.engine_id for run_id, gear in self._of_run.items()}
        return known | {run.run_id: run.gear.engine_id for run in self._state.open_runs}

    # Its writers

    def switch(self, gear: Gear) -> None:
        """Let the next runs have this; those that are open keep what they have."""
        self._former.append(self.current)
        self.current, self.config = gear, gear.config
        self.close_unused()

    def assign(self, gear: Gear, runs: Collection[str]) -> None:
        """Let runs that an earlier process had begun have this again."""
        self._former.append(gear)
        self._of_run.update(dict.fromkeys(runs, gear))

    def keep_for(self, runs: Iterable[ActiveRun]) -> None:
        """Note what open runs have, until an activation has taken all over: one that fails is made again."""
        self._of_run |= {run.run_id: run.gear for run in runs}

    def taken_over(self) -> None:
        """An activation has taken over all runs."""
        self._of_run = {}
        self.close_unused()

    # Runners

    async def runner(self, run: ActiveRun) -> InferenceRunner:
        """Return the runner of the run's engine, built once, also if who asked for it gives up meanwhile."""
        gear = run.gear
        if gear.runner:
            return gear.runner
        if gear.building is None:
            gear.building = self._tasks.spawn(self._build(gear, run.session))
        return await shielded(gear.building, self._tasks.name("building an engine"))

    async def _build(self, gear: Gear, session: SessionView) -> InferenceRunner:
        try:
            runner: InferenceRunner = await self.off_loop(gear.builder.build, session)
        except (SystemExit, KeyboardInterrupt) as error:  # in a task of its own, it would end the process
            raise EngineError(f"the engine raised {type(error).__name__} when it was built") from error
        finally:
            gear.building = None
        if gear.is_retired:
            self._tasks.spawn_logged(close_runner(runner, self.config.cancel_grace_s), "closing its engine")
        else:
            gear.runner = runner
        return runner

    def close_unused(self) -> None:
        """Close the runners that no run needs any more. Does not wait."""
        if not self._former:
            return
        used = {id(gear) for gear in (self.current, *(run.gear for run in self._state.open_runs))}
        used.update(map(id, self._of_run.values()))
        gone = [gear for gear in self._former if id(gear) not in used]
        self._former = [gear for gear in self._former if id(gear) in used]
        self._close_soon(gone)

    def close_all(self) -> None:
        """Close all runners: this process has the session no more. Does not wait."""
        self._close_soon(self.remove_all())

    def remove_all(self) -> list[Gear]:
        """Return all that runs have or had; `close` them when nobody needs them any more."""
        gears, self._former = [self.current, *self._former], []
        return gears

    async def close(self, gears: Iterable[Gear]) -> None:
        """Close the runners, and wait until they are closed."""
        await asyncio.gather(*map(self._retire, gears))

    def _close_soon(self, gears: Iterable[Gear]) -> None:
        for gear in gears:
            self._tasks.spawn_logged(self._retire(gear), "closing its engine")

    async def _retire(self, gear: Gear) -> None:
        """Close the runner; one that is being built is closed when it is there."""
        gear.is_retired = True
        runner, gear.runner = gear.runner, None
        await close_runner(runner, self.config.cancel_grace_s)


async def close_runner(runner: object, grace_s: float) -> None:
    """Close a runner that can be closed.

    What it raises is logged, and after `grace_s` it is left behind: whoever lets a runner go has no more use for it.
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
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - code of the engine's
        _log.warning("%s could not be closed: %r", type(runner).__name__, error)
