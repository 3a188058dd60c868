"""Spans and metrics of a session, read back in memory; without Ray."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from engines import Asking, ScriptedEngine
from tools.agent_team import team
from turnwise.actors.client.agent_tree import agents_of
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.shared.trace_context import callers_trace, received
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.observing import observer_of
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.shadow import Shadow
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.engines.budget import Price
from turnwise.client.shared.sending import run_body
from turnwise.errors import ConfigError, OverloadedError
from turnwise.http.assembly import assemble
from turnwise.http.config import load
from turnwise.http.middleware.tracing import TraceContext
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.deliveries.schedules import When
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.ids import new_id
from turnwise.telemetry import METRICS, Telemetry
from turnwise.testing import LocalProvider, tool_script
from windows.stage import SavesOnly

ROOT = Path(__file__).parents[2]
EXPORTER, READER = InMemorySpanExporter(), InMemoryMetricReader()
ID = "chat-1"
RUN = "invoke_agent helper"


class Rude(SpanProcessor):
    """Raises whenever it is called, if it is to."""

    is_rude = False

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.is_rude:
            raise OSError("no spans today")

    def on_end(self, span: Any) -> None:
        if self.is_rude:
            raise OSError("no spans today")


RUDE = Rude()


def collect_in_memory() -> None:
    """Set this process's providers; a process can do so once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    provider.add_span_processor(RUDE)
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider(metric_readers=[READER]))


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    EXPORTER.clear()
    yield EXPORTER
    EXPORTER.clear()


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as provider:
        yield provider


def engine_of(provider: LocalProvider, model: str = "test-model", **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(model, base_url=provider.base_url, max_retries=0, **settings)


async def new_core(
    engine: Any, *, store: InMemoryStore | None = None, memories: Sequence[Any] = (), content: bool = False, **more: Any
) -> SessionCore:
    if store is None:
        store = InMemoryStore()
        await store.create(SessionRecord(session_id=ID, agent="helper"))
    config = SessionConfig(telemetry=Telemetry(setup=collect_in_memory, content=content), **more)
    slots = [MemorySlot(memory=memory, name=type(memory).__name__, section=None) for memory in memories]
    return SessionCore(SessionKey(ID), store, engine, config, memories=slots)


async def run_to_end(core: SessionCore, *prompts: str) -> None:
    """Carry out a run for each prompt, one after the other, then close the connections."""
    for number, prompt in enumerate(prompts):
        await core.admission.start([prompt], run_id=f"run-{number}")
        await core.reads.wait(f"run-{number}")
    await core.ingestion.wait_for_memory(10.0)
    assert await core.ownership.leave()


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def facts(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def place(span: ReadableSpan) -> tuple[int, int]:
    """Return the ids of the trace and of the span."""
    context = span.get_span_context()
    assert context
    return context.trace_id, context.span_id


def above(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent
    return span.parent.trace_id, span.parent.span_id


async def test_a_run_is_a_span_and_its_model_request_a_child_span(
    spans: InMemorySpanExporter, provider: LocalProvider
) -> None:
    engine = engine_of(provider, temperature=0.5, max_output_tokens=50, extra={"stop": ["END"], "seed": 7})
    await run_to_end(await new_core(engine), "hello")
    (run,), (chat,) = named(spans, RUN), named(spans, "chat test-model")
    assert above(chat) == place(run) and run.parent is None
    assert chat.kind == trace.SpanKind.CLIENT and run.kind == trace.SpanKind.INTERNAL
    request_facts = {
        name.removeprefix("gen_ai.request."): value for name, value in facts(chat).items() if ".request." in name
    }
    expected = {"temperature": 0.5, "max_tokens": 50, "stop_sequences": ("END",), "seed": 7, "stream": True}
    assert request_facts == {"model": "test-model", **expected}
    for span, operation in ((run, "invoke_agent"), (chat, "chat")):
        about = facts(span)
        assert (about["gen_ai.operation.name"], about["gen_ai.conversation.id"]) == (operation, ID)
        assert about["gen_ai.usage.input_tokens"] and about["gen_ai.usage.output_tokens"]
        assert about["gen_ai.response.finish_reasons"] == ("stop",) and about["gen_ai.provider.name"] == "127.0.0.1"
    assert facts(chat)["gen_ai.response.model"] and facts(chat)["gen_ai.response.id"]
    assert (facts(chat)["server.address"], facts(chat)["server.port"]) == ("127.0.0.1", provider.port)
    assert facts(chat)["gen_ai.response.time_to_first_chunk"] <= facts(run)["turnwise.run.time_to_first_token"]
    assert (facts(run)["gen_ai.agent.name"], facts(run)["turnwise.run.state"]) == ("helper", "completed")


async def test_a_candidate_beside_a_run_has_a_span_in_the_runs_trace(
    spans: InMemorySpanExporter, provider: LocalProvider
) -> None:
    recorded = asyncio.Event()
    candidate = engine_of(provider, "candidate")
    engine = Shadow(engine_of(provider), candidate, share=1, sink=lambda _: recorded.set())
    core = await new_core(engine)
    await core.admission.start(["hello"], run_id="run-0")
    await asyncio.wait_for(recorded.wait(), 30)
    (run,), (beside,), (chat,) = (named(spans, name) for name in (RUN, "shadow OpenAIEngine", "chat candidate"))
    assert above(beside) == place(run) and above(chat) == place(beside)
    assert named(spans, "chat test-model") and facts(run)["gen_ai.request.model"] == "test-model"
    assert await core.ownership.leave()


async def test_every_span_names_the_sessions_user(spans: InMemorySpanExporter, provider: LocalProvider) -> None:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=ID, user_id="ann", agent="helper"))
    config = SessionConfig(telemetry=Telemetry(setup=collect_in_memory))
    await run_to_end(SessionCore(SessionKey(ID, "ann"), store, engine_of(provider), config), "hello")
    finished = spans.get_finished_spans()
    assert len(finished) == 2
    assert {(facts(span)["gen_ai.conversation.id"], facts(span)["user.id"]) for span in finished} == {(ID, "ann")}


@pytest.mark.parametrize("propagate", [False, True])
async def test_a_provider_gets_the_trace_only_if_it_is_to(provider: LocalProvider, propagate: bool) -> None:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=ID, agent="helper"))
    config = SessionConfig(telemetry=Telemetry(setup=collect_in_memory, propagate=propagate))
    await run_to_end(SessionCore(SessionKey(ID), store, engine_of(provider), config), "hello")
    (request,) = provider.requests
    assert ("traceparent" in request.headers) == propagate


