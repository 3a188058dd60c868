"""The alerts: they name metrics, labels and errors that exist, and each has its part in the docs."""

from __future__ import annotations

import re
from typing import Any

import turnwise.errors
from deploying.kustomize import DEPLOY, documents
from turnwise.memory.conversation.runs import RunState
from turnwise.telemetry.metrics import METRICS

PAGE = DEPLOY.parent / "docs/guides/alerts.md"
ENDS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def rules() -> list[dict[str, Any]]:
    (resource,) = documents(DEPLOY / "monitoring/alerts.yaml")
    return [rule for group in resource["spec"]["groups"] for rule in group["rules"]]


def test_alerts_name_metrics_labels_and_values_that_exist() -> None:
    metrics = {f"ray_{one.ray_name}{end}": one for one in METRICS.values() for end in ENDS[one.kind]}
    for rule in rules():
        names = re.findall(r"\bray_\w+", rule["expr"])
        assert names and set(names) <= metrics.keys(), rule["alert"]
        labels = {label.replace(".", "_") for name in names for label in metrics[name].labels} | {"le"}
        matched = re.findall(r'(\w+)=~?"([^"]*)"', rule["expr"])
        grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
        assert {name for name, _ in matched} | {name for by in grouped for name in by.split(", ")} <= labels
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels
        for label, values in matched:
            for value in values.split("|"):
                if label == "error_type":
                    assert hasattr(turnwise.errors, value)
                elif label == "turnwise_run_state":
                    assert value in RunState.__args__  # type: ignore[attr-defined]


def test_each_alert_has_its_part_in_the_docs() -> None:
    parts = re.findall(r"^## (Turnwise\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert parts == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"docs/guides/alerts.md#{rule['alert'].lower()}"
