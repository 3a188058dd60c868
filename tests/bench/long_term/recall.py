"""Measures what long-term memory finds, and how fast: `make bench-memory DATA=conversations.json`.

In the folder `tests/bench`:

    python -m long_term.recall FILE                   everything, in some minutes
    python -m long_term.recall FILE --sample 40       40 messages of each kind, from the development half, in seconds
    python -m long_term.recall FILE --only messages   some parts, see PARTS

FILE is a list of conversations: `[{sample_id, sessions: [{session, date_time, turns: [{id, speaker, text,
image_caption?}]}], questions: [{question, evidence, category}]}]`. Each is a user; each turn is one item,
"speaker: text [shares image_caption]". Messages are made from the questions, see `messages.py`.

The recall of a message is the share of its evidence among the first 10 items; for messages that need no memory, the
share that recalls nothing is measured. Each is a mean over all messages. A memory gets the query that a session would
make.

Nothing is downloaded. MiniLM is measured with the weights that `make venv` installs, see `minilm.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import sqlite3
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many threads on either side of a comparison
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from long_term import fact_set, messages, standing, weights
from long_term.messages import GOALS, KINDS, Conversation, Half, Kind, Message
from long_term.minilm import installed
from turnwise.actors.session.memory import memory_retrieval
from turnwise.memory.conversation.blocks import Text, User
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Recall, Scope, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.index import collection as collection_module
from turnwise.memory.longterm.index.locations import ChromaFolder, ChromaInMemory
from turnwise.memory.longterm.index.vector_index import EmbeddingFunction, VectorIndex
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.recall.quoting import quote
from turnwise.memory.longterm.recall.ranking import Weights
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.testing.embedding import HashEmbedding

LIMIT = 10
HALVES: tuple[Half, Half] = ("dev", "held out")
WIDTH = 36


class Finder(Protocol):
    """Finds items for a message."""

    async def find(self, message: Message) -> Sequence[str]:
        """Return the ids of up to `LIMIT` items, the best first."""


@dataclass(frozen=True, slots=True)
class Score:
    """The quality of the answers to messages of one kind."""

    value: float
    """The mean recall; for messages that need no memory, the share that recalled nothing."""
    n: int
    precision: float
    """The share of evidence in the recalled items, averaged over the messages that recalled anything."""
    answered: float
    """The share of messages that recalled anything."""
    groups: Mapping[str, float] = field(default_factory=dict)
    """The value for each group of messages."""


# What can be called from elsewhere


def evaluate(
    conversations: Sequence[Conversation],
    memory_factory: Callable[[Path], LongTermMemory],
    kinds: Iterable[Kind] = KINDS,
    sample: int | None = None,
    *,
    half: Half = "dev",
    seed: int = 0,
) -> dict[Kind, Score]:
    """Fill a memory with the conversations, ask it messages, and return the scores of each kind.

    Args:
        conversations: as `messages.load` returns them.
        memory_factory: makes an empty memory, with a folder for its files.
        sample: the number of messages of each kind; all if omitted.
    """

    async def fill_and_ask() -> dict[Kind, Score]:
        with tempfile.TemporaryDirectory() as folder:
            memory = memory_factory(Path(folder))
            await fill(memory, conversations)
            try:
                return await scores(Remembering(memory), conversations, kinds, sample, half=half, seed=seed)
            finally:
                await memory.close()

    return asyncio.run(fill_and_ask())


async def scores(
    finder: Finder,
    conversations: Sequence[Conversation],
    kinds: Iterable[Kind] = KINDS,
    sample: int | None = None,
    *,
    half: Half = "dev",
    seed: int = 0,
) -> dict[Kind, Score]:
    """Return the score of each kind of messages."""
    results: dict[Kind, Score] = {}
    for kind in kinds:
        sent_messages = messages.messages_of(conversations, kind, half, sample=sample, seed=seed)
        results[kind] = score(sent_messages, [await finder.find(message) for message in sent_messages])
    return results


def score(sent_messages: Sequence[Message], answers: Sequence[Sequence[str]]) -> Score:
    """Return the score of these answers to these messages."""
    values, precisions = [], []
    groups: dict[str, list[float]] = defaultdict(list)
    for message, answer in zip(sent_messages, answers, strict=True):
        hits = len(message.evidence.intersection(answer[:LIMIT]))
        values.append(hits / len(message.evidence) if message.evidence else float(not answer))
        groups[message.group].append(values[-1])
        if answer:
            precisions.append(hits / len(answer[:LIMIT]))
    by_group = {group: mean(values) for group, values in sorted(groups.items()) if group}
    return Score(mean(values), len(values), mean(precisions), len(precisions) / len(values), by_group)


async def fill(memory: LongTermMemory, conversations: Sequence[Conversation]) -> None:
    for conversation in conversations:
        await memory.remember(Scope(user_id=conversation.user), conversation.items)


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


# Finders


@dataclass(frozen=True, slots=True)
class Remembering:
    """Asks a memory as a session does."""

    memory: LongTermMemory

    async def find(self, message: Message) -> list[str]:
        *before, prompt = [[User(text=text)] for text in message.prompts]
        query = memory_retrieval._query(prompt, before[-1] if before else ())
        items = await self.memory.recall(Scope(user_id=message.user), query, limit=LIMIT)
        return [item.id for item in items]


class ChromaAlone:
    """Chroma, used as in its documentation: one collection, a `where` filter for the user."""

    def __init__(self, conversations: Sequence[Conversation], embedding: EmbeddingFunction) -> None:
        client = ChromaInMemory().connect()
        name = f"alone-{time.monotonic_ns()}"
        self._index = VectorIndex(ChromaInMemory(), embedding)
        self._collection = client.create_collection(
            name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )
        for conversation in conversations:
            self._collection.add(
                ids=[f"{conversation.user}/{item.id}" for item in conversation.items],
                embeddings=self._index.embed([item.text for item in conversation.items]),
                metadatas=[{"user": conversation.user}] * len(conversation.items),
            )

    async def find(self, message: Message) -> list[str]:
        vectors = self._index.embed_queries(["\n".join(message.prompts)])
        answer = self._collection.query(
            query_embeddings=vectors, n_results=LIMIT, where={"user": message.user}, include=[]
        )
        return [key.partition("/")[2] for key in answer["ids"][0]]


class BM25Alone:
    """FTS5, used as in its documentation: porter, bm25(), any of the words."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        self._database = sqlite3.connect(":memory:")
        columns = "user UNINDEXED, id UNINDEXED, text, tokenize = porter"
        self._database.execute(f"CREATE VIRTUAL TABLE turns USING fts5({columns})")
        for conversation in conversations:
            rows = [(conversation.user, item.id, item.text) for item in conversation.items]
            self._database.executemany("INSERT INTO turns VALUES (?, ?, ?)", rows)

    async def find(self, message: Message) -> list[str]:
        words = dict.fromkeys(re.findall(r"\w+", "\n".join(message.prompts).casefold()))
        if not words:
            return []
        rows = self._database.execute(
            "SELECT id FROM turns WHERE turns MATCH ? AND user = ? ORDER BY bm25(turns) LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), message.user, LIMIT),
        )
        return [name for (name,) in rows]


