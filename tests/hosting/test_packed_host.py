"""Packed hosts on seeded schedules: who is resident, who leaves, who is refused, and that nothing of it shows."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

from processes.packed_hosts import Hosting, refused
from scale import share
from schedules import DawdlingStore, explore
from turnwise.actors.cluster.actors.packed_actor import _EarlierHosts
from turnwise.actors.cluster.sharding import Layout
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.packed_host import PackedHost
from turnwise.actors.hosting.placement import Dedicated, Packed
from turnwise.actors.hosting.session_service import SessionService
from turnwise.actors.hosting.wire import Message, Refused, SessionRef
from turnwise.actors.hosting.worker_resources import MAX_CACHED, WorkerResources
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import (
    EngineBuilder,
    InferenceRunner,
    RunContext,
    SessionView,
    StepContext,
    Suspend,
)
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.ownership import Ownership
from turnwise.actors.wire_version import unpacked
from turnwise.errors import (
    ConfigError,
    KeyMissingError,
    OverloadedError,
    RunNotFoundError,
    SessionBusyError,
    SessionFencedError,
    SessionLostError,
    SessionNotFoundError,
    StoreError,
    TurnwiseError,
    UnknownVerbError,
)
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, CallState
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.deliveries.schedules import When
from turnwise.memory.stores.base import Activation, Commit
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.audit import audit


class Patient:
    """Answers when it is let; says so meanwhile."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def build(self, session: SessionView) -> Patient:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        context.emit("so far")
        await self.open.wait()
        return [Text(text="at last")]


class SlowStore(InMemoryStore):
    """Commits when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        await self.is_open.wait()
        await super().commit(key, epoch, commit)


class Named:
    """Answers with its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build(self, session: SessionView) -> Named:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        return [Text(text=self.name)]


class Dawdler:
    """Answers after a while of the dice's."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.running: Counter[str] = Counter()

    def build(self, session: SessionView) -> Dawdler:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        self.running[turn.session_id] += 1
        assert self.running[turn.session_id] == 1, "a session runs one inference at a time"
        try:
            await asyncio.sleep(self.dice.random() * 0.2)
        finally:
            self.running[turn.session_id] -= 1
        return [Text(text=f"answer to {context.run_id}")]

    async def close(self) -> None:
        await asyncio.sleep(self.dice.random() * 0.1)


class Asking:
    """Asks for leave once, and answers with its name when it has it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        if not any(state.verdict for state in context.calls.values()):
            raise Suspend({"call": CallState(name="act", wants="approval", why="it acts")})
        return [Text(text=self.name)]


