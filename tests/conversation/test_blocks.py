"""Blocks: they are read as they were written, and cannot be changed."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pydantic_core
import pytest
from hypothesis import given, strategies as st
from pydantic import TypeAdapter, ValidationError

from turnwise.memory.conversation.blocks import (
    KINDS,
    AnyBlock,
    Block,
    CacheCheckpoint,
    Citations,
    Document,
    Image,
    Recalled,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
    decode,
    encode,
)
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.values.frozen_json import FrozenDict, freeze

TEXTS = st.text()
MAYBE = st.none() | TEXTS
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
UNKNOWN_KINDS = TEXTS.filter(lambda kind: kind not in KINDS)
PAYLOADS = OBJECTS.filter(lambda payload: "kind" not in payload)

BLOCKS: dict[type[Block], st.SearchStrategy[Block]] = {
    System: st.builds(System, text=TEXTS),
    User: st.builds(User, text=TEXTS),
    Text: st.builds(Text, text=TEXTS, interrupted=st.booleans()),
    Thinking: st.builds(Thinking, text=TEXTS, signature=MAYBE, redacted=MAYBE),
    ToolUse: st.builds(ToolUse, call_id=TEXTS, name=TEXTS, input=OBJECTS, signature=MAYBE),
    Image: st.builds(Image, url=st.text(min_size=1), data=MAYBE, media_type=st.text(min_size=1))
    | st.builds(Image, data=st.text(min_size=1), media_type=st.text(min_size=1)),
    Document: st.builds(Document, name=TEXTS, text=st.text(min_size=1), url=MAYBE)
    | st.builds(Document, name=TEXTS, data=TEXTS, media_type=st.text(min_size=1), url=st.text(min_size=1), text=MAYBE),
    ToolResult: st.builds(
        ToolResult,
        call_id=TEXTS,
        text=TEXTS,
        is_error=st.booleans(),
        blocks=st.lists(
            st.builds(Text, text=TEXTS)
            | st.builds(Image, url=st.text(min_size=1), media_type=MAYBE)
            | st.builds(Document, name=TEXTS, chunks=st.lists(st.just("a"), min_size=1).map(tuple), cite=st.booleans()),
            max_size=3,
        ).map(tuple),
    ),
    Citations: st.builds(Citations, items=st.lists(OBJECTS, max_size=3)),
    Summary: st.builds(Summary, text=TEXTS, of=st.lists(st.tuples(TEXTS, st.integers(0), st.integers(0))).map(tuple)),
    CacheCheckpoint: st.builds(CacheCheckpoint),
    Recalled: st.builds(Recalled, text=TEXTS),
    Unknown: st.builds(Unknown, stored_kind=UNKNOWN_KINDS, payload=PAYLOADS),
}


def test_every_kind_of_block_is_tested() -> None:
    assert {*KINDS.values(), Unknown} == set(BLOCKS)
    assert {kind: cls.model_fields["kind"].default for kind, cls in KINDS.items()} == {kind: kind for kind in KINDS}


@pytest.mark.parametrize("cls", BLOCKS)
def test_a_block_comes_back_as_it_was_written(cls: type[Block]) -> None:
    """Case 27."""

    @given(BLOCKS[cls])
    def check(block: Block) -> None:
        encoded = encode(block)
        decoded_block = decode(encoded)
        assert type(decoded_block) is cls
        assert decoded_block == block
        assert hash(decoded_block) == hash(block)
        assert encode(decoded_block) == encoded
        assert "\n" not in encoded
        assert pickle.loads(pickle.dumps(block)) == block

    check()


@given(UNKNOWN_KINDS, PAYLOADS)
def test_a_block_kind_of_a_later_version_is_written_back_unchanged(kind: str, payload: dict[str, Any]) -> None:
    """Case 27: byte for byte, whatever its fields are."""
    line = pydantic_core.to_json({"kind": kind, **payload}).decode()
    block = decode(line)
    assert isinstance(block, Unknown)
    assert (block.stored_kind, block.payload) == (kind, freeze(payload))
    assert encode(block) == line


@pytest.mark.parametrize("union", [AnyBlock, AnyEvent], ids=["blocks", "events"])
def test_a_union_has_a_json_schema_without_warnings(union: Any) -> None:
    schema = TypeAdapter(union).json_schema()
    assert schema["discriminator"]["propertyName"] == "kind"
    assert "input" not in schema["$defs"]["ToolUse" if union is AnyBlock else "ApprovalRequested"]["required"]


def test_fields_of_their_default_value_are_not_written() -> None:
    """A turn is mostly text on disk."""
    assert encode(Text(text="hi")) == '{"kind":"text","text":"hi"}'
    assert encode(ToolUse(call_id="1", name="look")) == '{"kind":"tool_use","call_id":"1","name":"look"}'
    assert encode(CacheCheckpoint()) == '{"kind":"cache_checkpoint"}'


@pytest.mark.parametrize(
    "line",
    [
        *(
            "",
            "{",
            "5",
            "[]",
            "null",
            "{}",
            '{"text":"hi"}',
            '{"kind":5}',
            '{"kind":"user"}',
            '{"kind":"user","text":5}',
        ),
        *('{"kind":"summary"}', '{"kind":"summary","text":"hi","of":[["a",1]]}'),
        *('{"kind":"user","text":"hi","more":1}', '{"kind":"tool_use","call_id":"1","name":"x","input":[]}'),
        '{"kind":"tool_use","call_id":"1","name":"x","input":{"x":NaN}}',
    ],
)
def test_decoding_something_else_than_a_block_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(line)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), b"x", {1, 2}, object()])
def test_a_payload_that_json_cannot_hold_is_refused_when_the_block_is_made(value: object) -> None:
    """Written as null it would come back as something else."""
    payload = {"deep": [{"in": value}]}
    makers: list[Callable[[], Block]] = [
        lambda: ToolUse(call_id="1", name="x", input=payload),
        lambda: Citations(items=(payload,)),
        lambda: Unknown(stored_kind="new", payload=payload),
    ]
    for make in makers:
        with pytest.raises(ValidationError, match="is not a JSON value"):
            make()


@pytest.mark.parametrize(("kind", "payload"), [("tool_use", {"call_id": "1"}), ("user", {}), ("new", {"kind": "user"})])
def test_an_unknown_block_cannot_have_a_known_kind(kind: str, payload: dict[str, str]) -> None:
    """Otherwise a caller could add a tool call without its result to a history."""
    with pytest.raises(ValidationError, match="would be read as a block of another kind"):
        Unknown(stored_kind=kind, payload=payload)


@given(st.one_of(*BLOCKS.values()))
def test_no_field_of_a_block_can_be_set_or_deleted(block: Block) -> None:
    """Case 12."""
    for name in type(block).model_fields:
        before = getattr(block, name)
        with pytest.raises(ValidationError):
            setattr(block, name, "x")
        with pytest.raises(ValidationError):
            delattr(block, name)
        assert getattr(block, name) is before
    with pytest.raises(ValidationError):
        block.more = 1  # type: ignore[attr-defined]


CHANGES: list[Callable[[Any], object]] = [
    lambda mapping: mapping.__setitem__("new", 1),
    lambda mapping: mapping.__delitem__("list"),
    lambda mapping: mapping.__ior__({"new": 1}),
    lambda mapping: mapping.update(new=1),
    lambda mapping: mapping.pop("list"),
    lambda mapping: mapping.popitem(),
    lambda mapping: mapping.setdefault("new", 1),
    lambda mapping: mapping.clear(),
]


@pytest.mark.parametrize("make", [FrozenDict, copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize(
    "payload",
    [
        lambda json_object: ToolUse(call_id="1", name="look", input=json_object).input,
        lambda json_object: Unknown(stored_kind="new", payload=json_object).payload,
        lambda json_object: Citations(items=(json_object,)).items[0],
        lambda json_object: decode(encode(ToolUse(call_id="1", name="look", input=json_object))).input,  # type: ignore[union-attr]
        lambda json_object: decode(encode(Unknown(stored_kind="new", payload=json_object))).payload,  # type: ignore[union-attr]
        lambda json_object: decode(encode(Citations(items=(json_object,)))).items[0],  # type: ignore[union-attr]
        freeze,
    ],
)
def test_a_payload_is_deeply_immutable_and_a_copy_of_its_source(
    payload: Callable[[Any], Any], make: Callable[[Any], Any]
) -> None:
    """Case 12: as it is, copied, or pickled into another process."""
    source: dict[str, Any] = {"list": [{"deep": [1, {"list": []}]}], "text": "a"}
    expected = {"list": ({"deep": (1, {"list": ()})},), "text": "a"}
    frozen = make(payload(source))
    source["list"][0]["deep"].append(2)
    source["text"] = "b"
    assert frozen == expected
    for mapping in (frozen, frozen["list"][0], frozen["list"][0]["deep"][1]):
        for change in CHANGES:
            with pytest.raises(TypeError, match="immutable record"):
                change(mapping)
    for sequence in (frozen["list"], frozen["list"][0]["deep"], frozen["list"][0]["deep"][1]["list"]):
        assert type(sequence) is tuple
    assert frozen == expected
