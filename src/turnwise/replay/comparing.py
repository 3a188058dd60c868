"""`Comparing`: how two answers to one turn differ."""

from __future__ import annotations

import inspect
import json
import math
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rapidfuzz import fuzz

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.values.records import replace
from turnwise.replay.grading import FunctionGrader, Grader
from turnwise.replay.records import REFUSED_CODES, REFUSED_REASONS, Answer, TurnReplay
from turnwise.replay.statistics import AMOUNTS, CHANGES, RATES

Embedding = Callable[[Sequence[str]], Sequence[Sequence[float]] | Awaitable[Sequence[Sequence[float]]]]
"""Returns a vector for each text."""

Refusal = Grader | Callable[[Answer], bool | Awaitable[bool | None] | None]
"""Says whether an answer is a refusal."""

_SORRY = r"i('m| am)( very| so| really)? sorry|sorry|i apologi[sz]e|my apologies|unfortunately"

_CANNOT = (
    r"(i|we)('m| am| are)? (can(no|')t|can not|won't be able to|won't|will not|unable to|not able to|"
    r"must decline|have to decline)"
)

_REFUSAL = re.compile(
    rf"^\W*({_SORRY})?\W*(but )?(as an ai( \w+){{0,3}}, )?({_CANNOT})\b(?! wait).{{0,40}}"
    r"\b(help|assist|do that|provide|comply|answer|discuss|share|with th(at|is)|fulfil|engage in|participate)"
    rf"|^\W*({_SORRY})\W*(but )?({_CANNOT}) (\w+ly )?"
    r"(give|offer|write|create|generate|produce|support|continue|recommend|advise|describe|explain)\b"
    rf"|^\W*(({_SORRY})\W*(but )?)?(i|we) (must|have to|need to) (\w+ly )?(decline|refuse)\b",
    re.IGNORECASE,
)
"""The beginning of an answer that declines, in English: see docs/guides/replay.md."""

_BEGINNING = 300
"""How many characters of an answer are its beginning."""

MAX_TEXT = 20_000
"""How much of two texts is compared for their similarity, in characters."""


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """Compares answers: text, fields of structured answers, and tool calls; and has graders grade them.

    Raises:
        InvalidInputError: two graders have the same name, or one has that of a measure.
    """

    embedding: Embedding | None = None
    """Makes vectors of texts, whose cosine is the similarity of two answers; if omitted, the share of
    characters that they have in common is."""
    graders: Sequence[Grader] = ()
    refusal: Refusal | None = None
    """Says whether an answer is a refusal: a function of it, or a grader, whose number is above 0 then. Where it says
    None, or fails, codes, stop reasons and English words decide, as they do without it."""
    normalise: Callable[[str], str] | None = None
    """What is done to texts before they count as the same; by default spaces, case, quotes and punctuation at the end
    make no difference."""

    def __post_init__(self) -> None:
        if not (self.refusal is None or callable(self.refusal) or hasattr(self.refusal, "grade")):
            raise InvalidInputError("refusal", shown(self.refusal), "pass a function of an Answer, or a grader")
        names = [grader.name for grader in self.graders]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidInputError("graders", shown(twice), "two graders have this name: rename one")
        if measure := next((name for name in names if name in (*AMOUNTS, *RATES, *CHANGES)), None):
            raise InvalidInputError("graders", shown(measure), "a measure has this name: rename the grader")

    async def change(self, was: Answer, now: Answer, *, is_json: bool = False) -> dict[str, Any]:
        """Return how an answer differs from the recorded one.

        `same`: whether nothing of the following differs. `text`: whether the texts are the same. `calls`: whether the
        tool calls are, in order. `similarity`: of the texts, from 0 to 1. `fields`: of structured answers, the paths of
        the fields that differ.
        """
        if now.similarity is not None:
            return _change_without_text(was, now, now.similarity)
        normalise = self.normalise or normalised
        fields = different_fields(was.text, now.text) if is_json else None
        is_same_text = was.text == now.text or (
            not fields if fields is not None else normalise(was.text) == normalise(now.text)
        )
        is_same_calls = call_sequence(was) == call_sequence(now)
        similarity = 1.0 if is_same_text else await self._similarity(was.text, now.text)
        changed: dict[str, Any] = {
            "same": is_same_text and is_same_calls and was.status == now.status,
            "text": is_same_text,
            "calls": is_same_calls,
            "similarity": similarity,
        }
        return changed if fields is None else {**changed, "fields": fields}

    async def _similarity(self, was: str, now: str) -> float:
        was, now = was[:MAX_TEXT], now[:MAX_TEXT]
        if self.embedding is None or not was or not now:
            return round(fuzz.ratio(was, now) / 100, 4)
        made = self.embedding([was, now])
        one, other = await made if inspect.isawaitable(made) else made
        product = sum(first * second for first, second in zip(one, other, strict=True))
        lengths = math.hypot(*one) * math.hypot(*other)
        return round(float(product / lengths), 4) if lengths else 0.0

    async def _refuses(self, replay: TurnReplay, answer: Answer, errors: dict[str, str]) -> Answer:
        decide: Any = self.refusal
        grader = decide if hasattr(decide, "grade") else FunctionGrader("refusal", lambda _, each: decide(each))
        grade = await _grade("refusal", grader, replay, answer, errors)
        return answer if grade is None else replace(answer, is_refusal=grade > 0)

    async def graded(self, replay: TurnReplay) -> TurnReplay:
        """Return the record with what `refusal` and the graders say of its answers."""
        errors: dict[str, str] = {}
        if self.refusal is not None:
            replay = replace(
                replay,
                recorded=await self._refuses(replay, replay.recorded, errors),
                answer=await self._refuses(replay, replay.answer, errors),
                floor=replay.floor and await self._refuses(replay, replay.floor, errors),
            )
        if not self.graders:
            return replace(replay, grader_errors=errors) if errors else replay
        grades: dict[str, float] = {}
        floor_grades: dict[str, float] = {}
        for grader in self.graders:
            name = grader.name
            if (grade := await _grade(name, grader, replay, replay.answer, errors)) is not None:
                grades[name] = grade
            if replay.floor and (grade := await _grade(name, grader, replay, replay.floor, errors)) is not None:
                floor_grades[name] = grade
        return replace(replay, grades=grades, floor_grades=floor_grades, grader_errors=errors)


