"""What packed hosts promise, end to end: real actors, a real SQLite file, real kills, real other processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engines import ScriptedEngine, process_of
from patience import until
from stored.audit import store_of
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.cluster.sharding import find_layouts
from turnwise.actors.hosting.placement import Dedicated, Packed
from turnwise.actors.hosting.store_spec import store_id_of
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.wire_version import unpacked
from turnwise.errors import OverloadedError, RunCancelledError, RunInterruptedError
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import RunCompleted, TextDelta
from turnwise.memory.conversation.sessions import DEFAULT_USER
from turnwise.memory.conversation.turns import Turn
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.audit import audit

MakeManager = Callable[..., SessionManager]

WAIT_S = 120.0


class Patient:
    """Echoes the prompt as soon as a file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def build(self, session: SessionView) -> Patient:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        while not self.path.exists():
            await asyncio.sleep(0.05)
        return [Text(text=block.text) for block in turn.new_blocks if isinstance(block, User)]


def check(
    manager: SessionManager,
    names: Iterable[str],
    acknowledged: Acknowledged | None = None,
    *,
    user_id: str = DEFAULT_USER,
) -> None:
    """Audit what is in the store, without the sessions."""

    async def look() -> None:
        store = store_of(manager)
        (await audit(store, list(names), acknowledged, user_id=user_id)).check()
        await store.close()

    asyncio.run(look())


def residents(manager: SessionManager, ray: ModuleType, name: str) -> list[str]:
    return [key.session_id for key in unpacked(ray.get(manager.get(name).actor.residents.remote()))]


