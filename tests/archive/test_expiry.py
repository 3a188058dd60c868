"""Case 48: expired sessions are swept, and sessions in use are kept."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from stored.open_stores import closing, own
from turnwise.actors.client import expiry as live_expiry
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess, Packed
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state import journal
from turnwise.cli import app
from turnwise.cli.exporting import archive as archive_commands
from turnwise.errors import (
    CorruptRecordError,
    InvalidInputError,
    SessionBusyError,
    SessionChangedError,
    SessionLostError,
    SessionNotFoundError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.archive import expiry
from turnwise.memory.archive.expiry import Swept, archived, sweep
from turnwise.memory.archive.export import import_session
from turnwise.memory.conversation.events import UnknownEvent
from turnwise.memory.conversation.runs import RunRecord, RunState
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.stores.base import Activation, Commit, Page
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore

NOW = 110.0


def play(story: Awaitable[Any]) -> Any:
    async def call() -> Any:
        return await story

    return asyncio.run(call())


async def put(store: Any, session_id: str, ttl_s: float | None = 10.0, **values: Any) -> SessionRecord:
    """Create a session that was last used at 100 and owned once; return its row."""
    return await own(store, session_id, ttl_s=ttl_s, updated_at=100.0, **values)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and ".db" not in path.name]


async def test_a_sweep_exports_and_deletes_expired_sessions_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a page, and ids that are no names of files."""
    monkeypatch.setattr(expiry, "PAGE", 10)
    names = [
        "plain",
        "a/b",
        "../up",
        "..",
        "user.1",
        "ü" * 200,
        "😀" * 190,
        "A b",
        *(f"s{index}" for index in range(16)),
    ]

    store, history = SQLStore(f"sqlite:///{tmp_path}/store.db"), InMemoryHistory()
    for name in names:
        await put(store, name, created_at=1.5, seq=1, user_id=f"user of {name}"[:256])
        await history.append(
            SessionKey(name, f"user of {name}"[:256]),
            [UnknownEvent(stored_kind="x", session_id=name, user_id=f"user of {name}"[:256], seq=1, at=1.0)],
        )
    await put(store, "stays", None)
    await put(store, "later", 10.5)
    folder = tmp_path / "kept" / "here"
    swept_keys = tuple(SessionKey(name, f"user of {name}"[:256]) for name in names)
    assert await sweep(store, NOW, folder, history) == Swept(deleted=swept_keys, archived=swept_keys)
    assert [session.session_id for session in await store.query()] == ["later", "stays"]
    assert [await history.last_seq(key) for key in swept_keys] == [0] * len(names)
    assert len(files(tmp_path)) == len(names)
    for path in files(tmp_path):
        assert path.parent == folder and path.name.endswith("@1500000.jsonl")
        with pytest.raises(SessionNotFoundError):
            await store.get(swept_keys[0])
        await import_session(store, path.read_text().splitlines(), session_id=f"{len(path.name)} {path.name}"[:99])
    assert await store.count() == len(names) + 2
    assert await store.count(user_id="user of ../up") == 1
    assert await sweep(store, NOW - 0.1) == Swept()
    await store.close()


class Tiring(InMemoryStore):
    """Deletes so many sessions in a transaction in time, and some never."""

    def __init__(self, most: int, never: Sequence[str] = ()) -> None:
        super().__init__()
        self.most, self.never = most, never
        self.sizes: list[int] = []

    async def delete_unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionKey]:
        self.sizes.append(len(sessions))
        if len(sessions) > self.most or any(session.session_id in self.never for session in sessions):
            raise StoreError("statement timeout")
        return await super().delete_unchanged(sessions)

    async def delete(self, key: SessionKey, **options: Any) -> int:
        if key.session_id in self.never:
            raise StoreError("statement timeout")
        return await super().delete(key, **options)


