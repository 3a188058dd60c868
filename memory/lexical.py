"""How well one text bears on another, by the words that they share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from turnwise.memory.vocabulary import content, lemma, stem, words


def words_of(text: str) -> frozenset[str]:
    """Return what a text is about: the stems of its words, without those that are in every text.

    A text of nothing else is about all of it, so that each text shares a word with itself.
    """
    said = content(text) or words(text) or [text.casefold()]
    return frozenset(stem(lemma(word)) for word in said)


def rank(
    query: str, texts: Sequence[str], *, floor: float, near: Sequence[float] | None = None, near_floor: float = 1.0
) -> list[tuple[int, float]]:
    """Return the positions of the texts that bear on the query, and how well, the best first; equals by position.

    Words that few of the texts have weigh more. A text bears on the query if it shares enough with it of what the
    shorter of the two says, or is near enough; how well is the cosine of their words, or the mean of that and of how
    near it is, from 0 to 1.

    Args:
        floor: how much is enough, as a part of 1. What shares no word is not enough, whatever the floor.
        near: how near each text is to the query, by vectors, from -1 to 1.
        near_floor: how near is enough.
    """
    asked = words_of(query)
    said = [words_of(text) for text in texts]
    among = Counter(word for each in said for word in each)

    def weight(some: frozenset[str]) -> float:
        return sum(math.log(1 + (len(said) + 1) / (among[word] + 1)) for word in sorted(some))

    found = []
    mine = weight(asked)
    for at, each in enumerate(said):
        shared, theirs = weight(asked & each), weight(each)
        score = min(shared / math.sqrt(mine * theirs), 1.0) if shared else 0.0
        is_shared = bool(shared) and shared >= floor * min(mine, theirs)
        if near is None:
            if is_shared:
                found.append((at, score))
        elif is_shared or near[at] >= near_floor:
            found.append((at, (score + min(max(near[at], 0.0), 1.0)) / 2))
    return sorted(found, key=lambda entry: (-entry[1], entry[0]))
