"""`JournalledModel`: asks a model of the Agents SDK, streams its answer into the run, and notes it in the journal."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from turnwise.actors.inference.openai.settings import joined_prompt
from turnwise.adapters.agents_sdk.items import BETWEEN, answer_of, output_of, whole_items
from turnwise.adapters.agents_sdk.journal import CURRENT, Journal, refusals, usage_of
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import EngineError
from turnwise.memory.conversation.blocks import AnyBlock, Thinking, ToolUse
from turnwise.memory.conversation.transcript import system_of
from turnwise.memory.providers.openai_responses import encode

with framework("openai-agents", extra="openai-agents", tested="0.24"):
    from agents import Model, ModelProvider, ModelResponse, ModelSettings
    from agents.models.default_models import get_default_model
    from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
    from agents.usage import Usage
    from openai.types.shared import Reasoning

    _ARGUMENTS = ("system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing")
    expect(Model.stream_response, *_ARGUMENTS)
    expect(Model.get_response, *_ARGUMENTS)
    expect(Model._cleanup_on_run_end, "owner")  # noqa: SLF001 - see below

TAKEN: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "max_tokens",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tool_calls",
    "reasoning_effort": "reasoning",
    "verbosity": "verbosity",
    "metadata": "metadata",
}
"""The parameters of runs that every model of the SDK takes, and what `ModelSettings` calls them."""

_TEXT = ("response.output_text.delta", "response.refusal.delta")
_THOUGHT = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_CUT = "max_output_tokens"

MOST_FLAWED = 8
"""How often a model is asked again at once after calls whose arguments are no JSON object."""

_FLAWED = f"the model made calls whose arguments are no JSON object, {MOST_FLAWED} times"

_END = ("response.completed", "response.incomplete", "response.failed")


class BrokenOffError(Exception):
    """The provider reported an error within its answer."""


class JournalledModel(Model):
    """A model as an agent of a session asks it.

    Args:
        inner: the model.
        name: its name; by default, the one that it says itself.
        stream: whether its answers are streamed.
    """

    def __init__(self, inner: Model, name: str | None = None, *, stream: bool = True) -> None:
        self.inner = inner
        self.name = name or str(getattr(inner, "model", "") or "")
        self._stream = stream

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the recorded answer, or ask the model. Without a run, this is the model's own method.

        An answer with a call whose arguments are no JSON object is recorded with the reasons why its calls are not
        made, and the model is asked again: the SDK does not get it, so it makes no call and requests no approval. So it
        is with an agent that is a tool, of which nothing is recorded.
        """
        journal = CURRENT.get()
        request = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        if journal is None:
            return await self._ask_unrecorded(request)
        if recorded := journal.replay():
            return ModelResponse(output=output_of(recorded), usage=Usage(), response_id=None)
        await journal.before_request(request["input"])
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        journal.requests.add(task)
        try:
            for _ in range(MOST_FLAWED):
                response, answer = await self._ask(journal, dict(request))
                if not _is_flawed(answer):
                    return response
                journal.refuse(answer)
                request["input"] = _refused(request["input"], answer)
                await journal.before_request(request["input"])
        finally:
            journal.requests.discard(task)
        raise EngineError(_FLAWED)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Stream the answer, unrecorded: for agents that are tools and stream. Calls with a flaw do not end it."""
        request = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        refused: list[Any] = []
        for _ in range(MOST_FLAWED):
            answer = list[AnyBlock]()
            async with aclosing(cast("Any", _stream(self.inner, request))) as events:
                async for event in events:
                    if event.type in _END:
                        answer = self._read(event.response.output)
                        if _is_flawed(answer):
                            refused.append(event.response.usage)
                            break
                        _add_usage(event.response.usage, refused)
                    yield event
            if not _is_flawed(answer):
                return
            request["input"] = _refused(request["input"], answer)
        raise EngineError(_FLAWED)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self.inner.get_retry_advice(request)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)  # what the runner asks of some models, such as whether they cache prompts

    async def close(self) -> None:
        await self.inner.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.inner._cleanup_on_run_end(owner)  # noqa: SLF001 - the runner calls it

    async def _ask_unrecorded(self, request: dict[str, Any]) -> ModelResponse:
        used = Usage()
        for _ in range(MOST_FLAWED):
            response = await self.inner.get_response(**request)
            used.add(response.usage)
            answer = self._read(response.output)
            if not _is_flawed(answer):
                response.usage = used
                return response
            request["input"] = _refused(request["input"], answer)
        raise EngineError(_FLAWED)

    def _read(self, output: list[Any]) -> list[AnyBlock]:
        """Return an answer as blocks; nothing if it cannot be read, which the SDK tells."""
        try:
            return answer_of(whole_items(output), self.name)
        except (KeyError, ValueError):
            return []

    async def _ask(self, journal: Journal, request: dict[str, Any]) -> tuple[ModelResponse, list[AnyBlock]]:
        context = journal.context
        model, name = self._of_run(context.model)
        texts = (request["system_instructions"], system_of(journal.turn.blocks), context.instructions)
        request["system_instructions"] = joined_prompt(*texts) or None
        settings = request["model_settings"].resolve(settings_of(context.params))
        if settings.include_usage is None:
            settings = settings.resolve(ModelSettings(include_usage=True))
        request["model_settings"] = settings
        if self._stream:
            response, stop_reason = await _streamed(model, request, journal)
        else:
            response, stop_reason = await model.get_response(**request), None
            for block in answer_of(response.output, name):
                if not isinstance(block, ToolUse):
                    context.emit(block)
        response.output = whole_items(response.output)
        _give_own_ids(response.output, journal)
        usage = usage_of(response.usage)
        try:
            answer = answer_of(response.output, name, is_cut=stop_reason == _CUT)
        except (KeyError, ValueError) as error:
            raise EngineError(f"model {name!r} made a tool call that cannot be read: {error}") from error
        called = any(isinstance(block, ToolUse) for block in answer)
        context.report(usage=usage, stop_reason=stop_reason or ("tool_calls" if called else "stop"), model=name)
        journal.answered(answer, usage)
        return response, answer

    def _of_run(self, name: str | None) -> tuple[Model, str]:
        """Return the model that a run requests, with the same client."""
        if not name or name == self.name:
            return self.inner, self.name or "unknown"
        if not isinstance(getattr(self.inner, "model", None), str):
            kind = type(self.inner).__name__
            raise EngineError(f"the run requests model {name!r}, but a {kind} has one model: make it the agent's")
        model = copy.copy(self.inner)
        model.model = name  # type: ignore[attr-defined]
        return model, name


def _stream(model: Model, request: Mapping[str, Any]) -> AsyncIterator[Any]:
    keywords = {name: value for name, value in request.items() if name not in _ARGUMENTS}
    return model.stream_response(*(request[name] for name in _ARGUMENTS), **keywords)


def _add_usage(usage: Any, refused: list[Any]) -> None:
    """Add the tokens of answers that the SDK does not get to those of the one that it gets."""
    for refused_usage in refused if usage else ():
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            setattr(usage, name, getattr(usage, name) + (getattr(refused_usage, name, 0) or 0))


def _is_flawed(answer: Sequence[AnyBlock]) -> bool:
    return any(isinstance(block, ToolUse) and block.flaw for block in answer)


def _refused(model_input: str | list[Any], answer: Sequence[AnyBlock]) -> list[Any]:
    """Return a request's input with an answer behind it, and why none of its calls is made."""
    items = model_input if isinstance(model_input, list) else [{"role": "user", "content": model_input}]
    return [*items, *encode([*answer, *refusals(answer)])[1]]


