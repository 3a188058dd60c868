"""`Inbox`: carries out what other sessions of the user have addressed to this one."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, cast

from turnwise.actors.session.runs.admission import RunAdmission, StartOptions
from turnwise.actors.session.runs.approvals import Approvals
from turnwise.actors.session.runs.scheduling import FROM_SESSION
from turnwise.actors.session.state.alarm import Alarm
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import (
    CallDecidedError,
    CallNotFoundError,
    DeliveryChangedError,
    EmptyTurnError,
    InvalidInputError,
    RunNotFoundError,
    SessionEndedError,
    SessionNotFoundError,
    TurnwiseError,
)
from turnwise.memory.conversation.blocks import answer_text, decode
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, CallState
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.agent_calls import agent_result, call_of_agent, is_wanted
from turnwise.memory.deliveries.payload import read_run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.stores.agents import asked_by
from turnwise.memory.stores.reading import read_blocks


class _AgentEnd(NamedTuple):
    """The end of an agent."""

    text: str
    """Its answer, or what went wrong."""
    is_error: bool
    run: RunRecord | None
    """None if it has not begun, or is gone."""
    spent: Usage | None
    """What was spent on it; None if that is not known."""


class Inbox:
    """Carries out deliveries of other sessions, each once.

    A delivery is stored with its sender, and what it begins with this session, so no commit has both. The effect comes
    first, and is idempotent by the delivery's id. The removal follows, and is compared by revision. After a kill in
    between, the delivery is carried out again: that only removes it.

    While it awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, for the delivery | everything; its sender may cancel it | the delivery |
    | the commit of the effect | reads, streaming; a cancel, which comes too late | the delivery, perhaps the effect |
    | the removal | everything | the effect, perhaps the delivery |
    """

    def __init__(self, state: SessionState, admission: RunAdmission, approvals: Approvals, alarm: Alarm) -> None:
        self._state = state
        self._store = state.journal.store
        self._admission = admission
        self._approvals = approvals
        self._alarm = alarm

    async def receive(self, sender: str, key: str, delivery_id: str, revision: int) -> str | None:
        """Carry out a delivery of another session; durable on return. Return the id of its run, if it begins one.

        Nothing happens if it was carried out, cancelled or changed since it was found to be due.

        Args:
            sender: the session that has the delivery.

        Raises:
            SessionNotFoundError, SessionEndedError: this session takes no runs; nothing was stored.
            QueueFullError, SessionBusyError: it takes none now; nothing was stored. Try again later.
            InvalidInputError: the delivery can never be carried out; nothing was stored.
        """
        try:
            delivery = await self._store.delivery(SessionKey(sender, self._state.key.user_id), key)
        except SessionNotFoundError as error:
            if error.session_id != sender:
                raise
            return None
        if delivery is None or (delivery.delivery_id, delivery.revision) != (delivery_id, revision):
            return None
        run_id = None
        match delivery.kind:
            case "result":
                await self._provide(delivery)
            case "cancel":
                await self._cancel(delivery)
            case "asks":
                await self.hear(delivery.payload["run_id"], delivery.payload["agent"])
            case _:
                run_id = await self._begin_run(delivery)
        with suppress(DeliveryChangedError):
            await self._store.change_delivery(DeliveryChange(delivery, None))
        return run_id

    async def hear(self, run_id: str, agent: str) -> None:
        """Store what an agent of an open run asks, as it stands now; durable on return. May be repeated."""
        if (call := await self._call_of(run_id, agent)) is None:
            return
        key = SessionKey(agent, self._state.key.user_id)
        pending, run, revision = await asked_by(self._store, key, f"{call[0]}/")
        if run:
            await self._approvals.note_questions(run_id, call[0], run.questions, revision, pending)

    async def _begin_run(self, delivery: Delivery) -> str | None:
        """Start the run of a message or of an agent; a run that was started for it before is returned.

        An agent that is not wanted any more begins none. If it cannot begin one, its call's result is the error. Once
        the run is stored, it looks again: a cancel that came in between has found no run.
        """
        prompts, options = read_run_payload(delivery)
        options |= {"run_id": delivery.run_id, "if_busy": delivery.if_busy}
        if delivery.kind == "message":
            return (await self._admission.start(prompts, **cast(StartOptions, options))).run_id
        caller, agent, run_id = options["parent"], self._state.session_id, None
        if await self._call_of(caller, agent):
            try:
                run_id = (await self._admission.start(prompts, **cast(StartOptions, options))).run_id
            except (InvalidInputError, EmptyTurnError, SessionEndedError) as error:
                await self._refuse(caller, error)
                return None
        if await self._call_of(caller, agent) is None:
            await self._cancel(delivery)
        return run_id

    async def _call_of(self, run_id: str, agent: str) -> tuple[str, CallState] | None:
        """Return the call by which a run has called an agent, if the agent is wanted still; else None."""
        try:
            caller = await self._store.run(run_id, self._state.key.user_id)
        except RunNotFoundError:
            return None
        call = call_of_agent(caller, agent)
        return call if call and is_wanted(caller, call[1]) else None

    async def _refuse(self, run_id: str, error: TurnwiseError) -> None:
        """Store the delivery of an error as the result of the call of this agent. May be repeated."""
        session = await self._store.get(self._state.key)
        result = agent_result(session, run_id, self._state.journal.clock(), error=str(error)).after
        if result:
            await self._alarm.expect()
            await self._store.add_delivery(result)
            self._alarm.tell(result.occurs_at)

    async def _provide(self, delivery: Delivery) -> None:
        """Provide the result of an agent to the call that waits for it, or tell it; do nothing if it is not wanted."""
        run_id, agent, text = (delivery.payload[name] for name in ("run_id", "agent", "error"))
        if (call := await self._call_of(run_id, agent)) is None:
            return
        end = await self._end_of(agent) if text is None else _AgentEnd(text, True, None, Usage())
        (call_id, state), run = call, end.run
        restarts = state.agent.get("restarts") if run and run.state == "interrupted" else 0
        if run and restarts and await self._approvals.begin_again(run_id, call_id, run):
            return
        questions = run.questions if run else {}
        if state.agent.get("background"):
            await self._tell(agent, state, end)
            if end.spent is not None:
                await self._approvals.note_end(run_id, call_id, end.spent, questions)
            return
        decision = ApprovalDecision(verdict="provided", text=end.text, is_error=end.is_error)
        with suppress(RunNotFoundError, CallNotFoundError, CallDecidedError):
            await self._approvals.decide(run_id, call_id, decision, spent=end.spent, questions=questions)

    async def _tell(self, agent: str, state: CallState, end: _AgentEnd) -> None:
        """Have the active run, or a new one, take the end of an agent in the background as a message; once.

        The message names the agent by the id that the model was told when it was started.
        """
        verb = "has given no answer" if end.is_error else "has answered"
        prompt = f"The agent {state.agent.get('first', agent)} ({state.name}) {verb}:\n\n{end.text}"
        options: StartOptions = {"run_id": f"{agent}-end", "if_busy": "inject", "labels": {FROM_SESSION: agent}}
        await self._admission.start([prompt], **options)

    async def _end_of(self, run_id: str) -> _AgentEnd:
        """Return how an agent's run has ended."""
        try:
            run = await self._store.run(run_id, self._state.key.user_id)
            turns = await self._store.turns(run.session_key, after=run.turn_index - 1, limit=1)
        except (RunNotFoundError, SessionNotFoundError):
            return _AgentEnd("the agent's session was deleted", True, None, None)
        output = turns[0].output if turns and turns[0].index == run.turn_index else ()
        text = answer_text([decode(block) for block in await read_blocks(self._store, output)])
        spent = (run.usage or Usage()) + run.agents_usage
        if run.state == "completed":
            return _AgentEnd(text, False, run, spent)
        why = f"the agent's run is {run.state}: {run.why}"
        return _AgentEnd("\n\n".join(part for part in (why, text) if part), True, run, spent)

    async def _cancel(self, delivery: Delivery) -> None:
        """Cancel the run of an agent that is not wanted any more, if it has begun, and wait for its end.

        The store is asked first, since a session that was ever restored tells of a run that it lacks as of one that
        was lost, each time.
        """
        run_id, user_id = self._state.key
        with suppress(RunNotFoundError):
            await self._store.run(run_id, user_id)
            await self._admission.cancel(f"run of session {delivery.session_id!r} has ended", run_id)
