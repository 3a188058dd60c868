"""Whatever a session can store can be sent to each provider."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from engine_calls import answer, engine_of
from frameworks.anthropic_types import check_types
from turnwise.adapters.anthropic.engine import AnthropicEngine
from turnwise.errors import InvalidPromptError, InvalidRequestError
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
from turnwise.memory.conversation.calls.call_arguments import read_call
from turnwise.memory.conversation.prompts import check_calls
from turnwise.memory.conversation.transcript import repair
from turnwise.memory.providers import anthropic, openai_chat, openai_responses
from turnwise.memory.providers.arrangement import BEGIN, CONTINUE, arranged
from turnwise.memory.providers.requests import validate
from turnwise.memory.providers.validation import ANTHROPIC, CHAT, RESPONSES, check
from turnwise.testing import LocalProvider
from turnwise.testing.local_provider.message_rules import check_anthropic, check_chat, check_responses

HELLO, HI = User(text="Hello"), Text(text="Hi, how can I help?")

TEXTS = st.sampled_from(["", " ", "\n", "yes", "Let me look. ", " trailing \n", "\N{SUN WITH FACE}", "\0"])
IDS = st.sampled_from(["a", "b", "a_2", "functions.look:0", "functions.look.0", "x" * 80, "é b"])
NAMES = st.sampled_from(["look", "look up!", "functions.look up" * 9, "é"])
SIGNATURES = st.none() | st.sampled_from(
    ["EqoBCkgIARABGAIiQ", openai_responses.pack_reasoning("rs_1", "gAAAAA=="), '{"other":{}}']
)
IMAGES = st.sampled_from([Image(url="https://example.org/cat.png"), Image(data="aGk=", media_type="image/png")])
FILES = st.sampled_from(
    [
        Document(name="", data="aGk=", media_type="application/pdf"),
        Document(name="notes", text="Buy milk."),
        Document(name="notes", chunks=("a", "b"), cite=True),
    ]
)
ATTACHED = st.lists(st.builds(Text, text=TEXTS) | IMAGES | FILES, max_size=2).map(tuple)
RESULTS = st.builds(ToolResult, call_id=IDS, text=TEXTS, is_error=st.booleans(), is_json=st.booleans(), blocks=ATTACHED)
USES = st.builds(
    ToolUse, call_id=IDS, name=NAMES, input=st.sampled_from([{}, {"at": ["Paris", None, 1.5]}])
) | st.builds(read_call, IDS, NAMES, st.sampled_from(["{", "[1]", '{"a":1}{"a":1}', ""]))
SAID = st.one_of(
    st.builds(Text, text=TEXTS, interrupted=st.booleans()),
    st.builds(Thinking, text=TEXTS, signature=SIGNATURES, redacted=st.none() | st.just("hidden")),
    st.just(Citations(items=({"url": "https://example.org"},))),
)
ASKED = st.one_of(
    st.builds(User, text=TEXTS),
    st.builds(System, text=TEXTS),
    st.builds(Summary, text=TEXTS),
    st.builds(Recalled, text=TEXTS),
    IMAGES,
    FILES,
    st.sampled_from([CacheCheckpoint(), Unknown(stored_kind="hologram")]),
)
PROMPTS = st.lists(st.one_of(SAID, ASKED, USES, RESULTS), max_size=10)
OUTPUTS = st.lists(st.one_of(SAID, USES, RESULTS), max_size=8)


def storable(prompts: Sequence[Block]) -> list[Block]:
    """Return prompts as a session takes them: with a result for each call, and without calls that it refuses."""
    taken: list[Block] = []
    for block in prompts:
        try:
            check_calls("s", [*taken, block], is_whole=False)
        except InvalidPromptError:
            continue
        taken.append(block)
    results = {block.call_id for block in taken if isinstance(block, ToolResult)}
    uses = [block for block in taken if isinstance(block, ToolUse) and block.call_id not in results]
    taken += [ToolResult(call_id=use.call_id, text="late") for use in uses]
    try:
        check_calls("s", taken, is_whole=True)
    except InvalidPromptError:
        return [block for block in taken if not isinstance(block, ToolUse | ToolResult)]
    return taken


RUNS = st.lists(st.tuples(PROMPTS.map(storable), OUTPUTS, st.booleans()), max_size=4)


def history_of(runs: Sequence[tuple[list[Block], list[Block], bool]]) -> list[Block]:
    return [
        block
        for prompts, output, interrupted in runs
        for block in (*prompts, *repair(output, why="enough", interrupted=interrupted))
    ]


def on_wire(value: Any) -> Any:
    """Return a value as the provider reads it."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode())


def for_chat(blocks: list[Block]) -> None:
    check_chat(on_wire(openai_chat.encode(blocks)))


def for_responses(blocks: list[Block]) -> None:
    instructions, items = on_wire(openai_responses.encode(blocks))
    assert instructions is None or isinstance(instructions, str)
    check_responses(items)


