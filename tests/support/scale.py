"""How much of what takes minutes a run of the tests does."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from turnwise.actors.hosting.placement import Dedicated, Packed
from turnwise.memory.stores.conformance.laws import Law


def today() -> int:
    """Return the number of the day, by which samples are chosen, so that another day has others."""
    return int(time.time() // 86400)


def share(count: int, one_of: int = 20) -> int:
    """Return how many of so many schedules a run takes: one of twenty, or of so many; all of them with `make races`."""
    return count if "TURNWISE_ALL" in os.environ else count // one_of


def of_cases(count: int = 3) -> dict[str, Any]:
    """Return which of the cases `exhaust` tries: one of so many, each day others; all of them with `make races`."""
    return {"one_of": count, "draw": today()} if share(2, 2) < 2 else {}


def on_stores_in_turn(laws: Iterable[Law]) -> list[Any]:
    """Return each law with "memory" or "sqlite", in turn, as parameters of a test; with `make races` with both."""
    return [
        pytest.param(law, store, id=f"{law.__name__.removeprefix('check_')}-{store}")
        for index, law in enumerate(laws)
        for number, store in enumerate(("memory", "sqlite"))
        if share(2, 2) == 2 or index % 2 == number
    ]


def one_a_day(names: str, values: Sequence[Any], ids: Sequence[str]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that has a test run with one of these values, each day with the next one.

    `make races` runs it with all of them. The name of the test says which value it had. Tests do not all have the same
    value on one day, so each value is tried each day.
    """

    def parametrized(test: Callable[..., Any]) -> Any:
        chosen = (zlib.crc32(test.__name__.encode()) + today()) % len(values)
        params = [
            pytest.param(*(value if isinstance(value, tuple) else [value]), id=id_)
            for value, id_ in zip(values, ids, strict=True)
        ]
        return pytest.mark.parametrize(names, params if share(2, 2) == 2 else [params[chosen]])(test)

    return parametrized


ONE_PLACEMENT = one_a_day("placement", [Dedicated(), Packed(hosts=1)], ["dedicated", "packed"])
"""Sessions of a test have processes of their own, or share one; see `one_a_day`."""
