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
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange, DeliveryKind
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.records import replace


def agent_id(run_id: str, call_id: str) -> str:
    """Return the id of the session of the agent that a call of a run calls, and of its run there.

    Of one that begins after another was lost, `run_id` is the other one's id.
    """
    return f"agent-{hashlib.blake2b(f'{len(run_id)}:{run_id}{call_id}'.encode(), digest_size=16).hexdigest()}"


def begin_agent(
    caller: RunRecord, agent: Mapping[str, Any], task: str, now: float, engine_id: str | None = None
) -> DeliveryChange:
    """Return the addition of a delivery that begins an agent's run.

    Args:
        agent: `CallState.agent`.
        engine_id: the caller's engine, with which the agent answers.
    """
    options = {"parent": caller.run_id, "timeout_s": agent.get("timeout_s"), "trace": caller.trace or None}
    options["author"] = caller.author
    payload = run_payload([encode(User(text=task))], options)
    name = agent["session"]
    return _addition("prompt", caller.session_key, name, name, payload=payload, now=now, engine_id=engine_id)


def call_of_agent(caller: RunRecord, agent: str) -> tuple[str, CallState] | None:
    """Return the id and the state of the call by which a run has called the agent of this session; None if none has."""
    calls = decode_calls(caller.calls).items()
    return next((call for call in calls if call[1].agent and call[1].agent["session"] == agent), None)


def is_wanted(caller: RunRecord, state: CallState) -> bool:
    """Return whether an agent is to begin, or its end to be told: its call waits, or goes on in the background."""
    if state.agent.get("background"):
        return "usage" not in state.agent and (caller.is_open or caller.state == "completed")
    return caller.is_open and state.is_waiting


def deliveries_of_ends(session: SessionRecord, runs: Iterable[RunRecord], now: float) -> list[DeliveryChange]:
    """Return what a commit that stores these runs of a session adds: results of those that have ended, and cancels.

    An agent's run sends its result to its caller. A run that has ended cancels the agents that it still waits for, and
    those in the background, unless it completed.
    """
    additions: list[DeliveryChange] = []
    for run in runs:
        if run.is_open:
            continue
        if session.called_by is not None and run.run_id == session.session_id:
            additions.append(agent_result(session, run.parent, now))
        at_work = [state for state in decode_calls(run.calls).values() if state.agent and "usage" not in state.agent]
        useless = [
            state
            for state in at_work
            if state.is_waiting or (state.agent.get("background") and run.state != "completed")
        ]
        additions += [cancel_agent(run.session_key, state, now) for state in useless]
    return additions


def agent_asks(session: SessionRecord, run: RunRecord, now: float) -> DeliveryChange:
    """Return the addition of a delivery that tells an agent's caller that something else waits for decisions there.

    Args:
        session: the row with which it is stored. Each revision has an id of its own.
    """
    payload: FrozenDict = freeze({"run_id": run.parent, "agent": session.session_id})
    name = f"{session.session_id}-asks-{session.revision}"
    return _addition("asks", session.key, session.called_by or "", name, payload=payload, now=now)


def agent_result(
    session: SessionRecord, caller_run: str | None, now: float, error: str | None = None
) -> DeliveryChange:
    """Return the addition of a delivery that says that an agent's run has ended, or why it has not begun."""
    payload = _result_of(caller_run, session.session_id, error)
    name = f"{session.session_id}-result"
    return _addition("result", session.key, session.called_by or "", name, payload=payload, now=now)


def handed_back(result: Delivery) -> Delivery:
    """Return the result of an agent, whose session is about to be deleted, as a delivery of the caller to itself."""
    name, caller = f"{result.delivery_id}-back", result.addressee.session_id
    return replace(
        result, session_id=caller, delivery_id=name, key=name, revision=1, due_at=result.occurs_at, attempts=0, why=None
    )


def refused_begin(begin: Delivery, error: str | None, now: float) -> Delivery | None:
    """Return what the delivery that was to begin an agent becomes, as it never can: its result, for the caller itself.

    Args:
        begin: that delivery; for any other delivery, the result is None.
        error: why; None if the agent's session was deleted.
    """
    if begin.kind != "prompt" or begin.to_session is None:
        return None
    payload = _result_of(begin.payload["parent"], begin.to_session, error)
    result = replace(begin, kind="result", to_session=begin.session_id, payload=payload, occurs_at=now, due_at=now)
    return replace(result, attempts=0, why=None, revision=begin.revision + 1)


def _result_of(caller_run: str | None, agent: str, error: str | None) -> FrozenDict:
    payload: FrozenDict = freeze({"run_id": caller_run, "agent": agent, "error": error})
    return payload


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
    engine_id: str | None = None,
) -> DeliveryChange:
    delivery = Delivery(
        **sender._asdict(),
        delivery_id=delivery_id,
        key=delivery_id,
        to_session=to_session,
        engine_id=engine_id,
        kind=kind,
        payload=payload,
        occurs_at=now,
        due_at=now,
        created_at=now,
    )
    return DeliveryChange(None, delivery)
