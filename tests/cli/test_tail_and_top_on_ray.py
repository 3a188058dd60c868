"""`turnwise tail` and `turnwise top` beside the processes that have the sessions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines import ScriptedEngine
from processes.terminal import CTRL_C, Terminal, turnwise
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import InProcess, Packed
from turnwise.actors.inference.echo import EchoEngine


@pytest.fixture
def manager(ray_address: str, make_ray_manager: Callable[..., SessionManager]) -> SessionManager:
    return make_ray_manager(engine=ScriptedEngine("echo: "), placement=Packed(hosts=1))


@pytest.fixture
def own_manager(tmp_path: Path) -> Iterator[SessionManager]:
    """A manager whose sessions are in this process."""
    with SessionManager(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), placement=InProcess()) as manager:
        yield manager


def namespace_of(tmp_path: Path) -> str:
    return f"test-{tmp_path.name}"


def start(tmp_path: Path, ray_address: str | None, *words: str) -> subprocess.Popen[str]:
    environ = os.environ | {"RAY_ADDRESS": ray_address or ""}
    command = turnwise(words[0], f"sqlite:///{tmp_path}/chats.db", *words[1:])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environ, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def end(process: subprocess.Popen[str], by: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    process.send_signal(by)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_the_events_of_a_session_are_followed_live_across_runs(
    manager: SessionManager, ray_address: str, tmp_path: Path
) -> None:
    session = manager.open("followed")
    session.run("before").wait()
    epoch = session.info().session.epoch
    process = start(tmp_path, ray_address, "tail", "followed", "--json", "--after", "0")
    assert process.stdout
    events = [json.loads(process.stdout.readline())]
    session.run("slow 5").wait()
    session.run("two").wait()
    while len([event for event in events if event["kind"] == "run_completed"]) < 3:
        events.append(json.loads(process.stdout.readline()))
    assert end(process, signal.SIGTERM) == (143, ""), "Ray would print addresses"
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
    assert "text_delta" in {event["kind"] for event in events}
    assert "0 1 2 3 4 " in "".join(event["text"] for event in events if event["kind"] == "text_delta")
    assert session.info().session.epoch == epoch, "it was taken over"


def test_a_tail_from_now_on_shows_no_earlier_event(manager: SessionManager, ray_address: str, tmp_path: Path) -> None:
    session = manager.open("now")
    session.run("before").wait()
    environ = {"RAY_ADDRESS": ray_address}
    words = (f"sqlite:///{tmp_path}/chats.db", "now", "--namespace", namespace_of(tmp_path))
    with Terminal(*turnwise("tail", *words), env=environ) as terminal:
        for n in range(200):  # until it has begun to look
            session.add_event("tick", {"text": f"\x1b[2J{n}"})
            if "tick" in terminal.text:
                break
            time.sleep(0.2)
        terminal.wait_for("custom")
        session.run("after").wait()
        text = terminal.wait_for("run_completed")
        terminal.press(CTRL_C)
        assert terminal.wait() == 130
        assert "before" not in text and "Traceback" not in terminal.text


def test_the_stored_events_of_all_sessions_are_followed_without_a_ray(
    own_manager: SessionManager, tmp_path: Path
) -> None:
    own_manager.open("warm").run("up").wait()
    process = start(tmp_path, None, "tail", "--kind", "run_completed", "--json")
    assert process.stdout
    lines: list[str] = []
    reader = process.stdout
    for n in range(100):
        own_manager.open(f"session-{n}").run("hello").wait()
        os.set_blocking(reader.fileno(), False)
        if line := reader.readline():
            lines.append(line)
            break
        time.sleep(0.2)
    assert end(process) == (130, "")
    event = json.loads(lines[0])
    assert event["kind"] == "run_completed" and event["session_id"].startswith("session-")


def test_top_counts_what_goes_on(manager: SessionManager, ray_address: str, tmp_path: Path) -> None:
    session = manager.open("busy")
    waiting = [session.run("slow 3000"), session.run("next", if_busy="enqueue")]
    process = start(tmp_path, ray_address, "top", "--once", "--json")
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    snapshot = json.loads(output)
    assert snapshot["sessions"] == {"active": 1, "ended": 0}
    assert snapshot["runs"] == {"running": 1, "queued": 1, "awaiting_approval": 0}
    assert {run["session_id"] for run in snapshot["open_runs"]} == {"busy"}
    (host,) = snapshot["hosts"]
    assert host["is_packed"] and host["sessions"] == 1 and host["pid"]
    assert host["memory_bytes"] > 10_000_000
    for run in waiting:
        run.cancel()


def test_top_shows_a_screen_until_q_is_pressed(manager: SessionManager, ray_address: str, tmp_path: Path) -> None:
    manager.open("shown").run("slow 3000")
    words = (f"sqlite:///{tmp_path}/chats.db", "--namespace", namespace_of(tmp_path), "--every", "0.5")
    with Terminal(*turnwise("top", *words), env={"RAY_ADDRESS": ray_address}) as terminal:
        text = terminal.wait_for("MEMORY")
        assert "1 active sessions" in text and "1 running" in text and "shown" in text
        terminal.press("q")
        assert terminal.wait() == 0


def test_without_a_ray_top_reads_the_store_alone(own_manager: SessionManager, tmp_path: Path) -> None:
    own_manager.open("alone").run("hello").wait()
    process = start(tmp_path, None, "top")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "1 active sessions" in output and "no run is going on" in output and "RAY_ADDRESS names no Ray" in output
