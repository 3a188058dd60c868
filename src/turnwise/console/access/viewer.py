"""`Viewer`: who looks at the console, and what they reach."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from starlette.types import Scope

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.http.auth import Identity
from turnwise.http.service import Service

SCOPE_KEY = "turnwise.viewer"
"""Where the gate puts the viewer into a connection's scope."""


@dataclass(frozen=True)
class Viewer:
    """Who looks at the console. Without authentication, and for an operator, that is everything."""

    service: Service = field(repr=False)
    identity: Identity | None
    root: str
    """The path of the console, as the browser sees it."""
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False, compare=False)
    """Set when the login with which a page was made has ended: nothing is done for the page any more."""

    @classmethod
    def of(cls, scope: Scope) -> Viewer:
        """Return the viewer that the gate has put into the scope."""
        viewer: Viewer = scope[SCOPE_KEY]
        return viewer

    @property
    def sees_all(self) -> bool:
        """Whether the sessions of all users are shown."""
        return self.identity is None or self.identity.is_operator

    @property
    def user_id(self) -> str | None:
        """The user whose sessions are shown; None for those of all users."""
        return None if self.identity is None or self.sees_all else self.identity.user_id

    @property
    def is_read_only(self) -> bool:
        """Whether nothing may be changed."""
        return self.service.manager.is_read_only

    @property
    def manager(self) -> AsyncSessionManager:
        """The service's manager, which reaches the sessions of all users."""
        return self.service.manager

    async def session(self, session_id: str, user_id: str | None) -> AsyncSession:
        """Return a session: of this user if the viewer sees all, "default" if None; otherwise for the viewer.

        That is the viewer's own, or one that this user shares with the viewer, whose role then says what may be done.

        Raises:
            SessionNotFoundError: there is none, or it is not shared with the viewer.
        """
        if self.sees_all or user_id in (None, "", self.user_id):
            return await self.manager.get(session_id, user_id=(user_id or None) if self.sees_all else self.user_id)
        return await self.manager.get(session_id, user_id=user_id, as_user=self.user_id)

    def url(self, page: str, **query: Any) -> str:
        """Return the address of a page of the console."""
        parameters = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.root}/{page}{f'?{urlencode(parameters)}' if parameters else ''}"

    def session_url(self, session_id: str, user_id: str) -> str:
        """Return the address of a conversation."""
        return self.url("session", id=session_id, user=self.named(user_id))

    def named(self, user_id: str) -> str | None:
        """Return what an address says about whose a session is; None if it is the viewer's own, where that is known."""
        return None if user_id == self.user_id else user_id
