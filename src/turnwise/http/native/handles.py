"""`Handles`: the sessions and runs that requests have used, so that a request costs what the Python method costs."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.errors import RunNotFoundError, SessionNotFoundError
from turnwise.memory.conversation.sessions import DEFAULT_USER

Held = TypeVar("Held")
Result = TypeVar("Result")

MOST = 20_000
"""How many sessions, and how many runs, are held at most."""

_Key = tuple[str | None, str | None, str]
"""The user, the owner of what is shared with the user (None for the user's own), and the id."""


class Handles:
    """Holds the handles of sessions and runs by user, owner and id, those used last.

    A session's owner never changes, and a handle of a deleted session finds no other one, so a held handle is as good
    as one that was looked up now. If its session is not found, it is looked up again, once. The handle of a shared
    session acts for its user, so the session checks the user's role at each call.

    The user is part of each key: a held handle is given out without asking the manager, so the key is what keeps other
    users away.
    """

    def __init__(self, manager: AsyncSessionManager) -> None:
        self._manager = manager
        self._sessions: OrderedDict[_Key, AsyncSession] = OrderedDict()
        self._runs: OrderedDict[_Key, AsyncExecutionHandle] = OrderedDict()

    def cache_session(self, user_id: str | None, session: AsyncSession, *, owner: str | None = None) -> None:
        """Hold a session for later requests of a user."""
        _put(self._sessions, (user_id, owner, session.session_id), session)

    def cache_run(self, user_id: str | None, execution: AsyncExecutionHandle, *, owner: str | None = None) -> None:
        """Hold a run for later requests of a user, without its outcome."""
        _put(self._runs, (user_id, owner, execution.run_id), copy.copy(execution))

    def drop_session(self, user_id: str | None, session_id: str, *, owner: str | None = None) -> None:
        """Drop a session that was deleted."""
        self._sessions.pop((user_id, owner, session_id), None)

    async def on_session(
        self,
        user_id: str | None,
        session_id: str,
        verb: Callable[[AsyncSession], Awaitable[Result]],
        *,
        owner: str | None = None,
    ) -> Result:
        """Return what a method of a user's session returns, or of one that its owner shares with the user.

        Raises:
            SessionNotFoundError: the user has no such session.
        """
        held = _get(self._sessions, (user_id, owner, session_id))
        if held:
            try:
                return await verb(held)
            except SessionNotFoundError:
                self.drop_session(user_id, session_id, owner=owner)
        session = await self._manager.get(session_id, **whose(user_id, owner))
        self.cache_session(user_id, session, owner=owner)
        return await verb(session)

    async def on_run(
        self,
        user_id: str | None,
        run_id: str,
        verb: Callable[[AsyncExecutionHandle], Awaitable[Result]],
        *,
        owner: str | None = None,
    ) -> Result:
        """Return what a method of a user's run returns, or of one in a session that its owner shares with the user.

        Raises:
            RunNotFoundError: the user has no such run.
        """
        held = _get(self._runs, (user_id, owner, run_id))
        if held:
            try:
                return await verb(held)
            except (SessionNotFoundError, RunNotFoundError):
                self._runs.pop((user_id, owner, run_id), None)
        execution = await self._manager.execution(run_id, **whose(user_id, owner))
        self.cache_run(user_id, execution, owner=owner)
        return await verb(execution)


def whose(user_id: str | None, owner: str | None) -> dict[str, str | None]:
    """Return the arguments by which a manager finds what is a user's own, or what is shared with the user."""
    return {"user_id": user_id} if owner is None else {"user_id": owner, "as_user": user_id or DEFAULT_USER}


def _get(held: OrderedDict[_Key, Held], key: _Key) -> Held | None:
    if key in held:
        held.move_to_end(key)
    return held.get(key)


def _put(held: OrderedDict[_Key, Held], key: _Key, value: Held) -> None:
    held[key] = value
    held.move_to_end(key)
    while len(held) > MOST:
        held.popitem(last=False)
