"""`Tool`, `tool` and `external_tool`: functions that a model may call."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Annotated, Any, Literal, Protocol, cast, overload

from pydantic import BaseModel, PlainValidator, ValidationError

from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.signature import (
    Arguments,
    described,
    follow_schema,
    known_schema,
    parameters_of,
    plain_function,
    say,
    schema_of,
    without_partial,
)
from turnwise.errors import ConfigError, InvalidInputError, shown
from turnwise.memory.conversation.calls.run_tools import MAX_TOOLS, MAX_TOOLS_BYTES, is_tool_name
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.values.checked_settings import Count, PositiveCount, PositiveSeconds, checked_settings
from turnwise.memory.values.frozen_json import FrozenDict, freeze, plain_json

Approval = Callable[[Mapping[str, Any], ToolContext], bool]
"""Returns, given a call's arguments, whether a person must approve the call. Must not block. If it raises, the
call waits for a person, who is shown the error."""


@dataclass(frozen=True)
class ToolDefinition:
    """A tool as it is declared to the model."""

    name: str
    description: str
    parameters: FrozenDict = field(default_factory=FrozenDict)
    """A JSON schema of an object."""


OnLostAgent = Literal["report", "restart"]
"""What happens if an agent's run is lost: see `agent_tool`."""


@dataclass(frozen=True, kw_only=True)
@checked_settings("agent_tool: ")
class AgentSettings:
    """How a tool calls an agent: see `agent_tool`."""

    engine: str | None = None
    memory: MemoryUse = "off"
    timeout_s: PositiveSeconds | None = None
    max_depth: PositiveCount = 3
    max_calls: PositiveCount = 16
    background: bool = False
    on_lost: OnLostAgent = "report"
    max_restarts: PositiveCount = 3

    def call(self, session_id: str) -> FrozenDict:
        """Return the call of an agent in this session, as `CallState.agent` stores it."""
        settings: dict[str, Any] = {"engine": self.engine, "memory": self.memory, "timeout_s": self.timeout_s}
        settings |= {"background": True} if self.background else {}
        settings |= {"restarts": self.max_restarts} if self.on_lost == "restart" else {}
        agent: FrozenDict = freeze({"session": session_id, **settings})
        return agent


def _tool_name(name: Any) -> Any:
    if not is_tool_name(name):
        raise ValueError("a tool's name has 1 to 64 letters, digits, _ and -: pass name=...")
    return name


def _approval(approval: Any) -> Any:
    try:
        if not isinstance(approval, bool):
            inspect.signature(approval).bind({}, None)
    except TypeError:
        raise ValueError(
            "must be true, false, or a function of two arguments: those of the call, as a mapping, and the context"
        ) from None
    except ValueError:  # some built-in functions do not say what they take
        pass
    return approval


