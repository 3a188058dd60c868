"""Checks whether a sentence of the user supports a claim about the user.

A claim is supported only if it is the user's sentence in the third person: it has the same words in the same order,
with "the user" for "I" and the matching form of the verb. So a claim that differs in negation, subject, tense or
certainty is never supported, whichever words a language has for these. A claim may leave out words that do not change
the meaning, and the rest of a sentence if no word in it negates or limits the statement. A claim in other words, or in
a language that `grammatical_person` does not have, is not supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from turnwise.memory.longterm.extraction.grammatical_person import BLOCKS, LANGUAGES, ORDERS, TAKES_BACK, Language

MOST_WORDS = 120
"""The maximum number of words of a sentence, and of a claim. Longer ones are not compared."""


def supports(sentence: str, claim: str) -> bool:
    """Return whether the sentence alone supports the claim. The caller must check the text around the sentence.

    Args:
        sentence: one sentence, normalized by `clauses.flat`.
        claim: the claim, normalized in the same way.
    """
    if sentence.startswith('"') or len(sentence) > _MOST_CHARS:
        return False
    return _supports_chinese(sentence, claim) or any(_supports(language, sentence, claim) for language in LANGUAGES)


def _supports_chinese(sentence: str, claim: str) -> bool:
    """Return whether the claim is the sentence with another person. Chinese verbs have no forms, so no words change."""
    statement = _CHINESE_FRONT.sub("", sentence).strip(_CHINESE_ENDS)
    return statement.startswith("我") and statement.replace("我", "用户") == claim.strip(_CHINESE_ENDS)


_CHINESE_FRONT = re.compile(r"(?:(?:你好|您好|请记住|记住)[,:!。\s]*)+")
_CHINESE_ENDS = " .!。"


def supports_instruction(sentence: str, claim: str) -> bool:
    """Return whether the sentence is this instruction, word for word."""
    (english, *_) = LANGUAGES
    order, claimed_order = (_PLEASE.sub("", _without_front(english, text)) for text in (sentence, claim))
    return ORDERS.match(order) is not None and _bare(english, order) == _bare(english, claimed_order)


_PLEASE = re.compile(r",? please[.!]?$")


def yes_supports(question: str, claim: str) -> bool:
    """Return whether the answer "yes" to the question supports the claim."""
    (english, *_) = LANGUAGES
    statement = _ASKS_YOU.sub(lambda match: f"i {_OF_YOU[match[1]]} ", _without_front(english, question), count=1)
    statement = re.sub(r"\byour\b", "my", statement)
    return (
        statement.startswith("i ")
        and " you" not in statement
        and supports(" ".join(statement.rstrip("?").split()), claim)
    )


_ASKS_YOU = re.compile(r"^(are|do|have|can) you ")
_OF_YOU = {"are": "am", "do": "", "have": "have", "can": "can"}
_MOST_CHARS = 2000


@lru_cache(maxsize=2048)
def tokens(text: str) -> tuple[str, ...]:
    """Return the words and marks of a flat text, with contractions expanded."""
    if "'" in text or "cannot" in text:
        for pattern, expansion in _CONTRACTED:
            text = pattern.sub(expansion, text)
    return tuple(_TOKEN.findall(text))


_CONTRACTED = [
    (re.compile(pattern), expansion)
    for pattern, expansion in (
        (r"\bcan(?:'t|not)\b", "can not"),
        (r"\bwon't\b", "will not"),
        (r"n't\b", " not"),
        (r"\bi'm\b", "i am"),
        (r"\bmy name's\b", "my name is"),
        (r"\b(i|they)'ve\b", r"\1 have"),
        (r"\b(i|they|he|she)'ll\b", r"\1 will"),
        (r"\b(he|she)'s\b", r"\1 is"),
        (r"\bthey're\b", "they are"),
        (r"\b(j|n|l|d|qu|m|s|c|t|un|dell|nell|all)'(?=\w)", r"\1' "),
    )
]
_TOKEN = re.compile(r"[^\W_]+(?:['-][^\W_]+)*'?|[^\w\s]")


def _supports(language: Language, sentence: str, claim: str) -> bool:
    text = _without_front(language, sentence)
    claim_words = _bare(language, claim)
    if not claim_words or len(claim_words) > MOST_WORDS:
        return False
    for words in _variants(language, _bare(language, text)):
        if len(words) > MOST_WORDS:
            continue
        for start in _starts(language, words):
            if _says(language, words[start:], claim_words):
                return True
    return False


def _without_front(language: Language, sentence: str) -> str:
    sentence = sentence.strip(" ¡*•")
    while match := language.before.match(sentence):
        sentence = sentence[match.end() :]
    return sentence


def _bare(language: Language, text: str) -> list[str]:
    words = [token for token in tokens(text) if token not in language.articles]
    while words and words[-1] in _ENDS:
        words.pop()
    return words


_ENDS = frozenset(".!…。")


def _variants(language: Language, words: list[str]) -> Iterator[list[str]]:
    yield words
    if language.name != "en":
        return
    if words[:3] == ["my", "name", "is"]:
        for verb in ("called", "named"):
            yield ["i", "am", verb, *words[3:]]
    elif words[:2] == ["call", "me"]:
        for verb in ("want", "like", "prefer"):
            yield ["i", verb, "to", "be", "called", *words[2:]]
    elif words[:3] == ["i", "am", "called"]:
        yield ["my", "name", "is", *words[3:]]


def _starts(language: Language, words: Sequence[str]) -> Iterator[int]:
    """Yield where the sentence, or an independent part of it, begins with the speaker as its subject."""
    firsts = language.selves | language.possessives
    if words and (words[0] in firsts or language.drops_subjects):
        yield 0
    if not words or words[0] not in firsts:
        return
    for index in range(2, len(words)):
        if words[index] in TAKES_BACK or words[index] in _OPENS:
            return
        if words[index] in firsts and words[index - 1] in _JOINS:
            yield index


_JOINS = frozenset(["and", ",", ";", "und", "et", "y", "e", "en"])
_OPENS = frozenset(["that", "who", "which", '"', ":", "dass", "que", "che", "dat"])


def _says(language: Language, words: Sequence[str], claim: Sequence[str]) -> bool:
    """Return whether a clause with the speaker as its subject says what the claim says."""
    if words[0] in language.possessives:
        return language.agrees(words[0], claim[0]) and _follows(language, words[1:], claim[1:], is_listing=False)
    rest = claim[1:] if claim[0] in language.users or claim[0] in language.selves & {words[0]} else claim
    if words[0] in language.selves:
        return bool(rest) and _follows(language, _without_adverbs(language, words[1:], rest[0]), rest)
    # Without a subject, only a verb form that differs between the persons shows who it is about.
    index = 0
    while index < min(len(words), len(rest)) and words[index] == rest[index] and words[index] in language.nots:
        index += 1
    if (
        index >= min(len(words), len(rest))
        or words[index] == rest[index]
        or not language.is_third(words[index], rest[index])
    ):
        return False
    return _follows(language, words[index:], rest[index:])


def _without_adverbs(language: Language, words: Sequence[str], word: str = "") -> Sequence[str]:
    """Return the words without leading adverbs, stopping at `word`."""
    while words and words[0] in language.adverbs and words[0] != word:
        words = words[1:]
    return words


def _follows(language: Language, words: Sequence[str], claim: Sequence[str], *, is_listing: bool = True) -> bool:
    """Return whether the claim has these words, in order.

    The claim may leave out adverbs, a harmless end, and with `is_listing` earlier parts of one enumeration.
    """
    index = 0
    for number, word in enumerate(claim):
        while index < len(words) and words[index] in language.adverbs and not language.agrees(words[index], word):
            index += 1
        if index < len(words) and language.agrees(words[index], word):
            index += 1
            continue
        if word in language.adverbs:
            return False
        if not (is_listing and number and (later_index := _behind_equals(language, words, index, word))):
            return False
        index = later_index + 1
        is_listing = False
    return _is_harmless(language, words[index:])


def _behind_equals(language: Language, words: Sequence[str], start: int, word: str) -> int:
    """Return the position of `word` as a later part of an enumeration, if the claim skips the earlier parts.

    Returns 0 otherwise.
    """
    begins = start
    for index in range(start, min(start + _ROW, len(words))):
        if words[index] == word and index > start and words[index - 1] in language.links:
            return index
        if words[index] in language.links:
            begins = index + 1
        elif words[index] in BLOCKS or index - begins >= _EQUAL:
            return 0
    return 0


_ROW, _EQUAL = 10, 2
"""The maximum number of words of an enumeration, and of each part of it: a longer part may be a clause."""


def _is_harmless(language: Language, rest: Sequence[str]) -> bool:
    """Return whether the end of a sentence, which a claim leaves out, does not change the meaning of the rest."""
    rest = _without_adverbs(language, rest)
    if not rest:
        return True
    if rest[-1] in _ASKS:
        return rest[0] == "," and len(rest) > _TAG and bool(_REQUEST.match(" ".join(rest[1:])))
    if TAKES_BACK.intersection(rest):
        return False
    # More words after a comma may name another speaker: "I am Groot, quoth the tree".
    is_apposition = rest[0] == "," and len(rest) == _APPOSITION
    return is_apposition or language.tails.match(" ".join(rest).replace(" ,", ",")) is not None


_ASKS = frozenset("?؟？")  # noqa: RUF001 - question marks of other scripts
_TAG = 4
_APPOSITION = 2
_REQUEST = re.compile(r"(?:and |so )?(?:(?:can|could|would|will|do) you|what|which|where|how|who)\b")
