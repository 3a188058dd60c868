"""Runs an agent of Pydantic AI for one turn, and journals its answers, calls and results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pydantic_core

from turnwise.actors.inference.engine import ASIDE, NewEvent, StepContext, Suspend, output_of
from turnwise.actors.inference.openai.request import without_form
from turnwise.actors.inference.openai.runner import TOO_LONG_MESSAGE
from turnwise.actors.inference.shortening import BeginAgain, answer_shortened
from turnwise.actors.inference.tools.loop import LOST
from turnwise.adapters.pydantic_ai.messages import (
    content_of,
    plain_blocks,
    result_of,
    to_pydantic_ai,
    use_of,
    whole_part,
)
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import (
    ContextOverflowError,
    EngineError,
    LimitError,
    OutputError,
    RequestRefusedError,
    TurnwiseError,
)
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.calls.call_arguments import refusal
from turnwise.memory.conversation.calls.tool_calls import CallState, Wants
from turnwise.memory.conversation.events import ApprovalRequested, ToolEnded, ToolStarted
from turnwise.memory.conversation.output_type import ANSWER_TOOL, OutputType, sent_back
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.arrangement import between_prompts

with framework("pydantic-ai-slim", extra="pydantic-ai", tested="2.68"):
    from pydantic_ai import Agent, StructuredDict
    from pydantic_ai.agent import AbstractAgent, AgentRun, CallToolsNode, ModelRequestNode, WrapperAgent
    from pydantic_ai.capabilities import AbstractCapability, ReinjectSystemPrompt
    from pydantic_ai.exceptions import (
        AgentRunError,
        FallbackExceptionGroup,
        ModelAPIError,
        ModelContextWindowExceededError,
        ModelHTTPError,
        ModelRetry,
        OutputTokenLimitExceeded,
        ToolFailed,
        UnexpectedModelBehavior,
        UsageLimitExceeded,
        UserError,
    )
    from pydantic_ai.messages import (
        FunctionToolResultEvent,
        ModelResponse,
        OutputToolResultEvent,
        PartDeltaEvent,
        PartStartEvent,
        RetryFeedbackPart,
        TextPart,
        TextPartDelta,
        ThinkingPart,
        ThinkingPartDelta,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDefinition
    from pydantic_ai.toolsets import ExternalToolset
    from pydantic_ai.usage import UsageLimits

    expect(AbstractAgent.iter, "message_history", "deps", "model", "model_settings", "usage_limits", "instructions")
    expect(AbstractAgent.iter, "toolsets", "capabilities", "conversation_id", "output_type", "retries")
    expect(AbstractCapability.after_model_request, "ctx", "request_context", "response")
    expect(AbstractCapability.wrap_tool_validate, "ctx", "call", "tool_def", "args", "handler")
    expect(AbstractCapability.wrap_tool_execute, "ctx", "call", "tool_def", "args", "handler")
    expect(AbstractCapability.after_output_process, "ctx", "output_context", "output")
    expect(AbstractCapability.handle_deferred_tool_calls, "ctx", "requests")

_REFUSALS = (400, 413, 415, 422)
"""The HTTP statuses of requests that the provider would refuse again."""

_REPEATABLE = "repeatable"
"""The key in a tool's metadata that says that its calls may be made again."""


@dataclass(frozen=True)
class AgentSettings:
    """How an agent is run: see `PydanticAIEngine`."""

    deps: Any
    usage_limits: UsageLimits | None
    stream: bool
    repeatable: Collection[str]
    output_type: Mapping[str, Any] | None


class AgentRunner:
    """Answers the turns of one session with an agent. The model's connections stay open between turns.

    Args:
        model: the agent's own model.
    """

    def __init__(self, agent: AbstractAgent[Any, Any], model: Any, settings: AgentSettings) -> None:
        self._agent = agent
        self._model = model
        self._settings = settings
        self._is_open = False

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        """Return the agent's last answer; everything before it has been recorded. See `PydanticAIEngine`."""
        if not self._is_open:
            await self._model.__aenter__()
            self._is_open = True
        begun = set[str]()
        agent = _plain_agent(self._agent, self._model) if context.run_id == ASIDE else self._agent

        def answer(turn: Turn) -> Awaitable[Sequence[AnyBlock]]:
            return _Execution(agent, self._model, self._settings, turn, context, begun=begun).run()

        return await answer_shortened(turn, context, answer)

    async def close(self) -> None:
        """Close the model's connections."""
        if self._is_open:
            self._is_open = False
            await self._model.__aexit__(None, None, None)


