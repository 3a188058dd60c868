"""Parses a model's answer into candidate facts, and lists the reasons for which a candidate may be refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from turnwise.memory.longterm.memory_types import MemoryType

EXTRACTED = tuple(kind for kind in MemoryType if kind is not MemoryType.PLANNER_NOTE)
"""The types of facts. What a user says is no note of an engine's, and replaces none."""


class Action(StrEnum):
    """The action that the model proposes for a fact."""

    ADD = "add"
    UPDATE = "update"
    SUPERSEDE = "supersede"
    IGNORE = "ignore"


class Candidate(BaseModel):
    """A candidate fact in the model's answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    text: str
    type: str
    evidence: str
    topic: str | None = None
    name: str | None = None
    aliases: tuple[str, ...] = ()
    action: Action = Action.ADD
    of: tuple[str, ...] = ()
    """The short names of the known facts that the action is about."""

    @field_validator("name", mode="before")
    @classmethod
    def _one_name(cls, name: object) -> str | None:
        """Drop an invalid name; the fact stays without one."""
        return next(iter(_names([name])), None)

    @field_validator("aliases", "of", mode="before")
    @classmethod
    def _some_names(cls, names: object) -> tuple[str, ...]:
        return _names(names)[:MOST_NAMES] if isinstance(names, list | tuple) else ()


MOST_NAMES = 8
"""The maximum number of aliases of a fact, and of known facts that it is about, that are read from an answer."""

_NAME_CHARS = 80


def _names(values: Iterable[object]) -> tuple[str, ...]:
    names = (" ".join(name.split()) for name in values if isinstance(name, str))
    return tuple(dict.fromkeys(name for name in names if 0 < len(name) <= _NAME_CHARS))


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    facts: list[Any]


class Refusal(StrEnum):
    """Why a candidate fact was refused."""

    MALFORMED = "malformed"
    UNKNOWN_TYPE = "unknown_type"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    NO_EVIDENCE = "no_evidence"
    """The quoted evidence is not in the user's messages."""
    NOT_STATED = "not_stated"
    """The quoted evidence is a question, or quotes somebody."""
    UNSUPPORTED = "unsupported"
    """The quoted evidence does not state the fact, and is too long to be kept instead."""
    TOO_MANY = "too_many"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Size limits of facts and answers."""

    max_facts: int = 16
    """The maximum number of facts of one answer."""
    min_chars: int = 8
    """The minimum number of characters of a fact. A wide character counts as two."""
    max_chars: int = 400
    max_shown_chars: int = 60_000
    """The maximum number of characters of messages in a request. The longest messages are cut first."""


def parse(answer: str) -> list[Candidate | Refusal]:
    """Return the candidate facts of an answer in order, with a `Refusal` for each malformed one.

    Raises:
        ValueError: the answer is not JSON of the requested shape, or all of its facts are malformed; the message says
                why.
    """
    fenced = _FENCED.fullmatch(answer.strip())
    parsed = _Answer.model_validate(pydantic_core.from_json(fenced[1] if fenced else answer, allow_inf_nan=False))
    read = [_read(fact) for fact in parsed.facts]
    if read and all(fact is Refusal.MALFORMED for fact in read):
        raise ValueError(f"none of its {len(read)} facts has the requested shape")
    return read


_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


def _read(fact: object) -> Candidate | Refusal:
    try:
        read = Candidate.model_validate(fact)
    except ValidationError:
        return Refusal.MALFORMED
    return read.model_copy(update={"text": " ".join(read.text.split()), "topic": _topic(read.topic)})


def _topic(topic: str | None) -> str | None:
    topic = " ".join((topic or "").split())
    return topic if 0 < len(topic) <= _TOPIC_CHARS else None


_TOPIC_CHARS = 40
