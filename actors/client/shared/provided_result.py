"""`provided`: the decision that a caller supplies the result of a tool call."""

from __future__ import annotations

from typing import Any

from turnwise.actors.client.shared.arguments import MAX_JSON_BYTES
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import ToolResult, encode
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.calls.tool_results import result_of
from turnwise.memory.conversation.codec import encode_json
from turnwise.memory.values.frozen_json import plain_json
from turnwise.memory.values.limits import MAX_VALUES, check_count, count_values


def provided(value: Any, is_error: bool) -> ApprovalDecision:
    """Return the decision that provides a result; see `ExecutionHandle.provide`."""
    check_count("result", count_values([value], MAX_VALUES), "MAX_VALUES", MAX_VALUES)
    try:
        result = result_of("", value)
    except ValueError as error:
        raise InvalidInputError("result", shown(value), str(error)) from None
    if result is None:
        plain = plain_json("result", value, MAX_JSON_BYTES)
        is_json = not isinstance(plain, str)
        result = ToolResult(call_id="", text=encode_json(plain) if is_json else plain, is_json=is_json)
    elif (size := len(encode(result).encode())) > MAX_JSON_BYTES:
        raise InvalidInputError("result", shown(value), f"must take at most {MAX_JSON_BYTES} bytes as JSON, not {size}")
    return ApprovalDecision(
        verdict="provided",
        text=result.text,
        is_error=is_error or result.is_error,
        is_json=result.is_json,
        blocks=result.blocks,
    )
