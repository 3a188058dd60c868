"""`PydanticAIEngine`: an agent of Pydantic AI answers the turns of sessions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Annotated, Any, ClassVar
from weakref import WeakValueDictionary

from pydantic import PlainValidator

from turnwise.actors.inference.engine import SessionView
from turnwise.adapters.pydantic_ai.runner import PARAMS, AgentRunner, AgentSettings
from turnwise.adapters.version_checks import framework
from turnwise.errors import ConfigError, EngineError, shown
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.values.checked_settings import Names, checked_settings
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.required_arguments import needs

with framework("pydantic-ai-slim", extra="pydantic-ai", tested="2.68"):
    from pydantic_ai import Agent
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import Model, infer_model
    from pydantic_ai.usage import UsageLimits

Source = AbstractAgent[Any, Any] | Callable[[], AbstractAgent[Any, Any]] | str


def _source(agent: Any) -> Any:
    if isinstance(agent, AbstractAgent):
        _check_model(agent)
    elif isinstance(agent, str):
        module, _, name = agent.partition(":")
        if not module or not name:
            raise ValueError("must be 'package.module:name'")
    elif not callable(agent) or isinstance(agent, type):
        raise ValueError("must be an Agent, a function that makes one, or 'module:name'")
    return agent


def _limits(limits: Any) -> Any:
    if not isinstance(limits, UsageLimits):
        raise ValueError("must be UsageLimits")
    return limits


@needs(agent="pass an Agent, a function that makes one, or 'module:name'")
@dataclass(frozen=True)
@checked_settings()
class PydanticAIEngine:
    """Answers with an agent of Pydantic AI, which keeps its model, tools, instructions, output type and capabilities.

    Each turn is a run of the agent on the conversation. Its text and thinking are streamed; its answers, calls and
    results are recorded in order, so that the next request is valid for any provider, and what a provider attached to
    thoughts and calls (signatures) goes back to it. A run that is resumed, after a crash or a decision, goes on from
    what was recorded.

    - **Tools.** Each call of the agent's own tools is recorded as begun before it is made, and its result before the
      model gets it. A call that has a result is never made again. One that had begun when its process was lost is
      reported to the model as lost, unless the tool is `repeatable`, or has `metadata={"repeatable": True}`. Calls that
      an agent makes within a tool of another one, and tools that providers run themselves, are not journalled.
    - **Approvals.** A call of a tool with `requires_approval=True`, one that raises `ApprovalRequired` or
      `CallDeferred`, and one of an external tool make the run wait, also for days: see `ExecutionHandle.approve`,
      `reject` and `provide`. `metadata={"why": ...}` of the exception is shown to the person who decides.
    - **Output.** An output that is not text is the JSON of the answer. An answer that the agent's validators refuse is
      recorded as a failed call, and the model is asked again, as often as the agent's `retries` say. With `output=`, a
      run has a type of its own.
    - **System prompt.** The agent's, unless the conversation has one. Instructions always apply.
    - **Questions of turnwise's own**, such as for a title or a summary, are put to the agent's model with its settings:
      without the agent's instructions, tools, output type and capabilities.
    - **Errors.** `UsageLimitExceeded` becomes `LimitError`; a refusal of the request `RequestRefusedError`; a request
      longer than the window `ContextOverflowError`, after which the session's strategy makes room; other errors
      `EngineError`. An exception of a tool fails the run, as in Pydantic AI.

    Args:
        agent: an agent; or a function that makes one, or `"package.module:name"` of either. An agent is pickled, and so
            is a function that is not importable. An agent whose model holds a client does not pickle: pass a function.
            It is called once for each session in each process, off the event loop.
        deps: the agent's dependencies, or a function that makes them from the `SessionView`.
        usage_limits: the framework's limits of a run. A run that is resumed counts from 0; a session's budgets do not.
        stream: whether answers are streamed. Set False for models that cannot stream.
        repeatable: names of tools whose calls may be made again if the process was lost while they ran.
        name: identifies the agent: sessions treat engines of the same name as the same engine, so change it when the
            agent changes. By default it is made of the agent's name or the function's, its model and its tools.

    Raises:
        ConfigError: a setting is wrong, the agent has no model, or Pydantic AI is not installed.
        FrameworkError: the installed Pydantic AI has another interface.
    """

    calls_its_tools: ClassVar[bool] = True
    """See `CallsItsTools`."""

    agent: Annotated[Source, PlainValidator(_source)]
    _: KW_ONLY
    deps: Any = None
    usage_limits: Annotated[UsageLimits, PlainValidator(_limits)] | None = None
    stream: bool = True
    repeatable: Names = ()
    name: str = ""
    output_type: FrozenDict | None = field(default=None)
    """Set by `answering`: the type of answers for runs without one."""

    @property
    def engine_name(self) -> str:
        """See `EngineBuilder`."""
        limits = (self.usage_limits, self.stream, self.repeatable, self.output_type)
        return f"pydantic-ai {self.name or _name_of(self.agent)} {limits}"

    def __reduce__(self) -> tuple[Any, ...]:
        model = self.agent.model if isinstance(self.agent, AbstractAgent) else None
        if isinstance(model, Model) and model.provider is not None:
            reason = "its model holds a client, which cannot travel: pass a function that makes the agent"
            raise ConfigError("agent", _name_of(self.agent), reason)
        values = {name: getattr(self, name) for name in _FIELDS}
        if type(self.agent) is Agent:
            values["agent"] = _parted(self.agent)
        return _rebuilt, (values,)

    def answering(self, schema: Mapping[str, Any]) -> PydanticAIEngine:
        """See `Structured`. The agent keeps its tools."""
        return replace(self, output_type=OutputType(schema=freeze(schema), retries=None).record)

    def extended(self, tools: Mapping[str, Mapping[str, Any]]) -> PydanticAIEngine:
        """See `Extensible`. A tool of the run that has the name of the agent's fails the run."""
        return self

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Steerable`. A model is named with its provider, such as `anthropic:claude-sonnet-4-5`."""
        names = ", ".join(PARAMS)
        refused = {name: f"Pydantic AI has no such setting; it has {names}" for name in params if name not in PARAMS}
        if model is not None and ":" not in model:
            refused["model"] = "must be 'provider:name', such as 'anthropic:claude-sonnet-4-5'"
        return refused

    def build(self, session: SessionView) -> AgentRunner:
        """Return a runner with the agent.

        Raises:
            EngineError: the function, or the name, gives no agent with a model, or the model lacks its key.
        """
        settings = AgentSettings(self.deps, self.usage_limits, self.stream, tuple(self.repeatable), self.output_type)
        agent = _agent_of(self.agent)
        try:
            model = infer_model(agent.model) if isinstance(agent.model, str) else agent.model
        except (ImportError, UserError) as error:
            raise EngineError(f"the model of agent {agent.name!r} cannot be used: {error}") from error
        return AgentRunner(agent, model, settings)


_FIELDS = ("agent", "deps", "usage_limits", "stream", "repeatable", "name", "output_type")


@dataclass(frozen=True)
class _Parted:
    """An agent as what it holds: as it is, it does not pickle."""

    held: dict[str, Any]
    variables: dict[str, str]
    """Its context variables, which hold nothing between runs."""
    caches: tuple[str, ...]
    """The names of its weak dictionaries, which hold nothing between runs either."""


def _parted(agent: Agent[Any, Any]) -> _Parted:
    held = {name: value for name, value in vars(agent).items() if not isinstance(value, _OF_PROCESS)}
    variables = {name: value.name for name, value in vars(agent).items() if isinstance(value, ContextVar)}
    caches = tuple(name for name, value in vars(agent).items() if isinstance(value, WeakValueDictionary))
    return _Parted(held, variables, caches)


_OF_PROCESS = (ContextVar, WeakValueDictionary)


def _rebuilt(values: dict[str, Any]) -> PydanticAIEngine:
    if isinstance(parted := values["agent"], _Parted):
        agent: Agent[Any, Any] = object.__new__(Agent)
        variables = {name: ContextVar(variable, default=None) for name, variable in parted.variables.items()}
        vars(agent).update({**parted.held, **variables, **{name: WeakValueDictionary() for name in parted.caches}})
        values = {**values, "agent": agent}
    return PydanticAIEngine(**values)


def _agent_of(source: Source) -> AbstractAgent[Any, Any]:
    agent: Any = source
    if isinstance(agent, str):
        module, _, name = agent.partition(":")
        try:
            agent = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise EngineError(f"agent={source!r} cannot be imported: {error}") from error
    if not isinstance(agent, AbstractAgent) and callable(agent):
        agent = agent()
    if not isinstance(agent, AbstractAgent):
        raise EngineError(
            f"agent={shown(source)} gave {shown(agent)}: it must be an Agent, or a function that makes one"
        )
    try:
        _check_model(agent)
    except ConfigError as error:
        raise EngineError(str(error)) from error
    return agent


def _check_model(agent: AbstractAgent[Any, Any]) -> None:
    if agent.model is None:
        reason = "has no model: pass one, such as Agent('anthropic:claude-sonnet-4-5', ...)"
        raise ConfigError("agent", agent.name, reason)


def _name_of(source: Source) -> str:
    if isinstance(source, str):
        return source
    if not isinstance(source, AbstractAgent):
        return f"{source.__module__}.{getattr(source, '__qualname__', type(source).__qualname__)}"
    model = source.model
    tools = [toolset.label for toolset in source.toolsets]
    return f"{source.name} {getattr(model, 'model_id', model)} {source.output_type} {tools}"
