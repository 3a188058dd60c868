"""`SessionMemories`: the memories that forget what a sweep deletes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.longterm.base import LongTermMemory, Scope, forget_sessions, is_read_only
from turnwise.memory.working.memory import WorkingMemory


@dataclass(frozen=True, kw_only=True)
class SessionMemories:
    """Long-term memories and notes, and whose they are in a session."""

    memories: Sequence[LongTermMemory]
    notes: WorkingMemory | None
    scopes_of: Callable[[SessionRecord], Sequence[Scope]]
    """Returns the scopes of a session: that of its user, and those of its members."""

    async def forget(self, sessions: Sequence[SessionRecord]) -> bool:
        """Forget sessions, all at once; return whether all memories have. May be repeated.

        What fails is said by who is asked for one of them next.
        """
        by_user: dict[str, set[str]] = {}
        for session in sessions:
            for scope in self.scopes_of(session):
                by_user.setdefault(scope.user_id, set()).add(str(scope.session_id))
        try:
            for memory in self.memories if by_user else ():
                if not is_read_only(memory):
                    await forget_sessions(memory, by_user)
            if by_user and self.notes:
                await self._forget_notes(self.notes, by_user)
        except TurnwiseError:
            return False
        return True

    @staticmethod
    async def _forget_notes(notes: WorkingMemory, by_user: Mapping[str, Collection[str]]) -> None:
        own = notes.copied()  # for this event loop
        try:
            await (own or notes).forget_sessions(by_user)
        finally:
            if own is not None:
                await own.close()
