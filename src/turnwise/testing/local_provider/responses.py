"""The Responses API of the simulated provider. It stores nothing: requests must have earlier answers and reasoning."""

from __future__ import annotations

import base64
import hmac
import json
import uuid
from collections.abc import Iterator
from itertools import chain
from typing import Any

from turnwise.testing.local_provider.http_protocol import RefusedError
from turnwise.testing.local_provider.message_rules import WireError, check_responses
from turnwise.testing.local_provider.replies import Completion, Message
from turnwise.testing.local_provider.request_validation import NUMBER, Fields, check_format, check_tools, checked

_FIELDS: Fields = {
    "model": str,
    "input": (str, list),
    "instructions": str,
    "stream": bool,
    "stream_options": dict,
    "max_output_tokens": int,
    "max_tool_calls": int,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "tools": list,
    "tool_choice": (str, dict),
    "parallel_tool_calls": bool,
    "reasoning": dict,
    "include": list,
    "text": dict,
    "top_logprobs": int,
    "truncation": str,
    "store": bool,
    "background": bool,
    "previous_response_id": str,
    "conversation": (str, dict),
    "context_management": list,
    "prompt": dict,
    "metadata": dict,
    "service_tier": str,
    "user": str,
    "safety_identifier": str,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "prompt_cache_options": dict,
    "moderation": dict,
    "access_programs": list,
    "image": dict,
}

_ENCRYPTED = "reasoning.encrypted_content"

_KEY = b"what this provider signs with, in every process"


class ResponsesRequest:
    """A request. Raises `RefusedError` if the real API would refuse it."""

    def __init__(self, body: Any) -> None:
        self.body = checked(body, "input", _FIELDS)
        prompt = self.body["input"]
        self.items: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            check_responses(self.items)
        except WireError as error:
            raise RefusedError(400, str(error), None, "input") from error
        for item in self.items:
            if item.get("type") == "reasoning":
                _check_reasoning(item)
        if previous := self.body.get("previous_response_id"):
            reason = f"Previous response with id '{previous}' not found."
            raise RefusedError(400, reason, "previous_response_not_found", "previous_response_id")
        self.streamed = bool(self.body.get("stream"))
        self.limit: int | None = self.body.get("max_output_tokens")
        """In tokens."""
        self._check_tools()
        form = (self.body.get("text") or {}).get("format")
        check_format("text.format", form if form and form.get("type") == "json_schema" else None)
        try:
            self.messages = _messages(self.body.get("instructions"), self.items)
            """The conversation in the format of chat."""
        except (KeyError, TypeError) as error:
            raise RefusedError(400, f"Invalid value for 'input': {error!r}", None, "input") from error

    def answer(self, completion: Completion) -> ResponsesAnswer:
        return ResponsesAnswer(self, completion)

    def _check_tools(self) -> None:
        tools = self.body.get("tools") or []
        for index, tool in enumerate(tools):
            if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
                raise RefusedError(
                    400, f"Invalid value: 'tools[{index}].type'.", "invalid_value", f"tools[{index}].type"
                )
        functions = [(f"tools[{index}]", tool) for index, tool in enumerate(tools) if tool["type"] == "function"]
        if missing := next((f"{place}.parameters" for place, tool in functions if "parameters" not in tool), None):
            raise RefusedError(400, f"Missing required parameter: '{missing}'.", "missing_required_parameter", missing)
        choice = self.body.get("tool_choice")
        check_tools(self.body, functions, choice.get("name") if isinstance(choice, dict) else None)


