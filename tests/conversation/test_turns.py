"""Turns, spans, and the cache of blocks."""

import pickle
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import (
    Block,
    Citations,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
    encode,
)
from turnwise.memory.conversation.spans import Span, Spans, begins_with, cut, join, size, subtract, union
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.frozen_json import freeze

SPANS = st.lists(
    st.builds(
        lambda log, start, length: Span(log, start, start + length),
        st.sampled_from("ab"),
        st.integers(0, 12),
        st.integers(-1, 5),
    ),
    max_size=6,
)


def positions(spans: object) -> list[tuple[str, int]]:
    return [(log, position) for log, start, stop in spans for position in range(start, stop)]  # type: ignore[attr-defined]


# Spans


@given(SPANS, SPANS)
def test_joined_spans_have_the_positions_of_the_groups_in_order_in_as_few_spans_as_can_be(a: Spans, b: Spans) -> None:
    joined = join(a, b)
    assert positions(joined) == positions(a) + positions(b)
    assert all(span.start < span.stop for span in joined)
    assert all(x.log != y.log or x.stop != y.start for x, y in pairwise(joined))
    assert join(joined) == joined
    assert size(joined) == len(positions(joined))


@given(SPANS, SPANS)
def test_a_union_has_every_position_once_sorted_in_as_few_spans_as_can_be(a: Spans, b: Spans) -> None:
    united = union(a, b)
    assert positions(united) == sorted({*positions(a), *positions(b)})
    assert join(united) == united == union(b, a) == union(united, a)


@given(SPANS, SPANS)
def test_a_difference_has_the_positions_that_are_not_held(a: Spans, b: Spans) -> None:
    difference = subtract(a, b)
    assert positions(difference) == sorted(set(positions(a)) - set(positions(b)))
    assert subtract(a, ()) == union(a)
    assert subtract(a, a) == ()
    assert union(difference) == difference


@given(SPANS, st.integers(-1, 40))
def test_cut_spans_are_whole_when_they_are_joined_again(spans: Spans, count: int) -> None:
    first, rest = cut(spans, count)
    assert positions(first) == positions(spans)[: max(count, 0)]
    assert positions(first) + positions(rest) == positions(spans)
    assert (join(first), join(rest), join(first, rest)) == (first, rest, join(spans))


@given(SPANS, SPANS, st.integers(0, 40))
def test_spans_begin_with_only_their_first_positions(a: Spans, b: Spans, count: int) -> None:
    first, rest = cut(a, count)
    single = [Span(log, position, position + 1) for log, position in positions(first)]
    assert begins_with(a, single) and begins_with(single, first) and begins_with([*single, *rest], first)
    assert begins_with(single, a) == (not rest)
    assert begins_with(a, b) == (positions(a)[: len(positions(b))] == positions(b))


# The cache


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 5))), SPANS)
def test_a_cache_holds_what_was_added_and_knows_what_is_missing(adds: list[tuple[str, int, int]], spans: Spans) -> None:
    cache = BlockCache()
    held_blocks: dict[tuple[str, int], Block] = {}
    for number, (log, start, count) in enumerate(adds):
        blocks: list[Block] = [User(text=f"{log} {number} {position}") for position in range(start, start + count)]
        cache.add(log, start, blocks if number % 2 else [encode(block) for block in blocks])
        held_blocks |= {(log, start + index): block for index, block in enumerate(blocks)}
    assert positions(cache.held) == sorted(held_blocks)
    missing = cache.missing(spans)
    assert positions(missing) == sorted(set(positions(spans)) - set(held_blocks))
    if missing:
        first = next(
            f"block {log}:{position}" for log, position in positions(spans) if (log, position) not in held_blocks
        )
        for read in (cache.read, cache.read_encoded):
            with pytest.raises(CorruptRecordError, match=f"^corrupt record {first} in the store: missing"):
                read(spans)
    else:
        expected = [held_blocks[position] for position in positions(spans)]
        assert cache.read_encoded(spans) == [encode(block) for block in expected]
        assert list(cache.read(spans)) == expected
        assert cache.read_encoded(spans) == [encode(block) for block in expected]


