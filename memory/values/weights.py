"""How much one read returns: about `PAGE_BYTES`, measured by `weight`, or one record that is larger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

PAGE_BYTES = 1 << 20
"""About how many bytes a page or one step of a long read has: some 1,700 short blocks, or what is longer."""

MAX_PAGE = 1_000
"""The most items of a page, whose `next` or `cursor` says whether there is more."""

BLOCK_BYTES = 600
"""Estimated memory of a block without its content, in bytes."""


def weight(value: object) -> int:
    """Return the estimated memory of a value's texts, in bytes. O(values within it)."""
    kind = type(value)
    if kind is str:
        return len(value)  # type: ignore[arg-type]
    if kind in _NUMBERS:
        return 8
    if isinstance(value, tuple | list):
        return sum(map(weight, value))
    members = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if members is None:
        members = {name: getattr(value, name) for name in getattr(value, "__dataclass_fields__", ())}
    return 8 + sum(map(weight, members.values()))


_NUMBERS = (int, float, bool, type(None))


def may_be_cut(page: Sequence[object], limit: int) -> bool:
    """Return whether more may follow a page of a store: stores cut those whose texts have `PAGE_BYTES`.

    What a record has as text is never eight times as long as its weight, also if it is escaped, named and encrypted.
    """
    return len(page) >= limit or sum(map(weight, page)) > PAGE_BYTES // 8


def first_of(items: list[Item]) -> list[Item]:
    """Return the first items that weigh `PAGE_BYTES` together: at least one, if there is one."""
    return items[: count_first(map(weight, items))]


def count_first(weights: Iterable[int]) -> int:
    """Return how many of these weights make a page: at least one, if there is one."""
    total = count = 0
    for weight in weights:
        total += weight
        if count and total > PAGE_BYTES:
            break
        count += 1
    return count
