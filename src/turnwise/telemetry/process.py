"""Sets OpenTelemetry up in a session's process, once, and makes the process's observers."""

from __future__ import annotations

import logging
import os
import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace

from turnwise.actors.inference.observing import Observer
from turnwise.telemetry.metrics import Recorder
from turnwise.telemetry.observer import SessionObserver

if TYPE_CHECKING:
    from turnwise.telemetry.settings import Telemetry

DELAY_MS = 500
"""How long ended spans wait to be exported together, unless OTEL_BSP_SCHEDULE_DELAY is set. OpenTelemetry's five
seconds would lose those of a program whose Ray ends with it."""

_log = logging.getLogger(__name__)

_lock = threading.Lock()
_is_set_up = False
_observers: dict[tuple[bool, bool, bool], Observer] = {}


def observer_for(telemetry: Telemetry) -> Observer:
    """Return this process's observer with these settings; the first call sets OpenTelemetry up."""
    global _is_set_up  # noqa: PLW0603 - OpenTelemetry's providers are the process's, too
    key = (telemetry.content, telemetry.propagate, telemetry.ray_metrics)
    with _lock:
        if not _is_set_up:
            _is_set_up = True  # also if it fails, which is logged once
            try:
                (telemetry.setup or set_up_by_environment)()
            except Exception:  # noqa: BLE001 - sessions work without exports
                _log.exception("OpenTelemetry could not be set up in this process: its spans are not exported")
        if key not in _observers:
            recorder = Recorder(ray=telemetry.ray_metrics)
            _observers[key] = SessionObserver(recorder, content=telemetry.content, propagate=telemetry.propagate)
        return _observers[key]


def set_up_by_environment() -> None:
    """Set the global providers that are not set yet, by the standard variables; their default exporter is OTLP."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider()
        delay = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else DELAY_MS
        for exporter in _exporters("traces"):
            provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay))
        trace.set_tracer_provider(provider)
    if not _has_meters():
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

        exporters = _exporters("metrics")
        readers = [
            exporter if isinstance(exporter, MetricReader) else PeriodicExportingMetricReader(exporter)
            for exporter in exporters
        ]
        metrics.set_meter_provider(MeterProvider(metric_readers=readers))


def _has_meters() -> bool:
    from opentelemetry.metrics._internal import _ProxyMeterProvider  # it has no public name, unlike the tracers'

    return not isinstance(metrics.get_meter_provider(), _ProxyMeterProvider)


def _exporters(signal: str) -> list[Any]:
    """Return the exporters that OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER names; by default that of OTLP."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    names = [name.strip() for name in (os.environ.get(variable) or "otlp").split(",")]
    exporters: list[Any] = []
    for name in names:
        if name == "none":
            continue
        if name == "otlp":
            own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
            protocol = own or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
            name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"  # noqa: PLW2901
        entries = list(entry_points(group=f"opentelemetry_{signal}_exporter", name=name))
        if not entries:
            _log.warning("%s names %r, which is not installed: pip install opentelemetry-exporter-...", variable, name)
            continue
        exporters.append(entries[0].load()())
    return exporters