class Closed:
    """Answers; when it is closed, it does what `how` says."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.closed = 0

    def build(self, session: SessionView) -> Closed:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        return [Text(text="answer")]

    async def close(self) -> None:
        if self.how == "takes a while":
            await asyncio.sleep(0.3)
        self.closed += 1
        if self.how == "raises":
            raise ValueError("cannot be closed")
        if self.how == "exits":
            raise SystemExit(3)
        while self.how == "hangs":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1e5)


def test_many_sessions_share_few_places_and_nobody_can_tell() -> None:
    """Cases 3, 61 and 62: whoever leaves comes back with the same history, and who runs never leaves."""

    async def life(seed: int) -> None:
        dice = random.Random(seed)
        store, engine = DawdlingStore(dice), Dawdler(dice)
        hosting = Hosting(store, engine, Packed(hosts=1, max_resident=3), config=SessionConfig(idle_s=0.4))
        names = [f"chat{number}" for number in range(8)]
        await hosting.create(*names)
        acknowledged, most = Acknowledged(clock=asyncio.get_running_loop().time), 0
        refusals: Counter[str] = Counter()

        async def caller(number: int) -> None:
            nonlocal most
            name = names[number % len(names)]
            for index in range(3):
                run_id, prompt = f"run{number}-{index}", f"prompt {number}-{index}"
                asked_at = acknowledged.clock()
                outcome = None
                while outcome is None:
                    try:
                        outcome = await hosting.run(name, prompt, run_id, if_busy="enqueue")
                    except OverloadedError:
                        refusals["overloaded"] += 1
                        await asyncio.sleep(0.05)
                most = max(most, len(hosting.residents))
                assert outcome.state == "completed"
                assert outcome.turn.record.run_id == run_id
                acknowledged.stored(name, [prompt], asked_at, run_id=run_id, turn_index=outcome.turn.record.index)
                acknowledged.ended(name, run_id, "completed")
                await asyncio.sleep(dice.random())

        await asyncio.gather(*map(caller, range(10)))
        assert most <= 3
        (await audit(store.inner, names, acknowledged)).check()
        await asyncio.sleep(2)
        assert hosting.residents == [], "all have been idle for long enough"

    assert explore(share(60, 8), life)


@pytest.mark.virtual_time
async def test_a_session_that_runs_or_is_waited_for_keeps_its_place_and_one_more_is_refused_with_the_limit() -> None:
    """Case 62."""

    engine = Patient()
    hosting = Hosting(InMemoryStore(), engine, Packed(hosts=1, max_resident=2))
    await hosting.create("a", "b", "c")
    await hosting.start("a", "hello", "run-a")
    await hosting.start("b", "hello", "run-b")
    error = await refused(OverloadedError, hosting.start("c", "hello", "run-c"))
    assert "max_resident=2" in str(error) and "'c'" in str(error)
    assert await hosting.store.runs(SessionKey("c")) == [], "what was refused left nothing"
    followed = asyncio.ensure_future(hosting.ask("a", verbs.events(500.0, 10**9, 100)))
    engine.open.set()
    assert (await hosting.ask("b", verbs.wait(None, "run-b", ()))).state == "completed"
    assert (await hosting.run("c", "hello", "run-c")).state == "completed"
    assert hosting.residents == ["a", "c"], "somebody follows a, and nobody b"
    await followed


async def test_a_repeated_append_gives_the_turn_that_has_its_prompt_by_now() -> None:
    hosting = Hosting(InMemoryStore(), Patient())
    await hosting.create("a")
    first = await hosting.ask("a", verbs.append(("hello",), "key", ()))
    assert (first.record.index, first.record.status) == (0, "pending")
    assert (await hosting.ask("a", verbs.append(("hello",), "key", ()))).record == first.record
    await hosting.start("a", "and", "run-1")
    assert (await hosting.ask("a", verbs.append(("hello",), "key", ()))).record.status == "running"
    await hosting.start("a", "instead", "run-2", if_busy="rollback")
    await hosting.ask("a", verbs.wait(None, "run-1", ()))
    again = await hosting.ask("a", verbs.append(("hello",), "key", ()))
    assert again.record.index > 0 and "hello" in again.blocks[0]


@pytest.mark.virtual_time
async def test_the_least_recently_used_session_is_unloaded_first() -> None:
    hosting = Hosting(InMemoryStore(), EchoEngine(), Packed(hosts=1, max_resident=3))
    await hosting.create("a", "b", "c", "d")
    for name in "abc":
        await hosting.run(name, "hello", f"run-{name}")
    await hosting.ask("a", verbs.latest(()))
    await hosting.run("d", "hello", "run-d")
    assert hosting.residents == ["c", "a", "d"]


@pytest.mark.virtual_time
async def test_sessions_that_make_room_at_the_same_time_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    hosting = Hosting(InMemoryStore(), EchoEngine(), Packed(hosts=1, max_resident=4))
    await hosting.create(*"abcdefghi")
    for name in "abcd":
        await hosting.ask(name, verbs.latest(()))
    leaving, gate, leave = list[str](), asyncio.Event(), Ownership.leave

    async def leave_later(ownership: Ownership, note: Any = None) -> bool:
        leaving.append(ownership._state.session_id)  # noqa: SLF001 - of which session the faulty one is
        await gate.wait()
        return await leave(ownership, note)

    monkeypatch.setattr(Ownership, "leave", leave_later)
    requests = [asyncio.ensure_future(hosting.ask(name, verbs.latest(()))) for name in "efghi"]
    await asyncio.sleep(1)
    assert leaving == [*"abcd"], "not one after the other, and who finds none to unload waits for these"
    gate.set()
    await asyncio.gather(*requests)
    assert len(resident_ids := hosting.residents) == 4 and set(resident_ids) < {*"efghi"}


@pytest.mark.virtual_time
async def test_to_make_room_a_host_asks_only_the_sessions_that_were_used_least_recently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosting = Hosting(InMemoryStore(), EchoEngine(), Packed(hosts=1, max_resident=50))
    names = [f"chat{number}" for number in range(53)]
    await hosting.create(*names)
    for name in names[:50]:
        await hosting.ask(name, verbs.latest(()))
    session_ids: list[str] = []

    def is_idle(resident: SessionService) -> bool:
        session_ids.append(resident.core.session_id)
        return not resident.calls

    monkeypatch.setattr(SessionService, "is_idle", property(is_idle))
    for name in names[50:]:
        await hosting.ask(name, verbs.latest(()))
    assert session_ids == names[:3]


@pytest.mark.virtual_time
async def test_a_host_takes_so_many_calls_and_of_each_session_so_many_and_says_which_limit_was_met() -> None:
    """Case 62: one session's callers leave room for its neighbours. Who waits does not count: see `test_waits`."""

    store = SlowStore()
    hosting = Hosting(store, EchoEngine(), Packed(hosts=1, max_calls=6, max_session_calls=4))
    await hosting.create("a", "b")
    await hosting.ask("a", verbs.info())
    await hosting.ask("b", verbs.info())
    store.is_open.clear()
    appends = [
        asyncio.ensure_future(hosting.ask("a", verbs.append(("hello",), f"key-{index}", ()))) for index in range(4)
    ]
    await asyncio.sleep(0)
    assert "max_session_calls=4" in str(await refused(OverloadedError, hosting.ask("a", verbs.latest(()))))
    assert (await hosting.ask("b", verbs.info())).active_run_id is None
    more = [asyncio.ensure_future(hosting.ask("b", verbs.append(("hello",), f"key-{index}", ()))) for index in range(2)]
    await asyncio.sleep(0.1)
    assert "max_calls=6" in str(await refused(OverloadedError, hosting.ask("b", verbs.latest(()))))
    store.is_open.set()
    assert [turn.record.index for turn in await asyncio.gather(*appends, *more)] == [0] * 6
    assert await hosting.ask("a", verbs.latest(()))


