"""Writes examples to a file, as JSON Lines or Parquet: whole, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from turnwise.dataset.messages import Example
from turnwise.dataset.selection import Selection
from turnwise.dataset.tables import arrow, schema_of, table_of
from turnwise.errors import InvalidInputError


class Writer(Protocol):
    """Adds examples to a file."""

    def __call__(self, examples: Sequence[Example]) -> None:
        """Add examples."""


@contextmanager
def writing(path: str | Path, selection: Selection) -> Iterator[Writer]:
    """Yield what writes examples to a file, which is in its place once all are written; an existing one is replaced.

    Raises:
        InvalidInputError: the name of the file ends neither with .jsonl nor with .parquet.
        ConfigError: Parquet needs a package that is not installed.
    """
    file = Path(path)
    if file.suffix not in (".jsonl", ".parquet"):
        raise InvalidInputError("path", str(path), "must end with .jsonl or .parquet, which says what is written")
    part = file.with_name(f"{file.name}.part")
    try:
        if file.suffix == ".jsonl":
            with part.open("w", encoding="utf-8", newline="\n") as out:
                yield lambda examples: out.writelines(map(line_of, examples))
        else:
            arrow()
            from pyarrow import parquet

            schema = schema_of(selection)
            with parquet.ParquetWriter(part, schema) as writer:
                yield lambda examples: writer.write_table(table_of(examples, schema))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def line_of(example: Example) -> str:
    """Return an example as a line of JSON."""
    return json.dumps(example, ensure_ascii=False, separators=(",", ":")) + "\n"
