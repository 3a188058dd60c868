"""The races of a session, under seeded interleavings: 12,000 schedules in a run.

A failing schedule prints its seed, which replays it: `TURNWISE_SEED=<seed> pytest -k <test>` with this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from operator import attrgetter
from typing import Any

import pytest

from scale import share
from schedules import SESSION, World, explore, spread, texts
from stored.audit import check_session
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    IdempotencyConflictError,
    NoActiveRunError,
    QueueFullError,
    SessionBusyError,
    SessionEndedError,
    SessionFencedError,
    StoreError,
)
from turnwise.memory.conversation.blocks import Text
from turnwise.memory.conversation.events import Event, RunEnded
from turnwise.memory.conversation.sessions import SessionKey


async def attempt(call: Awaitable[Any], *expected: type[Exception]) -> Any:
    """Return the call's result, or the expected error that it raised."""
    try:
        return await call
    except expected as error:
        return error


def test_of_many_starts_one_wins_and_the_losers_leave_no_trace() -> None:
    """Cases 3 and 11."""

    async def schedule(seed: int) -> None:
        world = World(seed)
        await world.create()

        async def start(number: int) -> Any:
            await world.pause()
            call = world.core.admission.start([f"prompt {number}"], run_id=f"run{number}")
            return await attempt(call, SessionBusyError)

        # One core decides them all before the winner can end: its engine takes its time.
        world.engine.run = _slow(world)  # type: ignore[method-assign]
        results = await asyncio.gather(*(start(number) for number in range(50 if seed % 50 == 0 else 8)))
        won = [result for result in results if not isinstance(result, Exception)]
        assert len(won) == 1
        outcome = await world.core.reads.wait(won[0].run_id)
        assert outcome.turn and texts(outcome.turn.blocks) == [won[0].run_id.replace("run", "prompt ")]
        await world.core.admission.start(["again"], run_id="again")  # after completion it is allowed
        await world.core.reads.wait("again")
        turns = await check_session(world.store.inner, SESSION)
        assert [turn.index for turn in turns] == [0, 1]
        assert len(await world.store.inner.runs(SessionKey(SESSION))) == 2

    assert spread(share(2000, 40), schedule)


def _slow(world: World) -> Any:
    async def run(turn: Any, context: Any) -> list[Text]:
        await asyncio.sleep(60)
        return [Text(text="slow")]

    return run


@pytest.mark.by_turns
def test_waiting_and_starting_in_a_loop_never_runs_two_at_once() -> None:
    """Case 4: a finished run is inactive before any waiter wakes; `cancel` cancels the running one."""

    async def schedule(seed: int) -> None:
        world = World(seed, kinds=("answer", "raise", "tools"))
        await world.create()
        own_runs: set[str] = set()

        async def caller(name: str) -> None:
            for number in range(4):
                run_id = f"{name}{number}"
                while isinstance(
                    busy := await attempt(world.core.admission.start([run_id], run_id=run_id), SessionBusyError),
                    Exception,
                ):
                    await world.core.reads.wait(busy.run_id)  # type: ignore[attr-defined]
                    await world.pause()
                own_runs.add(run_id)
                outcome = await world.core.reads.wait(run_id)
                assert outcome.run.run_id == run_id and not outcome.run.is_open
                assert world.core.reads.active_run_id != run_id

        async def canceller() -> None:
            for _ in range(3):
                await world.pause()
                before = world.core.reads.active_run_id
                result = await attempt(world.core.admission.cancel("stop"), NoActiveRunError)
                if result is True and before:
                    cancelled = [run for run in await world.core.reads.runs() if run.state == "cancelled"]
                    assert cancelled

        await asyncio.gather(caller("a"), caller("b"), caller("c"), canceller())
        await check_session(world.store.inner, SESSION)
        assert len(own_runs) == 12

    assert spread(share(2000, 40), schedule)


@pytest.mark.by_turns
def test_appends_are_all_in_the_context_in_the_order_of_their_acknowledgement() -> None:
    """Cases 5 and 6: appends do not change an active run."""

    async def schedule(seed: int) -> None:
        world = World(seed)
        await world.create()
        acknowledged: list[tuple[float, float, str]] = []
        now = asyncio.get_running_loop().time

        async def appender(name: str) -> None:
            for number in range(3):
                await world.pause()
                prompt, sent_at = f"{name}{number}", now()
                await world.core.admission.append([prompt], key=prompt)
                acknowledged.append((sent_at, now(), prompt))
                latest = await world.core.reads.latest()
                assert latest and prompt in texts(latest.blocks)

        async def runner() -> None:
            for number in range(3):
                await world.pause()
                await attempt(world.core.admission.start([f"run{number}"], run_id=f"run{number}"), SessionBusyError)

        await asyncio.gather(appender("a"), appender("b"), runner())
        while world.core.reads.active_run_id:
            await world.core.reads.wait(world.core.reads.active_run_id)
        latest = await world.core.reads.latest()
        assert latest
        prompts = texts(latest.blocks)
        assert len(prompts) == len(set(prompts))
        for _, answered, prompt in acknowledged:
            for sent_at, _, later in acknowledged:
                assert answered >= sent_at or prompts.index(prompt) < prompts.index(later)
        for turn in await check_session(world.store.inner, SESSION):
            if turn.run_id:
                assert world.engine.given[turn.run_id] == turn.blocks[: len(turn.blocks) - 1]

    assert spread(share(2000, 40), schedule)


