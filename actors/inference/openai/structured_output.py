"""Requests typed answers: JSON that fits a schema, in a way that the server supports."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnwise.actors.inference.openai.fields import mentions
from turnwise.actors.inference.tools.tool import ToolDefinition
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolUse
from turnwise.memory.conversation.output_type import ANSWER_TOOL, OutputType
from turnwise.memory.providers.endpoints import JsonMode, Profile
from turnwise.memory.values.frozen_json import FrozenDict

Way = Literal["strict", "json_schema", "tool", "json_object", "instruction"]
"""Ways to request a typed answer.

strict: by a schema that the server enforces. json_schema: by a schema, without that. tool: by a tool whose arguments
are the answer. json_object: by JSON mode, with the schema in the instructions. instruction: by instructions only.
"""

_WAYS: Mapping[JsonMode, Sequence[Way]] = {
    "json_schema": ("strict", "json_schema", "tool", "instruction"),
    "tool": ("tool", "instruction"),
    "json_object": ("json_object", "instruction"),
}
"""The ways that are tried in order, by the JSON mode in the server's profile."""

_SCHEMA_MESSAGE = re.compile(
    r"(response|output)[_ ]format|output_config|json_schema|json_object|text\.format|structured output"
    r"|response mime type|grammar",
    re.IGNORECASE,
)
_TOOL_MESSAGE = re.compile(r"\btools?\b|function", re.IGNORECASE)

_GIVE_ANSWER = "Gives your final answer. Call it once, when nothing else is left to do."


class _LooseError(Exception):
    """A schema uses a feature that strict mode does not support."""


@dataclass(frozen=True)
class Form:
    """How a typed answer is requested."""

    way: Way
    schema: Mapping[str, Any]
    """The schema as it is sent."""
    tool: str | None = None
    """The name of the tool by which the model answers; None if it answers with text."""
    is_forced: bool = False
    """Whether the request forces a tool call."""
    has_tools: bool = False
    """Whether the model may call other tools before its answer."""

    @property
    def definition(self) -> ToolDefinition:
        """The declaration of the tool by which the model answers."""
        return ToolDefinition(self.tool or ANSWER_TOOL, _GIVE_ANSWER, FrozenDict(self.schema))

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The value of the request's schema field; None if the request has none."""
        if self.way not in ("strict", "json_schema"):
            return None
        return {"name": "answer", "schema": self.schema, **({"strict": True} if self.way == "strict" else {})}

    @property
    def instructions(self) -> str | None:
        """Text to add to the system prompt; None if there is none."""
        if self.tool:
            return None if self.is_forced else f"Give your final answer by calling {self.tool}."
        if self.way in ("json_object", "instruction"):
            when = "When you need no more tools, answer" if self.has_tools else "Answer"
            return f"{when} with one JSON object of this schema, and nothing else:\n{json.dumps(self.schema)}"
        return None

    def refused_as(self, message: str) -> list[str]:
        """Return what to remember as refused; empty if the server's message is not about this way."""
        if self.way == "instruction":
            return []
        if self.tool:
            return ["tool"] if not self.has_tools and _TOOL_MESSAGE.search(message) else []
        if not _SCHEMA_MESSAGE.search(message):
            return []
        if self.way == "json_object":
            return ["json_object"]
        if "invalid schema" in message.lower() or mentions(message, "strict"):  # only this schema is refused
            return [_key(self.way, self.schema)]
        return ["strict", "json_schema"]

    def answer(self, blocks: Sequence[AnyBlock]) -> list[AnyBlock]:
        """Return the model's answer, with a call of the answer tool replaced by its arguments as text.

        If the model called other tools too, its answer came too early and is left out. A call with a flaw stays a call:
        `ToolLoop` sends it back.
        """
        finals = [block for block in blocks if isinstance(block, ToolUse) and block.name == self.tool]
        if not finals:
            return list(blocks)
        rest = [block for block in blocks if block not in finals]
        if any(isinstance(block, ToolUse) for block in rest):
            return rest
        kept_blocks: list[AnyBlock] = [block for block in rest if not isinstance(block, Text)]
        if finals[0].flaw:
            return [*kept_blocks, finals[0]]
        return [*kept_blocks, Text(text=json.dumps(finals[0].input, ensure_ascii=False))]


