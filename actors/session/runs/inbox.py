"""`Inbox`: carries out what other sessions of the user have addressed to this one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from turnwise.actors.session.runs.admission import RunAdmission, StartOptions
from turnwise.actors.session.runs.approvals import Approvals
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
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, decode_calls
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.agent_calls import agent_result
from turnwise.memory.deliveries.payload import read_run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.stores.reading import read_blocks


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
            case _:
                run_id = await self._begin_run(delivery)
        with suppress(DeliveryChangedError):
            await self._store.change_delivery(DeliveryChange(delivery, None))
        return run_id

    async def _begin_run(self, delivery: Delivery) -> str | None:
        """Start the run of a prompt or a message; a run that was started for it before is returned.

        A call of an agent for which nobody waits any more begins none. If one can begin none, its result is the error.
        """
        prompts, options = read_run_payload(delivery)
        options |= {"run_id": delivery.run_id, "if_busy": delivery.if_busy}
        if not options.get("parent_call"):
            return (await self._admission.start(prompts, **cast(StartOptions, options))).run_id
        if not await self._is_awaited(options["parent"], options["parent_call"]):
            return None
        try:
            return (await self._admission.start(prompts, **cast(StartOptions, options))).run_id
        except (InvalidInputError, EmptyTurnError, SessionEndedError) as error:
            await self._refuse(delivery, options, error)
            return None

    async def _is_awaited(self, run_id: str, call_id: str) -> bool:
        """Return whether a run waits for the agent that a call of it calls."""
        try:
            caller = await self._store.run(run_id, self._state.key.user_id)
        except RunNotFoundError:
            return False
        state = decode_calls(caller.calls).get(call_id)
        return caller.is_open and state is not None and state.is_waiting

    async def _refuse(self, delivery: Delivery, options: Mapping[str, Any], error: TurnwiseError) -> None:
        """Store the delivery of an error as the result of a call. May be repeated."""
        names = {name: options[name] for name in ("parent", "parent_session", "parent_call")}
        run = RunRecord(
            **self._state.key._asdict(),
            run_id=delivery.run_id,
            turn_index=0,
            state="failed",
            first_seq=0,
            created_at=delivery.created_at,
            **names,
        )
        result = agent_result(self._state.key, run, delivery.created_at, error=str(error))
        await self._alarm.expect()
        if result.after:
            await self._store.add_delivery(result.after)
            self._alarm.tell(delivery.created_at)

    async def _provide(self, delivery: Delivery) -> None:
        """Provide the result of an agent to the call that waits for it; do nothing if none does any more."""
        result = delivery.payload
        text, is_error = result["error"], True
        if text is None:
            text, is_error = await self._answer_of(str(result["agent_run"]))
        decision = ApprovalDecision(verdict="provided", text=text, is_error=is_error)
        with suppress(RunNotFoundError, CallNotFoundError, CallDecidedError):
            await self._approvals.decide(str(result["run_id"]), str(result["call_id"]), decision)

    async def _answer_of(self, run_id: str) -> tuple[str, bool]:
        """Return what an agent's run has answered, and whether it reports an error."""
        try:
            run = await self._store.run(run_id, self._state.key.user_id)
            turns = await self._store.turns(run.session_key, after=run.turn_index - 1, limit=1)
        except (RunNotFoundError, SessionNotFoundError):
            return "the agent's session was deleted", True
        output = turns[0].output if turns and turns[0].index == run.turn_index else ()
        text = answer_text([decode(block) for block in await read_blocks(self._store, output)])
        if run.state == "completed":
            return text, False
        return "\n\n".join(part for part in (f"the agent's run is {run.state}: {run.why}", text) if part), True

    async def _cancel(self, delivery: Delivery) -> None:
        """Cancel the run of an agent, whose caller has ended, and wait for its end."""
        with suppress(RunNotFoundError):
            await self._admission.cancel(f"run of session {delivery.session_id!r} has ended", self._state.session_id)
