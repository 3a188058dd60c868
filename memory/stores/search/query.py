"""Queries as people type them, and snippets of the texts that match. Any text is a query; there is no syntax error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.stores.search.words import MAX_WORD, Word, is_dense, pieces, words

MAX_QUERY_CHARS = 1000
"""The longest query, in characters."""

MAX_TERMS = 32
"""The most words and phrases of a query."""

SNIPPET_CHARS = 160
"""About how long a snippet is, in characters."""

MIN_BEGINNING = 2
"""The shortest beginning of a word that is searched for, in characters."""

_LEAD_CHARS = 40
"""About how much of a snippet precedes its first match, in characters."""


@dataclass(frozen=True)
class Term:
    """One word, or several that follow each other."""

    words: tuple[str, ...]
    is_prefix: bool = False
    """Whether the last word may be the beginning of one."""

    def ranges(self, text_words: Sequence[Word]) -> Iterator[tuple[int, int]]:
        """Yield where the term occurs in a text, in characters."""
        first, count = self.words[0], len(self.words)
        for index in range(len(text_words) - count + 1):
            if not text_words[index].text.startswith(first):
                continue
            found = tuple(word.text for word in text_words[index : index + count])
            if found == self.words or (
                self.is_prefix and found[:-1] == self.words[:-1] and found[-1].startswith(self.words[-1])
            ):
                yield text_words[index].start, text_words[index + count - 1].stop


@dataclass(frozen=True)
class Query:
    """What a text must have: all of the terms."""

    terms: tuple[Term, ...]

    def matches(self, text: str) -> bool:
        """Return whether a text has all terms."""
        text_words = list(words(text))
        return all(any(True for _ in term.ranges(text_words)) for term in self.terms)

    def score(self, text: str) -> float:
        """Return how well a text matches: the higher, the more often it has the terms, and the shorter it is."""
        text_words = list(words(text))
        counts = (sum(1 for _ in term.ranges(text_words)) for term in self.terms)
        return sum(map(math.log1p, counts)) / math.log(len(text_words) + 10)


def parse_query(text: str) -> Query:
    """Return the query of a text: words, of which all must occur, and "phrases in quotes".

    The last word may be the beginning of one, unless it has one character or something follows it, such as a space. A
    quote that is not closed goes on to the end.

    Raises:
        InvalidInputError: the text has no word, or is too long.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise InvalidInputError("text", shown(text[:50]), f"a search may have at most {MAX_QUERY_CHARS} characters")
    terms: list[Term] = []
    for number, part in enumerate(text.split('"')):
        groups = list(pieces(part))
        if number % 2:
            terms += _phrase(groups)
        else:
            terms += (_term(group) for group in groups)
    terms = list(dict.fromkeys(terms))
    if not terms:
        raise InvalidInputError("text", shown(text), "a search needs at least one letter or digit")
    if len(terms) > MAX_TERMS:
        raise InvalidInputError("text", shown(text[:50]), f"a search may have at most {MAX_TERMS} words and phrases")
    last = terms[-1]
    if text[-1].isalnum() and text.count('"') % 2 == 0 and MIN_BEGINNING <= len(last.words[-1]) < MAX_WORD:
        terms[-1] = Term(last.words, is_prefix=last.is_prefix or not is_dense(last.words[-1]))
    return Query(tuple(terms))


def _term(group: Sequence[Word]) -> Term:
    """Return the term of one word, or of a run of a script without spaces, which may go on in the text."""
    if len(group) > 1:
        return Term(tuple(word.text for word in group[:-1]))
    return Term((group[0].text,), is_prefix=is_dense(group[0].text))


def _phrase(groups: Sequence[Sequence[Word]]) -> list[Term]:
    if not groups:
        return []
    if len(groups) == 1:
        return [_term(groups[0])]
    *first, last = groups
    last_term = _term(last)
    return [Term((*(word.text for group in first for word in group), *last_term.words), is_prefix=last_term.is_prefix)]


@dataclass(frozen=True)
class Snippet:
    """A part of a text around what a query matches."""

    text: str
    ranges: tuple[tuple[int, int], ...]
    """Where in `text` the matches are, in characters: starts and stops, in order."""


def snippet_of(text: str, query: Query) -> Snippet:
    """Return the part of a text that begins a little before the first match, with its matches."""
    text_words = list(words(text))
    matches = _joined(sorted(match for term in query.terms for match in term.ranges(text_words)))
    start = max(0, matches[0][0] - _LEAD_CHARS) if matches else 0
    if start:
        start = next((word.start for word in text_words if word.start >= start), start)
    stop = min(len(text), start + SNIPPET_CHARS)
    if stop < len(text):
        stop = max((word.stop for word in text_words if start < word.stop <= stop), default=stop)
    stop = max(stop, min(matches[0][1], start + SNIPPET_CHARS)) if matches else stop
    lead, tail = "…" if start else "", "…" if stop < len(text) else ""
    shift = len(lead) - start
    ranges = tuple((left + shift, right + shift) for left, right in matches if left >= start and right <= stop)
    return Snippet(f"{lead}{text[start:stop]}{tail}", ranges)


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges, in order, with those that touch made one."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined
