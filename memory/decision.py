"""What becomes of a model's answer: which facts are new, and which stand in the place of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.memory.candidates import Action, Candidate, Limits, Refusal
from turnwise.memory.clauses import NEUTRAL, flat, subjects
from turnwise.memory.judging import judge
from turnwise.memory.lexical import rank
from turnwise.memory.long_term import MemoryItem
from turnwise.memory.material import Material, Said


def nearest(material: Material, known: Sequence[MemoryItem], *, count: int, recent: int) -> list[MemoryItem]:
    """Return the facts that are to be shown: those nearest to what was said, then the newest; each once.

    Args:
        known: newest first.
        count: how many for each thing said, at most.
        recent: to how many they are filled up with the newest, as what contradicts may share no word.
    """
    asked = " ".join(said.text for said in material.said)
    near = [at for at, _ in rank(asked, [item.text for item in known], floor=0.1)]
    near = near[: min(count * len(material.said), max(count, _SHOWN))]
    there = set(near)
    newest = [at for at in range(min(len(known), recent + len(near))) if at not in there]
    return [known[at] for at in [*near, *newest[: max(recent - len(near), 0)]]]


_SHOWN = 64
"""Known facts that are shown at most, however much was said."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A fact, where the user says it, and what it stands in the place of."""

    candidate: Candidate
    said: Said
    instead_of: MemoryItem | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of an answer."""

    accepted: tuple[Accepted, ...]
    again: frozenset[str] = frozenset()
    """The ids of known facts that were said again."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many were refused, by `Refusal`; `same` as what is known; `ignored`, by the model's word."""


def decide(
    candidates: Sequence[Candidate | Refusal],
    material: Material,
    known: Sequence[MemoryItem],
    shown: Mapping[str, MemoryItem],
    limits: Limits,
) -> Decision:
    """Return which facts are new, and which stand in the place of others.

    Args:
        known: all that holds now; what was shown and is not among it any more is not superseded.
        shown: what the model was shown, by short name.
    """
    holds = {item.id: item for item in known}
    keys = {item.id: _key(item.text) for item in known}
    accepted: list[Accepted] = []
    again: set[str] = set()
    counts = Counter[str]()
    for number, candidate in enumerate(candidates):
        if len(accepted) >= limits.max_facts or number >= _READ * limits.max_facts:
            counts[Refusal.TOO_MANY] += len(candidates) - number
            break
        if isinstance(candidate, Refusal):
            counts[candidate] += 1
            continue
        said = judge(candidate, material, limits)
        target = holds.get(shown[candidate.of].id) if candidate.of is not None and candidate.of in shown else None
        if candidate.action is Action.IGNORE:
            counts["ignored"] += 1
            if target and isinstance(said, Said):
                again.add(target.id)
            continue
        if isinstance(said, Refusal):
            counts[said] += 1
            continue
        if candidate.action is Action.ADD or (target and not _akin(candidate, target)):
            target = None
        key = _key(candidate.text)
        if target is None:
            target = next((holds[at] for at, other in keys.items() if at in holds and _extends(key, other)), None)
            same = {at for at, other in keys.items() if _extends(other, key)}
        else:
            same = {at for at, other in keys.items() if other == key}
        if same:
            counts["same"] += 1
            again |= same & holds.keys()
            continue
        if target is not None:
            del holds[target.id]  # only one fact stands in its place
        keys[f"{number} of this answer"] = key
        accepted.append(Accepted(candidate, said, target))
    return Decision(tuple(accepted), frozenset(again), counts)


_READ = 20
"""How many times as many facts of an answer are looked at as may be taken."""


def _akin(candidate: Candidate, item: MemoryItem) -> bool:
    """Return whether it can be about the same: a model that lies may not put anything in the place of anything."""
    if candidate.topic and item.topic and flat(candidate.topic) == flat(item.topic):
        return True
    claimed = subjects(f"{candidate.text} {candidate.evidence}")
    return bool(claimed & subjects(item.text) - NEUTRAL)


def _key(text: str) -> tuple[str, ...]:
    """Return what texts that say the same in the same words share."""
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
    if not _LEAST <= len(less) < len(more) or len(less) < _SHARE * len(more):
        return False
    rest = iter(more)
    if not all(word in rest for word in less):
        return False
    added = Counter(more) - Counter(less)
    return not any(word in _NOT or word.endswith("n't") for word in added)


_LEAST = 3
_SHARE = 0.75
