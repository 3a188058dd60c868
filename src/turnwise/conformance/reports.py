"""`report`: checks all laws of a kind, each by itself, and returns what came out as a table."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Literal, get_args

from turnwise.conformance.skipping import SkippedError
from turnwise.errors import InvalidInputError, shown

Kind = Literal[
    "store", "event-store", "item-store", "vectors", "memory", "read-only-memory", "strategy", "engine", "placement"
]
"""What there are laws for. A name of one of these is also that of pytest's option: `--turnwise-store`, and so on."""

Verdict = Literal["passed", "failed", "skipped"]

_LAWS: Mapping[Kind, tuple[str, str]] = {
    "store": ("turnwise.memory.stores.conformance.suite", "LAWS"),
    "event-store": ("turnwise.memory.event_store.conformance", "LAWS"),
    "item-store": ("turnwise.memory.longterm.items.conformance", "LAWS"),
    "vectors": ("turnwise.memory.longterm.index.conformance", "LAWS"),
    "memory": ("turnwise.memory.longterm.conformance", "LAWS"),
    "engine": ("turnwise.conformance.engines", "LAWS"),
    "placement": ("turnwise.conformance.placements", "LAWS"),
}
"""Where the laws of a kind are, of those that check one thing each on objects of their own."""

READ_ONLY = "reads_only_and_finds_what_it_was_given"
"""The one law of read-only memories."""

LEFT_S = 1.0
"""How many seconds what a law has left behind may take to end."""

SEEDS = 200
"""On how many random conversations a strategy is checked."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one law."""

    law: str
    verdict: Verdict
    why: str = ""
    """Why it failed or was skipped."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """The outcomes of all laws of a kind."""

    kind: Kind
    subject: str
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether no law failed."""
        return not self.count("failed")

    def count(self, verdict: Verdict) -> int:
        """Return how many laws came out so."""
        return sum(outcome.verdict == verdict for outcome in self.outcomes)

    def __str__(self) -> str:
        """Return the table: a line for each law, then the counts."""
        width = max((len(outcome.law) for outcome in self.outcomes), default=0)
        lines = [f"{self.kind}: {self.subject}"]
        for outcome in self.outcomes:
            reason = f"  {' '.join(outcome.why.split())[:300]}" if outcome.why else ""
            lines.append(f"  {outcome.verdict:7}  {outcome.law:{width}}{reason}".rstrip())
        counts = [f"{self.count(verdict)} {verdict}" for verdict in get_args(Verdict)]
        return "\n".join([*lines, f"  {len(self.outcomes)} laws: {', '.join(counts)}"])

    def json(self) -> str:
        """Return the report as a JSON object: `kind`, `subject`, the counts, and `laws` with what came out of each."""
        counts = {verdict: self.count(verdict) for verdict in get_args(Verdict)}
        laws = [asdict(outcome) for outcome in self.outcomes]
        return json.dumps({"kind": self.kind, "subject": self.subject, **counts, "laws": laws}, ensure_ascii=False)


Make = Callable[..., Any]
"""Makes what is checked; see `report`."""


def laws_of(kind: Kind) -> list[str]:
    """Return the names of the laws of a kind, in order.

    Raises:
        InvalidInputError: there is no such kind.
    """
    if kind == "strategy":
        from turnwise.strategies.plan import Law

        return [name.replace(" ", "_") for name in get_args(Law)]
    if kind == "read-only-memory":
        return [READ_ONLY]
    return [_name(law) for law in _laws(kind)]


def report(kind: Kind, make: Make, laws: Sequence[str] = (), *, subject: str = "") -> Report:
    """Check all laws of a kind, and return what came out of each. Blocks; call it where no event loop runs.

    Args:
        kind: see `Kind`.
        make: for stores, memories and engines, called with the name of a law; objects of one name share their data,
            which is empty at first. It may return None for a law that it cannot be checked by, which is skipped. For
            strategies, called with a `Case`, whose `budget` its settings may depend on. For read-only memories, called
            with the items that the memory has. For placements, called with the name of a law; a Ray is started.
        laws: only these; all by default.
        subject: what the report calls the object.

    Raises:
        InvalidInputError: there is no such kind, or no such law.
    """
    names = laws_of(kind)
    if unknown := [law for law in laws if law not in names]:
        raise InvalidInputError("laws", shown(unknown[0]), f"must be one of {', '.join(names)}")
    outcomes = tuple(outcomes_of(kind, make, laws or names))
    return Report(kind, subject or getattr(make, "__qualname__", repr(make)), outcomes)


def outcomes_of(kind: Kind, make: Make, laws: Sequence[str]) -> Iterator[Outcome]:
    """Check laws by their names, one after another, and yield what came out of each."""
    if kind == "strategy":
        yield from _of_strategy(make, laws)
        return
    laws_by_name = {} if kind == "read-only-memory" else {_name(law): law for law in _laws(kind)}
    for name in laws:
        began = time.perf_counter()
        verdict: Verdict = "passed"
        reason = ""
        try:
            _run(_check(laws_by_name.get(name), name, make))
        except SkippedError as error:
            verdict, reason = "skipped", str(error)
        except Exception as error:  # noqa: BLE001 - what is checked may raise anything
            if isinstance(error.__cause__, SkippedError):
                verdict, reason = "skipped", str(error.__cause__)
            else:
                verdict = "failed"
                reason = (
                    str(error).removeprefix(f"check_{name}: ") if isinstance(error, AssertionError) else repr(error)
                )
        yield Outcome(name, verdict, reason, round(time.perf_counter() - began, 3))


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a loop of its own; drop what it leaves behind, such as an engine that ignores cancels."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.set_exception_handler(lambda *_: None)
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=LEFT_S))
        loop.close()


async def _check(law: Any, name: str, make: Make) -> None:
    if law is None:
        from turnwise.memory.longterm.conformance import check_read_only_memory

        await check_read_only_memory(make)
        return
    objects = [make(name) for _ in inspect.signature(law).parameters]
    if None in objects:
        raise SkippedError("make returned None for this law")
    try:
        await law(*objects)
    finally:
        for instance in objects:
            if hasattr(instance, "close"):
                await instance.close()


def _of_strategy(make: Make, laws: Sequence[str]) -> Iterator[Outcome]:
    """Check a strategy on random conversations. A case ends at the first law that is broken in it."""
    from turnwise.strategies.conformance import check_strategy

    began = time.perf_counter()
    broken: dict[str, str] = {}
    for seed in range(SEEDS):
        try:
            check_strategy(make, [seed])
        except Exception as error:  # noqa: BLE001 - what is checked may raise anything
            law, _, reason = str(error).partition(": ") if isinstance(error, AssertionError) else ("decides", "", "")
            broken.setdefault(law.replace(" ", "_") if reason else "decides", reason or f"{error!r} (seed {seed})")
    seconds = round((time.perf_counter() - began) / max(1, len(laws)), 3)
    for law in laws:
        yield Outcome(law, "failed" if law in broken else "passed", broken.get(law, ""), seconds)
    for law in broken.keys() - set(laws_of("strategy")):
        yield Outcome(law, "failed", broken[law], 0.0)


def _laws(kind: Kind) -> Sequence[Any]:
    if kind not in _LAWS:
        raise InvalidInputError("kind", shown(kind), f"must be one of {', '.join(get_args(Kind))}")
    module, name = _LAWS[kind]
    return tuple(getattr(import_module(module), name))


@functools.cache
def _name(law: Any) -> str:
    return str(law.__name__).removeprefix("check_")