@pytest.mark.virtual_time
async def test_requests_of_one_batch_are_answered_as_they_are_ready_and_fail_independently() -> None:
    patient = Patient()
    hosting = Hosting(InMemoryStore(), patient)
    await hosting.create("slow", "fast")
    await hosting.start("slow", "prompt", "long")

    slow, fast, none = (SessionRef(SessionKey(name)) for name in ("slow", "fast", "none"))
    requests = [
        verbs.wait(None, "long", ()).to(slow),
        Message(fast, "turns", {"after": "no number", "limit": 1, "cached": ()}),
        verbs.latest(()).to(fast),
        verbs.warm().to(none),
        Message(fast, "mistake", {}),
    ]
    batches = []
    async for ready in hosting.host.calls([request.pickled() for request in requests]):
        batches.append({place: unpacked(answer) for place, answer in ready})
        patient.open.set()
    first, last = batches  # what is ready at once comes together
    assert sorted(first) == [1, 2, 3, 4]
    assert first[2] is None and isinstance(first[3].error, SessionNotFoundError)
    assert isinstance(first[1].error, SessionLostError) and "turns failed" in str(first[1].error)
    assert isinstance(first[4].error, UnknownVerbError) and "'mistake'" in str(first[4].error)
    assert list(last) == [0] and last[0].answer.state == "completed"


