"""Parses a message into a query: its sentences, and the words of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from turnwise.memory.longterm.recall.analyzer import GERMAN, asks, language_of, months_in_full, stems_of, words
from turnwise.memory.longterm.recall.word_frequency import log_frequency

MAX_CHARS = 8_000
"""Of a message with more characters, only the beginning and the end are read, half of this each."""

MAX_PARTS = 32
"""The most sentences of a query. Of more, the first and the last ones are used."""

MAX_TERMS = 96
"""The most different words of a query. Of more, the rarest are used."""

MAX_VECTORS = 8
"""The most sentences of a prompt that are compared by vectors."""

WINDOW = 24
"""A sentence with more words is split into windows of this many words, which overlap by half."""


@dataclass(frozen=True)
class Term:
    """A word of a query."""

    word: str
    stems: tuple[str, ...]
    """Its search keys. A passage that has any of them matches."""
    log_frequency: float
    """The natural logarithm of the word's frequency in its language."""
    language: str


@dataclass(frozen=True)
class Query:
    """A parsed message. Each part is scored independently of the others."""

    terms: tuple[Term, ...]
    """No word twice."""
    parts: tuple[tuple[int, ...], ...]
    """The positions of each part's terms."""
    texts: tuple[str, ...]
    """The text of each part, for its vector."""
    asks: tuple[bool, ...]
    """Of each part, whether it is a question."""
    words: tuple[str, ...]
    """All of its words, in order."""
    language: str

    def told_apart(self) -> list[int]:
        """Return the parts that get a vector each: up to `MAX_VECTORS`, those whose words say the most, in order."""
        nats = [sum(-self.terms[term].log_frequency for term in part) for part in self.parts]
        best = sorted(range(len(nats)), key=nats.__getitem__, reverse=True)[:MAX_VECTORS]
        return sorted(best)


class VectorTexts(NamedTuple):
    """The texts whose vectors a query needs."""

    texts: tuple[str, ...]
    """The query and its sentences, then those of them that have names, without the names."""
    own: int
    """How many are the query and its sentences."""
    with_names: tuple[int, ...]
    """The places of those that have names."""


def vector_texts(text: str, *, is_reminder: bool) -> VectorTexts:
    """Return the texts whose vectors a query needs: its own, and its sentences if it has several.

    Args:
        is_reminder: whether it is a prompt, of which only the sentences are compared.
    """
    return (_vector_texts if len(text) <= MAX_CHARS else _vector_texts.__wrapped__)(text, is_reminder)


@lru_cache(maxsize=512)
def _vector_texts(text: str, is_reminder: bool) -> VectorTexts:
    query = parse(text)
    sentences = [query.texts[part] for part in query.told_apart()]
    texts = sentences if is_reminder else [text, *(sentences if len(sentences) > 1 else ())]
    nameless = {} if query.language == GERMAN else {place: without_names(part) for place, part in enumerate(texts)}
    with_names = tuple(place for place, part in nameless.items() if part)
    return VectorTexts((*texts, *(nameless[place] for place in with_names)), len(texts), with_names)


def without_names(text: str) -> str:
    """Return a text without its words with a capital letter that begin no sentence; empty if it has none.

    Also empty if more than half of the words are such, as in a title.
    """
    text_words = text.split()
    kept = [
        word
        for before, word in zip([".", *text_words], text_words, strict=False)
        if not word[:1].isupper() or not word[1:2].islower() or before.endswith(_ENDS)
    ]
    return " ".join(kept) if len(text_words) > len(kept) >= len(text_words) / 2 else ""


def parse(text: str) -> Query:
    """Return a text as a query."""
    if len(text) > MAX_CHARS:
        text = f"{text[: MAX_CHARS // 2]}\n{text[-MAX_CHARS // 2 :]}"
    return _parse(text)


