"""Measures what long-term memory finds, and how fast: `make bench-memory DATA=folder`.

In the folder `tests/bench`:

    python -m long_term.recall DATA                   everything, in some minutes
    python -m long_term.recall DATA --only recall     some parts, see PARTS

With all parts of `page.PARTS`, it writes docs/benchmarks-memory.md.

DATA is a file, or a folder whose files `*.json` are all measured. Each is a list of conversations: `[{sample_id,
sessions: [{session, date_time, turns: [{id, speaker, text, image_caption?}]}], questions: [{question, evidence,
category}]}]`. Each conversation is a user; each turn is one item, "speaker: text [shares image_caption]", or the text
alone if the speakers are a user and an assistant.

Recall@10 of a question is the share of its evidence among the first 10 items; of a data set, the mean over its
questions that have evidence. *Asked* is what `recall` returns for the question, *reminded* what `remind` returns for it
as a prompt. Of messages that need no memory, the share is measured for which `remind` returns nothing. A memory gets
the query that a session would make.

Nothing is downloaded. MiniLM is measured with the weights that `make venv` installs, see `minilm.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many threads on either side of a comparison
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from long_term import fact_set, messages, page, standing, weights
from long_term.finders import (
    LIMIT,
    MINILM,
    WORDS,
    Finder,
    OnceEmbedded,
    Remembering,
    RemindingMemory,
    fill,
    finders_of,
    vector_memory,
)
from long_term.messages import KINDS, Conversation, Half, Question
from long_term.minilm import installed
from long_term.report import NOTHING, PRECISION, RECALL, WHOLE, Report, Speed, groups, line, mean
from turnwise.memory.conversation.blocks import Text
from turnwise.memory.longterm.base import MemoryItem, Recall, Scope, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import EmbeddingFunction, VectorIndex
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.recall.prominence import UNRELATED
from turnwise.memory.longterm.recall.query import vector_texts
from turnwise.memory.longterm.recall.quoting import quote
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.testing.embedding import HashEmbedding

HALVES: tuple[Half, Half] = ("dev", "held out")


def share(evidence: frozenset[str], ids: Sequence[str]) -> float:
    """Return how much of the evidence is among the first items."""
    return len(evidence.intersection(ids[:LIMIT])) / len(evidence)


# Conversations


async def print_conversations(
    data: str, conversations: Sequence[Conversation], minilm: EmbeddingFunction | None, report: Report
) -> None:
    """Print what is found of a data set."""
    questions = [(conversation, question) for conversation in conversations for question in conversation.questions]
    turns = sum(len(conversation.items) for conversation in conversations)
    report.sizes[data] = (
        f"{len(conversations)} conversations, {turns:,} turns, {len(questions)} questions with evidence"
    )
    print(f"\n{data}: {report.sizes[data]}")
    with tempfile.TemporaryDirectory() as folder:
        finders, memories = await finders_of(conversations, Path(folder), minilm)
        await _questions(data, questions, finders, report)
        await _needless(data, conversations, memories, report)
        await _pairs(data, conversations, finders, report)
        if any(question.category == "knowledge_update" for _, question in questions):
            await _abilities(data, questions, finders, Path(folder), report)
        if all(conversation.is_of_people for conversation in conversations):
            await _kinds(data, conversations, finders, report)
        for remembering in memories.values():
            await remembering.memory.close()


_Questions = Sequence[tuple[Conversation, Question]]


async def _questions(data: str, questions: _Questions, finders: Mapping[str, Finder], report: Report) -> None:
    line("", [RECALL, "reminded", "of them"])
    for row, finder in finders.items():
        asked_shares = [
            share(question.evidence, await finder.ask(conversation.user, [question.text]))
            for conversation, question in questions
        ]
        report.add(data, RECALL, row, mean(asked_shares))
        values = [mean(asked_shares)]
        if isinstance(finder, Remembering):
            answers = [await finder.remind(conversation.user, [question.text]) for conversation, question in questions]
            pairs = zip(questions, answers, strict=True)
            reminded = mean(share(question.evidence, answer) for (_, question), answer in pairs)
            report.add(data, f"{RECALL}, reminded", row, reminded)
            values += [reminded, mean(float(bool(answer)) for answer in answers)]
        line(row, values)
        groups("by category", (question.category for _, question in questions), asked_shares)
        means = groups("by conversation", (conversation.user for conversation, _ in questions), asked_shares)
        if len(means) > 1:
            report.add(data, f"{RECALL}, of the worst conversation", row, min(means.values()))
            report.add(data, f"{RECALL}, of the best conversation", row, max(means.values()))


async def _needless(
    data: str, conversations: Sequence[Conversation], memories: Mapping[str, Remembering], report: Report
) -> None:
    sent = [message for half in HALVES for message in messages.messages_of(conversations, "nothing", half)]
    print(f"  {len(sent)} messages that need nothing: the share that gets nothing")
    for row, memory in memories.items():
        silent = [float(not await memory.remind(message.user, message.prompts)) for message in sent]
        report.add(data, NOTHING, row, mean(silent))
        line(row, [mean(silent)])
        groups("of which", (message.group for message in sent), silent)


async def _pairs(
    data: str, conversations: Sequence[Conversation], finders: Mapping[str, Finder], report: Report
) -> None:
    """Print what is found for two questions in one prompt."""
    random, pairs = Random(0), list[tuple[str, Question, Question]]()
    for _ in range(PAIRS):
        conversation = random.choice(conversations)
        first, second = random.sample(conversation.questions, 2)
        pairs.append((conversation.user, first, second))
    print(f"  {PAIRS} times two questions in one prompt: {RECALL} of both; and of each alone, asked")
    line("", ["asked", "reminded", "alone"])
    for row, finder in finders.items():
        asked_shares, reminded_shares, alone_shares = [], [], []
        for user, *both in pairs:
            prompts = [" ".join(question.text for question in both)]
            ids = await finder.ask(user, prompts)
            asked_shares += [share(question.evidence, ids) for question in both]
            alone_shares += [share(question.evidence, await finder.ask(user, [question.text])) for question in both]
            if isinstance(finder, Remembering):
                ids = await finder.remind(user, prompts)
                reminded_shares += [share(question.evidence, ids) for question in both]
        line(row, [mean(asked_shares), mean(reminded_shares), mean(alone_shares)])
        report.add(data, "two questions, asked", row, mean(asked_shares))
        report.add(data, "two questions, each alone", row, mean(alone_shares))
        if reminded_shares:
            report.add(data, "two questions, reminded", row, mean(reminded_shares))


async def _abilities(
    data: str, questions: _Questions, finders: Mapping[str, Finder], folder: Path, report: Report
) -> None:
    """Print whether what is true now comes first, both sides of a contradiction are there, and wishes are sent.

    The later of two statements is above if it is among the first `DEEP` items, and the earlier one is not before it.
    """
    with_speakers = Remembering(vector_memory(folder, None))  # texts as in turns that a session saves
    for conversation in {id(conversation): conversation for conversation, _ in questions}.values():
        lines = zip(conversation.items, conversation.spoken_by, strict=True)
        items = [replace(item, text=f"{speaker}: {item.text}") for item, speaker in lines]
        await with_speakers.memory.remember(Scope(user_id=conversation.user), items)
    for row, finder in finders.items():
        values: dict[str, list[float]] = defaultdict(list)
        for conversation, question in questions:
            user, prompts, category = conversation.user, [question.text], question.category
            ids = await finder.ask(user, prompts, DEEP)
            if category == "knowledge_update":
                places = {name: place for place, name in enumerate(ids)}
                in_order = [item.id for item in conversation.items if item.id in question.evidence]
                values["the later of a pair is above"] += [
                    float(places.get(later, DEEP) < places.get(earlier, DEEP))
                    for earlier, later in combinations(in_order, 2)
                ]
            elif category == "contradiction_resolution" and len(question.evidence) > 1:
                values["two of a contradiction"].append(float(len(question.evidence.intersection(ids[:LIMIT])) > 1))
            elif category in ("instruction_following", "preference_following") and isinstance(finder, Remembering):
                profile = {item.id for item in (await with_speakers.reminder(user, prompts)).profile}
                shown = profile.union(await finder.remind(user, prompts))
                values[f"{category}, in the request"].append(len(question.evidence & shown) / len(question.evidence))
        line(row, [])
        for figure, of_figure in values.items():
            line(f"  {figure}", [mean(of_figure), f"n {len(of_figure)}"])
            report.add(data, f"{figure}, n = {len(of_figure)}", row, mean(of_figure))
    await with_speakers.memory.close()


async def _kinds(
    data: str, conversations: Sequence[Conversation], finders: Mapping[str, Finder], report: Report
) -> None:
    """Print what is found for the questions in other ways of writing."""
    kinds = [kind for kind in KINDS if kind != "nothing"]
    results: dict[tuple[str, str], list[float]] = defaultdict(list)
    for half in HALVES:
        print(f"  Ways of writing, {half}: {RECALL}")
        line("", [kind[:9] for kind in kinds])
        sent = {kind: messages.messages_of(conversations, kind, half) for kind in kinds}
        for row, finder in finders.items():
            ways: dict[str, Callable[[str, Sequence[str]], Awaitable[list[str]]]] = {"": finder.ask}
            if isinstance(finder, Remembering):
                ways[", reminded"] = finder.remind
            for way, find in ways.items():
                values = {
                    kind: mean([share(message.evidence, await find(message.user, message.prompts)) for message in of])
                    for kind, of in sent.items()
                }
                line(f"{row}{way}", values.values())
                for kind, value in values.items():
                    results[f"{kind}{way}", row].append(value)
    for (figure, row), values_of_halves in results.items():
        if not figure.startswith("bare"):  # the questions as they are
            report.add(data, figure, row, mean(values_of_halves))


PAIRS, DEEP = 100, 50


# Facts


async def print_facts(minilm: OnceEmbedded | None, report: Report) -> None:
    """Print the scores of each memory for questions about facts with similar ones."""

    if minilm is not None:  # some memories wait a second only
        questions = [question.text for half in HALVES for question in fact_set.questions(half)]
        parts = [
            part
            for question in questions
            for is_reminder in (False, True)
            for part in vector_texts(question, is_reminder=is_reminder).texts
        ]
        minilm([*UNRELATED, *parts, *(item.text for _, item in fact_set.facts())])
    asked_count = sum(len(fact_set.questions(half)) for half in HALVES)
    report.sizes["facts"] = f"{len(fact_set.facts())} facts of 6 users with look-alikes, {asked_count} questions"
    print("\nFacts with look-alikes")
    line("", ["half", "n", PRECISION, "whole", "asked"])
    with tempfile.TemporaryDirectory() as folder:
        memories: dict[str, RemindingMemory] = {}
        for way, embedding in {"words": None, "MiniLM": minilm}.items():
            if way == "words" or minilm is not None:
                extractive = ExtractiveMemory(None, InMemoryItems(), embedding=embedding, clock=lambda: fact_set.NOW)
                memories[f"ExtractiveMemory, {way}"] = extractive
                memories[f"VectorMemory, {way}"] = vector_memory(Path(folder), embedding, clock=lambda: fact_set.NOW)
        for name, memory in memories.items():
            await fact_set.fill_with_facts(memory)
            row = WORDS if name.endswith("words") else MINILM
            results = [await fact_set.ask_facts(memory, half) for half in HALVES]
            for half, (as_prompts, as_queries) in zip(HALVES, results, strict=True):
                line(name, [half, as_prompts.n, as_prompts.precision, as_prompts.whole, as_queries.recall])
                print(f"    whole: {', '.join(f'{group} {value:.2f}' for group, value in as_prompts.groups.items())}")
            if isinstance(memory, ExtractiveMemory):
                report.add("facts", PRECISION, row, mean(as_prompts.precision for as_prompts, _ in results))
                report.add("facts", WHOLE, row, mean(as_prompts.whole for as_prompts, _ in results))
                report.add("facts", RECALL, row, mean(as_queries.recall for _, as_queries in results))
            await memory.close()


# Meaning


def paraphrases() -> Conversation:
    """Return items of several users, and one user's questions, each of which shares no word with its answer."""
    pairs = json.loads((Path(__file__).parent / "paraphrases.json").read_text(encoding="utf-8"))
    texts = [pair["item"] for pair in pairs] + [item.text for _, item in fact_set.facts()]
    items = [
        MemoryItem(id=str(index), text=text, source=Source(session_id=str(index))) for index, text in enumerate(texts)
    ]
    questions = [Question(pair["question"], frozenset({str(index)})) for index, pair in enumerate(pairs)]
    return Conversation("meaning", items, questions)


