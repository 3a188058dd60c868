"""States of tool calls between the model's request and the result.

They are kept in the run's record, so that they outlive the session's process: a call that had begun when the process
was lost is not repeated unless its tool says that repeating does no harm, and a person's decision stays in force.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from turnwise.memory.conversation.blocks import Content, encode
from turnwise.memory.conversation.usage import Usage, plain
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.records import replace

Wants = Literal["approval", "result", "budget", "agent"]
"""What a call waits for: a person's approval, a result from outside, permission to exceed a limit, or an agent."""

Verdict = Literal["approved", "rejected", "provided"]


@dataclass(frozen=True, kw_only=True)
class CallState:
    """The state of a call. A call that ended without a decision has no state, only its result."""

    name: str
    """Of the tool."""
    wants: Wants | None = None
    """What the call waits for, or waited for before the verdict."""
    why: str | None = None
    """The reason that is shown to the person who decides."""
    verdict: Verdict | None = None
    digest: str | None = None
    """A digest of the decision. Repeating the same decision changes nothing; a different one is an error."""
    started: bool = False
    """Whether the tool was called."""
    agent: FrozenDict = field(default_factory=FrozenDict)
    """Of a call of an agent: the id of its `session`, and the `engine`, `memory` and `timeout_s` of that; its `budget`;
    its `batch`, which those that one answer calls share; and its `usage`, once it has ended. `background`: the call
    has its result, and the agent goes on. `asks`: what has waited for a decision there; see `questions_of`.
    `restarts`: how often it may begin again; `first`: the session of the first one; `lost`: the usage of those
    before it."""
    question: str | None = None
    """The engine's id of what it asked, if the engine has such ids: a later question about the call has another."""

    @property
    def is_waiting(self) -> bool:
        """Whether somebody has to decide."""
        return self.wants is not None and self.verdict is None


@dataclass(frozen=True, kw_only=True)
class ApprovalDecision:
    """A decision about a tool call.

    `input`: for an approved call, arguments that replace the model's. `text`: the reason of a rejection, or the
    provided result. `is_error`: whether the provided result reports a failure. `is_json`: whether it is JSON. `blocks`:
    the images, documents and texts beside its text.
    """

    verdict: Verdict
    input: Mapping[str, Any] | None = None
    text: str = ""
    is_error: bool = False
    is_json: bool = False
    blocks: tuple[Content, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of the decision, equal for equal decisions."""
        parts = (self.verdict, self.input, self.text, self.is_error, self.is_json, *map(encode, self.blocks))
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class PendingCall:
    """A call that somebody has to decide about."""

    call_id: str
    name: str
    input: FrozenDict
    wants: Wants
    why: str | None


def questions_of(calls: Mapping[str, CallState]) -> dict[str, Verdict | None]:
    """Return the verdicts of what waits, or has waited, for a decision: of these calls, and of calls below them.

    A call of an agent has a path: the id of the call of the agent, a slash, the path in the agent's run. The verdict is
    None while it waits. What an agent has asked that has ended since is rejected, if it was not decided before.
    """
    questions: dict[str, Verdict | None] = {}
    for call_id, state in calls.items():
        if state.agent:
            has_ended = bool(state.verdict or "usage" in state.agent)
            for path, verdict in (state.agent.get("asks") or {}).items():
                questions[f"{call_id}/{path}"] = verdict or ("rejected" if has_ended else None)
        elif state.wants:
            questions[call_id] = state.verdict
    return questions


def with_agent(state: CallState, **values: Any) -> CallState:
    """Return the state of a call of an agent with other values of `agent`."""
    return replace(state, agent=freeze({**state.agent, **values}))


def usage_of_agents(states: Iterable[CallState]) -> Usage:
    """Return what the agents of these calls have spent, and those that they have called; without those at work.

    Agents that one answer has called work at the same time, so their seconds are those of the longest.
    """
    total, seconds = Usage(), dict[int, float]()
    for state in states:
        if "usage" in state.agent:
            spent, batch = Usage(**state.agent["usage"]), state.agent["batch"]
            seconds[batch] = max(seconds.get(batch, 0.0), spent.seconds)
            total += replace(spent, seconds=0.0)
    return replace(total, seconds=sum(seconds.values()))


def with_usage(state: CallState, spent: Usage) -> CallState:
    """Return the state of a call whose agent has ended, and has spent this beside those that were lost."""
    return with_agent(state, usage=plain(spent + Usage(**state.agent.get("lost", {}))))


def encode_calls(calls: Mapping[str, CallState]) -> FrozenDict:
    """Return the states as a JSON object, for `RunRecord.calls`."""
    return FrozenDict(freeze({call_id: _fields(state) for call_id, state in calls.items()}))


def decode_calls(calls: Mapping[str, Any]) -> dict[str, CallState]:
    """Return the states that `encode_calls` wrote."""
    return {call_id: CallState(**state) for call_id, state in calls.items()}


def _fields(state: CallState) -> dict[str, Any]:
    return {name: value for name, value in vars(state).items() if value}
