"""`Vectors`: the protocol of storage for vectors, which `VectorIndex` fills and reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]


class Vectors(Protocol):
    """Storage of the vectors of one embedding function, under keys. `index/conformance.py` has its laws.

    A recall reads the vectors of a user by their keys and compares them itself, so nothing is searched here. Access
    control is the caller's. Each method blocks, may be called by several threads, and may be repeated; each raises
    `StoreError` if the storage cannot be reached, read or written. It is opened at first use, so a server may start
    later, and opened again after a failure.
    """

    @property
    def dimensions(self) -> int | None:
        """The length of the stored vectors; None while there are none, or before the first use."""

    def add(self, keys: Sequence[str], users: Sequence[str], vectors: Array, items: Sequence[str]) -> None:
        """Store vectors, one a row. The vector of an existing key stays, or is replaced by an equal one.

        Args:
            users: the user of each vector. Store at most a digest of it, as the built-in ones do.
            items: the key of the item of each vector: `delete` accepts those keys, too.

        Raises:
            ConfigError: the stored vectors have another length: see `check_dimensions`.
            StoreError: some of the vectors may be stored.
        """

    def get(self, keys: Sequence[str]) -> dict[str, Array]:
        """Return the vectors of those keys that are there."""

    def delete(self, keys: Sequence[str] | None) -> None:
        """Delete the vectors under these keys, and those whose item has one of these keys.

        Vectors of all embedding functions are deleted: what is forgotten must not stay in those of an earlier function.

        Args:
            keys: None for all vectors. Those that are added then may have another length.
        """

    def keys(self) -> set[str]:
        """Return the keys of all vectors of this embedding function."""

    def close(self) -> None:
        """Close connections and files. Closing twice is fine; the next method opens them again."""


class VectorsPlace(Protocol):
    """Where vectors are stored: the settings, which pickle."""

    def open(self, name: str, embedding: str) -> Vectors:
        """Return the storage of the vectors of one embedding function. It does not connect yet.

        Args:
            name: vectors of different names are separate; `delete` affects one name.
            embedding: the name of the embedding function, with its settings.
        """


@runtime_checkable
class VectorFiles(Protocol):
    """The further methods of storage in files of this machine, with which a deletion can be verified."""

    def push(self, changes: int) -> None:
        """Submit this many changes that have no effect.

        Storage that writes its files only after a number of changes, as Chroma does, then writes those before them.
        """

    def overwrite(self, keys: Collection[str]) -> int:
        """Overwrite deleted data in the files.

        Returns how many of these keys are still there, or may be in a file that was not written since their deletion.
        """

    def scrub(self) -> None:
        """Rewrite the files: O(all)."""

    def paths(self) -> Sequence[Path] | None:
        """Return the folders with the vectors; None if a server has them."""


def check_dimensions(dimensions: int | None, vectors: Array, embedding: str) -> None:
    """Raise ConfigError if the vectors of an embedding have other dimensions than the stored ones, if there are any."""
    if dimensions is not None and vectors.shape[1] != dimensions:
        reason = f"its vectors have {vectors.shape[1]} dimensions, the stored ones {dimensions}"
        raise ConfigError("embedding", embedding, f"{reason}: rebuild() computes all vectors again")
