"""Tools that say which trace they are part of."""

from __future__ import annotations

import ray

from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.tool import tool


@tool
def here(context: ToolContext) -> str:
    """Return the trace context of a tool in the session's process, as OpenTelemetry sees it."""
    from opentelemetry.propagate import inject

    headers: dict[str, str] = {}
    inject(headers)
    return headers["traceparent"]


@tool
@ray.remote(num_cpus=0)
def away(context: ToolContext) -> str:
    """Return the trace context of a tool on Ray."""
    return context.trace["traceparent"]
