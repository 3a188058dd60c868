"""Prompts: what a caller may add to a conversation."""

from typing import Any

import pytest

from turnwise.errors import EmptyTurnError, InvalidPromptError
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
    encode,
)
from turnwise.memory.conversation.prompts import Prompt, accept, check_calls, plain_prompts


@pytest.mark.parametrize("depth", [101, 150, 250, 400])
def test_a_block_that_is_nested_too_deep_is_refused(depth: int) -> None:
    """From 200 levels on it could be stored and never be read again, from 250 on it could not be pickled."""
    deep: Any = "deep"
    for _ in range(depth - 1):
        deep = {"a": deep}
    for block in (Unknown(stored_kind="new", payload={"a": deep}), Citations(items=({"a": deep},))):
        for refuse in (lambda block: accept("s", [block], 10_000), lambda block: plain_prompts("s", [block])):
            with pytest.raises(InvalidPromptError, match="nested more than 100 levels"):
                refuse(block)


def test_strings_become_user_blocks_and_blocks_are_unchanged() -> None:
    given_blocks: list[Block] = [
        *(System(text="Be brief."), Image(url="https://example.org/a.png"), Document(name="a", text="b")),
        *(
            Text(text="So far:"),
            Citations(items=({"url": "x"},)),
            CacheCheckpoint(),
            Unknown(stored_kind="new"),
            User(text="b"),
        ),
    ]
    blocks, encoded = accept("s", ["a", *given_blocks, " c "], 1000)
    assert blocks == [User(text="a"), *given_blocks, User(text=" c ")]
    assert encoded == [encode(block) for block in blocks]


def test_no_prompts_are_no_blocks() -> None:
    assert accept("s", [], 1000) == ([], [])


@pytest.mark.parametrize("blank", ["", " ", "\n\t \u3000", User(text=""), User(text=" \n")])
def test_a_blank_prompt_is_refused_at_every_position(blank: Prompt) -> None:
    """Case 2."""
    for prompts in ([blank], ["a", blank], [blank, "a"]):
        with pytest.raises(EmptyTurnError, match=r"^session 's' has nothing to run"):
            accept("s", prompts, 1000)


@pytest.mark.parametrize(
    "block",
    [
        Summary(text="They met.", of=(("1", 0, 9),)),
        Recalled(text="a"),
    ],
)
def test_blocks_that_only_a_run_may_add_are_refused(block: Block) -> None:
    """Case 19."""
    with pytest.raises(
        InvalidPromptError, match=f"^session 's' refuses the prompt: a {block.kind} block comes from a run"
    ):
        accept("s", ["a", block], 1000)


CALL, RESULT = ToolUse(call_id="1", name="look"), ToolResult(call_id="1", text="seen")


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([CALL], "call '1' has no result: append"),
        ([RESULT], "call '1' does not come before its result"),
        ([RESULT, CALL], "call '1' does not come before its result"),
        ([CALL, CALL], "call '1' comes twice"),
        ([CALL, RESULT, RESULT], "call '1' has its result already"),
        ([CALL, RESULT, CALL], "call '1' has no result"),
        ([ToolUse(call_id="", name="look")], "call '' needs an id and a name"),
        ([ToolUse(call_id="1", name="")], "call '1' needs an id and a name"),
    ],
)
def test_a_call_among_prompts_needs_its_result(blocks: list[Block], reason: str) -> None:
    """Case 19: a caller cannot leave a call without its result, or a result without its call."""
    with pytest.raises(InvalidPromptError, match=f"^session 's' refuses the prompt: the tool {reason}"):
        check_calls("s", blocks, is_whole=True)


def test_an_earlier_conversation_is_a_prompt_and_may_come_in_pieces() -> None:
    check_calls(
        "s", [User(text="look"), Thinking(text="a"), CALL, RESULT, Text(text="b"), User(text="c")], is_whole=True
    )
    check_calls("s", [CALL], is_whole=False)


@pytest.mark.parametrize(
    "prompt", [None, 7, b"a", ["a"], {"role": "user", "content": "a"}, User, Block(kind="tool_use")]
)
def test_something_else_than_a_prompt_is_refused_with_its_type(prompt: object) -> None:
    with pytest.raises(InvalidPromptError, match=f"{type(prompt).__name__} is not a string or a block"):
        accept("s", ["a", prompt], 1000)  # type: ignore[list-item]


def test_a_list_of_messages_is_refused_with_the_function_that_takes_it() -> None:
    with pytest.raises(InvalidPromptError, match=r"list is not .* turnwise\.blocks.* session\.import_messages"):
        accept("s", [[{"role": "user", "content": "a"}]], 1000)  # type: ignore[list-item]


@pytest.mark.parametrize(
    "prompt", ["\ud800", User(text="a\udfff"), Unknown(stored_kind="new", payload={"a": ["\ud800"]})]
)
def test_a_lone_surrogate_is_refused(prompt: Prompt) -> None:
    with pytest.raises(InvalidPromptError, match=r"^session 's' refuses the prompt: it is not valid text"):
        accept("s", [prompt], 1000)


@pytest.mark.parametrize("text", ["x" * 50, "é" * 50, "🦀" * 50, '"\\' * 25, "\0" * 50])
def test_a_prompt_may_be_as_large_as_the_limit_and_no_larger(text: str) -> None:
    """In bytes of UTF-8 JSON, as it is stored."""
    size = len(encode(User(text=text)).encode())
    assert accept("s", ["a", text], size)[0][1] == User(text=text)
    for prompt in (text, User(text=text)):
        reason = f"{size} bytes are over max_prompt_bytes={size - 1}; shorten it or raise the limit in SessionConfig"
        with pytest.raises(InvalidPromptError, match=reason):
            accept("s", ["a", prompt], size - 1)
