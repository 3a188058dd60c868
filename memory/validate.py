"""Whether a provider would take a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.errors import EngineError

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What a tool may be called on the wire."""

_USER_PARTS = ("text", "image_url", "input_audio", "file")


def check_chat(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise if the Chat Completions API would refuse these messages. O(their number); changes nothing.

    Refused are: no messages; a system message that is not the first; an empty message of the user or the assistant; a
    tool call without an id or a usable name, or with an id that its message has already; a tool call whose result is
    not among the tool messages right after it; a tool message that answers none of the calls before it, or one that is
    answered. An id may come again in a later message. The last message may be the assistant's.

    Raises:
        EngineError: names the message by its index, and the call by its id.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise EngineError("messages: there must be at least one")
    declared: dict[str, int] = {}
    """The calls of the last assistant message, and where it is."""
    unanswered: set[str] = set()
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role != "tool":
            _check_answered(unanswered, declared)
            declared = {}
        if role in ("system", "developer"):
            if index:
                raise _refused(index, "the system message must be the first and the only one")
            _check_content(index, message)
        elif role == "user":
            _check_content(index, message)
        elif role == "assistant":
            declared = dict.fromkeys(_call_ids(index, message), index)
            unanswered = set(declared)
        elif role == "tool":
            unanswered.remove(_answered_id(index, message, declared, unanswered))
        else:
            raise _refused(index, f"role {role!r} is none of system, user, assistant and tool")
    _check_answered(unanswered, declared)


def _refused(index: int, why: str) -> EngineError:
    return EngineError(f"messages[{index}]: {why}")


def _check_answered(unanswered: set[str], declared: Mapping[str, int]) -> None:
    for call_id, index in declared.items():
        if call_id in unanswered:
            raise _refused(index, f"tool call {call_id!r} has no result right after it")


def _check_content(index: int, message: Mapping[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise _refused(index, f"the {message['role']} message is empty")
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _USER_PARTS or kind not in part:
            raise _refused(index, f"content[{at}] is no part of type {', '.join(_USER_PARTS)}")


def _answered_id(index: int, message: Mapping[str, Any], declared: Mapping[str, int], unanswered: set[str]) -> str:
    """Return the id of the tool call whose result the message is."""
    call_id = message.get("tool_call_id")
    if not call_id or not isinstance(call_id, str):
        raise _refused(index, "the tool message has no tool_call_id")
    if call_id not in declared:
        raise _refused(index, f"the result of tool call {call_id!r} follows no message that made this call")
    if call_id not in unanswered:
        raise _refused(index, f"tool call {call_id!r} has a result already")
    if not isinstance(message.get("content"), str | list):
        raise _refused(index, f"the result of tool call {call_id!r} has no content")
    return call_id


def _call_ids(index: int, message: Mapping[str, Any]) -> list[str]:
    """Return the ids of the message's tool calls, in order of declaration."""
    calls = message.get("tool_calls")
    if calls is None:
        if not message.get("content"):
            raise _refused(index, "the assistant message has neither content nor tool calls")
        return []
    if not isinstance(calls, list) or not calls:
        raise _refused(index, "tool_calls is empty: leave it out")
    ids: list[str] = []
    for at, call in enumerate(calls):
        call_id = call.get("id") if isinstance(call, Mapping) else None
        if not call_id or not isinstance(call_id, str):
            raise _refused(index, f"tool_calls[{at}] has no id")
        if call_id in ids:
            raise _refused(index, f"tool_calls[{at}] has the id {call_id!r} of an earlier call")
        function = call.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            raise _refused(index, f"tool call {call_id!r} names no function ({TOOL_NAME.pattern}): {name!r}")
        if not isinstance(function.get("arguments"), str):
            raise _refused(index, f"tool call {call_id!r} has no arguments: send JSON text")
        ids.append(call_id)
    return ids
