"""`Telemetry`: what a manager's sessions tell OpenTelemetry."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec

from turnwise.actors.inference.observing import Observer
from turnwise.errors import ConfigError

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The variable by which instrumentations of generative AI are asked for content."""

_WITH_CONTENT = ("true", "1", "span_only", "span_and_event")


def _captures_content() -> bool:
    return os.environ.get(CONTENT, "").strip().lower() in _WITH_CONTENT


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Traces and metrics of a manager's sessions, by OpenTelemetry; see `SessionManager(telemetry=...)`.

    It is pickled to the processes of the sessions, and sets OpenTelemetry up once in each. A process whose global
    providers are set already keeps them. Exports run on threads of their own: no run waits for them, and their failures
    are logged and fail no run.

    Raises:
        ConfigError: OpenTelemetry's SDK is not installed.
    """

    setup: Callable[[], object] | None = None
    """Sets OpenTelemetry's global providers, once in each session process, as a program does for itself. It is pickled.
    If omitted, providers are made from the environment of these processes, by the standard OTEL_* variables; where none
    is set, they export by OTLP to localhost."""

    content: bool = field(default_factory=_captures_content)
    """Whether spans contain prompts, answers, arguments and results of tools, and queries to memories. If omitted, the
    caller's variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT decides; without it, they do not."""

    propagate: bool = False
    """Whether requests to models carry the header `traceparent`, by which the provider's spans join the trace. Set it
    for a gateway of your own; other providers have no use for it."""

    ray_metrics: bool = True
    """Whether the metrics are also recorded as Ray's, which each node exports for Prometheus."""

    def __post_init__(self) -> None:
        if self.setup is not None and not callable(self.setup):
            raise ConfigError("setup", self.setup, "must be a function without arguments")
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
            raise ConfigError("telemetry", "Telemetry()", "needs OpenTelemetry: pip install 'turnwise[telemetry]'")

    def observer(self) -> Observer | None:
        """See `turnwise.actors.inference.observing.Telemetry`."""
        from turnwise.telemetry.process import observer_for

        return observer_for(self)
