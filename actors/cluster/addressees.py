"""`Addressees`: has sessions carry deliveries out, in their processes on Ray, or in new ones.

This module imports nothing heavy, since session processes import it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from turnwise.actors.wire_version import unpacked_answer

if TYPE_CHECKING:
    from turnwise.actors.cluster.actor_lookup import DedicatedLookup, PackedLookup
    from turnwise.memory.deliveries.records import Delivery

PAUSE_S, MOST_PAUSE_S = 0.02, 1.0
"""The first and the longest pause before a session's next process is asked, in seconds."""


class Addressees:
    """Finds the processes of sessions to which deliveries are handed over. Use it on one event loop.

    Args:
        namespace: of these processes.
        make_lookup: returns the lookup of sessions' processes. It may block, and is called on a thread at first use.
    """

    def __init__(self, namespace: str, make_lookup: Callable[[], DedicatedLookup | PackedLookup]) -> None:
        self._namespace = namespace
        self._make_lookup = make_lookup
        self._lookup: DedicatedLookup | PackedLookup | None = None
        self._finding = asyncio.Lock()

    async def deliver(self, delivery: Delivery) -> None:
        """Have a session carry a delivery out, in its process or a new one. It goes on if nobody waits.

        A session without an engine of its own gets that of the delivery, or keeps its process's if it cannot be found.

        Raises:
            SessionLostError: no process of the session answers, or it fails there.
            TurnwiseError: the session refuses.
        """
        from turnwise.actors.cluster.actors.switched_engines import find_engine
        from turnwise.actors.hosting import verbs
        from turnwise.actors.hosting.reach import Reach
        from turnwise.actors.hosting.runtime import AwayError, CallError
        from turnwise.actors.hosting.wire import EngineWanted, Refused, SessionRef
        from turnwise.errors import SessionFencedError, SessionLostError
        from turnwise.memory.growing_pauses import GrowingPauses

        key, pauses = delivery.addressee, GrowingPauses(PAUSE_S, MOST_PAUSE_S)
        call, ref, engine_id = verbs.deliver(delivery), SessionRef(key), delivery.engine_id or ""
        request = call.to(ref, engine_id).pickled()
        while True:
            lookup = await self._find()
            process = await asyncio.to_thread(lookup.of, key)
            try:
                answer = unpacked_answer(await process.ask(request, Reach(time.monotonic()), is_repeatable=True))
            except AwayError:
                pass  # it left, or died: the next one is asked
            except CallError as error:
                await asyncio.to_thread(lookup.invalidate, key)
                raise SessionLostError(key.session_id, f"deliver: {error}") from error
            else:
                if isinstance(answer, EngineWanted):
                    engine = await asyncio.to_thread(find_engine, delivery.namespace or self._namespace, engine_id)
                    request = (call.to(ref, engine_id, engine) if engine else call.to(ref)).pickled()
                    continue
                if not isinstance(answer, Refused):
                    return
                if not isinstance(answer.error, SessionFencedError):
                    raise answer.error
            await asyncio.to_thread(lookup.invalidate, key)
            await asyncio.sleep(pauses.next_s())

    async def _find(self) -> DedicatedLookup | PackedLookup:
        async with self._finding:
            if (lookup := self._lookup) is None:
                lookup = self._lookup = await asyncio.to_thread(self._make_lookup)
        return lookup
