"""`session.memory`: the memory of the session's user, what the session adds to it, and its working memory."""

from __future__ import annotations

from typing import Any

from turnwise.actors.client.session_host import AsyncSessionHost
from turnwise.actors.client.shared.arguments import (
    MAX_JSON_BYTES,
    MemoryUseArg,
    Number,
    WaitSeconds,
    checked,
)
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.client.user_memory import AsyncUserMemory
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.wire import SessionRef
from turnwise.memory.conversation.memory_use import MemoryUse, memory_use
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.values.frozen_json import plain_json


class AsyncSessionMemory(AsyncUserMemory):
    """`SessionMemory` with its verbs as coroutines.

    User, session and agent are those of the session; no method takes them as arguments. Each method is one request to
    the session, which makes one call to each memory; `delete`, `find_about` and `forget_about` make some. Those that
    `UserMemory` has raise what they raise there.
    """

    def __init__(self, client: SessionsClient, ref: SessionRef) -> None:
        self._session = AsyncSessionHost(client, ref)
        super().__init__(self._session)

    @checked(turn_index=Number, verify=bool)
    async def forget(self, turn_index: int, *, verify: bool = False) -> Forgotten:
        """Forget what a turn added; return what was removed.

        Memory items that were derived from the turn and summaries that cover it are removed, and no later request
        contains the turn. The history still shows the turn until the session is deleted. The call may be repeated.

        Args:
            verify: whether memories are checked afterwards for remains, in the parts that were changed, at a cost that
                grows with what is forgotten.

        Raises:
            TurnNotFoundError: no such turn exists, or it has not ended.
            SessionInUseError: a run is active.
            LongTermMemoryError: memories failed; the error names them. Repeat the call.
        """
        return await self._session.ask(verbs.forget_turn(turn_index, verify))

    @checked(use=MemoryUseArg)
    async def use(self, use: MemoryUse | bool) -> None:
        """Set the default for later runs' use of long-term memory: `on`, `read` or `off`. Durable."""
        await self._session.ask(verbs.use_memory(memory_use(use)))

    @checked(timeout_s=WaitSeconds | None)
    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until memories have received all turns that have ended; return False after `timeout_s` seconds."""
        return await self._session.wait_for_memory(timeout_s)

    async def read_notes(self) -> str:
        """Return the content of the working memory."""
        return await self._session.ask(verbs.read_notes())

    async def replace_notes(self, content: Any) -> str:
        """Replace the content of the working memory; return the new content.

        Raises:
            WorkingMemoryError: the new content is not in the memory's format, or is too long; nothing was changed.
        """
        return await self._session.ask(verbs.replace_notes(plain_json("content", content, MAX_JSON_BYTES)))

    async def clear_notes(self) -> bool:
        """Reset the working memory to the initial text of its format; return whether a text was stored."""
        return await self._session.ask(verbs.clear_notes())

    async def merge_notes(self, content: Any) -> str:
        """Merge the content into the working memory, as its format defines; return the new content.

        Free text is appended, so this call alone is not repeated if the session's process dies before it answers.

        Raises:
            SessionLostError: the session's process has died, or cannot be reached. Read the notes: they may have the
                content.
            WorkingMemoryError: the result is not in the memory's format, or is too long; nothing was changed.
        """
        return await self._session.ask(verbs.merge_notes(plain_json("content", content, MAX_JSON_BYTES)))
