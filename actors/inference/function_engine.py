"""`FunctionEngine`: makes an engine of a function or a generator."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeAlias, cast

from pydantic import PlainValidator

from turnwise.actors.inference.blocking_calls import on_thread
from turnwise.actors.inference.engine import RunContext, SessionView, StepContext, output_of
from turnwise.actors.inference.middleware import Middleware, wrap
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import Tool
from turnwise.errors import ConfigError, EngineError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.model_params import SettingsTaken
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.checked_settings import checked_settings
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.required_arguments import needs

Piece: TypeAlias = str | Block | Usage
"""A piece of an answer: text, a block, or usage to report."""

Answer: TypeAlias = (
    Piece | Sequence[Piece] | Iterator[Piece] | AsyncIterator[Piece] | Awaitable[Piece | Sequence[Piece]]
)
"""What a function returns: one piece, all pieces, or pieces as they come."""

Function: TypeAlias = Callable[[Turn], Answer] | Callable[[Turn, RunContext], Answer]


def _layers(middleware: Any) -> tuple[Middleware, ...]:
    if not isinstance(middleware, Sequence) or not all(isinstance(layer, Middleware) for layer in middleware):
        raise ValueError("must be a list, of which each has run(); see Middleware")
    return tuple(middleware)


def _of_a_turn(function: Any) -> Any:
    _requires_context(function)
    return function


@needs(function="pass a function or a generator function of a turn")
@dataclass(frozen=True)
@checked_settings()
class FunctionEngine:
    """Answers with what a function returns, or streams what a generator yields.

    The function gets the turn: `turn.blocks` is the conversation, `turn.asked` has the turn's prompts. If it requires a
    second argument, it also gets the run's context. It returns or yields text, blocks and `Usage`; successive texts are
    joined.

    A coroutine function or async generator runs on the session's event loop, so it must not block; a cancel cancels it.
    Any other function runs on a thread of its own. A cancel ends the run at once but cannot stop the thread: a
    generator is closed when it yields the next time, and what a function returns is dropped. On the thread, do not call
    the context's `emit` and `report`: yield instead.

    The engine is pickled: a function of a module is imported where the session runs; one of a script or a notebook
    travels with what it refers to.

    Args:
        function: a function, coroutine function, generator or async generator; or one that returns an iterator.
        tools: the tools that the answers may call, by `ToolUse` blocks. Then the function is called again, with the
            results in `turn.output`.
        takes: the settings of runs that the function applies: `model` and names of `ModelParams`, which are in
            `context.model` and `context.params`. Runs with other settings are refused.
        middleware: wraps each call of the function; the first is outermost.

    A run with `output=` checks the answer, which must be JSON; its type is in `context.output_type`.

    Raises:
        ConfigError: a setting is wrong, such as a function that cannot be called with a turn.
    """

    function: Annotated[Function, PlainValidator(_of_a_turn)]
    _: KW_ONLY
    tools: Annotated[ToolRegistry | Sequence[Tool], PlainValidator(registry_of)] = ()
    takes: SettingsTaken = ()
    middleware: Annotated[Sequence[Middleware], PlainValidator(_layers)] = ()
    output_type: FrozenDict | None = None
    """Set by `answering`: the type of answers for runs without one."""

    def answering(self, schema: Mapping[str, Any]) -> FunctionEngine:
        """See `Structured`."""
        record = OutputType(schema=freeze(schema), retries=None).record
        return replace(self, tools=(), output_type=record)

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Steerable`."""
        names = [*(["model"] if model is not None else []), *params]
        reason = "the function does not apply it: if it does, name it in FunctionEngine(takes=[...])"
        return {name: reason for name in names if name not in self.takes}

    def build(self, session: SessionView) -> ToolLoop:
        """Return a runner that calls the function."""
        runner = wrap(_FunctionRunner(self.function, self.output_type), self.middleware)
        return ToolLoop(runner, registry_of(self.tools), output_type=self.output_type)


def registry_of(tools: object) -> ToolRegistry:
    """Return an engine's `tools` as a registry. Raises ConfigError if they are no tools."""
    if isinstance(tools, ToolRegistry):
        return tools
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Tool) for tool in tools):
        raise ConfigError("tools", tools, "must be a ToolRegistry, or a list of tools; make them with @tool")
    return ToolRegistry(*tools)


