"""`Subject`: what is to be forgotten, as the words that say it, and where a text says it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.longterm.recall.analyzer import ENGLISH, is_common, is_dense, language_of, stems_of, words

Place: TypeAlias = tuple[int, int]
"""The start and the stop of a part of a text."""


class Subject:
    """What is to be forgotten, as its content words: all words of the text but pronouns, articles and the like.

    A text *says* the subject if one of its sentences has all of them, in any order and form ("drive", "drives",
    "drove"). If the subject has several sentences, as many neighbouring sentences of the text count as one. So what
    merely shares a word is not taken for it, and neither is a paraphrase.

    Raises:
        InvalidInputError: the text has no content word.
    """

    def __init__(self, text: str) -> None:
        text_words = words(text)
        language = language_of(text_words)
        content = [word for word in dict.fromkeys(text_words) if not _is_function_word(word, language)]
        if not content:
            raise InvalidInputError("text", shown(text), "has no word that says what is to be forgotten")
        self._words = [frozenset(stems_of(word, language)) for word in content]
        self._size = max(1, len(sentences(text)))

    def places(self, text: str, names: Collection[str] = ()) -> list[Place]:
        """Return the places in a text that say the subject, in order; they may overlap.

        Args:
            names: what else the text is about, such as its name and aliases. Their words count as if each sentence had
                them.
        """
        text_words = words(text)
        language = language_of(text_words)
        of_names = _keys((word for name in names for word in words(name)), language)
        if not self._has_all(_keys(text_words, language) | of_names):
            return []
        parts = sentences(text)
        keys = [_keys(words(text[start:stop]), language) for start, stop in parts]
        last = max(1, len(parts) - self._size + 1)
        return [
            (parts[first][0], parts[min(first + self._size, len(parts)) - 1][1])
            for first in range(last)
            if self._has_all(of_names.union(*keys[first : first + self._size]))
        ]

    def is_half_said(self, text: str) -> bool:
        """Return whether a text has at least half of the content words."""
        text_words = words(text)
        keys = _keys(text_words, language_of(text_words))
        return 2 * sum(not keys.isdisjoint(word) for word in self._words) >= len(self._words)

    def _has_all(self, keys: Collection[str]) -> bool:
        return all(not word.isdisjoint(keys) for word in self._words)


def sentences(text: str) -> list[Place]:
    """Return where the sentences of a text are that have words, in order. A line break ends a sentence.

    The mark of an entry of a list, such as a bullet, is no part of its sentence.
    """
    places: list[Place] = []
    start = 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        part = text[start:end].rstrip()
        if _WORD.search(part):
            mark = _MARK.match(part)
            places.append((start + (mark.end() if mark else 0), start + len(part)))
        start = end
    return places


def is_from(text: str, source: str, places: Collection[Place]) -> bool:
    """Return whether a text was made from one of these places of its source.

    It was if of all sentences of the source, one in these places shares the most words with it.
    """
    text_words = words(text)
    language = language_of(text_words)
    keys = _keys((word for word in text_words if not _is_function_word(word, language)), language)
    shared = [
        (len(keys & _keys(words(source[start:stop]), language)), any(a <= start and stop <= b for a, b in places))
        for start, stop in sentences(source)
    ]
    most = max((count for count, _ in shared), default=0)
    return most > 0 and (most, True) in shared


def places_of(text: str, part: str) -> list[Place]:
    """Return where a part of a text stands in it: places of whole sentences, as `Subject.places` returns them."""
    parts, size = sentences(text), len(sentences(part))
    ends = [(parts[first][0], parts[first + size - 1][1]) for first in range(len(parts) - size + 1)] if size else []
    return [(start, stop) for start, stop in ends if text[start:stop] == part]


def without_places(text: str, places: Sequence[Place]) -> str:
    """Return a text without these places. A line that has no word left is removed with its mark, such as a bullet."""
    lines: list[str] = []
    position = 0
    for line in text.splitlines(keepends=True):
        start, position = position, position + len(line)
        rest = _cut(line, [(begin - start, end - start) for begin, end in places])
        if rest == line:
            lines.append(line)
        elif _WORD.search(_MARK.sub("", rest, count=1)):
            lines.append(f"{rest.rstrip()}{line[len(line.rstrip()) :]}")
    return "".join(lines).strip()


def _cut(line: str, places: Sequence[Place]) -> str:
    """Return a line without these places, which may go beyond it; spaces after a removed one go too."""
    rest, position = "", 0
    for start, stop in sorted(places):
        if stop > 0 and start < len(line):
            rest += line[position : max(start, position)]
            position = max(position, stop)
            position += len(line[position:]) - len(line[position:].lstrip(" "))
    return rest + line[position:]


def _keys(text_words: Iterable[str], language: str) -> frozenset[str]:
    return frozenset(key for word in text_words for key in stems_of(word, language))


def _is_function_word(word: str, language: str) -> bool:
    if is_dense(word[0]):
        return len(word) > 1 or word in _DENSE  # a pair of characters says no more than both
    if word in _FUNCTION_WORDS or (len(word) == 1 and word.isascii() and word.isalpha()):
        return True
    return language != ENGLISH and is_common(word, language)


_END = re.compile(
    r"[.!?\u2026]+[\"')\]]*\s+(?![a-z])"  # an abbreviation such as "e.g." is followed by a small letter
    r"|[\u3002\uff01\uff1f]+|\n+"
)
_WORD = re.compile(r"\w")
_MARK = re.compile(r"\s*(?:(?:[-*+\u2022]|\d+[.)])(?=\s))?\s*(?:\[[ xX]?\]\s)?\s*")

_FUNCTIONS = """
    i me my mine myself we our ours you your yours yourself he him his she her hers they them their theirs
    a an the this that these those am is are was were be been being do does did has had have having
    and or but if of in at by for from into on onto to up with about as so than then there here
    not don doesn didn isn aren wasn weren hasn haven hadn ve ll re
    user users assistant
"""
_FUNCTION_WORDS = frozenset(_FUNCTIONS.split())
"""English words that differ between what a user says and a fact of it, and say nothing by themselves."""

_DENSE = frozenset("我你您他她它们的了是在有和就都也很吗呢吧はがのをにでともへや은는이가을를")
"""Characters of Chinese, Japanese and Korean that do what function words do."""
