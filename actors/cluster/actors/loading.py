"""`Loading`: loads what an actor hosts, at the first call, for both placements.

A constructor loads nothing: Ray would restart an actor whose constructor fails for ever, or never, and hardly say why.
A failure here is answered with its cause, and the next call tries again.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from turnwise.actors.cluster.actor_settings import SPACE, SettingsLostError
from turnwise.actors.wire_version import packed, unpacked
from turnwise.memory.growing_pauses import GrowingPauses

LOAD_S = 60.0
"""How long a call waits until everything is loaded, in seconds; then loading goes on without it."""

FREE_STARTS = 4
"""How many processes in a row may die while they load before the next one pauses first."""

MOST_PAUSE_S = 60.0
"""The longest such pause, in seconds. The first is a second at most."""

Host = TypeVar("Host")

_log = logging.getLogger(__name__)


class Starts(Protocol):
    """Counts the processes of one actor that have died while they loaded; survives them."""

    def count(self) -> int:
        """Count this process; return how many before it have died while they loaded. Blocks."""

    def clear(self) -> None:
        """Reset the count, since this process has loaded everything. Blocks."""


class StartsInRay:
    """`Starts` in Ray's key-value store.

    Args:
        actor_id: the id of the actor.
    """

    def __init__(self, actor_id: str) -> None:
        self._key = f"starts/{actor_id}"

    def count(self) -> int:
        died = int(_internal_kv_get(self._key, namespace=SPACE) or 0)
        _internal_kv_put(self._key, str(died + 1), namespace=SPACE)
        return died

    def clear(self) -> None:
        _internal_kv_del(self._key, namespace=SPACE)


class Loading(Generic[Host]):
    """Loads a host once, for all calls that wait for it; after a failure the next call tries again.

    If process after process of the actor dies while it loads, later ones pause before they do, so that neither logs nor
    processors are filled with attempts. During a pause, calls are refused at once.

    Args:
        load: makes the host.
        actor_name: the name of the actor, for errors.
        starts: counts the processes that have died while they loaded; None in the first process of an actor.
        leave: ends the actor, if its settings are lost, or of another version: the next call then makes another one,
            with new settings.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[Host]],
        *,
        actor_name: str,
        starts: Starts | None,
        leave: Callable[[], None],
    ) -> None:
        self._load = load
        self._actor_name = actor_name
        self._starts = starts
        self._leave = leave
        self._loading: asyncio.Task[Host] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._died = 0
        self._may_load_at = 0.0
        """When the pause of this process is over, by the clock of the event loop."""

    async def host(self) -> Host:
        """Return the host.

        Raises:
            RuntimeError: there is a pause.
            TimeoutError: it has not been loaded within `LOAD_S`; it may be for a later call.
            Exception: loading failed.
        """
        if await self._pause_s() > 0:
            raise RuntimeError(
                f"{self._died} processes of it in a row have died while they loaded, so the next attempt is delayed;"
                " Ray's logs have their last words"
            )
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        loading = self._loading
        await asyncio.wait({loading}, timeout=LOAD_S)
        if not loading.done():
            raise TimeoutError(f"it has not been loaded within {LOAD_S:g} s")
        if (error := loading.exception()) and self._loading is loading:
            self._loading = None  # the next call tries again
            from turnwise.errors import WireVersionError

            if isinstance(error, SettingsLostError | WireVersionError):
                self._leave()
        return loading.result()

    async def pause(self) -> None:
        """Wait until this process may load."""
        await asyncio.sleep(await self._pause_s())
        self._may_load_at = 0.0

    async def settle(self) -> None:
        """Record that this process has loaded everything, which resets the count."""
        if self._starts is not None:
            await asyncio.to_thread(self._starts.clear)

    async def _pause_s(self) -> float:
        """Return how long this process has yet to wait, in seconds; 0 if it may load."""
        if self._starts is None:
            return 0.0
        if self._counting is None or (self._counting.done() and self._counting.exception()):
            self._counting = asyncio.create_task(self._count(self._starts))
        await asyncio.shield(self._counting)
        return max(0.0, self._may_load_at - asyncio.get_running_loop().time())

    async def _count(self, starts: Starts) -> None:
        self._died = await asyncio.to_thread(starts.count)
        if self._died >= FREE_STARTS:
            pause_s = GrowingPauses(1.0, MOST_PAUSE_S, failures=self._died - FREE_STARTS).next_s()
            self._may_load_at = asyncio.get_running_loop().time() + pause_s
            message = "%s: %d processes in a row have died while they loaded; the next attempt is in %.1f s"
            _log.warning(message, self._actor_name, self._died, pause_s)

    def refusal(self, request: bytes, error: Exception) -> bytes:
        """Return the pickled answer to a request for which there is no host."""
        from turnwise.actors.hosting.wire import Refused
        from turnwise.errors import SessionLostError, TurnwiseError, WireVersionError

        if not isinstance(error, TurnwiseError):
            try:
                ref = unpacked(request).session
            except WireVersionError as misfit:
                return packed(Refused(misfit))
            reason = f"its process, of Ray's actor {self._actor_name}, cannot load it ({type(error).__name__}: {error})"
            error = SessionLostError(ref.session_id, f"{reason}: correct this on every node, or open a manager anew")
        return packed(Refused(error))