def choose(output: OutputType, profile: Profile, tools: Collection[str], refused: Collection[str]) -> Form:
    """Return how to request a typed answer: the first way that the server is not known to refuse.

    Args:
        tools: the names of the other tools that the model may call.
        refused: what the server has refused before; see `Form.refused_as`.
    """
    mode = profile.json_mode if profile.schema_with_tools or not tools else "tool"
    strict_schema = strict(output.schema)
    schemas = {way: strict_schema if way == "strict" else output.schema for way in _WAYS[mode]}
    way, schema = next(
        ((way, schema) for way, schema in schemas.items() if schema and not {way, _key(way, schema)} & set(refused)),
        ("instruction", output.schema),
    )
    tool = None
    if way == "tool":
        tool = ANSWER_TOOL
        while tool in tools:
            tool += "_"
    is_forced = "tool_choice" not in refused and "tool_choice" not in profile.lacks
    return Form(way, schema, tool, is_forced, bool(tools))


def choose_tool(fields: Mapping[str, Any], form: Form) -> dict[str, Any]:
    """Return the `tool_choice` field that forces an answer by tool, in the format of Chat Completions; else no field.

    Args:
        fields: the request's fields; if they choose another tool, that choice stays.
    """
    choice = fields.get("tool_choice", "auto")
    if form.tool is None or choice not in ("auto", "none"):
        return {}
    if choice == "auto":
        return {"tool_choice": "required"} if form.is_forced else {}
    named = {"type": "function", "function": {"name": form.tool}}
    return {"tool_choice": named if form.is_forced else "auto"}


def tool_names(fields: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that a request declares, in either API; an empty name for a tool without one."""
    return [str(tool.get("function", tool).get("name", "")) for tool in fields.get("tools", ())]


def _key(way: Way, schema: Mapping[str, Any]) -> str:
    return f"{way} {hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]}"


# The part of JSON schema that OpenAI's strict mode supports, by its documentation

_STRICT_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs"}
    | {"description", "title", "pattern", "format", "multipleOf", "minItems", "maxItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)
_STRICT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})


def strict(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema in the form that OpenAI's strict mode requires; None if that is impossible.

    Strict mode supports a part of JSON schema, requires each property, and allows no others.
    """
    try:
        return _strict(schema)
    except _LooseError:
        return None


def _strict(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or schema.keys() - _STRICT_KEYWORDS or not _says_type(schema):
        raise _LooseError
    result = dict(schema)
    if "$defs" in result:
        result["$defs"] = {name: _strict(definition) for name, definition in result["$defs"].items()}
    if result.get("type") == "object":
        properties = result.setdefault("properties", {})
        if set(result.setdefault("required", [])) != set(properties) or result.get("additionalProperties"):
            raise _LooseError
        result["properties"] = {name: _strict(property_schema) for name, property_schema in properties.items()}
        result["additionalProperties"] = False
    if result.get("type") == "array" and "items" not in result:
        raise _LooseError
    if "items" in result:
        result["items"] = _strict(result["items"])
    if "anyOf" in result:
        result["anyOf"] = [_strict(choice) for choice in result["anyOf"]]
    if result.get("format", "date") not in _STRICT_FORMATS:
        raise _LooseError
    if "$ref" in result and len(result) > 1:  # strict mode allows no other keyword beside a reference
        result = {"anyOf": [{"$ref": result.pop("$ref")}], **result}
    return result


def _says_type(schema: Mapping[str, Any]) -> bool:
    return any(name in schema for name in ("type", "anyOf", "$ref", "enum", "const"))
