from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from turnwise.errors import EngineError
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
    decode as decode_block,
    encode as encode_block,
)
from turnwise.memory.conversation.model_params import PARAMS
from turnwise.memory.providers.endpoints import (
    CHAT_ONLY,
    LESSONS,
    OPENAI,
    PROFILES,
    lessons_of,
    pack_attached,
    profile_of,
    taught,
    unpack_attached,
)
from turnwise.memory.providers.openai_chat import decode, encode
from turnwise.testing.local_provider.message_rules import WireError, check_chat

HELLO = {"role": "user", "content": "Hello"}


def use(call_id: str, name: str = "look", **arguments: Any) -> ToolUse:
    return ToolUse(call_id=call_id, name=name, input=arguments)


def calls_message(*calls: str) -> dict[str, Any]:
    """Return the assistant message that makes these calls."""
    (message,) = encode([use(call) for call in calls])
    return message


CALL = calls_message("a")["tool_calls"][0]


def answered(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "seen"}


# Encoding


def test_only_the_last_system_prompt_is_sent_first() -> None:
    """Acceptance 34."""
    blocks = [System(text="Be brief."), User(text="Hello"), System(text="Be long.")]
    assert encode(blocks) == [{"role": "system", "content": "Be long."}, HELLO]


def test_one_prompt_is_a_plain_string() -> None:
    assert encode([User(text="Hello")]) == [HELLO]


def test_a_prompt_is_one_message_of_parts() -> None:
    blocks = [
        User(text="What is this?"),
        Image(url="https://example.org/cat.png"),
        Image(data="aGk=", media_type="image/png"),
        Document(name="a.pdf", data="aGk=", media_type="application/pdf"),
        Document(name="notes.txt", text="Buy milk."),
    ]
    (message,) = encode(blocks)
    assert message == {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
            {"type": "text", "text": "notes.txt:\nBuy milk."},
        ],
    }
    check_chat([message])


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Document, {"name": "a.pdf"}),
        (Document, {"name": "a.pdf", "data": "aGk="}),
        (Image, {"data": "aGk="}),
        (Image, {}),
    ],
)
def test_an_unsendable_image_or_document_cannot_be_created(kind: type[Block], fields: dict[str, str]) -> None:
    """Acceptance 19: in a history it would make every later request invalid."""
    with pytest.raises(ValueError, match=r"needs a url|needs its media_type"):
        kind(**fields)


def test_a_document_with_only_a_url_is_sent_as_text() -> None:
    messages = encode([User(text="Read this."), Document(name="a.pdf", url="https://example.org/a.pdf")])
    check_chat(messages)
    assert messages[0]["content"] == "Read this.\n\na.pdf:\nhttps://example.org/a.pdf"


def test_a_summary_is_a_text_of_the_user_after_a_header() -> None:
    summary, prompt = Summary(text="They met.", of=(("1", 0, 9),)), User(text="Hello")
    text = "[summary of the conversation so far]\nThey met."
    assert encode([summary, prompt]) == [{"role": "user", "content": f"{text}\n\nHello"}]
    assert encode([summary]) == [{"role": "user", "content": text}]
    assert encode([Summary(text="")]) == []


def test_an_answer_is_one_message_followed_by_its_results_in_order() -> None:
    """Acceptance 24."""
    blocks = [
        User(text="Hello"),
        Thinking(text="Hm."),
        Text(text="Let me "),
        Citations(items=({"url": "https://example.org"},)),
        Text(text="look."),
        use("a", city="Paris"),
        CacheCheckpoint(),
        use("b"),
        ToolResult(call_id="b", text="rain"),
        Unknown(stored_kind="hologram"),
        ToolResult(call_id="a", text="sun"),
        Text(text="Sun."),
    ]
    messages = encode(blocks)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[1]["content"] == "Let me look."
    calls = messages[1]["tool_calls"]
    assert [call["id"] for call in calls] == ["a", "b"]
    assert calls[0]["type"] == "function"
    assert calls[0]["function"]["name"] == "look"
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris"}
    assert [(message["tool_call_id"], message["content"]) for message in messages[2:4]] == [("a", "sun"), ("b", "rain")]
    check_chat(messages)


def test_an_interrupted_text_is_marked() -> None:
    """Acceptance 20."""
    assert encode([Text(text="The wea", interrupted=True)])[0]["content"] == "The wea [interrupted]"


def test_an_error_result_is_marked() -> None:
    """Acceptance 27."""
    message = encode([use("a"), ToolResult(call_id="a", text="no such city", is_error=True)])[1]
    assert message == {"role": "tool", "tool_call_id": "a", "content": "[error] no such city"}


