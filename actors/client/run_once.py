"""`AsyncOnce`: the sessions of `run_once`, which are in the memory of the Ray cluster only, but for their events."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from turnwise.actors.client import steps
from turnwise.actors.client.expiry import sweep, sweep_but_events
from turnwise.actors.client.session_host import AsyncSessionHost
from turnwise.actors.client.shared.once_store import ONCE_SWEEP_S, ONCE_TTL_S
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting.runtime import Runtime
from turnwise.actors.hosting.wire import SessionRef
from turnwise.errors import NotFoundError
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.values.ids import new_id


class AsyncOnce:
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

    async def open(
        self, user_id: str, agent: str | None, metadata: Mapping[str, Any], engine: str | None
    ) -> tuple[SessionsClient, SessionRecord]:
        """Create a session; return it and its client."""
        client = await self._connected()
        store = client.session_store
        if time.monotonic() - self._swept_at > ONCE_SWEEP_S:
            self._swept_at = time.monotonic()
            if client.history_name is None:
                await sweep(client, store, None)
            else:
                await sweep_but_events(client)
        now = await steps.run(client.portal, store.now)
        owner: dict[str, Any] = {"user_id": user_id, "agent": agent, "metadata": freeze(metadata)}
        times: dict[str, Any] = {"created_at": now, "updated_at": now, "ttl_s": ONCE_TTL_S}
        session = SessionRecord(session_id=new_id(), memory="off", engine=engine, **owner, **times)
        return client, await steps.run(client.portal, store.create, session)

    async def find(self, run_id: str, user_id: str) -> tuple[SessionsClient, RunRecord] | None:
        """Return a run, by any manager of this Ray, as long as it is there, and its client."""
        if not await self._is_there():
            return None
        client = await self._connected()
        try:
            return client, await steps.run(client.portal, client.session_store.run, run_id, user_id)
        except NotFoundError:
            return None

    async def forget(self, user_id: str) -> None:
        """End and delete the user's sessions, with their events in the event store."""
        if not await self._is_there():
            return
        client = await self._connected()
        while page := await steps.run(client.portal, client.session_store.query, user_id=user_id):
            for session in page:
                await AsyncSessionHost(client, SessionRef.of(session)).remove(memory=False, verify=False)

    def announce_quotas(self) -> None:
        """Say that quotas or tenants were changed. Does not wait."""
        if self._client:
            self._client.announce_quotas()

    async def _is_there(self) -> bool:
        return await steps.in_thread(partial(self._runtime.has_shared_store, self._url))

    async def close(self) -> None:
        """Close the store. The sessions stay."""
        if self._client:
            await steps.run(self._client.portal, self._client.close)

    async def _connected(self) -> SessionsClient:
        if self._client is not None:
            return self._client
        return await steps.in_thread(self._made)

    def _made(self) -> SessionsClient:
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client
