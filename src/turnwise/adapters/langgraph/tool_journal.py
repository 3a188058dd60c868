"""Puts turnwise's journal around the tools of a graph's `ToolNode`s."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

from turnwise.adapters.version_checks import framework

with framework("langgraph", extra="langgraph", tested="1.2"):
    from langgraph.prebuilt import ToolNode

    WRAPPERS = "_awrap_tool_call", "_wrap_tool_call"
    _node = ToolNode([])
    for _wrapper in WRAPPERS:
        getattr(_node, _wrapper)

Execute = Callable[[Any], Awaitable[Any]]


class ToolRun(Protocol):
    """A run that journals the tool calls of its graph."""

    async def call(self, request: Any, execute: Execute) -> Any:
        """Make the call, unless it has its result, and return LangGraph's form of the result."""


RUN: ContextVar[ToolRun | None] = ContextVar("turnwise_langgraph_run", default=None)
"""The run whose graph runs here; None in a graph that no engine runs."""


def tool_nodes(graph: Any) -> Iterator[ToolNode]:
    """Yield the nodes of a compiled graph that run tools; not those of its subgraphs."""
    for node in graph.nodes.values():
        bound = getattr(node, "bound", None)
        for runnable in (bound, *getattr(bound, "steps", ())):
            if isinstance(runnable, ToolNode):
                yield runnable


def journal_tool_nodes(graph: Any) -> None:
    """Make the graph's tool nodes ask the current run before they call a tool. Outside of runs they work as before.

    A wrapper that the node was made with is called inside ours.
    """
    for node in tool_nodes(graph):
        if not isinstance(getattr(node, WRAPPERS[0]), _Journaled):
            setattr(node, WRAPPERS[0], _Journaled(getattr(node, WRAPPERS[0]), getattr(node, WRAPPERS[1])))


class _Journaled:
    """A tool node's wrapper: asks the run, then calls the wrappers that the node was made with."""

    def __init__(self, wrapper: Any, sync_wrapper: Any) -> None:
        self._inner = wrapper
        self._inner_sync = sync_wrapper

    async def __call__(self, request: Any, execute: Execute) -> Any:
        async def make(changed: Any) -> Any:
            if self._inner is not None:
                return await self._inner(changed, execute)
            if self._inner_sync is None:
                return await execute(changed)
            loop = asyncio.get_running_loop()

            def wait(call_request: Any) -> Any:
                return asyncio.run_coroutine_threadsafe(_awaited(execute(call_request)), loop).result()

            return await asyncio.to_thread(self._inner_sync, changed, wait)

        run = RUN.get()
        return await (run.call(request, make) if run else make(request))


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