async def test_a_transaction_that_takes_too_long_is_tried_again_in_halves() -> None:
    names = [f"s{number:03}" for number in range(250)]
    store = Tiring(10, names[120:122])
    for name in names:
        await put(store, name)
    swept = await sweep(store, NOW)
    assert sorted(swept.deleted) == sorted(keys(*names[:120], *names[122:]))
    assert {key.session_id for key in swept.failed} == {*names[120:122]} and "timeout" in str(swept.failed)
    assert store.sizes[0] == 100 and max(store.sizes) == 100


async def test_a_sweep_does_not_try_for_ever_to_delete_many_sessions_at_once() -> None:
    names = [f"s{number:03}" for number in range(100)]
    store = Tiring(0, names[10:])
    for name in names:
        await put(store, name)
    swept = await sweep(store, NOW)
    assert store.sizes.count(1) == expiry.MOST_FAILED
    assert sorted(swept.deleted) == sorted(keys(*names[:10])) and len(swept.failed) == 90


def test_the_command_line_sweeps_again_and_again_until_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, pauses = f"sqlite:///{tmp_path}/store.db", [0.0]

    async def fill(name: str) -> None:
        async with closing(SQLStore(url)) as store:
            await put(store, name)

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 4:
            raise KeyboardInterrupt
        await fill(f"later-{len(pauses)}")

    play(fill("first"))
    monkeypatch.setattr(archive_commands, "asyncio", SimpleNamespace(sleep=sleep))
    swept = CliRunner().invoke(app, ["sweep", url, "--every", "3600", "--json"])
    assert pauses[1:] == [3600.0] * 3 and swept.exit_code != 0
    lines = [json.loads(line)["deleted"] for line in swept.stdout.splitlines()]
    assert [[session["session_id"] for session in line] for line in lines] == [["first"], ["later-2"], ["later-3"]]


@pytest.mark.parametrize("state", ["queued", "running", "awaiting_approval"])
async def test_a_session_with_an_open_run_is_not_swept(state: RunState, tmp_path: Path) -> None:
    store = InMemoryStore()
    session = await put(store, "s")
    run = RunRecord(run_id="r", session_id="s", turn_index=0, state=state, first_seq=1, created_at=1.0)
    session = session.committed()
    await store.commit(SessionKey("s"), 1, Commit(session=session, new_run=run))
    assert await sweep(store, NOW, tmp_path) == Swept(busy=keys("s")) and files(tmp_path) == []
    session = (await store.get(SessionKey("s"))).committed()
    await store.commit(SessionKey("s"), 2, Commit(session=session, runs=[replace(run, state="completed")]))
    assert await sweep(store, NOW, tmp_path) == Swept(deleted=keys("s"), archived=keys("s"))


def keys(*names: str) -> tuple[SessionKey, ...]:
    """Return the keys of the default user's sessions."""
    return tuple(map(SessionKey, names))


class Rival(InMemoryStore):
    """Does something of another's before a verb."""

    before: str = ""
    deletes_unchanged = False
    """Whether it deletes in groups."""
    act: Callable[[InMemoryStore], Awaitable[object]]
    expects: Callable[[], object]

    async def rival(self, verb: str) -> None:
        if self.before == verb:
            self.before = ""
            await self.act(self)

    async def activate(self, *args: Any, **kwargs: Any) -> Activation:
        await self.rival("activate")
        return await super().activate(*args, **kwargs)

    async def delete(self, key: SessionKey, *, epoch: int | None = None, log: str | None = None) -> int:
        await self.rival("delete")
        return await super().delete(key, epoch=epoch, log=log)

    async def delete_unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionKey]:
        await self.rival("delete_unchanged")
        return await super().delete_unchanged(sessions)


