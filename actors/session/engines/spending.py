"""`Spending`: prices the usage of a session's runs and compactions, and checks it against budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from turnwise.actors.inference.engine import Suspend
from turnwise.actors.session.engines.budget import exceeded, price_at, priced, share, spent_of
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

    def price(self, usage: Usage, model: str | None, started_at: float | None = None) -> Usage:
        """Return the usage with its cost.

        Args:
            started_at: when the run has started that pays for it, by whose time prices hold; now, if omitted.

        Raises:
            EngineError: a budget limits the cost, and the model has no price.
        """
        config = self._engines.config
        time_s = self._state.journal.clock() if started_at is None else started_at
        price = price_at(config.prices, model or "", time_s)
        usage = priced(usage, price)
        budgets = (config.run_budget, config.session_budget)
        # Usage without tokens, such as tool calls, needs no price.
        unpriced = usage.input_tokens + usage.output_tokens and not usage.cost and price is None
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
        budgets = self._budgets(run)
        if not budgets:
            return
        calls = run.calls
        for limits, used, owner, remedy in budgets:
            excess = exceeded(limits, used)
            if excess is None:
                continue
            reason = f"the {owner} has spent {excess}"
            asked = [state for state in calls.values() if state.name == "budget" == state.wants]
            rejected = any(state.verdict == "rejected" for state in asked)
            if run.run_resources.config.over_budget == "fail" or rejected:
                raise LimitError(f"{reason}: {remedy}", "budget")
            # Each extension has an id of its own.
            number = 1 + count_grants(calls.values())
            raise Suspend({f"budget-{number}": CallState(name="budget", wants="budget", why=reason)})

    def _budgets(self, run: ActiveRun) -> list[tuple[Mapping[str, float], Usage, str, str]]:
        """Return the limits that hold for a run, what was spent of each, by whom, and what to do if that is all.

        Each approval adds the limits once more; to an agent that has got nothing, those of its own runs or session.
        Approvals are counted among the run's calls, so one beyond a session's budget holds for the run only.
        """
        config, session = run.run_resources.config, self._state.journal.session
        if not (config.run_budget or config.session_budget or session.budget):
            return []
        spent = run.spent
        # The session's stored usage has what the run's record has, so only the rest is added.
        in_session = session.usage + session.agents_usage + (spent - (run.record.usage or Usage()))
        grants = count_grants(run.calls.values())
        own: dict[str, float] = {}
        budgets: list[tuple[Mapping[str, float], Usage, str, str]] = []
        for budget, used, owner in (
            (config.run_budget, spent + run.record.agents_usage, "run"),
            (config.session_budget, in_session, "session"),
        ):
            if budget:
                own = {**budget.limits, **own}
                limits = {name: amount * (1 + grants) for name, amount in budget.limits.items()}
                budgets.append((limits, used, owner, f"raise SessionConfig({owner}_budget=...)"))
        if session.budget:
            limits = {name: amount + grants * (amount or own.get(name, 1)) for name, amount in session.budget.items()}
            budgets.append((limits, in_session, "agent", "its caller had no more left"))
        return budgets

    def shares(self, run: ActiveRun, count: int) -> list[dict[str, float]]:
        """Return what each of `count` agents may spend that the run is about to call, by the names of limits.

        Together they may spend what the run has left, without what agents at work may spend; see `share`. The count may
        include the run itself, if it goes on.
        """
        left: dict[str, float] = {}
        at_work = [state.agent.get("budget") or {} for state in run.calls.values() if "usage" not in state.agent]
        for limits, used, _, _ in self._budgets(run):
            for name, allowed in limits.items():
                held = 0 if name == "seconds" else sum(budget.get(name, 0) for budget in at_work)
                left[name] = max(0, min(left.get(name, math.inf), allowed - spent_of(name, used) - held))
        return [{name: share(name, amount, index, count) for name, amount in left.items()} for index in range(count)]

    def check_session(self, unstored: Usage) -> None:
        """Raise if the session's budget forbids another model call.

        Args:
            unstored: usage that no commit has stored yet.

        Raises:
            LimitError: the session's budget is used up.
        """
        budget, session = self._engines.config.session_budget, self._state.journal.session
        if budget and (excess := budget.exceeded(session.usage + session.agents_usage + unstored)):
            raise LimitError(f"the session has spent {excess}: raise SessionConfig(session_budget=...)", "budget")
