"""`validate` and `encode`, as callers use them who send a conversation themselves."""

from __future__ import annotations

from typing import Any

import pytest

import turnwise
from turnwise.errors import InvalidInputError, InvalidRequestError, UnsupportedBlockError
from turnwise.memory.conversation.blocks import (
    Block,
    Document,
    Image,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.testing.local_provider.message_rules import check_anthropic, check_chat, check_responses
from turnwise.transcripts import Message, encode, messages_of

HELLO, USE = User(text="Hello"), ToolUse(call_id="a", name="look")
SEEN, DONE, AGAIN = ToolResult(call_id="a", text="seen"), Text(text="Done."), User(text="Again")
HM = Thinking(text="Hm.", signature="EqoB")
THOUGHT = [System(text="Be brief."), HELLO, HM, USE, SEEN, DONE, AGAIN]
UNTHOUGHT = [HELLO, Text(text="I look."), USE, SEEN, DONE, AGAIN]
PROVIDERS: list[Any] = ["chat", "responses", "anthropic", "bedrock"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_valid_conversation_is_accepted_as_blocks_and_as_messages(provider: Any) -> None:
    turnwise.validate(THOUGHT, provider=provider, thinking=True)
    turnwise.validate(messages_of(THOUGHT), provider=provider, thinking=True)


@pytest.mark.parametrize("provider", ["anthropic", "bedrock"])
def test_with_thinking_a_message_that_calls_tools_must_begin_with_a_thought(provider: Any) -> None:
    turnwise.validate(UNTHOUGHT, provider=provider)
    with pytest.raises(InvalidRequestError, match=r"messages\[1\].*begin with a thinking.*text, tool_use") as caught:
        turnwise.validate(UNTHOUGHT, provider=provider, thinking=True)
    assert (caught.value.index, caught.value.kind) == (1, "thinking_missing")
    late = [Message("user", (HELLO,)), Message("assistant", (USE, HM)), Message("user", (SEEN,))]
    with pytest.raises(InvalidRequestError) as caught:
        turnwise.validate(late, provider=provider, thinking=True)
    assert caught.value.kind == "thinking_late"


@pytest.mark.parametrize("provider", ["chat", "responses"])
def test_other_providers_have_no_rule_about_thinking(provider: Any) -> None:
    turnwise.validate(UNTHOUGHT, provider=provider, thinking=True)


def test_more_results_than_calls_are_refused() -> None:
    twice = [HELLO, HM, USE, SEEN, ToolResult(call_id="b", text="seen")]
    with pytest.raises(InvalidRequestError, match="no call 'b'"):
        turnwise.validate(twice, provider="bedrock", thinking=True)


def test_bedrock_fetches_no_urls() -> None:
    pictures: list[Block] = [Image(url="https://a.example/b.png"), Document(name="c", url="https://a.example/c.pdf")]
    turnwise.validate([HELLO, *pictures], provider="anthropic")
    for picture in pictures:
        with pytest.raises(UnsupportedBlockError, match="Bedrock"):
            turnwise.validate([HELLO, picture], provider="bedrock")


def test_bad_arguments_are_refused() -> None:
    wrong: Any = [
        ({"role": "user"}, "chat", r"messages\[0\]"),
        (HELLO, "cohere", "provider"),
        (HELLO, None, "provider"),
    ]
    for block, provider, field in wrong:
        with pytest.raises(InvalidInputError, match=field):
            turnwise.validate([block], provider=provider)
    mixed: Any = [Message("user", (HELLO,)), USE]
    with pytest.raises(InvalidInputError, match=r"messages\[1\]"):
        turnwise.validate(mixed, provider="chat")
    with pytest.raises(InvalidRequestError, match="nothing to send"):
        turnwise.validate([], provider="chat")


def test_encode_makes_the_fields_of_a_request() -> None:
    chat, responses = encode(THOUGHT, provider="chat"), encode(THOUGHT, provider="responses")
    check_chat(chat["messages"])
    check_responses(responses["input"])
    assert chat["messages"][0] == {"role": "system", "content": "Be brief."}
    assert responses["instructions"] == "Be brief."
    for provider in PROVIDERS[2:]:
        body = encode(THOUGHT, provider=provider, thinking=True)
        assert body["system"] == "Be brief."
        check_anthropic(body["messages"], thinking=True)
    with pytest.raises(InvalidRequestError):
        encode(UNTHOUGHT, provider="anthropic", thinking=True)
