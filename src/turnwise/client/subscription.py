"""`AsyncRemoteSubscription`: a caller's function is called with the events of a service's sessions as they come."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from turnwise.actors.client.event_push import AGAIN_S, LONGEST_S, AsyncDelivery
from turnwise.actors.client.shared.arguments import EventSink, IfRaises
from turnwise.actors.client.shared.event_cursor import EventCursor
from turnwise.client import steps
from turnwise.client.connection import POLL_S, AsyncConnection
from turnwise.client.shared.answers import Request, Whose, path_of
from turnwise.client.shared.reading import events_of, read_event
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.growing_pauses import GrowingPauses

_log = logging.getLogger(__name__)


class AsyncRemoteSubscription:
    """Calls a function, or a coroutine function, with events, in a task of its own, until it is closed.

    A stream that is cut goes on behind the last event. A service that is away, or refuses the token, is asked again,
    after pauses that grow to a minute.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        whose: Whose,
        filters: Mapping[str, Any],
        cursor: str,
        *,
        on_event: EventSink,
        if_raises: IfRaises,
    ) -> None:
        self._connection = connection
        self._whose = whose
        self._filters = filters
        self._position: tuple[EventCursor, dict[str, int]] = EventCursor.parse(cursor), {}
        """A cursor, and the numbers of the last events that were handed out behind it, by log."""
        self._delivery = AsyncDelivery(on_event, "on_event of a subscription", repeats=if_raises == "repeat")
        self._is_failing = False
        self._listening = steps.Listening("turnwise-subscription")
        self._listening.work.start(self._deliver)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def cursor(self) -> str:
        """Names the events that `on_event` has had: `subscribe(cursor=...)` goes on after them, in any process.

        Managers of a service and of its store read each other's cursors. The event that `on_event` is being called
        with is not among these events, nor is one at which it has raised, unless `if_raises` is "skip".
        """
        cursor, last_seqs = self._position
        return str(cursor.after(last_seqs.copy()))

    async def close(self) -> None:
        """Stop after the call that is running. Closing twice is fine."""
        await self._listening.stop()

    async def _deliver(self) -> None:
        work, pauses = self._listening.work, GrowingPauses(AGAIN_S, LONGEST_S)
        while not work.is_stopped():
            try:
                if not await self._follow():
                    await self._read_page()
            except TurnwiseError as error:
                if not self._is_failing and not work.is_stopped():
                    _log.warning("a subscription gets no events and tries again: %s", error)
                self._is_failing = True
                await work.pause(pauses.next_s())
                continue
            self._is_failing = False
            pauses.reset()

    async def _follow(self) -> bool:
        """Hand out the events of a stream until it ends; return whether anything came."""
        has_begun = False
        request = Request(method="POST", path=path_of("events"), body=self._body())
        async for fields in self._connection.stream(request, self._whose, on_open=self._listening.hold):
            has_begun = True
            if self._listening.work.is_stopped():
                return True
            if fields.get(b"event") == b"cursor":
                self._position = EventCursor.parse(json.loads(fields[b"data"])), {}
            elif not await self._hand_out(fields[b"id"].decode(), read_event(fields[b"data"])):
                return True
        return has_begun

    async def _read_page(self) -> None:
        """Hand out a page of events: something on the way may let no stream through."""
        wait: dict[str, Any] = {"query": {"wait_s": POLL_S}, "wait_s": POLL_S}
        request = Request(method="POST", path=path_of("events"), body=self._body(), is_read=True, **wait)
        page = (await self._connection.ask(request, self._whose)).data
        for event_id, event in zip(page["ids"], events_of(page["items"]), strict=True):
            if not await self._hand_out(event_id, event):
                return
        self._position = EventCursor.parse(page["cursor"]), {}

    async def _hand_out(self, event_id: str, event: AnyEvent) -> bool:
        """Call the function until it is done with the event; return False if the subscription is closed before."""
        if not await self._listening.call(partial(self._delivery.hand_out, event, self._listening.work)):
            return False
        log, _, seq = event_id.rpartition(":")
        self._position[1][log] = int(seq)
        return True

    def _body(self) -> dict[str, Any]:
        return {**self._filters, "cursor": self.cursor}
