"""Telemetry: traces and metrics of sessions by OpenTelemetry. Install it with `turnwise[telemetry]`.

`settings.py` is what a manager is given; `process.py` sets OpenTelemetry up, once in each session process;
`observer.py` makes spans of what `actors/inference/observing.py` tells, by the conventions for generative AI;
`metrics.py` lists the metrics and records them, for OpenTelemetry and for Ray. Nothing else of turnwise imports
OpenTelemetry.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
