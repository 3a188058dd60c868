"""Spans and metrics of sessions on Ray, exported from their processes to a collector of the test's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider

from engines import process_of
from scale import ONE_PLACEMENT
from servers.otlp_collector import Collector, export_to, wait
from tools.traced_tools import away, here
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Placement
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.telemetry import Telemetry
from turnwise.testing import LocalProvider, tool_script

MakeManager = Callable[..., SessionManager]

RUN = "invoke_agent helper"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def caller() -> Iterator[trace.Span]:
    """A span of the test's own, which is the current one."""
    span = TracerProvider().get_tracer("caller").start_span("caller")
    token = context.attach(trace.set_span_in_context(span))
    yield span
    context.detach(token)


def telemetry(collector: Collector, **settings: Any) -> Telemetry:
    return Telemetry(setup=partial(export_to, collector.endpoint), **settings)


@ONE_PLACEMENT
def test_one_trace_leads_from_the_caller_to_the_provider_and_to_tools(
    make_ray_manager: MakeManager, collector: Collector, caller: trace.Span, placement: Placement
) -> None:
    with LocalProvider(reply=tool_script([[("here", {}), ("away", {})], "done"])) as provider:
        engine = OpenAIEngine("m", base_url=provider.base_url, tools=[here, away])
        settings = {"placement": placement, "telemetry": telemetry(collector, propagate=True)}
        manager = make_ray_manager(engine=engine, **settings)
        turn = manager.open("chat", agent="helper").run("go").wait(timeout_s=60)
        sent = [request.headers["traceparent"][:-3] for request in provider.requests]
    (run,) = collector.wait_for(RUN)
    chats, calls = collector.wait_for("chat m", 2), [*collector.wait_for("execute_tool here")]
    calls += collector.wait_for("execute_tool away")
    traced = trace.format_trace_id(caller.get_span_context().trace_id)
    assert {span.trace_id for span in collector.spans} == {traced}
    assert run.parent_id == trace.format_span_id(caller.get_span_context().span_id)
    assert {span.parent_id for span in (*chats, *calls)} == {run.span_id}
    assert sent == [f"00-{traced}-{span.span_id}" for span in chats]
    results = [block.text[:-3] for block in turn.blocks if block.kind == "tool_result"]
    assert results == [f"00-{traced}-{span.span_id}" for span in calls]
    assert {span.attributes["gen_ai.conversation.id"] for span in collector.spans} == {"chat"}
    assert collector.wait_for_metric("gen_ai.execute_tool.duration")


def test_a_run_that_resumes_after_a_kill_links_to_its_first_span(
    make_ray_manager: MakeManager, collector: Collector, caller: trace.Span
) -> None:
    with LocalProvider(token_delay_s=1.0) as provider:
        engine = OpenAIEngine("m", base_url=provider.base_url)
        config = SessionConfig(on_lost="resume")
        manager = make_ray_manager(engine=engine, config=config, telemetry=telemetry(collector))
        session = manager.open("chat", agent="helper")
        run = session.run("a long story")
        wait(lambda: provider.requests, "a request")
        os.kill(process_of(session.info()), signal.SIGKILL)
        provider.token_delay_s = 0
        run.wait(timeout_s=60)
        stored = run.info().trace
        session.run("another").wait(timeout_s=60)
    (resumed, following) = collector.wait_for(RUN, 2)
    first = stored["traceparent"].split("-")
    assert resumed.links == (first[2],) and resumed.trace_id == following.trace_id == first[1]
    assert resumed.span_id != first[2]
    assert resumed.parent_id == stored["parent"] == trace.format_span_id(caller.get_span_context().span_id)
    assert not following.links and resumed.attributes["turnwise.run.resumes"] == 1


PROGRAM = """
import socket, sys, time, urllib.request
import ray

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
often = {"metrics_report_interval_ms": 500}
ray.init(num_cpus=1, include_dashboard=False, _metrics_export_port=port, _system_config=often, log_to_driver=False)

from turnwise import EchoEngine, SessionManager
from turnwise.telemetry import Telemetry

with SessionManager("memory://scraped", engine=EchoEngine(), telemetry=Telemetry()) as manager:
    manager.open("chat-1", agent="helper").run("Hello!").wait()
    text = ""
    while "turnwise_runs_total" not in text:
        time.sleep(0.2)
        node = ray.nodes()[0]
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        try:
            text = urllib.request.urlopen(url, timeout=5).read().decode()
        except OSError:
            pass
    print("\\n".join(line for line in text.splitlines() if "turnwise_" in line and not line.startswith("#")))
"""


@pytest.mark.ray
def test_standard_variables_configure_exporters_and_ray_exports_for_prometheus(collector: Collector) -> None:
    names = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_SERVICE_NAME": "chats"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **names, "OTEL_METRIC_EXPORT_INTERVAL": "200", "RAY_ADDRESS": "local"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = collector.wait_for(RUN)
    assert run.attributes["turnwise.run.state"] == "completed" and collector.services == {"chats"}
    assert collector.wait_for_metric("turnwise.runs")
    (ended,) = [line for line in done.stdout.splitlines() if line.startswith("ray_turnwise_runs_total{")]
    assert 'gen_ai_agent_name="helper"' in ended and 'turnwise_run_state="completed"' in ended
    assert ended.endswith("} 1.0") and "chat-1" not in done.stdout
