"""`EventsAhead`: reads the next page of a session's stored events while another process decodes the page before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from turnwise.actors.hosting.wire import PackedEvents
from turnwise.memory.conversation.sessions import SessionRecord

if TYPE_CHECKING:
    from turnwise.actors.session.state.reads import SessionReads
    from turnwise.memory.conversation.events import Event

HOLD_S = 1.0
"""How long a page waits for its reader, in seconds."""

Page = tuple["list[Event] | PackedEvents", int, bool]
"""What `SessionReads.events_to_pass_on` returns, packed."""


class _Place(NamedTuple):
    """Where a page begins: the arguments of its request."""

    after: int
    limit: int
    run_id: str | None


@dataclass(frozen=True, eq=False)
class _PageAhead:
    place: _Place
    session: SessionRecord
    """The session's row as it was before the page was read."""
    reading: asyncio.Task[Page | None]


class EventsAhead:
    """Reads pages of one session's events, and for a reader that reads on, the page that it will ask for next.

    A reader reads on once its second request continues where the answer to its first one ended. At most one page is
    read ahead, for whichever reader, and it is dropped after `HOLD_S` seconds. It consists of stored events only, and
    is used only if nothing was committed since, so a reader gets what it would get without it.

    Args:
        make_reads: returns what reads the session, as it stands when a page is begun.
    """

    __slots__ = ("_expected", "_make_reads", "_page")

    def __init__(self, make_reads: Callable[[], SessionReads]) -> None:
        self._make_reads = make_reads
        self._expected: _Place | None = None
        """Where the last reader will continue, if it does."""
        self._page: _PageAhead | None = None

    async def read(self, reads: SessionReads, after: int, limit: int, run_id: str | None, timeout_s: float) -> Page:
        """Return a page of events; see `SessionReads.events_to_pass_on`. Cancelling it stops no page read ahead."""
        place = _Place(after, limit, run_id)
        reads_on = place == self._expected
        page = await self._take(reads, place) or await read_page(reads, *place, timeout_s)
        self._expected = _next_of(page, place)
        if reads_on and self._expected and self._page is None:
            self._begin(reads, self._expected)
        return page

    async def _take(self, reads: SessionReads, place: _Place) -> Page | None:
        """Return the page that was read ahead for this place, unless the session has changed since."""
        ahead = self._page
        if ahead is None or ahead.place != place:
            return None
        self._page = None
        await asyncio.wait({ahead.reading})
        page = None if ahead.reading.cancelled() else ahead.reading.result()
        return page if page and await reads.row() == ahead.session else None

    def _begin(self, reads: SessionReads, place: _Place) -> None:
        page = self._page = _PageAhead(place, reads.known_row, asyncio.create_task(self._read_ahead(place)))
        asyncio.get_running_loop().call_later(HOLD_S, self._drop, page)

    async def _read_ahead(self, place: _Place) -> Page | None:
        """Return a page, if it has stored events only and is not the last one."""
        try:
            page = await read_page(self._make_reads(), *place, 0.0)
        except Exception:  # noqa: BLE001 - the reader's own request meets the same error, and says so
            return None
        return page if _next_of(page, place) else None

    def _drop(self, page: _PageAhead) -> None:
        if self._page is page:
            self._page = None
            page.reading.cancel()


async def read_page(reads: SessionReads, after: int, limit: int, run_id: str | None, timeout_s: float) -> Page:
    """Return a page of events; see `SessionReads.events_to_pass_on`."""
    events, last, is_all = await reads.events_to_pass_on(after, limit, run_id=run_id, only=None, timeout_s=timeout_s)
    return PackedEvents.pack(reads.key, events), last, is_all


def _next_of(page: Page, place: _Place) -> _Place | None:
    """Return where a reader continues after a page of stored events; None if it has others, or is the last one."""
    events, last, is_all = page
    only_stored = isinstance(events, PackedEvents) and not events.events
    return place._replace(after=last) if only_stored and not is_all else None
