"""`RunHandle`: what the handles of a run are in both families: its ids, by which they are compared and pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting.wire import ClientOutcome, SessionRef
from turnwise.actors.wire_version import by_version
from turnwise.errors import (
    OutputCutError,
    OutputInvalidError,
    OutputRefusedError,
    RunCancelledError,
    RunEndedError,
    RunFailedError,
    RunInterruptedError,
    RunLimitError,
    RunReplacedError,
    TurnNotFoundError,
    WaitTimeoutError,
)
from turnwise.memory.conversation.runs import OPEN_STATES, REPLACED, Until, has_reached
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.notebook_display import facts_html

_ERRORS: dict[str, type[RunEndedError]] = {
    "cancelled": RunCancelledError,
    "failed": RunFailedError,
    "interrupted": RunInterruptedError,
}

_ERRORS_BY_CODE: dict[str | None, type[RunFailedError]] = {
    "step_limit": RunLimitError,
    "budget": RunLimitError,
    "quota": RunLimitError,
    "timeout": RunLimitError,
    "output_invalid": OutputInvalidError,
    "output_refused": OutputRefusedError,
    "output_cut": OutputCutError,
}


class RunHandle:
    """The ids of a run. Handles of one run are equal, in either family."""

    __slots__ = ("_client", "_outcome", "_output", "_ref", "dropped", "run_id", "session_id", "turn_index")

    def __init__(
        self,
        client: SessionsClient,
        ref: SessionRef,
        run_id: str,
        turn_index: int,
        outcome: ClientOutcome | None = None,
        *,
        dropped: bool = False,
        output: Any = None,
    ) -> None:
        self._client = client
        self._output = dict if isinstance(output, Mapping) else output
        """The class of the run's answer; it is not pickled with the handle."""
        self._outcome = outcome
        """How the run ended, if it had ended when its start was acknowledged."""
        self._ref = ref
        self.session_id = ref.session_id
        """The session whose run it is."""
        self.run_id = run_id
        """By which `manager.execution` finds it."""
        self.turn_index = turn_index
        """The index of the turn that it makes."""
        self.dropped = dropped
        """Whether `run(if_busy="drop")` stored nothing, since a run was active: then this is that run's handle."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id} of {self.session_id}#{self.turn_index}>"

    def _repr_html_(self) -> str:
        facts = {"run_id": self.run_id, "session_id": self.session_id, "turn_index": self.turn_index}
        ended = {"state": self._outcome.state, "why": self._outcome.why} if self._outcome else {}
        return facts_html(type(self).__name__, {**facts, **ended})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunHandle) and (self._ref, self.run_id) == (other._ref, other.run_id)

    def __hash__(self) -> int:
        return hash((self._ref, self.run_id))

    def __reduce__(self) -> tuple[object, ...]:
        ids = {"run_id": self.run_id, "turn_index": self.turn_index}
        return by_version(type(self), client=self._client, ref=self._ref, **ids)

    def _turn_of(self, outcome: ClientOutcome, timeout_s: float | None, until: Until) -> Turn:
        """Return the turn of a run that stands so after a wait.

        Raises:
            WaitTimeoutError: the run has not ended.
            RunEndedError: how the run ended.
            TurnNotFoundError: its turn was cleared.
        """
        if not has_reached(outcome.state, until, awaits_agents=outcome.awaits_agents):
            raise WaitTimeoutError(self.session_id, self.run_id, timeout_s, outcome.state)
        if outcome.state in (*OPEN_STATES, "completed"):
            if outcome.turn is None:
                raise TurnNotFoundError(self.session_id, self.turn_index)  # it was cleared
            return outcome.turn if self._output is None else outcome.turn.typed(self._output)
        if outcome.code == REPLACED:
            raise RunReplacedError(self.session_id, self.run_id, outcome.why, outcome.turn, outcome.successor)
        kind = _ERRORS_BY_CODE.get(outcome.code) or _ERRORS[outcome.state]
        raise kind(self.session_id, self.run_id, outcome.why, outcome.turn)
