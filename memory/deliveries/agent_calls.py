"""Deliveries between a run and the agents that its tools call: begin, result and cancel.

An agent's session and its run have one id, made of the caller's run and call. So each delivery can be repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.calls.tool_calls import CallState, decode_calls
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange, DeliveryKind
from turnwise.memory.values.frozen_json import FrozenDict, freeze


def agent_id(run_id: str, call_id: str) -> str:
    """Return the id of the session of the agent that a call of a run calls, and of its run there."""
    return f"agent-{hashlib.blake2b(f'{len(run_id)}:{run_id}{call_id}'.encode(), digest_size=16).hexdigest()}"


def begin_agent(caller: RunRecord, call_id: str, agent: Mapping[str, Any], task: str, now: float) -> DeliveryChange:
    """Return the addition of a delivery that begins an agent's run.

    Args:
        agent: `CallState.agent`.
    """
    options = {
        "parent": caller.run_id,
        "parent_session": caller.session_id,
        "parent_call": call_id,
        "timeout_s": agent.get("timeout_s"),
    }
    payload = run_payload([encode(User(text=task))], options)
    return _addition("prompt", caller.session_key, agent["session"], agent["session"], payload=payload, now=now)


def deliveries_of_ends(runs: Iterable[RunRecord], now: float) -> list[DeliveryChange]:
    """Return what the commit that stores these runs adds: the results of those that have ended, and their cancels.

    A run that an agent's call has begun sends its result to the caller; a run that has ended cancels the agents that it
    still waits for.
    """
    additions: list[DeliveryChange] = []
    for run in runs:
        if run.is_open:
            continue
        if run.parent_session is not None:
            additions.append(agent_result(run.session_key, run, now))
        awaited = [state for state in decode_calls(run.calls).values() if state.agent and state.is_waiting]
        additions += [cancel_agent(run.session_key, state, now) for state in awaited]
    return additions


def agent_result(sender: SessionKey, run: RunRecord, now: float, error: str | None = None) -> DeliveryChange:
    """Return the addition of a delivery that brings the result of an agent's run to its caller, or why it has none."""
    payload: FrozenDict = freeze(
        {"run_id": run.parent, "call_id": run.parent_call, "agent_run": run.run_id, "error": error}
    )
    return _addition("result", sender, run.parent_session or "", f"{run.run_id}-result", payload=payload, now=now)


def cancel_agent(sender: SessionKey, state: CallState, now: float) -> DeliveryChange:
    """Return the addition of a delivery that cancels the run of an agent."""
    session = state.agent["session"]
    return _addition("cancel", sender, session, f"{session}-cancel", payload=FrozenDict(), now=now)


def _addition(
    kind: DeliveryKind,
    sender: SessionKey,
    to_session: str,
    delivery_id: str,
    *,
    payload: FrozenDict,
    now: float,
) -> DeliveryChange:
    delivery = Delivery(
        **sender._asdict(),
        delivery_id=delivery_id,
        key=delivery_id,
        to_session=to_session,
        kind=kind,
        payload=payload,
        occurs_at=now,
        due_at=now,
        created_at=now,
    )
    return DeliveryChange(None, delivery)
