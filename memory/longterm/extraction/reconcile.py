"""Reconciles a model's answer with the known facts: which facts are new, and which replace others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from turnwise.memory.background import check_awaited
from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.extraction.candidates import Action, Candidate, Limits, Refusal
from turnwise.memory.longterm.extraction.clauses import NEUTRAL, flat, subjects
from turnwise.memory.longterm.extraction.contradiction import contradict
from turnwise.memory.longterm.extraction.grounding import Verdict, judge, judge_sourced, quoted_in, written_names
from turnwise.memory.longterm.extraction.input import ExtractionInput, UserStatement
from turnwise.memory.longterm.memory_types import MemoryType
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
    """An accepted fact, the user's statement of it, and the facts that it replaces (or that replace it, if newer)."""

    candidate: Candidate
    statement: UserStatement
    instead_of: tuple[MemoryItem, ...] = ()
    instead_of_new: tuple[int, ...] = ()
    """The numbers of facts of the same answer that it contradicts, and that the user said earlier."""


@dataclass(frozen=True)
class ReconcileResult:
    """The accepted facts of an answer, and counts of the others."""

    accepted: tuple[Accepted, ...]
    again: frozenset[str] = frozenset()
    """The ids of known facts that were said again."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many facts were refused, by `Refusal`; how many were the `same` as a known fact, were `ignored` by the model,
    were `quoted` because the user's words do not support them, or `sourced`: the assistant's, from a tool's result."""


def decide(
    candidates: Sequence[Candidate | Refusal],
    messages: ExtractionInput,
    facts: Sequence[MemoryItem],
    shown: Mapping[str, MemoryItem],
    limits: Limits,
    *,
    now: float = 0.0,
) -> ReconcileResult:
    """Return which facts are new, and which facts they replace.

    A quotation replaces only quotations, since its meaning is uncertain. A fact replaces all facts that it contradicts,
    see `contradiction`, even if the model does not say so.

    Args:
        facts: the facts that are valid now. A fact that the model was shown is replaced only if it is among them.
        shown: the facts that the model was shown, by short name.
        now: the time of statements that have none, in seconds since the epoch.
    """
    deciding = _Reconciling(facts)
    for number, candidate in enumerate(candidates):
        check_awaited()
        if len(deciding.accepted) >= limits.max_facts or number >= _MAX_CANDIDATES * limits.max_facts:
            deciding.counts[Refusal.TOO_MANY] += len(candidates) - number
            break
        if isinstance(candidate, Refusal):
            deciding.counts[candidate] += 1
            continue
        verdict = judge(candidate, messages, limits)
        if verdict is Refusal.NO_EVIDENCE:
            verdict = judge_sourced(candidate, messages, limits) or verdict
        of = shown[candidate.of].id if candidate.of is not None and candidate.of in shown else None
        if candidate.action is Action.IGNORE:
            deciding.ignore(of, verdict)
        elif isinstance(verdict, Refusal):
            deciding.counts[verdict] += 1
        else:
            names = written_names(candidate, verdict.statement, messages)
            name = candidate.name if candidate.name in names else None
            changes: dict[str, Any] = {"name": name, "aliases": tuple(alias for alias in names if alias != name)}
            if verdict.tool is not None:
                changes["type"] = str(MemoryType.CONTEXT)  # no type of the profile, which says who the user is
            deciding.accept(number, candidate.model_copy(update=changes), verdict, of, now)
    return ReconcileResult(tuple(deciding.accepted), frozenset(deciding.again), deciding.counts)


