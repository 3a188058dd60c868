"""`Membership`: adds members to a session, changes their roles, and removes them."""

from __future__ import annotations

from turnwise.actors.session.acting import acting_member
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import InvalidInputError, NotAllowedError, TooManyError, shown
from turnwise.memory.conversation.events import MemberChanged
from turnwise.memory.conversation.sessions import MAX_MEMBERS, MemberRole, SessionRecord
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.records import replace


class Membership:
    """Changes who shares the session, in one commit with the event that tells of it. Repeating a call changes nothing.

    The session's row has the members, so the next call of a removed member is refused wherever it arrives. Calls that
    wait for the lock meanwhile are checked when they get it: see `check_acting`. Runs that the member has started go
    on.

    While a change awaits its commit, reads and streaming go on; a crash leaves all of it or nothing.
    """

    def __init__(self, state: SessionState, transactor: Transactor) -> None:
        self._journal = state.journal
        self._transactor = transactor

    async def set_member(self, user_id: str, role: MemberRole | None) -> SessionRecord:
        """Give a user a role, None to remove the user; return the session's row. Durable on return.

        An owner may change all members, and every member may leave.

        Raises:
            InvalidInputError: it is the session's user, or the session is an agent's.
            NotAllowedError: a member, who is no owner, would change another one.
            TooManyError: the session has `MAX_MEMBERS` others.
        """

        async def change() -> SessionRecord:
            session = self._journal.session
            _check_change(session, user_id, role)
            members = {name: old for name, old in session.members.items() if name != user_id}
            members |= {user_id: role} if role else {}
            if len(members) > MAX_MEMBERS:
                raise TooManyError("members", len(members), "MAX_MEMBERS", MAX_MEMBERS)
            if members == session.members:
                return session
            was_member = user_id in session.members
            await self._transactor.commit(
                replace(session, members=FrozenDict(members)),
                [(MemberChanged, {"member": user_id, "role": role, "by": acting_member()})],
                joined=[user_id] if not was_member else [],
                left=[user_id] if role is None else [],
            )
            return self._journal.session

        return await self._transactor.run(change)


def _check_change(session: SessionRecord, user_id: str, role: MemberRole | None) -> None:
    if user_id == session.user_id:
        reason = f"session {session.session_id!r} is this user's own: its user is always an owner"
        raise InvalidInputError("user_id", shown(user_id), reason)
    if session.called_by is not None:
        reason = f"session {session.session_id!r} is an agent's: it has the members of {session.called_by!r}"
        raise InvalidInputError("user_id", shown(user_id), reason)
    acting = acting_member()
    own_role = session.role_of(acting)
    leaves = role is None and user_id == acting
    if own_role is not None and own_role != "owner" and not leaves:
        raise NotAllowedError(session.session_id, str(acting), own_role, "owners", "change its members")
