"""Reconciles the claims of an answer with the known facts: which facts are new, and which replace others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from turnwise.memory.background import check_awaited
from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.extraction.candidates import Action, Candidate, Refusal
from turnwise.memory.longterm.extraction.grounding import Claim, quoted_in
from turnwise.memory.longterm.extraction.input import ExtractionInput, UserStatement
from turnwise.memory.longterm.extraction.wording import content, flat
from turnwise.memory.longterm.recall.ranking import FACTS

if TYPE_CHECKING:
    from turnwise.memory.longterm.recall.user_index import UserIndex


def nearest(
    messages: ExtractionInput,
    facts: Sequence[MemoryItem],
    *,
    count: int,
    recent: int,
    user_index: UserIndex | None = None,
) -> list[MemoryItem]:
    """Return the known facts to show to the model: those similar to the user's statements, then the newest.

    Args:
        facts: all known facts, the newest first.
        count: the maximum number of similar facts to return for each statement.
        recent: the newest facts are added up to this number, since a contradicting fact may share no word.
        user_index: the index of the known facts; made if left out.
    """
    from turnwise.memory.longterm.recall.user_index import find, index_of

    text = "\n".join(statement.text for statement in messages.statements)
    most = min(count * len(messages.statements), max(count, _SHOWN))
    places = {item.id: index for index, item in enumerate(facts)}
    similar = find(user_index or index_of(facts), text, limit=most, weights=_NEAREST_WEIGHTS)
    similar_indexes = [places[item.id] for item in similar if item.id in places]
    shown = set(similar_indexes)
    newest = [index for index in range(min(len(facts), recent + len(similar_indexes))) if index not in shown]
    return [facts[index] for index in [*similar_indexes, *newest[: max(recent - len(similar_indexes), 0)]]]


_NEAREST_WEIGHTS = replace(FACTS, tail=0.0, margin=float("-inf"), part=0.0)
"""Weights with which one shared word is enough to make a fact similar."""

_SHOWN = 64
"""The maximum number of similar facts shown if there are many statements, unless `count` is larger."""


@dataclass(frozen=True)
class Accepted:
    """An accepted fact, the user's statement of it, and the facts that it replaces, or that replace it if newer."""

    candidate: Candidate
    statement: UserStatement
    instead_of: tuple[MemoryItem, ...] = ()


@dataclass(frozen=True)
class ReconcileResult:
    """The accepted facts of an answer, and counts of the others."""

    accepted: tuple[Accepted, ...]
    again: frozenset[str] = frozenset()
    """The ids of known facts that were said again."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many facts were refused, by `Refusal`; how many were the `same` as a known fact, were `ignored` by the model,
    were `quoted` because the user's words do not state them, or `sourced`: the assistant's, from a tool's result."""


def decide(
    claims: Sequence[Claim | Refusal],
    facts: Sequence[MemoryItem],
    shown: Mapping[str, MemoryItem],
    *,
    now: float = 0.0,
) -> ReconcileResult:
    """Return which facts are new, and which facts they replace.

    A fact replaces those that the model names, unless it is plainly about something else, see `_may_replace`. A
    quotation replaces none, since its meaning is uncertain. Each fact is replaced by one fact only.

    Args:
        facts: the facts that are valid now. A fact that the model was shown is replaced only if it is among them.
        shown: the facts that the model was shown, by short name.
        now: the time of statements that have none, in seconds since the epoch.
    """
    valid = {item.id: item for item in facts}
    keys = {item.id: _key(item.text) for item in facts}
    accepted: list[Accepted] = []
    again: set[str] = set()
    counts = Counter[str]()
    for number, claim in enumerate(claims):
        check_awaited()
        if isinstance(claim, Refusal):
            counts[claim] += 1
            continue
        candidate = claim.candidate
        of = [valid[item.id] for name in candidate.of if (item := shown.get(name)) and item.id in valid]
        if candidate.action is Action.IGNORE:
            counts["ignored"] += 1
            again |= {item.id for item in of}
            continue
        text = claim.text(now)
        key = _key(text)
        same_keys = [key, _key(claim.quote)] if claim.is_quoted and claim.quote else [key]
        if same := {fact_id for fact_id, other_key in keys.items() if other_key in same_keys}:
            counts["same"] += 1
            again |= same & valid.keys()
            continue
        replaced: list[MemoryItem] = []
        if claim.is_quoted:
            counts["quoted" if claim.tool is None else "sourced"] += 1
        elif candidate.action is not Action.ADD:
            replaced = [item for item in of if _may_replace(candidate, item)]
        for item in replaced:
            del valid[item.id]
        keys[f"{number} of this answer"] = key
        candidate = candidate.model_copy(update={"text": text})
        accepted.append(Accepted(candidate, claim.statement, tuple(replaced)))
    return ReconcileResult(tuple(accepted), frozenset(again), counts)


def _may_replace(candidate: Candidate, item: MemoryItem) -> bool:
    """Return whether both have the same topic, or a word in common that is not in any text.

    So a wrong answer does not replace unrelated facts.
    """
    is_same = candidate.topic and item.topic and flat(candidate.topic) == flat(item.topic)
    return bool(is_same or content(candidate.evidence) & content(item.text))


def _key(text: str) -> tuple[str, ...]:
    """Return a key that is equal for texts in the same words. Quotations of different days are equal."""
    if (quote := quoted_in(text)) is not None:
        return ("", *flat(quote).split())
    tokens = [token.strip(_MARKS) for token in flat(text).split()]
    return tuple(filter(None, tokens)) or tuple(tokens)


_MARKS = ".,;:!?\"'()[]…。！？"  # noqa: RUF001
