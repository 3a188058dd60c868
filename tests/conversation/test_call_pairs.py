"""Calls and their results are paired as a naive reader, who looks back from each block, would pair them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from turnwise.errors import InvalidPromptError
from turnwise.memory.conversation.blocks import Block, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.calls.call_pairs import CallPairs, Flaw, pairs_of
from turnwise.memory.conversation.prompts import check_calls
from turnwise.memory.conversation.transcript import Ledger, repair

IDS = st.sampled_from(["", "a", "b", "c"])
BLOCKS = st.lists(
    st.one_of(
        st.builds(ToolUse, call_id=IDS, name=st.sampled_from(["look", "look", "look", ""])),
        st.builds(ToolResult, call_id=IDS, text=st.just("seen")),
        st.sampled_from([User(text="hi"), Text(text="hello")]),
    ),
    max_size=14,
)


def latest_call(blocks: Sequence[Block], call_id: str) -> int | None:
    """Return the number of the last call of this id that has an id and a name."""
    for number in reversed(range(len(blocks))):
        block = blocks[number]
        if isinstance(block, ToolUse) and block.call_id == call_id and block.call_id and block.name:
            return number
    return None


def naive_pairs(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """Pair each result with the latest call of its id before it, unless another result stands between them."""
    pairs: list[tuple[int, int]] = []
    for number, block in enumerate(blocks):
        if isinstance(block, ToolResult) and (call := latest_call(blocks[:number], block.call_id)) is not None:
            blocks_between = blocks[call + 1 : number]
            if not any(isinstance(later, ToolResult) and later.call_id == block.call_id for later in blocks_between):
                pairs.append((call, number))
    return pairs


def naive_open(blocks: Sequence[Block]) -> list[int]:
    """Return the numbers of the calls that are the latest of their id, and have no result."""
    answered_calls = {call for call, _ in naive_pairs(blocks)}
    calls = [latest_call(blocks, block.call_id) for block in blocks if isinstance(block, ToolUse)]
    return sorted({call for call in calls if call is not None} - answered_calls)


def naive_flaw(blocks: Sequence[Block], block: Block) -> Flaw | None:
    """Return what is wrong with a block behind these."""
    if not isinstance(block, ToolUse | ToolResult):
        return None
    if not block.call_id:
        return "empty_id"
    is_open = latest_call(blocks, block.call_id) in naive_open(blocks)
    if isinstance(block, ToolUse):
        return "empty_name" if not block.name else "repeated" if is_open else None
    if is_open:
        return None
    return "orphan" if latest_call(blocks, block.call_id) is None else "answered"


@given(BLOCKS)
def test_calls_and_results_are_paired_as_a_naive_reader_pairs_them(blocks: list[Block]) -> None:
    pairs = CallPairs[int]()
    pairings = []
    for number, block in enumerate(blocks):
        if isinstance(block, ToolUse):
            assert pairs.flaw_of_call(block) == naive_flaw(blocks[:number], block)
        elif isinstance(block, ToolResult):
            assert pairs.flaw_of_result(block) == naive_flaw(blocks[:number], block)
        if (call := pairs.read(block, number)) is not None:
            pairings.append((call, number))
        assert list(pairs.open.values()) == naive_open(blocks[: number + 1])
        assert pairs.open.keys().isdisjoint(pairs.answered)
        for call_id in (*pairs.open, *pairs.answered):
            assert pairs.latest(call_id) == latest_call(blocks[: number + 1], call_id)
    assert pairings == pairs_of(blocks) == naive_pairs(blocks)


@given(BLOCKS)
def test_a_conversation_of_prompts_is_whole_if_no_block_has_a_flaw(blocks: list[Block]) -> None:
    is_whole = not naive_open(blocks) and not any(
        naive_flaw(blocks[:number], block) for number, block in enumerate(blocks)
    )
    try:
        check_calls("s", blocks, is_whole=True)
    except InvalidPromptError:
        assert not is_whole
    else:
        assert is_whole


@given(BLOCKS)
def test_a_ledger_keeps_the_results_that_answer_a_call(blocks: list[Block]) -> None:
    ledger = Ledger(blocks)
    results = [block for block in ledger.blocks() if isinstance(block, ToolResult)]
    assert len(results) == len(naive_pairs(blocks))
    repaired = repair(blocks, why="it was cut", interrupted=False)
    assert {call for call, _ in naive_pairs(repaired)} == {
        number for number, block in enumerate(repaired) if isinstance(block, ToolUse)
    }


@given(BLOCKS)
def test_the_results_of_dropped_calls_answer_nothing(blocks: list[Block]) -> None:
    ledger = Ledger(blocks)
    before = ledger.blocks()
    for call_id in "abc":
        ledger.declare_tool_use(call_id, "look")
    ledger.void()
    assert ledger.blocks() == before
    for call_id in "abc":
        ledger.append(ToolResult(call_id=call_id, text="late"))
    assert len(naive_pairs(ledger.blocks())) == len(naive_pairs(before)) + len(naive_open(blocks))


def test_a_call_without_a_place_is_not_found() -> None:
    with pytest.raises(KeyError):
        CallPairs[int]().latest("a")
