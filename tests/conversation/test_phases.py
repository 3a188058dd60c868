"""The phases of a run, derived from its events."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.memory.conversation.blocks import Text, ToolUse
from turnwise.memory.conversation.events import (
    AnyEvent,
    ApprovalRequested,
    ModelCallEnded,
    ModelCallStarted,
    PhaseChanged,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunQueued,
    RunResumed,
    RunStarted,
    TextDelta,
    ToolStarted,
)
from turnwise.memory.conversation.runs import MERGED
from turnwise.memory.conversation.views.phases import Phases, phase_of

USE, ANSWER = ToolUse(call_id="c", name="look"), Text(text="Done.")


def numbered(*events: tuple[Any, dict[str, Any]]) -> list[AnyEvent]:
    return [
        kind(session_id="s", run_id="r", turn_index=3, seq=10 * seq, at=float(seq), **values)
        for seq, (kind, values) in enumerate(events, 1)
    ]


def phases_of(events: list[AnyEvent]) -> list[str]:
    return [event.phase for event in Phases().add(events) if isinstance(event, PhaseChanged)]


AGENT = numbered(
    (RunQueued, {}),
    (RunStarted, {}),
    (ModelCallStarted, {"call": 0}),
    (ModelCallEnded, {"call": 0, "seconds": 1.0, "blocks": (USE,)}),
    (ApprovalRequested, {"call_id": "c", "name": "look"}),
    (RunResumed, {"why": "approved"}),
    (ToolStarted, {"call_id": "c", "name": "look"}),
    (ModelCallStarted, {"call": 1}),
    (TextDelta, {"text": "Do"}),
    (TextDelta, {"text": "ne."}),
    (RunCompleted, {"blocks": (ANSWER,)}),
)


def test_a_phase_says_of_which_session_turn_and_run_it_is() -> None:
    about = {
        "session_id": "s",
        "user_id": "ann",
        "turn_index": 3,
        "turn_id": "mine",
        "run_id": "r",
        "labels": {"a": "b"},
    }
    (_, changed) = Phases().add([RunStarted(seq=7, at=1.5, **about)])  # type: ignore[arg-type]
    assert isinstance(changed, PhaseChanged)
    assert changed.model_dump(exclude={"kind", "key"}) == {**about, "seq": 7, "at": 1.5, "phase": "prompted"}


def test_an_agent_plans_waits_calls_tools_answers_and_ends() -> None:
    expected = ["prompted", "planning", "suspended", "executing_tools", "planning", "synthesizing", "completed"]
    assert phases_of(AGENT) == expected
    assert phases_of([event for event in AGENT if not event.live]) == expected, "a replay has the same"


def test_the_terminal_event_stays_the_last_and_a_reader_may_continue_after_any() -> None:
    """A reader that stops after an event and continues after its number misses no event of the run."""
    read = list(Phases().add(AGENT))
    assert read[-1] is AGENT[-1] and read[-2].kind == "phase_changed"
    for index, event in enumerate(read):
        numbers = {earlier.seq for earlier in read[: index + 1] if not isinstance(earlier, PhaseChanged)}
        assert {stored.seq for stored in AGENT if stored.seq <= event.seq} <= numbers
    changed = next(event for event in read if isinstance(event, PhaseChanged))
    assert (changed.session_id, changed.run_id, changed.turn_index) == ("s", "r", 3)


def test_the_end_of_a_merged_run_is_no_phase_of_the_run_that_it_leads_to() -> None:
    merged = numbered(
        (RunQueued, {}),
        (RunCancelled, {"why": "merged into run r", "code": MERGED, "successor": "r"}),
        (ModelCallStarted, {"call": 1}),
        (RunCompleted, {"blocks": (ANSWER,)}),
    )
    assert phases_of(merged) == ["prompted", "planning", "synthesizing", "completed"]


@pytest.mark.parametrize(
    ("kind", "phase"), [(RunCancelled, "cancelled"), (RunFailed, "failed"), (RunInterrupted, "failed")]
)
def test_a_run_without_an_answer_ends_in_the_phase_of_its_end(kind: Any, phase: str) -> None:
    assert phases_of(numbered((RunStarted, {}), (kind, {"why": "so"}))) == ["prompted", phase]
    cut = numbered((RunStarted, {}), (TextDelta, {"text": "Do"}), (kind, {"why": "so", "blocks": (ANSWER,)}))
    assert phases_of(cut) == phases_of([cut[0], cut[2]]) == ["prompted", "planning", "synthesizing", phase]


def test_the_phase_after_some_events_is_the_last() -> None:
    assert [phase_of(AGENT[:count]) for count in (0, 1, 3, 6, 7, 11)] == [
        *(None, "prompted", "planning", "suspended", "executing_tools", "completed"),
    ]
