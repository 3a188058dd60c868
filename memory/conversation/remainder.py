"""The blocks of a conversation that a request can still have after some blocks were removed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    System,
    Thinking,
    ToolUse,
    Unknown,
)
from turnwise.memory.conversation.calls.call_pairs import pairs_of
from turnwise.memory.conversation.transcript import is_spoken


def remainder(blocks: Sequence[Block], removed: Collection[int]) -> list[int]:
    """Return the numbers of the blocks that are left for a request, in order, without the numbers `removed`.

    Whatever is removed, each provider that would accept the blocks accepts the remaining ones, with a prompt after
    them. So these are removed too: the result of a call and the call of a result, the calls of an answer whose thoughts
    are removed, thoughts without a remaining text or call, and the blocks before the first one of the user. O(blocks).
    """
    left_out = set(removed)
    answers = list(_answers(blocks))
    for answer in answers:
        if any(isinstance(blocks[number], Thinking) for number in left_out.intersection(answer)):
            left_out.update(number for number in answer if isinstance(blocks[number], ToolUse))
    for pair in pairs_of(blocks):
        if not left_out.isdisjoint(pair):
            left_out.update(pair)
    for answer in answers:
        if not any(number not in left_out and is_spoken(blocks[number]) for number in answer):
            left_out.update(number for number in answer if isinstance(blocks[number], Thinking))
    return from_user(blocks, [number for number in range(len(blocks)) if number not in left_out])


def from_user(blocks: Sequence[Block], numbers: Sequence[int]) -> list[int]:
    """Return `numbers` without those before the first block of the user, if `blocks` begin with one.

    System prompts stay.
    """
    if not _begins_with_user(blocks) or _begins_with_user([blocks[number] for number in numbers]):
        return list(numbers)
    first = next(
        (number for number in numbers if blocks[number].role == "user" and not _is_neutral(blocks[number])), len(blocks)
    )
    return [number for number in numbers if number >= first or isinstance(blocks[number], System)]


def _answers(blocks: Sequence[Block]) -> Iterator[list[int]]:
    """Yield the numbers of each answer: consecutive blocks of the assistant, which begin anew with thoughts."""
    answer: list[int] = []
    for number, block in enumerate(blocks):
        if _is_neutral(block):
            continue
        is_new = answer and isinstance(block, Thinking) and not isinstance(blocks[answer[-1]], Thinking)
        if answer and (is_new or block.role != "assistant"):
            yield answer
            answer = []
        if block.role == "assistant":
            answer.append(number)
    if answer:
        yield answer


def _begins_with_user(blocks: Sequence[Block]) -> bool:
    """Return whether the first block that is sent is the user's; true if none is sent."""
    first = next((block for block in blocks if not (_is_neutral(block) or isinstance(block, System))), None)
    return first is None or first.role == "user"


def _is_neutral(block: Block) -> bool:
    return isinstance(block, CacheCheckpoint | Unknown)
