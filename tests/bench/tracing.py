"""Measures what telemetry adds to a turn: spans and metrics of a run, with an exporter that drops them.

    python tests/bench/tracing.py [turns]

Turns are those of an engine that echoes, on a store in memory and without Ray. They are the shortest there are, so
what telemetry adds is as large a part as it can be. Rounds alternate, so that other load affects both.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.engines import EchoEngine
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.stores import SessionRecord
from turnwise.telemetry import Telemetry

ROUNDS = 20
TURNS = 50


class Nowhere(SpanExporter):
    """Takes spans and drops them: what a collector costs is not measured."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def to_nowhere() -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider(metric_readers=[InMemoryMetricReader()]))


async def turn_s(turns: int, config: SessionConfig) -> float:
    """Return the CPU seconds of a turn of a new session, those of exporting threads included."""
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, EchoEngine(), config)
    await core.transactor.activate()
    began = time.process_time()
    for number in range(turns):
        await core.admission.start(["hello"], run_id=f"{number}")
        await core.reads.wait(f"{number}")
    return (time.process_time() - began) / turns


async def main(turns: int) -> None:
    configs = {"without": SessionConfig(), "with": SessionConfig(telemetry=Telemetry(setup=to_nowhere))}
    durations: dict[str, list[float]] = {name: [] for name in configs}
    for _ in range(ROUNDS + 2):
        for name, config in configs.items():
            durations[name].append(await turn_s(turns, config))
    medians = {name: statistics.median(samples[2:]) for name, samples in durations.items()}
    for name, seconds in medians.items():
        print(f"{name:>8} telemetry: {seconds * 1e6:6.0f} us of CPU a turn")
    print(f"   ratio: {medians['with'] / medians['without']:.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else TURNS))
