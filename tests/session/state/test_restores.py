"""A store that returns to an earlier state: by a restore, or by a failover that has lost the last commits.

A failing schedule prints its seed, which replays it: `TURNWISE_SEED=<seed> pytest -k <test>` with this file.
"""

from __future__ import annotations

import asyncio
import copy
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest

from processes.packed_hosts import Hosting
from scale import share
from schedules import World, spread, texts
from stored.audit import check_session
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    SessionChangedError,
    SessionFencedError,
    SessionNotFoundError,
    SessionRevertedError,
    StoreError,
)
from turnwise.memory.archive.export import export_session
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, overlap, union
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import Owner, a_session, a_turn, an_event, own, state_of, unchanged
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore

if TYPE_CHECKING:
    from servers.redis_server import RedisServer


class Restorable(Protocol):
    """A store, with a way back to an earlier state."""

    store: SessionStore

    def back_up(self) -> None:
        """Save the state that `restore` returns to."""

    def restore(self) -> None:
        """Return to that state, while others use the store."""


class OfMemory:
    def __init__(self, store: InMemoryStore | None = None) -> None:
        self.inner = store or InMemoryStore()
        self.store: SessionStore = self.inner
        self._saved: dict[str, Any] = {}

    def back_up(self) -> None:
        self._saved = copy.deepcopy(vars(self.inner))

    def restore(self) -> None:
        vars(self.inner).update(copy.deepcopy(self._saved))


class OfFile:
    def __init__(self, folder: Path) -> None:
        self._path, self._saved = folder / "store.db", folder / "saved.db"
        self.store: SessionStore = SQLStore(f"sqlite:///{self._path}")

    def back_up(self) -> None:
        self._copy(self._path, self._saved)

    def restore(self) -> None:
        self._copy(self._saved, self._path)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)


