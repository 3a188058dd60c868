"""`EventPage`: some events, and where the next ones begin."""

from __future__ import annotations

from collections.abc import Iterable

from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.views.notebook_display import Rows


class EventPage(Rows[AnyEvent]):
    """A list of events."""

    def __init__(self, events: Iterable[AnyEvent] = (), next: int | None = None) -> None:
        super().__init__(events)
        self.next = next
        """Pass it as `after` to get the next page. None has two meanings: from `event_page` of a handle, the run has no
        more events; from `events` of a session, there are no more events now."""
