"""`ToolRegistry`: an agent's tools, and how one call is checked, made, retried and cancelled."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import re
import signal as signals
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pydantic_core

from turnwise.actors.inference.attempt import leave_behind
from turnwise.actors.inference.blocking_calls import on_thread, spawn
from turnwise.actors.inference.tools.context import CancelSignal, ToolContext
from turnwise.actors.inference.tools.tool import Tool, ToolDefinition, tools_of_run
from turnwise.actors.wire_version import fit_answer
from turnwise.errors import ConfigError, ToolAbortError, ToolError, WireVersionError
from turnwise.memory.conversation.blocks import Block, Content, ToolResult, ToolUse
from turnwise.memory.conversation.calls.call_arguments import refusal
from turnwise.memory.conversation.calls.tool_results import result_of, within
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.values.growing_text import whole
from turnwise.memory.values.ranges import check_seconds, check_whole_number

MAX_BACKOFF_S = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolOutcome:
    """A call's result, its duration in seconds with pauses, and how often its tool was called (0 if refused)."""

    result: ToolResult
    seconds: float
    tries: int


@dataclass(frozen=True)
class _Answer:
    """The result of one attempt. `final`: the tool is not called again, though the result may be an error."""

    text: str
    is_error: bool = False
    final: bool = False
    is_json: bool = False
    blocks: tuple[Content, ...] = ()