@pytest.mark.by_turns
def test_a_cancel_at_any_moment_gives_one_outcome_and_a_valid_history() -> None:
    """Cases 8, 9, 19 and 20: before the start, mid-stream, ignored by the engine, after the end, racing completion."""

    async def schedule(seed: int) -> None:
        discard = seed % 2 == 0
        config = SessionConfig(on_cancel="discard" if discard else "keep", cancel_grace_s=0.5)
        world = World(seed, kinds=("answer", "stubborn", "tools", "thoughts", "raise", "nothing"), config=config)
        await world.create()
        await world.core.admission.append(["appended"], key="appended")
        before = None
        for number in range(3):
            run_id = f"run{number}"
            await world.core.admission.start([run_id], run_id=run_id)

            async def cancel(reason: str, run_id: str = run_id) -> bool:
                await world.pause()
                await world.pause()
                return bool(await world.core.admission.cancel(reason, run_id))

            start = asyncio.get_running_loop().time()
            answers = await asyncio.gather(cancel("first"), cancel("second"))
            assert asyncio.get_running_loop().time() - start < 1.0, (
                "no engine delays a cancel for longer than its grace"
            )
            outcome = await world.core.reads.wait(run_id)
            assert set(answers) == {outcome.run.state == "cancelled"}
            latest = await world.core.reads.latest()
            if outcome.run.state == "cancelled":
                assert outcome.run.why in ("first", "second")
                assert (outcome.turn is None) == discard
                if discard:
                    assert latest and (texts(latest.blocks)[-1:] == ["appended"] or before == latest.blocks)
                elif outcome.turn and outcome.turn.text:
                    assert [block for block in outcome.turn.new_blocks if isinstance(block, Text)][-1].interrupted
            assert latest and "appended" in texts(latest.blocks), "appended prompts outlive a discarded run"
            assert not any(isinstance(block, Text) and "too late" in block.text for block in latest.blocks)
            before = latest.blocks
        await asyncio.sleep(60)  # every late engine has had its say
        latest = await world.core.reads.latest()
        assert latest and latest.blocks == before
        await check_session(world.store.inner, SESSION)

    assert spread(share(2000, 40), schedule)


def test_a_storm_of_submits_with_one_key_makes_one_run() -> None:
    """Case 16."""

    async def schedule(seed: int) -> None:
        world = World(seed)
        await world.create()

        async def submit(number: int) -> Any:
            await world.pause()
            prompt = "other" if number == 7 else "same"
            call = world.core.admission.start([prompt], run_id=f"run{number}", idempotency_key="key")
            return await attempt(call, IdempotencyConflictError)

        results = await asyncio.gather(*(submit(number) for number in range(8)))
        runs = await world.store.inner.runs(SessionKey(SESSION))
        assert len(runs) == 1
        started = {result.run_id for result in results if not isinstance(result, Exception)}
        refused = [result for result in results if isinstance(result, Exception)]
        assert started == {runs[0].run_id} and len(refused) == (7 if runs[0].run_id == "run7" else 1)
        await world.core.reads.wait(runs[0].run_id)
        # A later activation knows the key too.
        again = await world.new_core().admission.start(
            ["other" if runs[0].run_id == "run7" else "same"], run_id="late", idempotency_key="key"
        )
        assert again.run_id == runs[0].run_id
        await check_session(world.store.inner, SESSION)

    assert spread(share(1000, 40), schedule)


