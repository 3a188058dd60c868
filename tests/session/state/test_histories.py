"""Random lives of an agent's session: cancelled, killed, decided about and forked anywhere; 20,000 with `make races`.

A failing life prints its seed; `TURNWISE_SEED=<seed> pytest tests/session/state/test_histories.py` replays it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from scale import share
from schedules import SESSION, spread
from stored.audit import check_session, turns_of
from tools.agent_world import FLAWED, REFUSED, UNTAKEN, AgentWorld, check_request, next_request
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import (
    CallDecidedError,
    InvalidInputError,
    InvalidPromptError,
    NoActiveRunError,
    SessionBusyError,
    TurnNotFoundError,
)
from turnwise.memory.conversation.blocks import ToolResult, ToolUse, encode
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Spans, join, overlap, places, union
from turnwise.memory.conversation.transcript import Ledger, repair
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.rebuild import Rebuilt, rebuild

LIVES = share(20_000, 200)

pytestmark = pytest.mark.usefixtures("quiet")


async def live(seed: int) -> None:
    config = SessionConfig(
        on_cancel="discard" if seed % 5 == 0 else "keep",
        on_lost="resume" if seed % 2 else "interrupt",
        cancel_grace_s=0.1,
        idle_s=1e9,
    )
    world = AgentWorld(seed, config)
    await world.create()
    dice, runs, quiet = world.random.random, list[str](), asyncio.Event()

    async def caller() -> None:
        for number in range(2):
            run_id = f"run{number}"
            prompts: list[Any] = [f"prompt {number}"]
            if dice() < 0.3:
                with pytest.raises(InvalidPromptError):
                    await world.ask("admission.start", [*prompts, world.random.choice(FLAWED)], run_id=run_id)
                prompts.append(world.random.choice((REFUSED, REFUSED, *UNTAKEN)))
            while True:
                policy = world.random.choice(("enqueue", "interrupt", "reject", "merge", "inject", "inject"))
                try:
                    await world.ask("admission.start", prompts, run_id=run_id, if_busy=policy)
                    break
                except SessionBusyError:
                    await asyncio.sleep(0.05)
            runs.append(run_id)
            await asyncio.sleep(dice() * 0.3)
            if dice() < 0.3:
                with suppress(NoActiveRunError):
                    await world.ask("admission.cancel", "stop", world.random.choice((None, run_id)))

    async def killer() -> None:
        for _ in range(world.random.choice((0, 1, 2))):
            await asyncio.sleep(dice() * 0.4)
            world.kill()

    async def remover() -> None:
        for number in range(world.random.choice((0, 0, 2, 4))):
            await asyncio.sleep(dice() * 0.6)
            await remove_some(world, f"removal {number}")

    deciding = asyncio.create_task(world.decide_until(quiet, runs))
    await asyncio.gather(caller(), killer(), remover())
    for run_id in runs:
        assert (await world.ask("reads.wait", run_id)).run.finish
    quiet.set()
    await deciding
    world.store.fail_rate = 0.0
    if dice() < 0.5:
        await remove_more(world)
    await check_life(world)
    if dice() < 0.3:
        try:
            await world.ask("forking.fork", None, "fork")
        except TurnNotFoundError:
            return
        for turn in await turns_of(world.store.inner, SessionKey("fork")):
            check_request(next_request(turn))


async def remove_some(world: AgentWorld, key: str) -> Spans:
    """Remove random blocks of a random turn; return the removed spans."""
    turns = await world.ask("reads.turns")
    if not turns:
        return ()
    record = world.random.choice(turns).record
    own = places(join(record.prompt, record.output))
    chosen = union(world.random.sample(own, min(len(own), world.random.choice((1, 1, 2, 5)))))
    with suppress(SessionBusyError, TurnNotFoundError, InvalidInputError):
        await world.ask("removals.remove", record.index, chosen, key)
        return chosen
    return ()


async def remove_more(world: AgentWorld) -> None:
    """Remove blocks step by step; each next request has all remaining blocks that a provider takes, and no others."""
    for number in range(3):
        removed = [await remove_some(world, f"late {number} {part}") for part in range(3)]
        await world.ask("admission.start", ["go on"], run_id=f"late {number}", if_busy="enqueue")
        quiet = asyncio.Event()
        deciding = asyncio.create_task(world.decide_until(quiet, [f"late {number}"]))
        turn = (await world.ask("reads.wait", f"late {number}")).turn
        quiet.set()
        await deciding
        assert turn is None or not overlap(turn.record.input, union(*removed))


async def read_events(world: AgentWorld) -> list[Event]:
    """Return the stored events, as a caller reads them page by page."""
    events: list[Event] = []
    while page := (await world.ask("reads.events", events[-1].seq if events else 0, 7))[0]:
        events += page
    return [event for event in events if not event.live]


async def check_rebuilt(world: AgentWorld, events: list[Event], turns: list[Turn]) -> None:
    """Check that the events rebuild each turn as it was when its run ended, also the events of the event store
    alone."""
    event_lists = [events]
    if world.history:
        event_store = world.history.inner
        while await event_store.last_seq(SessionKey(SESSION)) < max((event.seq for event in events), default=0):
            await asyncio.sleep(1)
        event_lists.append(await event_store.events(SessionKey(SESSION)))
    ended = {turn.run_id: list(turn.blocks) for turn in turns if not turn.record.is_open}
    for event_list in event_lists:
        rebuilt = Rebuilt()
        for event in event_list:
            rebuilt.add(event)
            if event.terminal and event.run_id in ended:
                assert rebuilt.blocks == ended[event.run_id], f"the events up to {event.seq} rebuild another turn"
        if ended and turns[-1].run_id in ended:
            assert rebuild(event_list) == list(turns[-1].blocks), "the events rebuild another conversation"


async def check_life(world: AgentWorld) -> None:
    store, shop = world.store.inner, world.workshop
    turns = await check_session(store, SESSION, history=world.history and world.history.inner)
    events = await read_events(world)
    await check_rebuilt(world, events, turns)
    refused = {run.turn_index for run in await store.runs(SessionKey(SESSION)) if run.code == "refused"}
    for turn in turns:
        check_request(next_request(turn))
        if turn.index in refused:
            assert encode(REFUSED) not in await store.blocks(turn.record.base), "the next request has the picture again"
        uses = [block for block in turn.output if isinstance(block, ToolUse)]
        results = {block.call_id: block for block in turn.output if isinstance(block, ToolResult)}
        assert len(results) == len(uses) == len({use.call_id for use in uses})
        for use in uses:
            call, result = f"{turn.run_id}/{use.call_id}", results[use.call_id]
            assert shop.begun[call] <= 1 or use.name == "again", f"{call} was called twice"
            if not result.is_error and use.name not in ("outside", "careful"):
                assert shop.done[call] >= 1 and result.text == f"{use.name} {use.input['thing']}"
            if use.name == "careful":
                assert not shop.begun[call] or call in shop.approved
        log = [event for event in events if event.run_id == turn.run_id]
        assert Ledger.replay(log).blocks() == list(turn.output), "the run's events have the blocks of the turn"
        for count in world.random.sample(range(len(log)), min(1, len(log))):
            before = [*turn.blocks[: len(turn.blocks) - len(turn.output)]]
            so_far = repair(Ledger.replay(log[:count]).blocks(), why="cut", interrupted=True)
            check_request([*before, *so_far, *next_request(turn)[-1:]])


@pytest.mark.by_turns
@pytest.mark.timeout(900)
def test_every_life_of_a_session_leaves_valid_requests_and_calls_no_tool_twice() -> None:
    """Cases 8, 9, 19, 21, 22, 28, 31 and 33."""
    assert spread(LIVES, live)


def test_the_result_of_an_executed_tool_is_in_the_history_unless_the_process_died() -> None:
    """Case 33: without kills, every call that was made and ended has its result in a turn that was kept."""

    async def life(seed: int) -> None:
        world = AgentWorld(seed, SessionConfig(cancel_grace_s=0.5, idle_s=1e9))
        await world.create()
        await world.ask("admission.start", ["go"], run_id="run")

        async def cancel() -> None:
            await asyncio.sleep(world.random.random() * 0.5)
            await world.ask("admission.cancel", "stop", "run")

        async def decide() -> Any:
            while (await world.ask("reads.wait", "run", 0.05)).run.is_open:
                with suppress(CallDecidedError):
                    await world.decide("run")

        await asyncio.gather(cancel(), decide())
        (turn,) = await turns_of(world.store.inner, SessionKey(SESSION))
        results = {block.call_id: block for block in turn.output if isinstance(block, ToolResult)}
        for call, count in world.workshop.done.items():
            result = results[call.partition("/")[2]]
            ended = not result.is_error and result.text.startswith(world.workshop.names[call])
            assert count == 1 and (ended or world.workshop.names[call] == "stubborn"), f"{call} gave {result}"

    assert spread(share(2000, 40), life)