async def print_meaning(minilm: EmbeddingFunction | None, report: Report) -> None:
    """Print what an embedding adds for questions that share no word with their answer."""
    data, meaning = "no word shared", paraphrases()
    size = f"{len(meaning.questions)} questions without a word of what answers them, among {len(meaning.items)} items"
    report.sizes[data] = size
    print(f"\n{size}")
    with tempfile.TemporaryDirectory() as folder:
        finders, memories = await finders_of([meaning], Path(folder), minilm)
        await _questions(data, [(meaning, question) for question in meaning.questions], finders, report)
        await _needless(data, [meaning], memories, report)
        for remembering in memories.values():
            await remembering.memory.close()


# Through a session

THROUGH = 180
"""The number of messages of all kinds that are sent through sessions."""


def print_through_sessions(conversations: Sequence[Conversation]) -> None:
    """Compare the recalled items in requests with what the memory reminds of."""
    from turnwise import MemoryConfig, Packed, SessionConfig, SessionManager

    count = -(-THROUGH // len(KINDS))
    sent_messages = [
        message for kind in KINDS for message in messages.messages_of(conversations, kind, HALVES[1], sample=count)
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
            remembering = Remembering(direct_memory)
            answers: list[Sequence[str]] = [
                await remembering.remind(message.user, message.prompts) for message in sent_messages
            ]
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
    print(f"\nThrough sessions, {HALVES[1]}: what stands in the requests, and what the memory reminds of")
    line("", [kind[:9] for kind in KINDS])
    for name, answers in (("VectorMemory, in requests", recalled_ids), ("VectorMemory, reminds", alone)):
        values = [
            mean(
                share(message.evidence, answer) if message.evidence else float(not answer)
                for message, answer in zip(sent_messages, answers, strict=True)
                if message.kind == kind
            )
            for kind in KINDS
        ]
        line(name, values)


def print_standing(report: Report) -> None:
    """Print how much of what every request should contain is in the requests."""
    print("\nWhat stands of a user, in requests whose prompts have no word of it; goal: all of it, and nothing else")
    line("", ["n", "there", "whole", "others"])
    results = [standing.ask_standing(half) for half in HALVES]
    for half, result in zip(HALVES, results, strict=True):
        line(f"ExtractiveMemory, {half}", [result.n, result.share, result.exact_share, result.surplus])
    report.add("facts", "the profile: all of it, nothing else", WORDS, mean(result.exact_share for result in results))


# Speed

USERS = 100
ITEMS_EACH = 200
ROUNDS = 320
AT_ONCE = 64


async def measure_speed(conversations: Sequence[Conversation], folder: Path, report: Report) -> None:
    """Compare the speed with Chroma's own search, on the same vectors, alternating."""
    report.loads.append(os.getloadavg()[0])
    random = Random(0)
    texts = [item.text for conversation in conversations for item in conversation.items]
    questions = [question.text for conversation in conversations for question in conversation.questions]
    users = [f"user-{number}" for number in range(USERS)]
    index = VectorIndex(ChromaFolder(folder / "chroma"), HashEmbedding())
    memory = VectorMemory(SQLItems(f"sqlite:///{folder}/speed.db"), index)
    place = ChromaFolder(folder / "chroma-alone")
    client = place.connect()
    collection = client.create_collection("alone", embedding_function=None, metadata={"hnsw:space": "cosine"})
    print(f"\n{USERS * ITEMS_EACH:,} items of {USERS} users, drawn from the conversations' turns")

    began, items_by_user = time.perf_counter(), dict[str, list[MemoryItem]]()
    for user in users:
        items = [
            MemoryItem(id=str(index), text=random.choice(texts), source=Source(session_id=str(index // 20)))
            for index in range(ITEMS_EACH)
        ]
        items_by_user[user] = items
        await memory.remember(Scope(user_id=user), items)
    per_s = USERS * ITEMS_EACH / (time.perf_counter() - began)
    report.add_speed(Speed(f"remember, {ITEMS_EACH} items at once", f"{per_s:,.0f} items/s"))
    alone = []
    for number in range(30):
        item = MemoryItem(id=f"single-{number}", text=random.choice(texts))
        alone.append(await timed(memory.remember(Scope(user_id=users[0]), [item])))
    report.add_speed(Speed("remember, one item", ms(alone)))

    queries = [(random.choice(users), random.choice(questions)) for _ in range(ROUNDS)]
    vectors = index.embed_queries([query for _, query in queries])
    cold = [await timed(memory.recall(Scope(user_id=user), random.choice(questions))) for user in users]
    warm, reminding, chroma = [], [], []
    for user, items in items_by_user.items():
        collection.add(
            ids=[f"{user}/{item.id}" for item in items],
            embeddings=index.embed([item.text for item in items]),
            metadatas=[{"user": user}] * len(items),
        )
    for (user, query), vector in zip(queries, vectors, strict=True):
        warm.append(await timed(memory.recall(Scope(user_id=user), query)))
        reminding.append(await timed(memory.remind(Scope(user_id=user), query)))
        began = time.perf_counter()
        assert collection.query(query_embeddings=vector[None], n_results=LIMIT, where={"user": user}, include=[])
        chroma.append(time.perf_counter() - began)
    report.add_speed(Speed("Chroma's query with `where`, its vector given", ms(chroma)))
    to_chroma = statistics.median(warm) / statistics.median(chroma)
    report.add_speed(Speed("recall, its vector made, to Chroma's query", ms(warm), to_chroma, 0.1, "most"))
    report.add_speed(Speed("remind", ms(reminding)))
    report.add_speed(Speed("recall of a user of whom nothing is in memory", ms(cold)))

    batch = [Recall(scope=Scope(user_id=user), query=query) for user, query in queries]
    together = [
        await timed(memory.recall_many(batch[start : start + AT_ONCE])) / AT_ONCE for start in range(0, ROUNDS, AT_ONCE)
    ]
    as_many = statistics.median(warm) / statistics.median(together)
    report.add_speed(Speed(f"recall, {AT_ONCE} at once, each; as many as alone", ms(together), as_many, 3.0, "least"))
    print(f"  {await memory.check()}")
    await memory.close()
    place.disconnect(client)
    report.loads.append(os.getloadavg()[0])


async def timed(verb: Awaitable[object]) -> float:
    began = time.perf_counter()
    await verb
    return time.perf_counter() - began


def ms(seconds: Sequence[float]) -> str:
    """Return the median."""
    return f"{1000 * statistics.median(seconds):.2f} ms"


PARTS = ("recall", "facts", "meaning", "standing", "sessions", "weights", "speed")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what long-term memory finds, and how fast.")
    parser.add_argument("data", type=Path, help="a file of conversations, or a folder of such files")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="some parts of it")
    arguments = parser.parse_args()
    parts, report = arguments.only, Report()
    data_sets = messages.load_all(arguments.data)
    of_people = [conversation for of in data_sets.values() for conversation in of if conversation.is_of_people]
    minilm = OnceEmbedded(model) if (model := installed()) else None
    if minilm is None:
        print("MiniLM: its weights are not installed, so nothing is measured with it")
    if "recall" in parts:
        for data, conversations in data_sets.items():
            asyncio.run(print_conversations(data, conversations, minilm, report))
    if "meaning" in parts:
        asyncio.run(print_meaning(minilm, report))
    if "facts" in parts:
        asyncio.run(print_facts(minilm, report))
    if {"standing", "sessions"}.intersection(parts):
        ray.init("local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    if "standing" in parts:
        print_standing(report)
    if "sessions" in parts and of_people:
        print_through_sessions(of_people)
    if "weights" in parts:
        weights.print_weights(data_sets, minilm)
    if "speed" in parts and of_people:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure_speed(of_people, Path(folder), report))
    report.show()
    if minilm is not None and page.PARTS.issubset(parts):
        only = "" if set(parts) == set(PARTS) else f' ARGS="--only {" ".join(parts)}"'
        page.write(report, f"make bench-memory DATA={arguments.data.name}{only}")


if __name__ == "__main__":
    main()
