"""`Receipt` and `Totals`: what one chunk has found, and what all have. The size of both is bounded."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic_core

from turnwise.memory.conversation.sessions import SessionKey
from turnwise.replay.records import TurnReplay
from turnwise.replay.report.overview import Overview
from turnwise.replay.scale.parts import SUMS, TURNS, Part, Unreadable, read_record, write_whole
from turnwise.replay.statistics import Summary, Summing, difference
from turnwise.replay.writing import json_of

MOST_UNREADABLE = 1000
"""How many sessions that cannot be read the result names."""

Different = tuple[tuple[float, float], tuple[int, int, int], str, int, int]
"""How different a turn is; its place among all, negative, so that the first one is the largest; and where its record
is: the file, the start and the length."""


@dataclass
class Receipt:
    """What a chunk has found."""

    number: int
    turns: int = 0
    left: int = 0
    """How many sessions have turns without records."""
    sums: Summing = field(default_factory=Summing)
    overview: Overview = field(default_factory=Overview)
    different: list[Different] = field(default_factory=list)
    """The turns that differ most, at most as many as the result has."""
    unreadable: list[Unreadable] = field(default_factory=list)


_FORMAT = 2
"""The form of a receipt's file. Increase it with every change to what it has, or to what is measured."""


def keep_receipt(folder: Path, receipt: Receipt, keep: int) -> None:
    """Write the receipt of a complete chunk beside its records, so that a replay that goes on need not read these."""
    value = {
        "format": _FORMAT,
        "graders": receipt.sums.graders,
        "keep": keep,
        "turns": receipt.turns,
        "sums": receipt.sums.encode(),
        "overview": receipt.overview.encode(),
        "different": receipt.different,
        "unreadable": [[each.session_id, each.user_id, each.why] for each in receipt.unreadable],
    }
    write_whole(folder / TURNS / f"{receipt.number:06}{SUMS}", iter([json_of(value)]))


def kept_receipt(folder: Path, number: int, graders: Sequence[str], keep: int) -> Receipt | None:
    """Return the receipt of a complete chunk from its file; None if its records have to be read.

    Args:
        keep: how many of the turns that differ most are wanted.
    """
    try:
        value = pydantic_core.from_json((folder / TURNS / f"{number:06}{SUMS}").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if value["format"] != _FORMAT or value["graders"] != list(graders):
        return None
    if len(value["different"]) < min(keep, value["turns"]):
        return None  # fewer were kept than are wanted now
    different = [(tuple(weight), tuple(place), *where) for weight, place, *where in value["different"]]
    return Receipt(
        number=number,
        turns=value["turns"],
        sums=Summing.decode(value["sums"], graders),
        overview=Overview.decode(value["overview"]),
        different=sorted(different, reverse=True)[:keep],
        unreadable=[Unreadable(*row) for row in value["unreadable"]],
    )


class ChunkSums:
    """Adds up the records of a chunk as they come, and notes which differ most.

    Args:
        order: the sessions of the chunk.
        keep: how many turns are noted.
    """

    def __init__(self, number: int, order: Sequence[SessionKey], graders: Sequence[str], keep: int) -> None:
        self._receipt = Receipt(number, sums=Summing(graders))
        self._places = {key: place for place, key in enumerate(order)}
        self._keep = keep
        self._heap: list[tuple[tuple[float, float], tuple[int, int, int], SessionKey]] = []

    def add(self, record: TurnReplay) -> None:
        """Add a record."""
        key = SessionKey(record.session_id, record.user_id)
        self._receipt.sums.add(record)
        self._receipt.overview.add(record)
        self._receipt.turns += 1
        place = -self._receipt.number, -self._places[key], -record.turn_index
        _keep(self._heap, (difference(record), place, key), self._keep)

    def receipt(self, part: Part) -> Receipt:
        """Return what was added."""
        receipt = self._receipt
        receipt.left = sum(not part.has_all(key) for key in self._places) if not part.is_done else 0
        receipt.unreadable = part.unreadable
        receipt.different = [(weight, place, *part.where(key, -place[2])) for weight, place, key in self._heap]
        return receipt


class Totals:
    """Puts receipts together.

    Args:
        seed: of the intervals.
        keep: how many records of turns the result has.
    """

    def __init__(self, graders: Sequence[str], *, seed: int, keep: int) -> None:
        self._sums = Summing(graders, seed=seed)
        self.overview = Overview()
        self._different: list[Different] = []
        self._keep = keep
        self.turns = 0
        self.left = 0
        self.unreadable: list[Unreadable] = []
        self.unreadable_count = 0

    def add(self, receipt: Receipt) -> None:
        """Add what a chunk has found. Each chunk is added once."""
        self._sums.merge(receipt.sums)
        self.overview.merge(receipt.overview)
        for different in receipt.different:
            _keep(self._different, different, self._keep)
        self.turns += receipt.turns
        self.left += receipt.left
        self.unreadable_count += len(receipt.unreadable)
        self.unreadable += receipt.unreadable[: MOST_UNREADABLE - len(self.unreadable)]

    def summary(self) -> Summary:
        """Return the summary of all chunks."""
        return self._sums.summary()

    def most_different(self, folder: Path, read: Callable[..., TurnReplay] = read_record) -> tuple[TurnReplay, ...]:
        """Return the records that differ most, the most different one first."""
        ordered = sorted(self._different, reverse=True)
        return tuple(read(folder, name, start, length) for _, _, name, start, length in ordered)


def _keep(heap: list[Any], entry: Any, count: int) -> None:
    if len(heap) < count:
        heapq.heappush(heap, entry)
    elif heap and entry > heap[0]:
        heapq.heapreplace(heap, entry)
