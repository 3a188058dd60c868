"""`SessionConfig.storage_limit`: the oldest turns go, and no more is stored than it says."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from memories.session_memories import Book, MemoryStage
from scale import of_cases
from schedules import SESSION, inline
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import ConfigError
from turnwise.memory.conversation.blocks import User
from turnwise.memory.conversation.events import TurnsCleared
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import size
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.providers.message_reading import read_messages
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.ids import new_id
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.world import World


async def core_of(limit: int | None = 6, **options: Any) -> SessionCore:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))
    now = asyncio.get_running_loop().time
    config = SessionConfig(storage_limit=limit)
    return SessionCore(SessionKey(SESSION), store, EchoEngine(), config, clock=now, off_loop=inline, **options)


async def run(core: SessionCore, *prompts: str, pause_s: float = 1.0) -> None:
    for prompt in prompts:
        started = await core.admission.start([prompt], run_id=new_id(), if_busy="enqueue")
        await core.reads.wait(started.run_id)
        await asyncio.sleep(pause_s)


def asked(turns: list[Turn]) -> list[str]:
    return [block.text for turn in turns for block in turn.asked if isinstance(block, User)]


async def stored_blocks(core: SessionCore) -> int:
    return sum(len(turn.new_blocks) for turn in await core.reads.turns())


@pytest.mark.virtual_time
async def test_the_oldest_turns_go_and_the_conversation_goes_on_with_the_others() -> None:
    history = InMemoryHistory()
    core = await core_of(history=history)
    numbers = [f"{number}" for number in range(12)]
    for number in numbers:
        await run(core, number)
        assert await stored_blocks(core) <= 6
    assert asked(await core.reads.turns()) == numbers[-3:]
    await run(core, "last")
    turns = await core.reads.turns()
    assert asked(turns) == [*numbers[-2:], "last"]
    assert [block.text for block in turns[-1].blocks if isinstance(block, User)] == asked(turns), "nothing else is left"
    events = await history.events(SessionKey(SESSION))
    oldest = (await core.reads.turns())[0].index
    assert all(event.turn_index is None or event.turn_index >= oldest for event in events)
    assert any(isinstance(event, TurnsCleared) for event in events)


@pytest.mark.virtual_time
async def test_the_newest_turn_stays_however_large() -> None:
    core = await core_of(limit=1)
    await run(core, "one", "two")
    assert asked(await core.reads.turns()) == ["two"]


@pytest.mark.virtual_time
async def test_nothing_goes_below_the_limit_or_without_one() -> None:
    for limit in (None, 8):
        core = await core_of(limit)
        await run(core, "one", "two", "three", "four")
        assert asked(await core.reads.turns()) == ["one", "two", "three", "four"]
        assert not any(isinstance(event, TurnsCleared) for event in (await core.reads.events())[0])
    with pytest.raises(ConfigError, match="storage_limit"):
        SessionConfig(storage_limit=0)


@pytest.mark.virtual_time
async def test_what_goes_is_cleared_once() -> None:
    core, cleared = await core_of(), list[int]()
    commit = core.state.journal.store.commit

    async def noting(key: Any, epoch: int, new: Any) -> None:
        cleared.extend(position for position, _ in new.cleared_blocks)
        await commit(key, epoch, new)

    store: Any = core.state.journal.store
    store.commit = noting
    for number in range(12):
        await run(core, f"{number}")
    assert cleared == list(range(18)), "each block of the nine turns that went"


@pytest.mark.by_turns
async def test_texts_that_go_make_room_in_the_file(tmp_path: Path) -> None:
    """Of a turn that went stay its run's record, an event, and an empty place for each block: about 0.5 kB."""
    prompt, sizes = "word " * 2_000, {}
    for limit in (None, 10):
        url, config = f"sqlite:///{tmp_path}/{limit}.db", SessionConfig(storage_limit=limit)
        async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess(), config=config) as manager:
            session = await manager.open("chat")
            for number in range(100):
                await (await session.run(f"{number} {prompt}")).wait()
            while limit and len(await session.turns()) > limit // 2:
                await asyncio.sleep(0.01)
        with closing(sqlite3.connect(f"{tmp_path}/{limit}.db")) as file:
            counts = {
                table: file.execute(f"SELECT count(*) FROM turnwise_{table}").fetchone()[0]
                for table in ("turns", "texts", "runs", "blocks", "events")
            }
            (sizes[limit],) = file.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        if limit:
            assert (counts["turns"], counts["texts"]) == (5, 10), "what is searched goes with its turn"
            assert (counts["runs"], counts["blocks"]) == (100, 200)
            assert counts["events"] <= 2 * 5 + 95
    kept, bound = sizes[None][0], sizes[10][0]
    assert kept > 100 * 2 * len(prompt) and bound < kept / 5, sizes


