"""Chooses the weights of the ranking, and shows what each part of it gives: a part of `recall.py`.

The procedure. Trials are the dev set's messages of each kind that has a goal, stretches of few turns, facts with
look-alikes, and questions that share no word with their answer; each by words alone and, if there is an embedding, with
its vectors too. A choice of weights is worth the mean of all measures, each less `SHORT` times what it lacks of its
goal. From `START` on, the weights are tried one after the other, each with all values of its grid while the others
stand. It moves if the best value is worth `GAIN` more than where it stands, to the nearest of those values that are
worth as much as the best but for `GAIN`: so noise moves nothing, and nothing moves further than it has to. `ROUNDS`
rounds, or fewer if one moves nothing.

How far to trust that: the same is done without one quarter of the trials at a time, and what is chosen so is measured
on that quarter, beside the defaults. Questions are in the same quarter in whichever way they are written.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from long_term import fact_set, messages
from long_term.messages import GOALS, Conversation
from turnwise.actors.session.memory import memory_retrieval
from turnwise.memory.conversation.blocks import User
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.index.vector_index import EmbeddingFunction
from turnwise.memory.longterm.items.base import ItemFilter
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.recall.query import Query, parse
from turnwise.memory.longterm.recall.ranking import FACTS, Weights
from turnwise.memory.longterm.recall.user_index import UserIndex, index_of

Floats = NDArray[np.float32]

SHORT, GAIN, ROUNDS = 25.0, 0.002, 2
QUARTERS = 4
LIMIT = 10

GRID: dict[str, Sequence[float]] = {
    "saturation": (0.25, 0.5, 1.0, 1.5),
    "before": (0.3, 0.5, 0.7, 0.9),
    "after": (0.0, 0.25, 0.4, 0.55),
    "reach": (2, 3, 4),
    "speaker": (0.25, 0.5, 1.0),
    "name": (5.0, 10.0, 20.0),
    "common": (4.0, 5.0, 6.0),
    "rare": (10.0, 11.0, 12.0),
    "margin": (0.0, 0.5, 1.0),
    "part": (0.15, 0.25, 0.35),
    "share": (0.6, 0.7, 0.8),
    "vectors": (2.0, 4.0, 8.0, 16.0),
    "least": (4.0, 8.0, 12.0),
    "similar": (0.35, 0.4, 0.45, 0.5),
    "facts.tail": (0.6, 0.7, 0.8),
    "facts.least": (0.0, 2.0, 4.0),
}
"""The values that are tried. Names with `facts.` are weights that differ for facts; the others apply to both."""

ABLATIONS: dict[str, dict[str, float]] = {
    "as it is": {},
    "without neighbours": {"reach": 0},
    "without items after": {"after": 0.0},
    "without speakers": {"speaker": 0.0},
    "without names": {"name": 0.0},
    "without typos": {"corrected": 0.0},
    "without margin": {"margin": -99.0},
    "without part": {"part": 0.0},
    "without share": {"share": 2.0},
    "without least": {"least": 0.0, "facts.least": 0.0},
    "without background": {"background": 0},
    "without vectors": {"vectors": 0.0, "similar": 2.0},
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Weights for turns and for facts."""

    turns: Weights
    facts: Weights

    def with_(self, changes: Mapping[str, float]) -> Choice:
        """Return the choice with other values. One without `facts.` applies to both, unless facts have their own."""
        plain: dict[str, Any] = {name: value for name, value in changes.items() if "." not in name}
        shared = {name: value for name, value in plain.items() if name not in OF_FACTS}
        own: dict[str, Any] = {name.removeprefix("facts."): value for name, value in changes.items() if "." in name}
        return Choice(replace(self.turns, **plain), replace(self.facts, **shared, **own))

    def value(self, name: str) -> float:
        number: float = getattr(self.facts if "." in name else self.turns, name.removeprefix("facts."))
        return number


