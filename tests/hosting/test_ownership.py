"""Case 64: who owns a session, when its owner is frozen and wakes up, and when many ask at once.

Run as a program it drives two sessions through Ray: `python test_ownership.py ADDRESS FOLDER NUMBER`.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from types import ModuleType
from typing import Any, get_args

import pytest
from test_outages import AwayStore

from engines import ScriptedEngine
from processes.forks import Fork
from scale import share
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Dedicated, Packed, Placement
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    OverloadedError,
    QueueFullError,
    SessionBusyError,
    SessionFencedError,
    SessionLostError,
    SessionNotFoundError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.conversation.blocks import AnyBlock, Text, User
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.urls import open_store
from turnwise.testing import workload
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.audit import audit, read_session
from turnwise.testing.workload import Caller, Workload

BOUND_S = 60.0
"""No test gets near it. Beyond it something hangs."""

DRIVERS, ASKED, SHARED = share(8, 2), 5, 3
"""How many processes; how often each asks each session for something; how many runs all of them ask for."""

PLACEMENTS: dict[str, Placement] = {"dedicated": Dedicated(), "packed": Packed(hosts=1)}


class HeldEngine:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()

    def build(self, session: SessionView) -> "HeldEngine":
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        context.emit("so far")
        await self.goes_on.wait()
        context.emit(" and too late")
        return [Text(text="so far and too late")]


async def own(url: str) -> None:
    """Create and own the session `s`; for each line that comes in do something, and print what came of it."""
    store, engine = open_store(url), HeldEngine()
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, engine)
    await core.admission.start(["first"], run_id="held")
    await core.admission.start(["second"], run_id="queued", if_busy="enqueue")
    waiting = {name: asyncio.create_task(core.reads.wait(name)) for name in ("held", "queued")}
    await asyncio.sleep(0)
    print("ready", flush=True)
    while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            if word == "release":
                engine.goes_on.set()
            elif word == "start":
                await core.admission.start(["late"], run_id="late", if_busy="enqueue")
            elif word == "append":
                await core.admission.append(["late"], key="late")
            else:
                await waiting[word]
            print(word, "done", flush=True)
        except TurnwiseError as error:
            print(word, type(error).__name__, flush=True)
    await store.close()


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("database" if request.param == "postgresql" else "redis_url"))


async def all_of(store: SessionStore) -> tuple[list[str], list[str]]:
    """Return the runs and the events of the session, as they are stored."""
    records = await read_session(store, SessionKey("s"))
    return [repr(run) for run in records.runs], [repr(event) for event in records.events]


def test_an_owner_that_was_frozen_is_refused_and_changes_nothing(url: str) -> None:
    """SIGSTOP, as when the network parts; another has the session meanwhile, with its queue; SIGCONT."""

    async def story(frozen: Fork) -> None:
        store = open_store(url)
        core = SessionCore(SessionKey("s"), store, ScriptedEngine())
        await core.transactor.activate()
        outcomes = [await core.reads.wait(run_id) for run_id in ("held", "queued")]
        assert [outcome.run.state for outcome in outcomes] == ["interrupted", "completed"]
        await core.admission.start(["third"], run_id="third")
        await core.reads.wait("third")
        before = await all_of(store)
        words = ["release", "held", "queued", "start", "append"]
        frozen.into.write("".join(f"{word}\n" for word in words))
        frozen.into.flush()
        os.kill(frozen.pid, signal.SIGCONT)
        lines = [await asyncio.to_thread(frozen.out.readline) for _ in words]
        assert lines == ["release done\n", *(f"{word} SessionFencedError\n" for word in words[1:])]
        assert await all_of(store) == before
        await core.admission.start(["fourth"], run_id="fourth")
        outcome = await core.reads.wait("fourth")
        assert outcome.turn
        prompts = [block.text for block in outcome.turn.blocks if isinstance(block, User)]
        assert prompts == ["first", "second", "third", "fourth"]
        (await audit(store, ["s"])).check()
        await store.close()

    with Fork(lambda: asyncio.run(own(url))) as frozen:
        assert frozen.out.readline() == "ready\n"
        os.kill(frozen.pid, signal.SIGSTOP)
        asyncio.run(asyncio.wait_for(story(frozen), BOUND_S))


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_owner_that_was_cut_off_from_its_store_does_not_take_the_session_back(is_deleted: bool) -> None:
    """It does not know what became of its last commit. It asks, and finds that the session is another's, or gone."""
    expected = SessionNotFoundError if is_deleted else SessionFencedError

    async def story() -> None:
        store = AwayStore()
        await store.create(SessionRecord(session_id="s"))
        old = SessionCore(SessionKey("s"), store, ScriptedEngine(), SessionConfig(store_retry_s=0.0))
        await old.admission.start(["slow 1000"], run_id="active")
        await old.admission.start(["hello"], run_id="queued", if_busy="enqueue")
        following = asyncio.create_task(
            old.reads.events((await old.reads.session()).seq, run_id="active", timeout_s=BOUND_S)
        )
        waiting = [asyncio.create_task(old.reads.wait(run_id)) for run_id in ("active", "queued")]
        store.is_away = True
        with pytest.raises(StoreError, match="away"):
            await old.admission.append(["more"], key="more")
        store.is_away = False
        new = SessionCore(SessionKey("s"), store, ScriptedEngine())
        await new.transactor.activate()
        await new.reads.wait("queued")
        if is_deleted:
            await new.forgetting.delete()
        else:
            await new.admission.start(["slow 5"], run_id="new")
        with pytest.raises(expected):
            await old.admission.append(["more"], key="more")
        for task in (*waiting, following):
            with pytest.raises(expected):
                await task
        if not is_deleted:
            outcome = await new.reads.wait("new")
            assert outcome.run.state == "completed"
            (await audit(store, ["s"])).check()

    asyncio.run(asyncio.wait_for(story(), BOUND_S))