def test_a_session_that_is_flooded_holds_no_neighbour_up() -> None:
    """Each session has its own lock: what waits for one waits for no other."""

    async def life(seed: int) -> None:
        store = DawdlingStore(random.Random(seed))
        hosting = Hosting(store, EchoEngine())
        names = [f"quiet{number}" for number in range(5)]
        await hosting.create("flooded", *names)
        await hosting.ask("flooded", verbs.warm())
        flood = [
            asyncio.ensure_future(hosting.ask("flooded", verbs.append((f"prompt {index}",), f"key {index}", ())))
            for index in range(200)
        ]
        await asyncio.sleep(0)
        await asyncio.gather(*(hosting.run(name, "hello", f"run-{name}") for name in names))
        assert sum(append.done() for append in flood) < 50, "a turn of the others took as long as a few of those"
        await asyncio.gather(*flood)
        (await audit(store.inner, names)).check()

    assert explore(share(5, 5), life)


def test_while_the_store_fails_no_session_is_unloaded_in_vain() -> None:
    async def life(seed: int) -> None:
        store = DawdlingStore(random.Random(seed))
        hosting = Hosting(store, EchoEngine(), Packed(hosts=1, max_resident=1))
        await hosting.create("a", "b")
        before = (await hosting.run("a", "hello", "run-a")).turn.record
        store.fail_rate = 1.0
        await refused(StoreError, hosting.ask("b", verbs.latest(())))
        store.fail_rate = 0.0
        assert await hosting.ask("b", verbs.latest(())) is None
        assert (await hosting.ask("a", verbs.latest(()))).record == before

    assert explore(20, life)


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["raises", "exits", "hangs"])
async def test_an_engine_that_cannot_be_closed_keeps_no_place_and_no_neighbour(how: str) -> None:
    """Case 62."""

    engine = Closed(how)
    config = SessionConfig(idle_s=10, cancel_grace_s=0.5)
    hosting = Hosting(InMemoryStore(), engine, Packed(hosts=1, max_resident=2), config=config)
    await hosting.create("a", "b", "c", "d")
    for name in "abcd":
        await asyncio.wait_for(hosting.run(name, "hello", f"run-{name}"), 5)
    assert hosting.residents == ["c", "d"]
    await asyncio.sleep(60)
    assert hosting.residents == [] and engine.closed == 4


@pytest.mark.virtual_time
async def test_a_session_has_left_when_its_engine_is_closed() -> None:
    engine = Closed("takes a while")
    hosting = Hosting(InMemoryStore(), engine, Packed(hosts=1, max_resident=1))
    await hosting.create("a", "b")
    await hosting.run("a", "hello", "run-a")
    await hosting.ask("b", verbs.latest(()))
    assert engine.closed == 1


@pytest.mark.virtual_time
async def test_the_engine_of_a_session_that_was_deleted_or_lost_is_closed() -> None:
    engine = Closed("")
    hosting = Hosting(InMemoryStore(), engine)
    await hosting.create("deleted", "lost")
    for name in ("deleted", "lost"):
        await hosting.run(name, "hello", f"run-{name}")
    await hosting.ask("deleted", verbs.delete_with_memories(verify=False, updated_at=None))
    await hosting.store.activate(SessionKey("lost"))
    await refused(SessionFencedError, hosting.start("lost", "again", "run"))
    await asyncio.sleep(1)
    assert engine.closed == 2


@pytest.mark.virtual_time
async def test_sessions_that_are_not_there_take_no_place() -> None:
    hosting = Hosting(InMemoryStore(), EchoEngine(), Packed(hosts=1, max_resident=1))
    await hosting.create("a")
    await hosting.run("a", "hello", "run-a")
    for _ in range(3):
        await refused(SessionNotFoundError, hosting.ask("nobody", verbs.latest(())))
    assert "nobody" not in hosting.residents


