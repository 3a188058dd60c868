"""What a delivery begins a run with: prompts, as stores keep blocks, and the options of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import Block, decode
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.values.frozen_json import FrozenDict, freeze

RUN_OPTIONS = (
    *("debounce_s", "parent", "timeout_s", "labels", "memory", "model", "params", "output", "instructions", "tools"),
    "trace",
)
"""The options of `Session.run` that a payload may have. A run's id and `if_busy` are the delivery's own."""


def run_payload(encoded: Sequence[str], options: Mapping[str, Any]) -> FrozenDict:
    """Return the payload of a delivery that begins a run with these prompts, as stored text, and these options.

    Options that are None are left out.

    Raises:
        TypeError: JSON cannot hold an option.
    """
    set_options = {name: value for name, value in options.items() if value is not None}
    payload: FrozenDict = freeze({"prompts": list(encoded), "options": set_options})
    return payload


def read_run_payload(delivery: Delivery) -> tuple[list[Block], dict[str, Any]]:
    """Return the prompts and the options of the run that a delivery begins.

    Raises:
        InvalidInputError: it begins no run, or its payload is not what `run_payload` returns.
    """
    if delivery.kind == "call":
        raise InvalidInputError("kind", delivery.kind, f"delivery {delivery.key!r} calls a URL, and begins no run")
    payload = delivery.payload
    try:
        prompts: list[Block] = [decode(text) for text in payload["prompts"]]
        options = dict(payload["options"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f"delivery {delivery.key!r} has no prompts and options that can be read ({type(error).__name__})"
        raise InvalidInputError("payload", shown(payload), reason) from None
    if unknown := options.keys() - set(RUN_OPTIONS):
        reason = f"delivery {delivery.key!r} has options that are none of {', '.join(RUN_OPTIONS)}"
        raise InvalidInputError("payload", shown(sorted(unknown)), reason)
    return prompts, options
