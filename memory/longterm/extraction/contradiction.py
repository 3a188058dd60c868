"""Detects facts that cannot both be true, so that the newer one replaces the older.

Two facts of one topic contradict each other in three cases, and in no other unless the model says so:

- both give different values of an attribute of which a person has one at a time (`attribute_of`): home, name,
  employer, birthday, a favourite;
- they differ only in a number or a date: "has two cats", "has three cats";
- one negates the other in the same words: "eats meat", "does not eat meat".

Attributes with several values do not contradict each other: likes, pets, allergies, languages. For any other attribute
no rule can know whether it has one value, and storing a fact for too long harms less than losing one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from turnwise.memory.longterm.extraction.clauses import flat
from turnwise.memory.longterm.extraction.evidence import tokens
from turnwise.memory.longterm.extraction.grammatical_person import LANGUAGES, word_set


def contradict(fact: str, other_fact: str, *, same_topic: bool) -> bool:
    """Return whether two facts cannot both be true.

    Args:
        same_topic: whether both have the same topic. If not, only comparisons that need no topic are made, since "moved
            to the sea" or "works at night" may be about anything.
    """
    first, second = attribute_of(fact), attribute_of(other_fact)
    if first and second and first[0] == second[0]:
        return first[1] != second[1] and (same_topic or not {"moved", "employer", "job"} & {*first, *second})
    return _denies(fact, other_fact) or (same_topic and _differ_in_number(fact, other_fact))


@lru_cache(maxsize=8192)
def attribute_of(text: str) -> tuple[str, str, str] | None:
    """Return the single-valued attribute that a fact is about, its value, and whether the user moved there.

    The third text is "moved" if the fact says that the user moved to the place, otherwise it is empty. Returns None if
    the fact is about no such attribute.
    """
    sentence = flat(text).strip(" .!")
    for language in LANGUAGES:
        sentence = re.sub(rf" (?:{'|'.join(language.adverbs & _NOW)})$", "", sentence)
    for name, form in _FORMS:
        if match := form.fullmatch(sentence):
            kind = match.groupdict().get("kind") or ""
            how = "moved" if _MOVED.search(sentence[: match.start("value")]) else ""
            return f"{name} {kind}".strip(), match["value"], how
    return None


_MOVED = re.compile(r"\b(?:moved|relocated) to $")
_NOW = word_set("now currently jetzt derzeit maintenant actuellement ahora adesso ora agora nu momenteel")
_SUBJECT = (
    r"(?:(?:(?:the|der|die|la|le|el|il|o|a|de) |l')?(?:user|(?:be)?nutzer(?:in)?|utilisat(?:eur|rice)|usuari[oa]"
    r"|usuári[oa]|utilizador|utente|gebruik(?:er|ster)|i|he|she|they|ich|er|sie|je|elle|yo|io|eu|ik|hij|zij|ze) )?"
    rf"(?:(?:{'|'.join(sorted(_NOW))}) )?"
)
_OWN = (
    r"(?:(?:the )?user's|my|his|her|their|meine?|seine?|ihre?|mon|ma|son|sa|mi|su|(?:il |la )?(?:mio|mia|suo|sua)"
    r"|(?:o |a )?(?:meu|minha|seu|sua)|mijn|zijn|haar)"
)
_IS = r"(?:is|ist|est|es|è|é)"
_HOME = (
    r"(?:(?:am |is )?(?:living|based)|lives?|resides?|wohnt?e?|leb(?:e|t)|woont?) in"
    r"|(?:have |has )?(?:moved|relocated) to|(?:vivo|vive|resido|reside) en|(?:moro|mora|vivo|vive) em"
    r"|(?:habite|vis|vit) (?:à|en|au)|(?:abito|abita|vivo|vive) (?:a|in)"
)
_PLACE = r"(?!(?:an?|the|my|his|her|their|our|eine?[mr]?|une?|un|una|uma?|een) )(?P<value>.+)"
"""Excludes "a flat": people who live in a flat live in a town as well."""
_THING = (
    r"birthday|date of birth|age|address|e-?mail(?: address)?|phone(?: number)?|job|employer|home ?town|time ?zone"
    r"|native language|mother tongue|nationality|height|weight|shoe size|favou?rite [\w ]+?|lieblings\w+|geburtstag"
)
_FORMS = [
    (name, re.compile(form))
    for name, form in (
        ("home", rf"{_SUBJECT}(?:{_HOME}) {_PLACE}"),
        ("home", rf"j'(?:habite|vis) (?:à|en|au) {_PLACE}"),
        ("name", rf"{_OWN} (?:name|nom|nombre|nome|naam) {_IS} (?P<value>.+)"),
        ("name", rf"{_SUBJECT}(?:(?:am|is) (?:called|named)|heiß(?:e|t)|heet) (?P<value>.+)"),
        ("employer", rf"{_SUBJECT}works? (?:at|for) (?P<value>.+)"),
        ("job", rf"{_SUBJECT}(?:works? as|arbeite(?:t)? als|travaille comme|trabaj[oa] como) (?P<value>.+)"),
        ("own", rf"{_OWN} (?P<kind>{_THING}) {_IS} (?P<value>.+)"),
    )
]
"""The attributes of which a person has one value, in the forms in which they are said."""


def _denies(fact: str, other_fact: str) -> bool:
    """Return whether one is the negation of the other, and otherwise the same word for word."""
    (first, denied), (second, is_denied) = _plain(fact), _plain(other_fact)
    return denied is not is_denied and len(first) == len(second) > 0 and all(map(_is_same, first, second))


@lru_cache(maxsize=8192)
def _plain(text: str) -> tuple[tuple[str, ...], bool]:
    """Return the words of a fact without its subject and negations, and whether it is negated."""
    sentence = re.sub(rf"^{_SUBJECT}", "", flat(text).strip(" .!"))
    sentence = re.sub(r"\bused to\b|\b(?:no|any) longer\b|\bany ?more\b", "not", sentence)
    words = [word for word in tokens(sentence) if word not in _IN_BETWEEN]
    return tuple(word for word in words if word not in _DENIALS), not _DENIALS.isdisjoint(words)


_DENIALS = word_set(
    """not no never nicht kein keine keinen keinem keiner nie ne n' pas plus jamais nunca non mai não niet geen nooit"""
)
_IN_BETWEEN = word_set(
    """a an the any do does der die das ein eine einen le la les l' un une des de du d' el los las il lo i o os as um
    uma het een"""
)


def _is_same(word: str, other_word: str) -> bool:
    return word == other_word or any(
        language.agrees(*pair) for language in LANGUAGES for pair in ((word, other_word), (other_word, word))
    )


def _differ_in_number(fact: str, other_fact: str) -> bool:
    """Return whether they differ only in numbers and dates. A number after a noun is a name: "boat 1"."""
    first, second = _plain(fact)[0], _plain(other_fact)[0]
    if len(first) != len(second) or _plain(fact)[1] is not _plain(other_fact)[1]:
        return False
    differing = [index for index, pair in enumerate(zip(first, second, strict=True)) if not _is_same(*pair)]
    return bool(differing) and all(_counts(first, index) and _counts(second, index) for index in differing)


def _counts(words: Sequence[str], index: int) -> bool:
    word = words[index]
    return word in _MONTHS or ((word.isdecimal() or word in _NUMBERS) and index + 1 < len(words))


_NUMBERS = word_set("one two three four five six seven eight nine ten eleven twelve zwei drei vier fünf sechs")
_MONTHS = word_set(
    """january february march april may june july august september october november december januar februar märz mai
    juni juli oktober dezember"""
)
