"""A program with large settings that ends.

`python large_settings.py <address of Ray> <store> <namespace> <folder> <placement> <megabytes>` opens a manager with an
engine of so many megabytes and a memory with a large handbook, starts a run that waits for a file, and ends. Its
last line of output is JSON: the run's id and the process of its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from engines import ScriptedEngine, process_of
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.cluster.actor_settings import read_settings
from turnwise.actors.hosting.placement import Dedicated, Packed, Placement
from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.wire_version import unpacked
from turnwise.errors import NotFoundError, RunEndedError, TurnwiseError
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.static import StaticMemory

RESUMED = SessionConfig(on_lost="resume", cancel_grace_s=0.5, memory=MemoryConfig(timeout_s=60.0))

BACK_S = 200.0
"""How long processes may take to come back while stores and machines are attacked, in seconds."""

USER = "ada"
"""The user of each session here."""

PLACEMENTS: dict[str, Placement] = {"dedicated": Dedicated(), "packed": Packed(hosts=1)}


def text_of(megabytes: float, word: str) -> str:
    """Return a text that no two words share, so that no part of it stands for another."""
    lines = (f"{word} {number}: {hashlib.sha256(f'{word}{number}'.encode()).hexdigest()}\n" for number in range(10**9))
    text, size = [], 0
    while size < megabytes * 1_000_000:
        text.append(next(lines))
        size += len(text[-1])
    return "".join(text)


def handbook() -> StaticMemory:
    """Return a memory with a handbook of some 300 KB."""
    return StaticMemory(text_of(0.3, "rule").splitlines())


class Librarian:
    """Answers with the digest of its own settings, once the folder has a file `gate`.

    Args:
        text: a large text.
        folder: where the file will be.
    """

    def __init__(self, text: str, folder: str) -> None:
        self.text = text
        self.folder = folder

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        while not await asyncio.to_thread(Path(self.folder, "gate").exists):
            await asyncio.sleep(0.05)
        return [Text(text=self.answer)]

    @property
    def answer(self) -> str:
        return f"{len(self.text)} {hashlib.sha256(self.text.encode()).hexdigest()}"


class Deadly(ScriptedEngine):
    """Ends the process that loads it, while the folder has a file `deadly`; that gets a line each time."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if (file := Path(self.folder, "deadly")).exists():
            with file.open("a", encoding="utf-8") as lines:
                lines.write("died\n")
            os._exit(1)


class Holder:
    """An actor with settings, as the real ones have."""

    def __init__(self, start: bytes) -> None:
        (self._settings,) = unpacked(start)

    async def size(self) -> int:
        return len(await asyncio.to_thread(read_settings, self._settings))


def end_all(namespace: str) -> None:
    """End the actors of a namespace."""
    for name in named_in(namespace):
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(name, namespace=namespace))


def named_in(namespace: str, prefix: str = "") -> list[str]:
    """Return the names of a namespace's actors that begin so."""
    named_actors = ray.util.list_named_actors(all_namespaces=True)
    return [
        actor["name"] for actor in named_actors if actor["namespace"] == namespace and actor["name"].startswith(prefix)
    ]


class OtherEngineError(AssertionError):
    """A run was answered by the engine of who asked for it, and not by that of the program that began it."""


async def orphan(store: str, namespace: str, folder: Path, placement: str) -> str:
    """Let a program make a session, its host and a memory, with large settings, and end; then kill their processes.

    Returns:
        What came of it: the run went on, its session was gone, or the program could not begin, as the store was away.

    Raises:
        OtherEngineError: it went on with another engine.
        AssertionError: the processes have not come back within `BACK_S`.
    """
    await asyncio.to_thread(folder.mkdir)
    address = ray.get_runtime_context().gcs_address
    arguments = [address, store, namespace, str(folder), placement, "1"]
    program = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        printed, _ = await program.communicate()
    finally:
        if program.returncode is None:  # whoever waits was cancelled
            program.kill()
            await program.wait()
    if program.returncode:
        return "could not begin"
    return await back(store, namespace, folder, placement, json.loads(printed.splitlines()[-1]))


async def back(store: str, namespace: str, folder: Path, placement: str, report: dict[str, Any]) -> str:
    """Kill the processes that a program made which has ended, and return what came of its run; see `orphan`."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(report["pid"], signal.SIGKILL)
    for name in named_in(namespace, "turnwise/memory/"):
        ray.kill(ray.get_actor(name, namespace=namespace), no_restart=False)
    await asyncio.to_thread((folder / "gate").touch)
    settings: dict[str, Any] = {"placement": PLACEMENTS[placement], "config": RESUMED, "memory": [handbook()]}
    async with AsyncSessionManager(store, engine=ScriptedEngine(), namespace=namespace, **settings) as manager:
        try:
            return await _is_back(manager, report["run_id"], report["answer"])
        finally:
            end_all(namespace)


async def _is_back(manager: AsyncSessionManager, run_id: str, answer: str) -> str:
    until, last = time.monotonic() + BACK_S, TurnwiseError("nothing was asked")
    while time.monotonic() < until:
        try:
            run = await manager.execution(run_id, user_id=USER)
            text = (await run.wait(BACK_S)).text
            if text != answer:
                raise OtherEngineError(f"another engine went on: {text}")
            await (await manager.get(run.session_id, user_id=USER)).memory.recall("rule 7")
            return "came back"
        except NotFoundError:
            return "was gone"  # a restore took it
        except RunEndedError as error:
            return f"ended: {type(error).__name__}"  # a restore, or another kill, ended the run
        except TurnwiseError as error:  # the store is away
            last = error
            await asyncio.sleep(0.5)
    raise AssertionError(f"processes whose program has ended do not come back: {last!r}")


def make(store: str, namespace: str, folder: str, placement: str, megabytes: float) -> dict[str, Any]:
    """Make a session with a run that waits; return its id, the answer to come, and the session's process."""
    engine = Librarian(text_of(megabytes, "engine"), folder)
    manager = SessionManager(
        store,
        engine=engine,
        memory=[handbook()],
        namespace=namespace,
        placement=PLACEMENTS[placement],
        config=RESUMED,
    )
    chat = manager.open(namespace, user_id=USER)
    chat.memory.recall("rule 7")
    run = chat.run("What have you?", memory="off")
    return {"run_id": run.run_id, "pid": process_of(chat.info()), "answer": engine.answer}


def begin(address: str, *where: str) -> None:
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    store, namespace, folder, placement, megabytes = where
    print(json.dumps(make(store, namespace, folder, placement, float(megabytes))), flush=True)
    os._exit(0)  # as a program that is killed: it closes nothing


if __name__ == "__main__":
    from processes import large_settings  # noqa: PLW0406 - not as __main__: engines are to be found by their module

    large_settings.begin(*sys.argv[1:])