@pytest.mark.by_turns
def test_each_busy_policy_leaves_the_history_it_promises() -> None:
    """Case 17: order of arrival and bound of the queue, what interrupt keeps, what rollback drops."""

    async def schedule(seed: int) -> None:
        world = World(seed, kinds=("answer", "stubborn"), config=SessionConfig(max_queued=3, cancel_grace_s=0.1))
        await world.create()
        policy = ("enqueue", "interrupt", "rollback", "latest", "drop", "merge", "inject", "debounce")[seed % 8]
        options: dict[str, Any] = {"debounce_s": 0.02} if policy == "debounce" else {}

        async def submit(number: int) -> Any:
            await world.pause()
            run_id = f"run{number}"
            call = world.core.admission.start([run_id], run_id=run_id, if_busy=policy, **options)  # type: ignore[arg-type]
            return await attempt(call, QueueFullError)

        await world.core.admission.start(["first"], run_id="first")
        results = await asyncio.gather(*(submit(number) for number in range(6)))
        started = [result for result in results if not isinstance(result, Exception) and not result.dropped]
        for run_id in ["first", *(run.run_id for run in started)]:
            await world.core.reads.wait(run_id)
        runs = {run.run_id: run for run in await world.core.reads.runs()}
        started.sort(key=lambda run: runs[run.run_id].turn_index)
        turns = await check_session(world.store.inner, SESSION)
        prompts = texts(turns[-1].blocks)
        arrived = [run.run_id for run in started]
        cancelled = [run_id for run_id, run in runs.items() if run.state == "cancelled"]
        if policy == "enqueue":
            assert prompts == ["first", *arrived] and all(run.state == "completed" for run in runs.values())
        elif policy == "interrupt":
            assert prompts == ["first", *arrived], "interrupted prompts are kept, in order"
        elif policy in ("merge", "inject", "debounce"):
            assert prompts == ["first", *arrived] and all(runs[run_id].code == "merged" for run_id in cancelled)
            for run_id in cancelled:
                leading = await world.core.reads.wait(run_id)
                assert leading.turn and run_id in texts(leading.turn.new_blocks)
        elif policy == "drop":
            assert prompts == ["first", *arrived] and set(runs) == {*prompts}, "dropped prompts left no trace"
        else:
            assert prompts == [run_id for run_id in ["first", *arrived] if run_id not in cancelled]
        if policy == "latest":
            replaced = {run_id: run for run_id, run in runs.items() if run.code == "replaced"}
            assert set(replaced) == {*cancelled} and all(run.successor in runs for run in replaced.values())
        last = runs[arrived[-1]] if arrived else runs["first"]
        assert runs[last.leads_to or last.run_id].state == "completed"

    assert spread(share(1500, 40), schedule)


@pytest.mark.by_turns
def test_nothing_acknowledged_is_lost_or_doubled_when_the_store_fails_and_owners_change() -> None:
    """Cases 15, 47, 59, 60, 64: any mix of verbs, a store that fails before or after it acts, cores that take over."""

    async def schedule(seed: int) -> None:
        world = World(seed, kinds=("answer", "raise", "tools", "stubborn"), config=SessionConfig(cancel_grace_s=0.1))
        await world.create()
        cores = [world.core]
        appended: list[str] = []
        submitted: set[str] = set()

        async def persist(verb: str, *args: Any, **kwargs: Any) -> Any:
            """Repeat the call until an owner answers, with the same ids, as a caller on Ray does."""
            while True:
                core = cores[-1]
                try:
                    return await attrgetter(verb)(core)(*args, **kwargs)
                except SessionFencedError:
                    if core is cores[-1]:
                        cores.append(world.new_core())
                except StoreError:
                    await asyncio.sleep(0.01)

        async def caller(name: str) -> None:
            for number in range(4):
                await world.pause()
                kind = world.random.choice(("append", "start", "start", "cancel"))
                label = f"{name}{number}"
                if kind == "append":
                    await persist("admission.append", [label], key=label)
                    appended.append(label)
                elif kind == "start":
                    policy = world.random.choice(("reject", "enqueue", "interrupt", "merge", "inject", "debounce"))
                    options = {"debounce_s": 0.05} if policy == "debounce" else {}
                    starting = persist("admission.start", [label], run_id=label, if_busy=policy, **options)
                    result = await attempt(starting, SessionBusyError, QueueFullError)
                    if not isinstance(result, Exception):
                        submitted.add(label)
                else:
                    await attempt(persist("admission.cancel", "stop"), NoActiveRunError)

        async def usurper() -> None:
            for _ in range(2):
                await asyncio.sleep(world.random.random() * 0.2)
                if world.random.random() < 0.5:
                    core = world.new_core()
                    await attempt(core.transactor.activate(), StoreError)
                    cores.append(core)

        events: list[Event] = []

        async def follower() -> None:
            after = 0
            while not any(event.key == "wake" for event in events):
                page = await attempt(_page(cores[-1], after), StoreError)
                if isinstance(page, tuple):
                    events.extend(page[0])
                    after = page[1]
                else:
                    await asyncio.sleep(0.01)

        world.store.fail_rate = 0.03 if seed % 2 else 0.0
        following = asyncio.create_task(follower())
        await asyncio.gather(*(caller(name) for name in "abc"), usurper())
        world.store.fail_rate = 0.0
        for run_id in submitted:
            outcome = await persist("reads.wait", run_id)
            assert outcome.run.state in ("completed", "cancelled", "failed", "interrupted")
        await persist("admission.append", ["last"], key="last")
        last = await persist("reads.latest")
        await persist("admission.append", ["to wake the follower"], key="wake")
        await following
        turns = await check_session(world.store.inner, SESSION)
        prompts = texts(last.blocks)
        for prompt in [*appended, *submitted, "last"]:
            assert prompts.count(prompt) == 1, f"{prompt} is there {prompts.count(prompt)} times"
        stored = await world.store.inner.events(SessionKey(SESSION))
        numbers = [event.seq for event in events]
        assert numbers == sorted(set(numbers)), "a follower sees no number twice and none out of order"
        seqs = set(numbers)
        missed = [event for event in stored if event.seq <= numbers[-1] and event.seq not in seqs]
        assert not missed, "a follower misses nothing stored"
        assert turns

    assert spread(share(2000, 40), schedule)


