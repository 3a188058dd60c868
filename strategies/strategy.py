"""`OverflowStrategy`: the protocol of strategies for conversations that outgrow the model's window."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from turnwise.errors import StrategyError, TurnwiseError
from turnwise.strategies.plan import Plan
from turnwise.strategies.window import TokenBudget, Window


@runtime_checkable
class OverflowStrategy(Protocol):
    """Decides what to remove from a window; the session carries it out. It is pickled to the session's process.

    A decision is pure: it depends only on the window, the budget and the strategy's settings, and changes nothing. It
    obeys the laws of `Plan.check`, and after it is carried out there is nothing more to remove. `conformance.py` checks
    this on random conversations.
    """

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        """Return the plan for the window; None to leave it unchanged.

        Called before each request, even if it fits; after a run if `due` returns true; and with an empty window when a
        manager is created.

        Raises:
            WindowOverflowError: the window is over its budget, and removing all that may be removed does not help.
        """

    def due(self, window: Window, budget: TokenBudget) -> bool:
        """Return whether to compact now, in the background, although the window may still fit."""


def is_due(strategy: OverflowStrategy, window: Window, budget: TokenBudget) -> bool:
    """Return the result of the strategy's `due`.

    Raises:
        ConfigError: the strategy's settings do not fit the budget.
        StrategyError: the strategy raised something else.
    """
    try:
        return strategy.due(window, budget)
    except TurnwiseError:
        raise
    except Exception as error:
        raise StrategyError(type(strategy).__name__, "decides", f"due() raised {error!r}") from error


def acts(strategy: OverflowStrategy, window: Window, budget: TokenBudget) -> bool:
    """Return whether a strategy would change the window now or in the background, or fails."""
    try:
        return decide(strategy, window, budget) is not None or is_due(strategy, window, budget)
    except TurnwiseError:
        return True


def decide(strategy: OverflowStrategy, window: Window, budget: TokenBudget) -> Plan | None:
    """Return a strategy's plan after checking it.

    Raises:
        WindowOverflowError: nothing makes the window fit.
        ConfigError: the strategy's settings do not fit the budget.
        StrategyError: the strategy raised something else, or its plan breaks a law.
    """
    name = type(strategy).__name__
    try:
        plan = strategy.decide(window, budget)
    except TurnwiseError:
        raise
    except Exception as error:
        raise StrategyError(name, "decides", f"it raised {error!r}") from error
    if plan is None:
        if (tokens := window.taken(budget)) > budget.max_tokens:
            reason = f"it does not change the window, which has {tokens} of {budget.max_tokens} tokens"
            raise StrategyError(name, "budget met", reason)
        return None
    if not isinstance(plan, Plan):
        raise StrategyError(name, "decides", f"it returned {type(plan).__name__}, neither a Plan nor None")
    try:
        plan.check(window, budget)
    except TurnwiseError:
        raise
    except Exception as error:
        raise StrategyError(name, "decides", f"its plan cannot be read: {error!r}") from error
    return plan
