"""The fault harness: faults occur at the right points, once, and can be replayed."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scale import share
from turnwise.errors import ConfigError, SessionLostError, StoreError, StoreURLError
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.urls import open_store, resolve_url
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.exhaust import cases_of, exhaust
from turnwise.testing.faults import FaultPlan, Faults, read_faults
from turnwise.testing.faulty_engine import KINDS, FaultyEngine
from turnwise.testing.faulty_store import with_faults
from turnwise.testing.faulty_url import faulty_url
from turnwise.testing.loop import VirtualLoop
from turnwise.testing.process import Process, crash
from turnwise.testing.schedules import explore, play
from turnwise.testing.world import World

pytestmark = pytest.mark.usefixtures("quiet")


def test_import_turnwise_does_not_import_testing() -> None:
    script = "import sys, turnwise, turnwise.actors.session.core; sys.exit('turnwise.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# The loop and its processes


def test_virtual_time_jumps_and_an_endless_wait_is_a_deadlock() -> None:
    async def sleep() -> None:
        await asyncio.sleep(500)
        assert asyncio.get_running_loop().time() == 500

    play(sleep(), "a sleep", 0)
    with pytest.raises(AssertionError, match="deadlock"):
        play(asyncio.Event().wait(), "a wait", 0)  # type: ignore[arg-type]


def test_a_killed_process_does_nothing_more_not_even_its_finally() -> None:
    steps: list[str] = []

    async def work() -> None:
        child = asyncio.create_task(tick())
        try:
            steps.append("begun")
            await asyncio.sleep(1)
            steps.append("slept")
        finally:
            steps.append("cleaned up")
            child.cancel()

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.4)
            steps.append("tick")

    async def life() -> None:
        process = Process("it")
        asyncio.get_running_loop().call_later(0.5, process.kill)
        with pytest.raises(SessionLostError, match="it"):
            await process.call(work())
        assert asyncio.get_running_loop().time() == 0.5, "its caller is told at once"
        await asyncio.sleep(10)
        with pytest.raises(SessionLostError):
            await process.call(work())
        assert steps == ["begun", "tick"]

    play(life(), "a life", 0)


def test_a_process_can_be_killed_between_any_two_steps() -> None:
    async def three_steps(reached: list[int]) -> None:
        for number in range(3):
            reached.append(number)
            await asyncio.sleep(0)

    for kill_step, expected in ((1, []), (2, [0]), (3, [0, 1]), (4, [0, 1, 2])):
        reached: list[int] = []

        async def life(reached: list[int] = reached) -> None:
            with pytest.raises(SessionLostError):
                await Process().call(three_steps(reached))

        play(life(), "a life", kill_step, lambda step, step_number=kill_step: "kill" if step == step_number else "go")  # type: ignore[misc]
        assert reached == expected


def test_a_postponed_step_runs_after_the_others() -> None:
    order: list[str] = []

    async def life() -> None:
        async def say(word: str) -> None:
            order.append(word)

        await asyncio.gather(Process().call(say("put off")), Process().call(say("second")))

    play(life(), "a life", 0, lambda step: "yield" if step == 1 else "go")
    assert order == ["second", "put off"]


# Schedules


def test_a_failing_schedule_names_the_seed_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    async def schedule(seed: int) -> None:
        ran.append(seed)
        assert seed != 7, "the seventh"

    with pytest.raises(AssertionError, match=r"seed 7 fails.*TURNWISE_SEED=7"):
        explore(20, schedule)
    assert ran == list(range(8))
    monkeypatch.setenv("TURNWISE_SEED", "7")
    with pytest.raises(AssertionError, match="the seventh"):
        explore(20, schedule)
    assert ran[8:] == [7]


async def _life(seed: int, log: list[object] | None = None) -> None:
    world = World(Faults(FaultPlan(rates={"error": 0.05, "delay": 0.05, "crash": 0.02, "raise": 0.1}), seed=seed))
    await world.create()
    await asyncio.gather(*(world.append(f"appended {number}") for number in range(3)))
    for number in range(3):
        await world.wait(await world.start(f"prompt {number}", timeout_s=5.0))
    (await world.audit()).check()
    if log is not None:
        log += [asyncio.get_running_loop().time(), *world.faults.struck.items(), *world.acknowledged]


def test_a_seed_replays_its_schedule_exactly() -> None:
    logs: list[list[object]] = [[], []]
    for log in logs:
        explore(range(3, 6), lambda seed, log=log: _life(seed, log), kills=0.01, yields=0.1)  # type: ignore[misc]
    assert logs[0] == logs[1] and len(logs[0]) > 20


def test_sessions_survive_postponed_steps_and_kills_anywhere() -> None:
    count = share(150, 5)
    assert explore(count, _life, kills=0.01, yields=0.2) == count


# Faults


def test_a_plan_injects_its_faults_at_the_given_points() -> None:
    faults = Faults(FaultPlan(at={1: "error", 3: "crash"}), remembers=True)
    assert [faults.strike("here", "error", "crash") for _ in range(5)] == [None, "error", None, "crash", None]
    assert faults.struck == {"error here": 1, "crash here": 1} and faults.count == len(faults.passed) == 5
    assert Faults(FaultPlan(at={0: "hang"})).strike("here", "error") is None, "this point has no such fault"


def test_rates_apply_to_matching_points_up_to_the_limit() -> None:
    faults = Faults(FaultPlan(rates={"error": 0.25, "delay": 0.25}, points=("store.*",), limit=400))
    for _ in range(600):
        faults.strike("store.commit after", "delay", "error")
        assert faults.strike("engine.run", "error") is None
    assert all(100 < count < 200 for count in faults.struck.values()) and len(faults.struck) == 2
    for _ in range(600):
        faults.strike("store.get before", "delay", "error")
    assert faults.struck.total() == 400


@pytest.mark.parametrize(
    "settings", [{"rates": {"error": 0.7, "delay": 0.7}}, {"rates": {"error": -1}}, {"at": {0: "x"}}]
)
def test_an_invalid_plan_is_refused(settings: Any) -> None:
    with pytest.raises(ConfigError):
        FaultPlan(**settings)


def _strike_there(pickled: bytes, answers: Any) -> None:
    faults = pickle.loads(pickled)
    answers.put([faults.strike("there", "error", "delay") for _ in range(30)])


def test_faults_of_other_processes_differ_and_are_counted_in_the_journal(tmp_path: Path) -> None:
    faults = Faults(FaultPlan(rates={"error": 0.5, "delay": 0.5}), journal=tmp_path / "journal")
    assert read_faults(tmp_path / "journal") == Counter()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    processes = [context.Process(target=_strike_there, args=(pickle.dumps(faults), answers)) for _ in range(2)]
    for process in processes:
        process.start()
    strikes = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    assert strikes[0] != strikes[1]
    faults_in_journal = read_faults(tmp_path / "journal")
    assert (
        faults_in_journal == Counter(f"{kind} there" for kind_ in strikes for kind in kind_)
        and faults_in_journal.total() == 60
    )


def test_a_store_fails_before_or_after_a_call() -> None:
    async def life() -> None:
        for number, is_there in ((0, False), (1, True)):
            inner = InMemoryStore()
            store = with_faults(inner, Faults(FaultPlan(at={number: "error"})))
            with pytest.raises(StoreError, match=r"store\.create (before|after)"):
                await store.create(SessionRecord(session_id="chat"))
            assert (await inner.count() == 1) == is_there
            assert await store.count() == is_there, "the next verb is fine"
            await store.close()

    asyncio.run(life())


def test_a_delay_takes_time_and_a_crash_kills_the_process() -> None:
    async def life() -> None:
        store = with_faults(InMemoryStore(), Faults(FaultPlan(at={0: "delay", 2: "crash"})), delay_s=100.0)
        now = asyncio.get_running_loop().time
        await store.count()
        assert now() > 0
        process = Process()
        with pytest.raises(SessionLostError):
            await process.call(store.count())
        assert process.is_dead and await store.count() == 0

    play(life(), "a life", 0)


def test_a_real_crash_needs_for_real() -> None:
    with pytest.raises(ConfigError, match="for_real"):
        asyncio.run(crash())


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_an_engine_does_its_run_ends_and_the_next_is_answered(kind: Any) -> None:
    async def life() -> None:
        faults = Faults(FaultPlan(at={0: kind}))
        world = World(Faults(), engine=FaultyEngine(faults, word_s=0.1))
        await world.create()
        await world.start("first", timeout_s=5.0)
        if kind == "stubborn":
            await asyncio.sleep(0.15)
            assert await world.cancel("first")
        state = await world.wait("first")
        assert faults.struck == {f"{kind} engine.run": 1}
        ends = {"crash": "interrupted", "stubborn": "cancelled"}
        assert state == ends.get(kind, "failed"), kind
        assert await world.wait(await world.start("second")) == "completed"
        (await world.audit()).check()

    play(life(), "a life", 0)


# One fault at a time


def test_exhaust_injects_each_fault_once_and_names_a_failing_case(monkeypatch: pytest.MonkeyPatch) -> None:
    fragile = True

    async def life(faults: Faults) -> None:
        store = with_faults(InMemoryStore(), faults)
        for _ in range(2):
            try:
                await Process().call(store.count())
            except SessionLostError:
                assert not fragile or faults.struck["crash store.count after"] == 0 or faults.count < 4
            except StoreError:
                pass

    cases = cases_of(life)
    assert Counter(case.kind for case in cases) == {"delay": 4, "error": 4, "crash": 4, None: 2}
    with pytest.raises(
        AssertionError, match=r"case 11 \(crash at point 3, store.count after\) fails.*TURNWISE_SEED=11"
    ):
        exhaust(life)
    fragile = False
    assert exhaust(life) == {"delay": 4, "error": 4, "crash": 4, "kill": 2}
    monkeypatch.setenv("TURNWISE_SEED", "11")
    assert exhaust(life) == {"crash": 1} == exhaust(life, one_of=3) == exhaust(life, one_of=3, draw=1)


def test_the_draws_of_exhaust_together_try_each_case_once() -> None:
    lives: Counter[str] = Counter()

    async def life(faults: Faults) -> None:
        store = with_faults(InMemoryStore(), faults)
        for _ in range(2):
            with suppress(SessionLostError, StoreError):
                await Process().call(store.count())
        lives.update(faults.struck)

    for draw in range(3):
        assert exhaust(life, ["error", "crash"], one_of=3, draw=draw) == {"error": 4, "crash": 4}
    assert lives.total() == 8 and set(lives.values()) == {2}


# What callers were told


def test_processes_share_a_notes_file_and_incomplete_last_lines_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "told"
    context = multiprocessing.get_context("fork")

    def write(name: str) -> None:
        acknowledged = Acknowledged(path, fsync=name == "a")
        for number in range(50):
            acknowledged.stored("chat", [f"{name}{number}"], acknowledged.clock(), run_id=f"{name}{number}")

    writers = [context.Process(target=write, args=(name,)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with path.open("a") as file:
        file.write('{"kind": "prompt", "sess')
    notes = list(Acknowledged(path))
    assert len(notes) == 300 and {note.prompt for note in notes} >= {"a0", "b49", "c7"}
    assert all(note.returned_at >= note.called_at for note in notes) and Acknowledged(path).session_ids == ["chat"]
    with path.open("a") as file:
        file.write("\nwhatever\n")
    with pytest.raises(ConfigError, match="line 301 is not a note"):
        list(Acknowledged(path))


def test_a_closing_loop_cancels_its_tasks() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    loop = VirtualLoop()
    task = loop.create_task(never())
    loop.run_until_complete(asyncio.sleep(0))
    loop.cancel_and_close()
    assert task.cancelled() and loop.is_closed()


def test_a_store_with_faults_is_opened_by_its_url_after_register(tmp_path: Path) -> None:
    plan = FaultPlan(rates={"error": 0.5}, points=("store.count *", "store.get *"))
    url = faulty_url(f"sqlite:///{tmp_path}/a b&c.db", plan, journal=tmp_path / "journal")
    assert resolve_url(url) == url

    async def life() -> None:
        store = open_store(url)
        assert isinstance(store, SessionStore)
        await store.create(SessionRecord(session_id="chat"))
        failed = 0
        for _ in range(30):
            try:
                assert await store.count() == 1
            except StoreError:
                failed += 1
        await store.close()
        assert 0 < failed < 30 and read_faults(tmp_path / "journal").total() == failed

    asyncio.run(life())
    assert (tmp_path / "a b&c.db").exists()
    with pytest.raises(StoreURLError, match="faulty_url"):
        open_store("faulty://?store=memory://x")