class ResponsesAnswer:
    """An answer in the API's format, streamed or whole: items that are opened, filled and closed in turn."""

    def __init__(self, request: ResponsesRequest, completion: Completion) -> None:
        self.completion = completion
        self._body = request.body
        self._name = uuid.uuid4().hex
        self._status = "incomplete" if completion.is_cut else "completed"
        self._encrypts = _ENCRYPTED in (request.body.get("include") or ())
        self._output: list[Message] = []
        """The items so far; the last one may be open."""
        self._open: tuple[str, object] | None = None
        """The content of the open item: a kind of token and, for a call, its index."""
        self._pieces: list[str] = []
        """The pieces of its text or its arguments."""
        self._numbered = 0

    def opening(self) -> Iterator[Message]:
        """Yield the events before the first token."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        # A model that is asked to reason does, though it may have nothing to show of it.
        if self._body.get("reasoning") and not self.completion.thoughts:
            yield from self._start(("reasoning", None), _reasoning(f"rs_{self._name}_0"))

    def token_events(self, token: Message) -> Iterator[Message]:
        """Yield the events of a token."""
        thought = token.get("reasoning_content", token.get("reasoning"))
        if thought is not None:
            yield from self._add_thought(thought)
        for key, kind, part in (("content", "output_text", "text"), ("refusal", "refusal", "refusal")):
            if token.get(key) is not None:
                yield from self._add_text(kind, part, token[key])
        calls = token.get("tool_calls") or []
        for call in calls if isinstance(calls, list) else [calls]:
            yield from self._add_arguments(call)

    def closing(self) -> Iterator[Message]:
        """Yield the events after the last token."""
        yield from self._stop(self._status)
        yield self._event(f"response.{self._status}", response=self._response(self._status))

    def failure(self, message: str) -> Iterator[Message]:
        """Yield the events that end a failed answer."""
        error = {"code": "server_error", "message": message}
        yield self._event("error", **error, param=None)
        yield self._event("response.failed", response={**self._response("failed"), "error": error})

    def whole(self) -> Message:
        """Return the response without streaming."""
        for _ in chain(self.opening(), *map(self.token_events, self.completion.tokens), self._stop(self._status)):
            pass
        return self._response(self._status)

    def _add_thought(self, text: str) -> Iterator[Message]:
        if self._open != ("reasoning", None):
            yield from self._start(("reasoning", None), _reasoning(f"rs_{self._name}_{len(self._output)}"))
        item = self._output[-1]
        place = {**self._place, "summary_index": 0}
        if not item["summary"]:
            item["summary"].append({"type": "summary_text", "text": ""})
            yield self._event("response.reasoning_summary_part.added", **place, part=dict(item["summary"][0]))
        self._pieces.append(str(text))
        yield self._event("response.reasoning_summary_text.delta", **place, delta=text)

    def _add_text(self, kind: str, part: str, text: str) -> Iterator[Message]:
        if self._open != (kind, None):
            empty = {"type": kind, part: "", **({"annotations": [], "logprobs": []} if kind == "output_text" else {})}
            message = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
            yield from self._start((kind, None), {"id": f"msg_{self._name}_{len(self._output)}", **message})
            self._output[-1]["content"].append(empty)
            yield self._event("response.content_part.added", **self._place, content_index=0, part=dict(empty))
        self._pieces.append(str(text))
        extra: Message = {"logprobs": []} if kind == "output_text" else {}
        yield self._event(f"response.{kind}.delta", **self._place, content_index=0, delta=text, **extra)

    def _add_arguments(self, call: Message) -> Iterator[Message]:
        function = call.get("function") or {}
        place = ("call", call.get("index"))
        if self._open != place or call.get("id") not in (None, self._output[-1]["call_id"]):
            item = {"id": f"fc_{self._name}_{len(self._output)}", "type": "function_call", "status": "in_progress"}
            start = {"call_id": call.get("id") or "", "name": function.get("name") or "", "arguments": ""}
            yield from self._start(place, {**item, **start})
        if pieces := function.get("arguments"):
            self._pieces.append(str(pieces))
            yield self._event("response.function_call_arguments.delta", **self._place, delta=pieces)

    def _start(self, open_: tuple[str, object], item: Message) -> Iterator[Message]:
        yield from self._stop("completed")
        self._open = open_
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=_copy(item))

    def _stop(self, status: str) -> Iterator[Message]:
        """Close the open item, if any."""
        if self._open is None:
            return
        self._join()
        (kind, _), self._open = self._open, None
        item = self._output[-1]
        if kind == "call":
            yield self._event(
                "response.function_call_arguments.done",
                **self._place,
                name=item["name"],
                arguments=item["arguments"],
            )
        elif kind == "reasoning":
            for part in item["summary"]:
                place = {**self._place, "summary_index": 0}
                yield self._event("response.reasoning_summary_text.done", **place, text=part["text"])
                yield self._event("response.reasoning_summary_part.done", **place, part=dict(part))
            if self._encrypts:
                item["encrypted_content"] = _encrypted(item["id"])
        else:
            (part,) = item["content"]
            place = {**self._place, "content_index": 0}
            text = {"text": part["text"], "logprobs": []} if kind == "output_text" else {"refusal": part["refusal"]}
            yield self._event(f"response.{kind}.done", **place, **text)
            yield self._event("response.content_part.done", **place, part=dict(part))
        if kind != "reasoning":
            item["status"] = status
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=_copy(item))

    @property
    def _place(self) -> Message:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _event(self, kind: str, **values: Any) -> Message:
        self._numbered += 1
        return {"type": kind, "sequence_number": self._numbered - 1, **values}

    def _join(self) -> None:
        """Put the pieces into the open item."""
        if self._open and self._pieces:
            kind, text = self._open[0], "".join(self._pieces)
            item = self._output[-1]
            if kind == "call":
                item["arguments"] += text
            elif kind == "reasoning":
                item["summary"][0]["text"] += text
            else:
                item["content"][0]["text" if kind == "output_text" else "refusal"] += text
            self._pieces = []

    def _response(self, status: str) -> Message:
        """Return the response so far, without the open item."""
        self._join()
        completion, body = self.completion, self._body
        usage = {
            "input_tokens": completion.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": len(completion.tokens),
            "output_tokens_details": {"reasoning_tokens": completion.thoughts},
            "total_tokens": completion.prompt_tokens + len(completion.tokens),
        }
        settings = {name: body.get(name) for name in ("instructions", "max_output_tokens", "temperature", "top_p")}
        return {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": 0,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": body["model"],
            "output": [] if status == "in_progress" else _copy(self._output),
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None, **(body.get("reasoning") or {})},
            "store": body.get("store", True),
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "truncation": body.get("truncation") or "disabled",
            "usage": None if status == "in_progress" else usage,
            "metadata": body.get("metadata") or {},
            **settings,
        }


def _reasoning(id: str) -> Message:
    return {"id": id, "type": "reasoning", "summary": []}


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _encrypted(id: str) -> str:
    """Return encrypted content for the item with this id, which only this provider can make."""
    signed = hmac.digest(_KEY, id.encode(), "sha256")
    return base64.urlsafe_b64encode(b"\x80" + signed + id.encode()).decode()


def _check_reasoning(item: Message) -> None:
    """Refuse a reasoning item whose encrypted content was not made here, was changed, or belongs to another item."""
    content, item_id = item["encrypted_content"], item["id"]
    try:
        signed = base64.urlsafe_b64decode(content)
    except ValueError:
        signed = b""
    owner = signed[33:].decode("utf-8", "replace")
    if _encrypted(owner) != content:
        reason = "Encrypted content could not be decrypted or parsed."
    elif owner != item_id:
        reason = "Encrypted content item_id did not match the target item id."
    else:
        return
    reason = f"The encrypted content for item {item_id} could not be verified. Reason: {reason}"
    raise RefusedError(400, reason, "invalid_encrypted_content")


def _messages(instructions: str | None, items: list[Message]) -> list[Message]:
    """Return the conversation in the format of chat; consecutive items of the assistant become one message."""
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        match item.get("type", "message"):
            case "function_call_output":
                content = _content(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
            case "message" if item["role"] != "assistant":
                messages.append({"role": item["role"], "content": _content(item["content"])})
            case kind:
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                _say(messages[-1], kind, item)
    return messages


def _say(message: Message, kind: str, item: Message) -> None:
    if kind == "message":
        content = _content(item["content"])
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        message["content"] = (message["content"] or "") + text
    elif kind == "reasoning":
        thought = "\n\n".join(part["text"] for part in item["summary"])
        message["reasoning_content"] = "\n\n".join(filter(None, (message.get("reasoning_content"), thought)))
    elif kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        calls = message.setdefault("tool_calls", [])
        calls.append({"id": item["call_id"], "type": "function", "function": function})


def _content(content: Any) -> str | list[Message]:
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content]
    return parts[0]["text"] if len(parts) == 1 and "text" in parts[0] else parts


def _part(part: Message) -> Message:
    match part["type"]:
        case "input_image":
            return {"type": "image_url", "image_url": {"url": part.get("image_url") or part.get("file_id")}}
        case "input_file":
            file = {"filename": part.get("filename"), "file_data": part.get("file_data") or part.get("file_url")}
            return {"type": "file", "file": file}
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
        case _:
            return {"type": "text", "text": part["text"]}
