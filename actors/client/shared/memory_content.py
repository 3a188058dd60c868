"""What `ChatMemory` gives and takes: the content of its memories, and messages as blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Block, System, Text, User
from turnwise.memory.longterm.recall.recalled_content import RecalledContent

Message: TypeAlias = str | Block | Mapping[str, str]
"""A text of the user's, a block, or a mapping such as `{"role": "assistant", "content": "Hello!"}`."""

_ROLES: Mapping[str, type[User | Text | System]] = {"user": User, "assistant": Text, "system": System}


@dataclass(frozen=True, kw_only=True)
class MemoryContent:
    """What an orchestrator sends to its model: the conversation, and what long-term memories have about a message."""

    messages: tuple[AnyBlock, ...]
    """The conversation, as much of it as fits the model's window: what a strategy has summarized stands there as its
    summary, and each tool's result has its call."""
    recalled: RecalledContent
    """What each kind of long-term memory recalled, apart."""


def blocks_of(messages: Sequence[Message]) -> list[str | Block]:
    """Return messages as blocks.

    Raises:
        InvalidInputError: a mapping is no message.
    """
    return [_block(message) if isinstance(message, Mapping) else message for message in messages]


def _block(message: Mapping[str, str]) -> Block:
    role, content = message.get("role"), message.get("content")
    kind = _ROLES.get(role) if isinstance(role, str) else None
    if kind is None or not isinstance(content, str):
        roles = ", ".join(_ROLES)
        raise InvalidInputError("messages", shown(message), f"must have a role of {roles} and a text as content")
    return kind(text=content)
