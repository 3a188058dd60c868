"""`METRICS`, the list of what is counted and measured, and `Recorder`, which records it for OpenTelemetry and Ray."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300.0, 1200.0)
TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: its name in OpenTelemetry, and the names of its labels, none of which is an id."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    """A gauge is what there is at this moment, such as queued runs; each process reports its own."""
    unit: str
    description: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()

    @property
    def ray_name(self) -> str:
        """Its name in Ray, which Prometheus shows with the prefix `ray_`, and counters with the suffix `_total`."""
        return self.name.replace(".", "_")


AGENT, STATE, ERROR, MODEL = "gen_ai.agent.name", "turnwise.run.state", "error.type", "gen_ai.request.model"
PROVIDER, TOOL, MEMORY, TOKEN = "gen_ai.provider.name", "gen_ai.tool.name", "turnwise.memory", "gen_ai.token.type"
OPERATION = "gen_ai.operation.name"


def _seconds(name: str, description: str, *labels: str) -> Metric:
    return Metric(name=name, kind="histogram", unit="s", description=description, labels=labels, buckets=SECONDS)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _seconds(
            "gen_ai.client.operation.duration",
            "Duration of requests to models",
            *(OPERATION, PROVIDER, MODEL, AGENT, ERROR),
        ),
        _seconds(
            "gen_ai.client.operation.time_to_first_chunk",
            "Time from a request until its answer begins",
            *(OPERATION, PROVIDER, MODEL, AGENT),
        ),
        Metric(
            name="gen_ai.client.token.usage",
            kind="histogram",
            unit="{token}",
            description="Tokens of a request and of its answer",
            labels=(OPERATION, PROVIDER, MODEL, AGENT, TOKEN),
            buckets=TOKENS,
        ),
        _seconds("gen_ai.execute_tool.duration", "Duration of tool calls, with retries", TOOL, AGENT, ERROR),
        _seconds("gen_ai.invoke_agent.duration", "Time from accepting a run until its end", AGENT, STATE, ERROR),
        _seconds("turnwise.run.time_to_first_token", "Time from accepting a run until its answer begins", AGENT),
        _seconds("turnwise.run.queue_time", "Time from accepting a run until it begins", AGENT),
        _seconds("turnwise.recall.duration", "Duration of searches in long-term memories", MEMORY, AGENT, ERROR),
        _seconds("turnwise.schedules.lateness", "Time from when a schedule was due until its run was stored", AGENT),
        Metric(
            name="turnwise.refusals",
            kind="counter",
            unit="{call}",
            description="Calls that processes of sessions answered by an error, such as of a full host or of the store",
            labels=(ERROR,),
        ),
        Metric(
            name="turnwise.runs",
            kind="counter",
            unit="{run}",
            description="Runs that have ended, by their final state",
            labels=(AGENT, STATE),
        ),
        Metric(
            name="turnwise.runs.open",
            kind="gauge",
            unit="{run}",
            description="Runs that are queued or running now",
            labels=(AGENT, STATE),
        ),
        Metric(
            name="turnwise.activations",
            kind="counter",
            unit="{activation}",
            description="Sessions that a process has loaded and owns",
            labels=(AGENT,),
        ),
        Metric(
            name="turnwise.fences",
            kind="counter",
            unit="{session}",
            description="Sessions that another process has taken from the one that used them",
            labels=(AGENT,),
        ),
        Metric(
            name="turnwise.cost",
            kind="counter",
            unit="{currency}",
            description="Cost of ended runs by SessionConfig.prices, in their currency",
            labels=(AGENT,),
        ),
    )
}
"""What turnwise records, by name."""


class Recorder:
    """Records values of `METRICS`, for OpenTelemetry's global meter provider and, with `ray`, for Ray too."""

    def __init__(self, *, ray: bool) -> None:
        self._by_ray: dict[str, Any] = _of_ray() if ray else {}
        self._by_otel: dict[str, Any] = _of_otel()
        self._now = Counter[tuple[str, tuple[str, ...]]]()
        """The values of gauges, by name and labels."""

    def record(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Add to a counter or a gauge, or record a value in a histogram. Labels that are omitted are empty."""
        metric = METRICS[name]
        attributes = {label: labels[label] for label in metric.labels if labels.get(label)}
        instrument = self._by_otel[name]
        if metric.kind == "histogram":
            instrument.record(value, attributes)
        else:
            instrument.add(value, attributes)
        if not self._by_ray:
            return
        tags = {label.replace(".", "_"): labels.get(label) or "" for label in metric.labels}
        if metric.kind == "histogram":
            self._by_ray[name].observe(value, tags=tags)
        elif metric.kind == "gauge":
            key = (name, tuple(tags.values()))
            self._now[key] += int(value)
            self._by_ray[name].set(self._now[key], tags=tags)
        elif value > 0:
            self._by_ray[name].inc(value, tags=tags)


def _of_otel() -> dict[str, Any]:
    from opentelemetry import metrics

    meter = metrics.get_meter("turnwise")
    instruments: dict[str, Any] = {}
    for name, metric in METRICS.items():
        about = {"unit": metric.unit, "description": metric.description}
        if metric.kind == "histogram":
            instruments[name] = meter.create_histogram(
                name, explicit_bucket_boundaries_advisory=metric.buckets, **about
            )
        elif metric.kind == "gauge":
            instruments[name] = meter.create_up_down_counter(name, **about)
        else:
            instruments[name] = meter.create_counter(name, **about)
    return instruments


def _of_ray() -> dict[str, Any]:
    """Return Ray's metrics; nothing where there is no Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {}
    from ray.util import metrics

    instruments: dict[str, Any] = {}
    for name, metric in METRICS.items():
        about: dict[str, Any] = {"description": metric.description}
        about["tag_keys"] = tuple(label.replace(".", "_") for label in metric.labels)
        if metric.kind == "histogram":
            instruments[name] = metrics.Histogram(metric.ray_name, boundaries=list(metric.buckets), **about)
        else:
            instruments[name] = (metrics.Gauge if metric.kind == "gauge" else metrics.Counter)(metric.ray_name, **about)
    return instruments
