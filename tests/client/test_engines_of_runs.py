"""Which engine a run has where managers with different ones share a session, and what becomes of those engines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from test_packed_host import Asking, Named
from test_tool_loop import Stage

from memories.session_memories import Book
from processes.packed_hosts import Hosting, OpenResources, answer_of, refused
from scale import share
from schedules import DawdlingStore, explore
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.dedicated_host import DedicatedHost
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.hosting.wire import EngineWanted, SessionRef
from turnwise.actors.hosting.worker_resources import MAX_CACHED, SessionSetup
from turnwise.actors.inference.engine import EngineBuilder, RunContext, SessionView
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import EngineLimitError
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.in_memory import InMemoryStore

pytestmark = pytest.mark.virtual_time

APPROVED = ApprovalDecision(verdict="approved")


class Manager:
    """Starts runs with its engine, and sends that where it is wanted, as a realm does; counts the calls."""

    def __init__(self, hosting: Hosting, engine_id: str, engine: EngineBuilder) -> None:
        self.hosting = hosting
        self.engine_id = engine_id
        self.setup = (engine, hosting.config, None, (), None)
        self.calls = 0

    async def start(self, session_id: str, run_id: str, **settings: Any) -> Any:
        call = verbs.start(("hello",), {"run_id": run_id, **settings}, ())  # type: ignore[typeddict-item]
        self.calls += 1
        answer = await self.hosting.ask(session_id, call, self.engine_id)
        while isinstance(answer, EngineWanted):
            self.calls += 1
            self.hosting.sent[b"sent " + self.engine_id.encode()] = self.setup
            answer = await self.hosting.ask(session_id, call, self.engine_id, b"sent " + self.engine_id.encode())
        return answer


async def answers_by_run(store: Any, session_id: str) -> dict[str, str]:
    """Return the answer of each run, by run id."""
    answers: dict[str, str] = {}
    for turn in await store.turns(SessionKey(session_id)):
        for block in await store.blocks(turn.output):
            answers[turn.run_id] = Text.model_validate_json(block).text
    return answers


async def approve(hosting: Hosting, session_id: str, run_id: str) -> None:
    while not await hosting.ask(session_id, verbs.pending(run_id)):
        await asyncio.sleep(0.1)
    await hosting.ask(session_id, verbs.decide(run_id, "call", APPROVED))
    assert (await hosting.ask(session_id, verbs.wait(None, run_id, ()))).state == "completed"


async def test_each_of_two_managers_that_alternate_has_its_engine_at_one_call_for_each_start() -> None:
    store = InMemoryStore()
    hosting = Hosting(store, Named("first"))
    await hosting.create("a")
    managers = [Manager(hosting, "first", Named("first")), Manager(hosting, "second", Named("second"))]
    for number in range(20):
        manager = managers[number % 2]
        await manager.start("a", f"{manager.engine_id}-{number}")
        await hosting.ask("a", verbs.wait(None, f"{manager.engine_id}-{number}", ()))
    answers = await answers_by_run(store, "a")
    assert len(answers) == 20
    assert all(run_id.startswith(answer) for run_id, answer in answers.items())
    assert [manager.calls for manager in managers] == [10, 11], "an engine is sent once"


def test_managers_that_start_runs_at_once_have_their_engines_for_them() -> None:
    async def life(seed: int) -> None:
        dice = random.Random(seed)
        store = DawdlingStore(dice)
        hosting = Hosting(store, Named("engine 0"), Packed(hosts=1), config=SessionConfig(idle_s=1e9, max_queued=100))
        await hosting.create("a")
        managers = [Manager(hosting, f"engine {number}", Named(f"engine {number}")) for number in range(4)]

        async def client(manager: Manager) -> None:
            for number in range(4):
                await asyncio.sleep(dice.random() * 0.1)
                run_id = f"{manager.engine_id} {number}"
                await manager.start("a", run_id, if_busy="enqueue")
                if dice.random() < 0.5:
                    await hosting.ask("a", verbs.wait(None, run_id, ()))

        await asyncio.gather(*map(client, managers))
        while (await hosting.ask("a", verbs.info())).active_run_id:
            await asyncio.sleep(1)
        answers = await answers_by_run(store.inner, "a")
        assert len(answers) == 16 and all(run_id.startswith(answer) for run_id, answer in answers.items())

    assert explore(share(60, 4), life)


@pytest.mark.parametrize("lost", [False, True])
async def test_a_run_that_waits_and_one_behind_it_have_the_engines_of_their_managers(lost: bool) -> None:
    """Also if the process was lost meanwhile."""

    store = InMemoryStore()
    hosting = Hosting(store, Asking("first"))
    await hosting.create("a")
    for engine_id in ("second", "third", "first"):
        await Manager(hosting, engine_id, Asking(engine_id)).start("a", engine_id, if_busy="enqueue")
    if lost:
        other_engines = {name: Asking(name) for name in ("second", "third")}
        hosting = Hosting(store, Asking("first"), other_engines=other_engines, overrides=hosting.overrides)
        await hosting.ask("a", verbs.warm())
        await Manager(hosting, "fourth", Named("fourth")).start("a", "fourth", if_busy="enqueue")
    for engine_id in ("second", "third", "first"):
        await approve(hosting, "a", engine_id)
    if lost:
        await hosting.ask("a", verbs.wait(None, "fourth", ()))
    answers = await answers_by_run(store, "a")
    assert [answers[name] for name in ("second", "third", "first")] == ["second", "third", "first"]


async def test_a_session_that_is_loaded_again_keeps_the_engines_of_its_waiting_runs() -> None:
    store = InMemoryStore()
    hosting = Hosting(store, Asking("first"), Packed(hosts=1, max_resident=1))
    await hosting.create("a", "b")
    await Manager(hosting, "first", Asking("first")).start("a", "first")
    await asyncio.sleep(1)
    await hosting.ask("b", verbs.info())
    assert hosting.residents == ["b"]
    await Manager(hosting, "second", Asking("second")).start("a", "second", if_busy="enqueue")
    for name in ("first", "second"):
        await approve(hosting, "a", name)
    assert await answers_by_run(store, "a") == {"first": "first", "second": "second"}
    assert hosting.overrides == {SessionKey("a"): EngineOverride("second", {"first": "first"})}
    await hosting.ask("b", verbs.info())
    assert not hosting.overrides, "nothing waits any more"


async def test_engines_of_open_runs_are_held_and_one_more_than_a_process_holds_is_refused_with_the_limit() -> None:
    store = InMemoryStore()
    hosting = Hosting(store, Asking("own"), Packed(hosts=1, max_resident=3))
    names = [f"session {number}" for number in range(MAX_CACHED)]
    await hosting.create(*names, "last")
    managers = [Manager(hosting, f"engine {number}", Asking(f"engine {number}")) for number in range(MAX_CACHED)]
    for name, manager in zip(names[1:], managers[1:], strict=True):
        await manager.start(name, f"run of {name}")
        await asyncio.sleep(1)
    late = Manager(hosting, "late", Asking("late"))
    error = await refused(EngineLimitError, late.start("last", "late"))
    assert "'last'" in str(error) and f"{MAX_CACHED} different engines" in str(error) and "engine_name" in str(error)
    assert not await store.turns(SessionKey("last")), "nothing was done"
    await Manager(hosting, "first", Asking("own")).start("last", "own")
    await approve(hosting, "last", "own")
    await approve(hosting, names[1], f"run of {names[1]}")
    await late.start("last", "late")
    await approve(hosting, "last", "late")
    for name, manager in zip(names[2:], managers[2:], strict=True):
        await approve(hosting, name, f"run of {name}")
        assert await answers_by_run(store, name) == {f"run of {name}": manager.engine_id}


async def test_an_evicted_engine_is_cached_again_when_its_session_runs() -> None:
    store = InMemoryStore()
    hosting = Hosting(store, Named("own"), Packed(hosts=1, max_resident=1))
    await hosting.create("a", "b")
    asking = Manager(hosting, "asking", Asking("asking"))
    await asking.start("a", "first")
    await approve(hosting, "a", "first")
    for number in range(2 * MAX_CACHED):
        hosting.bring(f"newer {number}", Named("newer"))
    await hosting.start("a", "hello", "second")
    await asyncio.sleep(1)
    await hosting.ask("b", verbs.info())
    await approve(hosting, "a", "second")
    assert await answers_by_run(store, "a") == {"first": "asking", "second": "asking"}


class Notes:
    """Has what was noted last for a session, as Ray's key-value store does."""

    def __init__(self) -> None:
        self.overrides: dict[SessionKey, EngineOverride] = {}
        self.engines: dict[str, bytes] = {}

    def save(self, key: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
        self.overrides[key], self.engines = override, dict(engines)


def test_a_run_that_waits_has_its_engine_though_its_idle_process_left_and_another_manager_makes_the_next() -> None:
    async def story() -> None:
        store, notes, failures = InMemoryStore(), Notes(), [OSError("Ray is away")]
        await store.create(SessionRecord(session_id="s"))
        engines = {name: Asking(name) for name in ("first", "second")}

        async def keep(key: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
            if failures:
                raise failures.pop()
            notes.save(key, override, engines)

        async def process(made_by: str, idle_s: float) -> tuple[DedicatedHost, asyncio.Event]:
            setups: dict[str, SessionSetup] = {
                name: (engines[name], SessionConfig(idle_s=idle_s), None, (), None)
                for name in {made_by, *notes.engines}
            }
            resources, has_left = OpenResources(store, setups, made_by), asyncio.Event()
            host = DedicatedHost(
                SessionKey("s"),
                resources,
                node_id="here",
                max_waits=10,
                leave=has_left.set,
                save_override=keep,
                override=notes.overrides.get(SessionKey("s")),
            )
            return host, has_left

        async def call(host: DedicatedHost, call: VerbCall[Any], engine_id: str = "") -> Any:
            return answer_of(await host.call(call.to(SessionRef(SessionKey("s")), engine_id).pickled()))

        host, has_left = await process("first", 0.05)
        await call(host, verbs.start(("hello",), {"run_id": "run"}, ()), "first")
        await has_left.wait()
        assert not failures and host.has_left_engine, "it stayed until its note was taken"
        host, has_left = await process("second", 0.5)
        await call(host, verbs.decide("run", "call", APPROVED))
        assert (await call(host, verbs.wait(None, "run", ()))).state == "completed"
        assert await answers_by_run(store, "s") == {"run": "first"}
        await has_left.wait()
        assert not host.has_left_engine, "nothing waits any more"

    asyncio.run(asyncio.wait_for(story(), 30))  # the process looks at the real clock


# The runner of an engine


class Building:
    """Is built when it is let; notes whether its runner was closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun, self.goes_on, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.built = 0

    def build(self, session: SessionView) -> Building:
        self.built += 1
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        return [Text(text=self.name)]

    async def close(self) -> None:
        assert not self.closed.is_set()
        self.closed.set()


async def stage_of(engine: Building) -> Stage:
    """Return a stage whose engines wait until the test lets them be built."""
    stage = Stage(engine)
    await stage.store.create(SessionRecord(session_id="session"))

    async def off_loop(build: Any, *args: Any) -> Any:
        builder = build.__self__
        builder.begun.set()
        await builder.goes_on.wait()
        return build(*args)

    stage.core.engines.off_loop = off_loop
    return stage


async def test_the_runner_of_an_engine_that_changes_while_it_is_built_serves_its_run_and_is_closed() -> None:
    first, second = Building("first"), Building("second")
    stage = await stage_of(first)
    await stage.core.admission.start(["hello"], run_id="first")
    await first.begun.wait()
    stage.core.use(second, stage.config)
    first.goes_on.set()
    second.goes_on.set()
    await stage.core.reads.wait("first")
    await first.closed.wait()
    await stage.core.admission.start(["hello"], run_id="second")
    await stage.core.reads.wait("second")
    assert await answers_by_run(stage.store, "session") == {"first": "first", "second": "second"}
    assert not second.closed.is_set()


async def test_a_runner_that_is_built_too_late_is_closed_or_serves_the_next_run() -> None:
    engine = Building("late")
    stage = await stage_of(engine)
    await stage.core.admission.start(["hello"], run_id="first")
    await engine.begun.wait()
    assert await stage.core.admission.cancel("too long", "first")
    await stage.core.admission.start(["hello"], run_id="second")
    engine.goes_on.set()
    await stage.core.reads.wait("second")
    assert (await answers_by_run(stage.store, "session"))["second"] == "late" and engine.built == 1
    assert await stage.core.ownership.leave() and engine.closed.is_set()

    engine = Building("later")
    stage = await stage_of(engine)
    await stage.core.admission.start(["hello"], run_id="first")
    await engine.begun.wait()
    assert await stage.core.admission.cancel("too long", "first")
    assert await stage.core.ownership.leave()
    engine.goes_on.set()
    await engine.closed.wait()


async def test_a_run_asks_the_memories_of_its_own_manager() -> None:
    first, second = Book(), Book()
    engine = Asking("first")
    stage = Stage(engine)
    await stage.store.create(SessionRecord(session_id="session"))
    slots = [MemorySlot(memory=book, name="book", section=None) for book in (first, second)]
    stage.core.use(engine, stage.config, None, slots[:1])
    await stage.core.admission.start(["hello"], run_id="first")
    await stage.core.admission.start(["hello"], run_id="queued", if_busy="enqueue")
    stage.core.use(Named("second"), stage.config, None, slots[1:])
    for name in ("first", "queued"):
        while not await stage.core.reads.pending(name):
            await asyncio.sleep(1)
        await stage.core.approvals.decide(name, "call", APPROVED)
        await stage.core.reads.wait(name)
    assert first.asked and not hasattr(second, "asked")