@pytest.mark.parametrize(
    "silent",
    [Text(text=""), Text(text="", interrupted=True), Thinking(text="Hm."), Unknown(stored_kind="hologram")],
    ids=repr,
)
def test_an_empty_block_makes_no_message(silent: Block) -> None:
    """Acceptance 19."""
    messages = encode([User(text="Hello"), silent, User(text="Well?")])
    assert messages == [HELLO, {"role": "user", "content": "Well?"}]


def test_a_text_beside_an_image_is_a_part() -> None:
    (message,) = encode([User(text="Look:"), Image(url="https://example.org/cat.png")])
    assert [part["type"] for part in message["content"]] == ["text", "image_url"]


# What a server's profile says

DEEPSEEK, GEMINI, OPENROUTER = PROFILES["deepseek"], PROFILES["gemini"], PROFILES["openrouter"]
CALLED = [User(text="Weather?"), Thinking(text="Let me look."), use("a"), ToolResult(call_id="a", text="Sun")]
CALLED_AGAIN = [*CALLED, use("b"), ToolResult(call_id="b", text="Rain"), Thinking(text="So."), Text(text="Mixed.")]


def test_thoughts_are_sent_with_their_calls_to_servers_that_require_them() -> None:
    _, first, _, second, _, answer = encode(CALLED_AGAIN, DEEPSEEK)
    assert first["reasoning_content"] == "Let me look."
    assert second["reasoning_content"] == ""  # it has to be there
    assert "reasoning_content" not in answer
    assert all("reasoning_content" not in message for message in encode(CALLED_AGAIN))


def test_without_thoughts_none_are_sent() -> None:
    silent = [block for block in CALLED_AGAIN if not isinstance(block, Thinking)]
    assert all("reasoning_content" not in message for message in encode(silent, DEEPSEEK))


def test_attached_data_is_sent_back_to_its_provider_only() -> None:
    extra = {"google": {"thought_signature": "AY89a1/=="}}
    call = use("a").model_copy(update={"signature": pack_attached("gemini", extra_content=extra)})
    blocks = [User(text="Weather?"), call, ToolResult(call_id="a", text="Sun")]
    assert encode(blocks, GEMINI)[1]["tool_calls"][0]["extra_content"] == extra
    for profile in (OPENAI, OPENROUTER):
        assert "extra_content" not in encode(blocks, profile)[1]["tool_calls"][0]


def test_reasoning_details_of_openrouter_are_sent_back_unchanged() -> None:
    details = [{"type": "reasoning.encrypted", "data": "gAAAA", "id": "rs_1", "format": "openai-responses-v1"}]
    thought = Thinking(text="Hm.", signature=pack_attached("openrouter", reasoning_details=details))
    blocks = [User(text="Weather?"), thought, Text(text="Sun.")]
    assert encode(blocks, OPENROUTER)[1]["reasoning_details"] == details
    assert "reasoning_details" not in encode(blocks, GEMINI)[1]


@pytest.mark.parametrize("signature", [None, "", "EqoBCkg", '{"provider":', '{"provider":"gemini"}', '{"id":"rs_1"}'])
def test_other_signatures_are_not_attachments(signature: str | None) -> None:
    assert unpack_attached(signature, "gemini", "extra_content") is None


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("api.deepseek.com", "deepseek"),
        ("my-company.openai.azure.com", "azure"),
        ("eu-west4-aiplatform.googleapis.com", "gemini"),
        ("127.0.0.1", "127.0.0.1"),
        ("notapi.mistral.ai.example.org", "notapi.mistral.ai.example.org"),
    ],
)
def test_the_host_chooses_the_profile_unless_it_is_named(host: str, name: str) -> None:
    assert profile_of(None, host).name == name
    assert profile_of("vllm", host) is PROFILES["vllm"]


def test_each_profile_has_a_source() -> None:
    assert all(profile.source.startswith("https://") for profile in PROFILES.values())


def test_each_parameter_that_a_server_lacks_is_one_of_runs() -> None:
    names = {*PARAMS, "tool_choice.function"}
    assert names.issuperset(name for profile in PROFILES.values() for name in profile.lacks) and names > CHAT_ONLY


def test_calls_without_a_text_are_a_message_without_content() -> None:
    assert encode([Text(text=""), use("a")])[0]["content"] is None
    assert encode([Text(text=""), use("a")], PROFILES["ollama"])[0]["content"] == ""


