"""Helpers of the bench: samples, the table, and ending processes."""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import ray

from engines import process_of
from turnwise import Session
from turnwise.actors.cluster.calls import local_calls
from verdicts import Goal

WIDTH = 50


class Samples(list[float]):
    """A list of durations, in seconds."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the duration of the block."""
        began = time.perf_counter()
        yield
        self.append(time.perf_counter() - began)

    @property
    def median(self) -> float:
        return statistics.median(self)

    def percentile(self, percent: int) -> float:
        """Return this percentile of the samples; the largest sample if there are few."""
        return sorted(self)[min(len(self) - 1, len(self) * percent // 100)]


class ProcessorTime(dict[int, float]):
    """The processor time of processes in seconds, by process id: of all threads, in the program and in the kernel."""

    @contextmanager
    def measured(self, *pids: int) -> Iterator[None]:
        """Add what these processes take during the block."""
        before = [processor_s(pid) for pid in pids]
        yield
        for pid, seconds in zip(pids, before, strict=True):
            self[pid] = self.get(pid, 0.0) + processor_s(pid) - seconds


def processor_s(pid: int) -> float:
    """Return how many seconds of processor time a process has taken, in steps of the kernel's ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Table:
    """Prints a line for each measurement when it is done, and keeps the goals.

    A line that begins with spaces belongs to the last one that does not; a goal's name says both.
    """

    def __init__(self) -> None:
        self.goals: list[Goal] = []
        self._above = ""
        print(f"{'':{WIDTH}} {'n':>5} {'p10':>9} {'median':>9} {'p90':>9} {'p99':>9}   result")

    @property
    def met(self) -> int:
        return sum(goal["met"] for goal in self.goals)

    def line(self, title: str, samples: Samples | None = None, result: str = "") -> None:
        self._above = self._above if title.startswith(" ") else title
        columns = ""
        if samples is not None:
            shown = (samples.percentile(10), samples.median, samples.percentile(90), samples.percentile(99))
            columns = f"{len(samples):>5} " + " ".join(f"{value * 1000:>6.2f} ms" for value in shown)
        print(f"{title:{WIDTH}} {columns:{45 if result else 0}}   {result}".rstrip(), flush=True)

    def judge(
        self,
        title: str,
        value: float,
        goal: float,
        unit: str = "x",
        samples: Samples | None = None,
        *,
        bound: Literal["most", "least"] = "most",
    ) -> None:
        """Print a line with a goal: `value` must be `bound` the goal."""
        met = value <= goal if bound == "most" else value >= goal
        shown = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        self.line(title, samples, f"{shown}{unit}, goal at {bound} {goal:,g}{unit}: {'met' if met else 'MISSED'}")
        name = title if title == self._above else f"{self._above}: {title.strip()}"
        self.goals.append({"name": name, "value": value, "unit": unit, "bound": bound, "goal": goal, "met": met})


@dataclass
class Calls:
    """How many requests of this process actors have answered."""

    local: int = 0
    """Over a socket."""
    by_ray: int = 0
    """How many calls by Ray it has submitted, by any handle."""


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Count this process's calls of actors while the context is open."""
    calls = Calls()
    submit: Callable[..., Any] = ray.actor.ActorHandle._actor_method_call  # noqa: SLF001 - all calls by Ray
    ask, ask_blocking = local_calls.ask, local_calls.ask_blocking

    async def counting(*args: Any) -> bytes | None:
        answer = await ask(*args)
        calls.local += answer is not None
        return answer

    def counting_blocking(*args: Any) -> bytes | None:
        answer = ask_blocking(*args)
        calls.local += answer is not None
        return answer

    def counting_by_ray(*args: Any, **kwargs: Any) -> Any:
        calls.by_ray += 1
        return submit(*args, **kwargs)

    with (
        mock.patch.object(ray.actor.ActorHandle, "_actor_method_call", counting_by_ray),
        mock.patch.object(local_calls, "ask", counting),
        mock.patch.object(local_calls, "ask_blocking", counting_blocking),
    ):
        yield calls


def prompt_of(chars: int, seed: int = 0) -> str:
    """Return text with this number of characters, in words."""
    rng = random.Random(seed)
    words = ("".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(chars))
    return " ".join(words)[: chars - 1] + "."


def retire(session: Session) -> None:
    """End a session's process, so that it does not disturb the next measurement."""
    end_process(session.actor, process_of(session.info()))


def end_process(actor: Any, pid: int) -> None:
    ray.kill(actor)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
