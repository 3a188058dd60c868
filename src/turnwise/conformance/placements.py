"""The laws of placements, checked on sessions on Ray: one is started if the process is not connected to one."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Placement
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import SessionBusyError, SessionNotFoundError
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses
from turnwise.memory.values.ids import new_id

LONG_S = 120.0
"""How many seconds a run may take, with the start of its process."""

WORD_S = 0.05
"""How many seconds the engine of the laws takes for a word."""


async def check_placement(make: Callable[[str], Placement]) -> None:
    """Check all laws, in order.

    Args:
        make: returns a placement for the name of a law. Each law has sessions of its own.

    Raises:
        AssertionError: the placement breaks a law; names the law.
    """
    for law in LAWS:
        await law(make(law.__name__.removeprefix("check_")))


LAWS: list[Law] = []
"""All laws, in order."""

_law = collector(LAWS)


@asynccontextmanager
async def managers(placement: Placement) -> AsyncIterator[tuple[AsyncSessionManager, AsyncSessionManager]]:
    """Yield two managers of one store, as two programs would have."""
    name = new_id()

    def manager() -> AsyncSessionManager:
        engine = EchoEngine(token_delay_s=WORD_S)
        return AsyncSessionManager(f"memory://{name}", engine=engine, placement=placement, namespace=f"laws-{name}")

    async with manager() as first, manager() as second:
        yield first, second
        for session in await first.list():
            with suppress(SessionNotFoundError):  # a delete whose answer was lost is repeated, and finds nothing
                await (await first.get(session.session_id)).delete()


@_law
async def check_a_session_has_one_process_for_all_callers(placement: Placement) -> None:
    """Two managers with an equal placement reach the same one; runs of one session follow one another."""
    async with managers(placement) as (first, second):
        session = await first.open("s")
        run = await session.run("one two three four five six seven eight")
        again = await (await second.open("s")).info()
        equal(again.pid, (await session.info()).pid, "the process that the second manager reaches")
        await refuses(SessionBusyError, (await second.open("s")).run("two"), "a run beside another")
        queued = await (await second.open("s")).run("next", if_busy="enqueue")
        equal((await queued.wait(LONG_S)).text, "next", "the answer of the queued run")
        equal((await run.wait(LONG_S)).index, 0, "the turn of the first run")


@_law
async def check_sessions_run_beside_one_another(placement: Placement) -> None:
    """Each with its own prompts."""
    async with managers(placement) as (first, second):
        sessions = [await (first, second)[number % 2].open(f"s{number}") for number in range(4)]
        runs = await asyncio.gather(*(session.run(f"answer {index}") for index, session in enumerate(sessions)))
        turns = await asyncio.gather(*(run.wait(LONG_S) for run in runs))
        equal([turn.text for turn in turns], [f"answer {number}" for number in range(4)], "the answers")


@_law
async def check_a_run_is_cancelled_from_another_manager(placement: Placement) -> None:
    """By a handle that was pickled; the session goes on."""
    async with managers(placement) as (first, second):
        run = await (await first.open("s")).run("word " * 1000)
        copy = pickle.loads(pickle.dumps(await second.execution(run.run_id)))  # noqa: S301 - made here
        await copy.cancel("enough")
        equal((await run.info()).state, "cancelled", "how the run ended")
        turn = await (await (await second.open("s")).run("hello")).wait(LONG_S)
        equal(turn.text, "hello", "the answer of the next run")


@_law
async def check_a_killed_process_comes_back_with_what_was_acknowledged(placement: Placement) -> None:
    """The run that was lost ends, once; turns that were acknowledged are there, and the next run continues them."""
    async with managers(placement) as (first, second):
        session = await first.open("s")
        equal((await (await session.run("first")).wait(LONG_S)).text, "first", "the first answer")
        lost = await session.run("word " * 1000)
        pid = (await session.info()).pid
        if pid is None:
            raise AssertionError("the session has no process while a run is active")
        os.kill(pid, signal.SIGKILL)
        followed = await second.execution(lost.run_id)
        while (await followed.info()).state == "running":
            await (await second.open("s")).refresh()
        equal((await followed.info()).state, "interrupted", "how the lost run ended")
        turn = await (await (await second.open("s")).run("last")).wait(LONG_S)
        equal((turn.text, turn.index), ("last", 2), "the next answer")
        kinds = [event.kind for event in await session.events() if event.run_id == lost.run_id and event.terminal]
        equal(kinds, ["run_interrupted"], "the terminal events of the lost run")
