"""An embedding function for tests: hashes words, stems and word pieces, without any model of meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from turnwise.errors import ConfigError
from turnwise.memory.longterm.recall.analyzer import ENGLISH, is_common, stem, words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STOP_WEIGHT = 0.1
"""The weight of a common word; above 0, so that a text of only common words has a vector."""

PIECES_WEIGHT = 1.0
"""The weight of all pieces of a word together. Pieces find misspelt, compound and derived words."""

PIECES = (3, 4, 5)
"""The lengths of pieces, in characters."""

SLOTS = 4
"""The number of dimensions per feature, so that two features that collide in one still differ in the others."""

_FEWEST, _MOST = 64, 4096


class HashEmbedding:
    """A Chroma embedding function that needs no model and no download, and returns the same vectors everywhere.

    Texts are similar if they share words, forms of words, or pieces of words. A word that occurs n times weighs
    1 + ln n times as much as one that occurs once. The function does not know meanings, so a model's vectors find more;
    one of its vectors takes 50 microseconds.

    Args:
        dimensions: the length of a vector, from 64 to 4096. In shorter vectors, features collide more often.

    Raises:
        ConfigError: `dimensions` is out of its range.
    """

    is_quick = True
    """See `EmbeddingFunction`."""

    def __init__(self, dimensions: int = 384) -> None:
        if not (isinstance(dimensions, int) and _FEWEST <= dimensions <= _MOST):
            raise ConfigError("dimensions", dimensions, f"must be {_FEWEST} to {_MOST}")
        self._dimensions = dimensions

    def __repr__(self) -> str:
        return f"HashEmbedding(dimensions={self._dimensions})"

    def __call__(self, input: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return a vector of length 1 for each text."""
        return [self._embed(text) for text in input]

    def embed_query(self, input: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return the vectors of queries, which are made like those of texts."""
        return self(input)

    # Chroma's protocol, by which a collection is opened again with its embedding function

    @staticmethod
    def name() -> str:
        """Return the name that Chroma stores with a collection. The name and its vectors never change."""
        return "turnwise_hash_v1"

    def get_config(self) -> dict[str, Any]:
        """Return the argument for `build_from_config`."""
        return {"dimensions": self._dimensions}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> HashEmbedding:
        """Return an embedding function with this config."""
        return HashEmbedding(**config)

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Raise ConfigError if the config is invalid."""
        HashEmbedding(**config)

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """Raise ConfigError if vectors of the two configs cannot be compared."""
        if old_config != new_config:
            raise ConfigError("dimensions", new_config.get("dimensions"), f"the collection has {old_config}")

    def default_space(self) -> Literal["cosine"]:
        """Return the default similarity measure."""
        return "cosine"

    def supported_spaces(self) -> list[Literal["cosine", "l2", "ip"]]:
        """Return the supported similarity measures; for vectors of length 1, all have the same order."""
        return ["cosine", "l2", "ip"]

    def is_legacy(self) -> bool:
        """Return False: it can be built from its config."""
        return False

    def _embed(self, text: str) -> NDArray[np.float32]:
        import numpy as np

        word_counts: dict[str, int] = {}
        for word in words(text) or ("",):
            word_counts[word] = word_counts.get(word, 0) + 1
        positions, weights = [], []
        for word, count in word_counts.items():
            word_positions, word_weights = _features(word, self._dimensions)
            positions.append(word_positions)
            weights.append(word_weights if count == 1 else _times(word_weights, 1 + np.log(count)))
        # Bytes are joined in a third of the time that arrays take.
        places, values = np.frombuffer(b"".join(positions), np.uint16), np.frombuffer(b"".join(weights))
        vector = np.bincount(places, values, self._dimensions)
        length = math.sqrt(vector @ vector)
        if length < 1e-9:  # noqa: PLR2004 - all features cancel each other out
            vector[0] = length = 1.0
        return np.asarray(vector / length, dtype=np.float32)


def register() -> None:
    """Register `HashEmbedding` with Chroma, which needs its name to open a collection."""
    from chromadb.utils.embedding_functions import known_embedding_functions, register_embedding_function

    if HashEmbedding.name() not in known_embedding_functions:
        register_embedding_function(HashEmbedding)  # type: ignore[no-untyped-call]


@lru_cache(maxsize=20_000)
def _features(word: str, dimensions: int) -> tuple[bytes, bytes]:
    """Return the positions in a vector, and the signed weights, of a word's features, as bytes of arrays."""
    import numpy as np

    framed = f"<{word}>"
    pieces = [framed[index : index + size] for size in PIECES for index in range(len(framed) - size + 1)] or [framed]
    share = PIECES_WEIGHT / len(pieces) ** 0.5  # so that all pieces together have the length PIECES_WEIGHT
    named_weights = [(f"w{stem(word)}", 1.0), *((f"p{piece}", share) for piece in pieces)]
    scale = (STOP_WEIGHT if is_common(word, ENGLISH) else 1.0) / SLOTS**0.5
    digests = b"".join(blake2b(name.encode(), digest_size=4 * SLOTS).digest() for name, _ in named_weights)
    numbers = np.frombuffer(digests, dtype="<u4")
    signs = np.where(numbers >> 31, 1.0, -1.0)
    weights = np.repeat(np.array([weight for _, weight in named_weights]), SLOTS)
    positions = ((numbers & 0x7FFFFFFF) % dimensions).astype(np.uint16)
    return positions.tobytes(), (signs * weights * scale).tobytes()


def _times(weights: bytes, factor: float) -> bytes:
    import numpy as np

    return (np.frombuffer(weights) * factor).tobytes()
