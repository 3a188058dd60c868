"""Partial structured answers, parsed from the events of a running run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pydantic_core

from turnwise.memory.conversation.events import Event, ModelCallStarted, RunCompleted, RunResumed, TextDelta
from turnwise.memory.conversation.output_type import object_text
from turnwise.memory.values.growing_text import GrowingText

_SHORT_CHARS, _GROWTH = 4_096, 16
"""An object is read after each piece of its text up to so many characters, then whenever the text has grown by this
part of its length, so that reading a long one takes time in proportion to its length."""


class Partials:
    """Takes the events of a run in order, and yields the JSON object of the answer as it grows."""

    def __init__(self) -> None:
        self._text = GrowingText()
        self._due = 0
        """The length of the text at which it is read next."""
        self._last: dict[str, Any] | None = None

    def add(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Yield the object after each event that changes it; a long one more rarely, and at its end.

        The last value may be an incomplete string; any other value appears only when it is complete. After an answer
        was sent back, the object starts again empty.
        """
        for event in events:
            match event:
                case ModelCallStarted() | RunResumed():
                    self._text, self._due = GrowingText(), 0
                case TextDelta():
                    self._text.add(event.text)
                case RunCompleted():
                    self._text = GrowingText(object_text(event.text))
            if self._is_due(event) and (partial := self._read_object()) not in (None, self._last):
                self._last = partial
                yield partial

    def _is_due(self, event: Event) -> bool:
        is_end = isinstance(event, RunCompleted) or (isinstance(event, TextDelta) and event.final)
        if not is_end and not (isinstance(event, TextDelta) and len(self._text) >= self._due):
            return False
        size = len(self._text)
        self._due = size + (size // _GROWTH if size >= _SHORT_CHARS else 0)
        return True

    def _read_object(self) -> dict[str, Any] | None:
        text = str(self._text)
        begin = text.find("{")
        if begin < 0:
            return None
        try:
            value = pydantic_core.from_json(text[begin:].rstrip("` \n"), allow_partial="trailing-strings")
        except ValueError:  # other words follow the object
            return self._last
        return value if isinstance(value, dict) else None
