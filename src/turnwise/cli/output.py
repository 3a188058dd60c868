"""What commands print: tables and colours on a terminal, lines with tabs elsewhere, or JSON.

Texts of users and models are never read as markup, and their control characters are made visible.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from turnwise.memory.values.plain_text import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_GAP = 2
"""The space between two columns."""

Cell = str | tuple[str, str]
"""The text of a table's cell, or the text and its style on a terminal."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    right: bool = False
    """Whether it is aligned to the right, as numbers are."""
    cut: bool = False
    """Whether a terminal shows only the beginning of a text that is too long for it. Others are never cut."""


def harmless(text: object) -> str:
    """Return the text with control characters made visible, so that it cannot move a cursor or change colours.

    Newlines stay, and tabs become spaces.
    """
    return plain(str(text)).expandtabs(4)


def one_line(text: object) -> str:
    """Return the harmless text in one line."""
    return " ".join(harmless(text).split("\n"))


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    """Return rich's console. It reads no text as markup; `NO_COLOR` switches its colours off."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def write(text: str = "") -> None:
    """Print lines of a text that is harmless already."""
    typer.echo(text)


def note(text: object) -> None:
    """Print one line on standard error, about what a command does beside its output."""
    typer.echo(one_line(text), err=True)


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table without empty columns on a terminal; elsewhere, a line of names and one for each row, with tabs."""
    if not is_terminal():
        write("\t".join(column.name for column in columns))
        for row in rows:
            write("\t".join(one_line(cell if isinstance(cell, str) else cell[0]) for cell in row))
        return
    from rich.table import Table

    texts = [[_text(cell) for cell in row] for row in rows]
    used = [index for index, _ in enumerate(columns) if not texts or any(row[index].plain for row in texts)]
    columns, texts = [columns[index] for index in used], [[row[index] for index in used] for row in texts]
    widths = [max([len(column.name), *(row[index].cell_len for row in texts)]) for index, column in enumerate(columns)]
    cuts = [index for index, column in enumerate(columns) if column.cut]
    screen = console()
    width_left = (
        screen.width - sum(width for index, width in enumerate(widths) if index not in cuts) - _GAP * (len(columns) - 1)
    )
    for index in cuts:
        widths[index] = min(widths[index], max(len(columns[index].name), width_left // len(cuts)))
    screen.width = max(screen.width, sum(widths) + _GAP * len(widths))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.name, justify="right" if column.right else "left", overflow="ellipsis", no_wrap=True, width=width
        )
    for line in texts:
        table.add_row(*line)
    screen.print(table)


def _text(cell: Cell) -> Text:
    from rich.text import Text

    return Text(one_line(cell)) if isinstance(cell, str) else Text(one_line(cell[0]), cell[1])


def print_json(value: object) -> None:
    """Print one JSON document, indented on a terminal. All that is not ASCII is escaped."""
    write(json.dumps(value, indent=2 if is_terminal() else None, default=_as_json))


def print_json_line(value: object) -> None:
    """Print one line of JSON Lines."""
    write(json.dumps(value, default=_as_json))


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show on standard error how far a long work is; nothing if that is no terminal.

    Args:
        label: what the command does, such as "export".
        total: how much there is to do; None if that is not known.

    Yields:
        What to call with how much is done, and with what else to say of it, if anything.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    done: Any = TextColumn("{task.fields[count]}", markup=False)  # nothing until something is counted
    columns = [BarColumn(), TaskProgressColumn("{task.percentage:>3.0f}%", markup=False)] if total else [done]
    name = TextColumn("{task.description}", markup=False)
    with Progress(
        SpinnerColumn(), name, *columns, TimeElapsedColumn(), console=console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(one_line(label), total=total, count="")
        yield lambda count, more="": bar.update(task, completed=count, count=one_line(f"{count:,}{more}"))


def _as_json(value: Any) -> Any:
    """Return what JSON has for an object: a pydantic model, a dataclass, or a frozen mapping."""
    from pydantic import BaseModel, TypeAdapter

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return TypeAdapter(type(value)).dump_python(value, mode="json")
