"""The rules of three provider APIs, checked on the JSON of a request, independently of turnwise.

    check_chat(body["messages"])                      OpenAI Chat Completions
    check_responses(body["input"])                    OpenAI Responses, stateless: with `store` off
    check_anthropic(body["messages"], thinking=True)  Anthropic Messages

Each returns None or raises a `WireError`. Standard library only.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""The valid names of tools in OpenAI's APIs."""

ANTHROPIC_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")

CHAT_ID_LENGTH = 40
RESPONSES_ID_LENGTH = 64
MAX_CHECKPOINTS = 4

_DATA_URI = re.compile(r"data:([^;,]+);base64,(.+)", re.DOTALL)
_ASKED = ("input_text", "input_image", "input_file")
"""The parts of messages of the user, and of outputs of tools, in the Responses API."""
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")


class WireError(ValueError):
    """The API refuses the request. `index` is that of the message or item, `id` that of the call or item, if any."""

    def __init__(self, index: int, reason: str, id: str | None = None, *, where: str = "messages") -> None:
        super().__init__(index, reason, id)
        self.index = index
        self.why = reason
        self.id = id
        self._where = where

    def __str__(self) -> str:
        return f"{self._where}[{self.index}]: {self.why}"


class _Place:
    """A message or item, which errors name."""

    def __init__(self, index: int, where: str = "messages") -> None:
        self.index = index
        self._where = where

    def refuse(self, reason: str, id: str | None = None) -> NoReturn:
        raise WireError(self.index, reason, id, where=self._where)

    def require(self, holds: object, reason: str, id: str | None = None) -> None:
        if not holds:
            self.refuse(reason, id)

    def text(self, value: object, label: str, id: str | None = None) -> str:
        if not isinstance(value, str) or not value:
            self.refuse(f"{label} must be a text that is not empty", id)
        return value

    def data_uri(self, value: object, label: str, types: Sequence[str] = ()) -> None:
        match = _DATA_URI.fullmatch(value) if isinstance(value, str) else None
        if not match:
            self.refuse(f"{label} is no base64 data: URI with a media type")
        self.base64(match[2], label)
        self.require(not types or match[1] in types, f"{label} is of type {match[1]}, not {', '.join(types)}")

    def base64(self, value: object, label: str) -> None:
        try:
            base64.b64decode(str(value), validate=True)
        except (binascii.Error, ValueError):
            self.refuse(f"{label} is not base64")


def _parts(place: _Place, content: object, label: str) -> list[Mapping[str, Any]]:
    """Return the parts of a content; none if it is plain text."""
    if isinstance(content, str) and content:
        return []
    if not isinstance(content, list) or not content:
        place.refuse(f"the {label} is empty")
    for number, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            place.refuse(f"content[{number}] is no part with a type")
    return content


def _entries(messages: object, where: str) -> Sequence[Any]:
    if not isinstance(messages, list | tuple) or not messages:
        raise WireError(0, "there must be at least one", where=where)
    return messages


# Chat Completions


