"""The laws of `Vectors`, checked on empty storage; see `stores/conformance` for how to run them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from turnwise.errors import ConfigError
from turnwise.memory.longterm.index.vectors import Vectors
from turnwise.memory.stores.conformance.laws import Law, check_law, collector, equal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]


async def check_vectors(make_vectors: Callable[[str], Vectors]) -> None:
    """Check all laws, in order; `make_vectors` is like `make_store` of `check_session_store`.

    Raises:
        AssertionError: the storage breaks a law; names it.
    """
    for law in LAWS:
        await check_law(law, functools.partial(make_vectors, law.__name__))


_laws: list[Law] = []
_law = collector(_laws)


def _rows(count: int, dimensions: int = 8, seed: int = 1) -> Array:
    """Return unit vectors, one a row."""
    vectors = np.random.default_rng(seed).normal(size=(count, dimensions)).astype(np.float32)
    unit: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def _same(stored: dict[str, Array], keys: list[str], vectors: Array, subject: str) -> None:
    equal(sorted(stored), sorted(keys), f"{subject}: keys")
    for key, vector in zip(keys, vectors, strict=True):
        equal(bool(np.allclose(stored[key], vector, atol=1e-6)), True, f"{subject}: whether {key!r} is what was added")


@_law
async def check_vectors_are_returned_as_they_were_added(vectors: Vectors, other: Vectors) -> None:
    """By their keys, in any order; keys that are not there are left out."""
    keys, rows = [f"k{number}" for number in range(5)], _rows(5)
    equal((vectors.get(keys), vectors.keys(), vectors.dimensions), ({}, set(), None), "what there is at first")
    vectors.add(keys, ["u"] * 5, rows, keys)
    for storage in (vectors, other):
        _same(storage.get([*keys[::-1], "none"]), keys, rows, "what there is")
        equal(storage.keys(), set(keys), "the keys")
        equal(storage.dimensions, 8, "how long vectors are")
    equal(vectors.get([]), {}, "what has no key")


@_law
async def check_an_add_may_be_repeated(vectors: Vectors, other: Vectors) -> None:
    """In part, and together with new ones."""
    keys, rows = [f"k{number}" for number in range(6)], _rows(6)
    vectors.add(keys[:4], ["u"] * 4, rows[:4], keys[:4])
    other.add(keys[2:], ["u"] * 4, rows[2:], keys[2:])
    _same(vectors.get(keys), keys, rows, "what there is")


@_law
async def check_a_deletion_deletes_keys_and_passages_of_items(vectors: Vectors, other: Vectors) -> None:
    """And no others; keys that are not there are ignored, and a deleted key can be added again."""
    keys, items = ["a", "b.0", "b.1", "c.0", "c.1"], ["a", "b", "b", "c", "c"]
    rows = _rows(5)
    vectors.add(keys, ["u", "u", "u", "v", "v"], rows, items)
    other.delete(["a", "b", "none"])
    equal((vectors.keys(), other.get(keys).keys() - {"c.0", "c.1"}), ({"c.0", "c.1"}, set()), "what is left")
    vectors.delete(["c.0"])
    equal(vectors.keys(), {"c.1"}, "what is left")
    vectors.delete(["c.0"])
    vectors.add(["a"], ["u"], rows[:1], ["a"])
    _same(other.get(["a", "c.1"]), ["a", "c.1"], rows[[0, 4]], "what there is again")


@_law
async def check_vectors_of_another_length_are_refused(vectors: Vectors, other: Vectors) -> None:
    """Until all are deleted; nothing of such a call is stored."""
    rows = _rows(2)
    vectors.add(["a", "b"], ["u", "u"], rows, ["a", "b"])
    try:
        other.add(["c"], ["u"], _rows(1, dimensions=4), ["c"])
    except ConfigError:
        pass
    else:
        raise AssertionError("vectors of another length were stored")
    _same(other.get(["a", "b", "c"]), ["a", "b"], rows, "what there is")
    vectors.delete(None)
    equal((vectors.keys(), vectors.dimensions), (set(), None), "what is left of all")
    vectors.add(["c"], ["u"], _rows(1, dimensions=4), ["c"])
    equal((vectors.keys(), vectors.dimensions), ({"c"}, 4), "what there is then")


@_law
async def check_many_vectors_are_kept(vectors: Vectors) -> None:
    """More than a page of any storage."""
    keys = [f"k{number}" for number in range(4_500)]
    rows = _rows(len(keys), dimensions=4)
    vectors.add(keys, ["u"] * len(keys), rows, keys)
    equal(vectors.keys(), set(keys), "the keys")
    equal(len(vectors.get(keys)), len(keys), "how many there are")
    vectors.delete(keys[:20])
    equal(vectors.keys(), set(keys[20:]), "the keys that are left")


@_law
async def check_closing_twice_is_fine(vectors: Vectors) -> None:
    """The next method opens the storage again."""
    vectors.close()
    vectors.add(["a"], ["u"], _rows(1), ["a"])
    vectors.close()
    vectors.close()
    vectors.add(["b"], ["u"], _rows(1), ["b"])
    equal({"b"} <= vectors.keys(), True, "whether there is what was added after closing")


LAWS: tuple[Law, ...] = tuple(_laws)
"""All laws, in order."""