@pytest.mark.parametrize("before", ["activate", "delete", "delete_unchanged"])
@pytest.mark.parametrize("change", ["opens", "commits"])
async def test_a_session_that_is_used_during_a_sweep_is_kept(before: str, change: str, tmp_path: Path) -> None:
    """And no file says that it was swept."""

    store = Rival()
    store.deletes_unchanged = before == "delete_unchanged"
    session = await put(store, "s")

    async def act(_: InMemoryStore) -> None:
        if change == "opens":
            await InMemoryStore.activate(store, SessionKey("s"))
        elif before == "activate":
            await store.commit(SessionKey("s"), 1, Commit(session=session.committed(updated_at=105.0)))
        else:
            owner = (await InMemoryStore.activate(store, SessionKey("s"))).session
            await store.commit(SessionKey("s"), owner.epoch, Commit(session=owner.committed(updated_at=105.0)))

    store.before, store.act = before, act
    assert await sweep(store, NOW, tmp_path) == Swept(used=keys("s")) and files(tmp_path) == []
    assert (await store.get(SessionKey("s"))).session_id == "s" and store.before == ""


@pytest.mark.parametrize("before", ["activate", "delete_unchanged"])
async def test_deleting_a_session_during_a_sweep_does_no_harm(before: str, tmp_path: Path) -> None:
    store = Rival()
    store.deletes_unchanged = before == "delete_unchanged"
    await put(store, "s")
    store.before, store.act = before, lambda store: InMemoryStore.delete(store, SessionKey("s"))
    assert await sweep(store, NOW, tmp_path) == Swept()


@pytest.mark.parametrize(("before", "names"), [("delete", "s"), ("delete_unchanged", "stu")])
async def test_archives_are_in_their_folder_before_a_session_is_deleted(
    before: str, names: str, tmp_path: Path
) -> None:
    store = Rival()
    store.deletes_unchanged = before == "delete_unchanged"
    for name in names:
        await put(store, name, created_at=2.0)
    seen: list[str] = []

    async def look(_: InMemoryStore) -> None:
        for path in sorted(files(tmp_path)):
            seen.append(path.name)
            await import_session(InMemoryStore(), path.read_text().splitlines())

    store.before, store.act = before, look
    assert (await sweep(store, NOW, tmp_path)).archived == keys(*names)
    assert seen == [f"{name}@default@2000000.jsonl" for name in names]
    assert seen == [path.name for path in sorted(files(tmp_path))]


async def test_sessions_with_archives_are_deleted_in_groups_and_one_that_cannot_be_exported_stays(
    tmp_path: Path,
) -> None:
    """Agents go with their callers, which are exported once more by themselves."""
    names = [f"s{number:03}" for number in range(expiry.TOGETHER + 2)]
    store = Unreadable(expiry.TOGETHER)
    for name in names:
        await put(store, name)
    damaged = await put(store, "damaged")
    await put(store, "agent", called_by="s000")
    swept = await sweep(store, NOW, tmp_path)
    assert {*swept.deleted} == {*swept.archived} == {*keys(*names, "agent")}
    assert [*swept.failed] == [damaged.key] and await store.count() == 1
    assert store.sizes == [expiry.TOGETHER, 2]
    assert len(files(tmp_path)) == len(names) + 1


async def test_of_two_sweeps_with_archives_one_deletes_and_both_leave_the_file(tmp_path: Path) -> None:
    """The second puts its file in the place of the first, which then deletes the session."""
    store, first_has_its_file, second_has_its_file = Rival(), asyncio.Event(), asyncio.Event()
    store.deletes_unchanged = True
    await put(store, "s")

    async def wait_for_the_second(_: InMemoryStore) -> None:
        first_has_its_file.set()
        await second_has_its_file.wait()

    async def wait_for_the_first(_: InMemoryStore) -> None:
        second_has_its_file.set()
        await asyncio.wait({first})

    store.before, store.act = "delete_unchanged", wait_for_the_second
    first = asyncio.ensure_future(sweep(store, NOW, tmp_path))
    await first_has_its_file.wait()
    store.before, store.act = "delete_unchanged", wait_for_the_first
    assert await sweep(store, NOW, tmp_path) == Swept()
    assert first.result() == Swept(deleted=keys("s"), archived=keys("s"))
    (path,) = files(tmp_path)
    await import_session(store, path.read_text().splitlines())


