"""What long-term memory finds, and how fast: `make bench-memory DATA=conversations.json`.

    python tests/bench/recall.py FILE             all of it, a minute
    python tests/bench/recall.py FILE --quick     recall only, without ablations, cross-validation and speed

FILE is a list of conversations: `[{sample_id, sessions: [{session, date_time, turns: [{id, speaker, text,
image_caption?}]}], questions: [{question, evidence, category}]}]`. Each is a user; each turn is one item,
"speaker: text [shares image_caption]"; each question is a query.

recall@k is the share of a question's evidence among the first k items, the mean over all questions, with the floor and
the tail as they are by default. `precision` is the share of evidence among the items recalled at a limit of 10.
`answered` is the share of questions that recall anything; `nothing` the share of questions that recall nothing, as they
should: those of the other conversations, and some about nothing that people talk of.

Nothing is downloaded. MiniLM is measured if Chroma's copy of it is on this machine.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many threads on either side of a comparison

import numpy as np

from turnwise.memory.embedding import HashEmbedding
from turnwise.memory.full_text import FullText
from turnwise.memory.fusion import Weights
from turnwise.memory.long_term import MemoryItem, Scope, Source
from turnwise.memory.terms import terms
from turnwise.memory.vector_index import ChromaFolder, ChromaInMemory, EmbeddingFunction, VectorIndex
from turnwise.memory.vector_memory import Recall, VectorMemory

KS = (5, 10, 20)
LIMIT = 20
PRECISION_LIMIT = 10

NONSENSE = (
    "What is the boiling point of liquid nitrogen?",
    "How do I configure a PostgreSQL replication slot?",
    "Explain the offside rule",
    "asdf qwer zxcv",
    "What is the capital of Mongolia?",
    "Write a haiku about compilers",
    "How many moons does Jupiter have?",
    "Translate 'good morning' into Finnish",
    "Who won the 1966 World Cup?",
    "What is the refund policy for damaged parcels?",
    "Which prime numbers are below fifty?",
    "When was the Treaty of Westphalia signed?",
    "?!",
    "",
)

GRID = {
    "before": (0.3, 0.5, 0.7),
    "speaker": (0.25, 0.5, 1.0),
    "vectors": (0.0, 0.3, 0.6),
    "length": (0.5, 0.75),
}
"""What cross-validation chooses from."""

Retriever = Callable[[str, str, int], Awaitable[Sequence[str]]]
"""Takes a user, a query and a limit; returns ids."""


@dataclass(frozen=True, slots=True)
class Conversation:
    user: str
    items: list[MemoryItem]
    questions: list[tuple[str, set[str]]]


@dataclass(frozen=True, slots=True)
class Score:
    recall: tuple[float, ...]
    precision: float
    answered: float
    nothing: float
    nonsense: float

    def __str__(self) -> str:
        recall = "  ".join(f"{each:8.3f}" for each in self.recall)
        return f"{recall}  {self.precision:9.3f}  {self.answered:8.2f}  {self.nothing:7.2f}  {self.nonsense:8.2f}"


HEADER = "  ".join([*(f"recall@{k}".rjust(8) for k in KS), "precision", "answered", "nothing", "nonsense"])


def load(path: Path) -> list[Conversation]:
    return [conversation(each) for each in json.loads(path.read_text(encoding="utf-8"))]


def conversation(data: dict[str, Any]) -> Conversation:
    items: list[MemoryItem] = []
    for session in data["sessions"]:
        at = datetime.strptime(session["date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
        for turn in session["turns"]:
            shares = f" [shares {turn['image_caption']}]" if turn.get("image_caption") else ""
            source = Source(session_id=f"session-{session['session']}", turn_index=len(items))
            text = f"{turn['speaker']}: {turn['text']}{shares}"
            items.append(MemoryItem(id=turn["id"], text=text, source=source, created_at=at))
    ids = {item.id for item in items}
    questions = []
    for each in data["questions"]:
        evidence = {turn for entry in each["evidence"] for turn in re.findall(r"D\d+:\d+", entry)} & ids
        if evidence:
            questions.append((each["question"], evidence))
    return Conversation(data["sample_id"], items, questions)


async def measure(conversations: Sequence[Conversation], retrieve: Retriever, own: Sequence[Conversation]) -> Score:
    """Ask the questions of `own`, each of its user; and those of all others of the same."""
    recalls, precisions, answered, nothing, nonsense = [], [], [], [], []
    for one in own:
        for question, evidence in one.questions:
            found = await retrieve(one.user, question, LIMIT)
            recalls.append([len(evidence & set(found[:k])) / len(evidence) for k in KS])
            answered.append(bool(found))
            if found:
                first = found[:PRECISION_LIMIT]
                precisions.append(len(evidence & set(first)) / len(first))
        for other in conversations:
            if other is not one:
                nothing += [not await retrieve(one.user, question, 1) for question, _ in other.questions]
        nonsense += [not await retrieve(one.user, question, 1) for question in NONSENSE]
    return Score(tuple(np.mean(recalls, axis=0)), mean(precisions), mean(answered), mean(nothing), mean(nonsense))


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


# Methods


async def fill(memory: VectorMemory, conversations: Sequence[Conversation]) -> None:
    for one in conversations:
        await memory.remember(Scope(user_id=one.user), one.items)
    if memory.trouble:
        raise SystemExit(memory.trouble)


def ours(memory: VectorMemory) -> Retriever:
    async def retrieve(user: str, query: str, limit: int) -> list[str]:
        return [item.id for item in await memory.recall(Scope(user_id=user), query, limit=limit)]

    return retrieve


def chroma_alone(conversations: Sequence[Conversation], embedding: EmbeddingFunction, name: str) -> Retriever:
    """Chroma as its own documentation has it: one collection, a `where` filter for the user."""
    client = ChromaInMemory().connect()
    index = VectorIndex(ChromaInMemory(), embedding)
    collection = client.create_collection(name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}})
    for one in conversations:
        collection.add(
            ids=[f"{one.user}/{item.id}" for item in one.items],
            embeddings=index.embed([item.text for item in one.items]),
            metadatas=[{"user": one.user}] * len(one.items),
        )

    async def retrieve(user: str, query: str, limit: int) -> list[str]:
        vectors = index.embed_queries([query])
        found = collection.query(query_embeddings=vectors, n_results=limit, where={"user": user}, include=[])
        return [key.partition("/")[2] for key in found["ids"][0]]

    return retrieve


def fts5_alone(conversations: Sequence[Conversation]) -> Retriever:
    """FTS5 as its own documentation has it: porter, bm25(), any of the words."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE turns USING fts5(user UNINDEXED, id UNINDEXED, text, tokenize = porter)")
    for one in conversations:
        database.executemany(
            "INSERT INTO turns VALUES (?, ?, ?)", [(one.user, item.id, item.text) for item in one.items]
        )

    async def retrieve(user: str, query: str, limit: int) -> list[str]:
        if not (asked := terms(query)):
            return []
        rows = database.execute(
            "SELECT id FROM turns WHERE turns MATCH ? AND user = ? ORDER BY bm25(turns) LIMIT ?",
            (" OR ".join(f'"{term.forms[0]}"' for term in asked), user, limit),
        )
        return [name for (name,) in rows]

    return retrieve


