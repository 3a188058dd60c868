from __future__ import annotations

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
from turnwise.memory.providers.anthropic import LOST, encode
from turnwise.memory.providers.openai_responses import pack_reasoning
from turnwise.testing.local_provider.message_rules import WireError, check_anthropic

HELLO = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
CACHED = {"cache_control": {"type": "ephemeral"}}
SIGNED = Thinking(text="Hm.", signature="EqoBCkgIARABGAIiQ")
UNSIGNED = Thinking(text="Hm.")
OF_RESPONSES = Thinking(text="Hm.", signature=pack_reasoning("rs_1", "gAAAAA=="))
BROKEN = Thinking(text="Hm.", signature=pack_reasoning("rs_1", ""))
REDACTED = Thinking(redacted="hidden")
SIGNED_ON_WIRE = {"type": "thinking", "thinking": "Hm.", "signature": "EqoBCkgIARABGAIiQ"}
REDACTED_ON_WIRE = {"type": "redacted_thinking", "data": "hidden"}
LOST_ON_WIRE = {"type": "redacted_thinking", "data": LOST}


def use(call_id: str, name: str = "look", **arguments: Any) -> ToolUse:
    return ToolUse(call_id=call_id, name=name, input=arguments)


def user_message(*call_ids: str) -> dict[str, Any]:
    content = [{"type": "tool_use", "id": call_id, "name": "look", "input": {}} for call_id in call_ids]
    return {"role": "assistant", "content": content}


def answered(*call_ids: str) -> dict[str, Any]:
    content = [{"type": "tool_result", "tool_use_id": call_id, "content": "seen"} for call_id in call_ids]
    return {"role": "user", "content": content}


def messages_of(*blocks: Block) -> list[dict[str, Any]]:
    return encode(blocks)[1]


def said_of(*blocks: Block) -> list[dict[str, Any]]:
    """Return the content of the assistant's message with these blocks, after adding results for its calls."""
    results = [ToolResult(call_id=block.call_id, text="seen") for block in blocks if isinstance(block, ToolUse)]
    messages = messages_of(User(text="Hello"), *blocks, *results, User(text="Well?"))
    check_anthropic(messages, thinking=False)
    return next((message["content"] for message in messages if message["role"] == "assistant"), [])


# Encoding


def test_a_summary_is_a_text_of_the_user_after_a_header() -> None:
    text = {"type": "text", "text": "[summary of the conversation so far]\nThey met."}
    (message,) = messages_of(Summary(text="They met.", of=(("1", 0, 9),)), User(text="Hello"))
    assert message["content"] == [text, {"type": "text", "text": "Hello"}]
    assert messages_of(Summary(text=" "), User(text="Hello")) == [HELLO]


def test_the_last_system_prompt_is_separate() -> None:
    """Acceptance 34."""
    assert encode([System(text="a"), User(text="Hello"), System(text="b")]) == ("b", [HELLO])
    assert encode([User(text="Hello")]) == (None, [HELLO])
    assert encode([System(text=" "), User(text="Hello")]) == (None, [HELLO])


def test_consecutive_prompts_are_one_message() -> None:
    (message,) = messages = messages_of(
        User(text="What is this?"),
        Image(url="https://example.org/cat.png"),
        Image(data="aGk=", media_type="image/png"),
        Document(name="a.pdf", data="aGk=", media_type="application/pdf"),
        Document(name="a.pdf", url="https://example.org/a.pdf"),
        Document(name="notes.txt", text="Buy milk."),
    )
    assert message["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/cat.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
            "title": "a.pdf",
        },
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}, "title": "a.pdf"},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Buy milk."},
            "title": "notes.txt",
        },
    ]
    check_anthropic(messages, thinking=False)