@pytest.mark.virtual_time
async def test_a_session_that_was_deleted_can_be_there_again() -> None:
    hosting = Hosting(InMemoryStore(), EchoEngine())
    await hosting.create("a")
    await hosting.run("a", "hello", "run-1")
    await hosting.ask("a", verbs.delete_with_memories(verify=False, updated_at=None))
    await refused(SessionNotFoundError, hosting.ask("a", verbs.latest(())))
    await hosting.create("a")
    assert await hosting.ask("a", verbs.latest(())) is None
    await refused(RunNotFoundError, hosting.ask("a", verbs.run("run-1")))


@pytest.mark.virtual_time
async def test_a_host_that_lost_a_session_to_another_owner_says_so_once_and_then_asks_the_store() -> None:
    """Cases 47 and 64."""

    hosting = Hosting(InMemoryStore(), EchoEngine())
    await hosting.create("a")
    await hosting.run("a", "hello", "run-1")
    other_core = SessionCore(SessionKey("a"), hosting.store, EchoEngine())
    await other_core.admission.append(["from elsewhere"], key="x")
    await refused(SessionFencedError, hosting.start("a", "again", "run-2"))
    assert hosting.residents == []
    await hosting.run("a", "again", "run-2")
    await refused(SessionFencedError, other_core.admission.append(["too late"], key="y"))
    turns, _ = await hosting.ask("a", verbs.turns(-1, 10, ()))
    assert [turn.record.run_id for turn in turns] == ["run-1", "run-2"]


@pytest.mark.virtual_time
async def test_an_engine_override_belongs_to_one_session_and_outlives_the_process_until_it_leaves() -> None:
    store, other_engines = InMemoryStore(), {"second": Named("second")}
    hosting = Hosting(store, Named("first"), Packed(hosts=1, max_resident=2), other_engines=other_engines)
    await hosting.create("a", "b", "c")
    await hosting.ask("a", verbs.window((), None), "second")
    assert hosting.overrides == {SessionKey("a"): EngineOverride("second")}
    again = Hosting(
        store, Named("first"), Packed(hosts=1, max_resident=2), other_engines=other_engines, overrides=hosting.overrides
    )
    for name in "ab":
        await again.run(name, "who is there?", f"run-{name}")
    heads = [(await store.turns(SessionKey(name)))[-1] for name in "ab"]
    outputs = [await store.blocks(turn.output) for turn in heads]
    assert ["second" in outputs[0][0], "first" in outputs[1][0]] == [True, True]
    await again.ask("c", verbs.info())
    assert again.residents == ["b", "c"] and again.overrides == {}


@pytest.mark.virtual_time
async def test_a_run_that_waits_for_approval_keeps_its_engine_though_its_session_was_unloaded() -> None:
    """Case 61: also if the process was lost, and many managers with other engines came by."""

    store, limits = InMemoryStore(), Packed(hosts=1, max_resident=1)
    engines: dict[str, EngineBuilder] = {f"later {number}": Named("later") for number in range(MAX_CACHED)}
    engines["second"] = Asking("second")
    hosting = Hosting(store, Asking("first"), limits, other_engines=engines)
    await hosting.create("a", "b", "c")
    for name in "ab":
        await hosting.ask(name, verbs.window((), None), "second")
        await hosting.start(name, "hello", f"run-{name}", "second")
        await asyncio.sleep(1)
    await hosting.ask("c", verbs.info())
    assert hosting.residents == ["c"] and hosting.overrides == {
        SessionKey(name): EngineOverride("second") for name in "ab"
    }
    again = Hosting(store, Asking("first"), limits, other_engines=engines, overrides=hosting.overrides)
    for host, name in ((hosting, "a"), (again, "b")):
        for number in range(2 * MAX_CACHED):
            host.bring(f"newer {number}", EchoEngine())
        await host.ask(name, verbs.decide(f"run-{name}", "call", ApprovalDecision(verdict="approved")))
        assert (await host.ask(name, verbs.wait(None, f"run-{name}", ()))).state == "completed"
        (turn,) = await store.turns(SessionKey(name))
        assert "second" in (await store.blocks(turn.output))[0]
        await host.ask("c", verbs.info())
        assert SessionKey(name) not in host.overrides, "nothing waits any more"


