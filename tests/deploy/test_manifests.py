"""The manifests of deploy/: their schemas, and what Kubernetes finds out only when they are applied."""

from __future__ import annotations

import json
import math
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from referencing import Registry, Resource

from deploying.kustomize import ADDITIONS, DEPLOY, OVERLAYS, Manifest, containers_of, documents, find, render
from turnwise import Packed

SCHEMAS = Path(__file__).with_name("schemas")
KUBECTL = Path("/usr/bin/kubectl")
OWN = {
    "ray.io/v1": "kuberay.yaml",
    "monitoring.coreos.com/v1": "monitoring.yaml",
    "gateway.networking.k8s.io/v1": "gateway.yaml",
}
"""The schemas of resources that are not Kubernetes's own, by their versions."""

MADE_ELSEWHERE = {"turnwise-serve-svc", "turnwise-head-svc"}
"""Services that KubeRay makes."""

SECRETS = {"turnwise", "turnwise-tokens", "turnwise-store", "turnwise-migrate", "turnwise-ray", "turnwise-redis"}
"""Those that an operator makes in production."""


@pytest.fixture(scope="module")
def registry() -> Registry[Any]:
    schemas = {file.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in SCHEMAS.iterdir()}
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return Registry().with_resources((name, Resource.from_contents({**draft, **one})) for name, one in schemas.items())


@pytest.fixture(scope="module", params=[*OVERLAYS, "additions"])
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    if request.param != "additions":
        return render(DEPLOY / request.param)
    folders = ("overlays/trial", *ADDITIONS)
    return [manifest for folder in folders for manifest in render(DEPLOY / folder)]


