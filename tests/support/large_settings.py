"""A program with large settings that ends.

`python large_settings.py <address of Ray> <store> <namespace> <folder> <placement> <megabytes>` opens a manager with an
engine of so many megabytes and a memory with a large handbook, starts a run that waits for a file, and ends. Its
last line of output is JSON: the run's id and the process of its session.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import ray

from engines import process_of
from turnwise.actors.client.manager import SessionManager
from turnwise.actors.cluster.placement import Dedicated, Packed, Placement
from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.static import StaticMemory

RESUMED = SessionConfig(on_lost="resume", cancel_grace_s=0.5)

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


def begin(address: str, store: str, namespace: str, folder: str, placement: str, megabytes: float) -> None:
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    manager = SessionManager(
        store,
        engine=Librarian(text_of(megabytes, "engine"), folder),
        memory=[handbook()],
        namespace=namespace,
        placement=PLACEMENTS[placement],
        config=RESUMED,
    )
    chat = manager.open("chat", user_id="ada")
    run = chat.run("What have you?", memory="off")
    print(json.dumps({"run_id": run.run_id, "pid": process_of(chat.info())}), flush=True)
    os._exit(0)  # as a program that is killed: it closes nothing


if __name__ == "__main__":
    import large_settings  # not as __main__: engines are to be found by their module

    large_settings.begin(*sys.argv[1:6], megabytes=float(sys.argv[6]))