async def _streamed(model: Model, request: dict[str, Any], journal: Journal) -> tuple[ModelResponse, str | None]:
    """Return the answer that a model streams, and why it stopped; emit its parts."""
    done: list[Any] = []
    final: Any = None
    last: tuple[Any, ...] | None = None
    async with aclosing(cast("Any", _stream(model, request))) as events:
        async for event in events:
            kind = event.type
            if kind in _TEXT:
                place: tuple[Any, ...] = "text", event.output_index
                journal.context.emit(BETWEEN * _follows(last, place) + event.delta)
                last = place
            elif kind in _THOUGHT:
                place = "thought", event.output_index, getattr(event, "summary_index", None)
                journal.context.emit(Thinking(text=BETWEEN * _follows(last, place) + event.delta))
                last = place
            elif kind == "response.output_item.done":
                done.append(event.item)
            elif kind in _END:
                final = event.response
            elif kind in ("error", "response.error"):
                raise BrokenOffError(str(getattr(event, "message", None) or event))
    if final is None:
        raise BrokenOffError("the answer ended without its end, so it may be incomplete")
    if final.status == "failed" or final.error:
        raise BrokenOffError(str(getattr(final.error, "message", None) or "the response failed"))
    used = final.usage
    usage = Usage(requests=1)
    if used is not None:
        details = {
            "input_tokens_details": used.input_tokens_details,
            "output_tokens_details": used.output_tokens_details,
        }
        counted = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
        usage = Usage(requests=1, total_tokens=used.total_tokens, **counted, **details)
    reason = getattr(final.incomplete_details, "reason", None) if final.status == "incomplete" else None
    return ModelResponse(output=final.output or done, usage=usage, response_id=final.id), reason


def _follows(last: tuple[Any, ...] | None, place: tuple[Any, ...]) -> bool:
    """Return whether a piece begins another text or thought after one of the same kind."""
    return last is not None and last[0] == place[0] and last != place


def _give_own_ids(output: list[Any], journal: Journal) -> None:
    """Give calls ids that are unique in the run, since some servers count them anew in each answer."""
    taken = set[str]()
    for item in output:
        call_id = getattr(item, "call_id", None)
        if not call_id or str(item.type).endswith("_output"):
            continue
        names = (f"{call_id}_{number}" for number in itertools.count(2))
        if journal.is_used(call_id) or call_id in taken:
            item.call_id = next(name for name in names if not journal.is_used(name) and name not in taken)
        taken.add(item.call_id)


def settings_of(params: Mapping[str, Any]) -> ModelSettings:
    """Return a run's parameters as settings of a model."""
    values = {TAKEN[name]: value for name, value in params.items() if name in TAKEN}
    if "reasoning" in values:
        values["reasoning"] = Reasoning(effort=values["reasoning"])
    if isinstance(choice := values.get("tool_choice"), Mapping):
        values["tool_choice"] = choice["function"]["name"]
    if "metadata" in values:
        values["metadata"] = dict(values["metadata"])
    return ModelSettings(**values)


class JournalledProvider(ModelProvider):
    """Finds models by name, as an agent of a session asks them."""

    def __init__(self, inner: ModelProvider, *, stream: bool) -> None:
        self._inner = inner
        self._stream = stream

    def get_model(self, model_name: str | None) -> Model:
        model = self._inner.get_model(model_name)
        return JournalledModel(model, model_name or get_default_model(), stream=self._stream)

    async def aclose(self) -> None:
        await self._inner.aclose()
