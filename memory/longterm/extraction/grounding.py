"""Checks whether a user's words support a fact, or are to be stored as a quotation instead.

A model's claim alone is never enough.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache

from turnwise.memory.longterm.extraction import evidence
from turnwise.memory.longterm.extraction.candidates import EXTRACTED, Candidate, Limits, Refusal
from turnwise.memory.longterm.extraction.clauses import NEUTRAL, ORDERS, YES, flat, overrides_instructions, subjects
from turnwise.memory.longterm.extraction.grammatical_person import RETRACTS, TAKES_BACK
from turnwise.memory.longterm.extraction.input import ExtractionInput, UserStatement
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.analyzer import language_of, words
from turnwise.memory.longterm.recall.word_frequency import COMMON, log_frequency


@dataclass(frozen=True)
class Verdict:
    """The user's statement that supports a candidate fact, or a quotation to store instead."""

    statement: UserStatement
    place: tuple[int, int]
    """The number of the statement, and the position in it. The assistant's statements are numbered after the user's."""
    quote: str | None = None
    """The user's words to store instead of the fact; None if they support the fact."""
    question: str = ""
    """The question that the quote answers."""
    tool: str | None = None
    """The tool whose result the quote comes from, if the assistant said it."""

    def text(self, fact: str, time: float) -> str:
        """Return the text to store: the fact, or a dated quotation of the user."""
        if self.quote is None:
            return fact
        day = datetime.fromtimestamp(min(max(time, 0.0), _LAST), UTC)
        question = f', asked "{_inner(self.question)}",' if self.question else ""
        speaker = (
            "the user said" if self.tool is None else f"the assistant said, from the result of {_inner(self.tool)}"
        )
        return f'On {day.day} {_MONTHS[day.month - 1]} {day.year}{question} {speaker}: "{_inner(self.quote)}"'


def quoted_in(text: str) -> str | None:
    """Return the quoted words if the text is a quotation made by `Verdict.text`; None otherwise."""
    match = _QUOTATION.fullmatch(text)
    return match[1] if match else None


_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
_QUOTATION = re.compile(
    rf'On \d+ (?:{"|".join(_MONTHS)}) \d+(?:, asked "[^"]*",)? '
    r'(?:the user said|the assistant said, from the result of [^"]*): "([^"]*)"'
)
_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def _inner(text: str) -> str:
    return " ".join(text.replace('"', "'").split())


def judge(candidate: Candidate, messages: ExtractionInput, limits: Limits) -> Verdict | Refusal:
    """Return the statement that supports the candidate, or a quotation to store instead, or why it is refused.

    A candidate is supported if a sentence of the quoted evidence supports it, see `evidence`, and the text around that
    sentence does not mark it as a question, as quoted, as fiction or as taken back.
    """
    # A wide character counts as two, since Chinese, Japanese and Korean say the same with fewer characters.
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in candidate.text[: limits.min_chars])
    if len(candidate.text) + wide < limits.min_chars:
        return Refusal.TOO_SHORT
    if len(candidate.text) > limits.max_chars:
        return Refusal.TOO_LONG
    if candidate.type not in _TYPES:
        return Refusal.UNKNOWN_TYPE
    if len(candidate.evidence) > QUOTED * limits.max_chars:
        return Refusal.TOO_LONG
    return _judge_evidence(candidate, messages, QUOTED * limits.max_chars)


def judge_sourced(candidate: Candidate, messages: ExtractionInput, limits: Limits) -> Verdict | None:
    """Return the quotation of what the assistant said on the basis of a tool's result; None if no result bears it out.

    A result bears a sentence out if it has all of its numbers, and half of its other words.
    """
    evidence_text = flat(candidate.evidence)
    if not words(evidence_text):
        return None
    for number, stated in enumerate(messages.stated, len(messages.statements)):
        statement = stated.statement
        for position in _places(statement.text, evidence_text):
            begin, end = _sentences(statement, position, position + len(evidence_text))
            quote = statement.quote(statement.sentences[begin][0], statement.sentences[end - 1][1])
            if len(quote) > QUOTED * limits.max_chars:
                continue
            numbers = {word for word in words(quote) if word.isdigit()}
            quote_stems = subjects(quote)
            for tool, result_words, stems in reversed(stated.results):
                if quote_stems and numbers <= result_words and 2 * len(quote_stems & stems) >= len(quote_stems):
                    return Verdict(statement, (number, position), quote, tool=tool)
    return None


