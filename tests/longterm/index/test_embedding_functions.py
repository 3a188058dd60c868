"""Embedding functions of Chroma's that do not pickle: they are built from their config where they are used."""

from __future__ import annotations

import json
import os
import pickle
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction
from ray import cloudpickle

from quirks import QuirkServer
from stored.open_stores import closing
from turnwise.actors.hosting.identity import identity
from turnwise.errors import StoreError
from turnwise.memory.longterm.base import MemoryItem, Scope, trouble_of
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.index.locations import ChromaInMemory
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.recall.embedding_function import ConfiguredEmbedding, portable
from turnwise.memory.longterm.recall.similarity import Similarity
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.testing.embedding import HashEmbedding

KEY = "TURNWISE_TEST_KEY"
ADA = Scope(user_id="ada")


class Held:
    """An embedding function of an application, which has a value that does not pickle."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.lock = threading.Lock()

    def __call__(self, input: Sequence[str]) -> list[Any]:
        return [self.scale * vector for vector in HashEmbedding(64)(input)]

    @staticmethod
    def name() -> str:
        return "held"

    def get_config(self) -> dict[str, Any]:
        return {"scale": self.scale}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> Held:
        return Held(config["scale"])


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Chroma's own function for OpenAI's embeddings, whose server is local."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv(KEY, "sk-secret")

    def body() -> tuple[int, str, bytes]:
        texts = server.requests[-1]["input"]
        rows = [vector.tolist() for vector in HashEmbedding(64)(texts)]
        data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
        answer = {"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        return 200, "application/json", json.dumps(answer).encode()

    with QuirkServer(body) as server:
        yield OpenAIEmbeddingFunction(
            api_key_env_var=KEY, model_name="text-embedding-3-small", api_base=server.base_url
        )


def test_a_function_that_does_not_pickle_travels_by_its_config_without_its_key(openai: Any) -> None:
    with pytest.raises(TypeError):
        pickle.dumps(openai)
    index = VectorIndex(ChromaInMemory(), openai)
    pickled = cloudpickle.dumps(index)
    assert b"sk-secret" not in pickled
    unpickled = pickle.loads(pickled)
    assert unpickled.embedding == index.embedding and "text-embedding-3-small" in unpickled.embedding
    assert identity(unpickled) == identity(index)
    assert np.allclose(unpickled.embed(["figs"]), index.embed(["figs"]))
    assert np.allclose(unpickled.embed_queries(["figs"]), HashEmbedding(64)(["figs"]), atol=1e-6)
    assert pickle.loads(pickle.dumps(unpickled)).embedding == index.embedding


def test_every_memory_that_takes_an_embedding_function_takes_it(openai: Any, tmp_path: Path) -> None:
    similarity = pickle.loads(pickle.dumps(Similarity(openai)))
    assert similarity.near("figs", ["figs"]).similarities[0, 0] == pytest.approx(1.0, abs=1e-5)
    facts = SQLItems(f"sqlite:///{tmp_path}/facts.db")
    for memory in (
        ExtractiveMemory(None, facts, embedding=openai),
        VectorMemory(tmp_path / "items.db", embedding=openai),
    ):
        assert b"sk-secret" not in cloudpickle.dumps(memory)
        assert identity(pickle.loads(cloudpickle.dumps(memory))) == identity(memory)


async def test_a_function_that_cannot_be_built_degrades_recall_to_words(
    openai: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = VectorIndex(ChromaInMemory(), openai, name="unbuilt")
    patient = VectorMemory(SQLItems(f"sqlite:///{tmp_path}/items.db"), index, pause_s=0, query_s=60)
    memory = pickle.loads(cloudpickle.dumps(patient))
    monkeypatch.delenv(KEY)
    async with closing(memory):
        await memory.remember(ADA, [MemoryItem(id="1", text="Her cousin Odile grows dates in Marrakesh.")])
        recalled = await memory.recall(ADA, "Where does cousin Odile grow dates?")
        assert [item.id for item in recalled] == ["1"]
        assert KEY in (trouble_of(recalled) or "") and "on the memory's node" in (trouble_of(recalled) or "")
        monkeypatch.setenv(KEY, "sk-secret")
        assert trouble_of(await memory.recall(ADA, "Where does cousin Odile grow dates?")) is None


def test_a_users_own_function_travels_by_its_config_if_it_must() -> None:
    configured = portable(Held(2.0))
    assert isinstance(configured, ConfiguredEmbedding) and portable(configured) is configured
    assert (configured.name(), configured.get_config()) == ("held", {"scale": 2.0})
    unpickled = pickle.loads(pickle.dumps(configured))
    assert np.allclose(unpickled(["figs"])[0], 2 * HashEmbedding(64)(["figs"])[0])
    hashed = HashEmbedding(64)
    assert portable(hashed) is hashed and portable(None) is None
    with pytest.raises(StoreError, match="'held' cannot be built from its config"):
        ConfiguredEmbedding(Held, "held", {})(["figs"])


def test_chromas_functions_of_this_machine_travel_by_their_config() -> None:
    from chromadb.utils.embedding_functions import DefaultEmbeddingFunction

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = portable(DefaultEmbeddingFunction())
    assert isinstance(function, ConfiguredEmbedding) and function.name() == "default"
    assert len(pickle.dumps(function)) < 500 and os.environ.get("OPENAI_API_KEY") is None
