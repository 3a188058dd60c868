"""LiteLLM's proxy as a process of its own, from `.venv-litellm`, on the loopback and without a network.

The prefix of a model names its upstream: `openai/<model>` goes to the upstream `openai`, and so on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYTHON = Path(__file__).parents[3] / ".venv-litellm/bin/python"
"""What `make test-litellm` puts there."""

START_S = 300.0
"""How long a start may take on a machine that is busy."""

KEY = "sk-" + "4711" * 16
"""What it wants of who asks it: it starts with no weaker one."""

_LOCAL = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_OFFLINE_MODE": "true",
    "LITELLM_MODE": "PRODUCTION",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
    "NO_PROXY": "127.0.0.1",
    "LITELLM_MASTER_KEY": KEY,
}
"""Has it fetch nothing."""


class LiteLLM:
    """A proxy.

    Args:
        folder: for its configuration and its log.
        upstreams: where it asks the models of a provider, by the provider's name.
        models: more models, each with the parameters that LiteLLM has for it.
        trap: the address to which its requests to other hosts go.
    """

    def __init__(
        self,
        folder: Path,
        upstreams: Mapping[str, str],
        models: Mapping[str, Mapping[str, Any]] | None = None,
        trap: str | None = None,
    ) -> None:
        self._folder = folder
        defaults = {f"{name}/*": {"model": f"{name}/*", "api_base": url} for name, url in upstreams.items()}
        self._models = {**defaults, **(models or {})}
        self._trap = trap
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as `base_url`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def log(self) -> str:
        """Its output so far."""
        return (self._folder / "litellm.log").read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start it; return when it answers."""
        models = [
            {"model_name": name, "litellm_params": {"api_key": "sk-upstream", **parameters}}
            for name, parameters in self._models.items()
        ]
        settings: dict[str, Any] = {
            "model_list": models,
            "litellm_settings": {"num_retries": 0, "telemetry": False},
            "general_settings": {"always_include_stream_usage": False},  # else it asks for usage by itself
        }
        config = self._folder / "config.yaml"
        config.write_text(json.dumps(settings), encoding="utf-8")  # which is YAML, too
        trap = {"HTTP_PROXY": self._trap, "HTTPS_PROXY": self._trap} if self._trap else {}
        with (self._folder / "litellm.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    PYTHON,
                    "-m",
                    "litellm.proxy.proxy_cli",
                    "--config",
                    config,
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(self.port),
                ],
                cwd=self._folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self._folder), **_LOCAL, **trap},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, f"LiteLLM has ended: {self.log[-2000:]}"
            assert time.monotonic() < deadline, f"LiteLLM does not answer: {self.log[-2000:]}"
            time.sleep(0.1)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it by a signal; return when it has ended."""
        if self._process:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/liveliness", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
