"""Interrupts of a graph as calls that wait for a decision, and decisions as the values that the graph gets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pydantic_core

from turnwise.memory.conversation.blocks import Block, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.values.frozen_json import FrozenDict, freeze

INTERRUPT = "interrupt"
"""The name of the call that stands for an interrupt which is not about a tool call."""

_PREFIX = "interrupt-"
_REJECTED = "rejected: "


@dataclass(frozen=True)
class Request:
    """A tool call about which an interrupt asks, as a graph's middleware words it."""

    name: str
    args: Mapping[str, Any]
    why: str | None
    allowed: Sequence[str] = ()
    """What the graph accepts as a decision, if it says so."""


def is_interrupt(block: Block) -> bool:
    """Return whether a call or a result stands for an interrupt, and so is no message of the graph."""
    return isinstance(block, ToolUse | ToolResult) and block.call_id.startswith(_PREFIX)


def call_ids(interrupt_id: str) -> Iterator[str]:
    """Yield the ids of the calls for an interrupt: the first, then those of repeated questions."""
    first = f"{_PREFIX}{interrupt_id[:24]}"
    yield first
    yield from (f"{first}-{number}" for number in itertools.count(2))


def use_of(call_id: str, value: Any, schema: Any) -> ToolUse:
    """Return the call for an interrupt; what JSON does not have becomes text."""
    question = {"value": value} if schema is None else {"value": value, "response_schema": schema}
    plain = pydantic_core.from_json(pydantic_core.to_json(question, inf_nan_mode="strings", fallback=str))
    return ToolUse(call_id=call_id, name=INTERRUPT, input=FrozenDict(freeze(plain)))


def requests_of(value: Any) -> tuple[Request, ...]:
    """Return the tool calls that an interrupt asks about; empty if it asks something else.

    Knows the values of LangChain's `HumanInTheLoopMiddleware`, and of `langgraph.prebuilt.interrupt.HumanInterrupt`.
    """
    try:
        if isinstance(value, Mapping) and "action_requests" in value:
            reviews = {review.get("action_name"): review for review in value.get("review_configs") or ()}
            return tuple(
                Request(
                    action["name"],
                    action.get("args", action.get("arguments")) or {},
                    action.get("description"),
                    tuple(reviews.get(action["name"], {}).get("allowed_decisions") or ()),
                )
                for action in value["action_requests"]
            )
        questions = [value] if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else []
        return tuple(
            Request(
                question["action_request"]["action"],
                question["action_request"].get("args") or {},
                question.get("description"),
            )
            for question in questions
        )
    except (AttributeError, KeyError, TypeError):
        return ()


class _OpenCall(NamedTuple):
    id: str
    name: str
    args: Mapping[str, Any]


def match(requests: Sequence[Request], calls: Iterable[tuple[str, str, Mapping[str, Any]]]) -> list[str] | None:
    """Return the id of a call for each request; None if a request is about no call.

    Args:
        calls: id, name and arguments of each call of the newest message with calls.
    """
    open_calls, ids = [_OpenCall(*call) for call in calls], list[str]()
    for request in requests:
        named = [call for call in open_calls if call.name == request.name]
        same = [call for call in named if call.args == request.args] or named
        if not same:
            return None
        ids.append(same[0].id)
        open_calls.remove(same[0])
    return ids or None


@dataclass(frozen=True)
class Decided:
    """A call about which a decision was made."""

    state: CallState
    use: ToolUse
    """The call with the arguments that were approved."""
    arguments: Mapping[str, Any]
    """The arguments before the decision."""
    result: ToolResult | None

    def is_edited(self, request: Request) -> bool:
        """Return whether the decision changed the arguments, which a graph may word in a way of its own."""
        return _plain(self.use.input) not in (_plain(self.arguments), _plain(request.args))


def resume_value(value: Any, requests: Sequence[Request], ids: Sequence[str], decided: Mapping[str, Decided]) -> Any:
    """Return what a graph gets for the decisions about the calls of an interrupt.

    Args:
        value: the interrupt's value.
        ids: for each request, the id of its call in `decided`.
    """
    if isinstance(value, Mapping) and "action_requests" in value:
        return {
            "decisions": [_decision(request, decided[call_id]) for request, call_id in zip(requests, ids, strict=True)]
        }
    return [_response(request, decided[call_id]) for request, call_id in zip(requests, ids, strict=True)]


def answer_of(value: Any, state: CallState, result: ToolResult | None) -> Any:
    """Return what a graph gets for the decision about the call that stands for an interrupt.

    The value that was provided; else True for an approval and False for a rejection, or, if the interrupt asks about
    tool calls, the same decision about each.
    """
    if state.verdict == "provided" and result:
        return json.loads(result.text) if result.is_json else result.text
    if not (requests := requests_of(value)):
        return state.verdict == "approved"
    decided = {
        str(index): Decided(state, ToolUse(call_id="", name=request.name, input=arguments), arguments, result)
        for index, request in enumerate(requests)
        for arguments in [FrozenDict(freeze(dict(request.args)))]
    }
    return resume_value(value, requests, list(decided), decided)


def _decision(request: Request, decided: Decided) -> dict[str, Any]:
    if decided.state.verdict == "approved":
        if not decided.is_edited(request):
            return {"type": "approve"}
        return {"type": "edit", "edited_action": {"name": decided.use.name, "args": _plain(decided.use.input)}}
    text = decided.result.plain if decided.result else ""
    if decided.state.verdict == "provided" and "respond" in request.allowed:
        return {"type": "respond", "message": text}
    reason = text.removeprefix(_REJECTED)
    return {"type": "reject", "message": reason} if reason != "rejected" else {"type": "reject"}


def _response(request: Request, decided: Decided) -> dict[str, Any]:
    if decided.state.verdict == "approved":
        if not decided.is_edited(request):
            return {"type": "accept", "args": None}
        return {"type": "edit", "args": {"action": decided.use.name, "args": _plain(decided.use.input)}}
    if decided.state.verdict == "provided":
        return {"type": "response", "args": decided.result.plain if decided.result else ""}
    return {"type": "ignore", "args": None}


def _plain(value: Mapping[str, Any]) -> Any:
    return pydantic_core.from_json(pydantic_core.to_json(value))
