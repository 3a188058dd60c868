"""Search in any store: sessions by title, metadata and time; runs of many sessions, newest first."""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.errors import (
    CorruptRecordError,
    InvalidInputError,
    KeyMissingError,
    SessionNotFoundError,
    WrongKeyError,
    shown,
)
from turnwise.memory.conversation.runs import UNSETTLED, RunRecord, RunState
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.views.event_filter import has_labels
from turnwise.memory.stores.base import Page, SessionOrder, SessionStore, cursor_of
from turnwise.memory.stores.reading import pages_by_cursor, read_runs
from turnwise.memory.values.frozen_json import FrozenDict

SESSIONS_PAGE = 500
"""How many sessions are read at once."""

RUNS_PAGE = 100
"""How many runs of a session are read at once."""


@dataclass(frozen=True, kw_only=True)
class SessionFilter:
    """Which sessions are searched for, besides what stores filter by. Fields that are None match all."""

    title: str | None = None
    """Part of the title, in upper or lower case, or the whole id."""
    metadata: Mapping[str, Any] | None = None
    """Frozen JSON: the session's metadata has all of these names, with equal values."""
    since: float | None = None
    """The time by which sessions are ordered is not before it, and is before `until`; in seconds since the epoch."""
    until: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it matches all sessions."""
        return self == SessionFilter()

    def matches(self, session: SessionRecord) -> bool:
        """Return whether the title, or the id, and the metadata match."""
        text = self.title
        if text is not None and text != session.session_id and text.casefold() not in (session.title or "").casefold():
            return False
        metadata = self.metadata or {}
        return all(name in session.metadata and session.metadata[name] == value for name, value in metadata.items())


async def find_sessions(
    store: SessionStore,
    session_filter: SessionFilter,
    *,
    order_by: SessionOrder = "created_at",
    cursor: str | None = None,
    limit: int = 100,
    **query: Any,
) -> Page[SessionRecord]:
    """Return a page of the sessions that match, newest first. Reads all sessions of the query down to `since`.

    Args:
        query: what the store filters by; see `SessionStore.query`.
    """
    if cursor is None and session_filter.until is not None:
        cursor = cursor_of(session_filter.until, 0)
    sessions: list[SessionRecord] = []
    unreadable: list[SessionKey] = []
    after: str | None = None
    while True:
        page = await store.query(order_by=order_by, cursor=cursor, limit=SESSIONS_PAGE, **query)
        for index, session in enumerate(page):
            if session_filter.since is not None and getattr(session, order_by) < session_filter.since:
                return Page(tuple(sessions), None, tuple(unreadable))
            if not session_filter.matches(session):
                continue
            if len(sessions) == limit:
                return Page(tuple(sessions), after, tuple(unreadable))
            sessions.append(session)
            if len(sessions) == limit:
                after = await _cursor_after(store, index, page, order_by=order_by, cursor=cursor, **query)
        unreadable += page.unreadable
        cursor = page.cursor
        if cursor is None:
            return Page(tuple(sessions), None, tuple(unreadable))


async def _cursor_after(store: SessionStore, index: int, page: Page[SessionRecord], **query: Any) -> str | None:
    """Return the cursor behind item `index` of a page. Only the store makes cursors, so the page is read again."""
    for limit in range(index + 1, index + 2 + len(page.unreadable)):
        shorter_page = await store.query(limit=limit, **query)
        if len(shorter_page) > index:
            return shorter_page.cursor
    return page.cursor  # sessions were deleted meanwhile


async def find_runs(
    store: SessionStore,
    *,
    states: Collection[RunState] | None = None,
    parent: str | None = None,
    labels: Mapping[str, str] = FrozenDict(),
    engine: str | None = None,
    since: float | None = None,
    among: int | None = None,
    cursor: str | None = None,
    limit: int = 100,
    **query: Any,
) -> Page[RunRecord]:
    """Return a page of the runs of all sessions of a query, newest first by `created_at`, then by id.

    A run is not newer than its session's last commit, so sessions are read newest first, and only as far as needed: a
    page reads the sessions that have changed since its oldest run was created. Sessions with a run that is queued or
    running are found by an index, so if only such runs are asked for, no others are read.

    Args:
        states: the states of the runs; any if None.
        parent: the run on whose behalf they were started; any if None.
        labels: labels that the runs have.
        engine: the name of their engine; any if None.
        since: only runs that were created at this time or later, in seconds since the epoch.
        among: how many sessions are read at most, those that changed last; all if None.
        query: which sessions; see `SessionStore.query`.
    """
    behind = _parse_cursor(cursor)
    heap: list[tuple[float, str, RunRecord]] = []
    runs: list[RunRecord] = []
    unreadable: list[SessionKey] = []

    def matches(run: RunRecord) -> bool:
        is_of_page = behind is None or (-run.created_at, run.run_id) > behind
        is_of_page = is_of_page and engine in (None, run.engine)
        is_of_page = is_of_page and parent in (None, run.parent) and has_labels(run.labels, labels)
        return is_of_page and (states is None or run.state in states) and (since is None or run.created_at >= since)

    def take(newer_than: float) -> bool:
        """Take the runs that no unread session can precede; return whether the page is full."""
        while heap and -heap[0][0] > newer_than and len(runs) <= limit:
            runs.append(heapq.heappop(heap)[2])
        return len(runs) > limit

    count = 0
    async for session in await _sessions(store, states, unreadable, **query):
        if count == among:
            break
        count += 1
        if take(session.updated_at) or (since is not None and session.updated_at < since):
            break
        try:
            for run in await _runs_of(store, session, matches, since, limit):
                heapq.heappush(heap, (-run.created_at, run.run_id, run))
        except SessionNotFoundError:
            continue  # deleted meanwhile
        except (CorruptRecordError, KeyMissingError, WrongKeyError):
            unreadable.append(session.key)
    if not take(-math.inf):
        return Page(tuple(runs), None, tuple(unreadable))
    last = runs[limit - 1]
    return Page(tuple(runs[:limit]), f"{last.created_at!r}:{last.run_id}", tuple(unreadable))


async def _sessions(
    store: SessionStore, states: Collection[RunState] | None, unreadable: list[SessionKey], **query: Any
) -> AsyncIterator[SessionRecord]:
    """Return the sessions that may have runs in these states, those that changed last first."""
    if states is None or not set(states) <= set(UNSETTLED) or query.get("tenant") is not None:
        return _all_sessions(store, unreadable, **query)
    sessions: list[SessionRecord] = []
    async for keys in pages_by_cursor(store.unsettled):
        for key in keys:
            if query.get("user_id") not in (None, key.user_id):
                continue
            try:
                session = await store.get(key)
            except SessionNotFoundError:
                continue  # deleted meanwhile
            except (CorruptRecordError, KeyMissingError, WrongKeyError):
                unreadable.append(key)
                continue
            if query.get("agent") in (None, session.agent):
                sessions.append(session)
    sessions.sort(key=lambda session: session.updated_at, reverse=True)
    return _each(sessions)


async def _each(sessions: Sequence[SessionRecord]) -> AsyncIterator[SessionRecord]:
    for session in sessions:
        yield session


async def _all_sessions(
    store: SessionStore, unreadable: list[SessionKey], **query: Any
) -> AsyncIterator[SessionRecord]:
    async for page in pages_by_cursor(partial(store.query, order_by="updated_at", limit=SESSIONS_PAGE, **query)):
        unreadable += page.unreadable
        for session in page:
            yield session


async def _runs_of(
    store: SessionStore, session: SessionRecord, matches: Callable[[RunRecord], bool], since: float | None, limit: int
) -> list[RunRecord]:
    """Return the newest `limit` + 1 or more runs of a session that match, or all if there are fewer."""
    matching: list[RunRecord] = []
    end = session.next_index
    while end > 0 and len(matching) <= limit:
        start = max(0, end - RUNS_PAGE)
        runs = await read_runs(partial(store.runs, session.key), start, end)
        matching += filter(matches, runs)
        if since is not None and runs and runs[0].created_at < since:
            break
        end = start
    return matching


def _parse_cursor(cursor: str | None) -> tuple[float, str] | None:
    """Return the place of the last run of the page before, in the order of pages."""
    if cursor is None:
        return None
    time_s, _, run_id = cursor.partition(":")
    try:
        created_at = float(time_s)
    except ValueError:
        created_at = math.nan
    if not math.isfinite(created_at) or not run_id:
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the page before, unchanged")
    return -created_at, run_id
