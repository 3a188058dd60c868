"""The native API: the stored events of many sessions, as one stream or page by page."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request

from turnwise.actors.client.subscriptions import LOAD, POLL_S, AsyncEventFeed
from turnwise.http.native.models import EventsBehind, FollowEvents
from turnwise.http.native.sessions import NOT_FOUND, Streams, Wait, users_of
from turnwise.http.problems import documented
from turnwise.http.service import Caller, RequestCaller
from turnwise.http.sse import STREAMS, EventStream, encode, wait_for
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.growing_pauses import GrowingPauses

router = APIRouter(
    prefix="/v1",
    tags=["events"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 422, 429, 503),
)

MAX_READS = 20
"""How many times the store is read for a page: few of the events that are read may match."""

LONGEST_PAUSE_S = 1.0
"""How long a stream waits at most before it looks for events again."""

CURSOR_S = 10.0
"""How often a stream says a new cursor, in seconds."""


@router.post(
    "/events",
    summary="Events of all sessions of the user, or of all users: a page, or live as server-sent events",
    response_model=EventsBehind,
    responses=NOT_FOUND | STREAMS,
)
async def follow_events(
    body: FollowEvents, request: Request, caller: RequestCaller, *, streams: Streams, wait_s: Wait = 0.0
) -> Any:
    """Stored events, each once, those of a session by number; deltas of answers are not stored.

    A stream begins with an event `cursor`, and has further ones: its data is the cursor behind all events before it.
    The `id` of another event is the log of its session, a colon, and its number there.
    """
    feed = await _feed(caller, body)
    if streams:
        return EventStream(caller, _stream(feed))
    wait_s = min(wait_s, caller.service.settings.max_wait_s)
    work = _page(feed, body.limit, wait_s)
    page = await wait_for(request, caller, work) if wait_s else await work
    return page or EventsBehind(items=[], ids=[], cursor=feed.cursor)


async def _feed(caller: Caller, body: FollowEvents) -> AsyncEventFeed:
    names = {"user_id": users_of(caller, body.all), "session_id": body.session_id, "agent": body.agent}
    filters = {"kinds": body.kinds, "labels": body.labels, "cursor": body.cursor}
    return await caller.manager._event_feed(**names, **filters)  # type: ignore[arg-type]  # noqa: SLF001


async def _page(feed: AsyncEventFeed, limit: int, wait_s: float) -> EventsBehind:
    events, ids = list[AnyEvent](), list[str]()
    reads, end_s = 0, time.monotonic() + wait_s
    while len(events) < limit and reads < MAX_READS:
        began = time.monotonic()
        page = await feed.next_page()
        if page is None:
            if events or time.monotonic() >= end_s:
                break
            await asyncio.sleep(_pause_s(began, POLL_S))
            continue
        reads += 1
        for event in page:
            events.append(event)
            ids.append(f"{feed.log}:{event.seq}")
            feed.note(event)
        feed.end_page()
    return EventsBehind(items=events, ids=ids, cursor=feed.cursor)


async def _stream(feed: AsyncEventFeed) -> AsyncGenerator[bytes, None]:
    cursor = feed.cursor
    yield _cursor_chunk(cursor)
    next_cursor_s = time.monotonic() + CURSOR_S
    pauses = GrowingPauses(POLL_S, LONGEST_PAUSE_S)
    while True:
        began = time.monotonic()
        page = await feed.next_page()
        if page is None:
            await asyncio.sleep(_pause_s(began, pauses.next_s()))
        else:
            pauses.reset()
            if page:
                yield b"".join(_chunk(feed.log, event) for event in page)
            feed.end_page()
        if time.monotonic() >= next_cursor_s:
            next_cursor_s = time.monotonic() + CURSOR_S
            if cursor != (cursor := feed.cursor):
                yield _cursor_chunk(cursor)


def _chunk(log: str, event: AnyEvent) -> bytes:
    return encode(event.model_dump_json(exclude_none=True), event=event.kind, id=f"{log}:{event.seq}")


def _cursor_chunk(cursor: str) -> bytes:
    return encode(json.dumps(cursor), event="cursor")


def _pause_s(began: float, pause_s: float) -> float:
    """Return how long to wait: a look at the store that takes long is not repeated as often."""
    return max(pause_s, LOAD * (time.monotonic() - began))
