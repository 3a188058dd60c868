"""Runs with an overflow strategy of their own, after which the conversation goes on whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnwise.actors.session.core import SessionCore
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.events import WindowCompacted
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.values.ids import new_id
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.keep_last import KeepLast
from turnwise.strategies.of_run import overflow_record, strategy_of
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim
from windows.stage import Summarizer, Talker, chat, events_of, opened, said

pytestmark = pytest.mark.virtual_time

LAST: dict[str, Any] = {"strategy": "KeepLast", "turns": 1}


async def run_alone(core: SessionCore, prompt: str, overflow: Any = LAST, **options: Any) -> str:
    run_id = new_id()
    await core.admission.start([prompt], run_id=run_id, overflow=overflow, **options)
    await core.reads.wait(run_id)
    return run_id


@pytest.mark.parametrize("strategy", [None, Trim()])
async def test_a_run_with_its_own_strategy_sees_less_and_the_next_one_sees_all(strategy: Any) -> None:
    stage = await opened(strategy)
    engine: Talker = stage.engine
    await chat(stage, "one", "two")
    run_id = await run_alone(stage.core, "three")
    assert said(engine.given[-1]) == ["three"]
    turn = await stage.core.reads.turn(2)
    assert said(turn.blocks) == ["three"], "a turn is what the model saw"
    assert len(await events_of(stage, WindowCompacted)) == 1
    await chat(stage, "four")
    assert said(engine.given[-1]) == ["one", "two", "three", "four"]
    assert rebuild((await stage.core.reads.events())[0]) == list((await stage.core.reads.turn(3)).blocks)
    assert (await stage.core.reads.run(run_id)).overflow == LAST
    stage.new_core()
    await chat(stage, "five")
    assert said(engine.given[-1]) == ["one", "two", "three", "four", "five"], "also in another process"


async def test_two_such_runs_in_a_row_lose_nothing() -> None:
    stage = await opened(None)
    await chat(stage, "one", "two")
    for prompt, overflow in (("three", LAST), ("four", {"strategy": "Trim", "max_tokens": 30}), ("five", LAST)):
        await run_alone(stage.core, prompt, overflow)
    await chat(stage, "six")
    engine: Talker = stage.engine
    assert said(engine.given[-1]) == ["one", "two", "three", "four", "five", "six"]
    assert [len(said(given)) for given in engine.given[2:5]] == [1, 1, 1]


async def test_a_runs_own_strategy_leaves_out_no_more_than_it_must() -> None:
    stage = await opened(None)
    await chat(stage, *map(str, range(8)))
    await run_alone(stage.core, "8", overflow_record(KeepLast(turns=6)))
    engine: Talker = stage.engine
    assert said(engine.given[-1]) == list("345678")


async def test_what_a_cancelled_run_leaves_out_stays_in_the_conversation() -> None:
    stage = await opened(None)
    await chat(stage, "one")
    await stage.core.admission.start(["two"], run_id="two", overflow=LAST)
    await asyncio.sleep(0.005)
    await stage.core.admission.cancel("enough", "two")
    await chat(stage, "three")
    engine: Talker = stage.engine
    assert said(engine.given[1]) == ["two"] and said(engine.given[-1]) == ["one", "two", "three"]


async def test_a_run_with_its_own_strategy_merges_with_equal_ones_only() -> None:
    stage = await opened(None)
    await stage.core.admission.start(["first"], run_id="first")
    for run_id, overflow in (("a", LAST), ("b", LAST), ("c", None)):
        await stage.core.admission.start([run_id], run_id=run_id, overflow=overflow, if_busy="merge")
    for run_id in "abc":
        await stage.core.reads.wait(run_id)
    engine: Talker = stage.engine
    assert [said(given) for given in engine.given] == [["first"], ["a", "b"], ["first", "a", "b", "c"]]


@pytest.mark.parametrize("strategy", [KeepLast(turns=3), KeepLast(messages=2, max_tokens=5), Trim(), DeleteOldest(2)])
def test_a_strategy_comes_back_from_its_record(strategy: Any) -> None:
    assert strategy_of(overflow_record(strategy)) == strategy


WRONG: list[dict[str, Any]] = [
    *({"strategy": "Summarize"}, {"turns": 1}, {"strategy": ["Trim"]}),
    *({"strategy": "KeepLast"}, {"strategy": "KeepLast", "turns": 0}, {"strategy": "Trim", "turns": 1}),
]


@pytest.mark.parametrize("record", WRONG)
async def test_a_record_that_is_no_strategy_is_refused(record: dict[str, Any]) -> None:
    stage = await opened(None)
    with pytest.raises(InvalidInputError, match="overflow"):
        await stage.core.admission.start(["one"], run_id="one", overflow=record)
    assert await stage.core.reads.turns() == []


async def test_a_strategy_that_asks_a_model_or_needs_an_unknown_window_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="asks no model"):
        overflow_record(Summarize(Summarizer()))
    stage = await opened(None, max_context_tokens=None)
    with pytest.raises(InvalidInputError, match=r"overflow.*max_context_tokens"):
        await stage.core.admission.start(["one"], run_id="one", overflow={"strategy": "Trim"})
    await run_alone(stage.core, "one")
