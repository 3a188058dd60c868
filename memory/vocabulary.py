"""Words of a text, as the indexes of long-term memory see them: in any script, with what English adds."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

_ASCII_WORD = re.compile(r"[a-z0-9]+")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_LABEL = re.compile(r"\s*([^\W\d_][^\s:]{0,31}(?: [^\s:]{1,32}){0,2}):(?:\s|$)")
_MONTH_OF_MAY = re.compile(r"(?<=\S )May\b|\bMay (?=\d)")

MAX_WORD = 64
"""Longer ones are cut: nobody asks for them, and FTS5 stems none of them."""


def words(text: str) -> list[str]:
    """Return the words in order: case folded, without accents.

    Scripts that put no spaces between words give each character and each pair of neighbours, so that a part of what
    was written is found.
    """
    if text.isascii():
        return [word[:MAX_WORD] for word in _ASCII_WORD.findall(text.lower())]
    return list(_words(text))


def label(text: str) -> list[str]:
    """Return the words of the name before the first colon, as in "Sarah: I moved to Graz"; none if there is none."""
    found = _LABEL.match(text[:128])
    return words(found[1]) if found else []


def content(text: str) -> list[str]:
    """Return the words that say what the text is about, without those that any English text has."""
    stops = STOP_WORDS - {"may"} if _MONTH_OF_MAY.search(text) else STOP_WORDS
    return [word for word in words(text) if word not in stops]


def lemma(word: str) -> str:
    """Return what an irregular form is a form of, such as "go" for "went"; another word is itself."""
    return _LEMMAS.get(word, word)


def forms(word: str) -> tuple[str, ...]:
    """Return the word and the irregular forms of what it is a form of: "went" gives it, "go" and "gone"."""
    base = lemma(word)
    return tuple(dict.fromkeys((word, base, *_FORMS.get(base, ()))))


def _words(text: str) -> Iterator[str]:
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
    found: list[str] = []
    for char in unicodedata.normalize("NFC", _ACCENTS.sub("", folded)) + " ":
        kind = unicodedata.category(char)[0]
        if kind in "LN" or (found and kind == "M"):  # in many scripts vowels are marks
            found.append(char)
        elif found:
            yield from _parts("".join(found))
            found = []


def _parts(run: str) -> Iterator[str]:
    """Cut a run of letters where it goes from a script with spaces to one without."""
    if run.isascii():
        yield run[:MAX_WORD]
        return
    start, dense = 0, _is_dense(run[0])
    for at in range(1, len(run) + 1):
        if at < len(run) and _is_dense(run[at]) == dense:
            continue
        part = run[start:at]
        if dense:
            yield from part
            yield from map("".join, pairwise(part))
        else:
            yield part[:MAX_WORD]
        start, dense = at, not dense


def _is_dense(char: str) -> bool:
    """Return whether the character is of a script that packs words: Thai to Khmer, kana, Han, Hangul."""
    code = ord(char)
    return any(first <= code <= last for first, last in _DENSE)


_DENSE = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x31FF),
    (0x3400, 0x9FFF),
    (0xAC00, 0xD7FF),
    (0x20000, 0x3FFFF),
)


# Porter's stemmer (Porter, 1980), as SQLite's FTS5 has it: of the endings that fit, the longest counts

_STEP_2 = {
    "ational": "ate", "ization": "ize", "iveness": "ive", "fulness": "ful", "ousness": "ous", "tional": "tion",
    "biliti": "ble", "entli": "ent", "ousli": "ous", "ation": "ate", "alism": "al", "aliti": "al", "iviti": "ive",
    "enci": "ence", "anci": "ance", "izer": "ize", "logi": "log", "alli": "al", "ator": "ate", "bli": "ble", "eli": "e",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize", "al", "er",
    "ic", "ou",
)  # fmt: skip


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the word without its English endings; one that is not of plain letters is itself."""
    if not (2 < len(word) <= MAX_WORD and word.isascii() and word.isalpha()):  # noqa: PLR2004 - as short as it stems
        return word
    word = _undo_participle(_undo_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _drop(_replace(_replace(word, _STEP_2), _STEP_3))
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _is_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _undo_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _undo_participle(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for ending in ("ed", "ing"):
        rest = word.removesuffix(ending)
        if rest != word and _has_vowel(rest):
            if rest.endswith(("at", "bl", "iz")):
                return rest + "e"
            if len(rest) > 1 and rest[-1] == rest[-2] and rest[-1] not in "aeioulsz":
                return rest[:-1]
            return rest + "e" if _measure(rest) == 1 and _is_short(rest) else rest
    return word


def _replace(word: str, by: dict[str, str]) -> str:
    for ending, other in by.items():
        if word.endswith(ending):
            rest = word[: -len(ending)]
            return rest + other if _measure(rest) else word
    return word


def _drop(word: str) -> str:
    if word.endswith("ion") and word[-4:-3] in ("s", "t"):
        return word[:-3] if _measure(word[:-3]) > 1 else word
    for ending in _STEP_4:
        if word.endswith(ending):
            rest = word[: -len(ending)]
            return rest if _measure(rest) > 1 else word
    return word


def _shape(word: str) -> str:
    """Return the word's consonants and vowels as `c` and `v`."""
    shape = ""
    for char in word:
        vowel = char in "aeiou" or (char == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _is_short(word: str) -> bool:
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"


# What English adds

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
"""What any English text has. A query's other words say what it is about."""

# one group of forms between two bars, the first what the others are forms of
_IRREGULAR = """
    arise arose arisen|awake awoke awoken|bear bore borne|beat beaten|become became|begin began begun|bend bent|
    bind bound|bite bit bitten|bleed bled|blow blew blown|break broke broken|breed bred|bring brought|build built|
    burn burnt|buy bought|catch caught|choose chose chosen|cling clung|come came|creep crept|deal dealt|dig dug|
    draw drew drawn|dream dreamt|drink drank drunk|drive drove driven|eat ate eaten|fall fell fallen|feed fed|
    feel felt|fight fought|find found|flee fled|fly flew flown|forbid forbade forbidden|forget forgot forgotten|
    forgive forgave forgiven|freeze froze frozen|get got gotten|give gave given|go went gone|grind ground|
    grow grew grown|hang hung|hear heard|hide hid hidden|hold held|keep kept|kneel knelt|know knew known|lay laid|
    lead led|lean leant|learn learnt|leave left|lend lent|light lit|lose lost|make made|mean meant|meet met|pay paid|
    ride rode ridden|ring rang rung|rise rose risen|run ran|say said|see saw seen|seek sought|sell sold|send sent|
    sew sewn|shake shook shaken|shine shone|shoot shot|show shown|shrink shrank shrunk|sing sang sung|sink sank sunk|
    sit sat|sleep slept|slide slid|speak spoke spoken|spend spent|spin spun|spring sprang sprung|stand stood|
    steal stole stolen|stick stuck|sting stung|stink stank stunk|strike struck|strive strove striven|swear swore sworn|
    sweep swept|swell swollen|swim swam swum|swing swung|take took taken|teach taught|tear tore torn|tell told|
    think thought|throw threw thrown|understand understood|undo undid undone|wake woke woken|wear wore worn|
    weave wove woven|weep wept|win won|wind wound|write wrote written|
    child children|man men|woman women|person people|foot feet|tooth teeth|mouse mice|goose geese|life lives|
    wife wives|knife knives|leaf leaves|half halves|shelf shelves|wolf wolves|loaf loaves|thief thieves|
    mom mum mother mommy|dad father daddy|tv television|photo photos photograph pic|bike bicycle|phone telephone
"""
_GROUPS = [group.split() for group in _IRREGULAR.replace("\n", "").split("|")]
_LEMMAS = {form: group[0] for group in _GROUPS for form in group[1:]}
_FORMS = {group[0]: tuple(group[1:]) for group in _GROUPS}
