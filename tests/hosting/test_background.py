"""What runs beside the callers: an error of somebody else's class is logged with ids, and the work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from test_packed_host import Patient

from engines import ScriptedEngine
from memories.session_memories import Book, MemoryStage
from processes.packed_hosts import Hosting, OpenResources
from schedules import SESSION
from turnwise.actors.cluster.actors.shutdown import Shutdown
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.dedicated_host import DedicatedHost
from turnwise.actors.hosting.memory.batcher import Batcher
from turnwise.actors.hosting.memory.memory_host import MemoryHost
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.ownership import Ownership
from turnwise.errors import CorruptRecordError, StoreError
from turnwise.memory.conversation.events import TurnNotSaved
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.longterm.base import Scope
from turnwise.memory.longterm.retention.retention import Use, Uses
from turnwise.memory.stores.in_memory import InMemoryStore
from virtual_time import play

pytestmark = pytest.mark.virtual_time

SECRET = "the prompt that no log may quote"


def fail_once(target: Any, verb: str, error: BaseException | None = None, *, number: int = 1) -> asyncio.Event:
    """Have a verb raise an error at its call number `number`; return an event that is set when it has."""
    inner, calls, failed = getattr(target, verb), [0], asyncio.Event()

    async def failing(*args: Any, **settings: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            failed.set()
            raise error or OSError("somebody else's")
        return await inner(*args, **settings)

    setattr(target, verb, failing)
    return failed


@pytest.fixture
def restored_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions leave as ever after the test."""
    monkeypatch.setattr(Ownership, "leave", Ownership.leave)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait, on virtual time, until something is so."""
    while not is_so():
        await asyncio.sleep(1)


def logged(caplog: pytest.LogCaptureFixture, *parts: str) -> None:
    """Check that one record says all of this, and that none quotes the conversation."""
    assert any(all(part in caplog.handler.format(record) for part in parts) for record in caplog.records), caplog.text
    assert SECRET not in caplog.text


async def test_a_run_ends_though_its_store_raises_an_error_of_its_own_once() -> None:
    stage = await MemoryStage.opened()
    failed = fail_once(stage.store, "commit", number=2)
    turn = await stage.say(SECRET)
    assert failed.is_set() and turn.status == "completed"


def test_a_run_that_could_not_be_ended_is_seen_to_though_the_store_raises_an_error_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        stage = await MemoryStage.opened(store_retry_s=0.05)
        commit, stage_activate = stage.store.commit, stage.store.activate
        await stage.core.transactor.activate()
        stage.engine.pause_s = 1.0
        await stage.core.admission.start([SECRET], run_id="run")

        async def away(*args: Any, **settings: Any) -> Any:
            raise OSError("away")

        stage.store.commit = stage.store.activate = away
        with pytest.raises(StoreError):
            await stage.core.reads.wait("run")
        await asyncio.sleep(1)
        stage.store.commit, stage.store.activate = commit, stage_activate
        await asyncio.sleep(100)
        assert (await stage.store.run("run", "ada")).state == "interrupted", "nobody had to ask"

    play(story())
    logged(caplog, "session 'session of ada'", "run 'run'", "OSError")


def test_unsaved_turns_are_found_though_the_store_raises_an_error_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        book = Book()
        stage = await MemoryStage.opened(book)
        book.held.clear()
        await stage.say(SECRET)
        stage.memories = (book := Book(),)
        stage.new_core()
        failed = fail_once(stage.store, "turns")
        await stage.core.transactor.activate()
        await asyncio.sleep(100)
        assert failed.is_set() and book.turns == [0], "no turn had to come to go on with it"

    play(story())
    logged(caplog, "session 'session of ada'", "OSError", "Traceback")


def test_a_saver_that_meets_an_error_of_its_session_is_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        book = Book()
        stage = await MemoryStage.opened(book)
        book.fails = RuntimeError("no model")
        fail_once(stage.core.ingestion, "_store_event", RuntimeError("somebody else's"))
        await stage.say(SECRET)
        await asyncio.sleep(1)
        book.fails = None
        await asyncio.sleep(100)
        assert book.turns == [0]

    play(story())
    logged(caplog, "session 'session of ada'", "memory 0", "RuntimeError")


@pytest.mark.parametrize("verb", ["turns", "runs"])
def test_a_corrupt_turn_above_the_mark_is_reported_and_later_ones_are_saved(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        stage = await MemoryStage.opened(Book())
        stage.memories[0].held.clear()
        for prompt in (f"{SECRET} {number}" for number in range(5)):
            await stage.say(prompt)
        stage.memories = (book := Book(), another := Book())
        stage.new_core()
        inner = getattr(stage.store, verb)

        async def read(session_id: str, *, after: int = -1, limit: int = 100) -> Any:
            rows = await inner(session_id, after=after, limit=limit)
            if any((row.index if verb == "turns" else row.turn_index) == 2 for row in rows):
                raise CorruptRecordError(f"{verb} of turn 2", "it is cut off")
            return rows

        setattr(stage.store, verb, read)
        await stage.core.transactor.activate()
        assert not await stage.core.ingestion.wait_for_memory(), "one is not saved"
        assert book.turns == another.turns == [0, 1, 3, 4]
        reported = await stage.events_of(TurnNotSaved)
        assert [(event.turn_index, event.memory) for event in reported] == [(2, "memory 0"), (2, "memory 1")]
        await stage.say("later")
        await stage.core.ingestion.wait_for_memory()
        assert book.turns == [0, 1, 3, 4, 5] and len(await stage.events_of(TurnNotSaved)) == 2, "it is told once"

    play(story())
    logged(caplog, "session 'session of ada'", "turn 2")


def test_a_history_that_raises_an_error_of_its_own_is_caught_up(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        store, history = InMemoryStore(), InMemoryHistory()
        await store.create(SessionRecord(session_id=SESSION))
        failed = fail_once(history, "append")
        core = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history)
        for name in ("first", "second"):
            await core.admission.start([SECRET], run_id=name)
            await core.reads.wait(name)
            await failed.wait()
        seqs = [event.seq for event in await store.events(SessionKey(SESSION))]
        assert core.state.journal.forwarder
        async with asyncio.timeout(100):
            while await history.last_seq(SessionKey(SESSION)) != max(seqs):
                await asyncio.sleep(1)

    play(story())
    logged(caplog, "session 'session'", "history", "OSError", "Traceback")


@pytest.mark.usefixtures("restored_leave")
def test_a_process_that_meets_an_error_when_it_leaves_leaves_later(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        host, has_left, _ = await session_host(EchoEngine(), idle_s=0.05)
        await host.call(verbs.info().to(SessionRef(SessionKey("s"))).pickled())
        failed = fail_once(Ownership, "leave")
        await failed.wait()
        assert not has_left.is_set()
        await has_left.wait()

    asyncio.run(asyncio.wait_for(story(), 30))  # the process looks at the real clock
    logged(caplog, "session 's'", "OSError", "Traceback")


async def session_host(engine: Any, *, idle_s: float) -> tuple[DedicatedHost, asyncio.Event, InMemoryStore]:
    store, has_left = InMemoryStore(), asyncio.Event()
    await store.create(SessionRecord(session_id="s"))
    return host_of(store, engine, has_left, idle_s), has_left, store


def host_of(store: InMemoryStore, engine: Any, has_left: asyncio.Event, idle_s: float) -> DedicatedHost:
    async def keep(*_: object) -> None:
        pass

    resources = OpenResources(store, {"first": (engine, SessionConfig(idle_s=idle_s), None, (), None)}, "first")
    return DedicatedHost(
        SessionKey("s"), resources, max_waits=10, node_id="here", leave=has_left.set, save_override=keep
    )


def test_a_session_that_ray_started_again_is_seen_to_however_often_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        lost_host, has_left, store = await session_host(Patient(), idle_s=1e9)
        await lost_host.call(verbs.start((SECRET,), {"run_id": "run"}, ()).to(SessionRef(SessionKey("s"))).pickled())
        host = host_of(store, EchoEngine(), has_left, 1e9)
        fail_once(store, "activate", StoreError("away"))
        fail_once(store, "activate")
        await host.recover()
        assert (await store.run("run")).state == "interrupted"

    play(story())
    logged(caplog, "session 's'", "away")


@pytest.mark.usefixtures("restored_leave")
def test_idle_sessions_leave_a_packed_host_though_one_meets_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        hosting = Hosting(InMemoryStore(), EchoEngine(), config=SessionConfig(idle_s=4.0))
        await hosting.create("a", "b")
        for name in "ab":
            await hosting.run(name, SECRET, f"run-{name}")
        fail_once(Ownership, "leave")
        await asyncio.sleep(30)
        assert hosting.host.residents == []

    play(story())
    logged(caplog, "session 'a'", "OSError", "Traceback")


@pytest.mark.usefixtures("restored_leave")
def test_a_host_that_was_followed_leaves_though_a_session_meets_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        hosting = Hosting(InMemoryStore(), EchoEngine())
        await hosting.create("a", "b")
        for name in "ab":
            await hosting.run(name, SECRET, f"run-{name}")
        fail_once(Ownership, "leave")
        await hosting.host.retire()
        await asyncio.wait_for(hosting.has_left.wait(), 100)
        assert hosting.host.residents == []

    play(story())
    logged(caplog, "session 'a'", "OSError", "Traceback")


def test_lost_sessions_are_seen_to_though_the_store_and_ray_raise_errors_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        store, calls = InMemoryStore(), [0]
        lost_host = Hosting(store, Patient())
        await lost_host.create("a", "b")
        for name in "ab":
            await lost_host.start(name, SECRET, f"run-{name}")
        fail_once(store, "unsettled", number=2)
        fail_once(store, "blocks", RuntimeError("somebody else's"))

        def is_mine(key: SessionKey) -> bool:
            calls[0] += 1
            if calls[0] == 1:
                raise RuntimeError("Ray cannot tell")
            return True

        await Hosting(store, EchoEngine()).host.recover(is_mine)
        assert [(await store.run(f"run-{name}")).state for name in "ab"] == ["interrupted"] * 2

    play(story())
    logged(caplog, "lost session", "RuntimeError", "Traceback")
    logged(caplog, "the search for lost sessions", "OSError")


class Upkeep(Book):
    """A memory with work for later, and with what expires."""

    swept = caught_up = 0

    async def sweep(self) -> int:
        self.swept += 1
        return 0

    async def catch_up(self) -> int:
        self.caught_up += 1
        return 0


def test_a_memory_is_swept_and_catches_up_though_it_raises_an_error_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        memory: Any = Upkeep()
        host = MemoryHost(lambda: memory)
        fail_once(memory, "sweep")
        fail_once(memory, "catch_up", RuntimeError("no embedding"))
        await host.do_recall(Scope(user_id="ada"), "hello")
        await until(lambda: bool(memory.swept and memory.caught_up))

    play(story())
    logged(caplog, "sweeping", "Upkeep", "OSError", "Traceback")
    logged(caplog, "catching up", "Upkeep", "RuntimeError")


def test_uses_that_could_not_be_noted_are_noted_with_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        class Notes:
            written: list[Use]

            async def write(self, batch: Any) -> None:
                self.written = list(batch)

        notes = Notes()
        fail_once(notes, "write")
        uses = Uses(notes.write)
        uses.note("ada", ["1"], 1.0)
        await asyncio.sleep(1.1)
        trouble = uses.trouble
        assert trouble == "OSError"
        uses.note("ada", ["2"], 1.0)
        await asyncio.sleep(10)
        assert uses.trouble is None and notes.written == [Use("ada", ("1", "2"), 1.0)]

    play(story())
    logged(caplog, "OSError", "Traceback")


@pytest.mark.parametrize("answers", ["none", "cancels itself"])
async def test_a_batch_without_answers_leaves_nobody_waiting(answers: str) -> None:
    async def work(batch: Any) -> Any:
        if answers == "none":
            return []
        raise asyncio.CancelledError

    batcher = Batcher[int, int](work)
    outcomes = await asyncio.wait_for(asyncio.gather(*map(batcher.ask, range(3)), return_exceptions=True), 10)
    assert [type(answer) for answer in outcomes] == [RuntimeError] * 3


def test_the_error_of_a_change_whose_caller_has_gone_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        stage = await MemoryStage.opened()
        await stage.core.transactor.activate()
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def commit(*args: Any) -> None:
            begun.set()
            await goes_on.wait()
            raise OSError("somebody else's")

        stage.store.commit = commit
        caller = asyncio.create_task(stage.core.admission.append([SECRET], key="key"))
        await begun.wait()
        caller.cancel()
        goes_on.set()
        await asyncio.wait({caller})
        await asyncio.sleep(1)

    play(story())
    logged(caplog, "session 'session of ada'", "OSError")


def test_an_actor_leaves_though_ray_raises_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        exit_code: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def forget() -> None:
            raise OSError("no actor of that name can be asked for")

        async def is_here(_: Shutdown) -> bool:
            raise OSError("Ray is away")

        monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(current_actor=None))
        leave = Shutdown(forget)
        monkeypatch.setattr(Shutdown, "_is_here", is_here)
        monkeypatch.setattr("os._exit", lambda code: exit_code.set_result(f"exit {code}"))
        leave()
        assert await asyncio.wait_for(exit_code, 10) == "exit 1"

    play(story())
    logged(caplog, "OSError", "Traceback")
