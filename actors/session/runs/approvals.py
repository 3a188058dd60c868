"""`Approvals`: stores decisions about tool calls that wait for one, and resumes their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from turnwise.actors.inference.attempt import reason
from turnwise.actors.inference.engine import CallChecker, EngineBuilder, NewEvent, Selective
from turnwise.actors.session.acting import check_acting, check_own
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.runs.agents import AgentCalls
from turnwise.actors.session.runs.prompt_joining import Joining, PromptJoining
from turnwise.actors.session.runs.run_driver import RunDriver
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.reads import SessionReads
from turnwise.actors.session.state.recorded_output import RecordedOutput
from turnwise.actors.session.state.run_events import about, question_events
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import CallDecidedError, CallNotFoundError, EngineError, InvalidInputError, shown
from turnwise.memory.conversation.blocks import Block, Content, Text, ToolResult, ToolUse, described
from turnwise.memory.conversation.calls.tool_calls import (
    ApprovalDecision,
    CallState,
    PendingCall,
    Verdict,
    decode_calls,
    encode_calls,
    with_agent,
    with_usage,
)
from turnwise.memory.conversation.events import CallDecided, RunResumed
from turnwise.memory.conversation.runs import QUOTA, RunRecord, RunState
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.records import DeliveryChange
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.values.growing_text import whole
from turnwise.memory.values.limits import count_values

_LARGE = 200
"""The maximum number of argument values that are checked on the event loop; a schema takes some 10 µs for each."""


class Approvals:
    """Stores decisions about waiting tool calls, and resumes a run when all of its calls are decided."""

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        *,
        driver: RunDriver,
        joining: PromptJoining,
        reads: SessionReads,
        agents: AgentCalls,
    ) -> None:
        self._reads = reads
        self._agents = agents
        self._driver = driver
        self._joining = joining
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines

    async def decide(
        self,
        run_id: str,
        call_id: str,
        decision: ApprovalDecision,
        *,
        spent: Usage | None = None,
        questions: Mapping[str, Verdict | None] | None = None,
        deliveries: Sequence[DeliveryChange] = (),
    ) -> bool:
        """Decide a waiting tool call; durable on return. The run continues when all of its calls are decided.

        Returns whether it was decided now, and not before.

        Idempotent: repeating a decision changes nothing, whatever the run's state. A rejection or a provided result is
        part of the run's output at once, so it is kept even if the run is cancelled afterwards. Of a merged run, the
        calls are those of the run that has its prompts.

        Args:
            spent: what the agent has spent that was called, if it has ended.
            questions: what has waited for decisions in the run of this agent; see `questions_of`.
            deliveries: what becomes of deliveries with the commit of the decision, if this call makes it.

        Raises:
            DeliveryChangedError: one of the deliveries has changed; nothing was stored.
            NotAllowedError: a member, who is no owner, decides for a run of somebody else; nothing was stored.
            RunNotFoundError: the session has no such run.
            CallNotFoundError: no such call of the run waits, or has waited, for a decision.
            CallDecidedError: the call was decided differently, or the run has ended.
            InvalidInputError: the call does not allow this decision, the tool does not accept these arguments, or the
                engine does not take an image or document; nothing was stored.
            EngineError: the arguments cannot be checked, since the engine cannot be built; nothing was stored.
        """
        run_id = await self._reads.leading(run_id)
        await self._transactor.loaded()
        if decision.input is not None:
            await self._check_arguments(run_id, call_id, decision.input)
        await self._joining.prepare(run_id)

        async def change() -> bool:
            run = self._state.open_run(run_id)
            record = run.record if run else await self._journal.records.find_run(run_id)
            await check_own(self._journal.session, self._journal.store, record)
            calls = decode_calls(record.calls)
            state = calls.get(call_id)
            if state is None or state.wants is None:
                raise CallNotFoundError(self._state.session_id, run_id, call_id)
            if state.name == QUOTA:  # it is of the session's user, whose spending a member may not raise
                await check_acting(self._journal.session, self._journal.store, "owner")
            if state.digest == decision.digest:
                return False
            if state.verdict or run is None:
                outcome = f"it was {state.verdict}" if state.verdict else f"the run is {record.state}"
                raise CallDecidedError(self._state.session_id, run_id, call_id, outcome)
            _check_decision(state, decision)
            _check_blocks(run.run_resources.builder, decision.blocks)
            decided = replace(state, verdict=decision.verdict, digest=decision.digest)
            if spent is not None:
                decided = with_usage(decided, spent)
            if questions:
                decided = with_agent(decided, asks=questions)
            await self._decide(run, call_id, decision, {**calls, call_id: decided}, deliveries)
            return True

        return await self._transactor.run(change)

    async def note_questions(
        self,
        run_id: str,
        call_id: str,
        questions: Mapping[str, Verdict | None],
        revision: int,
        pending: Sequence[PendingCall],
    ) -> None:
        """Store what an agent asks that a run has called, if it was not heard at a later time. May be repeated.

        Those who wait until the run is settled are woken if it waits for a decision now.

        Args:
            questions: what waits, or has waited, for decisions in the agent's run; see `questions_of`.
            revision: that of the agent's session; a later state has a higher one.
            pending: the calls that wait, by their paths in this run.
        """

        async def change() -> None:
            run = self._state.open_run(run_id)
            state = run.calls.get(call_id) if run else None
            if run is None or state is None or state.verdict or "usage" in state.agent:
                return
            agent = state.agent
            if revision <= agent.get("heard", -1) or (agent.get("asks") or {}) == questions:
                return
            calls = {**run.calls, call_id: with_agent(state, asks=questions, heard=revision)}
            record = replace(run.record, calls=encode_calls(calls), usage=run.bill())
            events = question_events(run.record, record, pending)
            await self._transactor.commit(run.charged(self._journal.session, record), events, runs=[record])
            run.billed(record)

        await self._transactor.run(change)

    async def begin_again(self, run_id: str, call_id: str, lost: RunRecord) -> bool:
        """Have another agent begin for a call, as the run of its agent was lost; durable on return. May be repeated.

        Returns False if the run that has called it is not open, so that nothing was done.
        """

        async def change() -> bool:
            run = self._state.open_run(run_id)
            state = run.calls.get(call_id) if run else None
            if run is None or state is None:
                return False
            if state.agent["session"] != lost.session_id:
                return True
            agents = {call_id: self._agents.again(call_id, state, lost)}
            await self._agents.create_sessions(run, agents)
            record = replace(run.record, calls=encode_calls({**run.calls, **agents}), usage=run.bill())
            await self._transactor.commit(
                run.charged(self._journal.session, record),
                question_events(run.record, record),
                runs=[record],
                deliveries=self._agents.begin(record, agents, run.output.blocks),
            )
            run.billed(record)
            return True

        return await self._transactor.run(change)

    async def note_end(self, run_id: str, call_id: str, spent: Usage, questions: Mapping[str, Verdict | None]) -> None:
        """Store what an agent in the background has spent, if the run that has called it is open. May be repeated."""

        async def change() -> None:
            run = self._state.open_run(run_id)
            state = run.calls.get(call_id) if run else None
            if run is None or state is None or "usage" in state.agent:
                return
            calls = {**run.calls, call_id: with_agent(with_usage(state, spent), asks=questions)}
            record = replace(run.record, calls=encode_calls(calls), usage=run.bill())
            session = _with_agents(run.charged(self._journal.session, record), run.record, record)
            await self._transactor.commit(session, question_events(run.record, record), runs=[record])
            run.billed(record)

        await self._transactor.run(change)

    async def _check_arguments(self, run_id: str, call_id: str, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInputError if the tool of a call that waits for approval does not accept these arguments."""
        run = self._state.open_run(run_id)
        state = decode_calls(run.record.calls).get(call_id) if run else None
        if run is None or state is None or state.verdict or state.wants != "approval":
            return  # the change refuses the decision, or finds that it was made before
        try:
            runner = await self._engines.runner(run)
        except Exception as error:
            raise EngineError(
                f"the engine cannot be built, so the arguments of {state.name!r} cannot be checked: {reason(error)}"
            ) from error
        if not isinstance(runner, CallChecker):
            return
        check = partial(runner.check_call, state.name, arguments)
        is_large = count_values([arguments], _LARGE) > _LARGE
        if refused := (await self._engines.off_loop(check) if is_large else check()):
            raise InvalidInputError("input", shown(arguments), refused)

    async def _decide(
        self,
        run: ActiveRun,
        call_id: str,
        decision: ApprovalDecision,
        calls: Mapping[str, CallState],
        deliveries: Sequence[DeliveryChange],
    ) -> None:
        """Store a decision, and what follows from it. Memory changes only after the commit."""
        ledger = Ledger(run.output.blocks)
        uses = (block for block in run.output.blocks if isinstance(block, ToolUse) and block.call_id == call_id)
        block = _block(decision, call_id, next(uses, None))
        if isinstance(block, ToolUse):
            ledger.replace_use(block)
        elif block and call_id in {use.call_id for use in ledger.uses_without_result()}:
            ledger.append(block)
        turn, new, session = run.with_output(ledger.blocks(), self._journal.session)
        resumes = run.record.state == "awaiting_approval" and not any(state.is_waiting for state in calls.values())
        state: RunState = "running" if resumes else run.record.state
        record = replace(run.record, state=state, calls=encode_calls(calls), usage=run.bill())
        values = {**about(record), "call_id": call_id, "verdict": decision.verdict}
        if new:
            values |= {"span": (session.log_size - 1, session.log_size), "blocks": tuple(new)}
        events: list[NewEvent] = [(CallDecided, values)]
        events += question_events(run.record, record)
        if resumes:
            events.append((RunResumed, {**about(record), "why": "all decisions have been made"}))
        joining = self._joining.of(run, new) if resumes and not ledger.uses_without_result() else Joining()
        turn = joining.grown(turn)
        session = _with_agents(run.charged(session, record), run.record, record)
        await self._transactor.commit(
            session,
            [*events, *joining.events],
            blocks=new,
            turns=[turn] if new or joining.runs else [],
            dropped_turns=joining.indices,
            runs=[record, *joining.ends],
            deliveries=deliveries,
        )
        run.turn, run.output = turn, RecordedOutput.read(turn.output, self._journal.blocks.cache)
        run.billed(record)
        if run.attempt and isinstance(block, ToolUse):
            # While the outcome of storing the call is unknown, the ledger lacks it; `record` adds the edited call then.
            if call_id in {use.call_id for use in run.attempt.ledger.uses_without_result()}:
                run.attempt.ledger.replace_use(block)
        elif run.attempt and block:
            run.attempt.ledger.append(block)
        self._joining.after_commit(joining, self._driver.note_end)
        if resumes:
            run.decided.set()


