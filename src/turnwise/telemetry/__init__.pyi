from turnwise.actors.hosting.logs import JsonFormatter as JsonFormatter
from turnwise.telemetry.metrics import METRICS as METRICS, Metric as Metric
from turnwise.telemetry.settings import Telemetry as Telemetry
