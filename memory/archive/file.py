"""`ArchiveFile`: an archive in a folder that several sweeps may use at once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from turnwise.errors import ArchiveError


@dataclass(frozen=True)
class ArchiveFile:
    """A file that one sweep has written. Another sweep may replace it; each sweep deletes only its own file."""

    path: Path
    _identity: tuple[int, int, int]

    @classmethod
    def put(cls, written: Sequence[tuple[Path, Path]]) -> list[Self]:
        """Give written files of a folder their final names; return when these are on disk.

        A file that has its session as of a later commit is not replaced: another sweep may have deleted the session
        since, and this one's is of no use.

        Args:
            written: of each file the name until now, and its final one, whose file it replaces.
        """
        files = [cls(path, _identity(part)) for part, path in written]
        for parent in {path.parent for _, path in written}:
            with _locked(parent) as folder:
                for part, path in written:
                    if path.parent == parent and not _is_later(path, part):
                        part.replace(path)
                os.fsync(folder)
        return files

    def remove(self) -> None:
        """Delete the file, unless another sweep has replaced it: that sweep may have deleted the session since."""
        with suppress(FileNotFoundError), _locked(self.path.parent):
            if _identity(self.path) == self._identity:
                self.path.unlink()


def part_of(path: Path) -> Path:
    """Return a unique name for a file while it is written."""
    return path.with_name(f"{path.name}.{secrets.token_hex(6)}.part")


def updated_at(path: Path) -> float | None:
    """Return when the session was changed last that a file has; None if there is no file, or it cannot be read."""
    from turnwise.memory.archive.format import read_lines

    try:
        with path.open(encoding="ascii") as file:
            first = next(read_lines(file))
    except (FileNotFoundError, ArchiveError, ValueError):
        return None
    record = first.value.get("session")
    changed = record.get("updated_at") if isinstance(record, dict) else None
    return changed if isinstance(changed, int | float) else None


def _is_later(path: Path, than: Path) -> bool:
    """Return whether the session in a file is of a later commit than that in another; False if it is not known."""
    present, own = updated_at(path), updated_at(than)
    return present is not None and own is not None and present > own


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Open a folder, for one sweep at a time where the file system has locks; it yields the descriptor."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(ImportError, OSError):  # some network file systems lock no folders
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns
