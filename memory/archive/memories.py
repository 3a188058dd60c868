"""`SessionMemories`: the memories that forget what a sweep deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.longterm.base import LongTermMemory, Scope, is_read_only
from turnwise.memory.working.memory import WorkingMemory


@dataclass(frozen=True, kw_only=True)
class SessionMemories:
    """Long-term memories and notes, and whose they are in a session."""

    memories: Sequence[LongTermMemory]
    notes: WorkingMemory | None
    scopes_of: Callable[[SessionRecord], Sequence[Scope]]
    """Returns the scopes of a session: that of its user, and those of its members."""

    async def forget(self, sessions: Sequence[SessionRecord]) -> list[SessionKey]:
        """Forget sessions, all at once; return those that all memories have forgotten. May be repeated."""
        notes = self.notes and (self.notes.copied() or self.notes)
        try:
            done = await asyncio.gather(*(self._forget(session, notes) for session in sessions))
        finally:
            if notes and notes is not self.notes:
                await notes.close()
        return [session.key for session, is_forgotten in zip(sessions, done, strict=True) if is_forgotten]

    async def _forget(self, session: SessionRecord, notes: WorkingMemory | None) -> bool:
        """Forget one session; return whether all have. Who is asked for it next says what has failed."""
        with suppress(TurnwiseError):
            for scope in self.scopes_of(session):
                for memory in self.memories:
                    if not is_read_only(memory):
                        await memory.forget(scope)
                if notes:
                    await notes.forget(scope)
            return True
        return False
