"""`VectorIndex` in memory, in a folder and on a server of Chroma."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memories.vector_memories import FlakyEmbedding, chroma_server, constant, free_port, item
from turnwise.errors import ConfigError, StoreError
from turnwise.memory.longterm.base import Scope
from turnwise.memory.longterm.index import conformance as contract
from turnwise.memory.longterm.index.locations import ChromaFolder, ChromaInMemory, ChromaPlace, ChromaServer
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.index.vectors import check_dimensions
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.retention.deletion import Erasure, erase
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.stores.conformance.laws import Law, check_law
from turnwise.memory.values.ids import new_id
from turnwise.testing.embedding import HashEmbedding


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChromaServer]:
    with chroma_server(tmp_path_factory.mktemp("chroma")) as server:
        yield server


@pytest.fixture(params=["memory", "folder", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ChromaPlace:
    if request.param == "memory":
        return ChromaInMemory()
    return ChromaFolder(tmp_path / "chroma") if request.param == "folder" else request.getfixturevalue("server")


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_chroma_obeys_the_law_that(law: Law, place: ChromaPlace) -> None:
    name = f"test-{new_id()}"
    asyncio.run(check_law(law, lambda: place.open(name, "an embedding")))


def test_an_index_of_ones_own_is_used_like_any_other(tmp_path: Path) -> None:
    class Own:
        """Vectors in a dictionary."""

        def __init__(self) -> None:
            self.rows: dict[str, tuple[str, Any]] = {}
            self.dimensions: int | None = None

        def open(self, name: str, embedding: str) -> Own:
            return self

        def add(self, keys: Any, users: Any, vectors: Any, items: Any) -> None:
            check_dimensions(self.dimensions, vectors, "own")
            self.dimensions = vectors.shape[1]
            self.rows |= {key: (item, vector) for key, item, vector in zip(keys, items, vectors, strict=True)}

        def get(self, keys: Any) -> dict[str, Any]:
            return {key: self.rows[key][1] for key in keys if key in self.rows}

        def delete(self, keys: Any) -> None:
            if keys is None:
                self.rows, self.dimensions = {}, None
            else:
                self.rows = {key: row for key, row in self.rows.items() if not {key, row[0]} & {*keys}}

        def keys(self) -> set[str]:
            return {*self.rows}

        def close(self) -> None:
            """Nothing is open."""

    stores: dict[str, Own] = {}
    asyncio.run(contract.check_vectors(lambda law: stores.setdefault(law, Own())))
    place = Own()

    async def use() -> None:
        memory = VectorMemory(tmp_path / "said.db", VectorIndex(place, HashEmbedding()), keep_s=0)
        ann = Scope(user_id="ann")
        await memory.remember(ann, [item("1", "a zyzzyva"), item("2", "a lighthouse")])
        assert len(place.rows) == 2 and memory.paths() == []
        assert [item.id for item in await memory.recall(ann, "zyzzyva")] == ["1"]
        assert await memory.forget(ann) == 2 and not place.rows
        await memory.close()

    asyncio.run(use())


def test_vectors_are_kept_found_and_deleted_everywhere(place: ChromaPlace) -> None:
    index = VectorIndex(place, HashEmbedding(), name=f"test-{new_id()}")
    vectors = index.embed([f"word{number}" for number in range(50)])
    keys = [f"key{number}" for number in range(50)]
    users = ["user-1", "user-10"] * 25
    index.add(keys, users, vectors)
    index.add(keys, users, vectors)
    assert len(index.keys()) == 50
    assert index.keys() == set(keys)
    stored = index.get(["key7", "missing"])
    assert list(stored) == ["key7"]
    assert np.allclose(stored["key7"], vectors[7], atol=1e-6)
    assert index.check(keys).ok
    index.delete(["key7", "missing"])
    index.delete(["key7"])
    health = index.check(keys)
    assert (health.ok, health.missing, health.count) == (False, 1, 49)
    index.delete(None)
    assert len(index.keys()) == 0
    index.close()
    index.close()


def test_embedding_functions_have_collections_of_their_own(tmp_path: Path) -> None:
    place = ChromaFolder(tmp_path)
    small, large = VectorIndex(place, FlakyEmbedding(64, "one")), VectorIndex(place, FlakyEmbedding(128, "other"))
    stranger = VectorIndex(place, FlakyEmbedding(64, "one"), name="turnwise-mine")
    for index in (small, large, stranger):
        index.add(["key"], ["ann"], index.embed(["text"]))
    large.delete(None)
    with pytest.raises(StoreError):
        small.keys()
    assert [len(index.keys()) for index in (small, large, stranger)] == [0, 0, 1]


def test_another_dimension_under_the_same_name_is_a_config_error(tmp_path: Path) -> None:
    VectorIndex(ChromaFolder(tmp_path), constant(4)).add(["1"], ["ann"], np.eye(1, 4, dtype=np.float32))
    index = VectorIndex(ChromaFolder(tmp_path), constant(5))
    with pytest.raises(ConfigError, match=r"5 dimensions.* 4"):
        index.add(["2"], ["ann"], index.embed(["text"]))
    index.delete(None)
    index.add(["2"], ["ann"], index.embed(["text"]))


@pytest.mark.parametrize("result", [None, [], [[1.0]], [1.0, 2.0], [["a"], ["b"]], [[float("nan")], [1.0]]])
def test_a_wrong_number_of_vectors_is_refused(result: Any) -> None:
    index = VectorIndex(ChromaInMemory(), lambda _: result)
    with pytest.raises(StoreError):
        index.embed(["one", "two"])


def test_a_server_that_is_down_is_used_once_it_is_up(server: ChromaServer) -> None:
    index = VectorIndex(ChromaServer(host="127.0.0.1", port=free_port()), name=f"test-{new_id()}")
    with pytest.raises(StoreError):
        len(index.keys())
    index._vectors._place = server  # type: ignore[attr-defined] # noqa: SLF001 - as if it were up there now
    assert len(index.keys()) == 0
    index.close()


async def test_deletions_on_a_server_are_not_verified(server: ChromaServer, tmp_path: Path) -> None:
    ann, bob = Scope(user_id="ann"), Scope(user_id="bob")
    index = VectorIndex(server, HashEmbedding(), name=f"test-{new_id()}")
    memory = VectorMemory(SQLItems(f"sqlite:///{tmp_path}/memory.db"), index)
    await memory.remember(ann, [item("1", "zyzzyva")])
    await memory.remember(bob, [item("1", "a lighthouse")])
    await memory.flush()
    assert len(index.keys()) == 2
    erased = await erase(memory, ann)
    assert erased == Erasure(items=1, files=0, found=(), verified=False, why=erased.why)
    assert "not in files of this machine" in (erased.why or "")
    assert len(index.keys()) == 1
    assert b"zyzzyva" not in (tmp_path / "memory.db").read_bytes()
    await memory.close()


def test_a_scrub_blanks_free_space_for_vectors(tmp_path: Path) -> None:
    """Chroma fills it with what was in its memory."""
    index = VectorIndex(ChromaFolder(tmp_path), HashEmbedding())
    vectors = index.embed(["a", "b"])
    index.add(["a", "b"], ["ann", "ann"], vectors)
    index.close()
    files = [file for name in ("data_level0.bin", "length.bin") for file in tmp_path.glob(f"*/{name}")]
    sizes = [file.stat().st_size for file in files]
    for file, size in zip(files, sizes, strict=True):
        file.write_bytes(b"zyzzyva." * (size // 8))
    index.scrub()
    assert len(files) == 2 and [file.stat().st_size for file in files] == sizes
    assert not any(b"zyzzyva" in file.read_bytes() for file in files)
    assert index.check(["a", "b"]).ok
    assert np.allclose(index.get(["b"])["b"], vectors[1], atol=1e-6)
    index.close()
