"""Splits text of any script into words, and reduces words to stems."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from turnwise.memory.longterm.recall.irregular_forms import BASES

_ASCII_WORD = re.compile(r"[a-z0-9]+")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_LABEL = re.compile(r"\s*([^\W\d_][^\s:]{0,31}(?: [^\s:]{1,32}){0,2}):(?:\s|$)")

MAX_WORD = 64
"""Longer words are cut, since no query has them."""


def words(text: str) -> list[str]:
    """Return the words in order: case folded, without accents.

    Scripts that put no spaces between words give each character and each pair of neighbours, so that a part of a text
    is found.
    """
    if text.isascii():
        return [word[:MAX_WORD] for word in _ASCII_WORD.findall(text.lower())]
    return list(_words(text))


def months_in_full(text_words: Sequence[str]) -> Sequence[str]:
    """Return the words, with the full names of months that are abbreviated beside a number, as in "5 Jan"."""
    if _MONTHS.keys().isdisjoint(text_words):
        return text_words
    befores, afters = ["", *text_words[:-1]], [*text_words[1:], ""]
    return [
        _MONTHS.get(word, word) if before[:1].isdigit() or after[:1].isdigit() else word
        for word, before, after in zip(text_words, befores, afters, strict=True)
    ]


MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    "december",
)
_MONTHS = {"sept": "september"} | {month[:3]: month for month in MONTHS if month != "may"}


def speaker_words(text: str) -> list[str]:
    """Return the words of the name before the first colon, as in "Sarah: I moved to Graz"; none if there is none."""
    match = _LABEL.match(text[:128])
    return words(match[1]) if match else []


def asks(text: str) -> bool:
    """Return whether the text ends with a question."""
    return text.rstrip().endswith(_QUESTION_MARKS)


_QUESTION_MARKS = ("?", "\uff1f", "\u061f")


def is_dense(char: str) -> bool:
    """Return whether the character is of a script that packs words: Thai to Khmer, kana, Han, Hangul."""
    code = ord(char)
    return code >= _DENSE[0][0] and any(first <= code <= last for first, last in _DENSE)


def _words(text: str) -> Iterator[str]:
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
    letters: list[str] = []
    for char in unicodedata.normalize("NFC", _ACCENTS.sub("", folded)) + " ":
        kind = unicodedata.category(char)[0]
        if kind in "LN" or (letters and kind == "M"):  # in many scripts vowels are marks
            letters.append(char)
        elif letters:
            yield from _parts("".join(letters))
            letters = []


def _parts(run: str) -> Iterator[str]:
    """Cut a run of letters where it goes from a script with spaces to one without."""
    if run.isascii():
        yield run[:MAX_WORD]
        return
    start, dense = 0, is_dense(run[0])
    for position in range(1, len(run) + 1):
        if position < len(run) and is_dense(run[position]) == dense:
            continue
        part = run[start:position]
        if dense:
            yield from part
            yield from map("".join, pairwise(part))
        else:
            yield part[:MAX_WORD]
        start, dense = position, not dense


_DENSE = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x31FF),
    (0x3400, 0x9FFF),
    (0xAC00, 0xD7FF),
    (0x20000, 0x3FFFF),
)


# Languages: that of a text in Latin letters by its commonest words, else by its script

ENGLISH, GERMAN = "english", "german"

_COMMON = {
    ENGLISH: "a an the of and to in is you that it he was were for on are with as his they at be this have has had "
    "from i what we my do does did how why when where who which",
    GERMAN: "der die das und ist nicht ich ein eine zu den mit von auf fur wie wo sie er es wir auch mein meine hat",
    "french": "le la les des et est que je un une pour dans pas qui sur du au mon ma mes vous nous avec elle il ou",
    "spanish": "el la los las de y que es en un una por con no para mi su se lo como donde cuando yo te al del",
    "italian": "il lo la gli di e che un una per con non sono mi si come dove quando ho mio mia del della ci",
    "portuguese": "o a os as de e que um uma para com nao eu meu minha do da em por se como onde quando ao",
    "dutch": "de het een en van ik is niet dat die in te op mijn met voor zijn hij ze wat waar hoe ook er",
    "swedish": "och att det som en jag ar inte pa for med den har till min mitt var hur ett om du vi",
    "danish": "og det at en jeg er ikke pa til den med der har min mit hvad hvor et om du vi af",
    "finnish": "ja on ei se han mina sina mita missa kun oli ole etta mutta minun joka myos kuin ne",
    "hungarian": "a az es nem hogy egy van ez en te mi meg is volt de mit hol mikor vagy csak",
    "romanian": "si de la nu este un o eu tu ce cu pe in din mai sa am care unde cand pentru",
    "turkish": "ve bir bu da de ne icin ben sen cok mi var degil gibi ama daha benim nerede",
    "polish": "i w nie to sie na jest ze do z co jak mam moj moja gdzie kiedy ja ty jestem",
}
"""Very common words of each language, in the form that `words` returns."""

_TALK = """
    hi hello hey thanks thank thx ok okay please sorry welcome cheers bye goodbye yes yeah yep no nope sure oh ah hm hmm
    lol haha wow hallo danke bitte ja nein merci bonjour salut oui non hola gracias adios si ciao grazie prego
    obrigado ola helpful good great nice cool fine well lot very really just anyway
