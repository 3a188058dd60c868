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
"""How much of an answer that is no stream is kept: so many lines of so many characters."""

_FIELDS = ("data", "event", "id", "retry", "")
"""What a line of a stream of events may begin with, before its colon; a comment begins with the colon."""


class AnswerStream:
    """Reads a response of status 200, event by event, and tells what is no event.

    A blank event and one that is called `ping` are passed over. What is no stream of events at all is read whole: an
    object is the one event; anything else is a ValueError that quotes how it begins.

    Args:
        heard: is called for each line, pings and comments too.
    """

    def __init__(self, response: httpx2.Response, heard: Callable[[], None]) -> None:
        self._response = response
        self._heard = heard
        self._other: deque[str] = deque(maxlen=_MOST_LINES)
        """Lines that are of no event."""
        self.is_done = False
        """Whether the server said that this is all: by `[DONE]`, or by sending one object in place of a stream."""

    async def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield each event's object.

        Raises:
            BrokenOffError: an object says that the provider failed.
            ValueError: an event is no JSON object.
        """
        name, data, has_events = "", list[str](), False
        lines = self._response.aiter_lines()
        async for line in lines:
            self._heard()
            field, colon, value = line.partition(":")
            if colon and field in _FIELDS:
                has_events = True
                name = value.strip() if field == "event" else name
                data += [value] * (field == "data")
            elif line.strip():
                self._other.append(line[:_MOST_CHARS])
            else:
                for event in self._event(name, data):
                    yield event
                name, data = "", []
            if self.is_done:
                break
        async for _ in lines:  # over HTTP/1.1 the connection can be used again only when the body was read to its end
            pass
        with suppress(ValueError):  # the blank line behind the last event is missing: it is whole, or was cut off
            for event in self._event(name, data):
                yield event
        if not has_events and self._other:
            self.is_done = True
            yield self._whole("\n".join(self._other))

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
            found = json.loads(text)
            if isinstance(found, list) and len(found) == 1:  # so Gemini wraps its errors
                found = found[0]
            return _checked(found)
        except ValueError as error:
            kind = self._response.headers.get("content-type", "no content type")
            raise ValueError(f"{kind} in place of an answer, which begins {text.strip()[:200]!r}") from error


def _checked(found: Any) -> Mapping[str, Any]:
    """Return the object, unless it is none, or one that tells of a failure."""
    if not isinstance(found, Mapping):
        raise ValueError(f"an event is not an object but {type(found).__name__}")
    if found.get("object") == "error" or found.get("error"):
        raise broken_off(found if found.get("object") == "error" else found["error"])
    if "detail" in found and len(found) == 1:
        raise broken_off(found["detail"])
    return found
