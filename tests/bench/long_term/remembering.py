"""What long-term memory costs a turn, and what recalling costs through its actor."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import Samples, Table, retire
from turnwise import MemoryConfig, Session, SessionManager, Turn, VectorMemory
from turnwise.actors.cluster.actors.memory_actor import MemoryActorProcess
from turnwise.actors.hosting.memory.remote_memory import RemoteMemory
from turnwise.engines import RunContext, SessionView
from turnwise.memories import Scope
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.testing.embedding import HashEmbedding

MODEL_S = 0.03
"""How long the model takes, which is no part of what is measured."""

USERS, ITEMS_EACH, AT_ONCE = 20, 100, 64

SET = json.loads((Path(__file__).parent / "facts.json").read_text(encoding="utf-8"))
SENTENCES: list[str] = [entry["text"] for entry in [*SET["facts"], *SET["questions"]]]


def message_of(chars: int, seed: int) -> str:
    """Return a message of some sentences that people write, about so many characters long."""
    rng, text = random.Random(seed), ""
    while len(text) < chars:
        text += rng.choice(SENTENCES) + " "
    return text.strip()


class Model:
    """An engine that takes as long as a quick model does."""

    def build(self, session: SessionView) -> "Model":
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        await asyncio.sleep(MODEL_S)
        return [Text(text="I see. " + message_of(150, len(turn.blocks)))]


def word_memory(folder: Path, name: str) -> VectorMemory:
    """Return a memory that searches by words alone, as one is where there is no embedding model."""
    return VectorMemory(SQLItems(f"sqlite:///{folder}/{name}.db"), embedding=None)


def vector_memory(folder: Path, name: str) -> VectorMemory:
    """Return a memory of its own, whose vectors are made without a model."""
    index = VectorIndex(ChromaFolder(folder / f"{name}-chroma"), HashEmbedding())
    return VectorMemory(SQLItems(f"sqlite:///{folder}/{name}.db"), index)


def turns_with_memory(table: Table, manage: Callable[..., SessionManager], folder: Path, rounds: int) -> None:
    """Measure turns that are saved, and that recall too, in alternation with those of a session without memory."""
    without, saving, words, whole, turns_each = Samples(), Samples(), Samples(), Samples(), 5
    saves = MemoryConfig(recall=False)
    with (
        manage("forgetful", Model()) as bare,
        manage("saving", Model(), memories=[vector_memory(folder, "saved")], memory=saves) as saver,
        manage("by-words", Model(), memories=[word_memory(folder, "words")]) as reader,
        manage("remembering", Model(), memories=[vector_memory(folder, "remembered")]) as rememberer,
    ):
        talks: list[tuple[Session, Samples]] = [
            (bare.open(), without),
            (saver.open(), saving),
            (reader.open(), words),
            (rememberer.open(), whole),
        ]
        for round_index in range(-2, rounds):
            for session, samples in talks:
                for number in range(turns_each):
                    began = time.perf_counter()
                    session.run(message_of(200, round_index * turns_each + number)).wait()
                    samples.append(time.perf_counter() - began - MODEL_S)
                    session.memory.wait()  # a person reads the answer for longer than saving takes
            if round_index < 0:
                for _, samples in talks:
                    samples.clear()
            talks = [*talks[1:], talks[0]]
        for session, _ in talks:
            retire(session)
    table.line("durable turn, no memory, model time aside", without, "floor")
    table.judge("durable turn that is saved in a memory", saving.median / without.median, 1.3, samples=saving)
    table.judge("  and recalls, by words", words.median / without.median, 1.5, samples=words)
    table.judge("  and recalls, by words and vectors", whole.median / without.median, 1.5, samples=whole)


class ByRay(MemoryActorProcess):
    """A memory's actor whose recalls are calls of Ray, as if there were no socket beside it."""

    async def ask(self, request: bytes, *, is_recall: bool) -> bytes:
        return await super().ask(request, is_recall=False)


def recalls(table: Table, namespace: str, folder: Path, rounds: int) -> None:
    """Measure recalls through the memory's actor: one by one, also by calls of Ray alone, and many at once."""
    alone, by_ray, together = Samples(), Samples(), Samples()

    async def ask() -> None:
        settings = vector_memory(folder, "asked")
        memory, same_by_ray = (
            RemoteMemory(settings, kind(settings, namespace)) for kind in (MemoryActorProcess, ByRay)
        )
        scopes = [Scope(user_id=f"user-{number}") for number in range(USERS)]
        for index, scope in enumerate(scopes):
            texts = [message_of(200, index * ITEMS_EACH + number) for number in range(ITEMS_EACH)]
            await memory.remember(scope, [MemoryItem(id=str(number), text=text) for number, text in enumerate(texts)])

        async def recall(index: int, memory: RemoteMemory = memory) -> None:
            await memory.recall(scopes[index % USERS], message_of(60, index))

        for round_index in range(-2, rounds):
            for number in range(AT_ONCE):
                with alone.timed():
                    await recall(round_index * AT_ONCE + number)
                with by_ray.timed():
                    await recall(round_index * AT_ONCE + number, same_by_ray)
            began = time.perf_counter()
            await asyncio.gather(*(recall(round_index * AT_ONCE + number) for number in range(AT_ONCE)))
            together.append((time.perf_counter() - began) / AT_ONCE)
            if round_index < 0:
                for samples in (alone, by_ray, together):
                    samples.clear()

    asyncio.run(ask())
    table.line(f"recall through the actor, {USERS * ITEMS_EACH:,} items of {USERS} users", alone, "floor")
    table.line("  by a call of Ray, without the socket", by_ray, f"{by_ray.median / alone.median:.2f}x")
    table.judge(
        f"  {AT_ONCE} at once by one process, as many each second",
        alone.median / together.median,
        3,
        samples=together,
        bound="least",
    )