def test_an_encoded_block_is_decoded_once_and_a_broken_one_is_named() -> None:
    cache = BlockCache()
    cache.add_spans([Span("a", 4, 5), Span("b", 0, 2)], [encode(User(text="hi")), "{", '{"kind":"user"}'])
    assert cache.held == (Span("a", 4, 5), Span("b", 0, 2))
    assert cache.read([Span("a", 4, 5)])[0] is cache.read([Span("a", 4, 5)])[0]
    for position in (0, 1):
        with pytest.raises(CorruptRecordError, match=f"^corrupt record block b:{position} in the store: "):
            cache.read([Span("a", 4, 5), Span("b", position, position + 1)])


# Turns


def turn_of(*output: Block, **values: object) -> Turn:
    """Return a turn of one prompt on top of two blocks, with this output."""
    cache = BlockCache()
    before = [User(text="first"), Text(text="one")]
    cache.add("1", 0, [*before, User(text="second"), *output])
    end = 3 + len(output)
    record = TurnRecord(
        index=1,
        prompt=(Span("1", 2, 3),),
        input=(Span("1", 0, 3),),
        output=join((Span("1", 3, end),)),
        status="completed",
    )
    return Turn("s", replace(record, **values), cache)  # type: ignore[arg-type]


def test_a_turn_is_a_whole_snapshot_and_knows_what_it_added() -> None:
    usage, metadata = Usage(input_tokens=3), freeze({"a": [1]})
    values = {"parent": "s#0", "run_id": "r", "usage": usage, "stop_reason": "stop", "created_at": 5.0}
    turn = turn_of(Thinking(text="hm"), Text(text="two"), metadata=metadata, **values)
    added = (User(text="second"), Thinking(text="hm"), Text(text="two"))
    assert turn.blocks == (User(text="first"), Text(text="one"), *added)
    assert turn.new_blocks == added
    assert turn.text == "two"
    assert (turn.id, turn.session_id, turn.index, turn.parent, turn.run_id) == ("s#1", "s", 1, "s#0", "r")
    assert (turn.status, turn.usage, turn.stop_reason, turn.created_at) == ("completed", usage, "stop", 5.0)
    assert turn.metadata == {"a": (1,)}
    assert repr(turn) == "<Turn s#1 completed text='two'>"


def test_the_next_turn_continues_from_what_was_carried_or_else_from_the_snapshot() -> None:
    record = turn_of(Text(text="two")).record
    carried = replace(record, carried=(Span("1", 0, 1), Span("1", 2, 3)))
    assert record.base == record.spans == carried.spans == (Span("1", 0, 4),)
    assert carried.base == (Span("1", 0, 1), Span("1", 2, 4))
    assert (carried, hash(carried)) == (record, hash(record)) and carried.carried != record.carried
    waiting = replace(record, input=(), output=())
    assert waiting.base == record.prompt
    assert replace(waiting, carried=carried.carried).base == carried.carried


def test_a_pickled_turn_has_carried_spans_but_does_not_show_their_blocks() -> None:
    turn = turn_of(Text(text="two"), carried=(Span("1", 0, 1),))
    assert pickle.loads(pickle.dumps(turn)).record.carried == turn.record.carried
    assert turn.showing([User(text="x")]).record.base == (Span("", 0, 1),)


def test_a_pending_turn_has_prompts_and_no_text() -> None:
    turn = turn_of(status="pending", input=(), output=())
    assert turn.blocks == turn.new_blocks == (User(text="second"),)
    assert (turn.text, turn.run_id, turn.parent) == ("", None, None)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ([Text(text="a"), Text(text="b")], "ab"),
        (
            [
                Thinking(text="hm"),
                Text(text="a"),
                Citations(items=({"url": "x"},)),
                Text(text="b"),
                Unknown(stored_kind="new"),
            ],
            "ab",
        ),
        (
            [
                Text(text="let me look"),
                ToolUse(call_id="1", name="look"),
                ToolResult(call_id="1", text="seen"),
                Text(text="a"),
            ],
            "a",
        ),
        ([Text(text="let me look"), ToolUse(call_id="1", name="look"), ToolResult(call_id="1", text="seen")], ""),
        ([Thinking(text="hm")], ""),
    ],
)
def test_the_text_of_a_turn_is_what_follows_the_last_tool_result(output: list[Block], text: str) -> None:
    assert turn_of(*output).text == text