def pod_specs(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if "containers" in part:
            yield part
        for value in part.values():
            yield from pod_specs(value)
    elif isinstance(part, list):
        for value in part:
            yield from pod_specs(value)


def problems_of(manifest: Manifest, registry: Registry[Any]) -> list[str]:
    """Return what is wrong with a manifest by its schema. Of an object of Kubernetes, its name ends in the kind."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    if own := OWN.get(manifest["apiVersion"]):
        reference = f"{own}#/$defs/{manifest['kind']}"
    else:
        group = group.removesuffix(".k8s.io") or "core"
        reference = f"kubernetes.json#/$defs/io.k8s.api.{group}.{version}.{manifest['kind']}"
    validator = Draft202012Validator({"$ref": reference}, registry=registry)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


def test_each_manifest_has_its_schema(manifests: list[Manifest], registry: Registry[Any]) -> None:
    assert {(one["kind"], one["metadata"]["name"]): problems_of(one, registry) for one in manifests} == {
        (one["kind"], one["metadata"]["name"]): [] for one in manifests
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "rayClusterConfig", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "rayClusterConfig", "workerGroupSpecs", 0, "maxReplica"), 3),
        (("spec", "rayClusterConfig", "headGroupSpec", "template", "spec", "containers", 0, "livenesProbe"), {}),
        (("spec", "upgradeStrategy", "type"), "Never"),
    ],
)
def test_a_slip_in_the_service_is_found(path: tuple[Any, ...], value: Any, registry: Registry[Any]) -> None:
    service = find(render(DEPLOY / "overlays/trial"), "RayService")
    place = service
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert problems_of(service, registry)


@pytest.mark.skipif(not KUBECTL.exists(), reason="there is no kubectl")
@pytest.mark.parametrize("overlay", [*OVERLAYS, *ADDITIONS])
def test_kubectl_makes_the_same_of_an_overlay(overlay: str) -> None:
    made = subprocess.run([KUBECTL, "kustomize", DEPLOY / overlay], capture_output=True, text=True, check=True).stdout

    def by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
        return {(one["kind"], one["metadata"]["name"]): one for one in manifests}

    assert by_name(render(DEPLOY / overlay)) == by_name(list(yaml.safe_load_all(made)))


def test_the_cluster_alone_is_that_of_the_service() -> None:
    """But for the probe of a worker: without a service there is no proxy of Serve."""
    (service,), (cluster,) = documents(DEPLOY / "service/service.yaml"), documents(DEPLOY / "cluster/cluster.yaml")
    specs = [service["spec"]["rayClusterConfig"], cluster["spec"]]
    probes = []
    for spec in specs:
        (container,) = spec["workerGroupSpecs"][0]["template"]["spec"]["containers"]
        probes.append(container.pop("readinessProbe")["httpGet"]["path"])
    assert specs[0] == specs[1]
    assert probes == ["/-/healthz", "/api/local_raylet_healthz"]


def test_each_name_that_a_manifest_uses_is_there(manifests: list[Manifest]) -> None:
    names = {kind: {one["metadata"]["name"] for one in manifests if one["kind"] == kind} for kind in
             ("Secret", "ConfigMap", "ServiceAccount", "PersistentVolumeClaim", "Service")}  # fmt: skip
    text = json.dumps(manifests)
    for kind, pattern in {
        "Secret": r'"secret(?:KeyRef|Ref)?": \{[^}]*"(?:secretN|n)ame": "([^"]+)"',
        "ConfigMap": r'"configMap(?:Ref)?": \{[^}]*"name": "([^"]+)"',
        "ServiceAccount": r'"serviceAccountName": "([^"]+)"',
        "PersistentVolumeClaim": r'"claimName": "([^"]+)"',
        "Service": r'"service": \{"name": "([^"]+)"',
    }.items():
        there = names[kind] | (SECRETS if kind == "Secret" else MADE_ELSEWHERE if kind == "Service" else set())
        assert set(re.findall(pattern, text)) <= there
    for spec in pod_specs(manifests):
        volumes = {volume["name"] for volume in spec.get("volumes", ())}
        mounts = {mount["name"] for one in spec["containers"] for mount in one.get("volumeMounts", ())}
        assert volumes <= mounts and mounts - volumes <= {"data"}, "data is that of a StatefulSet"


def test_a_secrets_keys_are_those_that_are_read() -> None:
    trial = render(DEPLOY / "overlays/trial")
    keys = {one["metadata"]["name"]: set(one["stringData"]) for one in trial if one["kind"] == "Secret"}
    assert keys.keys() == SECRETS | {"turnwise-postgres"}
    text = json.dumps([one for one in trial if one["kind"] != "Secret"])
    for key, name in re.findall(r'"secretKeyRef": \{"key": "([^"]+)", "name": "([^"]+)"', text):
        assert key in keys[name]
    assert keys["turnwise-ray"] == {"auth_token"}, "KubeRay reads this one"


def test_every_pod_is_admitted_by_the_restricted_policy(manifests: list[Manifest]) -> None:
    """By Kubernetes's pod security standard; and no pod has an account's token, or may write to its image."""
    for spec in pod_specs(manifests):
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        is_head = spec["containers"][0]["name"] == "ray-head"
        assert is_head or (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("turnwise", False)
        for container in containers_of(spec):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"]


def test_no_variables_of_services_stand_beside_turnwises_own(manifests: list[Manifest]) -> None:
    """Kubernetes makes TURNWISE_REDIS_PORT of a service's name; of one that is named turnwise-serve, a setting."""
    assert all(spec["enableServiceLinks"] is False for spec in pod_specs(manifests))


def test_pods_of_jobs_that_fail_stay_with_their_logs(manifests: list[Manifest]) -> None:
    """With OnFailure, Kubernetes deletes the pod when the job gives up."""
    policies = {spec["restartPolicy"] for spec in pod_specs(manifests) if "restartPolicy" in spec}
    assert policies == {"Never"}


def test_databases_reach_nobody(manifests: list[Manifest]) -> None:
    kinds = {one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "NetworkPolicy"}
    for name in kinds.keys() & {"turnwise-redis", "turnwise-postgres"}:
        assert kinds[name]["policyTypes"] == ["Ingress", "Egress"] and "egress" not in kinds[name]


def test_logs_of_forty_processes_fit_into_their_volume() -> None:
    manifests = render(DEPLOY / "overlays/trial")
    settings = find(manifests, "ConfigMap", "turnwise-environment")["data"]
    kept = int(settings["RAY_ROTATION_MAX_BYTES"]) * (1 + int(settings["RAY_ROTATION_BACKUP_COUNT"]))
    (limit,) = {volume["emptyDir"]["sizeLimit"] for spec in pod_specs(find(manifests, "RayService"))
                for volume in spec["volumes"] if volume["name"] == "ray"}  # fmt: skip
    assert 40 * 2 * kept < int(limit.removesuffix("Gi")) << 30, "each has one of what it prints, and one of errors"


def test_every_container_says_what_it_needs_and_long_ones_how_they_are(manifests: list[Manifest]) -> None:
    for container in containers_of(manifests):
        resources = container["resources"]
        assert resources["requests"].keys() == {"cpu", "memory", "ephemeral-storage"} and resources[
            "limits"
        ].keys() == {"memory"}
        assert not container["image"].endswith(":latest") and ":" in container["image"]
    for manifest in manifests:
        if manifest["kind"] in ("RayService", "RayCluster", "StatefulSet"):
            for container in containers_of(manifest):
                assert {"livenessProbe", "readinessProbe"} <= container.keys()


def test_selectors_and_probes_meet_something(manifests: list[Manifest]) -> None:
    """Labels and ports by which services, budgets and policies find pods; those that others set are known."""
    by_others = {"ray.io/is-ray-node", "ray.io/node-type", "ray.io/cluster", "acme.cert-manager.io/http01-solver"}
    labels = [set(one["metadata"].get("labels", {}).items()) for one in templates_of(manifests)]
    for manifest in manifests:
        if manifest["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy", "StatefulSet"):
            selector = manifest["spec"].get("selector", manifest["spec"].get("podSelector", {}))
            wanted = selector.get("matchLabels", {} if manifest["kind"] == "NetworkPolicy" else selector)
            if not wanted.keys() & by_others:
                assert any(set(wanted.items()) <= one for one in labels), manifest["metadata"]["name"]
    for container in containers_of(manifests):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(name, {})
            port = probe.get("httpGet", probe.get("tcpSocket", {})).get("port", 52365)
            assert port in (52365, *ports, *ports.values()), "52365 is that of Ray's agent"


def templates_of(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if "template" in part and "spec" in part["template"]:
            yield part["template"]
        for value in part.values():
            yield from templates_of(value)
    elif isinstance(part, list):
        for value in part:
            yield from templates_of(value)


def test_a_worker_has_time_to_drain_before_it_is_killed(manifests: list[Manifest]) -> None:
    for spec in pod_specs(manifests):
        for container in spec["containers"]:
            if hook := container.get("lifecycle", {}).get("preStop"):
                assert int(hook["exec"]["command"][-1]) <= spec["terminationGracePeriodSeconds"] - 20


def test_ray_is_that_of_the_lock() -> None:
    (service,) = documents(DEPLOY / "service/service.yaml")
    lock = (DEPLOY.parent / "requirements.lock").read_text(encoding="utf-8")
    assert f"ray=={service['spec']['rayClusterConfig']['rayVersion']}\n" in lock


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kuberays_services_select_the_head_and_budgets_let_drains_go_on(overlay: str) -> None:
    manifests = render(DEPLOY / overlay)
    rays = [one["spec"] for one in manifests if one["kind"] in ("RayService", "RayCluster")]
    (cluster,) = (spec.get("rayClusterConfig", spec) for spec in rays)
    labels = cluster["headGroupSpec"]["template"]["metadata"]["labels"]
    assert labels.get("app.kubernetes.io/name", "kuberay") == "kuberay", "a RayService's head service selects by it"
    budget = find(manifests, "PodDisruptionBudget", "turnwise-workers")["spec"]
    ready = cluster["workerGroupSpecs"][0]["minReplicas"]
    if "serveConfigV2" in rays[0]:
        (app,) = yaml.safe_load(rays[0]["serveConfigV2"])["applications"]
        ready = min(ready, app["deployments"][0]["autoscaling_config"]["min_replicas"])
    assert budget["minAvailable"] < ready and budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_only_the_numbers_of_hosts_and_replicas_differ_in_production() -> None:
    rendered = [render(DEPLOY / overlay) for overlay in OVERLAYS[:2]]
    texts = [find(manifests, "ConfigMap", "turnwise")["data"]["serve.toml"] for manifests in rendered]
    trial, production = (tomllib.loads(text) for text in texts)
    assert production.pop("packed")["hosts"] > trial.pop("packed")["hosts"]
    assert production == trial
    services = [find(manifests, "RayService")["spec"] for manifests in rendered]
    replicas, configs = [], []
    for service in services:
        config = yaml.safe_load(service["serveConfigV2"])
        scaling = config["applications"][0]["deployments"][0]["autoscaling_config"]
        replicas.append((scaling.pop("min_replicas"), scaling.pop("max_replicas")))
        configs.append(config)
    assert configs[0] == configs[1]
    workers = [service["rayClusterConfig"]["workerGroupSpecs"][0] for service in services]
    assert [least for least, _ in replicas] == [group["minReplicas"] for group in workers], (
        "a worker is Ready by its replica"
    )
    assert replicas[1][1] == workers[1]["maxReplicas"]


def test_the_page_says_how_much_production_needs() -> None:
    """Its requests, with the fewest and with the most workers; and the most sessions of its hosts."""
    manifests = render(DEPLOY / "overlays/production")
    cluster = find(manifests, "RayService")["spec"]["rayClusterConfig"]
    (group,) = cluster["workerGroupSpecs"]
    once = [cluster["headGroupSpec"], *(one for one in manifests if one["kind"] in ("StatefulSet", "Job"))]
    parts = [cluster["autoscalerOptions"], *containers_of(once)]
    (worker,) = containers_of(group)
    needs = []
    for count in (group["minReplicas"], group["maxReplicas"]):
        requests = [part["resources"]["requests"] for part in [*parts, *[worker] * count]]
        needs.append((sum(cpus(one["cpu"]) for one in requests), sum(gib(one["memory"]) for one in requests)))
    hosts = tomllib.loads(find(manifests, "ConfigMap")["data"]["serve.toml"])["packed"]["hosts"]
    (least, least_memory), (most, most_memory) = [(math.ceil(cores), math.ceil(memory)) for cores, memory in needs]
    page = (DEPLOY.parent / "docs/guides/kubernetes.md").read_text(encoding="utf-8")
    assert f"needs {least} CPUs and {least_memory} GiB; a quota must allow {most} and {most_memory}," in page
    assert f"at most {hosts * Packed().max_resident:,} sessions" in page


def cpus(quantity: str) -> float:
    return int(quantity[:-1]) / 1000 if quantity.endswith("m") else int(quantity)


def gib(quantity: str) -> float:
    return int(quantity[:-2]) / {"Gi": 1, "Mi": 1024}[quantity[-2:]]


def test_the_route_of_the_gateway_is_that_of_the_ingress(registry: Registry[Any]) -> None:
    (route,) = documents(DEPLOY / "overlays/production/httproute.yaml")
    (ingress,) = documents(DEPLOY / "overlays/production/ingress.yaml")
    assert not problems_of(route, registry)
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert route["spec"]["hostnames"] == [rule["host"]]
    service = path["backend"]["service"]
    assert backend == {"name": service["name"], "port": service["port"]["number"]}