def local_minilm() -> EmbeddingFunction | None:
    """Return Chroma's all-MiniLM-L6-v2 if its files are on this machine, None if they would have to be fetched."""
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2 as MiniLM

    files = ("model.onnx", "tokenizer.json")
    if all((Path(MiniLM.DOWNLOAD_PATH) / MiniLM.EXTRACTED_FOLDER_NAME / file).is_file() for file in files):
        return MiniLM()
    return None


ABLATIONS: dict[str, dict[str, Any]] = {
    "without vectors": {"vectors": 0.0, "similar": 2.0},
    "without neighbours": {"reach": 0},
    "without items after": {"after": 0.0},
    "without speakers": {"speaker": 0.0},
    "without related words": {"related": 0.0},
    "without a floor": {"floor": 0.0, "tail": 0.0},
    "without length": {"length": 0.0},
}


class Bench:
    def __init__(self, conversations: Sequence[Conversation], folder: Path) -> None:
        self.conversations = conversations
        self.folder = folder

    def open(self, embedding: EmbeddingFunction, name: str) -> tuple[FullText, VectorIndex]:
        index = VectorIndex(ChromaInMemory(), embedding, name=f"bench-{name}")
        return FullText(f"sqlite:///{self.folder}/{name}.db"), index

    async def line(self, name: str, retrieve: Retriever) -> None:
        score = await measure(self.conversations, retrieve, self.conversations)
        print(f"  {name:34}{score}", flush=True)

    async def recall(self) -> None:
        minilm = local_minilm()
        print(f"{'':36}{HEADER}")
        for name, embedding in (("HashEmbedding", HashEmbedding()), ("MiniLM", minilm)):
            if embedding is None:
                print(f"  {name}: its files are not on this machine, so nothing is measured with it")
                continue
            memory = VectorMemory(*self.open(embedding, name))
            await fill(memory, self.conversations)
            await self.line(f"VectorMemory, {name}", ours(memory))
            await self.line(f"Chroma alone, {name}", chroma_alone(self.conversations, embedding, f"alone-{name}"))
            await memory.close()
        await self.line("FTS5 alone", fts5_alone(self.conversations))

    async def ablations(self) -> None:
        print("\nWhat each part gives: HashEmbedding")
        text, index = self.open(HashEmbedding(), "ablations")
        await fill(VectorMemory(text, index), self.conversations)
        for name, change in ABLATIONS.items():
            await self.line(name, ours(VectorMemory(text, index, weights=replace(Weights(), **change))))

    async def few(self) -> None:
        """Ask users who have but some of the turns, among them one that answers."""
        print("\nFew turns: a stretch of a conversation that has an answer, one for each of 100 questions")
        random = Random(1)
        text, index = self.open(HashEmbedding(), "few")
        memory = VectorMemory(text, index)
        for size in (3, 20, 100):
            people, asked = [], []
            for at in range(100):
                one = random.choice(self.conversations)
                question, evidence = random.choice(one.questions)
                answer = next(place for place, item in enumerate(one.items) if item.id in evidence)
                start = max(0, answer - random.randrange(size))
                part = Conversation(f"few-{size}-{at}", one.items[start : start + size], [])
                people.append((Scope(user_id=part.user), part.items))
                asked.append((question, evidence & {item.id for item in part.items}))
            await memory.remember_many(people)
            answers = await memory.recall_many(
                [Recall(scope=scope, query=question) for (scope, _), (question, _) in zip(people, asked, strict=True)]
            )
            recall = mean(
                [
                    len(evidence & {item.id for item in items}) / len(evidence)
                    for (_, evidence), items in zip(asked, answers, strict=True)
                ]
            )
            print(f"  {size:3} turns: recall@10 {recall:.3f}, answered {mean([bool(items) for items in answers]):.2f}")

    async def cross_validate(self) -> None:
        """Choose by recall@10 on all conversations but one, and measure on that one."""
        print("\nWeights chosen on the other conversations, recall@10 on each with those, and with the defaults")
        text, index = self.open(HashEmbedding(), "folds")
        await fill(VectorMemory(text, index), self.conversations)
        found: dict[tuple[float, ...], dict[str, float]] = {}
        defaults = Weights(floor=0, tail=0)
        by_default = {
            one.user: await self._recall_at_10(one, VectorMemory(text, index, weights=defaults))
            for one in self.conversations
        }
        for values in itertools.product(*GRID.values()):
            changes: dict[str, Any] = dict(zip(GRID, values, strict=True))
            weights = replace(defaults, **changes)
            memory = VectorMemory(text, index, weights=weights)
            found[values] = {one.user: await self._recall_at_10(one, memory) for one in self.conversations}
        for one in self.conversations:
            others = [other for other in self.conversations if other is not one]
            best = max(found, key=lambda values: sum(found[values][o.user] * len(o.questions) for o in others))
            chosen = ", ".join(f"{name} {value}" for name, value in zip(GRID, best, strict=True))
            ranks = sorted(each[one.user] for each in found.values())
            print(
                f"  {one.user:12} {found[best][one.user]:.3f} ({chosen}); defaults {by_default[one.user]:.3f}; "
                f"all {len(found)} choices: {ranks[0]:.3f} to {ranks[-1]:.3f}, median {statistics.median(ranks):.3f}",
                flush=True,
            )

    async def _recall_at_10(self, one: Conversation, memory: VectorMemory) -> float:
        asked = [Recall(scope=Scope(user_id=one.user), query=question, limit=10) for question, _ in one.questions]
        answers = await memory.recall_many(asked)
        return mean(
            [
                len(evidence & {item.id for item in items}) / len(evidence)
                for (_, evidence), items in zip(one.questions, answers, strict=True)
            ]
        )


