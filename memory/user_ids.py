"""Session ids per user: two users may both have a session "chat".

A session of such an id is stored under `own_id(user_id, session_id)`; callers see the `public_id` of that stored id.
All other sessions are stored under the id that callers see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from turnwise.errors import KeyMissingError, SessionNotFoundError, WrongKeyError
from turnwise.memory.conversation.events import AnyEvent, Event
from turnwise.memory.conversation.ids import is_own_id, own_id, public_id
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord, SessionStatus
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.base import Activation, Commit, Page, SessionOrder, SessionStore
from turnwise.memory.stores.sharing import RayId, Shared, rivals


async def get_of_user(store: SessionStore, stored_id: str, user_id: str) -> SessionRecord | None:
    """Return the session stored under this id, or None if there is none or it belongs to another user."""
    read_of_user = getattr(type(store), "get_of_user", None)  # only an encrypted store defines it
    try:
        found: SessionRecord = await (read_of_user(store, stored_id, user_id) if read_of_user else store.get(stored_id))
    except SessionNotFoundError:
        return None
    except (KeyMissingError, WrongKeyError) as error:
        if error.user_id == user_id:
            raise
        return None
    return found if found.user_id == user_id else None


async def find_session(store: SessionStore, user_id: str, session_id: str) -> SessionRecord | None:
    """Return the stored record of a user's session, by its public id; None if the user has no such session.

    Reads the same rows whether or not another user has a session of this id, so the time it takes does not reveal that.
    """
    own, plain = await asyncio.gather(
        get_of_user(store, own_id(user_id, session_id), user_id), get_of_user(store, session_id, user_id)
    )
    return own or plain


def other_id(user_id: str, stored_id: str) -> str:
    """Return the second stored id that has the same public id for this user: the per-user id or the plain one."""
    return public_id(stored_id) if is_own_id(stored_id) else own_id(user_id, stored_id)


def public_record(session: SessionRecord) -> SessionRecord:
    """Return a session's row with its public id."""
    shown = public_id(session.session_id)
    return session if shown == session.session_id else replace(session, session_id=shown)


