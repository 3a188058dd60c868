"""`show_timeline`: a run's steps with their times, and what was noted between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.console.elements.tags import badge, fact, long_text, tag
from turnwise.console.elements.text import json_text, moment, number
from turnwise.memory.conversation.calls.tool_calls import decode_calls
from turnwise.memory.conversation.events import (
    AnyEvent,
    ApprovalRequested,
    CallDecided,
    CompactionFailed,
    CustomEvent,
    Event,
    HookFailed,
    InputReplaced,
    MemoryDegraded,
    MemoryFailed,
    MemoryRecalled,
    PlannerNote,
    RunEnded,
    RunQueued,
    RunResumed,
    RunStarted,
    WindowCompacted,
)
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.views.steps import Step

_MOST = 500
"""How many lines are shown."""

_MINUTE = 60


@dataclass(frozen=True)
class _Row:
    at: float
    name: str
    text: str = ""
    step: Step | None = None
    depth: int = 0


def show_timeline(record: RunRecord, steps: Sequence[Step], events: Sequence[AnyEvent]) -> None:
    """Show a run: its facts, then its steps and notes by their times."""
    began = record.started_at or record.created_at
    agents = {call_id: state.name for call_id, state in decode_calls(record.calls).items() if state.agent}
    lines = sorted([*_notes(events, steps, agents), *_steps(steps)], key=lambda line: (line.at, line.depth))
    ends = [began, *(line.at + ((line.step and line.step.seconds) or 0) for line in lines)]
    whole = max(1e-6, (record.ended_at or max(ends)) - began)
    with tag("dl", "facts"):
        fact("Run", record.run_id)
        fact("State", record.state.replace("_", " "))
        if record.why:
            fact("Why", f"{record.why}{f' ({record.code})' if record.code else ''}")
        fact("Began", moment(began))
        fact("Took", _seconds(whole))
        if record.resumes:
            fact("Resumed", f"{record.resumes} times")
        if record.parent:
            fact("For the run", record.parent)
        for name, value in record.labels.items():
            fact(name, str(value))
    if not lines:
        tag("p", "soft", "No steps yet.")
    with tag("ol", "steps"):
        for line in lines[:_MOST]:
            _show(line, began, whole)
    if len(lines) > _MOST:
        tag("p", "soft", f"and {number(len(lines) - _MOST)} more")


def _steps(steps: Sequence[Step]) -> list[_Row]:
    depths: dict[str, int] = {}
    lines = []
    for step in steps:
        depth = depths.get(step.parent or "", -1) + 1
        for name in filter(None, (step.id, step.call_id)):
            depths[name] = depth
        name = {"model": "Model", "tool": f"Tool {step.name}", "step": step.name}[step.kind]
        lines.append(_Row(step.started_at, name, step=step, depth=depth))
    return lines


def _notes(events: Sequence[AnyEvent], steps: Sequence[Step], agents: Mapping[str, str]) -> list[_Row]:
    """Return what is noted between the steps. `agents`: the name of the agent of each call that has called one."""
    inner = {name for step in steps for name in (step.id, step.call_id) if name}
    lines = []
    for event in events:
        name, text = _note(event, agents)
        if name:
            depth = 1 if getattr(event, "step", None) in inner else 0
            lines.append(_Row(event.at, name, text, depth=depth))
    return lines


def _note(event: AnyEvent, agents: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the text of what is shown of an event; without a name, nothing is."""
    if isinstance(event, CallDecided) and event.verdict == "provided" and event.call_id in agents:
        return f"Agent {agents[event.call_id]} has answered", ""
    if isinstance(event, RunEnded):
        return event.kind.removeprefix("run_").capitalize(), ""
    describe: Callable[[Any], tuple[str, str]] = _NOTES.get(type(event), lambda _: ("", ""))
    return describe(event)


_NOTES: Mapping[type[Event], Callable[[Any], tuple[str, str]]] = {
    RunQueued: lambda _: ("Queued", ""),
    RunStarted: lambda _: ("Started", ""),
    PlannerNote: lambda event: ("Planner's note", event.text),
    CustomEvent: lambda event: (f"Event {event.name}", json_text(event.data) if event.data else ""),
    ApprovalRequested: lambda event: (f"{event.name} waits for {event.wants}", event.why or ""),
    CallDecided: lambda event: (f"A person has {event.verdict} the call", ""),
    RunResumed: lambda event: ("Resumed", event.why),
    MemoryRecalled: lambda event: ("Memory recalled", f"{sum(event.sent.values())} items for: {event.query}"),
    MemoryFailed: lambda event: (f"Memory {event.memory} failed", event.why),
    MemoryDegraded: lambda event: (f"Memory {event.memory} answers with less", event.why),
    WindowCompacted: lambda event: ("Window compacted", f"{event.tokens_before} to {event.tokens_after} tokens"),
    CompactionFailed: lambda event: ("Compaction failed", event.why),
    InputReplaced: lambda _: ("Window replaced by a prepared, smaller one", ""),
    HookFailed: lambda event: (f"Hook {event.hook} failed", event.why),
}


def _show(line: _Row, began: float, whole: float) -> None:
    step = line.step
    with tag("li", "inner" if line.depth else ""):
        with tag("div", "row"):
            tag("span", "grow", line.name)
            if step and step.is_error:
                badge("failed", "bad")
            if step and step.tries > 1:
                badge(f"{step.tries} tries", "busy")
            offset = f"+{_seconds(max(0.0, line.at - began))}"
            took = "" if step is None else f", {_seconds(step.seconds)}" if step.seconds is not None else ", not ended"
            tag("span", "soft small", f"{offset}{took}")
        if step:
            start = min(1.0, max(0.0, (line.at - began) / whole))
            width = min(1 - start, ((step.seconds or 0.0) / whole))
            with tag("div", "meter", aria_hidden="true"):
                bar = tag("span", "bad" if step.is_error else "" if step.kind == "model" else "busy")
                bar.style(f"left: {start:.2%}; width: {width:.2%}")
            if step.usage:
                used = f"{number(step.usage.input_tokens)} tokens in, {number(step.usage.output_tokens)} out"
                used += f", {number(step.usage.counted_tokens)} counted here" if step.usage.counted_tokens else ""
                tag("div", "soft small", f"{used}{f', {step.stop_reason}' if step.stop_reason else ''}")
        if line.text:
            long_text(line.text, "soft small")


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < _MINUTE else f"{value / _MINUTE:.1f} min"
