"""`deploy/roll.sh`, with a stand-in for kubectl, whose cluster makes a successor of each pod some looks later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploying.kustomize import DEPLOY

NEW = "registry.example.com/turnwise:0.2.0"

KUBECTL = """
import json, sys
from pathlib import Path

state = Path(__file__).with_name("state.json")
cluster = json.loads(state.read_text())
words = sys.argv[1:]
assert words[:2] == ["-n", "chats"], words
verb, what, how = words[2], words[3], words[-1]
if verb == "patch":
    assert what == "raycluster.ray.io/turnwise-x"
    (patch,) = words[words.index("-p") + 1 :]
    cluster["image"] = {one["value"] for one in json.loads(patch)}.pop()
elif verb == "delete":
    cluster["deleted"].append(how)
    if pod := cluster["pods"].pop(how.removeprefix("pod/"), None):  # the autoscaler may have been first
        others = [other for other in cluster["pods"].values() if other["kind"] == "worker"]
        assert pod["kind"] == "head" or all(other["looks"] <= 0 for other in others), "two workers are away at once"
        if cluster["heals"]:
            new = {"kind": pod["kind"], "image": cluster["image"], "looks": 2}
            cluster["pods"]["new-" + how.removeprefix("pod/")] = new
elif what == "raycluster":
    print("raycluster.ray.io/turnwise-x" if how == "name" else cluster["replicas"])
else:
    kind = words[words.index("-l") + 1].removeprefix("ray.io/node-type=")
    pods = {name: pod for name, pod in cluster["pods"].items() if pod["kind"] == kind}
    assert f'@.name=="ray-{kind}"' in how, "a sidecar may stand before it in the list"
    for name, pod in pods.items():
        if "metadata.name" in how:
            print(name + "=" + pod["image"])
        else:
            pod["looks"] -= 1
            print("/true" if pod["looks"] <= 0 else "/false")
state.write_text(json.dumps(cluster))
"""


def roll(
    folder: Path, *arguments: str, heals: bool = True, have: str = "", replicas: int = 2
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the script on a cluster of a head and two workers.

    Args:
        have: a pod that has the new image already.
        replicas: how many workers the autoscaler wants.
    """
    (folder / "kubectl.py").write_text(KUBECTL, encoding="utf-8")
    program = folder / "kubectl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/kubectl.py" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    pods = {
        name: {"kind": name.partition("-")[0], "image": NEW if name == have else "old", "looks": 0}
        for name in ("head-a", "worker-a", "worker-b")
    }
    state = folder / "state.json"
    cluster = {"pods": pods, "image": "old", "heals": heals, "replicas": replicas, "deleted": []}
    state.write_text(json.dumps(cluster), encoding="utf-8")
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    env |= {"NAMESPACE": "chats", "LOOK_S": "0", "LOOKS": "5"}
    command = [str(DEPLOY / "roll.sh"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done, json.loads(state.read_text(encoding="utf-8"))


@pytest.mark.parametrize("arguments", [(), (NEW,)])
def test_pods_are_replaced_one_by_one_and_the_head_last(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done, cluster = roll(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert cluster["deleted"] == ["pod/worker-a", "pod/worker-b", "pod/head-a"]
    assert {pod["image"] for pod in cluster["pods"].values()} == {*(arguments or ("old",))}
    assert sorted(cluster["pods"]) == ["new-head-a", "new-worker-a", "new-worker-b"]


def test_a_second_run_leaves_the_pods_that_have_the_image(tmp_path: Path) -> None:
    done, cluster = roll(tmp_path, NEW, have="worker-a")
    assert done.returncode == 0, done.stderr
    assert cluster["deleted"] == ["pod/worker-b", "pod/head-a"]


def test_a_worker_that_the_autoscaler_does_not_want_needs_no_successor(tmp_path: Path) -> None:
    done, cluster = roll(tmp_path, heals=False, replicas=0)
    assert "head-a has no successor" in done.stderr
    assert cluster["deleted"] == ["pod/worker-a", "pod/worker-b", "pod/head-a"]


def test_it_stops_at_a_pod_without_a_successor(tmp_path: Path) -> None:
    done, cluster = roll(tmp_path, heals=False)
    assert done.returncode == 1 and "worker-a has no successor" in done.stderr
    assert cluster["deleted"] == ["pod/worker-a"]