@pytest.mark.virtual_time
@pytest.mark.parametrize("newer", [MAX_CACHED - 2, 2 * MAX_CACHED])
async def test_a_delivery_has_the_engine_of_its_manager_until_that_has_to_make_room(newer: int) -> None:
    """Also if the process was lost. No engine of a manager that comes by is refused for the sake of deliveries."""

    store, limits = InMemoryStore(), Packed(hosts=1, max_resident=1)
    hosting = Hosting(store, Named("first"), limits, other_engines={"second": Named("second")})
    await hosting.create("a", "b")
    settings: dict[str, Any] = {"key": "k", "missed": "run_once", "if_busy": "enqueue", "options": {}}
    call = verbs.schedule(("hello",), When(after_s=60.0), delivery_id="delivery", **settings)
    delivery = await hosting.ask("a", call, "second")
    await hosting.ask("b", verbs.warm())
    assert hosting.overrides == {SessionKey("a"): EngineOverride("second", is_for_runs=False)}
    again = Hosting(
        store, Named("first"), limits, other_engines={"second": Named("second")}, overrides=hosting.overrides
    )
    for number in range(newer):
        again.bring(f"newer {number}", EchoEngine())
    run_id = await again.ask("a", verbs.deliver(delivery))
    assert (await again.ask("a", verbs.wait(None, run_id, ()))).state == "completed"
    (turn,) = await store.turns(SessionKey("a"))
    has_made_room = newer > MAX_CACHED
    assert ("first" if has_made_room else "second") in (await store.blocks(turn.output))[0]
    await again.ask("b", verbs.warm())
    assert again.overrides == {}, "nothing is due any more"


@pytest.mark.virtual_time
async def test_an_unreadable_session_does_not_keep_a_host_from_leaving(caplog: pytest.LogCaptureFixture) -> None:
    """Case 63: the key of a user was deleted while a run was active."""

    store = InMemoryStore()
    lost_host = Hosting(store, Patient())
    await lost_host.create("deleted", "chat")
    for name in ("deleted", "chat"):
        await lost_host.start(name, "hello", f"run-{name}")
    activate = store.activate

    async def keyless(key: SessionKey) -> Activation:
        if key.session_id == "deleted":
            raise KeyMissingError("user")
        return await activate(key)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "activate", keyless)
        again = Hosting(store, EchoEngine())
        await asyncio.wait_for(again.host.recover(lambda name: True), 1)
        assert (await store.run("run-chat")).state == "interrupted"
        await again.host.retire()
        await asyncio.wait_for(again.has_left.wait(), 10)
    assert "session deleted is not recovered" in caplog.text and "'user' has no key" in caplog.text


@pytest.mark.virtual_time
async def test_the_next_process_leaves_sessions_of_another_namespace_to_its_hosts() -> None:
    store = InMemoryStore()
    lost_host = Hosting(store, Patient())
    await lost_host.create("own", "another's")
    for name in ("own", "another's"):
        await lost_host.start(name, "hello", f"run-{name}")

    async def is_of_others(session: SessionRecord) -> bool:
        return session.session_id == "another's"

    await Hosting(store, EchoEngine()).host.recover(lambda key: True, is_of_others)
    assert [(await store.run(f"run-{name}")).state for name in ("own", "another's")] == ["interrupted", "running"]


