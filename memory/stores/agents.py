"""Sessions of agents in a store: which a session has called, what they ask, what a deleted one leaves to its caller."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.blocks import ToolUse, decode
from turnwise.memory.conversation.calls.tool_calls import CallState, PendingCall, decode_calls
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.agent_calls import handed_back
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import deliveries_of, pages_by_cursor, read_blocks
from turnwise.memory.values.frozen_json import FrozenDict


async def agents_below(store: SessionStore, key: SessionKey) -> list[SessionKey]:
    """Return the sessions of agents that a session has called, and of those that these have called, leaves first."""
    agents: dict[SessionKey, None] = {}
    unread = [key]
    while unread:
        caller = unread.pop()
        read = partial(store.query, user_id=caller.user_id, called_by=caller.session_id)
        async for page in pages_by_cursor(read):
            called = [*(session.key for session in page), *page.unreadable]
            unread += [agent for agent in called if agent not in agents and agent != key]
            agents |= dict.fromkeys(called)
    return [agent for agent in reversed(agents) if agent != key]


async def hand_back_results(store: SessionStore, key: SessionKey) -> float | None:
    """Give the results that an agent's session has yet to hand over to its caller, before the session is deleted.

    They are deliveries of the caller then. May be repeated: a call gets one result.

    Returns when one of them is due, in seconds since the epoch by the store's clock; None if there was none.
    """
    due_at = None
    async for delivery in deliveries_of(store, key):
        if delivery.kind == "result" and delivery.addressee != key:
            result = handed_back(delivery)
            with suppress(SessionNotFoundError):  # the caller was deleted
                await store.add_delivery(result)
                due_at = result.occurs_at
    return due_at


async def pending_calls(
    store: SessionStore, user_id: str, calls: Mapping[str, CallState], uses: Mapping[str, ToolUse], path: str = ""
) -> list[PendingCall]:
    """Return those of a run's calls that wait for a decision, and those of its agents, by their paths.

    Args:
        uses: the calls as the model made them, by their ids.
        path: what the paths begin with.
    """
    pending: list[PendingCall] = []
    for call_id, state in calls.items():
        name = path + call_id
        if state.agent:
            if None in (state.agent.get("asks") or {}).values() and not state.verdict and "usage" not in state.agent:
                pending += (await asked_by(store, SessionKey(state.agent["session"], user_id), f"{name}/"))[0]
        elif state.is_waiting and state.wants:
            arguments = FrozenDict(uses[call_id].input) if call_id in uses else FrozenDict()
            pending.append(
                PendingCall(call_id=name, name=state.name, input=arguments, wants=state.wants, why=state.why)
            )
    return pending


async def asked_by(
    store: SessionStore, agent: SessionKey, path: str = ""
) -> tuple[list[PendingCall], RunRecord | None, int]:
    """Return the calls that wait for decisions in an agent's open run; that run, None if none is open; its revision.

    The revision is that of the session, which is higher for a later state.
    """
    try:
        activation = await store.state(agent)
    except SessionNotFoundError:
        return [], None, 0
    revision = activation.session.revision
    run = next((run for run in activation.open_runs if run.run_id == agent.session_id), None)
    if run is None:
        return [], None, revision
    turn = next((turn for turn in activation.open_turns if turn.index == run.turn_index), None)
    blocks = [decode(text) for text in await read_blocks(store, turn.output if turn else ())]
    uses = {block.call_id: block for block in blocks if isinstance(block, ToolUse)}
    return await pending_calls(store, agent.user_id, decode_calls(run.calls), uses, path), run, revision