def test_a_turn_may_span_several_logs_and_the_same_block_again() -> None:
    cache = BlockCache()
    cache.add("1", 0, [User(text="a"), Text(text="b")])
    cache.add("2", 7, [User(text="c"), Text(text="d")])
    spans = (Span("2", 7, 8), Span("1", 1, 2), Span("1", 0, 2))
    turn = Turn("fork", TurnRecord(index=3, prompt=spans[:1], input=spans, output=(Span("2", 8, 9),)), cache)
    assert turn.blocks == (User(text="c"), Text(text="b"), User(text="a"), Text(text="b"), Text(text="d"))
    assert turn.new_blocks == (User(text="c"), Text(text="d"))
    assert pickle.loads(pickle.dumps(turn)) == turn


def test_a_turn_cannot_be_changed() -> None:
    """Case 12: neither the turn nor the objects that it returns."""
    turn = turn_of(ToolUse(call_id="1", name="look", input={"deep": [{"a": 1}]}), metadata=freeze({"deep": [{"a": 1}]}))
    unpickled = pickle.loads(pickle.dumps(turn))
    for name in ("blocks", "new_blocks", "text", "id", "index", "status", "metadata", "usage", "record", "more"):
        with pytest.raises(AttributeError):
            setattr(turn, name, ())
        with pytest.raises(AttributeError):
            delattr(turn, name)
    with pytest.raises(FrozenInstanceError):
        turn.record.index = 5  # type: ignore[misc]
    used: Any = turn.blocks[-1]
    for payload in (used.input, turn.metadata):
        assert [type(turn.blocks), type(payload["deep"])] == [tuple, tuple]
        with pytest.raises(TypeError, match="immutable record"):
            payload["deep"][0]["a"] = 2
    assert turn == unpickled


def test_a_pickled_turn_is_equal_and_reads_without_a_store() -> None:
    turn = turn_of(Text(text="two"), metadata=freeze({"a": [1]}), usage=Usage(output_tokens=1))
    unpickled = pickle.loads(pickle.dumps(turn))
    assert unpickled == turn
    assert hash(unpickled) == hash(turn)
    assert (unpickled.blocks, unpickled.new_blocks, unpickled.text, unpickled.record) == (
        turn.blocks,
        turn.new_blocks,
        "two",
        turn.record,
    )
    compacted = turn_of(Text(text="two"), input=(Span("1", 0, 2),))
    assert pickle.loads(pickle.dumps(compacted)).new_blocks == (User(text="second"), Text(text="two"))
    pending = turn_of(status="pending", input=(), output=())
    assert pickle.loads(pickle.dumps(pending)).blocks == (User(text="second"),)


def test_turns_differ_by_session_record_and_blocks() -> None:
    turn = turn_of(Text(text="two"))
    assert turn == turn_of(Text(text="two"))
    assert turn != Turn("other", turn.record, turn.cache)
    assert turn != Turn("s", replace(turn.record, status="failed"), turn.cache)
    assert turn != turn_of(Text(text="three"))
    assert turn != "s#1"


def test_the_thousandth_turn_costs_as_much_as_the_tenth() -> None:
    """Section 4 of the design: one log, one span, however long the conversation is; a pickle takes what it spans."""
    cache = BlockCache()
    turns: list[Turn] = []
    for index in range(1000):
        prompt, output = Span("1", 2 * index, 2 * index + 1), Span("1", 2 * index + 1, 2 * index + 2)
        cache.add("1", prompt.start, [User(text=f"prompt {index}"), Text(text=f"answer {index}")])
        base = turns[-1].record.spans if turns else ()
        turns.append(
            Turn("s", TurnRecord(index=index, prompt=(prompt,), input=join(base, (prompt,)), output=(output,)), cache)
        )
    for index in (9, 999):
        record = turns[index].record
        assert [len(spans) for spans in (record.prompt, record.input, record.output, record.spans)] == [1, 1, 1, 1]
        assert len(turns[index].blocks) == size(record.spans) == 2 * index + 2
        assert turns[index].blocks[-1] == Text(text=f"answer {index}")
    assert cache.held == (Span("1", 0, 2000),)
    assert len(pickle.dumps(turns[0])) < len(pickle.dumps(turns[999])) / 20
