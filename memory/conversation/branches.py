"""The branches of a conversation: which turns are shown, and which turns are versions of the same turn.

Indexes of turns only grow, so a branch is a range of them: it begins with a turn that came in place of an earlier one,
or that continues a version that was chosen again, and it ends where the next branch begins. The newest branch is the
one that is shown, so every new turn belongs to the conversation as it is shown.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from pydantic import GetCoreSchemaHandler, Strict
from pydantic_core import CoreSchema, core_schema

from turnwise.memory.values.limits import MAX_BRANCHES
from turnwise.memory.values.named_tuples import Reduced, by_name

END = 2**62
"""The end of the newest branch, above all indexes."""


class Branch(NamedTuple):
    """Turns from `start` up to the next branch. They follow the turns below `below` of the branch that they left."""

    start: int
    below: int

    def __reduce__(self) -> Reduced:
        return by_name(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads a branch: from a list of two numbers."""
        number = core_schema.int_schema(strict=True)
        parts = core_schema.tuple_schema([number, number], strict=False)
        return core_schema.no_info_after_validator_function(cls._make, parts)


Branches = Annotated[tuple[Branch, ...], Strict(False)]
"""Branches by `start`; empty where no turn was ever replaced: then there is one branch, of all turns. A branch with the
same start as the next one is empty."""


class Version(NamedTuple):
    """One of the turns that a session has had in the same place of the conversation."""

    number: int
    """From 1, by age."""
    turn_index: int
    """The index of the turn."""
    is_shown: bool
    """Whether the conversation as it is shown has this one. None is shown if an earlier turn has another version."""

    def __reduce__(self) -> Reduced:
        return by_name(self)


def shown_ranges(branches: Branches) -> tuple[range, ...]:
    """Return the ranges of indexes that the shown turns have, ascending. Those of one branch are one range."""
    return _path(branches, len(branches))


def shown_among(branches: Branches) -> Callable[[int], bool]:
    """Return a function that says of an index whether its turn is shown, in time logarithmic in the branches."""
    ranges = shown_ranges(branches)
    starts = [part.start for part in ranges]

    def is_among(index: int) -> bool:
        place = bisect_right(starts, index)
        return place > 0 and index < ranges[place - 1].stop

    return is_among


def is_shown(branches: Branches, index: int) -> bool:
    """Return whether the turn with this index is part of the conversation as it is shown."""
    return not branches or shown_among(branches)(index)


def ranges_below(branches: Branches, index: int) -> tuple[range, ...]:
    """Return the ranges of indexes of the turns that a turn follows, shown or not, ascending."""
    ranges = _path(branches, _position(branches, index))
    return tuple(part for whole in ranges if (part := range(whole.start, min(whole.stop, index))))


def versions_of(branches: Branches, index: int) -> tuple[Version, ...]:
    """Return the versions of the turn with this index, itself included, by age."""
    if not branches:
        return (Version(1, index, is_shown=True),)
    below = _place(branches, index)
    first = [below] if below == 0 or _position(branches, below) == _position(branches, below - 1) else []
    starts = [
        branch.start
        for branch, stop in zip(branches, _stops(branches)[1:], strict=True)
        if branch.below == below and branch.start < stop
    ]
    is_among = shown_among(branches)
    return tuple(Version(number, version, is_among(version)) for number, version in enumerate([*first, *starts], 1))


def replacing(branches: Branches, index: int, next_index: int) -> Branches:
    """Return the branches once the turn `next_index` has come in place of the shown turn `index`.

    If the new turn is dropped, `without_version` returns what was shown before.
    """
    return (*_without_empty(branches), Branch(next_index, _place(branches, index)))


def without_version(branches: Branches, index: int) -> Branches:
    """Return the branches after the newest turn is dropped: if it replaced a turn, that one is shown again."""
    is_version = bool(branches) and branches[-1].start == index and len(versions_of(branches, index)) > 1
    return branches[:-1] if is_version else branches


def showing(branches: Branches, index: int, next_index: int) -> Branches:
    """Return the branches with which the turn `index` is shown, and what was answered after it.

    Of several continuations, the newest one is shown.
    """
    if is_shown(branches, index):
        return branches
    used = _without_empty(branches)
    while used and used[-1].start >= next_index:
        used = used[:-1]
    newest = next(
        position for position in range(len(used), -1, -1) if any(index in part for part in _path(used, position))
    )
    return used if newest == len(used) else (*used, Branch(next_index, _stops(used)[newest]))


def first_change(before: Branches, after: Branches) -> tuple[int, int]:
    """Return the first turn that is shown no longer, and the first one that came in its place.

    Args:
        before, after: branches that do not show the same turns.
    """
    old_ranges, new_ranges = shown_ranges(before), shown_ranges(after)
    common = next(count for count, (old, new) in enumerate(zip(old_ranges, new_ranges, strict=False)) if old != new)
    old, new = old_ranges[common], new_ranges[common]
    stop = min(old.stop, new.stop) if old.start == new.start else -1

    def first(ranges: tuple[range, ...]) -> int:
        part = ranges[common]
        if stop < 0:
            return part.start
        return stop if part.stop > stop else ranges[common + 1].start

    return first(old_ranges), first(new_ranges)


def cleared(branches: Branches, first: int) -> Branches:
    """Return the branches after all turns below the shown turn `first` were removed.

    Branches that left a removed turn become versions of the first turn that remains.
    """
    return tuple(Branch(start, max(below, first)) for start, below in branches if start > first)


def are_valid(branches: Branches, next_index: int) -> bool:
    """Return whether a session whose next turn has this index can have these branches."""
    starts = [0, *(branch.start for branch in branches)]
    return (
        len(branches) <= MAX_BRANCHES
        and starts == sorted(starts)
        and starts[-1] <= next_index
        and all(0 <= branch.below <= branch.start and branch.start > 0 for branch in branches)
    )


def _stops(branches: Branches) -> list[int]:
    """Return the end of each branch, that of the first turns included, which begins at 0."""
    return [*(branch.start for branch in branches), END]


def _position(branches: Branches, index: int) -> int:
    """Return which branch has the turn with this index: 0 is that of the first turns, 1 is `branches[0]`."""
    return bisect_right(branches, index, key=lambda branch: branch.start)


def _place(branches: Branches, index: int) -> int:
    """Return what all versions of a turn have in common: the first index that the turns before them are below."""
    position = _position(branches, index)
    return branches[position - 1].below if position and branches[position - 1].start == index else index


def _path(branches: Branches, position: int) -> tuple[range, ...]:
    """Return the ranges of indexes on the way from the first turn to the end of the branch at this position."""
    starts, stop = [0, *(branch.start for branch in branches)], _stops(branches)[position]
    ranges = [range(starts[position], stop)]
    while position and (below := branches[position - 1].below):
        position = _position(branches, below - 1)
        ranges.append(range(starts[position], below))
    return tuple(part for part in reversed(ranges) if part)


def _without_empty(branches: Branches) -> Branches:
    """Return the branches without those that are empty because the next one begins with the same turn."""
    stops = _stops(branches)[1:]
    return tuple(branch for branch, stop in zip(branches, stops, strict=True) if branch.start < stop)
