"""`Spending`: prices the usage of a session's runs and compactions, and checks it against budgets."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.actors.inference.engine import Suspend
from turnwise.actors.session.engines.budget import priced
from turnwise.actors.session.engines.call_counting import CallCounter
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.active_run import ActiveRun, count_grants
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import EngineError, LimitError
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage


class Spending:
    """Prices usage, and compares it with the budgets of the run and of the session."""

    def __init__(self, state: SessionState, engines: SessionEngines) -> None:
        self._state = state
        self._engines = engines
        self._counter = CallCounter(state, engines)

    def price(self, usage: Usage, model: str | None) -> Usage:
        """Return the usage with its cost.

        Raises:
            EngineError: a budget limits the cost, and the model has no price.
        """
        config = self._engines.config
        usage = priced(usage, config.prices.get(model or ""))
        budgets = (config.run_budget, config.session_budget)
        # Usage without tokens, such as tool calls, needs no price.
        unpriced = usage.input_tokens + usage.output_tokens and not usage.cost and model not in config.prices
        if unpriced and any(budget and budget.cost for budget in budgets):
            message = f"a budget limits the cost, and model {model!r} has no price: add it to SessionConfig(prices=...)"
            raise EngineError(message)
        return usage

    def count_call(self, run: ActiveRun, turn: TurnRecord, answer: Sequence[Block]) -> tuple[int, int]:
        """Return the tokens of a request with this turn, and those of the answer; see `CallCounter`."""
        return self._counter.count(run, turn, answer)

    def check_run(self, run: ActiveRun) -> None:
        """Raise if the run's budget or the session's forbids another model call.

        Raises:
            LimitError: the run fails, because `over_budget` is "fail" or a caller refused to let it continue.
            Suspend: the run waits until a caller decides whether it may continue.
        """
        config = run.run_resources.config
        if not (config.run_budget or config.session_budget):
            return
        spent, calls = run.spent, run.calls
        # Approvals are counted among this run's calls, so one beyond the session's budget holds for this run only.
        times = 1 + count_grants(calls.values())
        # The session's stored usage has what the run's record has, so only the rest is added.
        in_session = self._state.journal.session.usage + (spent - (run.record.usage or Usage()))
        for budget, owner, used in (
            (config.run_budget, "run", spent),
            (config.session_budget, "session", in_session),
        ):
            excess = budget.exceeded(used, times) if budget else None
            if excess is None:
                continue
            reason = f"the {owner} has spent {excess}"
            rejected = any(state.wants == "budget" and state.verdict == "rejected" for state in calls.values())
            if config.over_budget == "fail" or rejected:
                raise LimitError(f"{reason}: raise SessionConfig({owner}_budget=...)", "budget")
            # Each extension has an id of its own.
            raise Suspend({f"budget-{times}": CallState(name="budget", wants="budget", why=reason)})

    def check_session(self, unstored: Usage) -> None:
        """Raise if the session's budget forbids another model call.

        Args:
            unstored: usage that no commit has stored yet.

        Raises:
            LimitError: the session's budget is used up.
        """
        budget = self._engines.config.session_budget
        if budget and (excess := budget.exceeded(self._state.journal.session.usage + unstored)):
            raise LimitError(f"the session has spent {excess}: raise SessionConfig(session_budget=...)", "budget")
