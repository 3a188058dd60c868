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
    """Storage of the vectors of one embedding function, under keys. `vector/conformance.py` has its laws.

    A recall reads the vectors of a user by their keys and compares them itself, so nothing is searched here. Access
    control is the caller's. Each method blocks, may be called by several threads, and may be repeated; each raises
    `StoreError` if the storage cannot be reached, read or written. It is opened at first use, so a server may start
    later, and opened again after a failure.
    """

    @property
    def dimensions(self) -> int | None:
        """The length of the vectors that are stored; None while there are none, or it was not used yet."""

    def add(self, keys: Sequence[str], users: Sequence[str], vectors: Array, items: Sequence[str]) -> None:
        """Store vectors, one a row. A key that is there is left as it is, or gets what is the same.

        Args:
            users: whose each is. Store a digest at most, as the built-in ones do.
            items: the key of the item that each is of: `delete` takes those, too.

        Raises:
            ConfigError: the stored vectors have another length: see `check_dimensions`.
            StoreError: some of the vectors may be stored.
        """

    def get(self, keys: Sequence[str]) -> dict[str, Array]:
        """Return the vectors of those keys that are there."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the vectors of these keys, and of items of these, of all embedding functions."""

    def keys(self) -> set[str]:
        """Return the keys of all vectors of this embedding function."""

    def drop(self) -> None:
        """Delete all vectors, of all embedding functions."""

    def close(self) -> None:
        """Close connections and files. Closing twice is fine; the next method opens them again."""


class VectorsPlace(Protocol):
    """Where vectors are stored: the settings, which pickle."""

    def open(self, name: str, embedding: str) -> Vectors:
        """Return the storage of the vectors of one embedding function. It does not connect yet.

        Args:
            name: vectors of different names do not see each other, and `delete` and `drop` are of one name.
            embedding: the name of the embedding function, with its settings.
        """


@runtime_checkable
class VectorFiles(Protocol):
    """What storage that may be in files of this machine has in addition, so that a deletion can be verified."""

    def push(self, changes: int) -> None:
        """Submit this many changes that change nothing, so that what waits in memory is written to the files."""

    def overwrite(self, keys: Collection[str]) -> int:
        """Overwrite what deletions have left in the files.

        Returns how many of these keys are there still, or in files that were not written since.
        """

    def scrub(self) -> None:
        """Write the files anew: O(all)."""

    def paths(self) -> Sequence[Path] | None:
        """Return the folders that the vectors are in; None if a server has them."""


def check_dimensions(dimensions: int | None, vectors: Array, embedding: str) -> None:
    """Raise ConfigError if vectors of an embedding cannot be where others are of so many dimensions, if of any."""
    if dimensions is not None and vectors.shape[1] != dimensions:
        reason = f"its vectors have {vectors.shape[1]} dimensions, those that are kept {dimensions}"
        raise ConfigError("embedding", embedding, f"{reason}: rebuild() makes them anew")
