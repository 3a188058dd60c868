"""Anthropic's Messages API of the simulated provider."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from turnwise.testing.local_provider.http_protocol import RefusedError
from turnwise.testing.local_provider.message_rules import (
    ANTHROPIC_NAME,
    CACHE_CONTROLS,
    MAX_CHECKPOINTS,
    WireError,
    check_anthropic,
)
from turnwise.testing.local_provider.replies import Completion, Message, tokens_of
from turnwise.testing.local_provider.request_validation import NUMBER, Fields, check_schema, checked

_FIELDS: Fields = {
    "model": str,
    "messages": list,
    "max_tokens": int,
    "system": (str, list),
    "stream": bool,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_k": int,
    "stop_sequences": list,
    "tools": list,
    "tool_choice": dict,
    "thinking": dict,
    "output_config": dict,
    "cache_control": dict,
    "metadata": dict,
    "service_tier": str,
}

_LEAST_THINKING = 1024

_SAMPLING = {"temperature", "top_p", "top_k"}
_WITHOUT_SAMPLING = "2026-10-21"
"""The version of the API since which it refuses these."""

_CHOICES = ("auto", "any", "tool", "none")

CacheEntries = MutableMapping[str, int]
"""The prefixes of requests that the provider has cached, with their numbers of tokens."""


def sign(thought: str) -> str:
    """Return the signature that the stand-in gives to a thought, and requires when the thought comes back."""
    return base64.b64encode(hashlib.blake2b(thought.encode(), digest_size=24).digest()).decode()


class MessagesRequest:
    """A request. Raises `RefusedError` if the real API would refuse it.

    Args:
        cache: what earlier requests have cached; this one adds to it.
        version: the version of the API, as in the header `anthropic-version`.
    """

    def __init__(self, body: Any, cache: CacheEntries, *, version: str) -> None:
        self.body = _checked(body)
        if version >= _WITHOUT_SAMPLING and (refused := _SAMPLING.intersection(self.body)):
            raise RefusedError(400, f"{min(refused)}: Extra inputs are not permitted")
        self.streamed = bool(self.body.get("stream"))
        self.limit: int | None = self.body["max_tokens"]
        """In tokens."""
        self.thinks = (self.body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        self._check_thinking()
        self._check_tools()
        try:
            check_anthropic(self.body["messages"], (self.body.get("thinking") or {}).get("type") == "enabled")
        except WireError as error:
            raise RefusedError(400, f"messages.{error.index}: {error.why}") from error
        self._check_signatures()
        self.read, self.written = self._count_cached(cache)
        """The tokens that were read from the cache, and those that were written to it."""
        self.messages = list(_as_chat(self.body))
        """The conversation, in the format of chat."""

    def answer(self, completion: Completion) -> MessagesAnswer:
        return MessagesAnswer(self, completion)

    def _check_thinking(self) -> None:
        thinking = self.body.get("thinking") or {"type": "disabled"}
        kind, budget = thinking.get("type"), thinking.get("budget_tokens")
        if kind not in ("enabled", "disabled", "adaptive"):
            raise RefusedError(400, f"thinking: Input tag {kind!r} does not match any of the expected tags")
        if kind == "enabled" and (not isinstance(budget, int) or budget < _LEAST_THINKING):
            raise RefusedError(400, "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if kind == "enabled" and self.body["max_tokens"] <= budget:
            raise RefusedError(400, "max_tokens: must be greater than thinking.budget_tokens")
        if self.thinks and self.body.get("temperature", 1) != 1:
            raise RefusedError(400, "temperature: may only be set to 1 when thinking is enabled")
        if self.thinks and (self.body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            raise RefusedError(400, "tool_choice: Thinking may not be enabled when tool_choice forces tool use.")

    def _check_tools(self) -> None:
        tools, choice = self.body.get("tools") or [], self.body.get("tool_choice")
        names = []
        for index, tool in enumerate(tools):
            name = tool.get("name") if isinstance(tool, dict) else None
            if not isinstance(name, str) or not ANTHROPIC_NAME.fullmatch(name):
                raise RefusedError(400, f"tools.{index}.custom.name: String should match {ANTHROPIC_NAME.pattern!r}")
            if name in names:
                raise RefusedError(400, "tools: Tool names must be unique.")
            if unknown := sorted(tool.keys() - {"type", "name", "description", "input_schema", "cache_control"}):
                raise RefusedError(400, f"tools.{index}.custom.{unknown[0]}: Extra inputs are not permitted")
            if flaw := check_schema(tool.get("input_schema")):
                raise RefusedError(400, f"tools.{index}.custom.input_schema: {flaw}")
            names.append(name)
        if choice is not None and (not tools or choice.get("type") not in _CHOICES):
            raise RefusedError(
                400, "tool_choice: may only be specified while providing tools, as auto, any, tool, none"
            )
        if choice is not None and choice["type"] == "tool" and choice.get("name") not in names:
            raise RefusedError(400, f"tool_choice.tool: Tool {choice.get('name')!r} not found in provided tools")
        form = (self.body.get("output_config") or {}).get("format")
        if form is not None and (form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict)):
            raise RefusedError(400, "output_config.format.schema: Field required")
        if form is not None and (flaw := check_schema(form["schema"], is_strict=True)):
            raise RefusedError(400, f"output_config.format.schema: Invalid schema: {flaw}")

    def _check_signatures(self) -> None:
        for index, message in enumerate(self.body["messages"]):
            for number, part in enumerate(_parts(message)):
                if part["type"] == "thinking" and part["signature"] != sign(part["thinking"]):
                    reason = f"messages.{index}.content.{number}: Invalid `signature` in `thinking` block"
                    raise RefusedError(400, reason)

    def _count_cached(self, cache: CacheEntries) -> tuple[int, int]:
        """Return how many tokens are read from the cache and written to it, up to the last mark."""
        system = self.body.get("system") or []
        parts = [*(self.body.get("tools") or ()), *([{"text": system}] if isinstance(system, str) else system)]
        parts += [part for message in self.body["messages"] for part in _parts(message)]
        marks = [index for index, part in enumerate(parts) if "cache_control" in part]
        if len(marks) > MAX_CHECKPOINTS:
            raise RefusedError(400, f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}.")
        for mark in marks:
            if parts[mark]["cache_control"] not in CACHE_CONTROLS:
                raise RefusedError(400, "cache_control: unknown type or ttl")
        unmarked = [{name: value for name, value in part.items() if name != "cache_control"} for part in parts]
        tokens = [len(tokens_of(json.dumps(part))) for part in unmarked]
        digest = hashlib.blake2b(str(self.body["model"]).encode(), digest_size=12)
        read, marked = 0, {}
        for index, part in enumerate(unmarked):
            digest.update(json.dumps(part, sort_keys=True).encode())
            read = cache.get(digest.hexdigest(), read)
            if index in marks:
                marked[digest.hexdigest()] = sum(tokens[: index + 1])
        cache.update(marked)
        return read, max(0, max(marked.values(), default=0) - read)


def _checked(body: Any) -> Message:
    """Return the body, with errors in Anthropic's words."""
    try:
        message: Message = checked(body, "messages", _FIELDS)
    except RefusedError as error:
        reason = "Extra inputs are not permitted" if error.code == "unknown_parameter" else str(error)
        raise RefusedError(400, f"{error.param}: {reason}" if error.param else reason) from error
    if not message.get("max_tokens"):
        raise RefusedError(400, "max_tokens: Field required")
    if (message.get("temperature") or 0) > 1:
        raise RefusedError(400, "temperature: range: 0..1")
    return message


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _as_chat(body: Mapping[str, Any]) -> Iterator[Message]:
    """Yield the conversation in the format of chat, as replies get it."""
    if system := body.get("system"):
        yield {"role": "system", "content": system if isinstance(system, str) else system[0]["text"]}
    for message in body["messages"]:
        prompt_parts: list[Any] = []
        calls: list[Any] = []
        for part in _parts(message):
            match part["type"]:
                case "tool_result":
                    content = part.get("content") or ""
                    yield {"role": "tool", "tool_call_id": part["tool_use_id"], "content": content}
                case "tool_use":
                    function = {"name": part["name"], "arguments": json.dumps(part["input"])}
                    calls.append({"id": part["id"], "type": "function", "function": function})
                case "text" | "image" | "document":
                    prompt_parts.append(part)
        if prompt_parts or calls:
            texts = [part["text"] for part in prompt_parts if part["type"] == "text"]
            content = texts[0] if len(texts) == len(prompt_parts) == 1 else prompt_parts
            yield {"role": message["role"], "content": content, **({"tool_calls": calls} if calls else {})}