def written_names(candidate: Candidate, statement: UserStatement, messages: ExtractionInput) -> tuple[str, ...]:
    """Return the candidate's names that the user wrote in the turn of this statement, the name before the aliases.

    Other turns do not count, so that a fact deleted with its turn has no names from elsewhere. A name that consists of
    common words only, such as "he", is left out, since it would match every message.
    """
    texts = [neighbour.text for neighbour in messages.statements if neighbour.item is statement.item]
    names = dict.fromkeys(filter(None, (candidate.name, *candidate.aliases)))
    return tuple(name for name in names if _is_name(name) and any(_has(text, flat(name)) for text in texts))


def _is_name(name: str) -> bool:
    return any(log_frequency(word) < COMMON for word in words(name))


def _has(text: str, part: str) -> bool:
    return bool(part) and next(_places(text, part), None) is not None


def _judge_evidence(candidate: Candidate, messages: ExtractionInput, max_chars: int) -> Verdict | Refusal:
    refusal = Refusal.NO_EVIDENCE
    quotation: Verdict | None = None
    evidence_text = flat(candidate.evidence)
    if not words(evidence_text):
        return refusal
    stems = subjects(candidate.text)
    claimed = (stems - NEUTRAL) or stems
    for number, statement in enumerate(messages.statements):
        for position in _places(statement.text, evidence_text):
            verdict = _verdict(candidate, claimed, statement, (number, position))
            if isinstance(verdict, Refusal):
                refusal = verdict
            elif isinstance(verdict, Verdict):
                return verdict
            elif quotation is None:
                quotation = _quotation(candidate, statement, (number, position), max_chars)
                if quotation is None:  # it is too long to be quoted whole, and a part may mean something else
                    refusal = Refusal.UNSUPPORTED
    return quotation or refusal


_TYPES = frozenset(map(str, EXTRACTED))

QUOTED = 4
"""The maximum length of a quotation, as a multiple of `Limits.max_chars`."""


class _Partly(Enum):
    """The words support the candidate only partly, so they may be quoted."""

    MAY_QUOTE = 1


def _verdict(
    candidate: Candidate, claimed: frozenset[str], statement: UserStatement, place: tuple[int, int]
) -> Verdict | Refusal | _Partly:
    """Return whether the words at this place support the candidate, or do so partly, or why they do not.

    Args:
        claimed: the stems of the candidate's words.
    """
    kind = MemoryType(candidate.type)
    _, start = place
    stop = start + len(flat(candidate.evidence))
    first = bisect_right(statement.clauses, start, key=lambda clause: clause.stop)
    last = bisect_left(statement.clauses, stop, key=lambda clause: clause.start)
    stating = [clause for clause in statement.clauses[first:last] if clause.may_support(kind)]
    clause_stems = frozenset[str]().union(*(clause.about for clause in stating))
    claim = flat(candidate.text)
    if not clause_stems or any(word in claim for clause in stating for word in clause.other_users):
        return Refusal.NOT_ABOUT_THE_USER
    # Only the first clause of a statement answers the question before it.
    question_stems = statement.question_stems if first == 0 else frozenset[str]()
    agrees = bool(question_stems and statement.clauses[0].may_support(kind) and statement.clauses[0].about & YES)
    if agrees and _is_agreed(statement, claim):
        return Verdict(statement, place)
    begin, end = _sentences(statement, start, stop)
    if any(_is_supported(statement, number, claim, kind) for number in range(begin, min(end, begin + _SENTENCES))):
        return Verdict(statement, place)
    # The words of the question count, too, if the statement agrees, or if they are half of the claimed words.
    answered_stems = claimed & question_stems
    if claimed & clause_stems or (answered_stems and (agrees or 2 * len(answered_stems) >= len(claimed))):
        return _Partly.MAY_QUOTE
    # A translation shares no words with the statement, so nothing can be compared.
    statement_part = statement.text[start : min(stop, start + _LANGUAGE_CHARS)]
    if _language(claim[:_LANGUAGE_CHARS]) != _language(statement_part):
        return _Partly.MAY_QUOTE
    return Refusal.UNSUPPORTED


_LANGUAGE_CHARS = 200
"""How many characters of a text tell its language."""


