"""Blocks as LangChain's messages, and back."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from turnwise.adapters import from_langchain, to_langchain
from turnwise.adapters.langgraph.messages import Converter, usage_metadata, usage_of
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.blocks import (
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
)
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.frozen_json import freeze

PIXEL = Image(data="iVBORw0KGgo=", media_type="image/png")
PDF = Document(name="a.pdf", data="JVBERi0=", media_type="application/pdf")


def use(call_id: str, name: str = "look", **arguments: Any) -> ToolUse:
    return ToolUse(call_id=call_id, name=name, input=freeze(arguments))


def result(call_id: str, text: str = "seen", **fields: Any) -> ToolResult:
    return ToolResult(call_id=call_id, text=text, **fields)


CONVERSATIONS: dict[str, list[Block]] = {
    "texts": [System(text="Be brief."), User(text="hi"), Text(text="hello"), User(text="more"), User(text="and more")],
    "no text": [User(text=""), Text(text="")],
    "images": [User(text="this:"), PIXEL, Image(url="https://a.example/b.png"), User(text="ok?"), Text(text="yes")],
    "image with all fields": [Image(url="https://a.example/b.png", data="iVBORw0KGgo=", media_type="image/png")],
    "documents": [
        User(text="read"),
        PDF,
        Document(name="b", url="https://a.example/b.pdf", media_type="application/pdf"),
        Document(name="c", text="plain\ntext", cite=True),
        Document(name="d", chunks=("one", "two"), cite=True),
        Document(name="e", data="JVBERi0=", media_type="application/pdf", text="its text", cite=True),
        Text(text="done"),
    ],
    "calls": [
        User(text="go"),
        Text(text="I look."),
        use("1", where=["here", {"deep": (1, 2.5, None, True)}]),
        use("2", "find"),
        result("1"),
        result("2", "broken", is_error=True),
        Text(text="found"),
    ],
    "results": [
        User(text="go"),
        *(use(str(number)) for number in range(5)),
        result("0", '{"a": 1}', is_json=True),
        result("1", "", blocks=(PIXEL,)),
        result("2", "two", blocks=(Text(text="more"), PIXEL, PDF)),
        result("3", "", blocks=(Text(text="only a part"),)),
        result("4", "", blocks=(Document(name="n", text="note"),)),
        User(text="and now?"),
        Text(text="ok"),
    ],
    "thoughts": [
        User(text="go"),
        Thinking(text="Hm."),
        Thinking(text="Signed.", signature="c2lnbmVk"),
        Thinking(redacted="c2VjcmV0"),
        Thinking(text="Other.", signature='{"provider":"openrouter","reasoning_details":[]}'),
        Text(text="ok"),
        use("1"),
        result("1"),
        Text(text="done"),
    ],
    "signed call": [
        User(text="go"),
        ToolUse(call_id="1", name="look", signature="s"),
        use("2"),
        result("1"),
        result("2"),
    ],
    "cut text": [User(text="go"), Text(text="I was", interrupted=True), User(text="go on"), Text(text="[interrupted]")],
    "citations": [
        User(text="go"),
        Text(text="one"),
        Citations(items=freeze([{"type": "citation", "url": "https://a.example"}, {"type": "page", "at": 3}])),
        Text(text="two"),
    ],
    "kinds of ours": [
        Summary(text="before", of=(("log", 0, 4),), folded=(("log", 2),)),
        Recalled(text="you like tea"),
        User(text="go"),
        CacheCheckpoint(),
        Text(text="ok"),
        CacheCheckpoint(),
        Unknown(stored_kind="later", payload=freeze({"a": [1]})),
        User(text="again"),
        use("1"),
        result("1"),
        CacheCheckpoint(),
        Text(text="done"),
    ],
    "first a checkpoint": [System(text="s"), CacheCheckpoint(), User(text="go"), PIXEL, CacheCheckpoint()],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_blocks_come_back_as_they_were_also_from_a_checkpoint(name: str) -> None:
    blocks = CONVERSATIONS[name]
    messages = to_langchain(blocks)
    assert from_langchain(messages) == blocks
    serde = JsonPlusSerializer()
    assert from_langchain(serde.loads_typed(serde.dumps_typed(messages))) == blocks


def test_messages_are_what_langchain_expects() -> None:
    blocks = CONVERSATIONS["calls"]
    assert to_langchain(blocks) == [
        HumanMessage("go"),
        AIMessage(
            "I look.",
            tool_calls=[
                {"name": "look", "args": {"where": ["here", {"deep": [1, 2.5, None, True]}]}, "id": "1"},
                {"name": "find", "args": {}, "id": "2"},
            ],
        ),
        ToolMessage("seen", tool_call_id="1", name="look"),
        ToolMessage("broken", tool_call_id="2", name="find", status="error"),
        AIMessage("found"),
    ]
    (message,) = to_langchain([User(text="this"), PIXEL, PDF])
    assert message.content == [
        {"type": "text", "text": "this"},
        {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
        {"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf", "extras": {"filename": "a.pdf"}},
    ]


def test_each_conversion_of_a_conversation_makes_messages_of_its_own() -> None:
    converter, blocks = Converter(), CONVERSATIONS["calls"]
    first = converter.messages(blocks)
    longer = [*blocks, User(text="more"), Text(text="yes")]
    second = converter.messages(longer)
    assert (first, second) == (to_langchain(blocks), to_langchain(longer))
    first[0].content = "changed by a graph"
    assert second[0].content == "go" == converter.messages(longer)[0].content


MESSAGES: dict[str, tuple[list[Any], list[Block]]] = {
    "pairs and dicts": (
        [("system", "s"), ("user", "hi"), {"role": "assistant", "content": "hello"}],
        [System(text="s"), User(text="hi"), Text(text="hello")],
    ),
    "OpenAI's images": (
        [HumanMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}])],
        [PIXEL],
    ),
    "Anthropic's thoughts and calls": (
        [
            AIMessage(
                [
                    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                    {"type": "redacted_thinking", "data": "eHg="},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "1", "name": "look", "input": {"a": 1}},
                ],
                tool_calls=[{"name": "look", "args": {"a": 1}, "id": "1"}],
                response_metadata={"model_provider": "anthropic"},
            )
        ],
        [
            Thinking(text="Hm.", signature="c2ln"),
            Thinking(redacted="eHg="),
            Text(text="I look."),
            use("1", a=1),
        ],
    ),
    "reasoning beside the content": (
        [AIMessage("42", additional_kwargs={"reasoning_content": "6 times 7"})],
        [Thinking(text="6 times 7"), Text(text="42")],
    ),
    "arguments that are no JSON": (
        [AIMessage("", invalid_tool_calls=[{"name": "look", "args": "{", "id": "1", "error": None}])],
        [ToolUse(call_id="1", name="look", input=freeze({"unparsed": "{"}))],
    ),
    "calls without ids": (
        [AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": None}]), ToolMessage("seen", tool_call_id="")],
        [use("call_1"), result("call_1")],
    ),
    "edited content": (
        [to_langchain([User(text="a"), CacheCheckpoint(), Recalled(text="b")])[1].model_copy(update={"content": []})],
        [],
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_langchain_and_its_providers_become_blocks(name: str) -> None:
    messages, blocks = MESSAGES[name]
    assert from_langchain(messages) == blocks


def test_reasoning_goes_back_to_its_provider_unchanged() -> None:
    part = {"type": "reasoning", "id": "rs_1", "reasoning": "Hm.", "extras": {"encrypted_content": "x"}}
    message = AIMessage(
        [part, {"type": "text", "text": "ok"}],
        response_metadata={"output_version": "v1", "model_provider": "openai"},
    )
    thought, text = from_langchain([message])
    (back,) = to_langchain([thought, text])
    assert back.content == message.content and back.response_metadata == message.response_metadata


def test_content_that_no_block_has_is_kept() -> None:
    called = {"type": "server_tool_call", "id": "1", "name": "web_search", "args": {"query": "x"}}
    message = AIMessage([called, {"type": "text", "text": "ok"}], response_metadata={"output_version": "v1"})
    assert from_langchain([message]) == [
        Unknown(stored_kind="langchain", payload=freeze({"part": called})),
        Text(text="ok"),
    ]


def test_usage_is_counted_as_langchain_counts_it() -> None:
    usage = Usage(input_tokens=10, output_tokens=5, cached_tokens=4, reasoning_tokens=2, calls=1)
    assert usage_of(AIMessage("ok", usage_metadata=usage_metadata(usage))) == usage
    assert usage_of(AIMessage("ok")) is None and usage_of(HumanMessage("ok")) is None


@pytest.mark.parametrize("wrong", [RemoveMessage(id="1"), {"role": "nobody", "content": "x"}, 3, ("user", 3)])
def test_a_message_that_cannot_be_read_is_named_by_its_index(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"messages\[1\]"):
        from_langchain([SystemMessage("s"), wrong])


def test_each_message_has_its_own_kind() -> None:
    kinds = [type(message) for message in to_langchain(CONVERSATIONS["thoughts"])]
    expected: list[type[BaseMessage]] = [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert kinds == expected


def test_prompts_that_were_not_answered_stay_messages_of_their_own() -> None:
    messages = to_langchain([User(text="rude"), User(text="look"), PIXEL, User(text="again")])
    assert [message.text for message in messages] == ["rude", "look", "again"]