def memories(
    minilm: EmbeddingFunction | None = None, clock: Callable[[], float] = time.time
) -> dict[str, Callable[[Path], LongTermMemory]]:
    """Return the factories of the measured memories, by name."""

    def vectors(embedding: EmbeddingFunction, weights: Weights | None = None) -> Callable[[Path], LongTermMemory]:
        def make(folder: Path) -> LongTermMemory:
            name = f"bench-{time.monotonic_ns()}"
            index = VectorIndex(ChromaInMemory(), embedding, name=name)
            text = SQLItems(f"sqlite:///{folder}/{name}.db")
            # A busy machine may take its time: what is found is measured here, not how soon.
            return VectorMemory(text, index, weights=weights, query_s=600.0, clock=clock)

        return make

    factories: dict[str, Callable[[Path], LongTermMemory]] = {
        "LexicalMemory": lambda _: LexicalMemory(InMemoryItems(), clock=clock),
        "VectorMemory, words alone": vectors(HashEmbedding(), Weights(vectors=0, similar=2.0)),
        "VectorMemory, HashEmbedding": vectors(HashEmbedding()),
    }
    if minilm is not None:
        factories["VectorMemory, MiniLM"] = vectors(minilm)
    return factories


def floors_of(conversations: Sequence[Conversation], minilm: EmbeddingFunction | None) -> dict[str, Finder]:
    """Return the baselines, filled with the conversations, by name."""
    if minilm is None:
        print("MiniLM: its weights are not installed, so nothing is measured with it")
        chroma = {"Chroma alone, HashEmbedding": ChromaAlone(conversations, HashEmbedding())}
    else:
        chroma = {"Chroma alone, MiniLM": ChromaAlone(conversations, minilm)}
    return {"BM25 alone": BM25Alone(conversations), **chroma}


