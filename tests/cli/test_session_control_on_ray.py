"""`turnwise cancel`, `approve`, `reject`, `end`, `rm` and `fork` on sessions of a Ray, also by other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from filled import filled, pay, turnwise

from engines import ScriptedEngine as Echo
from processes.late_ray import without_late_start
from servers.webhook_receiver import Receiver
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.inference.tools.tool import external_tool
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.testing.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.usefixtures("ray_session")


def act(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Carry out a command in a process that knows no Ray but by the environment."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "TURNWISE_STORE")}
    return subprocess.run(
        [sys.executable, "-m", "turnwise", *words],
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_a_run_is_cancelled_and_its_session_deleted_in_the_ray_that_has_the_file_open(
    make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    store, here = f"sqlite:///{tmp_path}/store.db", f"test-{tmp_path.name}"
    manager = make_ray_manager(engine=Echo(), store=store, memory=[LexicalMemory(tmp_path / "items.db")])
    session = manager.open("talk", user_id="ann")
    run = session.run("slow 100000")
    elsewhere = act("cancel", store, "talk", "--user", "ann", "--namespace", "other")
    assert elsewhere.returncode == 1 and run.info().state == "running"
    assert f"--namespace='other': processes of {store} are in the namespace '{here}': name that" in elsewhere.stderr
    ran = act("cancel", store, "talk", "--user", "ann", "--reason", "enough")
    assert (ran.returncode, ran.stdout) == (0, f"run {run.run_id} is cancelled\n"), ran.stderr
    assert without_late_start(ran.stderr) == "", "Ray says nothing"
    assert (run.info().state, run.info().why) == ("cancelled", "enough")
    again = act("cancel", store, "talk", "--user", "ann")
    assert again.returncode == 1 and again.stderr == "error: session 'talk' has no active run to cancel\n"
    assert session.run("I sail a boat").wait(60).text == "I sail a boat", "its process and engine are the manager's"
    assert session.memory.wait(60)
    forked = act("fork", store, "talk", "--user", "ann", "--as", "twin")
    assert forked.returncode == 0 and "twin" in str(manager.list()), forked.stderr
    assert session.run("still here").wait(60).text == "still here", "its process has it as before"
    removal = act("rm", store, "talk", "--yes", "--user", "ann")
    assert (removal.returncode, removal.stdout) == (0, "session talk is deleted\n"), removal.stderr
    assert [listed.session_id for listed in manager.list()] == ["twin"]
    assert manager.open("later", user_id="ann").memory.recall("Which boat?"), "memories keep what they have of it"


def test_webhooks_are_changed_in_the_ray_that_has_the_file_open(
    make_ray_manager: Callable[..., SessionManager], receiver: Receiver, tmp_path: Path
) -> None:
    store, here = f"sqlite:///{tmp_path}/store.db", ("--namespace", f"test-{tmp_path.name}")
    manager = make_ray_manager(engine=Echo(), store=store, placement=Packed(hosts=1))
    session = manager.open("talk", user_id="ann")
    words = ("webhooks", "add", store, receiver.url, "--event", "run.completed", "--allow-private")
    added = act(*words, "--key", "k", *here)
    assert added.returncode == 0 and without_late_start(added.stderr) == "", added.stderr
    webhook_id, secret = added.stdout.splitlines()
    assert act(*words, "--key", "k", *here).stdout == added.stdout and secret.startswith("whsec_")
    receiver.status = 410
    (webhook,) = manager.webhooks()
    assert webhook.id == webhook_id
    until = time.monotonic() + 100
    while not webhook.failed().items:  # a host knows a webhook within a minute
        assert time.monotonic() < until
        session.run("hello").wait(60)
        time.sleep(1)
    receiver.status, before = 200, len(receiver.requests)
    assert act("webhooks", "change", store, webhook_id, "--enable", *here).returncode == 0
    again = act("webhooks", "send-again", store, webhook_id, "--json", *here)
    assert json.loads(again.stdout)["count"] >= 1, again.stderr
    while len(receiver.requests) == before:
        assert time.monotonic() < until + 100
        time.sleep(0.1)
    session.schedule("later", after_s=0.1, key="later")
    while session.schedules().items:
        assert time.monotonic() < until + 100
        time.sleep(0.1)
    run = session.runs()[-1]
    assert session.execution(run.run_id).wait(60).text == "later", "the command has brought no engine of its own"
    assert act("webhooks", "rm", store, webhook_id, "--yes", *here).returncode == 0 and manager.webhooks() == []


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_calls_are_decided_in_packed_hosts(make_ray_manager: Callable[..., SessionManager], tmp_path: Path) -> None:
    store, here = f"sqlite:///{tmp_path}/store.db", f"test-{tmp_path.name}"
    engine = ScriptedEngine([[("pay", {"euros": 7})], "done", [("pay", {"euros": 9})], "done"], tools=[pay])
    manager = make_ray_manager(engine=engine, store=store, placement=Packed(hosts=1))
    session = manager.open("money")
    first = session.run("Pay")
    while first.status() != "awaiting_approval":
        pass
    edited = turnwise("approve", store, first.run_id, "--input", '{"euros": 8}', "--namespace", here, "--json")
    assert json.loads(edited.stdout) == {"run_id": first.run_id, "call_id": "call_0_0", "verdict": "approved"}
    assert "paid 8" in str(first.wait(60).blocks)
    second = session.run("Again")
    while second.status() != "awaiting_approval":
        pass
    rejected = turnwise("reject", "money", "--reason", "no", "--namespace", here, env={"TURNWISE_STORE": store})
    assert rejected.exit_code == 0, rejected.stderr
    assert second.wait(60).text == "done" and "paid 9" not in str(second.wait(60).blocks)
    none = turnwise("approve", store, second.run_id, "--namespace", here)
    assert (none.exit_code, none.stderr) == (1, f"error: run '{second.run_id}' waits for no decision\n")
    assert "did you mean" in turnwise("cancel", store, f"{second.run_id}x", "--namespace", here).stderr


def test_of_several_calls_that_wait_one_is_named(
    make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    store, here = f"sqlite:///{tmp_path}/store.db", f"test-{tmp_path.name}"
    counted = external_tool("count", "Counts what is left.", {"type": "object"})
    calls = [("pay", {"euros": 7}), ("pay", {"euros": 9}), ("count", {})]
    engine = ScriptedEngine([calls, "done"], tools=[pay, counted])
    session = make_ray_manager(engine=engine, store=store, placement=Packed(hosts=1)).open("money")
    run = session.run("Pay both, and count what is left")
    while len(run.pending()) < 3:
        pass
    first, second, result = (call.call_id for call in run.pending())
    unnamed = turnwise("approve", store, "money", "--namespace", here)
    assert unnamed.exit_code == 1 and f"name one of {first}, {second}" in unnamed.stderr, unnamed.stderr
    mistyped = turnwise("reject", store, "money", f"{second}x", "--namespace", here)
    reason = f"there is no call of run '{run.run_id}' with the id '{second}x'; did you mean '{second}'?"
    assert (mistyped.exit_code, mistyped.stderr) == (1, f"error: {reason}\n")
    assert turnwise("approve", store, "money", first, "--namespace", here).exit_code == 0
    assert turnwise("reject", store, "money", "--namespace", here).exit_code == 0, (
        "only the other one waits for a decision"
    )
    run.provide(result, "5 euros")
    blocks = str(run.wait(60).blocks)
    assert "paid 7" in blocks and "paid 9" not in blocks


def test_a_decision_without_a_ray_that_could_have_the_run_starts_none(tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/store.db")
    waiting = act("approve", store, "money", "--user", "bob", RAY_TMPDIR=str(tmp_path))
    assert waiting.returncode == 1 and "here is no Ray that could have it" in waiting.stderr
    assert "do it in the program that has its engine" in waiting.stderr
    idle = act("reject", store, "chat", "--user", "ann", RAY_TMPDIR=str(tmp_path))
    assert idle.stderr == "error: session 'chat' has no call that waits for a decision\n"
    assert not (tmp_path / "ray").exists()


def test_sessions_without_a_process_are_changed_unless_runs_would_fail(ray_session: ModuleType, tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/store.db")
    where = {"env": {"RAY_ADDRESS": ray_session.get_runtime_context().gcs_address}}
    forked = turnwise("fork", store, "chat", "--user", "ann", "--at", "0", "--as", "other", **where)
    assert (forked.exit_code, forked.stdout) == (0, "other\n"), forked.stderr
    copy = turnwise("show", store, "other", "--user", "ann").stdout
    assert "Take an umbrella." in copy and "And tomorrow?" not in copy
    assert (
        json.loads(turnwise("show", store, "other", "--user", "ann", "--json").stdout)["session"]["parent"] == "chat#0"
    )
    for words in (["fork", "long"], ["rm", "-y", "long"], ["approve", "money", "--user", "bob"]):
        refused = turnwise(words[0], store, *words[1:], **where)
        assert refused.exit_code == 1 and "no engine to go on with" in refused.stderr, refused.stderr
    assert turnwise("show", store, "money", "--user", "bob").stdout.count("pay asks for approval") == 1
    assert turnwise("cancel", store, "long", **where).stdout == "run r-6 is interrupted\n"
    assert turnwise("end", store, "money", "--user", "bob", **where).stdout == "session money has ended\n"
    assert turnwise("rm", store, "mine", "-y", "--user", "ann", "--json", **where).stdout
    assert turnwise("show", store, "mine", "--user", "ann").exit_code == 1
    removal = turnwise("rm", store, "chat", "--user", "ann", **where)
    assert removal.exit_code == 1 and turnwise("show", store, "chat", "--user", "ann").exit_code == 0, "nobody said yes"
