"""How much of what takes minutes a run of the tests does."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from turnwise.memory.stores.conformance.laws import Law


def share(count: int, one_of: int = 20) -> int:
    """Return how many of so many schedules a run takes: one of twenty, or of so many; all of them with `make races`."""
    return count if "TURNWISE_ALL" in os.environ else count // one_of


def of_kills(count: int = 3) -> int:
    """Return of how many kills between two steps `exhaust` tries one; all of them with `make races`."""
    return 1 if "TURNWISE_ALL" in os.environ else count


def on_stores_in_turn(laws: Iterable[Law]) -> list[Any]:
    """Return each law with "memory" or "sqlite", in turn, as parameters of a test; with `make races` with both."""
    return [
        pytest.param(law, store, id=f"{law.__name__.removeprefix('check_')}-{store}")
        for index, law in enumerate(laws)
        for number, store in enumerate(("memory", "sqlite"))
        if share(2, 2) == 2 or index % 2 == number
    ]
