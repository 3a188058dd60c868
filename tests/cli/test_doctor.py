"""`turnwise doctor` without a Ray: what it says about stores, keys and endpoints."""

from __future__ import annotations

import asyncio
import json
import platform
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from filled import turnwise

from turnwise.actors.cluster import diagnosis, ray_address, ray_runtime
from turnwise.actors.cluster.diagnosis import RayFacts
from turnwise.cli.doctor import command as doctor, process_facts as environment
from turnwise.cli.doctor.process_facts import Facts
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.sql.schema import SCHEMA
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.stores.store_owner import StoreOwner
from turnwise.memory.stores.urls import open_store
from turnwise.testing import LocalProvider

KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "OPENAI_API_KEY", "OPENAI_BASE_URL", "TURNWISE_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(ray_address, "local_ray", lambda: None)  # that of other tests


def look(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code, and the findings by what was checked."""
    ran = turnwise("doctor", *words, "--json")
    assert KEY not in ran.output and "Traceback" not in ran.output
    return ran.exit_code, {load["check"]: load for load in json.loads(ran.stdout)}


def store_at(folder: Path) -> str:
    url = f"sqlite:///{folder}/chats.db"

    async def make() -> None:
        store = open_store(url)
        await store.create(SessionRecord(session_id="one"))
        await store.close()

    asyncio.run(make())
    return url


def test_what_is_well_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = store_at(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    with LocalProvider(api_key=KEY) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        code, findings = look(url, "--base-url", provider.base_url)
    assert code == 0
    assert (
        findings["store"]["message"].endswith(f"schema version {SCHEMA.version}, 1 session")
        and findings["store"]["state"] == "ok"
    )
    assert findings["store owner"]["message"] == "no Ray and no other process has the file open"
    assert findings["key"]["state"] == findings["endpoint"]["state"] == findings["disk"]["state"] == "ok"
    assert (findings["ray"]["state"], findings["workers"]["state"]) == ("warn", "unknown")
    assert "ray start --head" in findings["ray"]["do"]
    assert "fastapi" in findings["[http]"]["message"]
    assert not {"[test]", "[dev]"} & set(findings), "these are of turnwise's own developers"
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_refused_key_and_a_silent_endpoint_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with LocalProvider(api_key="another") as provider:
        code, findings = look("--base-url", provider.base_url)
    assert (code, findings["key"]["state"]) == (1, "fail")
    code, findings = look("--base-url", provider.base_url)
    assert (code, findings["endpoint"]["state"]) == (1, "fail")
    assert "does not answer" in findings["endpoint"]["message"] and "OPENAI_BASE_URL" in findings["endpoint"]["do"]


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    _, findings = look(f"sqlite:///{tmp_path}/none.db")
    assert findings["store"]["state"] == "warn" and "there is no file" in findings["store"]["message"]
    code, findings = look(f"sqlite:///{tmp_path}/no/none.db")
    assert (code, findings["store"]["state"]) == (1, "fail")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("version", "state"), [("99", "fail"), ("0", "warn")])
def test_tables_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    url = store_at(tmp_path)
    monkeypatch.setattr(SQLStore, "schema", replace(SCHEMA, migrations={0: ["SELECT 1"]}))
    with closing(sqlite3.connect(tmp_path / "chats.db")) as connection, connection:
        connection.execute("UPDATE turnwise_meta SET value = ? WHERE name = 'schema_version'", (version,))
    connection.close()
    code, findings = look(url)
    assert (code, findings["store"]["state"]) == (int(state == "fail"), state)
    assert f"version {version}" in findings["store"]["message"]


@pytest.mark.parametrize("url", ["mysql://host/name", "sqlite://chats.db", "chats.db"])
def test_a_wrong_url_fails(url: str) -> None:
    code, findings = look(url)
    assert (code, findings["store"]["state"]) == (1, "fail")
    assert "sqlite:///path/to/file.db" in findings["store"]["message"]


def test_a_ray_that_is_not_there_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    code, findings = look()
    assert (code, findings["ray"]["state"]) == (1, "fail")
    assert "RAY_ADDRESS" in findings["ray"]["message"] and "ray start --head" in findings["ray"]["message"]


@pytest.mark.parametrize("command", ["chat", "tail", "top"])
def test_a_ray_that_is_not_there_is_said_at_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    ran = turnwise(command, store_at(tmp_path))
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: RAY_ADDRESS='127.0.0.1:9': no Ray answers there")


GIGABYTE = 1 << 30

WELL: dict[str, Any] = {
    "python": platform.python_version(),
    "turnwise": version("turnwise"),
    "endpoint": "models.example",
    "is_chosen": True,
    "has_key": True,
    "is_key_refused": False,
    "problem": None,
    "status": 200,
    "vocabulary": "/there/o200k_base",
    "embedding": "/there/onnx",
    "free_bytes": {"/data": 5 * GIGABYTE},
    "uncompiled": (),
}


@pytest.mark.parametrize(
    ("facts", "check", "state", "message"),
    [
        ({}, "endpoint", "ok", "models.example answers"),
        ({"status": 404}, "endpoint", "warn", "404 to GET /models"),
        ({"status": 503}, "endpoint", "warn", "status 503"),
        ({"status": None, "problem": "refused"}, "endpoint", "fail", "does not answer: refused"),
        ({"status": None, "problem": "refused", "is_chosen": False}, "endpoint", "warn", "does not answer"),
        ({}, "key", "ok", "is set"),
        ({"status": 401, "is_key_refused": True}, "key", "fail", "is refused"),
        ({"status": 403, "is_key_refused": True, "has_key": False}, "key", "fail", "is missing, and is needed"),
        ({"has_key": False}, "key", "warn", "is not set"),
        ({}, "vocabulary", "ok", "/there/o200k_base"),
        ({"vocabulary": None}, "vocabulary", "warn", "is not there"),
        ({}, "embedding", "ok", "/there/onnx"),
        ({"embedding": None}, "embedding", "warn", "is not there"),
        ({"turnwise": None}, "versions", "fail", "turnwise is not installed"),
        ({"turnwise": "0.0.1"}, "versions", "fail", "turnwise 0.0.1"),
        ({"python": "2.7.18"}, "versions", "fail", "Python 2.7.18"),
        ({"uncompiled": ("ray", "openai")}, "imports", "warn", "compiles these again: ray, openai; "),
        ({}, "disk", "ok", "5.0 GB free in /data"),
        ({"free_bytes": {"/data": GIGABYTE // 2}}, "disk", "warn", "0.5 GB free"),
        ({"free_bytes": {"/data": 1}}, "disk", "fail", "0.0 GB free"),
    ],
)
def test_what_a_process_finds_is_judged(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], check: str, state: str, message: str
) -> None:
    monkeypatch.setattr(doctor, "facts", lambda *_: Facts(**{**WELL, **facts}))
    _, findings = look()
    assert (findings[check]["state"], message in findings[check]["message"]) == (state, True), findings[check]
    assert bool(findings[check]["do"]) == (state != "ok")
    assert facts or not {"versions", "imports"} & set(findings), "what is as it should be there is not worth a line"


@pytest.mark.parametrize(
    "name", ["openai", "asyncio"]
)  # the latter is Python's: the official images have none of its bytecode
def test_packages_that_are_compiled_by_each_process_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert name in environment.facts("file://", ()).uncompiled
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert environment.facts("file://", ()).uncompiled == ()


@pytest.mark.parametrize(
    ("has_token", "address", "state"),
    [(True, "10.0.0.1:6379", "ok"), (False, "10.0.0.1:6379", "warn"), (False, "", "ok")],
)
def test_who_may_use_a_ray_is_said(monkeypatch: pytest.MonkeyPatch, has_token: bool, address: str, state: str) -> None:
    known: dict[str, Any] = {"version": "ray 2", "address": "here", "nodes": 1, "dead_nodes": ("10.0.0.7",)}
    ray_facts = RayFacts(**known, resources={}, free={}, has_token=has_token)
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray_runtime, "connect", lambda **_: None)
    monkeypatch.setattr(diagnosis, "ray_facts", lambda: ray_facts)
    monkeypatch.setattr(diagnosis, "ask_workers", lambda *_: {"node": "died"})
    _, findings = look("--start-ray")
    assert findings["ray access"]["state"] == state
    assert (findings["ray nodes"]["state"], findings["ray nodes"]["message"]) == ("warn", "lost: 10.0.0.7")
    assert (findings["workers"]["state"], findings["workers"]["message"]) == (
        "fail",
        "a worker on node cannot look: died",
    )


def test_doctor_says_when_it_cannot_find_the_holder_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = store_at(tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert look(url)[1]["store owner"]["state"] == "unknown"
    monkeypatch.setattr(doctor, "running_owner", lambda _: StoreOwner("10.0.0.1:6379", "a session"))
    finding = look(url)[1]["store owner"]
    assert finding["state"] == "warn" and "the Ray at 10.0.0.1:6379, which had it open last" in finding["message"]


def test_people_get_a_line_for_each_check(tmp_path: Path) -> None:
    ran = turnwise("doctor", store_at(tmp_path))
    lines = ran.stdout.splitlines()
    assert ran.exit_code == 0
    assert all(line.startswith(("ok ", "warn ", "fail ", "unknown ", "    ")) for line in lines), ran.stdout
