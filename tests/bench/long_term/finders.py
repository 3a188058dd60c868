"""What is measured: BM25 and vectors alone, and turnwise's memories."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import snowballstemmer  # type: ignore[import-untyped]

from long_term.messages import Conversation
from turnwise.actors.session.memory import memory_retrieval
from turnwise.memory.conversation.blocks import User
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Reminder, Reminding, Scope, trouble_of
from turnwise.memory.longterm.index.locations import ChromaInMemory
from turnwise.memory.longterm.index.vector_index import EmbeddingFunction, VectorIndex
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.vector import VectorMemory

LIMIT = 10
BM25, COSINE, WORDS, MINILM = "BM25", "MiniLM's cosine alone", "turnwise, words", "turnwise with MiniLM"
SLOW_S = 3600.0
"""A busy machine may take its time: what is found is measured, not how soon."""


class Finder(Protocol):
    """Finds items of a user for prompts, the newest last."""

    async def ask(self, user: str, prompts: Sequence[str], limit: int = LIMIT) -> list[str]:
        """Return the ids of up to `limit` items, the best first."""


class RemindingMemory(LongTermMemory, Reminding, Protocol):
    """A memory that tells being asked from being reminded."""


class OnceEmbedded:
    """An embedding function that computes the vector of each text once. Not for other processes."""

    def __init__(self, embedding: EmbeddingFunction) -> None:
        self._embedding = embedding
        self.vectors: dict[str, Any] = {}

    @staticmethod
    def name() -> str:
        return "once-embedded"

    def get_config(self) -> dict[str, Any]:
        return {}

    def __call__(self, input: Sequence[str]) -> list[Any]:
        if texts := [text for text in dict.fromkeys(input) if text not in self.vectors]:
            self.vectors.update(zip(texts, self._embedding(texts), strict=True))
        return [self.vectors[text] for text in input]


class BM25Alone:
    """BM25 with Snowball's stems."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        self._stemmer = snowballstemmer.stemmer("english")
        self._counts = {
            conversation.user: {item.id: Counter(self._stems(item.text)) for item in conversation.items}
            for conversation in conversations
        }

    async def ask(self, user: str, prompts: Sequence[str], limit: int = LIMIT) -> list[str]:
        k1, b, texts = 1.2, 0.75, self._counts[user]
        average = sum(counts.total() for counts in texts.values()) / len(texts)
        scores = dict.fromkeys(texts, 0.0)
        for stem in self._stems("\n".join(prompts)):
            having = {name: counts[stem] for name, counts in texts.items() if stem in counts}
            rarity = math.log(1 + (len(texts) - len(having) + 0.5) / (len(having) + 0.5))
            for name, count in having.items():
                length = 1 - b + b * texts[name].total() / average
                scores[name] += rarity * count * (k1 + 1) / (count + k1 * length)
        return sorted((name for name, score in scores.items() if score), key=lambda name: -scores[name])[:limit]

    def _stems(self, text: str) -> list[str]:
        stems: list[str] = self._stemmer.stemWords(re.findall(r"[a-z0-9]+", text.lower()))
        return stems


class CosineAlone:
    """The similarity of a text's vector to that of the prompts."""

    def __init__(self, conversations: Sequence[Conversation], embedding: EmbeddingFunction) -> None:
        self._index = VectorIndex(ChromaInMemory(), embedding)
        self._texts = {
            conversation.user: (
                [item.id for item in conversation.items],
                self._index.embed([item.text for item in conversation.items]),
            )
            for conversation in conversations
        }

    async def ask(self, user: str, prompts: Sequence[str], limit: int = LIMIT) -> list[str]:
        ids, vectors = self._texts[user]
        similarities = vectors @ self._index.embed_queries(["\n".join(prompts)])[0]
        return [ids[place] for place in np.argsort(-similarities, kind="stable")[:limit]]


@dataclass(frozen=True, slots=True)
class Remembering:
    """Asks a memory, and lets it remind, with the query that a session makes of prompts."""

    memory: RemindingMemory

    async def ask(self, user: str, prompts: Sequence[str], limit: int = LIMIT) -> list[str]:
        return ids_of(await self.memory.recall(Scope(user_id=user), query_of(prompts), limit=limit))

    async def remind(self, user: str, prompts: Sequence[str]) -> list[str]:
        """Return the ids of up to `LIMIT` items, the best first; nothing of the profile as such."""
        return ids_of((await self.reminder(user, prompts)).items)

    async def reminder(self, user: str, prompts: Sequence[str]) -> Reminder:
        return await self.memory.remind(Scope(user_id=user), query_of(prompts), limit=LIMIT)


def query_of(prompts: Sequence[str]) -> str:
    """Return the query that a session makes of prompts, the newest last."""
    *before, prompt = [[User(text=text)] for text in prompts]
    return memory_retrieval.query_of(prompt, before[-1] if before else ())


def ids_of(items: Sequence[MemoryItem]) -> list[str]:
    """Return the ids of recalled items.

    Raises:
        RuntimeError: the recall was degraded, so it measures something else.
    """
    if trouble := trouble_of(items):
        raise RuntimeError(trouble)
    return [item.id for item in items]


async def fill(memory: LongTermMemory, conversations: Sequence[Conversation]) -> None:
    for conversation in conversations:
        await memory.remember(Scope(user_id=conversation.user), conversation.items)


def vector_memory(folder: Path, embedding: EmbeddingFunction | None, **settings: Any) -> VectorMemory:
    """Return an empty memory with files of its own in the folder, and its vectors in memory."""
    name = f"bench-{time.monotonic_ns()}"
    items = SQLItems(f"sqlite:///{folder}/{name}.db")
    if embedding is None:
        return VectorMemory(items, embedding=None, **settings)
    index = VectorIndex(ChromaInMemory(), embedding, name=name)
    return VectorMemory(items, index, embed_s=SLOW_S, query_s=SLOW_S, **settings)


async def finders_of(
    conversations: Sequence[Conversation], folder: Path, minilm: EmbeddingFunction | None
) -> tuple[Mapping[str, Finder], Mapping[str, Remembering]]:
    """Return all finders, filled with the conversations, and those of them that are memories."""
    memories = {WORDS: Remembering(vector_memory(folder, None))}
    baselines: dict[str, Finder] = {BM25: BM25Alone(conversations)}
    if minilm is not None:
        baselines[COSINE] = CosineAlone(conversations, minilm)
        memories[MINILM] = Remembering(vector_memory(folder, minilm))
    for remembering in memories.values():
        await fill(remembering.memory, conversations)
    return {**baselines, **memories}, memories
