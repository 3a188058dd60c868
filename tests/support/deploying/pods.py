"""Runs the containers of manifests as processes of this machine, as KubeRay starts and Kubernetes probes them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from deploying.kustomize import Manifest, find

PORTS = {"gcs": 6379, "client": 10001, "dashboard": 8265, "agent": 52365, "metrics": 8080, "serve": 8000}
"""The ports of Ray's pods, by what listens. The pods of this machine share it, so each gets others."""

PROGRAMS = {"ray": "-m ray.scripts.scripts", "turnwise": "-m turnwise", "python": ""}
"""The programs of the image, as arguments of this Python."""


class ExitedError(AssertionError):
    """The process of a node has ended by itself. The kubelet would start it again."""


@dataclass
class Node:
    """A process that stands for a pod of Ray."""

    name: str
    container: Mapping[str, Any]
    ports: Mapping[str, int]
    env: Mapping[str, str]
    process: subprocess.Popen[bytes]
    log: Path

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[:60])

    def probe(self, name: str) -> None:
        """Probe as the kubelet does, until it succeeds; fail after as many failures as the probe says."""
        probe = self.container[name]
        numbers = {port: self.ports[name] for name, port in PORTS.items() if name in self.ports}
        url = f"http://127.0.0.1:{numbers[probe['httpGet']['port']]}{probe['httpGet']['path']}"
        status: object = None
        with httpx.Client(timeout=probe.get("timeoutSeconds", 1)) as client:  # each client reads all certificates
            for _ in range(probe.get("failureThreshold", 3) * probe.get("periodSeconds", 10) * 2):
                if self.process.poll() is not None:
                    raise ExitedError(self._tail())
                try:
                    status = client.get(url).status_code
                except httpx.HTTPError as error:
                    status = error
                if status == httpx.codes.OK:
                    return
                time.sleep(0.5)
        raise AssertionError(f"{name} {url}: {status}\n{self._tail()}")