async def test_a_tool_is_a_child_span_and_current_within_the_tool(spans: InMemorySpanExporter) -> None:
    current_spans: list[trace.Span] = []

    @tool
    def look(where: str) -> str:
        """Look around."""
        current_spans.append(trace.get_current_span())
        if where == "nowhere":
            raise ValueError(where)
        return f"nothing in {where}"

    calls: Any = [[("look", {"where": "here"})], [("look", {"where": "nowhere"})], "done"]
    with LocalProvider(reply=tool_script(calls)) as provider:
        await run_to_end(await new_core(engine_of(provider, tools=[look])), "hello")
    (run,), (first, second) = named(spans, RUN), named(spans, "execute_tool look")
    assert above(first) == above(second) == place(run)
    assert [span.get_span_context() for span in current_spans] == [first.context, second.context]
    assert facts(first)["gen_ai.tool.description"] == "Look around." and facts(first)["gen_ai.tool.call.id"]
    assert "error.type" not in facts(first) and facts(second)["error.type"] == "tool_error"
    assert not second.status.is_ok and run.status.is_ok


async def test_the_run_of_an_agent_is_below_the_run_that_has_called_it(spans: InMemorySpanExporter) -> None:
    settings: dict[str, Any] = {"placement": InProcess(), "telemetry": Telemetry(setup=collect_in_memory)}
    async with AsyncSessionManager(f"memory://{new_id()}", engine=team(), **settings) as manager:
        run = await (await manager.open("chat", agent="lead")).run("go")
        assert (await run.wait(30.0)).text == "done"
        agents = (await agents_of(run)).agents
    first_spans = {facts(span)["turnwise.run.id"]: span for span in spans.get_finished_spans() if not span.links}
    assert first_spans[run.run_id].name == "invoke_agent lead" and len(agents) == 4
    for agent in agents:
        span = first_spans[agent.execution.run_id]
        assert span.name == f"invoke_agent {agent.name}" and above(span) == place(first_spans[agent.parent])
    (later,) = [span for span in named(spans, "invoke_agent lead") if span.links]
    assert place(later)[0] == place(first_spans[run.run_id])[0], "the run goes on in the same trace"


class Knows(SavesOnly):
    """A memory that knows one thing, or fails."""

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        return [item.id for item in items]

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        if "fail" in query:
            raise OSError("no memory today")
        return [MemoryItem(id="1", text="likes tea")]


