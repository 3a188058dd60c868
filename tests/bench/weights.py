"""What each part of the ranking gives, and how far its weights were chosen well: a part of `recall.py`."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from messages import Conversation

from turnwise.memory.full_text import FullText
from turnwise.memory.long_term import Scope
from turnwise.memory.ranking import Weights
from turnwise.memory.vector_index import ChromaInMemory, VectorIndex
from turnwise.memory.vector_memory import Recall, VectorMemory
from turnwise.testing.embedding import HashEmbedding

ABLATIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "without vectors": {"vectors": 0.0, "similar": 2.0},
    "without neighbours": {"reach": 0},
    "without items after": {"after": 0.0},
    "without speakers": {"speaker": 0.0},
    "without typos": {"corrected": 0.0},
    "without a gate": {"margin": -99.0},
    "without length": {"length": 0.0},
}

GRID = {
    "before": (0.3, 0.5, 0.7),
    "speaker": (0.25, 0.5, 1.0),
    "vectors": (0.0, 4.0, 8.0),
    "length": (0.5, 0.75),
}
"""What cross-validation chooses from."""


async def print_weights(conversations: Sequence[Conversation], folder: Path) -> None:
    text = FullText(f"sqlite:///{folder}/weights.db")
    index = VectorIndex(ChromaInMemory(), HashEmbedding(), name="bench-weights")
    memory = VectorMemory(text, index)
    for one in conversations:
        await memory.remember(Scope(user_id=one.user), one.items)
    print("\nWhat each part gives to bare questions: recall@10 of all")
    for name, change in ABLATIONS.items():
        changed = VectorMemory(text, index, weights=replace(Weights(), **change))
        found = [await _recall_at_10(one, changed) * len(one.questions) for one in conversations]
        print(f"  {name:24} {sum(found) / sum(len(one.questions) for one in conversations):.3f}", flush=True)
    if len(conversations) > 1:
        await _cross_validate(conversations, text, index)
    await _ask_with_few(conversations, memory)
    await memory.close()


async def _ask_with_few(conversations: Sequence[Conversation], memory: VectorMemory) -> None:
    """Ask users who have but some of the turns, among them one that answers."""
    print("\nFew turns: a stretch of a conversation that has an answer, one for each of 100 questions")
    random = Random(1)
    for size in (3, 20, 100):
        people, asked = [], []
        for at in range(100):
            one = random.choice(conversations)
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
        recall = statistics.fmean(
            len(evidence & {item.id for item in items}) / len(evidence)
            for (_, evidence), items in zip(asked, answers, strict=True)
        )
        print(f"  {size:3} turns: recall@10 {recall:.3f}, answered {statistics.fmean(map(bool, answers)):.2f}")


async def _cross_validate(conversations: Sequence[Conversation], text: FullText, index: VectorIndex) -> None:
    """Choose by recall@10 on all conversations but one, and measure on that one."""
    print("\nWeights chosen on the other conversations, recall@10 on each with those, and with the defaults")
    found: dict[tuple[float, ...], dict[str, float]] = {}
    defaults = Weights()
    by_default = {
        one.user: await _recall_at_10(one, VectorMemory(text, index, weights=defaults)) for one in conversations
    }
    for values in itertools.product(*GRID.values()):
        changes: dict[str, Any] = dict(zip(GRID, values, strict=True))
        memory = VectorMemory(text, index, weights=replace(defaults, **changes))
        found[values] = {one.user: await _recall_at_10(one, memory) for one in conversations}
    for one in conversations:
        others = [other for other in conversations if other is not one]
        best = max(found, key=lambda values: sum(found[values][o.user] * len(o.questions) for o in others))
        chosen = ", ".join(f"{name} {value}" for name, value in zip(GRID, best, strict=True))
        ranks = sorted(each[one.user] for each in found.values())
        print(
            f"  {one.user:12} {found[best][one.user]:.3f} ({chosen}); defaults {by_default[one.user]:.3f}; "
            f"all {len(found)} choices: {ranks[0]:.3f} to {ranks[-1]:.3f}, median {statistics.median(ranks):.3f}",
            flush=True,
        )


async def _recall_at_10(one: Conversation, memory: VectorMemory) -> float:
    asked = [Recall(scope=Scope(user_id=one.user), query=question, limit=10) for question, _ in one.questions]
    answers = await memory.recall_many(asked)
    return statistics.fmean(
        len(evidence & {item.id for item in items}) / len(evidence)
        for (_, evidence), items in zip(one.questions, answers, strict=True)
    )