# Speed

USERS = 100
ITEMS_EACH = 200
ROUNDS = 320
AT_ONCE = 64


async def speed(conversations: Sequence[Conversation], folder: Path) -> None:
    """Compare with Chroma's own search, on the same vectors and in turns."""
    random = Random(0)
    texts = [item.text for one in conversations for item in one.items]
    questions = [question for one in conversations for question, _ in one.questions]
    users = [f"user-{number}" for number in range(USERS)]
    index = VectorIndex(ChromaFolder(folder / "chroma"))
    memory = VectorMemory(FullText(f"sqlite:///{folder}/speed.db"), index)
    print(f"\n{USERS * ITEMS_EACH:,} items of {USERS} users, drawn from the conversations' turns")

    began = time.perf_counter()
    for user in users:
        items = [
            MemoryItem(id=str(at), text=random.choice(texts), source=Source(session_id=str(at // 20), turn_index=at))
            for at in range(ITEMS_EACH)
        ]
        await memory.remember(Scope(user_id=user), items)
    per_s = USERS * ITEMS_EACH / (time.perf_counter() - began)
    print(f"  remember, {ITEMS_EACH} at once               {per_s:8.0f} items/s")
    alone = []
    for at in range(30):
        item = MemoryItem(id=f"single-{at}", text=random.choice(texts))
        alone.append(await timed(memory.remember(Scope(user_id=users[0]), [item])))
    print(f"  remember, one item: p50              {ms(alone)}")

    asked = [(random.choice(users), random.choice(questions)) for _ in range(ROUNDS)]
    vectors = index.embed_queries([query for _, query in asked])
    cold = [await timed(memory.recall(Scope(user_id=user), random.choice(questions))) for user in users]
    warm, chroma = [], []
    for at, (user, query) in enumerate(asked):
        warm.append(await timed(memory.recall(Scope(user_id=user), query)))
        began = time.perf_counter()
        assert index.search(user, vectors[at], 10)
        chroma.append(time.perf_counter() - began)
    print(f"  Chroma's query with `where`: p50     {ms(chroma)}, the query's vector given")
    print(f"  recall: p50                          {ms(warm)}, the query's vector made")
    print(f"  recall, nothing of the user held     {ms(cold)}")

    batch = [Recall(scope=Scope(user_id=user), query=query) for user, query in asked]
    together = [
        await timed(memory.recall_many(batch[start : start + AT_ONCE])) / AT_ONCE for start in range(0, ROUNDS, AT_ONCE)
    ]
    ratio = statistics.median(warm) / statistics.median(together)
    print(f"  recall, {AT_ONCE} at once, each             {ms(together)}, {ratio:.1f} times one by one")

    function = HashEmbedding()
    function(texts)
    began = time.perf_counter()
    function(texts)
    print(f"  HashEmbedding                        {len(texts) / (time.perf_counter() - began):8.0f} texts/s")
    print(f"  {await memory.check()}")
    await memory.close()


async def timed(verb: Awaitable[object]) -> float:
    began = time.perf_counter()
    await verb
    return time.perf_counter() - began


def ms(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):8.2f} ms"


async def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what long-term memory finds, and how fast.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true", help="recall only")
    arguments = parser.parse_args()
    conversations = load(arguments.file)
    items = sum(len(each.items) for each in conversations)
    questions = sum(len(each.questions) for each in conversations)
    print(f"{len(conversations)} conversations, {items} turns, {questions} questions")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(conversations, Path(folder))
        await bench.recall()
        if not arguments.quick:
            await bench.ablations()
            await bench.few()
            if len(conversations) > 1:
                await bench.cross_validate()
            await speed(conversations, Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
