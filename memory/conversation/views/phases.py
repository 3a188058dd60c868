"""The phases of a run, derived from its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from turnwise.memory.conversation.blocks import Block, Text
from turnwise.memory.conversation.events import (
    AnyEvent,
    ApprovalRequested,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    Phase,
    PhaseChanged,
    RunCancelled,
    RunCompleted,
    RunEnded,
    RunQueued,
    RunStarted,
    TextDelta,
    ToolStarted,
)

_ENTERED: dict[type[Event], Phase] = {
    RunQueued: "prompted",
    RunStarted: "prompted",
    ModelCallStarted: "planning",
    ToolStarted: "executing_tools",
    ApprovalRequested: "suspended",
}


class Phases:
    """Takes the events of one run in order, and adds a `PhaseChanged` where the run's phase changes.

    Live and stored events give the same phases, with one exception: a model call of which nothing was stored is a phase
    of its own only live.
    """

    def __init__(self) -> None:
        self.phase: Phase | None = None
        """The phase after the last event; None before the first."""

    def add(self, events: Iterable[AnyEvent]) -> Iterator[AnyEvent]:
        """Yield the events with the changes: after the event that made a change, but before a terminal event."""
        for event in events:
            if isinstance(event, RunEnded):
                yield from self._changes(event, event.seq - 1)
                yield event
            else:
                yield event
                yield from self._changes(event, event.seq)

    def _changes(self, event: AnyEvent, seq: int) -> Iterator[PhaseChanged]:
        """Yield the changes, with a number after which a reader that stops here can continue."""
        for phase in self._entered(event):
            if phase != self.phase:
                self.phase = phase
                yield PhaseChanged(
                    session_id=event.session_id,
                    user_id=event.user_id,
                    turn_index=event.turn_index,
                    turn_id=event.turn_id,
                    run_id=event.run_id,
                    labels=event.labels,
                    seq=seq,
                    at=event.at,
                    phase=phase,
                )

    def _entered(self, event: AnyEvent) -> list[Phase]:
        """Return the phases that the run enters with this event, in order; the current one may be among them."""
        if isinstance(event, TextDelta):
            return self._phases_of_text((Text(text=event.text),))
        if isinstance(event, ModelCallEnded):
            return self._phases_of_text(event.blocks) or self._planned()
        if isinstance(event, RunCompleted):
            return [*(self._phases_of_text(event.blocks) or self._planned()), "completed"]
        if isinstance(event, RunCancelled) and event.leads_to:
            return []  # the run that has its prompts goes on
        if isinstance(event, RunEnded):
            return [*self._phases_of_text(event.blocks), "cancelled" if isinstance(event, RunCancelled) else "failed"]
        return [phase for kind, phase in _ENTERED.items() if isinstance(event, kind)]

    def _planned(self) -> list[Phase]:
        """Return the phase before a model says something, unless it is saying it already."""
        return [] if self.phase in ("planning", "synthesizing") else ["planning"]

    def _phases_of_text(self, blocks: Iterable[Block]) -> list[Phase]:
        has_text = any(isinstance(block, Text) and block.text for block in blocks)
        return [*self._planned(), "synthesizing"] if has_text else []


def phase_of(events: Iterable[AnyEvent]) -> Phase | None:
    """Return the phase of a run after these events, which are its first ones; None if there are none."""
    phases = Phases()
    for _ in phases.add(events):
        pass
    return phases.phase
