"""How frequent words are in a language, whoever speaks: what everybody says tells little of what is asked.

The counts are those of `pyspellchecker`, which has them from film subtitles, so of words as people speak them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from turnwise.memory.longterm.search.analyzer import ENGLISH, is_common, is_dense, words
from turnwise.memory.longterm.search.irregular_forms import BASES

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
"""How many words of a language are held, the most frequent. The others are taken to be as rare as the last."""

COMMON, RARE = -4.0, -14.4
"""The logarithm of the frequency of a function word, and of a word that nobody expects."""

_CHARACTER, _PAIR, _NUMBER = -6.0, -9.0, -9.0


def log_frequency(word: str, language: str = ENGLISH) -> float:
    """Return the natural logarithm of the share that a word has of all that is said in a language, from -14.4 up."""
    if is_dense(word[0]):
        return _CHARACTER if len(word) == 1 else _PAIR
    if len(word) == 1 or is_common(word, language):
        return COMMON
    if word.isdigit():
        return _NUMBER
    known = _table(language)
    base = BASES.get(word, word) if language == ENGLISH else word  # who asks for "went" finds every "go", too
    return max(known.get(word, RARE), known.get(base, RARE))


def is_frequent(word: str, language: str = ENGLISH) -> bool:
    """Return whether it is among the most frequent words of the language, and so hardly misspelt."""
    return is_common(word, language) or word in _table(language)


def load() -> None:
    """Load the words of English now, which takes half a second, and not when somebody waits for an answer."""
    _table(ENGLISH)


@cache  # one a language
def _table(language: str) -> Mapping[str, float]:
    """Return the logarithms of the most frequent words; none of a language that there are no counts of."""
    if language not in _CODES:
        return {}
    from spellchecker import SpellChecker

    counts = SpellChecker(language=_CODES[language]).word_frequency
    total = counts.total_words
    known = sorted(counts.items(), key=lambda pair: pair[1])[-KNOWN:]
    return {"".join(words(word)): math.log(count / total) for word, count in known}
