"""The trace context of the calling program, which goes to the session with each run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

_RECEIVED: ContextVar[Mapping[str, str]] = ContextVar("turnwise_received_trace", default={})  # noqa: B039 - never changed


@contextmanager
def received(trace: Mapping[str, str]) -> Iterator[None]:
    """Within the `with` block, new runs use this received trace context, unless a span is active."""
    token = _RECEIVED.set(trace)
    try:
        yield
    finally:
        _RECEIVED.reset(token)


def callers_trace() -> dict[str, Any]:
    """Return the current W3C trace context as the option `trace` of a run; nothing if there is none.

    A program that has a span has imported OpenTelemetry; for others it is not imported.
    """
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        module = import_module("opentelemetry.trace.propagation.tracecontext")
        module.TraceContextTextMapPropagator().inject(headers)
    trace = headers or dict(_RECEIVED.get())
    return {"trace": trace} if trace else {}
