"""`RunOptions`: the options of a run, and their checks in the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from turnwise.actors.client.shared.arguments import (
    EventSink,
    IdempotencyKey,
    Instructions,
    MemoryUseArg,
    Model,
    NewLabels,
    Params,
    ParentRun,
    Retries,
    Seconds,
    Silence,
    Sink,
    TurnId,
    check_names,
    checked,
)
from turnwise.actors.client.shared.trace_context import callers_trace
from turnwise.actors.inference.tools.signature import output_record
from turnwise.actors.inference.tools.tool import Tool, record_of_tools
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.model_params import ModelParams
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.deliveries.payload import RUN_OPTIONS
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.limits import count_values
from turnwise.strategies.of_run import overflow_record
from turnwise.strategies.strategy import OverflowStrategy

if TYPE_CHECKING:
    from turnwise.actors.session.runs.admission import StartOptions

_LARGE = 50
"""The most values of the schema of an answer that is checked on the caller's event loop."""


class AnswerOptions(TypedDict, total=False):
    """How a run answers, which `Session.run` describes. All may be omitted."""

    parent: str | None
    timeout_s: float | None
    labels: Mapping[str, str] | None
    memory: MemoryUse | bool | None
    model: str | None
    params: ModelParams | None
    output: type[Any] | Mapping[str, Any] | None
    output_retries: int
    instructions: str | None
    tools: Sequence[Tool] | None
    overflow: OverflowStrategy | None


class LaterRunOptions(AnswerOptions, total=False):
    """The options of runs that `Session.schedule` may set; `Session.run` describes them. All may be omitted."""

    if_busy: IfBusy
    debounce_s: float | None


class RunOptions(LaterRunOptions, total=False):
    """The options of `Session.run` and `Session.start`, which describe them. All may be omitted."""

    turn_id: str | None
    idempotency_key: str | None
    on_event: EventSink | None


class RerunOptions(AnswerOptions, total=False):
    """The options of `Session.rerun`: those of `Session.run`, which describes them, but for what a busy session does.

    All may be omitted.
    """

    turn_id: str | None
    idempotency_key: str | None
    on_event: EventSink | None


def settings_of(options: RunOptions) -> StartOptions:
    """Return the options of a run as a session's process gets them. Large schemas take long.

    Raises:
        InvalidInputError: one is wrong.
        TypeError: there is no such option.
    """
    return with_records(checked_options(options), options)


def checked_options(options: RunOptions) -> dict[str, Any]:
    """Return the checked options of a run, before the answer's type and the tools are checked by `with_records`.

    Raises:
        InvalidInputError, TypeError: see `settings_of`.
    """
    check_names("Session.run()", options, list(RunOptions.__annotations__))
    return _settings(**options)


def later_options(settings: StartOptions) -> dict[str, Any]:
    """Return the options of a run as a delivery keeps them: those that are set."""
    return {name: value for name, value in settings.items() if value and name in RUN_OPTIONS and name != "trace"}


def takes_long(settings: Mapping[str, Any]) -> bool:
    """Return whether `with_records` takes so long that a thread should do it."""
    output = settings["output"]
    return bool(settings["tools"]) or (isinstance(output, Mapping) and count_values([output], _LARGE) > _LARGE)


def with_records(settings: dict[str, Any], options: RunOptions) -> StartOptions:
    """Return the options of a run with the records of the answer's type and of the tools, which are checked.

    Raises:
        InvalidInputError: one is wrong.
    """
    output, tools = settings["output"], settings["tools"]
    record = None if output is None else output_record(output, options.get("output_retries", 2))
    records = settings | {"output": record, "tools": record_of_tools(tools) if tools else {}}
    return cast("StartOptions", records)


@checked(
    turn_id=TurnId | None,
    parent=ParentRun | None,
    if_busy=IfBusy,
    debounce_s=Silence | None,
    idempotency_key=IdempotencyKey | None,
    timeout_s=Seconds | None,
    labels=NewLabels | None,
    memory=MemoryUseArg | None,
    model=Model | None,
    params=Params | None,
    output_retries=Retries,
    instructions=Instructions | None,
    on_event=Sink | None,
)
def _settings(
    *,
    turn_id: str | None = None,
    parent: str | None = None,
    if_busy: IfBusy = "reject",
    debounce_s: float | None = None,
    idempotency_key: str | None = None,
    timeout_s: float | None = None,
    labels: Mapping[str, str] | None = None,
    memory: MemoryUse | bool | None = None,
    model: str | None = None,
    params: ModelParams | None = None,
    output: Any = None,
    output_retries: int = 2,
    instructions: str | None = None,
    tools: Any = None,
    overflow: Any = None,
    on_event: EventSink | None = None,
) -> dict[str, Any]:
    return {
        "run_id": new_id(),
        "turn_id": turn_id,
        "parent": parent,
        "if_busy": if_busy,
        "debounce_s": debounce_s,
        "idempotency_key": idempotency_key,
        "timeout_s": timeout_s,
        "labels": dict(labels or {}),
        "memory": memory,
        "model": model,
        "params": params or {},
        "output": output,
        "instructions": instructions,
        "tools": tools,
        "overflow": None if overflow is None else overflow_record(overflow),
        **callers_trace(),
    }