@pytest.mark.virtual_time
async def test_an_import_is_bounded_too_and_another_process_goes_on() -> None:
    core = await core_of()
    messages = [{"role": role, "content": f"{n}"} for n in range(20) for role in ("user", "assistant")]
    await core.importing.import_turns(read_messages(messages))
    await asyncio.sleep(1)
    assert asked(await core.reads.turns()) == ["17", "18", "19"]
    config = SessionConfig(storage_limit=4)
    again = SessionCore(SessionKey(SESSION), core.state.journal.store, EchoEngine(), config)
    await run(again, "more")
    assert asked(await again.reads.turns()) == ["19", "more"]


@pytest.mark.virtual_time
async def test_a_turn_that_a_memory_lacks_stays_until_it_has_it() -> None:
    book = Book()
    book.held.clear()
    stage = await MemoryStage.opened(book, storage_limit=2)
    for prompt in ("one", "two", "three"):
        await stage.say(prompt)
        await asyncio.sleep(1)
    assert asked(await stage.core.reads.turns()) == ["one", "two", "three"]
    book.held.set()
    await asyncio.sleep(60)
    await stage.say("four")
    await asyncio.sleep(60)
    await stage.say("five")
    await asyncio.sleep(60)
    assert asked(await stage.core.reads.turns()) == ["five"] and len(book.items) == 5, "no memory has lost a turn"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.virtual_time
async def test_callers_at_once_never_leave_more_than_the_limit(seed: int) -> None:
    dice = Random(seed)
    core = await core_of()

    async def caller(name: int) -> None:
        for number in range(4):
            await asyncio.sleep(dice.random())
            match dice.choice(["run", "append", "clear", "fork"]):
                case "run":
                    await run(core, f"{name}.{number}", pause_s=0.0)
                case "append":
                    await core.admission.append([f"{name}.{number}"], key=new_id())
                case "clear" if not core.state.busy:
                    await core.forgetting.clear(keep_last=2, key=new_id())
                case _:
                    await core.reads.messages(None, 10)

    await asyncio.gather(*map(caller, range(4)))
    await run(core, "end")
    assert await stored_blocks(core) <= max(6, len((await core.reads.turns())[-1].new_blocks))
    again = SessionCore(SessionKey(SESSION), core.state.journal.store, EchoEngine())
    assert asked(await again.reads.turns()) == asked(await core.reads.turns())


@pytest.mark.by_turns
@pytest.mark.usefixtures("quiet")
def test_no_fault_at_any_point_leaves_more_than_the_limit_or_a_turn_too_few() -> None:
    async def life(faults: Faults) -> None:
        world = World(faults, engine=EchoEngine(), config=SessionConfig(storage_limit=4))
        await world.create()
        for prompt in ("one", "two", "three", "four"):
            await world.wait(await world.start(prompt))
        await asyncio.sleep(60)
        await world.ask("reads.latest")
        await asyncio.sleep(60)
        turns = await world.store.inner.turns(SessionKey("session"))
        assert sum(size(turn.prompt) + size(turn.output) for turn in turns) <= 4
        assert turns[-1].run_id == "four" and len(turns) == 2

    assert exhaust(life, **of_cases())["kill"] > 20
