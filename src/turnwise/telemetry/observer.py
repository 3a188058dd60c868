"""`SessionObserver`: makes spans and metrics of what sessions tell, by the conventions for generative AI."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from turnwise.actors.inference.engine import SessionView
from turnwise.actors.inference.observing import NO_OPERATION, Operation, Part
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.telemetry import content
from turnwise.telemetry.metrics import AGENT, ERROR, MEMORY, MODEL, OPERATION, PROVIDER, STATE, TOKEN, TOOL, Recorder

Given = ParamSpec("Given")
Made = TypeVar("Made")

CONVERSATION, USER = "gen_ai.conversation.id", "user.id"
"""The attributes of each span that say which session it is of: its id, and its user."""

SUCCESSOR = "turnwise.run.successor"

PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "kimi": "moonshot_ai",
    "mistral": "mistral_ai",
}
"""The conventions' names of providers, where turnwise's profiles have others."""

_REQUEST = {
    "temperature": ("temperature", float),
    "top_p": ("top_p", float),
    "frequency_penalty": ("frequency_penalty", float),
    "presence_penalty": ("presence_penalty", float),
    "max_tokens": ("max_tokens", int),
    "max_completion_tokens": ("max_tokens", int),
    "max_output_tokens": ("max_tokens", int),
    "seed": ("seed", int),
    "random_seed": ("seed", int),
}
"""Fields of requests, with the names of their attributes and their types."""

_CONTEXT = TraceContextTextMapPropagator()

_log = logging.getLogger(__name__)


def _harmless(otherwise: Made) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Decorate a method so that it raises nothing: an error is logged once, and `otherwise` is returned."""

    def decorate(method: Callable[Given, Made]) -> Callable[Given, Made]:
        @functools.wraps(method)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            try:
                return method(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - no run fails because of telemetry
                _warn(type(error).__name__)
                _log.debug("telemetry failed", exc_info=True)
                return otherwise

        return call

    return decorate


@functools.cache
def _warn(error: str) -> None:
    """Log that telemetry failed, once for each kind of error."""
    _log.warning("telemetry failed by %s, and sessions go on without it; DEBUG shows where", error, exc_info=True)


class SessionObserver:
    """The observer of one process's sessions.

    Args:
        content: whether spans contain texts of the conversation.
        propagate: whether requests to models carry the trace context.
    """

    def __init__(self, recorder: Recorder, *, content: bool, propagate: bool) -> None:
        self.recorder = recorder
        self.content = content
        self.propagate = propagate
        self.tracer = trace.get_tracer("turnwise")

    @_harmless(NO_OPERATION)
    def run(self, session: SessionView, record: RunRecord, caller: Mapping[str, str], depth: int) -> Operation:
        return _Run(self, session, record, caller, depth)

    @_harmless(None)
    def activated(self, session: SessionView) -> None:
        self.recorder.record("turnwise.activations", 1, {AGENT: session.agent or ""})

    @_harmless(None)
    def fenced(self, session: SessionView) -> None:
        self.recorder.record("turnwise.fences", 1, {AGENT: session.agent or ""})

    @_harmless(None)
    def delivered(self, session: SessionView, late_s: float) -> None:
        self.recorder.record("turnwise.schedules.lateness", late_s, {AGENT: session.agent or ""})

    @_harmless(None)
    def refused(self, error: TurnwiseError) -> None:
        self.recorder.record("turnwise.refusals", 1, {ERROR: type(error).__name__})


class _Operation:
    """Common base of a run and its parts: the span, the labels of its metrics, and what parts need of the whole."""

    def __init__(self, observer: SessionObserver, span: Span, labels: dict[str, str], ids: dict[str, str]) -> None:
        self.observer = observer
        self.span = span
        self.labels = labels
        self.ids = ids
        """The attributes that name the session."""
        self.began_s = time.monotonic()
        self.has_answered = False
        self.has_ended = False

    @property
    def trace(self) -> Mapping[str, str]:
        return _carried(self.span)

    @property
    def headers(self) -> Mapping[str, str]:
        return _carried(self.span) if self.observer.propagate else {}

    def entered(self) -> Any:
        return _entered(self.span)

    @_harmless(NO_OPERATION)
    def part(self, kind: Part, facts: Mapping[str, Any]) -> Operation:
        return _PARTS[kind](self, facts)

    def note(self, **facts: Any) -> None:
        """See `Operation`."""

    def answers(self) -> None:
        """See `Operation`."""

    def seconds(self) -> float:
        """Return how long it has taken until now."""
        return time.monotonic() - self.began_s

    def measure(self, name: str, value: float, label: str = "", text: str = "") -> None:
        """Record a value of a metric, with the labels of this operation and another one."""
        self.observer.recorder.record(name, value, {**self.labels, label: text})

    def finish(self, error: str | None) -> None:
        """End the span."""
        self.has_ended = True
        if error:
            self.labels[ERROR] = error
            self.span.set_attribute(ERROR, error)
            self.span.set_status(Status(StatusCode.ERROR))
        self.span.end()

    def begin(self, kind: SpanKind, name: str, attributes: Mapping[str, Any]) -> Span:
        """Return the span of a part that begins."""
        about = {key: value for key, value in attributes.items() if value is not None}
        return self.observer.tracer.start_span(
            name,
            context=trace.set_span_in_context(self.span),
            kind=kind,
            attributes={**about, **self.ids},
        )

    @property
    def agent(self) -> dict[str, str]:
        """The label of the agent; empty if the session has none."""
        return {AGENT: self.labels[AGENT]} if AGENT in self.labels else {}


class _Run(_Operation):
    """A run, from its acceptance until it ends or waits for a decision; or from when it goes on, until the same."""

    def __init__(
        self, observer: SessionObserver, session: SessionView, record: RunRecord, caller: Mapping[str, str], depth: int
    ) -> None:
        first = _first_of(record)
        labels = {AGENT: session.agent} if session.agent else {}
        ids = {CONVERSATION: session.session_id, USER: session.user_id}
        about: dict[str, Any] = {OPERATION: "invoke_agent", **ids, **labels}
        about |= {"turnwise.run.id": record.run_id, **({MODEL: record.model} if record.model else {})}
        about |= {"turnwise.run.resumes": record.resumes} if first else {"turnwise.queue.depth": depth}
        span = observer.tracer.start_span(
            f"invoke_agent {session.agent}" if session.agent else "invoke_agent",
            context=_beside(record) if first else _CONTEXT.extract(caller, Context()),
            attributes=about,
            links=[Link(first)] if first else None,
        )
        super().__init__(observer, span, labels, ids)
        self._parent = "" if first else _span_id(caller)
        self._is_first = first is None
        """Whether it follows the run from its acceptance."""
        self._counted: str | None = None
        """The state as which it is among the open runs."""
        self._record = record
        if depth or first:  # otherwise it begins at once, and counts as running then
            self._count(record.state)

    @property
    def trace(self) -> Mapping[str, str]:
        return {**_carried(self.span), **({"parent": self._parent} if self._parent else {})}

    @_harmless(None)
    def note(self, **facts: Any) -> None:
        if record := facts.get("record"):
            self._update(record)
        if self.observer.content and (prompts := facts.get("prompts")):
            self.span.set_attribute("gen_ai.input.messages", content.messages(prompts))

    def _update(self, record: RunRecord) -> None:
        if record.state == "running" and self._counted != "running" and self._is_first:
            waited_s = max(0.0, (record.started_at or record.created_at) - record.created_at)
            self.span.set_attribute("turnwise.run.queue_time", waited_s)
            self.span.add_event("turnwise.run.started")
            self.measure("turnwise.run.queue_time", waited_s)
        self._count(record.state)
        self._record = record

    def _count(self, state: str) -> None:
        counted = state if state in ("queued", "running") else None
        if counted != self._counted:
            for counted_state, change in ((self._counted, -1), (counted, 1)):
                if counted_state:
                    self.measure("turnwise.runs.open", change, STATE, counted_state)
            self._counted = counted

    @_harmless(None)
    def answers(self) -> None:
        if not self.has_answered:
            self.has_answered = True
            if self._is_first:
                seconds = self.seconds()
                self.span.set_attribute("turnwise.run.time_to_first_token", seconds)
                self.measure("turnwise.run.time_to_first_token", seconds)

    @_harmless(None)
    def end(self, error: BaseException | None = None) -> None:
        if self.has_ended:
            return
        self._count("ended")
        record, usage = self._record, self._record.usage
        if usage:
            self.span.set_attributes({**_tokens(usage), "turnwise.run.cost": usage.cost})
        if record.stop_reason:
            self.span.set_attribute("gen_ai.response.finish_reasons", [record.stop_reason])
        self.span.set_attribute(STATE, record.state)
        if error:
            self.finish(_type_of(error))
        elif record.successor:  # merged, or replaced: another run goes on in its place
            self.span.set_attribute(SUCCESSOR, record.successor)
            self.finish(None)
            return
        elif record.state in ("failed", "interrupted", "cancelled"):
            self.finish(record.code or record.state)
        else:
            self.finish(None)
        if record.ended_at is None:
            return
        self.measure("turnwise.runs", 1, STATE, record.state)
        lasted_s = max(0.0, record.ended_at - record.created_at)
        self.measure("gen_ai.invoke_agent.duration", lasted_s, STATE, record.state)
        if usage and usage.cost:
            self.measure("turnwise.cost", usage.cost)


class _Chat(_Operation):
    """A request to a model."""

    def __init__(self, whole: _Operation, facts: Mapping[str, Any]) -> None:
        provider = PROVIDERS.get(facts["provider"], facts["provider"])
        labels = {OPERATION: "chat", PROVIDER: provider, MODEL: facts["model"]}
        fields = facts["fields"]
        about: dict[str, Any] = {**labels, "server.address": facts["host"], "server.port": facts["port"]}
        about["gen_ai.request.stream"] = fields.get("stream") is not False
        about["gen_ai.output.type"] = "json" if facts["is_typed"] else None
        for name, (attribute, kind) in _REQUEST.items():
            if isinstance(value := fields.get(name), int | float):
                about[f"gen_ai.request.{attribute}"] = kind(value)
        if stop := fields.get("stop"):
            about["gen_ai.request.stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
        if whole.observer.content:
            about["gen_ai.input.messages"] = content.messages(facts["blocks"])
            about["gen_ai.system_instructions"] = content.instructions(facts["blocks"])
        span = whole.begin(SpanKind.CLIENT, f"chat {facts['model']}", about)
        super().__init__(whole.observer, span, {**whole.agent, **labels}, whole.ids)
        whole.span.set_attributes({PROVIDER: provider, MODEL: facts["model"]})
        self._stop_reason: str | None = None

    @_harmless(None)
    def note(self, **facts: Any) -> None:
        if response := facts.get("response"):
            self._identify(response)
        if usage := facts.get("usage"):
            self.span.set_attributes(_tokens(usage))
            if usage.input_tokens or usage.output_tokens:  # some servers count nothing
                self.measure("gen_ai.client.token.usage", usage.input_tokens, TOKEN, "input")
                self.measure("gen_ai.client.token.usage", usage.output_tokens, TOKEN, "output")
        if stop_reason := facts.get("stop_reason"):
            self._stop_reason = stop_reason
            self.span.set_attribute("gen_ai.response.finish_reasons", [stop_reason])
        if self.observer.content and (answer := facts.get("answer")):
            self.span.set_attribute("gen_ai.output.messages", content.messages(answer, self._stop_reason))

    def _identify(self, response: Any) -> None:
        """Set model and id of the response; each is in the first event that has it."""
        for name in ("model", "id"):
            value = response.get(name) if isinstance(response, Mapping) else None
            if isinstance(value, str) and value:
                self.span.set_attribute(f"gen_ai.response.{name}", value)

    @_harmless(None)
    def answers(self) -> None:
        if not self.has_answered:
            self.has_answered = True
            seconds = self.seconds()
            self.span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)
            self.measure("gen_ai.client.operation.time_to_first_chunk", seconds)

    @_harmless(None)
    def end(self, error: BaseException | None = None) -> None:
        if not self.has_ended:
            self.finish(_type_of(error))
            self.measure("gen_ai.client.operation.duration", self.seconds())


class _ToolCall(_Operation):
    """A call of a tool, with its retries."""

    def __init__(self, whole: _Operation, facts: Mapping[str, Any]) -> None:
        use, tool = facts["use"], facts["tool"]
        about: dict[str, Any] = {OPERATION: "execute_tool", TOOL: use.name, "gen_ai.tool.call.id": use.call_id}
        about |= {
            "gen_ai.tool.type": "function",
            "gen_ai.tool.description": tool.definition.description if tool else None,
        }
        if whole.observer.content:
            about["gen_ai.tool.call.arguments"] = content.arguments(use.input)
        span = whole.begin(SpanKind.INTERNAL, f"execute_tool {use.name}", about)
        labels = {**whole.agent, TOOL: use.name if tool else ""}  # a model may invent any number of names
        super().__init__(whole.observer, span, labels, whole.ids)
        self._has_failed = False

    @_harmless(None)
    def note(self, **facts: Any) -> None:
        result = facts["result"]
        self._has_failed = result.is_error
        self.span.set_attribute("turnwise.tool.tries", facts["tries"])
        if self.observer.content:
            self.span.set_attribute("gen_ai.tool.call.result", result.text)

    @_harmless(None)
    def end(self, error: BaseException | None = None) -> None:
        if not self.has_ended:
            self.finish(_type_of(error) or ("tool_error" if self._has_failed else None))
            self.measure("gen_ai.execute_tool.duration", self.seconds())


class _Recall(_Operation):
    """A search in a long-term memory."""

    def __init__(self, whole: _Operation, facts: Mapping[str, Any]) -> None:
        about: dict[str, Any] = {OPERATION: "retrieval", "gen_ai.data_source.id": facts["memory"]}
        about["gen_ai.request.top_k"] = float(facts["limit"])
        if whole.observer.content:
            about["gen_ai.retrieval.query.text"] = facts["query"]
        span = whole.begin(SpanKind.CLIENT, f"retrieval {facts['memory']}", about)
        super().__init__(whole.observer, span, {**whole.agent, MEMORY: facts["memory"]}, whole.ids)

    @_harmless(None)
    def note(self, **facts: Any) -> None:
        items = facts["found"]
        self.span.set_attribute("turnwise.recall.found", len(items))
        if self.observer.content:
            self.span.set_attribute("gen_ai.retrieval.documents", content.documents(items))

    @_harmless(None)
    def end(self, error: BaseException | None = None) -> None:
        if not self.has_ended:
            self.finish(_type_of(error))
            self.measure("turnwise.recall.duration", self.seconds())


class _Beside(_Operation):
    """The answer of a candidate beside a run: see `Shadow`."""

    def __init__(self, whole: _Operation, facts: Mapping[str, Any]) -> None:
        span = whole.begin(SpanKind.INTERNAL, f"shadow {facts['engine']}", {"turnwise.shadow.engine": facts["engine"]})
        super().__init__(whole.observer, span, whole.agent, whole.ids)

    @_harmless(None)
    def end(self, error: BaseException | None = None) -> None:
        if not self.has_ended:
            self.finish(_type_of(error))


_PARTS: Mapping[Part, Callable[[_Operation, Mapping[str, Any]], Operation]] = {
    "chat": _Chat,
    "tool": _ToolCall,
    "recall": _Recall,
    "shadow": _Beside,
}


def _tokens(usage: Usage) -> dict[str, int]:
    counts = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "turnwise.usage.counted_tokens": usage.counted_tokens,
    }
    return {name: count for name, count in counts.items() if count}


