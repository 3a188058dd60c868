"""Leaves blocks out of what the next turn continues, also where a summary stands for them."""

from __future__ import annotations

from dataclasses import replace

from turnwise.actors.session.window.summary_expansion import Read, originals
from turnwise.memory.conversation.blocks import Summary
from turnwise.memory.conversation.remainder import remainder
from turnwise.memory.conversation.spans import Seen, Span, Spans, cut, join, overlap, places, size, union
from turnwise.memory.conversation.turns import TurnRecord


async def without(spans: Spans, gone: Spans, read: Read) -> tuple[Spans, int]:
    """Return `spans` without the blocks `gone`, and how many summaries covered any of them.

    Each such summary is replaced by the other blocks that it covered. What cannot be sent without the blocks goes too:
    see `remainder`.
    """
    opened, summaries = await _opened(spans, gone, read)
    if not overlap(opened, gone):
        return opened, summaries
    where, seen = places(opened), Seen()
    for span in gone:
        seen.add(span)
    left = remainder(await read(opened), {at for at, place in enumerate(where) if seen.common(place)})
    return join(where[at] for at in left), summaries


async def _opened(spans: Spans, gone: Spans, read: Read) -> tuple[Spans, int]:
    """Return `spans` with the blocks that summaries replaced in place of those that cover any of `gone`, each once."""
    parts: list[Span] = []
    summaries = 0
    for place, block in zip(places(spans), await read(spans), strict=True):
        if isinstance(block, Summary) and overlap(stands_for := await originals(block, read), gone):
            parts += stands_for
            summaries += 1
        else:
            parts.append(place)
    seen = Seen()
    return join(part for span in parts for part in seen.take(span)), summaries


def carrying(turn: TurnRecord, base: Spans, gone: Spans) -> TurnRecord:
    """Return an ended turn after which the next one continues `base`.

    Args:
        gone: the blocks that are not in `base` any more.
    """
    carried, output = cut(base, size(base) - size(turn.output))
    if not turn.carries_all and carried and output == join(turn.output):
        return replace(turn, carried=carried)
    return replace(turn, carried=base, removed=turn.removed if turn.forgotten else union(turn.removed, gone))
