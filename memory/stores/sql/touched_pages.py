"""Records which pages of SQLite files a deletion wrote, so that they can be searched for the deleted text."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_touched: ContextVar[dict[Path, set[int]] | None] = ContextVar("turnwise_touched", default=None)


@contextmanager
def noting(pages: dict[Path, set[int]]) -> Iterator[None]:
    """Add to `pages`, by file, the pages that are written in this context."""
    token = _touched.set(pages)
    try:
        yield
    finally:
        _touched.reset(token)


def notes_pages() -> bool:
    """Return whether this context records written pages."""
    return _touched.get() is not None


def note_pages(file: Path, pages: Collection[int]) -> None:
    """Record the pages of a SQLite file that a deletion wrote."""
    if (touched := _touched.get()) is not None:
        touched.setdefault(file, set()).update(pages)
