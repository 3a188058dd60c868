"""Formats of working memory: which texts are valid, and how content is merged into a text."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from turnwise.errors import ConfigError
from turnwise.memory.longterm.retention.subject import Subject, places_of, without_places


class Form(Protocol):
    """The format of a working memory. Its methods raise ValueError, with the reason, for invalid content."""

    def initial(self) -> str:
        """Return the initial text."""

    def replace(self, content: Any) -> str:
        """Return the content as text, if it is valid as the whole text."""

    def merge(self, before: str, content: Any) -> str:
        """Return the text with the content merged into it, if the result is valid."""

    def about(self, text: str, subject: Subject) -> list[str]:
        """Return the parts of the text that say the subject and may be removed by themselves, in order."""

    def without(self, text: str, parts: Collection[str]) -> str:
        """Return the text without these parts, as `about` returned them, if the result is valid."""


@dataclass(frozen=True)
class FreeText:
    """Any text. Merged content is appended after a blank line. Its parts are sentences; a line break ends one."""

    def initial(self) -> str:
        return ""

    def replace(self, content: Any) -> str:
        if not isinstance(content, str):
            raise ValueError(f"{type(content).__name__} is not text")
        return content.strip()

    def merge(self, before: str, content: Any) -> str:
        return "\n\n".join(filter(None, [before.strip(), self.replace(content)]))

    def about(self, text: str, subject: Subject) -> list[str]:
        return list(dict.fromkeys(text[start:stop] for start, stop in subject.places(text)))

    def without(self, text: str, parts: Collection[str]) -> str:
        removed = [place for part in parts for place in places_of(text, part)]
        return without_places(text, removed) if removed else text


@dataclass(frozen=True)
class Markdown:
    """A Markdown text with the template's headings in order. The text under them is free; headings may be added."""

    template: str

    def initial(self) -> str:
        return self.template.strip()

    def replace(self, content: Any) -> str:
        return self._check(FreeText().replace(content))

    def merge(self, before: str, content: Any) -> str:
        return self._check(FreeText().merge(before, content))

    def about(self, text: str, subject: Subject) -> list[str]:
        return [part for part in FreeText().about(text, subject) if not self._needs(part)]

    def without(self, text: str, parts: Collection[str]) -> str:
        return self._check(FreeText().without(text, parts))

    def _needs(self, part: str) -> bool:
        """Return whether a part of a text has a heading of the template."""
        return not set(_headings(part)).isdisjoint(_headings(self.template))

    def _check(self, text: str) -> str:
        # `in` consumes the iterator up to the heading that it finds, so the next one must come after it.
        headings = iter(_headings(text))
        if missing := [heading for heading in _headings(self.template) if heading not in headings]:
            raise ValueError(f"the heading {missing[0]!r} of the template is missing or out of order")
        return text


def _headings(text: str) -> Iterator[str]:
    for match in re.finditer(r"^(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$", text, re.MULTILINE):
        yield f"{match[1]} {match[2]}"


class JsonForm:
    """A JSON object that fits a schema. Content is an object or its JSON text, and is merged by `merge_json`.

    Its parts are the values in it that are neither objects nor lists, each with the keys that lead to it: "pets.name:
    Rex". A part is removed with its key, or from its list.

    Only the resulting object must fit the schema, so content that is merged may be a part of it. With a pydantic model,
    the text has the fields that were set, as the model dumps them.

    Args:
        schema: a pydantic model, or a JSON schema.
        initial: the initial object; it need not fit the schema.

    Raises:
        ConfigError: the schema is not valid.
    """

    def __init__(
        self, schema: type[BaseModel] | Mapping[str, Any], *, initial: Mapping[str, Any] | None = None
    ) -> None:
        self._schema = schema
        self._initial = dict(initial or {})
        if isinstance(schema, Mapping):
            _check_schema(schema)
        elif not (isinstance(schema, type) and issubclass(schema, BaseModel)):
            raise ConfigError("JsonForm.schema", schema, "is neither a pydantic model nor a JSON schema")

    def initial(self) -> str:
        return _written(self._initial)

    def replace(self, content: Any) -> str:
        return self._check(_object(content))

    def merge(self, before: str, content: Any) -> str:
        return self._check(merge_json(_object(before), _object(content)))

    def about(self, text: str, subject: Subject) -> list[str]:
        return [part for part in dict.fromkeys(_parts(_object(text))) if subject.places(part)]

    def without(self, text: str, parts: Collection[str]) -> str:
        before = _object(text)
        after = _without(before, parts)
        return text if after == before else self._check(after)

    def _check(self, value: dict[str, Any]) -> str:
        if isinstance(self._schema, Mapping):
            _check_value(self._schema, value)
            return _written(value)
        try:
            model = self._schema.model_validate(value)
        except ValidationError as error:
            messages = (
                f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors(include_url=False)
            )
            raise ValueError("; ".join(messages)) from error
        return _written(model.model_dump(mode="json", by_alias=True, exclude_unset=True))


def merge_json(before: Any, content: Any) -> Any:
    """Return the old value with the content merged into it. Neither argument is changed.

    Objects are merged key by key, and null removes a key. Lists are joined, with each value once. Other values, and
    values of different types, are replaced.
    """
    if isinstance(content, Mapping):
        merged = dict(before) if isinstance(before, Mapping) else {}
        for key, value in content.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = merge_json(merged.get(key), value)
        return merged
    if isinstance(content, list):
        joined = [*before, *content] if isinstance(before, list) else content
        by_json = {json.dumps(value, sort_keys=True): value for value in joined}  # objects and lists have no hash
        return list(by_json.values())
    return content


def _parts(value: Any, keys: str = "") -> Iterator[str]:
    """Yield the values within a JSON value that are neither objects nor lists, each with the keys that lead to it."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _parts(member, f"{keys}.{key}" if keys else key)
    elif isinstance(value, list):
        for member in value:
            yield from _parts(member, keys)
    else:
        yield f"{keys}: {value if isinstance(value, str) else json.dumps(value)}"


def _without(value: Any, parts: Collection[str], keys: str = "") -> Any:
    """Return a JSON object or list without these of its parts; see `_parts`."""
    if isinstance(value, Mapping):
        inner = {key: f"{keys}.{key}" if keys else key for key in value}
        return {
            key: _without(member, parts, inner[key])
            for key, member in value.items()
            if not _is_one_of(member, parts, inner[key])
        }
    if isinstance(value, list):
        return [_without(member, parts, keys) for member in value if not _is_one_of(member, parts, keys)]
    return value


def _is_one_of(value: Any, parts: Collection[str], keys: str) -> bool:
    return not isinstance(value, Mapping | list) and next(_parts(value, keys)) in parts


def _object(content: Any) -> dict[str, Any]:
    """Return the content, an object or its JSON text, as an object of its own that is JSON."""
    try:
        value = json.loads(content) if isinstance(content, str) else json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False)


def _check_schema(schema: Mapping[str, Any]) -> None:
    # Imported here, since it takes long, and only JSON schemas need it.
    from jsonschema import SchemaError  # type: ignore[import-untyped]
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        raise ConfigError("JsonForm.schema", dict(schema), f"is no JSON schema: {error.message}") from error


def _check_value(schema: Mapping[str, Any], value: Any) -> None:
    from jsonschema.validators import validator_for

    errors = sorted(validator_for(schema)(schema).iter_errors(value), key=lambda error: error.json_path)
    if errors:
        raise ValueError("; ".join(f"{error.json_path}: {error.message}" for error in errors))
