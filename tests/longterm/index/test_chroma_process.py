"""Chroma in a process of its own: killed at any time, interrupted, asked by many threads at once."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from turnwise import __version__
from turnwise.errors import StoreError
from turnwise.memory.longterm.index import chroma_process, folder_lock
from turnwise.memory.longterm.index.chroma_process import CHROMA_PROCESS
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.testing.embedding import HashEmbedding

TEXTS = [f"fact {number}" for number in range(20)]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[VectorIndex]:
    vector_index = VectorIndex(ChromaFolder(tmp_path / "chroma"), HashEmbedding())
    yield vector_index
    vector_index.close()


def add(index: VectorIndex, texts: list[str]) -> None:
    index.add(texts, ["ann"] * len(texts), index.embed(texts))


def process_id() -> int:
    process = CHROMA_PROCESS._process  # noqa: SLF001 - to kill it
    assert process is not None
    return process.pid


@pytest.mark.by_turns
def test_vectors_outlive_a_kill_of_the_process_between_requests_and_within_one(index: VectorIndex) -> None:
    add(index, TEXTS[:10])
    os.kill(process_id(), signal.SIGKILL)
    assert index.keys() == set(TEXTS[:10])
    os.kill(process_id(), signal.SIGSTOP)  # so that it is killed while it has the request
    killer = threading.Timer(0.1, os.kill, (process_id(), signal.SIGKILL))
    killer.start()
    add(index, TEXTS[10:])
    killer.join()
    vectors = index.get(TEXTS)
    assert set(vectors) == set(TEXTS) and np.allclose([vectors[text] for text in TEXTS], index.embed(TEXTS))


def test_a_process_that_was_forked_starts_one_of_its_own(tmp_path: Path) -> None:
    process = CHROMA_PROCESS
    key = ChromaFolder(tmp_path), "test", "none"
    assert process.ask(key, "keys") == (set(), None)
    process.ask(key, "close")
    first, process._owner = process._process, 0  # noqa: SLF001 - as it is in a fork
    assert process.ask(key, "keys") == (set(), None)
    second = process._process  # noqa: SLF001 - both are this process's
    assert first is not second
    process.end()
    assert first and second and second.returncode == 0
    first.communicate()
    assert first.returncode == 0
    folder_lock.acquire(tmp_path)
    folder_lock.release(tmp_path)


def test_a_process_that_ends_whenever_it_is_asked_is_an_error_that_names_the_folder(
    index: VectorIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", str(tmp_path / "no python"))
        CHROMA_PROCESS.end()
        with pytest.raises(StoreError, match=rf"{tmp_path}.* its process ends at each request"):
            len(index.keys())
    assert len(index.keys()) == 0


def test_a_process_of_another_version_is_asked_for_nothing(index: VectorIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts after this process, so its code may have been installed meanwhile."""
    add(index, TEXTS[:1])
    with monkeypatch.context() as before:
        before.setattr(chroma_process, "__version__", "0.0.9")
        CHROMA_PROCESS.end()
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"turnwise {__version__} was installed .* has 0\.0\.9"):
                add(index, TEXTS[1:])
        assert CHROMA_PROCESS._process is None  # noqa: SLF001 - it was ended
    assert index.keys() == set(TEXTS[:1])


OWNER = """
import sys
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.testing.embedding import HashEmbedding

index = VectorIndex(ChromaFolder(sys.argv[1]), HashEmbedding())
index.add(["1"], ["ann"], index.embed(["a walrus"]))
assert "chromadb" not in sys.modules, "this process loads Chroma too"
print(1, flush=True)
sys.stdin.read()
"""


def test_the_process_ends_when_the_one_that_started_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout and owner.stdout.readline() == "1\n"
        with pytest.raises(StoreError, match="another process"):
            folder_lock.acquire(tmp_path)
        owner.kill()
    monkeypatch.setattr(folder_lock, "WAIT_S", 60.0)  # a busy machine takes a while to end a process
    folder_lock.acquire(tmp_path)
    folder_lock.release(tmp_path)


@pytest.mark.by_turns
def test_a_thread_that_is_interrupted_leaves_its_answer_to_nobody_else(index: VectorIndex) -> None:
    add(index, TEXTS)
    os.kill(process_id(), signal.SIGSTOP)
    stopped = process_id()
    alarm = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    alarm.start()
    with pytest.raises(KeyboardInterrupt):
        index.keys()
    alarm.join()
    assert len(index.keys()) == len(TEXTS) and process_id() != stopped


def test_each_of_many_threads_gets_its_own_answer(index: VectorIndex) -> None:
    add(index, TEXTS)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda text: index.get([text]), TEXTS * 10))
    assert [list(result) for result in results] == [[text] for text in TEXTS * 10]
