"""What a delivery begins a run with: prompts, as stores keep blocks, and the options of the run.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import Block, decode
from turnwise.memory.conversation.calls.run_tools import are_tools
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.model_params import check_params
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.values.corrupt_records import why_unreadable
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.ids import check_id
from turnwise.memory.values.ranges import seconds
from turnwise.memory.values.records import Record, record_of


@dataclass(frozen=True, kw_only=True)
class RunPayload(Record):
    """The payload of a delivery that begins a run. The run's id and `if_busy` are the delivery's own."""

    prompts: tuple[str, ...]
    """Encoded blocks."""
    debounce_s: float | None = None
    parent: str | None = None
    timeout_s: float | None = None
    labels: FrozenDict = field(default_factory=FrozenDict)
    memory: MemoryUse | None = None
    model: str | None = None
    params: FrozenDict = field(default_factory=FrozenDict)
    output: FrozenDict | None = None
    instructions: str | None = None
    tools: FrozenDict = field(default_factory=FrozenDict)
    overflow: FrozenDict | None = None
    trace: FrozenDict = field(default_factory=FrozenDict)
    author: str | None = None
    """The member for whom it begins a run; None for the session's user."""


RUN_OPTIONS = tuple(option.name for option in fields(RunPayload) if option.name != "prompts")
"""The options of `Session.run` that a delivery may have."""


def run_payload(encoded: Sequence[str], options: Mapping[str, Any]) -> FrozenDict:
    """Return the payload of a delivery that begins a run with these prompts, as stored text, and these options.

    Options that are None are left out.
    """
    set_options = {name: value for name, value in options.items() if value is not None}
    payload: FrozenDict = freeze({"prompts": list(encoded), **set_options})
    return payload


def read_run_payload(delivery: Delivery) -> tuple[list[Block], dict[str, Any]]:
    """Return the prompts and the options of the run that a delivery begins.

    Raises:
        InvalidInputError: it begins no run, or its payload is not one that `run_payload` returns for a valid run.
    """
    if delivery.kind not in ("prompt", "message"):
        raise InvalidInputError("kind", delivery.kind, f"delivery {delivery.key!r} begins no run")
    try:
        payload = record_of(RunPayload, delivery.payload)
        prompts: list[Block] = [decode(text) for text in payload.prompts]
        _check_options(payload)
    except InvalidInputError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"delivery {delivery.key!r} begins no run with it: {why_unreadable(error)}"
        raise InvalidInputError("payload", shown(delivery.payload), reason) from None
    return prompts, {name: getattr(payload, name) for name in delivery.payload if name != "prompts"}


def _check_options(payload: RunPayload) -> None:
    for time_s in (payload.debounce_s, payload.timeout_s):
        if time_s is not None:
            seconds(time_s)
    for name in (payload.parent, payload.model, payload.author):
        if name is not None:
            check_id("id", name)
    check_params("params", payload.params)
    if payload.output is not None and not OutputType.is_record(payload.output):
        raise InvalidInputError("output", shown(payload.output), "must be a schema and a number of retries")
    if not are_tools(payload.tools):
        raise InvalidInputError("tools", shown(payload.tools), "must have names, descriptions and schemas of objects")
    for option in ("labels", "trace"):
        values = getattr(payload, option)
        if not all(isinstance(value, str) for value in values.values()):
            raise InvalidInputError(option, shown(values), "must be text")
