"""Agents and what they hand off to: copies of them whose models and tools go through the run's journal."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields, replace
from typing import Any, cast

from turnwise.adapters.agents_sdk.journal import CURRENT
from turnwise.adapters.agents_sdk.model import JournalledModel
from turnwise.adapters.version_checks import expect, framework
from turnwise.memory.conversation.blocks import Block, ToolResult, ToolUse

with framework("openai-agents", extra="openai-agents", tested="0.24"):
    from agents import Agent, FunctionTool, Handoff, Model
    from agents.tool_context import ToolContext

    Handoff._agent_ref  # noqa: B018, SLF001 - looked up, since only a pickled agent uses it
    expect(Agent.get_mcp_tools, "run_context")

Invoke = Callable[[Any, str], Awaitable[Any]]


def target_of(handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | None:
    """Return the agent that a handoff hands over to; None if only calling it can tell."""
    if isinstance(handoff, Agent):
        return handoff
    reference = getattr(handoff, "_agent_ref", None)
    target = reference() if reference else None
    return target if isinstance(target, Agent) else None


def agents_of(root: Agent[Any]) -> Iterator[Agent[Any]]:
    """Yield the agent and those that it can hand off to, each once."""
    agents, ids = [root], {id(root)}
    for agent in agents:
        yield agent
        for target in filter(None, map(target_of, agent.handoffs)):
            if id(target) not in ids:
                ids.add(id(target))
                agents.append(target)


def described(agent: Agent[Any]) -> object:
    """Return what the agent is made of: its settings and functions, as values that are equal for equal agents.

    The objects of the SDK do not say: each makes classes and wrappers of its own.
    """
    values = {field.name: getattr(agent, field.name) for field in fields(agent)}
    values["tools"] = [_described(tool) for tool in agent.tools]
    values["handoffs"] = [
        (handoff.name, "") if isinstance(handoff, Agent) else _described(handoff) for handoff in agent.handoffs
    ]
    return type(agent), values


def _described(held: Any) -> object:
    """Return what a tool or a handoff is made of."""
    inner = getattr(held, "_agent_instance", None)
    function = getattr(held, "__wrapped__", None) or getattr(held, "on_invoke_tool", None)
    if inner is not None:
        function = [described(inner_agent) for inner_agent in agents_of(inner)]
    elif isinstance(held, Handoff):
        wrapped = getattr(held.on_invoke_handoff, "args", ()) or (held.on_invoke_handoff,)
        cells = [cell.cell_contents for wrapper in wrapped for cell in getattr(wrapper, "__closure__", None) or ()]
        function = [cell for cell in cells if inspect.isroutine(cell) or isinstance(cell, type)]
    elif hasattr(function, _BIND):
        function = None
    omitted = {"on_invoke_tool", "on_invoke_handoff", "_agent_ref", "_agent_instance", "_output_type_adapter"}
    values = {field.name: getattr(held, field.name) for field in fields(held) if field.name not in omitted}
    return type(held), values, function


class Held:
    """A reference that travels by pickle, where the SDK has a weak one, which does not."""

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent

    def __call__(self) -> Agent[Any]:
        return self._agent


def hold_targets(root: Agent[Any]) -> None:
    """Replace the weak references in handoffs of these agents by strong ones."""
    for agent in agents_of(root):
        for handoff in agent.handoffs:
            target = target_of(handoff)
            if isinstance(handoff, Handoff) and target and isinstance(handoff._agent_ref, weakref.ref):  # noqa: SLF001
                handoff._agent_ref = cast(Any, Held(target))  # noqa: SLF001 - pickle knows no weak references


class Graph:
    """Copies of an agent and of those that it hands off to. The originals stay as they are.

    The model of each copy asks through the journal of the run that the task works for, and so do its tools.
    """

    def __init__(self, root: Agent[Any], *, stream: bool) -> None:
        self._stream = stream
        self._copies: dict[int, tuple[Agent[Any], Agent[Any]]] = {}
        self.root = self.copy(root)

    def copy(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the copy of an agent, the same each time."""
        if entry := self._copies.get(id(agent)):
            _, known_clone = entry
            return known_clone
        model = JournalledModel(agent.model, stream=self._stream) if isinstance(agent.model, Model) else agent.model
        tools = [journalled(tool) if isinstance(tool, FunctionTool) else tool for tool in agent.tools]
        clone = agent.clone(model=model, tools=tools)
        self._copies[id(agent)] = agent, clone
        own_tools = clone.get_mcp_tools

        async def get_mcp_tools(run_context: Any) -> list[Any]:
            tools_found = [
                journalled(tool) if isinstance(tool, FunctionTool) else tool for tool in await own_tools(run_context)
            ]
            journal = CURRENT.get()
            return [*tools_found, *journal.external] if journal else tools_found

        clone.get_mcp_tools = get_mcp_tools  # type: ignore[method-assign]
        clone.handoffs = [self._handoff(handoff) for handoff in agent.handoffs]
        return clone

    def has(self, agent: Agent[Any] | None) -> bool:
        """Return whether this is one of the copies. Agents that are tools are not, nor are the originals."""
        return any(clone is agent for _, clone in self._copies.values())

    def _handoff(self, handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(handoff, Agent):
            return self.copy(handoff)
        invoke = handoff.on_invoke_handoff

        async def on_invoke_handoff(context: Any, arguments: str) -> Any:
            return self.copy(await invoke(context, arguments))

        clone = replace(handoff, on_invoke_handoff=on_invoke_handoff)
        if target := target_of(handoff):
            clone._agent_ref = cast(Any, Held(self.copy(target)))  # noqa: SLF001 - the runner looks for targets there
        return clone

    def after(self, blocks: tuple[Block, ...]) -> Agent[Any]:
        """Return the agent to which the calls of a conversation have handed off; the first one, if to none."""
        current = self.root
        failed = {block.call_id for block in blocks if isinstance(block, ToolResult) and block.is_error}
        for block in blocks:
            if isinstance(block, ToolUse) and block.call_id not in failed:
                for handoff in current.handoffs:
                    name = handoff.tool_name if isinstance(handoff, Handoff) else Handoff.default_tool_name(handoff)
                    if name == block.name and (target := target_of(handoff)):
                        current = target
                        break
        return current


def journalled(tool: FunctionTool) -> FunctionTool:
    """Return a copy of the tool whose calls go through the journal of the run that the task works for."""
    clone = copy.copy(tool)
    clone.on_invoke_tool = _journalled(clone.on_invoke_tool)
    return clone


def _journalled(invoke: Invoke) -> Invoke:
    if not hasattr(invoke, _BIND):

        async def on_invoke_tool(context: Any, arguments: str) -> Any:
            return await _call(invoke, context, arguments)

        return on_invoke_tool
    # The SDK recognises its own invokers by their class, and binds them to copies of their tool.
    clone = copy.copy(invoke)
    kind = cast(Any, type(clone))
    clone.__class__ = kind if issubclass(kind, _Journalled) else type(kind.__name__, (_Journalled, kind), {})
    return clone


_BIND = "__agents_bind_function_tool__"


class _Journalled:
    async def __call__(self, context: Any, arguments: str) -> Any:
        return await _call(super().__call__, context, arguments)  # type: ignore[misc]

    def __agents_bind_function_tool__(self, tool: FunctionTool) -> Any:
        return _journalled(super().__agents_bind_function_tool__(tool))  # type: ignore[misc]


async def _call(invoke: Invoke, context: Any, arguments: str) -> Any:
    journal = CURRENT.get()
    if journal is None or not isinstance(context, ToolContext):
        return await invoke(context, arguments)
    return await journal.call(invoke, context, arguments)