def test_the_next_process_sees_to_the_runs_of_its_sessions_and_to_no_others() -> None:
    """Case 63: nobody has to ask."""

    async def life(seed: int) -> None:
        store, engine = DawdlingStore(random.Random(seed)), Patient()
        lost_host = Hosting(store, engine)
        names = [f"chat{number}" for number in range(30)]
        await lost_host.create(*names)
        for name in names[:20]:
            await lost_host.start(name, "hello", f"run-{name}")
        store.fail_rate = 0.05
        again = Hosting(store, EchoEngine())
        await again.host.recover(lambda key: key.session_id != "chat0")
        store.fail_rate = 0.0
        states = {name: (await store.inner.run(f"run-{name}")).state for name in names[:20]}
        assert states.pop("chat0") == "running"
        assert set(states.values()) == {"interrupted"}
        (await audit(store.inner, names[1:])).check()
        assert set(again.residents) <= set(names[1:20])

    assert explore(10, life)


def test_sessions_move_from_replaced_hosts_once_they_are_idle_and_no_run_is_interrupted() -> None:
    """Case 64: one owner at each moment, under the busiest of moves."""

    async def life(seed: int) -> None:
        dice = random.Random(seed)
        store, engine = DawdlingStore(dice), Dawdler(dice)
        old = Hosting(store, engine)
        names = [f"chat{number}" for number in range(5)]
        await old.create(*names)

        class Earlier:
            async def release(self, key: SessionKey) -> bool:
                await asyncio.sleep(dice.random() * 0.01)
                return await old.host.release(key)

            async def call(self, request: bytes, key: SessionKey) -> bytes:
                await asyncio.sleep(dice.random() * 0.01)
                return await old.host.call(request)

        new = Hosting(store, engine, previous_hosts=[Earlier()])
        acknowledged = Acknowledged(clock=asyncio.get_running_loop().time)

        async def caller(number: int) -> None:
            name = names[number % len(names)]
            for index in range(4):
                run_id, prompt = f"run{number}-{index}", f"prompt {number}-{index}"
                hosting = new if dice.random() < index / 3 else old
                asked_at = acknowledged.clock()
                outcome = None
                while outcome is None:
                    try:
                        outcome = await hosting.run(name, prompt, run_id, if_busy="enqueue")
                    except SessionFencedError:
                        hosting = new  # as a caller that looks again would find
                assert outcome.state == "completed", "a move interrupts nothing"
                acknowledged.stored(name, [prompt], asked_at, run_id=run_id, turn_index=outcome.turn.record.index)
                acknowledged.ended(name, run_id, "completed")
                await asyncio.sleep(dice.random() * 0.1)

        callers = [asyncio.ensure_future(caller(number)) for number in range(8)]
        await asyncio.sleep(dice.random() * 0.3)
        await old.host.retire()
        await asyncio.gather(*callers)
        await asyncio.wait_for(old.has_left.wait(), 60)
        assert old.host.residents == []
        assert sorted(set(new.host.residents)) == sorted(new.host.residents)
        (await audit(store.inner, names, acknowledged)).check()

    assert explore(share(60, 8), life)


@pytest.mark.virtual_time
async def test_replaced_hosts_accept_no_more_sessions() -> None:
    hosting = Hosting(InMemoryStore(), EchoEngine())
    await hosting.create("a")
    await hosting.host.retire()
    await refused(SessionFencedError, hosting.ask("a", verbs.latest(())))
    await asyncio.wait_for(hosting.has_left.wait(), 60)


class Frozen:
    """Stands for an actor whose process is stopped, and for its method."""

    @property
    def release(self) -> Frozen:
        return self

    def options(self, **_: object) -> Frozen:
        return self

    def remote(self, session_id: str) -> Frozen:
        return self

    def future(self) -> Future[bool]:
        return Future()


