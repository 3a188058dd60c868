"""Whether what a user said bears a fact out. A model's word is never enough."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from turnwise.memory.candidates import Candidate, Limits, Refusal
from turnwise.memory.categories import MemoryType
from turnwise.memory.clauses import NEUTRAL, YES, flat, subjects
from turnwise.memory.material import Material, Said
from turnwise.memory.vocabulary import words


def judge(candidate: Candidate, material: Material, limits: Limits) -> Said | Refusal:
    """Return where the user says that, or why it is no fact about the user."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in candidate.text[: limits.min_chars])
    if len(candidate.text) + wide < limits.min_chars:
        return Refusal.TOO_SHORT
    if len(candidate.text) > limits.max_chars:
        return Refusal.TOO_LONG
    if candidate.type not in _TYPES:
        return Refusal.UNKNOWN_TYPE
    if len(candidate.evidence) > _QUOTED * limits.max_chars:
        return Refusal.TOO_LONG
    return _look(candidate, material)


def _look(candidate: Candidate, material: Material) -> Said | Refusal:
    verdict = Refusal.NO_EVIDENCE
    quoted = flat(candidate.evidence)
    claimed = subjects(candidate.text)
    claimed = claimed - NEUTRAL or claimed
    for said in material.said if words(quoted) else ():
        for at in _places(said.text, quoted):
            why = _verdict(candidate, claimed, said, at, at + len(quoted))
            if why is None:
                return said
            verdict = why
    return verdict


_TYPES = frozenset(map(str, MemoryType))

_QUOTED = 4
"""How many times as long as a fact a quote may be."""


def _verdict(candidate: Candidate, claimed: frozenset[str], said: Said, start: int, stop: int) -> Refusal | None:
    """Return why what stands there is no evidence; None if it is."""
    kind = MemoryType(candidate.type)
    first = bisect_right(said.clauses, start, key=lambda clause: clause.stop)
    last = bisect_left(said.clauses, stop, key=lambda clause: clause.start)
    told = [clause for clause in said.clauses[first:last] if clause.tells(kind)]
    own = frozenset[str]().union(*(clause.about for clause in told))
    name = flat(candidate.text)
    if not own or any(other in name for clause in told for other in clause.others):
        return Refusal.NOT_ABOUT_THE_USER
    asked = said.asked if first == 0 else frozenset[str]()
    agrees = bool(asked and said.clauses[0].tells(kind) and said.clauses[0].about & YES)
    borne = (claimed & said.telling(kind)) | (claimed & asked)
    if 2 * len(borne) < len(claimed) or not (agrees or claimed & own):
        return Refusal.UNSUPPORTED
    return None


def _places(flat: str, quoted: str) -> Iterator[int]:
    """Yield where a text has this, not in the middle of a word; the first few."""
    at = -1
    for _ in range(_LOOKS):
        at = flat.find(quoted, at + 1)
        if at < 0:
            return
        stop = at + len(quoted)
        if not (_joined(flat[max(at - 1, 0) : at], quoted[0]) or _joined(quoted[-1], flat[stop : stop + 1])):
            yield at


_LOOKS = 20


def _joined(left: str, right: str) -> bool:
    """Return whether two characters are of one word, in scripts that put spaces between words."""
    return left.isalnum() and right.isalnum() and ord(max(left, right)) < _DENSE


_DENSE = 0x0E00
"""Scripts from here on mostly put no spaces between words."""
