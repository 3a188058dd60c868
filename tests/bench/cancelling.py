"""Where the time of a cancel goes: stamps from the caller and from the session's process, which share a clock."""

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from turnwise import EchoEngine, Turn
from turnwise.actors.session.runs.admission import RunAdmission
from turnwise.engines import RunContext, SessionView
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.stores import SQLStore

PARTS = ("to the process", "in it", "to SQLite", "SQLite", "to the waiter")
"""The parts of a cancel, in order: the call on its way; the session's event loop, which also makes the waiter's answer;
making the rows, and waiting for the store's thread and for the loop after it, if the loop does not write itself; the
store's transaction; and the answer on its way, until the thread that waits has it."""

Stamp = tuple[str, float, float]
"""What happened, and from when to when, by `time.monotonic()`."""

Notes = Callable[[str], Any]
"""Returns a context manager that writes down when its block began and ended; it decorates functions, too."""


@dataclass
class Watched:
    """An engine that answers slowly, and writes down what its process does: cancels, commits, garbage collections."""

    path: str
    _is_watching: bool = field(default=False, init=False)

    def build(self, session: SessionView) -> "Watched":
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        if not self._is_watching:  # here, as `build` is also called in the caller's process
            self._is_watching = True
            watch(Path(self.path))
        return await EchoEngine(token_delay_s=0.01).run(turn, context)


def watch(path: Path) -> None:
    """Write a line to a file for each cancel, commit and garbage collection of this process from now on."""
    noted, admission, store = notes_in(path), cast(Any, RunAdmission), cast(Any, SQLStore)

    def awaited(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            with noted(name):
                return await do(*args, **kwargs)

        return call

    admission.cancel, store.commit = awaited("cancel", admission.cancel), awaited("commit", store.commit)
    store._write_in_file = noted("SQLite")(store._write_in_file)  # noqa: SLF001 - measures it
    gc.callbacks.append(collections(noted))


@contextmanager
def watched_collections(path: Path) -> Iterator[None]:
    """Meanwhile, write a line to a file for each garbage collection of this process."""
    callback = collections(notes_in(path))
    gc.callbacks.append(callback)
    try:
        yield
    finally:
        gc.callbacks.remove(callback)


def notes_in(path: Path) -> Notes:
    file = path.open("a", encoding="utf-8", buffering=1)

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        file.write(json.dumps([name, began, time.monotonic()]) + "\n")

    return noted


def collections(noted: Notes) -> Callable[[str, object], None]:
    """Return a callback for `gc.callbacks`."""
    collecting = ExitStack()

    def collection(phase: str, _: object) -> None:
        if phase == "start":
            collecting.enter_context(noted("gc"))
        else:
            collecting.close()

    return collection


def stamps_of(path: Path) -> list[Stamp]:
    return [tuple(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def parts_of(began: float, ended: float, stamps: Sequence[Stamp]) -> dict[str, float]:
    """Return the seconds of each part of a cancel, and those of garbage collection, which are in other parts too."""

    def of(wanted_name: str) -> list[tuple[float, float]]:
        return [(start, end) for name, start, end in stamps if name == wanted_name and began <= start <= ended]

    arrived, answered = of("cancel")[0]
    commit, transaction = (sum(end - start for start, end in of(step_name)) for step_name in ("commit", "SQLite"))
    seconds = (arrived - began, answered - arrived - commit, commit - transaction, transaction, ended - answered)
    return dict(zip(PARTS, seconds, strict=True)) | {"garbage": sum(end - start for start, end in of("gc"))}


def means_text(cancels: Sequence[Mapping[str, float]]) -> str:
    """Return the mean of each part, in milliseconds."""
    means = {name: statistics.fmean(seconds_of[name] for seconds_of in cancels) * 1000 for name in (*PARTS, "garbage")}
    return ", ".join(f"{name} {mean:.2g}" for name, mean in means.items())
