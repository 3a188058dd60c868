"""Contents beyond text: JSON payloads of tool results, and documents as bytes, text, URL or chunks."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from turnwise.memory.conversation.blocks import Document, ToolResult, User, decode, encode
from turnwise.memory.providers import anthropic, openai_chat, openai_responses
from turnwise.memory.tokens.counter import ByteCounter

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
    with pytest.raises(ValueError, match="utf-8"):
        Document.from_bytes("a.txt", b"\xff", "text/plain")


def test_a_document_of_chunks_has_one_text_and_survives_json() -> None:
    assert CHUNKS.plain == "Tea is 3.\n\nCoffee is 4." and CHUNKS.text is None
    assert decode(encode(CHUNKS)) == CHUNKS
    assert ByteCounter().count(CHUNKS) == ByteCounter().count(Document(name="prices", text=CHUNKS.plain))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "needs a url"),
        ({"text": "a", "chunks": ("b",)}, "either text or chunks"),
        ({"chunks": ("a", " ")}, "must not be blank"),
        ({"chunks": (b"a",)}, "valid string"),
    ],
)
def test_a_document_that_nobody_can_send_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Document(name="x", **fields)


def test_chunks_are_sent_as_each_provider_has_them() -> None:
    asked = [User(text="What is tea?"), CHUNKS]
    (message,) = anthropic.encode(asked)[1]
    assert message["content"][1] == {
        "type": "document",
        "source": {"type": "content", "content": [{"type": "text", "text": chunk} for chunk in CHUNKS.chunks]},
        "title": "prices",
        "citations": {"enabled": True},
    }
    assert "Tea is 3.\n\nCoffee is 4." in str(openai_chat.encode(asked)[0]["content"])
    assert CHUNKS.plain in openai_responses.encode(asked)[1][0]["content"][-1]["text"]
    plain = anthropic.encode([Document(name="a", text="b", cite=True)])[1][0]["content"][0]
    assert plain["source"]["data"] == "b" and plain["citations"] == {"enabled": True}
