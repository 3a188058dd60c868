"""Makes docs/benchmarks.md from the measurements."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from page_parts import markdown
from peers import behind
from peers.bench import Table

QUESTIONS = [
    "growth",
    "many",
    "second",
    "stopping",
    "crash",
    "teams",
    "timers",
    "resident",
    "starting",
    "replay",
    "recall",
]

HEAD = """# Benchmarks

Made by `make bench-peers`, which writes this page: run it again. It installs the libraries below into an environment of
its own, `.venv-peers`; `QUICK=1 make bench-peers` shows in 6 minutes that it works, and writes nothing. Each library
works in a process of its own, with what it has for SQLite. Each part says on which day it was measured, and by which
command: `make bench-peers ARGS="--add --questions recall"` measures one part anew.
[Benchmarks of long-term memory](benchmarks-memory.md) have what turnwise's memory finds of more data, and its goals.

In a table of times, **ratio** is the median, compared with that of the first row: above 1 is slower than it. p90 and
p99 are percentiles, the spread is from p25 to p75 in percent of the median, and count says how many samples there are;
if they are 100 or fewer, p99 is the largest. The machine may have had other work, so take the ratios rather than the
milliseconds.

All libraries are used at their defaults, but for these: nothing is reported to the makers of Ray, Chroma, mem0 and the
OpenAI Agents SDK, whose tracing is off; Chroma compares vectors by cosine, as the others do; VectorMemory may take
600 s to search (`query_s`), so that a slow machine finds as much as a fast one; mem0 keeps each text as it is
(`infer=False`); and Google ADK streams (`StreamingMode.SSE`) where words are read. Pydantic AI with DBOS is its
`DBOSDurability` in a workflow for each turn, with DBOS's tables and the program's history in one SQLite file."""

NOT_EQUAL: Table = [
    ("", "turnwise", "LangGraph", "OpenAI Agents SDK", "Pydantic AI", "Pydantic AI with DBOS", "Google ADK"),
    (
        "a turn also stores",
        "its run, events and usage",
        "a checkpoint for each step",
        *["no more"] * 2,
        "its workflow and steps",
        "events",
    ),
    ("another process can stop a run", "yes", *["no"] * 3, "yes, between steps", "no"),
    ("another process can follow a run", "yes, each word", *["no"] * 3, "what the program writes to a stream", "no"),
    ("a second prompt meanwhile", "refused, queued or takes over", *["answered too"] * 4, "answered or refused"),
    ("a late writer is refused", "yes, by epochs", *["no"] * 4, "yes, if others have written since it read"),
    (
        "a run after a crash, by default",
        'ends as interrupted; goes on with `on_lost="resume"`',
        "is lost; the program may go on from its last checkpoint",
        *["is lost"] * 2,
        "goes on after its last step",
        "is lost",
    ),
    ("runs are", "in Ray's processes; in your process with `InProcess`", *["in your process"] * 5),
]

BEHIND = """These numbers of the page, each of its day, are better than turnwise's by over a tenth. In each row, the
best of them stands first."""

LESS = """The reasons: turnwise's runs are in Ray's processes, which take time to start and memory to be there, so a
program has its first answer later, and each dedicated session takes a process. A stop is a durable record, made in
another process, where most others cancel a task. A second agent has a session of its own, whose run and events are
stored before the first one goes on. VectorMemory saves a text in SQLite and its vector in Chroma. Where a
question shares no word with its answer, words say nothing, and vectors alone rank better."""

NOT_MEASURED = """What is not measured here: LangGraph has graphs of steps, the Agents SDK handoffs and guardrails,
Google ADK workflows of agents and their evaluation, Pydantic AI answers of checked types, DBOS queues and calendars.
mem0 has a model pick facts out of what was said, and its own search by words."""


def text_of(results: Mapping[str, Any], pictures: Mapping[str, str] | None = None) -> str:
    """Return the page.

    Args:
        pictures: for each question that has one, the picture's path.
    """
    intro = "The same work is asked of all, but not all do the same for it:"
    parts = [HEAD, *_machine(results), "## Where turnwise is behind", BEHIND, markdown(behind.table(results)), LESS]
    parts += [*_parts(results, pictures or {}), "## What is not equal", intro, markdown(NOT_EQUAL), NOT_MEASURED]
    return "\n\n".join(parts) + "\n"


def _machine(results: Mapping[str, Any]) -> Iterator[str]:
    minutes = sum(results["seconds"].values()) / 60
    yield f"All parts together took {minutes:.0f} minutes, with: {results['machine']}."
    version_maps = [*results["versions"].values(), *results.get("recall", {}).get("versions", {}).values()]
    versions = {f"{package} {number}": None for version_map in version_maps for package, number in version_map.items()}
    yield f"Versions: {', '.join(versions)}."


def _parts(results: Mapping[str, Any], pictures: Mapping[str, str]) -> Iterator[str]:
    for question in QUESTIONS:
        if question in results:
            module = importlib.import_module(f"peers.{question}")
            heading = heading_of(question)
            yield f"## {heading}"
            run = results["runs"][question]
            yield f"Measured on {run['day']} by `{run['command']}`."
            yield (module.__doc__ or "").strip().partition("\n\n")[2]
            for caption, table in module.show(results[question]):
                if caption:
                    yield f"**{caption}**"
                yield markdown(table)
            if question in pictures:
                yield f"![{heading}]({pictures[question]})"


def heading_of(question: str) -> str:
    """Return the first line of its file's docstring."""
    doc: str = importlib.import_module(f"peers.{question}").__doc__ or ""
    return doc.strip().partition("\n")[0]


def write(results: Mapping[str, Any], docs: Path) -> None:
    """Write the page and its pictures."""
    from peers import plots  # its library is in the environment of the peers only

    pictures = plots.draw(results, docs / "images")
    (docs / "benchmarks.md").write_text(text_of(results, pictures), encoding="utf-8")
