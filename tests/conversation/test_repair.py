from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, strategies as st

from turnwise.memory.conversation.blocks import Block, Citations, System, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.conversation.transcript import repair
from turnwise.memory.providers.openai_chat import encode
from turnwise.testing.local_provider.message_rules import WireError, check_chat

IDS = st.sampled_from(["a", "b", "c", ""])
TEXTS = st.sampled_from(["", " ", "yes", "Let me look."])
OUTPUTS = st.lists(
    st.one_of(
        st.builds(Text, text=TEXTS, interrupted=st.booleans()),
        st.builds(Thinking, text=TEXTS),
        st.builds(ToolUse, call_id=IDS, name=st.sampled_from(["look", "functions.look up", ""])),
        st.builds(ToolResult, call_id=IDS, text=TEXTS, is_error=st.booleans()),
        st.just(Citations(items=({"url": "https://example.org"},))),
    ),
    max_size=12,
)


def use(call_id: str) -> ToolUse:
    return ToolUse(call_id=call_id, name="look")


def result(call_id: str, text: str = "seen") -> ToolResult:
    return ToolResult(call_id=call_id, text=text)


def cancelled(call_id: str, reason: str = "enough") -> ToolResult:
    return ToolResult(call_id=call_id, text=f"cancelled: {reason}", is_error=True)


def repaired(*output: Block, interrupted: bool = True) -> list[Block]:
    return repair(output, why="enough", interrupted=interrupted)


@given(st.lists(st.tuples(OUTPUTS, st.booleans()), max_size=4))
def test_the_next_request_is_valid_after_any_outputs(runs: list[tuple[list[Block], bool]]) -> None:
    """Acceptance 19."""
    history: list[Block] = [System(text="Be brief.")]
    for output, interrupted in runs:
        history += [User(text="Go on."), *repair(output, why="enough", interrupted=interrupted)]
    check_chat(encode([*history, User(text="And now?")]))


@given(OUTPUTS, st.booleans())
def test_repairing_twice_is_the_same_as_repairing_once(output: list[Block], interrupted: bool) -> None:
    once = repair(output, why="enough", interrupted=interrupted)
    assert repair(once, why="another reason", interrupted=interrupted) == once


@given(OUTPUTS)
def test_no_text_and_no_usable_call_is_dropped_and_each_keeps_its_order(output: list[Block]) -> None:
    """Acceptance 24: a text may move before a call; no other block changes its place."""

    def texts(blocks: list[Block]) -> list[Block]:
        return [block for block in blocks if isinstance(block, Text | Citations)]

    def calls(blocks: list[Block]) -> list[Block]:
        return [block for block in blocks if isinstance(block, ToolUse) and block.call_id and block.name]

    repaired_output = repair(output, why="enough", interrupted=False)
    assert texts(repaired_output) == texts(output)
    assert calls(repaired_output) == calls(output)


@given(OUTPUTS)
def test_within_a_message_thoughts_come_before_texts_and_texts_before_calls(output: list[Block]) -> None:
    """Acceptance 24."""
    ranks = {"thinking": 0, "text": 1, "citations": 1, "tool_use": 2}
    repaired_output = repair(output, why="enough", interrupted=False)
    for is_result, message in groupby(repaired_output, key=lambda block: isinstance(block, ToolResult)):
        places = [ranks[block.kind] for block in message if not is_result]
        assert places == sorted(places)


@given(OUTPUTS)
def test_no_message_of_a_repaired_output_has_only_thoughts(output: list[Block]) -> None:
    """Acceptance 19."""
    repaired_output = repair(output, why="enough", interrupted=False)
    for is_result, message in groupby(repaired_output, key=lambda block: isinstance(block, ToolResult)):
        message_blocks = list(message)
        if not is_result and any(isinstance(block, Thinking) for block in message_blocks):
            assert any(
                isinstance(block, ToolUse) or (isinstance(block, Text) and block.text.strip())
                for block in message_blocks
            )


def test_a_call_without_a_result_gets_an_error_result_with_the_reason() -> None:
    """Acceptance 21."""
    assert repaired(Text(text="Let me look."), use("a")) == [
        Text(text="Let me look."),
        use("a"),
        cancelled("a"),
    ]


def test_results_follow_their_calls_in_the_order_of_declaration() -> None:
    """Acceptance 24."""
    output = [use("a"), use("b"), use("c"), result("c"), Text(text="Well,"), result("a"), use("d"), result("d")]
    assert repaired(*output, interrupted=False) == [
        *(use("a"), use("b"), use("c")),
        *(result("a"), cancelled("b"), result("c")),
        *(Text(text="Well,"), use("d"), result("d")),
    ]


def test_the_first_of_two_results_of_a_call_is_kept() -> None:
    assert repaired(use("a"), result("a", "first"), result("a", "late")) == [use("a"), result("a", "first")]


def test_a_result_without_a_call_before_it_is_dropped() -> None:
    """Acceptance 19."""
    assert repaired(result("a"), use("a"), result("x"), interrupted=False) == [use("a"), cancelled("a")]


def test_a_repeated_call_id_gets_a_result_each_time() -> None:
    output = [use("a"), result("a", "one"), use("a"), result("a", "two")]
    assert repaired(*output) == output
    assert repaired(use("a"), use("a"), result("a")) == [use("a"), cancelled("a"), use("a"), result("a")]


def test_an_output_of_thoughts_alone_becomes_empty() -> None:
    """Acceptance 19."""
    assert repaired(Thinking(text="Hm."), Thinking(text="Hm, hm.")) == []


def test_thoughts_at_the_end_are_dropped_and_others_are_kept() -> None:
    thought = Thinking(text="Hm.")
    assert repaired(thought, use("a"), result("a"), thought, interrupted=False) == [thought, use("a"), result("a")]
    assert repaired(thought, Text(text="Yes"), interrupted=False) == [thought, Text(text="Yes")]
    assert repaired(thought, Text(text=" "), interrupted=False) == [Text(text=" ")]


@pytest.mark.parametrize("interrupted", [True, False])
def test_the_last_text_is_marked_if_the_run_was_cut_short(interrupted: bool) -> None:
    """Acceptance 20."""
    repaired_output = repaired(Text(text="One. "), use("a"), result("a"), Text(text="Tw"), interrupted=interrupted)
    assert [block.interrupted for block in repaired_output if isinstance(block, Text)] == [False, interrupted]


@pytest.mark.parametrize(
    ("output", "marked"),
    [
        ([Text(text="Tw")], True),
        ([Text(text="Tw"), Thinking(text="Hm.")], True),
        ([Text(text="Two."), use("a")], False),
        ([Text(text="Two."), use("a"), Thinking(text="Hm.")], False),
        ([Text(text="Two."), Citations(items=({"url": "https://example.org"},))], False),
    ],
)
def test_a_text_followed_by_more_than_thoughts_is_not_marked_as_interrupted(output: list[Block], marked: bool) -> None:
    """Acceptance 20."""
    assert [block.interrupted for block in repaired(*output) if isinstance(block, Text)] == [marked]


def test_an_empty_output_stays_empty() -> None:
    assert repaired() == []


def test_an_output_that_repair_changes_is_refused_without_it() -> None:
    """Acceptance 19: so the property above is not empty."""
    with pytest.raises(WireError, match=r"messages\[1\].*'a' has no result"):
        check_chat(encode([User(text="Look."), use("a"), User(text="And?")]))
