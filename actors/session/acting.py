"""Who asks a session for what is being done: a member, whose role is checked where the change is made.

A verb is carried out within `acting_as`. So a change knows its member without an argument in each function, and
`Transactor` checks the role where no other change comes in between. Tasks that outlive a call act for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass

from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import MemberRole, SessionKey, SessionRecord
from turnwise.memory.stores.base import SessionStore


@dataclass(frozen=True)
class Acting:
    """A member who asks for something."""

    user_id: str
    needed: MemberRole
    """The lowest role that allows it."""
    action: str
    """What is asked for, as a verb with its object."""


_ACTING: ContextVar[Acting | None] = ContextVar("acting", default=None)


@contextmanager
def acting_as(acting: Acting | None) -> Iterator[None]:
    """Have what is done within it be done for a member; for the session's user, if it is None."""
    token = _ACTING.set(acting)
    try:
        yield
    finally:
        _ACTING.reset(token)


def acting_member() -> str | None:
    """Return the member for whom something is done; None if it is done for the session's user, or for nobody."""
    acting = _ACTING.get()
    return acting.user_id if acting else None


async def check_acting(
    session: SessionRecord, store: SessionStore, needed: MemberRole | None = None, action: str = ""
) -> None:
    """Raise unless the member for whom something is done may do it.

    Args:
        needed: the lowest role that allows it, if it is a higher one than the verb says.
        action: what that role allows, if it is not all that the verb does.

    Raises:
        SessionNotFoundError, NotAllowedError: see `SessionRecord.check_role`.
    """
    if acting := _ACTING.get():
        checked = Acting(acting.user_id, needed or acting.needed, action or acting.action)
        await check_member(session, store, checked)


async def check_own(session: SessionRecord, store: SessionStore, run: RunRecord | None) -> None:
    """Raise unless the member for whom something is done has started the run, or is an owner; see `check_acting`."""
    acting = _ACTING.get()
    if acting and (run is None or run.author != acting.user_id):
        await check_member(session, store, Acting(acting.user_id, "owner", f"{acting.action} for runs of others"))


async def check_member(session: SessionRecord, store: SessionStore, acting: Acting | None) -> None:
    """Raise unless a member may do something; see `check_acting`. The session of an agent has its caller's members."""
    if acting is not None:
        (await root_of(session, store)).check_role(acting.user_id, acting.needed, acting.action)


async def check_stored(store: SessionStore, key: SessionKey, acting: Acting) -> None:
    """Raise unless a member may do something with a stored session; see `check_acting`."""
    await check_member(await store.get(key), store, acting)


async def root_of(session: SessionRecord, store: SessionStore) -> SessionRecord:
    """Return the session itself or, for one of an agent, the session above all agents, whose members are its own."""
    while session.called_by is not None:
        session = await store.get(SessionKey(session.called_by, session.user_id))
    return session


def context_for_nobody() -> Context | None:
    """Return a copy of the context in which nobody acts, for a task that outlives the call; None if nobody acts."""
    if _ACTING.get() is None:
        return None
    context = copy_context()
    context.run(_ACTING.set, None)
    return context
