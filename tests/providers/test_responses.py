from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Citations,
    Document,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
)
from turnwise.memory.providers.openai_responses import Reasoning, encode, pack_reasoning, unpack_reasoning
from turnwise.testing.local_provider.message_rules import WireError, check_responses

HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
HI = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAA=="}


def use(call_id: str, name: str = "look", **arguments: Any) -> ToolUse:
    return ToolUse(call_id=call_id, name=name, input=arguments)


def output_item(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}


def answered(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "seen"}


def items_of(*blocks: Block) -> list[dict[str, Any]]:
    return encode(blocks)[1]


# Encoding


def test_a_summary_is_a_text_of_the_user_after_a_header() -> None:
    text = "[summary of the conversation so far]\nThey met.\n\nHello"
    (message,) = items_of(Summary(text="They met.", of=(("1", 0, 9),)), User(text="Hello"))
    assert message["content"] == [{"type": "input_text", "text": text}]


def test_the_last_system_prompt_is_the_instructions() -> None:
    """Acceptance 34."""
    assert encode([System(text="a"), User(text="Hello"), System(text="b")]) == ("b", [HELLO])
    assert encode([User(text="Hello")]) == (None, [HELLO])


def test_a_prompt_is_one_message_of_parts() -> None:
    (message,) = items = items_of(
        User(text="What is this?"),
        Image(url="https://example.org/cat.png"),
        Image(data="aGk=", media_type="image/png"),
        Document(name="a.pdf", data="aGk=", media_type="application/pdf"),
        Document(name="a.pdf", url="https://example.org/a.pdf"),
        Document(name="notes.txt", text="Buy milk."),
    )
    assert message["content"] == [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "https://example.org/cat.png", "detail": "auto"},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
        {"type": "input_file", "file_url": "https://example.org/a.pdf"},
        {"type": "input_text", "text": "notes.txt:\nBuy milk."},
    ]
    check_responses(items)