@dataclass
class Pods:
    """The processes of an overlay's manifests, which end with the block.

    Args:
        folder: for configuration files and logs; a short path, since sockets of Ray are below it.
        manifests: what is applied.
        secrets: values in the place of the manifests' own, by name and key.
        addresses: texts of the manifests, mostly names of services, with what stands for them here.
    """

    folder: Path
    manifests: list[Manifest]
    secrets: Mapping[str, Mapping[str, str]]
    addresses: dict[str, str] = field(default_factory=dict)
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        (self.folder / "bin").mkdir()
        for program, arguments in PROGRAMS.items():
            script = self.folder / "bin" / program
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
            script.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            end(process)

    def start_node(self, cluster: Mapping[str, Any], ports: Mapping[str, int]) -> Node:
        """Start the head, if there is none yet, or a worker, by the command that KubeRay makes of the manifest.

        Args:
            cluster: the spec of the cluster.
            ports: the numbers that this node has in place of those of `PORTS`.
        """
        is_head = not self._running
        group = cluster["headGroupSpec"] if is_head else cluster["workerGroupSpecs"][0]
        (container,) = group["template"]["spec"]["containers"]
        options = {
            "memory": _bytes(container["resources"]["limits"]["memory"]),
            "dashboard-agent-listen-port": PORTS["agent"],
            "metrics-export-port": PORTS["metrics"],
            **({} if is_head else {"address": "turnwise-head-svc:6379"}),
            **group["rayStartParams"],
        }
        words = ["ray", "start", *(["--head"] if is_head else []), "--block"]
        words += [f"--{name}={value}" for name, value in options.items()]
        here = {f"={PORTS[name]}": f"={port}" for name, port in ports.items()}
        words = [_replaced(word, here if re.search(r"-port=\d+$", word) else self.addresses) for word in words]
        name = f"{container['name']}-{len(self._running)}"
        words += ["--node-ip-address=127.0.0.1", f"--node-name={name}"]
        if is_head:
            words += [
                f"--port={ports['gcs']}",
                f"--dashboard-port={ports['dashboard']}",
                "--dashboard-host=127.0.0.1",
                f"--ray-client-server-port={ports['client']}",
            ]
        env = self.env_of(container) | self._by_kuberay(cluster)
        if is_head:
            words.append(f"--redis-password={env['REDIS_PASSWORD']}")
        log = self.folder / f"{name}.log"
        return Node(name, container, ports, env, self._start(words, env, log), log)

    def run(self, container: Mapping[str, Any], env: Mapping[str, str] | None = None) -> str:
        """Run a container that ends by itself, or a hook in one that runs; return what it printed."""
        if env is None:
            env = self.env_of(container)
        mounts = {mount["mountPath"]: str(self._mounted(mount["name"])) for mount in container.get("volumeMounts", ())
                  if mount["name"] not in ("tmp", "ray", "home")}  # fmt: skip
        words = [_replaced(word, {**mounts, **self.addresses}) for word in container["command"]]
        done = subprocess.run(
            self._command(words),
            env=env,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def env_of(self, container: Mapping[str, Any]) -> dict[str, str]:
        """Return the environment of a container, with no more of this process's own than an image has."""
        env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(self.folder)}
        env["PATH"] = f"{self.folder}/bin:{env['PATH']}"
        for source in container.get("envFrom", ()):
            if "secretRef" in source:
                env |= self._secret(source["secretRef"]["name"])
            else:
                env |= find(self.manifests, "ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in container.get("env", ()):
            env[variable["name"]] = variable["value"] if "value" in variable else self._value(variable["valueFrom"])
        if "RAY_health_check_failure_threshold" in env:
            env["RAY_health_check_failure_threshold"] = "30"  # a machine that stands still for a while is no dead node
        return env

    def settings(self) -> Path:
        """Write the service's configuration and its tokens; return the folder of the former."""
        self.addresses["/secrets/"] = f"{self._mounted('tokens')}/"
        return self._mounted("settings")

    def _by_kuberay(self, cluster: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables that KubeRay adds."""
        redis = cluster["gcsFaultToleranceOptions"]
        token = self._secret(cluster["authOptions"]["secretName"])["auth_token"]
        return {
            "RAY_AUTH_MODE": cluster["authOptions"]["mode"],
            "RAY_AUTH_TOKEN": token,
            "RAY_REDIS_ADDRESS": self.addresses[redis["redisAddress"]],
            "REDIS_PASSWORD": self._value(redis["redisPassword"]["valueFrom"]),
        }

    def _value(self, source: Mapping[str, Any]) -> str:
        return self._secret(source["secretKeyRef"]["name"])[source["secretKeyRef"]["key"]]

    def _secret(self, name: str) -> dict[str, str]:
        stored = [one for one in self.manifests if (one["kind"], one["metadata"]["name"]) == ("Secret", name)]
        return {**(stored[0]["stringData"] if stored else {}), **self.secrets.get(name, {})}

    def _mounted(self, volume: str) -> Path:
        """Write the files of a volume, of a ConfigMap or a secret; return their folder."""
        name = {"settings": "turnwise", "job": "turnwise-job", "tokens": "turnwise-tokens"}[volume]
        is_secret = volume == "tokens"
        files = self._secret(name) if is_secret else find(self.manifests, "ConfigMap", name)["data"]
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text if is_secret else _replaced(text, self.addresses), encoding="utf-8")
        return folder

    def _command(self, words: Sequence[str]) -> list[str]:
        return [str(self.folder / "bin" / words[0]), *words[1:]]

    def _start(self, words: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            process = subprocess.Popen(self._command(words), env=env, stdout=out, stderr=out, start_new_session=True)
        self._running.append(process)
        return process


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and all that it has started and left, which Ray does for a part of them."""
    process.kill()
    process.wait()
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGKILL)


def _replaced(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def _bytes(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Gi|Mi)", quantity).groups()  # type: ignore[union-attr]
    return int(number) << {"Gi": 30, "Mi": 20}[unit]
