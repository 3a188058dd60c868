"""Chroma's default embedding: nobody waits for its files, and one thread at a time fetches them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from chromadb.utils.embedding_functions import onnx_mini_lm_l6_v2 as chroma

from turnwise.errors import StoreError
from turnwise.memory import chroma_default
from turnwise.memory.chroma_default import ChromaDefault


class MiniLM:
    """Chroma's function, whose first call fetches its files, which takes until `go` is set."""

    MODEL_NAME = "small"
    EXTRACTED_FOLDER_NAME = "onnx"
    DOWNLOAD_PATH = Path()
    fetches = 0
    fails = False
    go = threading.Event()

    def tqdm(self, **options: Any) -> None:
        """Show how far a download has come."""

    def __call__(self, input: Sequence[str]) -> list[list[float]]:
        type(self).fetches += 1
        assert self.go.wait(30)
        if self.fails:
            raise OSError("no network")
        return [[1.0, 0.0] for _ in input]


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[MiniLM]:
    """A function of Chroma's without files, and a process that has not asked for it yet."""
    kind = type("Fresh", (MiniLM,), {"DOWNLOAD_PATH": tmp_path, "go": threading.Event()})
    monkeypatch.setattr(chroma, "ONNXMiniLM_L6_V2", kind)
    monkeypatch.setattr(chroma_default, "_model", chroma_default._Model())
    return kind


@pytest.fixture
def fetched(kind: type[MiniLM]) -> Callable[[], None]:
    """Lets the fetch that is under way come to its end, and waits for that."""

    def fetched() -> None:
        kind.go.set()
        for thread in threading.enumerate():
            if thread.name == "turnwise-fetch":
                thread.join(30)

    return fetched


def test_nobody_waits_for_the_files_and_one_warning_says_so(
    kind: type[MiniLM],
    fetched: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(chroma_default, "AGAIN_S", 0.0)
    embedding = ChromaDefault()
    assert not any(embedding.is_ready for _ in range(3))  # also where the fetch takes longer than `AGAIN_S`
    with pytest.raises(StoreError, match="not on this machine yet"):
        embedding(["a"])
    fetched()
    assert embedding.is_ready and kind.fetches == 1
    assert embedding(["a", "b"]) == [[1.0, 0.0], [1.0, 0.0]]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_fetch_that_fails_is_tried_again_later_and_warned_about_once(
    kind: type[MiniLM],
    fetched: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind.fails = True
    assert not ChromaDefault().is_ready
    fetched()
    assert not ChromaDefault().is_ready and kind.fetches == 1  # it is not time yet
    monkeypatch.setattr(chroma_default._model, "_again_at", 0.0)
    kind.fails = False
    kind.go.clear()
    assert not ChromaDefault().is_ready
    fetched()
    assert ChromaDefault().is_ready
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1


def test_files_that_are_there_are_used_at_once(kind: type[MiniLM], caplog: pytest.LogCaptureFixture) -> None:
    folder = kind.DOWNLOAD_PATH / kind.EXTRACTED_FOLDER_NAME
    folder.mkdir()
    for name in ("model.onnx", "tokenizer.json"):
        (folder / name).touch()
    assert ChromaDefault().is_ready
    assert not kind.fetches and not caplog.records