async def _page(core: SessionCore, after: int) -> Any:
    return await core.reads.events(after, timeout_s=1.0)


def test_ending_refuses_new_runs_and_cancels_those_there_are() -> None:
    """Case 14."""

    async def schedule(seed: int) -> None:
        world = World(seed, kinds=("answer", "stubborn"), config=SessionConfig(cancel_grace_s=0.1))
        await world.create()

        async def starter(number: int) -> Any:
            await world.pause()
            call = world.core.admission.start([f"run{number}"], run_id=f"run{number}", if_busy="enqueue")
            return await attempt(call, SessionEndedError)

        async def ender() -> None:
            await world.pause()
            await world.core.admission.end_session("enough")
            assert world.core.reads.active_run_id is None

        results = await asyncio.gather(*(starter(number) for number in range(3)), ender(), ender())
        refused = await attempt(world.core.admission.start(["more"], run_id="more"), SessionEndedError)
        assert isinstance(refused, SessionEndedError)
        for result in results[:3]:
            if not isinstance(result, Exception):
                outcome = await world.core.reads.wait(result.run_id)
                assert outcome.run.state == "completed" or outcome.run.why == "enough"
        await check_session(world.store.inner, SESSION)
        events = await world.store.inner.events(SessionKey(SESSION))
        assert [event.kind for event in events].count("session_ended") == 1
        assert all(isinstance(event, RunEnded) or event.kind != "run_started" for event in events[-1:])

    assert explore(share(500), schedule)


def test_a_schedule_that_fails_among_those_that_are_spread_over_cores_tells_its_seed() -> None:
    async def life(seed: int) -> None:
        assert seed != 41, "it is the one"

    assert spread(40, life) == 40
    with pytest.raises(AssertionError, match=r"TURNWISE_SEED=41"):
        spread(100, life)


def test_a_follower_of_a_run_sees_all_stored_events_while_the_session_changes_owners() -> None:
    """Cases 59 and 60: also while the new owner has loaded the run and has not ended it."""

    async def schedule(seed: int) -> None:
        world = World(seed)
        await world.create()
        await world.core.admission.start(["first"], run_id="lost")
        await world.core.admission.start(["second"], run_id="next", if_busy="enqueue")
        await world.pause()
        owner = world.new_core()

        async def follow() -> list[int]:
            seqs: list[int] = []
            after, done = 0, False
            while not done:
                await world.pause()
                events, after, done = await owner.reads.events(after, run_id="lost", timeout_s=1.0)
                seqs += [event.seq for event in events]
            return seqs

        for seqs in await asyncio.gather(*(follow() for _ in range(5))):
            stored = [
                event.seq for event in await world.store.inner.events(SessionKey(SESSION)) if event.run_id == "lost"
            ]
            assert set(stored) <= set(seqs)
            assert len(seqs) == len(set(seqs))

    assert explore(share(300), schedule)


def test_a_reader_misses_no_event_that_leaves_memory_while_it_reads_the_store() -> None:
    """Case 59: a run's last event leaves memory while a slow store still reads the events before it."""

    async def schedule(seed: int) -> None:
        world = World(seed)
        await world.create()
        await world.core.admission.start(["first"], run_id="lost")
        owner = world.new_core()
        await owner.transactor.activate()
        is_reading, go_on = asyncio.Event(), asyncio.Event()
        read = world.store.inner.events

        async def slow(*args: Any, **page: Any) -> list[Event]:
            events: list[Event] = await read(*args, **page)
            is_reading.set()
            await go_on.wait()
            return events

        world.store.inner.events = slow
        following = asyncio.create_task(owner.reads.events(0, run_id="lost"))
        await is_reading.wait()
        for run_id in ("second", "third", "fourth"):
            await owner.admission.start([run_id], run_id=run_id)
            await owner.reads.wait(run_id)
        go_on.set()
        events, _, done = await following
        world.store.inner.events = read
        stored = [event.seq for event in await read(SessionKey(SESSION)) if event.run_id == "lost"]
        assert [event.seq for event in events] == stored and events[-1].terminal and done

    assert explore(20, schedule)
