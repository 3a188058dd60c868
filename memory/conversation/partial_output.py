"""A structured answer as far as it has come, from the events of its run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pydantic_core

from turnwise.memory.conversation.events import Event, ModelCallStarted, RunCompleted, RunResumed, TextDelta
from turnwise.memory.conversation.output_type import object_text


class Partials:
    """Takes the events of a run, in order, and says how much of the answer's object is there."""

    def __init__(self) -> None:
        self._text = ""
        self._last: dict[str, Any] | None = None

    def add(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Yield the object after each event that changes it.

        A text at its end may be cut short; any other value is there when it is whole. An answer that was sent back
        begins anew.
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
        except ValueError:  # of other words behind it
            return self._last
        return found if isinstance(found, dict) else None