def test_claudes_signed_thoughts_are_sent_back_through_litellm_only() -> None:
    signed = [
        {"type": "thinking", "thinking": "Hm.", "signature": "EuYB=="},
        {"type": "redacted_thinking", "data": "x"},
    ]
    thought = Thinking(text="Hm.", signature=pack_attached("litellm", thinking_blocks=signed))
    blocks = [User(text="Hello"), thought, use("a"), ToolResult(call_id="a", text="Sun")]
    assert encode(blocks, PROFILES["litellm"])[1]["thinking_blocks"] == signed
    assert "thinking_blocks" not in encode(blocks, OPENROUTER)[1]


def test_long_ids_of_calls_are_sent_where_allowed() -> None:
    blocks = [User(text="Hello"), use("x" * 300), ToolResult(call_id="x" * 300, text="Sun")]
    for profile, length in ((PROFILES["litellm"], 300), (profile_of(None, "example.org"), 300), (OPENAI, 40)):
        _, message, result = encode(blocks, profile)
        assert message["tool_calls"][0]["id"] == result["tool_call_id"] == "x" * length


def test_short_ids_of_calls_match_their_results() -> None:
    ids = ["call_1", "call_2", "D681PevKs", "call_" + "x" * 30]
    blocks = [User(text="Hello"), *map(use, ids), *(ToolResult(call_id=call_id, text="Sun") for call_id in ids)]
    _, message, *results = encode(blocks, PROFILES["mistral"])
    sent = [call["id"] for call in message["tool_calls"]]
    assert [result["tool_call_id"] for result in results] == sent
    assert len(set(sent)) == len(ids)
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", call_id) for call_id in sent)
    assert sent[2] == "D681PevKs"


def test_the_first_unsigned_call_gets_geminis_placeholder() -> None:
    signs = taught(PROFILES["gemini"], lessons_of("Function call is missing a thought_signature in functionCall parts"))
    blocks = [User(text="Hello"), use("a"), use("b"), *(ToolResult(call_id=call_id, text="Sun") for call_id in "ab")]
    first, second = encode(blocks, signs)[1]["tool_calls"]
    assert first["extra_content"]["google"]["thought_signature"] == "skip_thought_signature_validator"
    assert "extra_content" not in second
    own = blocks[1].model_copy(update={"signature": pack_attached("gemini", extra_content={"google": {"own": 1}})})
    blocks[1] = own
    assert encode(blocks, signs)[1]["tool_calls"][0]["extra_content"] == {"google": {"own": 1}}


def test_each_lesson_has_a_source_and_changes_a_field_of_profiles() -> None:
    for lesson in LESSONS:
        assert lesson.source.startswith("https://")
        unknown = profile_of(None, "example.org")
        assert taught(unknown, [lesson.name]) == replace(unknown, **lesson.learned) != unknown


def test_an_invalid_tool_name_is_converted() -> None:
    """Acceptance 19."""
    blocks = [User(text="Hello"), use("a", name="functions.lööp up" + "!" * 60), ToolResult(call_id="a", text="no")]
    check_chat(encode(blocks))


# Decoding

CARRIED = st.one_of(
    st.builds(User, text=st.sampled_from(["Hello", "Well?", "[error] "])),
    st.builds(Image, url=st.just("https://example.org/cat.png")),
    st.builds(Image, data=st.just("aGk="), media_type=st.just("image/png")),
    st.builds(Document, name=st.just("a.pdf"), data=st.just("aGk="), media_type=st.just("application/pdf")),
)
ROUNDS = st.builds(
    lambda prompts, text, calls, failed: [
        *prompts,
        *([text] if text else []),
        *(use(call, city="Zürich", days=[1, None, {"deep": True}]) for call in calls),
        *(ToolResult(call_id=call, text="seen", is_error=failed) for call in calls),
    ],
    st.lists(CARRIED, min_size=1, max_size=3),
    st.none() | st.builds(Text, text=st.sampled_from(["Yes", " "]), interrupted=st.booleans()),
    st.lists(st.sampled_from("abc"), unique=True),
    st.booleans(),
)


@given(st.lists(ROUNDS, max_size=3))
def test_blocks_survive_encoding_and_decoding(rounds: list[list[Block]]) -> None:
    """Acceptance 27."""
    blocks: list[Block] = [System(text="Be brief."), *(block for part in rounds for block in part)]
    assert decode(encode(blocks)) == blocks


def test_messages_of_the_real_api_are_decoded() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": ""}}
    messages = [
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": parts},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": parts},
    ]
    assert decode(messages) == [
        System(text="Hello"),
        Text(text="Hello"),
        use("a"),
        ToolResult(call_id="a", text="Hello"),
    ]