def test_thinking_comes_first_and_results_begin_the_next_message() -> None:
    """Acceptance 24."""
    messages = messages_of(
        User(text="Hello"),
        use("a", city="Zürich"),
        Text(text="Let me look."),
        Citations(items=({"url": "https://example.org"},)),
        SIGNED,
        use("b"),
        User(text="Well?"),
        ToolResult(call_id="b", text="rain"),
        Unknown(stored_kind="hologram"),
        ToolResult(call_id="a", text="no such city", is_error=True),
    )
    assert messages[1:] == [
        {
            "role": "assistant",
            "content": [
                SIGNED_ON_WIRE,
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "a", "name": "look", "input": {"city": "Zürich"}},
                {"type": "tool_use", "id": "b", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "no such city"},
                {"type": "tool_result", "tool_use_id": "b", "content": "rain"},
                {"type": "text", "text": "Well?"},
            ],
        },
    ]
    check_anthropic(messages, thinking=True)


def test_an_interrupted_text_is_marked() -> None:
    """Acceptance 20."""
    assert said_of(Text(text="The wea", interrupted=True)) == [{"type": "text", "text": "The wea [interrupted]"}]


@pytest.mark.parametrize("text", ["", " \n"])
@pytest.mark.parametrize(("is_error", "content"), [(True, {"is_error": True, "content": "[error]"}), (False, {})])
def test_a_blank_result_has_no_content_unless_it_is_an_error(
    text: str, is_error: bool, content: dict[str, Any]
) -> None:
    """Acceptance 27."""
    blocks = [User(text="Hello"), use("a"), ToolResult(call_id="a", text=text, is_error=is_error)]
    messages = messages_of(*blocks)
    assert messages[2]["content"] == [{"type": "tool_result", "tool_use_id": "a", **content}]
    check_anthropic(messages, thinking=False)


@pytest.mark.parametrize("silent", [Text(text=" "), SIGNED, UNSIGNED, Unknown(stored_kind="hologram")], ids=repr)
def test_an_empty_block_makes_no_message(silent: Block) -> None:
    """Acceptance 19."""
    messages = messages_of(User(text="Hello"), silent, User(text="Well?"), User(text=" "))
    assert {message["role"] for message in messages} == {"user"}
    assert [part["text"] for message in messages for part in message["content"]] == ["Hello", "Well?"]


# Thinking


@pytest.mark.parametrize(
    ("thoughts", "on_wire"),
    [
        ([SIGNED], [SIGNED_ON_WIRE]),
        ([SIGNED, REDACTED, SIGNED], [SIGNED_ON_WIRE, REDACTED_ON_WIRE, SIGNED_ON_WIRE]),
        ([Thinking(signature="EqoB")], [{"type": "thinking", "thinking": "", "signature": "EqoB"}]),
        ([UNSIGNED, SIGNED, OF_RESPONSES], [SIGNED_ON_WIRE]),
        ([UNSIGNED, REDACTED], [REDACTED_ON_WIRE]),
        ([UNSIGNED], [LOST_ON_WIRE]),
        ([Thinking(signature=pack_reasoning("rs_1", "gAAAAA=="))], [LOST_ON_WIRE]),
        ([OF_RESPONSES, BROKEN, UNSIGNED], [LOST_ON_WIRE]),
        ([Thinking()], []),
        ([], []),
    ],
)
def test_signed_thoughts_before_a_call_stay_and_unsigned_ones_become_a_placeholder(
    thoughts: list[Thinking], on_wire: list[dict[str, Any]]
) -> None:
    """Acceptance 26."""
    assert said_of(*thoughts, use("a")) == [*on_wire, *user_message("a")["content"]]
    assert said_of(use("a"), *thoughts) == [*on_wire, *user_message("a")["content"]]


@pytest.mark.parametrize("lost", [UNSIGNED, OF_RESPONSES, BROKEN], ids=repr)
def test_an_unsigned_thought_before_text_is_dropped(lost: Thinking) -> None:
    """Acceptance 26."""
    assert said_of(lost, Text(text="Hi")) == [{"type": "text", "text": "Hi"}]
    assert said_of(lost, SIGNED, Text(text="Hi")) == [SIGNED_ON_WIRE, {"type": "text", "text": "Hi"}]