@pytest.mark.parametrize("together", [True, False])
async def test_a_sweep_that_stood_still_does_not_replace_a_later_archive(
    together: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its last check and its file's name, the session is used, expires again and is swept by another."""
    store, put_files = InMemoryStore(), expiry._put  # noqa: SLF001 - where the sweep stands still
    monkeypatch.setattr(expiry, "deletes_unchanged", lambda _: together)
    session = await put(store, "s")

    async def stand_still(written: Any) -> Any:
        monkeypatch.setattr(expiry, "_put", put_files)
        owned = (await store.activate(session.key)).session
        await store.commit(session.key, owned.epoch, Commit(session=owned.committed(title="Oslo", updated_at=105.0)))
        assert (await sweep(store, NOW + 10, tmp_path)).archived == keys("s")
        return await put_files(written)

    monkeypatch.setattr(expiry, "_put", stand_still)
    assert await sweep(store, NOW, tmp_path) == Swept()
    (path,) = files(tmp_path)
    assert (await import_session(store, path.read_text().splitlines())).title == "Oslo"


class Asked:
    """A cluster client for sessions that all have a process, which answers with an error."""

    portal = None
    has_files = False

    def __init__(self, store: InMemoryStore, error: TurnwiseError, *, deletes: bool) -> None:
        self.store, self.error, self.deletes = store, error, deletes

    def open_history(self) -> None:
        return None

    @property
    def processes(self) -> "Asked":
        return self

    async def loaded(self, keys: Sequence[SessionKey]) -> Sequence[SessionKey]:
        return keys


class Host:
    """The process of one of these sessions."""

    def __init__(self, client: Asked, ref: SessionRef) -> None:
        self._client, self._ref = client, ref

    async def delete(self, **_: object) -> None:
        if self._client.deletes:
            await self._client.store.delete(self._ref.key)
        raise self._client.error


@pytest.mark.parametrize("error", [StoreError("away"), SessionLostError("s", "killed"), SessionChangedError("s")])
async def test_the_file_of_a_session_that_may_be_deleted_is_kept(
    error: TurnwiseError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed, or its store went away, between the deletion and the answer."""
    monkeypatch.setattr(live_expiry, "AsyncSessionHost", Host)
    store = InMemoryStore()
    await put(store, "s")
    client: Any = Asked(store, error, deletes=True)
    swept = await live_expiry.sweep(client, store, tmp_path)
    assert swept.deleted == () and await store.count() == 0
    (path,) = files(tmp_path)
    await import_session(store, path.read_text().splitlines())
    client = Asked(store, SessionBusyError("s", "run"), deletes=False)
    assert await live_expiry.sweep(client, store, tmp_path) == Swept(busy=keys("s"))
    assert files(tmp_path) == [], "this one is known to be there"


class Listed(InMemoryStore):
    """A store that lists a session as it was when the sweep asked for it."""

    def __init__(self, session: SessionRecord) -> None:
        super().__init__()
        self.session = session

    async def expired(self, now: float, *, cursor: str | None = None, limit: int = 100) -> Page[SessionRecord]:
        return Page((self.session,), None)


async def test_a_session_with_a_process_that_is_used_during_a_sweep_is_kept() -> None:
    async with AsyncSessionManager("memory://swept", engine=EchoEngine(), placement=InProcess()) as manager:
        session = await manager.open("s", ttl_s=0)
        await (await session.run("before"))
        listed = (await session.info()).session
        await (await session.run("after"))
        swept = await live_expiry.sweep(
            manager._client,  # noqa: SLF001 - the manager has one store only, and lists it right
            Listed(listed),
            None,
        )
        assert swept == Swept(used=keys("s")) and len(await session.turns()) == 2


@pytest.mark.parametrize("is_whole", [True, False])
async def test_concurrent_sweeps_do_not_delete_each_others_files(is_whole: bool, tmp_path: Path) -> None:
    """The first has its file, the second puts its own in its place; then the first is refused, and the second not."""

    store, turn = Rival(), asyncio.Event()
    await put(store, "s")
    first_has_its_file = asyncio.Event()

    async def wait_for_the_second(_: InMemoryStore) -> None:
        first_has_its_file.set()
        await turn.wait()

    async def wait_for_the_first(_: InMemoryStore) -> None:
        turn.set()
        await asyncio.wait({first})

    store.before, store.act = "delete", wait_for_the_second
    first = asyncio.ensure_future(sweep(store, NOW, tmp_path))
    await first_has_its_file.wait()
    if not is_whole:
        (path,) = files(tmp_path)
        path.write_text("")  # so that the second has to write its own
    store.before, store.act = "delete", wait_for_the_first
    done = await sweep(store, NOW, tmp_path) + first.result()
    assert first.result().used == keys("s")
    assert done.deleted == done.archived == keys("s") and await store.count() == 0
    (path,) = files(tmp_path)
    await import_session(store, path.read_text().splitlines())


async def test_a_deletion_that_fails_halfway_keeps_the_complete_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Case 48: events that were in the history alone are in no store when the sweep comes again."""
    monkeypatch.setattr(journal, "DELETE_EVERY", 1)

    store, history = Rival(), InMemoryHistory()
    await store.create(SessionRecord(session_id="s", ttl_s=10.0, updated_at=100.0))
    core = SessionCore(SessionKey("s"), store, EchoEngine(), history=history, clock=lambda: 100.0)
    for name in "abc":
        await core.admission.start([name], run_id=name)
        await core.reads.wait(name)
        while await history.last_seq(SessionKey("s")) < (await store.events(SessionKey("s")))[-1].seq:
            await asyncio.sleep(0)

    async def fail(_: InMemoryStore) -> None:
        raise StoreError("away")

    store.before, store.act = "delete", fail
    record = await store.get(SessionKey("s"))
    file = await archived(store, record, tmp_path, history)
    assert file
    path, whole = file.path, file.path.read_text()
    with pytest.raises(StoreError, match="away"):
        await core.forgetting.delete(memory=False, updated_at=record.updated_at)
    assert await history.last_seq(SessionKey("s")) == 0
    assert await archived(store, record, tmp_path, history) and files(tmp_path) == [path]
    assert path.read_text() == whole and whole.count('"event"') == 6
    path.write_text(whole[:20])
    await archived(store, record, tmp_path, history)
    assert path.read_text().count('"event"') < 6, "one that cannot be read is written again"


async def test_a_session_that_cannot_be_exported_is_kept_and_others_are_swept(tmp_path: Path) -> None:
    store = SQLStore(f"sqlite:///{tmp_path}/store.db")
    for name in ("a", "bad", "c"):
        session = await put(store, name)
        await store.commit(
            SessionKey(name), 1, Commit(session=session.committed(log_size=1), blocks=['{"kind":"text"}'])
        )
    connection = sqlite3.connect(tmp_path / "store.db")
    with connection:
        connection.execute("DELETE FROM turnwise_blocks WHERE log = (SELECT key FROM turnwise_sessions LIMIT 1, 1)")
    connection.close()
    folder = tmp_path / "folder"
    swept = await sweep(store, NOW, folder)
    assert (
        swept.deleted == swept.archived == keys("a", "c") and "corrupt record block" in swept.failed[SessionKey("bad")]
    )
    assert len(files(folder)) == 2
    (tmp_path / "no folder").write_text("x")
    swept = await sweep(store, NOW, tmp_path / "no folder")
    assert swept.deleted == () and "was not deleted" in swept.failed[SessionKey("bad")]
    assert (await sweep(store, NOW)).deleted == keys("bad")
    await store.close()


async def test_a_refresh_counts_as_use_and_deletes_can_require_no_change() -> None:
    store, times = InMemoryStore(), iter(range(1000, 2000))
    await put(store, "s")
    core = SessionCore(SessionKey("s"), store, EchoEngine(), clock=lambda: float(next(times)))
    await core.row.refresh()
    first = (await store.get(SessionKey("s"))).updated_at
    assert first >= 1000 and await sweep(store, first + 9.9) == Swept()
    await core.admission.start(["hello"], run_id="r")
    await core.reads.wait("r")
    assert (await store.get(SessionKey("s"))).ttl_s == 10.0
    with pytest.raises(SessionChangedError, match="'s'"):
        await core.forgetting.delete(updated_at=first)
    fork = await core.forking.fork(None, "f")
    assert fork.ttl_s == 10.0
    await core.forgetting.delete(updated_at=(await store.get(SessionKey("s"))).updated_at)
    assert [session.session_id for session in await store.query()] == ["f"]


def test_a_sweep_of_a_manager_keeps_sessions_in_use(
    make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    with make_ray_manager(placement=Packed(hosts=1)) as manager:
        for bad in (-1, float("nan"), float("inf"), "1"):
            with pytest.raises(InvalidInputError, match="ttl_s"):
                manager.open("bad", ttl_s=bad)  # type: ignore[arg-type]
        done, runs = manager.open("done", ttl_s=0), manager.open("runs", ttl_s=0)
        long = manager.open("long", ttl_s=3600)
        for session in (done, long, manager.open("never")):
            session.run("hello").wait()
        run = runs.run("slow 10000")
        swept = manager.sweep(tmp_path / "kept")
        assert swept == Swept(deleted=keys("done"), archived=keys("done"), busy=keys("runs"))
        with pytest.raises(SessionNotFoundError):
            done.run("are you there")
        assert long.run("hello").wait().text == "hello"
        before = long.info().session.updated_at
        long.refresh()
        assert long.info().session.updated_at > before
        run.cancel()
        assert manager.sweep() == Swept(deleted=keys("runs"))
        assert manager.count() == 2 and len(files(tmp_path / "kept")) == 1

    async def story() -> None:
        async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()) as manager:
            store = SQLStore(f"sqlite:///{tmp_path}/chats.db")
            await put(store, "of a process that is gone", 1.0)
            await store.close()
            session = await manager.open("new", ttl_s=3600)
            await session.refresh()
            assert (await session.info()).session.ttl_s == 3600
            assert await manager.sweep() == Swept(deleted=keys("of a process that is gone"))
            await session.delete()

    play(story())


def test_the_command_line_imports_a_session_as_another_users(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"

    async def fill() -> None:
        async with closing(SQLStore(url)) as store:
            await put(store, "s", 3600.0, user_id="sarah")

    async def users() -> list[str]:
        async with closing(SQLStore(url)) as store:
            return sorted(session.user_id for session in await store.query() if session.session_id == "s")

    play(fill())
    archive = CliRunner().invoke(app, ["export", url, "s", "--user", "sarah"]).output
    imported = CliRunner().invoke(app, ["import", url, "-", "--user", "bob", "--json"], input=archive)
    assert imported.exit_code == 0, imported.output
    assert json.loads(imported.output) == {"session_id": "s", "user_id": "bob"}
    assert play(users()) == ["bob", "sarah"]


@pytest.mark.by_turns
def test_sessions_are_exported_imported_and_swept_by_the_command_line(tmp_path: Path) -> None:
    url, target = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/other.db"

    async def fill() -> None:
        store = SQLStore(url)
        await put(store, "s", 3600.0, user_id="sarah")
        await store.close()

    async def read(url: str) -> dict[str, SessionRecord]:
        async with closing(SQLStore(url)) as store:
            return {session.session_id: session for session in await store.query()}

    def turnwise(*arguments: str, **settings: Any) -> Any:
        return CliRunner().invoke(app, arguments, **settings)

    play(fill())
    exported_text = turnwise("export", url, "s", "--user", "sarah")
    assert exported_text.exit_code == 0 and exported_text.output.startswith('{"turnwise_archive":1,"session_id":"s"')
    file = str(tmp_path / "s.jsonl")
    assert turnwise("export", url, "s", file, "--user", "sarah").output == ""
    assert Path(file).read_text() == exported_text.output and not Path(f"{file}.part").exists()
    assert turnwise("import", target, file).output == "s\n"
    assert turnwise("import", target, "-", "--as", "t", input=exported_text.output).output == "t\n"
    sessions = play(read(target))
    assert {session.user_id for session in sessions.values()} == {"sarah"} and sessions["s"].updated_at > 1e9
    for wrong in (
        ["export", url, "nobody"],
        ["export", url, "s", str(tmp_path / "no" / "folder"), "--user", "sarah"],
        ["export", "memory://x", "s"],
        ["import", target, file],
        ["import", target, str(tmp_path / "missing")],
        ["import", target, str(tmp_path / "store.db"), "--as", "u"],
    ):
        result = turnwise(*wrong)
        assert result.exit_code == 1 and result.stderr.startswith("error: ") and "Traceback" not in result.output
    assert play(read(target)) == sessions

    swept = turnwise("sweep", url, "--archive", str(tmp_path / "kept"), "--json")
    assert swept.exit_code == 0 and json.loads(swept.output)["archived"] == [{"session_id": "s", "user_id": "sarah"}]
    assert play(read(url)) == {}
    assert turnwise("sweep", target).output == "deleted: 0\narchived: 0\nbusy: 0\nused: 0\nfailed: 0\n"
    (archive,) = files(tmp_path / "kept")
    assert turnwise("import", url, str(archive)).exit_code == 0 and list(play(read(url))) == ["s"]


class Unreadable(Tiring):
    """Has a session, of this name, whose turns cannot be read."""

    async def turns(self, key: SessionKey, **options: Any) -> Any:
        if key.session_id == "damaged":
            raise CorruptRecordError("turn 0", "it is damaged")
        return await super().turns(key, **options)


class AwayHistory(InMemoryHistory):
    """Cannot delete until it is back."""

    is_away = True

    async def delete(self, key: SessionKey, **options: Any) -> None:
        if self.is_away:
            raise StoreError("the history is away")
        await super().delete(key, **options)

    async def delete_sessions(self, keys: Collection[SessionKey]) -> None:
        for key in keys:
            await self.delete(key)


async def test_a_session_stays_until_its_history_can_be_deleted(tmp_path: Path) -> None:
    store, history, key = InMemoryStore(), AwayHistory(), SessionKey("s")
    await put(store, "s", seq=1)
    await history.append(key, [UnknownEvent(stored_kind="x", session_id="s", user_id="default", seq=1, at=1.0)])
    swept = await sweep(store, NOW, tmp_path, history)
    assert [*swept.failed] == [key] and (await store.get(key)).session_id == "s"
    history.is_away = False
    assert await sweep(store, NOW, tmp_path, history) == Swept(deleted=keys("s"), archived=keys("s"))
    assert await store.count() == 0 == await history.last_seq(key)


async def test_the_history_of_a_session_that_is_opened_meanwhile_stays(tmp_path: Path) -> None:
    class Opened(InMemoryStore):
        async def get(self, key: SessionKey) -> SessionRecord:
            if files(tmp_path):  # it is exported
                await self.activate(key)
            return await super().get(key)

    store, history, key = Opened(), InMemoryHistory(), SessionKey("s")
    await put(store, "s", seq=1)
    await history.append(key, [UnknownEvent(stored_kind="x", session_id="s", user_id="default", seq=1, at=1.0)])
    assert await sweep(store, NOW, tmp_path, history) == Swept(used=keys("s"))
    assert await history.last_seq(key) == 1 and files(tmp_path) == []


@pytest.mark.parametrize("before", ["delete", "delete_unchanged"])
async def test_the_file_with_the_only_events_of_a_session_is_kept(before: str, tmp_path: Path) -> None:
    """Another process opens the session between the deletion of its history and its own."""
    store, history, key = Rival(), InMemoryHistory(), SessionKey("s")
    store.deletes_unchanged = before == "delete_unchanged"
    await put(store, "s", seq=1)
    await history.append(key, [UnknownEvent(stored_kind="x", session_id="s", user_id="default", seq=1, at=1.0)])
    store.before, store.act = before, lambda store: InMemoryStore.activate(store, key)
    assert await sweep(store, NOW, tmp_path, history) == Swept(used=keys("s"))
    assert await history.last_seq(key) == 0 and len(files(tmp_path)) == 1