def check_chat(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise if the Chat Completions API would refuse these messages. O(their number); changes nothing.

    Refused are: no messages; a system message that is not the first; an empty message of the user or the assistant; a
    part of no known form; a tool call without an id of at most 40 characters, a usable name or JSON arguments, or with
    an id that its message has already; a tool call whose result is not among the tool messages right after it; a tool
    message that answers none of the calls before it, or one that is answered. An id may come again in a later message.
    The last message may be the assistant's.

    Raises:
        WireError: names the message by its index, and the call by its id.
    """
    declared: dict[str, int] = {}
    """The calls of the last assistant message, and where it is."""
    unanswered: dict[str, int] = {}
    for index, message in enumerate(_entries(messages, "messages")):
        place = _Place(index)
        role = message.get("role") if isinstance(message, Mapping) else None
        if role != "tool":
            _check_chat_answered(unanswered)
            declared = {}
        if role in ("system", "developer"):
            place.require(not index, "the system message must be the first and the only one")
            _check_chat_content(place, message, ("text",))
        elif role == "user":
            _check_chat_content(place, message, ("text", "image_url", "input_audio", "file"))
        elif role == "assistant":
            declared = dict.fromkeys(_chat_calls(place, message), index)
            unanswered = dict(declared)
        elif role == "tool":
            del unanswered[_chat_answered(place, message, declared, unanswered)]
        else:
            place.refuse(f"role {role!r} is none of system, user, assistant and tool")
    _check_chat_answered(unanswered)


def _check_chat_answered(unanswered: Mapping[str, int]) -> None:
    for call_id, index in unanswered.items():
        raise WireError(index, f"tool call {call_id!r} has no result right after it", call_id)


def _check_chat_content(place: _Place, message: Mapping[str, Any], kinds: tuple[str, ...]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    for number, part in enumerate(_parts(place, content, f"{message['role']} message")):
        kind, label = part["type"], f"content[{number}]"
        place.require(kind in kinds and kind in part, f"{label} is no part of type {', '.join(kinds)}")
        if kind == "text":
            place.require(isinstance(part["text"], str), f"{label} has no text")
        elif kind == "image_url":
            image = part["image_url"]
            place.require(isinstance(image, Mapping), f"{label} has no image_url")
            if place.text(image.get("url"), f"the url of {label}").startswith("data:"):
                place.data_uri(image["url"], label, _IMAGES)
        elif kind == "file":
            file = part["file"]
            place.require(
                isinstance(file, Mapping) and ("file_id" in file) != ("file_data" in file), f"{label} has no file"
            )
            if "file_data" in file:
                place.text(file.get("filename"), f"the filename of {label}")
                place.data_uri(file["file_data"], label, ("application/pdf",))


def _chat_calls(place: _Place, message: Mapping[str, Any]) -> list[str]:
    """Return the ids of the message's tool calls, in order of declaration."""
    calls, content = message.get("tool_calls"), message.get("content")
    if content:
        for part in _parts(place, content, "assistant message"):
            place.require(part["type"] in ("text", "refusal"), f"a part of type {part['type']} is not of the assistant")
    if calls is None:
        place.require(content, "the assistant message has neither content nor tool calls")
        return []
    place.require(isinstance(calls, list) and calls, "tool_calls is empty: leave it out")
    ids: list[str] = []
    for number, call in enumerate(calls):
        call_id = call.get("id") if isinstance(call, Mapping) else None
        if not call_id or not isinstance(call_id, str):
            place.refuse(f"tool_calls[{number}] has no id")
        place.require(len(call_id) <= CHAT_ID_LENGTH, f"tool_calls[{number}] has an id of over 40 characters", call_id)
        place.require(call_id not in ids, f"tool_calls[{number}] has the id {call_id!r} of an earlier call", call_id)
        place.require(call.get("type") == "function", f"tool call {call_id!r} is not of type function", call_id)
        function = call.get("function")
        if not isinstance(function, Mapping):
            place.refuse(f"tool call {call_id!r} has no function", call_id)
        _check_function(place, call_id, function)
        ids.append(call_id)
    return ids


def _check_function(place: _Place, call_id: str, function: Mapping[str, Any]) -> None:
    name, arguments = function.get("name"), function.get("arguments")
    fits = isinstance(name, str) and TOOL_NAME.fullmatch(name)
    place.require(fits, f"tool call {call_id!r} names no function ({TOOL_NAME.pattern}): {name!r}", call_id)
    try:
        place.require(
            isinstance(json.loads(str(arguments)), dict), f"tool call {call_id!r} has no JSON object", call_id
        )
    except ValueError:
        place.refuse(f"tool call {call_id!r} has no arguments: send JSON text", call_id)


def _chat_answered(
    place: _Place, message: Mapping[str, Any], declared: Mapping[str, int], unanswered: Mapping[str, int]
) -> str:
    """Return the id of the tool call that the message answers."""
    call_id = message.get("tool_call_id")
    if not call_id or not isinstance(call_id, str):
        place.refuse("the tool message has no tool_call_id")
    place.require(
        call_id in declared, f"the result of tool call {call_id!r} follows no message that made this call", call_id
    )
    place.require(call_id in unanswered, f"tool call {call_id!r} has a result already", call_id)
    content = message.get("content")
    place.require(isinstance(content, str | list), f"the result of tool call {call_id!r} has no content", call_id)
    for part in content if isinstance(content, list) else ():
        is_text = isinstance(part, Mapping) and part.get("type") == "text"
        place.require(is_text, f"the result of tool call {call_id!r} may hold text only", call_id)
    return call_id


# Responses


def check_responses(input_items: Sequence[Mapping[str, Any]]) -> None:
    """Raise if the Responses API would refuse this input, with `store` off. O(its items); changes nothing.

    Refused are: no items; an item of no known type; a message without content, or with parts of the other side; an
    output with parts that no user may send; a call without an id of at most 64 characters, a usable name or JSON
    arguments; a second call of an id; a call without an output, which may come anywhere after it; an output without a
    call before it, or a second one; a reasoning item without its id, summary or encrypted content, of an id that was
    there already, or not followed by a message of the assistant or a call, other reasoning items aside.

    Raises:
        WireError: names the item by its index, and by its id if it has one.
    """
    calls: dict[str, int] = {}
    answered: set[str] = set()
    thoughts: set[str] = set()
    thought: tuple[_Place, str] | None = None
    """The last reasoning item, if no item has followed it yet."""
    for index, item in enumerate(_entries(input_items, "input")):
        place = _Place(index, "input")
        if not isinstance(item, Mapping):
            place.refuse("it is no item")
        kind = item.get("type", "message" if "role" in item else None)
        if thought and not (kind in ("reasoning", "function_call") or item.get("role") == "assistant"):
            _refuse_thought(*thought)
        thought = None
        if kind == "message":
            _check_responses_message(place, item)
        elif kind == "reasoning":
            thought = place, _check_reasoning(place, item, thoughts)
        elif kind == "function_call":
            call_id = place.text(item.get("call_id"), "the call_id")
            place.require(len(call_id) <= RESPONSES_ID_LENGTH, f"call_id {call_id!r} has over 64 characters", call_id)
            place.require(call_id not in calls, f"call {call_id!r} is there already", call_id)
            _check_function(place, call_id, item)
            calls[call_id] = index
        elif kind == "function_call_output":
            call_id = place.text(item.get("call_id"), "the call_id")
            place.require(call_id in calls, f"no call {call_id!r} comes before this output", call_id)
            place.require(call_id not in answered, f"call {call_id!r} has an output already", call_id)
            _check_responses_output(place, call_id, item.get("output"))
            answered.add(call_id)
        else:
            place.refuse(f"type {kind!r} is none of message, reasoning, function_call and function_call_output")
    if thought:
        _refuse_thought(*thought)
    for call_id, index in calls.items():
        if call_id not in answered:
            raise WireError(index, f"call {call_id!r} has no output", call_id, where="input")


def _refuse_thought(place: _Place, item_id: str) -> NoReturn:
    place.refuse(f"reasoning item {item_id!r} is not followed by its item", item_id)


def _check_responses_output(place: _Place, call_id: str, output: object) -> None:
    place.require(isinstance(output, str | list), f"the output of {call_id!r} is missing", call_id)
    if output != "":
        _check_responses_parts(place, output, f"output of {call_id!r}", _ASKED)


def _check_reasoning(place: _Place, item: Mapping[str, Any], item_ids: set[str]) -> str:
    item_id = place.text(item.get("id"), "the id of the reasoning item")
    place.require(item_id.startswith("rs"), f"reasoning item {item_id!r}: its id must begin with rs", item_id)
    place.require(item_id not in item_ids, f"reasoning item {item_id!r} is there already", item_id)
    place.text(item.get("encrypted_content"), f"the encrypted_content of {item_id!r}", item_id)
    summary = item.get("summary")
    if not isinstance(summary, list) or not all(
        isinstance(part, Mapping) and part.get("type") == "summary_text" and isinstance(part.get("text"), str)
        for part in summary
    ):
        place.refuse(f"reasoning item {item_id!r} has no summary, which may be empty", item_id)
    item_ids.add(item_id)
    return item_id


def _check_responses_message(place: _Place, item: Mapping[str, Any]) -> None:
    role = item.get("role")
    place.require(role in ("user", "system", "developer", "assistant"), f"role {role!r} is unknown")
    taken = ("output_text", "refusal") if role == "assistant" else _ASKED
    _check_responses_parts(place, item.get("content"), f"{role} message", taken)


def _check_responses_parts(place: _Place, content: object, of: str, taken: Sequence[str]) -> None:
    for number, part in enumerate(_parts(place, content, of)):
        kind, label = part["type"], f"content[{number}]"
        place.require(kind in taken, f"{label} of type {kind!r} is none of {', '.join(taken)}")
        if kind in ("input_text", "output_text"):
            place.require(isinstance(part.get("text"), str), f"{label} has no text")
        elif kind == "input_image":
            place.require(("image_url" in part) != ("file_id" in part), f"{label} has no image_url or file_id, or both")
            if "image_url" in part and place.text(part["image_url"], label).startswith("data:"):
                place.data_uri(part["image_url"], label, _IMAGES)
        elif kind == "input_file":
            ways = [way for way in ("file_data", "file_url", "file_id") if way in part]
            place.require(len(ways) == 1, f"{label} must have one of file_data, file_url and file_id")
            place.text(part[ways[0]], label)
            if ways == ["file_data"]:
                place.text(part.get("filename"), f"the filename of {label}")
                place.data_uri(part["file_data"], label)


# Anthropic Messages


def check_anthropic(messages: Sequence[Mapping[str, Any]], thinking: bool) -> None:
    """Raise if the Messages API would refuse these messages. O(their blocks); changes nothing.

    Refused are: no messages; a first or last one that is not the user's; a message without content, blank text; blocks
    of the other side; a tool use without a usable id, name and input, or of an id that the request has already; a tool
    use whose result is not at the head of the next message, before any other block; a result of no use right before it,
    a second one, a failed one without content or with other content than text; thinking without a signature; thinking
    that ends a message, or does not begin one that uses tools; more than four cache checkpoints, or one on thinking or
    on an empty block.

    Args:
        thinking: whether the request asks for it. Then a message whose tool results end the conversation must begin
            with thinking.

    Raises:
        WireError: names the message by its index, and the tool use by its id.
    """
    used: set[str] = set()
    open_uses: dict[str, _Place] = {}
    checkpoints = 0
    for index, message in enumerate(_entries(messages, "messages")):
        place = _Place(index)
        role = message.get("role") if isinstance(message, Mapping) else None
        place.require(role in ("user", "assistant"), f"role {role!r} is neither user nor assistant")
        place.require(index or role == "user", "the first message must be the user's")
        blocks = _anthropic_blocks(place, message.get("content"))
        _check_results(place, blocks, open_uses)
        open_uses = {}
        for number, block in enumerate(blocks):
            _check_anthropic_block(place, number, block, role)
            checkpoints += "cache_control" in block
            place.require(checkpoints <= MAX_CHECKPOINTS, "there are more than four blocks with cache_control")
            if block["type"] == "tool_use":
                use_id = block["id"]
                place.require(use_id not in used, f"tool use {use_id!r}: ids must be unique", use_id)
                used.add(use_id)
                open_uses[use_id] = place
        if role == "assistant":
            _check_thinking(place, blocks)
    for use_id, place in open_uses.items():
        place.refuse(f"tool use {use_id!r} has no result right after it", use_id)
    last = _Place(len(messages) - 1)
    last.require(messages[-1]["role"] == "user", "the last message must be the user's")
    if thinking and _kinds(messages[-1])[:1] == ["tool_result"]:
        before = _kinds(messages[-2])
        begins = before[0] in ("thinking", "redacted_thinking")
        _Place(len(messages) - 2).require(begins, f"with thinking on, it must begin with thinking, not {before[0]}")


def _kinds(message: Mapping[str, Any]) -> list[str]:
    content = message["content"]
    return ["text"] if isinstance(content, str) else [block["type"] for block in content]


def _anthropic_blocks(place: _Place, content: object) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        place.require(content.strip(), "the text is blank")
        return []
    return _parts(place, content, "message")


def _check_results(place: _Place, blocks: Sequence[Mapping[str, Any]], open_uses: Mapping[str, _Place]) -> None:
    """Check that the message begins with the results of these uses, one each, and has no others."""
    waiting = dict(open_uses)
    is_head = True
    for number, block in enumerate(blocks):
        if block["type"] != "tool_result":
            is_head = False
            continue
        use_id = place.text(block.get("tool_use_id"), f"the tool_use_id of content[{number}]")
        place.require(use_id in open_uses, f"the result of {use_id!r} follows no message that uses this tool", use_id)
        place.require(use_id in waiting, f"tool use {use_id!r} has a result already", use_id)
        place.require(is_head, f"the result of {use_id!r} must come before the other blocks", use_id)
        del waiting[use_id]
    for use_id, use_place in waiting.items():
        use_place.refuse(f"tool use {use_id!r} has no result right after it", use_id)


def _check_thinking(place: _Place, blocks: Sequence[Mapping[str, Any]]) -> None:
    kinds = [block["type"] for block in blocks]
    thoughts = [kind in ("thinking", "redacted_thinking") for kind in kinds]
    if any(thoughts):
        place.require(not thoughts[-1], "the final block of a message cannot be thinking")
        place.require(
            thoughts[0] or "tool_use" not in kinds, "a message that thinks and uses tools begins with thinking"
        )


def _check_anthropic_block(place: _Place, number: int, block: Mapping[str, Any], role: object) -> None:
    kind, label = block["type"], f"content[{number}]"
    sides = {
        "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
        "user": ("text", "image", "document", "tool_result"),
    }
    taken = sides[str(role)]
    place.require(kind in taken, f"{label} of type {kind!r} is none of {', '.join(taken)}")
    if "cache_control" in block:
        place.require(block["cache_control"] in CACHE_CONTROLS, f"{label} has an unknown cache_control")
        place.require("thinking" not in kind, f"{label}: thinking cannot have a cache_control")
    match kind:
        case "text":
            text = block.get("text")
            place.require(isinstance(text, str) and text.strip(), f"{label}: text must not be blank")
        case "thinking":
            place.require(isinstance(block.get("thinking"), str), f"{label} has no thinking")
            signature = place.text(block.get("signature"), f"the signature of {label}")
            place.require(not signature.startswith("{"), f"{label}: invalid signature")
        case "redacted_thinking":
            place.text(block.get("data"), f"the data of {label}")
        case "tool_use":
            use_id, name = block.get("id"), block.get("name")
            fits = isinstance(use_id, str) and ANTHROPIC_ID.fullmatch(use_id)
            place.require(fits, f"the id of {label} must match {ANTHROPIC_ID.pattern}: {use_id!r}")
            fits = isinstance(name, str) and ANTHROPIC_NAME.fullmatch(name)
            place.require(fits, f"the name of {label} must match {ANTHROPIC_NAME.pattern}: {name!r}", use_id)
            place.require(isinstance(block.get("input"), dict), f"the input of {label} is no object", use_id)
        case "tool_result":
            _check_anthropic_result(place, block)
        case "image" | "document":
            _check_source(place, label, kind, block.get("source"))


CACHE_CONTROLS = ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}, {"type": "ephemeral", "ttl": "1h"})