class OfServer:
    def __init__(self, url: str) -> None:
        self._url = url
        self.store: SessionStore = SQLStore(url)

    def back_up(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS saved CASCADE")
            connection.execute("CREATE SCHEMA saved")
            for table in self._tables(connection):
                connection.execute(f"CREATE TABLE saved.{table} AS TABLE public.{table}".encode())

    def restore(self) -> None:
        with psycopg.connect(self._url) as connection:
            for table in self._tables(connection):
                connection.execute(f"DELETE FROM public.{table}".encode())
                connection.execute(f"INSERT INTO public.{table} TABLE saved.{table}".encode())

    @staticmethod
    def _tables(connection: psycopg.Connection[Any]) -> list[str]:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")
        return [row[0] for row in rows.fetchall()]


class OfRedis:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.store: SessionStore = RedisStore(server.url)
        self._saved: dict[bytes, bytes] = {}

    def back_up(self) -> None:
        with self._server.client as client:
            self._saved = {key: client.dump(key) for key in client.scan_iter()}

    def restore(self) -> None:
        with self._server.client as client:
            client.flushall()
            for key, value in self._saved.items():
                client.restore(key, 0, value)


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def restorable(request: pytest.FixtureRequest, tmp_path: Path) -> Restorable:
    """A store that is empty."""
    if request.param == "memory":
        return OfMemory()
    if request.param == "sqlite":
        return OfFile(tmp_path)
    if request.param == "postgresql":
        return OfServer(request.getfixturevalue("database"))
    request.getfixturevalue("redis_url")
    return OfRedis(request.getfixturevalue("redis_server"))


def play(story: Callable[[], Awaitable[None]], store: SessionStore | None = None) -> None:
    async def call() -> None:
        try:
            await asyncio.wait_for(story(), 60)
        finally:
            if store:
                await store.close()

    asyncio.run(call())


def core_of(store: SessionStore, session_id: str = "s") -> SessionCore:
    return SessionCore(SessionKey(session_id), store, EchoEngine())


async def run(core: SessionCore, prompt: str) -> None:
    """Run a prompt, under its own text as the run's id."""
    await core.admission.start([prompt], run_id=prompt)
    await core.reads.wait(prompt)


# Item 18: nobody writes into another's session


def test_a_session_from_before_a_restore_writes_nothing_into_a_later_one(restorable: Restorable) -> None:
    async def story() -> None:
        store = restorable.store
        await own(store, "old")
        restorable.back_up()
        alice = await own(store, "alice's", user_id="alice")
        await alice.commit("a secret", turns=[a_turn(0)], events=[an_event(1)])
        restorable.restore()
        bob = await own(store, "bob's", user_id="bob")
        assert bob.session.log != alice.session.log and bob.session.epoch == alice.session.epoch
        async with unchanged(store, bob.session.key):
            with pytest.raises(SessionFencedError):
                await alice.commit("another secret", turns=[a_turn(1)], events=[an_event(2)])
        again = await own(store, "alice's", user_id="alice")  # the id is free by now
        async with unchanged(store, alice.session.key):
            with pytest.raises(SessionFencedError):
                await alice.commit("another secret", turns=[a_turn(1)], events=[an_event(2)])
            with pytest.raises(SessionFencedError):
                await store.delete(alice.session.key, epoch=alice.session.epoch, log=alice.session.log)
        assert again.session.log not in (alice.session.log, bob.session.log)

    play(story, restorable.store)


def test_a_commit_does_not_follow_a_commit_that_a_restore_took(restorable: Restorable) -> None:
    """With blocks and without."""

    async def story() -> None:
        store = restorable.store
        for name, blocks in (("with", ["lost"]), ("without", [])):
            owner = await own(store, name)
            await owner.commit("kept")
            restorable.back_up()
            await owner.commit(*blocks, session=owner.session)
            restorable.restore()
            async with unchanged(store, name):
                with pytest.raises(SessionFencedError):
                    await owner.commit("behind a hole")
            new_owner = Owner(store, (await store.activate(SessionKey(name))).session)
            await new_owner.commit("behind what is there")
            assert (await state_of(store, name))[1] == ["kept", "behind what is there", "missing", "missing"]

    play(story, restorable.store)


def test_two_lives_of_a_session_with_one_epoch_never_mix(restorable: Restorable) -> None:
    """A restore to before the first activation, and as many commits of another owner since."""

    async def story() -> None:
        store = restorable.store
        await store.create(a_session())
        restorable.back_up()
        first = Owner(store, (await store.activate(SessionKey("s"))).session)
        await first.commit("one of the first life")
        restorable.restore()
        second = Owner(store, (await store.activate(SessionKey("s"))).session)
        await second.commit("one of the second life")
        assert (first.session.epoch, first.session.log_size) == (second.session.epoch, second.session.log_size)
        async with unchanged(store, "s"):
            with pytest.raises(SessionFencedError):
                await first.commit("two of the first life")
        await second.commit("two of the second life")

    play(story, restorable.store)


# Item 19: a lost tail bricks nothing


def test_a_session_whose_last_turns_were_removed_by_a_restore_says_so_and_continues(restorable: Restorable) -> None:
    async def story() -> None:
        store = restorable.store
        await store.create(a_session())
        core = core_of(store)
        await run(core, "kept")
        restorable.back_up()
        await run(core, "lost 1")
        await run(core, "lost 2")
        next_index = (await core.reads.session()).next_index
        last_seq = max(event.seq for event in (await core.reads.events())[0])
        restorable.restore()
        with pytest.raises(SessionRevertedError, match=r"'s'.*acknowledged turns are missing"):
            await core.admission.start(["after"], run_id="after")
        assert core.ownership.is_lost

        with pytest.raises(SessionRevertedError):
            await core.reads.wait("lost 2")
        core = core_of(store)
        assert [texts(turn.new_blocks) for turn in await core.reads.turns()] == [["kept"]]
        for asks in (core.reads.wait("lost 1"), core.reads.run("lost 2"), core.admission.cancel("stop", "lost 1")):
            with pytest.raises(SessionRevertedError):
                await asks
        await run(core, "after")
        outcome = await core.reads.wait("after")
        assert outcome.turn and texts(outcome.turn.blocks) == ["kept", "after"]
        assert outcome.run.turn_index >= next_index and outcome.run.first_seq > last_seq
        later, _, _ = await core.reads.events(last_seq)
        assert [event.kind for event in later][:2] == ["session_reverted", "run_started"]
        await core.admission.append(["more"], "more")
        await core.ownership.leave()
        await check_session(store, "s")
        again = core_of(store)
        assert [texts(turn.new_blocks) for turn in await again.reads.turns()] == [["kept"], ["after"], ["more"]]
        await again.ownership.leave()

    play(story, restorable.store)


def test_a_session_that_a_restore_took_is_not_made_anew(restorable: Restorable) -> None:
    async def story() -> None:
        store = restorable.store
        await own(store, "another")
        restorable.back_up()
        await store.create(a_session())
        core = core_of(store)
        await run(core, "lost")
        restorable.restore()
        for _ in range(2):
            with pytest.raises(SessionNotFoundError):
                await core.admission.append(["more"], "more")
        assert core.ownership.is_lost and await store.count() == 1
        await store.create(a_session(agent="new"))
        new = core_of(store)
        assert await new.reads.latest() is None and (await new.reads.session()).agent == "new"
        await new.ownership.leave()

    play(story, restorable.store)


class Slow:
    """An engine that answers once the test releases it."""

    def __init__(self) -> None:
        self.began, self.go = asyncio.Event(), asyncio.Event()

    def build(self, session: object) -> Slow:
        return self

    async def run(self, turn: Any, context: Any) -> list[Any]:
        self.began.set()
        await self.go.wait()
        return []


@pytest.mark.parametrize("is_kept", [False, True], ids=["the run is gone", "the run is there"])
def test_waiters_and_followers_get_an_error_when_the_store_is_restored(is_kept: bool) -> None:
    """Also if the store fails the first time that the session checks its row."""

    async def story() -> None:
        backup, engine = OfMemory(), Slow()
        await backup.store.create(a_session())
        core = SessionCore(SessionKey("s"), backup.store, engine)
        if not is_kept:
            await core.admission.append(["kept"], "kept")
            backup.back_up()
        await core.admission.start(["lost"], run_id="lost")
        await engine.began.wait()
        if is_kept:
            backup.back_up()
        await core.admission.append(["lost too"], "lost too")
        after = (await core.reads.events())[1]
        waits = asyncio.ensure_future(core.reads.wait("lost"))
        follows = asyncio.ensure_future(core.reads.events(after, timeout_s=60))
        await asyncio.sleep(0)
        backup.restore()
        get, failures = backup.inner.get, iter([StoreError("away")])

        async def fail(key: SessionKey) -> SessionRecord:
            for error in failures:
                raise error
            return await get(key)

        backup.inner.get = fail  # type: ignore[method-assign]
        engine.go.set()
        for acknowledged in (waits, follows):
            with pytest.raises(SessionRevertedError):
                await acknowledged
        new = core_of(backup.store)
        await new.transactor.activate()
        if is_kept:
            outcome = await new.reads.wait("lost")
            assert outcome.run.state == "interrupted"
        else:
            with pytest.raises(SessionRevertedError):
                await new.reads.wait("lost")
        await run(new, "after")
        await new.ownership.leave()
        await check_session(backup.store, "s")

    play(story)


@pytest.mark.by_turns
def test_after_any_restore_later_acknowledgements_are_stored_and_the_session_works() -> None:
    """Between any two steps, with a store that is slow and fails."""

    async def schedule(seed: int) -> None:
        world = World(seed, kinds=("answer", "tools"))
        await world.create()
        backup = OfMemory(world.store.inner)
        backup.back_up()
        world.store.fail_rate = 0.02
        acknowledged: list[str] = []
        runs: list[str] = []
        restores = 0

        async def ask(verb: str, *args: Any, **settings: Any) -> Any:
            while True:
                core = world.core
                try:
                    return await attrgetter(verb)(core)(*args, **settings)
                except (SessionFencedError, SessionRevertedError):
                    assert core.ownership.is_lost or verb == "reads.wait"  # for a run that is gone
                    if core.ownership.is_lost and world.core is core:
                        world.core = world.new_core()
                    if verb == "reads.wait":
                        return None
                except StoreError:
                    await asyncio.sleep(0.01)

        async def caller(name: str) -> None:
            for number in range(6):
                prompt = f"{name}{number}"
                await world.pause()
                restores_before = restores
                if world.random.random() < 0.4:
                    await ask("admission.append", [prompt], prompt)
                    acknowledged.extend([prompt] if restores_before == restores else [])
                else:
                    await ask("admission.start", [prompt], run_id=prompt, if_busy="enqueue")
                    acknowledged.extend([prompt] if restores_before == restores else [])
                    runs.extend([prompt] if restores_before == restores else [])
                    await ask("reads.wait", prompt)

        async def restorer() -> None:
            nonlocal restores
            for _ in range(world.random.randrange(1, 4)):
                await asyncio.sleep(world.random.random() * 0.3)
                backup.back_up()
                for _ in range(world.random.randrange(3)):
                    await asyncio.sleep(world.random.random() * 0.2)
                backup.restore()
                restores += 1
                acknowledged.clear()
                runs.clear()

        await asyncio.gather(caller("a"), caller("b"), restorer())
        world.store.fail_rate = 0.0
        await ask("admission.start", ["last"], run_id="last", if_busy="enqueue")
        assert await ask("reads.wait", "last")
        for run_id in runs:
            assert await ask("reads.wait", run_id), run_id
        turns = await check_session(world.store.inner, "session")
        stored = [text for turn in turns for text in texts(turn.new_blocks)]
        assert sorted(set(stored)) == sorted(stored)
        assert {*acknowledged, "last"} <= set(stored)

    assert spread(share(400), schedule)


# Item 20: nothing outlives its store


def test_a_host_shows_nothing_of_a_session_that_a_restore_took_in_the_next_of_its_id() -> None:
    async def story() -> None:
        backup = OfMemory()
        backup.back_up()
        hosting = Hosting(backup.store, EchoEngine())
        first = SessionRef.of(await backup.store.create(a_session()))
        await hosting.run(first, "a secret", "r1")
        backup.restore()
        second = SessionRef.of(await backup.store.create(a_session()))
        reads: list[VerbCall[Any]] = [verbs.latest(()), verbs.turns(-1, 10, ())]
        for read in [*reads, verbs.events(0.0, 0, 10), verbs.info()]:
            answer = None
            while answer is None:
                try:
                    answer = [await hosting.ask(second, read)]
                except SessionFencedError:
                    assert "s" not in hosting.residents  # callers ask again, of another core
            assert "secret" not in repr(answer)
            with pytest.raises(SessionNotFoundError):
                await hosting.ask(first, read)
        await hosting.run(second, "its own", "r2")
        with pytest.raises(SessionNotFoundError):
            await hosting.start(first, "too late", "r3")
        assert hosting.residents == ["s"]
        outcome = await hosting.ask(second, verbs.wait(None, "r2", ()))
        turn = outcome.turn.unpack(BlockCache())
        assert texts(turn.blocks) == ["its own"]

    play(story)


def test_a_caller_shows_no_cached_blocks_of_positions_that_a_restore_removed() -> None:
    """The log of the session is the same, and other blocks stand at the same places."""

    async def story() -> None:
        backup, client = OfMemory(), SessionsClient("namespace", "name", InProcess())
        hosting = Hosting(backup.store, EchoEngine())
        ref = SessionRef.of(await backup.store.create(a_session()))

        async def ask(prompt: str) -> Turn:
            cache = client.cache(ref)
            await hosting.run(ref, prompt, prompt)
            return client.unpack(await hosting.ask(ref, verbs.latest(cache.held)), cache)

        first = await ask("kept")
        backup.back_up()
        lost = await ask("lost")
        assert client.cache(ref).held == union(client.cache(ref).held, lost.record.spans)
        backup.restore()
        with pytest.raises(SessionRevertedError):
            await ask("told")
        later = await ask("new")
        assert texts(later.blocks) == ["kept", "new"] and overlap(later.record.output, lost.record.output)
        assert (texts(lost.blocks), texts(first.blocks)) == (["kept", "lost"], ["kept"])
        cache = client.cache(ref)
        packed, _ = await hosting.ask(ref, verbs.turns(-1, 10, cache.held))
        assert [texts(client.unpack(turn, cache).new_blocks) for turn in packed] == [["kept"], ["new"]]
        assert [turn.blocks for turn in packed] == [[], []]  # nothing is sent twice

    play(story)


# What is missing since the store has gone back is no corrupt record


def test_a_fork_of_blocks_that_a_restore_removed_fails_and_works_from_an_earlier_turn() -> None:
    async def story() -> None:
        backup = OfMemory()
        hosting = Hosting(backup.store, EchoEngine())
        ref = SessionRef.of(await backup.store.create(a_session()))
        await hosting.run(ref, "kept", "r1")
        backup.back_up()
        await hosting.run(ref, "lost", "r2")
        backup.restore()
        with pytest.raises(SessionRevertedError):
            await hosting.ask(ref, verbs.fork(None, "f"))
        fork = await hosting.ask(ref, verbs.fork(None, "f"))
        await hosting.run(SessionRef.of(fork), "new", "r3")

    play(story)


class RestoresAtBlocks(InMemoryStore):
    """Restores the backup at the first read of blocks after it."""

    def __init__(self) -> None:
        super().__init__()
        self.on_read: Callable[[], None] | None = None

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        restore, self.on_read = self.on_read, None
        if restore:
            restore()
        return await super().blocks(spans)


@pytest.mark.parametrize("is_left", [True, False])
def test_a_session_that_is_loaded_while_the_store_goes_back_is_gone_or_as_it_was(is_left: bool) -> None:
    async def story() -> None:
        store = RestoresAtBlocks()
        backup = OfMemory(store)
        if not is_left:
            backup.back_up()
        await store.create(a_session())
        await run(core_of(store), "first")
        if is_left:
            backup.back_up()
        await run(core_of(store), "second")
        store.on_read = backup.restore
        core = core_of(store)
        with pytest.raises(SessionFencedError if is_left else SessionNotFoundError):
            await run(core, "lost")
        assert core.ownership.is_lost  # so another core is asked
        if is_left:
            again = core_of(store)
            await run(again, "third")
            latest = await again.reads.latest()
            assert latest and texts(latest.blocks) == ["first", "third"]

    play(story)


class RestoresAtRuns(InMemoryStore):
    """Restores the backup after the first read of runs that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.on_read: Callable[[], None] | None = None

    async def runs(self, key: SessionKey, **page: Any) -> list[RunRecord]:
        records = await super().runs(key, **page)
        restore, self.on_read = self.on_read, None
        if restore:
            restore()
        return records


def test_an_export_fails_as_changed_if_the_store_is_restored_meanwhile() -> None:
    async def story() -> None:
        store = RestoresAtRuns()
        backup = OfMemory(store)
        await store.create(a_session())
        await run(core_of(store), "kept")
        backup.back_up()
        core = SessionCore(SessionKey("s"), store, Slow())
        await core.admission.start(["lost"], run_id="lost")
        await core.transactor.activate()
        store.on_read = backup.restore
        lines: list[str] = []
        with pytest.raises(SessionChangedError):
            await export_session(store, SessionKey("s"), lines.append)
        await export_session(store, SessionKey("s"), lines.append)

    play(story)


def test_a_session_without_a_process_is_read_as_restored() -> None:
    async def story() -> None:
        store = RestoresAtBlocks()
        backup = OfMemory(store)
        ref = SessionRef.of(await store.create(a_session()))
        await run(core_of(store), "kept")
        backup.back_up()
        await run(core_of(store), "lost")
        store.on_read = backup.restore
        turns, _ = await Hosting(store, EchoEngine()).ask(ref, verbs.turns(-1, 10, ()))
        assert [texts(turn.unpack(BlockCache()).new_blocks) for turn in turns] == [["kept"]]

    play(story)
