"""Which schemas of unknown callers are refused, before anything is checked by them."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.actors.inference.tools.signature import check_safe

OBJECT: dict[str, Any] = {"type": "object"}


def ladder(rungs: int) -> dict[str, Any]:
    """Return a schema each of whose parts names the next one twice."""
    parts = {f"p{n}": {"allOf": [{"$ref": f"#/$defs/p{n + 1}"}] * 2} for n in range(rungs)}
    return {**OBJECT, "$ref": "#/$defs/p0", "$defs": {**parts, f"p{rungs}": {}}}


def chain(links: int) -> dict[str, Any]:
    parts = {f"p{n}": {"$ref": f"#/$defs/p{n + 1}"} for n in range(links)}
    return {**OBJECT, "$ref": "#/$defs/p0", "$defs": {**parts, f"p{links}": {}}}


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
    "too often": ladder(20),
    "one by one": chain(1000),
    "one by one, from chains": joined_chains(30),
    "within one another": nested(1000),
    "another document": {**OBJECT, "properties": {"a": {"$ref": "http://127.0.0.1/"}}},
    "a slow pattern": {**OBJECT, "properties": {"a": {"type": "string", "pattern": "^(a+)+(?=b)$"}}},
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
    "a few parts": ladder(5),
    "a pattern": {**OBJECT, "properties": {"a": {"pattern": "^(a+)+$"}}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_is_never_done_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"without end|so often|itself|linear time|patternProperties"):
        check_safe(REFUSED[name])


@pytest.mark.parametrize("name", TAKEN)
def test_others_are_taken(name: str) -> None:
    check_safe(TAKEN[name])
