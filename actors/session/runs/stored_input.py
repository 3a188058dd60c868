"""What a middleware stores in place of the input of a run's turn."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from turnwise.errors import EngineError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Block, Recalled, encode
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span, join, places
from turnwise.memory.conversation.turns import TurnRecord


def with_input(
    turn: TurnRecord, blocks: Sequence[Block], output: Sequence[Block], cache: BlockCache, session: SessionRecord
) -> tuple[TurnRecord, list[Block]]:
    """Return a running turn with other input, and the blocks of it that its input does not have yet.

    These come next in the session's log, and belong to the turn's prompts, so that they are forgotten with the turn.

    Args:
        blocks: the input, then the output.
        output: what the run has recorded.

    Raises:
        EngineError: the blocks do not end with the output.
    """
    shown = [block for block in blocks if not isinstance(block, Recalled)]
    count = len(shown) - len(output)
    if count < 0 or any(map(_differ, shown[count:], output)):
        reason = "what the run has answered so far is not at the end of the blocks: change only what is before it"
        raise EngineError(f"a middleware cannot store its blocks: {reason}")
    found: defaultdict[str, deque[Span]] = defaultdict(deque)
    for place, earlier_block in zip(places(turn.input), cache.read(turn.input), strict=True):
        found[encode(earlier_block)].append(place)
    parts, new = list[Span](), list[Block]()
    for block in shown[:count]:
        if earlier := found[encode(block)]:
            parts.append(earlier.popleft())
        else:
            start = session.log_size + len(new)
            parts.append(Span(session.log, start, start + 1))
            new.append(block)
    added = [Span(session.log, session.log_size, session.log_size + len(new))] if new else []
    return replace(turn, input=join(parts), prompt=join(turn.prompt, added)), new


def _differ(one: Block, other: Block) -> bool:
    return one != other