@pytest.mark.by_turns
def test_many_sessions_live_in_two_processes_and_keep_to_themselves(make_ray_manager: MakeManager) -> None:
    """Cases 1, 8, 18 and 59."""
    manager = make_ray_manager(placement=Packed(hosts=2))
    chats = [manager.open(f"chat-{number}", user_id=f"user-{number}") for number in range(40)]
    with ThreadPoolExecutor(16) as threads:
        turns = list(threads.map(lambda chat: chat.run(f"hello from {chat.session_id}").wait(WAIT_S), chats))
        again = list(threads.map(lambda chat: chat.run("again").wait(WAIT_S), chats))
        infos = list(threads.map(lambda chat: chat.info(), chats))
    assert [turn.text for turn in turns] == [f"hello from {chat.session_id}" for chat in chats]
    assert all(new.blocks[:2] == old.blocks for new, old in zip(again, turns, strict=True))
    assert len({info.pid for info in infos}) == 2
    slow = chats[0].run("slow 500")
    events = slow.events()
    assert any(isinstance(event, TextDelta) for event in events)
    assert chats[1].run("meanwhile").wait(WAIT_S).text == "meanwhile"
    slow.cancel(reason="enough")
    with pytest.raises(RunCancelledError, match="enough"):
        slow.wait(WAIT_S)
    done = chats[2].run("hello again")
    code = "import pickle, ray, sys; ray.init(address=sys.argv[2], log_to_driver=False)\n"
    code += "print(pickle.loads(bytes.fromhex(sys.argv[1])).wait(30).text)"
    address = __import__("ray").get_runtime_context().gcs_address
    done.wait(WAIT_S)
    process = subprocess.run(
        [sys.executable, "-c", code, pickle.dumps(done).hex(), address],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert process.stdout.strip() == "hello again"
    assert [type(event) for event in done.events()][-1] is RunCompleted
    for chat in chats:
        check(manager, [chat.session_id], user_id=chat.user_id)


def test_a_host_that_is_killed_under_load_loses_nothing_and_sees_to_its_runs_by_itself(
    make_ray_manager: MakeManager,
) -> None:
    """Cases 15 and 63: the runs that nobody asks about have an outcome, too."""
    manager = make_ray_manager(placement=Packed(hosts=2))
    names, acknowledged = [f"chat-{number}" for number in range(24)], Acknowledged()
    chats = [manager.open(name) for name in names]
    executions: list[ExecutionHandle] = []
    for chat in chats:
        asked_at = acknowledged.clock()
        execution = chat.run("slow 10000")
        acknowledged.stored(chat.session_id, ["slow 10000"], asked_at, run_id=execution.run_id)
        executions.append(execution)
    pids = [process_of(chat.info()) for chat in chats]
    os.kill(pids[0], signal.SIGKILL)
    lost = [execution for execution, pid in zip(executions, pids, strict=True) if pid == pids[0]]
    assert 0 < len(lost) < len(names)

    async def states() -> set[str]:
        store = store_of(manager)
        run_states: set[str] = {(await store.run(execution.run_id)).state for execution in lost}
        await store.close()
        return run_states

    until(lambda: asyncio.run(states()) == {"interrupted"})
    for execution in lost:
        with pytest.raises(RunInterruptedError):
            execution.wait(WAIT_S)
    for chat, execution, pid in zip(chats, executions, pids, strict=True):
        if pid != pids[0]:
            assert execution.is_running(), "the neighbours in other hosts go on"
            chat.cancel()
        assert chat.run("and on").wait(WAIT_S).text == "and on"
    check(manager, names, acknowledged)


def test_a_run_is_resumed_in_the_next_process_with_its_own_engine(
    make_ray_manager: MakeManager,
) -> None:
    """Case 33, in a host of many, whose other sessions have another engine."""
    config = SessionConfig(on_lost="resume")
    first = make_ray_manager(placement=Packed(hosts=1), engine=ScriptedEngine("first "), config=config)
    chat, other_chat = first.open("chat"), first.open("other")
    assert chat.run("x").wait(WAIT_S).text == "first x"
    second = make_ray_manager(placement=Packed(hosts=1), engine=ScriptedEngine("second "), config=config)
    assert second.open("chat").run("x").wait(WAIT_S).text == "second x"
    running, interrupted = second.open("chat").run("slow 150"), other_chat.run("slow 150")
    os.kill(process_of(chat.info()), signal.SIGKILL)
    assert running.wait(WAIT_S).text == "second slow 150"
    assert interrupted.wait(WAIT_S).text == "first slow 150"
    check(first, ["chat", "other"])


def test_another_number_of_hosts_moves_sessions_without_interrupting_one(
    make_ray_manager: MakeManager, tmp_path: Path, namespace: str
) -> None:
    """Case 64: each has one owner at every moment."""
    engine = Patient(tmp_path / "enough")
    old = make_ray_manager(placement=Packed(hosts=1), engine=engine)
    names = [f"chat-{number}" for number in range(12)]
    chats = [old.open(name) for name in names]
    running = [chat.run("wait") for chat in chats]
    before = {process_of(chat.info()) for chat in chats}
    new = make_ray_manager(placement=Packed(hosts=3), engine=engine)
    assert [new.open(name).info().active_run_id for name in names] == [execution.run_id for execution in running]
    queued = [new.open(name).run("behind it", if_busy="enqueue") for name in names]
    (tmp_path / "enough").touch()
    assert all(execution.wait(WAIT_S).text == "wait" for execution in running)
    assert all(execution.wait(WAIT_S).text == "behind it" for execution in queued)
    assert all(chat.run("from the old manager").wait(WAIT_S).text == "from the old manager" for chat in chats)
    after = {process_of(chat.info()) for chat in chats}
    assert len(after) == 3 and not after & before
    store_id = store_id_of(namespace, f"sqlite:///{tmp_path}/chats.db")
    until(lambda: [layout.hosts for layout in find_layouts(namespace, store_id)] == [3])
    check(new, names)


class Late(Packed):
    """Hosts that are made when a file is there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return made_late, (self.hosts, os.getpid(), os.environ["READY"])


def made_late(hosts: int, own_pid: int, ready: str) -> Packed:
    while os.getpid() != own_pid and not Path(ready).exists():
        time.sleep(0.05)
    return Packed(hosts=hosts)


def test_hosts_answer_until_those_are_ready_that_replace_them(
    make_ray_manager: MakeManager, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READY", str(tmp_path / "ready"))
    chat = make_ray_manager(placement=Packed(hosts=1)).open("chat")
    assert chat.run("before").wait(WAIT_S).text == "before"
    store_id = store_id_of(namespace, f"sqlite:///{tmp_path}/chats.db")
    with ThreadPoolExecutor() as threads:
        made = threads.submit(make_ray_manager, placement=Late(hosts=2))
        try:
            until(lambda: [layout.hosts for layout in find_layouts(namespace, store_id)] == [2, 1])
            slow = chat.run("slow 20")
            assert slow.wait(WAIT_S).text == chat.run("slow 20").wait(WAIT_S).text
            assert not made.done()
        finally:
            (tmp_path / "ready").touch()
        new = made.result(WAIT_S)
    assert chat.run("after").wait(WAIT_S).text == "after"
    assert [turn.text for turn in new.open("chat").turns()][-1] == "after"
    until(lambda: [layout.hosts for layout in find_layouts(namespace, store_id)] == [2])
    check(new, ["chat"])


def test_what_is_idle_leaves_memory_and_comes_back_as_it_was(
    make_ray_manager: MakeManager, ray_session: ModuleType
) -> None:
    """Cases 61 and 62."""
    manager = make_ray_manager(placement=Packed(hosts=1, max_resident=3), config=SessionConfig(idle_s=0.3))
    chats = [manager.open(f"chat-{number}") for number in range(6)]
    assert residents(manager, ray_session, "chat-0") == [], "a session is active from the first verb on"
    turns = [chat.run(f"hello {chat.session_id}").wait(WAIT_S) for chat in chats]
    assert len(residents(manager, ray_session, "chat-0")) <= 3
    until(lambda: residents(manager, ray_session, "chat-0") == [])
    assert [chat.latest() for chat in chats] == turns
    running = [chat.run("slow 500") for chat in chats[:3]]
    with pytest.raises(OverloadedError, match="max_resident=3"):
        chats[3].run("no room")
    running[0].cancel()
    assert chats[3].run("room").wait(WAIT_S).text == "room"
    for chat in chats[1:3]:
        chat.cancel()
    for chat in chats:
        check(manager, [chat.session_id], user_id=chat.user_id)


def test_of_dedicated_processes_no_more_live_than_may(make_ray_manager: MakeManager) -> None:
    """Case 62."""
    manager = make_ray_manager(placement=Dedicated(max_live=2), config=SessionConfig(idle_s=0.3))
    running = [manager.open(name).run("slow 10000") for name in ("a", "b")]
    with pytest.raises(OverloadedError, match="max_live=2"):
        manager.open("c").run("hello")
    running[0].cancel()

    def answers() -> bool:
        try:
            return manager.open("c").run("hello", if_busy="enqueue").wait(WAIT_S).text == "hello"
        except OverloadedError:
            return False  # the first has yet to leave

    until(answers)
    running[1].cancel()
    check(manager, "abc")


class Miller:
    """Calls its tool, and then answers."""

    def build(self, session: SessionView) -> ToolLoop:
        return ToolLoop(self, ToolRegistry(grind))

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        if any(isinstance(block, ToolResult) for block in turn.output):
            return [Text(text="ground")]
        prompt = next(block.text for block in turn.new_blocks if isinstance(block, User))
        if prompt == "hello":
            return [Text(text="hello")]
        return [ToolUse(call_id="call", name="grind", input={"until": prompt})]


@tool
def grind(until: str) -> str:
    """Compute until a file is there."""
    total = 0
    while not Path(until).exists():
        total += sum(range(10_000))
    return str(total > 0)


def test_a_tool_that_computes_stalls_no_neighbour(make_ray_manager: MakeManager, tmp_path: Path) -> None:
    manager = make_ray_manager(placement=Packed(hosts=1), engine=Miller())
    mill, other_chat = manager.open("mill"), manager.open("other")
    grinding = mill.run(str(tmp_path / "enough"))
    assert [other_chat.run("hello").wait(WAIT_S).text for _ in range(5)] == ["hello"] * 5
    assert grinding.is_running()
    (tmp_path / "enough").touch()
    assert grinding.wait(WAIT_S).text == "ground"


def test_the_async_family_runs_a_thousand_sessions_at_once(
    make_ray_manager: MakeManager, tmp_path: Path, namespace: str
) -> None:
    """Case 62, by way of one event loop."""
    shown = make_ray_manager(placement=Packed(hosts=2))
    names = [f"chat-{number}" for number in range(500)]

    async def talk() -> None:
        settings: dict[str, Any] = {"engine": ScriptedEngine(), "placement": Packed(hosts=2)}
        url = f"sqlite:///{tmp_path}/chats.db"
        async with AsyncSessionManager(url, namespace=namespace, **settings) as manager:
            chats = await asyncio.gather(*map(manager.open, names))
            executions = await asyncio.gather(*(chat.run(chat.session_id) for chat in chats))
            turns = await asyncio.gather(*(execution.wait(WAIT_S) for execution in executions))
            assert [turn.text for turn in turns] == names

    asyncio.run(talk())
    assert shown.count() == len(names)


@pytest.mark.by_turns
def test_a_host_that_is_killed_while_hundreds_ask_at_once_has_each_run_once(
    make_ray_manager: MakeManager, tmp_path: Path, namespace: str
) -> None:
    """Cases 15 and 63: requests of one batch are sent again one by one, and no caller notices."""
    shown = make_ray_manager(placement=Packed(hosts=2))
    names, acknowledged = [f"chat-{number}" for number in range(200)], Acknowledged()

    async def talk() -> None:
        settings: dict[str, Any] = {"engine": ScriptedEngine(), "placement": Packed(hosts=2)}
        url = f"sqlite:///{tmp_path}/chats.db"
        async with AsyncSessionManager(url, namespace=namespace, **settings) as manager:
            chats = await asyncio.gather(*map(manager.open, names))
            victim = process_of(await chats[0].info())

            async def turn(chat: AsyncSession) -> None:
                for number in range(3):
                    asked_at, prompt = acknowledged.clock(), f"{chat.session_id} {number}"
                    execution = await chat.run(prompt)
                    acknowledged.stored(
                        chat.session_id, [prompt], asked_at, run_id=execution.run_id, turn_index=execution.turn_index
                    )
                    if victim in alive:
                        os.kill(alive.pop(), signal.SIGKILL)
                    try:
                        assert (await execution.wait(WAIT_S)).text == prompt
                        acknowledged.ended(chat.session_id, execution.run_id, "completed")
                    except RunInterruptedError:
                        acknowledged.ended(chat.session_id, execution.run_id, "interrupted")

            alive = [victim]
            await asyncio.gather(*map(turn, chats))
            assert process_of(await chats[0].info()) != victim

    asyncio.run(talk())
    assert len(acknowledged.session_ids) == len(names)
    check(shown, names, acknowledged)


def test_a_host_that_comes_back_leaves_sessions_of_their_own_process_alone(make_ray_manager: MakeManager) -> None:
    packed = make_ray_manager(placement=Packed(hosts=1))
    packed.open("packed").run("hello").wait(WAIT_S)
    running = make_ray_manager().open("dedicated").run("slow 200")
    lost = packed.open("packed").run("slow 10000")
    os.kill(process_of(packed.open("packed").info()), signal.SIGKILL)
    with pytest.raises(RunInterruptedError):
        lost.wait(WAIT_S)
    assert running.wait(WAIT_S).text == "slow 200"
