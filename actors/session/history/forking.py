"""`Forking`: creates a session that continues after a turn of another session."""

from __future__ import annotations

from dataclasses import replace

from turnwise.actors.session.acting import acting_member
from turnwise.actors.session.engines.cache_hinting import CacheHinting
from turnwise.actors.session.history.forgetting import Forgetting
from turnwise.actors.session.state.alarm import Alarm
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.summary_expansion import reach
from turnwise.errors import SessionExistsError, TurnNotFoundError
from turnwise.memory.conversation.sessions import Inherited, SessionRecord
from turnwise.memory.conversation.spans import join, subtract, union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.reading import deliveries_of
from turnwise.memory.stores.search.records import MessageText, turn_texts
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.ids import new_id


class Forking:
    """Creates sessions that share this session's blocks. This session does not change, so no lock is taken."""

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        forgetting: Forgetting,
        alarm: Alarm,
        hinting: CacheHinting,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._forgetting = forgetting
        self._alarm = alarm
        self._hinting = hinting

    async def fork(self, at: int | None, session_id: str, *, deliveries: bool = False) -> SessionRecord:
        """Create a session that continues after turn `at`, by default the last turn that ended; return its row.

        The fork's first turn is a copy of that turn, with the same index; its blocks are shared. After a given turn,
        the fork continues with that turn's blocks, without those that were forgotten. By default it continues with what
        this session's next turn would continue with, which may have been compacted. Of this session's members, only the
        one who makes the fork is a member of it.

        Idempotent: forking again with the same id after the same turn returns the existing fork; without `at` also if a
        later turn has ended since, as long as the fork was not used.

        Args:
            session_id: the fork's id.
            deliveries: whether the fork gets a copy of each delivery, with it and under the same keys. Both sessions
                then carry them out. Messages to other sessions are not copied.

        Raises:
            TurnNotFoundError: no such turn exists, or it has not ended.
            SessionExistsError: the user has another session of this id.
        """
        await self._transactor.loaded()
        own_id, store = self._state.session_id, self._journal.store
        base = self._state.head if at is None else await self._journal.records.find_turn(at)
        if base is None or base.is_open:
            raise TurnNotFoundError(own_id, at)
        parent = f"{own_id}#{base.index}"
        base = base if at is None else await self._forgetting.as_forked(base)
        spans = union(base.prompt, base.spans, base.base)
        reached = await reach(join(base.spans, base.carried), self._journal.blocks.read)
        session, now = self._journal.session, self._journal.clock()
        fork = SessionRecord(
            session_id=session_id,
            user_id=session.user_id,
            agent=session.agent,
            metadata=session.metadata,
            created_at=now,
            updated_at=now,
            parent=parent,
            inherited=Inherited(prefix_key=session.inherited.prefix_key),
            next_index=base.index + 1,
            memory=session.memory,
            model=session.model,
            engine=session.engine,
            params=session.params,
            saved=base.index,
            ttl_s=session.ttl_s,
            members=FrozenDict({member: "owner"} if (member := acting_member()) else {}),
        )
        if deliveries:
            await self._alarm.expect()
        own = [delivery async for delivery in deliveries_of(store, self._state.key)] if deliveries else []
        copies = [
            replace(delivery, session_id=session_id, delivery_id=new_id(), revision=1, namespace=self._alarm.namespace)
            for delivery in own
            if delivery.to_session is None
        ]
        first = replace(base, parent=parent, turn_id=None, marks=FrozenDict())
        texts = await self._texts_of(first, session_id)
        try:
            created = await store.create(fork, first, subtract(reached, spans), copies, **texts)
        except SessionExistsError:
            existing = await store.get(fork.key)
            if existing.parent:
                # This session may have gone on since the first delivery of the same call.
                is_unused = at is None and existing.epoch == 0 and existing.parent.rpartition("#")[0] == own_id
                if existing.parent == parent or is_unused:
                    return existing
            raise
        self._hinting.forked()
        for copy in copies:
            if copy.due_at is not None:
                self._alarm.tell(copy.due_at)
        return created

    async def _texts_of(self, first: TurnRecord, session_id: str) -> dict[str, list[MessageText]]:
        """Return the argument with the texts of a fork's first turn; none for a store that cannot search."""
        if not self._journal.searched.is_on:
            return {}
        prompt, output = [await self._journal.blocks.read(join(part)) for part in (first.prompt, first.output)]
        return {"texts": turn_texts(session_id, first, None, prompt, output)}