class _FunctionRunner:
    """Calls the function for each answer."""

    def __init__(self, function: Function, output_type: Mapping[str, Any] | None) -> None:
        self._function: Callable[..., Any] = function
        self._requires_context = _requires_context(function)
        self._output_type = output_type

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        """Return the answer of the function, or what it yielded.

        Raises:
            EngineError: the function returned or yielded something else than text, blocks and usage.
            Exception: what the function raised.
        """
        output_type = output_of(context, self._output_type)
        shown = cast(StepContext, _TypedContext(context, output_type)) if output_type else context
        call = partial(self._function, turn, *((shown,) if self._requires_context else ()))
        answer = _Answer(_name(self._function), context)
        result = call() if _is_async(self._function) else await _on_thread(call, answer)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, AsyncIterator):
            async with aclosing(result) if hasattr(result, "aclose") else nullcontext():  # type: ignore[type-var]
                async for piece in result:
                    answer.add(piece)
        else:
            is_list = isinstance(result, Sequence) and not isinstance(result, str | bytes)
            for piece in result if is_list else [result]:
                answer.add(piece)
        return answer.blocks()


async def _on_thread(call: Callable[[], Any], answer: _Answer) -> Any:
    """Return what the function returns; the pieces of an iterator are added to the answer, as they come."""
    loop, stopped, errors = asyncio.get_running_loop(), threading.Event(), []

    def add(piece: Any) -> None:
        if not stopped.is_set():
            try:
                answer.add(piece)
            except EngineError as error:
                errors.append(error)
                stopped.set()

    def work() -> Any:
        result = call()
        if not isinstance(result, Iterator):
            return result
        with closing(result) if hasattr(result, "close") else nullcontext():  # type: ignore[type-var]
            for piece in result:
                if stopped.is_set():
                    break
                loop.call_soon_threadsafe(add, piece)
        return ()

    try:
        result = await on_thread(work)
    finally:
        stopped.set()
    if errors:
        raise errors[0]
    return result


class _Answer:
    """Streams the pieces of an answer, and joins them."""

    def __init__(self, name: str, context: RunContext) -> None:
        self._name = name
        self._context = context
        self._ledger = Ledger()

    def add(self, piece: object) -> None:
        if isinstance(piece, Usage):
            self._context.report(usage=piece)
        elif isinstance(piece, str):
            self._ledger.append_text(piece)
            self._context.emit(piece)
        elif isinstance(piece, ToolUse | ToolResult):
            self._ledger.append(piece)
        elif isinstance(piece, Block) and piece.role == "assistant":
            if isinstance(piece, Text) and not piece.interrupted:
                self._ledger.append_text(piece.text)
            elif isinstance(piece, Thinking):
                self._ledger.append_thinking(piece.text, piece.signature, piece.redacted)
            else:
                self._ledger.append(piece)
            self._context.emit(piece)
        else:
            described = f"a {piece.kind} block" if isinstance(piece, Block) else shown(piece)
            raise EngineError(f"{self._name} gave {described}: return or yield text, blocks of the assistant, or Usage")

    def blocks(self) -> list[AnyBlock]:
        return cast(list[AnyBlock], self._ledger.blocks())


class _TypedContext:
    """A run's context with an output type."""

    def __init__(self, context: StepContext, output_type: Mapping[str, Any]) -> None:
        self._context = context
        self.output_type = output_type

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling the function cannot block: it only makes a coroutine or an async generator."""
    while isinstance(function, partial):
        function = function.func
    called = (function, getattr(type(function), "__call__", None))  # noqa: B004 - its code is looked at
    return any(inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate) for candidate in called)


def _requires_context(function: object) -> bool:
    """Return whether the function is called with a turn and a context; False if with a turn only.

    Raises:
        ConfigError: it can be called with neither.
    """
    if not callable(function) or isinstance(function, type):
        raise ConfigError("function", function, "must be a function or a generator function of a turn")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise ConfigError("function", function, "its parameters are not known: wrap it in a function") from None
    for args in ((None,), (None, None)):
        try:
            signature.bind(*args)
        except TypeError:
            continue
        return len(args) > 1
    reason = f"its parameters are {signature}: it must take a turn, or a turn and the run's context"
    raise ConfigError("function", _name(function), reason)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
