"""`QuotaChecks`: what happens to runs of a session whose quotas are used up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from turnwise.actors.inference.engine import Suspend
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.quota_book import QuotaBook
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import LimitError, QuotaExceededError
from turnwise.memory.conversation.calls.tool_calls import CallState, decode_calls, encode_calls
from turnwise.memory.conversation.runs import QUOTA, RunRecord
from turnwise.memory.quotas.records import Quota, call_id_of
from turnwise.memory.values.records import replace

LEAST_WAIT_S = 0.05
"""How long a run waits at least until it is tried again whether its quota has begun anew, in seconds."""


class QuotaChecks:
    """Decides by `Quota.then` what becomes of a run when a quota is used up.

    That no more runs are accepted than quotas allow is not decided here, but by the store, with the commit that accepts
    a run: see `Commit.counts`. Tokens and cost are known after a call of the model. So they are compared once more
    before each further call, and what is used beyond a quota is at most one call for each run that is under way.
    """

    def __init__(self, state: SessionState, quotas: QuotaBook | None) -> None:
        self._state = state
        self._quotas = quotas

    async def check_start(self) -> None:
        """Raise if a run would be refused now; reads the store if there are quotas.

        Raises:
            QuotaExceededError: a quota is used up that refuses runs.
        """
        async for quota, error in self._used_up():
            if quota.then == "refuse":
                raise error

    async def admitted(self, record: RunRecord, error: QuotaExceededError) -> RunRecord:
        """Return how a run is to be stored that no commit could accept, since a quota is used up.

        It waits for the quota's next period (see `RunRecord.waits_for_quota`), or for a decision about the quota.

        Raises:
            QuotaExceededError: the quota refuses runs; the error is the one that was passed. A run that was accepted
                before, and waits already, waits on instead.
        """
        quotas = await self._quotas.quotas() if self._quotas else ()
        then = next((quota.then for quota in quotas if quota.quota_id == error.quota_id), "refuse")
        if then == "ask":
            question = CallState(name=QUOTA, wants="budget", why=_why(error))
            return replace(
                record, calls=encode_calls({**decode_calls(record.calls), call_id_of(error.quota_id): question})
            )
        if then == "refuse" and not record.waits_for_quota:
            raise error
        # By the clock of this process, which begins it, and which may differ from the one that counts.
        waits_s = max(LEAST_WAIT_S, error.retry_after_s)
        return replace(record, code=QUOTA, started_at=self._state.journal.clock() + waits_s)

    @staticmethod
    def check_decided(run: ActiveRun) -> None:
        """Raise unless nobody has to decide whether a run may exceed quotas, or may exceed them.

        Raises:
            Suspend: somebody has to decide.
            LimitError: somebody has refused it.
        """
        questions = {call_id: state for call_id, state in run.calls.items() if state.name == QUOTA}
        if waiting := {call_id: state for call_id, state in questions.items() if state.is_waiting}:
            raise Suspend(waiting)
        for state in questions.values():
            if state.verdict == "rejected":
                raise LimitError(f"{state.why}, and exceeding it was refused", QUOTA)

    async def check_run(self, run: ActiveRun) -> None:
        """Raise if a quota forbids another call of the model; reads the store if there are quotas of tokens or cost.

        Raises:
            LimitError: the quota is used up, and refuses.
            Suspend: the run waits until somebody decides whether it may exceed the quota.
        """
        async for quota, error in self._used_up(runs=False, run=run):
            state = run.calls.get(call_id_of(quota.quota_id))
            if quota.then == "refuse":
                raise LimitError(_why(error), QUOTA)
            if quota.then == "ask" and not (state and state.verdict == "approved"):
                question = CallState(name=QUOTA, wants="budget", why=_why(error))
                raise Suspend({call_id_of(quota.quota_id): question})

    async def _used_up(
        self, *, runs: bool = True, run: ActiveRun | None = None
    ) -> AsyncIterator[tuple[Quota, QuotaExceededError]]:
        """Yield the quotas of the session that are used up, with what says so.

        Args:
            runs: whether quotas of runs are looked at.
            run: what it has spent and no commit has stored counts, too.
        """
        if self._quotas is None or not (quotas := await self._quotas.quotas()):
            return
        session: Any = self._state.journal.session
        tenant = await self._quotas.tenants.get(session.user_id)
        keys = [
            (quota, key)
            for quota in quotas
            if (key := quota.counter_of(session.user_id, session.agent, tenant)) and (runs or quota.unit != "runs")
        ]
        if not keys:
            return
        counters = await self._quotas.counters(session.user_id, session.agent)
        for quota, key in keys:
            counter = counters.of(quota, key)
            used = counter.used + (quota.amount(run.unbilled.total) if run else 0)
            if used >= quota.most:
                yield quota, quota.exceeded(key, used, counter.ends, counters.now)


def _why(error: QuotaExceededError) -> str:
    return f"{error.scope} has used {error.used:.12g} of {error.limit:.12g} {error.unit} per {error.per}"