def test_reasoning_text_and_calls_come_in_order_and_outputs_as_declared() -> None:
    """Acceptance 24."""
    items = items_of(
        User(text="Hello"),
        use("a", city="Zürich"),
        Text(text="Let me "),
        Citations(items=({"url": "https://example.org"},)),
        Text(text="look."),
        CacheCheckpoint(),
        Thinking(text="Hm.", signature=pack_reasoning("rs_1", "gAAAAA==")),
        use("b"),
        ToolResult(call_id="b", text="rain"),
        Unknown(stored_kind="hologram"),
        ToolResult(call_id="a", text="sun"),
        User(text="Well?"),
    )
    assert items[1:] == [
        {**THOUGHT, "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"city": "Zürich"}'},
        output_item("b"),
        {"type": "function_call_output", "call_id": "a", "output": "sun"},
        {"type": "function_call_output", "call_id": "b", "output": "rain"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Well?"}]},
    ]
    check_responses(items)


def test_interrupted_texts_and_error_results_are_marked() -> None:
    """Acceptance 20, 27."""
    message, _, output = items_of(
        Text(text="The wea", interrupted=True), use("a"), ToolResult(call_id="a", text="no such city", is_error=True)
    )
    assert message["content"][0]["text"] == "The wea [interrupted]"
    assert output["output"] == "[error] no such city"


@pytest.mark.parametrize(
    "silent",
    [
        Text(text=""),
        Thinking(text="Hm."),
        Thinking(text="Hm.", signature=pack_reasoning("rs_1", "gAAAAA==")),
        Unknown(stored_kind="hologram"),
    ],
    ids=repr,
)
def test_an_empty_block_makes_no_item(silent: Block) -> None:
    """Acceptance 19: a reasoning item without a following item is refused."""
    items = items_of(User(text="Hello"), silent, User(text="Hello"))
    assert {item["role"] for item in items} == {"user"}
    assert "\n\n".join(part["text"] for item in items for part in item["content"]) == "Hello\n\nHello"


@pytest.mark.parametrize(
    "signature", [None, "EqoBCkgIARABGAIiQ", "{", "[]", '{"id": "rs_1"}', pack_reasoning("rs_1", "")]
)
def test_thoughts_without_this_providers_signature_are_left_out(signature: str | None) -> None:
    """Acceptance 26."""
    thought = Thinking(text="Hm.", signature=signature, redacted="hidden")
    assert [item["type"] for item in items_of(thought, use("a"), ToolResult(call_id="a", text="sun"))] == [
        "function_call",
        "function_call_output",
    ]


def test_a_reasoning_item_is_sent_once() -> None:
    """Acceptance 26: the API refuses an item that is there twice."""
    thought = Thinking(signature=pack_reasoning("rs_1", "gAAAAA=="))
    items = items_of(thought, thought, Text(text="Hi"), User(text="Hello"), thought, Text(text="Hi"))
    assert items == [THOUGHT, HI, HELLO, HI]


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_opaque_signature_comes_back_unchanged(item_id: str, content: str) -> None:
    """Acceptance 26."""
    assert unpack_reasoning(pack_reasoning(item_id, content)) == Reasoning(item_id, content)
    reasoning, _ = items_of(Thinking(signature=pack_reasoning(item_id, content)), Text(text="Hi"))
    assert (reasoning["id"], reasoning["encrypted_content"]) == (item_id, content)


@given(st.none() | st.text() | st.from_type(dict[str, int | None]).map(json.dumps))
def test_unknown_signatures_are_ignored(signature: str | None) -> None:
    """Acceptance 26."""
    assert unpack_reasoning(signature) is None


# What the API refuses


@pytest.mark.parametrize(
    "items",
    [
        [HELLO],
        [{"role": "user", "content": "Hello"}, HI],
        [THOUGHT, {**THOUGHT, "id": "rs_2"}, output_item("a"), HELLO, answered("a")],
        [output_item("a"), output_item("b"), answered("b"), answered("a"), THOUGHT, HI],
    ],
)
def test_valid_input_passes(items: list[dict[str, Any]]) -> None:
    check_responses(items)


@pytest.mark.parametrize(
    ("items", "index", "reason"),
    [
        ([], 0, "at least one"),
        ([HELLO, {"type": "hologram"}], 1, "hologram"),
        ([HELLO, "Hello"], 1, "no item"),
        ([{"type": "message", "role": "tool", "content": "Hello"}], 0, "role 'tool'"),
        ([{"type": "message", "role": "user", "content": []}], 0, "empty"),
        ([{**HELLO, "role": "assistant"}], 0, "input_text"),
        ([{**HI, "role": "user"}], 0, "output_text"),
        ([HELLO, output_item("a")], 1, "'a' has no output"),
        ([HELLO, answered("a")], 1, "no call 'a'"),
        ([answered("a"), output_item("a")], 0, "no call 'a'"),
        ([output_item("a"), answered("a"), answered("a")], 2, "an output already"),
        ([output_item("a"), answered("a"), output_item("a"), answered("a")], 2, "'a' is there already"),
        ([output_item("x" * 65), answered("x" * 65)], 0, "over 64"),
        ([{**output_item("a"), "call_id": ""}, answered("")], 0, "not empty"),
        ([{**output_item("a"), "name": "look up"}, answered("a")], 0, "names no function"),
        ([{**output_item("a"), "arguments": "{"}, answered("a")], 0, "JSON"),
        ([output_item("a"), {**answered("a"), "output": None}], 1, "missing"),
        ([HELLO, THOUGHT], 1, "not followed"),
        ([THOUGHT, HELLO], 0, "not followed"),
        ([THOUGHT, {**THOUGHT, "id": "rs_2"}, HELLO], 1, "not followed"),
        ([THOUGHT, HI, THOUGHT, HI], 2, "there already"),
        ([{**THOUGHT, "id": "th_1"}, HI], 0, "begin with rs"),
        ([{**THOUGHT, "encrypted_content": None}, HI], 0, "encrypted_content"),
        ([{**THOUGHT, "summary": None}, HI], 0, "summary"),
        ([{**HELLO, "content": [{"type": "input_image", "image_url": "data:image/png,hi"}]}], 0, "base64"),
        ([{**HELLO, "content": [{"type": "input_file", "filename": "a"}]}], 0, "one of"),
        ([{**HELLO, "content": [{"type": "input_file", "file_data": "data:a/b;base64,aGk="}]}], 0, "filename"),
    ],
)
def test_invalid_input_is_an_error_that_names_the_item(items: Any, index: int, reason: str) -> None:
    """Acceptance 25."""
    with pytest.raises(WireError, match=rf"input\[{index}\].*{reason}") as caught:
        check_responses(items)
    assert caught.value.index == index
