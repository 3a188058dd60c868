"""Which schemas of unknown callers are refused, before anything is checked by them."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.actors.inference.tools.signature import check_safe, follow_schema, output_record
from turnwise.memory.conversation.output_type import OutputType

OBJECT: dict[str, Any] = {"type": "object"}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019, DRAFT_2020 = (f"https://json-schema.org/draft/{draft}/schema" for draft in ("2019-09", "2020-12"))


def ladder(rungs: int) -> dict[str, Any]:
    """Return a schema each of whose parts names the next one twice."""
    parts = {f"p{n}": {"allOf": [{"$ref": f"#/$defs/p{n + 1}"}] * 2} for n in range(rungs)}
    return {**OBJECT, "$ref": "#/$defs/p0", "$defs": {**parts, f"p{rungs}": {}}}


def chain(links: int) -> dict[str, Any]:
    parts = {f"p{n}": {"$ref": f"#/$defs/p{n + 1}"} for n in range(links)}
    return {**OBJECT, "$ref": "#/$defs/p0", "$defs": {**parts, f"p{links}": {}}}


def anchored_ladder(rungs: int) -> dict[str, Any]:
    """Return a ladder whose parts are named by anchors."""
    parts = {f"p{n}": {"$anchor": f"p{n}", "allOf": [{"$ref": f"#p{n + 1}"}] * 2} for n in range(rungs)}
    return {**OBJECT, "properties": {"a": {"$ref": "#p0"}}, "$defs": {**parts, "last": {"$anchor": f"p{rungs}"}}}


def joined_chains(count: int) -> dict[str, Any]:
    """Return a schema with short chains, each of which leads to one that was seen before."""
    parts = {f"p{n}": {"$ref": f"#/$defs/p{n + 1}"} for n in range(40 * count)}
    starts = {f"a{n}": {"$ref": f"#/$defs/p{40 * n}"} for n in range(count)}
    return {
        **OBJECT,
        "$ref": f"#/$defs/p{40 * (count - 1)}",
        "properties": starts,
        "$defs": {**parts, f"p{40 * count}": {}},
    }


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return {**OBJECT, **schema}


REFUSED = {
    "itself": {**OBJECT, "$ref": "#"},
    "itself, by way of another": {**OBJECT, "anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#"}}}},
    "itself, within": {**OBJECT, "properties": {"a": {"$ref": "#/properties/a"}}},
    "itself, by its anchor": {**OBJECT, "properties": {"a": {"$anchor": "loop", "$ref": "#loop"}}},
    "itself, by a dynamic anchor": {
        **OBJECT,
        "properties": {"a": {"$dynamicAnchor": "loop", "$dynamicRef": "#loop"}},
    },
    "itself, by a dependency": {**OBJECT, "$schema": DRAFT_7, "dependencies": {"a": {"$ref": "#"}}},
    "itself, by $recursiveRef": {**OBJECT, "$schema": DRAFT_2019, "anyOf": [{"$recursiveRef": "#"}]},
    "itself, by another id": {
        **OBJECT,
        "$defs": {"a": {"$id": "urn:a", "$ref": "#/$defs/b", "$defs": {"b": {"$ref": "#"}}}, "b": {}},
    },
    "itself, in an old draft": {**OBJECT, "$schema": "http://json-schema.org/draft-03/schema#", "extends": []},
    "one of two parts": {**OBJECT, "$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}},
    "no part": {**OBJECT, "properties": {"a": {"$ref": "#/$defs/a"}}},
    "too often": ladder(20),
    "too often, by anchors": anchored_ladder(20),
    "one by one": chain(1000),
    "one by one, from chains": joined_chains(30),
    "within one another": nested(1000),
    "another document": {**OBJECT, "properties": {"a": {"$ref": "http://127.0.0.1/"}}},
    "a slow pattern": {**OBJECT, "properties": {"a": {"type": "string", "pattern": "^(a+)+(?=b)$"}}},
    "a pattern of another dialect": {**OBJECT, "properties": {"a": {"$schema": DRAFT_2020, "pattern": "^(a+)+$"}}},
    "patterns of names": {**OBJECT, "patternProperties": {"(a+)+$": {}}},
}

TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}

TAKEN = {
    "a tree": {**OBJECT, "properties": {"root": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": TREE}},
    "a tree of its own": {**OBJECT, "properties": {"children": {"items": {"$ref": "#"}}}},
    "choices": {
        **OBJECT,
        "properties": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/b~1c"}]}},
        "$defs": {"b/c": {}},
    },
    "an anchor": {**OBJECT, "allOf": [{"$ref": "#small"}], "$defs": {"a": {"$anchor": "small", "maxProperties": 9}}},
    "a few parts": ladder(5),
    "a few parts, by anchors": anchored_ladder(5),
    "a property of any name": {**OBJECT, "$id": "urn:all", "properties": {"$id": {}, "$schema": {}, "$anchor": {}}},
    "a pattern": {**OBJECT, "properties": {"a": {"pattern": "^(a+)+$"}}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_is_never_done_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"without end|so often|itself|linear time|not supported|two parts"):
        check_safe(REFUSED[name])


@pytest.mark.parametrize("name", TAKEN)
def test_others_are_taken(name: str) -> None:
    check_safe(TAKEN[name])


def test_patterns_are_checked_alike_behind_a_reference_to_the_schema_itself() -> None:
    """Python's `re` does not know this pattern, and takes forever for others."""
    schema = {**OBJECT, "$schema": DRAFT_2020, "properties": {"name": {"pattern": r"^\p{L}+$"}, "child": {"$ref": "#"}}}
    family: dict[str, Any] = {"name": "Bö", "child": {"name": "Zoë"}}
    assert follow_schema(schema, family) == family
    with pytest.raises(ValueError, match=r"child.name: '7' does not match"):
        follow_schema(schema, {"child": {"name": "7"}})
    output = OutputType.read(output_record(schema, 1))
    assert output and output.errors('{"child": {"name": "Zoë"}}') is None
    assert output.errors('{"child": {"name": "7"}}') == r"child.name: '7' does not match '^\\p{L}+$'"


def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    arguments: dict[str, Any] = {}
    for _ in range(5000):
        arguments = {"a": arguments}
    with pytest.raises(ValueError, match="nested too deeply"):
        follow_schema({**OBJECT, "properties": {"a": {"$ref": "#"}}}, arguments)