def _with_agents(session: SessionRecord, before: RunRecord, after: RunRecord) -> SessionRecord:
    """Return the session's row with what agents have spent between two records of a run."""
    return replace(session, agents_usage=session.agents_usage + (after.agents_usage - before.agents_usage))


def _block(decision: ApprovalDecision, call_id: str, use: ToolUse | None) -> Block | None:
    """Return the block that a decision adds to the transcript: a result, the edited call, or None."""
    if decision.verdict == "approved":
        edited = decision.input is not None and use is not None
        return use.model_copy(update={"input": freeze(decision.input), "flaw": None}) if edited and use else None
    text = whole(decision.text)
    if decision.verdict == "rejected":
        return ToolResult(call_id=call_id, text=f"rejected: {text}" if text else "rejected", is_error=True)
    is_json, blocks = decision.is_json, decision.blocks
    return ToolResult(call_id=call_id, text=text, is_error=decision.is_error, is_json=is_json, blocks=blocks)


def _check_blocks(builder: EngineBuilder, blocks: Sequence[Content]) -> None:
    """Raise InvalidInputError if the run's engine does not take an image or document of a provided result."""
    for block in blocks:
        if not isinstance(block, Text) and isinstance(builder, Selective) and (refusal := builder.refuses(block)):
            raise InvalidInputError("result", shown(described(block)), refusal)


def _check_decision(state: CallState, decision: ApprovalDecision) -> None:
    """Raise InvalidInputError if the call does not allow this kind of decision."""
    if state.wants in ("result", "agent") and decision.verdict == "approved":
        rule = "the tool runs outside turnwise: call provide() with its result, or reject()"
        raise InvalidInputError("approve", shown(state.name), rule)
    if state.wants == "budget" and (decision.verdict == "provided" or decision.input is not None):
        rule = "a budget request can only be approved or rejected"
        raise InvalidInputError(decision.verdict, shown(state.name), rule)
