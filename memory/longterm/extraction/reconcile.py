"""Reconciles a model's answer with the known facts: which facts are new, and which replace others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.extraction.clauses import NEUTRAL, flat, subjects
from turnwise.memory.longterm.extraction.contradiction import contradict
from turnwise.memory.longterm.extraction.grounding import Verdict, judge, quoted_in, said_names
from turnwise.memory.longterm.extraction.input import ExtractionInput, UserStatement
from turnwise.memory.longterm.extraction.schema import Action, Candidate, Limits, Refusal
from turnwise.memory.longterm.search.ranking import FACTS


def nearest(material: ExtractionInput, known: Sequence[MemoryItem], *, count: int, recent: int) -> list[MemoryItem]:
    """Return the facts that are to be shown: those nearest to what was said, then the newest; each once.

    Args:
        known: newest first.
        count: how many for each thing said, at most.
        recent: to how many they are filled up with the newest, as what contradicts may share no word.
    """
    from turnwise.memory.longterm.search.user_index import find, index_of

    asked = "\n".join(said.text for said in material.said)
    most = min(count * len(material.said), max(count, _SHOWN))
    places = {item.id: at for at, item in enumerate(known)}
    near = [places[item.id] for item in find(index_of(known), asked, limit=most, weights=_LOOSE)]
    there = set(near)
    newest = [at for at in range(min(len(known), recent + len(near))) if at not in there]
    return [known[at] for at in [*near, *newest[: max(recent - len(near), 0)]]]


_LOOSE = replace(FACTS, tail=0.0, margin=float("-inf"), part=0.0)
"""A fact that shares a word is shown."""

_SHOWN = 64
"""Known facts that are shown at most, however much was said."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted fact, the user's statement of it, and the facts that it replaces (or that replace it, if newer)."""

    candidate: Candidate
    said: UserStatement
    instead_of: tuple[MemoryItem, ...] = ()
    instead_of_new: tuple[int, ...] = ()
    """Facts of the same answer that it contradicts and that were said before it, by their numbers."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The accepted facts of an answer, and counts of the others."""

    accepted: tuple[Accepted, ...]
    again: frozenset[str] = frozenset()
    """The ids of known facts that were said again."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many were refused, by `Refusal`; `same` as what is known; `ignored`, by the model's word; `quoted`, as what
    the user said does not bear them out."""


def decide(
    candidates: Sequence[Candidate | Refusal],
    material: ExtractionInput,
    known: Sequence[MemoryItem],
    shown: Mapping[str, MemoryItem],
    limits: Limits,
    *,
    now: float = 0.0,
) -> ReconcileResult:
    """Return which facts are new, and which replace others.

    A quotation takes the place of nothing but a quotation: what the user said may mean something else. A fact takes the
    place of all that it contradicts, see `contradiction`, whatever the model says of it.

    Args:
        known: all that holds now; what was shown and is not among it any more is not superseded.
        shown: what the model was shown, by short name.
        now: the time of what was said without one, in seconds since the epoch.
    """
    deciding = _Reconciling(known)
    for number, candidate in enumerate(candidates):
        if len(deciding.accepted) >= limits.max_facts or number >= _READ * limits.max_facts:
            deciding.counts[Refusal.TOO_MANY] += len(candidates) - number
            break
        if isinstance(candidate, Refusal):
            deciding.counts[candidate] += 1
            continue
        verdict = judge(candidate, material, limits)
        of = shown[candidate.of].id if candidate.of is not None and candidate.of in shown else None
        if candidate.action is Action.IGNORE:
            deciding.ignore(of, verdict)
        elif isinstance(verdict, Refusal):
            deciding.counts[verdict] += 1
        else:
            names = said_names(candidate, verdict.said, material)
            name = candidate.name if candidate.name in names else None
            own = {"name": name, "aliases": tuple(each for each in names if each != name)}
            deciding.take(number, candidate.model_copy(update=own), verdict, of, now)
    return ReconcileResult(tuple(deciding.accepted), frozenset(deciding.again), deciding.counts)


