"""Rebuilds a conversation from its events alone."""

from __future__ import annotations

from collections.abc import Iterable

from turnwise.errors import TranscriptError
from turnwise.memory.conversation.blocks import AnyBlock, Block
from turnwise.memory.conversation.events import (
    Event,
    RunCancelled,
    RunEnded,
    RunStarted,
    SessionReverted,
    SetsInput,
    TurnImported,
    TurnReplaced,
    TurnsCleared,
)
from turnwise.memory.conversation.transcript import Ledger


class Rebuilt:
    """A conversation as its events tell it. Takes the events of a session in order, from the first.

    After each event, `blocks` are those of the newest turn that has begun and was not discarded: all that its run was
    given, compacted where the window was, and what it has answered.
    """

    def __init__(self) -> None:
        self._before: list[Block] = []
        """The snapshot of the newest turn that has ended and was kept."""
        self._input: list[Block] = []
        self._ledger: Ledger | None = None
        """The output of the running run; None if no run runs."""
        self._run_id: str | None = None

    def add(self, event: Event) -> None:
        """Apply the next event.

        Raises:
            TranscriptError: an event lacks its blocks, as those of a session store do, or the session was
                reverted, so that its earlier events do not tell the conversation.
        """
        if isinstance(event, SessionReverted):
            raise TranscriptError(f"{_name(event)}: the store lost turns that these events tell")
        if isinstance(event, TurnsCleared) or (isinstance(event, TurnReplaced) and event.input is not None):
            self._before = _input_of(event)
        elif isinstance(event, TurnImported):
            before = self._before if event.input is None else _input_of(event)
            self._before = [*before, *event.blocks]
        elif isinstance(event, RunStarted):
            self._begin(event)
        elif self._ledger is None or event.run_id != self._run_id:
            return
        elif isinstance(event, RunEnded):
            self._ledger.apply(event)
            if not (isinstance(event, RunCancelled) and event.discarded):
                self._before = self.blocks
            self._ledger = None
        elif isinstance(event, SetsInput):
            self._input = self._input if event.input is None else _input_of(event)
        else:
            self._ledger.apply(event)

    @property
    def blocks(self) -> list[Block]:
        """The conversation after the last event. O(its blocks)."""
        return [*self._input, *self._ledger.blocks()] if self._ledger else list(self._before)

    def _begin(self, event: RunStarted) -> None:
        if event.prompt and not event.blocks:
            raise TranscriptError(f"{_name(event)} has no prompts: begin with the events of a later run")
        self._input = [*self._before, *event.blocks] if event.input is None else _input_of(event)
        self._ledger, self._run_id = Ledger(), event.run_id


def rebuild(events: Iterable[Event]) -> list[AnyBlock]:
    """Return the conversation of a session after the last of these events: the blocks of its newest turn.

    Needs no conversation store: the events of `history_store=` have the blocks. `encode` makes a provider's request of
    the result, and `messages_of` messages. For each prefix of the events, the result equals the session at that time.

    Args:
        events: a session's events in order, live ones or not, from its first one; or those of one run, for that run's
            own part of the conversation.

    Raises:
        TranscriptError: an event lacks its blocks, as those of a session store do; or the session was reverted.
    """
    rebuilt = Rebuilt()
    for event in events:
        rebuilt.add(event)
    blocks: list[AnyBlock] = rebuilt.blocks  # type: ignore[assignment]
    return blocks


def _input_of(event: SetsInput) -> list[Block]:
    if event.input and not event.input_blocks:
        raise TranscriptError(
            f"{_name(event)} has no input_blocks: read the event again, from the session or its history"
        )
    return list(event.input_blocks)


def _name(event: Event) -> str:
    return f"event {event.seq} ({event.kind}) of session {event.session_id!r}"
