"""Checks what would be sent to Anthropic's API against the types of the official client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anthropic.types import MessageCreateParams, MessageParam, TextBlockParam
from pydantic import TypeAdapter

_REQUEST: TypeAdapter[MessageCreateParams] = TypeAdapter(MessageCreateParams)
_MESSAGES: TypeAdapter[list[MessageParam]] = TypeAdapter(list[MessageParam])
_SYSTEM: TypeAdapter[str | list[TextBlockParam] | None] = TypeAdapter(str | list[TextBlockParam] | None)


def check_types(system: str | list[dict[str, Any]] | None, messages: list[dict[str, Any]]) -> None:
    """Check a system prompt and messages; pydantic's error says what is wrong."""
    _check(_SYSTEM, system)
    _check(_MESSAGES, messages)


def check_request(body: Mapping[str, Any]) -> None:
    """Check the body of a request; pydantic's error says what is wrong."""
    _check(_REQUEST, body)


def _check(types: TypeAdapter[Any], value: Any) -> None:
    # Pydantic leaves out what the types do not have, and checks an Iterable while it is read.
    assert _read(types.validate_python(value)) == value


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _read(item) for name, item in value.items()}
    return value if value is None or isinstance(value, str | int | float) else [_read(item) for item in value]
