"""`turnwise doctor` with a Ray: it asks the workers, and knows who has the SQLite file."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processes.late_ray import without_late_start
from processes.terminal import turnwise
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.memory.stores.store_owner import naming
from turnwise.testing import LocalProvider

KEY = "sk-very-secret"
STARTING = "warning: starting Ray, which takes some seconds; `ray start --head` keeps one running for all programs\n"


def look(*words: str, **environ: str) -> tuple[int, list[dict[str, Any]]]:
    environment = {**os.environ, "OPENAI_API_KEY": KEY, **environ}
    environment = {name: value for name, value in environment.items() if value}
    command = turnwise("doctor", *words, "--json")
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    printed = without_late_start(ran.stderr)
    assert KEY not in ran.stdout and printed == (STARTING if "--start-ray" in words else "")
    return ran.returncode, json.loads(ran.stdout)


def states(findings: list[dict[str, Any]], check: str) -> list[str]:
    return [finding["state"] for finding in findings if finding["check"] == check]


def test_the_workers_are_asked_and_may_lack_the_key(
    make_ray_manager: Callable[..., SessionManager], ray_address: str, tmp_path: Path
) -> None:
    make_ray_manager().open("one")
    url = f"sqlite:///{tmp_path}/chats.db"
    with LocalProvider(api_key=KEY) as provider:
        code, findings = look(url, "--base-url", provider.base_url, RAY_ADDRESS=ray_address, NO_PROXY="127.0.0.1")
    assert code == 1
    by_check = {finding["check"]: finding for finding in findings}
    assert by_check["ray"]["state"] == "ok" and ray_address in by_check["ray"]["message"]
    assert by_check["ray resources"]["message"].endswith("for its processes")
    assert by_check["key"]["state"] == "fail" and "workers on" in by_check["key"]["message"]
    assert "is missing, and is needed" in by_check["key"]["message"]
    assert "OPENAI_API_KEY where `ray start` runs" in by_check["key"]["do"]
    assert by_check["endpoint"]["state"] == "ok"
    assert (
        by_check["store owner"]["state"] == "ok"
        and "the one that programs here join" in by_check["store owner"]["message"]
    )
    code, findings = look(url, RAY_ADDRESS="", OPENAI_API_KEY="")
    (owner,) = [finding for finding in findings if finding["check"] == "store owner"]
    assert (code, owner["state"], owner["do"]) == (0, "warn", f"set {naming(ray_address)}, or only read")


@pytest.mark.ray
def test_it_starts_a_ray_if_it_is_told_to() -> None:
    with LocalProvider(api_key=KEY) as provider:
        environ = {"RAY_ADDRESS": "", "NO_PROXY": "127.0.0.1", "OPENAI_BASE_URL": provider.base_url}
        code, findings = look("--start-ray", **environ)
    assert code == 0, findings
    assert states(findings, "key") == ["ok"] and states(findings, "ray") == ["ok"]
    assert all(
        "workers on" in finding["message"] for finding in findings if finding["check"] in ("key", "endpoint", "disk")
    )