@dataclass(frozen=True, kw_only=True)
@checked_settings("tool {0.name!r}: ")
class Tool:
    """A function that a model may call; made by `tool` or `external_tool`. Calling the tool calls the plain function.

    A tool that is an attribute of its module is pickled by name, so another process imports it; any other tool, such
    as one of a script or a notebook, is pickled by value, with cloudpickle.
    """

    name: Annotated[str, PlainValidator(_tool_name)]
    description: str
    parameters: FrozenDict
    """A JSON schema of an object."""
    function: Callable[..., Any] | None = None
    """A function, coroutine function or object with `.remote`; None for an external tool."""
    model: Arguments | type[BaseModel] | None = field(default=None, compare=False, repr=False)
    """Checks the arguments; if None, the schema does."""
    timeout_s: PositiveSeconds | None = None
    """The time limit of one attempt, in seconds; None: the registry's."""
    retries: Count | None = None
    """How often a failed call is retried, whatever the registry's `on_error`; None: the registry's."""
    approval: Annotated[bool | Approval, PlainValidator(_approval)] = False
    """Whether a person must approve a call before it is made."""
    repeatable: bool = False
    """Whether a call may be repeated if the process was lost while it ran."""
    reads: bool = False
    """Whether it only reads, so that a replay may call it."""
    agent: AgentSettings | None = None
    """How it calls an agent; None for other tools."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, without checks, timeout and retries."""
        if self.function is None:
            raise TypeError(f"tool {self.name!r} has no function: its results come from ExecutionHandle.provide")
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        with suppress(ImportError, AttributeError):
            plain = plain_function(self.function)
            home = plain.__module__, plain.__qualname__
            if home[0] != "__main__" and _find(*home) is self:
                return _find, home
        return functools.partial(Tool, **{field.name: getattr(self, field.name) for field in fields(self)}), ()

    @property
    def definition(self) -> ToolDefinition:
        """The tool as it is declared to the model."""
        return ToolDefinition(self.name, self.description, self.parameters)

    @property
    def is_external(self) -> bool:
        """Whether the caller supplies the result, by `ExecutionHandle.provide`."""
        return self.function is None and self.agent is None

    @property
    def is_remote(self) -> bool:
        """Whether the tool is a Ray task or an actor's method."""
        return callable(getattr(self.function, "remote", None))

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, so that it runs on the event loop."""
        function: Any = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def needs_approval(self, arguments: Mapping[str, Any], context: ToolContext) -> bool:
        """Return whether a person must approve this call; what a function of `approval` raises, this raises."""
        return self.approval if isinstance(self.approval, bool) else bool(self.approval(arguments, context))

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return new, validated arguments for the function, with defaults, without the context.

        Raises:
            ValueError: the arguments do not match the schema; the message says where, in words for the model.
        """
        document = json.dumps(arguments)  # with lists instead of tuples, as the model wrote them
        if self.model is None:
            return follow_schema(self.parameters, json.loads(document))
        try:
            if isinstance(self.model, Arguments):
                return self.model.check(document)
            return dict(self.model.model_validate_json(document))
        except ValidationError as error:
            raise ValueError(
                say((detail["loc"], detail["msg"]) for detail in error.errors(include_url=False))
            ) from error

    def with_context(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Return checked arguments, with the context for each parameter that takes it."""
        names = self.model.contexts if isinstance(self.model, Arguments) else ()
        return {**arguments, **dict.fromkeys(names, context)}


class Remote(Protocol):
    """A Ray task or an actor's method."""

    @property
    def remote(self) -> Callable[..., Any]:
        """Submit a call."""


@overload
def tool(
    function: Callable[..., Any] | Remote,
    /,
    *,
    like: Callable[..., Any] | None = ...,
    name: str | None = ...,
    description: str | None = ...,
    timeout_s: float | None = ...,
    retries: int | None = ...,
    approval: bool | Approval = ...,
    repeatable: bool = ...,
    reads: bool = ...,
) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = ...,
    description: str | None = ...,
    timeout_s: float | None = ...,
    retries: int | None = ...,
    approval: bool | Approval = ...,
    repeatable: bool = ...,
    reads: bool = ...,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | Remote | None = None,
    /,
    *,
    like: Callable[..., Any] | None = None,
    name: str | None = None,
    description: str | None = None,
    **options: Any,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a typed function: `@tool`, `@tool(timeout_s=5)`, or `tool(function)`.

    The schema comes from the annotations, and describes a parameter by `Annotated[..., Field(description=...)]` or by
    the docstring's `Args`. A parameter annotated `ToolContext`, or `ToolContext | None`, is not part of it and gets the
    context. The function may be synchronous (each call runs on a new thread), asynchronous, a bound method, a partial
    function, or an instance with `__call__`.

    It may also be a Ray task, or an actor's method with `like=` the function of its class; then it runs on Ray. A
    cancel or a timeout calls `ray.cancel`: this interrupts a task, cancels the method of an asyncio actor, and for
    another actor only sets `ray.get_runtime_context().is_canceled()`. A pickled tool does not keep an actor alive: keep
    the actor's handle, or make the actor detached.

    The model gets a text result as it is, "done" for None, `Text`, `Image` and `Document` blocks, or a list with some,
    in the way of its API, what `ToolResult.of` made, and compact JSON for any other value. An exception becomes
    an error result: the text of a `ToolError`, without a retry; the type and message of any other exception.

    Args:
        like: a function whose signature and docstring are used instead of the function's own.
        name: the tool's name; the function's if omitted.
        description: what the model is told about the tool; the docstring if omitted.
        timeout_s: the time limit of one attempt, in seconds; the registry's if omitted.
        retries: how often a failed call is retried, whatever the registry's `on_error`.
        approval: whether a person must approve each call, or a function that decides by the call's arguments, as a
            mapping, and the context: `lambda arguments, context: arguments["euros"] > 50`. If it raises, the call waits
            for a person, and its `why` has the error.
        repeatable: whether a call may be repeated if the process was lost while it ran. If not, the model gets an error
            result, which says that the tool may have taken effect.
        reads: whether the tool only reads and changes nothing, so that a replay may call it: see `turnwise.replay`.

    Raises:
        ConfigError: a parameter cannot be described by a schema; the message names tool and parameter.
    """
    if function is None:
        return functools.partial(tool, like=like, name=name, description=description, **options)
    is_remote = callable(getattr(function, "remote", None))
    source = like or (getattr(function, "_function", None) if is_remote else function)
    if source is None:
        raise ConfigError(
            "like",
            None,
            "a remote function has no signature here: pass like=, for an actor's method the function of its class",
        )
    if not callable(source):
        raise ConfigError("function", source, "must be a function or another callable")
    bare = without_partial(source)
    if name is None:
        name = str(getattr(bare, "__name__", type(bare).__name__))
    doc = inspect.getdoc(bare) or inspect.getdoc(plain_function(bare)) or ""
    parameters, contexts = parameters_of(name, source, is_method=is_remote and like is not None)
    try:
        model = Arguments(parameters, contexts)
        schema = schema_of(model.model, described(doc))
    except Exception as error:
        for parameter in parameters:  # find the parameter that fails
            try:
                schema_of(Arguments((parameter,)).model, {})
            except Exception as reason:
                message = str(reason).partition("\n")[0]
                problem = f"tool {name!r}: {parameter[1]!r} has no JSON schema ({type(reason).__name__}: {message})"
                raise ConfigError("parameter", parameter[0], problem) from reason
        raise ConfigError(
            "parameters", [parameter[0] for parameter in parameters], f"tool {name!r}: {error}"
        ) from error
    return Tool(
        name=name,
        description=doc if description is None else inspect.cleandoc(description),
        parameters=schema,
        function=cast(Any, function),
        model=model,
        **options,
    )


def external_tool(name: str, description: str, parameters: Mapping[str, Any] | type[BaseModel]) -> Tool:
    """Make a tool without a function: a run that calls it waits for the result by `ExecutionHandle.provide`.

    Args:
        parameters: a JSON schema of an object, or a pydantic model.

    Raises:
        ConfigError: `parameters` is not the schema of an object.
    """
    model = parameters if isinstance(parameters, type) else None
    schema = schema_of(parameters, {}) if isinstance(parameters, type) else known_schema(name, parameters)
    return Tool(name=name, description=inspect.cleandoc(description), parameters=schema, model=model)


def record_of_tools(tools: Any) -> FrozenDict:
    """Return the external tools of a run as they are stored with it: description and schema, by name.

    Raises:
        InvalidInputError: it is no sequence of external tools, two have the same name, or they are too many or too
            large.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidInputError("tools", shown(tools), "must be a list of tools, made by external_tool()")
    if len(tools) > MAX_TOOLS:
        raise InvalidInputError("tools", shown(tools), f"must be at most {MAX_TOOLS} tools, not {len(tools)}")
    records: dict[str, Any] = {}
    for index, item in enumerate(tools):
        field = f"tools[{index}]"
        if not isinstance(item, Tool):
            raise InvalidInputError(field, shown(item), "must be a tool that external_tool() made")
        if not item.is_external:
            reason = "it has a function, which only the engine's own tools have: pass it to the engine, as tools=[...]"
            raise InvalidInputError(field, shown(item.name), reason)
        if item.name in records:
            raise InvalidInputError(field, shown(item.name), "two tools have this name: rename one")
        records[item.name] = {"description": item.description, "parameters": item.parameters}
    return FrozenDict(freeze(plain_json("tools", records, MAX_TOOLS_BYTES)))


def tools_of_run(tools: Mapping[str, Mapping[str, Any]]) -> list[Tool]:
    """Return the tools that `record_of_tools` wrote. Their schema checks arguments, not a pydantic model."""
    return [
        Tool(name=name, description=record["description"], parameters=freeze(record["parameters"]))
        for name, record in tools.items()
    ]


def _find(module: str, qualname: str) -> Any:
    return attrgetter(qualname)(importlib.import_module(module))
