"""The Chat Completions API of the simulated provider."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from turnwise.testing.local_provider.http_protocol import RefusedError
from turnwise.testing.local_provider.message_rules import WireError, check_chat
from turnwise.testing.local_provider.replies import Completion, Message
from turnwise.testing.local_provider.request_validation import NUMBER, Fields, check_format, check_tools, checked

_FIELDS: Fields = {
    "model": str,
    "messages": list,
    "stream": bool,
    "stream_options": dict,
    "max_completion_tokens": int,
    "max_tokens": int,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "frequency_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "n": int,
    "seed": int,
    "stop": (str, list),
    "tools": list,
    "tool_choice": (str, dict),
    "parallel_tool_calls": bool,
    "response_format": dict,
    "reasoning_effort": str,
    "verbosity": str,
    "logprobs": bool,
    "top_logprobs": int,
    "logit_bias": dict,
    "metadata": dict,
    "store": bool,
    "service_tier": str,
    "user": str,
    "safety_identifier": str,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "prompt_cache_options": dict,
    "modalities": list,
    "audio": dict,
    "prediction": dict,
    "web_search_options": dict,
    "moderation": dict,
    "functions": list,
    "function_call": (str, dict),
}


class ChatRequest:
    """A request. Raises `RefusedError` if the real API would refuse it."""

    def __init__(self, body: Any) -> None:
        self.body = checked(body, "messages", _FIELDS)
        self.messages: list[Message] = self.body["messages"]
        """The conversation."""
        try:
            check_chat(self.messages)
        except WireError as error:
            raise RefusedError(400, str(error), None, "messages") from error
        self.streamed = bool(self.body.get("stream"))
        self.limit: int | None = self.body.get("max_completion_tokens") or self.body.get("max_tokens")
        """In tokens."""
        self._check_tools()
        check_format("response_format.json_schema", (self.body.get("response_format") or {}).get("json_schema"))

    def answer(self, completion: Completion) -> ChatAnswer:
        return ChatAnswer(self, completion)

    def _check_tools(self) -> None:
        tools = self.body.get("tools")
        if tools == []:
            raise RefusedError(400, "Invalid 'tools': empty array.", "empty_array", "tools")
        for index, tool in enumerate(tools or ()):
            if not isinstance(tool, dict) or tool.get("type") != "function":
                raise RefusedError(
                    400, f"Invalid value: 'tools[{index}].type'.", "invalid_value", f"tools[{index}].type"
                )
        choice = self.body.get("tool_choice")
        chosen = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
        functions = [(f"tools[{index}].function", tool.get("function")) for index, tool in enumerate(tools or ())]
        check_tools(self.body, functions, chosen)


class ChatAnswer:
    """An answer in the API's format, streamed or whole."""

    def __init__(self, request: ChatRequest, completion: Completion) -> None:
        self.completion = completion
        self._model = request.body["model"]
        self._id = "chatcmpl-" + hashlib.blake2b(json.dumps(request.messages).encode(), digest_size=12).hexdigest()
        self._counts = bool((request.body.get("stream_options") or {}).get("include_usage"))
        self._finish_reason = "length" if completion.is_cut else "tool_calls" if completion.calls else "stop"
        self._usage = {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": len(completion.tokens),
            "total_tokens": completion.prompt_tokens + len(completion.tokens),
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": completion.thoughts},
        }

    def opening(self) -> Iterator[Message]:
        """Yield the events before the first token."""
        yield self._chunk({"role": "assistant", "content": ""})

    def token_events(self, token: Message) -> Iterator[Message]:
        """Yield the events of a token."""
        yield self._chunk(token)

    def closing(self) -> Iterator[Message | str]:
        """Yield the events after the last token."""
        yield self._chunk({}, self._finish_reason)
        if self._counts:
            yield {**self._chunk({}), "choices": [], "usage": self._usage}
        yield "[DONE]"

    def failure(self, message: str) -> Iterator[Message]:
        """Yield the events that end a failed answer."""
        yield RefusedError(500, message, "server_error").body()

    def whole(self) -> Message:
        """Return the response without streaming."""
        message: Message = {"role": "assistant", "content": None}
        for key in ("reasoning_content", "content", "refusal"):
            if pieces := [delta[key] for delta in self.completion.tokens if key in delta]:
                message[key] = "".join(pieces)
        for delta in self.completion.tokens:
            for call in delta.get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if call.get("id"):
                    calls.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
                else:
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason, "logprobs": None}
        return {**self._envelope("chat.completion"), "choices": [choice], "usage": self._usage}

    def _chunk(self, delta: Message, finish_reason: str | None = None) -> Message:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return {**self._envelope("chat.completion.chunk"), "choices": [choice]}

    def _envelope(self, kind: str) -> Message:
        return {"id": self._id, "object": kind, "created": 0, "model": self._model}
