"""Chroma's default embedding: one thread at a time downloads its files in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from chromadb.utils.embedding_functions import onnx_mini_lm_l6_v2 as chroma
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from turnwise.errors import StoreError
from turnwise.memory.longterm.index import default_embedding as chroma_default
from turnwise.memory.longterm.index.default_embedding import ChromaDefault


class MiniLM:
    """Chroma's function, whose first call downloads its files, which lasts until `go` is set."""

    MODEL_NAME = "small"
    EXTRACTED_FOLDER_NAME = "onnx"
    DOWNLOAD_PATH = Path()
    fetches = 0
    fails = False
    go = threading.Event()

    def tqdm(self, **options: Any) -> None:
        """Show the progress of a download."""

    def __call__(self, input: Sequence[str]) -> list[list[float]]:
        type(self).fetches += 1
        assert self.go.wait(30)
        if self.fails:
            raise OSError("no network")
        return [[1.0, 0.0] for _ in input]


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[MiniLM]:
    """Chroma's function without files, in a process that has not used it yet."""
    kind = type("Fresh", (MiniLM,), {"DOWNLOAD_PATH": tmp_path, "go": threading.Event()})
    monkeypatch.setattr(chroma, "ONNXMiniLM_L6_V2", kind)
    monkeypatch.setattr(chroma_default, "_model", chroma_default.DefaultModel())
    return kind


@pytest.fixture
def fetched(kind: type[MiniLM]) -> Callable[[], None]:
    """Lets the running download end, and waits for it."""

    def fetched() -> None:
        kind.go.set()
        for thread in threading.enumerate():
            if thread.name == "turnwise-fetch":
                thread.join(30)

    return fetched


def test_missing_files_delay_no_call_and_give_one_warning(
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


def test_a_failed_download_is_retried_later_with_one_warning(
    kind: type[MiniLM],
    fetched: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind.fails = True
    assert not ChromaDefault().is_ready
    fetched()
    assert not ChromaDefault().is_ready and kind.fetches == 1  # it is not time yet
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + chroma_default.AGAIN_S)
    monkeypatch.setattr(chroma_default, "time", later)
    kind.fails = False
    kind.go.clear()
    assert not ChromaDefault().is_ready
    fetched()
    assert ChromaDefault().is_ready
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1


def test_present_files_are_used_at_once(kind: type[MiniLM], caplog: pytest.LogCaptureFixture) -> None:
    folder = kind.DOWNLOAD_PATH / kind.EXTRACTED_FOLDER_NAME
    folder.mkdir()
    for name in ("model.onnx", "tokenizer.json"):
        (folder / name).touch()
    assert ChromaDefault().is_ready
    assert not kind.fetches and not caplog.records


def test_only_present_files_are_loaded_ahead(kind: type[MiniLM], caplog: pytest.LogCaptureFixture) -> None:
    ChromaDefault().load_ahead()
    calls = [kind.fetches]
    folder = kind.DOWNLOAD_PATH / kind.EXTRACTED_FOLDER_NAME
    folder.mkdir()
    for name in ("model.onnx", "tokenizer.json"):
        (folder / name).touch()
    kind.go.set()
    ChromaDefault().load_ahead()
    assert [*calls, kind.fetches] == [0, 1]  # it was called once, and so loaded its model
    assert not caplog.records


class Session:
    """Stands for ONNX's session: each token's hidden state depends only on its id, so padding changes no vector."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, _: None, inputs: dict[str, Any]) -> list[Any]:
        tokens = inputs["input_ids"]
        self.shapes.append(tokens.shape)
        return [np.stack([np.cos(tokens * factor) for factor in (1, 2, 3)], axis=-1)]


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Chroma's own function with a small vocabulary, which downloads nothing."""
    kind: Any = type("Small", (chroma.ONNXMiniLM_L6_V2,), {"DOWNLOAD_PATH": tmp_path})
    folder = tmp_path / kind.EXTRACTED_FOLDER_NAME
    folder.mkdir()
    for name in ("config.json", "model.onnx", "special_tokens_map.json", "tokenizer_config.json", "vocab.txt"):
        (folder / name).touch()
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "walrus": 2, "lighthouse": 3}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    function = kind()
    monkeypatch.setitem(vars(function), "model", Session())
    model = chroma_default.DefaultModel()
    monkeypatch.setattr(model, "_function", function)
    monkeypatch.setattr(chroma_default, "_model", model)
    return function


TEXTS = ["walrus", "walrus lighthouse crab", "lighthouse " * 400]


def test_texts_are_not_padded_and_have_the_vectors_of_chroma(real: Any) -> None:
    padded = real(TEXTS)
    assert real.model.shapes == [(3, 256)]
    vectors = ChromaDefault()(TEXTS)
    assert real.model.shapes[1:] == [(1, 1), (1, 3), (1, 256)]
    np.testing.assert_allclose(vectors, padded, rtol=1e-5)


def test_a_version_of_chroma_that_always_pads_is_used_unchanged(real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = real.tokenizer
    monkeypatch.setitem(vars(real), "tokenizer", SimpleNamespace(encode=tokenizer.encode))
    np.testing.assert_allclose(ChromaDefault()(TEXTS), real(TEXTS), rtol=1e-5)
    assert real.model.shapes == [(3, 256)] * 2
