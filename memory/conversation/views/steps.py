"""The steps of a run: its calls of the model and of tools, and named steps, with their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from turnwise.memory.conversation.blocks import ToolResult, ToolUse
from turnwise.memory.conversation.events import (
    CallDecided,
    Event,
    ModelCallEnded,
    RunEnded,
    StepEnded,
    StepStarted,
    ToolEnded,
    ToolStarted,
)
from turnwise.memory.conversation.usage import Usage


@dataclass(frozen=True, kw_only=True)
class Step:
    """A call of the model or of a tool, or a step that an engine or a tool has named."""

    kind: Literal["model", "tool", "step"]
    name: str = ""
    """Of the tool or the named step."""
    call_id: str | None = None
    id: str | None = None
    """Of a named step: see `StepContext.step`."""
    parent: str | None = None
    """The id of the named step, or of the tool call, that a named step is part of."""
    started_at: float
    """Seconds since the epoch, UTC."""
    seconds: float | None
    """How long it took; None if it has not ended, or ended with the run."""
    tries: int = 1
    is_error: bool = False
    usage: Usage | None = None
    stop_reason: str | None = None


def steps_of(events: Iterable[Event]) -> list[Step]:
    """Return the steps of a run, from its stored events, in the order in which they began.

    A call whose result came from elsewhere, as from an agent, took from the model's call to its result, and is listed
    by its end.

    The last model call ends with the run. Its start is the time of the event before it, and it is not listed while the
    run goes on.
    """
    steps: list[Step] = []
    uses: dict[str, tuple[str, float]] = {}
    open_tools: dict[str, int] = {}
    open_steps: dict[str, int] = {}
    before = 0.0
    for event in events:
        if event.live:
            continue
        match event:
            case ModelCallEnded():
                uses |= {block.call_id: (block.name, event.at) for block in event.blocks if isinstance(block, ToolUse)}
                steps.append(
                    Step(
                        kind="model",
                        started_at=event.at - event.seconds,
                        seconds=event.seconds,
                        usage=event.usage,
                        stop_reason=event.stop_reason,
                    )
                )
            case ToolStarted():
                open_tools[event.call_id] = len(steps)
                steps.append(
                    Step(kind="tool", name=event.name, call_id=event.call_id, started_at=event.at, seconds=None)
                )
            case ToolEnded():
                step = Step(
                    kind="tool",
                    name=event.name,
                    call_id=event.call_id,
                    started_at=event.at - event.seconds,
                    seconds=event.seconds,
                    tries=event.tries,
                    is_error=event.is_error,
                )
                if event.call_id in open_tools:
                    steps[open_tools.pop(event.call_id)] = step
                else:
                    steps.append(step)
            case CallDecided(verdict="provided"):
                steps += _provided(event, uses)
            case StepStarted():
                open_steps[event.step] = len(steps)
                steps.append(
                    Step(
                        kind="step",
                        name=event.name,
                        id=event.step,
                        parent=event.parent,
                        started_at=event.at,
                        seconds=None,
                    )
                )
            case StepEnded() if event.step in open_steps:
                index = open_steps.pop(event.step)
                steps[index] = replace(steps[index], seconds=event.seconds, is_error=event.is_error)
            case RunEnded() if event.span and before:
                reason = getattr(event, "stop_reason", None)
                steps.append(
                    Step(kind="model", started_at=before, seconds=round(event.at - before, 6), stop_reason=reason)
                )
            case _:
                pass
        before = event.at
    return steps


def _provided(event: CallDecided, uses: Mapping[str, tuple[str, float]]) -> Iterator[Step]:
    """Yield the calls whose results an event provides, given the name and time of each call that the model has made."""
    for result in event.blocks:
        if isinstance(result, ToolResult) and result.call_id in uses:
            name, asked_at = uses[result.call_id]
            yield Step(
                kind="tool",
                name=name,
                call_id=result.call_id,
                started_at=asked_at,
                seconds=event.at - asked_at,
                is_error=result.is_error,
            )
