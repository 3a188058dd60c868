"""A run that has not ended: what its engine streams, and who wants it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from turnwise.actors.inference.attempt import storable
from turnwise.actors.inference.engine import SessionView
from turnwise.memory.blocks import Block, Text, Thinking
from turnwise.memory.runs import RunRecord
from turnwise.memory.turns import TurnRecord
from turnwise.memory.usage import Usage

Publish = Callable[["ActiveRun", Block], None]


class ActiveRun:
    """A queued or running run in memory, and the context of its engine.

    Closed once, when the outcome is decided: whatever the engine does later reaches nothing.
    """

    def __init__(
        self, session: SessionView, record: RunRecord, turn: TurnRecord, *, interval_s: float, publish: Publish
    ) -> None:
        self.session = session
        self.record = record
        self.turn = turn
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        """Set when the end is in the store and the session's claim is free; an exception if it could not be stored."""
        self.cancelled: asyncio.Future[str] = loop.create_future()
        """Set to the reason."""
        self.discard = False
        self.usage: Usage | None = None
        self.stop_reason: str | None = None
        self._interval_s = interval_s
        self._publish = publish
        self._parts: list[Block] = []
        self._streak: list[str] = []
        """Strings emitted since the last block: text that is not in `_parts` yet."""
        self._published = 0
        """How many of `_streak` were published."""
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        """Whether the outcome is decided."""

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def labels(self) -> Mapping[str, str]:
        return self.record.labels

    def request_cancel(self, reason: str, *, discard: bool) -> None:
        """Ask the run to stop. The first reason stands; once asked to discard, it discards."""
        self.discard = self.discard or discard
        if not self.cancelled.done():
            self.cancelled.set_result(storable(reason))

    def emit(self, part: str | Block) -> None:
        """See `RunContext.emit`."""
        if self.closed:
            return
        if isinstance(part, Text) and not part.interrupted:
            part = part.text
        if isinstance(part, str):
            if part:
                self._streak.append(storable(part))  # half of a split character may come alone
                self._schedule()
            return
        self._end_streak()
        last = self._parts[-1] if self._parts else None
        if isinstance(part, Thinking) and isinstance(last, Thinking):
            self._parts[-1] = last.model_copy(
                update={
                    "text": last.text + part.text,
                    "signature": part.signature or last.signature,
                    "redacted": part.redacted or last.redacted,
                }
            )
        else:
            self._parts.append(part)
        if isinstance(part, Thinking) and part.text:
            self._publish(self, part)

    def report(self, *, usage: Usage | None = None, stop_reason: str | None = None) -> None:
        """See `RunContext.report`."""
        if self.closed:
            return
        if usage:
            self.usage = usage + self.usage if self.usage else usage
        self.stop_reason = stop_reason or self.stop_reason

    def close(self) -> list[Block]:
        """Publish what is left, end the context, and return what was emitted as blocks."""
        if not self.closed:
            self._end_streak()
            self.closed = True
        return list(self._parts)

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if text := "".join(self._streak[self._published :]):
            self._published = len(self._streak)
            self._publish(self, Text(text=text))

    def _end_streak(self) -> None:
        self._flush()
        if self._streak:
            self._parts.append(Text(text="".join(self._streak)))
            self._streak = []
            self._published = 0
