"""What is kept of a run's output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from turnwise.memory.blocks import Block, Text, Thinking, ToolResult, ToolUse


@dataclass(slots=True)
class _Group:
    """What the model said between two tool results."""

    said: list[Block] = field(default_factory=list)
    results: dict[str, ToolResult | None] = field(default_factory=dict)
    """By call id, in the order in which the calls were declared."""

    @property
    def is_answered(self) -> bool:
        return any(self.results.values())

    def settled(self, why: str) -> Iterator[Block]:
        yield from self.said
        for call_id, result in self.results.items():
            yield result or ToolResult(call_id=call_id, text=f"cancelled: {why}", is_error=True)


def settle(output: Sequence[Block], *, why: str, interrupted: bool) -> list[Block]:
    """Return a run's output, whole or cut short, such that a request which contains it is valid. Idempotent.

    Each tool call is followed by its result: results stand right after the group of blocks that made the calls, in the
    order of declaration, and a call without one gets the error result "cancelled: <why>". What the model said stays,
    in order. Dropped are: thoughts that lead to no text and no call (so of nothing but thoughts, nothing is left);
    results without a call before them; a second result of a call; calls without an id or a name, which no provider
    takes back.

    Args:
        output: of one run, oldest first; may be empty.
        why: what the model is told of a call that has no result.
        interrupted: whether to mark the last text as cut short.
    """
    settled = [block for group in _groups(output) for block in group.settled(why)]
    settled = _without_idle_thoughts(settled)
    if interrupted:
        for at in reversed(range(len(settled))):
            if isinstance(text := settled[at], Text):
                settled[at] = text.model_copy(update={"interrupted": True})
                break
    return settled


def _groups(output: Sequence[Block]) -> list[_Group]:
    groups = [_Group()]
    callers: dict[str, _Group] = {}
    for block in output:
        if isinstance(block, ToolResult):
            caller = callers.get(block.call_id)
            if caller and caller.results[block.call_id] is None:
                caller.results[block.call_id] = block
            continue
        if isinstance(block, ToolUse) and not (block.call_id and block.name):
            continue
        # An id that the group has already needs a group of its own: one message cannot hold it twice.
        if groups[-1].is_answered or (isinstance(block, ToolUse) and block.call_id in groups[-1].results):
            groups.append(_Group())
        groups[-1].said.append(block)
        if isinstance(block, ToolUse):
            groups[-1].results[block.call_id] = None
            callers[block.call_id] = groups[-1]
    return groups


def _without_idle_thoughts(blocks: list[Block]) -> list[Block]:
    """Drop the thoughts behind the last text or call."""
    last = max((at for at, block in enumerate(blocks) if _is_spoken(block)), default=-1)
    return [block for at, block in enumerate(blocks) if at < last or not isinstance(block, Thinking)]


def _is_spoken(block: Block) -> bool:
    return isinstance(block, ToolUse) or (isinstance(block, Text) and bool(block.text))
