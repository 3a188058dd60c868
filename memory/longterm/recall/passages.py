"""Splits a long text into passages: a few sentences each, with their speaker, overlapping by one sentence."""

from __future__ import annotations

import re
from typing import NamedTuple

LONG = 1_200
"""A text of at most this many characters is one passage."""

SIZE = 800
"""The most characters of a passage of a longer text."""

LONGEST_WORD = 64
"""A sentence that is longer than a passage is cut between two words, unless a word is longer than this."""

MOST_VECTORS = 256
"""The first passages of a text that get vectors, about 200 KB. Later passages are found by their words only."""

MOST_PASSAGES = 2_048
"""The most passages of a text, about 1.5 MB. What comes after them is not found."""


class Passage(NamedTuple):
    """The position of a passage in its text."""

    start: int
    stop: int
    speaker: str = ""
    """The speaker of the passage's line, such as "assistant: ", if the passage does not begin with it."""

    def of(self, text: str) -> str:
        """Return the passage's text, with the speaker in front."""
        return self.speaker + text[self.start : self.stop].strip()


def passages_of(text: str) -> list[Passage]:
    """Return the passages of a text, in order, up to `MOST_PASSAGES`.

    They end where sentences do, unless a sentence is longer than a passage.
    """
    if len(text) <= LONG:
        return [Passage(0, len(text))]
    passages: list[Passage] = []
    for line in _LINE.finditer(text, 0, MOST_PASSAGES * SIZE):
        if len(passages) >= MOST_PASSAGES:
            break
        label = _SPEAKER.match(line[0])
        speaker = label[0] if label else ""
        for start, stop in _pieces(text, line.start(), line.end()):
            last = passages[-1] if passages else None
            if last and start == line.start() and stop - last.start <= SIZE:
                passages[-1] = Passage(last.start, stop, last.speaker)  # short lines stand together
            else:
                passages.append(Passage(start, stop, "" if start == line.start() else speaker))
    return passages[:MOST_PASSAGES]


def vectors_of(key: str, text: str) -> list[tuple[str, str]]:
    """Return the key and the text of each vector of a text, one vector per passage, in order.

    Args:
        key: the text's key; also its vector's key if the text is a single passage.
    """
    passages = passages_of(text)
    texts = [text] if len(passages) == 1 else [passage.of(text) for passage in passages[:MOST_VECTORS]]
    return list(zip(vector_keys(key, len(texts)), texts, strict=True))


def vector_keys(key: str, count: int) -> list[str]:
    """Return the keys of a text's vectors, which are `count`."""
    return [key] if count == 1 else [f"{key}.{number}" for number in range(count)]


def item_key(key: str) -> str:
    """Return the key of the text to which a vector belongs."""
    return key.partition(".")[0]


def shown(text: str, passages: list[Passage]) -> str:
    """Return the text of some passages, in order, without repeating overlaps, with a mark at each gap."""
    parts: list[str] = []
    last = Passage(0, 0)
    for passage in sorted(set(passages)):
        if parts and passage.start <= last.stop:
            parts[-1] += text[last.stop : passage.stop].rstrip()
        else:
            parts.append(passage.of(text))
        last = passage
    joined = " […] ".join(parts)
    begins, ends = min(passages).start == 0, last.stop >= len(text.rstrip())
    return f"{'' if begins else '[…] '}{joined}{'' if ends else ' […]'}"


def _pieces(text: str, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the pieces of a line, each beginning with the last sentence of the one before if that is short."""
    ends = [start]
    for match in _SENTENCE.finditer(text, start, stop):
        while match.end() - ends[-1] > SIZE:
            stop_at = ends[-1] + SIZE
            space = text.rfind(" ", stop_at - LONGEST_WORD, stop_at)
            ends.append(stop_at if space < 0 else space + 1)
        ends.append(match.end())
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
