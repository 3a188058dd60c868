"""`Inbox`: carries out what other sessions of the user have addressed to this one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from turnwise.actors.session.runs.admission import Received, RunAdmission, Started, StartOptions
from turnwise.actors.session.runs.approvals import Approvals
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import (
    CallDecidedError,
    CallNotFoundError,
    DeliveryChangedError,
    DuplicateKeyError,
    EmptyTurnError,
    InvalidInputError,
    RunNotFoundError,
    SessionEndedError,
    SessionNotFoundError,
    TurnwiseError,
)
from turnwise.memory.conversation.blocks import answer_text, decode
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, CallState
from turnwise.memory.conversation.runs import FROM_SESSION, RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.agent_calls import agent_result, call_of_agent, is_wanted
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

    A delivery is stored with its sender. The commit that carries it out here also removes it there, compared by its
    revision; so a repeated one is refused, and a cancel excludes it. Some effects have commits of their own, as they
    may be repeated: they come first, and another commit of this session removes the delivery. After a kill in between,
    the delivery is carried out again, which only removes it. After a restore in between, the store refuses the removal.

    While it awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, for the run that has called an agent | everything, but a start of the agent's run | the delivery |
    | the commit of the effect | reads, streaming; a change of the delivery, which one of both finds | one of both |
    | the removal, after another effect | reads, streaming | the effect, perhaps the delivery |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        admission: RunAdmission,
        approvals: Approvals,
    ) -> None:
        self._state = state
        self._store = state.journal.store
        self._transactor = transactor
        self._admission = admission
        self._approvals = approvals

    async def receive(self, delivery: Delivery) -> str | None:
        """Carry out a delivery of another session; durable on return. Return the id of its run, if it begins one.

        Nothing happens if it was carried out, cancelled or changed since it was read.

        Raises:
            SessionNotFoundError, SessionEndedError: this session takes no runs; nothing was stored.
            QueueFullError, SessionBusyError: it takes none now; nothing was stored. Try again later.
            InvalidInputError: the delivery can never be carried out; nothing was stored.
        """
        started: Started | None = None
        is_removed = False
        with suppress(DeliveryChangedError):
            match delivery.kind:
                case "result":
                    is_removed = await self._provide(delivery)
                case "cancel":
                    await self._cancel(delivery)
                case "asks":
                    await self.hear(delivery.payload["run_id"], delivery.payload["agent"])
                case "message":
                    started, is_removed = await self._admission.receive(delivery)
                case _:
                    started, is_removed = await self._begin_agent(delivery)
            if not is_removed:
                await self._commit([DeliveryChange(delivery, None)])
        return started.run_id if started else None

    async def hear(self, run_id: str, agent: str) -> None:
        """Store what an agent of an open run asks, as it stands now; durable on return. May be repeated."""
        if (call := await self._call_of(run_id, agent)) is None:
            return
        key = SessionKey(agent, self._state.key.user_id)
        pending, run, revision = await asked_by(self._store, key, f"{call[0]}/")
        if run:
            await self._approvals.note_questions(run_id, call[0], run.questions, revision, pending)

    async def _begin_agent(self, delivery: Delivery) -> Received:
        """Start the run of an agent; a run that was started for it before is returned.

        An agent that is not wanted any more begins none. If it cannot begin one, its call's result is the error.

        The caller's row is another session's, so a restore may change it unseen. Therefore it is read again after a
        commit of this session, which a store that went back to an earlier time lacks: that store refuses the removal.
        """
        caller = delivery.payload["parent"]

        async def is_wanted() -> bool:
            return await self._call_of(caller, self._state.session_id) is not None

        while True:
            try:
                received = await self._admission.receive(delivery, is_wanted)
            except (InvalidInputError, EmptyTurnError, SessionEndedError) as error:
                if await is_wanted():
                    return Received(None, await self._refuse(delivery, error))
                received = Received(None, is_removed=False)
            if received.started or received.is_removed:
                return received
            await self._admission.prove_ownership()
            if not await is_wanted():
                return received

    async def _call_of(self, run_id: str, agent: str) -> tuple[str, CallState] | None:
        """Return the call by which a run has called an agent, if the agent is wanted still; else None.

        A run of this session may have calls that are stored, while it still waits for the store's answer.
        """
        own = self._state.open_run(run_id)
        if own and (call := _wanted_call(own.record, agent)):
            return call
        try:
            return _wanted_call(await self._store.run(run_id, self._state.key.user_id), agent)
        except RunNotFoundError:
            return None

    async def _refuse(self, begin: Delivery, error: TurnwiseError) -> bool:
        """Store an error as the result of the call of this agent, in place of the delivery that was to begin it.

        Returns False if the agent has a result already; then nothing was stored.
        """
        await self._transactor.loaded()
        session, now = self._state.journal.session, self._state.journal.clock()
        result = agent_result(session, begin.payload["parent"], now, error=str(error))
        try:
            await self._commit([result, DeliveryChange(begin, None)])
        except DuplicateKeyError:
            return False
        return True

    async def _commit(self, deliveries: Sequence[DeliveryChange]) -> None:
        """Store what becomes of deliveries, and nothing else."""
        journal = self._state.journal
        await self._transactor.run(lambda: self._transactor.commit(journal.session, deliveries=deliveries))

    async def _provide(self, delivery: Delivery) -> bool:
        """Provide the result of an agent to the call that waits for it, or tell it; do nothing if it is not wanted.

        Returns whether the commit that does so has removed the delivery.
        """
        run_id, agent, text = (delivery.payload[name] for name in ("run_id", "agent", "error"))
        await self._transactor.loaded()
        if (call := await self._call_of(run_id, agent)) is None:
            return False
        end = await self._end_of(agent) if text is None else _AgentEnd(text, True, None, Usage())
        (call_id, state), run = call, end.run
        if run and run.is_open:  # the store went back to before this delivery was stored
            raise DeliveryChangedError(delivery.session_id, delivery.delivery_id)
        restarts = state.agent.get("restarts") if run and run.state == "interrupted" else 0
        if run and restarts and await self._approvals.begin_again(run_id, call_id, run):
            return False
        questions = run.questions if run else {}
        if state.agent.get("background"):
            await self._tell(agent, state, end, await self._author_of(run_id))
            if end.spent is not None:
                await self._approvals.note_end(run_id, call_id, end.spent, questions)
            return False
        decision = ApprovalDecision(verdict="provided", text=end.text, is_error=end.is_error)
        with suppress(RunNotFoundError, CallNotFoundError, CallDecidedError):
            removal = [DeliveryChange(delivery, None)]
            return await self._approvals.decide(
                run_id, call_id, decision, spent=end.spent, questions=questions, deliveries=removal
            )
        return False

    async def _author_of(self, run_id: str) -> str | None:
        """Return the member who has started a run that has called an agent."""
        own = self._state.open_run(run_id)
        return (own.record if own else await self._store.run(run_id, self._state.key.user_id)).author

    async def _tell(self, agent: str, state: CallState, end: _AgentEnd, author: str | None) -> None:
        """Have the active run, or a new one, take the end of an agent in the background as a message; once.

        The message names the agent by the id that the model was told when it was started.
        """
        verb = "has given no answer" if end.is_error else "has answered"
        prompt = f"The agent {state.agent.get('first', agent)} ({state.name}) {verb}:\n\n{end.text}"
        options: StartOptions = {"run_id": f"{agent}-end", "if_busy": "inject", "labels": {FROM_SESSION: agent}}
        options["author"] = author
        await self._admission.start([prompt], **options)

    async def _end_of(self, run_id: str) -> _AgentEnd:
        """Return how an agent's run has ended."""
        key = SessionKey(run_id, self._state.key.user_id)
        try:
            run, turns = await asyncio.gather(self._store.run(run_id, key.user_id), self._store.turns(key, limit=1))
            if run.turn_index:
                turns = await self._store.turns(key, after=run.turn_index - 1, limit=1)
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
        """Cancel the run of an agent that is not wanted any more, and wait for its end. It never begins later.

        A run that is about to begin, as its caller had not ended yet, is stored once `prove_ownership` returns. The
        store is asked first, since a session that was ever restored tells of a run that it lacks as of one that was
        lost, each time.
        """
        if not await self._has_cancelled(delivery):
            await self._admission.prove_ownership()
            await self._has_cancelled(delivery)

    async def _has_cancelled(self, delivery: Delivery) -> bool:
        """Cancel the run of this agent, and wait for its end; return whether it has begun."""
        run_id, user_id = self._state.key
        try:
            await self._store.run(run_id, user_id)
            await self._admission.cancel(f"run of session {delivery.session_id!r} has ended", run_id)
        except RunNotFoundError:
            return False
        return True


def _wanted_call(caller: RunRecord, agent: str) -> tuple[str, CallState] | None:
    call = call_of_agent(caller, agent)
    return call if call and is_wanted(caller, call[1]) else None
