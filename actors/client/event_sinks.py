"""Push delivery: a caller's function that is called with each event of a run."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import PlainValidator

from turnwise.actors.client.requests import Portal, Request, carry_out, carry_out_async
from turnwise.errors import OverloadedError
from turnwise.memory.conversation.events import AnyEvent

EventSink = Callable[[AnyEvent], object]
"""A function that is called with each event; an awaitable that it returns is awaited by the asynchronous family."""

DRAIN_S = 10.0
"""How long a wait for a run that has ended waits until its `on_event` has had all events, in seconds."""

_log = logging.getLogger(__name__)

_Page = Callable[[int], Request[tuple[list[AnyEvent], int, bool]]]
"""Requests the events of a run that are numbered above a number; see `SessionReads.events`."""


def _function(value: Any) -> EventSink:
    if not callable(value):
        raise ValueError("must be a function that takes an event")
    sink: EventSink = value
    return sink


Sink = Annotated[EventSink, PlainValidator(_function)]


class Delivery:
    """Calls a sink with each event, and logs the first of its failures."""

    def __init__(self, sink: EventSink, what: str) -> None:
        self._sink = sink
        self._what = what
        self._has_failed = False

    def call(self, event: AnyEvent) -> Awaitable[Any] | None:
        """Call the sink; return what there is to await. Its errors are logged and raise nothing."""
        try:
            answer = self._sink(event)
        except Exception:  # noqa: BLE001 - logged; the sink's failure fails nothing
            self.note_failure(event)
            return None
        return answer if inspect.isawaitable(answer) else None

    async def call_awaited(self, event: AnyEvent) -> None:
        """Call the sink, and await what it returns. Its errors are logged and raise nothing."""
        if waiting := self.call(event):
            try:
                await waiting
            except Exception:  # noqa: BLE001 - logged; the sink's failure fails nothing
                self.note_failure(event)

    def note_failure(self, event: AnyEvent) -> None:
        """Log the exception that is being handled, if it is the sink's first."""
        if not self._has_failed:
            self._has_failed = True
            why = "the %s raised an exception at event %d (%s); it gets the events that follow"
            _log.warning(why, self._what, event.seq, event.kind, exc_info=True)

    def note_end(self, error: Exception, after: int) -> None:
        """Log that no more events can be read."""
        _log.warning("the %s gets no events after %d: %s", self._what, after, error)


class ThreadSink:
    """Calls `on_event` with the events of a run, in order, in a thread of its own."""

    def __init__(self, sink: EventSink, page: _Page, portal: Portal, run_id: str) -> None:
        self._delivery = Delivery(sink, f"on_event of run {run_id!r}")
        self._page = page
        self._portal = portal
        self._thread = threading.Thread(target=self._deliver, name="turnwise-on-event", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Wait up to `DRAIN_S` seconds until the sink has had all events; not at all in a call of the sink."""
        if threading.current_thread() is not self._thread:
            self._thread.join(DRAIN_S)

    def _deliver(self) -> None:
        after, done = 0, False
        while not done:
            try:
                events, after, done = carry_out(self._page(after), self._portal)
            except OverloadedError:
                continue  # after a minute of attempts
            except Exception as error:  # noqa: BLE001 - logged, such as that Ray has ended
                self._delivery.note_end(error, after)
                return
            for event in events:
                self._delivery.call(event)


class TaskSink:
    """Calls `on_event` with the events of a run, in order, in a task of its own."""

    def __init__(self, sink: EventSink, page: _Page, run_id: str) -> None:
        self._delivery = Delivery(sink, f"on_event of run {run_id!r}")
        self._page = page
        self._task = asyncio.create_task(self._deliver(), name="turnwise-on-event")
        _TASKS.add(self._task)
        self._task.add_done_callback(_TASKS.discard)

    async def drain(self) -> None:
        """See `ThreadSink.drain`."""
        if asyncio.current_task() is not self._task:
            await asyncio.wait([self._task], timeout=DRAIN_S)

    async def _deliver(self) -> None:
        after, done = 0, False
        while not done:
            try:
                events, after, done = await carry_out_async(self._page(after))
            except OverloadedError:
                continue  # after a minute of attempts
            except Exception as error:  # noqa: BLE001 - logged, such as that Ray has ended
                self._delivery.note_end(error, after)
                return
            for event in events:
                await self._delivery.call_awaited(event)


_TASKS: set[asyncio.Task[None]] = set()
"""The tasks under way; the event loop itself holds tasks weakly."""
