"""Long reads of stores, in steps, such as page by page: a store returns no more than about `PAGE_BYTES` at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeVar, runtime_checkable

from turnwise.errors import InvalidInputError, NameRefusedError, shown
from turnwise.memory.conversation.branches import Branches, shown_ranges
from turnwise.memory.conversation.events import AnyEvent, EventRow
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Spans, cut
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.stores.base import Page, SessionStore
from turnwise.memory.values.ids import check_names
from turnwise.memory.values.weights import MAX_PAGE, may_be_cut

Item = TypeVar("Item")

Turn = TypeVar("Turn", bound=Any)
"""A turn or its record."""


async def pages(
    read: Callable[..., Awaitable[Sequence[Item]]], after: int, number_of: Callable[[Item], int]
) -> AsyncIterator[Sequence[Item]]:
    """Yield pages of numbered records until there are none left. Other tasks can run between two pages.

    Args:
        read: returns the records above a number, which it takes as `after`, by number; some of them if there are many.
        after: the number above which to begin.
        number_of: returns a record's number: see `INDEX`, `TURN_INDEX` and `SEQ`.
    """
    while page := await read(after=after):
        yield page
        after = number_of(page[-1])
        await asyncio.sleep(0)


@runtime_checkable
class FindsRemovals(Protocol):
    """Optional protocol of a session store: it finds the turns that have lost something without reading all others."""

    async def turns_with_removals(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        """Return, as `SessionStore.turns` does, those turns that were forgotten or of which blocks were removed."""


@runtime_checkable
class KeepsEventRows(Protocol):
    """Optional protocol of a session store: it returns events as rows, which who passes them on need not decode."""

    async def event_rows(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """Return the rows of the events that `SessionStore.events` returns. Their bodies are not checked."""


INDEX, TURN_INDEX, SEQ = attrgetter("index"), attrgetter("turn_index"), attrgetter("seq")
"""The numbers of turns, of runs and of events."""


async def pages_by_cursor(read: Callable[..., Awaitable[Page[Item]]]) -> AsyncIterator[Page[Item]]:
    """Yield all pages, the first one without a cursor.

    Args:
        read: returns the page of a `cursor`.
    """
    cursor: str | None = None
    while True:
        page = await read(cursor=cursor)
        yield page
        if (cursor := page.cursor) is None:
            return


async def deliveries_of(store: SessionStore, session: SessionKey) -> AsyncIterator[Delivery]:
    """Yield all deliveries of a session, by id, page by page."""
    after = ""
    while page := await store.deliveries(**session._asdict(), after=after):
        for delivery in page:
            yield delivery
        after = page[-1].delivery_id


async def page_of_deliveries(
    read: Callable[..., Awaitable[Sequence[Delivery]]], cursor: str | None, limit: int
) -> Page[Delivery]:
    """Return a page of up to `limit` deliveries, by id. A page of large ones is shorter.

    Args:
        read: `SessionStore.deliveries`, with its filters.
        cursor: the cursor of the page before.

    Raises:
        InvalidInputError: it is not a cursor.
    """
    try:
        check_names("cursor", cursor)
    except NameRefusedError:
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the page before, unchanged") from None
    page = tuple(await read(after=cursor or "", limit=limit))
    last_id = page[-1].delivery_id if page else None
    has_more = last_id is not None and await read(after=last_id, limit=1)
    return Page(page, last_id if has_more else None)


async def failed_calls(store: SessionStore, webhook_id: str, cursor: str | None, limit: int) -> Page[Delivery]:
    """Return a page of up to `limit` calls of a webhook that were given up, by id.

    Raises:
        InvalidInputError: `cursor` is none of an earlier page.
    """
    failed: list[Delivery] = []

    async def read(after: str, limit: int) -> list[Delivery]:
        return await store.deliveries(webhook_id=webhook_id, after=after, limit=limit)

    while True:
        page = await page_of_deliveries(read, cursor, limit)
        failed += [call for call in page if call.due_at is None]
        cursor = page.cursor
        if cursor is None or len(failed) >= limit:
            more = failed[limit - 1].delivery_id if len(failed) > limit else cursor
            return Page(tuple(failed[:limit]), more)
        await asyncio.sleep(0)


async def steps_of_blocks(store: SessionStore, spans: Spans) -> AsyncIterator[tuple[Spans, list[str]]]:
    """Yield encoded blocks, in order, with their spans. Between two steps, other tasks can run."""
    remaining = cut(spans, 0)[1]
    while remaining:
        texts = await store.blocks(remaining)
        part, remaining = cut(remaining, len(texts))
        yield part, texts
        if remaining:
            await asyncio.sleep(0)


def merged_events(copied: Sequence[AnyEvent], stored: Sequence[AnyEvent], limit: int) -> list[AnyEvent]:
    """Return two pages of the same session's events as one, by number: the page of its history, and that of its store.

    If a page may be cut, events after its end are left out.
    """
    upto = min((page[-1].seq for page in (copied, stored) if may_be_cut(page, limit)), default=math.inf)
    merged = {event.seq: event for event in (*copied, *stored) if event.seq <= upto}
    return [merged[seq] for seq in sorted(merged)][:limit]


async def read_blocks(store: SessionStore, spans: Spans) -> list[str]:
    """Return the encoded blocks of `spans`, in order; see `SessionStore.blocks`."""
    return [text async for _, texts in steps_of_blocks(store, spans) for text in texts]


async def read_turns(read: Callable[..., Awaitable[Sequence[Turn]]], start: int, stop: int) -> list[Turn]:
    """Return all turns with an index from `start` and below `stop`, by index, page by page.

    Args:
        read: returns a page of turns; takes `after` and `limit`.
    """
    return await _in_range(read, start, stop, INDEX)


async def read_shown_turns(
    read: Callable[..., Awaitable[Sequence[TurnRecord]]], branches: Branches, after: int, limit: int
) -> list[TurnRecord]:
    """Return up to `limit` shown turns with an index above `after`, by index; fewer, if they are large.

    Args:
        read: returns a page of turns, shown or not; takes `after` and `limit`.
    """
    turns: list[TurnRecord] = []
    for part in shown_ranges(branches):
        start = max(after + 1, part.start)
        while start < part.stop and len(turns) < limit:
            page_limit = limit - len(turns)
            page = await read(after=start - 1, limit=page_limit)
            own = [turn for turn in page if turn.index < part.stop]
            turns += own
            if len(page) < page_limit and len(own) == len(page):
                return turns  # the page is cut, since it is large, or there are no more turns
            start = page[-1].index + 1
    return turns


FIRST_WINDOW, MOST_WINDOW = 8, 512
"""How many indexes are read first, and at most, at a time, to find the last shown turn that has ended."""


async def last_shown_turn(
    read: Callable[..., Awaitable[Sequence[TurnRecord]]], branches: Branches, next_index: int
) -> TurnRecord | None:
    """Return the last shown turn that has ended, which the next one continues; None if there is none."""
    window = FIRST_WINDOW
    for part in reversed(shown_ranges(branches)):
        stop = min(part.stop, next_index)
        while stop > part.start:
            start = max(part.start, stop - window)
            turns: list[TurnRecord] = await _in_range(read, start, stop, INDEX)
            if ended := [turn for turn in turns if not turn.is_open]:
                return ended[-1]
            stop, window = start, min(2 * window, MOST_WINDOW)
    return None


async def read_runs(read: Callable[..., Awaitable[Sequence[RunRecord]]], start: int, stop: int) -> list[RunRecord]:
    """Return all runs with a turn index from `start` and below `stop`; see `read_turns`."""
    return await _in_range(read, start, stop, TURN_INDEX)


async def _in_range(
    read: Callable[..., Awaitable[Sequence[Item]]], start: int, stop: int, number_of: Callable[[Item], int]
) -> list[Item]:
    items: list[Item] = []
    while start < stop and (page := await read(after=start - 1, limit=min(stop - start, MAX_PAGE))):
        items += [item for item in page if number_of(item) < stop]
        start = number_of(page[-1]) + 1
    return items
