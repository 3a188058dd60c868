"""Contents beyond text: JSON payloads of tool results, and documents as bytes, text, URL or chunks."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import pytest

import turnwise
from turnwise import transcripts
from turnwise.errors import UnsupportedBlockError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import (
    Block,
    Document,
    Image,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
    decode,
    encode,
)
from turnwise.memory.conversation.calls.tool_results import result_of, within
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.views.chat_messages import chat_messages_of
from turnwise.memory.longterm.turn_items import turn_item
from turnwise.memory.providers import anthropic, openai_chat, openai_responses
from turnwise.memory.providers.endpoints import PROFILES
from turnwise.memory.providers.validation import ANTHROPIC, BEDROCK, CHAT, RESPONSES
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.memory.tokens.index import TokenIndex
from turnwise.strategies.ranges import Range
from turnwise.strategies.summary_task import SummaryTask
from turnwise.strategies.window import Window
from turnwise.testing.local_provider.message_rules import WireError, check_anthropic, check_chat, check_responses

CHUNKS = Document(name="prices", chunks=("Tea is 3.", "Coffee is 4."), cite=True)


def test_a_result_has_its_json_payload() -> None:
    result = ToolResult(call_id="c", text='{"rows":[1,2.5,null]}', is_json=True)
    assert result.data == {"rows": (1, 2.5, None)}
    assert decode(encode(result)) == result
    assert ToolResult(call_id="c", text='{"rows":[]}').data is None, "a text that looks like JSON is a text"
    assert ToolResult(call_id="c", text='{"key": ***}', is_json=True).data is None


@pytest.mark.parametrize("text", ["3", '"x"', "[1]", "null"])
def test_a_payload_may_be_any_json(text: str) -> None:
    assert (
        ToolResult(call_id="c", text=text, is_json=True).data == {"3": 3, '"x"': "x", "[1]": (1,), "null": None}[text]
    )


def test_a_document_is_made_of_bytes() -> None:
    pdf = Document.from_bytes("a.pdf", b"%PDF-", "application/pdf", cite=True)
    assert (base64.b64decode(pdf.data or ""), pdf.media_type, pdf.cite) == (b"%PDF-", "application/pdf", True)
    assert Document.from_bytes("a.txt", "ü".encode(), "text/plain") == Document(name="a.txt", text="ü")
    assert Document.from_bytes("a.txt", b"\xff", "text/plain").text == "ÿ", "bytes that are no UTF-8 are Latin-1"


def test_a_document_of_chunks_has_one_text_and_survives_json() -> None:
    assert CHUNKS.plain == "Tea is 3.\n\nCoffee is 4." and CHUNKS.text is None
    assert decode(encode(CHUNKS)) == CHUNKS
    assert ByteCounter().count(CHUNKS) == ByteCounter().count(Document(name="prices", text=CHUNKS.plain))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "needs a url"),
        ({"text": "a", "chunks": ("b",)}, "either text or chunks"),
        ({"chunks": ("a", " ")}, "must not be blank"),
        ({"chunks": (b"a",)}, "valid string"),
    ],
)
def test_a_document_that_nobody_can_send_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Document(name="x", **fields)


def test_chunks_are_sent_as_each_provider_has_them() -> None:
    blocks = [User(text="What is tea?"), CHUNKS]
    (message,) = anthropic.encode(blocks)[1]
    assert message["content"][1] == {
        "type": "document",
        "source": {"type": "content", "content": [{"type": "text", "text": chunk} for chunk in CHUNKS.chunks]},
        "title": "prices",
        "citations": {"enabled": True},
    }
    assert "Tea is 3.\n\nCoffee is 4." in str(openai_chat.encode(blocks)[0]["content"])
    assert CHUNKS.plain in openai_responses.encode(blocks)[1][0]["content"][-1]["text"]
    plain = anthropic.encode([Document(name="a", text="b", cite=True)])[1][0]["content"][0]
    assert plain["source"]["data"] == "b" and plain["citations"] == {"enabled": True}


# Images and documents in tool results

PNG = Image.from_bytes(b"\x89PNG", "image/png")
PDF = Document.from_bytes("a.pdf", b"%PDF-", "application/pdf")
TIFF = Image.from_bytes(b"II", "image/tiff")
USE = ToolUse(call_id="c", name="look")


def answered(*content: Any, is_error: bool = False) -> list[Block]:
    """Return a conversation whose only tool result has this content."""
    result = result_of("c", content[0] if len(content) == 1 else list(content))
    assert result
    return [
        User(text="Look."),
        USE,
        result.model_copy(update={"is_error": is_error}),
        Text(text="Done."),
        User(text="?"),
    ]


def test_the_return_value_of_a_tool_is_read_as_text_payload_and_blocks() -> None:
    assert result_of("c", "text") is None and result_of("c", [1, 2]) is None and result_of("c", []) is None
    assert result_of("c", PNG) == ToolResult(call_id="c", text="", blocks=(PNG,))
    mixed = result_of("c", ["one", Text(text="two"), PNG, "three", PDF])
    assert mixed == ToolResult(call_id="c", text="one\ntwo", blocks=(PNG, Text(text="three"), PDF))
    result = result_of("c", ToolResult.of({"rows": [1]}, PNG))
    assert result and (result.call_id, result.data, result.blocks) == ("c", {"rows": (1,)}, (PNG,))
    assert decode(encode(result)) == result and pickle.loads(pickle.dumps(result)) == result
    assert ToolResult.of("x").text == "x" and not ToolResult.of("x").is_json


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([PNG, Thinking(text="Hm.")], "item 1 is a Thinking"),
        ([PNG, 3], "item 1 is a int"),
        (USE, "item 0 is a ToolUse"),
        ([Image(data="%%%", media_type="image/png")], r"the image \(image/png\): its data is not base64"),
        ([PNG, "\ud800"], "surrogates"),
    ],
)
def test_contents_that_no_result_may_have_are_named(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        result_of("c", value)


def test_long_texts_of_a_result_are_cut_and_large_files_left_out() -> None:
    long = Document(name="a.txt", text="x" * 8)
    cut = within(ToolResult.of({"a": 1}, Text(text="yyyy"), long, PNG, PDF), 13, len(PNG.data or ""))
    assert (cut.text, cut.is_json) == ('{"a":1}', True)
    first, second, third, fourth = cut.blocks
    assert first == Text(text="yyyy") and third == PNG
    assert second == Text(text="a.txt:\nxx\n[cut: these are the first 2 of 8 characters]")
    assert isinstance(fourth, Text) and "a.pdf (application/pdf) is left out" in fourth.text
    assert "max_result_bytes=8" in fourth.text
    assert within(ToolResult.of([1, 2, 3]), 3, 1).data is None, "half a payload is none"


def test_a_result_reads_as_text_where_only_text_is_shown() -> None:
    result = ToolResult.of("Seen:", PNG, CHUNKS, Text(text="that is all"))
    assert result.plain == "Seen:\n[image (image/png)]\nprices:\nTea is 3.\n\nCoffee is 4.\nthat is all"
    item = turn_item("s", None, (Span("1", 0, 2),), [USE, result.model_copy(update={"call_id": "c"})])
    assert item and "Coffee is 4." in item.text and "[image (image/png)]" in item.text
    record = TurnRecord(index=0, prompt=(Span("1", 0, 1),), output=(Span("1", 1, 3),))
    messages = chat_messages_of("s", record, None, [User(text="?")], [USE, result])
    assert messages[-1].text == result.plain and messages[-1].blocks == (result,)


def test_blocks_of_results_are_counted() -> None:
    for counter in (ByteCounter(), ByteCounter("gpt-4o")):
        alone = counter.count(ToolResult(call_id="c", text="x"))
        total = counter.count(ToolResult(call_id="c", text="x", blocks=(PNG, CHUNKS)))
        assert total == alone + counter.count(PNG) + counter.count(CHUNKS)


def test_anthropic_gets_the_blocks_within_the_result() -> None:
    messages = anthropic.encode(answered("Seen:", PNG, "  ", PDF))[1]
    check_anthropic(messages, thinking=False)
    (result,) = messages[2]["content"]
    assert [part["type"] for part in result["content"]] == ["text", "image", "document"]
    assert result["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG.data}
    assert "is_error" not in result
    (failed,) = anthropic.encode(answered("no", PNG, is_error=True))[1][2]["content"]
    assert "is_error" not in failed and failed["content"][0]["text"] == "[error] no"
    (failed,) = anthropic.encode(answered(Text(text="no"), is_error=True))[1][2]["content"]
    assert failed["is_error"] is True and failed["content"] == "no"


def test_responses_get_a_list_as_the_output() -> None:
    items = openai_responses.encode(answered("Seen:", PNG, PDF, "that is all"))[1]
    check_responses(items)
    (output,) = [item["output"] for item in items if item["type"] == "function_call_output"]
    assert [part["type"] for part in output] == ["input_text", "input_image", "input_file", "input_text"]
    (plain,) = [item["output"] for item in openai_responses.encode(answered("a", CHUNKS))[1] if "output" in item]
    assert plain == "a\n\nprices:\nTea is 3.\n\nCoffee is 4.", "texts alone are one text"


@pytest.mark.parametrize("name", ["openai", "mistral"])
def test_chat_gets_files_of_all_results_in_one_message_after_them(name: str) -> None:
    """A tool's message takes text only, and each call must have its result before any other message."""
    results = [
        ToolResult(call_id="c", text="Seen:", blocks=(PNG, CHUNKS)),
        ToolResult(call_id="d", text="", blocks=(PDF,)),
    ]
    blocks = [User(text="Look."), USE, ToolUse(call_id="d", name="look"), *results, Text(text="Done."), User(text="?")]
    messages = openai_chat.encode(blocks, PROFILES[name])
    check_chat(messages)
    roles = [message["role"] for message in messages]
    roles_between = ["assistant"] * PROFILES[name].answers_results
    assert roles == ["user", "assistant", "tool", "tool", *roles_between, "user", "assistant", "user"]
    first, second = messages[2:4]
    assert first["content"].startswith("Seen:\n\n[image (image/png): in the next message]\n\nprices:\nTea is 3.")
    assert second["content"] == "[document a.pdf (application/pdf): in the next message]"
    shown = messages[4 + len(roles_between)]["content"]
    assert [part["type"] for part in shown] == ["text", "image_url", "text", "file"]
    assert shown[0]["text"].startswith("[image (image/png) of the result of call ")
    assert openai_chat.encode(blocks[:-2], PROFILES[name]) == messages[:-2], "a longer conversation begins the same"


