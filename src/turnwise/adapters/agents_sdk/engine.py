"""`AgentsSDKEngine`: an agent of the OpenAI Agents SDK answers the turns of sessions."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import openai
from pydantic import PlainValidator

from turnwise.actors.inference.engine import (
    ASIDE,
    RequestFrame,
    RunContext,
    SessionView,
    StepContext,
    Suspend,
    output_of,
)
from turnwise.actors.inference.openai.request import without_form
from turnwise.actors.inference.openai.runner import TOO_LONG_MESSAGE
from turnwise.actors.inference.shortening import BeginAgain, answer_shortened
from turnwise.actors.inference.tools.loop import send_back
from turnwise.adapters.agents_sdk.graph import Graph, agents_of, described, hold_targets
from turnwise.adapters.agents_sdk.items import plain
from turnwise.adapters.agents_sdk.journal import CURRENT, Journal, JournalHooks, attempts_of, usage_of
from turnwise.adapters.agents_sdk.model import TAKEN, BrokenOffError, JournalledProvider
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import (
    ConfigError,
    ContextOverflowError,
    EngineError,
    GuardrailError,
    InvalidInputError,
    LimitError,
    OutputError,
    RequestRefusedError,
    TurnwiseError,
    shown,
)
from turnwise.memory.conversation.blocks import AnyBlock, Document, Image, answer_text
from turnwise.memory.conversation.output_type import OutputType, as_said
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.providers.arrangement import before_answer
from turnwise.memory.providers.openai_responses import encode
from turnwise.memory.providers.validation import RESPONSES
from turnwise.memory.values.checked_settings import Names, PositiveCount, checked_settings
from turnwise.memory.values.frozen_json import FrozenDict, freeze, plain_json
from turnwise.memory.values.required_arguments import needs

with framework("openai-agents", extra="openai-agents", tested="0.24"):
    from agents import (
        Agent,
        AgentOutputSchemaBase,
        AgentsException,
        FunctionTool,
        InputGuardrailTripwireTriggered,
        MaxTurnsExceeded,
        Model,
        ModelRefusalError,
        ModelSettings,
        OutputGuardrailTripwireTriggered,
        RunConfig,
        Runner,
        RunResult,
        RunState,
        ToolInputGuardrailTripwireTriggered,
        ToolOutputGuardrailTripwireTriggered,
    )
    from agents.mcp import MCPServerManager
    from agents.models.default_models import get_default_model

    expect(Runner.run, "starting_agent", "input", "context", "max_turns", "hooks", "run_config")
    expect(RunConfig, "model", "model_provider", "model_settings", "group_id")
    expect(RunResult, "interruptions", "new_items", "final_output", "context_wrapper")
    expect(RunState.approve, "approval_item")
    expect(RunState.reject, "approval_item", "rejection_message")
    expect(MCPServerManager, "strict", "connect_in_parallel")

Factory = Callable[[], "Agent[Any]"]

_REFUSALS = (400, 413, 415, 422)
"""The HTTP statuses of requests that the provider would refuse again."""

_KEY_REFUSED = (401, 403)

_NESTED = "Nobody can be asked to approve this call, since the agent that makes it is a tool of another agent."

_PASSED_ON = ("service_tier", "prompt_cache_key", "safety_identifier")
"""Parameters of runs that both of OpenAI's APIs take, and `ModelSettings` has no name for."""


def _source(agent: Any) -> Any:
    if isinstance(agent, Agent):
        hold_targets(agent)
    elif isinstance(agent, str):
        module, _, name = agent.partition(":")
        if not module or not name:
            raise ValueError("must be 'package.module:name'")
    elif not callable(agent) or isinstance(agent, type):
        raise ValueError("must be an Agent, a function that makes one, or 'module:name'")
    return agent


