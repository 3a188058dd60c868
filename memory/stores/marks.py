"""Finds marks in any store: those of the messages of a user's sessions."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from turnwise.errors import InvalidInputError, SessionNotFoundError, shown
from turnwise.memory.conversation.marks import MarkedMessage, marks_of, numbers_of
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import Page, SessionStore, check_limit, cursor_of
from turnwise.memory.stores.reading import INDEX, pages, pages_by_cursor

_SESSIONS_PAGE = 500
"""How many sessions are read at once."""

_LAST_ORDER = 2**62
"""An order of creation after that of all sessions."""


_CURSOR = re.compile(r"([0-9]+(?:[.][0-9]+)?(?:e[+-][0-9]+)?):([0-9]{1,18}):([0-9]{1,9}):(.{1,256})", re.DOTALL)

_TIME_CHARS = 30
"""The longest time in a cursor, in characters."""


class _Place(NamedTuple):
    """Where a page of marks begins."""

    created_at: float
    session_id: str
    turn_index: int
    skipped: int
    """How many marks of the turn precede it."""

    @property
    def cursor(self) -> str:
        return f"{self.created_at!r}:{self.turn_index}:{self.skipped}:{self.session_id}"


async def find_marks(
    store: SessionStore,
    user_id: str,
    *,
    name: str | None = None,
    session_id: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[MarkedMessage]:
    """Return a page of marks: of the newest sessions first, and within one in the order of its messages.

    Reads the rows of the user's sessions, and the turns of those that have marks.

    Raises:
        InvalidInputError: `cursor` is none of an earlier page.
        SessionNotFoundError: the user has no session `session_id`.
    """
    check_limit(limit)
    marks: list[MarkedMessage] = []
    async for place, mark in _marks(store, user_id, name, session_id, _parse_cursor(cursor)):
        if len(marks) == limit:
            return Page(tuple(marks), place.cursor)
        marks.append(mark)
    return Page(tuple(marks), None)


async def count_marks_of(store: SessionStore, user_id: str, session_id: str | None = None) -> dict[str, int]:
    """Return how many marks of each name the messages of a user's sessions have, or those of one session."""
    counts: dict[str, int] = {}
    async for _, marked in _marks(store, user_id, None, session_id, None):
        counts[marked.mark.name] = counts.get(marked.mark.name, 0) + 1
    return counts


async def _marks(
    store: SessionStore, user_id: str, name: str | None, session_id: str | None, start: _Place | None
) -> AsyncIterator[tuple[_Place, MarkedMessage]]:
    """Yield marks, each with its place, from a place on."""
    async for session in _sessions(store, user_id, session_id, start):
        is_first = start is not None and session.session_id == start.session_id
        first, skipped = (start.turn_index, start.skipped) if start and is_first else (0, 0)
        try:
            async for turns in pages(partial(store.turns, session.key), first - 1, INDEX):
                for turn in turns:
                    for number, mark in enumerate(_marks_of_turn(session, turn, name)):
                        if turn.index > first or number >= skipped:
                            yield _Place(session.created_at, session.session_id, turn.index, number), mark
        except SessionNotFoundError:
            continue  # deleted meanwhile


def _marks_of_turn(session: SessionRecord, turn: TurnRecord, name: str | None) -> list[MarkedMessage]:
    return [
        MarkedMessage(**session.key._asdict(), turn_index=turn.index, number=number, mark=mark)
        for number in numbers_of(turn)
        for mark in marks_of(turn, number).values()
        if name in (None, mark.name)
    ]


async def _sessions(
    store: SessionStore, user_id: str, session_id: str | None, start: _Place | None
) -> AsyncIterator[SessionRecord]:
    """Yield the sessions that have marks, the newest first, from that of a place on."""
    if session_id is not None:
        yield await store.get(SessionKey(session_id, user_id))
        return
    is_behind = start is None
    query = partial(store.query, user_id=user_id, limit=_SESSIONS_PAGE)
    first = None if start is None else cursor_of(start.created_at, _LAST_ORDER)

    async def read(cursor: str | None) -> Page[SessionRecord]:
        return await query(cursor=first if cursor is None else cursor)

    async for page in pages_by_cursor(read):
        for session in page:
            # Of sessions created at the same time, those before the place are left out.
            is_behind = is_behind or start is None or session.created_at < start.created_at
            is_behind = is_behind or (start is not None and session.session_id == start.session_id)
            if is_behind and session.marks:
                yield session


def _parse_cursor(cursor: str | None) -> _Place | None:
    if cursor is None:
        return None
    match = _CURSOR.fullmatch(cursor)
    if match is None or len(match[1]) > _TIME_CHARS:
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the page before, unchanged")
    return _Place(float(match[1]), match[4], int(match[2]), int(match[3]))
