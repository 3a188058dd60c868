"""Makes docs/benchmarks-memory.md from the figures of `recall.py`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from long_term.report import ROWS, Report, goals_of
from page_parts import machine, markdown, today

ROOT = Path(__file__).parents[3]

PARTS = frozenset(("recall", "facts", "meaning", "standing", "speed"))
"""The parts of `recall.py` that the page shows."""

PACKAGES = ("turnwise", "chromadb", "numpy", "sqlalchemy")

HEAD = """# Benchmarks of long-term memory

What long-term memory finds, beside BM25 and vectors alone on the same texts, and how fast it is. Made by
`make bench-memory DATA=folder`, which writes this page: run it on your conversations.
[Benchmarks](benchmarks.md#what-long-term-memory-finds-again) compares with other libraries."""

BEHIND = """What is below its goal, or below what BM25 or vectors alone give in the same run. What is found by words is
compared with BM25 only."""

MEANING = """Each conversation is a user, each turn an item, each question a query. **recall@10** is the share of what
answers a question that is among the first ten items, averaged over the questions; *reminded* is the same of what a
prompt gets by itself, and **needs nothing: nothing** is the share of messages that need no memory and get none. BM25
has k1 = 1.2, b = 0.75 and Snowball's stems; vectors are all-MiniLM-L6-v2's, compared by cosine. The other figures are
of the same questions in other ways of writing, of two questions in one prompt, and of abilities that BEAM names. In
parentheses stands the goal, a least value. The weights of the ranking were chosen while looking at parts of these
conversations, so expect a little less on yours."""

SPEED = """20,000 items of 100 users, drawn from the conversations of people, in SQLite and a folder of Chroma's.
Vectors are made without a model. Times are medians of one process. Chroma's own query has the same vectors, and its
turn after each recall. The machine's load was {loads}: where that is above its number of cores, other work stretches
what takes long, such as 64 recalls at once, more than what is short."""


def text_of(report: Report, command: str) -> str:
    """Return the page, for what the command has measured today."""
    return "\n\n".join(_parts(report, command)) + "\n"


def write(report: Report, command: str) -> None:
    (ROOT / "docs/benchmarks-memory.md").write_text(text_of(report, command), encoding="utf-8")


def _parts(report: Report, command: str) -> Iterator[str]:
    yield HEAD
    packages = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    yield f"Measured on {today()} by `{command}`, with: {machine()}; {packages}."
    yield "## Where turnwise is behind"
    yield BEHIND
    behind = [*report.behind()]
    yield markdown([("", "", "turnwise", "above it"), *behind]) if behind else "Nowhere."
    yield "## What is found"
    yield MEANING
    for data in dict.fromkeys(data for data, _ in report.figures):
        yield f"**{data}**: {report.sizes[data]}"
        yield markdown([("", *ROWS), *_rows(report, data)])
    if report.speeds:
        yield "## How fast it is"
        yield SPEED.format(loads=" to ".join(f"{load:.1f}" for load in report.loads))
        yield markdown([("", "median", "goal"), *((speed.name, speed.shown, speed.judged) for speed in report.speeds)])


def _rows(report: Report, data: str) -> Iterator[tuple[str, ...]]:
    for (name, figure), values in report.figures.items():
        if name == data:
            shown = {row: f"{value:.3f}" for row, value in values.items()}
            goals = {row: f" ({goal:.2f})" for row, goal in goals_of(data, figure).items()}
            yield figure, *(shown[row] + goals.get(row, "") if row in shown else "" for row in ROWS)
