"""The input of fact extraction: the user's statements, and the assistant's messages around them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Self

from turnwise.memory.conversation.blocks import Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.longterm.base import MemoryItem, Source
from turnwise.memory.longterm.extraction.candidates import Limits
from turnwise.memory.longterm.extraction.clauses import (
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
from turnwise.memory.longterm.recall.analyzer import words
from turnwise.memory.longterm.recall.prompt_sections import PREAMBLE


@dataclass(frozen=True)
class UserStatement:
    """A piece of a user's own words, normalized in case, quotes and spaces."""

    item: MemoryItem
    source: Source
    text: str
    cased: str
    """The text with the upper and lower case in which the user wrote it."""
    question: str
    """The assistant's question just before the statement, on one line, if the statement may answer it."""
    clauses: tuple[Clause, ...]
    question_stems: frozenset[str]
    """The stems of that question."""
    sentences: tuple[tuple[int, int], ...]
    """The start and stop of each sentence in the text. A line break ends a sentence."""
    made_up: tuple[int, ...]
    """The places in the text that mark it as quoted or fiction; -1 if the neighbouring text does so."""

    @classmethod
    def of(cls, item: MemoryItem, source: Source, raw: str, question: str, beside: str) -> Self:
        """Return a statement with these words; `beside` is the user's text before them in the same prompt."""
        text = normal(raw)
        clauses = tuple(clauses_of(text))
        made_up = tuple(match.start() for match in OTHERS_WORDS.finditer(text))
        if OTHERS_WORDS.search(normal(beside)) or beside.rstrip().endswith(":"):
            made_up = (-1, *made_up)
        sentences = tuple(sentences_of(text))
        flat_text, cased = text.replace("\n", " "), shown(raw).replace("\n", " ")
        return cls(item, source, flat_text, cased, flat(question), clauses, subjects(question), sentences, made_up)

    def quote(self, start: int, stop: int) -> str:
        """Return this part of the text in its original case."""
        if len(self.cased) != len(self.text):  # case folding turns some characters into several
            ends = list(accumulate(len(char.casefold()) for char in self.cased))
            start, stop = bisect_right(ends, start), bisect_right(ends, stop)
        return self.cased[start:stop].strip()


@dataclass(frozen=True)
class SourcedStatement:
    """A text of the assistant's, and the results of tools that it had in that turn."""

    statement: UserStatement
    """The text, normalized as a user's."""
    results: tuple[tuple[str, frozenset[str], frozenset[str]], ...]
    """Of each result: the tool's name, the words of the result, and their stems without stop words."""


@dataclass(frozen=True)
class ExtractionInput:
    """The input of fact extraction."""

    statements: tuple[UserStatement, ...]
    lines: tuple[tuple[str, str], ...]
    """The lines to show to the model, in order: the role and the text."""
    stated: tuple[SourcedStatement, ...] = ()
    """The assistant's texts that follow a tool's result, if such may become facts."""


def input_of(items: Sequence[MemoryItem], limits: Limits, *, sourced: bool = False) -> ExtractionInput:
    """Return the user's and the assistant's messages in these items; O(their text).

    It contains no instructions, summaries, files, tool results or recalled items. The longest messages are cut so that
    all together do not exceed the limit, and the assistant's messages do not exceed a quarter of it.

    Args:
        sourced: whether to return what the assistant stated with a source, too.
    """
    all_lines = [line for item in items for line in _lines(item)]
    room = {"assistant": limits.max_shown_chars // 4, "day": limits.max_shown_chars}
    room["user"] = limits.max_shown_chars - room["assistant"]
    max_chars = {
        role: _longest([len(line.text) for line in all_lines if line.role == role], available)
        for role, available in room.items()
    }
    statements = []
    lines = []
    for line in all_lines:
        if text := line.text[: max_chars[line.role]]:
            lines.append((line.role, text))
            if line.role == "user":
                statements.append(UserStatement.of(line.item, line.source, text, line.question, line.beside))
    stated = (
        tuple(statement for item in items for statement in _stated(item, max_chars["assistant"])) if sourced else ()
    )
    return ExtractionInput(tuple(statements), tuple(lines), stated)


def _stated(item: MemoryItem, max_chars: int) -> Iterator[SourcedStatement]:
    """Yield the assistant's texts that follow a tool's result in their turn."""
    names = {block.call_id: block.name for block in item.blocks if isinstance(block, ToolUse)}
    results: list[tuple[str, frozenset[str], frozenset[str]]] = []
    for index, block in enumerate(item.blocks):
        if isinstance(block, ToolResult) and not block.is_error:
            result = block.plain[:_RESULT_CHARS]
            results.append((names.get(block.call_id, "a tool"), frozenset(words(result)), subjects(result)))
        elif isinstance(block, Text) and results and (text := "\n".join(own_words(block.text))[:max_chars]):
            source = replace(item.source, spans=_span_at(item.source.spans, index, len(item.blocks)))
            yield SourcedStatement(UserStatement.of(item, source, text, "", ""), tuple(results))


_RESULT_CHARS = 100_000


@dataclass(frozen=True)
class _Line:
    role: str
    text: str
    item: MemoryItem
    source: Source
    question: str = ""
    beside: str = ""
    """The user's text just before it, in the same prompt."""


def _lines(item: MemoryItem) -> Iterator[_Line]:
    if item.created_at:
        yield _Line("day", f"{_moment(item.created_at):%Y-%m-%d}", item, item.source)
    question = beside = ""
    for index, block in enumerate(item.blocks):
        if isinstance(block, User):
            source = replace(item.source, spans=_span_at(item.source.spans, index, len(item.blocks)))
            for part in own_words(block.text):
                yield _Line("user", part, item, source, question, beside)
                question, beside = "", part[-_BESIDE_CHARS:]
        elif isinstance(block, Text):
            text = "\n".join(own_words(block.text))
            question, beside = last_question(text), ""
            yield _Line("assistant", text, item, item.source)


_BESIDE_CHARS = 2000


def _longest(lengths: Sequence[int], room: int) -> int:
    """Return the length to which texts must be cut so that they fit in `room` characters together."""
    ascending = sorted(lengths)
    for index, length in enumerate(ascending):
        if length * (len(ascending) - index) > room:
            return room // (len(ascending) - index)
        room -= length
    return max(lengths, default=0)


def own_words(text: str) -> list[str]:
    """Return the parts of a text that are not copied from the sections of recalled items in a prompt.

    A section without an end extends to the end of the text, and one without a start begins at its start.
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


def may_have_facts(messages: ExtractionInput) -> bool:
    """Return whether the input may support any fact. For greetings and questions alone, no model is called."""
    return bool(messages.stated) or any(
        statement.question_stems or any(clause.instructs and clause.about for clause in statement.clauses)
        for statement in messages.statements
    )


def _span_at(spans: Spans, index: int, count: int) -> Spans:
    """Return the span of the block, or all spans if it is unknown."""
    if sum(span.stop - span.start for span in spans) != count:
        return spans
    for span in spans:
        if index < span.stop - span.start:
            return (Span(span.log, span.start + index, span.start + index + 1),)
        index -= span.stop - span.start
    return spans


def _moment(time: float) -> datetime:
    return datetime.fromtimestamp(min(max(time, 0.0), _LAST), UTC)


_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
