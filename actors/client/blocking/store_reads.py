# Made from actors/client/store_reads.py by `make blocking`: change that file.
"""`StoreReads`: what a manager reads from its store."""

from __future__ import annotations

import logging
import time
from typing import Any

from turnwise.actors.client.blocking import steps
from turnwise.actors.client.shared.sessions_client import SessionsClient, StoreRequest
from turnwise.errors import ManagerClosedError, SessionNotFoundError, StoreClosedError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.base import Page, SessionStore, clock_of
from turnwise.memory.stores.encrypted.records import check_session
from turnwise.memory.stores.store_owner import rivals

_log = logging.getLogger(__name__)

_RIVALS = (
    "%s, which is this one's, and %s have %r open: each takes the session from the other when it changes it, which"
    " interrupts the session's runs; connect all processes to one Ray, by RAY_ADDRESS"
)


class StoreReads:
    """Reads the store of a client, and warns if another owner has it open."""

    def __init__(self, client: SessionsClient, *, is_encrypted: bool) -> None:
        self._client = client
        self._is_encrypted = is_encrypted
        self._store: SessionStore | None = None
        self._knows_rivals = False
        self._now: tuple[float, float] | None = None
        """The store's time and this process's monotonic time, both read when the store's clock was last asked."""

    @property
    def store(self) -> SessionStore:
        """The manager's store, opened at first use; after the manager is closed, it stays the closed one."""
        if self._store is None:
            self._store = self._client.session_store
        return self._store

    def ask(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Call a coroutine method of the store; see `run`."""
        return self.run(lambda store: getattr(store, verb)(*args, **kwargs))

    def run(self, request: StoreRequest) -> Any:
        """Run a coroutine of the store; the first time, also warn if another owner has the store open.

        Raises:
            ManagerClosedError: the manager was closed.
        """
        store, portal = self.store, self._client.portal
        try:
            if not self._knows_rivals:
                addresses = steps.run(portal, rivals, store)
                self._knows_rivals = True
                if addresses:
                    _log.warning(_RIVALS, self._client.runtime.owner.name, ", ".join(addresses), store)
            return steps.run(portal, request, store)
        except StoreClosedError as error:
            if self._client.was_closed:
                raise ManagerClosedError(error.store) from None
            raise

    def now(self) -> float:
        """Return the store's time; the store is asked once, later calls add the time that has passed."""
        if clock := clock_of(self.store):
            return clock()
        if self._now is None:
            now = self.ask("now")
            self._now = now, time.monotonic()
        store_time, asked_at = self._now
        return store_time + (time.monotonic() - asked_at)

    def find(self, session_id: str, user_id: str) -> SessionRecord | None:
        """Return the stored record of a user's session; None if the user has no such session."""
        try:
            return check_session(self.ask("get", SessionKey(session_id, user_id)))
        except SessionNotFoundError:
            return None

    def get(self, session_id: str, user_id: str) -> SessionRecord:
        """Return the stored record of a user's session.

        Raises:
            SessionNotFoundError: the user has no such session.
        """
        session = self.find(session_id, user_id)
        if session is None:
            raise SessionNotFoundError(session_id)
        return session

    def checked(self, page: Page[SessionRecord]) -> Page[SessionRecord]:
        """Return the page; log which records cannot be read."""
        if not self._is_encrypted:
            for session in page:
                check_session(session)
        if page.unreadable:
            names = [key.full_name for key in page.unreadable]
            _log.warning("the records of sessions %s cannot be read; they can be deleted", names)
        return page
