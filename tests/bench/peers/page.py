"""Makes docs/benchmarks.md of what was measured."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peers.bench import Table

QUESTIONS = ["growth", "many", "second", "stopping", "crash", "resident", "starting", "recall"]

HEAD = """# Benchmarks

Made by `make bench-peers`, which writes this page: run it again. It installs the libraries below into an environment of
its own, `.venv-peers`, and takes some 20 minutes; `QUICK=1 make bench-peers` shows in 4 that it works, and writes
nothing. Each library works in a process of its own, at its defaults, with what it has for SQLite.

In a table of times, **ratio** is the median, compared with that of the first row: above 1 is slower than it. p90 and
p99 are percentiles, the spread is from p25 to p75 in percent of the median, and count says how many samples there are;
if they are fewer than 100, p99 is the largest. The machine may have had other work, so take the ratios rather than the
milliseconds."""

NOT_EQUAL: Table = [
    ("", "turnwise", "LangGraph", "OpenAI Agents SDK", "Pydantic AI", "Google ADK"),
    ("a turn also stores", "its run, events and usage", "a checkpoint for each step", "no more", "no more", "events"),
    ("another process can follow and stop a run", "yes", *["no"] * 4),
    ("a second prompt meanwhile", "refused, queued or takes over", *["answered too"] * 3, "answered or refused"),
    ("a late writer is refused", "yes, by epochs", *["no"] * 3, "yes, if others have written since it read"),
    ("runs are", "in Ray's processes", *["in your process"] * 4),
]

LESS = """Where the others are ahead: they need no Ray, so a program has its first answer earlier and fewer processes,
and a stop has nothing to store. LangGraph has graphs of steps, the Agents SDK handoffs and guardrails, Google ADK
agents of agents and their evaluation, Pydantic AI answers of checked types: nothing of that is measured here.
mem0 has a model pick facts out of what was said, and its own search by words."""


def text_of(results: Mapping[str, Any], pictures: Mapping[str, str] | None = None) -> str:
    """Return the page.

    Args:
        pictures: for each question that has one, the picture's path.
    """
    intro = "The same work is asked of all, but not all do the same for it:"
    parts = [HEAD, *_parts(results, pictures or {}), "## What is not equal", intro, markdown(NOT_EQUAL), LESS]
    return "\n\n".join(parts) + "\n"


def _parts(results: Mapping[str, Any], pictures: Mapping[str, str]) -> Iterator[str]:
    yield f"Measured with: {results['machine']}."
    told = [*results["versions"].values(), *results.get("recall", {}).get("versions", {}).values()]
    versions = {f"{package} {number}": None for each in told for package, number in each.items()}
    yield f"Versions: {', '.join(versions)}."
    for question in QUESTIONS:
        if question in results:
            module = importlib.import_module(f"peers.{question}")
            heading = heading_of(question)
            yield f"## {heading}"
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


def markdown(table: Table) -> str:
    heading, *rows = table
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', ' ') for cell in line)} |" for line in lines)


def write(results: Mapping[str, Any], docs: Path) -> None:
    """Write the page and its pictures."""
    from peers import plots  # its library is in the environment of the peers only

    pictures = plots.draw(results, docs / "images")
    (docs / "benchmarks.md").write_text(text_of(results, pictures), encoding="utf-8")
