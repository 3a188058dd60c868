"""What long-term memory finds again

Equal: the same texts of the same users in one process, in files on the same disk; the same embedding, all-MiniLM-L6-v2
in numpy on one thread, which makes vectors of texts and of questions; ten results; a user finds only what is of that
user. No model picks facts out of texts, so mem0 keeps each text as it is, and its search by words, which downloads a
model of its own, is not used. Questions that share no word with their answer come with the project, which holds no
conversations of others. Those are in the file, or in each file of the folder, that `DATA=` names, such as the public
parts of LoCoMo, REALTALK and BEAM, in the form that `make bench-memory` reads. Their questions are asked bare, in
greetings and thanks, and with one typo each. For messages that need no memory, the right result is none: there turnwise
is not searched, but asked what it reminds of, as for each prompt. Shown is the share of what answers a question that is
among the ten results; how long it takes to save one of a user's first 100 texts; and how long to find.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from peers.bench import Bench, Table, ask_all, times_table
from peers.peer import Memory, Model, Peer
from peers.worker import MEMORIES

KINDS: Mapping[str, str] = {
    "meaning": "no word shared",
    "bare": "bare",
    "short": "with greetings",
    "typo": "with a typo",
    "nothing": "need nothing: nothing found",
}
SAMPLE, QUICK_SAMPLE = 50, 10
"""How many messages of each kind are asked."""

TIMED = 100
"""To save so many texts of a user is timed; the others are saved by all at the same time."""

ONE_THREAD: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""So that the embeddings of several processes do not contend for the cores."""


async def material(_: Peer, data: str | None, sample: int | None) -> dict[str, Any]:
    """Return texts and questions. A process of turnwise makes them: the others do not have its bench of recall."""
    messages: Any = importlib.import_module("long_term.messages")
    meaning = importlib.import_module("long_term.recall").paraphrases()
    questions = [("meaning", message) for message in messages.messages_of([meaning], "bare", sample=sample)]
    conversations = [meaning]
    if data:
        for name, loaded in messages.load_all(Path(data)).items():
            conversations += loaded
            for kind in [*KINDS][1:]:
                of_kind = messages.messages_of(loaded, kind, sample=sample)
                questions += [(f"{name}/{kind}", message) for message in of_kind]
    return {
        "items": {
            conversation.user: [(item.id, item.text) for item in conversation.items] for conversation in conversations
        },
        "asked": [(kind, message.user, message.prompts, sorted(message.evidence)) for kind, message in questions],
    }


async def save(peer: Peer, user: str, items: Sequence[Sequence[str]]) -> float:
    """Save a user's texts; return the seconds that it takes for each."""
    began = time.perf_counter()
    await cast(Memory, peer).save(user, [(key, text) for key, text in items])
    return (time.perf_counter() - began) / len(items)


async def find(peer: Peer, user: str, prompts: Sequence[str], is_needless: bool = False) -> tuple[list[str], float]:
    began, memory = time.perf_counter(), cast(Memory, peer)
    ids = await (getattr(memory, "remind", memory.find) if is_needless else memory.find)(user, prompts)
    return ids, time.perf_counter() - began


def ask(bench: Bench) -> dict[str, Any]:
    data = os.environ.get("DATA")
    maker = bench.start_one(bench.names[0], "material", Model())
    try:
        texts = maker.do(
            "recall.material", data=data and str(Path(data).resolve()), sample=QUICK_SAMPLE if bench.quick else SAMPLE
        )
    finally:
        maker.close()
    result: dict[str, Any] = {"versions": {}, "saved": {}, "taken": {}, "shares": {}}
    spec = importlib.util.find_spec("all_minilm_l6_v2")
    minilm = {"MINILM": str(Path(spec.origin).parents[1])} if spec and spec.origin else {}
    env = {**ONE_THREAD, **minilm}
    with bench.all("recall", Model(), dict.fromkeys(MEMORIES, env)) as workers:
        for name, worker in workers.items():
            result["versions"][name] = worker.do("versions")
            first = [(user, items[:TIMED]) for user, items in texts["items"].items()]
            result["saved"][name] = [worker.do("recall.save", user=user, items=items) for user, items in first]
            result["taken"][name], result["shares"][name] = [], {}
        for user, items in texts["items"].items():
            if items[TIMED:]:
                ask_all(workers, "recall.save", user=user, items=items[TIMED:])
        for kind, user, prompts, evidence in texts["asked"]:
            for name, worker in workers.items():
                ids, seconds = worker.do("recall.find", user=user, prompts=prompts, is_needless=not evidence)
                result["taken"][name].append(seconds)
                result["shares"][name].setdefault(kind, []).append(share(ids, evidence))
    return result


def share(ids: Sequence[str], evidence: Sequence[str]) -> float:
    """Return how much of the evidence was found; for none, whether nothing was."""
    return len({*ids} & {*evidence}) / len(evidence) if evidence else float(not ids)


def kinds_of(result: Mapping[str, Any]) -> list[str]:
    """Return the kinds of questions that were asked, each with the name of its data and a slash if it has one."""
    return [*next(iter(result["shares"].values()))]


def title_of(kind: str) -> str:
    """Return what a kind of question is called in tables."""
    data, _, kind_alone = kind.rpartition("/")
    return f"{data}: {KINDS[kind_alone]}" if data else KINDS[kind_alone]


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    kinds = kinds_of(result)
    yield (
        "Recall at 10",
        [
            ("", *(title_of(kind) for kind in kinds), "to save a text"),
            ("questions", *(str(len(next(iter(result["shares"].values()))[kind])) for kind in kinds), ""),
            *(
                (
                    name,
                    *(f"{statistics.fmean(shares[kind]):.2f}" for kind in kinds),
                    f"{statistics.median(result['saved'][name]) * 1000:.1f} ms",
                )
                for name, shares in result["shares"].items()
            ),
        ],
    )
    yield "To find, with the embedding of the question", times_table(result["taken"])
