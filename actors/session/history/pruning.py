"""`Pruning`: removes a session's oldest turns, so that it stores no more than `SessionConfig.storage_limit` allows."""

from __future__ import annotations

import asyncio

from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.history.forgetting import Forgetting
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor


class Pruning:
    """Begins where turns have ended and no other run is to begin; what goes is gone for good, as by `clear`.

    It is one change, so whoever asks next waits for it. A run that was asked for before it goes first: then the turns
    go after that one. While it awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, for the turns | reads | nothing of it; the next turn begins it again |
    | the commit | reads | all of it or nothing |
    | the event store | reads | events of removed turns there, until the next removal |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        tasks: SessionTasks,
        forgetting: Forgetting,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._tasks = tasks
        self._forgetting = forgetting
        self._gone = 0
        """How many blocks of the log are known to be stored no more, or to be no turn's."""
        self._work: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begin to remove turns if more may be stored than is allowed. Does not wait."""
        limit = self._engines.config.storage_limit
        may_be_over = limit is not None and self._journal.session.log_size - self._gone > limit
        if may_be_over and not self._state.busy and (self._work is None or self._work.done()):
            self._work = self._tasks.spawn_logged(self._prune(), "removing turns above storage_limit")

    async def _prune(self) -> None:
        async def change() -> None:
            limit = self._engines.config.storage_limit
            if limit is not None and not self._state.busy:
                self._gone = self._journal.session.log_size - await self._forgetting.prune(limit)

        await self._transactor.run_with_retries(change)