class Journal:
    """Collects blocks, events and states of calls, which the run's next commits record.

    `flush` stores all that was added until it returns.

    Records that arrive while a commit is under way share the next one.
    """

    def __init__(self, turn: Turn, context: StepContext) -> None:
        self.turn = turn
        """The turn with what is recorded."""
        self._context = context
        self._blocks: list[Block] = []
        self._events: list[NewEvent] = []
        self._states: dict[str, CallState | None] = {}
        self._lock = asyncio.Lock()

    def add(
        self, *blocks: Block, events: Sequence[NewEvent] = (), calls: Mapping[str, CallState | None] | None = None
    ) -> None:
        self._blocks += blocks
        self._events += events
        self._states |= calls or {}

    async def flush(self) -> None:
        async with self._lock:
            while self._blocks or self._events or self._states:
                blocks, self._blocks = self._blocks, []
                events, self._events = self._events, []
                states, self._states = self._states, {}
                try:
                    self.turn = await self._context.record(*blocks, events=events, calls=states)
                except BaseException:
                    self._blocks = [*blocks, *self._blocks]  # perhaps not stored, so `emit_results` emits the results
                    raise

    def emit_results(self) -> None:
        """Emit results that were not recorded, so that a run which stops here keeps them."""
        for block in self._blocks:
            if isinstance(block, ToolResult):
                self._context.emit(block)


