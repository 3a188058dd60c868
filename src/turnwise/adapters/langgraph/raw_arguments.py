"""`RawArguments`: what models wrote as the arguments of tool calls, before LangChain read it."""

from __future__ import annotations

from typing import Any

from turnwise.adapters.version_checks import framework
from turnwise.memory.conversation.blocks import ToolUse
from turnwise.memory.conversation.calls.call_arguments import read_call
from turnwise.memory.values.growing_text import GrowingText

with framework("langgraph", extra="langgraph", tested="1.2"):
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage

_CUT = ("length", "max_tokens", "max_output_tokens")


class RawArguments:
    """The arguments of calls as they were streamed.

    LangChain completes arguments that were cut off, and reads some that are no JSON. So the calls of a message do not
    say what the model wrote.
    """

    def __init__(self) -> None:
        self._calls: dict[str | None, dict[Any, GrowingText]] = {}
        """By message, by the index of the call."""
        self._indexes: dict[tuple[str | None, str], Any] = {}
        """The indexes of calls, by message and id."""

    def add(self, message: BaseMessage) -> None:
        """Take a piece of a message. O(the piece)."""
        if not isinstance(message, AIMessageChunk):
            return
        for chunk in message.tool_call_chunks:
            if (index := chunk.get("index")) is None:  # a call that came whole
                continue
            self._calls.setdefault(message.id, {}).setdefault(index, GrowingText()).add(chunk.get("args") or "")
            if chunk.get("id"):
                self._indexes[message.id, str(chunk["id"])] = index

    def read(self, message: AIMessage, use: ToolUse) -> ToolUse:
        """Return a call of the message; with a flaw, if what the model wrote as its arguments is no JSON object."""
        written = self._written(message, use.call_id)
        if written is None:
            return use
        metadata = message.response_metadata
        is_cut = metadata.get("finish_reason") in _CUT or metadata.get("stop_reason") in _CUT
        call = read_call(use.call_id, use.name, written, is_cut=is_cut, signature=use.signature)
        return call if call.flaw else use

    def _written(self, message: AIMessage, call_id: str) -> str | None:
        """Return the arguments of a call as the model wrote them; None if that is unknown."""
        index = self._indexes.get((message.id, call_id))
        if index is not None:
            text = self._calls[message.id][index]
            text.end()
            return str(text)
        for bad in message.invalid_tool_calls:
            if bad.get("id") == call_id:
                return bad.get("args") or ""
        for call in message.additional_kwargs.get("tool_calls") or ():
            if call.get("id") == call_id and isinstance(
                arguments := (call.get("function") or {}).get("arguments"), str
            ):
                return arguments
        return None


__all__ = ["RawArguments"]
