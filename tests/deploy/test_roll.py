"""`deploy/roll.sh`, with a stand-in for kubectl, whose cluster makes a successor of each pod some looks later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploying.kustomize import DEPLOY

KUBECTL = """
import json, sys
from pathlib import Path

state = Path(__file__).with_name("state.json")
cluster = json.loads(state.read_text())
words = sys.argv[1:]
assert words[:2] == ["-n", "chats"], words
verb, what = words[2], words[3]
cluster["done"].append(" ".join(words[2:4]))
if verb == "patch":
    (patch,) = words[words.index("-p") + 1 :]
    cluster["image"] = {one["value"] for one in json.loads(patch)}.pop()
elif verb == "delete":
    name = what.removeprefix("pod/")
    kind = cluster["pods"].pop(name)["kind"]
    others = [pod for pod in cluster["pods"].values() if pod["kind"] == "worker"]
    assert kind == "head" or all(pod["looks"] <= 0 for pod in others), "two workers are away at once"
    if cluster["heals"]:
        cluster["pods"]["new-" + name] = {"kind": kind, "image": cluster["image"], "looks": 2}
elif what == "raycluster":
    print("raycluster.ray.io/turnwise-x")
else:
    kind = words[words.index("-l") + 1].removeprefix("ray.io/node-type=")
    pods = {name: pod for name, pod in cluster["pods"].items() if pod["kind"] == kind}
    if words[-1] == "name":
        print(*(f"pod/{name}" for name in pods), sep="\\n")
    else:
        for pod in pods.values():
            pod["looks"] -= 1
            print("/true" if pod["looks"] <= 0 else "/false")
state.write_text(json.dumps(cluster))
"""


def roll(folder: Path, *, heals: bool, image: str | None) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    (folder / "kubectl.py").write_text(KUBECTL, encoding="utf-8")
    (folder / "kubectl").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{folder}/kubectl.py" "$@"\n', encoding="utf-8"
    )
    (folder / "kubectl").chmod(0o755)
    pods = {
        name: {"kind": name.split("-")[0], "image": "old", "looks": 0} for name in ("head-a", "worker-a", "worker-b")
    }
    state = folder / "state.json"
    state.write_text(json.dumps({"pods": pods, "image": "old", "heals": heals, "done": []}), encoding="utf-8")
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "NAMESPACE": "chats", "LOOK_S": "0", "LOOKS": "5"}
    done = subprocess.run(
        [DEPLOY / "roll.sh", *([image] if image else [])],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, json.loads(state.read_text(encoding="utf-8"))


@pytest.mark.parametrize("image", [None, "registry.example.com/turnwise:0.2.0"])
def test_pods_are_replaced_one_by_one_and_the_head_last(image: str | None, tmp_path: Path) -> None:
    done, cluster = roll(tmp_path, heals=True, image=image)
    assert done.returncode == 0, done.stderr
    deleted = [one for one in cluster["done"] if one.startswith("delete")]  # type: ignore[attr-defined]
    assert deleted == ["delete pod/worker-a", "delete pod/worker-b", "delete pod/head-a"]
    pods: dict[str, dict[str, object]] = cluster["pods"]  # type: ignore[assignment]
    assert {pod["image"] for pod in pods.values()} == {image or "old"} and len(pods) == 3
    assert all(name.startswith("new-") for name in pods)


def test_it_stops_at_a_pod_without_a_successor(tmp_path: Path) -> None:
    done, cluster = roll(tmp_path, heals=False, image=None)
    assert done.returncode == 1 and "pod/worker-a has no successor" in done.stderr
    assert [one for one in cluster["done"] if one.startswith("delete")] == ["delete pod/worker-a"]  # type: ignore[attr-defined]
