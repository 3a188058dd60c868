"""The pods of the trial as processes of this machine: a head, two workers, the service and a job, with probes."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from deploying.kustomize import DEPLOY, find, render
from deploying.pods import PORTS, ExitedError, Node, Pods, end
from memories.vector_memories import free_port
from servers.redis_server import RedisServer
from turnwise.testing import LocalProvider

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


def ports_of(*names: str) -> dict[str, int]:
    return {name: free_port() for name in names}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tw-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_the_trials_pods_serve_run_a_job_and_leave(
    database: str, own_server: Callable[..., RedisServer], short_folder: Path
) -> None:
    trial, job = render(DEPLOY / "overlays/trial"), render(DEPLOY / "job")
    fewer_hosts(find(trial, "ConfigMap")["data"], "serve.toml", "hosts = ")
    fewer_hosts(find(job, "ConfigMap", "turnwise-job")["data"], "job.py", "hosts=")
    service = find(trial, "RayService")["spec"]
    redis = own_server(requirepass="change-me")
    with LocalProvider(reply=lambda _: "By night.") as provider:
        secrets = {
            "turnwise": {"OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "sk-for-tests"},
            "turnwise-store": {"store": database},
            "turnwise-migrate": {"store": database},
        }
        with Pods(short_folder, trial, secrets) as pods:
            pods.addresses["turnwise-redis:6379"] = f"127.0.0.1:{redis.port}"
            (container,) = find(trial, "Job", "turnwise-migrate")["spec"]["template"]["spec"]["containers"]
            pods.run(container)
            cluster = service["rayClusterConfig"]
            # One CPU for the replica suffices: Ray starts a process for each of them on each node, and for each driver.
            cluster["workerGroupSpecs"][0]["rayStartParams"]["num-cpus"] = "1"
            head = start_head(pods, cluster)
            workers = [start_worker(pods, cluster, head) for _ in range(2)]
            for node in (head, *workers):
                node.probe("livenessProbe")
            deploy(pods, service, head)
            for worker in workers:
                worker.probe("readinessProbe")
            assert chat(head.ports["serve"]) == "By night."
            assert not nodes_with_sessions(head) & nodes_of_head(head)
            pods.manifests += job
            (container,) = find(pods.manifests, "Job", "turnwise-job")["spec"]["template"]["spec"]["containers"]
            printed = pods.run(container)
            assert "rivers Why do rivers meander?" in printed and "dunes Why do dunes sing?" in printed
            hook = workers[0].container["lifecycle"]["preStop"]["exec"]["command"]
            # All nodes have one address here, so the hook is told which one is its own.
            (node_id,) = (node["node_id"] for node in listed(head, "nodes") if node["node_name"] == workers[0].name)
            env = {**workers[0].env, "RAY_ADDRESS": f"127.0.0.1:{head.ports['gcs']}"}
            drained = pods.run({"command": [*hook, "--node", node_id]}, env)
            assert "have left node" in drained
            workers[0].process.send_signal(signal.SIGTERM)
            workers[0].process.wait(60)
            assert chat(head.ports["serve"]) == "By night."


def fewer_hosts(files: dict[str, str], name: str, setting: str) -> None:
    """Let two hosts do the work of four: each is a process that starts."""
    assert f"{setting}4" in files[name]
    files[name] = files[name].replace(f"{setting}4", f"{setting}2")


def start_head(pods: Pods, cluster: dict[str, Any]) -> Node:
    head = pods.start_node(cluster, ports_of(*PORTS))
    head.probe("startupProbe")
    head.probe("readinessProbe")
    pods.addresses["turnwise-head-svc:6379"] = f"127.0.0.1:{head.ports['gcs']}"
    pods.addresses["turnwise-head-svc:8265"] = f"127.0.0.1:{head.ports['dashboard']}"
    return head


def start_worker(pods: Pods, cluster: dict[str, Any], head: Node) -> Node:
    """Start a worker, again if it ends, as the kubelet does: Ray gives up if a node has not joined within 30 s."""
    left = 3
    while True:
        worker = pods.start_node(cluster, {**ports_of("agent", "metrics"), "serve": head.ports["serve"]})
        try:
            worker.probe("startupProbe")
        except ExitedError:
            end(worker.process)
            if not left:
                raise
            left -= 1
        else:
            return worker


def deploy(pods: Pods, service: dict[str, Any], head: Node) -> None:
    """Deploy the service as KubeRay does, by the API of Ray's dashboard, and wait until it runs."""
    text = service["serveConfigV2"].replace("/etc/turnwise", str(pods.settings()))
    config = yaml.safe_load(text)
    config["http_options"]["port"] = head.ports["serve"]
    headers = {"Authorization": f"Bearer {head.env['RAY_AUTH_TOKEN']}"}
    url = f"http://127.0.0.1:{head.ports['dashboard']}/api/serve/applications/"
    answer = httpx.put(url, json=config, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    app: dict[str, Any] = {}
    with httpx.Client(headers=headers, timeout=60) as client:
        for _ in range(120):
            app = client.get(url).json()["applications"].get("turnwise", {})
            assert app.get("status") not in ("DEPLOY_FAILED", "UNHEALTHY"), app
            if app.get("status") == "RUNNING":
                return
            time.sleep(1)
    raise AssertionError(app)


def nodes_with_sessions(head: Node) -> set[str]:
    nodes = {actor["node_id"] for actor in listed(head, "actors") if actor["class_name"] == "PackedActor"}
    assert nodes
    return nodes


def nodes_of_head(head: Node) -> set[str]:
    return {node["node_id"] for node in listed(head, "nodes") if node["is_head_node"]}


def listed(head: Node, what: str) -> list[dict[str, Any]]:
    """Return what Ray's dashboard lists."""
    headers = {"Authorization": f"Bearer {head.env['RAY_AUTH_TOKEN']}"}
    url = f"http://127.0.0.1:{head.ports['dashboard']}/api/v0/{what}"
    answer = httpx.get(url, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]["result"]["result"]
    return found


def chat(port: int) -> str:
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{port}",
        headers={"Authorization": "Bearer change-me-a-long-secret-of-ann"},
        timeout=60,
    )
    with client:
        answer = client.post("/openai/v1/responses", json={"input": "How do we go?"})
        assert answer.status_code == 200, answer.text
        (message,) = answer.json()["output"]
        text: str = message["content"][0]["text"]
        return text
