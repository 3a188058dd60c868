"""`ArchiveFile`: an archive in a folder that several sweeps may use at once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class ArchiveFile:
    """A file that one sweep has written. Another sweep may replace it; each sweep deletes only its own file."""

    path: Path
    _identity: tuple[int, int, int]

    @classmethod
    def put(cls, written: Sequence[tuple[Path, Path]]) -> list[Self]:
        """Give written files of a folder their final names; return when these are on disk.

        Args:
            written: of each file the name until now, and its final one, whose file it replaces.
        """
        files: list[Self] = []
        for part, path in written:
            identity = _identity(part)
            part.replace(path)
            files.append(cls(path, identity))
        for parent in {path.parent for _, path in written}:
            folder = os.open(parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return files

    def remove(self) -> None:
        """Delete the file, unless another sweep has replaced it: that sweep may have deleted the session since."""
        aside = part_of(self.path)
        try:
            self.path.rename(aside)  # first, since another sweep may replace it between a check and a deletion
        except FileNotFoundError:
            return
        if _identity(aside) != self._identity:
            with suppress(FileExistsError):  # a third sweep has written one
                os.link(aside, self.path)
        aside.unlink()


def part_of(path: Path) -> Path:
    """Return a unique name for a file while it is written."""
    return path.with_name(f"{path.name}.{secrets.token_hex(6)}.part")


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns
