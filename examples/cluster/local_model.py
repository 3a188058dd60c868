"""A server of a model of 100 MB on the CPU, with a cache of prefixes: its costs are real, and its words mean nothing.

    pip install turnwise
    python examples/cluster/local_model.py --port 8001    then: OpenAIEngine("dice", base_url="http://127.0.0.1:8001/v1")

The model is a transformer with random weights, in numpy: 8 layers of 512, 26 million parameters. It reads a prompt and
writes an answer as any other does, so what a cache of prefixes saves can be measured, without a download. It speaks the
Chat Completions API, keeps keys and values of 16 tokens a block, evicts the least recently used block, and takes hints:
see docs/guides/prefix-caches.md. One request runs at a time.
"""

import argparse
import json
import os
import re
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy reads it when it is imported: replicas share the cores

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

LAYERS, WIDTH, HEADS, WORDS, BLOCK = 8, 512, 8, 2048, 16

_SYLLABLES = ("ba", "de", "ko", "li", "mu", "na", "po", "ra")
_ENDS = ("dor", "fen", "gil", "mar", "nos", "tal", "vek", "zim")
VOCABULARY = [left + right for left in _SYLLABLES for right in _ENDS]
"""What it can say."""


def tokens_of(messages: Sequence[dict[str, Any]], tools: Sequence[Any] = ()) -> list[int]:
    """Return the tokens of a request, up to where the answer begins."""
    texts = [json.dumps(tool) for tool in tools]
    for message in messages:
        calls = [json.dumps(call["function"]) for call in message.get("tool_calls") or ()]
        texts += [f"<{message['role']}> {message.get('content') or ''} {' '.join(calls)} <end>"]
    return [number_of(word) for word in re.findall(r"<\w+>|\w+|[^\w\s]", " ".join([*texts, "<assistant>"]))]


def number_of(word: str) -> int:
    return zlib.crc32(word.encode()) % WORDS