def for_anthropic(blocks: list[Block]) -> None:
    system, messages = on_wire(anthropic.encode(blocks))
    check_anthropic(messages, thinking=False)
    check_types(system, messages)


ENCODERS: list[tuple[str, Callable[[list[Block]], None]]] = [
    ("chat", for_chat),
    ("responses", for_responses),
    ("anthropic", for_anthropic),
]


@given(RUNS, PROMPTS.map(storable))
def test_any_stored_history_with_a_prompt_is_valid_for_each_provider(
    runs: list[tuple[list[Block], list[Block], bool]], prompts: list[Block]
) -> None:
    blocks = [*history_of(runs), *prompts, HELLO]
    for provider, encode_and_check in ENCODERS:
        validate(blocks, provider=provider)  # type: ignore[arg-type]
        encode_and_check(blocks)


@given(RUNS, st.data())
def test_a_conversation_stays_the_same_as_it_goes_on(
    runs: list[tuple[list[Block], list[Block], bool]], data: st.DataObject
) -> None:
    """So that a provider's cache of the shorter one is of use."""
    end = data.draw(st.integers(0, len(runs)))
    shorter = [*history_of(runs[:end]), HELLO, HI]
    longer = [*shorter, HELLO, HI, *history_of(runs[end:]), HELLO]
    for rules in (CHAT, RESPONSES, ANTHROPIC):
        sent = [message for message in arranged(shorter, rules) if message.blocks != (User(text=CONTINUE),)]
        for before, after in itertools.islice(zip(sent, arranged(longer, rules), strict=False), len(sent) - 1):
            assert before == after


SHAPES: dict[str, list[Block]] = {
    "a greeting": [HI, HELLO],
    "two greetings": [HI, HI, HELLO],
    "only a greeting": [HI],
    "a blank prompt after a greeting": [HI, User(text=" ")],
    "only a system prompt": [System(text="Be brief.")],
    "system prompts between": [HELLO, System(text="Be brief."), HI, System(text="Be long."), HELLO],
    "thoughts alone": [HELLO, Thinking(text="Hm."), HELLO],
    "thoughts at the end": [HELLO, Thinking(text="Hm.")],
    "citations alone": [HELLO, Citations(items=({"url": "https://example.org"},)), HELLO],
    "a result behind another answer": [
        HELLO,
        ToolUse(call_id="a", name="look"),
        HELLO,
        HI,
        ToolResult(call_id="a", text="sun"),
        HELLO,
    ],
    "results apart": [
        HELLO,
        ToolUse(call_id="a", name="look"),
        ToolUse(call_id="b", name="look"),
        ToolResult(call_id="b", text=""),
        HI,
        ToolResult(call_id="a", text=" "),
        HELLO,
    ],
    "an answer that ends in white space": [HELLO, Text(text="Well \n")],
    "a call with a flaw": [
        HELLO,
        read_call("a", "look", "{"),
        ToolResult(call_id="a", text="no", is_error=True),
        HELLO,
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_each_shape_of_a_history_is_answered_by_each_provider(
    shape: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
    with LocalProvider(reply="Sun.") as provider:
        url = provider.base_url.removesuffix("/v1")
        engine = AnthropicEngine("local", base_url=url) if api == "anthropic" else engine_of(provider, api=api)
        blocks, _ = answer(engine, *SHAPES[shape])
        assert blocks == [Text(text="Sun.")]
        (request,) = provider.requests
        assert request.body


def test_a_greeting_follows_a_text_that_marks_the_beginning() -> None:
    _, messages = anthropic.encode([HI, HI, HELLO])
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"] == [{"type": "text", "text": BEGIN}]
    assert openai_chat.encode([HI, HELLO])[0]["role"] == "assistant"


def test_texts_of_the_assistant_are_sent_with_a_blank_line_between() -> None:
    assert openai_chat.encode([HELLO, HI, HI, HELLO])[1]["content"] == f"{HI.text}\n\n{HI.text}"
    (_, message, _) = openai_responses.encode([HELLO, HI, HI, HELLO])[1]
    assert message["content"][0]["text"] == f"{HI.text}\n\n{HI.text}"


def test_the_pieces_of_a_cited_text_stay_one_text() -> None:
    cited = [Text(text="Grass "), Text(text="is green"), Citations(items=({"url": "u"},)), Text(text=".")]
    assert openai_chat.encode([HELLO, *cited, HELLO])[1]["content"] == "Grass is green."


def test_a_conversation_that_lacks_a_result_is_still_refused() -> None:
    for rules in (CHAT, RESPONSES, ANTHROPIC):
        with pytest.raises(InvalidRequestError, match="no result"):
            check(arranged([HELLO, ToolUse(call_id="a", name="look"), HELLO], rules), rules)
