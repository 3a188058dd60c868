# Made from actors/client/event_push.py by `make blocking`: change that file.
"""Push delivery: a caller's function is called with each event of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable

from turnwise.actors.client.blocking import steps
from turnwise.actors.client.shared.arguments import EventSink
from turnwise.errors import OverloadedError
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.growing_pauses import GrowingPauses

DRAIN_S = 10.0
"""How long a wait for a run that has ended waits until its `on_event` has had all events, in seconds."""

AGAIN_S, LONGEST_S = 0.5, 60.0
"""After how many seconds a function that has raised gets its event again: the first time, and at most."""

_log = logging.getLogger(__name__)

_Page = Callable[[int], tuple[list[AnyEvent], int, bool]]
"""Asks for the events of a run that are numbered above a number; see `SessionReads.events`."""


class Delivery:
    """Calls a function with each event, and logs the first of its failures.

    Args:
        repeats: whether the function is to get an event again at which it raises. Then the first failure at each event
            is logged.
    """

    def __init__(self, on_event: EventSink, description: str, *, repeats: bool = False) -> None:
        self._on_event = on_event
        self._description = description
        self._repeats = repeats
        self._has_failed = False

    def call(self, event: AnyEvent) -> bool:
        """Call the function; return whether it returned. Its errors are logged and raise nothing."""
        try:
            steps.finish(self._on_event(event))
        except Exception:  # noqa: BLE001 - logged; the function's failure fails nothing
            if not self._has_failed:
                self._has_failed = True
                later = "that event again until it returns" if self._repeats else "the events that follow"
                message = "the %s raised an exception at event %d (%s) of session %r; it gets %s"
                names = self._description, event.seq, event.kind, event.session_id, later
                _log.warning(message, *names, exc_info=True)
            return False
        if self._repeats:
            self._has_failed = False
        return True

    def hand_out(self, event: AnyEvent, work: steps.Background) -> bool:
        """Call the function until it is done with the event; return False if the work is to end before."""
        pauses = GrowingPauses(AGAIN_S, LONGEST_S)
        while not work.is_stopped():
            if self.call(event) or not self._repeats:
                return True
            work.pause(pauses.next_s())
        return False

    def note_end(self, error: Exception, after: int) -> None:
        """Log that no more events can be read."""
        _log.warning("the %s gets no events after %d: %s", self._description, after, error)


class EventPush:
    """Calls `on_event` with the events of a run, in order, beside the run."""

    def __init__(self, on_event: EventSink, page: _Page, run_id: str) -> None:
        self._delivery = Delivery(on_event, f"on_event of run {run_id!r}")
        self._page = page
        self._work = steps.Background("turnwise-on-event")
        self._work.start(self._deliver)

    def drain(self) -> None:
        """Wait up to `DRAIN_S` seconds until the function has had all events; return at once in a call of it."""
        self._work.ended(DRAIN_S)

    def _deliver(self) -> None:
        after, done = 0, False
        while not done:
            try:
                events, after, done = self._page(after)
            except OverloadedError:
                continue  # after a minute of attempts
            except Exception as error:  # noqa: BLE001 - logged, such as that Ray has ended
                self._delivery.note_end(error, after)
                return
            for event in events:
                self._delivery.call(event)
