"""The overflow strategy of one run, as the run's record keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from turnwise.errors import ConfigError, InvalidInputError, shown
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.keep_last import KeepLast
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.trim import Trim

_STRATEGIES: dict[str, type[Trim | DeleteOldest | KeepLast]] = {
    strategy.__name__: strategy for strategy in (Trim, DeleteOldest, KeepLast)
}
"""Those that are settings only: they ask no model and no memory."""


def overflow_record(strategy: Any) -> dict[str, Any]:
    """Return the record of a run's own strategy: its name and its settings.

    Raises:
        InvalidInputError: a run cannot have this strategy.
    """
    if type(strategy) not in _STRATEGIES.values():
        reason = "pass KeepLast(), Trim() or DeleteOldest(), since a run's own strategy asks no model and no memory"
        raise InvalidInputError("overflow", shown(strategy), reason)
    settings = {field.name: getattr(strategy, field.name) for field in fields(strategy)}
    set_settings = {name: value for name, value in settings.items() if value is not None}
    return {"strategy": type(strategy).__name__, **set_settings}


def strategy_of(record: Mapping[str, Any]) -> OverflowStrategy:
    """Return the strategy of a record, which may be a caller's.

    Raises:
        InvalidInputError: it is no record of a strategy that a run can have.
    """
    settings = {name: value for name, value in record.items() if name != "strategy"}
    try:
        return _STRATEGIES[record["strategy"]](**settings)
    except ConfigError as error:
        raise InvalidInputError(f"overflow.{error.setting}", shown(record), str(error)) from None
    except (KeyError, TypeError):
        reason = 'name one of them with its settings, such as {"strategy": "KeepLast", "turns": 5}: '
        raise InvalidInputError("overflow", shown(record), f"{reason}{', '.join(_STRATEGIES)}") from None