class _Reconciling:
    """What was decided of the candidates of an answer so far."""

    def __init__(self, known: Sequence[MemoryItem]) -> None:
        self.holds = {item.id: item for item in known}
        self.keys = {item.id: _key(item.text) for item in known}
        self.accepted: list[Accepted] = []
        self.places: list[tuple[int, int]] = []
        """Where each that was accepted is said."""
        self.again: set[str] = set()
        self.counts = Counter[str]()

    def ignore(self, of: str | None, verdict: Verdict | Refusal) -> None:
        """Note that the model finds nothing new in it."""
        self.counts["ignored"] += 1
        if of in self.holds and isinstance(verdict, Verdict):
            self.again.add(of)

    def take(self, number: int, candidate: Candidate, verdict: Verdict, of: str | None, now: float) -> None:
        """Accept the candidate, or a quotation in its place, unless the same is known."""
        text = verdict.text(candidate.text, verdict.said.item.created_at or now)
        candidate = candidate.model_copy(update={"text": text})
        target = self._target(candidate, of)
        key = _key(text)
        if target is None:
            of = next((at for at, other in self.keys.items() if at in self.holds and _extends(key, other)), None)
            target = self.holds[of] if of is not None else None
            same = {at for at, other in self.keys.items() if _extends(other, key)}
        else:
            same = {at for at, other in self.keys.items() if other == key}
        if verdict.quote is not None:
            plain = _key(verdict.quote)  # as a fact that is the same sentence, and holds
            same |= {at for at, other in self.keys.items() if other == plain}
        if same:
            self.counts["same"] += 1
            self.again |= same & self.holds.keys()
            return
        gone = {target.id: target} if target else {}
        before: list[int] = []
        if verdict.quote is not None:
            self.counts["quoted"] += 1
        else:
            gone |= {each.id: each for each in self.holds.values() if _contradicts(candidate, each.text, each.topic)}
            before = self._contradicted(candidate, verdict.place)
        for name in gone:
            del self.holds[name]  # only one fact stands in its place
        self.keys[f"{number} of this answer"] = key
        self.places.append(verdict.place)
        self.accepted.append(Accepted(candidate, verdict.said, tuple(gone.values()), tuple(before)))

    def _target(self, candidate: Candidate, of: str | None) -> MemoryItem | None:
        """Return what the candidate is to stand in the place of, by the model's word and as far as it can be so."""
        target = None if of is None or candidate.action is Action.ADD else self.holds.get(of)
        if target is None or not _akin(candidate, target):
            return None
        return None if quoted_in(candidate.text) is not None and quoted_in(target.text) is None else target

    def _contradicted(self, candidate: Candidate, place: tuple[int, int]) -> list[int]:
        """Return which of the answer's facts it contradicts and follows; note it at those that follow it."""
        before = []
        for at, other in enumerate(self.accepted):
            if _contradicts(candidate, other.candidate.text, other.candidate.topic):
                if self.places[at] <= place:
                    before.append(at)
                else:
                    later = (*other.instead_of_new, len(self.accepted))
                    self.accepted[at] = replace(other, instead_of_new=later)
        return before


_READ = 20
"""How many times as many facts of an answer are looked at as may be taken."""


def _contradicts(candidate: Candidate, text: str, topic: str | None) -> bool:
    """Return whether a new fact and another cannot both hold: they are of one topic, or one of them has none."""
    is_same = flat(candidate.topic or "") == flat(topic or "")
    if candidate.topic and topic and not is_same:
        return False
    return quoted_in(text) is None and contradict(candidate.text, text, same_topic=is_same and bool(topic))


def _akin(candidate: Candidate, item: MemoryItem) -> bool:
    """Return whether it can be about the same: a model that lies may not put anything in the place of anything."""
    if candidate.topic and item.topic and flat(candidate.topic) == flat(item.topic):
        return True
    claimed = subjects(f"{candidate.text} {candidate.evidence}")
    return bool(claimed & subjects(item.text) - NEUTRAL)


def _key(text: str) -> tuple[str, ...]:
    """Return what texts that say the same in the same words share. A quotation is the same on any day."""
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
    """Return whether the one says what the other says, word for word, or that and a little more."""
    if more == less:
        return True
    if "" in (more[:1] + less[:1]):
        return False  # a quotation is as it is
    if not _LEAST <= len(less) < len(more) or len(less) < _SHARE * len(more):
        return False
    rest = iter(more)
    if not all(word in rest for word in less):
        return False
    added = Counter(more) - Counter(less)
    return not any(word in _NOT or word.endswith("n't") for word in added)


_LEAST = 3
_SHARE = 0.75