async def test_a_search_in_a_memory_is_a_span_of_the_run(spans: InMemorySpanExporter) -> None:
    await run_to_end(await new_core(ScriptedEngine(), memories=[Knows()]), "hello there", "please fail now")
    (first, _), (recall, failed) = named(spans, RUN), named(spans, "retrieval Knows")
    assert above(recall) == place(first)
    assert facts(recall)["gen_ai.operation.name"] == "retrieval" and facts(recall)["turnwise.recall.found"] == 1
    assert facts(failed)["error.type"] == "OSError" and not failed.status.is_ok


async def test_texts_are_captured_only_if_asked_for(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool
    def tell(secret: str) -> str:
        """Tell."""
        return f"{secret} told"

    script: Any = [[("tell", {"secret": "s3cret"})], "s3cret done"]
    for content in (False, True):
        spans.clear()
        with LocalProvider(reply=tool_script(script)) as provider:
            engine = engine_of(provider, tools=[tell], system="s3cret rules")
            await run_to_end(await new_core(engine, memories=[Knows()], content=content), "my s3cret")
        texts = [span.to_json() for span in spans.get_finished_spans()]
        assert len(texts) == 5 and ["s3cret" in text for text in texts] == [content] * 5
        assert any("likes tea" in text for text in texts) == content
    chat = facts(named(spans, "chat test-model")[-1])
    assert json.loads(chat["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "s3cret done"}], "finish_reason": "stop"}
    ]
    assert json.loads(chat["gen_ai.system_instructions"]) == [{"type": "text", "content": "s3cret rules"}]
    roles = [message["role"] for message in json.loads(chat["gen_ai.input.messages"])]
    assert roles == ["user", "assistant", "tool"]
    assert not Telemetry().content
    for value in ("true", "SPAN_ONLY", "span_and_event"):
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
        assert Telemetry().content
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "event_only")
    assert not Telemetry().content


async def test_a_providers_refusal_is_an_error_in_both_spans(
    spans: InMemorySpanExporter, provider: LocalProvider
) -> None:
    await run_to_end(await new_core(engine_of(provider, "503")), "hello")
    (run,), (chat,) = named(spans, RUN), named(spans, "chat 503")
    assert facts(chat)["error.type"] == "503" and not chat.status.is_ok and not chat.events
    assert facts(run)["error.type"] == "away" and not run.status.is_ok


async def test_a_cancel_ends_the_spans_of_the_run_and_of_its_request(
    spans: InMemorySpanExporter, provider: LocalProvider
) -> None:
    core = await new_core(engine_of(provider, "hang"))
    await core.admission.start(["hello"], run_id="run")
    await asyncio.to_thread(provider.wait_for_request)
    assert await core.admission.cancel("enough")
    assert await core.ownership.leave()
    (run,), (chat,) = named(spans, RUN), named(spans, "chat hang")
    assert facts(run)["error.type"] == facts(chat)["error.type"] == "cancelled"
    assert facts(run)["turnwise.run.state"] == "cancelled"


async def test_the_wait_of_a_queued_run_is_part_of_its_span(spans: InMemorySpanExporter) -> None:
    core = await new_core(ScriptedEngine())
    await core.admission.start(["slow 5"], run_id="first")
    for name in ("second", "third"):
        await core.admission.start([name], run_id=name, if_busy="enqueue")
    open_runs = {of: count for of, count in _values("turnwise.runs.open").items() if count}
    assert open_runs == {("helper", "running"): 1, ("helper", "queued"): 2}
    assert await core.admission.cancel("no longer", "third")
    await core.reads.wait("second")
    ends = {facts(span)["turnwise.run.id"]: span for span in named(spans, RUN)}
    assert [facts(ends[name])["turnwise.queue.depth"] for name in ("first", "second", "third")] == [0, 1, 2]
    assert facts(ends["second"])["turnwise.run.queue_time"] >= 0.05 > facts(ends["first"])["turnwise.run.queue_time"]
    assert [event.name for event in ends["second"].events] == ["turnwise.run.started"] and not ends["third"].events
    assert facts(ends["third"])["error.type"] == "cancelled"
    assert set(_values("turnwise.runs.open").values()) == {0}


async def test_a_merged_or_replaced_run_names_the_other_run(spans: InMemorySpanExporter) -> None:
    core = await new_core(ScriptedEngine())
    await core.admission.start(["slow 5"], run_id="first")
    counted = sum(_values("turnwise.runs").values())
    await core.admission.start(["a"], run_id="replaced", if_busy="enqueue")
    await core.admission.start(["b"], run_id="second", if_busy="latest")
    await core.admission.start(["c"], run_id="merged", if_busy="merge")
    await core.reads.wait("second")
    ends = {facts(span)["turnwise.run.id"]: span for span in named(spans, RUN)}
    assert len(ends) == 4
    for run_id in ("replaced", "merged"):
        assert facts(ends[run_id])["turnwise.run.successor"] == "second"
        assert "error.type" not in facts(ends[run_id]) and ends[run_id].status.status_code is not StatusCode.ERROR
    assert sum(_values("turnwise.runs").values()) == counted + 2, "the first and the second"
    assert set(_values("turnwise.runs.open").values()) == {0}


async def test_a_run_after_a_decision_links_to_its_first_span(
    spans: InMemorySpanExporter,
) -> None:
    core = await new_core(Asking())
    caller = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await core.admission.start(["act"], run_id="run", trace=caller)
    while not named(spans, RUN):
        await asyncio.sleep(0.01)
    await core.approvals.decide("run", "call", ApprovalDecision(verdict="approved"))
    await core.reads.wait("run")
    waited, ended = named(spans, RUN)
    assert [facts(span)["turnwise.run.state"] for span in (waited, ended)] == ["awaiting_approval", "completed"]
    assert [link.context.span_id for link in ended.links] == [place(waited)[1]]
    assert above(waited) == above(ended) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


async def test_a_lost_run_ends_in_a_span_linked_to_its_first(spans: InMemorySpanExporter) -> None:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=ID, agent="helper"))
    lost = await new_core(ScriptedEngine(), store=store)
    await lost.admission.start(["slow 1000"], run_id="run")
    fences = sum(_values("turnwise.fences").values())
    second = await new_core(ScriptedEngine(), store=store)
    await second.transactor.activate()
    (ended,) = named(spans, RUN)
    first = (await store.run("run")).trace["traceparent"].split("-")
    assert facts(ended)["error.type"] == facts(ended)["turnwise.run.state"] == "interrupted"
    assert (f"{place(ended)[0]:032x}", f"{ended.links[0].context.span_id:016x}") == (first[1], first[2])
    with pytest.raises(Exception, match="another process"):
        await lost.admission.append(["late"], "key")
    assert sum(_values("turnwise.fences").values()) == fences + 1
    assert [facts(span)["error.type"] for span in named(spans, RUN)] == ["interrupted", "SessionFencedError"]