class _Reconciling:
    """The decisions about an answer's candidates so far."""

    def __init__(self, facts: Sequence[MemoryItem]) -> None:
        self.facts = {item.id: item for item in facts}
        self.keys = {item.id: _key(item.text) for item in facts}
        self.accepted: list[Accepted] = []
        self.places: list[tuple[int, int]] = []
        """The place of each accepted fact in the messages."""
        self.again: set[str] = set()
        self.counts = Counter[str]()

    def ignore(self, of: str | None, verdict: Verdict | Refusal) -> None:
        """Count a candidate that the model considers known."""
        self.counts["ignored"] += 1
        if of in self.facts and isinstance(verdict, Verdict):
            self.again.add(of)

    def accept(self, number: int, candidate: Candidate, verdict: Verdict, of: str | None, now: float) -> None:
        """Accept the candidate, or a quotation instead, unless it is already known."""
        text = verdict.text(candidate.text, verdict.statement.item.created_at or now)
        candidate = candidate.model_copy(update={"text": text})
        target = self._target(candidate, of)
        key = _key(text)
        if target is None:
            of = next(
                (
                    fact_id
                    for fact_id, other_key in self.keys.items()
                    if fact_id in self.facts and _extends(key, other_key)
                ),
                None,
            )
            target = self.facts[of] if of is not None else None
            same = {fact_id for fact_id, other_key in self.keys.items() if _extends(other_key, key)}
        else:
            same = {fact_id for fact_id, other_key in self.keys.items() if other_key == key}
        if verdict.quote is not None:
            plain = _key(verdict.quote)  # a known fact in the same words
            same |= {fact_id for fact_id, other_key in self.keys.items() if other_key == plain}
        if same:
            self.counts["same"] += 1
            self.again |= same & self.facts.keys()
            return
        replaced = {target.id: target} if target else {}
        before: list[int] = []
        if verdict.quote is not None:
            self.counts["quoted" if verdict.tool is None else "sourced"] += 1
        else:
            for fact in self.facts.values():
                check_awaited()
                if _contradicts(candidate, fact.text, fact.topic):
                    replaced[fact.id] = fact
            before = self._contradicted(candidate, verdict.place)
        for name in replaced:
            del self.facts[name]  # a fact is replaced by one fact only
        self.keys[f"{number} of this answer"] = key
        self.places.append(verdict.place)
        self.accepted.append(Accepted(candidate, verdict.statement, tuple(replaced.values()), tuple(before)))

    def _target(self, candidate: Candidate, of: str | None) -> MemoryItem | None:
        """Return the known fact that the model says the candidate replaces, if that is plausible."""
        target = None if of is None or candidate.action is Action.ADD else self.facts.get(of)
        if target is None or not _may_share_subject(candidate, target):
            return None
        return None if quoted_in(candidate.text) is not None and quoted_in(target.text) is None else target

    def _contradicted(self, candidate: Candidate, place: tuple[int, int]) -> list[int]:
        """Return the numbers of earlier facts of the answer that the candidate contradicts.

        The candidate is added to the later facts that contradict it.
        """
        before = []
        for index, accepted in enumerate(self.accepted):
            if _contradicts(candidate, accepted.candidate.text, accepted.candidate.topic):
                if self.places[index] <= place:
                    before.append(index)
                else:
                    later = (*accepted.instead_of_new, len(self.accepted))
                    self.accepted[index] = replace(accepted, instead_of_new=later)
        return before


_MAX_CANDIDATES = 20
"""The maximum number of candidates read from an answer, as a multiple of `Limits.max_facts`."""


def _contradicts(candidate: Candidate, text: str, topic: str | None) -> bool:
    """Return whether a new fact contradicts another of the same topic, or if one has no topic."""
    is_same = flat(candidate.topic or "") == flat(topic or "")
    if candidate.topic and topic and not is_same:
        return False
    return quoted_in(text) is None and contradict(candidate.text, text, same_topic=is_same and bool(topic))


def _may_share_subject(candidate: Candidate, item: MemoryItem) -> bool:
    """Return whether both may be about the same subject, so that a wrong answer does not replace unrelated facts."""
    if candidate.topic and item.topic and flat(candidate.topic) == flat(item.topic):
        return True
    claimed = subjects(f"{candidate.text} {candidate.evidence}")
    return bool(claimed & subjects(item.text) - NEUTRAL)


def _key(text: str) -> tuple[str, ...]:
    """Return a key that is equal for texts in the same words. Quotations of different days are equal."""
    if (quote := quoted_in(text)) is not None:
        return ("", *flat(quote).split())
    tokens = [token.strip(_MARKS).removesuffix("'s") for token in flat(text).split()]
    return tuple(token for token in tokens if token and token not in _FILLERS) or tuple(tokens)


_MARKS = ".,;:!?\"'()[]…。！？"  # noqa: RUF001
_FILLERS = frozenset(
    ["a", "an", "the", "user", "is", "are", "am", "he", "she", "they", "his", "her", "their", "i", "my"]
)
_NOT = frozenset(
    ["not", "no", "never", "cannot", "without", "nor", "none", "nobody", "nothing", "former", "formerly", "ex"]
)


def _extends(more: tuple[str, ...], less: tuple[str, ...]) -> bool:
    """Return whether one text has the words of the other, and at most a few more."""
    if more == less:
        return True
    if "" in (more[:1] + less[:1]):
        return False  # a quotation extends nothing
    if not _LEAST <= len(less) < len(more) or len(less) < _SHARE * len(more):
        return False
    rest = iter(more)
    if not all(word in rest for word in less):
        return False
    added = Counter(more) - Counter(less)
    return not any(word in _NOT or word.endswith("n't") for word in added)


_LEAST = 3
_SHARE = 0.75
