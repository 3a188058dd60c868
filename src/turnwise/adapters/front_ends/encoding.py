"""What the encoders of all protocols share: frames with ids, and where a stream goes on."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.adapters.front_ends.answers import Answers, Cursor, Piece
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.calls.tool_calls import Wants
from turnwise.memory.conversation.events import AnyEvent, CallDecided

Json = Mapping[str, Any]


_STOP_FRAMES = 1 << 20
"""More than the frames with which a stream stops."""


@dataclass(frozen=True)
class Frame:
    """One server-sent event: an object of the protocol, or a text, and the id with which a client resumes behind it."""

    data: Json | str
    id: str | None = None

    def encode(self) -> bytes:
        """Return the bytes of the server-sent event."""
        text = self.data if isinstance(self.data, str) else json.dumps(self.data, separators=(",", ":"))
        return f"id: {self.id}\ndata: {text}\n\n".encode() if self.id else f"data: {text}\n\n".encode()


class FrontEndEncoder(ABC):
    """Turns the events of one run into the frames of a protocol. Pure: it waits for nothing and reads nothing.

    Feed it all events of the run from the first one on, deltas included where there are any. With `last_event_id` it
    returns only the frames behind that one, each once, and the rest of a delta that was cut. Deltas may be missing: a
    text that is only stored is one frame.

    Where calls wait for somebody, the protocols end a stream: then `waiting` has them, and `stop()` returns the last
    frames. A later stream goes on with the same events: see `behind`.

    Args:
        last_event_id: the id of the last frame that the client has.
        behind: ids of calls. The stream begins where the first of them waited; what was before is left out.

    Raises:
        InvalidInputError: `last_event_id` is of no frame.
    """

    headers: Mapping[str, str] = {}
    """The headers of a response with such a stream, beside `Content-Type: text/event-stream`."""

    _client_results: frozenset[str] = frozenset()
    """The calls whose results the client has."""

    def __init__(self, last_event_id: str | None = None, *, behind: Iterable[str] = ()) -> None:
        cursor = Cursor.parse(last_event_id) if last_event_id else Cursor()
        if cursor is None:
            reason = "it must be the id of a frame of this stream, unchanged"
            raise InvalidInputError("Last-Event-ID", shown(last_event_id), reason)
        self._cursor = cursor
        self._calls_before = frozenset(behind)
        self._begins = () if self._calls_before else cursor.begins
        """Where the stream begins that this one goes on with: see `Cursor.begun`."""
        self._answered = frozenset[str]()
        """The calls that waited where the stream begins, and whose results the client has, or has given."""
        self._answers = Answers(Cursor(cursor.events, cursor.text, cursor.thought))
        self._is_stopped = False

    @property
    def is_done(self) -> bool:
        """Whether the stream has ended: with the run, or by `stop`."""
        return self._answers.is_ended or self._is_stopped

    @property
    def waiting(self) -> Mapping[str, Wants]:
        """The calls that wait, and for what (an approval or a result), if the run does nothing else; else empty."""
        return {} if self._calls_before else self._answers.waiting

    @property
    def waiting_calls(self) -> Mapping[str, Wants]:
        """The calls that wait, and for what (an approval or a result), also if the run does something else."""
        return {} if self._calls_before else self._answers.waiting_calls

    def add(self, event: AnyEvent) -> list[Frame]:
        """Take the run's next event; return its frames."""
        begun = self._begin() if self._is_begun_by(event) else []
        frames = [frame for piece in self._answers.add(event) for frame in self._frames(piece)]
        if not self._calls_before:
            return begun + frames
        if self._calls_before.isdisjoint(self._answers.waiting):
            return []  # they were before the stream
        return self._begin()

    def _is_begun_by(self, event: AnyEvent) -> bool:
        if self._calls_before:  # the run waited, whatever was open
            return isinstance(event, CallDecided) and event.call_id in self._calls_before
        is_next = not event.live and event.run_id == self._answers.run_id
        return bool(self._begins) and is_next and event.seq > self._begins[0]

    def _begin(self) -> list[Frame]:
        """Begin the stream behind calls that waited, at which another one ended."""
        waiting_calls = self._answers.waiting_calls
        bits = {call_id: 1 << number for number, call_id in enumerate(waiting_calls)}
        if self._begins:
            self._answered = frozenset(call_id for call_id, bit in bits.items() if self._begins[1] & bit)
        else:
            own = {call_id for call_id in self._calls_before if waiting_calls.get(call_id) == "result"}
            self._answered = frozenset(waiting_calls) & (self._client_results | own)
        bits_given = sum(bit for call_id, bit in bits.items() if call_id in self._answered)
        ended = list(self._frames(self._answers.stopped()))  # of which a reader may lack the last ones
        self._cursor.begun = self._answers.seq, bits_given
        begun = list(self._frames(self._answers.begun_again()))
        frames = begun if self._calls_before else ended + begun
        self._calls_before, self._begins = frozenset(), ()
        return frames

    def stop(self) -> list[Frame]:
        """Return the frames with which the stream ends at the calls in `asked`."""
        self._is_stopped = True
        return list(self._frames(self._answers.stopped()))

    @abstractmethod
    def failed(self, error: Exception) -> list[Frame]:
        """Return the frames with which a stream ends that cannot be read on; the run may go on."""

    @abstractmethod
    def _say(self, piece: Piece) -> Iterator[Json | str]:
        """Yield a piece in the words of the protocol."""

    def _frames(self, piece: Piece) -> Iterator[Frame]:
        before = getattr(self._cursor, piece.track)
        rest = piece.after(before)
        chunks = list(self._say(rest or piece))
        # Counted from the end where a stream stops: the number of frames before depends on where the stream began.
        first = _STOP_FRAMES - len(chunks) if piece.kind == "waits" else 0
        for number, data in enumerate(chunks, first):
            place = (*piece.place, number)
            if rest is not None and place > before[: len(place)]:
                setattr(self._cursor, piece.track, place if piece.track == "events" else (*place, piece.check))
                yield Frame(data, str(self._cursor))
