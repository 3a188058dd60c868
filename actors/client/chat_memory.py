"""`AsyncChatMemory`: a session and its memories behind get, update and delete, for an orchestrator's own loop."""

from __future__ import annotations

from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.memory_content import MemoryContent, Message, blocks_of
from turnwise.memory.conversation.blocks import Text
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.recall.recalled_content import RecalledContent
from turnwise.memory.longterm.retention.deletion_report import Forgotten


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
        blocks = blocks_of(messages)
        turn = await self.session.append(*blocks)
        if self._ends_turns and isinstance(blocks[-1], Text):
            run = await self.session.start(if_busy="enqueue")
            return await run.wait()
        return turn

    async def delete(self) -> Forgotten:
        """Delete all messages for good, with what memories keep of them; return what was removed. The session stays."""
        return await self.session.clear()