def _input(arguments: str) -> Any:
    """Return what a server that does not stream makes of a call's arguments: the text itself if it is no JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


class MessagesAnswer:
    """An answer in the API's format, streamed or whole. Thoughts are signed; see `sign`."""

    def __init__(self, request: MessagesRequest, completion: Completion) -> None:
        self.completion = completion
        self._model = request.body["model"]
        self._id = "msg_" + hashlib.blake2b(json.dumps(request.messages).encode(), digest_size=12).hexdigest()
        self._stop_reason = "max_tokens" if completion.is_cut else "tool_use" if completion.calls else "end_turn"
        self._open: dict[str, Any] | None = None
        """The part of the answer that is being streamed, as far as it was sent."""
        self._count = 0
        uncached = max(0, completion.prompt_tokens - request.read - request.written)
        self._usage = {
            "input_tokens": uncached,
            "cache_read_input_tokens": request.read,
            "cache_creation_input_tokens": request.written,
            "output_tokens": len(completion.tokens),
            "output_tokens_details": {"thinking_tokens": completion.thoughts},
        }

    def opening(self) -> Iterator[Message]:
        """Yield the events before the first token."""
        begun = {**self._envelope, "content": [], "stop_reason": None, "usage": {**self._usage, "output_tokens": 1}}
        yield {"type": "message_start", "message": begun}
        yield {"type": "ping"}

    def token_events(self, token: Message) -> Iterator[Message]:
        """Yield the events of a token."""
        if thought := token.get("reasoning_content"):
            yield from self._grow("thinking", "thinking", "thinking_delta", thought)
        if data := token.get("redacted_thinking"):
            yield from self._close()
            yield from self._begin({"type": "redacted_thinking", "data": data})
        if text := token.get("content"):
            yield from self._grow("text", "text", "text_delta", text)
        for call in token.get("tool_calls", ()):
            function = call["function"]
            if call.get("id"):
                yield from self._close()
                yield from self._begin({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}})
            if arguments := function.get("arguments"):
                delta = {"type": "input_json_delta", "partial_json": arguments}
                self._joined(delta, "partial_json")
                yield {"type": "content_block_delta", "index": self._count - 1, "delta": delta}

    def closing(self) -> Iterator[Message]:
        """Yield the events after the last token."""
        yield from self._close()
        ended = {"stop_reason": self._stop_reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": ended, "usage": self._usage}
        yield {"type": "message_stop"}

    def failure(self, message: str) -> Iterator[Message]:
        """Yield the events that end a failed answer."""
        yield {"type": "error", "error": {"type": "overloaded_error", "message": message}}

    def whole(self) -> Message:
        """Return the response without streaming."""
        content: list[Message] = []
        pieces: list[dict[str, list[str]]] = []
        events = [event for token in self.completion.tokens for event in self.token_events(token)]
        for event in [*events, *self._close()]:
            if event["type"] == "content_block_start":
                content.append(dict(event["content_block"]))
                pieces.append({})
                continue
            for name, value in event.get("delta", {}).items():
                if name != "type":
                    pieces[-1].setdefault(name, []).append(value)
        for part, joined in zip(content, pieces, strict=True):
            texts = {name: "".join(values) for name, values in joined.items()}
            arguments = texts.pop("partial_json", "{}")
            part.update({name: part.get(name, "") + text for name, text in texts.items()})
            if part["type"] == "tool_use":
                part["input"] = _input(arguments)
        return {**self._envelope, "content": content, "stop_reason": self._stop_reason, "usage": self._usage}

    @property
    def _envelope(self) -> Message:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "stop_sequence": None}

    def _grow(self, kind: str, field: str, delta: str, piece: str) -> Iterator[Message]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            yield from self._begin({"type": kind, field: "", **({"signature": ""} if kind == "thinking" else {})})
        delta_body = {"type": delta, field: piece}
        self._joined(delta_body, field)
        yield {"type": "content_block_delta", "index": self._count - 1, "delta": delta_body}

    def _joined(self, delta: Mapping[str, Any], field: str) -> None:
        if self._open is not None:
            self._open.setdefault("said", []).append(delta[field])

    def _begin(self, content: Message) -> Iterator[Message]:
        self._open, self._count = dict(content), self._count + 1
        yield {"type": "content_block_start", "index": self._count - 1, "content_block": content}

    def _close(self) -> Iterator[Message]:
        if self._open is None:
            return
        if self._open["type"] == "thinking":
            signed = {"type": "signature_delta", "signature": sign("".join(self._open.get("said", ())))}
            yield {"type": "content_block_delta", "index": self._count - 1, "delta": signed}
        yield {"type": "content_block_stop", "index": self._count - 1}
        self._open = None
