"""Hosts that go: they take no more, hand their idle sessions over, and wait for runs up to a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from processes.packed_hosts import Hosting, OpenResources, answer_of
from scale import share
from schedules import DawdlingStore, explore
from turnwise.actors.cluster.sharding import Layout
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.dedicated_host import DedicatedHost
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import RunContext, SessionView, StepContext, Suspend
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import SessionFencedError
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, CallState
from turnwise.memory.conversation.runs import OPEN_STATES
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.audit import audit

WHY = "its node was drained"


class Gated:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def build(self, session: SessionView) -> Gated:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        await self.open.wait()
        return [Text(text="at last")]


class Slow:
    """Answers after a while of the dice's."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def build(self, session: SessionView) -> Slow:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        await asyncio.sleep(self.dice.random() * 0.4)
        return [Text(text=f"answer to {context.run_id}")]


class Pair:
    """A host that is drained and the one that comes in its place; calls take a while of the dice's."""

    def __init__(self, store: Any, engine: Any, dice: random.Random | None = None, **settings: Any) -> None:
        self.dice = dice
        self.old = Hosting(store, engine, next_hosts=self, **settings)
        self.new = Hosting(store, engine, previous_hosts=[self], **settings)

    async def _dawdle(self) -> None:
        await asyncio.sleep(self.dice.random() * 0.01 if self.dice else 0)

    async def release(self, key: SessionKey) -> bool:
        await self._dawdle()
        return self.old.has_left.is_set() or await self.old.host.release(key)

    async def call(self, request: bytes, key: SessionKey) -> bytes:
        await self._dawdle()
        return await self.old.host.call(request)

    async def adopt(self, key: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
        await self._dawdle()
        await self.new.host.adopt(key, override, engines)

    async def warm(self, key: SessionKey) -> None:
        await self._dawdle()
        answer_of(await self.new.host.call(verbs.warm().to(SessionRef(key)).pickled()))

    async def outcome(self, name: str, run_id: str) -> Any:
        """Wait for a run, at whichever host has the session; the one that is drained is asked first."""
        while True:
            for hosting in (self.old, self.new):
                try:
                    outcome = await hosting.ask(name, verbs.wait(None, run_id, ()))
                except SessionFencedError:
                    continue
                if outcome.state not in OPEN_STATES:
                    return outcome


@pytest.mark.parametrize("on_lost", ["interrupt", "resume"])
def test_a_drain_loses_nothing_and_interrupts_no_run_that_ends_in_time(on_lost: Any) -> None:
    async def life(seed: int) -> None:
        dice = random.Random(seed)
        store = DawdlingStore(dice)
        config = SessionConfig(idle_s=1e9, cancel_grace_s=0.5, on_lost=on_lost)
        pair = Pair(store, Slow(dice), dice, config=config)
        names = [f"chat{number}" for number in range(4)]
        await pair.old.create(*names)
        acknowledged = Acknowledged(clock=asyncio.get_running_loop().time)
        timeout_s = dice.choice([0.0, 0.2, 30.0])
        drained = asyncio.Event()
        states: list[str] = []

        async def caller(number: int) -> None:
            name = names[number % len(names)]
            for index in range(3):
                run_id, prompt, asked_at = f"run{number}-{index}", f"prompt {number}-{index}", acknowledged.clock()
                try:
                    await pair.old.start(name, prompt, run_id, if_busy="enqueue")
                except SessionFencedError:
                    await pair.new.start(name, prompt, run_id, if_busy="enqueue")
                outcome = await pair.outcome(name, run_id)
                states.append(outcome.state)
                if outcome.state == "interrupted":
                    assert outcome.why == WHY and timeout_s < 1, "only what took too long, and the record says why"
                acknowledged.stored(name, [prompt], asked_at, run_id=run_id, turn_index=outcome.turn.record.index)
                acknowledged.ended(name, run_id, outcome.state)

        async def drain() -> None:
            await asyncio.sleep(dice.random() * 0.5)
            await asyncio.gather(*(pair.old.host.drain(timeout_s, WHY) for _ in range(2)))
            drained.set()

        await asyncio.gather(drain(), *(caller(number) for number in range(8)))
        assert pair.old.has_left.is_set() and not pair.old.residents
        assert on_lost == "interrupt" or set(states) == {"completed"}
        (await audit(store.inner, names, acknowledged)).check()

    assert explore(share(40, 6), life)


@pytest.mark.virtual_time
async def test_a_host_that_is_drained_hands_idle_sessions_over_at_once_also_those_that_somebody_follows() -> None:
    pair = Pair(InMemoryStore(), EchoEngine())
    await pair.old.create("idle", "followed")
    for name in ("idle", "followed"):
        await pair.old.run(name, "hello", f"run-{name}")
    following = asyncio.create_task(pair.old.ask("followed", verbs.events(10.0, 1_000, 10)))
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    await pair.old.host.drain(60.0, WHY)
    assert asyncio.get_running_loop().time() - began < 0.5
    with pytest.raises(SessionFencedError):  # so the follower asks elsewhere
        await following
    assert (await pair.new.run("followed", "again", "run-2")).state == "completed"


@pytest.mark.virtual_time
async def test_what_is_queued_begins_on_the_next_host_when_the_active_run_has_ended() -> None:
    engine = Gated()
    pair = Pair(InMemoryStore(), engine)
    await pair.old.create("a")
    for number in range(3):
        await pair.old.start("a", "hello", f"run-{number}", if_busy="enqueue")
    draining = asyncio.create_task(pair.old.host.drain(60.0, WHY))
    await asyncio.sleep(1)
    assert pair.old.residents == ["a"] and not pair.new.residents, "it waits for the run"
    await pair.new.start("a", "hello", "run-3", if_busy="enqueue")
    assert pair.old.residents == ["a"], "a call that the next host gets meanwhile is carried out where the session is"
    engine.open.set()
    await draining
    assert pair.new.residents == ["a"], "nobody asked for it"
    assert [(await pair.outcome("a", f"run-{number}")).state for number in range(4)] == ["completed"] * 4


@pytest.mark.virtual_time
async def test_when_the_time_is_over_a_run_is_taken_over_and_its_record_says_why() -> None:
    engine = Gated()
    pair = Pair(InMemoryStore(), engine)
    await pair.old.create("a")
    await pair.old.start("a", "hello", "run-1")
    began = asyncio.get_running_loop().time()
    await pair.old.host.drain(5.0, WHY)
    assert 5 <= asyncio.get_running_loop().time() - began < 6
    outcome = await pair.outcome("a", "run-1")
    assert (outcome.state, outcome.why) == ("interrupted", WHY)
    assert pair.new.residents == ["a"]


class Asks:
    """Asks for leave once, and answers with its name when it has it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build(self, session: SessionView) -> Asks:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        if not any(state.verdict for state in context.calls.values()):
            raise Suspend({"call": CallState(name="act", wants="approval", why="it acts")})
        return [Text(text=self.name)]


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_run_that_waits_for_approval_moves_with_the_engine_that_it_began_with(is_loaded: bool) -> None:
    engines = {"of another manager": Asks("the other")}
    pair = Pair(InMemoryStore(), Asks("the host's own"), other_engines=engines, limits=Packed(hosts=1, max_resident=1))
    await pair.old.create("a")
    await pair.old.start("a", "hello", "run-1", "of another manager")
    await asyncio.sleep(1)
    if not is_loaded:
        await pair.old.create("b")
        await pair.old.ask("b", verbs.info())
        assert pair.old.residents == ["b"]
    await pair.old.host.drain(60.0, WHY)
    await pair.new.ask("a", verbs.decide("run-1", "call", ApprovalDecision(verdict="approved")))
    assert (await pair.outcome("a", "run-1")).state == "completed"
    (turn,) = await pair.old.store.turns(SessionKey("a"))
    assert "the other" in (await pair.old.store.blocks(turn.output))[0]


class Alone:
    """The process of one session, and whether it has left, or has moved."""

    def __init__(
        self, store: InMemoryStore, engine: Any, resources: type[OpenResources] = OpenResources, **settings: Any
    ) -> None:
        config = SessionConfig(idle_s=1e9, cancel_grace_s=0.5)
        self.ends: list[str] = []
        self.resources = resources(store, {"first": (engine, config, None, (), None)}, "first")
        self.host = DedicatedHost(
            SessionKey("a"),
            self.resources,
            max_waits=10,
            node_id="here",
            leave=lambda: self.ends.append("left"),
            move=lambda: self.ends.append("moved"),
            save_override=self._save,
            **settings,
        )

    async def ask(self, call: VerbCall[Any]) -> Any:
        return answer_of(await self.host.call(call.to(SessionRef(SessionKey("a"))).pickled()))

    async def start(self, run_id: str) -> None:
        options: Any = {"run_id": run_id, "if_busy": "enqueue"}
        await self.ask(verbs.start(("hello",), options, ()))

    async def _save(self, *_: Any) -> None: ...


async def process_of_one(engine: Any) -> tuple[InMemoryStore, Alone]:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="a"))
    return store, Alone(store, engine)


@pytest.mark.virtual_time
async def test_a_process_of_its_own_leaves_at_once_if_its_session_is_idle_also_if_somebody_follows_it() -> None:
    _, alone = await process_of_one(EchoEngine())
    await alone.start("run-1")
    await alone.ask(verbs.wait(None, "run-1", ()))
    following = asyncio.create_task(alone.ask(verbs.events(10.0, 1_000, 10)))
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    await alone.host.drain(60.0, WHY)
    assert asyncio.get_running_loop().time() - began < 0.5 and alone.ends[0] == "left"
    with pytest.raises(SessionFencedError):
        await following


@pytest.mark.virtual_time
async def test_a_process_of_its_own_that_is_drained_begins_no_further_run() -> None:
    """Neither one that is queued, which the next process begins, nor one that is asked for, which is sent on."""
    engine = Gated()
    _, alone = await process_of_one(engine)
    for number in range(2):
        await alone.start(f"run-{number}")
    draining = asyncio.create_task(alone.host.drain(60.0, WHY))
    await asyncio.sleep(1)
    assert not alone.ends
    engine.open.set()
    await alone.ask(verbs.wait(None, "run-0", ()))
    with pytest.raises(SessionFencedError):
        await alone.start("run-3")
    await draining
    assert set(alone.ends) == {"moved"}, "the next process is started at once"


@pytest.mark.virtual_time
async def test_a_process_of_its_own_gives_a_run_up_when_the_time_is_over_and_the_next_one_ends_it() -> None:
    store, alone = await process_of_one(Gated())
    await alone.start("run-1")
    await alone.host.drain(5.0, WHY)
    assert alone.ends[0] == "moved"
    again = Alone(store, EchoEngine())
    await again.host.recover()
    outcome = await again.ask(verbs.wait(None, "run-1", ()))
    assert (outcome.state, outcome.why) == ("interrupted", WHY)


@pytest.mark.virtual_time
async def test_a_process_that_was_to_recover_runs_and_is_drained_before_has_the_next_one_do_it() -> None:
    store, alone = await process_of_one(Gated())
    await alone.start("run-1")
    again = Alone(store, EchoEngine(), is_back=True)
    await again.host.drain(60.0, WHY)
    assert again.ends == ["moved"]
    recovered = Alone(store, EchoEngine(), is_back=True)
    await recovered.host.recover()
    await recovered.ask(verbs.wait(None, "run-1", ()))
    await recovered.host.drain(60.0, WHY)
    assert set(recovered.ends) == {"left"}, "nothing waits any more"


class SlowResources(OpenResources):
    """Resources that are opened when that is let."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.may_open = asyncio.Event()

    async def open(self) -> Any:
        await self.may_open.wait()
        return await super().open()


@pytest.mark.virtual_time
@pytest.mark.parametrize(("opens_after_s", "end"), [(1.0, "left"), (10.0, "moved")])
async def test_a_call_that_waits_for_the_store_of_a_process_that_is_drained_is_sent_on(
    opens_after_s: float, end: str
) -> None:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="a"))
    alone = Alone(store, EchoEngine(), SlowResources)
    starting = asyncio.create_task(alone.start("run-1"))
    await asyncio.sleep(0)
    draining = asyncio.create_task(alone.host.drain(5.0, WHY))
    await asyncio.sleep(opens_after_s)
    assert alone.ends == ([] if end == "left" else [end])
    assert isinstance(alone.resources, SlowResources)
    alone.resources.may_open.set()
    with pytest.raises(SessionFencedError):
        await starting
    await draining
    assert alone.ends[0] == end and not await store.runs(SessionKey("a"))


