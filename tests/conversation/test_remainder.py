"""The blocks that remain for a request after some were removed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from scale import share
from tools.agent_world import check_request
from turnwise.errors import InvalidRequestError
from turnwise.memory.conversation.blocks import (
    Block,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.calls.call_pairs import pairs_of
from turnwise.memory.conversation.remainder import remainder
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.providers.validation import ANTHROPIC, check

HI, HELLO, HM = User(text="hi"), Text(text="hello"), Thinking(text="hm", signature="s")
USE, RESULT = ToolUse(call_id="c", name="look"), ToolResult(call_id="c", text="seen")
OTHER, SECOND = ToolUse(call_id="d", name="look"), ToolResult(call_id="d", text="seen too")


@pytest.mark.parametrize(
    ("blocks", "removed", "expected"),
    [
        pytest.param([HI, HELLO, HI, HELLO], {1}, [0, 2, 3], id="an answer"),
        pytest.param([HI, HELLO, HI, HELLO], {2}, [0, 1, 3], id="a prompt between answers"),
        pytest.param([HI, HELLO, HI, HELLO], {0}, [2, 3], id="the first prompt, and the answer to it"),
        pytest.param([System(text="be kind"), HI, HELLO, HI], {1}, [0, 3], id="but no system prompt"),
        pytest.param([HI, HELLO], {0}, [], id="the only prompt"),
        pytest.param([Summary(text="of them"), HI, HELLO], {1}, [0, 2], id="a prompt behind a summary"),
        pytest.param([HELLO, HI, HELLO], {1}, [0, 2], id="a conversation that the assistant began"),
        pytest.param([HI, HM, HELLO], {2}, [0], id="a text, and its thoughts"),
        pytest.param([HI, HM, HELLO], {1}, [0, 2], id="thoughts before a text"),
        pytest.param([HI, USE, RESULT, HELLO], {1}, [0, 3], id="a call, and its result"),
        pytest.param([HI, USE, RESULT, HELLO], {2}, [0, 3], id="a result, and its call"),
        pytest.param([HI, USE, OTHER, SECOND, RESULT, HELLO], {4}, [0, 2, 3, 5], id="one of two results"),
        pytest.param([HI, HM, USE, RESULT, HELLO], {1}, [0, 4], id="thoughts, with the call and its result"),
        pytest.param([HI, HM, HELLO, USE, RESULT, HM, HELLO], {4}, [0, 1, 2, 5, 6], id="a result behind a text"),
        pytest.param([HI, HM, USE, RESULT, HM, HELLO], {3}, [0, 4, 5], id="a result, and the thoughts of its call"),
        pytest.param([HI, USE, RESULT, USE, RESULT, HELLO], {2}, [0, 3, 4, 5], id="the first of two calls of one id"),
    ],
)
def test_blocks_that_need_a_removed_block_are_left_out_too(
    blocks: Sequence[Block], removed: set[int], expected: list[int]
) -> None:
    assert remainder(blocks, removed) == expected


def test_no_other_block_is_left_out() -> None:
    blocks = [HI, HM, USE, RESULT, HELLO, HI, HM, HELLO]
    assert remainder(blocks, ()) == list(range(8)) and pairs_of(blocks) == [(2, 3)]


def _conversation(dice: random.Random) -> list[Block]:
    blocks: list[Block] = []
    for turn in range(dice.randrange(1, 5)):
        blocks += [Image(url="https://example.org/a.png")] * (dice.random() < 0.2) + [User(text=f"prompt {turn}")]
        for step in range(dice.randrange(3)):
            blocks += [Thinking(text="hm", signature="s")] * dice.choice((1, 1, 2))
            blocks += [Text(text="let me see")] * (dice.random() < 0.5)
            calls = [f"{step if dice.random() < 0.5 else 0}.{call}" for call in range(dice.randrange(1, 3))]
            blocks += [ToolUse(call_id=call, name="look") for call in calls]
            blocks += [ToolResult(call_id=call, text="seen") for call in dice.sample(calls, len(calls))]
        if dice.random() < 0.8:
            blocks += [Thinking(text="hm", signature="s")] * (dice.random() < 0.5) + [Text(text=f"answer {turn}")]
    return blocks


def test_every_provider_takes_the_remaining_blocks_also_with_thinking_on() -> None:
    dice = random.Random(7)
    for _ in range(share(3000, 6)):
        blocks = _conversation(dice)
        while True:
            numbers = remainder(blocks, set(dice.sample(range(len(blocks)), dice.randrange(len(blocks) + 1))))
            blocks = [blocks[number] for number in numbers]
            request = [*blocks, User(text="and now?")]
            try:
                check_request(request)
                check(messages_of(request), ANTHROPIC, thinking=True)
            except InvalidRequestError as error:
                raise AssertionError(f"{error}: {blocks}") from error
            if not blocks:
                break