class _Names:
    """The stored id and the public id of one session, and the translation of records between them."""

    def __init__(self, stored_id: str) -> None:
        self._stored = stored_id
        self._public = public_id(stored_id)

    def stored(self, session_id: str) -> str:
        return self._stored if session_id == self._public else session_id

    def shown(self, session_id: str) -> str:
        return self._public if session_id == self._stored else session_id

    def stored_record(self, record: Any) -> Any:
        return replace(record, session_id=self.stored(record.session_id))

    def shown_record(self, record: Any) -> Any:
        return replace(record, session_id=self.shown(record.session_id))

    def stored_events(self, events: Sequence[Event]) -> list[Event]:
        return [event.model_copy(update={"session_id": self.stored(event.session_id)}) for event in events]

    def shown_events(self, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        return [event.model_copy(update={"session_id": self.shown(event.session_id)}) for event in events]


def by_public_id(
    stored_id: str, store: SessionStore, history: HistoryStore | None
) -> tuple[str, SessionStore, HistoryStore | None]:
    """Return a session's public id, and views of the store and the history that address it by that id."""
    if is_own_id(stored_id):
        return public_id(stored_id), PublicIdStore(store, stored_id), history and PublicIdHistory(history, stored_id)
    return stored_id, store, history


class PublicIdStore(Shared):
    """View of a store in which one session with a per-user id has its public id.

    Other sessions keep their stored ids, so none can be mistaken for this one.
    """

    def __init__(self, inner: SessionStore, stored_id: str) -> None:
        self._inner = inner
        self._names = _Names(stored_id)

    def own(self, ray: RayId) -> None:
        """See `Shared`. Does nothing: the inner store was called already."""

    async def rivals(self) -> Sequence[str]:
        """See `Shared`."""
        return await rivals(self._inner)

    async def create(self, session: SessionRecord, turn: TurnRecord | None = None, also: Spans = ()) -> SessionRecord:
        return await self._inner.create(session, turn, also)

    async def now(self) -> float:
        return await self._inner.now()

    async def get(self, session_id: str) -> SessionRecord:
        found: SessionRecord = self._names.shown_record(await self._inner.get(self._names.stored(session_id)))
        return found

    async def activate(self, session_id: str, *, revision: int | None = None, jump: int | None = None) -> Activation:
        stored_id = self._names.stored(session_id)
        return self._shown(await self._inner.activate(stored_id, revision=revision, jump=jump))

    async def state(self, session_id: str) -> Activation:
        return self._shown(await self._inner.state(self._names.stored(session_id)))

    def _shown(self, found: Activation) -> Activation:
        session = self._names.shown_record(found.session)
        return replace(found, session=session, open_runs=tuple(map(self._names.shown_record, found.open_runs)))

    async def commit(self, session_id: str, epoch: int, commit: Commit) -> None:
        names = self._names
        stored = replace(
            commit,
            session=names.stored_record(commit.session),
            new_run=commit.new_run and names.stored_record(commit.new_run),
            runs=list(map(names.stored_record, commit.runs)),
            events=names.stored_events(commit.events),
        )
        await self._inner.commit(names.stored(session_id), epoch, stored)

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        return await self._inner.blocks(spans)

    async def turns(self, session_id: str, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        return await self._inner.turns(self._names.stored(session_id), after=after, limit=limit)

    async def run(self, run_id: str) -> RunRecord:
        found: RunRecord = self._names.shown_record(await self._inner.run(run_id))
        return found

    async def run_of_key(self, session_id: str, idempotency_key: str) -> RunRecord | None:
        found = await self._inner.run_of_key(self._names.stored(session_id), idempotency_key)
        shown: RunRecord | None = found and self._names.shown_record(found)
        return shown

    async def runs(self, session_id: str, *, after: int = -1, limit: int = 100) -> list[RunRecord]:
        found = await self._inner.runs(self._names.stored(session_id), after=after, limit=limit)
        return list(map(self._names.shown_record, found))

    async def events(self, session_id: str, *, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        found = await self._inner.events(self._names.stored(session_id), after=after, limit=limit)
        return self._names.shown_events(found)

    async def event_of_key(self, session_id: str, key: str) -> AnyEvent | None:
        found = await self._inner.event_of_key(self._names.stored(session_id), key)
        return self._names.shown_events([found])[0] if found else None

    async def query(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        order_by: SessionOrder = "created_at",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[SessionRecord]:
        return await self._inner.query(
            user_id=user_id, agent=agent, status=status, order_by=order_by, cursor=cursor, limit=limit
        )

    async def count(
        self, *, user_id: str | None = None, agent: str | None = None, status: SessionStatus | None = None
    ) -> int:
        return await self._inner.count(user_id=user_id, agent=agent, status=status)

    async def usage(self, *, user_id: str | None = None, agent: str | None = None) -> Usage:
        return await self._inner.usage(user_id=user_id, agent=agent)

    async def unsettled(self, *, cursor: str | None = None, limit: int = 1000) -> Page[str]:
        return await self._inner.unsettled(cursor=cursor, limit=limit)

    async def expired(self, now: float, *, cursor: str | None = None, limit: int = 100) -> Page[SessionRecord]:
        return await self._inner.expired(now, cursor=cursor, limit=limit)

    async def delete(self, session_id: str, *, epoch: int | None = None, log: str | None = None) -> int:
        return await self._inner.delete(self._names.stored(session_id), epoch=epoch, log=log)

    async def try_writing(self) -> None:
        await self._inner.try_writing()

    async def close(self) -> None:
        await self._inner.close()


class PublicIdHistory:
    """Likewise, a history."""

    def __init__(self, inner: HistoryStore, stored_id: str) -> None:
        self._inner = inner
        self._names = _Names(stored_id)

    async def append(self, session_id: str, events: Sequence[Event]) -> None:
        await self._inner.append(self._names.stored(session_id), self._names.stored_events(events))

    async def events(
        self, session_id: str, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        found = await self._inner.events(self._names.stored(session_id), after=after, limit=limit, run_id=run_id)
        return self._names.shown_events(found)

    async def last_seq(self, session_id: str) -> int:
        return await self._inner.last_seq(self._names.stored(session_id))

    async def delete(self, session_id: str, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()) -> None:
        stored = self._names.stored_events(instead)
        await self._inner.delete(self._names.stored(session_id), turns_up_to=turns_up_to, instead=stored)

    async def close(self) -> None:
        await self._inner.close()
