"""`make serve`, as the README tells it, starts a service, a console and a Ray, and stops them."""

from __future__ import annotations

import shlex
import subprocess
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from servers.served import Follower, run_all, served, start

pytestmark = pytest.mark.ray


def recipe(target: str, arguments: str) -> list[str]:
    """Return the words of the last command that make runs for a target, without running it."""
    words = ["make", "--no-print-directory", "--dry-run", target, f"ARGS={arguments}"]
    ran = subprocess.run(words, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    return shlex.split(ran.stdout.splitlines()[-1])


def test_the_commands_of_make_serve_work_and_stop_its_ray() -> None:
    interpreter, *words = recipe("serve", "--port 0 --packed 1")
    assert interpreter.endswith("/python") and words[:3] == ["-m", "turnwise", "serve"]
    with served(*words[3:]) as service:
        *commands, page = [line.strip() for line in service.printed if line.startswith("  ")]
        curl, *python = run_all(commands)
        assert '"state":"completed"' in curl and all(python)
        assert "<html" in httpx.get(page, follow_redirects=True, timeout=60).text
        with closing(Follower(start(service.url, "last", "Tell me a long story.")).read(service.url)) as stream:
            assert next(stream)["kind"] == "run_started"
        assert httpx.get(f"{service.url}/health/ready", timeout=60).json()["status"] == "ok"
        assert httpx.get(f"{service.url}/health", headers={"Host": "elsewhere.example"}, timeout=60).status_code == 400
        assert service.stop() == 0
