"""What a request can still have of a conversation once some of its blocks are gone."""

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


def remainder(blocks: Sequence[Block], gone: Collection[int]) -> list[int]:
    """Return the numbers of the blocks that are left for a request, in order, without those of the numbers `gone`.

    Whatever is gone, each provider that would accept the blocks accepts what is left of them, with a prompt after it.
    So these go too: the result of a call and the call of a result, the calls of an answer whose thoughts are gone,
    thoughts of which neither text nor call is left, and what comes before the first block of the user. O(blocks).
    """
    left_out = set(gone)
    answers = list(_answers(blocks))
    for answer in answers:
        if any(isinstance(blocks[at], Thinking) for at in left_out.intersection(answer)):
            left_out.update(at for at in answer if isinstance(blocks[at], ToolUse))
    for pair in pairs_of(blocks):
        if not left_out.isdisjoint(pair):
            left_out.update(pair)
    for answer in answers:
        if not any(at not in left_out and is_spoken(blocks[at]) for at in answer):
            left_out.update(at for at in answer if isinstance(blocks[at], Thinking))
    return from_user(blocks, [at for at in range(len(blocks)) if at not in left_out])


def from_user(blocks: Sequence[Block], left: Sequence[int]) -> list[int]:
    """Return the numbers `left` without what comes before the first block of the user, if all `blocks` begin with one.

    System prompts stay.
    """
    if not _begins_with_user(blocks) or _begins_with_user([blocks[at] for at in left]):
        return list(left)
    first = next((at for at in left if blocks[at].role == "user" and not _is_neutral(blocks[at])), len(blocks))
    return [at for at in left if at >= first or isinstance(blocks[at], System)]


def _answers(blocks: Sequence[Block]) -> Iterator[list[int]]:
    """Yield the numbers of each answer: consecutive blocks of the assistant, which begin anew with thoughts."""
    answer: list[int] = []
    for at, block in enumerate(blocks):
        if _is_neutral(block):
            continue
        is_new = answer and isinstance(block, Thinking) and not isinstance(blocks[answer[-1]], Thinking)
        if answer and (is_new or block.role != "assistant"):
            yield answer
            answer = []
        if block.role == "assistant":
            answer.append(at)
    if answer:
        yield answer


def _begins_with_user(blocks: Sequence[Block]) -> bool:
    """Return whether the first block that is sent is the user's; true if none is sent."""
    first = next((block for block in blocks if not (_is_neutral(block) or isinstance(block, System))), None)
    return first is None or first.role == "user"


def _is_neutral(block: Block) -> bool:
    return isinstance(block, CacheCheckpoint | Unknown)
