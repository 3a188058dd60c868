"""`ItemWords`: analyses the words of one item, passage by passage, up to a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.recall.analyzer import (
    MONTHS,
    language_of,
    months_in_full,
    speaker_words,
    stem,
    stems,
    words,
)
from turnwise.memory.longterm.recall.word_frequency import COMMON, log_frequency

MOST_WORDS = 10_000
"""The most different words of an item's text that are indexed. A text of 50 KB has fewer. Of a text with more, passages
are found by those of their words that are among the first."""

MOST_NAMED = 256
"""The most words of an item's topic and names together that are indexed."""


CONTENT_CHARS = 600
"""Of how many characters of an item it is computed how much they say."""

LONGEST_NAME = 32
"""How many words a name may have by which its item is found."""


class Part(NamedTuple):
    """The words and stems by which a passage is found."""

    stems: tuple[str, ...]
    """The search keys of its words, each once."""
    words: tuple[str, ...]
    """Its words, each once."""


class ItemWords:
    """The words of one item. Its passages are analysed in order, each once, since the limit is the item's."""

    def __init__(self, item: MemoryItem) -> None:
        self._item_words: set[str] = set()
        """The different words of the text so far."""
        called = [name[:_NAMED_CHARS] for name in (item.topic, item.name, *item.aliases) if name]
        self._named = list(islice((word for name in called for word in words(name)), MOST_NAMED))
        self._day = day_of(item.created_at).split()
        self.speakers = tuple(dict.fromkeys(map(stem, speaker_words(item.text))))
        """The stems of the name that the text begins with."""
        self.names = tuple(_names(item))
        """The stems of its names, each with the log frequency of its rarest word."""

    def part(self, passage_words: Sequence[str]) -> Part:
        """Return the words and stems by which the next passage is found.

        Args:
            passage_words: the words of the passage, in order.
        """
        found_by = [*self._within(months_in_full(passage_words)), *self._named]
        keys = (key for word_keys in stems([*found_by, *self._day]) for key in word_keys)
        return Part(tuple(dict.fromkeys(keys)), tuple(dict.fromkeys(found_by)))

    def _within(self, passage_words: Sequence[str]) -> Sequence[str]:
        """Return the words that are among the first `MOST_WORDS` different ones of the item."""
        item_words = self._item_words
        if len(item_words) + len(passage_words) <= MOST_WORDS:
            item_words.update(passage_words)
            return passage_words
        within = []
        for word in passage_words:
            if word in item_words or len(item_words) < MOST_WORDS:
                item_words.add(word)
                within.append(word)
        return within


def _names(item: MemoryItem) -> Iterator[tuple[tuple[str, ...], float]]:
    for name in islice((item.name, *item.aliases), MOST_NAMED):
        parts = words(name) if name and len(name) <= _NAMED_CHARS else []
        if 0 < len(parts) <= LONGEST_NAME:
            yield tuple(map(stem, parts)), min(map(log_frequency, parts))


_NAMED_CHARS = MOST_NAMED * 16
"""How many characters of a topic or a name are read."""


def content_of(text: str) -> float:
    """Return how much the beginning of a text says: the nats by which its words are rarer than a function word."""
    text_words = words(text[:CONTENT_CHARS])
    language = language_of(text_words)
    return sum(_rarity(word, language) for word in set(text_words))


@lru_cache(maxsize=100_000)
def _rarity(word: str, language: str) -> float:
    return COMMON - log_frequency(word, language)


def day_of(created_at: float) -> str:
    """Return the day of a time as words; empty if there is none."""
    try:
        day = datetime.fromtimestamp(created_at, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    # Without the day of the week: who names one means a day of this week, or of every week.
    return f"{day.year} {MONTHS[day.month - 1]} {day.day}" if created_at else ""