class _Execution:
    """One pass of the agent over a turn, from its prompt or from what was recorded of its answer."""

    def __init__(
        self,
        agent: AbstractAgent[Any, Any],
        model: Any,
        settings: AgentSettings,
        turn: Turn,
        context: StepContext,
        *,
        begun: set[str],
    ) -> None:
        self.context = context
        self.recorded = {block.call_id: block for block in turn.output if isinstance(block, ToolResult)}
        """The recorded results, by call id."""
        self.journal = Journal(turn, context)
        self._agent = agent
        self._model = model
        self._settings = settings
        self._turn = turn
        self._begun = begun
        """The calls that this process has begun."""
        self._output = OutputType.read(output_of(context, settings.output_type))
        self._started: dict[str, float] = {}
        self._is_cut = False
        """Whether the last answer ended at its maximum length."""
        self._is_asked = False
        """Whether the last answer came from the model in this pass."""
        self._last_response: ModelResponse | None = None
        """An answer without calls of tools, which is the last one or will be sent back."""
        self._refused: list[ToolReturnPart] = []
        """Why the calls in `_last_response` that give the output were refused."""
        self._flushing: asyncio.Task[None] | None = None
        self.suspended = False

    async def run(self) -> Sequence[AnyBlock]:
        try:
            async with self._agent.iter(**self._arguments()) as run:
                async for node in run:
                    if Agent.is_model_request_node(node):
                        await self._ask(node, run)
                    elif Agent.is_call_tools_node(node):
                        await self._act(node, run)
            await self._flushed()
            return self._answer(run)
        except (Suspend, BeginAgain, TurnwiseError):
            raise
        except Exception as error:
            if self.suspended:
                raise Suspend from None
            raise typed(error, self._agent) from error
        finally:
            if self._flushing:
                self._flushing.cancel()
            self.journal.emit_results()

    def _arguments(self) -> dict[str, Any]:
        context, deps = self.context, self._settings.deps
        tools = [
            ToolDefinition(
                name=name, parameters_json_schema=_plain(tool["parameters"]), description=tool.get("description")
            )
            for name, tool in context.tools.items()
        ]
        arguments: dict[str, Any] = {
            "message_history": to_pydantic_ai(self._blocks_to_replay()),
            "deps": deps(context.session) if callable(deps) else deps,
            "model": context.model or self._model,
            "model_settings": model_settings(context.params),
            "usage_limits": self._settings.usage_limits,
            "instructions": context.instructions,
            "toolsets": [ExternalToolset(tools)] if tools else None,
            "capabilities": [JournalCapability(self), ReinjectSystemPrompt()],
            "conversation_id": context.session.key,
        }
        if self._output:
            arguments["output_type"] = StructuredDict(_plain(self._output.schema), name=ANSWER_TOOL)
            arguments["retries"] = {"output": self._output.retries or 0}
        return {name: value for name, value in arguments.items() if value is not None}

    def _blocks_to_replay(self) -> Sequence[Block]:
        """Return the turn without the results of its last answer, if a call of it has none yet.

        Then the agent goes through all of these calls, and gets the recorded results from the journal.
        """
        blocks = between_prompts(self._turn.blocks, is_answered=bool(self._turn.output))
        if not Ledger(self._turn.output).uses_without_result():
            return blocks
        while isinstance(blocks[-1], ToolResult):
            blocks.pop()
        return blocks

    async def _ask(self, node: ModelRequestNode[Any, Any], run: AgentRun[Any, Any]) -> None:
        """Ask the model, once all that came before is recorded and fits the window."""
        self._send_back(node)
        await self._flushed()
        if self.journal.turn is not self._turn:
            turn = await self.context.make_room()
            if turn.blocks != self.journal.turn.blocks:
                raise BeginAgain(turn)
            self._turn = self.journal.turn = turn
        self.context.begin_call()
        self._is_asked = True
        if not self._settings.stream:
            return
        async with node.stream(run.ctx) as stream:
            async for event in stream:
                match event:
                    case (
                        PartStartEvent(part=TextPart(content=text))
                        | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                    ):
                        self.context.emit(text)
                    case (
                        PartStartEvent(part=ThinkingPart(content=text))
                        | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
                    ) if text:
                        self.context.emit(Thinking(text=text))

    async def _act(self, node: CallToolsNode[Any, Any], run: AgentRun[Any, Any]) -> None:
        """Record the model's answer, and what its calls return."""
        response, self._last_response = node.model_response, None
        is_new, self._is_asked = self._is_asked, False
        if is_new:
            self._report(response)
            if any(not _is_output(call, run) for call in response.tool_calls):
                outputs = {call.tool_call_id for call in response.tool_calls if _is_output(call, run)}
                blocks = [block for block in plain_blocks(response) if getattr(block, "call_id", None) not in outputs]
                self.journal.add(*blocks, events=[self.context.end_call(blocks)])
            else:
                self._last_response, self._refused = response, []
        async with node.stream(run.ctx) as events:
            async for event in events:
                if isinstance(event, FunctionToolResultEvent) and isinstance(event.part, ToolReturnPart):
                    self._add_result(event.part.tool_name, result_of(event.part, event.content))
                elif isinstance(event, OutputToolResultEvent) and event.part.outcome == "retried":
                    self._refused.append(event.part)

    def _report(self, response: ModelResponse) -> None:
        used = response.usage
        usage = Usage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cached_tokens=used.cache_read_tokens,
            reasoning_tokens=used.details.get("reasoning_tokens") or used.details.get("thoughts_tokens") or 0,
            calls=1,
        )
        self.context.report(usage=usage, stop_reason=response.finish_reason, model=response.model_name)

    def _add_result(self, name: str, result: ToolResult) -> None:
        if result.call_id in self.recorded:
            return
        self.recorded[result.call_id] = result
        state = self.context.calls.get(result.call_id)
        seconds = time.monotonic() - self._started.get(result.call_id, time.monotonic())
        ended = {
            "call_id": result.call_id,
            "name": name,
            "is_error": result.is_error,
            "seconds": round(seconds, 6),
            "tries": int(result.call_id in self._started),
        }
        calls = {result.call_id: state if state and state.verdict else None}
        self.journal.add(result, events=[(ToolEnded, ended)], calls=calls)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self.journal.flush())

    async def _flushed(self) -> None:
        """Wait until all that was added is stored."""
        if self._flushing:
            await self._flushing
        await self.journal.flush()

    def _send_back(self, node: ModelRequestNode[Any, Any]) -> None:
        """Record an answer that the agent has refused, as a call that failed, so that the next request is valid."""
        if self._last_response is None:
            return
        blocks, self._last_response = plain_blocks(self._last_response), None
        refused = [part for part in node.request.parts if isinstance(part, RetryFeedbackPart)]
        if self._refused:
            results: list[Block] = [result_of(part) for part in self._refused]
        elif refused:
            number = sum(isinstance(block, ToolResult) for block in self.journal.turn.output) + 1
            errors = "\n".join(part.model_response() for part in refused)
            repaired, result = sent_back(blocks, errors, f"{self.context.run_id}_{number}")
            blocks, results = list(repaired), [result]  # type: ignore[arg-type]
        else:  # the agent goes on by itself, such as with a message that a tool or a capability has enqueued
            results = []
        ended = [
            (ToolEnded, {"call_id": result.call_id, "name": ANSWER_TOOL, "is_error": True})
            for result in results
            if isinstance(result, ToolResult)
        ]
        self.journal.add(*blocks, *results, events=[self.context.end_call(blocks), *ended])

    def _answer(self, run: AgentRun[Any, Any]) -> Sequence[AnyBlock]:
        """Return the last answer. An output that came by a call, or was made of the answer, is a text of JSON."""
        output = run.result.output if run.result else None
        if isinstance(output, DeferredToolRequests):
            calls = ", ".join(call.tool_call_id for call in [*output.calls, *output.approvals])
            raise EngineError(f"the agent left calls undecided that had been decided: {calls}; see CallDeferred")
        spoken = plain_blocks(self._last_response) if self._last_response else []
        if isinstance(output, str) and not any(isinstance(block, ToolUse) for block in spoken) and spoken:
            return spoken
        text = output if isinstance(output, str) else pydantic_core.to_json(output, serialize_unknown=True).decode()
        return [*(block for block in spoken if isinstance(block, Thinking)), Text(text=text)]

    # What the journal's capability asks

    async def begin(self, call: ToolCallPart, tool: ToolDefinition) -> ToolResult | None:
        """Return the recorded result of a call; None if it has none: then the call is recorded as begun.

        Raises:
            ToolFailed: the call had begun when its process was lost, and is not repeatable.
        """
        call_id = call.tool_call_id
        if recorded := self.recorded.get(call_id):
            return recorded
        state = self.context.calls.get(call_id) or CallState(name=call.tool_name)
        may_repeat = tool.name in self._settings.repeatable or (tool.metadata or {}).get(_REPEATABLE) is True
        if state.started and call_id not in self._begun and not may_repeat:
            raise ToolFailed(LOST)
        if call_id not in self._begun or not state.started:
            self.context.report(usage=Usage(tool_calls=1), tool=call.tool_name)
            started = [(ToolStarted, {"call_id": call_id, "name": call.tool_name})]
            self.journal.add(events=started, calls={call_id: replace(state, started=True)})
            self._begun.add(call_id)
        self._started.setdefault(call_id, time.monotonic())
        await self.journal.flush()
        return None

    async def decide(self, requests: DeferredToolRequests) -> DeferredToolResults:
        """Return the decisions about these calls.

        Raises:
            Suspend: not all of them are decided. Those that are new are recorded as waiting.
        """
        results = DeferredToolResults()
        calls_by_wish: dict[Wants, Sequence[ToolCallPart]] = {"approval": requests.approvals, "result": requests.calls}
        for wants, calls in calls_by_wish.items():
            for call in calls:
                call_id, state = call.tool_call_id, self.context.calls.get(call.tool_call_id)
                recorded = self.recorded.get(call_id)
                if wants == "approval" and (recorded or (state and state.verdict == "approved")):
                    results.approvals[call_id] = ToolApproved()  # `begin` returns a result that is there
                elif recorded:
                    content = content_of(recorded)
                    results.calls[call_id] = ToolFailed(str(recorded.text)) if recorded.is_error else content
                else:
                    self._wait(call, wants, state, requests.metadata.get(call_id))
        if self.suspended:
            await self._flushed()
            raise Suspend
        return results

    def _wait(
        self, call: ToolCallPart, wants: Wants, state: CallState | None, metadata: Mapping[str, Any] | None
    ) -> None:
        self.suspended = True
        if state and state.is_waiting:
            return
        reason = str(metadata["why"]) if metadata and "why" in metadata else None
        waiting = CallState(name=call.tool_name, wants=wants, why=reason)
        values = {"call_id": call.tool_call_id, "name": call.tool_name, "input": call.args_as_dict(), "wants": wants}
        if reason:
            values["why"] = reason
        self.journal.add(events=[(ApprovalRequested, values)], calls={call.tool_call_id: waiting})

    def check(self, call: ToolCallPart) -> None:
        """Raise ToolFailed if a call's arguments are no JSON object: nobody is asked about it, and no tool gets it."""
        if refused := refusal(use_of(call, is_cut=self._is_cut)):
            raise ToolFailed(refused.text)

    def own_ids(self, response: ModelResponse) -> ModelResponse:
        """Return the answer with whole texts, and call ids that are unique in the run, as some servers repeat them."""
        self._is_cut = response.finish_reason == "length"
        used = {block.call_id for block in self.journal.turn.output if isinstance(block, ToolUse)}
        parts: list[Any] = []
        for part in map(whole_part, response.parts):
            if not isinstance(part, ToolCallPart):
                parts.append(part)
                continue
            call_id, number = part.tool_call_id, 1
            while call_id in used:
                number += 1
                call_id = f"{part.tool_call_id}_{number}"
            used.add(call_id)
            parts.append(part if call_id == part.tool_call_id else replace(part, tool_call_id=call_id))
        return response if parts == list(response.parts) else replace(response, parts=parts)

    def errors(self, output: Any) -> str | None:
        """Return why an output is not of the type that the run requests; None if it is, or if the run requests none."""
        if self._output is None or self._output.retries is None:
            return None
        return self._output.errors(pydantic_core.to_json(output, serialize_unknown=True).decode())


