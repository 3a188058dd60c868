"""A `turnwise serve` in a process of its own, and a client that follows events across cuts."""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from processes.programs import path_to


@dataclass
class Served:
    """A running service."""

    process: "subprocess.Popen[str]"
    url: str
    printed: list[str]
    """What it had printed when it was ready."""

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    @property
    def workers(self) -> list[int]:
        """The ids of its worker processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        return [pid for pid in map(int, children.split()) if b"spawn_main" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


@contextmanager
def served(
    *words: str, ready_s: float = 120, log: Path | None = None, files: int | None = None, **env: str | None
) -> Iterator[Served]:
    """Run `turnwise serve` with these words until it is ready. It ends with the block, by SIGTERM.

    Args:
        log: the file that has what it logs; this process's standard error if omitted.
        files: how many files it may open; as many as this process if omitted.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "RAY_ADDRESS"))}
    environment = {name: value for name, value in (inherited | env).items() if value is not None}
    command = [sys.executable, "-m", "turnwise", "serve", *words]
    command = with_files(files, *command) if files else command
    lines: queue.Queue[str] = queue.Queue()
    with (
        log.open("a", encoding="utf-8") if log else nullcontext() as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            printed: list[str] = []
            while not printed or "Stop it with" not in printed[-1]:
                line = lines.get(timeout=ready_s)
                assert line, f"it ended with {process.wait(10)}: {printed}"
                printed.append(line)
            match = re.search(r" at (http://\S+?);", "".join(printed))
            assert match, printed
            yield Served(process, match[1], printed)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            reader.join()


def _read(stream: Any, lines: "queue.Queue[str]") -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


@dataclass
class Follower:
    """Reads a run's events and notes where it is, as a browser does."""

    run_id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def is_done(self) -> bool:
        return bool(self.events) and self.events[-1]["kind"] in ("run_completed", "run_failed", "run_interrupted")

    def read(self, url: str) -> Generator[dict[str, Any], None, None]:
        """Yield events that were not there before, until the stream ends or is cut."""
        last = {"Accept": "text/event-stream"}
        if self.events:
            last["Last-Event-ID"] = str(self.events[-1]["seq"])
        try:
            with httpx.stream(
                "GET", f"{url}/v1/runs/{self.run_id}/events", headers={**self.headers, **last}, timeout=60
            ) as answer:
                assert answer.status_code == 200, answer.read()
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(json.loads(line[6:]))
                        yield self.events[-1]
        except httpx.TransportError:
            return

    def check(self, text: str) -> None:
        """See that each event came once, in order, and that the deltas are the text."""
        seqs = [event["seq"] for event in self.events]
        assert seqs == sorted(set(seqs))
        kinds = [event["kind"] for event in self.events]
        assert (kinds[0], kinds[-1], kinds.count("run_started")) == ("run_started", "run_completed", 1)
        assert "".join(event["text"] for event in self.events if event["kind"] == "text_delta") == text


def start(url: str, session: str, prompt: str, headers: Mapping[str, str] | None = None) -> str:
    """Start a run in a new session; return the run's id."""
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        client.post("/v1/sessions", json={"id": session}).raise_for_status()
        answer = client.post(f"/v1/sessions/{session}/runs", json={"prompt": prompt})
        assert answer.is_success, answer.text
        return str(answer.json()["id"])


def run_all(commands: Sequence[str], **env: str) -> list[str]:
    """Run commands in a shell, exactly as they are; return what they print."""
    outputs = []
    if any("curl" in command for command in commands):
        path_to("curl")
    for command in commands:
        ran = subprocess.run(
            ["bash", "-ec", command],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
        outputs.append(ran.stdout)
    return outputs


def with_files(count: int, *command: str) -> list[str]:
    """Return the command as one whose process may open so many files, and no more."""
    return ["bash", "-c", f'ulimit -n {count} && exec "$@"', "--", *command]


def patient(look: Callable[[], int], patience_s: float = 60) -> int:
    """Look until something is there; return it."""
    end = time.monotonic() + patience_s
    while not (value := look()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return value


def half_open(port: int, count: int) -> Iterator[None]:
    """Open many connections that never send a whole request; yield now and then."""
    begun = [
        b"",
        b"GET / HT",
        b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    ]
    clients = []
    try:
        for number in range(count):
            client = socket.create_connection(("127.0.0.1", port))
            clients.append(client)
            client.send(begun[number % len(begun)])
            if number % 64 == 63:
                yield
    finally:
        for client in clients:
            client.close()
