"""Locks on folders, such as Chroma's, that one process at a time may open."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from turnwise.errors import StoreError
from turnwise.memory.longterm.index import folder_lock
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.testing.embedding import HashEmbedding

HOLDER = """
import sys
from turnwise.memory.longterm.index.folder_lock import acquire

acquire(sys.argv[1])
print(1)
sys.stdin.read()
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Lock the folder in another process."""
    command = [sys.executable, "-u", "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "1\n"
        yield process


def is_free(folder: Path) -> bool:
    ended = subprocess.run([sys.executable, "-c", HOLDER, folder], input=b"", capture_output=True, check=False)
    assert ended.returncode == 0 or b"another process has it open" in ended.stderr, ended.stderr
    return ended.returncode == 0


def test_one_process_may_lock_a_folder_several_times(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    folder_lock.acquire(folder)
    folder_lock.acquire(folder / ".." / "here")
    folder_lock.acquire(tmp_path)
    folder_lock.release(folder)
    assert not is_free(folder)
    folder_lock.release(str(folder))
    assert is_free(folder) and not is_free(tmp_path)
    folder_lock.release(tmp_path)


def test_a_second_process_is_refused_until_the_first_is_killed(
    tmp_path: Path,
) -> None:
    """Case 55."""
    index = VectorIndex(ChromaFolder(tmp_path), HashEmbedding())
    with another_process(tmp_path) as first:
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"{tmp_path}.* another process .*ChromaServer\(\)"):
                index.add(["1"], ["ann"], index.embed(["a walrus"]))
        (tmp_path / "chroma.sqlite3").touch()
        with pytest.raises(StoreError, match="another process"):
            ChromaFolder(tmp_path).scrub()
        (tmp_path / "chroma.sqlite3").unlink()
        first.send_signal(signal.SIGKILL)
    index.add(["1"], ["ann"], index.embed(["a walrus"]))
    assert len(index.keys()) == 1 and not is_free(tmp_path)
    index.scrub()
    assert is_free(tmp_path)
    assert len(index.keys()) == 1
    index.close()
    index.close()
    assert is_free(tmp_path)


def test_a_folder_that_cannot_be_opened_is_unlocked(tmp_path: Path) -> None:
    (tmp_path / "chroma.sqlite3").write_text("no database")
    index = VectorIndex(ChromaFolder(tmp_path), HashEmbedding())
    with pytest.raises(StoreError):
        len(index.keys())
    assert is_free(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file: it cannot be opened"):
        folder_lock.acquire(tmp_path / "file")