@lru_cache(maxsize=512)
def _parse(text: str) -> Query:
    sentences = [
        (sentence, sentence_words)
        for sentence in _SENTENCE_END.split(text)
        if (sentence_words := months_in_full(words(sentence)))
    ]
    query_words = [word for _, sentence_words in sentences for word in sentence_words]
    language = language_of(query_words)
    frequencies = {word: log_frequency(word, language) for word in dict.fromkeys(query_words)}
    rarest = [_term(word, language) for word in sorted(frequencies, key=frequencies.__getitem__)[:MAX_TERMS]]
    places = {term.word: place for place, term in enumerate(rarest)}
    windows = [window for sentence, sentence_words in sentences for window in _windows(sentence, sentence_words)]
    if len(windows) > MAX_PARTS:
        windows = windows[: MAX_PARTS // 2] + windows[-MAX_PARTS // 2 :]
    texts_by_part: dict[tuple[int, ...], str] = {}
    for window_text, window in windows:
        if part := tuple(dict.fromkeys(places[word] for word in window if word in places)):
            texts_by_part.setdefault(part, window_text)
    return Query(
        terms=tuple(rarest),
        parts=tuple(texts_by_part),
        texts=tuple(texts_by_part.values()),
        asks=tuple(map(asks, texts_by_part.values())),
        words=tuple(query_words),
        language=language,
    )


@lru_cache(maxsize=100_000)
def _term(word: str, language: str) -> Term:
    return Term(word, stems_of(word, language), log_frequency(word, language), language)


def question_of(prompt: str, before: str = "") -> str:
    """Return the query text for a prompt. If the prompt refers back to the one before, that prompt is included."""
    if not before or not refers_back(prompt):
        return prompt
    words_before = words(before[-MAX_CHARS // 4 :])
    language = language_of(words_before)
    telling_words = [word for word in dict.fromkeys(words_before) if log_frequency(word, language) < _TELLING]
    asks = " ".join(_SENTENCE_END.split(prompt[-MAX_CHARS // 4 :])[-1:])
    return f"{prompt}\n{' '.join(telling_words[-WINDOW // 2 :])} {asks}" if telling_words else prompt


def refers_back(prompt: str) -> bool:
    """Return whether a prompt can hardly be understood without the one before it, as far as words of English show.

    That is a question with hardly a word that says what it is about, or with a pronoun for somebody whom it has not
    spoken of.
    """
    prompt_words = words(prompt[: MAX_CHARS // 4])
    if not prompt_words or len(prompt_words) > _LONGEST_FOLLOW_UP:
        return False
    asks = "?" in prompt or "\uff1f" in prompt or not _ASKING.isdisjoint(prompt_words)
    if not asks:
        return False
    content = sum(log_frequency(word) < _TELLING for word in prompt_words)
    pointing = next((position for position, word in enumerate(prompt_words) if word in _PERSONS), None)
    if pointing is not None and _SOMEBODY.isdisjoint(prompt_words[:pointing]):
        return True
    if content > _LITTLE:
        return False
    if not _POINTING.isdisjoint(prompt_words) and len(prompt_words) <= _SHORT:
        return True
    return content <= 1 and _asks_for_more(prompt_words)


def _asks_for_more(prompt_words: Sequence[str]) -> bool:
    """Return whether words with little content ask for more, rather than how somebody is."""
    for position, word in enumerate(prompt_words):
        if word in _DETAILS:
            return True
        if word in ("what", "how"):
            return _ADDRESSED.isdisjoint(prompt_words[position + 1 : position + 5])
    return False


def _windows(sentence: str, sentence_words: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """Return the parts of a sentence, each with its text."""
    if len(sentence_words) <= WINDOW:
        return [(sentence.strip(), sentence_words)]
    starts = range(0, len(sentence_words) - WINDOW // 2, WINDOW // 2)
    windows = [sentence_words[start : start + WINDOW] for start in starts]
    return [(" ".join(window), window) for window in windows]


_SENTENCE_END = re.compile(r"(?<=[.!?\u2026:;])\s+|[\u3002\uff01\uff1f\uff1a\uff1b]|\n+")
"""Also a colon: what stands before one often says only why somebody asks."""

_ENDS = (".", "!", "?", "\u2026", ":", ";")

_TELLING = -8.5
"""A word that is less frequent in general says what a text is about."""

_LONGEST_FOLLOW_UP, _SHORT, _LITTLE = 30, 10, 2
_PERSONS = frozenset(("he", "she", "him", "her", "his", "hers", "they", "them", "their", "theirs"))
_SOMEBODY = frozenset(("my", "our", "your", "a", "an", "some", "any", "each", "every", "somebody", "someone"))
_POINTING = frozenset(("it", "its", "this", "that", "these", "those", "there", "then", "one", "ones", "same", "such"))
_DETAILS = frozenset(("when", "where", "why", "which", "who", "whom", "whose", "more", "else", "details", "exactly"))
_ASKING = _DETAILS | {"what", "how", "did", "does", "do", "is", "are", "was", "were", "has", "have", "tell", "explain"}
_ADDRESSED = frozenset(("you", "your", "ya", "up", "going", "things"))
