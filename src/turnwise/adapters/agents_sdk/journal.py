"""`Journal`: records one run of an agent, and answers for the model and the tools what was recorded before."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from turnwise.actors.inference.engine import NewEvent, StepContext, Suspend
from turnwise.actors.inference.shortening import BeginAgain
from turnwise.actors.inference.tools.loop import LOST
from turnwise.adapters.agents_sdk.items import plain, result_of, tool_output_of
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import EngineError
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, ToolResult, ToolUse
from turnwise.memory.conversation.calls.call_arguments import refusal
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.conversation.events import ApprovalRequested, ToolEnded, ToolStarted
from turnwise.memory.conversation.output_type import is_sent_back
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage

with framework("openai-agents", extra="openai-agents", tested="0.24"):
    from agents import FunctionTool, RunHooks
    from agents.items import ItemHelpers, ToolApprovalItem
    from agents.tool_context import ToolContext

    expect(RunHooks.on_llm_start, "context", "agent", "system_prompt", "input_items")
    expect(RunHooks.on_tool_end, "context", "agent", "tool", "result")
    expect(ToolContext, "tool_call", "tool_call_id")

NOT_MADE = "the call was not made, since another call of the same answer could not be read: make it again"

CURRENT: ContextVar[Journal | None] = ContextVar("turnwise_agents_sdk_journal", default=None)
"""The journal of the run that this task works for. None within a tool: what an agent does there, as a tool of another
agent, is that tool's own affair."""


