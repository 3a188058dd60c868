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
from turnwise.memory.longterm.extraction.wording import (
    content,
    flat,
    last_question,
    normal,
    sentences_of,
    shown,
    stated_in,
)
from turnwise.memory.longterm.recall.analyzer import words
from turnwise.memory.longterm.recall.prompt_sections import ABOUT_THE_USER, FOR_THE_PROMPT, PREAMBLE


@dataclass(frozen=True)
class UserStatement:
    """A piece of a user's own words, normalized in case, quotes and spaces."""

    item: MemoryItem
    source: Source
    text: str
    cased: str
    """The text with the upper and lower case, and the lines, in which the user wrote it."""
    stated: str
    """The text with spaces instead of its questions and quoted parts."""
    before_questions: tuple[tuple[int, int], ...]
    """The start and stop of what stands in a sentence before its question; see `stated_in`."""
    question: str
    """The assistant's question just before the statement, on one line, if the statement may answer it."""
    sentences: tuple[tuple[int, int], ...]
    """The start and stop of each sentence in the text. A line break ends a sentence."""

    @classmethod
    def of(cls, item: MemoryItem, source: Source, raw: str, question: str = "") -> Self:
        text = normal(raw)
        stated, before_questions = stated_in(text)
        return cls(
            item=item,
            source=source,
            text=text.replace("\n", " "),
            cased=shown(raw),
            stated=stated.replace("\n", " "),
            before_questions=before_questions,
            question=flat(question),
            sentences=tuple(sentences_of(text)),
        )

    def states(self, start: int, stop: int) -> bool:
        """Return whether this part of the text has words outside of questions and quoted parts."""
        if words(self.stated[start:stop]):
            return True
        index = bisect_right(self.before_questions, start, key=lambda place: place[0]) - 1
        return index >= 0 and stop <= self.before_questions[index][1]

    def quote(self, start: int, stop: int) -> str:
        """Return this part of the text in its original case, on one line."""
        if len(self.cased) != len(self.text):  # case folding turns some characters into several
            ends = list(accumulate(len(char.casefold()) for char in self.cased))
            start, stop = bisect_right(ends, start), bisect_right(ends, stop)
        return " ".join(self.cased[start:stop].split())


@dataclass(frozen=True)
class SourcedStatement:
    """A text of the assistant's, and the results of tools that it had in that turn."""

    statement: UserStatement
    """The text, normalized as a user's."""
    results: tuple[tuple[str, frozenset[str], frozenset[str]], ...]
    """Of each result: the tool's name, the words of the result, and the stems of its content."""


@dataclass(frozen=True)
class ExtractionInput:
    """The input of fact extraction."""

    statements: tuple[UserStatement, ...]
    lines: tuple[tuple[str, str], ...]
    """The lines to show to the model, in order: the role and the text."""
    sourced: tuple[SourcedStatement, ...] = ()
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
                statements.append(UserStatement.of(line.item, line.source, text, line.question))
    of_tools = [statement for item in items for statement in _sourced(item, max_chars["assistant"])] if sourced else []
    return ExtractionInput(tuple(statements), tuple(lines), tuple(of_tools))


def _sourced(item: MemoryItem, max_chars: int) -> Iterator[SourcedStatement]:
    """Yield the assistant's texts that follow a tool's result in their turn."""
    names = {block.call_id: block.name for block in item.blocks if isinstance(block, ToolUse)}
    results: list[tuple[str, frozenset[str], frozenset[str]]] = []
    for index, block in enumerate(item.blocks):
        if isinstance(block, ToolResult) and not block.is_error:
            result = block.plain[:_RESULT_CHARS]
            results.append((names.get(block.call_id, "a tool"), frozenset(words(result)), content(result)))
        elif isinstance(block, Text) and results and (text := "\n".join(own_words(block.text))[:max_chars]):
            source = replace(item.source, spans=_span_at(item.source.spans, index, len(item.blocks)))
            yield SourcedStatement(UserStatement.of(item, source, text), tuple(results))


_RESULT_CHARS = 100_000


@dataclass(frozen=True)
class _Line:
    role: str
    text: str
    item: MemoryItem
    source: Source
    question: str = ""


def _lines(item: MemoryItem) -> Iterator[_Line]:
    if item.created_at:
        yield _Line("day", f"{_moment(item.created_at):%Y-%m-%d}", item, item.source)
    question = ""
    for index, block in enumerate(item.blocks):
        if isinstance(block, User) and block.author:  # of somebody else in a shared session: none of the user's words
            yield _Line("assistant", f"{flat(block.author)} said: {flat(block.text)}", item, item.source)
            question = ""
        elif isinstance(block, User):
            source = replace(item.source, spans=_span_at(item.source.spans, index, len(item.blocks)))
            for part in own_words(block.text):
                yield _Line("user", part, item, source, question)
                question = ""
        elif isinstance(block, Text):
            text = "\n".join(own_words(block.text))
            question = last_question(text)
            yield _Line("assistant", text, item, item.source)


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
    "|".join(map(re.escape, (PREAMBLE, ABOUT_THE_USER, FOR_THE_PROMPT))).replace(re.escape("{today}"), r"\S{1,20}")
    + r"|^[ >]*- \[(?:\d{4}-\d\d-\d\d \d\d:\d\d|no date)\] \([a-z_]+(?:, \"[^\n]*)?\) \"[^\n]*$",
    re.MULTILINE,
)


def may_have_facts(messages: ExtractionInput) -> bool:
    """Return whether the input may have any fact. For greetings and questions alone, no model is called."""
    return bool(messages.sourced) or any(
        statement.question or statement.before_questions or content(statement.stated)
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
