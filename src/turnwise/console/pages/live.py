"""`Live`: the answer that is being written, as it grows."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui.element import Element

from turnwise.console.elements.tags import SHOWN, replace_text, tag
from turnwise.console.elements.text import number
from turnwise.memory.conversation.events import AnyEvent, ModelCallStarted, TextDelta, ThinkingDelta

FLUSH_S = 0.08
"""How long pieces are gathered before they are sent to the browser, in seconds."""

_PIECES = 40
"""How many pieces are elements of their own; then they become one, so that each is sent about twice."""


class Live:
    """The answer of a run that goes on. Each piece is sent once or twice, however long the answer becomes."""

    def __init__(self) -> None:
        with tag("div", "live hidden", aria_live="off") as self._whole:
            self._thoughts = _Growing("said thought", "Thinking")
            self._text = _Growing("said answer", "Answer")
        self._timer: asyncio.TimerHandle | None = None
        self._is_void = False

    def show_event(self, event: AnyEvent) -> None:
        """Show what a live event adds."""
        match event:
            case ModelCallStarted():
                self.clear()
                self._whole.classes(remove="hidden")
            case TextDelta() | ThinkingDelta():
                if self._is_void:
                    self.clear()
                self._whole.classes(remove="hidden")
                (self._text if isinstance(event, TextDelta) else self._thoughts).add(event.text)
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def is_stored(self) -> None:
        """Note that what is shown is in the store: `give_way` is to remove it once the stored blocks are shown."""
        self._is_void = True

    def give_way(self) -> None:
        """Remove what is stored by now."""
        if self._is_void:
            self.clear()

    def clear(self) -> None:
        """Remove all."""
        self._is_void = False
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if not self._whole.is_deleted:
            self._thoughts.clear()
            self._text.clear()
            self._whole.classes(add="hidden")

    def _flush(self) -> None:
        self._timer = None
        if not self._whole.is_deleted:
            self._thoughts.flush()
            self._text.flush()


class _Growing:
    """A text that grows at its end; of a long one, the beginning is shown."""

    def __init__(self, classes: str, who: str) -> None:
        with tag("div", f"{classes} hidden") as self._whole:
            tag("div", "who", who)
            with tag("pre", "text", dir="auto"):
                self._pieces = tag("span")
                tag("span", "caret", aria_hidden="true")
            self._more: Any = tag("div", "soft small", "")
        self._texts: list[str] = []
        self._waiting: list[str] = []
        self._length = 0

    def add(self, text: str) -> None:
        self._length += len(text)
        self._waiting.append(text)

    def flush(self) -> None:
        if not self._waiting:
            return
        piece, self._waiting = "".join(self._waiting), []
        shown = sum(map(len, self._texts))
        self._whole.classes(remove="hidden")
        if piece := piece[: max(0, SHOWN - shown)]:
            self._texts.append(piece)
            if len(self._texts) > _PIECES:
                self._texts = ["".join(self._texts)]
                self._pieces.clear()
            self._put(self._pieces, self._texts[-1])
        if self._length > SHOWN:
            replace_text(self._more, f"and {number(self._length - SHOWN)} characters more so far")

    def _put(self, parent: Element, text: str) -> None:
        with parent:
            tag("span", "", text)

    def clear(self) -> None:
        self._texts, self._waiting, self._length = [], [], 0
        self._pieces.clear()
        replace_text(self._more, "")
        self._whole.classes(add="hidden")
