"""Finds messages in a store, with snippets of their texts: newest first, or the best match first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.errors import CorruptRecordError, InvalidInputError, NotFoundError, shown
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import join, places
from turnwise.memory.stores.base import Page, SessionStore, check_limit
from turnwise.memory.stores.reading import steps_of_blocks
from turnwise.memory.stores.search.query import snippet_of
from turnwise.memory.stores.search.records import SearchedRole, TextFilter, TextHit, searchable, text_of_blocks

SearchOrder = Literal["newest", "rank"]
"""`newest`: in the order in which they were stored, the newest first. `rank`: the best match first."""

MAX_RANKED = 200
"""How many hits are ranked: the newest of them. Pages by rank end there."""


@dataclass(frozen=True, kw_only=True)
class SearchHit:
    """A message that a search has found."""

    session_id: str
    user_id: str
    """To whom the session belongs: another user than the one who searches, if it is shared."""
    title: str | None
    """The session's title."""
    agent: str | None
    """The session's agent."""
    turn_index: int
    number: int
    """Its place among the messages of its turn; see `ChatMessage.number`."""
    role: SearchedRole
    at: float
    """Seconds since the epoch; see `ChatMessage.at`."""
    snippet: str
    """A part of its text around the first match, with … where something is left out."""
    ranges: tuple[tuple[int, int], ...]
    """Where in `snippet` the matches are: starts and stops, in characters, in order."""

    @property
    def id(self) -> str:
        """The id of the message, as `Session.messages` has it: `session_id#turn_index:number`."""
        return f"{self.session_id}#{self.turn_index}:{self.number}"

    @property
    def session_key(self) -> SessionKey:
        """Which session it is of."""
        return SessionKey(self.session_id, self.user_id)


async def find_messages(
    store: SessionStore,
    texts: TextFilter,
    *,
    order: SearchOrder = "newest",
    cursor: str | None = None,
    limit: int = 20,
) -> Page[SearchHit]:
    """Return a page of the messages that match. It may be shorter than `limit`, and still have a cursor.

    Whoever was removed from a session before this is called finds nothing there; and neither who is removed while the
    texts are read, since the membership is looked up again after that.

    Raises:
        SearchUnavailableError: the store cannot search.
        InvalidInputError: `cursor` is none of a page in this order.
    """
    check_limit(limit)
    if order == "rank":
        return await _ranked(store, texts, cursor, limit)
    hits = await searchable(store).search_texts(texts, cursor=cursor, limit=limit + 1)
    page = hits[:limit]
    messages = await _still_shared(store, texts, await _read(store, page))
    items = tuple(_shown(hit, text, texts) for hit, text in messages)
    return Page(items, page[-1].cursor if len(hits) > limit else None)


async def _still_shared(
    store: SessionStore, texts: TextFilter, messages: Sequence[tuple[TextHit, str]]
) -> list[tuple[TextHit, str]]:
    """Return the messages without those of sessions of others of which the user is no member any more."""
    shared: dict[SessionKey, bool] = {}
    for hit, _ in messages:
        if hit.session.user_id != texts.user_id and hit.session not in shared:
            try:
                shared[hit.session] = (await store.get(hit.session)).role_of(texts.user_id) is not None
            except NotFoundError:
                shared[hit.session] = False
    return [message for message in messages if shared.get(message[0].session, True)]


async def _ranked(store: SessionStore, texts: TextFilter, cursor: str | None, limit: int) -> Page[SearchHit]:
    """Return a page of the newest `MAX_RANKED` hits by rank; of equal ones, the newest comes first."""
    if cursor is not None and not re.fullmatch("rank[0-9]{1,9}", cursor):
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the page before, with the same order")
    start = int(cursor.removeprefix("rank")) if cursor else 0
    messages = await _read(store, await searchable(store).search_texts(texts, limit=MAX_RANKED))
    messages.sort(key=lambda message: -texts.query.score(message[1]))
    stop = start + limit
    page = await _still_shared(store, texts, messages[start:stop])
    items = tuple(_shown(hit, text, texts) for hit, text in page)
    return Page(items, f"rank{stop}" if len(messages) > stop else None)


async def _read(store: SessionStore, hits: Sequence[TextHit]) -> list[tuple[TextHit, str]]:
    """Return the hits with their texts, by one read of the store unless they are large.

    A hit in a version of a turn that is not shown is left out, and one whose blocks were deleted in the meantime.
    """
    hits = [hit for hit in hits if hit.is_shown]
    try:
        return await _texts_of(store, hits)
    except CorruptRecordError:
        messages: list[tuple[TextHit, str]] = []
        for hit in hits:
            try:
                messages += await _texts_of(store, [hit])
            except CorruptRecordError:
                continue
        return messages


async def _texts_of(store: SessionStore, hits: Sequence[TextHit]) -> list[tuple[TextHit, str]]:
    bodies: list[str] = []
    async for _, texts in steps_of_blocks(store, join(*(hit.spans for hit in hits))):
        bodies += texts
    remaining = iter(bodies)
    messages: list[tuple[TextHit, str]] = []
    for hit in hits:
        text = _text_of(next(remaining) for _ in places(hit.spans))
        if text is not None:
            messages.append((hit, text))
    return messages


def _text_of(bodies: Iterable[str]) -> str | None:
    """Return the text of a message from its blocks; None if they were cleared meanwhile, or are damaged."""
    try:
        return text_of_blocks([*bodies]) or None
    except (ValueError, KeyError, TypeError):
        return None


def _shown(hit: TextHit, text: str, texts: TextFilter) -> SearchHit:
    snippet = snippet_of(text, texts.query)
    return SearchHit(
        session_id=hit.session.session_id,
        user_id=hit.session.user_id,
        title=hit.title,
        agent=hit.agent,
        turn_index=hit.turn_index,
        number=hit.number,
        role=hit.role,
        at=hit.at,
        snippet=snippet.text,
        ranges=snippet.ranges,
    )
