"""How long one step of an event loop, or one transaction of a store, holds up everybody else.

Times are those of the thread's processor, so waiting for a busy machine does not lengthen them. A slow one does:
`slowness` says how much slower it is at a fixed piece of work than the machine for which the bounds are documented.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.sql.commits import CommitWriter

LOOP_S, STORE_S = 0.050, 0.200
"""The bounds that `docs/reliability.md` promises: of a step of an event loop, and of a transaction."""

_USUAL_S = 0.060
"""How long `_work` takes where the bounds were measured."""


def slowness() -> float:
    """Return how many times slower this machine is than where the bounds were measured; 1 if it is faster."""
    began = time.thread_time()
    _work()
    return max(1.0, (time.thread_time() - began) / _USUAL_S)


def _work() -> None:
    for _ in range(3):
        json.loads(json.dumps([{"text": str(number), "number": [number]} for number in range(10_000)]))


@dataclass
class Holds:
    """The longest holds of this process since the last `take`."""

    loop_s: float = 0.0
    what: str = ""
    """The step that held its loop longest."""
    store_s: float = 0.0
    _threads: set[int] = field(default_factory=set)

    def take(self) -> dict[str, Any]:
        """Return the longest holds, and reset them."""
        holds = {"pid": os.getpid(), "loop_s": self.loop_s, "what": self.what, "store_s": self.store_s}
        self.loop_s, self.what, self.store_s = 0.0, "", 0.0
        return holds

    def add_loop(self) -> None:
        """Measure the steps of the event loop of this thread, too."""
        self._threads.add(threading.get_ident())

    def install(self) -> None:
        """Measure from now on."""
        run: Callable[[asyncio.Handle], None] = asyncio.Handle._run  # noqa: SLF001 - each step of a loop
        write = CommitWriter.write

        def measured_run(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > self.loop_s and threading.get_ident() in self._threads:
                self.loop_s, self.what = took, repr(handle)[:300]

        def measured_write(writer: CommitWriter, cursor: Any, group: Sequence[Any]) -> Any:
            began = time.thread_time()
            try:
                return write(writer, cursor, group)
            finally:
                self.store_s = max(self.store_s, time.thread_time() - began)

        asyncio.Handle._run = measured_run  # type: ignore[assignment, method-assign] # noqa: SLF001 - of this process
        CommitWriter.write = measured_write  # type: ignore[assignment, method-assign]


HOLDS = Holds()
"""Those of this process."""

_installed: list[bool] = []


def measure_this_loop() -> None:
    """Measure the running event loop, and the stores of this process. May be repeated."""
    if not _installed:
        _installed.append(True)
        HOLDS.install()
    HOLDS.add_loop()


class HoldsEngine:
    """Answers with the longest holds of its process since its last answer, as JSON."""

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        measure_this_loop()
        return [Text(text=json.dumps(HOLDS.take()))]
