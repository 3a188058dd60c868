"""`ToolLoop`: calls the model and the tools that it requests, in turn, until it answers without a tool call."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Literal

from turnwise.actors.inference.engine import InferenceRunner, NewEvent, StepContext, Suspend, output_of
from turnwise.actors.inference.observing import part
from turnwise.actors.inference.redaction import redacted
from turnwise.actors.inference.shortening import answer_shortened
from turnwise.actors.inference.timeline import Timeline
from turnwise.actors.inference.tools.context import CancelSignal, ToolContext
from turnwise.actors.inference.tools.registry import ToolOutcome, ToolRegistry
from turnwise.actors.inference.tools.tool import AgentSettings, Tool
from turnwise.errors import (
    OutputError,
    RequestRefusedError,
    ToolAbortError,
    UnsupportedBlockError,
)
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Content,
    Document,
    Image,
    Text,
    ToolResult,
    ToolUse,
    answer_text,
)
from turnwise.memory.conversation.calls.call_arguments import UNPARSED
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.conversation.events import ApprovalRequested, HookFailed, ToolEnded, ToolStarted
from turnwise.memory.conversation.output_type import ANSWER_TOOL, OutputType, is_sent_back, sent_back
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.agent_calls import agent_id
from turnwise.memory.values.frozen_json import FrozenDict

Phase = Literal["before_inference", "after_inference", "after_tools"]

Hook = Callable[[Phase, Turn, StepContext], Awaitable[None] | None]
"""Called with the current turn at each phase, on the event loop, so it must not block; must be picklable."""

LOST = (
    "the process was lost while this tool ran: it may or may not have taken effect; find out before you call it again"
)

STOP_S = 1.0
"""How many seconds tools have to stop after another tool of the same answer aborted the run."""

_log = logging.getLogger(__name__)


class ToolLoop:
    """Calls the model, then the tools that it requests, then the model again, until it answers without a tool call.

    Every result is recorded before the model gets it, and a call is recorded as begun before its tool is called. So a
    run that is resumed, after a crash or a decision, continues after its last result, and a tool is called twice only
    if it is `repeatable`. Call ids are unique in a run: if a server reuses an id in a later answer, a number is added,
    so that decisions and results belong to exactly one call. The calls of one answer run concurrently, at most
    `max_parallel` of them; their results are in the order of the calls.

    A step costs one commit for the answer and the start of its tools, and one commit for all results that arrive at the
    same time: two commits, if all results arrive together.

    Args:
        close: closes the runner.
        secrets: texts that are replaced by *** in tool results, such as the engine's key.
        output_type: the type of answers for runs without an `output_type`; see `RunContext.output_type`.
    """

    takes_prompts = True
    """See `Joinable`: each request is made of the turn that was recorded last."""

    def __init__(
        self,
        runner: InferenceRunner,
        tools: ToolRegistry,
        hooks: Sequence[Hook] = (),
        close: Callable[[], Awaitable[None]] | None = None,
        secrets: Sequence[str] = (),
        *,
        output_type: Mapping[str, Any] | None = None,
    ) -> None:
        self._runner = runner
        self._output_type = output_type
        self._tools = tools
        self._hooks = tuple(hooks)
        self._close = close
        self._secrets = tuple(secrets)
        self._refused = frozenset[Content]()
        """The images and documents of tool results that the provider refused."""

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        """Return the model's last answer; everything before it has been recorded.

        Raises:
            LimitError: the model has been called `max_steps` times, or a budget is used up.
            OutputError: the answer is not of the requested type, also after all retries.
            ToolAbortError: a tool failed, and `on_error` is "abort".
            Suspend: a tool call waits for a decision.
        """
        output = OutputType.read(output_of(context, self._output_type))
        tools = self._tools.extended(context.tools)
        uses = Ledger(turn.output).uses_without_result()
        if uses:
            turn = await _Calls(tools, turn, context, self._secrets).finish(uses)
            await self._call_hooks("after_tools", turn, context)
            turn = await context.make_room()
        while True:
            context.begin_call(limit=tools.max_steps)
            await self._call_hooks("before_inference", turn, context)
            turn, answer = await self._ask(turn, context)
            answer = _with_own_ids(answer, turn.output)
            uses = [block for block in answer if isinstance(block, ToolUse)]
            if output and (flawed := _flawed_answer(tools, uses)):
                answer, uses = _as_text(answer, flawed), []
                if output.retries is not None:
                    turn = await send_back(turn, answer, f"it is no JSON object: {flawed.flaw}", output, context)
                    continue
            if not uses:
                await self._call_hooks("after_inference", _with(turn, answer), context)
                if not (output and (errors := _errors(output, answer))):
                    return answer
                turn = await send_back(turn, answer, errors, output, context)
                continue
            calls = _Calls(tools, turn, context, self._secrets, answer=answer, events=[context.end_call(answer)])
            await self._call_hooks("after_inference", _with(turn, answer), context)
            turn = await calls.finish(uses)
            await self._call_hooks("after_tools", turn, context)
            turn = await context.make_room()

    async def _ask(self, turn: Turn, context: StepContext) -> tuple[Turn, Sequence[AnyBlock]]:
        """Return the model's answer, and the turn that it answers, shortened if the provider refused it as too long."""

        async def answer(turn: Turn) -> tuple[Turn, Sequence[AnyBlock]]:
            return turn, await self._answer(turn, context)

        return await answer_shortened(turn, context, answer)

    async def _answer(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        """Return the model's answer.

        If the provider refuses the conversation, it is asked again without the attachments of the newest tool results,
        then without those of all. What it refused is left out of this runner's later requests.
        """
        left_out, suspects = self._refused, list[frozenset[Content]]()
        while True:
            try:
                answer = await self._runner.run(_without(turn, left_out), context)
            except (RequestRefusedError, UnsupportedBlockError):
                if left_out == self._refused:
                    suspects = _suspects(turn.blocks, left_out)
                if not suspects:
                    raise
                left_out |= suspects.pop(0)
            else:
                self._refused = left_out
                return answer

    def check_call(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why the named tool cannot be called with these arguments; None if it can."""
        refused = self._tools.check(ToolUse(call_id="", name=name, input=dict(arguments)))
        return refused.text if refused else None

    async def close(self) -> None:
        """Close the runner."""
        if self._close:
            await self._close()

    async def _call_hooks(self, phase: Phase, turn: Turn, context: StepContext) -> None:
        for hook in self._hooks:
            try:
                called = hook(phase, turn, context)
                if isawaitable(called):
                    await called
            except Exception as error:  # noqa: BLE001 - logged and published; the run continues
                name = getattr(hook, "__qualname__", type(hook).__name__)
                session = context.session
                ids = {"user_id": session.user_id, "session_id": session.session_id, "run_id": context.run_id}
                _log.exception("hook %s failed at %s of run %s", name, phase, context.run_id, extra=ids)
                context.publish(HookFailed, hook=f"{phase}: {name}", why=f"{type(error).__name__}: {error}")


class _Calls:
    """The tool calls of one answer: those that are ready, those that run, those that wait for a decision."""

    def __init__(
        self,
        tools: ToolRegistry,
        turn: Turn,
        context: StepContext,
        secrets: Sequence[str],
        *,
        answer: Iterable[AnyBlock] = (),
        events: Iterable[NewEvent] = (),
    ) -> None:
        self._tools = tools
        self._turn = turn
        self._context = context
        self._secrets = secrets
        self._stand_in = getattr(context, "stand_in", None)  # a context of somebody's own may lack it
        self._signal = CancelSignal()
        self._ready: deque[ToolUse] = deque()
        self._running: dict[asyncio.Task[ToolOutcome], ToolUse] = {}
        self._is_waiting = False
        self._blocks: list[AnyBlock] = list(answer)
        """What the next commit records, together with `_events` and `_states`."""
        self._events: list[NewEvent] = list(events)
        self._states: dict[str, CallState | None] = {}

    async def finish(self, uses: Sequence[ToolUse]) -> Turn:
        """Make the calls; return the turn with a result for each. Raises Suspend if a call waits for a decision."""
        for use in uses:
            self._classify(use)
        try:
            while True:
                self._start_ready()
                if self._blocks or self._events or self._states:
                    await self._record()
                if not self._running:
                    break
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._running if task in done]:
                    self._add_result(self._running.pop(task), task.result())
        finally:
            self._signal.set()
            await self._stop()
        if self._is_waiting:
            raise Suspend
        return self._turn

    def _classify(self, use: ToolUse) -> None:
        """Decide whether a call is made, waits for a decision, or gets an error result at once."""
        state = self._context.calls.get(use.call_id)
        tool = self._tools.find(use.name)
        if state and state.is_waiting:
            self._is_waiting = True
        elif refused := self._tools.check(use):
            self._add_result(use, ToolOutcome(refused, 0.0, 0))
        elif self._stand_in:
            self._ready.append(use)
        elif tool and state and state.started and not tool.repeatable:
            self._add_result(use, ToolOutcome(ToolResult(call_id=use.call_id, text=LOST, is_error=True), 0.0, 0))
        elif tool and tool.agent and not state:
            self._call_agent(use, tool.agent)
        elif tool and not state and (question := self._question(tool, use)):
            self._is_waiting = True
            self._states[use.call_id] = question
            requested = {"call_id": use.call_id, "name": use.name, "input": use.input}
            self._events.append((ApprovalRequested, {**requested, "wants": question.wants, "why": question.why}))
        else:
            self._ready.append(use)

    def _call_agent(self, use: ToolUse, settings: AgentSettings) -> None:
        """Have the commit of the call begin the agent's run; refuse the call if there would be too many or too deep."""
        calls = sum(bool(state and state.agent) for state in {**self._context.calls, **self._states}.values())
        if self._context.session.depth >= settings.max_depth:
            refusal = f"refused: agents may be called {settings.max_depth} deep at most; do it yourself"
        elif calls >= settings.max_calls:
            refusal = f"refused: {settings.max_calls} agents were called, which is the limit; go on without another"
        else:
            agent = settings.call(agent_id(self._context.run_id, use.call_id))
            if settings.background:
                started = ToolResult(call_id=use.call_id, text=f"started {agent['session']}")
                self._add_result(use, ToolOutcome(started, 0.0, 0))
                self._states[use.call_id] = CallState(name=use.name, agent=agent)
            else:
                self._is_waiting = True
                self._states[use.call_id] = CallState(name=use.name, wants="agent", agent=agent)
            return
        self._add_result(use, ToolOutcome(ToolResult(call_id=use.call_id, text=refusal, is_error=True), 0.0, 0))

    def _question(self, tool: Tool, use: ToolUse) -> CallState | None:
        """Return what the call has to wait for; None if it can be made now."""
        if tool.is_external:
            return CallState(name=use.name, wants="result")
        try:
            why, is_needed = None, tool.needs_approval(use.input, self._context_of(use))
        except Exception as error:  # noqa: BLE001 - whatever it is, a person decides, and is told
            _log.warning("approval= of tool %s failed: the call waits for a person", use.name, exc_info=True)
            problem = redacted(f"{type(error).__name__}: {error}", self._secrets)
            why, is_needed = f"approval= of the tool failed ({problem})", True
        return CallState(name=use.name, wants="approval", why=why) if is_needed else None

    def _start_ready(self) -> None:
        """Mark ready calls as started, as many as may run; `_record` starts them once this is durable."""
        for use in list(self._ready)[: max(0, self._tools.max_parallel - len(self._running))]:
            state = self._context.calls.get(use.call_id) or CallState(name=use.name)
            self._states[use.call_id] = replace(state, started=True)
            self._events.append((ToolStarted, {"call_id": use.call_id, "name": use.name}))

    async def _record(self) -> None:
        blocks, self._blocks = self._blocks, []
        events, self._events = self._events, []
        states, self._states = self._states, {}
        started = [self._ready.popleft() for kind, _ in events if kind is ToolStarted]
        for use in started:
            self._context.report(usage=Usage(tool_calls=1), tool=use.name)
        suspends = self._is_waiting and not (started or self._ready or self._running)
        try:
            self._turn = await self._context.record(*blocks, events=events, calls=states, suspends=suspends)
        except BaseException:
            self._blocks = blocks  # stored or not, also if this was cancelled: `_stop` emits the results among them
            raise
        for use in started:
            self._running[asyncio.create_task(self._call(use))] = use

    async def _call(self, use: ToolUse) -> ToolOutcome:
        with part("tool", lambda: {"use": use, "tool": self._tools.find(use.name)}) as operation:
            try:
                outcome = await self._answered(use)
                if outcome is None:
                    context = replace(self._context_of(use), trace=FrozenDict(operation.trace))
                    outcome = await self._tools.call(use, context)
            except ToolAbortError as error:
                raise ToolAbortError(error.name, error.call_id, redacted(error.why, self._secrets)) from None
            result = _redacted(outcome.result, self._secrets)
            operation.note(result=result, tries=outcome.tries)
        return replace(outcome, result=result)

    async def _answered(self, use: ToolUse) -> ToolOutcome | None:
        """Return what the stand-in of the tools answers; None if the tool is to be called."""
        if self._stand_in is None:
            return None
        tool = self._tools.find(use.name)
        result = await self._stand_in.answer(use, reads=bool(tool and tool.reads and not tool.agent))
        return ToolOutcome(result.model_copy(update={"call_id": use.call_id}), 0.0, 1) if result else None

    def _add_result(self, use: ToolUse, outcome: ToolOutcome) -> None:
        state = self._context.calls.get(use.call_id)
        self._blocks.append(outcome.result)
        # Only a decided call needs a state after its result.
        self._states[use.call_id] = state if state and state.verdict else None
        ended = {
            "call_id": use.call_id,
            "name": use.name,
            "is_error": outcome.result.is_error,
            "seconds": round(outcome.seconds, 6),
            "tries": outcome.tries,
        }
        self._events.append((ToolEnded, ended))

    async def _stop(self) -> None:
        """Cancel the running calls, and emit results that may not be recorded, so that the run keeps them.

        One that is recorded after all changes nothing: a result that no call waits for is ignored.
        """
        for task in self._running:
            task.cancel()
        for task in self._running:
            if task.done() and not task.cancelled() and task.exception() is None:
                self._blocks.append(task.result().result)
        for block in self._blocks:
            if isinstance(block, ToolResult):
                self._context.emit(block)
        if self._running:
            await asyncio.wait(self._running, timeout=STOP_S)

    def _context_of(self, use: ToolUse) -> ToolContext:
        return ToolContext(
            session=self._context.session,
            run_id=self._context.run_id,
            turn_index=self._turn.index,
            call_id=use.call_id,
            labels=self._context.labels,
            memory=self._context.memory,
            schedules=self._context.schedules,
            files=self._context.files,
            timeline=Timeline(self._context.add_event, self._context.run_id, use.call_id),
            add_cost=lambda cost: self._context.report(usage=Usage(cost=cost), tool=use.name),
            cancelled=self._signal,
        )


def _redacted(result: ToolResult, secrets: Sequence[str]) -> ToolResult:
    """Return the result without the secrets in its texts, names and URLs."""

    def clean(block: Content) -> Content:
        texts = {name: value for name, value in block if name in ("text", "chunks", "name", "url")}
        return block.model_copy(update={name: _clean(secrets, value) for name, value in texts.items()})

    blocks = tuple(map(clean, result.blocks))
    return result.model_copy(update={"text": _clean(secrets, result.text), "blocks": blocks})


def _clean(secrets: Sequence[str], value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_clean(secrets, part) for part in value)
    return redacted(value, secrets) if isinstance(value, str) else value


def _flawed_answer(tools: ToolRegistry, uses: Iterable[ToolUse]) -> ToolUse | None:
    """Return the call by which the model gives its answer, if its arguments are no JSON object."""
    finals = (use for use in uses if use.flaw and use.name.rstrip("_") == ANSWER_TOOL)
    return next((use for use in finals if tools.find(use.name) is None), None)


def _as_text(answer: Iterable[AnyBlock], flawed: ToolUse) -> list[AnyBlock]:
    """Return the answer with what the model wrote as the arguments of this call in the place of its text and calls."""
    rest = [block for block in answer if not isinstance(block, Text | ToolUse)]
    return [*rest, Text(text=flawed.input[UNPARSED])]


def _errors(output: OutputType, answer: Sequence[AnyBlock]) -> str | None:
    """Return why the answer is not of the requested type; None if it is, or if the caller checks it."""
    return output.errors(answer_text(answer)) if output.retries is not None else None


async def send_back(
    turn: Turn, answer: Sequence[AnyBlock], errors: str, output: OutputType, context: StepContext
) -> Turn:
    """Record an invalid answer with its errors; return the turn for the next request.

    The retries are counted in the turn, so the count survives a crash.
    """
    times = sum(isinstance(block, ToolResult) and is_sent_back(block) for block in turn.output)
    if times >= (output.retries or 0):
        raise OutputError(
            f"the answer is not of the requested type, after {times} retries:\n{errors}", "output_invalid"
        )
    blocks, result = sent_back(answer, errors, f"{context.run_id}_{times + 1}")
    ended = {"call_id": result.call_id, "name": ANSWER_TOOL, "is_error": True}
    await context.record(*blocks, result, events=[context.end_call(answer), (ToolEnded, ended)])
    return await context.make_room()


def _with_own_ids(answer: Sequence[AnyBlock], output: Iterable[Block]) -> list[AnyBlock]:
    """Return the answer with call ids that are unique in the run's output."""
    used = {block.call_id for block in output if isinstance(block, ToolUse)}
    own: list[AnyBlock] = []
    for block in answer:
        if isinstance(block, ToolUse) and block.call_id:
            names = (f"{block.call_id}_{number}" for number in itertools.count(2))
            call_id = block.call_id if block.call_id not in used else next(name for name in names if name not in used)
            used.add(call_id)
            block = block if call_id == block.call_id else block.model_copy(update={"call_id": call_id})  # noqa: PLW2901
        own.append(block)
    return own


def _suspects(blocks: Sequence[Block], known: frozenset[Content]) -> list[frozenset[Content]]:
    """Return the attachments of results that no model has answered, then those of other results; without `known`."""
    answered = max((index for index, block in enumerate(blocks) if block.role == "assistant"), default=-1)
    newest, older = (
        frozenset(attachment for block in some if isinstance(block, ToolResult) for attachment in block.attachments)
        for some in (blocks[answered + 1 :], blocks[: answered + 1])
    )
    return [attachments for attachments in (newest - known, older - newest - known) if attachments]


def _without(turn: Turn, refused: frozenset[Content]) -> Turn:
    """Return the turn with a text in place of each refused attachment of a tool result."""

    def flaw_of(block: Image | Document) -> str | None:
        return "the provider refused it" if block in refused else None

    if not refused:
        return turn
    return turn.reduced([block.replacing(flaw_of) if isinstance(block, ToolResult) else block for block in turn.blocks])


def _with(turn: Turn, answer: Sequence[AnyBlock]) -> Turn:
    return turn.showing([*turn.blocks, *answer])
