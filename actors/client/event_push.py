"""Push delivery: a caller's function is called with each event of a run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from turnwise.actors.client import steps
from turnwise.actors.client.shared.arguments import EventSink
from turnwise.errors import OverloadedError
from turnwise.memory.conversation.events import AnyEvent

DRAIN_S = 10.0
"""How long a wait for a run that has ended waits until its `on_event` has had all events, in seconds."""

_log = logging.getLogger(__name__)

_Page = Callable[[int], Awaitable[tuple[list[AnyEvent], int, bool]]]
"""Asks for the events of a run that are numbered above a number; see `SessionReads.events`."""


class AsyncDelivery:
    """Calls a function with each event, and logs the first of its failures."""

    def __init__(self, on_event: EventSink, description: str) -> None:
        self._on_event = on_event
        self._description = description
        self._has_failed = False

    async def call(self, event: AnyEvent) -> None:
        """Call the function. Its errors are logged and raise nothing."""
        try:
            await steps.finish(self._on_event(event))
        except Exception:  # noqa: BLE001 - logged; the function's failure fails nothing
            if not self._has_failed:
                self._has_failed = True
                message = "the %s raised an exception at event %d (%s); it gets the events that follow"
                _log.warning(message, self._description, event.seq, event.kind, exc_info=True)

    def note_end(self, error: Exception, after: int) -> None:
        """Log that no more events can be read."""
        _log.warning("the %s gets no events after %d: %s", self._description, after, error)


class AsyncEventPush:
    """Calls `on_event` with the events of a run, in order, beside the run."""

    def __init__(self, on_event: EventSink, page: _Page, run_id: str) -> None:
        self._delivery = AsyncDelivery(on_event, f"on_event of run {run_id!r}")
        self._page = page
        self._work = steps.Background("turnwise-on-event")
        self._work.start(self._deliver)

    async def drain(self) -> None:
        """Wait up to `DRAIN_S` seconds until the function has had all events; return at once in a call of it."""
        await self._work.ended(DRAIN_S)

    async def _deliver(self) -> None:
        after, done = 0, False
        while not done:
            try:
                events, after, done = await self._page(after)
            except OverloadedError:
                continue  # after a minute of attempts
            except Exception as error:  # noqa: BLE001 - logged, such as that Ray has ended
                self._delivery.note_end(error, after)
                return
            for event in events:
                await self._delivery.call(event)