"""
_SMALL_TALK = frozenset(_TALK.split())
"""Words of greetings and thanks, which carry no content."""

_LANGUAGES: dict[str, list[str]] = {}
for _language, _text in _COMMON.items():
    for _word in _text.split():
        _LANGUAGES.setdefault(_word, []).append(_language)

_SCRIPTS = (
    (0x0370, 0x03FF, "greek"),
    (0x0400, 0x04FF, "russian"),
    (0x0530, 0x058F, "armenian"),
    (0x0600, 0x06FF, "arabic"),
    (0x0900, 0x097F, "hindi"),
    (0x0B80, 0x0BFF, "tamil"),
)
_OF_SCRIPTS = frozenset(language for _, _, language in _SCRIPTS)


def language_of(text: Sequence[str]) -> str:
    """Return the language of the words of a text, as snowball names it: by its script, or its commonest words.

    English if there are too few of those.
    """
    counts: dict[str, int] = {}
    for word in text:
        script = None if word.isascii() else _language_of_script(word)
        for language in (script,) if script else _LANGUAGES.get(word, ()):
            counts[language] = counts.get(language, 0) + 1
    if not counts:
        return ENGLISH
    best = max(counts, key=lambda language: (counts[language], language == ENGLISH))
    return best if counts[best] > 1 or best in _OF_SCRIPTS else ENGLISH


def is_common(word: str, language: str) -> bool:
    """Return whether the word is very common in the language, or a word of greetings and thanks."""
    return word in _SMALL_TALK or language in _LANGUAGES.get(word, ())


def stems(text: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the search keys of each word of a text: its stem in English and its stem in the text's language.

    A word that is not of Latin letters has the stem of its script's language. So a text that is too short for its
    language to be known shares stems with one whose language is known.
    """
    language = language_of(text)
    return [stems_of(word, language) for word in text]


@lru_cache(maxsize=200_000)
def stems_of(word: str, language: str) -> tuple[str, ...]:
    """Return the search keys of a word of a text in this language; see `stems`."""
    if word.isascii():
        languages = (ENGLISH,) if language == ENGLISH else (ENGLISH, language)
        own = [_stem(word, code) for code in languages]
        return tuple(dict.fromkeys((_stem(BASES.get(word, word), ENGLISH), *own)))
    return (_stem(word, _language_of_script(word) or language),)


def stem(word: str, language: str = ENGLISH) -> str:
    """Return the word without its ending, by the rules of a language."""
    return _stem(word, language)


@lru_cache(maxsize=200_000)
def _stem(word: str, language: str) -> str:
    if word.isdigit() or len(word) < 3:  # noqa: PLR2004 - too short to have an ending
        return word
    with _lock:
        if language not in _stemmers:
            import snowballstemmer  # type: ignore[import-untyped]  # 39 modules, which sessions without memories need not load

            _stemmers[language] = snowballstemmer.stemmer(language)
        return str(_stemmers[language].stemWord(word))


_stemmers: dict[str, Any] = {}
_lock = threading.Lock()
"""Held while a stemmer is used, since stemmers are stateful."""


def _language_of_script(word: str) -> str | None:
    code = ord(word[0])
    return next((language for first, last, language in _SCRIPTS if first <= code <= last), None)
