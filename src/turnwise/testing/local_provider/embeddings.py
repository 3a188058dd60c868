"""The Embeddings API of the simulated provider."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
from typing import Any

from turnwise.testing.local_provider.http_protocol import RefusedError
from turnwise.testing.local_provider.replies import tokens_of
from turnwise.testing.local_provider.request_validation import Fields, checked

EMBEDDING_SIZE = 256

_FIELDS: Fields = {
    "model": str,
    "input": (str, list),
    "dimensions": int,
    "encoding_format": str,
    "user": str,
}


def embeddings(body: Any) -> dict[str, Any]:
    """Return the response to a request.

    Raises:
        RefusedError: the real API would refuse the request, or its input is arrays of tokens, which the real API takes.
    """
    body = checked(body, "input", _FIELDS)
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise RefusedError(400, "'input' must be a text that is not empty, or a list of such")
    size = body.get("dimensions") or EMBEDDING_SIZE
    vectors: list[list[float] | str] = []
    for text in texts:
        vector = embed(text, size)
        packed = struct.pack(f"<{size}f", *vector)
        vectors.append(base64.b64encode(packed).decode() if body.get("encoding_format") == "base64" else vector)
    token_count = sum(len(tokens_of(text)) for text in texts)
    return {
        "object": "list",
        "model": body["model"],
        "data": [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)],
        "usage": {"prompt_tokens": token_count, "total_tokens": token_count},
    }


def embed(text: str, size: int = EMBEDDING_SIZE) -> list[float]:
    """Return a vector of length 1 that depends only on the words, so texts that share words have near vectors.

    Unlike `HashEmbedding`, it imports nothing and takes any size.
    """
    vector = [0.0] * size
    for word in re.findall(r"\w+", text.lower()) or [text]:
        number = int.from_bytes(_digest(word), "big")
        vector[number % size] += 1.0 if number >> 63 else -1.0
    length = math.hypot(*vector) or 1.0
    return [value / length for value in vector]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
