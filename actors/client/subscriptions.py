"""Subscriptions: a caller's function is called with the stored events of many sessions as they come."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

from turnwise.actors.client import steps
from turnwise.actors.client.event_push import AsyncDelivery
from turnwise.actors.client.shared.arguments import EventSink, IfRaises
from turnwise.actors.client.shared.event_cursor import EventCursor
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.errors import (
    CorruptRecordError,
    EncryptionError,
    SessionNotFoundError,
    StoreClosedError,
)
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.views.event_filter import EventFilter

POLL_S = 0.25
"""How long a subscription waits before it asks the store for changes again, in seconds; longer if asking takes long."""

LOAD = 10
"""The pause is at least this multiple of the last query's duration."""

OVERLAP_S = 60.0
"""A commit may become visible up to this many seconds after its timestamp."""

SESSIONS_PAGE, EVENTS_PAGE = 200, 500
"""How many sessions, and how many events of a session, are read at once."""

MAX_SEEN = 10_000
"""How many sessions a cursor names before those that have not changed for a while are left out."""

_UNREAD = -1
"""Stands for the revision of a session that this feed has not read yet."""

_log = logging.getLogger(__name__)


class AsyncEventFeed:
    """The stored events of the sessions that match, from a cursor on.

    Call `next_page`, then `note` after each event is handed out, then `end_page`; and so on. An event that was handed
    out but not noted before a crash is handed out again.

    Sessions that have changed are found by the time and the revision of their last commit. So the feed needs no process
    of a session, and works beside any number of Rays. A cursor has, by session, the number of the last event that was
    handed out; of other sessions, the events after `start_time` are new.

    Args:
        session: only this session, by its stored id; otherwise all that `query` matches.
        start_time: the time from which events are new, in seconds since the epoch, without a cursor.
    """

    def __init__(
        self,
        client: SessionsClient,
        query: Mapping[str, Any],
        *,
        session: SessionKey | None,
        only: EventFilter | None,
        start_time: float,
        cursor: str | None,
    ) -> None:
        self._client = client
        self._query = query
        self._session = session
        self._only = only
        begin = EventCursor(start_time, start_time, {}) if cursor is None else EventCursor.parse(cursor)
        self._start_time, self._mark, self._last_seqs = begin.start_time, begin.mark, dict(begin.last_seqs)
        self._next_mark = self._mark
        self._revisions: dict[str, tuple[int, float]] = dict.fromkeys(begin.last_seqs, (_UNREAD, begin.mark))
        """The revision up to which all events were handed out, and its time, by log."""
        self._changed: deque[SessionRecord] = deque()
        """The sessions that may have new events, the first one being read."""
        self._page: list[AnyEvent] = []
        self._page_at = -math.inf
        """The time of the newest event of the session that is being read, which may be later than its last commit was
        when it was found."""

    @property
    def cursor(self) -> str:
        """Where a later subscription goes on: after the events that were handed out.

        It names the sessions that have changed in the last two minutes or so. Of the others, all earlier events were
        handed out.
        """
        quiet = self._quiet_logs()
        last_seqs = {log: seq for log, seq in self._last_seqs.copy().items() if log not in quiet}
        return str(EventCursor(self._known_from(), self._mark, last_seqs))

    @property
    def log(self) -> str:
        """The log of the session whose events the page has."""
        return self._changed[0].log

    async def next_page(self) -> Sequence[AnyEvent] | None:
        """Return the next events, all of one session, by number; None if there are none now."""
        if not self._changed:
            await self._find_changed()
        while self._changed:
            session = self._changed[0]
            try:
                if session.log not in self._last_seqs:
                    self._last_seqs[session.log] = await self._first_new(session)
                self._page = list(await self._read(session, self._last_seqs[session.log], EVENTS_PAGE))
            except SessionNotFoundError:
                self._finish(session)  # deleted meanwhile
            except (CorruptRecordError, EncryptionError) as error:
                _log.warning("the events of session %r cannot be read: %s", session.key.full_name, error)
                self._finish(session)
            else:
                return self._page if self._only is None else self._only.of(self._page)
        return None

    def note(self, event: AnyEvent) -> None:
        """Note that an event of the page was handed out."""
        self._last_seqs[self._changed[0].log] = event.seq

    def end_page(self) -> None:
        """Note that all events of the page were handed out."""
        session = self._changed[0]
        if self._page:
            self._last_seqs[session.log] = self._page[-1].seq
            self._page_at = max(self._page_at, self._page[-1].at)
        if len(self._page) < EVENTS_PAGE:
            self._finish(session)

    def _finish(self, session: SessionRecord) -> None:
        self._changed.popleft()
        self._revisions[session.log] = session.revision, max(session.updated_at, self._page_at)
        self._page_at = -math.inf
        if self._changed:
            return
        self._mark = self._next_mark
        if len(self._last_seqs) > MAX_SEEN:
            quiet = self._quiet_logs()
            self._start_time = self._known_from()
            self._last_seqs = {log: seq for log, seq in self._last_seqs.items() if log not in quiet}
            self._revisions = {log: revision for log, revision in self._revisions.items() if log not in quiet}

    def _quiet_logs(self) -> set[str]:
        """Return the sessions, by log, of which nothing was handed out that is later than `_known_from`."""
        return {log for log, (_, at) in self._revisions.copy().items() if at < self._mark - 2 * OVERLAP_S}

    def _known_from(self) -> float:
        """Return the time from which events of sessions are new that a cursor does not name."""
        return max(self._start_time, self._mark - OVERLAP_S)

    async def _find_changed(self) -> None:
        cursor = None
        while True:
            page = await self._sessions(cursor)
            for session in page:
                if session.updated_at < self._mark - OVERLAP_S:
                    return
                self._next_mark = max(self._next_mark, session.updated_at)
                if self._revisions.get(session.log, (None,))[0] != session.revision:
                    self._revisions.pop(session.log, None)
                    self._changed.appendleft(session)  # so that those that changed first come first
            cursor = getattr(page, "cursor", None)
            if cursor is None:
                return

    async def _sessions(self, cursor: str | None) -> Any:
        portal, store = self._client.portal, self._client.session_store
        if self._session is None:
            query = {**self._query, "order_by": "updated_at", "cursor": cursor, "limit": SESSIONS_PAGE}
            return await steps.run(portal, store.query, **query)
        try:
            return [await steps.run(portal, store.get, self._session)]
        except SessionNotFoundError:
            return []

    async def _first_new(self, session: SessionRecord) -> int:
        """Return the number after which the events of a session are later than `start_time`, by bisection."""
        if session.created_at > self._start_time:
            return 0
        low, high = 0, session.seq
        while low < high:
            middle = (low + high) // 2
            page = await self._read(session, middle, 1)
            if not page or page[0].at > self._start_time:
                high = middle
            else:
                low = page[0].seq
        return low

    async def _read(self, session: SessionRecord, after: int, limit: int) -> Sequence[AnyEvent]:
        from turnwise.actors.hosting.stored_source import StoredSource

        stored = StoredSource(session.key, *self._client.stores)
        events = await steps.run(self._client.portal, stored.stored_events, after, limit)
        return cast("Sequence[AnyEvent]", events)