@pytest.mark.virtual_time
async def test_an_earlier_host_that_is_frozen_keeps_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases 47 and 64: the epoch decides."""

    earlier = _EarlierHosts("namespace", "realm", Layout(1, 1))
    with monkeypatch.context() as patched:
        patched.setattr(earlier, "_find", lambda session_id: Frozen())
        assert await asyncio.wait_for(earlier.release(SessionKey("a")), 60)


@pytest.mark.virtual_time
async def test_a_session_that_cannot_leave_stays_with_the_replaced_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 64: an error of the earlier host stays there: callers ask that host and get its error."""

    old = Hosting(InMemoryStore(), EchoEngine())
    await old.create("a")
    await old.run("a", "hello", "run-1")

    async def fail(_: Ownership, note: object = None) -> bool:
        raise StoreError("away")

    with monkeypatch.context() as patched:
        patched.setattr(Ownership, "leave", fail)
        assert not await old.host.release(SessionKey("a"))
        await asyncio.sleep(1)
        assert not old.has_left.is_set() and await old.ask("a", verbs.latest(()))
    assert await old.host.release(SessionKey("a"))


@pytest.mark.virtual_time
async def test_a_busy_session_is_refused_as_everywhere() -> None:
    hosting = Hosting(InMemoryStore(), Patient())
    await hosting.create("a")
    await hosting.start("a", "hello", "run-1")
    await refused(SessionBusyError, hosting.start("a", "again", "run-2"))
    assert await hosting.ask("a", verbs.cancel("enough", "run-1")) is True
    assert (await hosting.ask("a", verbs.latest(()))).record.status == "cancelled"


# Layouts


def test_a_session_has_its_host_by_its_id_and_few_move_when_one_is_added() -> None:
    names = [f"chat-{number}" for number in range(20_000)]
    before = [Layout(1, 7).index_of(SessionKey(name)) for name in names]
    after = [Layout(2, 8).index_of(SessionKey(name)) for name in names]
    counts = Counter(before)
    assert sorted(counts) == list(range(7))
    assert max(counts.values()) < 1.1 * len(names) / 7
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    assert set(moved) == {7}, "none moves between those that stay"
    assert 0.9 / 8 < len(moved) / len(names) < 1.1 / 8
    now_and_ever = [6, 2, 1, 5]  # processes of all versions look for them there
    assert [Layout(1, 7).index_of(SessionKey(name)) for name in ("a", "ü", "\ud800", "chat-1")] == now_and_ever


def test_of_two_layouts_the_later_counts_and_of_one_generation_the_larger() -> None:
    layouts = [Layout(1, 8), Layout(2, 2), Layout(2, 4)]
    assert max(layouts) == Layout(2, 4)
    assert Layout(2, 4).next(3) == Layout(3, 3)
    assert Layout(2, 4).actor_names("realm")[3] == "turnwise/realm/hosts/2x4/3"


@pytest.mark.parametrize(
    "name", ["hosts", "max_resident", "max_calls", "max_session_calls", "max_waits", "max_session_waits"]
)
def test_limits_are_at_least_one(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Packed(**{name: 0})
    with pytest.raises(ConfigError, match="max_live"):
        Dedicated(max_live=0)


class Told:
    """Telemetry that keeps what it is told of refused calls."""

    def __init__(self) -> None:
        self.errors: list[TurnwiseError] = []

    def observer(self) -> Any:
        return self

    def refused(self, error: TurnwiseError) -> None:
        self.errors.append(error)


async def test_telemetry_is_told_of_calls_that_are_refused() -> None:
    told = Told()
    setup: Any = (EchoEngine(), SessionConfig(telemetry=told), None, (), None)
    store = InMemoryStore()
    resources = WorkerResources(lambda: store, lambda: None, "first", b"", loads=lambda _: setup)
    host = PackedHost(
        resources,
        Packed(hosts=1),
        node_id="here",
        save_override=lambda *_: asyncio.sleep(0),
        drop_override=lambda _: None,
        leave=lambda: None,
    )
    await host.open()
    missing = unpacked(await host.call(verbs.info().to(SessionRef(SessionKey("none"))).pickled()))
    assert isinstance(missing, Refused) and isinstance(missing.error, SessionNotFoundError)
    assert [type(error) for error in told.errors] == [SessionNotFoundError]
    await resources.close()
