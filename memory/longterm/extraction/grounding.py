"""Finds the quotations of candidate facts in what the user said. The model's claim alone is never enough."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from turnwise.memory.background import check_awaited
from turnwise.memory.longterm.extraction.candidates import EXTRACTED, Action, Candidate, Limits, Refusal
from turnwise.memory.longterm.extraction.input import ExtractionInput, UserStatement
from turnwise.memory.longterm.extraction.wording import content, flat
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.analyzer import words
from turnwise.memory.longterm.recall.word_frequency import COMMON, log_frequency


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A candidate fact, and the user's statement in which its quotation stands."""

    candidate: Candidate
    statement: UserStatement
    quote: str | None
    """The user's words with what stands around them, to store if they do not state the fact; None if too long."""
    question: str = ""
    """The question that the quote answers."""
    tool: str | None = None
    """The tool whose result the quote comes from, if the assistant said it."""
    is_quoted: bool = False
    """Whether to store the quote instead of the fact."""

    @property
    def may_be_new(self) -> bool:
        """Whether the user may have stated a fact that is not known yet, which is to be checked."""
        return not self.is_quoted and self.candidate.action is not Action.IGNORE

    def as_quotation(self) -> Claim | Refusal:
        """Return the claim as a quotation; a refusal if it is too long to be quoted, as a part may mean otherwise."""
        return Refusal.UNSUPPORTED if self.quote is None else replace(self, is_quoted=True)

    def text(self, now: float) -> str:
        """Return the text to store: the fact, or a quotation with the date of the statement, or of `now`."""
        if not self.is_quoted or self.quote is None:
            return self.candidate.text
        time = self.statement.item.created_at or now
        day = datetime.fromtimestamp(min(max(time, 0.0), _LAST), UTC)
        question = f', asked "{_inner(self.question)}",' if self.question else ""
        speaker = (
            "the user said" if self.tool is None else f"the assistant said, from the result of {_inner(self.tool)}"
        )
        return f'On {day.day} {_MONTHS[day.month - 1]} {day.year}{question} {speaker}: "{_inner(self.quote)}"'


def quoted_in(text: str) -> str | None:
    """Return the quoted words if the text is a quotation made by `Claim.text`; None otherwise."""
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


def claims_of(
    candidates: Sequence[Candidate | Refusal], messages: ExtractionInput, limits: Limits
) -> list[Claim | Refusal]:
    """Return a claim for each candidate whose quotation stands in the messages, and the reason for each other one.

    Candidates beyond the limits are `Refusal.TOO_MANY`.
    """
    claims: list[Claim | Refusal] = []
    room = limits.max_facts
    for candidate in candidates[: _MAX_CANDIDATES * limits.max_facts]:
        check_awaited()
        if room == 0:
            break
        claim = candidate if isinstance(candidate, Refusal) else claim_of(candidate, messages, limits)
        room -= isinstance(claim, Claim) and claim.candidate.action is not Action.IGNORE
        claims.append(claim)
    return claims + [Refusal.TOO_MANY] * (len(candidates) - len(claims))


_MAX_CANDIDATES = 20
"""The maximum number of candidates read from an answer, as a multiple of `Limits.max_facts`."""


def claim_of(candidate: Candidate, messages: ExtractionInput, limits: Limits) -> Claim | Refusal:
    """Return the claim that the candidate is, or why it is refused.

    Its quotation must stand literally in a statement of the user's, and have words outside of questions and quoted
    parts, see `UserStatement.states`. Whether these words state the fact is not decided here.
    """
    if flaw := _flaw(candidate, limits):
        return flaw
    evidence = flat(candidate.evidence)
    if not words(evidence):
        return Refusal.NO_EVIDENCE
    is_written = False
    for statement in messages.statements:
        for start in _places(statement.text, evidence):
            is_written = True
            if statement.states(start, start + len(evidence)):
                first, quote = _around(statement, start, start + len(evidence), limits)
                question = statement.question if first == 0 else ""
                return Claim(
                    candidate=_with_written_names(candidate, statement, messages),
                    statement=statement,
                    quote=quote if len(question) <= QUOTED * limits.max_chars else None,
                    question=question,
                )
    if is_written:
        return Refusal.NOT_STATED
    return _sourced_claim(candidate, evidence, messages, limits) or Refusal.NO_EVIDENCE