async def _grade(name: str, grader: Grader, replay: TurnReplay, answer: Answer, errors: dict[str, str]) -> float | None:
    """Return the grade of an answer; None if it has none, or if the grader fails, which is noted in `errors`."""
    try:
        return await grader.grade(replay, answer)
    except Exception as error:  # noqa: BLE001 - a grader of the caller's may raise anything
        errors.setdefault(name, f"{type(error).__name__}: {error}".removesuffix(": ")[:_BEGINNING])
        return None


def _change_without_text(was: Answer, now: Answer, similarity: float) -> dict[str, Any]:
    """Return how an answer differs whose text was not kept, and of whose tool calls only the names were."""
    is_same_text = similarity == 1.0
    is_same_calls = [call.name for call in was.calls] == [call.name for call in now.calls]
    is_same = is_same_text and is_same_calls and was.status == now.status
    return {"same": is_same, "text": is_same_text, "calls": is_same_calls, "similarity": similarity}


def normalised(text: str) -> str:
    """Return a text in which spaces, case, quotes and punctuation at the end make no difference."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        text = re.sub("[\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}]", '"', text)
    text = text.casefold()
    return " ".join(text.split()).rstrip(".!? ")


def call_sequence(answer: Answer) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tool calls of an answer, in order, as they are compared: names and arguments."""
    return [(call.name, call.arguments) for call in answer.calls]


def different_fields(was: str, now: str) -> list[str]:
    """Return the paths of the fields in which two answers in JSON differ; `$` if one of them is no JSON."""
    try:
        return sorted(_differences("$", json.loads(was), json.loads(now)))
    except ValueError:
        return [] if was == now else ["$"]


def _differences(path: str, was: Any, now: Any) -> list[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        names = was.keys() | now.keys()
        return [
            place for name in names for place in _differences(f"{path}.{name}", was.get(name, ...), now.get(name, ...))
        ]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = enumerate(zip(was, now, strict=True))
        return [place for index, (one, other) in pairs for place in _differences(f"{path}[{index}]", one, other)]
    return [] if was == now and type(was) is type(now) else [path]


def is_refusal(answer: Answer) -> bool:
    """Return whether a model refused: by a code, a stop reason, or an answer that begins by declining in English."""
    if answer.code in REFUSED_CODES or answer.stop_reason in REFUSED_REASONS:
        return True
    return bool(_REFUSAL.match(answer.text[:_BEGINNING].replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")))
