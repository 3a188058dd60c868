"""Splits text of any script into words with their places, for search: the same words in every store.

Stores keep no text of their own for search. To take a message out of its index, SQLite is given the same words again.
So a change here needs a new version of the store's tables.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

MAX_WORD = 64
"""Longer words are cut, in texts and in queries; in texts that are ASCII, they are cut into several."""

MAX_TEXT_CHARS = 20_000
"""How much of a message is searched, in characters. PostgreSQL keeps positions of words up to 16,383."""

_ASCII_WORD = re.compile(r"[a-z0-9]{1,64}")
_ACCENTS = re.compile("[\u0300-\u036f]+")

_DENSE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
"""Characters of scripts that put no spaces between words: Thai to Khmer, kana, Han."""


class Word(NamedTuple):
    """A word of a text, as it is compared: case folded, without accents."""

    text: str
    start: int
    """Where it begins in the text, in characters."""
    stop: int


def words(text: str) -> Iterator[Word]:
    """Yield the words of a text, in order.

    A run of characters of a script without spaces gives each pair of neighbours, and its last character alone. So each
    part of the run is found: one character by the pairs that begin with it.
    """
    for piece in pieces(text):
        yield from piece


def plain_words(text: str) -> list[str]:
    """Return the words of a text, in order, without their places."""
    text = text[:MAX_TEXT_CHARS]
    return _ASCII_WORD.findall(text.lower()) if text.isascii() else [word.text for word in words(text)]


def pieces(text: str) -> Iterator[list[Word]]:
    """Yield the words of a text in groups: one word, or those of a run of a script without spaces."""
    text = text[:MAX_TEXT_CHARS]
    if text.isascii():
        for match in _ASCII_WORD.finditer(text.lower()):
            yield [Word(match[0], *match.span())]
        return
    for match in _word_pattern().finditer(text):
        position = match.start()
        for is_dense, group in groupby(match[0], _is_dense):
            run = "".join(group)
            piece = (
                _pairs(run, position) if is_dense else [Word(_folded(run)[:MAX_WORD], position, position + len(run))]
            )
            position += len(run)
            if remaining := [word for word in piece if word.text]:
                yield remaining


def is_dense(word: str) -> bool:
    """Return whether a word comes from a script without spaces."""
    return _is_dense(word[:1])


def _is_dense(char: str) -> bool:
    return _DENSE.match(char) is not None


def _pairs(run: str, position: int) -> list[Word]:
    folded = [_folded(char) for char in run]
    return [
        Word("".join(folded[index : index + 2]), position + index, position + min(index + 2, len(run)))
        for index in range(len(run))
    ]


@lru_cache(maxsize=20_000)
def _folded(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", word).casefold())
    composed = unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed))
    return "".join(char for char in composed if char.isalnum() or unicodedata.category(char)[0] == "M")


@lru_cache(maxsize=1)
def _word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word: letters, digits and marks, which are vowels in many scripts. Takes 20 ms once."""
    marks = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M"]
    ranges = [[code for _, code in group] for _, group in groupby(enumerate(marks), lambda pair: pair[1] - pair[0])]
    classes = "".join(f"{chr(codes[0])}-{chr(codes[-1])}" for codes in ranges)
    return re.compile(rf"(?:[^\W_]|[{classes}])+")
