"""The audit: finds each law that a test violates in a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from turnwise.memory.conversation.blocks import Text, ToolUse, User, encode
from turnwise.memory.conversation.events import RunCompleted, RunStarted
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.schedules import explore, play
from turnwise.testing.world import World


async def lived() -> World:
    """Return a world with two turns, an appended prompt and a follower."""
    world = World(Faults())
    await world.create()
    await world.append("appended")
    for prompt in ("one", "two"):
        await world.wait(await world.start(prompt))
    events, *_ = await world.ask("reads.events", 0, 1000)
    world.told.followed("session", "two", [event.seq for event in events if event.run_id == "two"])
    return world


def row(world: World) -> Any:
    return world.store.inner._rows["session"]


def log(world: World) -> dict[int, str]:
    found: dict[int, str] = world.store.inner._logs[row(world).session.log]
    return found


def test_a_scenario_without_faults_passes_and_is_counted() -> None:
    async def life() -> None:
        world = await lived()
        found = await world.audit()
        found.check()
        assert found.counts["sessions"] == 1 and found.counts["turns"] == found.counts["runs"] == 2
        assert found.counts["acknowledged prompt"] == 3 and found.counts["acknowledged end"] == 2
        assert found.counts["acknowledged followed"] == 1 and found.counts["requests"] == 2

    play(life(), "a life", 0)


def _lose_a_prompt(world: World) -> None:
    log(world)[0] = encode(User(text="another"))


def _double_a_prompt(world: World) -> None:
    log(world)[3] = encode(User(text="one"))


def _change_an_answer(world: World) -> None:
    at = next(at for at, block in log(world).items() if "answer" in block)
    log(world)[at] = encode(Text(text="something else"))


def _leave_a_call_open(world: World) -> None:
    at = next(at for at, block in log(world).items() if "answer" in block)
    log(world)[at] = encode(ToolUse(call_id="1", name="look", input={}))


def _swap_prompts(world: World) -> None:
    places = {block: at for at, block in log(world).items()}
    one, two = (places[encode(User(text=text))] for text in ("one", "two"))
    log(world)[one], log(world)[two] = log(world)[two], log(world)[one]


def _drop_a_run(world: World) -> None:
    del row(world).runs["one"]


def _drop_a_turn(world: World) -> None:
    del row(world).turns[0]


def _break_the_chain(world: World) -> None:
    row(world).turns[1] = replace(row(world).turns[1], input=row(world).turns[1].prompt)


def _reopen_a_run(world: World) -> None:
    row(world).runs["two"] = replace(row(world).runs["two"], state="running")


def _end_twice(world: World) -> None:
    events = row(world).events
    end = next(event for event in events.values() if isinstance(event, RunCompleted))
    events[max(events) + 1] = end.model_copy(update={"seq": max(events) + 1})


def _start_two_at_once(world: World) -> None:
    events = row(world).events
    start = next(event for event in events.values() if isinstance(event, RunStarted))
    events[start.seq + 1] = start.model_copy(update={"seq": start.seq + 1, "run_id": "other"})


def _miss_an_event(world: World) -> None:
    world.told.followed("session", "two", [max(row(world).events)])


def _see_an_event_twice(world: World) -> None:
    world.told.followed("session", "two", [1, 2, 2, *row(world).events])


def _forget_the_session(world: World) -> None:
    world.told.forked("a fork that there is not")


BREAKS: list[tuple[Callable[[World], None], str]] = [
    (_lose_a_prompt, "acknowledged prompt once"),
    (_double_a_prompt, "acknowledged prompt once"),
    (_change_an_answer, "acknowledged turn"),
    (_leave_a_call_open, "next request valid"),
    (_swap_prompts, "order of acknowledgement"),
    (_drop_a_run, "acknowledged run"),
    (_drop_a_turn, "acknowledged turn"),
    (_break_the_chain, "continues the turn before"),
    (_reopen_a_run, "no run without outcome"),
    (_reopen_a_run, "acknowledged end"),
    (_end_twice, "one terminal event, the last"),
    (_start_two_at_once, "one run at a time"),
    (_miss_an_event, "followers miss nothing"),
    (_see_an_event_twice, "followers see each event once"),
    (_forget_the_session, "acknowledged session"),
]


@pytest.mark.parametrize(("spoil", "law"), BREAKS)
def test_each_violated_law_is_named(spoil: Callable[[World], None], law: str) -> None:
    async def life() -> None:
        world = await lived()
        spoil(world)
        found = await world.audit()
        assert law in {violation.law for violation in found.violations}
        with pytest.raises(AssertionError, match=law):
            found.check()

    play(life(), "a life", 0)


def test_prompts_of_cancelled_runs_may_be_missing_only_with_discards() -> None:
    async def life() -> None:
        world = World(Faults())
        await world.create()
        await world.start("kept", run_id="first")
        await world.start("rolled back", run_id="second", if_busy="enqueue")
        await world.start("instead", run_id="third", if_busy="rollback")
        for run_id in ("first", "second", "third"):
            await world.wait(run_id)
        (await world.audit(discards=True)).check()
        assert {each.law for each in (await world.audit()).violations} == {"acknowledged prompt once"}

    play(life(), "a life", 0)


class ForgetfulStore(InMemoryStore):
    """Acknowledges each tenth commit without storing it."""

    commits = 0

    async def commit(self, *args: Any) -> None:
        self.commits += 1
        if self.commits % 10:
            await super().commit(*args)


def test_a_store_that_loses_acknowledged_prompts_is_detected() -> None:
    async def life(seed: int) -> None:
        world = World(Faults(FaultPlan(rates={"crash": 0.05}), seed=seed), store=ForgetfulStore())
        await world.create()
        for number in range(12):
            await world.append(f"appended {number}")
        (await world.audit()).check()

    with pytest.raises(AssertionError, match=r"(?s)is stored 0 times.*TURNWISE_SEED"):
        explore(20, life)
