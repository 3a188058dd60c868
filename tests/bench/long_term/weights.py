"""Shows what each part of the ranking gives, on all data sets: a part of `recall.py`.

Each part is left out once, and recall@10 of the questions, the same of reminders, and the share of messages that need
nothing and get nothing are compared with those of all parts. What a part gives to each conversation shows how far the
mean is to be trusted. Nothing is chosen here: a part stays for its reason, and if it helps, or does no harm, on each
kind of data.
"""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from long_term import messages
from long_term.finders import LIMIT, query_of
from long_term.messages import Conversation
from turnwise.memory.longterm.base import Scope
from turnwise.memory.longterm.index.locations import ChromaInMemory
from turnwise.memory.longterm.index.vector_index import EmbeddingFunction, VectorIndex
from turnwise.memory.longterm.items.base import ItemFilter
from turnwise.memory.longterm.recall.passages import vectors_of
from turnwise.memory.longterm.recall.prominence import UNRELATED, Similarities, spread_out
from turnwise.memory.longterm.recall.query import Query, parse, vector_texts
from turnwise.memory.longterm.recall.ranking import Weights
from turnwise.memory.longterm.recall.user_index import UserIndex, index_of, rank_all

ABLATIONS: Mapping[str, Weights] = {
    "all of it": Weights(),
    "without neighbours": Weights(reach=0),
    "without answers to questions": Weights(asked=0.0),
    "long texts as short ones": Weights(short=1_000_000),
    "saturation of plain BM25": Weights(saturation=1.2),
    "without speakers": Weights(speaker=0.0),
    "without names": Weights(name=0.0),
    "without typos": Weights(corrected=0.0),
    "without background": Weights(background=0),
    "without common words' frequencies": Weights(common=-1.0, rare=0.0),
    "without margin": Weights(margin=-99.0, part=0.0),
    "without share": Weights(share=2.0),
}
"""What `Weights` are without a part."""

OF_VECTORS: Mapping[str, Weights] = {
    "without vectors": Weights(vectors=0.0),
    "without vectors' prominence": Weights(prominence=1e6),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """A question, or with no evidence a message that needs nothing, and the similarities that ranking needs."""

    query: Query
    near: Similarities | None
    near_parts: Similarities | None
    evidence: frozenset[str]

    def values(self, user_index: UserIndex, weights: Weights) -> dict[str, float]:
        """Return what ranking with these weights is worth for it."""
        reminded_ids = self._ids(user_index, weights, near=self.near_parts, is_reminder=True)
        if not self.evidence:
            return {"nothing": float(not reminded_ids)}
        recalled_ids = self._ids(user_index, weights, near=self.near, is_reminder=False)
        return {
            "asked": len(self.evidence & recalled_ids) / len(self.evidence),
            "reminded": len(self.evidence & reminded_ids) / len(self.evidence),
        }

    def _ids(
        self, user_index: UserIndex, weights: Weights, *, near: Similarities | None, is_reminder: bool
    ) -> set[str]:
        which = ItemFilter(superseded=True)
        match = user_index.match(self.query, Scope(user_id=""), which, limit=LIMIT, near=near, is_reminder=is_reminder)
        return {item.id for item in rank_all([match], weights)[0]}


def print_weights(data_sets: Mapping[str, Sequence[Conversation]], minilm: EmbeddingFunction | None) -> None:
    for way, embedding in {"words": None, "MiniLM": minilm}.items():
        if way == "words" or embedding is not None:
            for data, conversations in data_sets.items():
                print(f"\nWhat each part of the ranking gives, {data}, by {way}; then to each conversation, asked")
                trials = [trials_of(conversation, embedding) for conversation in conversations]
                _print_data_set(trials, {**ABLATIONS, **({} if embedding is None else OF_VECTORS)})


def _print_data_set(trials: Sequence[tuple[UserIndex, Sequence[Trial]]], ablations: Mapping[str, Weights]) -> None:
    print(f"  {'':36}{'asked':>10}{'reminded':>10}{'nothing':>10}")
    whole: list[dict[str, float]] = []
    for name, weights in ablations.items():
        by_conversation = [_means(user_index, trials_of_user, weights) for user_index, trials_of_user in trials]
        whole = whole or by_conversation
        means = [
            statistics.fmean(values[key] for values in by_conversation) for key in ("asked", "reminded", "nothing")
        ]
        asked_shares = [
            values["asked"] - (0 if by_conversation is whole else all_parts["asked"])
            for values, all_parts in zip(by_conversation, whole, strict=True)
        ]
        shown = " ".join(f"{value:{'.3f' if by_conversation is whole else '+.3f'}}" for value in asked_shares)
        print(f"  {name:36}" + "".join(f"{value:10.3f}" for value in means) + f"   {shown}", flush=True)


def _means(user_index: UserIndex, trials: Sequence[Trial], weights: Weights) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        for name, value in trial.values(user_index, weights).items():
            values[name].append(value)
    return {name: statistics.fmean(of_name) for name, of_name in values.items()}


def trials_of(conversation: Conversation, embedding: EmbeddingFunction | None) -> tuple[UserIndex, list[Trial]]:
    """Return the index of a conversation, and its trials: by words alone, or also with an embedding's vectors."""
    user_index = index_of(conversation.items)
    words = user_index._words  # noqa: SLF001 - no weight is in what it finds
    words.find = functools.cache(words.find)  # type: ignore[method-assign]
    vectors = None if embedding is None else VectorIndex(ChromaInMemory(), embedding)
    if vectors is not None:
        texts = dict(pair for row in user_index.rows for pair in vectors_of(row.key, row.item.text))
        user_index.take(dict(zip(texts, vectors.embed(list(texts.values())), strict=True)))
    needless = messages.messages_of([conversation], "nothing")
    asked_prompts = [((question.text,), question.evidence) for question in conversation.questions]
    trials = []
    for prompts, evidence in [*asked_prompts, *((message.prompts, message.evidence) for message in needless)]:
        text = query_of(prompts)
        query, near, near_parts = parse(text), None, None
        if vectors is not None:
            unrelated = vectors.embed(UNRELATED)
            near, near_parts = (
                spread_out(
                    user_index.near(vectors.embed(vector_texts(text, is_reminder=is_reminder).texts), unrelated),
                    text,
                    is_fact=user_index.arranged.is_fact,
                    is_reminder=is_reminder,
                )
                for is_reminder in (False, True)
            )
        trials.append(Trial(query, near, near_parts, evidence))
    return user_index, trials