class JournalCapability(AbstractCapability[Any]):
    """Keeps an agent's run in step with the session's journal: see `_Execution`."""

    def __init__(self, execution: _Execution) -> None:
        self._execution = execution

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, response: ModelResponse
    ) -> ModelResponse:
        return self._execution.own_ids(response)

    async def wrap_tool_validate(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        self._execution.check(call)
        return await handler(args)

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        recorded = await self._execution.begin(call, tool_def)
        if recorded is None:
            return await handler(args)
        if recorded.is_error:
            raise ToolFailed(recorded.text)
        return content_of(recorded)

    async def after_output_process(self, ctx: RunContext[Any], *, output_context: Any, output: Any) -> Any:
        if errors := self._execution.errors(output):
            raise ModelRetry(errors)
        return output

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        return await self._execution.decide(requests)


def _plain_agent(agent: AbstractAgent[Any, Any], model: Any) -> AbstractAgent[Any, Any]:
    """Return an agent for a question that is no turn: it has the agent's model and settings, and nothing else of it."""
    own = agent
    while isinstance(own, WrapperAgent):
        own = own.wrapped
    settings: Any = getattr(own, "model_settings", None)
    plain: Any = (lambda ctx: _plain_settings(settings(ctx))) if callable(settings) else _plain_settings(settings)
    return Agent(model, name=agent.name, model_settings=plain)


def _plain_settings(settings: Mapping[str, Any] | None) -> Any:
    """Return the model settings without those that give answers a form, or are about tools."""
    kept = {name: value for name, value in without_form(settings or {}).items() if not name.endswith("_tools")}
    body = kept.get("extra_body")
    return {**kept, "extra_body": without_form(body)} if isinstance(body, Mapping) else kept


def _is_output(call: ToolCallPart, run: AgentRun[Any, Any]) -> bool:
    """Return whether a call gives the agent's output."""
    definition = run.ctx.deps.tool_manager.get_tool_def(call.tool_name)
    return definition is not None and definition.kind == "output"


PARAMS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "max_output_tokens": "max_tokens",
    "seed": "seed",
    "stop": "stop_sequences",
    "reasoning_effort": "thinking",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tool_calls",
}
"""The parameters of runs that Pydantic AI has, and its names for them."""