@given(st.text(), st.text(min_size=1).filter(lambda text: not text.startswith("{")), st.text(min_size=1))
def test_an_opaque_signature_comes_back_unchanged(text: str, signature: str, hidden: str) -> None:
    """Acceptance 26."""
    thought, redacted, _ = said_of(Thinking(text=text, signature=signature), Thinking(redacted=hidden), Text(text="Hi"))
    assert thought == {"type": "thinking", "thinking": text, "signature": signature}
    assert redacted == {"type": "redacted_thinking", "data": hidden}


# Names, ids and checkpoints


def test_ids_of_other_providers_are_converted_with_their_results() -> None:
    """Acceptance 19: the conversation began with another engine."""
    calls = [use("functions.look:0", name="functions.look up!"), use("functions.look.0")]
    rounds = [*calls, *(ToolResult(call_id=call.call_id, text="seen") for call in calls)]
    messages = messages_of(User(text="Hello"), *rounds, *rounds)
    check_anthropic(messages, thinking=False)
    ids = [part["id"] for message in messages[1::2] for part in message["content"]]
    assert ids == ["functions_look_0", "functions_look_0_2", "functions_look_0_3", "functions_look_0_4"]
    assert [part["tool_use_id"] for message in messages[2::2] for part in message["content"]] == ids
    assert messages[1]["content"][0]["name"] == "functions_look_up_"


def test_the_part_before_a_checkpoint_is_marked() -> None:
    system, messages = encode(
        [
            System(text="Be brief."),
            CacheCheckpoint(),
            User(text="Hello"),
            SIGNED,
            CacheCheckpoint(),
            Text(text="Hi"),
            CacheCheckpoint(),
            CacheCheckpoint(),
            User(text="Well?"),
        ]
    )
    assert system == [{"type": "text", "text": "Be brief.", **CACHED}]
    assert [[CACHED.items() <= part.items() for part in message["content"]] for message in messages] == [
        [True],
        [False, True],
        [False],
    ]
    check_anthropic(messages, thinking=False)


def test_the_last_four_checkpoints_count() -> None:
    """Acceptance 19: the API refuses a fifth."""
    prompts = [block for number in range(6) for block in (User(text=str(number)), CacheCheckpoint())]
    system, messages = encode([System(text="Be brief."), CacheCheckpoint(), *prompts])
    assert system == "Be brief."
    assert [part["text"] for part in messages[0]["content"] if "cache_control" in part] == ["2", "3", "4", "5"]
    check_anthropic(messages, thinking=False)


def test_a_checkpoint_before_anything_is_dropped() -> None:
    assert encode([CacheCheckpoint(), User(text="Hello")]) == (None, [HELLO])


# What the API refuses


