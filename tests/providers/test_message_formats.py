"""Conversations of other libraries as blocks and back: what each format carries, and what is refused, by its index."""

import json
from contextlib import suppress
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from hypothesis import given, strategies as st
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Citations,
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
from turnwise.memory.providers.openai_responses import pack_reasoning
from turnwise.transcripts import from_messages, to_messages

PNG = "iVBORw0KGgo="
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
CHAT: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "[error] away"},
    {"role": "assistant", "content": "Not here."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "And in this?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
        ],
    },
    {"role": "assistant", "content": "It stops [interrupted]"},
]
ITEMS: list[Any] = [
    {"type": "message", "role": "system", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}],
        "encrypted_content": "secret",
    },
    {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"a": 1}'},
    {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "more"},
    {"type": "function_call", "call_id": "c2", "name": "find", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "here"},
    {
        "type": "function_call_output",
        "call_id": "c2",
        "output": [
            {"type": "input_text", "text": "seen"},
            {"type": "input_image", "image_url": "https://a.b/c.png", "detail": "auto"},
        ],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Here."}]},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_file", "file_url": "https://a.b/c.pdf", "filename": "c.pdf"}],
    },
]
ANTHROPIC: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "Where?", "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "eHg="},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "find", "input": {"a": [1]}},
            {"type": "tool_use", "id": "c2", "name": "find", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": "away"},
            {
                "type": "tool_result",
                "tool_use_id": "c2",
                "content": [
                    {"type": "text", "text": "seen"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                ],
            },
            {"type": "text", "text": "Go on."},
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "one"}]},
                "title": "t",
                "citations": {"enabled": True},
            },
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "Here."}]},
]


@pytest.mark.parametrize(
    ("format", "messages", "back"),
    [
        ("openai_chat", CHAT, CHAT),
        ("openai_responses", ITEMS[:-1], ITEMS[:-1]),
        (
            "openai_responses",
            ITEMS,
            [*ITEMS[:-1], {**ITEMS[-1], "content": [{"type": "input_file", "file_url": "https://a.b/c.pdf"}]}],
        ),
        ("anthropic", ANTHROPIC, ANTHROPIC),
    ],
)
def test_messages_come_back_as_they_were(format: Any, messages: list[Any], back: list[Any]) -> None:
    blocks = from_messages(messages)
    messages_back = to_messages(blocks, format)
    assert (
        messages_back == back
        and messages_back.format == format
        and messages_back.left_out == {}
        and messages_back.system is None
    )
    assert from_messages(json.loads(json.dumps(messages)), format) == blocks
    assert from_messages(messages_back) == from_messages(back)


def test_blocks_come_back_from_each_format_that_has_them() -> None:
    picture = Image(data=PNG, media_type="image/png")
    blocks: list[Block] = [
        System(text="Be brief."),
        User(text="Where?"),
        ToolUse(call_id="c1", name="find", input={"a": {"b": None}}),
        ToolUse(call_id="c2", name="find"),
        ToolResult(call_id="c1", text="away", is_error=True),
        ToolResult(call_id="c2", text="here"),
        Text(text="There."),
        User(text="And here?"),
        picture,
        Text(text="It is cut", interrupted=True),
    ]
    for name in ("openai_chat", "openai_responses", "anthropic"):
        encoded = to_messages(blocks, name)
        assert from_messages(encoded, system=encoded.system) == blocks, name


def test_what_a_format_cannot_carry_is_counted() -> None:
    signed = Thinking(text="hm", signature=pack_reasoning("rs_1", "secret"))
    blocks: list[Block] = [
        User(text="one"),
        Summary(text="of old"),
        CacheCheckpoint(),
        signed,
        Thinking(text="plain"),
        Thinking(text="hm", signature="c2ln"),
        Text(text="two"),
        Citations(items=({"url": "x"},)),
        Unknown(stored_kind="new"),
    ]
    lost = {"citations": 1, "unknown": 1}
    assert to_messages(blocks, "openai_chat").left_out == {**lost, "thinking": 3, "cache_checkpoint": 1}
    assert to_messages(blocks, "openai_responses").left_out == {**lost, "thinking": 2, "cache_checkpoint": 1}
    assert to_messages(blocks, "anthropic").left_out == {**lost, "thinking": 2}
    encoded = to_messages([System(text="s"), *blocks], "anthropic")
    assert encoded.system == "s" and "of old" in encoded[0]["content"][1]["text"]


