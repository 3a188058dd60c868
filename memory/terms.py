"""Terms: the words of a query, as items are found by them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from turnwise.memory.thesaurus import related
from turnwise.memory.vocabulary import content, forms, lemma, stem, words

MAX_TERMS = 64
"""How many different words of a query count: the first."""


@dataclass(frozen=True, slots=True)
class Term:
    """A word of a query."""

    base: str
    """Without its endings."""
    forms: tuple[str, ...]
    """The word, and its irregular forms."""
    related: tuple[str, ...]
    """Words that speak of the same."""


def terms(query: str) -> list[Term]:
    """Return what a query asks about, no word twice. A query of nothing but stop words is taken by them."""
    found: dict[str, Term] = {}
    for word in content(query) or words(query):
        base = stem(lemma(word))
        if base not in found:
            found[base] = Term(base, forms(word), related(word))
        if len(found) == MAX_TERMS:
            break
    return list(found.values())


def stems_of(text: str, created_at: float = 0.0) -> set[str]:
    """Return the words that an item is found by, without their endings: those of its text, and of its day (UTC)."""
    return {stem(word) for word in (*words(text), *_day_of(created_at).split())}


def _day_of(created_at: float) -> str:
    try:
        day = datetime.fromtimestamp(created_at, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{day.year} {_MONTHS[day.month - 1]} {day.day} {_WEEKDAYS[day.weekday()]}" if created_at else ""


_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    "december",
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
