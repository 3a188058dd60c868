"""A collector of OpenTelemetry's spans and metrics, which keeps in memory what it gets by OTLP over gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces, trace_service_pb2_grpc

WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """A span, as it was exported."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: tuple[str, ...]
    """The ids of the linked spans."""
    failed: bool
    began: int
    ended: int


class Collector:
    """Listens on loopback while it is open."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.services: set[str] = set()
        """The names of the services that sent spans."""
        self.metrics: dict[str, list[dict[str, Any]]] = {}
        """The labels of the points of each metric."""
        self._server = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(self), self._server)  # type: ignore[no-untyped-call]
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._server)  # type: ignore[no-untyped-call]
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def named(self, name: str) -> list[CollectedSpan]:
        """Return the spans of this name, in the order of their beginnings."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began)

    def wait_for(self, name: str, number: int = 1) -> list[CollectedSpan]:
        """Wait for so many spans of this name; return all of them."""
        wait(
            lambda: len(self.named(name)) >= number, f"{number} of {name!r}, with {[span.name for span in self.spans]}"
        )
        return self.named(name)

    def wait_for_metric(self, name: str) -> list[dict[str, Any]]:
        """Wait for a metric; return the labels of its points."""
        wait(lambda: name in self.metrics, f"{name!r}, with {sorted(self.metrics)}")
        return self.metrics[name]


def wait(until: Callable[[], object], description: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < deadline, f"nothing came: {description}"
        time.sleep(0.02)


def export_to(endpoint: str) -> None:
    """Set this process's providers up so that they export to a collector soon; for `Telemetry(setup=...)`."""
    from opentelemetry import metrics as api, trace
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=50))
    trace.set_tracer_provider(provider)
    metric_exporter = OTLPMetricExporter(endpoint=endpoint, insecure=True)
    reader = PeriodicExportingMetricReader(metric_exporter, export_interval_millis=200)
    api.set_meter_provider(MeterProvider(metric_readers=[reader]))


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        for resource in request.resource_spans:
            self._collector.services.add(_attributes(resource.resource.attributes)["service.name"])
            for scope in resource.scope_spans:
                self._collector.spans += map(_span, scope.spans)
        return traces.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    data = getattr(metric, metric.WhichOneof("data"))
                    points = self._collector.metrics.setdefault(metric.name, [])
                    points += [_attributes(point.attributes) for point in data.data_points]
        return metrics.ExportMetricsServiceResponse()


def _span(span: Any) -> CollectedSpan:
    links = tuple(link.span_id.hex() for link in span.links)
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    times = span.start_time_unix_nano, span.end_time_unix_nano
    return CollectedSpan(span.name, *ids, _attributes(span.attributes), links, span.status.code == 2, *times)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
