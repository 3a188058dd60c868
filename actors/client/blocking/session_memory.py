# Made from actors/client/session_memory.py by `make blocking`: change that file.
"""`session.memory`: the memory of the session's user, what the session adds to it, and its working memory."""

from __future__ import annotations

from typing import Any

from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.blocking.user_memory import UserMemory
from turnwise.actors.client.shared.arguments import (
    MAX_JSON_BYTES,
    MemoryUseArg,
    Number,
    WaitSeconds,
    checked,
)
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.wire import SessionRef
from turnwise.memory.conversation.memory_use import MemoryUse, memory_use
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.values.frozen_json import plain_json


class SessionMemory(UserMemory):
    """The long-term memories of the session's user, and the session's working memory.

    User, session and agent are those of the session; no method takes them as arguments. Each method is one request to
    the session, which makes one call to each memory; `delete`, `find_about` and `forget_about` make some. Those that
    `UserMemory` has raise what they raise there.
    """

    def __init__(self, client: SessionsClient, ref: SessionRef) -> None:
        self._session = SessionHost(client, ref)
        super().__init__(self._session)

    @checked(turn_index=Number, verify=bool)
    def forget(self, turn_index: int, *, verify: bool = False) -> Forgotten:
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
        return self._session.ask(verbs.forget_turn(turn_index, verify))

    @checked(use=MemoryUseArg)
    def use(self, use: MemoryUse | bool) -> None:
        """Set the default for later runs' use of long-term memory: `on`, `read` or `off`. Durable."""
        self._session.ask(verbs.use_memory(memory_use(use)))

    @checked(timeout_s=WaitSeconds | None)
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until memories have received all turns that have ended; return False after `timeout_s` seconds."""
        return self._session.wait_for_memory(timeout_s)

    def read_notes(self) -> str:
        """Return the content of the working memory."""
        return self._session.ask(verbs.read_notes())

    def replace_notes(self, content: Any) -> str:
        """Replace the content of the working memory; return the new content.

        Raises:
            WorkingMemoryError: the new content is not in the memory's format, or is too long; nothing was changed.
        """
        return self._session.ask(verbs.replace_notes(plain_json("content", content, MAX_JSON_BYTES)))

    def clear_notes(self) -> bool:
        """Reset the working memory to the initial text of its format; return whether a text was stored."""
        return self._session.ask(verbs.clear_notes())

    def merge_notes(self, content: Any) -> str:
        """Merge the content into the working memory, as its format defines; return the new content.

        Free text is appended, so this call alone is not repeated if the session's process dies before it answers.

        Raises:
            SessionLostError: the session's process has died, or cannot be reached. Read the notes: they may have the
                content.
            WorkingMemoryError: the result is not in the memory's format, or is too long; nothing was changed.
        """
        return self._session.ask(verbs.merge_notes(plain_json("content", content, MAX_JSON_BYTES)))
