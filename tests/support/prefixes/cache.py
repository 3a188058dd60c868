"""`PrefixCache`: reuses what requests begin with, as servers of models do; and `Reuse`, which counts that.

A token is a word, a number or a mark here. A request is read as chat templates write it: the tools, the system prompt,
then the messages. As in vLLM (https://docs.vllm.ai/en/latest/design/prefix_caching.html), the tokens are cut into
blocks of 16, a block is reused only behind the same blocks, and a block that is not full is not kept. What the model
answers is kept too.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BLOCK = 16
"""How many tokens are a block."""

HELD_AT_MOST = 0.75
"""The share of a cache that hints may hold, so that other requests have room too."""

_TOKEN = re.compile(r"\w+|[^\w\s]")


def tokens_of(text: str) -> list[str]:
    """Return the tokens of a text."""
    return _TOKEN.findall(text)


def parts_of(request: Mapping[str, Any]) -> list[list[str]]:
    """Return the tokens of a request's parts, in the order in which a model reads them: tools, then messages.

    Each paragraph of a message is a part, since what is recalled stands in one message with the prompt.
    """
    parts = [tokens_of(json.dumps(tool, ensure_ascii=False)) for tool in request.get("tools", ())]
    for message in request["messages"]:
        parts += parts_of_message(message)
    return parts


def parts_of_message(message: Mapping[str, Any]) -> list[list[str]]:
    """Return the tokens of a message's parts: its role, its paragraphs, its calls."""
    paragraphs = (message.get("content") or "").split("\n\n")
    rest = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return [tokens_of(text) for text in (f"<{message['role']}>", *paragraphs, *rest)]


class PrefixCache:
    """Blocks of tokens, of which the least recently used one goes first.

    Args:
        blocks: how many it holds; None for as many as there are.
    """

    def __init__(self, blocks: int | None = None) -> None:
        self.capacity = blocks
        self.prefilled = 0
        """How many tokens of requests it did not have."""
        self.reused = 0
        """How many tokens of requests it had."""
        self._blocks: OrderedDict[int, float] = OrderedDict()
        """The blocks, the least recently used one first, with the time until which each is held."""

    def read(self, tokens: Sequence[str], *, now: float = 0.0) -> int:
        """Return how many tokens from the first on are cached, and keep those of the whole request."""
        hashes = list(_hashes(tokens))
        hits = 0
        for block in hashes:
            if block not in self._blocks:
                break
            hits += 1
        self.keep(tokens, now=now)
        self.reused += hits * BLOCK
        self.prefilled += len(tokens) - hits * BLOCK
        return hits * BLOCK

    def keep(self, tokens: Sequence[str], *, now: float = 0.0) -> None:
        """Keep the full blocks of these tokens: those of a request, or of a request with its answer."""
        # The end is used least recently, as vLLM does it: a beginning is of use to more requests than an end.
        for block in reversed(list(_hashes(tokens))):
            held_until = self._blocks.pop(block, 0.0)
            self._blocks[block] = held_until
        self._evict(now)

    def hold(self, tokens: Sequence[str], until: float, *, now: float) -> None:
        """Evict these tokens after all others until a time, unless as much is held as may be."""
        blocks = [block for block in _hashes(tokens) if block in self._blocks]
        held = sum(time > now for time in self._blocks.values())
        new = sum(self._blocks[block] <= now for block in blocks)
        if self.capacity is None or held + new <= self.capacity * HELD_AT_MOST:
            for block in blocks:
                self._blocks[block] = until

    def drop(self, tokens: Sequence[str], *, before: Sequence[str] = ()) -> None:
        """Evict these tokens first, but for those of `before`, which others share."""
        shared = set(_hashes(before))
        for block in _hashes(tokens):
            if block in self._blocks and block not in shared:
                self._blocks[block] = 0.0
                self._blocks.move_to_end(block, last=False)

    def __len__(self) -> int:
        return len(self._blocks)

    def _evict(self, now: float) -> None:
        while self.capacity is not None and len(self._blocks) > self.capacity:
            held = (block for block, until in self._blocks.items() if until <= now)
            self._blocks.pop(next(held, next(iter(self._blocks))))


def _hashes(tokens: Sequence[str]) -> Iterable[int]:
    """Return the hash of each full block, which counts all tokens before it too."""
    before = 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        before = hash((before, *tokens[start : start + BLOCK]))
        yield before


@dataclass
class Reuse:
    """Which share of the tokens of some requests was reused, and which share could have been.

    *Possible* is what a cache without limits could reuse at most, if it could use a part wherever it stands: the tokens
    of each tool and paragraph that the conversation has sent before, or that its model has answered. No prefix cache
    reuses more than that, apart from equal beginnings of parts that are new. So it also counts against turnwise what a
    request has to change: a strategy that removes the oldest messages moves all others.
    """

    cache: PrefixCache = field(default_factory=PrefixCache)
    tokens: int = 0
    possible: int = 0
    _seen: set[tuple[str, ...]] = field(default_factory=set)

    def add(self, request: Mapping[str, Any], answer: Mapping[str, Any] | None = None) -> None:
        """Add the next request, with the assistant's message that answers it."""
        parts = parts_of(request)
        whole = [token for part in parts for token in part]
        self.tokens += len(whole)
        self.possible += sum(len(part) for part in parts if tuple(part) in self._seen)
        self.cache.read(whole)
        said = parts_of_message({"role": "assistant", **answer}) if answer else []
        self.cache.keep([*whole, *(token for part in said for token in part)])
        self._seen.update(map(tuple, [*parts, *said]))

    @property
    def share(self) -> float:
        """The share of all tokens that was reused."""
        return self.cache.reused / self.tokens

    @property
    def of_possible(self) -> float:
        """What was reused, to what is possible."""
        return self.cache.reused / self.possible