@lru_cache(maxsize=1024)
def _language(text: str) -> tuple[str, str]:
    """Return the script of most of a text's letters, and its language as far as that is known."""
    scripts = Counter(unicodedata.name(char, "").partition(" ")[0] for char in text if char.isalpha())
    return max(scripts, key=lambda name: scripts[name], default=""), language_of(words(text))


def _quotation(
    candidate: Candidate, statement: UserStatement, place: tuple[int, int], max_chars: int
) -> Verdict | None:
    """Return a quotation of the sentences at this place, with the question that they answer; None if too long."""
    _, start = place
    begin, end = _sentences(statement, start, start + len(flat(candidate.evidence)))
    quote = _quote(statement, begin, end, max_chars)
    question = statement.question if begin == 0 else ""
    return Verdict(statement, place, quote, question) if max(len(quote), len(question)) <= max_chars else None


def _sentences(statement: UserStatement, start: int, stop: int) -> tuple[int, int]:
    """Return the range of the numbers of the sentences between two places."""
    begin = bisect_right(statement.sentences, start, key=lambda sentence: sentence[1])
    return begin, max(bisect_left(statement.sentences, stop, key=lambda sentence: sentence[0]), begin + 1)


_SENTENCES = 8
"""The maximum number of sentences of the evidence that are compared with a claim."""


def _is_agreed(statement: UserStatement, claim: str) -> bool:
    start, stop = statement.sentences[0]
    is_plain = not TAKES_BACK.intersection(evidence.tokens(statement.text[start:stop])) and _is_asserted(statement, 0)
    return is_plain and evidence.yes_supports(statement.question, claim)


def _is_supported(statement: UserStatement, number: int, claim: str, kind: MemoryType) -> bool:
    start, stop = statement.sentences[number]
    sentence = statement.text[start:stop].strip()
    if not _is_asserted(statement, number):
        return False
    return evidence.supports(sentence, claim) or (kind in ORDERS and evidence.supports_instruction(sentence, claim))


def _is_asserted(statement: UserStatement, number: int) -> bool:
    """Return whether the text around a sentence does not mark it as quoted, as fiction or as taken back."""
    start, stop = statement.sentences[number]
    before = statement.text[:start]
    if before.count('"') % 2 or before.count("```") % 2:
        return False
    # A mark inside the sentence, as in "I write novels", is compared with the claim; one elsewhere may be about it.
    if any(not start <= place < stop for place in statement.made_up):
        return False
    # What an earlier sentence announces or quotes may go on until here.
    earlier = (statement.text[begin:end].rstrip() for begin, end in statement.sentences[:number])
    if any(text.endswith(":") or text.lstrip().startswith((">", "|")) for text in earlier):
        return False
    return not RETRACTS.match(statement.text[stop:].lstrip())


def _quote(statement: UserStatement, begin: int, end: int, max_chars: int) -> str:
    """Return the sentences, with neighbouring text that shows their meaning unless it is too long."""
    first, last = begin, end
    if statement.made_up and len(statement.cased) <= max_chars and not overrides_instructions(statement.text):
        first, last = 0, len(statement.sentences)
    if first and statement.text[slice(*statement.sentences[first - 1])].rstrip().endswith(":"):
        first -= 1
    stop = statement.sentences[last - 1][1]
    if last < len(statement.sentences) and RETRACTS.match(statement.text[stop:].lstrip()):
        stop = statement.sentences[last][1]
    return statement.quote(statement.sentences[first][0], stop)


def _places(text: str, quoted: str) -> Iterator[int]:
    """Yield the first places of the quoted words in a text, except those inside a word."""
    position = -1
    for _ in range(_MAX_PLACES):
        position = text.find(quoted, position + 1)
        if position < 0:
            return
        stop = position + len(quoted)
        if not (
            _joined(text[max(position - 1, 0) : position], quoted[0]) or _joined(quoted[-1], text[stop : stop + 1])
        ):
            yield position


_MAX_PLACES = 20


def _joined(before: str, after: str) -> bool:
    """Return whether two adjacent characters belong to one word, in scripts with spaces between words."""
    return before.isalnum() and after.isalnum() and ord(max(before, after)) < _DENSE


_DENSE = 0x0E00
"""Most scripts from this character on have no spaces between words."""
