"""`Window`: exchanges, token counts and the cost of reading them."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from turnwise.memory.conversation.blocks import (
    CacheCheckpoint,
    Image,
    Summary,
    System,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
)
from turnwise.strategies.conformance_conversations import random_case
from turnwise.strategies.ranges import Range, gaps, merge, overlap
from turnwise.strategies.window import Window
from windows.conversations import (
    HELLO,
    YES,
    CountingCache,
    long_conversation,
    read,
    talk,
    tokens,
)


def test_an_exchange_begins_with_a_prompt() -> None:
    call, result = ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="seen")
    image = Image(url="https://example.org/cat.png")
    window = talk(
        *(System(text="Be brief."), YES),  # before any prompt
        *(
            User(text=" "),
            image,
            HELLO,
            CacheCheckpoint(),
            Thinking(text="Hm."),
            call,
            result,
            YES,
            Unknown(stored_kind="x"),
        ),
        *(HELLO, System(text="Be long."), call, result),
        *(User(text=" "), YES),  # the user has said nothing
        *(Summary(text="They met."), HELLO),
    ).window()
    assert list(window.exchanges()) == [Range(18, 19), Range(11, 18), Range(2, 11), Range(0, 2)]
    assert window.newest == Range(18, 19)
    assert [window.end_of_oldest(count) for count in range(1, 4)] == [11, 18, 18]
    assert window.system == 12 and window.summaries == (17,)


def test_a_prompt_that_joined_the_newest_run_begins_no_exchange() -> None:
    call, result = ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="seen")
    conversation = talk(HELLO, YES, HELLO, call, result, HELLO, YES)
    joined = Window(conversation.spans, conversation.cache, conversation.index, newest_turn=2, newest_output=3)
    assert list(joined.exchanges()) == [Range(2, 7), Range(0, 2)]
    older = Window(
        conversation.spans, conversation.cache, conversation.index
    )  # in a turn that is not the newest any more
    assert list(older.exchanges()) == [Range(5, 7), Range(2, 5), Range(0, 2)]


def test_a_prompt_between_a_call_and_its_result_begins_no_exchange() -> None:
    call, result = ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="seen")
    window = talk(HELLO, call, HELLO, result, YES, HELLO, call, result, YES).window()
    assert list(window.exchanges()) == [Range(5, 9), Range(0, 5)]
    assert window.end_of_oldest(1) == 5


def test_a_window_agrees_with_reading_all_blocks() -> None:
    for seed in range(200):
        dice = Random(seed)
        window = random_case(dice).conversation.window()
        blocks = read(window)
        assert [window.block(index) for index in range(len(window))] == blocks
        assert [
            block for start in range(0, len(blocks), 3) for block in window.blocks([Range(start, start + 3)])
        ] == blocks
        systems = [index for index, block in enumerate(blocks) if isinstance(block, System)]
        assert window.system == (systems[-1] if systems else None)
        assert list(window.places(System)) == systems
        assert window.summaries == tuple(index for index, block in enumerate(blocks) if isinstance(block, Summary))
        for _ in range(5):
            start, stop = sorted(dice.choices(range(len(blocks) + 1), k=2))
            assert window.tokens(start, stop) == tokens([b for b in blocks[start:stop] if not isinstance(b, System)])
            assert list(window.places(System, Range(start, stop))) == [
                position for position in systems if start <= position < stop
            ]
        parts = list(window.exchanges())
        assert merge(parts) == ((Range(0, len(blocks)),) if blocks else ())
        for number, part in enumerate(reversed(parts[1:]), 1):
            assert window.end_of_oldest(number) == part.stop
        assert window.end_of_oldest(len(parts)) == window.newest.start
        with pytest.raises(IndexError):
            window.block(len(blocks))


def test_ranges_agree_with_sets_of_positions() -> None:
    def places(ranges: Iterable[Range]) -> set[int]:
        return {index for start, stop in ranges for index in range(start, stop)}

    dice = Random(1)
    for _ in range(500):
        some, further = (
            merge(Range(start, start + dice.randrange(4)) for start in dice.choices(range(12), k=3)) for _ in range(2)
        )
        assert places(overlap(some, further)) == places(some) & places(further)
        assert places(gaps(some, Range(2, 12))) == set(range(2, 12)) - places(some)


def test_counting_a_new_turn_reads_that_turn_only() -> None:
    cache = CountingCache()
    conversation = long_conversation(10_000, cache)
    conversation.window()
    cache.blocks_read = 0
    conversation.add([HELLO, YES])
    conversation.window()
    assert cache.blocks_read == 2
