"""Where the turns of a conversation begin, where their answers do, and where they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnwise.memory.conversation.blocks import AnyBlock, CacheCheckpoint, ToolResult, Unknown


def goes_on(blocks: Sequence[AnyBlock], count: int) -> bool:
    """Return whether the blocks after the first `count` begin a new turn, and not the rest of an answer."""
    rest = (block for block in blocks[count:] if not isinstance(block, CacheCheckpoint | Unknown))
    following = next(rest, None)
    return following is None or not (following.role == "assistant" or isinstance(following, ToolResult))


def exchanges(blocks: Sequence[AnyBlock]) -> Iterator[tuple[int, int, int]]:
    """Yield where each turn of a conversation begins, where its answer begins, and where it ends.

    Answers before the first prompt belong to the first turn's prompt, as a conversation begins with its user.
    """
    start, answer = 0, None
    is_begun = False
    for index, block in enumerate(blocks):
        if isinstance(block, CacheCheckpoint | Unknown):
            continue
        is_answer = block.role == "assistant" or isinstance(block, ToolResult)
        if is_answer and is_begun and answer is None:
            answer = index
        elif not is_answer:
            is_begun = is_begun or block.role == "user"
            if answer is not None:
                yield start, answer, index
                start, answer = index, None
    yield start, len(blocks) if answer is None else answer, len(blocks)