# Many drivers


def told_in(folder: Path) -> Acknowledged:
    return Acknowledged(folder / "told.jsonl")


async def drive(address: str, folder: Path, number: str) -> None:
    """Ask both sessions for all sorts of things; print which runs those are that all drivers ask for."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    workload.IF_BUSY = get_args(IfBusy)
    acknowledged, ids = told_in(folder), dict[str, str]()

    async def ask(name: str) -> None:
        async with AsyncSessionManager(
            f"sqlite:///{folder}/{name}.db",
            engine=EchoEngine(token_delay_s=0.01),
            placement=PLACEMENTS[name],
            namespace=f"test-{folder.name}",
        ) as manager:
            sizes = Workload(
                appends=0.2, cancels=0.2, follows=0.2, forks=0.0, schedules=0.0, sends=0.0, run_timeout_s=BOUND_S
            )
            remaining = iter(range(ASKED))
            caller = Caller(
                manager, name, name=number, workload=sizes, acknowledged=acknowledged, seed=f"{name} {number}"
            )
            calling = asyncio.create_task(caller.call(lambda: next(remaining, None) is None))
            session = await manager.open(name)
            for index in range(SHARED):
                prompt, run, asked_at = f"{name} shared {index}", None, acknowledged.clock()
                while run is None:
                    try:
                        run = await session.run(prompt, if_busy="enqueue", idempotency_key=prompt)
                    except (SessionBusyError, QueueFullError, SessionLostError, StoreError, OverloadedError):
                        await asyncio.sleep(0.05)
                acknowledged.stored(name, [], asked_at, run_id=run.run_id)
                ids[prompt] = run.run_id
            await calling

    await asyncio.gather(*map(ask, PLACEMENTS))
    print(json.dumps(ids))


@pytest.mark.by_turns
def test_many_drivers_that_ask_one_session_for_everything_at_once_agree(
    make_ray_manager: Callable[..., SessionManager], ray_session: ModuleType, tmp_path: Path
) -> None:
    """Cases 15, 16 and 17: no history forks, none is lost or doubled, and the order is that of acknowledgement."""
    for name, placement in PLACEMENTS.items():
        make_ray_manager(store=f"sqlite:///{tmp_path}/{name}.db", placement=placement).open(name)
    address = ray_session.get_runtime_context().gcs_address
    command = [sys.executable, __file__, address, str(tmp_path)]
    drivers = [Popen([*command, str(number)], stdout=PIPE, stderr=PIPE, text=True) for number in range(DRIVERS)]
    try:
        outputs = [driver.communicate(timeout=2 * BOUND_S) for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()
    assert [driver.returncode for driver in drivers] == [0] * DRIVERS, [errors[-2000:] for _, errors in outputs]
    ids = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert len(ids[0]) == 2 * SHARED and all(run_ids == ids[0] for run_ids in ids)

    async def check() -> None:
        for name in PLACEMENTS:
            store = open_store(f"sqlite:///{tmp_path}/{name}.db")
            acknowledged: Any = [note for note in told_in(tmp_path) if note.session_id == name]
            report = await audit(store, [name], acknowledged, discards=True)
            report.check()
            assert (
                report.counts["acknowledged run"] >= DRIVERS * SHARED and report.counts["acknowledged prompt"] > DRIVERS
            )
            last = (await read_session(store, SessionKey(name))).turns[-1]
            prompts = [block.text for block in last.blocks if isinstance(block, User)]
            assert len(prompts) == len(set(prompts))
            await store.close()

    asyncio.run(check())


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
