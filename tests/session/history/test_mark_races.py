"""Marks race what takes their messages away; on `SessionCore` alone. The audit compares search with what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from test_versions import EVENTS

from scale import share
from schedules import SESSION, World, explore
from turnwise.errors import InvalidInputError, SessionBusyError, SessionInUseError, StoreError, TurnNotFoundError
from turnwise.memory.conversation.marks import marks_of
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.testing.audit import audit, read_turns
from turnwise.testing.schedules import play

KEY = SessionKey(SESSION)

REFUSED = (InvalidInputError, SessionBusyError, SessionInUseError, TurnNotFoundError)


CONTINUES = ("continues the turn before",)
"""The law that a later turn does not keep once an earlier one is forgotten."""


async def schedule(seed: int) -> None:
    world = World(seed, kinds=("answer", "tools", "raise"))
    await world.create()
    for prompt in ("one", "two", "three"):
        await world.core.reads.wait((await world.core.admission.start([prompt], run_id=prompt)).run_id)
    turns = await read_turns(world.store.inner, KEY)
    stored: dict[tuple[int, int, str], Any] = {}

    async def attempt(act: Any) -> Any:
        await world.pause()
        while True:
            try:
                return await act(world.core)
            except REFUSED as error:
                return error
            except StoreError:  # nobody knows whether it was stored: repeat it
                await asyncio.sleep(0.01)

    async def mark(index: int, number: int, name: str, value: Any) -> None:
        answer = await attempt(lambda core: core.marking.mark(index, number, name, value, by=name))
        if not isinstance(answer, REFUSED):
            stored[index, number, name] = value

    def remove(index: int) -> Any:
        return attempt(lambda core: core.removals.remove(index, turns[index].record.output, f"remove {index}"))

    def rerun(index: int) -> Any:
        return attempt(lambda core: core.admission.rerun([f"edit {index}"], index, run_id=f"rerun {index}"))

    async def move() -> None:
        await world.pause()
        world.core = world.new_core()

    dice = world.random
    acts = [
        mark(dice.randrange(3), dice.randrange(2), name, dice.choice([1, "good", {"stars": 5}, None]))
        for name in ("ann", "bob", "eve", "zoe")
    ]
    takers: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        partial(remove, dice.randrange(3)),
        partial(rerun, dice.randrange(3)),
        partial(attempt, lambda core: core.forgetting.clear(dice.randrange(3))),
        partial(attempt, lambda core: core.forgetting.forget_turn(1)),
        partial(attempt, lambda core: core.admission.start(["run"], run_id="run", if_busy="enqueue")),
        move,
    ]
    world.store.fail_rate = dice.choice((0.0, 0.1))
    await asyncio.gather(*acts, *(take() for take in dice.sample(takers, 3)))
    world.store.fail_rate = 0.0
    for run in await world.core.reads.runs():
        await world.core.reads.wait(run.run_id)
    findings = (await audit(world.store.inner, [SESSION])).violations
    kinds = {event.kind for event in await world.store.inner.events(KEY)}
    without = (*(EVENTS if "turns_cleared" in kinds else ()), *(CONTINUES if "turn_forgotten" in kinds else ()))
    assert [finding for finding in findings if finding.law not in without] == []
    left = {turn.index: turn.record for turn in await read_turns(world.store.inner, KEY)}
    for (index, number, name), value in stored.items():
        turn = left.get(index)
        if turn is None or (turn.removed and number):
            continue
        mark_left = marks_of(turn, number).get(name)
        assert (mark_left and mark_left.value) == value, (index, number, name)


def test_marks_race_what_takes_their_messages_away_and_none_is_lost_or_left_behind() -> None:
    explore(share(2000, 60), schedule)


def test_a_process_that_has_lost_its_session_is_told_so_though_it_reads_what_the_next_one_has_stored() -> None:
    """A clear of the old process finds a turn of the new one, whose blocks come after its own."""
    play(schedule(1912), "seed 1912", 1912)
