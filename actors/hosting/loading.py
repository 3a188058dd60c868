"""`Loading`: loads what an actor hosts, at the first call, for both placements.

A constructor does none of it: Ray would start an actor whose constructor fails again and again, or never again, and say
little of why. What fails here is an answer that names the cause, and the next call tries again.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from turnwise.actors.cluster.kept_settings import SettingsLostError

LOAD_S = 60.0
"""How long a call waits until everything is loaded, in seconds; then loading goes on without it."""

FREE_STARTS = 4
"""How many processes in a row may die while they load before the next one pauses first."""

MOST_PAUSE_S = 60.0
"""The longest such pause, in seconds. The first is a second, and each is twice as long as the one before."""

Host = TypeVar("Host")

_log = logging.getLogger(__name__)


class Loading(Generic[Host]):
    """Loads a host once, for all calls that wait for it; after a failure the next call tries again.

    If process after process of the actor dies while it loads, later ones pause before they do, so that neither logs nor
    processors are filled with attempts. During a pause, calls are refused at once.

    Args:
        load: makes the host.
        actor_name: the name of the actor, for errors.
        actor_id: the id of the actor. Ray's key-value store has how many of its processes have died while they loaded.
        is_back: whether the actor had a process before. The first process of an actor counts nothing, so it costs
            nothing.
        leave: ends the actor, if its settings are lost: the next call then makes another one, with new settings.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[Host]],
        *,
        actor_name: str,
        actor_id: str,
        is_back: bool,
        leave: Callable[[], None],
    ) -> None:
        self._load = load
        self._actor_name = actor_name
        self._key = f"starts/{actor_id}"
        self._must_count = is_back
        self._leave = leave
        self._loading: asyncio.Task[Host] | None = None
        self._pausing = ""
        """Why there is a pause; empty if there is none."""

    async def host(self) -> Host:
        """Return the host.

        Raises:
            TimeoutError: it has not been loaded within `LOAD_S`; it may be for a later call.
            RuntimeError: there is a pause.
            Exception: loading failed.
        """
        if self._loading is None:
            self._loading = asyncio.create_task(self._loaded())
        loading = self._loading
        if loading.done() and not loading.exception():
            return loading.result()
        if self._pausing:
            raise RuntimeError(self._pausing)
        try:
            async with asyncio.timeout(LOAD_S):
                return await asyncio.shield(loading)
        except BaseException as error:
            if not loading.done():
                if isinstance(error, TimeoutError):
                    raise TimeoutError(f"it has not been loaded within {LOAD_S:g} s") from None
                raise
            if self._loading is loading:
                self._loading = None  # the next call tries again
            if isinstance(error, SettingsLostError):
                self._leave()
            raise

    def refusal(self, request: bytes, error: Exception) -> bytes:
        """Return the pickled answer to a request for which there is no host."""
        from turnwise.actors.cluster.wire import Refused
        from turnwise.errors import SessionLostError, TurnwiseError

        if not isinstance(error, TurnwiseError):
            session_id = pickle.loads(request)[0]
            why = f"its process, of Ray's actor {self._actor_name}, cannot load it ({type(error).__name__}: {error})"
            error = SessionLostError(session_id, f"{why}: correct this on every node, or open a manager anew")
        return pickle.dumps(Refused(error), pickle.HIGHEST_PROTOCOL)

    async def _loaded(self) -> Host:
        died = await asyncio.to_thread(self._count_start) if self._must_count else 0
        self._must_count = False
        if died >= FREE_STARTS:
            pause_s = min(2.0 ** (died - FREE_STARTS), MOST_PAUSE_S)
            self._pausing = (
                f"{died} processes of it have died while they loaded, so this one waits for {pause_s:g} s;"
                " Ray's logs have their last words"
            )
            _log.warning("%s: %s", self._actor_name, self._pausing)
            try:
                await asyncio.sleep(pause_s)
            finally:
                self._pausing = ""
        return await self._load()

    async def settle(self) -> None:
        """Take note that this process has loaded everything, so that the count begins anew."""
        await asyncio.to_thread(_internal_kv_del, self._key, namespace=_SPACE)

    def _count_start(self) -> int:
        """Count this process; return how many before it have died while they loaded."""
        died = int(_internal_kv_get(self._key, namespace=_SPACE) or 0)
        _internal_kv_put(self._key, str(died + 1), namespace=_SPACE)
        return died


_SPACE = b"turnwise"