OF_FACTS = ("reach", *(name.removeprefix("facts.") for name in GRID if "." in name))
DEFAULTS = Choice(Weights(), FACTS)
_GUESSED = Weights(
    saturation=1.0,
    before=0.7,
    after=0.25,
    reach=3,
    speaker=0.5,
    name=20.0,
    common=5.0,
    rare=11.0,
    margin=0.5,
    part=0.25,
    share=0.7,
    least=8.0,
    vectors=8.0,
    similar=0.5,
)
START = Choice(_GUESSED, replace(_GUESSED, reach=0, tail=0.7, least=2.0))
"""The first guesses. The choice always starts here, whatever the current defaults are."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A message, the memory that it is asked, and what should be found."""

    measure: str
    quarter: int
    user_index: UserIndex
    query: Query
    similarities: NDArray[np.float64] | None
    evidence: frozenset[str]
    is_fact: bool = False

    def answer(self, choice: Choice) -> tuple[float, float, float]:
        """Return the trial's part of its measure, as numerator and denominator, and whether its answer is right."""
        weights = choice.facts if self.is_fact else choice.turns
        match = self.user_index.match(self.query, _ANYBODY, _EVER, weights=weights)
        items = self.user_index.rank(match, limit=LIMIT, similarities=self.similarities)
        ids = {item.id for item in items}
        hits = len(ids & self.evidence)
        if self.is_fact:
            return hits, len(ids), float(ids == self.evidence)
        if not self.evidence:
            return float(not ids), 1.0, 0.0
        return hits / len(self.evidence), 1.0, 0.0


_ANYBODY, _EVER = Scope(user_id=""), ItemFilter(superseded=True)

Values = dict[str, float]


class Trials:
    """All trials and their results."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = trials
        self._answers: dict[Choice, list[tuple[float, float, float]]] = {}
        goals = {str(kind): goal for kind, goal in GOALS.items()}
        goals |= {"facts": fact_set.PRECISION, "whole": fact_set.WHOLE}
        self.goals = {name: goals[kind] for name in self.values(DEFAULTS) if (kind := name.partition(",")[0]) in goals}

    def values(self, choice: Choice, quarters: Sequence[int] = range(QUARTERS)) -> Values:
        """Return each measure of a choice on the trials of these quarters."""
        answers = self._answers.get(choice)
        if answers is None:
            answers = self._answers[choice] = [trial.answer(choice) for trial in self._trials]
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for trial, (above, below, whole) in zip(self._trials, answers, strict=True):
            if trial.quarter in quarters:
                for name, top, bottom in (
                    (trial.measure, above, below),
                    *([(f"whole{trial.measure.removeprefix('facts')}", whole, 1.0)] if trial.is_fact else []),
                ):
                    sums[name][0] += top
                    sums[name][1] += bottom
        return {name: top / bottom if bottom else 0.0 for name, (top, bottom) in sums.items()}

    def worth(self, choice: Choice, quarters: Sequence[int] = range(QUARTERS)) -> float:
        """Return the worth of a choice on the trials of these quarters."""
        values = self.values(choice, quarters)
        lacking = sum(max(0.0, goal - values[name]) for name, goal in self.goals.items())
        return (sum(values.values()) - SHORT * lacking) / len(values)

    def best_choice(self, quarters: Sequence[int], tell: Callable[[str, Choice], None] | None = None) -> Choice:
        """Return the choice for the trials of these quarters; prints each choice that it tries."""
        stands = START
        for _ in range(ROUNDS):
            before = stands
            for name, grid in GRID.items():
                choices = {value: stands.with_({name: value}) for value in grid}
                worths = {value: self.worth(choice, quarters) for value, choice in choices.items()}
                if tell is not None:
                    for value, choice in choices.items():
                        tell(f"{name} {value:g}", choice)
                best = max(worths.values())
                if best > self.worth(stands, quarters) + GAIN:
                    good = [value for value, worth in worths.items() if worth > best - GAIN]
                    was = stands.value(name)
                    stands = choices[min(good, key=lambda value: abs(value - was))]
            if stands == before:
                break
        return stands


def print_weights(
    conversations: Sequence[Conversation], meaning: Conversation, minilm: EmbeddingFunction | None
) -> None:
    trials = Trials(
        [*trials_of(conversations, meaning, None), *(trials_of(conversations, meaning, minilm) if minilm else [])]
    )
    names = list(trials.values(DEFAULTS))
    print(f"\nWeights; measures: {'; '.join(names)}")

    def tell(title: str, choice: Choice, quarters: Sequence[int] = range(QUARTERS)) -> None:
        values = trials.values(choice, quarters)
        missed = [name for name, goal in trials.goals.items() if values[name] < goal]
        shown = " ".join(f"{values[name]:.3f}"[1:] if values[name] < 1 else "1.00" for name in names)
        print(
            f"  {title:24} {trials.worth(choice, quarters):.4f}  {shown}  missed: {', '.join(missed) or 'none'}",
            flush=True,
        )

    print("What each part gives")
    for name, changes in ABLATIONS.items():
        tell(name, DEFAULTS.with_(changes))
    print("Each choice that is tried")
    all_quarters = range(QUARTERS)
    best = trials.best_choice(all_quarters, tell)
    tell("chosen", best)
    print(f"  that is: {_changes(best)}")
    print("Chosen without a quarter, and measured on it; then the defaults there")
    for quarter in all_quarters:
        choice = trials.best_choice([part for part in all_quarters if part != quarter])
        tell(f"without quarter {quarter + 1}", choice, [quarter])
        tell("  defaults", DEFAULTS, [quarter])
        print(f"    that is: {_changes(choice)}", flush=True)


def _changes(choice: Choice) -> str:
    moved = [f"{name} {choice.value(name):g}" for name in GRID if choice.value(name) != START.value(name)]
    differing = [name for name in GRID if choice.value(name) != DEFAULTS.value(name)]
    so = f"the defaults differ in {', '.join(differing)}" if differing else "as the defaults"
    return f"{', '.join(moved) or 'nothing'}; the others as at the start; {so}"


# Trials


def trials_of(
    conversations: Sequence[Conversation], meaning: Conversation, embedding: EmbeddingFunction | None
) -> list[Trial]:
    """Return the trials with words alone, or also with an embedding's vectors."""
    by = ", words" if embedding is None else ", vectors"
    maker = _Maker(embedding)
    trials: list[Trial] = []
    user_indexes = {conversation.user: maker.user_index(conversation.items) for conversation in conversations}
    for kind in GOALS:
        sent_messages = messages.messages_of(conversations, kind)
        trials += [
            maker.trial(kind + by, index % QUARTERS, user_indexes[message.user], message.prompts, message.evidence)
            for index, message in enumerate(sent_messages)
        ]
    trials += _few(conversations, maker, by)
    trials += asyncio.run(_facts(maker, by))
    if embedding is not None:
        user_index = maker.user_index(meaning.items)
        for index, (question, evidence) in enumerate(meaning.questions):
            trials.append(maker.trial(f"meaning{by}", index % QUARTERS, user_index, (question,), evidence))
    return trials


