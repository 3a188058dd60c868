"""The input of fact extraction: the user's statements, and the assistant's messages around them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Self

from turnwise.memory.conversation.blocks import Text, User
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.longterm.base import MemoryItem, Source
from turnwise.memory.longterm.extraction.clauses import (
    ORDERS,
    Clause,
    clauses_of,
    flat,
    last_question,
    normal,
    sentences_of,
    shown,
    subjects,
)
from turnwise.memory.longterm.extraction.grammatical_person import OTHERS_WORDS
from turnwise.memory.longterm.extraction.schema import Limits
from turnwise.memory.longterm.prompt_sections import PREAMBLE
from turnwise.memory.longterm.types import MemoryType

_FACTS, _RULES = MemoryType.FACTS, MemoryType.INSTRUCTIONS


@dataclass(frozen=True, slots=True)
class UserStatement:
    """A piece of a user's own words, normalized in case, quotes and spaces."""

    item: MemoryItem
    source: Source
    text: str
    raw: str
    """The text as the user wrote it."""
    question: str
    """The assistant's question just before the statement, on one line, if the statement may answer it."""
    clauses: tuple[Clause, ...]
    asked: frozenset[str]
    """The stems of that question."""
    sentences: tuple[tuple[int, int], ...]
    """The start and stop of each sentence in the text. A line break ends a sentence."""
    made_up: tuple[int, ...]
    """Where in the text it says that something is a text, or made up; -1 if what was said beside it does."""
    about: tuple[frozenset[str], frozenset[str]]
    """The stems of all that it states, and of what it does if it is taken for instructions."""

    @classmethod
    def of(cls, item: MemoryItem, source: Source, raw: str, asked: str, beside: str) -> Self:
        """Read a stretch of a user's words; `beside` is what else they said in the same item."""
        text = normal(raw)
        clauses = tuple(clauses_of(text))
        states, rules = ([clause.about for clause in clauses if clause.tells(kind)] for kind in (_FACTS, _RULES))
        about = frozenset[str]().union(*states), frozenset[str]().union(*rules)
        made_up = tuple(found.start() for found in OTHERS_WORDS.finditer(text))
        if OTHERS_WORDS.search(normal(beside)) or beside.rstrip().endswith(":"):
            made_up = (-1, *made_up)
        sentences = tuple(sentences_of(text))
        flat_text = text.replace("\n", " ")
        return cls(item, source, flat_text, raw, flat(asked), clauses, subjects(asked), sentences, made_up, about)

    def quote(self, start: int, stop: int) -> str:
        """Return what stands at these places of the text, in upper and lower case; O(text)."""
        found = shown(self.raw).replace("\n", " ")
        if len(found) != len(self.text):  # some characters are several when their case is folded
            ends = list(accumulate(len(char.casefold()) for char in found))
            start, stop = bisect_right(ends, start), bisect_right(ends, stop)
        return found[start:stop].strip()

    def telling(self, kind: MemoryType) -> frozenset[str]:
        return self.about[kind in ORDERS]


@dataclass(frozen=True, slots=True)
class ExtractionInput:
    """The input of fact extraction."""

    said: tuple[UserStatement, ...]
    lines: tuple[tuple[str, str], ...]
    """Who said it, and what, in order."""


def material_of(items: Sequence[MemoryItem], limits: Limits) -> ExtractionInput:
    """Return what the user said in these items, and the assistant's answers around it; O(their text).

    Nothing else of them: no instructions, summaries, files or results of tools, and nothing that was recalled before.
    What is longest is cut so that all of it takes no more than the limit, the assistant's part no more than a quarter.
    """
    found = [line for item in items for line in _lines(item)]
    room = {"assistant": limits.max_shown_chars // 4, "day": limits.max_shown_chars}
    room["user"] = limits.max_shown_chars - room["assistant"]
    most = {who: _longest([len(line.text) for line in found if line.who == who], left) for who, left in room.items()}
    said = []
    lines = []
    for line in found:
        if text := line.text[: most[line.who]]:
            lines.append((line.who, text))
            if line.who == "user":
                said.append(UserStatement.of(line.item, line.source, text, line.asked, line.beside))
    return ExtractionInput(tuple(said), tuple(lines))


@dataclass(frozen=True, slots=True)
class _Line:
    who: str
    text: str
    item: MemoryItem
    source: Source
    asked: str = ""
    beside: str = ""
    """What the user said just before it, in the same prompt."""


def _lines(item: MemoryItem) -> Iterator[_Line]:
    if item.created_at:
        yield _Line("day", f"{_moment(item.created_at):%Y-%m-%d}", item, item.source)
    asked = beside = ""
    for at, block in enumerate(item.blocks):
        if isinstance(block, User):
            source = replace(item.source, spans=_span_at(item.source.spans, at, len(item.blocks)))
            for part in own_words(block.text):
                yield _Line("user", part, item, source, asked, beside)
                asked, beside = "", part[-_BESIDE_CHARS:]
        elif isinstance(block, Text):
            text = "\n".join(own_words(block.text))
            asked, beside = last_question(text), ""
            yield _Line("assistant", text, item, item.source)


_BESIDE_CHARS = 2000


def _longest(lengths: Sequence[int], room: int) -> int:
    """Return the length to which texts must be cut so that they fit in `room` characters together."""
    left = sorted(lengths)
    for at, length in enumerate(left):
        if length * (len(left) - at) > room:
            return room // (len(left) - at)
        room -= length
    return max(lengths, default=0)


def own_words(text: str) -> list[str]:
    """Return the stretches of a text that are not of the sections that prompts get of what was recalled.

    A section that is not closed goes to the end, one that is not opened begins at the start.
    """
    text = _RECALLED.sub("\0", _SECTION.sub("\0", text))
    closed = [match.end() for match in _CLOSING.finditer(text)]
    parts = text[closed[-1] if closed else 0 :].split("\0")
    return [part.strip() for part in parts if part.strip()]


_SECTION = re.compile(
    r"<\s{0,8}([a-z][a-z0-9_]{0,60}_memory)\b[^<>]{0,200}>.*?(?:<\s{0,8}/\s{0,8}\1\s{0,8}>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_CLOSING = re.compile(r"<\s{0,8}/\s{0,8}[a-z][a-z0-9_]{0,60}_memory\s{0,8}>", re.IGNORECASE)
_RECALLED = re.compile(
    re.escape(PREAMBLE).replace(re.escape("{today}"), r"\S{1,20}")
    + r"|^[ >]*- \[(?:\d{4}-\d\d-\d\d \d\d:\d\d|no date)\] \([a-z_]+(?:, \"[^\n]*)?\) \"[^\n]*$",
    re.MULTILINE,
)


def may_tell(material: ExtractionInput) -> bool:
    """Return whether the input may support any fact. For greetings and questions alone, no model is called."""
    return any(said.asked or any(clause.rules and clause.about for clause in said.clauses) for said in material.said)


def _span_at(spans: Spans, at: int, count: int) -> Spans:
    """Return where the block stands, if that can be told."""
    if sum(span.stop - span.start for span in spans) != count:
        return spans
    for span in spans:
        if at < span.stop - span.start:
            return (Span(span.log, span.start + at, span.start + at + 1),)
        at -= span.stop - span.start
    return spans


def _moment(time: float) -> datetime:
    return datetime.fromtimestamp(min(max(time, 0.0), _LAST), UTC)


_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