def _check_anthropic_result(place: _Place, block: Mapping[str, Any]) -> None:
    use_id, content = block["tool_use_id"], block.get("content")
    place.require(isinstance(block.get("is_error", False), bool), f"is_error of {use_id!r} is no truth value", use_id)
    place.require(content or not block.get("is_error"), f"the failed result of {use_id!r} has no content", use_id)
    place.require(content is None or isinstance(content, str | list), f"the result of {use_id!r} is unreadable", use_id)
    for number, part in enumerate(_parts(place, content, f"result of {use_id!r}") if isinstance(content, list) else ()):
        kind, label = part["type"], f"content[{number}] of the result of {use_id!r}"
        place.require(kind in ("text", "image", "document"), f"{label} is of type {kind!r}", use_id)
        place.require(kind == "text" or not block.get("is_error"), f"{label}: a failed result has text only", use_id)
        if kind == "text":
            place.require(str(part.get("text") or "").strip(), f"the result of {use_id!r} has a blank text", use_id)
        else:
            _check_source(place, label, kind, part.get("source"))


def _check_source(place: _Place, label: str, kind: str, source: object) -> None:
    if not isinstance(source, Mapping):
        place.refuse(f"{label} has no source")
    types = _IMAGES if kind == "image" else ("application/pdf",)
    match source.get("type"):
        case "url":
            is_https = isinstance(source.get("url"), str) and source["url"].startswith("https://")
            place.require(is_https, f"the url of {label} is not https")
        case "base64":
            media_type = source.get("media_type")
            place.require(media_type in types, f"{label} is of type {media_type}, not {', '.join(types)}")
            place.base64(place.text(source.get("data"), f"the data of {label}"), label)
        case "text" if kind == "document":
            place.require(source.get("media_type") == "text/plain", f"{label}: plain text is of type text/plain")
            place.text(source.get("data"), f"the data of {label}")
        case "content" if kind == "document":
            for number, part in enumerate(_parts(place, source.get("content"), f"content of {label}")):
                is_text = part["type"] == "text" and place.text(part.get("text"), f"{label}: content[{number}]").strip()
                place.require(is_text, f"{label}: content[{number}] is no text, or blank")
        case unknown:
            place.refuse(f"{label} has no source of type base64, url{' or text' * (kind == 'document')}: {unknown!r}")
