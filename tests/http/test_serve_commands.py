"""The example of a deployment, by the commands `serve deploy` and `serve run` of Ray Serve."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from servers.served import Follower, start
from turnwise.testing import LocalProvider

pytestmark = [pytest.mark.ray, pytest.mark.soak]

EXAMPLE = Path(__file__).parents[2] / "examples/serve_config.yaml"
SERVE = str(Path(sys.executable).with_name("serve"))
ANN = {"Authorization": "Bearer a-very-secret-token"}

A_RAY = """
import sys
import ray
ray.init(address="local", num_cpus=4, include_dashboard=True, dashboard_port=int(sys.argv[1]), log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


def test_the_example_is_deployed_and_run_by_the_commands_of_serve(tmp_path: Path) -> None:
    port, dashboard_port = free_ports()
    env = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    env.pop("RAY_ADDRESS", None)
    url, dashboard = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{dashboard_port}"
    with LocalProvider(reply=lambda messages: f"answer {len(messages)}") as provider:
        file = tmp_path / "serve_config.yaml"
        file.write_text(yaml.safe_dump(config(provider.base_url, tmp_path, port)), encoding="utf-8")
        with a_ray(dashboard_port, env) as address:
            command("deploy", str(file), "--address", dashboard, env=env)
            wait_until_ready(url)
            ask(url, "before", "answer 1")
            command("shutdown", "--yes", "--address", dashboard, env=env)
            wait_until_gone(url)
            words = [SERVE, "run", str(file), "--address", address]
            with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                try:
                    wait_until_ready(url)
                    turns = httpx.get(f"{url}/v1/sessions/before/turns", headers=ANN, timeout=60).json()
                    assert len(turns["items"]) == 1, "another deployment answers for the sessions of the store"
                    ask(url, "after", "answer 1")
                    process.send_signal(signal.SIGINT)
                    assert process.wait(60) == 0
                finally:
                    process.kill()


def config(base_url: str, folder: Path, port: int) -> Any:
    """Return the example with this machine's store, model and port, and with the variables that it wants."""
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    (app,) = example["applications"]
    example["http_options"] = {"host": "127.0.0.1", "port": port}
    app["args"]["store"] = f"sqlite:///{folder}/chats.db"
    app["args"]["engines"]["main"]["base_url"] = base_url
    app["runtime_env"]["env_vars"] = {
        "OPENAI_API_KEY": "sk-for-tests",
        "TURNWISE_HTTP_TOKENS": '{"a-very-secret-token": "ann"}',
    }
    return example


@contextmanager
def a_ray(dashboard_port: int, env: dict[str, str]) -> Iterator[str]:
    """Yield the address of a Ray with a dashboard, which `serve deploy` asks."""
    words = [sys.executable, "-c", A_RAY, str(dashboard_port)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=env, **pipes) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address, "no Ray was started"
        yield address


def command(*words: str, env: dict[str, str]) -> None:
    ran = subprocess.run([SERVE, *words], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def ask(url: str, session: str, text: str) -> None:
    follower = Follower(start(url, session, "A question", ANN), ANN)
    while not follower.is_done():
        for _ in follower.read(url):
            pass
    follower.check(text)


def wait_until_ready(url: str) -> None:
    wait_until(lambda: is_ready(url), f"{url} is ready")


def wait_until_gone(url: str) -> None:
    wait_until(lambda: is_ready(url) is None, f"nobody listens at {url}")


def is_ready(url: str) -> bool | None:
    """Return whether the service is ready; None if nobody listens."""
    try:
        return httpx.get(f"{url}/health/ready", timeout=5).status_code == 200
    except httpx.ConnectError:
        return None
    except httpx.TransportError:
        return False


def wait_until(holds: Any, condition: str) -> None:
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError(f"two minutes passed, and it is not so that {condition}")


def free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for listener in (first, second):
            listener.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
