"""A peer in a process of its own, which does what the bench asks: one line of JSON for each request, and each answer.

python -m peers.worker NAME FOLDER TEXT PAUSE_S
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.peer import Model, Peer

MAKERS: Mapping[str, tuple[str, str]] = {
    "turnwise, dedicated": ("peers.libraries.turnwise", "dedicated"),
    "turnwise, packed": ("peers.libraries.turnwise", "packed"),
    "turnwise, in process": ("peers.libraries.turnwise", "in_process"),
    "LangGraph": ("peers.libraries.langgraph", "LangGraph"),
    "OpenAI Agents SDK": ("peers.libraries.agents", "Agents"),
    "Pydantic AI": ("peers.libraries.pydantic_ai", "PydanticAI"),
    "Pydantic AI with DBOS": ("peers.libraries.pydantic_dbos", "Durable"),
    "Google ADK": ("peers.libraries.adk", "ADK"),
}
"""Where each peer is."""

MEMORIES: Mapping[str, tuple[str, str]] = {
    "turnwise VectorMemory": ("peers.libraries.turnwise_memory", "Remembering"),
    "turnwise VectorMemory, no vectors": ("peers.libraries.turnwise_memory", "words"),
    "Chroma": ("peers.libraries.chroma", "Chroma"),
    "LangGraph SqliteStore": ("peers.libraries.langgraph", "Store"),
    "mem0": ("peers.libraries.mem0", "Mem0"),
}
"""Where each long-term memory is; for `peers.recall`."""

RESUMING: Mapping[str, tuple[str, str]] = {
    'turnwise, in process, on_lost="resume"': ("peers.libraries.turnwise", "resuming"),
}
"""Where the peers are that go on after a crash only by a setting; for `peers.crash`."""

PLACES: Mapping[str, tuple[str, str]] = {**MAKERS, **MEMORIES, **RESUMING}

TOO_LONG_S = 900


class WorkerError(Exception):
    """The process of a peer failed; the message has the end of its output."""


class Worker:
    """A peer's process, as the bench sees it."""

    def __init__(self, python: str, name: str, folder: Path, model: Model, env: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        self.log = folder / "log.txt"
        command = [python, "-m", "peers.worker", name, str(folder), model.text, str(model.pause_s)]
        paths = os.pathsep.join([str(Path(__file__).parents[1]), *_paths()])
        # turnwise starts a Ray of its own, also if this machine has one, unless `env` names another.
        worker_env = os.environ | {"PYTHONPATH": paths, "RAY_ADDRESS": "local"} | dict(env)
        with self.log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=worker_env,
                cwd=folder,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, verb: str, **arguments: Any) -> Any:
        """Run a coroutine of a question in the process; return its answer."""
        self.ask(verb, **arguments)
        return self.answer()

    def ask(self, verb: str, **arguments: Any) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):  # then there is no answer either
            self.process.stdin.write(json.dumps([verb, arguments]) + "\n")
            self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            log_end = self.log.read_text(encoding="utf-8").strip()[-2000:]
            raise WorkerError(f"the process of {self.name} failed:\n{log_end}")
        return json.loads(line)

    def kill(self, *, all_of_it: bool = True) -> None:
        """Kill the process as a machine that fails does: with those that it started, or alone."""
        for pid in [self.pid, *(descendants(self.pid) if all_of_it else [])]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._ended()

    def close(self) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
        self._ended()

    def _ended(self) -> None:
        assert self.process.stdin and self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def descendants(root: int) -> list[int]:
    """Return the processes that a process started, directly or through others."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    pids, todo = [], [root]
    while todo:
        above = todo.pop()
        below = [pid for pid, parent in parents.items() if parent == above]
        pids += below
        todo += below
    return pids


def make(name: str, folder: Path, model: Model) -> Peer:
    module, maker = PLACES[name]
    peer: Peer = getattr(importlib.import_module(module), maker)(folder, model)
    return peer


async def carry_out(peer: Peer, verb: str, arguments: Mapping[str, Any]) -> AsyncIterator[Any]:
    """Yield the answers to a request: one, or as many as an asynchronous generator has."""
    if verb == "versions":
        yield {name: version(name) for name in peer.packages}
        return
    module, _, function = verb.partition(".")
    done = getattr(importlib.import_module(f"peers.{module}"), function)(peer, **arguments)
    if hasattr(done, "__aiter__"):
        async for answer in done:
            yield answer
    else:
        yield await done


async def serve(name: str, folder: Path, model: Model) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    peer = make(name, folder, model)
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            verb, arguments = json.loads(line)
            async for answer in carry_out(peer, verb, arguments):
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
    finally:
        await peer.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), Model(sys.argv[3], float(sys.argv[4]))))
