"""What each question gets: the peers' processes, and how much is asked."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from peers.peer import Model


class Working(Protocol):
    """A peer's process; see `worker.Worker`."""

    name: str
    folder: Path

    @property
    def pid(self) -> int: ...

    def do(self, verb: str, **arguments: Any) -> Any: ...

    def ask(self, verb: str, **arguments: Any) -> None: ...

    def answer(self) -> Any: ...

    def kill(self, *, all_of_it: bool = True) -> None: ...

    def close(self) -> None: ...


Start = Callable[[str, Path, Model, Mapping[str, str]], Working]
"""Starts the process of a peer, by its name, with its folder, its model and its environment variables."""

Table = Sequence[Sequence[str]]
"""The heading and the rows."""


@dataclass(frozen=True, slots=True)
class Bench:
    start: Start
    names: Sequence[str]
    """The peers, the first of which the others are compared with."""
    folder: Path
    quick: bool = False

    @property
    def ray_envs(self) -> dict[str, Mapping[str, str]]:
        """Those of the peers that are turnwise on Ray, with no environment variables."""
        return {name: {} for name in self.names if name.startswith("turnwise") and name != "turnwise, in process"}

    def start_one(self, name: str, place: str, model: Model, env: Mapping[str, str] | None = None) -> Working:
        """Start the process of a peer; processes of one peer in the same place share a store."""
        folder = self.folder / place / re.sub(r"\W+", "-", name)
        folder.mkdir(parents=True, exist_ok=True)
        return self.start(name, folder, model, env or {})

    @contextmanager
    def all(
        self, place: str, model: Model, envs: Mapping[str, Mapping[str, str]] | None = None
    ) -> Iterator[dict[str, Working]]:
        """Start the processes of all peers, or of those in `envs`, at the same time; they end together too."""
        workers = {}
        try:
            for name in self.names if envs is None else envs:
                workers[name] = self.start_one(name, place, model, (envs or {}).get(name))
            yield workers
        finally:
            with ThreadPoolExecutor() as threads:
                list(threads.map(lambda worker: worker.close(), workers.values()))


def ask_all(workers: Mapping[str, Working], verb: str, **arguments: Any) -> dict[str, Any]:
    """Have all workers do the same at the same time, without timing them; return the answer of each."""
    for worker in workers.values():
        worker.ask(verb, **arguments)
    return {name: worker.answer() for name, worker in workers.items()}


def stored_in(worker: Working) -> int:
    """Return how many bytes a peer has stored."""
    return sum(file.stat().st_size for file in worker.folder.glob("store.db*"))


def percentile(samples: Sequence[float], percent: int) -> float:
    """Return this percentile of the samples; the largest sample if there are few."""
    return sorted(samples)[min(len(samples) - 1, len(samples) * percent // 100)]


TIMES = ("", "ratio", "median", "p90", "p99", "spread", "count")
"""The heading of a table of durations; the spread is from p25 to p75, in percent of the median."""


def times_table(samples: Mapping[str, Sequence[float]], notes: Mapping[str, str] | None = None) -> Table:
    """Return a table of durations, in seconds, whose ratios are to the first row's median.

    A peer without samples cannot do it: its row has dashes.
    """
    rows = [TIMES]
    first = statistics.median(next(filter(None, samples.values()), [1.0]))
    for name, values in samples.items():
        if not values:
            rows.append((name, *["-"] * (len(TIMES) - 1)))  # type: ignore[arg-type]
            continue
        middle = statistics.median(values)
        spread = (percentile(values, 75) - percentile(values, 25)) / middle * 100
        texts = (ms(value) for value in (middle, percentile(values, 90), percentile(values, 99)))
        note = (notes or {}).get(name, "")
        rows.append((f"{name}{note}", f"{middle / first:.2g}", *texts, f"{spread:.0f} %", f"{len(values):,}"))  # type: ignore[arg-type]
    return rows


def ms(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def megabytes(count: float) -> str:
    value = count / 1e6
    return f"{value:,.0f} MB" if value >= 100 else f"{value:.3g} MB"


def history_text(history: Sequence[Sequence[Any]]) -> str:
    """Return a history as it is shown in a table."""
    return "; ".join(f"{role}: {text.strip()}" for role, text in history) or "nothing"