async def test_a_refused_start_leaves_no_open_run_behind(spans: InMemorySpanExporter) -> None:
    core = await new_core(ScriptedEngine())
    await core.admission.start(["one"], run_id="one", turn_id="mine")
    await core.reads.wait("one")
    with pytest.raises(Exception, match="mine"):
        await core.admission.start(["two"], run_id="two", turn_id="mine")
    assert [facts(span).get("error.type") for span in named(spans, RUN)] == [None, "DuplicateKeyError"]
    assert set(_values("turnwise.runs.open").values()) == {0}


async def test_telemetry_that_fails_fails_no_run(
    spans: InMemorySpanExporter, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RUDE, "is_rude", True)
    core = await new_core(engine_of(provider))
    await core.admission.start(["hello"], run_id="run")
    outcome = await core.reads.wait("run")
    assert outcome.run.state == "completed"
    assert await core.ownership.leave()


async def test_a_stored_trace_context_that_is_damaged_is_ignored(spans: InMemorySpanExporter) -> None:
    core = await new_core(ScriptedEngine())
    await core.admission.start(["hello"], run_id="run", trace={"traceparent": "garbage", "parent": "more"})
    await core.reads.wait("run")
    (run,) = named(spans, RUN)
    assert run.parent is None and run.status.is_ok


def test_without_the_sdk_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.telemetry.settings.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"turnwise\[telemetry\]"):
        Telemetry()
    with pytest.raises(ConfigError, match="must be a function"):
        Telemetry(setup="otlp")  # type: ignore[arg-type]


