"""The alerts: they name metrics, labels and errors that exist, and each has its part in the docs."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import turnwise.errors
from deploying.kustomize import DEPLOY, documents
from turnwise.memory.conversation.runs import RunState
from turnwise.telemetry.metrics import METRICS

PAGE = DEPLOY.parent / "docs/guides/alerts.md"
SERVE = {
    "ray_serve_num_http_requests_total": ("route", "method", "application", "status_code"),
    "ray_serve_num_http_error_requests_total": ("route", "error_code", "method", "application"),
    "ray_serve_http_request_latency_ms_bucket": ("method", "route", "application", "status_code"),
}
"""Metrics of Ray Serve that alerts may use, with their labels."""

RAY = {"ray_memory_manager_worker_eviction_total": ("Name",)}
"""Metrics of Ray itself that alerts may use, with their labels."""

KUBERNETES = {
    "kube_pod_status_ready": ("namespace", "pod", "condition"),
    "kube_pod_container_status_terminated_reason": ("namespace", "pod", "reason"),
    "kube_pod_container_status_last_terminated_reason": ("namespace", "pod", "reason"),
    "kube_pod_container_status_restarts_total": ("namespace", "pod"),
    "kube_job_failed": ("namespace", "job_name", "condition"),
    "kube_statefulset_status_replicas_ready": ("namespace", "statefulset"),
    "kube_cronjob_status_last_successful_time": ("namespace", "cronjob"),
    "kubelet_volume_stats_used_bytes": ("namespace", "persistentvolumeclaim"),
    "kubelet_volume_stats_capacity_bytes": ("namespace", "persistentvolumeclaim"),
}
"""Metrics of kube-state-metrics and of the kubelet that alerts may use, with their labels."""

ENDS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def rules() -> list[dict[str, Any]]:
    (resource,) = documents(DEPLOY / "monitoring/alerts.yaml")
    return [rule for group in resource["spec"]["groups"] for rule in group["rules"]]


def test_alerts_name_metrics_labels_and_values_that_exist() -> None:
    own = {f"ray_{one.ray_name}{end}": one.labels for one in METRICS.values() for end in ENDS[one.kind]}
    metrics = {**own, **SERVE, **RAY, **KUBERNETES}
    for rule in rules():
        names = re.findall(r"\b(?:ray|kube|kubelet)_\w+", rule["expr"])
        assert names and set(names) <= metrics.keys(), rule["alert"]
        labels = {label.replace(".", "_") for name in names for label in metrics[name]} | {"le", "namespace"}
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


def test_an_increase_counts_what_a_new_series_begins_with() -> None:
    """A process first reports a counter when it is no longer zero, in which Prometheus sees no increase."""
    for rule in rules():
        counted = re.findall(r"increase\((ray_\S+)\[(\w+)\]\)", rule["expr"])
        for series, time in counted:
            assert f"({series} unless {series} offset {time})" in rule["expr"]
        assert rule["expr"].count("increase(ray_") == len(counted)


def test_each_alert_has_its_part_in_the_docs() -> None:
    parts = re.findall(r"^## (Turnwise\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert parts == [rule["alert"] for rule in rules()]


def test_rays_own_dashboard_has_the_other_metrics_of_ray() -> None:
    (package,) = find_spec("ray").submodule_search_locations  # type: ignore[union-attr,misc]
    panels = Path(package) / "dashboard/modules/metrics/dashboards/default_dashboard_panels.py"
    source = panels.read_text(encoding="utf-8")
    for metric, labels in RAY.items():
        assert re.search(rf"{metric}{{.*by \({', '.join(labels)}", source)


def test_ray_serve_has_these_metrics_with_these_labels() -> None:
    (package,) = find_spec("ray").submodule_search_locations  # type: ignore[union-attr,misc]
    source = (Path(package) / "serve/_private/request_ingress_metrics.py").read_text(encoding="utf-8")
    defined = re.findall(r'f"(serve_\w*{protocol_name}\w+)".*?tag_keys=\((.*?)\)', source, re.DOTALL)
    labels = {name.replace("{protocol_name}", "http"): re.findall(r'"(\w+)"', keys) for name, keys in defined}
    for metric, names in SERVE.items():
        assert tuple(labels[re.sub("^ray_|_total$|_bucket$", "", metric)]) == names
