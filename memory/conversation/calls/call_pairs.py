"""Tool calls and their results: which calls are open, and which call a result answers.

A conversation is read from its beginning. A call has a place, such as its position, which its result finds again. For
blocks in any order, of any ids:

- A result answers the latest call of its id before it, if that call is open. Any other result answers nothing: there is
  no such call ("orphan"), or the latest one has its result ("answered").
- So a call has at most one result, which comes after it, and a result answers at most one call.
- An id may come again after its result, as some models count their calls from 1 in each answer. A call whose id is
  open ("repeated") takes the place of the open one, which then never gets a result.
- Calls may be open side by side, and their results may come in any order. `open` has them in the order of the calls.
- Only the id pairs: the name of the tool, who carries it out, and what stands between call and result do not matter.
  The providers' rules for blocks between them are in `memory/providers/validation`.
- A call or a result without an id pairs with nothing, and neither does a call without a name: no provider accepts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Literal, TypeVar

from turnwise.memory.conversation.blocks import Block, ToolResult, ToolUse

Place = TypeVar("Place")

Flaw = Literal["empty_id", "empty_name", "repeated", "orphan", "answered"]
"""Why a block makes no pair where it stands."""


class CallPairs(Generic[Place]):
    """The calls of the blocks read so far. An id is open or answered, never both. Each step is O(1).

    Make it by `pairs: CallPairs[int] = CallPairs()`: `CallPairs[int]()` takes a microsecond more.
    """

    __slots__ = ("answered", "open")

    def __init__(self) -> None:
        self.open: dict[str, Place] = {}
        """The places of the calls without a result, by id, in the order of the calls."""
        self.answered: dict[str, Place] = {}
        """The places of the calls with a result, by id. Clear it if a second result may count as an orphan."""

    def flaw_of_call(self, use: ToolUse) -> Flaw | None:
        """Return what is wrong with a call as the next block; None if nothing is."""
        if not use.call_id:
            return "empty_id"
        if not use.name:
            return "empty_name"
        return "repeated" if use.call_id in self.open else None

    def flaw_of_result(self, result: ToolResult) -> Flaw | None:
        """Return what is wrong with a result as the next block; None if nothing is."""
        if result.call_id in self.open:
            return None
        if not result.call_id:
            return "empty_id"
        return "answered" if result.call_id in self.answered else "orphan"

    def read(self, block: Block, place: Place) -> Place | None:
        """Read the next block. Return the place of the call that it answers; None if it answers none."""
        kind = block.kind  # `isinstance` alone is slow for blocks of other classes
        if kind == "tool_result" and isinstance(block, ToolResult):
            return self.answer(block.call_id)
        if kind == "tool_use" and isinstance(block, ToolUse) and block.name:
            self.call(block.call_id, place)
        return None

    def call(self, call_id: str, place: Place) -> None:
        """Read a call that has a name."""
        if not call_id:
            return
        if call_id in self.open:
            del self.open[call_id]  # so that the order is that of the calls
        if call_id in self.answered:
            del self.answered[call_id]
        self.open[call_id] = place

    def answer(self, call_id: str) -> Place | None:
        """Read a result. Return the place of the call that it answers; None if it answers none."""
        place = self.open.pop(call_id, None)
        if place is not None:
            self.answered[call_id] = place
        return place

    def latest(self, call_id: str) -> Place:
        """Return the place of the latest call of this id. Raises KeyError if there is none."""
        return self.open[call_id] if call_id in self.open else self.answered[call_id]


def pairs_of(blocks: Iterable[Block]) -> list[tuple[int, int]]:
    """Return the numbers of each call and its result, in the order of the results."""
    pairs: CallPairs[int] = CallPairs()
    return [(call, result) for result, block in enumerate(blocks) if (call := pairs.read(block, result)) is not None]
