"""How much of what takes minutes a run of the tests does."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from turnwise.actors.hosting.placement import Dedicated, Packed


def today() -> int:
    """Return the number of the day, by which samples are chosen, so that another day has others."""
    return int(time.time() // 86400)


def share(count: int, one_of: int = 20) -> int:
    """Return how many of so many schedules a run takes: one of twenty, or of so many; all of them with `make races`."""
    return count if "TURNWISE_ALL" in os.environ else count // one_of


def of_cases(count: int = 3) -> dict[str, Any]:
    """Return which of the cases `exhaust` tries: one of so many, each day others; all of them with `make races`."""
    return {"one_of": count, "draw": today()} if share(2, 2) < 2 else {}


STORES = {"memory", "sqlite", "postgresql", "redis", "encrypted", "over HTTP", "database", "redis_url"}
"""What tests call the stores on which they run, as a value of a parameter."""

TURNS = 3
"""Of so many days, a test that is marked `by_turns` runs on one."""


def one_a_day(names: str, values: Sequence[Any], ids: Sequence[str]) -> pytest.MarkDecorator:
    """Return a decorator that has a test run with one of these values in a lane, each day with the next one.

    Tests do not all have the same value on one day, so each value is tried each day. Who names a file runs all.
    """
    params = [
        pytest.param(*(value if isinstance(value, tuple) else [value]), id=id_, marks=pytest.mark.one_a_day(names))
        for value, id_ in zip(values, ids, strict=True)
    ]
    return pytest.mark.parametrize(names, params)


ONE_PLACEMENT = one_a_day("placement", [Dedicated(), Packed(hosts=1)], ["dedicated", "packed"])
"""Sessions of a test have processes of their own, or share one; see `one_a_day`."""


def of_today(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return which tests a lane runs today.

    A test that runs on several stores runs on one of them, and one with values of `one_a_day` with one of these: each
    day the next one. A test that is marked `on_each_store` runs on all. Of those that are marked `by_turns`, each day
    another third runs; with other parameters besides, each of their values has its own turn.
    """
    variants: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        variants.setdefault(_without_store(item), []).append(item)
    chosen = set[pytest.Item]()
    for place, ((test, *_), alike) in enumerate(variants.items()):
        turn = today() + zlib.crc32(f"{test} {place}".encode())  # the same in each process
        if alike[0].get_closest_marker("by_turns"):
            if turn % TURNS:
                continue
            turn //= TURNS
        chosen.update(alike if alike[0].get_closest_marker("on_each_store") else [alike[turn % len(alike)]])
    return [item for item in items if item in chosen]


def _without_store(item: pytest.Item) -> tuple[object, ...]:
    """Return what a test has in common with what it is on other stores, and with other values of `one_a_day`."""
    test = item.nodeid.partition("[")[0]
    if not hasattr(item, "callspec"):
        return (test,)
    values = item.callspec.params
    varied = {name.strip() for mark in item.iter_markers("one_a_day") for name in mark.args[0].split(",")}
    varied |= {name for name, value in values.items() if isinstance(value, str) and value in STORES}
    return (test, *((name, id(values[name])) for name in sorted(values.keys() - varied)))