@needs(agent="pass an Agent, a function that makes one, or 'module:name'")
@dataclass(frozen=True)
@checked_settings()
class AgentsSDKEngine:
    """Answers with an agent of the OpenAI Agents SDK, which keeps its tools, handoffs, guardrails and models.

    Each turn is a run of the agent on the conversation. Its text and thinking are streamed; its answers, calls and
    results are recorded in order, so that the next request is valid for any provider. A run that is resumed, after a
    crash or a decision, repeats from the record: the agent runs again from the turn's prompt, recorded answers and
    results are given to it without asking a model or calling a tool, and it goes on from there. So guardrails and
    `on_handoff` functions may run again, and should do no harm.

    - **Tools.** Calls of function tools, of MCP servers' tools and of agents as tools are journalled: one that has a
      result is never made again, and one that had begun when its process was lost is reported to the model as lost,
      unless the tool is `repeatable`. The tools of OpenAI's servers (web search, code interpreter, ...) run there;
      computer, shell and patch tools of the SDK are not journalled: after a crash their last calls are made again.
    - **Approvals.** A call that needs approval (`needs_approval`) makes the run wait, also for days: see
      `ExecutionHandle.approve`. A call within an agent that is a tool is rejected, and that agent is told so: give the
      approval to the agent's own tool, or use a handoff.
    - **Handoffs** work. `after_handoff` says which agent begins the next turn.
    - **Answers of a type** (`output=` of a run) replace the agent's own `output_type` in that run, and are checked and
      sent back as usual; agents that it hands off to keep theirs.
    - **Questions of turnwise's own**, such as for a title or a summary, are put to the agent's model with its settings:
      without instructions, tools, handoffs, output type and guardrails.
    - **Usage** includes agents that are tools; their model calls are not counted as calls of the run.
    - **Errors.** `GuardrailError` for a tripwire: the run fails with the code `guardrail`, and keeps nothing of the
      answer that was refused. `LimitError` for `max_turns`; `OutputError` if the model refuses to answer.

    Args:
        agent: an agent; or a function that makes one, or `"package.module:name"` of either. An agent is pickled, and so
            is a function that is not importable. An agent whose model holds a client, or that has MCP servers, does not
            pickle: pass a function. It is called once for each session in each process, off the event loop. It
            should share clients (`functools.cache`): the clients of the agents that it makes are never closed. MCP
            servers are connected at the session's first run there.
        context: the run's context object of the SDK, or a function that makes it from the `SessionView`.
        max_turns: how often a run may ask the agent and those it hands off to, recorded answers included.
        run_config: settings of the SDK for each run; the session's id is its `group_id`, unless it has one.
        stream: whether answers are streamed. Set False for models that cannot stream.
        after_handoff: `return`: each turn begins with `agent`. `stay`: with the agent to which the conversation was
            handed off, as far as the window shows it.
        repeatable: names of tools whose calls may be made again if the process was lost while they ran.

    Raises:
        ConfigError: a setting is wrong, or the SDK is not installed.
        FrameworkError: the installed SDK has another interface.
    """

    calls_its_tools: ClassVar[bool] = True
    """See `CallsItsTools`."""

    agent: Annotated[Agent[Any] | Factory | str, PlainValidator(_source)]
    _: KW_ONLY
    context: Any = None
    max_turns: PositiveCount = 20
    run_config: RunConfig | None = None
    stream: bool = True
    after_handoff: Literal["return", "stay"] = "return"
    repeatable: Names = ()
    output_type: FrozenDict | None = None
    """Set by `answering`: the type of answers for runs without one."""

    def __reduce__(self) -> tuple[Any, ...]:
        for agent in agents_of(self.agent) if isinstance(self.agent, Agent) else ():
            held = vars(agent.model).values() if isinstance(agent.model, Model) else ()
            if any(isinstance(value, openai.AsyncOpenAI) for value in held):
                obstacle = f"the model of agent {agent.name!r} holds a client"
            elif agent.mcp_servers:
                obstacle = f"agent {agent.name!r} has MCP servers"
            else:
                continue
            raise ConfigError(
                "agent", agent.name, f"{obstacle}, which cannot travel: pass a function that makes the agent"
            )
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "_"}
        return _rebuilt, (values,)

    def __identity__(self) -> object:
        """Return what makes two engines one: the agents and what they are made of, not the objects of the SDK."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("_", "agent")}
        agents = [described(agent) for agent in agents_of(self.agent)] if isinstance(self.agent, Agent) else self.agent
        return values, agents

    def build(self, session: SessionView) -> AgentRunner:
        """Return a runner with its own copies of the agent and of those that it hands off to."""
        return AgentRunner(self, self._agent(), session)

    def _agent(self) -> Agent[Any]:
        agent: Any = self.agent
        if isinstance(agent, str):
            module, _, name = agent.partition(":")
            try:
                agent = functools.reduce(getattr, name.split("."), importlib.import_module(module))
            except (ImportError, AttributeError) as error:
                raise EngineError(f"agent {self.agent!r} cannot be imported: {error}") from error
        if not isinstance(agent, Agent):
            agent = agent()
        if not isinstance(agent, Agent):
            raise EngineError(f"agent={shown(self.agent)} made {shown(agent)}: it must make an Agent of the Agents SDK")
        return agent

    def frame(self) -> RequestFrame:
        """See `Framed`. Of an agent that a function makes, nothing is known before it is made."""
        agent = self.agent
        if not isinstance(agent, Agent):
            return RequestFrame()
        model = agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", None)
        tools = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.params_json_schema,
            }
            for tool in agent.tools
            if isinstance(tool, FunctionTool)
        ]
        return RequestFrame(
            model=str(model or get_default_model()),
            system=agent.instructions if isinstance(agent.instructions, str) else None,
            tools=tools,
            max_output_tokens=agent.model_settings.max_tokens,
        )

    def refuses(self, block: Image | Document) -> str | None:
        """See `Selective`."""
        return RESPONSES.refuses(block)

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Steerable`."""
        reason = "not every model of the Agents SDK takes it: set it in the agent's ModelSettings"
        return {name: reason for name in params if name not in TAKEN and name not in _PASSED_ON}

    def answering(self, schema: Mapping[str, Any]) -> AgentsSDKEngine:
        """See `Structured`. Of the agent, such an engine has the model and its settings."""
        return replace(self, output_type=OutputType(schema=freeze(schema), retries=None).record)

    def extended(self, tools: Mapping[str, Mapping[str, Any]]) -> AgentsSDKEngine:
        """See `Extensible`."""
        for agent in agents_of(self.agent) if isinstance(self.agent, Agent) else ():
            for tool in agent.tools:
                if tool.name in tools:
                    raise InvalidInputError("tools", shown(tool.name), f"agent {agent.name!r} has a tool of this name")
        return self