def test_objects_of_the_clients_are_read() -> None:
    answer = ChatCompletionMessage.model_validate({"role": "assistant", "content": "", "tool_calls": [CALL]})
    assert from_messages([CHAT[1], answer, CHAT[3], CHAT[4]]) == from_messages(CHAT[1:5])
    part = {"type": "output_text", "text": "Here.", "annotations": []}
    items = [
        ITEMS[1],
        ResponseReasoningItem.model_validate(ITEMS[2]),
        ResponseFunctionToolCall.model_validate(ITEMS[3]),
        ITEMS[6],
        ResponseOutputMessage.model_validate(
            {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        ),
    ]
    assert from_messages(items) == from_messages([*ITEMS[1:4], ITEMS[6], ITEMS[8]])
    about = {"id": "m", "type": "message", "model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}
    message = AnthropicMessage.model_validate({**about, **ANTHROPIC[3], "stop_reason": "end_turn"})
    assert from_messages([*ANTHROPIC[:3], message]) == from_messages(ANTHROPIC)


def test_items_of_unknown_kinds_are_kept_and_never_sent() -> None:
    search = {"type": "web_search_call", "id": "ws", "status": "completed"}
    blocks = from_messages([ITEMS[1], search, ITEMS[8]])
    assert blocks[1] == Unknown(stored_kind="openai_responses.web_search_call", payload=search)
    assert to_messages(blocks, "openai_responses") == [ITEMS[1], ITEMS[8]]
    used = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    kept_blocks = from_messages(
        [ANTHROPIC[0], {"role": "assistant", "content": [used, {"type": "text", "text": "found"}]}]
    )
    assert [block.kind for block in kept_blocks] == ["user", "cache_checkpoint", "unknown", "text"]


def test_several_system_prompts_become_one() -> None:
    blocks = from_messages([CHAT[0], CHAT[1], {"role": "developer", "content": "And polite."}], system="You are Al.")
    assert blocks == [System(text="You are Al.\n\nBe brief.\n\nAnd polite."), User(text="Where?")]


DEEP: Any = {}
for _ in range(150):
    DEEP = {"a": DEEP}

ODD: dict[str, tuple[list[Any], str, str]] = {
    "no list": ({"role": "user", "content": "hi"}, "messages=", "pass a list"),  # type: ignore[dict-item]
    "nothing": ([], "messages=", "at least one message"),
    "no dict": ([CHAT[1], 3], "messages[1]=", "must be an object"),
    "no role": ([{"content": "hi"}], "messages[0].role=", "must be system"),
    "blank": ([CHAT[1], CHAT[4], {"role": "user", "content": " "}], "messages[2]=", "leave the message out"),
    "says nothing": ([CHAT[1], {"role": "assistant", "content": None}], "messages[1]=", "leave the message out"),
    "no content": ([{"role": "user"}], "messages[0].content=None", "text or a list"),
    "open call": (CHAT[:3], "messages[2]=", "add the message with its result"),
    "orphan": ([CHAT[1], CHAT[3]], "messages[1]=", "add the message with the call"),
    "late": ([*CHAT[:3], CHAT[1], CHAT[3]], "messages[4]=", "right after the message with the call"),
    "twice": ([*CHAT[:4], CHAT[3]], "messages[4]=", "id of its own"),
    "thought alone": ([ITEMS[1], ITEMS[2]], "messages[1]=", "leave the thought out"),
    "bad arguments": (
        [CHAT[1], {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]}],
        "messages[1].tool_calls[0].function.arguments=",
        "JSON text of an object",
    ),
    "bad picture": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "nowhere"}}]}],
        "messages[0]=",
        "url is not valid",
    ),
    "old call": (
        [CHAT[1], {"role": "assistant", "function_call": {"name": "f"}}],
        "messages[1].function_call",
        "tool_calls",
    ),
    "a file of theirs": (
        [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}],
        "messages[0].content[0].file_id",
        "send file_data",
    ),
    "a reference": ([{"type": "item_reference", "id": "x"}], "messages[0]=", "send the item itself"),
    "mixed": ([CHAT[3], ITEMS[3]], "messages[1]=", "pass format="),
    "half a character": ([{"role": "user", "content": "\ud800"}], "messages[0]=", "not valid text"),
    "too deep": (
        [CHAT[1], {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": DEEP}]}],
        "messages[1]=",
        "nested more than",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_what_cannot_be_read_or_continued_is_named_by_its_index(case: str) -> None:
    messages, where, reason = ODD[case]
    with pytest.raises(InvalidInputError) as caught:
        from_messages(messages)
    assert where in str(caught.value) and reason in str(caught.value), str(caught.value)


def test_an_unknown_format_is_refused() -> None:
    for call in (lambda: from_messages(CHAT, "html"), lambda: to_messages([], "html")):  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="openai_responses"):
            call()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4) | st.sampled_from(["user", "text", "message"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "tool_calls", "function", "input", "source", "output", "id"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=3), st.sampled_from(["openai_chat", "openai_responses", "anthropic", None]))
def test_any_json_is_read_or_refused_by_its_index(messages: list[Any], format: Any) -> None:
    with suppress(InvalidInputError):
        assert from_messages(messages, format)
