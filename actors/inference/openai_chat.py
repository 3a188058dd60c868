"""The Chat Completions API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnwise.actors.inference.openai_fields import count, definition, items, string, tool_use
from turnwise.actors.inference.tools import ToolDefinition
from turnwise.memory.blocks import Block, Text, Thinking
from turnwise.memory.chat import encode
from turnwise.memory.rules import CHAT, check
from turnwise.memory.transcript import messages_of
from turnwise.memory.usage import Usage

if TYPE_CHECKING:
    import openai

    from turnwise.actors.inference.openai import OpenAIEngine


class ChatAPI:
    """Asks for completions. Thoughts are read, where a server shows any, and never sent back."""

    rules = CHAT

    def __init__(self, settings: OpenAIEngine, tools: Sequence[ToolDefinition]) -> None:
        self._settings = settings
        self.fields: dict[str, Any] = {}
        """What each request holds beside the conversation: the settings, and what the model is told of tools."""
        if settings.temperature is not None:
            self.fields["temperature"] = settings.temperature
        if settings.max_output_tokens is not None:
            self.fields["max_completion_tokens"] = settings.max_output_tokens
        self.fields.update(settings.extra or {})
        if functions := [{"type": "function", "function": definition(tool)} for tool in tools]:
            self.fields["tools"] = [*functions, *self.fields.get("tools", ())]

    def request(self, blocks: Sequence[Block]) -> dict[str, Any]:
        check(messages_of(blocks), self.rules)
        return {"messages": encode(blocks)}

    async def open(self, client: openai.AsyncOpenAI, request: Mapping[str, Any]) -> openai.AsyncStream[Any]:
        stream: openai.AsyncStream[Any] = await client.chat.completions.create(
            model=self._settings.model,
            messages=[],
            stream=True,
            stream_options={"include_usage": True},
            # What is given here goes out as it is: the client takes up to half a millisecond to look at one message.
            extra_body={**request, **self.fields},
        )
        return stream

    def answer(self) -> ChatAnswer:
        return ChatAnswer()


class ChatAnswer:
    """A completion, put together from its chunks: at most one `Thinking`, at most one `Text`, then the calls."""

    def __init__(self) -> None:
        self.usage = Usage(calls=1)
        self.stop_reason: str | None = None
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[_Call] = []
        self._call_at: dict[int | None, _Call] = {}

    @property
    def is_cut(self) -> bool:
        return self.stop_reason == "length"

    def add(self, event: Any) -> list[str | Block]:
        if counted := getattr(event, "usage", None):
            self.usage = _usage(counted)
        parts: list[str | Block] = []
        for choice in items(event, "choices")[:1]:
            self.stop_reason = string(choice, "finish_reason") or self.stop_reason
            delta = getattr(choice, "delta", None)
            if thought := string(delta, "reasoning_content") or string(delta, "reasoning"):
                self._thoughts.append(thought)
                parts.append(Thinking(text=thought))
            if text := string(delta, "content") or string(delta, "refusal"):
                self._texts.append(text)
                parts.append(text)
            for call in items(delta, "tool_calls"):
                self._add_call(call)
        return parts

    def blocks(self) -> list[Block]:
        blocks: list[Block] = []
        if self._thoughts:
            blocks.append(Thinking(text="".join(self._thoughts)))
        if self._texts:
            blocks.append(Text(text="".join(self._texts)))
        calls = [tool_use(call.call_id, call.name, call.arguments, is_cut=self.is_cut) for call in self._calls]
        return [*blocks, *calls]

    def _add_call(self, delta: Any) -> None:
        index, call_id = getattr(delta, "index", None), string(delta, "id")
        call = self._call_at.get(index)
        # Some servers number every call 0, or none.
        if call is None or (call_id and call.call_id and call_id != call.call_id):
            call = self._call_at[index] = _Call()
            self._calls.append(call)
        function = getattr(delta, "function", None)
        call.call_id = call.call_id or call_id
        call.name = call.name or string(function, "name")
        call.arguments += string(function, "arguments")


@dataclass(slots=True)
class _Call:
    call_id: str = ""
    name: str = ""
    arguments: str = ""


def _usage(counted: Any) -> Usage:
    prompt, completion = (getattr(counted, f"{side}_tokens_details", None) for side in ("prompt", "completion"))
    return Usage(
        input_tokens=count(counted, "prompt_tokens"),
        output_tokens=count(counted, "completion_tokens"),
        cached_tokens=count(prompt, "cached_tokens"),
        reasoning_tokens=count(completion, "reasoning_tokens"),
        calls=1,
    )