@dataclass(frozen=True, init=False)
class ToolRegistry:
    """The tools that a model may call. Holds settings only, so it pickles with the engine that has it.

    Args:
        tools: made by `tool` or `external_tool`.
        allow: names of the tools that may be called; None allows all.
        deny: names of tools that may not be called, even if `allow` has them.
        max_parallel: how many calls of a run may run concurrently.
        timeout_s: the time limit of one attempt, in seconds; None for no limit. A tool's own `timeout_s` replaces it.
        retries: how often a failed call is retried with on_error="retry". A tool's own `retries` replaces it, with any
            `on_error`.
        backoff_s: the pause before the first retry, in seconds; doubled for each later one, up to 30 s, and randomly
            shortened by up to half.
        on_error: what happens after a failed call: "continue" returns an error result to the model, "retry" does so
            after retries, "abort" fails the run.
        max_steps: how often a run may call the model.
        max_result_chars: longer results are cut, with a note in the text.
        max_result_bytes: images and documents of a result that take more, as base64, are left out, with a note.

    Raises:
        ConfigError: a setting is out of range, two tools have the same name, or `allow` or `deny` has an unknown name.
    """

    tools: tuple[Tool, ...]
    allow: tuple[str, ...] | None
    deny: tuple[str, ...]
    max_parallel: int
    timeout_s: float | None
    retries: int
    backoff_s: float
    on_error: Literal["continue", "abort", "retry"]
    max_steps: int
    max_result_chars: int
    max_result_bytes: int

    def __init__(
        self,
        *tools: Tool,
        allow: Iterable[str] | None = None,
        deny: Iterable[str] = (),
        max_parallel: int = 8,
        timeout_s: float | None = 60.0,
        retries: int = 2,
        backoff_s: float = 0.5,
        on_error: Literal["continue", "abort", "retry"] = "continue",
        max_steps: int = 20,
        max_result_chars: int = 100_000,
        max_result_bytes: int = 4_000_000,
    ) -> None:
        values = {
            "tools": tools,
            "allow": None if allow is None else tuple(allow),
            "deny": tuple(deny),
            "max_parallel": max_parallel,
            "timeout_s": timeout_s,
            "retries": retries,
            "backoff_s": backoff_s,
            "on_error": on_error,
            "max_steps": max_steps,
            "max_result_chars": max_result_chars,
            "max_result_bytes": max_result_bytes,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_settings()

    def _check_settings(self) -> None:
        names = set()
        for tool in self.tools:
            if not isinstance(tool, Tool):
                raise ConfigError("tools", tool, "is no Tool: decorate the function with @tool")
            if tool.name in names:
                raise ConfigError("tools", tool.name, "two tools have this name: give one another by name=...")
            names.add(tool.name)
        for setting in ("allow", "deny"):
            for name in getattr(self, setting) or ():
                if name not in names:
                    raise ConfigError(setting, name, f"is no tool here; the tools are {sorted(names)}")
        if self.on_error not in ("continue", "abort", "retry"):
            raise ConfigError("on_error", self.on_error, "must be 'continue', 'abort' or 'retry'")
        check_whole_number("retries", self.retries)
        check_seconds("backoff_s", self.backoff_s)
        for setting in ("max_parallel", "max_steps", "max_result_chars", "max_result_bytes"):
            check_whole_number(setting, getattr(self, setting), 1)
        check_seconds("timeout_s", self.timeout_s, may_be_0=False, may_be_none=True)

    def extended(self, tools: Mapping[str, Mapping[str, Any]]) -> ToolRegistry:
        """Return a registry that also has the tools of a run (see `RunContext.tools`), which it allows.

        Raises:
            ConfigError: a tool here has the same name.
        """
        if not tools:
            return self
        settings = {name: getattr(self, name) for name in vars(self) if name not in ("tools", "allow")}
        allow = None if self.allow is None else (*self.allow, *tools)
        return ToolRegistry(*self.tools, *tools_of_run(tools), allow=allow, **settings)

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the allowed tools as they are declared to the model, in order."""
        return tuple(tool.definition for tool in self._allowed())

    def find(self, name: str) -> Tool | None:
        """Return the allowed tool with this name, or None."""
        return next((tool for tool in self._allowed() if tool.name == name), None)

    def check(self, use: ToolUse) -> ToolResult | None:
        """Return an error result for the model if this call cannot be made; None if it can.

        `call` does the same check; use this one before asking a person to approve the call.
        """
        if refused := refusal(use):
            return within(refused, self.max_result_chars, self.max_result_bytes)
        tool = self.find(use.name)
        if tool is None:
            return self._unknown(use)
        try:
            tool.check(use.input)
        except ValueError as error:
            text = f"The arguments do not match the schema of {use.name!r}: {error}"
            return self._result(use, _Answer(text, is_error=True))
        except Exception as error:  # noqa: BLE001 - a tool's validator may raise anything
            return self._result(use, _failure(error))
        return None

    async def call(self, use: ToolUse, context: ToolContext) -> ToolOutcome:
        """Check one call, make it, retry it, and return its result, which may be an error.

        Cancelling this coroutine stops the call at once, also during a pause: coroutines and Ray tasks are cancelled,
        and for threads `context.cancelled` is set. It does not wait for them, and drops what they return later. The
        same applies to an attempt that times out. Threads are daemon threads: a stuck one blocks neither other tools
        nor the exit of the process.

        Raises:
            ToolAbortError: the tool failed, and `on_error` is "abort". The model's own mistakes (an unknown tool,
                arguments that do not match) are error results with any `on_error`, and are never retried.
        """
        started_s = time.monotonic()
        tool, refused = self.find(use.name), self.check(use)
        if tool is None or refused is not None:
            return ToolOutcome(refused or self._unknown(use), time.monotonic() - started_s, 0)
        retries = tool.retries if tool.retries is not None else self.retries if self.on_error == "retry" else 0
        tries, pauses = 0, GrowingPauses(self.backoff_s, MAX_BACKOFF_S)
        while True:
            tries += 1
            answer = await self._try(tool, use, context, tries)
            if not answer.is_error or answer.final or tries > retries or context.cancelled.is_set():
                break
            await asyncio.sleep(pauses.next_s())
        if answer.is_error and self.on_error == "abort":
            raise ToolAbortError(tool.name, use.call_id, self._result(use, answer).text)
        return ToolOutcome(self._result(use, answer), time.monotonic() - started_s, tries)

    async def _try(self, tool: Tool, use: ToolUse, context: ToolContext, number: int) -> _Answer:
        """Call the tool once; abandon the call if it times out or this coroutine is cancelled."""
        signal = CancelSignal()
        context.cancelled.listen(signal.set)
        own_context = replace(context, call_id=use.call_id, try_number=number, cancelled=signal)
        timeout_s = tool.timeout_s if tool.timeout_s is not None else self.timeout_s
        work = asyncio.create_task(_carry_out(tool, use, own_context))
        try:
            await asyncio.wait({work}, timeout=timeout_s)
            if not work.done():
                return _Answer(f"TimeoutError: the tool did not end within {timeout_s:g} s", is_error=True)
            if work.cancelled():
                return _Answer("CancelledError: the tool cancelled itself", is_error=True)
            return work.result()
        finally:
            context.cancelled.forget(signal.set)
            signal.set()
            if not work.done():
                work.cancel()
                leave_behind(work)

    def _allowed(self) -> Iterable[Tool]:
        return (
            tool
            for tool in self.tools
            if tool.name not in self.deny and (self.allow is None or tool.name in self.allow)
        )

    def _unknown(self, use: ToolUse) -> ToolResult:
        names = ", ".join(tool.name for tool in self._allowed())
        there_are = f"The tools are: {names}." if names else "There are no tools."
        return self._result(use, _Answer(f"There is no tool {use.name!r}. {there_are}", is_error=True))

    def _result(self, use: ToolUse, answer: _Answer) -> ToolResult:
        result = ToolResult(
            call_id=use.call_id,
            text=whole(answer.text),
            is_error=answer.is_error,
            is_json=answer.is_json,
            blocks=answer.blocks,
        )
        return within(result, self.max_result_chars, self.max_result_bytes)


# One attempt


async def _carry_out(tool: Tool, use: ToolUse, context: ToolContext) -> _Answer:
    """Call the tool and return its result; exceptions become error results, except the cancellation of this task."""
    function = tool.function
    if function is None:
        return _Answer("the tool has no function: its result is provided by the caller", is_error=True, final=True)
    try:
        arguments = tool.with_context(
            tool.check(use.input), context
        )  # a new copy for each attempt, since a tool may change its arguments
        if tool.is_remote:
            value = await _on_ray(function, arguments, context.cancelled)
        elif tool.is_async:
            value = await function(**arguments)
        else:
            value = await on_thread(function, **arguments)
            if inspect.isawaitable(value):
                value = await value
        if value is None or isinstance(value, str):
            return _Answer("done" if value is None else str.__str__(value))
        answer: _Answer = await on_thread(_answer_of, value)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit too: a tool ends its call, not the process
        return _failure(error)
    return answer


async def _on_ray(function: Any, arguments: dict[str, Any], signal: CancelSignal) -> Any:
    """Return the result of a Ray task or an actor's method; `signal` cancels it on Ray.

    Raises:
        BaseException: the exception of the function.
        WireVersionError: the context or a block of the result does not fit the other process's version.
        _LostError: Ray could not carry out the call.
    """
    import ray
    from ray.exceptions import RayError, RaySystemError, RayTaskError

    if not ray.is_initialized():
        raise _LostError(
            "the tool runs on Ray, and this process is not connected to one: placement=InProcess() has none"
        )
    _warn_if_uncancellable()

    def submit() -> Any:
        ref = function.remote(**arguments)
        signal.listen(cancel := lambda: spawn(lambda: ray.cancel(ref)))
        return ref, cancel

    ref, cancel = await on_thread(submit)  # the first call of a function exports it, which blocks
    try:
        value = await ref
    except RayError as error:
        signal.forget(cancel)
        cause: BaseException = error
        while isinstance(cause, RayTaskError):
            cause = cause.cause
        if isinstance(cause, RaySystemError) and isinstance(cause.client_exc, WireVersionError):
            cause = cause.client_exc  # of the context, which was not understood there
        if not isinstance(cause, RayError):
            raise cause from error
        line = re.split(r"\n| \x1b", str(cause))[0]  # the rest names processes and hosts
        raise _LostError(f"{type(cause).__name__}: {line}") from error
    signal.forget(cancel)
    fit_answer([part for part in (value if isinstance(value, list | tuple) else [value]) if isinstance(part, Block)])
    return value


@functools.cache
def _warn_if_uncancellable() -> None:
    """Warn, once, if this Ray's workers ignore SIGINT, which Ray needs to cancel its tasks."""
    import ray

    is_worker = ray.get_runtime_context().worker.mode == ray.WORKER_MODE
    if is_worker and signals.getsignal(signals.SIGINT) is signals.SIG_IGN:
        _log.warning(
            "Ray's workers ignore SIGINT, since the process that started Ray did (by nohup, or & in a script): tools"
            " that are Ray tasks cannot be cancelled; start Ray with the default handler, by `env --default-signal=INT`"
        )