def _flaw(candidate: Candidate, limits: Limits) -> Refusal | None:
    # A wide character counts as two, since Chinese, Japanese and Korean say the same with fewer characters.
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in candidate.text[: limits.min_chars])
    if len(candidate.text) + wide < limits.min_chars:
        return Refusal.TOO_SHORT
    if len(candidate.text) > limits.max_chars or len(candidate.evidence) > QUOTED * limits.max_chars:
        return Refusal.TOO_LONG
    return None if candidate.type in _TYPES else Refusal.UNKNOWN_TYPE


_TYPES = frozenset(map(str, EXTRACTED))

QUOTED = 4
"""The maximum length of a quotation, as a multiple of `Limits.max_chars`."""


def _around(statement: UserStatement, start: int, stop: int, limits: Limits) -> tuple[int, str | None]:
    """Return the number of the first sentence of the quotation of this place, and the quotation; None if too long.

    It is the whole statement if that is short, else its sentences with one more on each side, as what stands around
    shows how they are meant.
    """
    count = len(statement.sentences)
    begin, end = _sentences(statement, start, stop)
    around = max(begin - 1, 0), min(end + 1, count)
    for (first, last), most in (((0, count), 1), (around, 1), ((begin, end), QUOTED)):
        quote = statement.quote(statement.sentences[first][0], statement.sentences[last - 1][1])
        if len(quote) <= most * limits.max_chars:
            return first, quote
    return begin, None


def _sourced_claim(candidate: Candidate, evidence: str, messages: ExtractionInput, limits: Limits) -> Claim | None:
    """Return the quotation of what the assistant said on the basis of a tool's result; None if no result bears it out.

    A result bears a sentence out if it has all of its numbers, and half of its other words. Its type is `context`: no
    type of the profile, which says who the user is.
    """
    for sourced in messages.sourced:
        statement = sourced.statement
        for position in _places(statement.text, evidence):
            begin, end = _sentences(statement, position, position + len(evidence))
            quote = statement.quote(statement.sentences[begin][0], statement.sentences[end - 1][1])
            if len(quote) > QUOTED * limits.max_chars:
                continue
            numbers = {word for word in words(quote) if word.isdigit()}
            stems = content(quote)
            for tool, result_words, result_stems in reversed(sourced.results):
                if stems and numbers <= result_words and 2 * len(stems & result_stems) >= len(stems):
                    of_context = candidate.model_copy(update={"type": str(MemoryType.CONTEXT)})
                    return Claim(
                        candidate=_with_written_names(of_context, statement, messages),
                        statement=statement,
                        quote=quote,
                        tool=tool,
                        is_quoted=True,
                    )
    return None


def _with_written_names(candidate: Candidate, statement: UserStatement, messages: ExtractionInput) -> Candidate:
    """Return the candidate with those of its names that the user wrote in the turn of this statement.

    Other turns do not count, so that a fact deleted with its turn has no names from elsewhere. A name that consists of
    common words only, such as "he", is left out, since it would match every message.
    """
    texts = [neighbour.text for neighbour in messages.statements if neighbour.item is statement.item]
    names = dict.fromkeys(filter(None, (candidate.name, *candidate.aliases)))
    written = [name for name in names if _is_name(name) and any(_has(text, flat(name)) for text in texts)]
    name = candidate.name if candidate.name in written else None
    return candidate.model_copy(update={"name": name, "aliases": tuple(alias for alias in written if alias != name)})


def _is_name(name: str) -> bool:
    return any(log_frequency(word) < COMMON for word in words(name))


def _has(text: str, part: str) -> bool:
    return bool(part) and next(_places(text, part), None) is not None


def _sentences(statement: UserStatement, start: int, stop: int) -> tuple[int, int]:
    """Return the range of the numbers of the sentences between two places."""
    begin = bisect_right(statement.sentences, start, key=lambda sentence: sentence[1])
    return begin, max(bisect_left(statement.sentences, stop, key=lambda sentence: sentence[0]), begin + 1)


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