class Journal:
    """One attempt of an agent at a turn.

    Recorded answers are given again, in order, before the model is asked. A call is recorded as begun before its tool
    is called; one that has a result gets it, and its tool is not called. Calls that begin or end in one moment share a
    commit, and the first ones share that of their answer.
    """

    def __init__(self, turn: Turn, context: StepContext, repeatable: Collection[str] = ()) -> None:
        self.turn = turn
        self.context = context
        self.last: list[AnyBlock] = []
        """The newest answer, if it calls nothing. It is not recorded: the run returns it."""
        self.failure: BaseException | None = None
        """What the session raised. The runner may have replaced it by an error of its own."""
        self.own_usage = Usage()
        """What the models of the run have used, without those of agents that are tools."""
        self.requests: set[asyncio.Task[Any]] = set()
        """The tasks that ask a model."""
        self._repeatable = repeatable
        self._input = _input_of(turn)
        self._answers = deque(_answers(turn.output[attempts_of(turn) :]))
        self._uses = {block.call_id: block for block in turn.output if isinstance(block, ToolUse)}
        self._results = {block.call_id: block for block in turn.output if isinstance(block, ToolResult)}
        self._begun: dict[str, float] = {}
        self._lost: set[str] = set()
        self._blocks: list[AnyBlock] = []
        """What the next commit records, with `_events` and `_states`."""
        self._events: list[NewEvent] = []
        self._states: dict[str, CallState | None] = {}
        self._added = self._stored = 0
        self._lock = asyncio.Lock()
        self.external = [self._external(name, declared) for name, declared in context.tools.items()]
        """The tools of this run alone, whose results the caller provides."""

    # The model

    def replay(self) -> Sequence[Block] | None:
        """Return the next recorded answer; None if the model has to be asked."""
        return self._answers.popleft() if self._answers else None

    async def before_request(self, items: str | list[Any]) -> None:
        """Record what the runner made of earlier calls, make room in the window, and announce a request.

        Raises:
            BeginAgain: the conversation was shortened.
            Suspend, LimitError: a budget is used up.
        """
        try:
            self.record_outputs(items if isinstance(items, list) else ())
            if self.last:
                self._add(self.last, [self.context.end_call(self.last)])
                self.last = []
            if self._stored < self._added:
                await self.commit()
                self._check_room(await self.context.make_room())
            self.context.begin_call()
        except BaseException as error:
            self.failure = error
            raise

    def _check_room(self, turn: Turn) -> None:
        self.turn = turn
        if _input_of(turn) != self._input:
            raise BeginAgain(turn)

    def answered(self, answer: list[AnyBlock], usage: Usage) -> None:
        """Note what a model has answered. It is recorded before a tool is called, or another model is asked."""
        self.own_usage += usage
        self._uses |= {block.call_id: block for block in answer if isinstance(block, ToolUse)}
        if any(isinstance(block, Text) for block in answer) and not any(isinstance(block, ToolUse) for block in answer):
            self.last = answer
        else:
            self._add(answer, [self.context.end_call(answer)])

    def refuse(self, answer: Sequence[AnyBlock]) -> None:
        """Record why no call of an answer is made, as one of them has a flaw."""
        for result in refusals(answer):
            self._results[result.call_id] = result
            name = self._uses[result.call_id].name
            ended = {"call_id": result.call_id, "name": name, "is_error": True, "seconds": 0.0, "tries": 0}
            self._add([result], [(ToolEnded, ended)])

    def is_used(self, call_id: str) -> bool:
        """Return whether the run has a call of this id."""
        return call_id in self._uses

    def has(self, item: ToolApprovalItem) -> bool:
        """Return whether the run has the call that this is about, by id and name: agents that are tools count anew."""
        use = self._uses.get(str(item.call_id))
        return use is not None and use.name == plain(item.raw_item).get("name", item.tool_name)

    def count(self, used: Usage) -> None:
        """Report what agents that are tools have used: all that the runner has counted, without the run's own."""
        nested = used - self.own_usage
        if nested.input_tokens > 0 or nested.output_tokens > 0:
            self.own_usage += nested
            self.context.report(usage=nested)

    # Tools

    async def call(
        self, invoke: Callable[[Any, str], Awaitable[Any]], context: ToolContext[Any], arguments: str
    ) -> Any:
        """Return a tool's output: the recorded one; else call the tool, once this is recorded."""
        call_id = context.tool_call_id
        use = self._uses.get(call_id)
        if use is None:
            return await invoke(context, arguments)
        if result := self._results.get(call_id):
            return tool_output_of(use, result)
        if call_id not in self._begun:  # an agent that is a tool goes on after a decision within it
            state = self.context.calls.get(call_id) or CallState(name=use.name)
            if state.started and use.name not in self._repeatable:
                self._lost.add(call_id)
                return LOST
            event = {"call_id": call_id, "name": use.name}
            self._add((), [(ToolStarted, event)], {call_id: replace(state, started=True)})
            self.context.report(usage=Usage(tool_calls=1), tool=use.name)
            await self.commit()
            self._begun[call_id] = time.monotonic()
        token = CURRENT.set(None)
        try:
            return await invoke(context, arguments)
        finally:
            CURRENT.reset(token)

    async def ended(self, call_id: str, output: Any) -> None:
        """Record a call's output, as the model gets it."""
        if self._record_output(call_id, output):
            await self.commit()

    def record_outputs(self, items: Iterable[Any]) -> None:
        """Note the outputs that the runner has made without calling a tool, such as those of handoffs."""
        for item in items:
            if isinstance(item, Mapping) and str(item.get("type")).endswith("_output"):
                self._record_output(str(item.get("call_id")), item.get("output"))

    def _record_output(self, call_id: str, output: Any) -> bool:
        use = self._uses.get(call_id)
        if use is None or call_id in self._results:
            return False
        result = result_of(call_id, output)
        if call_id in self._lost:
            result = result.model_copy(update={"is_error": True})
        self._results[call_id] = result
        begun = self._begun.get(call_id)
        seconds = 0.0 if begun is None else round(time.monotonic() - begun, 6)
        ended = {"call_id": call_id, "name": use.name, "is_error": result.is_error, "seconds": seconds}
        state = self._states.get(call_id) or self.context.calls.get(call_id)
        decided_state = state if state and state.verdict else None
        self._add([result], [(ToolEnded, {**ended, "tries": int(begun is not None)})], {call_id: decided_state})
        return True

    # Approvals

    def is_decided(self, call_id: str) -> bool:
        """Return whether a person has decided the call, or it needs no decision any more."""
        state = self.context.calls.get(call_id)
        return call_id in self._results or (state is not None and (state.verdict is not None or state.started))

    async def suspend(self, items: Sequence[ToolApprovalItem]) -> None:
        """Record that calls wait for a person. Raises Suspend."""
        external = {tool.name for tool in self.external}
        for item in items:
            use = self._uses[str(item.call_id)]
            wants = "result" if use.name in external else "approval"
            event = {"call_id": use.call_id, "name": use.name, "input": use.input, "wants": wants}
            state = CallState(name=use.name, wants="result" if wants == "result" else "approval")
            self._add((), [(ApprovalRequested, event)], {use.call_id: state})
        await self.commit()
        raise Suspend

    def _external(self, name: str, declared: Mapping[str, Any]) -> FunctionTool:
        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            return await self.call(_not_provided, context, arguments)

        return FunctionTool(
            name=name,
            description=declared.get("description", ""),
            params_json_schema=json.loads(json.dumps(declared.get("parameters") or {"type": "object"})),
            on_invoke_tool=invoke,
            strict_json_schema=False,
            needs_approval=True,
        )

    # Recording

    def _add(
        self,
        blocks: Iterable[AnyBlock],
        events: Iterable[NewEvent] = (),
        states: Mapping[str, CallState | None] | None = None,
    ) -> None:
        self._blocks += blocks
        self._events += events
        self._states |= states or {}
        self._added += 1

    async def commit(self) -> None:
        """Store what was added; return when it is durable. A caller that is cancelled leaves the commit to itself."""
        storing = asyncio.ensure_future(self._store(self._added))
        storing.add_done_callback(_retrieve)
        await asyncio.shield(storing)

    async def _store(self, count: int) -> None:
        async with self._lock:
            if self.failure:
                raise self.failure
            if self._stored >= count:
                return
            await asyncio.sleep(0)  # calls that begin or end at this moment join the commit
            added = self._added
            blocks, self._blocks = self._blocks, []
            events, self._events = self._events, []
            states, self._states = self._states, {}
            try:
                self.turn = await self.context.record(*blocks, events=events, calls=states)
            except BaseException as error:
                self.failure = error
                raise
            self._stored = added

    async def close(self) -> None:
        """Stop the requests that the runner has left behind."""
        requests = [task for task in self.requests if not task.done() and task is not asyncio.current_task()]
        for task in requests:
            task.cancel()
        if requests:
            await asyncio.wait(requests)

    async def finish(self, final: Any) -> list[AnyBlock]:
        """Record what is not recorded yet; return the answer."""
        if self._stored < self._added:
            await self.commit()
        if not self.last and not str(final or "").strip():
            raise EngineError("the agent ended its run without an answer: run the prompt again")
        return self.last or [Text(text=str(final))]


