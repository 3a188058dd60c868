# Made from actors/client/run_once.py by `make blocking`: change that file.
"""`Once`: the sessions of `run_once`, which are in the memory of the Ray cluster only, but for their events."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from turnwise.actors.client.blocking import steps
from turnwise.actors.client.blocking.expiry import sweep, sweep_but_events
from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.shared.once_store import ONCE_SWEEP_S, ONCE_TTL_S
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting.runtime import Runtime
from turnwise.actors.hosting.wire import SessionRef
from turnwise.errors import NotFoundError
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.values.ids import new_id


class Once:
    """Opens and finds the sessions of `run_once` of a manager.

    Args:
        runtime: the manager's.
        url: where the sessions are.
        make: makes the client of these sessions. Blocks.
    """

    def __init__(self, runtime: Runtime, url: str, make: Callable[[], SessionsClient]) -> None:
        self._runtime = runtime
        self._url = url
        self._make = make
        self._lock = threading.Lock()
        """Held while the client is made, so that several first calls make one: another would never be closed."""
        self._client: SessionsClient | None = None
        self._swept_at = -math.inf
        """When such sessions were last deleted, by the monotonic clock."""

    def open(
        self, user_id: str, agent: str | None, metadata: Mapping[str, Any], engine: str | None
    ) -> tuple[SessionsClient, SessionRecord]:
        """Create a session; return it and its client."""
        client = self._connected()
        store = client.session_store
        if time.monotonic() - self._swept_at > ONCE_SWEEP_S:
            self._swept_at = time.monotonic()
            if client.history_name is None:
                sweep(client, store, None)
            else:
                sweep_but_events(client)
        now = steps.run(client.portal, store.now)
        owner: dict[str, Any] = {"user_id": user_id, "agent": agent, "metadata": freeze(metadata)}
        times: dict[str, Any] = {"created_at": now, "updated_at": now, "ttl_s": ONCE_TTL_S}
        session = SessionRecord(session_id=new_id(), memory="off", engine=engine, **owner, **times)
        return client, steps.run(client.portal, store.create, session)

    def find(self, run_id: str, user_id: str) -> tuple[SessionsClient, RunRecord] | None:
        """Return a run, by any manager of this Ray, as long as it is there, and its client."""
        if not self._is_there():
            return None
        client = self._connected()
        try:
            return client, steps.run(client.portal, client.session_store.run, run_id, user_id)
        except NotFoundError:
            return None

    def forget(self, user_id: str) -> None:
        """End and delete the user's sessions, with their events in the event store."""
        if not self._is_there():
            return
        client = self._connected()
        while page := steps.run(client.portal, client.session_store.query, user_id=user_id):
            for session in page:
                SessionHost(client, SessionRef.of(session)).remove(memory=False, verify=False)

    def announce_quotas(self) -> None:
        """Say that quotas or tenants were changed. Does not wait."""
        if self._client:
            self._client.announce_quotas()

    def _is_there(self) -> bool:
        return steps.in_thread(partial(self._runtime.has_shared_store, self._url))

    def close(self) -> None:
        """Close the store. The sessions stay."""
        if self._client:
            steps.run(self._client.portal, self._client.close)

    def _connected(self) -> SessionsClient:
        if self._client is not None:
            return self._client
        return steps.in_thread(self._made)

    def _made(self) -> SessionsClient:
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client