@pytest.mark.virtual_time
async def test_a_process_that_is_drained_before_its_first_call_answers_no_more() -> None:
    store, alone = await process_of_one(EchoEngine())
    await alone.host.drain(60.0, WHY)
    assert alone.ends == ["left"]
    with pytest.raises(SessionFencedError):
        await alone.start("run-1")
    assert not await store.runs(SessionKey("a"))
    assert not alone.host.has_left_engine
    assert Alone(store, EchoEngine(), override=EngineOverride("first")).host.has_left_engine, "it may be needed still"


@pytest.mark.virtual_time
async def test_a_drain_with_less_time_brings_the_end_of_another_forward() -> None:
    _, alone = await process_of_one(Gated())
    pair = Pair(InMemoryStore(), Gated())
    await pair.old.create("a")
    await pair.old.start("a", "hello", "run-1")
    await alone.start("run-1")
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(host.drain(s, WHY) for host in (alone.host, pair.old.host) for s in (60.0, 5.0, 70.0)))
    assert asyncio.get_running_loop().time() - began < 7 and set(alone.ends) == {"moved"}


class Fleet:
    """The hosts of a store, whose number changes: those of each layout, the newest last."""

    def __init__(self, store: Any, engine: Any, dice: random.Random) -> None:
        self.store, self.engine, self.dice = store, engine, dice
        self.layouts: list[tuple[Layout, list[Hosting]]] = []

    async def resize(self, hosts: int) -> None:
        """Make so many hosts, and retire those that there are."""
        earlier = list(self.layouts)
        layout = earlier[-1][0].next(hosts) if earlier else Layout(1, hosts)
        previous = [Earlier(self, *before) for before in reversed(earlier)]
        made = [
            Hosting(self.store, self.engine, previous_hosts=previous, next_hosts=Newest(self)) for _ in range(hosts)
        ]
        self.layouts.append((layout, made))
        for _, replaced in earlier:
            await asyncio.gather(*(hosting.host.retire() for hosting in replaced))

    def host_of(self, key: SessionKey) -> Hosting:
        layout, hosts = self.layouts[-1]
        return hosts[layout.index_of(key)]

    async def ask(self, name: str, call: VerbCall[Any]) -> Any:
        """Ask as clients do: they know the hosts of a moment ago, and look again after a refusal."""
        pauses, hosting = GrowingPauses(0.01, 0.5), self.host_of(SessionKey(name))
        await asyncio.sleep(self.dice.random() * 0.01)
        while True:
            try:
                return await hosting.ask(name, call)
            except SessionFencedError:
                await asyncio.sleep(pauses.next_s())
                hosting = self.host_of(SessionKey(name))