def model(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


HI = {"type": "text", "text": "Hi"}
USE = user_message("a")["content"][0]
RESULT = answered("a")["content"][0]


@pytest.mark.parametrize(
    ("messages", "thinking"),
    [
        ([HELLO], True),
        ([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, HELLO], True),
        ([HELLO, HELLO, user_message("a", "b"), answered("b", "a")], False),
        ([HELLO, user_message("a"), user(RESULT, HI)], False),
        ([HELLO, model(SIGNED_ON_WIRE, HI, USE), answered("a")], True),
        ([HELLO, model(REDACTED_ON_WIRE, USE), answered("a")], True),
        ([HELLO, user_message("a"), answered("a"), model(HI), HELLO], True),
    ],
)
def test_valid_messages_pass(messages: list[dict[str, Any]], thinking: bool) -> None:
    check_anthropic(messages, thinking)


def source(**fields: Any) -> dict[str, Any]:
    return user({"type": "image", "source": fields})


@pytest.mark.parametrize(
    ("messages", "index", "reason"),
    [
        ([], 0, "at least one"),
        ([{"role": "system", "content": "Be brief."}], 0, "role 'system'"),
        ([model(HI), HELLO], 0, "first"),
        ([HELLO, model(HI)], 1, "last"),
        ([HELLO, model(), HELLO], 1, "empty"),
        ([{"role": "user", "content": " "}], 0, "blank"),
        ([user({"type": "text", "text": " "})], 0, "blank"),
        ([user(USE)], 0, "tool_use"),
        ([HELLO, model(RESULT), HELLO], 1, "'a' follows no message"),
        ([user(SIGNED_ON_WIRE)], 0, "thinking"),
        ([HELLO, user_message("a")], 1, "'a' has no result"),
        ([HELLO, user_message("a"), HELLO], 1, "'a' has no result"),
        ([HELLO, user_message("a", "b"), answered("a")], 1, "'b' has no result"),
        ([HELLO, user_message("a", "b"), answered("a"), answered("b")], 1, "'b' has no result"),
        ([HELLO, user_message("a"), user_message("b"), answered("a", "b")], 1, "'a' has no result"),
        ([HELLO, user_message("a"), user(HI, RESULT)], 2, "before the other blocks"),
        ([HELLO, model(HI), answered("a")], 2, "'a' follows no message"),
        ([HELLO, user_message("a"), answered("a", "a")], 2, "'a' has a result already"),
        ([HELLO, user_message("a", "a"), answered("a")], 1, "unique"),
        ([HELLO, user_message("a"), answered("a"), user_message("a"), answered("a")], 3, "unique"),
        ([HELLO, user_message("a.b"), answered("a.b")], 1, "must match"),
        ([HELLO, user_message(""), answered("")], 1, "must match"),
        ([HELLO, model({**USE, "name": "look up"}), answered("a")], 1, "name"),
        ([HELLO, model({**USE, "input": "{}"}), answered("a")], 1, "no object"),
        ([HELLO, user_message("a"), user({**RESULT, "is_error": True, "content": ""})], 2, "no content"),
        ([HELLO, user_message("a"), user({**RESULT, "content": [{"type": "text", "text": ""}]})], 2, "blank"),
        ([HELLO, model(HI, SIGNED_ON_WIRE), HELLO], 1, "final block"),
        ([HELLO, model(HI, SIGNED_ON_WIRE, USE), answered("a")], 1, "begins with thinking"),
        ([HELLO, model({**SIGNED_ON_WIRE, "signature": None}, HI), HELLO], 1, "signature"),
        ([HELLO, model({**SIGNED_ON_WIRE, "signature": OF_RESPONSES.signature}, HI), HELLO], 1, "signature"),
        ([HELLO, model({**REDACTED_ON_WIRE, "data": ""}, HI), HELLO], 1, "data"),
        ([HELLO, model({**SIGNED_ON_WIRE, **CACHED}, HI), HELLO], 1, "cache_control"),
        ([user(*[{**HI, **CACHED}] * 5)], 0, "more than four"),
        ([source(type="url", url="http://example.org/cat.png")], 0, "https"),
        ([source(type="base64", media_type="image/bmp", data="aGk=")], 0, "image/bmp"),
        ([source(type="base64", media_type="image/png", data="hi!")], 0, "base64"),
        ([source(type="text", media_type="text/plain", data="hi")], 0, "no source"),
    ],
)
def test_invalid_messages_are_an_error_that_names_the_message(messages: Any, index: int, reason: str) -> None:
    """Acceptance 25."""
    with pytest.raises(WireError, match=rf"messages\[{index}\].*{reason}") as caught:
        check_anthropic(messages, thinking=False)
    assert caught.value.index == index


def test_with_thinking_the_message_before_the_last_results_begins_with_thinking() -> None:
    """Acceptance 25."""
    messages = [HELLO, model(HI, USE), answered("a")]
    check_anthropic(messages, thinking=False)
    with pytest.raises(WireError, match=r"messages\[1\].*begin with thinking, not text"):
        check_anthropic(messages, thinking=True)
