"""Builds the stored events of a run, with the blocks that each adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from turnwise.actors.inference.engine import NewEvent
from turnwise.memory.conversation.blocks import Block, ToolResult
from turnwise.memory.conversation.calls.tool_calls import CallState, PendingCall, Verdict
from turnwise.memory.conversation.events import (
    AddsOutput,
    ApprovalRequested,
    CallDecided,
    PromptJoined,
    RunCancelled,
    RunCompleted,
    RunEnded,
    RunFailed,
    RunInterrupted,
    RunStarted,
    ToolEnded,
)
from turnwise.memory.conversation.runs import MERGED, RunRecord, RunState
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Spans, to_places
from turnwise.memory.conversation.turns import TurnRecord

_END_EVENTS: dict[RunState, type[RunEnded]] = {
    "completed": RunCompleted,
    "cancelled": RunCancelled,
    "failed": RunFailed,
    "interrupted": RunInterrupted,
}


def turn_key(turn_id: str) -> str:
    """Return the key of the event that stores the run of the turn with this id."""
    return f"turnwise.turn:{turn_id}"


def about(record: RunRecord) -> dict[str, Any]:
    """Return the fields that all events of a run have."""
    fields = {"turn_index": record.turn_index, "run_id": record.run_id}
    return fields | {"labels": record.labels} if record.labels else fields


def about_added(record: RunRecord, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event that was added to a run with these values. Its own labels come before the run's."""
    labels = {**record.labels, **values.get("labels", {})}
    return {**about(record), **values} | ({"labels": labels} if labels else {})


def start_event(
    record: RunRecord,
    turn: TurnRecord,
    head: TurnRecord | None,
    session: SessionRecord,
    prompts: Sequence[Block],
    *,
    names_input: bool = False,
) -> NewEvent:
    """Return the event of a run that has become active.

    Args:
        head: the turn that the run's turn continues.
        prompts: the blocks of the turn's prompt.
        names_input: whether the event names the turn's whole input also where `head` is the turn before it.
    """
    values: dict[str, Any] = {**about(record), "blocks": tuple(prompts)}
    values["prompt"] = to_places(turn.prompt, session.log)
    if names_input or (head and not is_snapshot(head, session.session_id)):
        values["input"] = to_places(turn.input, session.log)
    return RunStarted, values


def is_snapshot(head: TurnRecord, session_id: str) -> bool:
    """Return whether the next turn continues the snapshot of `head`, which the events of this session tell."""
    if head.parent is None:
        is_own = True
    else:  # a fork's first turn has the index of the turn that it copies, which may be of a session with this id
        name, _, index = head.parent.rpartition("#")
        is_own = name == session_id and index != str(head.index)
    return is_own and not head.carried and not head.carries_all


def merged_into(run_id: str) -> dict[str, Any]:
    """Return the fields of the end of a queued run whose prompts are part of another run."""
    return {"state": "cancelled", "why": f"merged into run {run_id}", "code": MERGED, "successor": run_id}


def end_event(
    end: RunRecord, new: Sequence[Block] = (), session: SessionRecord | None = None, *, discarded: bool = False
) -> NewEvent:
    """Return the terminal event of a run whose end stores the blocks `new`, the last of the session's log."""
    values: dict[str, Any] = about(end)
    if new and session:
        values |= {"span": (session.log_size - len(new), session.log_size), "blocks": tuple(new)}
    if end.state == "completed":
        values |= {"usage": end.usage, "stop_reason": end.stop_reason}
    else:
        values["why"] = end.why
    if end.state == "cancelled":
        values |= {"code": end.code, "successor": end.successor}
    if discarded:
        values["discarded"] = True
    if end.state == "failed":
        values["code"] = end.code
    return _END_EVENTS[end.state], values


def request_event(record: RunRecord, call_id: str, state: CallState) -> NewEvent:
    """Return the event that asks for a decision that does not concern a tool call, such as a budget."""
    values = {"call_id": call_id, "name": state.name, "wants": state.wants, "why": state.why}
    return ApprovalRequested, about(record) | values


def question_events(before: RunRecord, after: RunRecord, pending: Iterable[PendingCall] = ()) -> list[NewEvent]:
    """Return the events of what its agents ask, or asked, that differs between two records of a run.

    What was asked by an agent that was lost is over.

    Args:
        pending: the calls that wait now.
    """
    earlier, events = before.questions, list[NewEvent]()
    details = {call.call_id: call for call in pending}
    over: dict[str, Verdict | None] = {path: "rejected" for path, verdict in earlier.items() if verdict is None}
    for path, verdict in (over | after.questions).items():
        if "/" not in path or earlier.get(path, "") == verdict:
            continue
        if verdict is None and path in details:
            events.append((ApprovalRequested, about(after) | vars(details[path])))
        elif verdict and path in earlier and earlier[path] is None:
            events.append((CallDecided, about(after) | {"call_id": path, "verdict": verdict}))
    return events


def joined_events(record: RunRecord, joined: str, prompt: Spans, blocks: Sequence[Block]) -> list[NewEvent]:
    """Return the events of a run that has taken the prompts of the run `joined`: one for each span."""
    events: list[NewEvent] = []
    remaining = iter(blocks)
    for span in prompt:
        span_blocks = tuple(islice(remaining, span.stop - span.start))
        values = {"joined": joined, "span": (span.start, span.stop), "blocks": span_blocks}
        events.append((PromptJoined, {**about(record), **values}))
    return events


def placed(events: Sequence[NewEvent], new: Sequence[Block], session: SessionRecord) -> list[NewEvent]:
    """Return the events, each with those of the blocks `new` that it adds.

    `new` are the last blocks of the session's log.
    """
    first = session.log_size - len(new)
    answer_indices = [index for index, block in enumerate(new) if not isinstance(block, ToolResult)]
    results = {block.call_id: index for index, block in enumerate(new) if isinstance(block, ToolResult)}
    placed: list[NewEvent] = []
    for kind, values in events:
        indices: list[int] = []
        if issubclass(kind, ToolEnded):
            indices = [results[values["call_id"]]] if values["call_id"] in results else []
        elif issubclass(kind, AddsOutput):
            indices, answer_indices = answer_indices, []
        if indices:
            span = (first + indices[0], first + indices[-1] + 1)
            values = {**values, "span": span, "blocks": tuple(new[indices[0] : indices[-1] + 1])}  # noqa: PLW2901
        placed.append((kind, values))
    return placed
