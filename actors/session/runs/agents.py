"""`AgentCalls`: creates the sessions of the agents that a run calls, and what the call's commit stores for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from turnwise.actors.inference.named_engines import chosen_name
from turnwise.actors.session.engines.budget import spent_of
from turnwise.actors.session.engines.spending import Spending
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import SessionExistsError
from turnwise.memory.conversation.blocks import Block, ToolUse
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import Inherited, SessionKey, SessionRecord
from turnwise.memory.conversation.usage import Usage, plain
from turnwise.memory.deliveries.agent_calls import agent_id, begin_agent
from turnwise.memory.deliveries.records import DeliveryChange
from turnwise.memory.values.frozen_json import freeze

LEAST_S = 0.001
"""The shortest time limit of an agent, in seconds."""


class AgentCalls:
    """Prepares the agents that a run is about to call.

    An agent's session is created before the commit of the call. A kill in between leaves a session without a run, which
    the repeated call uses, since its id is made of the run's and the call's.
    """

    def __init__(self, state: SessionState, spending: Spending) -> None:
        self._state = state
        self._journal = state.journal
        self._spending = spending

    def new(self, run: ActiveRun, calls: Mapping[str, CallState | None]) -> dict[str, CallState]:
        """Return the calls of agents among `calls` that the run does not have yet, each with what the agent may spend.

        The time that the run has left bounds each of them; see `Spending.shares` for the rest.
        """
        before = run.calls
        called = {call_id: state for call_id, state in calls.items() if state and state.agent and call_id not in before}
        if not called:
            return {}
        is_one_more = any(state.agent.get("background") for state in called.values())  # the caller, which goes on
        shares = self._spending.shares(run, len(called) + is_one_more)[: len(called)]
        batch = sum(bool(state.agent) for state in before.values())
        left_s = run.left_s
        for (call_id, state), budget in zip(called.items(), shares, strict=True):
            times = [time_s for time_s in (state.agent.get("timeout_s"), left_s) if time_s is not None]
            bounds = {"batch": batch, "budget": budget, "timeout_s": max(LEAST_S, min(times)) if times else None}
            called[call_id] = replace(state, agent=freeze({**state.agent, **bounds}))
        return called

    def again(self, call_id: str, state: CallState, lost: RunRecord) -> CallState:
        """Return the state of a call whose agent was lost, for another agent, with the time that that one has left."""
        agent = {name: value for name, value in state.agent.items() if name not in ("asks", "heard")}
        spent = (lost.usage or Usage()) + lost.agents_usage
        before = spent + Usage(**agent.get("lost", {}))
        timeout_s = agent["timeout_s"] and max(LEAST_S, agent["timeout_s"] - spent.seconds)
        agent |= {"first": agent.get("first", agent["session"])}
        agent |= {"session": agent_id(lost.run_id, call_id), "restarts": agent["restarts"] - 1, "lost": plain(before)}
        return replace(state, agent=freeze({**agent, "timeout_s": timeout_s}))

    async def create_sessions(self, run: ActiveRun, calls: Mapping[str, CallState]) -> None:
        """Create the sessions of the agents that a run calls, those excepted that exist. May be repeated."""
        session, now = self._journal.session, self._journal.clock()
        for state in calls.values():
            lost = Usage(**state.agent.get("lost", {}))
            budget = {name: max(0, limit - spent_of(name, lost)) for name, limit in state.agent["budget"].items()}
            agent = SessionRecord(
                session_id=state.agent["session"],
                user_id=session.user_id,
                agent=state.name,
                engine=state.agent.get("engine"),
                memory=state.agent.get("memory", "on"),
                called_by=session.session_id,
                inherited=Inherited(
                    depth=session.depth + 1, budget=freeze(budget), prefix_key=_shared_prefix(run, state)
                ),
                created_at=now,
                updated_at=now,
            )
            with suppress(SessionExistsError):
                await self._journal.store.create(agent)

    def begin(self, run: RunRecord, calls: Mapping[str, CallState], output: Iterable[Block]) -> list[DeliveryChange]:
        """Return the deliveries that begin the agents' runs, for the commit that stores their calls.

        Args:
            output: the run's output, with the calls.
        """
        uses = {block.call_id: block for block in output if isinstance(block, ToolUse)}
        now, own = self._journal.clock(), self._state.open_run(run.run_id)
        engine_id = (own and own.run_resources.engine_id) or None
        return [
            begin_agent(run, state.agent, str(uses[call_id].input["task"]), now, engine_id)
            for call_id, state in calls.items()
        ]


def _shared_prefix(run: ActiveRun, call: CallState) -> str:
    """Return the key of the run's prefix if the agent's requests begin with the same tools and system prompt.

    They do if both have the same engine, and the run has no model of its own.
    """
    whole = run.run_resources.whole
    name = chosen_name(whole.builder, call.agent.get("engine"), SessionKey(call.agent["session"], run.session.user_id))
    is_alike = (name or whole.first_name) == run.engine_name and run.record.model is None
    return run.prefix_key if is_alike else ""
