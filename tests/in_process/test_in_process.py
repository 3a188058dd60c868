"""Sessions in the caller's process, without Ray."""

import asyncio
import gc
import inspect
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from patience import within
from turnwise import AsyncSessionManager, EchoEngine, InProcess, SessionManager
from turnwise.actors.cluster.actors.store_actor import _RemoteStore
from turnwise.actors.in_process.runtime import InProcessRuntime
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.tool import tool
from turnwise.conformance.placements import LAWS
from turnwise.errors import ConfigError, RunFailedError, StoreClosedError
from turnwise.memory.conversation.events import MemoryBehind
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.files.index import FileIndex
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.laws import Law
from turnwise.memory.stores.search.records import Searchable
from turnwise.memory.stores.sql.sqlite_owner import SQLiteOwner
from turnwise.memory.stores.store_owner import StoreOwner
from turnwise.memory.working.memory import WorkingMemory
from turnwise.testing import ScriptedEngine
from windows.models import Switch

LONG_S = 30.0

until = within(LONG_S)


def program(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a program of its own, whose lines can be read."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def output_of(script: str, *arguments: object) -> str:
    process = program(script, *arguments)
    out, err = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, err
    assert not err, err
    return out


@pytest.mark.parametrize("place", ["file", "memory"])
def test_a_memory_that_was_passed_serves_one_manager_after_the_other(place: str, tmp_path: Path) -> None:
    memory = LexicalMemory(tmp_path / "items.db" if place == "file" else "memory://items")
    for count in (1, 2, 3):
        with SessionManager("memory://turns", engine=EchoEngine(), placement=InProcess(), memory=[memory]) as manager:
            chat = manager.open("chat")
            chat.memory.save(f"Ada rows in boat number {count}.")
            assert len(chat.memory.list()) == count
        del manager, chat
        gc.collect()


@pytest.mark.parametrize("law", [law for law in LAWS if "killed" not in law.__name__], ids=lambda law: law.__name__)
async def test_the_laws_of_placements_hold(law: Law) -> None:
    await law(InProcess())


ALL_OF_IT = """
import asyncio, os, sys
from turnwise import AsyncSessionManager, EchoEngine, InProcess, SessionManager
from turnwise.memories import LexicalMemory, StaticMemory, VectorMemory, WorkingMemory
folder = sys.argv[1]
settings = dict(
    engine=EchoEngine(), placement=InProcess(), working_memory=WorkingMemory(f"{folder}/notes.db"),
    memory=[LexicalMemory(f"{folder}/facts.db"), VectorMemory(f"{folder}/v.db", embedding=None), StaticMemory(["a"])],
)
with SessionManager(f"sqlite:///{folder}/a.db", **settings) as manager:
    chat = manager.open("chat", user_id="ada")
    assert chat.run("hello").wait().text == "hello"
    assert "".join(event.text for event in chat.run("one two").events() if event.kind == "text_delta") == "one two"
    assert chat.memory.wait() and chat.memory.recall("hello")
    assert manager.run_once("a question").wait().text == "a question"
    fork = chat.fork(session_id="copy")
    assert fork.latest().index == 1
    (host,) = manager.hosts()
    assert host.pid == os.getpid() and chat.session_id in [key.session_id for key in host.load.recent]

async def main():
    async with AsyncSessionManager(f"sqlite:///{folder}/a.db", **settings) as manager:
        chat = await manager.open("chat", user_id="ada", if_exists="keep")
        assert (await (await chat.run("again")).wait()).text == "again"
        runs = [await (await manager.open(f"s{number}")).run(f"n {number}") for number in range(20)]
        turns = await asyncio.gather(*(run.wait() for run in runs))
        assert [turn.text for turn in turns] == [f"n {number}" for number in range(20)]

asyncio.run(main())
print(*sorted(name for name in sys.modules if name.partition(".")[0] in ("ray", "grpc")))
"""


def test_both_families_do_all_of_it_and_import_nothing_of_ray(tmp_path: Path) -> None:
    assert output_of(ALL_OF_IT, tmp_path).split() == []


KILLED = """
import sys, time
from turnwise import EchoEngine, InProcess, SessionManager
manager = SessionManager(sys.argv[1], engine=EchoEngine(token_delay_s=0.05), placement=InProcess())
chat = manager.open("chat")
chat.run("first").wait()
print(chat.run("word " * 1000).run_id, chat.run("queued", if_busy="enqueue").run_id, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("resume_lost", [True, False])
def test_after_a_kill_the_next_process_goes_on_with_what_was_acknowledged(tmp_path: Path, resume_lost: bool) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    killed = program(KILLED, url)
    assert killed.stdout
    lost_id, queued_id = killed.stdout.readline().split()
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    with SessionManager(url, engine=EchoEngine(), placement=InProcess(resume_lost=resume_lost)) as manager:
        if not resume_lost:
            time.sleep(0.5)
            states = [run.state for run in manager.runs()]
            assert "running" in states and "queued" in states
            manager.get("chat").refresh()
        until(lambda: all(run.state not in ("running", "queued") for run in manager.runs()))
        ends = {run.run_id: run.state for run in manager.runs()}
        assert (ends[lost_id], ends[queued_id]) == ("interrupted", "completed")
        assert [turn.text for turn in manager.get("chat").turns()][-1] == "queued"


HOLDING = """
import sys
from turnwise import EchoEngine, InProcess, SessionManager
with SessionManager(sys.argv[1], engine=EchoEngine(), placement=InProcess()) as manager:
    manager.open("chat").run("mine").wait()
    print("open", flush=True)
    sys.stdin.readline()
print("closed", flush=True)
sys.stdin.readline()
"""


def test_a_sqlite_file_belongs_to_one_process_until_its_managers_are_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDING, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin and other.stdout
    try:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(ConfigError, match=rf"process {other.pid} on .* has it open.*read_only=True"):
            SessionManager(url, engine=EchoEngine(), placement=InProcess())
        with SessionManager(url, engine=EchoEngine(), placement=InProcess(), read_only=True) as reader:
            assert [turn.text for turn in reader.get("chat").turns()] == ["mine"]
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "closed\n"
        with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
            assert manager.open("chat").run("ours").wait().index == 1
    finally:
        other.kill()
        other.communicate()


def test_a_run_outlives_its_manager_and_the_next_manager_finds_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    settings: dict[str, Any] = {"engine": EchoEngine(token_delay_s=0.02), "placement": InProcess()}
    with SessionManager(url, **settings) as manager:
        chat = manager.open("chat")
        run = chat.run("word " * 40)
    assert is_open(tmp_path / "a.db")
    with SessionManager(url, **settings) as manager:
        assert manager.get("chat").info().active_run_id == run.run_id
        queued = manager.get("chat").run("next", if_busy="enqueue")
        assert queued.wait(LONG_S).text == "next"
        assert manager.execution(run.run_id).wait(LONG_S).text == "word " * 40
    assert chat.run("after all managers are closed").wait(LONG_S).index == 2
    until(lambda: not is_open(tmp_path / "a.db"))


def test_managers_of_one_store_share_its_sessions_and_the_last_one_closes_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    first = SessionManager(url, engine=ScriptedEngine(["from the first"]), placement=InProcess())
    second = SessionManager(url, engine=ScriptedEngine(["never", "from the second"]), placement=InProcess())
    assert first.open("chat").run("a").wait().text == "from the first"
    assert second.get("chat").run("b").wait().text == "from the second"
    for _ in range(2):
        first.close()
    assert [host.load.sessions for host in second.hosts() if host.load] == [1], "to close twice closes no other manager"
    second.close()
    assert not is_open(tmp_path / "a.db")


def test_a_manager_that_closes_at_once_leaves_nothing_open(tmp_path: Path) -> None:
    for _ in range(10):
        SessionManager(f"sqlite:///{tmp_path}/a.db", engine=EchoEngine(), placement=InProcess()).close()
    SQLiteOwner(tmp_path / "a.db", "a.db", StoreOwner("process 1 on another host", "another")).release()


def test_engines_are_used_as_they_are() -> None:
    prompts: list[str] = []
    lock = threading.Lock()  # which does not pickle

    def answer(turn: Turn) -> str:
        with lock:
            prompts.extend(block.text for block in turn.asked if block.kind == "user")
        return "heard"

    with SessionManager("memory://as-they-are", engine=FunctionEngine(answer), placement=InProcess()) as manager:
        assert manager.open("chat").run("a word").wait().text == "heard"
    assert prompts == ["a word"]


def test_a_memory_is_shared_by_equal_settings(tmp_path: Path) -> None:
    def manager() -> SessionManager:
        memory = [LexicalMemory(tmp_path / "facts.db")]
        return SessionManager("memory://shared", engine=EchoEngine(), memory=memory, placement=InProcess())

    with manager() as first, manager() as second:
        chat = first.open("chat", user_id="ada")
        chat.run("The heron stands in the reeds.").wait()
        chat.memory.wait()
        other = second.open("other", user_id="ada")
        assert chat.memory.recall("heron")
        opened = open_files().count(str(tmp_path / "facts.db"))
        assert [item.text for item in other.memory.recall("heron")]
        assert opened and open_files().count(str(tmp_path / "facts.db")) == opened


IS_AWAY = Switch(Path("memory-is-away"))


class AwayMemory(LexicalMemory):
    """Cannot save while it is switched off."""

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> list[str]:
        if IS_AWAY.is_on:
            raise OSError("away")
        return await super().remember(scope, items)


def test_a_memory_that_has_failed_keeps_no_manager_open_and_gets_its_turns_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    IS_AWAY.on()
    monkeypatch.setattr("turnwise.actors.in_process.hosts.CLOSE_S", 1e9)
    monkeypatch.setattr("turnwise.actors.session.memory.memory_ingestion.PAUSE_S", 1e9)
    memory = [AwayMemory(tmp_path / "facts.db")]
    settings: dict[str, Any] = {"engine": EchoEngine(), "memory": memory, "placement": InProcess()}
    with SessionManager(f"sqlite:///{tmp_path}/a.db", **settings) as manager:
        chat = manager.open("chat", user_id="ada")
        chat.run("The heron stands in the reeds.").wait()
        until(lambda: any(isinstance(event, MemoryBehind) for event in chat.events()))
    assert "a memory lacks turns (1)" in caplog.text
    IS_AWAY.off()
    with SessionManager(f"sqlite:///{tmp_path}/a.db", **settings) as manager:
        memory_of_ada = manager.memory(user_id="ada")
        until(lambda: memory_of_ada.recall("heron"))


async def test_a_note_is_read_by_the_manager_and_its_sessions(tmp_path: Path) -> None:
    working = WorkingMemory(tmp_path / "notes.db", per="user")
    settings: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess(), "working_memory": working}
    async with AsyncSessionManager("memory://notes", **settings) as manager:
        chat = await manager.open("chat", user_id="ada")
        await chat.memory.replace_notes("buy oars")
        await (await chat.run("hello")).wait()
        assert await chat.memory.read_notes() == "buy oars"
        assert (await manager.forget("ada")).notes == 1


def test_no_file_of_notes_stays_open(tmp_path: Path) -> None:
    working = WorkingMemory(path := tmp_path / "notes.db", per="user")
    settings: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess(), "working_memory": working}
    with SessionManager("memory://files", **settings) as manager:
        manager.open("chat", user_id="ada").memory.replace_notes("buy oars")
        assert is_open(path)
        assert manager.forget("ada").notes == 1
    del manager
    gc.collect()
    until(lambda: not is_open(path))
    with SessionManager("memory://files", **settings) as again:
        assert again.open("chat", user_id="ada").memory.read_notes() == ""


def is_open(path: Path) -> bool:
    return str(path) in open_files()


def open_files() -> list[str]:
    """Return the paths of the files that this process has open, as often as it has."""
    return [file.path for file in psutil.Process().open_files()]


def test_a_caller_that_goes_away_leaves_no_error_behind(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"engine": EchoEngine(token_delay_s=0.05), "placement": InProcess()}

    async def go_away() -> None:
        chat = await AsyncSessionManager("memory://leaving", **settings).open("chat")
        waiting = asyncio.create_task((await chat.run("one two three four five")).wait())
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(go_away())
    with SessionManager("memory://leaving", **settings) as manager:
        chat = manager.open("chat")
        until(lambda: [turn.status for turn in chat.turns()] == ["completed"])
        assert chat.run("again").wait().text == "again"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_store_in_memory_is_closed_for_the_one_who_closed_it() -> None:
    runtime = InProcessRuntime("closing", InProcess())
    first, second = runtime.open_shared_store("memory://a"), runtime.open_shared_store("memory://a")

    async def use() -> None:
        await first.close()
        with pytest.raises(StoreClosedError, match="memory://a"):
            await first.query(limit=1)
        assert not await second.query(limit=1)

    asyncio.run(use())


def test_a_coroutine_of_a_session_that_blocks_on_a_session_is_told_so() -> None:
    async def answer(context: Any) -> str:
        return str(manager.open("other").run("hello").wait().text)

    with (
        SessionManager("memory://blocking", engine=FunctionEngine(answer), placement=InProcess()) as manager,
        pytest.raises(RunFailedError, match="use AsyncSessionManager there"),
    ):
        manager.open("chat").run("go").wait()


def test_the_blocking_family_works_where_an_event_loop_runs() -> None:
    async def cell() -> str:
        with SessionManager("memory://notebook", engine=EchoEngine(), placement=InProcess()) as manager:
            return str(manager.open("chat").run("in a cell").wait().text)

    assert asyncio.run(cell()) == "in a cell"


async def test_many_event_loops_use_the_sessions_of_one_process() -> None:
    settings: dict[str, Any] = {"engine": EchoEngine(token_delay_s=0.01), "placement": InProcess()}

    def elsewhere(number: int) -> int:
        async def ask() -> int:
            async with AsyncSessionManager("memory://loops", **settings) as manager:
                chat = await manager.open("chat", if_exists="keep")
                return (await (await chat.run(f"{number}", if_busy="enqueue")).wait(LONG_S)).index

        return asyncio.run(ask())

    async with AsyncSessionManager("memory://loops", **settings):
        indexes = await asyncio.gather(*(asyncio.to_thread(elsewhere, number) for number in range(8)))
    assert sorted(indexes) == list(range(8))


async def test_a_caller_that_stops_waiting_stops_nothing() -> None:
    async with AsyncSessionManager(
        "memory://stops", engine=EchoEngine(token_delay_s=0.05), placement=InProcess()
    ) as manager:
        chat = await manager.open("chat")
        run = await chat.run("one two three four")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.wait(), 0.05)
        assert (await run.wait(LONG_S)).text == "one two three four"


FORKED = """
import os, sys, warnings
from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.errors import SessionLostError
warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks where there are threads
settings = dict(engine=EchoEngine(), placement=InProcess())
manager = SessionManager("memory://a", **settings)
chat = manager.open("chat")
chat.run("hello").wait()
child = os.fork()
if not child:
    try:
        chat.run("hello")
    except SessionLostError as error:
        print(error, flush=True)
    with SessionManager("memory://b", **settings) as own:
        print(own.open("chat").run("in the child").wait().text, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(chat.run("in the parent").wait().text)
"""


def test_a_forked_process_opens_managers_of_its_own() -> None:
    refusal, child, parent = output_of(FORKED).splitlines()
    assert "open managers after the fork" in refusal
    assert (child, parent) == ("in the child", "in the parent")


def test_a_handle_does_not_outlive_its_process(tmp_path: Path) -> None:
    with SessionManager("memory://handles", engine=EchoEngine(), placement=InProcess()) as manager:
        run = manager.open("chat").run("hello")
        assert pickle.loads(pickle.dumps(run)).wait().text == "hello"
        (tmp_path / "handle").write_bytes(pickle.dumps(run))
    script = """
import pickle, sys
from pathlib import Path
from turnwise.errors import SessionLostError
try:
    pickle.loads(Path(sys.argv[1]).read_bytes()).wait()
except SessionLostError as error:
    print(error)
"""
    assert "open a SessionManager on it with InProcess() first" in output_of(script, tmp_path / "handle")


def test_what_needs_ray_is_refused() -> None:
    class Remote:
        def remote(self, **arguments: Any) -> Any:
            raise AssertionError("it was called")

    def like(city: str) -> str:
        """Tell the weather."""
        return city

    engine = OpenAIEngine("gpt-4o", tools=[tool(Remote(), like=like, name="weather")])
    with pytest.raises(ConfigError, match=r"'weather'.*InProcess"):
        SessionManager("memory://tools", engine=engine, placement=InProcess())
    with (
        SessionManager("memory://actors", engine=EchoEngine(), placement=InProcess()) as manager,
        pytest.raises(ConfigError, match="no actors there"),
    ):
        manager.open("chat").actor  # noqa: B018 - it raises


def test_a_store_of_ones_own_is_made_for_each_loop_that_uses_it(tmp_path: Path) -> None:
    from turnwise.memory.stores.sql.store import SQLStore

    opened: list[SQLStore] = []

    def make() -> SQLStore:
        opened.append(SQLStore(f"sqlite:///{tmp_path}/a.db"))
        return opened[-1]

    with SessionManager(make, engine=EchoEngine(), placement=InProcess()) as manager:
        assert manager.open("chat").run("hello").wait().text == "hello"
    assert len(opened) == 2
    with closing(
        SessionManager(SQLStore(f"sqlite:///{tmp_path}/a.db"), engine=EchoEngine(), placement=InProcess())
    ) as manager:
        assert manager.open("chat").run("again").wait().index == 1


def test_shared_stores_in_memory_are_what_they_can_do_on_each_python() -> None:
    """Python 3.12 and later look for the methods of a protocol without `__getattr__`."""
    with SessionManager("memory://protocols", engine=EchoEngine(), placement=InProcess()) as manager:
        opened = manager._store.store  # noqa: SLF001 - the object itself
        for store in (opened, _RemoteStore("memory://", None)):
            for protocol in (SessionStore, Searchable, FileIndex):
                verbs = {name for name, value in vars(protocol).items() if inspect.iscoroutinefunction(value)}
                assert verbs and [verb for verb in verbs if inspect.getattr_static(store, verb, None) is None] == []


@pytest.mark.parametrize(("setting", "value"), [("config", {"idle_s": 1.0}), ("placement", InProcess)], ids=str)
def test_a_setting_of_the_wrong_type_is_refused_by_its_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}="):
        SessionManager("memory://typed", **{"engine": EchoEngine(), "placement": InProcess(), setting: value})