# Messages


async def print_messages(
    conversations: Sequence[Conversation], minilm: EmbeddingFunction | None, sample: int | None, seed: int
) -> None:
    floors = floors_of(conversations, minilm)
    with tempfile.TemporaryDirectory() as folder:
        finders = dict(floors)
        opened = {name: make(Path(folder)) for name, make in memories(minilm).items()}
        for name, memory in opened.items():
            await fill(memory, conversations)
            finders[name] = Remembering(memory)
        for half in HALVES if sample is None else HALVES[:1]:
            print(f"\nMessages, {half}; recall@{LIMIT}, and of those that need nothing, the share that recalls nothing")
            _line("", [kind[:9] for kind in KINDS])
            counts = [len(messages.messages_of(conversations, kind, half, sample=sample, seed=seed)) for kind in KINDS]
            _line("n", counts)
            _line("goal, at least", [f"{GOALS[kind]:.2f}" if kind in GOALS else "" for kind in KINDS])
            for name, finder in finders.items():
                began = time.perf_counter()
                results = await scores(finder, conversations, sample=sample, half=half, seed=seed)
                missed = [kind for kind, least in GOALS.items() if results[kind].value < least]
                each_ms = 1000 * (time.perf_counter() - began) / sum(counts)
                _line(name, [f"{results[kind].value:.3f}" for kind in KINDS], f"  {each_ms:5.1f} ms each")
                if name not in floors:
                    print(f"    goals missed: {', '.join(missed) or 'none'}; precision {results['bare'].precision:.3f}")
                    for kind in ("follow-up", "nothing"):
                        groups = ", ".join(f"{group} {value:.2f}" for group, value in results[kind].groups.items())
                        print(f"    {kind}: {groups}")
        for memory in opened.values():
            await memory.close()


def _line(name: str, values: Iterable[object], suffix: str = "") -> None:
    print(f"  {name:{WIDTH}}" + "".join(f"{value!s:>10}" for value in values) + suffix, flush=True)


# Facts


async def print_facts(minilm: EmbeddingFunction | None, details: bool) -> None:
    """Print the scores of each memory for questions about facts with similar ones."""

    def now() -> float:
        return fact_set.NOW

    factories = {"ExtractiveMemory": lambda _: ExtractiveMemory(None, InMemoryItems(), clock=now)} | memories(
        minilm, now
    )
    print(f"\nFacts with look-alikes; goals: precision {fact_set.PRECISION:.2f}, whole answers {fact_set.WHOLE:.2f}")
    _line("", ["half", "n", "precision", "recall", "whole"])
    with tempfile.TemporaryDirectory() as folder:
        for name, make in factories.items():
            memory = make(Path(folder))
            await fact_set.fill_with_facts(memory)
            for half in HALVES:
                result = await fact_set.ask_facts(memory, half)
                is_met = result.precision >= fact_set.PRECISION and result.whole >= fact_set.WHOLE
                shares = [f"{value:.3f}" for value in (result.precision, result.recall, result.whole)]
                _line(name, [half, result.n, *shares], f"  {'met' if is_met else 'MISSED'}")
                print(f"    whole: {', '.join(f'{group} {value:.2f}' for group, value in result.groups.items())}")
                for question, answer in result.wrong if details and half == "dev" else ():
                    expected = " ".join(sorted(question.answer)) or "nothing"
                    print(f"      {question.text!r} wants {expected}, has {' '.join(answer) or 'nothing'}")
            await memory.close()


# Meaning


def paraphrases() -> Conversation:
    """Return items of several users, and one user's questions, each of which shares no word with its answer."""
    pairs = json.loads((Path(__file__).parent / "paraphrases.json").read_text(encoding="utf-8"))
    texts = [pair["item"] for pair in pairs] + [item.text for _, item in fact_set.facts()]
    items = [
        MemoryItem(id=str(index), text=text, source=Source(session_id=str(index))) for index, text in enumerate(texts)
    ]
    questions = [(pair["question"], frozenset({str(index)})) for index, pair in enumerate(pairs)]
    return Conversation("meaning", items, questions)