def _few(conversations: Sequence[Conversation], maker: _Maker, by: str) -> list[Trial]:
    """Return questions to users who have only twenty turns, including one that answers."""
    random = Random(1)
    trials = []
    for index in range(100):
        conversation = random.choice(conversations)
        question, evidence = random.choice(conversation.questions)
        answer = next(place for place, item in enumerate(conversation.items) if item.id in evidence)
        start = max(0, answer - random.randrange(20))
        items = conversation.items[start : start + 20]
        answer_ids = evidence & {item.id for item in items}
        trials.append(maker.trial(f"few turns{by}", index % QUARTERS, maker.user_index(items), (question,), answer_ids))
    return trials


async def _facts(maker: _Maker, by: str) -> list[Trial]:
    memory = LexicalMemory(InMemoryItems(), clock=lambda: fact_set.NOW)
    await fact_set.fill_with_facts(memory)
    trials = []
    for index, question in enumerate(fact_set.questions("dev")):
        scope = Scope(user_id=question.user, agent=question.agent)
        items = await memory.items(scope, ItemFilter(types=question.types, as_of=question.as_of))
        trial = maker.trial(f"facts{by}", index % QUARTERS, maker.user_index(items), (question.text,), question.answer)
        trials.append(replace(trial, is_fact=True))
    await memory.close()
    return trials


class _Maker:
    """Makes trials, and computes each text's vector once."""

    def __init__(self, embedding: EmbeddingFunction | None) -> None:
        self._embedding = embedding
        self._vectors: dict[str, Floats] = {}

    def user_index(self, items: Sequence[MemoryItem]) -> UserIndex:
        user_index = index_of(items)
        # What a shelf has of a query depends on no weight.
        user_index._words.find = functools.cache(user_index._words.find)  # type: ignore[method-assign]
        if self._embedding is not None:
            self._embed([item.text for item in items])
            user_index.take({row.key: self._vectors[row.item.text] for row in user_index.rows})
        return user_index

    def trial(
        self, measure: str, quarter: int, user_index: UserIndex, prompts: Sequence[str], evidence: frozenset[str]
    ) -> Trial:
        *before, prompt = [[User(text=text)] for text in prompts]
        query = memory_retrieval._query(prompt, before[-1] if before else ())
        vector = None
        if self._embedding is not None:
            self._embed([query])
            vector = self._vectors[query]
        return Trial(measure, quarter, user_index, parse(query), user_index.similarities(vector), evidence)

    def _embed(self, texts: Sequence[str]) -> None:
        assert self._embedding is not None
        if new_texts := [text for text in dict.fromkeys(texts) if text not in self._vectors]:
            vectors = np.asarray(self._embedding(new_texts), np.float32)
            self._vectors.update(zip(new_texts, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), strict=True))