def test_without_telemetry_nothing_of_opentelemetry_is_imported() -> None:
    program = """
import asyncio, sys
import turnwise, turnwise.actors.client.manager, turnwise.actors.cluster.actors.session_actor
import turnwise.actors.hosting.dedicated_host, turnwise.actors.hosting.worker_resources, turnwise.actors.hosting.verbs
from turnwise.actors.session.core import SessionCore
from turnwise.engines import EchoEngine
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.in_memory import InMemoryStore

async def main():
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, EchoEngine())
    await core.admission.start(["hello"], run_id="run")
    await core.reads.wait("run")

asyncio.run(main())
print([name for name in sys.modules if name.startswith(("opentelemetry", "turnwise.telemetry"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# Metrics


def _points() -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """Return labels and values of each metric."""
    points_by_name: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    data = READER.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points: Any = metric.data.data_points
                points_by_name[metric.name] = [
                    (dict(point.attributes), getattr(point, "value", getattr(point, "count", None))) for point in points
                ]
    return points_by_name


def _values(name: str) -> dict[tuple[Any, ...], Any]:
    return {tuple(labels.values()): value for labels, value in _points().get(name, ())}


async def test_every_metric_is_recorded_and_no_label_has_an_id(spans: InMemorySpanExporter) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    script: Any = [[("look", {}), ("invented", {})], "done"]
    with LocalProvider(reply=tool_script(script)) as provider:
        prices = {"test-model": Price(input=1.0, output=2.0)}
        core = await new_core(engine_of(provider, tools=[look]), memories=[Knows()], prices=prices)
        await run_to_end(core, "hello there")
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=ID, agent="helper"))
    first, second = await new_core(ScriptedEngine(), store=store), await new_core(ScriptedEngine(), store=store)
    await first.transactor.activate()
    await second.transactor.activate()
    with pytest.raises(Exception, match="another process"):
        await first.admission.append(["late"], "key")
    await second.scheduling.add(["later"], When(after_s=1.0), delivery_id="timer", options={})
    started = await second.admission.deliver("timer", "timer", 1)
    assert started
    await second.reads.wait(started.run_id)
    observer = observer_of(Telemetry(setup=collect_in_memory))
    assert observer
    observer.refused(OverloadedError(ID, "max_calls", 1))
    assert _values("turnwise.refusals") == {("OverloadedError",): 1}
    points = _points()
    assert METRICS.keys() - points.keys() == set()
    for name, metric in METRICS.items():
        for labels, _ in points[name]:
            assert labels.keys() <= set(metric.labels), name
            assert not {ID, "run", "run-0", "invented"}.intersection(labels.values()), name
    assert not [label for metric in METRICS.values() for label in metric.labels if label.endswith("id")]


def test_the_dashboard_names_metrics_that_exist_and_each_of_them() -> None:
    text = (ROOT / "examples/grafana.json").read_text(encoding="utf-8")
    dashboard = json.loads(text)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    suffixes = {"counter": "_total", "gauge": "", "histogram": "_bucket"}
    names = {f"{metric.ray_name}{suffixes[metric.kind]}" for metric in METRICS.values()}
    names |= {f"{metric.ray_name}{end}" for metric in METRICS.values() for end in ("_sum", "_count")}
    shown = {name for expression in expressions for name in re.findall(r"\bray_(\w+)", expression)}
    assert shown <= names
    for metric in METRICS.values():
        assert any(re.fullmatch(rf"{metric.ray_name}(_total|_bucket|_sum|_count)?", name) for name in shown), (
            metric.name
        )
    labels = {label.replace(".", "_") for metric in METRICS.values() for label in metric.labels} | {"le"}
    grouped = {
        label.strip() for text in expressions for by in re.findall(r"by \(([^)]*)\)", text) for label in by.split(",")
    }
    assert grouped <= labels


# The caller's side


async def test_a_request_over_http_passes_its_trace_context_to_its_runs() -> None:
    traces: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        traces.append(callers_trace())

    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for headers in ([(b"traceparent", header.encode()), (b"x-other", b"1")], [], [(b"traceparent", b"0" * 513)]):
        await TraceContext(app)({"type": "http", "headers": headers}, None, None)  # type: ignore[arg-type]
    assert traces == [{"trace": {"traceparent": header}}, {}, {}]


def test_the_current_span_comes_before_a_requests_header() -> None:
    span = TracerProvider().get_tracer("caller").start_span("caller")
    with received({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}), trace.use_span(span):
        assert f"{span.get_span_context().span_id:016x}" in callers_trace()["trace"]["traceparent"]
    span.end()


def test_a_run_over_http_is_started_with_the_callers_trace() -> None:
    caller = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with received(caller):
        _, headers = run_body("chat", ["hello"], {})
    assert headers.items() >= caller.items()


def test_a_service_has_telemetry_by_its_configuration(tmp_path: Path) -> None:
    engines = {"main": {"model": "m", "base_url": "http://127.0.0.1:9/v1"}}
    config, source = load(None, store=f"sqlite:///{tmp_path}/a.db", engines=engines, telemetry={"content": True})
    assert assemble(config, source).manager.config.telemetry == Telemetry(content=True)
    with pytest.raises(ConfigError, match="setup"):
        load(None, engines=engines, telemetry={"setup": "os:getpid"})
