"""Applies a compacted window to the turns that continue the window."""

from __future__ import annotations

from dataclasses import replace

from turnwise.memory.conversation.spans import Spans, begins_with, cut, join, size
from turnwise.memory.conversation.turns import TurnRecord


def continued_under(turn: TurnRecord, was: Spans, becomes: Spans) -> TurnRecord | None:
    """Apply a compaction of the running turn's window to its parent `turn`; return the parent with `carried` set.

    The compaction, which was paid for, is then kept even if the running turn is discarded. `was` and `becomes` are the
    running turn's window before and after it. Returns None if the compaction replaced blocks of the running turn or the
    parent's output, or if the window does not begin with `turn.base`.
    """
    if not begins_with(was, turn.base):
        return None
    own = cut(was, size(turn.base))[1]
    front, rest = cut(becomes, size(becomes) - size(own))
    return rebased(turn, turn.base, front) if rest == join(own) else None


def rebased(turn: TurnRecord, was: Spans, becomes: Spans) -> TurnRecord | None:
    """Return the turn with `carried` set so that the next turn continues `becomes` instead of the window `was`.

    What the turn added after the window stays after it; the turn's output stays last. Returns None if the turn does not
    continue the window, or if its output was compacted.
    """
    if not begins_with(turn.base, was):
        return None
    whole = join(becomes, cut(turn.base, size(was))[1])
    if turn.carries_all:
        return replace(turn, carried=whole) if whole else None
    carried, output = cut(whole, size(whole) - size(turn.output))
    return replace(turn, carried=carried) if carried and output == join(turn.output) else None
