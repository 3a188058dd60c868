"""`Batcher`: concurrent calls are processed together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from turnwise.actors.hosting.memory.batcher import AT_ONCE, Batcher

pytestmark = pytest.mark.virtual_time


async def test_concurrent_calls_are_one_batch_and_later_calls_the_next() -> None:
    batches: list[list[int]] = []

    async def work(batch: Sequence[int]) -> list[int]:
        batches.append(list(batch))
        await asyncio.sleep(1.0)
        return [2 * number for number in batch]

    batcher = Batcher(work, most=4)
    first = [asyncio.ensure_future(batcher.ask(number)) for number in range(3)]
    await asyncio.sleep(0.5)
    second = [asyncio.ensure_future(batcher.ask(number)) for number in range(3, 9)]
    assert [await answer for answer in (*first, *second)] == [2 * number for number in range(9)]
    assert batches == [[0, 1, 2], [3, 4, 5, 6], [7, 8]]
    assert await batcher.ask(9) == 18, "it goes on after it had nothing to do"


async def test_a_single_call_does_not_wait() -> None:
    async def work(batch: Sequence[int]) -> list[int]:
        return list(batch)

    began = asyncio.get_running_loop().time()
    assert await Batcher(work).ask(7) == 7
    assert asyncio.get_running_loop().time() == began


async def test_failures_and_cancellations_affect_only_their_callers() -> None:
    async def work(batch: Sequence[int]) -> list[int | BaseException]:
        await asyncio.sleep(0.1)
        if 7 in batch:
            raise OSError("all of it")
        return [ValueError(f"{number}") if number == 1 else number for number in batch]

    batcher = Batcher(work)
    tasks = [asyncio.ensure_future(batcher.ask(number)) for number in range(4)]
    await asyncio.sleep(0.05)
    tasks[2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[0] == 0 and results[3] == 3
    assert isinstance(results[1], ValueError) and isinstance(results[2], asyncio.CancelledError)
    failures = await asyncio.gather(batcher.ask(7), batcher.ask(8), return_exceptions=True)
    assert all(isinstance(result, OSError) for result in failures)
    with pytest.raises(ValueError, match="1"):
        await batcher.ask(1)


async def test_a_slow_batch_delays_no_later_batch_up_to_the_limit() -> None:
    under_way, most_under_way = 0, 0

    async def work(batch: Sequence[float]) -> list[float]:
        nonlocal under_way, most_under_way
        under_way += 1
        most_under_way = max(most_under_way, under_way)
        await asyncio.sleep(max(batch))
        under_way -= 1
        return list(batch)

    loop = asyncio.get_running_loop()
    batcher = Batcher(work, most=1, patience_s=0.1)
    slow = asyncio.ensure_future(batcher.ask(30.0))
    await asyncio.sleep(0.01)
    assert await batcher.ask(0.01) == 0.01 and loop.time() < 1 and not slow.done()
    more = [asyncio.ensure_future(batcher.ask(10.0)) for _ in range(9)]
    assert await slow == 30.0 and [await answer for answer in more] == [10.0] * 9
    assert most_under_way == AT_ONCE and not under_way


async def test_a_batch_ends_when_all_who_asked_have_given_up() -> None:
    began, ended = list[list[int]](), list[list[int]]()

    async def work(batch: Sequence[int]) -> list[int]:
        began.append([*batch])
        try:
            await asyncio.Event().wait()
        finally:
            ended.append([*batch])
        return []

    batcher = Batcher(work)
    first = [asyncio.create_task(batcher.ask(number)) for number in (1, 2)]
    await asyncio.sleep(1)
    assert began == [[1, 2]]
    waiting = asyncio.create_task(batcher.ask(3))
    await asyncio.sleep(1)
    waiting.cancel()
    first[0].cancel()
    await asyncio.wait({first[0], waiting})
    await asyncio.sleep(1)
    assert (began, ended) == ([[1, 2]], []), "the other one waits still"
    first[1].cancel()
    await asyncio.wait({first[1]})
    await asyncio.sleep(1)
    assert (began, ended) == ([[1, 2]], [[1, 2]]), "nobody waits for it"
    assert not batcher._waiting and not batcher._answers_of  # noqa: SLF001 - what a long life would gather
    last_call = asyncio.create_task(batcher.ask(4))
    await asyncio.sleep(1)
    assert began == [[1, 2], [4]]
    last_call.cancel()
