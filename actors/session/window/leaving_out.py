"""Leaves blocks out of the window that the next turn continues, also blocks that a summary replaced."""

from __future__ import annotations

from dataclasses import replace

from turnwise.actors.session.window.summary_expansion import Read, originals
from turnwise.memory.conversation.blocks import Summary
from turnwise.memory.conversation.remainder import remainder
from turnwise.memory.conversation.spans import Seen, Span, Spans, cut, join, overlap, places, size, union
from turnwise.memory.conversation.turns import TurnRecord


async def without(spans: Spans, removed: Spans, read: Read) -> tuple[Spans, int]:
    """Return `spans` without the blocks `removed`, and how many summaries covered any of them.

    Each such summary is replaced by the other blocks that it covered. Blocks that cannot be sent without the removed
    ones are left out too: see `remainder`.
    """
    opened_spans, summaries = await opened(spans, removed, read)
    if not overlap(opened_spans, removed):
        return opened_spans, summaries
    block_places, covered = places(opened_spans), Seen()
    for span in removed:
        covered.add(span)
    indices = remainder(
        await read(opened_spans), {index for index, place in enumerate(block_places) if covered.common(place)}
    )
    return join(block_places[index] for index in indices), summaries


async def opened(spans: Spans, removed: Spans, read: Read) -> tuple[Spans, int]:
    """Return `spans` with each summary that covers any of `removed` replaced by its blocks, each block once."""
    parts: list[Span] = []
    summaries = 0
    for place, block in zip(places(spans), await read(spans), strict=True):
        if isinstance(block, Summary) and overlap(stands_for := await originals(block, read), removed):
            parts += stands_for
            summaries += 1
        else:
            parts.append(place)
    covered = Seen()
    return join(part for span in parts for part in covered.take(span)), summaries


def carrying(turn: TurnRecord, base: Spans, removed: Spans) -> TurnRecord:
    """Return an ended turn after which the next one continues `base`.

    Args:
        removed: the blocks that are not in `base` any more.
    """
    carried, output = cut(base, size(base) - size(turn.output))
    if not turn.carries_all and carried and output == join(turn.output):
        return replace(turn, carried=carried)
    return replace(turn, carried=base, removed=turn.removed if turn.forgotten else union(turn.removed, removed))