@pytest.mark.parametrize(
    "message",
    [
        {"content": "Hello"},
        {"role": "oracle", "content": "Hello"},
        {"role": "user", "content": [{"type": "input_audio"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:nonsense"}}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "{"}}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "[]"}}]},
        {"role": "tool", "content": "seen"},
    ],
    ids=str,
)
def test_an_unknown_message_is_an_error_that_names_it(message: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"messages\[1\]"):
        decode([HELLO, message])


@pytest.mark.parametrize(
    "block",
    [
        System(text="Be brief."),
        User(text="Hello"),
        Text(text="Hi", interrupted=True),
        Thinking(text="Hm.", signature="opaque", redacted="hidden"),
        ToolUse(call_id="a", name="look", input={"deep": {"list": [1, None, {}]}}, signature="opaque"),
        ToolResult(call_id="a", text="no", is_error=True),
        Image(url="https://example.org/cat.png"),
        Document(name="a", text="b"),
        Citations(items=({"url": "https://example.org"},)),
        CacheCheckpoint(),
        Unknown(stored_kind="hologram", payload={"depth": [1, 2]}),
    ],
    ids=lambda block: block.kind,
)
def test_every_kind_survives_json(block: Block) -> None:
    """Acceptance 27."""
    assert decode_block(encode_block(block)) == block


# Validating


@pytest.mark.parametrize(
    "messages",
    [
        [HELLO],
        [{"role": "system", "content": "Be brief."}, HELLO],
        [HELLO, {"role": "assistant", "content": "Hi"}],
        [HELLO, calls_message("a", "b"), answered("b"), answered("a"), HELLO],
        [HELLO, calls_message("a"), answered("a"), calls_message("a"), answered("a")],
    ],
)
def test_a_valid_conversation_passes(messages: list[dict[str, Any]]) -> None:
    check_chat(messages)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one"),
        ([HELLO, {"role": "system", "content": "Be brief."}], r"messages\[1\].*first"),
        ([{"role": "system", "content": "a"}, {"role": "system", "content": "b"}], r"messages\[1\].*only one"),
        ([HELLO, calls_message("a")], r"messages\[1\].*'a' has no result"),
        ([HELLO, calls_message("a"), HELLO], r"messages\[1\].*'a' has no result"),
        ([HELLO, calls_message("a", "b"), answered("a"), HELLO, answered("b")], r"messages\[1\].*'b' has no result"),
        (
            [HELLO, calls_message("a"), calls_message("b"), answered("a"), answered("b")],
            r"messages\[1\].*'a' has no result",
        ),
        ([HELLO, answered("a")], r"messages\[1\].*'a' follows no message"),
        ([HELLO, calls_message("a"), answered("a"), answered("x")], r"messages\[3\].*'x' follows no message"),
        ([HELLO, calls_message("a"), answered("a"), answered("a")], r"messages\[3\].*'a' has a result already"),
        ([HELLO, calls_message("a"), answered("")], r"messages\[2\].*no tool_call_id"),
        ([HELLO, calls_message("a"), {"role": "tool", "tool_call_id": "a"}], r"messages\[2\].*no content"),
        ([HELLO, calls_message("")], r"messages\[1\]: tool_calls\[0\] has no id"),
        ([HELLO, calls_message("a", "b", "a")], r"messages\[1\]: tool_calls\[2\] has the id 'a'"),
        ([HELLO, encode([use("a", name="")])[0]], r"messages\[1\].*'a' names no function"),
        (
            [HELLO, {**calls_message("a"), "tool_calls": [{**CALL, "id": "x" * 41}]}],
            r"messages\[1\].*over 40 characters",
        ),
        (
            [HELLO, {**calls_message("a"), "tool_calls": [{**CALL, "function": {"name": "look"}}]}],
            r"messages\[1\].*JSON text",
        ),
        ([{"role": "user", "content": [{"type": "file", "file": {"file_data": "hi"}}]}], r"messages\[0\].*filename"),
        ([HELLO, {"role": "assistant", "content": ""}], r"messages\[1\].*neither content nor tool calls"),
        ([HELLO, {"role": "assistant", "content": "Hi", "tool_calls": []}], r"messages\[1\]: tool_calls is empty"),
        ([{"role": "user", "content": []}], r"messages\[0\].*empty"),
        ([{"role": "user", "content": [{"type": "smell"}]}], r"messages\[0\]: content\[0\]"),
        ([{"role": "oracle", "content": "Hi"}], r"messages\[0\]: role 'oracle'"),
        (["Hello"], r"messages\[0\]: role None"),
        ("Hello", "at least one"),
    ],
)
def test_an_invalid_conversation_is_an_error_that_names_the_message(messages: Any, reason: str) -> None:
    """Acceptance 25."""
    with pytest.raises(WireError, match=reason):
        check_chat(messages)
