"""Standing wishes: sentences in which a user says how they want to be answered from then on.

They are recognised by a few phrases, without a model. `ExtractiveMemory` finds more of them with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.analyzer import stems, words
from turnwise.memory.longterm.recall.word_frequency import log_frequency

MOST_WISHES = 8
"""The most wishes of one item."""

MOST_CURRENT = 50
"""The most wishes of one user that hold at once: the newest. More fit no profile."""

MOST_CHARS = 300
"""A sentence with more characters is cut to the part from the phrase on, and that part to this length."""


def wishes_of(item: MemoryItem) -> tuple[str, ...]:
    """Return the sentences of an item's user that are standing wishes, in order.

    In a turn's item these are in lines of the user, which begin with "user: ". Questions, quoted lines and code are no
    wishes.
    """
    if item.type is not MemoryType.INTERACTION or not _PHRASE.search(item.text):
        return ()
    wishes: list[str] = []
    for sentence in _sentences_of_user(item.text):
        statement = _statement(sentence)
        if match := _PHRASE.search(statement):
            is_long = len(statement) > MOST_CHARS
            wishes.append(statement[match.start() :][:MOST_CHARS].strip() if is_long else statement)
    return tuple(dict.fromkeys(wishes))[:MOST_WISHES]


def current_wishes(items: Iterable[tuple[MemoryItem, str]]) -> list[MemoryItem]:
    """Return the wishes that hold, each as its item with the wish as `passage`, the newest first.

    A later wish replaces an earlier one if they share more than half of the telling words of either: what was said once
    is rather kept twice than lost.

    Args:
        items: each wish with its item.
    """
    newest_first = sorted(items, key=lambda pair: pair[0].created_at, reverse=True)
    current: list[MemoryItem] = []
    topics: list[frozenset[str]] = []
    for item, wish in newest_first:
        topic = _topic(wish)
        if any(2 * len(topic & later) > max(len(topic), len(later)) for later in topics):
            continue
        topics.append(topic)
        current.append(replace(item, passage=wish))
        if len(current) == MOST_CURRENT:
            break
    return current


def _sentences_of_user(text: str) -> Iterable[str]:
    """Yield the sentences of the user's lines, without quoted lines and code."""
    is_of_user = is_code = False
    for line in text.split("\n"):
        if line.startswith(_SPEAKERS):
            is_of_user, is_code = line.startswith(_USER), False
        if "```" in line:
            is_code = not is_code
        elif is_of_user and not is_code and not line.startswith(">"):
            yield from (
                sentence for part in _SENTENCE_END.split(line.removeprefix(_USER)) if (sentence := part.strip())
            )


def _statement(sentence: str) -> str:
    """Return a sentence without the question at its end; empty if it is a question as a whole."""
    if not sentence.endswith(_QUESTION_MARKS):
        return sentence
    statement, *questions = _QUESTION.split(sentence)
    return statement if questions else ""


def _topic(wish: str) -> frozenset[str]:
    """Return the stems of the words that say what a wish is about."""
    telling_words = [word for word in words(_PHRASE.sub(" ", wish)) if log_frequency(word) < _TELLING]
    return frozenset(keys[0] for keys in stems(telling_words))


_USER = "user: "
_SPEAKERS = (_USER, "assistant: ", "assistant calls ", "result: ")

_TELLING = -7.5
"""A word that is less frequent in general says what a wish is about."""

_QUESTION_MARKS = ("?", "\uff1f", "\u061f")

_QUESTION = re.compile(
    r",\s+(?:(?:so|and|but) )?(?=(?:can|could|how|what|which|where|should|would|is|are|do|does)\b)", re.IGNORECASE
)
"""Where a question begins that follows a statement in one sentence: "I prefer tabs, so can you ...?\""""

_SENTENCE_END = re.compile(r"(?<=[.!?\u2026])\s+|(?<=[\u3002\uff01\uff1f])")

_BEGINNING = r"(?:^|(?<=[:.!] )|\b(?:please|bitte|veuillez) )"

_PHRASE = re.compile(
    _BEGINNING + r"(?:always|never|don't ever|do not ever) (?!(?:an?|the|my|so|here|there|had|been|seen|heard|mind)\b)"
    r"|\b(?:you should|you must|want you to|like you to) (?:always|never)\b"
    r"|\bfrom now on\b|\bfrom here on\b|\bin (?:the )?future,|\b(?:whenever|every time|each time) i (?:ask|say|write)\b"
    r"|\bi(?:'d| would)? (?:always |usually |generally |really |much )?prefer\b"
    r"|" + _BEGINNING + r"(?:immer|nie|niemals|toujours|ne jamais|siempre|nunca|sempre|mai|altijd|nooit)\b"
    r"|\bab (?:jetzt|sofort)\b|\bin zukunft\b|\bk\u00fcnftig\b|\bich bevorzuge\b"
    r"|\bd\u00e9sormais\b|\b\u00e0 l'avenir\b|\bje pr\u00e9f\u00e8re\b"
    r"|\bde ahora en adelante\b|\ba partir de (?:ahora|agora)\b|\bprefiero\b|\bprefiro\b"
    r"|\bd'ora in poi\b|\bin futuro,|\bpreferisco\b|\bvanaf nu\b|\bik geef de voorkeur aan\b",
    re.IGNORECASE,
)
"""Phrases of English, German, French, Spanish, Portuguese, Italian and Dutch that begin or mark a standing wish."""
