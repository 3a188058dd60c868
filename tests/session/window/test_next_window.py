"""The window that a session without a model shows to a loop of its caller's own: it always fits. On `SessionCore`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from turnwise.actors.inference.no_answer import NoAnswer
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.window.compaction_tasks import default_overflow
from turnwise.errors import TurnOverflowError
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Image,
    Summary,
    System,
    Text,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.events import CompactionFailed, WindowCompacted
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.keep_last import KeepLast
from turnwise.strategies.plan import refusals
from turnwise.strategies.trim import Trim
from windows.stage import WINDOW, Notebook, Summarizer, events_of, opened, said, summarize

pytestmark = pytest.mark.virtual_time

LIMIT = WINDOW["max_context_tokens"]


def tokens(blocks: Sequence[Block]) -> int:
    return sum(map(ByteCounter().count, blocks))


async def shown(stage: Any) -> tuple[AnyBlock, ...]:
    turn = await stage.core.next_window.read()
    return turn.blocks if turn else ()


async def put(stage: Any, *blocks: Any, ends: bool = True) -> None:
    """Append blocks, and end the turn as `ChatMemory(ends_turns=True)` does."""
    await stage.core.admission.append(list(blocks), key=f"key-{random.random()}")
    if ends:
        run_id = f"run-{random.random()}"
        await stage.core.admission.start([], run_id=run_id, if_busy="enqueue")
        await stage.core.reads.wait(run_id)


def exchange(number: int, size: int = 40) -> list[Block]:
    return [User(text=f"question {number} {'q' * size}"), Text(text=f"answer {number} {'a' * size}")]


def tools(number: int, size: int = 40) -> list[Block]:
    return [
        User(text=f"question {number}"),
        ToolUse(call_id=f"c{number}", name="look", input={"at": number}),
        ToolResult(call_id=f"c{number}", text="r" * size),
        Text(text=f"answer {number}"),
    ]


STRATEGIES: dict[str, Any] = {
    "default": lambda: default_overflow(NoAnswer(), SessionConfig(**WINDOW)),
    "trim": Trim,
    "delete oldest": lambda: DeleteOldest(2),
    "keep last": lambda: KeepLast(turns=2),
    "summarize": lambda: summarize(Summarizer()),
    "summarize, and fail": lambda: summarize(Summarizer(*[OSError("the model is down")] * 99), otherwise=None),
    "flush": lambda: FlushToMemory([Notebook()], max_ratio=0.5),
    "flush, and fail": lambda: FlushToMemory([Notebook(failures=99)], max_ratio=0.5, otherwise=None),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
async def test_the_window_fits_and_is_valid_whatever_was_put(strategy: str, seed: int) -> None:
    """The window has the newest message, no result without its call, and nothing that a provider refuses."""
    dice = random.Random(seed)
    stage = await opened(STRATEGIES[strategy](), NoAnswer())
    for number in range(25):
        kind, ends = dice.randrange(4), dice.random() < 0.7
        blocks = [exchange, tools][kind % 2](number, dice.randrange(100))
        if kind == 3:
            blocks = [System(text=f"be kind {number}"), *blocks]
        await put(stage, *blocks, ends=ends)
        window = await shown(stage)
        assert tokens(window) <= LIMIT, f"{strategy}: {tokens(window)} tokens"
        assert window[-1] == blocks[-1] and not refusals([*window, User(text="Go on.")])
    assert len(await shown(stage)) < 25


async def test_without_a_model_the_default_needs_none_and_never_fails() -> None:
    config = SessionConfig(**WINDOW)
    assert default_overflow(NoAnswer(), config) == Trim()
    assert default_overflow(NoAnswer(), SessionConfig()) is None
    stage = await opened(default_overflow(NoAnswer(), config), NoAnswer())
    for number in range(20):
        await put(stage, *exchange(number))
    await put(stage, User(text="w" * 300), ends=False)
    compaction = await stage.core.compaction.compact()
    assert (
        compaction
        and compaction.tokens_after <= LIMIT < compaction.tokens_before
        and tokens(await shown(stage)) <= compaction.tokens_after
    )
    assert await stage.core.compaction.compact() is None
    assert not await events_of(stage, CompactionFailed)


async def test_a_summary_is_shown_as_soon_as_it_is_made() -> None:
    stage = await opened(summarize(Summarizer()), NoAnswer())
    number = 0
    while not await events_of(stage, WindowCompacted):
        number += 1
        await put(stage, *exchange(number))
        await asyncio.sleep(1)
    assert isinstance((await shown(stage))[0], Summary)


async def test_a_window_that_does_not_fit_is_summarized_and_not_only_cut() -> None:
    model = Summarizer()
    stage = await opened(summarize(model), NoAnswer())
    await put(stage, *exchange(1), *exchange(2))
    assert not model.shown
    await put(stage, User(text="w" * 400), ends=False)
    window = await shown(stage)
    assert tokens(window) <= LIMIT and isinstance(window[0], Summary) and len(model.shown) == 1
    assert said(window)[-1] == "w" * 400 and await shown(stage) == window and len(model.shown) == 1


async def test_of_prompts_without_answers_the_newest_that_fit_are_shown() -> None:
    stage = await opened(Trim(), NoAnswer())
    for number in range(10):
        await put(stage, User(text=f"{number} " + "w" * 150), ends=False)
    window = await shown(stage)
    assert tokens(window) <= LIMIT and [text[0] for text in said(window)] == ["7", "8", "9"]


@pytest.mark.parametrize("ends", [True, False])
async def test_a_turn_that_cannot_fit_is_an_error_that_names_it(ends: bool) -> None:
    stage = await opened(Trim(), NoAnswer())
    await put(stage, *exchange(1))
    await put(stage, User(text="What is it?"), *tools(2, 2 * LIMIT)[1:], ends=ends)
    with pytest.raises(TurnOverflowError, match=rf"turn '{stage.core.session_id}#1'.*remove\(\), or raise max_context"):
        await shown(stage)
    await put(stage, *exchange(3))
    assert [block.text for block in await shown(stage) if isinstance(block, User)][-1].startswith("question 3")


async def test_a_picture_counts_and_one_that_is_too_large_is_left_out() -> None:
    stage = await opened(Trim(), NoAnswer())
    await put(stage, User(text="look"), Image(url="https://example.org/a.png"), Text(text="I see"))
    await put(stage, *exchange(1), ends=False)
    window = await shown(stage)
    assert tokens(window) <= LIMIT and [type(block) for block in window] == [User, Text]
    assert said(window)[-1].startswith("question 1")


async def test_puts_and_reads_at_once_show_windows_that_fit() -> None:
    stage = await opened(summarize(Summarizer(delay_s=0.5)), NoAnswer())

    async def puts() -> None:
        for number in range(20):
            await put(stage, *exchange(number))
            await asyncio.sleep(0.1)

    async def reads() -> None:
        for _ in range(40):
            window = await shown(stage)
            assert tokens(window) <= LIMIT and not refusals([*window, User(text="Go on.")])
            await asyncio.sleep(0.07)

    await asyncio.gather(puts(), reads(), reads())


async def test_without_a_strategy_all_is_shown() -> None:
    stage = await opened(None, NoAnswer())
    assert await shown(stage) == ()
    for number in range(20):
        await put(stage, *exchange(number))
    assert len(await shown(stage)) == 40


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_there_is_room_for_the_message_that_follows(strategy: str) -> None:
    stage = await opened(STRATEGIES[strategy](), NoAnswer())
    for number in range(25):
        await put(stage, *exchange(number, 10 + number), ends=number % 3 > 0)
        message = f"next {number} {'m' * (3 * number)}"
        turn = await stage.core.next_window.read(message)
        assert turn and tokens([*turn.blocks, User(text=message)]) <= LIMIT
        assert not refusals([*turn.blocks, User(text=message)])


async def test_a_message_that_is_stored_already_takes_no_room_twice() -> None:
    stage = await opened(Trim(), NoAnswer())
    message = "m" * (LIMIT - 40)
    await put(stage, User(text=message), ends=False)
    turn = await stage.core.next_window.read(message)
    assert turn and turn.blocks == (User(text=message),)
    with pytest.raises(TurnOverflowError):
        await stage.core.next_window.read(f"{message}!")


async def test_what_a_strategy_makes_room_for_has_the_message_too() -> None:
    stage = await opened(summarize(Summarizer()), NoAnswer())
    for number in range(3):
        await put(stage, *exchange(number, 10))
    turn = await stage.core.next_window.read()
    assert turn and not any(isinstance(block, Summary) for block in turn.blocks)
    turn = await stage.core.next_window.read("m" * (LIMIT - tokens(turn.blocks)))
    assert turn and any(isinstance(block, Summary) for block in turn.blocks)


async def test_prompts_that_wait_are_never_compacted() -> None:
    stage = await opened(Trim(), NoAnswer())
    for number in range(25):
        await put(stage, *exchange(number), ends=False)
    assert await stage.core.compaction.compact() is None and await stage.core.compaction.compact(explain=True) is None
    assert tokens(await shown(stage)) <= LIMIT, "the returned window fits"
