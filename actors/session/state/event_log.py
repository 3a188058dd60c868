"""`EventLog`: a session's recent events in memory, for callers that follow it live."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence

from turnwise.memory.conversation.events import Event


class EventLog:
    """Numbers a session's events, and keeps those of its last runs in memory, including live events.

    Events are ordered by number, and a reader that has seen number n has seen all events up to n: while a commit's
    numbers are reserved, live events wait until the commit is published. Publishing never waits for a reader.

    Live events have numbers only while a run is active: the commit before has reserved them in the store. Without that,
    the session's next process would give the same numbers to stored events, and a reader would miss those. What an
    attempt says after the end of its run is dropped.

    Args:
        last_seq: the last number that the store knows.
        is_live: whether the store has reserved numbers for live events.
    """

    def __init__(self, last_seq: int, *, is_live: bool = False) -> None:
        self.last_seq = last_seq
        """The last number that was assigned."""
        self.published = last_seq
        """All events up to this number have been published."""
        self.start = last_seq + 1
        """All events from this number on are in memory."""
        self._cached: list[Event] = []
        self._waiting: list[Callable[[int], Event | None]] = []
        self._quiet: list[Callable[[int], Event | None]] = []
        """Makes the live events that are published with the next event."""
        self._numbered: list[Event] = []
        """Quiet events that have numbers and are not in `_cached` yet."""
        self._reserved = False
        self._is_live = is_live
        self._next_event: asyncio.Future[None] | None = None

    def next_seq(self) -> int:
        """Return the number that the next stored event will have, if nothing is published before it."""
        self._numbered += self._make_quiet_events()
        return self.last_seq + 1

    def reserve(self, count: int) -> int:
        """Reserve the next `count` numbers for events that are about to be stored; return the first number."""
        first = self.next_seq()
        self._reserved = True
        self.last_seq += count
        return first

    def catch_up(self, events: Sequence[Event], upto: int) -> None:
        """Publish events that were found in the store, and number later ones above `upto`; live events still wait."""
        self._reserved = True
        self._cache(events)
        self.last_seq = self.published = max(self.last_seq, upto)
        self._wake()

    def publish(self, events: Sequence[Event] = (), *, is_live: bool | None = None) -> None:
        """Publish the events that were stored with the reserved numbers, then the live events that waited.

        Args:
            is_live: whether a run is active now, so that the commit has reserved numbers for live events; None if that
                has not changed.
        """
        self._reserved = False
        self._cache(events)
        self.published = self.last_seq
        if is_live is not None:
            self._is_live = is_live
        if not self._is_live:
            self._waiting.clear()
            self._quiet.clear()
        waiting, self._waiting = self._waiting, []
        for make in waiting:
            self.publish_live(make)
        self._wake()

    def abandon(self) -> None:
        """Publish nothing more, since another process may assign the next numbers; wake waiting readers."""
        self._reserved = True
        self._waiting.clear()
        self._quiet.clear()
        self._wake()

    def publish_live(self, make: Callable[[int], Event | None], *, quietly: bool = False) -> None:
        """Call `make` with the next number and publish the event that it returns, if any; only while a run is active.

        While numbers are reserved for a commit, this happens once that commit is published. Does not wait.

        Args:
            quietly: publish it with the next event, before that one, so that it wakes no reader by itself.
        """
        if self._reserved:
            self._waiting.append(make)
            return
        if not self._is_live:
            return
        self._quiet.append(make)
        if not quietly and (events := self._make_quiet_events()):
            self._cache(events)
            self.published = self.last_seq
            self._wake()

    def _make_quiet_events(self) -> list[Event]:
        """Make the events of `_quiet`, and number them."""
        events: list[Event] = []
        quiet, self._quiet = self._quiet, []
        for make in quiet:
            if event := make(self.last_seq + 1):
                self.last_seq = event.seq
                events.append(event)
        return events

    def _cache(self, events: Sequence[Event]) -> None:
        self._cached += [*self._numbered, *events]
        self._numbered = []

    def trim(self, before: int) -> None:
        """Drop the events with a number below `before` from memory."""
        if before > self.start:
            del self._cached[: self._index(before - 1)]
            self.start = before

    def drop_cached(self) -> None:
        """Drop all published events from memory; they are read from the store."""
        self._cached.clear()
        self.start = self.published + 1

    def since(self, after: int, limit: int) -> list[Event]:
        """Return up to `limit` cached events with a number above `after`."""
        index = self._index(after)
        return self._cached[index : index + limit]

    async def wait_for_event(self, timeout_s: float) -> None:
        """Wait until an event is published, or for `timeout_s` seconds."""
        if self._next_event is None:
            self._next_event = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next_event], timeout=timeout_s)

    def _index(self, after: int) -> int:
        return bisect_right(self._cached, after, key=lambda event: event.seq)

    def _wake(self) -> None:
        if self._next_event is not None:
            self._next_event.set_result(None)
            self._next_event = None