def model_settings(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a run's parameters as the framework's model settings; None if there are none."""
    settings = {PARAMS[name]: value for name, value in params.items()}
    if isinstance(stop := settings.get("stop_sequences"), str):
        settings["stop_sequences"] = [stop]
    if settings.get("thinking") == "none":
        settings["thinking"] = False
    if isinstance(choice := settings.get("tool_choice"), Mapping):
        settings["tool_choice"] = [choice["function"]["name"]]
    return settings or None


def typed(error: Exception, agent: AbstractAgent[Any, Any]) -> Exception:
    """Return an error of the framework, or of a model's library, as one of ours."""
    if isinstance(error, FallbackExceptionGroup):
        return typed(error.exceptions[-1], agent)
    where = f"agent {agent.name!r}"
    message, translated = f"{where}: {error}", EngineError(f"{where} raised {type(error).__name__}: {error}")
    match error:
        case UsageLimitExceeded():
            code = "budget" if "token" in str(error) or "cost" in str(error) else "step_limit"
            translated = LimitError(f"{message}; raise usage_limits=", code)
        case ModelAPIError() if isinstance(error, ModelContextWindowExceededError) or TOO_LONG_MESSAGE.search(message):
            translated = ContextOverflowError(
                f"{message}; the conversation is longer than the model's window: pass a strategy"
            )
        case ModelHTTPError() if error.status_code in _REFUSALS:
            translated = RequestRefusedError(f"{message}; the provider refuses the request: see its message")
        case ModelAPIError():
            translated = EngineError(
                f"{message}; check the model, its key and the network, or run the prompt again later"
            )
        case OutputTokenLimitExceeded():
            translated = OutputError(f"{message}; raise max_tokens in the agent's model settings", "output_cut")
        case UnexpectedModelBehavior() if "output retries" in str(error):
            translated = OutputError(message, "output_invalid")
        case UserError():
            translated = EngineError(f"{message}; correct the agent's definition")
        case AgentRunError():
            translated = EngineError(f"{message}; run the prompt again")
    return translated


def _plain(value: Any) -> Any:
    return pydantic_core.from_json(pydantic_core.to_json(value))