async def print_meaning(minilm: EmbeddingFunction | None) -> None:
    """Print what an embedding adds for questions that share no word with their answer."""
    meaning = paraphrases()
    sent_messages = messages.messages_of([meaning], "bare")
    needless = [message for half in HALVES for message in messages.messages_of([meaning], "nothing", half)]
    count = len(sent_messages)
    print(f"\nMeaning: {count} questions without a word of what answers them, among {len(meaning.items)} items")
    _line("", ["first", f"among {LIMIT}", "answered", "nothing"])
    with tempfile.TemporaryDirectory() as folder:
        finders = floors_of([meaning], minilm)
        opened = {name: make(Path(folder)) for name, make in memories(minilm).items()}
        for name, memory in opened.items():
            await fill(memory, [meaning])
            finders[name] = Remembering(memory)
        for name, finder in finders.items():
            answers = [await finder.find(message) for message in sent_messages]
            first = mean(
                [float(message.evidence.issubset(ids[:1])) for message, ids in zip(sent_messages, answers, strict=True)]
            )
            result = score(sent_messages, answers)
            silent = score(needless, [await finder.find(message) for message in needless])
            _line(name, [f"{value:.3f}" for value in (first, result.value, result.answered, silent.value)])
        for memory in opened.values():
            await memory.close()


# Through a session

THROUGH = 180
"""The number of messages of all kinds that are sent through sessions."""