class AsyncSubscription:
    """Calls a function, or a coroutine function, with events, in a task of its own, until it is closed."""

    def __init__(self, feed: AsyncEventFeed, on_event: EventSink, if_raises: IfRaises = "repeat") -> None:
        self._feed = feed
        self._delivery = AsyncDelivery(on_event, "on_event of a subscription", repeats=if_raises == "repeat")
        self._is_failing = False
        self._work = steps.Background("turnwise-subscription")
        self._work.start(self._deliver)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def cursor(self) -> str:
        """Names the events that `on_event` has had: `subscribe(cursor=...)` goes on after them, in any process.

        Save it, for example, after each event. The event that `on_event` is being called with is not among them, nor is
        one at which it has raised, unless `if_raises` is "skip". So after a crash an event may be delivered again, and
        none is left out.
        """
        return self._feed.cursor

    async def close(self) -> None:
        """Stop after the call that is running. Closing twice is fine."""
        self._work.stop()
        await self._work.ended()

    async def _deliver(self) -> None:
        while not self._work.is_stopped():
            began = time.monotonic()
            try:
                page = await self._feed.next_page()
            except StoreClosedError:
                return  # its manager was closed
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                await self._work.pause(self._pause_s(began, error))
                continue
            if page is None:
                await self._work.pause(self._pause_s(began))
                continue
            for event in page:
                if not await self._delivery.hand_out(event, self._work):
                    return
                self._feed.note(event)
            self._feed.end_page()

    def _pause_s(self, began: float, error: Exception | None = None) -> float:
        """Return how long to wait before the store is asked again; log the first of consecutive errors."""
        if error and not self._is_failing:
            _log.warning("a subscription cannot read its store and tries again: %s", error)
        self._is_failing = error is not None
        return max(POLL_S, LOAD * (time.monotonic() - began))