@pytest.mark.parametrize("provider", ["chat", "responses", "anthropic", "bedrock"])
def test_a_result_that_the_provider_does_not_take_is_refused_before_it_is_sent(provider: Any) -> None:
    with_tiff = answered("Seen:", PNG, TIFF)
    for refuse in (turnwise.validate, transcripts.encode):
        with pytest.raises(UnsupportedBlockError, match=r"block 0 \(unsupported\).*data of image/tiff") as error:
            refuse(with_tiff, provider=provider)
        assert error.value.index == 2
    rules = {"chat": CHAT, "responses": RESPONSES, "anthropic": ANTHROPIC, "bedrock": BEDROCK}[provider]
    spared = rules.spare(with_tiff)
    turnwise.validate(spared, provider=provider)
    (result,) = [block for block in spared if isinstance(block, ToolResult)]
    assert result.blocks[0] == PNG and "is left out" in result.plain and "image/tiff" in result.plain
    assert rules.spare(answered(PNG)) == tuple(answered(PNG))


@pytest.mark.parametrize(
    ("check", "message", "reason"),
    [
        (check_chat, {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url"}]}, "text only"),
        (check_responses, {"type": "function_call_output", "call_id": "c", "output": []}, "empty"),
        (
            check_responses,
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "output_text", "text": "x"}]},
            "output_text",
        ),
        (
            check_responses,
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]},
            "no image_url",
        ),
    ],
)
def test_the_stand_in_provider_has_these_rules_of_its_own(check: Any, message: Any, reason: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    item = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    before = {"role": "assistant", "content": None, "tool_calls": [call]} if check is check_chat else item
    with pytest.raises(WireError, match=reason):
        check([before, message])


def test_the_stand_in_anthropic_takes_no_mark_of_an_error_beside_an_image() -> None:
    messages = anthropic.encode(answered("no", PNG, is_error=True))[1]
    check_anthropic(messages, thinking=False)
    messages[2]["content"][0]["is_error"] = True
    with pytest.raises(WireError, match="a failed result has text only"):
        check_anthropic(messages, thinking=False)


def test_a_request_for_a_summary_shows_the_contents_of_results() -> None:
    blocks = [User(text="Look."), USE, ToolResult(call_id="c", text="Seen:", blocks=(PNG, CHUNKS)), Text(text="Tea.")]
    cache, counter = BlockCache(), ByteCounter()
    cache.add("1", 0, blocks)
    window = Window((Span("1", 0, len(blocks)),), cache, TokenIndex(counter))
    task = SummaryTask(ranges=(Range(0, len(blocks)),), max_tokens=100, model=None)
    shown = task.request(window)
    assert PNG in shown and CHUNKS not in shown
    assert "Coffee is 4." in "".join(block.text for block in shown if isinstance(block, User))