class Earlier:
    """Hosts of an earlier layout, as those of later ones see them."""

    def __init__(self, fleet: Fleet, layout: Layout, hosts: list[Hosting]) -> None:
        self.fleet, self.layout, self.hosts = fleet, layout, hosts

    async def release(self, key: SessionKey) -> bool:
        await asyncio.sleep(self.fleet.dice.random() * 0.01)
        return await self.hosts[self.layout.index_of(key)].host.release(key)

    async def call(self, request: bytes, key: SessionKey) -> bytes:
        await asyncio.sleep(self.fleet.dice.random() * 0.01)
        return await self.hosts[self.layout.index_of(key)].host.call(request)


class Newest:
    """The hosts of the newest layout, as those of earlier ones see them."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    async def adopt(self, key: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
        await self.fleet.host_of(key).host.adopt(key, override, engines)

    async def warm(self, key: SessionKey) -> None:
        answer_of(await self.fleet.host_of(key).host.call(verbs.warm().to(SessionRef(key)).pickled()))


@pytest.mark.by_turns
def test_while_the_number_of_hosts_changes_nobody_waits_longer_than_half_a_second_beyond_the_run() -> None:
    """From four hosts to two and back, under load; followers and queues hold up no move."""

    async def life(seed: int) -> None:
        dice = random.Random(seed)
        store, engine = DawdlingStore(dice), Timed(dice)
        fleet = Fleet(store, engine, dice)
        await fleet.resize(4)
        names = [f"chat{number}" for number in range(8)]
        for name in names:
            await store.inner.create(SessionRecord(session_id=name))
        acknowledged = Acknowledged(clock=asyncio.get_running_loop().time)
        is_over = asyncio.Event()

        async def caller(name: str) -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                run_ids = [f"{name}-{number}-{part}" for part in range(dice.choice([1, 2]))]
                asked_at, began = acknowledged.clock(), asyncio.get_running_loop().time()
                for run_id in run_ids:
                    options: Any = {"run_id": run_id, "if_busy": "enqueue"}
                    await fleet.ask(name, verbs.start((run_id,), options, ()))
                for run_id in run_ids:
                    while (outcome := await fleet.ask(name, verbs.wait(None, run_id, ()))).state in OPEN_STATES:
                        pass
                    assert outcome.state == "completed", "a move interrupts nothing"
                    acknowledged.stored(name, [run_id], asked_at, run_id=run_id, turn_index=outcome.turn.record.index)
                    acknowledged.ended(name, run_id, "completed")
                took_s = asyncio.get_running_loop().time() - began
                assert took_s - sum(map(engine.took_s.__getitem__, run_ids)) < 0.5
                await asyncio.sleep(dice.random() * 0.1)

        async def follower(name: str) -> None:
            seen = -1
            while not is_over.is_set():
                _, seen, _ = await fleet.ask(name, verbs.events(0.3, seen, 100))

        async def change() -> None:
            for hosts in (2, 4):
                await asyncio.sleep(0.5 + dice.random())
                await fleet.resize(hosts)
            await asyncio.sleep(1)
            is_over.set()

        await asyncio.gather(change(), *map(caller, names), *map(follower, names[:4]))
        for _, replaced in fleet.layouts[:-1]:
            assert all(hosting.has_left.is_set() and not hosting.residents for hosting in replaced)
        (await audit(store.inner, names, acknowledged)).check()

    assert explore(share(20, 3), life)


class Timed:
    """Answers after a while of the dice's, and notes how long each run took."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.took_s: dict[str, float] = {}

    def build(self, session: SessionView) -> Timed:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        took_s = self.took_s[context.run_id] = self.dice.random() * 0.4
        await asyncio.sleep(took_s)
        return [Text(text="done")]