class Model:
    """A transformer with random weights, the same in each process."""

    def __init__(self) -> None:
        dice = np.random.default_rng(7)

        def weights(*shape: int) -> Array:
            return np.asarray(dice.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[0]), np.float32)

        self.embedding = weights(WORDS, WIDTH)
        self.layers = [
            (weights(WIDTH, 3 * WIDTH), weights(WIDTH, WIDTH), weights(WIDTH, 4 * WIDTH), weights(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        ]
        self.answers = [number_of(word) for word in VOCABULARY]

    @property
    def megabytes(self) -> float:
        arrays = [self.embedding, *(matrix for layer in self.layers for matrix in layer)]
        return sum(array.nbytes for array in arrays) / 1e6

    def read(self, tokens: Sequence[int], past: Array) -> tuple[Array, Array]:
        """Read tokens behind the past; return the last token's state, and past and present together.

        Args:
            past: keys and values, by layer, kind, token, width.
        """
        begins = past.shape[2]
        places = np.arange(begins, begins + len(tokens), dtype=np.float32)[:, None]
        waves = np.sin(places / 10_000 ** (np.arange(WIDTH, dtype=np.float32)[None] / WIDTH))
        state = self.embedding[list(tokens)] * 20 + waves
        mask = np.triu(np.full((len(tokens), begins + len(tokens)), -1e9, np.float32), begins + 1)
        present = np.empty((LAYERS, 2, len(tokens), WIDTH), np.float32)
        for index, (attend, merge, widen, narrow) in enumerate(self.layers):
            query, present[index, 0], present[index, 1] = np.split(norm(state) @ attend, 3, axis=1)
            keys, values = (np.concatenate([past[index, kind], present[index, kind]]) for kind in (0, 1))
            q, k, v = (part.reshape(len(part), HEADS, -1).transpose(1, 0, 2) for part in (query, keys, values))
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH / HEADS) + mask
            shares = np.exp(scores - scores.max(axis=2, keepdims=True))
            mixed = (shares / shares.sum(axis=2, keepdims=True)) @ v
            state = state + mixed.transpose(1, 0, 2).reshape(len(tokens), WIDTH) @ merge
            state = state + np.maximum(norm(state) @ widen, 0) @ narrow
        return norm(state)[-1], np.concatenate([past, present], axis=2)

    def next_word(self, state: Array, said: int) -> int:
        """Return the number of the next word in the vocabulary; `said` varies it, as the weights repeat themselves."""
        scores = self.embedding[self.answers] @ state
        return int((int(scores.argmax()) + 7 * said) % len(VOCABULARY))


def norm(state: Array) -> Array:
    return np.asarray((state - state.mean(axis=1, keepdims=True)) / (state.std(axis=1, keepdims=True) + 1e-5))


class Cache:
    """Keys and values of blocks of tokens, each behind the blocks before it."""

    def __init__(self, megabytes: int) -> None:
        self.blocks: OrderedDict[int, Array] = OrderedDict()
        self.most = megabytes * 1_000_000 // (LAYERS * 2 * BLOCK * WIDTH * 2)
        self.by_key: dict[str, list[int]] = {}
        self.held: dict[str, float] = {}

    def find(self, tokens: Sequence[int]) -> Array:
        """Return keys and values of as many tokens from the first on as are cached, but not of the last token."""
        parts: list[Array] = []
        for block in block_hashes(tokens[:-1]):
            if block not in self.blocks:
                break
            self.blocks.move_to_end(block)
            parts.append(self.blocks[block].astype(np.float32))
        return np.concatenate([np.empty((LAYERS, 2, 0, WIDTH), np.float32), *parts], axis=2)

    def keep(self, tokens: Sequence[int], state: Array, key: str) -> None:
        hashes = block_hashes(tokens)
        for number, block in enumerate(hashes):
            if block not in self.blocks:
                part = state[:, :, number * BLOCK : (number + 1) * BLOCK]
                self.blocks[block] = part.astype(np.float16)
        if key:
            self.by_key[key] = hashes
        while len(self.blocks) > self.most:
            now = time.monotonic()
            held = {block for name, until in self.held.items() if until > now for block in self.by_key.get(name, ())}
            self.blocks.pop(next((block for block in self.blocks if block not in held), next(iter(self.blocks))))

    def hint(self, name: str, key: str, seconds: float) -> None:
        if name == "hold":
            self.held[key] = time.monotonic() + seconds
        elif name == "drop":
            self.held.pop(key, None)
            for block in reversed(self.by_key.get(key, ())):
                if block in self.blocks:
                    self.blocks.move_to_end(block, last=False)


def block_hashes(tokens: Sequence[int]) -> list[int]:
    hashes, before = list[int](), 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        before = hash((before, *tokens[start : start + BLOCK]))
        hashes.append(before)
    return hashes


class ModelServer(ThreadingHTTPServer):
    """Serves the model on 127.0.0.1; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, port: int = 0, *, cache_mb: int = 256) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.model, self.cache, self.lock = Model(), Cache(cache_mb), threading.Lock()
        self.prefilled = self.reused = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answer(self, tokens: list[int], most: int, key: str) -> Iterator[tuple[str, int]]:
        """Yield the words of an answer, each with how many tokens of the prompt were cached."""
        with self.lock:
            past = self.cache.find(tokens)
            cached = past.shape[2]
            self.reused, self.prefilled = self.reused + cached, self.prefilled + len(tokens) - cached
            state, past = self.model.read(tokens[cached:], past)
            for said in range(most):
                word = VOCABULARY[self.model.next_word(state, said)]
                yield word, cached
                tokens.append(number_of(word))
                state, past = self.model.read(tokens[-1:], past)
            self.cache.keep(tokens, past, key)


class Handler(BaseHTTPRequestHandler):
    """Answers completions, hints to the cache, and how much the model has read."""

    server: ModelServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._json({"prefilled": self.server.prefilled, "reused": self.server.reused})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "/cache/" in self.path:
            with self.server.lock:
                self.server.cache.hint(self.path.rpartition("/")[2], body["key"], body.get("seconds", 0))
            self._json({})
        else:
            self._complete(body)

    def _complete(self, body: dict[str, Any]) -> None:
        tokens = tokens_of(body["messages"], body.get("tools", ()))
        most = body.get("max_completion_tokens") or body.get("max_tokens") or 12
        key = self.headers.get("x-session-id") or body.get("prompt_cache_key", "")
        read, words, cached = len(tokens), list[str](), 0
        if body.get("stream"):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
        for word, cached in self.server.answer(tokens, most, key):  # noqa: B007 - the last count is used below
            words.append(word)
            if body.get("stream"):
                self._event({"choices": [{"index": 0, "delta": {"content": word + " "}}]})
        usage = {"prompt_tokens": read, "completion_tokens": len(words), "total_tokens": read + len(words)}
        usage_details: dict[str, Any] = {**usage, "prompt_tokens_details": {"cached_tokens": cached}}
        if body.get("stream"):
            self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            self._event({"choices": [], "usage": usage_details})
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            message = {"role": "assistant", "content": " ".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._json({"object": "chat.completion", "choices": [choice], "usage": usage_details})

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps({'object': 'chat.completion.chunk', **event})}\n\n".encode())
        self.wfile.flush()

    def _json(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model of 100 MB, whose words mean nothing.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cache-mb", type=int, default=256, help="how much the cache of prefixes may take")
    options = parser.parse_args()
    with ModelServer(options.port, cache_mb=options.cache_mb) as server:
        print(f"{server.base_url} serves {server.model.megabytes:.0f} MB", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