async def _not_provided(context: ToolContext[Any], arguments: str) -> str:
    raise EngineError(f"call {context.tool_call_id!r} was approved, but its result has to be provided")


def _retrieve(storing: asyncio.Future[None]) -> None:
    if not storing.cancelled():
        storing.exception()  # marks it as retrieved: whoever waited has it, and others find `failure`


def refusals(answer: Sequence[AnyBlock]) -> list[ToolResult]:
    """Return the results of the calls of an answer of which one has a flaw, so that none is made."""
    uses = [block for block in answer if isinstance(block, ToolUse)]
    return [refusal(use) or ToolResult(call_id=use.call_id, text=NOT_MADE, is_error=True) for use in uses]


def attempts_of(turn: Turn) -> int:
    """Return how many blocks of the run's output lead to the last answer that was sent back, as of a wrong type."""
    return max((index for index, block in enumerate(turn.output, 1) if is_sent_back(block)), default=0)


def _input_of(turn: Turn) -> tuple[AnyBlock, ...]:
    return turn.blocks[: len(turn.blocks) - len(turn.output)]


def _answers(output: Sequence[AnyBlock]) -> list[list[Block]]:
    """Return the model's answers in a run's output, without those that the SDK did not get: see `Journal.refuse`."""
    answers = [list(message.blocks) for message in Ledger(output).messages() if message.role == "assistant"]
    return [answer for answer in answers if not any(isinstance(block, ToolUse) and block.flaw for block in answer)]


class JournalHooks(RunHooks[Any]):
    """Records the outputs of tools as the model gets them: after the tool's guardrails."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        self._journal.count(usage_of(context.usage))

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        if isinstance(context, ToolContext) and context.tool_call is not None:
            item = ItemHelpers.tool_call_output_item(context.tool_call, result)
            await self._journal.ended(context.tool_call_id, plain(item)["output"])


def usage_of(used: Any) -> Usage:
    """Return usage that the SDK has counted."""
    cached = getattr(used.input_tokens_details, "cached_tokens", 0) if used.input_tokens_details else 0
    reasoning = getattr(used.output_tokens_details, "reasoning_tokens", 0) if used.output_tokens_details else 0
    return Usage(
        input_tokens=used.input_tokens or 0,
        output_tokens=used.output_tokens or 0,
        cached_tokens=cached or 0,
        reasoning_tokens=reasoning or 0,
    )
