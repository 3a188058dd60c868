"""`Forking`: creates a session that continues after a turn of another session."""

from __future__ import annotations

from dataclasses import replace

from turnwise.actors.session.forgetting import Forgetting
from turnwise.actors.session.state import SessionState
from turnwise.actors.session.summary_expansion import reach
from turnwise.actors.session.transactor import Transactor
from turnwise.errors import SessionExistsError, TurnNotFoundError
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import join, subtract, union
from turnwise.memory.user_ids import get_of_user, other_id


class Forking:
    """Makes sessions that share this one's blocks. This one is untouched, so no change waits for it."""

    def __init__(self, state: SessionState, transactor: Transactor, forgetting: Forgetting) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._forgetting = forgetting

    async def fork(self, at: int | None, session_id: str) -> SessionRecord:
        """Make a session that continues from the turn `at`, or from the last one that ended; this one is untouched.

        The fork starts with that turn, under its index, and shares its blocks. From a turn that is named it goes on
        with what that turn holds, but for what is forgotten; else with what this session would go on with, which may
        have been compacted since.
        `session_id` is the id that the fork is stored under; see `own_names`.
        Forking again under the same id from the same turn returns the fork there is; from the last one that ended also
        if there is a later one by now, as long as nobody has used the fork.

        Raises:
            TurnNotFoundError: there is no such turn, or it has not ended.
            SessionExistsError: the id is taken.
        """
        await self._transactor.loaded()
        own_id, store = self._state.session_id, self._journal.store
        base = self._state.head if at is None else await self._journal.records.find_turn(at)
        if base is None or base.is_open:
            raise TurnNotFoundError(own_id, at)
        parent = f"{own_id}#{base.index}"
        base = base if at is None else await self._forgetting.as_forked(base)
        spans = union(base.prompt, base.spans, base.base)
        also = await reach(join(base.spans, base.carried), self._journal.blocks.read)
        session, now = self._journal.session, self._journal.clock()
        fork = SessionRecord(
            session_id=session_id,
            user_id=session.user_id,
            agent=session.agent,
            metadata=session.metadata,
            created_at=now,
            updated_at=now,
            parent=parent,
            next_index=base.index + 1,
            memory=session.memory,
            model=session.model,
            params=session.params,
            saved=base.index,
            ttl_s=session.ttl_s,
        )
        if await get_of_user(store, other_id(session.user_id, session_id), session.user_id):
            raise SessionExistsError(session_id)
        try:
            return await store.create(fork, replace(base, parent=parent), subtract(also, spans))
        except SessionExistsError:
            found = await store.get(session_id)
            # One of another user may name the same parent: of that id there was a session of theirs once.
            if found.user_id == session.user_id and found.parent:
                # A call that was delivered twice may find that this session has gone on since the first.
                is_unused = at is None and found.epoch == 0 and found.parent.rpartition("#")[0] == own_id
                if found.parent == parent or is_unused:
                    return found
            raise