def print_through_sessions(conversations: Sequence[Conversation], half: Half, seed: int) -> None:
    """Compare the recalled items in requests with what the memory returns for the same messages."""
    from turnwise import MemoryConfig, Packed, SessionConfig, SessionManager

    count = -(-THROUGH // len(KINDS))
    sent_messages = [
        message
        for kind in KINDS
        for message in messages.messages_of(conversations, kind, half, sample=count, seed=seed)
    ]
    texts = {
        (conversation.user, item.id): quote(item.text) for conversation in conversations for item in conversation.items
    }
    config = SessionConfig(memory=MemoryConfig(save="none", timeout_s=20))
    with tempfile.TemporaryDirectory() as folder:

        def memory() -> VectorMemory:
            place = ChromaFolder(Path(folder) / "chroma")
            return VectorMemory(SQLItems(f"sqlite:///{folder}/memory.db"), VectorIndex(place, HashEmbedding()))

        async def directly() -> list[Sequence[str]]:
            direct_memory = memory()
            await fill(direct_memory, conversations)
            answers: list[Sequence[str]] = [await Remembering(direct_memory).find(message) for message in sent_messages]
            await direct_memory.close()
            return answers

        alone = asyncio.run(directly())
        recalled_ids: list[Sequence[str]] = []
        with SessionManager(
            f"sqlite:///{folder}/sessions.db",
            engine=standing.Showing(),
            memory=[memory()],
            config=config,
            placement=Packed(hosts=1),
            namespace="bench-memory",
        ) as manager:
            for message in sent_messages:
                session = manager.open(user_id=message.user)
                turns = [session.run(prompt).wait() for prompt in message.prompts]
                answer = turns[-1].blocks[-1]
                recalled_ids.append(
                    [
                        name
                        for (user, name), quoted in texts.items()
                        if user == message.user and isinstance(answer, Text) and quoted in answer.text
                    ]
                )
    print(f"\nThrough sessions, {half}: what stands in the requests, and what the memory returns")
    _line("", [kind[:9] for kind in KINDS])
    for name, answers in (("VectorMemory, in requests", recalled_ids), ("VectorMemory, returned", alone)):
        values = [
            score([sent_messages[index] for index in places], [answers[index] for index in places]).value
            for kind in KINDS
            for places in [[index for index, message in enumerate(sent_messages) if message.kind == kind]]
        ]
        _line(name, [f"{value:.3f}" for value in values])


def print_standing() -> None:
    """Print how much of what every request should contain is in the requests."""
    print("\nWhat stands of a user, in requests whose prompts have no word of it; goal: all of it, and nothing else")
    _line("", ["n", "there", "whole", "others"])
    for half in HALVES:
        result = standing.ask_standing(half)
        _line(
            f"ExtractiveMemory, {half}",
            [result.n, *(f"{v:.3f}" for v in (result.share, result.exact_share, result.surplus))],
        )


# Speed

USERS = 100
ITEMS_EACH = 200
ROUNDS = 320
AT_ONCE = 64


async def speed(conversations: Sequence[Conversation], folder: Path) -> None:
    """Compare the speed with Chroma's own search, on the same vectors, alternating."""
    random = Random(0)
    texts = [item.text for conversation in conversations for item in conversation.items]
    questions = [question for conversation in conversations for question, _ in conversation.questions]
    users = [f"user-{number}" for number in range(USERS)]
    index = VectorIndex(ChromaFolder(folder / "chroma"), HashEmbedding())
    memory = VectorMemory(SQLItems(f"sqlite:///{folder}/speed.db"), index)
    print(f"\n{USERS * ITEMS_EACH:,} items of {USERS} users, drawn from the conversations' turns")

    began = time.perf_counter()
    for user in users:
        items = [
            MemoryItem(id=str(index), text=random.choice(texts), source=Source(session_id=str(index // 20)))
            for index in range(ITEMS_EACH)
        ]
        await memory.remember(Scope(user_id=user), items)
    per_s = USERS * ITEMS_EACH / (time.perf_counter() - began)
    print(f"  remember, {ITEMS_EACH} at once               {per_s:8.0f} items/s")
    alone = []
    for number in range(30):
        item = MemoryItem(id=f"single-{number}", text=random.choice(texts))
        alone.append(await timed(memory.remember(Scope(user_id=users[0]), [item])))
    print(f"  remember, one item: p50              {ms(alone)}")

    queries = [(random.choice(users), random.choice(questions)) for _ in range(ROUNDS)]
    vectors = index.embed_queries([query for _, query in queries])
    cold = [await timed(memory.recall(Scope(user_id=user), random.choice(questions))) for user in users]
    warm, chroma = [], []
    vector_store: Any = index._vectors
    for place, (user, query) in enumerate(queries):
        warm.append(await timed(memory.recall(Scope(user_id=user), query)))
        began = time.perf_counter()
        with vector_store._opened() as collection:
            of_user = {"user": collection_module._alias(user)}
            assert collection.query(
                query_embeddings=vectors[place : place + 1], n_results=10, where=of_user, include=[]
            )
        chroma.append(time.perf_counter() - began)
    print(f"  Chroma's query with `where`: p50     {ms(chroma)}, the query's vector given")
    goal = _goal(statistics.median(warm) / statistics.median(chroma), 1.0, "most")
    print(f"  recall: p50                          {ms(warm)}, the query's vector made; to Chroma's {goal}")
    print(f"  recall, nothing of the user held     {ms(cold)}")

    batch = [Recall(scope=Scope(user_id=user), query=query) for user, query in queries]
    together = [
        await timed(memory.recall_many(batch[start : start + AT_ONCE])) / AT_ONCE for start in range(0, ROUNDS, AT_ONCE)
    ]
    ratio = _goal(statistics.median(warm) / statistics.median(together), 3.0, "least")
    print(f"  recall, {AT_ONCE} at once, each             {ms(together)}; as many as one by one {ratio}")
    print(f"  {await memory.check()}")
    await memory.close()


def _goal(value: float, goal: float, bound: str) -> str:
    met = value <= goal if bound == "most" else value >= goal
    return f"{value:.2f}x, goal at {bound} {goal:g}x: {'met' if met else 'MISSED'}"


async def timed(verb: Awaitable[object]) -> float:
    began = time.perf_counter()
    await verb
    return time.perf_counter() - began


def ms(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):8.2f} ms"


PARTS = ("messages", "facts", "meaning", "standing", "sessions", "weights", "speed")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what long-term memory finds, and how fast.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--sample", type=int, help="so many messages of each kind, for development; nothing else")
    parser.add_argument("--seed", type=int, default=0, help="which message is written in which way")
    parser.add_argument("--details", action="store_true", help="show the questions for development that went wrong")
    parser.add_argument("--only", choices=PARTS, nargs="+", help="some parts of it")
    arguments = parser.parse_args()
    parts = arguments.only or (PARTS if arguments.sample is None else ("messages",))
    conversations = messages.load(arguments.file)
    minilm = installed()
    items = sum(len(conversation.items) for conversation in conversations)
    questions = sum(len(conversation.questions) for conversation in conversations)
    print(f"{len(conversations)} conversations, {items} turns, {questions} questions")
    if "messages" in parts:
        asyncio.run(print_messages(conversations, minilm, arguments.sample, arguments.seed))
    if "facts" in parts:
        asyncio.run(print_facts(minilm, arguments.details))
    if "meaning" in parts:
        asyncio.run(print_meaning(minilm))
    if {"standing", "sessions"}.intersection(parts):
        ray.init("local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    if "standing" in parts:
        print_standing()
    if "sessions" in parts:
        print_through_sessions(conversations, "held out", arguments.seed)
    if "weights" in parts:
        weights.print_weights(conversations, paraphrases(), minilm)
    if "speed" in parts:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(speed(conversations, Path(folder)))


if __name__ == "__main__":
    main()
