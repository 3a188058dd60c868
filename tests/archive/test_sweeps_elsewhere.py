"""Sweeps of sessions of which an event store and memories have something, too: many together, whatever happens."""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from stored.open_stores import own
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.memory.session_memories import SessionMemories
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import LongTermMemoryError, SessionFencedError, SessionNotFoundError, StoreError
from turnwise.memories import LexicalMemory, WorkingMemory
from turnwise.memory.archive.expiry import TOGETHER, sweep_unchanged
from turnwise.memory.archive.export import import_session
from turnwise.memory.conversation.events import UnknownEvent
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.longterm.base import Scope
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.in_memory import InMemoryStore

NOW = 110.0


class KilledError(BaseException):
    """The process is gone: whatever it does from then on does nothing."""


class World:
    """A store, an event store and a memory, which dawdle, may fail, and are away once their process is killed."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.store, self.history = InMemoryStore(clock=lambda: NOW), InMemoryHistory()
        self.remembered: set[SessionKey] = set()
        self.calls: list[str] = []
        self.kill_at: int | None = None
        self.fails = 0.0
        """How likely a memory, or the event store, fails."""

    async def step(self, name: str) -> None:
        for _ in range(self.dice.randrange(4)):
            await asyncio.sleep(0)
        self.calls.append(name)
        if self.kill_at is not None and len(self.calls) > self.kill_at:
            raise KilledError

    def wrapped(self, inner: Any, *verbs: str) -> Any:
        """Return what stands for a store of the process that sweeps; it has the same state."""

        async def call(verb: str, *args: Any, **options: Any) -> Any:
            await self.step(verb)
            if verb == "delete_sessions" and self.dice.random() < self.fails:
                raise StoreError("the event store is away")
            done = await getattr(inner, verb)(*args, **options)
            await self.step(f"{verb} is done")
            return done

        def bound(verb: str) -> Any:
            return staticmethod(lambda *args, **options: call(verb, *args, **options))

        own = {verb: bound(verb) for verb in verbs} | {"__init__": lambda _: None}
        wrapped = type("Wrapped", (type(inner),), own)()
        vars(wrapped).update(vars(inner))
        return wrapped

    async def forget(self, scope: Scope) -> int:
        await self.step("forget")
        if self.dice.random() < self.fails:
            raise LongTermMemoryError("the memory is away")
        self.remembered.discard(SessionKey(str(scope.session_id), scope.user_id))
        await self.step("forget is done")
        return 1

    async def fill(self, count: int) -> list[SessionRecord]:
        sessions = []
        for number in range(count):
            session = await own(self.store, f"s{number}", ttl_s=10.0, updated_at=100.0, seq=1)
            sessions.append(session)
            about: dict[str, Any] = {"session_id": session.session_id, "user_id": session.user_id}
            await self.history.append(session.key, [UnknownEvent(stored_kind="x", seq=1, at=1.0, **about)])
            self.remembered.add(session.key)
        return sessions

    async def sweep(self, archive: Path | None = None) -> Collection[SessionKey]:
        """Sweep what has expired, as a process does; return what it says was deleted."""
        store = self.wrapped(self.store, "turns", "end_unchanged", "delete_unchanged", "commit")
        history = self.wrapped(self.history, "delete_sessions")
        memories = SessionMemories(memories=[self], notes=None, scopes_of=lambda session: [scope(session)])  # type: ignore[list-item]
        page = await self.store.expired(NOW, limit=1000)
        swept, _ = await sweep_unchanged(store, [*page], history, memories.forget, archive=archive)
        return swept.deleted

    async def use(self, key: SessionKey) -> bool:
        """Go on with a session, as the process does that a caller asks; return whether that was stored."""
        try:
            session = (await self.store.activate(key)).session
            await asyncio.sleep(0)
            if session.status == "ended":
                return False
            await self.store.commit(key, session.epoch, Commit(session=session.committed(updated_at=105.0)))
        except (SessionFencedError, SessionNotFoundError):
            return False
        return True


def scope(session: SessionRecord) -> Scope:
    return Scope(user_id=session.user_id, session_id=session.session_id)


async def in_full(world: World) -> None:
    """Check that each session that somebody can go on with has all that it had."""
    for session in await world.store.query(limit=1000):
        if session.status == "active":
            assert await world.history.last_seq(session.key) == 1, session.key


KINDS = ["run_started", "run_completed"]
"""The kinds of the events that an archive has of an echo."""


def lines_in(folder: Path) -> list[list[str]]:
    """Return the lines of each archive in a folder."""
    return [path.read_text().splitlines() for path in folder.glob("*.jsonl")]


async def all_archived(world: World, sessions: Sequence[SessionRecord], folder: Path) -> None:
    """Check that each of these sessions of which something has gone has a whole archive."""
    store, archived = InMemoryStore(), set[SessionKey]()
    for lines in lines_in(folder):
        session = await import_session(store, lines)
        assert session.status == "active" and len(await store.events(session.key)) == 1
        archived.add(session.key)
    there = {session.key for session in await world.store.query(limit=1000)}
    for session in sessions:
        if session.key not in there or not await world.history.last_seq(session.key):
            assert session.key in archived


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("seed", range(60))
async def test_whatever_happens_during_a_sweep_no_session_is_used_without_its_events(
    seed: int, archive: bool, tmp_path: Path
) -> None:
    """Callers open sessions meanwhile, parts fail, and the process may be killed at any step."""
    folder = tmp_path if archive else None
    dice = random.Random(seed)
    world = World(dice)
    sessions = await world.fill(12)
    world.fails = dice.choice([0.0, 0.0, 0.2])
    world.kill_at = dice.choice([None, dice.randrange(60 if archive else 40)])
    used: set[SessionKey] = set()

    async def callers() -> None:
        for session in dice.sample(sessions, 6):
            for _ in range(dice.randrange(12)):
                await asyncio.sleep(0)
            if await world.use(session.key):
                used.add(session.key)

    outcomes = await asyncio.gather(world.sweep(folder), callers(), return_exceptions=True)
    was_killed = world.kill_at is not None and len(world.calls) > world.kill_at
    assert isinstance(outcomes[0], KilledError if was_killed else tuple) and outcomes[1] is None
    await in_full(world)
    if folder:
        await all_archived(world, sessions, folder)
    for key in used:
        session = await world.store.get(key)
        assert session.status == "active" and session.updated_at == 105.0
    world.kill_at, world.fails = None, 0.0
    await world.sweep(folder)
    await in_full(world)
    if folder:
        await all_archived(world, sessions, folder)
    left = {session.key for session in await world.store.query(limit=1000)}
    assert left == used, "all others have gone"
    assert {session.key for session in sessions if await world.history.last_seq(session.key)} == used


async def test_sessions_are_deleted_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(random.Random(0))
    await world.fill(2 * TOGETHER + 1)
    assert len(await world.sweep()) == 2 * TOGETHER + 1
    for verb in ("end_unchanged", "delete_sessions", "delete_unchanged"):
        assert world.calls.count(verb) == 3, verb
    assert not world.remembered and await world.store.count() == 0


async def test_a_group_that_an_event_store_cannot_delete_is_tried_again_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(random.Random(0))
    await world.fill(20)
    delete = world.history.delete_sessions

    async def in_time(keys: Collection[SessionKey]) -> None:
        if len(keys) > 5:
            raise StoreError("statement timeout")
        await delete(keys)

    monkeypatch.setattr(world.history, "delete_sessions", in_time)
    assert len(await world.sweep()) == 20 and await world.store.count() == 0


async def test_what_cannot_be_deleted_elsewhere_stays_as_it_was() -> None:
    world = World(random.Random(0))
    (first, second) = await world.fill(2)
    await world.store.commit(second.key, 1, Commit(session=second.committed(status="ended")))
    world.fails = 1.0
    assert not await world.sweep()
    stored = [await world.store.get(session.key) for session in (first, second)]
    assert [session.status for session in stored] == ["active", "ended"]
    assert {session.updated_at for session in stored} == {100.0}, "so that the next sweep finds them"
    await in_full(world)


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    config = SessionConfig(sweep_every_s=None)
    return {"engine": EchoEngine(), "placement": InProcess(), "config": config, **more}


def elsewhere(folder: Path) -> dict[str, Any]:
    """Return settings of a manager that keeps events, memories and notes in files of their own."""
    return {
        "history_store": f"sqlite:///{folder}/events.db",
        "memory": [LexicalMemory(folder / "items.db")],
        "working_memory": WorkingMemory(f"sqlite:///{folder}/notes.db", per="session"),
    }


KILLED = """
import os, signal, sys
from pathlib import Path
from turnwise.actors.memory import session_memories
from turnwise.memory.archive import expiry
from turnwise import SessionManager
sys.path.insert(0, sys.argv[4])
from test_sweeps_elsewhere import elsewhere, settings

