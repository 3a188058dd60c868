"""Schedules: what happens in one world under one seed, replayed from that seed alone.

Everything random in a schedule comes from its seed, and a `VirtualLoop` leaves nothing to the machine.
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

from turnwise.testing.loop import Fate, Hook, VirtualLoop

SEED = "TURNWISE_SEED"
"""The environment variable that names the one seed to replay."""

Schedule = Callable[[int], Coroutine[Any, Any, None]]
"""Makes its world from a seed, and asserts."""


def explore(count: int | range, schedule: Schedule, *, yields: float = 0.0, kills: float = 0.0) -> int:
    """Run `schedule` under each seed, on a loop of its own; return how many ran.

    Seeds are the numbers below `count`, or those of a range; only the one in TURNWISE_SEED, if that is set.

    Args:
        yields: how likely a step of a `Process` waits until all others that are ready have been taken, from 0 to 1.
        kills: how likely its process dies instead.

    Raises:
        AssertionError: one failed; the message has the seed that replays it.
    """
    ran = 0
    for seed in seeds(count) if isinstance(count, int) else count:
        play(schedule(seed), f"seed {seed}", seed, unsteady(seed, yields, kills) if yields or kills else None)
        ran += 1
    return ran


def spread(count: int, schedule: Schedule, **rates: float) -> int:
    """Do what `explore` does, on all cores: for many schedules that leave nothing in this process.

    Raises:
        AssertionError: one failed; the message has the seed that replays it.
    """
    among = [] if SEED in os.environ else range(os.cpu_count() or 1)
    if len(among) < 2:  # noqa: PLR2004 - one core, one process
        return explore(count, schedule, **rates)
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.queues.SimpleQueue[int | str] = context.SimpleQueue()

    def work(first: int) -> None:
        try:
            answers.put(explore(range(first, count, len(among)), schedule, **rates))
        except BaseException:  # noqa: BLE001 - it is told, whatever it is
            answers.put(traceback.format_exc())

    workers = [context.Process(target=work, args=[first]) for first in among]
    for worker in workers:
        worker.start()
    told = [answers.get() for _ in workers]
    for worker in workers:
        worker.join()
    for answer in told:
        if isinstance(answer, str):
            raise AssertionError(answer)
    return sum(answer for answer in told if isinstance(answer, int))


def play(life: Coroutine[Any, Any, None], name: str, number: int, hook: Hook | None = None) -> int:
    """Run one coroutine on a `VirtualLoop`; return how many steps its processes took.

    Raises:
        AssertionError: it failed; the message says how `number` replays it.
    """
    loop = VirtualLoop(hook)
    try:
        loop.run_until_complete(life)
        return loop.steps
    except BaseException as error:
        raise AssertionError(f"{name} fails ({error!r}); replay it with {SEED}={number}") from error
    finally:
        loop.settle()


def seeds(count: int) -> Iterable[int]:
    """Return the numbers below `count`, or the one in TURNWISE_SEED."""
    only = os.environ.get(SEED)
    return [int(only)] if only else range(count)


def unsteady(seed: int, yields: float, kills: float) -> Hook:
    """Return a hook that puts steps off, and kills, at these rates."""
    # Dice of its own, so that a schedule sees the same numbers with it and without it.
    dice = random.Random(f"{seed} between steps")

    def fate(_: int) -> Fate:
        drawn = dice.random()
        return "kill" if drawn < kills else "yield" if drawn < kills + yields else "go"

    return fate


async def pause(dice: random.Random) -> None:
    """Let others run: not at all, for a tick, or for up to 0.02 s."""
    drawn = dice.random()
    if drawn < 0.3:  # noqa: PLR2004 - each of the three is likely
        return
    if drawn < 0.6:  # noqa: PLR2004
        await asyncio.sleep(0)
    else:
        await asyncio.sleep(dice.random() * 0.02)


async def inline(call: Callable[..., Any], *args: Any) -> Any:
    """Call it here: what a `SessionCore` takes as `off_loop` where no thread may be waited for."""
    return call(*args)
