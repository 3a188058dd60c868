"""Partial structured answers, parsed from the events of a running run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pydantic_core

from turnwise.memory.conversation.events import Event, ModelCallStarted, RunCompleted, RunResumed, TextDelta
from turnwise.memory.conversation.output_type import object_text


class Partials:
    """Takes the events of a run in order, and yields the JSON object of the answer as it grows."""

    def __init__(self) -> None:
        self._text = ""
        self._last: dict[str, Any] | None = None

    def add(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Yield the object after each event that changes it.

        The last value may be an incomplete string; any other value appears only when it is complete. After an answer
        was sent back, the object starts again empty.
        """
        for event in events:
            match event:
                case ModelCallStarted() | RunResumed():
                    self._text = ""
                case TextDelta():
                    self._text += event.text
                case RunCompleted():
                    self._text = object_text(event.text)
            if isinstance(event, TextDelta | RunCompleted) and (found := self._found()) not in (None, self._last):
                self._last = found
                yield found

    def _found(self) -> dict[str, Any] | None:
        begin = self._text.find("{")
        if begin < 0:
            return None
        try:
            found = pydantic_core.from_json(self._text[begin:].rstrip("` \n"), allow_partial="trailing-strings")
        except ValueError:  # other words follow the object
            return self._last
        return found if isinstance(found, dict) else None
