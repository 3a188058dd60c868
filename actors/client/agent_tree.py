"""`agents_of`: the agents that a run has called, and those that they have called, as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.errors import RunNotFoundError, SessionNotFoundError
from turnwise.memory.conversation.calls.tool_calls import decode_calls
from turnwise.memory.conversation.runs import RunRecord

MOST = 500
"""How many agents a tree has at most."""


@dataclass(frozen=True, kw_only=True)
class AgentRun:
    """The run of an agent in a tree."""

    execution: AsyncExecutionHandle
    name: str
    """The agent's name, which is that of its tool."""
    call_id: str
    """The call by which it was called."""
    parent: str
    """The run that has called it."""
    depth: int
    """1: called by the run at the top of the tree."""
    record: RunRecord | None
    """None: its run has not begun, or its session was deleted."""


@dataclass(frozen=True, kw_only=True)
class AgentTree:
    """The runs of agents below a run: each is followed by those that it has called, in the order of the calls."""

    agents: Sequence[AgentRun]
    is_cut: bool
    """Whether there are more than `MOST`; the others are left out."""


async def agents_of(execution: AsyncExecutionHandle) -> AgentTree:
    """Return the tree of agents below a run. Costs two requests for each run that has called agents, one for others.

    Raises:
        SessionNotFoundError, RunNotFoundError: the run at the top does not exist.
    """
    agents: list[AgentRun] = []
    is_whole = await _add(agents, execution, await execution.info(), 1)
    return AgentTree(agents=agents, is_cut=not is_whole)


async def _add(agents: list[AgentRun], caller: AsyncExecutionHandle, record: RunRecord, depth: int) -> bool:
    """Add the agents that a run has called, and those below them; return False if there are too many."""
    calls = {state.agent["session"]: call for call in decode_calls(record.calls).items() if (state := call[1]).agent}
    for child in await caller.children() if calls else ():
        if child.session_id not in calls:  # called since the record was read
            continue
        if len(agents) == MOST:
            return False
        call_id, state = calls[child.session_id]
        try:
            run: RunRecord | None = await child.info()
        except (SessionNotFoundError, RunNotFoundError):
            run = None
        names = {"name": state.name, "call_id": call_id, "parent": caller.run_id}
        agents.append(AgentRun(execution=child, depth=depth, record=run, **names))
        if run and not await _add(agents, child, run, depth + 1):
            return False
    return True