folder, place, archive = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
owner = session_memories.SessionMemories if place == "forget" else expiry
inner = getattr(owner, place)

async def killed(*args):
    await inner(*args)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, place, killed)
manager = SessionManager(f"sqlite:///{folder}/a.db", **settings(folder, **elsewhere(folder)))
manager.sweep(archive or None, memory=True)
"""


def archives_in(folder: Path) -> dict[str, list[str]]:
    """Return the kinds of the events of each session that has an archive in the folder; each archive is whole."""

    async def kinds_of(lines: list[str]) -> tuple[str, list[str]]:
        store = InMemoryStore()
        session = await import_session(store, lines)
        assert session.status == "active", "as it was before the sweep"
        return session.session_id, [event.kind for event in await store.events(session.key)]

    return dict(asyncio.run(kinds_of(lines)) for lines in lines_in(folder))


@pytest.mark.by_turns
@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(
    "place", ["_archived_together", "end_unchanged", "forget", "delete_sessions", "delete_unchanged"]
)
def test_a_kill_at_each_step_leaves_what_the_next_sweep_deletes(place: str, archive: bool, tmp_path: Path) -> None:
    """Where there is a folder, each session has a whole archive there before anything of it goes."""
    if place == "_archived_together" and not archive:
        return
    url, folder = f"sqlite:///{tmp_path}/a.db", tmp_path / "kept" if archive else None
    with SessionManager(url, **settings(tmp_path, **elsewhere(tmp_path))) as manager:
        for name in "abc":
            session = manager.open(name, ttl_s=0.0)
            session.run("Ada keeps bees.").wait()
            session.memory.merge_notes("Ada")
        manager.open("stays").run("Ada keeps goats.").wait()
    command = [sys.executable, "-c", KILLED, str(tmp_path), place, str(folder or ""), str(Path(__file__).parent)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    if folder:
        assert archives_in(folder) == dict.fromkeys("abc", KINDS)
    with SessionManager(url, **settings(tmp_path, **elsewhere(tmp_path))) as manager:
        assert manager.count() == (1 if place == "delete_unchanged" else 4)
        swept = manager.sweep(folder, memory=True)
        assert not swept.failed and not swept.used and manager.count() == 1
        stays = manager.get("stays")
        assert [event.kind for event in stays.events()][-1] == "run_completed"
        texts = [item.text for item in stays.memory.recall("bees goats")]
        assert len(texts) == 1 and "goats" in texts[0]
    if folder:
        assert archives_in(folder) == dict.fromkeys("abc", KINDS)


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("apart", [["history_store"], ["memory"], ["working_memory"], ["history_store", "memory"]])
def test_a_manager_asks_no_process_for_sessions_that_none_has_loaded(
    apart: Sequence[str], archive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept" if archive else None
    more = {name: value for name, value in elsewhere(tmp_path).items() if name in apart}
    with SessionManager(f"sqlite:///{tmp_path}/a.db", **settings(tmp_path, **more)) as manager:
        for name in "abc":
            manager.open(name, ttl_s=0.0).run("Ada keeps bees.").wait()
    with SessionManager(f"sqlite:///{tmp_path}/a.db", **settings(tmp_path, **more)) as manager:
        manager.open("loaded", ttl_s=0.0).run("Ada rows.").wait()
        asked = list[str]()
        monkeypatch.setattr("turnwise.actors.client.blocking.expiry._ask", noting(asked))
        swept = manager.sweep(folder, memory=True)
        assert sorted(key.session_id for key in swept.deleted) == ["a", "b", "c", "loaded"]
        assert asked == ["loaded"] and manager.count() == 0
    if folder:
        assert archives_in(folder) == dict.fromkeys(["a", "b", "c", "loaded"], KINDS)


def noting(asked: list[str]) -> Callable[..., Any]:
    from turnwise.actors.client.blocking import expiry

    ask = expiry._ask  # noqa: SLF001 - what asks a process

    def noted(client: Any, store: Any, session: SessionRecord, **options: Any) -> Any:
        asked.append(session.session_id)
        return ask(client, store, session, **options)

    return noted
