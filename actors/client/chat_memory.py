"""`ChatMemory`: a session and its long-term memories behind get, update and delete, for an orchestrator's own loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.actors.client.session import AsyncSession, Session
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Block, System, Text, User
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.deletion_report import Forgotten
from turnwise.memory.longterm.recalled_content import RecalledContent

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


class ChatMemory:
    """A session as a memory with three verbs, for programs that call their models themselves.

    The short-term memory is the session, with its store and overflow strategy; the long-term memories are those of its
    manager. Sessions that run their engine need none of this. Each verb raises what those of `Session` raise.

    Args:
        session: the session, which may be used as usual at the same time.
        ends_turns: whether `update` whose last message is the assistant's ends the turn, so that memories get it and
            the overflow strategy may make room. The session's engine must be `NoAnswer()`. If false, messages wait for
            the session's next run.
    """

    def __init__(self, session: Session, *, ends_turns: bool = False) -> None:
        self.session = session
        """The session."""
        self._ends_turns = ends_turns

    def get(self, message: str | None = None, *, limit: int = 10) -> MemoryContent:
        """Return the conversation and what memories recall for a message; without one, the conversation alone.

        The conversation always fits the session's limit with the message behind it, see `Session.window`, which makes
        room if it has to. What is recalled takes room of its own. A memory that fails is named in `recalled.failed`.

        Args:
            limit: how many items of each memory to return at most.

        Raises:
            TurnOverflowError: the newest turn does not fit alone, with the message behind it. It stays stored.
            ReadOnlyStoreError: the manager is read-only.
        """
        messages = self.session.window(message)
        recalled = RecalledContent() if message is None else self.session.memory.recall_apart(message, limit=limit)
        return MemoryContent(messages=messages, recalled=recalled)

    def update(self, *messages: Message) -> Turn:
        """Store messages, durably on return; return the turn that they are in. See `ends_turns`.

        Raises:
            InvalidInputError: a mapping is no message; nothing was stored.
        """
        blocks = _blocks(messages)
        turn = self.session.append(*blocks)
        if self._ends_turns and isinstance(blocks[-1], Text):
            return self.session.start(if_busy="enqueue").wait()
        return turn

    def delete(self) -> Forgotten:
        """Delete all messages for good, with what memories keep of them; return what was removed. The session stays."""
        return self.session.clear()


class AsyncChatMemory:
    """`ChatMemory` with its verbs as coroutines.

    Args:
        session: the session, which may be used as usual at the same time.
        ends_turns: whether `update` whose last message is the assistant's ends the turn, so that memories get it and
            the overflow strategy may make room. The session's engine must be `NoAnswer()`. If false, messages wait for
            the session's next run.
    """

    def __init__(self, session: AsyncSession, *, ends_turns: bool = False) -> None:
        self.session = session
        """The session."""
        self._ends_turns = ends_turns

    async def get(self, message: str | None = None, *, limit: int = 10) -> MemoryContent:
        """Return the conversation and what memories recall for a message; without one, the conversation alone.

        The conversation always fits the session's limit with the message behind it, see `Session.window`, which makes
        room if it has to. What is recalled takes room of its own. A memory that fails is named in `recalled.failed`.

        Args:
            limit: how many items of each memory to return at most.

        Raises:
            TurnOverflowError: the newest turn does not fit alone, with the message behind it. It stays stored.
            ReadOnlyStoreError: the manager is read-only.
        """
        messages = await self.session.window(message)
        recalled = RecalledContent()
        if message is not None:
            recalled = await self.session.memory.recall_apart(message, limit=limit)
        return MemoryContent(messages=messages, recalled=recalled)

    async def update(self, *messages: Message) -> Turn:
        """Store messages, durably on return; return the turn that they are in. See `ends_turns`.

        Raises:
            InvalidInputError: a mapping is no message; nothing was stored.
        """
        blocks = _blocks(messages)
        turn = await self.session.append(*blocks)
        if self._ends_turns and isinstance(blocks[-1], Text):
            return await (await self.session.start(if_busy="enqueue"))
        return turn

    async def delete(self) -> Forgotten:
        """Delete all messages for good, with what memories keep of them; return what was removed. The session stays."""
        return await self.session.clear()


def _blocks(messages: Sequence[Message]) -> list[str | Block]:
    return [_block(message) if isinstance(message, Mapping) else message for message in messages]


def _block(message: Mapping[str, str]) -> Block:
    role, content = message.get("role"), message.get("content")
    kind = _ROLES.get(role) if isinstance(role, str) else None
    if kind is None or not isinstance(content, str):
        known = ", ".join(_ROLES)
        raise InvalidInputError("messages", shown(message), f"must have a role of {known} and a text as content")
    return kind(text=content)
