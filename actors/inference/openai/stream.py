"""Reads an answer from the wire: the objects of an event stream, or a single object if the server did not stream."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from turnwise.actors.inference.openai.fields import broken_off

if TYPE_CHECKING:
    import httpx2

_MOST_LINES, _MOST_CHARS = 10_000, 4_000_000
"""Limits for an answer that is not an event stream: the last lines that are read, and the characters of each."""

_FIELDS = ("data", "event", "id", "retry", "")
"""The field names of an event stream, before the colon of a line. A comment begins with the colon."""


class AnswerStream:
    """Reads the events of a response with status 200.

    Empty events and those named `ping` are skipped. A body that is not an event stream is read as one JSON object,
    which becomes the only event; any other body raises a ValueError that quotes its beginning.

    Args:
        on_line: called for each line that arrives, also for pings and comments.
    """

    def __init__(self, response: httpx2.Response, on_line: Callable[[], None]) -> None:
        self._response = response
        self._on_line = on_line
        self._other_lines: deque[str] = deque(maxlen=_MOST_LINES)
        """Lines that do not belong to an event."""
        self.is_done = False
        """Whether the server marked the end, by `[DONE]` or by sending one object instead of a stream."""

    async def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the JSON object of each event.

        Raises:
            BrokenOffError: an object reports a failure of the provider.
            ValueError: an event is not a JSON object.
        """
        name, data, has_events = "", list[str](), False
        lines = self._response.aiter_lines()
        async for line in lines:
            self._on_line()
            field, colon, value = line.partition(":")
            if colon and field in _FIELDS:
                has_events = True
                name = value.strip() if field == "event" else name
                data += [value] * (field == "data")
            elif line.strip():
                self._other_lines.append(line[:_MOST_CHARS])
            else:
                for event in self._event(name, data):
                    yield event
                name, data = "", []
            if self.is_done:
                break
        async for _ in lines:  # HTTP/1.1 can reuse the connection only after the body was read to its end
            pass
        with suppress(ValueError):  # without a blank line after it, the last event may be complete or cut off
            for event in self._event(name, data):
                yield event
        if not has_events and self._other_lines:
            self.is_done = True
            yield self._whole("\n".join(self._other_lines))

    def _event(self, name: str, data: list[str]) -> list[Mapping[str, Any]]:
        text = "\n".join(data).strip()
        if not text or name == "ping":
            return []
        if text.startswith("[DONE]"):
            self.is_done = True
            return []
        return [_checked(json.loads(text))]

    def _whole(self, text: str) -> Mapping[str, Any]:
        try:
            event = json.loads(text)
            if isinstance(event, list) and len(event) == 1:  # Gemini sends errors in a list
                event = event[0]
            return _checked(event)
        except ValueError as error:
            kind = self._response.headers.get("content-type", "no content type")
            raise ValueError(f"{kind} instead of an answer, beginning with {text.strip()[:200]!r}") from error


def _checked(event: Any) -> Mapping[str, Any]:
    """Return the object. Raises ValueError if it is not an object, BrokenOffError if it reports a failure."""
    if not isinstance(event, Mapping):
        raise ValueError(f"an event is not an object but {type(event).__name__}")
    if event.get("object") == "error" or event.get("error"):
        raise broken_off(event if event.get("object") == "error" else event["error"])
    if "detail" in event and len(event) == 1:
        raise broken_off(event["detail"])
    return event