class _LostError(Exception):
    """Ray could not carry out a call; the message says why."""


# Results for the model


def _failure(error: BaseException) -> _Answer:
    """Return an exception as an error result for the model, without a traceback."""
    if isinstance(error, ToolError | _LostError):
        return _Answer(str(error), is_error=True, final=isinstance(error, ToolError))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__
        message = ""
    return _Answer(f"{type(error).__name__}: {message}" if message else type(error).__name__, is_error=True)


def _answer_of(value: Any) -> _Answer:
    """Return blocks as they are, and another value as compact JSON; a value that cannot be stored is a final error.

    A result that the tool made itself is final, as a `ToolError` is: it says what the model is to know.
    """
    try:
        if result := result_of("", value):
            return _Answer(
                result.text, is_error=result.is_error, final=True, is_json=result.is_json, blocks=result.blocks
            )
    except ValueError as error:
        return _Answer(f"the tool returned what no result may have: {error}", is_error=True, final=True)
    try:
        try:
            return _Answer(pydantic_core.to_json(value, inf_nan_mode="strings").decode(), is_json=True)
        except ValueError:  # perhaps lone surrogates, which `whole` replaces
            plain = pydantic_core.to_jsonable_python(value, inf_nan_mode="strings")
            return _Answer(json.dumps(plain, ensure_ascii=False, separators=(",", ":")), is_json=True)
    except Exception as error:  # noqa: BLE001 - the value's serializers may raise anything
        text = f"the tool returned {type(value).__name__}, which cannot be written as JSON: {error}"
        return _Answer(text, is_error=True, final=True)