def _rebuilt(values: Mapping[str, Any]) -> AgentsSDKEngine:
    return AgentsSDKEngine(**values)


class AgentRunner:
    """Runs the agent for the turns of one session."""

    def __init__(self, settings: AgentsSDKEngine, agent: Agent[Any], session: SessionView) -> None:
        self._settings = settings
        self._graph = Graph(agent, stream=settings.stream)
        config = settings.run_config or RunConfig()
        provider = JournalledProvider(config.model_provider, stream=settings.stream)
        self._config = replace(config, model_provider=provider, group_id=config.group_id or session.key)
        servers = [server for reachable in agents_of(agent) for server in reachable.mcp_servers]
        self._servers = MCPServerManager(servers, strict=True, connect_in_parallel=True) if servers else None
        context = settings.context
        self._context = context(session) if inspect.isroutine(context) else context

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        """Return the agent's last answer; everything before it has been recorded.

        Raises:
            GuardrailError, LimitError, OutputError, EngineError: see `AgentsSDKEngine`.
            Suspend: a call waits for a decision.
        """
        repeatable = self._settings.repeatable
        return await answer_shortened(turn, context, lambda turn: self._attempt(Journal(turn, context, repeatable)))

    async def close(self) -> None:
        """Close what the SDK has opened for this runner, with the connections of MCP servers."""
        if self._servers:
            await self._servers.cleanup_all()
        await self._config.model_provider.aclose()

    async def _attempt(self, journal: Journal) -> Sequence[AnyBlock]:
        token = CURRENT.set(journal)
        try:
            if self._servers:
                await self._servers.connect_all()  # those that are not connected yet
            return await self._run(journal)
        except Exception as error:
            if journal.failure is not None:
                raise journal.failure from None
            raise self._translated(error) from error
        finally:
            CURRENT.reset(token)
            await journal.close()

    async def _run(self, journal: Journal) -> Sequence[AnyBlock]:
        turn = journal.turn
        stays = self._settings.after_handoff == "stay"
        spoken = turn.blocks[: len(turn.blocks) - len(turn.output) + attempts_of(turn)]
        agent = self._graph.after(spoken if stays else turn.output[: attempts_of(turn)])
        config = self._of_run(journal.context)
        if journal.context.run_id == ASIDE:  # a summary, or another question that is no turn
            agent = Agent(name=agent.name, model=agent.model, model_settings=_plain_settings(agent.model_settings))
            settings = config.model_settings and _plain_settings(config.model_settings)
            config = replace(config, model_settings=settings, input_guardrails=None, output_guardrails=None)
        output = OutputType.read(output_of(journal.context, self._settings.output_type))
        if output:
            agent = copy.copy(agent)
            agent.output_type = JsonAnswer(output)
        run_input: Any = self._input(turn, spoken, agent)
        options: dict[str, Any] = {"context": self._context, "max_turns": self._settings.max_turns}
        while True:
            result = await Runner.run(agent, run_input, run_config=config, hooks=JournalHooks(journal), **options)
            if not result.interruptions:
                break
            run_input, options = result.to_state(), {}
            waiting = []
            for item in result.interruptions:
                call_id = str(item.call_id)
                if not (item.agent is agent or self._graph.has(item.agent)) or not journal.has(item):
                    run_input.reject(item, rejection_message=_NESTED)
                elif journal.is_decided(call_id):
                    run_input.approve(item)
                else:
                    waiting.append(item)
            if waiting:
                await journal.suspend(waiting)
        output_types = ("tool_call_output_item", "handoff_output_item")
        journal.record_outputs([plain(item.raw_item) for item in result.new_items if item.type in output_types])
        journal.count(usage_of(result.context_wrapper.usage))
        answer = await journal.finish(result.final_output)
        if output and output.retries is not None and (errors := output.errors(answer_text(answer))):
            raise BeginAgain(await send_back(journal.turn, answer, errors, output, journal.context))
        return answer

    def _input(self, turn: Turn, blocks_said: Sequence[AnyBlock], agent: Agent[Any]) -> list[Any]:
        """Return the conversation as items. Each prompt is one, so that a guardrail sees the newest one alone."""
        model = agent.model if isinstance(agent.model, str) else getattr(agent.model, "name", "")
        blocks = as_said(RESPONSES.spare(blocks_said, keep=turn.asked))
        if not (turn.asked or turn.output):
            blocks = before_answer(blocks)
        items = encode(blocks, model or get_default_model())[1]
        return [_plain_message(item) if item.get("role") == "assistant" else item for item in items]

    def _of_run(self, context: RunContext) -> RunConfig:
        passed_on = {name: context.params[name] for name in _PASSED_ON if name in context.params}
        if not passed_on and not context.model:
            return self._config
        config = self._config
        if context.model and not isinstance(self._graph.root.model, Model):
            config = replace(config, model=context.model)
        if passed_on:
            model_settings = config.model_settings
            args = {**((model_settings.extra_args if model_settings else None) or {}), **passed_on}
            config = replace(config, model_settings=(model_settings or ModelSettings()).resolve({"extra_args": args}))
        return config

    def _translated(self, error: Exception) -> Exception:  # noqa: PLR0911 - a table
        """Return an error of the SDK, or of the client library, as one of turnwise."""
        name = self._graph.root.name
        match error:
            case TurnwiseError() | BeginAgain() | Suspend():
                return error
            case InputGuardrailTripwireTriggered(guardrail_result=result):
                return _guardrail("input", result.guardrail, result.output.output_info)
            case OutputGuardrailTripwireTriggered(guardrail_result=result):
                return _guardrail("output", result.guardrail, result.output.output_info)
            case ToolInputGuardrailTripwireTriggered():
                return _guardrail("tool input", error.guardrail, error.output.output_info)
            case ToolOutputGuardrailTripwireTriggered():
                return _guardrail("tool output", error.guardrail, error.output.output_info)
            case MaxTurnsExceeded():
                most = self._settings.max_turns
                return LimitError(f"agent {name!r} has asked its model {most} times: raise max_turns=", "step_limit")
            case ModelRefusalError():
                return OutputError(
                    f"the model of agent {name!r} refuses to answer: {error.refusal[:500]}", "output_refused"
                )
            case openai.APIStatusError():
                return _refused(name, error)
            case openai.APIConnectionError():
                reason = f"did not answer to the end ({error.__cause__ or error}): check base_url and the network"
                return EngineError(f"the model of agent {name!r} {reason}")
            case openai.OpenAIError() if "api_key" in str(error):
                reason = "has no client: set OPENAI_API_KEY, or make the agent with a model"
                return EngineError(f"agent {name!r} {reason}: {error}")
            case BrokenOffError():
                kind = ContextOverflowError if TOO_LONG_MESSAGE.search(str(error)) else EngineError
                reason = f"failed within its answer: {str(error)[:500]}; run the prompt again"
                return kind(f"the model of agent {name!r} {reason}")
            case AgentsException():
                return EngineError(f"agent {name!r} failed: {type(error).__name__}: {str(error)[:2000]}")
        return EngineError(f"agent {name!r} failed: {type(error).__name__}: {str(error)[:2000]}")


