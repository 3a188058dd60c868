"""Normalizes text, splits it into sentences, and finds what in it is neither a question nor quoted. In any language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from turnwise.memory.longterm.recall.analyzer import is_common, language_of, stem, words


def normal(text: str) -> str:
    """Return the text in lower case, with uniform quotes and single spaces, without blank lines."""
    return shown(text).casefold()


def shown(text: str) -> str:
    """Like `normal`, but keep upper and lower case."""
    text = unicodedata.normalize("NFKC", text).translate(_MARKS)
    return "\n".join(line for part in text.splitlines() if (line := " ".join(part.split())))


def flat(text: str) -> str:
    """Return the `normal` text on one line."""
    return " ".join(normal(text).split())


_MARKS = str.maketrans(dict.fromkeys("‘’‚‛`´", "'") | dict.fromkeys("“”„‟«»「」『』", '"'))  # noqa: RUF001


def sentences_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each sentence of a `normal` text, in order. A line break ends a sentence."""
    for sentence in _SENTENCE.finditer(text):
        if sentence[0].strip():
            yield sentence.span()


def last_question(text: str) -> str:
    """Return the question at the end of a text; empty if there is none."""
    sentences = [text[start:stop].strip() for start, stop in sentences_of(text)]
    return sentences[-1] if sentences and _ASKS.search(sentences[-1]) else ""


def stated_in(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return a `normal` text with spaces instead of its questions and quoted parts, and what stands before questions.

    A question is a sentence with a question mark at its end. Quoted is what stands in quotation marks or a code fence,
    and a line that begins with ">". The second value has the start and stop of the part of each question before its
    last comma, which may be a statement: "I live in Graz, do you know a bar?".
    """
    text = _QUOTED.sub(_blank, text)
    parts, before, end = [], [], 0
    for start, stop in sentences_of(text):
        if _ASKS.search(text, start, stop):
            parts += [text[end:start], _VISIBLE.sub(" ", text[start:stop])]
            end = stop
            if commas := [comma.start() for comma in _COMMA.finditer(text, start, stop)]:
                before.append((start, commas[-1]))
    return "".join([*parts, text[end:]]), tuple(before)


def _blank(match: re.Match[str]) -> str:
    return _VISIBLE.sub(" ", match[0])


_VISIBLE = re.compile(r"[^\n]")
_QUOTED = re.compile(r"""'''.*?(?:'''|\Z)|"[^"]*"|^ *>[^\n]*""", re.DOTALL | re.MULTILINE)
_ENDS = ".!?。！？।؟՞፧⸮"  # noqa: RUF001 - the marks of other scripts
_SENTENCE = re.compile(rf"(?:[^{_ENDS}\n]|\.(?!\s|$))+(?:[{_ENDS}]+[\"')\]]*|\n|$)|[{_ENDS}\n]")
_ASKS = re.compile(r"[?？؟՞፧⸮][\"')\].!]*\s*$")  # noqa: RUF001
_COMMA = re.compile(r"[,;:](?=\s)|[、،؛]|\s[-–—]+\s")  # noqa: RUF001


def content(text: str) -> frozenset[str]:
    """Return the stems of the words of a text, without the words that are in any text of its language."""
    text_words = words(text)
    language = language_of(text_words)
    return frozenset(stem(word) for word in text_words if not is_common(word, language))
