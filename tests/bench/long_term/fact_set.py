"""Facts with similar ones, and questions whose answers are exact sets of facts: a part of `recall.py`.

`facts.json` has the facts of six users. For each question there are wrong facts with the same words: of another user,
agent or category, superseded, expired, resolved, or about another person. A question with an empty answer should recall
nothing. Every second question of a group is held out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from long_term.finders import RemindingMemory, ids_of
from long_term.messages import Half, half_of
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Scope
from turnwise.memory.longterm.memory_types import MemoryType

SET: Any = json.loads((Path(__file__).parent / "facts.json").read_text(encoding="utf-8"))


def seconds(day: str) -> float:
    """Return the time at which a day of UTC begins, in seconds since the epoch."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


NOW = seconds(SET["now"])
"""The time at which the questions are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A user's question to an agent."""

    user: str
    text: str
    answer: frozenset[str]
    """The ids of the facts that should be recalled, and no others."""
    group: str
    agent: str
    types: tuple[MemoryType, ...] | None
    as_of: float | None


@dataclass(frozen=True, slots=True)
class FactScore:
    """The quality of the answers."""

    n: int
    precision: float
    """Precision: the share of right facts in all recalled facts."""
    recall: float
    """Recall: the share of the answer that was recalled, averaged over the questions that have one."""
    whole: float
    """The share of questions with exactly the right answer."""
    groups: dict[str, float] = field(default_factory=dict)
    """The same for each group of questions."""
    wrong: list[tuple[Question, list[str]]] = field(default_factory=list)
    """The questions that were answered wrongly, and their answers."""


def facts() -> list[tuple[Scope, MemoryItem]]:
    """Return the facts with their scopes; superseded ones have the time and the replacing fact."""
    names = {item_field.name for item_field in fields(MemoryItem)}
    made_at = {fact["id"]: seconds(fact["created_at"]) for fact in SET["facts"]}
    scoped_facts = []
    for fact in SET["facts"]:
        values = {key: value for key, value in fact.items() if key in names}
        values |= {"created_at": made_at[fact["id"]], "type": MemoryType(fact["type"])}
        if "aliases" in values:
            values["aliases"] = tuple(values["aliases"])
        if "expires_at" in values:
            values["expires_at"] = seconds(values["expires_at"])
        if by := fact.get("superseded_by"):
            values["superseded_at"] = made_at[by]
        scoped_facts.append((Scope(user_id=fact["user"], agent=fact.get("agent")), MemoryItem(**values)))
    return scoped_facts


def questions(half: Half) -> list[Question]:
    """Return every second question of each group, in order."""
    groups: dict[str, list[Question]] = defaultdict(list)
    for entry in SET["questions"]:
        question = Question(
            user=entry["user"],
            text=entry["text"],
            answer=frozenset(entry["answer"]),
            group=entry["group"],
            agent=entry["agent"],
            types=tuple(map(MemoryType, entry["types"])) if "types" in entry else None,
            as_of=seconds(entry["as_of"]) if "as_of" in entry else None,
        )
        groups[question.group].append(question)
    return [question for group in groups.values() for question in half_of(group, half)]


async def fill_with_facts(memory: LongTermMemory) -> None:
    for scope, item in facts():
        await memory.remember(scope, [item])


async def ask_facts(memory: RemindingMemory, half: Half = "dev") -> tuple[FactScore, FactScore]:
    """Return the scores of a memory that has the facts, with `NOW` as the time: as prompts, and as queries.

    Questions about a past time are left out of the prompts, which are always about now.
    """
    as_prompts, as_queries = [], []
    for question in questions(half):
        scope = Scope(user_id=question.user, agent=question.agent)
        if question.as_of is None:
            reminder = await memory.remind(scope, question.text, types=question.types)
            as_prompts.append((question, ids_of(reminder.items)))
        items = await memory.recall(scope, question.text, types=question.types, as_of=question.as_of)
        as_queries.append((question, ids_of(items)))
    return score_facts(as_prompts), score_facts(as_queries)


def score_facts(answered: Sequence[tuple[Question, list[str]]]) -> FactScore:
    groups: dict[str, list[bool]] = defaultdict(list)
    recalls, hits, answer_size, wrong = [], 0, 0, []
    for question, answer in answered:
        right = question.answer.intersection(answer)
        hits += len(right)
        answer_size += len(answer)
        if question.answer:
            recalls.append(len(right) / len(question.answer))
        is_whole = question.answer == set(answer)
        groups[question.group].append(is_whole)
        if not is_whole:
            wrong.append((question, answer))
    by_group = {group: sum(hits_of_group) / len(hits_of_group) for group, hits_of_group in groups.items()}
    return FactScore(
        n=len(answered),
        precision=hits / answer_size if answer_size else float("nan"),
        recall=sum(recalls) / len(recalls),
        whole=1 - len(wrong) / len(answered),
        groups=by_group,
        wrong=wrong,
    )
