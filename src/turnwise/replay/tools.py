"""`RecordedTools`: how the tool calls of a replay are answered. A tool that would change something is never called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.errors import InvalidInputError, ReplayStoppedError, shown
from turnwise.memory.conversation.blocks import Block, ToolResult, ToolUse
from turnwise.replay.records import calls_with_results

Match = Callable[[ToolUse, ToolUse], bool]
"""Whether a call, the first argument, is answered by the result of a recorded one."""

Simulation = Callable[[ToolUse, Sequence[Block]], "ToolResult | str | Awaitable[ToolResult | str]"]
"""Returns the result of a call that the record does not answer. It also gets the blocks of the recorded answer."""

Otherwise = Literal["stop", "read", "error"]


def same_call(call: ToolUse, recorded: ToolUse) -> bool:
    """Return whether two calls have the same tool and equal arguments."""
    return call.name == recorded.name and call.input == recorded.input


@dataclass(frozen=True, kw_only=True)
class RecordedTools:
    """Answers tool calls from the record of their turn.

    Each recorded result is used once, in order; if a call is repeated more often than in the record, it gets the last
    result again. Approvals are not asked for, and agents are not called: the record has what came of them.

    Raises:
        InvalidInputError: `otherwise` is none of those that there are.
    """

    match: Match = same_call
    """Decides which recorded call answers a call: one with the same tool and equal arguments, if omitted."""
    otherwise: Otherwise | Simulation = "stop"
    """What happens to a call that the record does not answer. `stop`: the replay of the turn ends there, and counts as
    stopped. `read`: the tool is called if it is marked by `tool(reads=True)`; for other tools, as `stop`. `error`: the
    model is told that the tool is not available. A function is asked for the result."""

    def __post_init__(self) -> None:
        if not callable(self.match):
            raise InvalidInputError("match", shown(self.match), "must be a function of two calls")
        if not callable(self.otherwise) and self.otherwise not in ("stop", "read", "error"):
            reason = "must be 'stop', 'read', 'error', or a function that returns the result"
            raise InvalidInputError("otherwise", shown(self.otherwise), reason)

    def of_turn(self, output: Sequence[Block]) -> TurnTools:
        """Return what answers the calls of one turn, of which this is the recorded answer."""
        return TurnTools(self, output)


class TurnTools:
    """Answers the tool calls of one turn; a `ToolStandIn`."""

    def __init__(self, tools: RecordedTools, output: Sequence[Block]) -> None:
        self._tools = tools
        self._output = output
        self._calls = [(use, result) for use, result in calls_with_results(output) if result is not None]
        self._used: set[int] = set()
        self.stopped_at: ToolUse | None = None
        """The call that ended the replay of the turn."""

    async def answer(self, use: ToolUse, *, reads: bool) -> ToolResult | None:
        """See `ToolStandIn.answer`.

        Raises:
            ReplayStoppedError: nothing answers the call.
        """
        matching = [number for number, (call, _) in enumerate(self._calls) if self._tools.match(use, call)]
        if matching:
            number = next((number for number in matching if number not in self._used), matching[-1])
            self._used.add(number)
            return self._calls[number][1]
        otherwise = self._tools.otherwise
        if callable(otherwise):
            result = otherwise(use, self._output)
            simulated = await result if inspect.isawaitable(result) else result
            if isinstance(simulated, ToolResult):
                return simulated
            return ToolResult(call_id=use.call_id, text=str(simulated))
        if otherwise == "read" and reads:
            return None
        if otherwise == "error":
            text = f"The tool {use.name!r} is not available with these arguments."
            return ToolResult(call_id=use.call_id, text=text, is_error=True)
        self.stopped_at = self.stopped_at or use
        raise ReplayStoppedError(use.name, use.call_id)
