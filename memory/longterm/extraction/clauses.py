"""Splits a text into clauses, and finds out which clauses are statements and what they are about."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.analyzer import stem, words

ORDERS = (MemoryType.INSTRUCTIONS, MemoryType.WORKFLOW)
"""The types of facts that an instruction of the user may support."""


@dataclass(frozen=True)
class Clause:
    """The text between two punctuation marks."""

    start: int
    stop: int
    states: bool
    """Whether it is a statement, not a question or a greeting."""
    instructs: bool
    """Whether it is a statement or an instruction."""
    about: frozenset[str]
    """The stems of its words."""
    other_users: frozenset[str]
    """The words in it that name other users."""

    def may_support(self, kind: MemoryType) -> bool:
        """Return whether the clause may support a fact of this type."""
        return self.instructs if kind in ORDERS else self.states


def clauses_of(text: str) -> Iterator[Clause]:
    """Yield the clauses of a `normal` text, in order."""
    for sentence in _SENTENCE.finditer(text):
        ends = [mark.end() for mark in _MARK.finditer(text, *sentence.span())]
        if not ends or ends[-1] < sentence.end():
            ends.append(sentence.end())
        start = sentence.start()
        asks = bool(_ASKS.search(sentence[0]))
        overrides = overrides_instructions(sentence[0])
        for end in ends:
            if part := text[start:end].strip():
                stems = subjects(part) - _SMALL_TALK
                other_users = frozenset(match[0] for match in _OTHER_USER.finditer(part))
                states = not overrides and not (asks and end == ends[-1]) and _states(part, asks, bool(other_users))
                mere = (
                    states and bool(_REQUEST.match(part)) and not (_FIRST_PERSON.search(part) or _LASTING.search(part))
                )
                yield Clause(start, end, states and not mere, states, stems, other_users)
            start = end


def sentences_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each sentence of a `normal` text, in order. A line break ends a sentence."""
    for sentence in _SENTENCE.finditer(text):
        if sentence[0].strip():
            yield sentence.span()


def overrides_instructions(text: str) -> bool:
    """Return whether a `normal` text tries to override the assistant's instructions."""
    return _OVERRIDE.search(text) is not None


def _states(text: str, asks: bool, of_others: bool) -> bool:
    """Return whether a clause is neither a question nor about another user, as far as its words show."""
    if _OPEN_QUESTION.match(text) or (asks and _QUESTION.match(text)):
        return False
    return not of_others or bool(_FIRST_PERSON.search(text))


_SENTENCE = re.compile(
    r"(?:[^.!?\n。！？؟]|\.(?!\s|$))+(?:[.!?。！？؟]+[\"')\]]*|\n|$)|[.!?\n。！？؟]"  # noqa: RUF001 - marks of other scripts
)
_MARK = re.compile(r"[,;:](?=\s|$)|[，；、：]|\s[-–—]+\s")  # noqa: RUF001 - the marks of other scripts
_ASKS = re.compile(r"[?？؟][\"')\].!]*\s*$")  # noqa: RUF001
_OVERRIDE = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}"
    r"\b(?:above|previous|prior|earlier|instructions?|rules|prompts?)\b"
    r"|\bsystem prompt\b|\bdeveloper mode\b"
)
_QUESTION = re.compile(
    r"(?:and |or |but |so )?(?:do|does|did|is|are|am|was|were|can|could|would|will|shall|should|have|has|had|what|who"
    r"|whom|whose|where|when|why|which|how|if|whether|suppose)\b"
)
_OPEN_QUESTION = re.compile(
    r"(?:and |so )?(?:(?:what|who|where|when|why|how|which)(?:'s|(?: \w+)? (?:is|are|am|was|were|do|does|did))"
    r" (?:i|my|you|your|the|it|that|this)"
    r"|(?:do|does|did|is|are|am|was|were|can|could|would|will|should|have|has) (?:i|my|you|your|we|our))\b"
)
"""Questions without a question mark."""
_FIRST_PERSON = re.compile(r"\b(?:i|my|mine|we|our|ours|i'm|i've|i'd|i'll)\b")
_LASTING = re.compile(
    r"\b(?:always|never|from now on|in (?:the )?future|every|whenever|each time|call me|remember|note|keep in mind"
    r"|prefer)\b"
)
_REQUEST = re.compile(
    r"(?:please|pls|(?:can|could|would|will) you|let's|tell|show|give|write|rewrite|send|translate|summari[sz]e"
    r"|explain|describe|list|find|search|look up|help|make|create|book|order|open|play|set|remind|draw|generate"
    r"|calculate|compute|compare|check|fix|read|continue|go on|try|repeat|stop|print|say)\b"
)
_OTHER_USER = re.compile(r"\buser\s+[\"']?(?!(?:is|was|has|and|or)\b)[\w.@-]+")

_STOP = """
    a about above after again against all also am an and any are aren as at be because been before being below between
    both but by can cannot could couldn d did didn do does doesn doing don down during each else ever few for from
    further had hadn has hasn have haven having he her here hers herself him himself his how i if in into is isn it its
    itself just ll m may me might mightn more most must mustn my myself no nor not now of off on once only or other our
    ours ourselves out over own per re s same shall shan she should shouldn so some such t than that the their theirs
    them themselves then there these they this those through to too under until up us ve very was wasn we were weren
    what when where which whether while who whom whose why will with won would wouldn you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_STOP.split())
"""Words that occur in any English text."""

_AGREEMENT = """
    yes yeah yep yup sure right exactly correct indeed true definitely absolutely ja genau oui si sim да はい 是 对 네
"""
YES = frozenset(_AGREEMENT.split())
_TALK = """
    hi hello hey thanks thank thx ok okay please great cool fine good nice bye goodbye morning evening afternoon night
    welcome cheers sorry well lot oh hm hmm lol wow hallo danke bitte merci bonjour hola gracias
"""
_SMALL_TALK = frozenset(stem(word) for word in _TALK.split())
_FRAME = "user prefer like want name live work goal call current plan person"
NEUTRAL = frozenset(stem(word) for word in _FRAME.split())
"""Stems that a claim about the user may add to what the user said."""


def subjects(text: str) -> frozenset[str]:
    """Return the stems of the words of a text, without stop words."""
    return frozenset(word if word in YES else stem(word) for word in words(text) if word not in STOP_WORDS)


def normal(text: str) -> str:
    """Return the text in lower case, with uniform quotes and single spaces, without blank lines."""
    return shown(text).casefold()


def shown(text: str) -> str:
    """Like `normal`, but keep upper and lower case."""
    text = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    return "\n".join(line for part in text.splitlines() if (line := " ".join(part.split())))


def flat(text: str) -> str:
    """Return the `normal` text on one line."""
    return " ".join(normal(text).split())


_QUOTES = str.maketrans(dict.fromkeys("‘’‚‛`´", "'") | dict.fromkeys("“”„‟«»", '"'))  # noqa: RUF001


def last_question(text: str) -> str:
    """Return the question at the end of a text; empty if there is none."""
    sentences = [sentence[0].strip() for sentence in _SENTENCE.finditer(text.strip())]
    sentences = [sentence for sentence in sentences if sentence]
    return sentences[-1] if sentences and _ASKS.search(sentences[-1]) else ""
