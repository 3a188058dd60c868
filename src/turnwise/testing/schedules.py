"""Schedules: random but reproducible runs of a scenario.

All random numbers of a schedule come from its seed, and it runs on a `VirtualLoop`, so the seed alone replays it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.queues
import os
import random
import traceback
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from turnwise.memory.growing_pauses import JITTER
from turnwise.testing.loop import Fate, Hook, VirtualLoop

SEED = "TURNWISE_SEED"
"""The environment variable that names the one seed to replay."""

Schedule = Callable[[int], Coroutine[Any, Any, None]]
"""A scenario: creates a `World` from a seed, uses it, and asserts."""


def explore(count: int | range, schedule: Schedule, *, yields: float = 0.0, kills: float = 0.0) -> int:
    """Run `schedule` with each seed, on a new loop; return the number of runs.

    The seeds are the numbers below `count`, or the given range; if TURNWISE_SEED is set, only that one.

    Args:
        yields: the probability that a step of a `Process` is postponed until all other ready steps have run.
        kills: the probability that its process is killed instead.

    Raises:
        AssertionError: a run failed; the message has its seed.
    """
    ran = 0
    for seed in seeds(count) if isinstance(count, int) else count:
        play(schedule(seed), f"seed {seed}", seed, unsteady(seed, yields, kills) if yields or kills else None)
        ran += 1
    return ran


def spread(count: int, schedule: Schedule, **rates: float) -> int:
    """Do the same as `explore`, in one process per core. The schedules must not rely on side effects in this process.

    Raises:
        AssertionError: a run failed; the message has its seed.
    """
    among = [] if SEED in os.environ else range(os.cpu_count() or 1)
    if len(among) < 2:  # noqa: PLR2004 - one core, one process
        return explore(count, schedule, **rates)
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.queues.SimpleQueue[int | str] = context.SimpleQueue()

    def work(first: int) -> None:
        try:
            answers.put(explore(range(first, count, len(among)), schedule, **rates))
        except BaseException:  # noqa: BLE001 - raised again by the parent
            answers.put(traceback.format_exc())

    workers = [context.Process(target=work, args=[first]) for first in among]
    for worker in workers:
        worker.start()
    results = [answers.get() for _ in workers]
    for worker in workers:
        worker.join()
    for result in results:
        if isinstance(result, str):
            raise AssertionError(result)
    return sum(result for result in results if isinstance(result, int))


def play(life: Coroutine[Any, Any, None], name: str, number: int, hook: Hook | None = None) -> int:
    """Run a coroutine on a `VirtualLoop`; return the number of steps of its processes.

    The pauses between retries, which are random, are seeded by `number`.

    Raises:
        AssertionError: the coroutine failed; the message says how to replay it by `number`.
    """
    loop, before = VirtualLoop(hook), JITTER.getstate()
    JITTER.seed(number)
    try:
        loop.run_until_complete(life)
        return loop.steps
    except BaseException as error:
        raise AssertionError(f"{name} fails ({error!r}); replay it with {SEED}={number}") from error
    finally:
        loop.cancel_and_close()
        JITTER.setstate(before)


def seeds(count: int) -> Iterable[int]:
    """Return the numbers below `count`, or the one in TURNWISE_SEED."""
    only = os.environ.get(SEED)
    return [int(only)] if only else range(count)


def unsteady(seed: int, yields: float, kills: float) -> Hook:
    """Return a hook that postpones steps and kills processes with these probabilities."""
    # Its own random numbers, so that the schedule's are the same with and without the hook.
    dice = random.Random(f"{seed} between steps")

    def fate(_: int) -> Fate:
        drawn = dice.random()
        return "kill" if drawn < kills else "yield" if drawn < kills + yields else "go"

    return fate


async def pause(dice: random.Random) -> None:
    """Pause for a random time: not at all, for one step of the loop, or for up to 0.02 s."""
    drawn = dice.random()
    if drawn < 0.3:  # noqa: PLR2004 - the three cases are about equally likely
        return
    if drawn < 0.6:  # noqa: PLR2004
        await asyncio.sleep(0)
    else:
        await asyncio.sleep(dice.random() * 0.02)


async def inline(call: Callable[..., Any], *args: Any) -> Any:
    """Call the function on the event loop: the `off_loop` of a `SessionCore` on a `VirtualLoop`."""
    return call(*args)
