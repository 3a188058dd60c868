"""Word frequencies of languages in general. Frequent words say little about what a query is about.

The counts are those of `pyspellchecker`, which counts film subtitles, so spoken language.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from turnwise.memory.longterm.recall.analyzer import ENGLISH, is_common, is_dense, words
from turnwise.memory.longterm.recall.irregular_forms import BASES

_CODES = {
    ENGLISH: "en",
    "german": "de",
    "french": "fr",
    "spanish": "es",
    "italian": "it",
    "portuguese": "pt",
    "dutch": "nl",
    "russian": "ru",
    "arabic": "ar",
}

KNOWN = 20_000
"""How many words of a language are kept, the most frequent. All others count as rare as the last of them."""

COMMON, RARE = -4.0, -14.4
"""The log frequency of a function word, and of an unknown word."""

_CHARACTER, _PAIR, _NUMBER = -6.0, -9.0, -9.0


def log_frequency(word: str, language: str = ENGLISH) -> float:
    """Return the natural logarithm of a word's frequency in a language; at least -14.4."""
    if is_dense(word[0]):
        return _CHARACTER if len(word) == 1 else _PAIR
    if len(word) == 1 or is_common(word, language):
        return COMMON
    if word.isdigit():
        return _NUMBER
    frequencies = _table(language)
    base = BASES.get(word, word) if language == ENGLISH else word  # who asks for "went" finds every "go", too
    return max(frequencies.get(word, RARE), frequencies.get(base, RARE))


def is_frequent(word: str, language: str = ENGLISH) -> bool:
    """Return whether a word is among the most frequent of the language, and so probably not misspelt."""
    return is_common(word, language) or word in _table(language)


def _table(language: str) -> Mapping[str, float]:
    """Return the log frequencies of the most frequent words; empty for a language without counts."""
    if language not in _tables:
        with _LOADING:  # else queries that come first at the same time would each load it
            if language not in _tables:
                _tables[language] = _read(language)
    return _tables[language]


_tables: dict[str, Mapping[str, float]] = {}

_LOADING = threading.Lock()


def _read(language: str) -> Mapping[str, float]:
    if language not in _CODES:
        return {}
    from spellchecker import SpellChecker

    counts = SpellChecker(language=_CODES[language]).word_frequency
    total = counts.total_words
    most_frequent = sorted(counts.items(), key=lambda pair: pair[1])[-KNOWN:]
    return {"".join(words(word)): math.log(count / total) for word, count in most_frequent}
