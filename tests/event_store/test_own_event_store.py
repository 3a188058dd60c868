"""An event store of an application's own, written with public names only, obeys the laws of event stores."""

from collections.abc import Iterator, Sequence

import pytest
from pydantic import TypeAdapter

from turnwise.conformance import check_event_store
from turnwise.errors import HistoryConflictError, InvalidInputError, StoreClosedError
from turnwise.events import AnyEvent, Event
from turnwise.stores import HistoryStore, SessionKey, check_appended

EVENT = TypeAdapter[AnyEvent](AnyEvent)

Lines = dict[SessionKey, dict[int, bytes]]
"""Events as JSON, by session and number."""


class OwnHistory:
    """Stores events as lines of JSON."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._is_closed = False

    async def append(self, key: SessionKey, events: Sequence[Event]) -> None:
        self._check_open()
        check_appended(key, events)
        lines = self._with(key, self._lines.get(key, {}), events)
        if events:
            self._lines[key] = lines

    def _with(self, key: SessionKey, before: dict[int, bytes], events: Sequence[Event]) -> dict[int, bytes]:
        lines = dict(before)
        keys = {event.key: event.seq for event in map(EVENT.validate_json, lines.values()) if event.key is not None}
        for event in events:
            line = event.model_dump_json().encode()
            if lines.setdefault(event.seq, line) != line:
                raise HistoryConflictError(key.session_id, event.seq, None)
            if event.key is not None and keys.setdefault(event.key, event.seq) != event.seq:
                raise HistoryConflictError(key.session_id, event.seq, event.key)
        return lines

    async def events(
        self, key: SessionKey, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        self._check_open()
        if limit < 1:
            raise InvalidInputError("limit", limit, "must be 1 or more")
        events = [event for event in self._read(key) if event.seq > after and run_id in (None, event.run_id)]
        return events[:limit]

    async def last_seq(self, key: SessionKey) -> int:
        self._check_open()
        return max(self._lines.get(key, {}), default=0)

    async def delete(self, key: SessionKey, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()) -> None:
        self._check_open()
        remaining, replaced = list[Event](), {event.seq for event in instead}
        if turns_up_to is not None:
            remaining = [
                event for event in self._read(key) if event.turn_index is None or event.turn_index > turns_up_to
            ]
        lines = {event.seq: event.model_dump_json().encode() for event in remaining if event.seq not in replaced}
        self._lines[key] = self._with(key, lines, instead)

    async def delete_user(self, user_id: str) -> None:
        self._check_open()
        for key in [key for key in self._lines if key.user_id == user_id]:
            del self._lines[key]

    async def close(self) -> None:
        self._is_closed = True

    def _read(self, key: SessionKey) -> Iterator[AnyEvent]:
        return (EVENT.validate_json(line) for _, line in sorted(self._lines.get(key, {}).items()))

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError("OwnHistory()")


async def test_an_event_store_of_ones_own_obeys_the_laws() -> None:
    data: dict[str, Lines] = {}

    def make(name: str) -> HistoryStore:
        return OwnHistory(data.setdefault(name, {}))

    await check_event_store(make)


async def test_an_event_of_another_session_is_refused() -> None:
    event = EVENT.validate_python({"kind": "session_ended", "session_id": "other", "seq": 1, "at": 0.0})
    with pytest.raises(InvalidInputError, match="belongs to another session"):
        await OwnHistory({}).append(SessionKey("s"), [event])