class JsonAnswer(AgentOutputSchemaBase):
    """The type of a run's answer, for the SDK's requests. The answer is checked later, not by the SDK."""

    def __init__(self, output: OutputType) -> None:
        self._schema = plain_json("output", output.schema, 1 << 20)

    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return "final_answer"

    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = self._schema
        return schema

    def is_strict_json_schema(self) -> bool:
        return False

    def validate_json(self, json_str: str) -> str:
        return json_str


def _plain_settings(settings: ModelSettings) -> ModelSettings:
    """Return the settings without those that give answers a form, or are about tools."""
    args, body = settings.extra_args, settings.extra_body
    return replace(
        settings,
        tool_choice=None,
        parallel_tool_calls=None,
        extra_args=without_form(args) if args else None,
        extra_body=without_form(body) if isinstance(body, Mapping) else body,
    )


def _plain_message(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of the assistant in the form that all models of the SDK take: it has no id."""
    return {"role": "assistant", "content": "".join(part["text"] for part in item["content"])}


def _guardrail(stage: str, guardrail: Any, info: Any) -> GuardrailError:
    return GuardrailError(stage, str(guardrail.get_name()), shown(info))


def _refused(name: str, error: openai.APIStatusError) -> EngineError:
    provider = f"the provider of agent {name!r}"
    if error.status_code in _KEY_REFUSED:  # some servers quote the key
        return EngineError(
            f"{provider} refused the key or the model (status {error.status_code}): check the client's key"
        )
    message = f"{provider} refused the request: {error.message[:1000]}"
    if error.code == _TOO_LONG or TOO_LONG_MESSAGE.search(f"{error.message} {error.body}"):
        reason = "the conversation is longer than the model's window: pass an overflow strategy"
        return ContextOverflowError(f"{message}; {reason}")
    if error.status_code in _REFUSALS and (error.param or "").partition("[")[0] in ("", "input", "messages"):
        return RequestRefusedError(f"{message}; see its message")
    return EngineError(f"{message}; run the prompt again later")


_TOO_LONG = "context_length_exceeded"
