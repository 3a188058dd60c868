"""Passages of a long text: pieces of some sentences, each with who says it, that overlap by a sentence."""

from __future__ import annotations

import re
from typing import NamedTuple

LONG = 1_200
"""A text of up to so many characters is a passage of its own."""

SIZE = 800
"""How many characters a passage of a longer text has at most."""

MOST_VECTORS = 256
"""How many passages of a text have vectors, the first ones: 200 KB of it. What comes later is found by its words."""


class Passage(NamedTuple):
    """Where a passage is in its text."""

    start: int
    stop: int
    speaker: str = ""
    """What the line begins with that the passage is from, if it does not begin there, as in "assistant: "."""

    def of(self, text: str) -> str:
        """Return what it says, with the speaker in front."""
        return self.speaker + text[self.start : self.stop].strip()


def passages_of(text: str) -> list[Passage]:
    """Return the passages of a text, in order. They end where sentences do, unless one is longer than a passage."""
    if len(text) <= LONG:
        return [Passage(0, len(text))]
    found: list[Passage] = []
    for line in _LINE.finditer(text):
        label = _SPEAKER.match(line[0])
        speaker = label[0] if label else ""
        for start, stop in _pieces(text, line.start(), line.end()):
            last = found[-1] if found else None
            if last and start == line.start() and stop - last.start <= SIZE:
                found[-1] = Passage(last.start, stop, last.speaker)  # short lines stand together
            else:
                found.append(Passage(start, stop, "" if start == line.start() else speaker))
    return found


def vectors_of(key: str, text: str) -> list[tuple[str, str]]:
    """Return what vectors a text has: of each the key, and what it is made of. One for each passage, in order.

    Args:
        key: the text's; that of the vector of a text that is one passage.
    """
    passages = passages_of(text)
    said = [text] if len(passages) == 1 else [passage.of(text) for passage in passages[:MOST_VECTORS]]
    return list(zip(vector_keys(key, len(said)), said, strict=True))


def vector_keys(key: str, count: int) -> list[str]:
    """Return the keys of the vectors of a text that has so many."""
    return [key] if count == 1 else [f"{key}.{number}" for number in range(count)]


def item_key(key: str) -> str:
    """Return the key of the text that a vector is of."""
    return key.partition(".")[0]


def shown(text: str, passages: list[Passage]) -> str:
    """Return what some passages of a text say, in order: what overlaps once, and a mark where something is cut."""
    parts: list[str] = []
    last = Passage(0, 0)
    for passage in sorted(set(passages)):
        if parts and passage.start <= last.stop:
            parts[-1] += text[last.stop : passage.stop].rstrip()
        else:
            parts.append(passage.of(text))
        last = passage
    whole = " […] ".join(parts)
    begins, ends = min(passages).start == 0, last.stop >= len(text.rstrip())
    return f"{'' if begins else '[…] '}{whole}{'' if ends else ' […]'}"


def _pieces(text: str, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the pieces of a line, each beginning with the last sentence of the one before if that is short."""
    ends = [start]
    for found in _SENTENCE.finditer(text, start, stop):
        while found.end() - ends[-1] > SIZE:
            ends.append(ends[-1] + SIZE)
        ends.append(found.end())
    pieces: list[tuple[int, int]] = []
    first = 0
    while first < len(ends) - 1:
        last = first + 1
        while last + 1 < len(ends) and ends[last + 1] - ends[first] <= SIZE:
            last += 1
        pieces.append((ends[first], ends[last]))
        if last == len(ends) - 1:
            break
        is_short = last - first > 1 and ends[last] - ends[last - 1] <= SIZE // 4
        first = last - 1 if is_short else last
    return pieces


_LINE = re.compile(r"[^\n]*\n?", re.DOTALL)
_SENTENCE = re.compile(r"[^.!?\u2026\u3002\uff01\uff1f]*(?:[.!?\u2026\u3002\uff01\uff1f]+[\"')\]]*\s*|$)", re.DOTALL)
_SPEAKER = re.compile(r"[^\W\d_][^:\n]{0,60}: ")
