"""Structured answers: the JSON schema that a run's answer must fit, and the check of the answer.

The run's record has the schema, not the class, since a schema can be stored, encrypted and exported, and is there after
the process is killed. The class stays in the caller's process, where `Turn.parsed` makes an instance of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import pydantic_core
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from turnwise.memory.conversation.blocks import Block, Text, ToolResult, ToolUse, User
from turnwise.memory.values.frozen_json import FrozenDict, freeze

if TYPE_CHECKING:
    from jsonschema import FormatChecker  # type: ignore[import-untyped]

ANSWER_TOOL = "final_answer"
"""The name of the tool by which a model answers, for models that get the schema as a tool."""

MAX_RETRIES = 100
"""The most times that an answer may be sent back to the model."""

_SENT_BACK = "sent_back_"
"""The prefix of the call ids that mark an answer which was sent back to the model."""

_MOST_ERRORS, _MOST_CHARS = 10, 300
"""The most errors of an answer that are reported, and the most characters of each."""

_FORMATS: Mapping[str, Any] = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
}
"""JSON schema formats of texts, and the types that pydantic reads them as."""


@dataclass(frozen=True, kw_only=True)
class OutputType:
    """The type of a run's answer: a JSON object that fits `schema`."""

    schema: FrozenDict
    """Of an object."""
    retries: int | None
    """The most times that an answer which does not fit is sent back, from 0. None: answers are not checked."""

    @classmethod
    def read(cls, record: Mapping[str, Any] | None) -> OutputType | None:
        """Return the output type that `record` wrote; None if `record` is None."""
        return cls(schema=freeze(record["schema"]), retries=record["retries"]) if record else None

    @staticmethod
    def is_record(value: Mapping[str, Any]) -> bool:
        """Return whether a value, such as one of an imported archive, has the form that `record` writes."""
        retries = value.get("retries")
        is_count = isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries <= MAX_RETRIES
        return value.keys() == {"schema", "retries"} and isinstance(value["schema"], Mapping) and is_count

    @property
    def record(self) -> FrozenDict:
        """Return the output type as a JSON object, for `RunRecord.output`."""
        return FrozenDict({"schema": self.schema, "retries": self.retries})

    def errors(self, text: str) -> str | None:
        """Return what is wrong with an answer, a line for each error, 10 at most; None if it fits."""
        try:
            answer = pydantic_core.from_json(object_text(text), allow_inf_nan=False)
        except ValueError as error:
            return f"the answer is no JSON object: {error}"[:_MOST_CHARS]
        from jsonschema.exceptions import best_match  # type: ignore[import-untyped]

        try:
            flaws = list(_validator(self.schema).iter_errors(answer))
        except RecursionError:
            return "the answer is nested too deeply"
        return _lines((error.absolute_path, error.message) for error in (best_match([flaw]) for flaw in flaws)) or None


def read_answer(model: Any, text: str) -> Any:
    """Return an answer as an instance of a pydantic model, or of another type that `TypeAdapter` accepts.

    Raises:
        ValueError: the answer does not fit; lists up to 10 errors and their places.
    """
    try:
        return TypeAdapter(model).validate_json(object_text(text))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        raise ValueError(_lines((detail["loc"], detail["msg"]) for detail in errors)) from error


def object_text(text: str) -> str:
    """Return the JSON object within a text. Some models write it in a code fence or between other words."""
    first, last = text.find("{"), text.rfind("}")
    return text[first : last + 1] if 0 <= first < last else text


def sent_back(answer: Sequence[Block], errors: str, call_id: str) -> tuple[list[Block], ToolResult]:
    """Return a rejected answer as a tool call, and its errors as the result of that call.

    In this form every provider accepts the rejected answer in a history, and it is not part of the final answer's text.
    `as_said` converts it back to text for requests.
    """
    text = "".join(block.text for block in answer if isinstance(block, Text))
    other_blocks = [block for block in answer if not isinstance(block, Text)]
    call_id = f"{_SENT_BACK}{call_id}"
    request = f"Your answer does not fit what was asked for:\n{errors}\nGive the whole answer again, corrected."
    use = ToolUse(call_id=call_id, name=ANSWER_TOOL, input=FrozenDict(text=text))
    return [*other_blocks, use], ToolResult(call_id=call_id, text=request, is_error=True)


def is_sent_back(block: Block) -> bool:
    """Return whether a block is part of an answer that was sent back."""
    return isinstance(block, ToolUse | ToolResult) and block.call_id.startswith(_SENT_BACK)


def as_said(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks with each answer that was sent back as text, followed by the errors as a user's text."""
    shown_blocks: list[Block] = []
    for block in blocks:
        if isinstance(block, ToolUse) and is_sent_back(block):
            shown_blocks.append(Text(text=str(block.input.get("text", ""))))
        elif isinstance(block, ToolResult) and is_sent_back(block):
            shown_blocks.append(User(text=block.text))
        else:
            shown_blocks.append(block)
    return shown_blocks


def _lines(errors: Iterable[tuple[Iterable[object], str]]) -> str:
    lines = [f"{'.'.join(map(str, path)) or 'the object'}: {message}"[:_MOST_CHARS] for path, message in errors]
    more = [f"and {len(lines) - _MOST_ERRORS} more"] if len(lines) > _MOST_ERRORS else []
    return "\n".join([*lines[:_MOST_ERRORS], *more])


@functools.lru_cache(maxsize=16)
def _validator(schema: FrozenDict) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend  # type: ignore[import-untyped]

    validator = extend(Draft202012Validator, {"pattern": check_pattern})
    return validator(without_dialect(_plain(schema)), format_checker=_formats())


def without_dialect(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without `$schema`, by which jsonschema would take a validator that does not know `check_pattern`.

    It looks there whenever a reference leads to the schema itself.
    """
    return {name: value for name, value in schema.items() if name != "$schema"}


def check_pattern(_validator: Any, pattern: str, value: object, _schema: Any) -> Iterator[Exception]:
    """Check a pattern with pydantic's linear-time regex, else with Python's `re`, else not at all."""
    from jsonschema import ValidationError

    fits = _pattern(pattern)
    if isinstance(value, str) and fits and not fits(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


@functools.lru_cache(maxsize=256)
def _pattern(pattern: str) -> Callable[[str], bool] | None:
    try:
        adapter = TypeAdapter(Annotated[str, Field(pattern=pattern)])
    except SchemaError:
        with suppress(re.error):
            compiled = re.compile(pattern)
            return lambda text: compiled.search(text) is not None
        return None

    def fits(text: str) -> bool:
        try:
            adapter.validate_python(text)
        except ValidationError:
            return False
        return True

    return fits


def _plain(value: Any) -> Any:
    """Return a frozen value with lists instead of tuples, since the validator does not accept tuples as arrays."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


@functools.cache
def _formats() -> FormatChecker:
    from jsonschema import FormatChecker
    from pydantic import AnyUrl

    checker = FormatChecker(formats=())
    for name, kind in {**_FORMATS, "uri": AnyUrl}.items():
        checker.checks(name, raises=ValueError)(functools.partial(_has_format, TypeAdapter(kind)))
    return checker


def _has_format(adapter: TypeAdapter[Any], value: object) -> bool:
    if isinstance(value, str):
        adapter.validate_json(pydantic_core.to_json(value))
    return True
