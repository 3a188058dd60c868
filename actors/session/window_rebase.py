"""Replaces the compacted prefix of turns that continue a window."""

from __future__ import annotations

from dataclasses import replace

from turnwise.memory.conversation.spans import Spans, begins_with, cut, join, size
from turnwise.memory.conversation.turns import TurnRecord


def continued_under(turn: TurnRecord, was: Spans, becomes: Spans) -> TurnRecord | None:
    """Return the parent turn of a running one with `carried` set to the compacted prefix of the running one's window.

    So a compaction that was paid for is kept if the running turn is discarded. None if the compaction touched blocks
    of the running turn or the parent's output, or the window does not begin with the blocks that follow the parent.
    """
    if not begins_with(was, turn.base):
        return None
    own = cut(was, size(turn.base))[1]
    front, rest = cut(becomes, size(becomes) - size(own))
    return rebased(turn, turn.base, front) if rest == join(own) else None


def rebased(turn: TurnRecord, was: Spans, becomes: Spans) -> TurnRecord | None:
    """Return the turn with `carried` set so that the next turn continues `becomes` instead of the window `was`.

    What the turn added behind the window stays behind it, its output last. None if the turn does not continue the
    window, or its output was compacted.
    """
    if not begins_with(turn.base, was):
        return None
    whole = join(becomes, cut(turn.base, size(was))[1])
    if turn.forgotten:
        return replace(turn, carried=whole) if whole else None
    carried, output = cut(whole, size(whole) - size(turn.output))
    return replace(turn, carried=carried) if carried and output == join(turn.output) else None