def _type_of(error: BaseException | None) -> str | None:
    """Return a word for an error: the HTTP status of a provider's refusal, else the class; never its message."""
    if error is None:
        return None
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    status = getattr(error.__cause__, "status_code", None)
    return str(status) if isinstance(status, int) else type(error).__name__


# The trace context


def _carried(span: Span) -> dict[str, str]:
    """Return the span's context as headers."""
    headers: dict[str, str] = {}
    _CONTEXT.inject(headers, trace.set_span_in_context(span, Context()))
    return headers


def _first_of(record: RunRecord) -> SpanContext | None:
    """Return the context of the run's first span; None if telemetry did not follow the run before."""
    if not record.trace:
        return None
    context = trace.get_current_span(_CONTEXT.extract(record.trace, Context())).get_span_context()
    return context if context.is_valid else None


def _beside(record: RunRecord) -> Context:
    """Return the context in which the run's first span began, so that later ones are beside it in the same trace.

    If that one began the trace, later ones are below it.
    """
    first = _first_of(record)
    if first is None:
        return Context()
    parent = record.trace.get("parent")
    span_id = int(parent, 16) if parent else first.span_id
    above = SpanContext(first.trace_id, span_id, True, first.trace_flags, first.trace_state)
    return trace.set_span_in_context(NonRecordingSpan(above), Context())


def _span_id(caller: Mapping[str, str]) -> str:
    """Return the id of the caller's span; empty if there is none."""
    context = trace.get_current_span(_CONTEXT.extract(caller, Context())).get_span_context()
    return trace.format_span_id(context.span_id) if context.is_valid else ""


@contextmanager
def _entered(span: Span) -> Iterator[None]:
    token = attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        detach(token)
