"""What a session promises, end to end: real actors, a real SQLite file, real kills, real other processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engines import BrokenBuilder, ScriptedEngine, UnpicklableThere, process_of
from scale import share
from schedules import texts
from stored.audit import check_session, store_of
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting.placement import Dedicated, InProcess, Packed
from turnwise.actors.hosting.store_spec import store_id_of
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    ConfigError,
    EmptyTurnError,
    IdempotencyConflictError,
    InvalidIdError,
    InvalidInputError,
    InvalidPromptError,
    NoActiveRunError,
    QueueFullError,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunNotFoundError,
    SessionBusyError,
    SessionEndedError,
    SessionExistsError,
    SessionLostError,
    SessionNotFoundError,
    SessionOwnerError,
    StoreClosedError,
    StoreError,
    StoreURLError,
    TurnNotFoundError,
    TurnReplacedError,
    WaitTimeoutError,
)
from turnwise.memory.conversation.blocks import Text
from turnwise.memory.conversation.events import RunCompleted, RunStarted, TextDelta
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.encrypted.records import SEALED
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.testing import LocalProvider

MakeManager = Callable[..., SessionManager]


def audit(manager: SessionManager, session_id: str, *, user_id: str = "default") -> None:
    """Check what is in the store, without the session."""

    async def check() -> None:
        store = store_of(manager)
        await check_session(store, session_id, user_id=user_id)
        await store.close()

    asyncio.run(check())


def python(script: str, *args: str, **settings: Any) -> subprocess.Popen[str]:
    """Start another Python process that can import what these tests can."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", script, *args]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, **settings)


def kill(session: Session) -> None:
    """SIGKILL the session's process, as the machine's out-of-memory killer would."""
    os.kill(process_of(session.info()), signal.SIGKILL)


def test_run_returns_at_once_and_wait_gives_the_finished_turn_with_both_ids(make_manager: MakeManager) -> None:
    """Cases 1 and 7."""
    chat = make_manager().open("chat-123", user_id="sarah", metadata={"topic": "weather"})
    execution = chat.run("slow 20")
    assert execution.is_running() and execution.status() == "running"
    with pytest.raises(WaitTimeoutError, match=execution.run_id):
        execution.wait(timeout_s=0.05)
    with ThreadPoolExecutor(5) as pool:
        turns = list(pool.map(lambda _: execution.wait(timeout_s=120), range(5)))
    assert (turns[0].session_id, turns[0].run_id, turns[0].index) == ("chat-123", execution.run_id, 0)
    assert turns[0].text == "slow 20" and turns[0].status == "completed" and len(set(turns)) == 1
    assert chat.execution(execution.run_id).wait() == turns[0] == chat.latest() == chat.turn(0)
    with pytest.raises(RunNotFoundError, match="nobody"):
        chat.execution("nobody")
    assert [run.run_id for run in chat.runs()] == [execution.run_id]
    assert not execution.is_running() and execution.cancel() is False


def test_of_fifty_concurrent_starts_one_wins(make_manager: MakeManager) -> None:
    """Cases 3 and 11."""
    chat = make_manager().open()

    def start(number: int) -> ExecutionHandle | None:
        try:
            return chat.run(f"slow 50 {number}" if number < 0 else "slow 50")
        except SessionBusyError:
            return None

    with ThreadPoolExecutor(16) as pool:
        won = [handle for handle in pool.map(start, range(50)) if handle]
    assert len(won) == 1
    assert texts(won[0].wait().blocks) == ["slow 50"]
    assert chat.run("hello").wait().text == "hello"


def test_wait_then_start_from_several_callers_never_runs_two_at_once(make_manager: MakeManager) -> None:
    """Case 4."""
    manager = make_manager()
    chat = manager.open("chat")

    def caller(name: str) -> None:
        for number in range(20):
            while True:
                try:
                    chat.run(f"{name}{number}").wait(timeout_s=120)
                    break
                except SessionBusyError as busy:
                    chat.execution(busy.run_id).wait(timeout_s=120)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(caller, "abc"))
    latest = chat.latest()
    assert latest and len(texts(latest.blocks)) == len(set(texts(latest.blocks))) == 60
    audit(manager, "chat")


def test_concurrent_appends_are_all_in_the_next_turn_in_order(make_manager: MakeManager) -> None:
    """Cases 5 and 6."""
    chat = make_manager().open()
    active = chat.run("slow 30")

    def append(name: str) -> None:
        for number in range(5):
            chat.append(f"{name}{number}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(append, "abc"))
    latest = chat.latest()
    assert latest and latest.status == "pending"
    prompts = texts(latest.blocks)
    assert sorted(prompts[1:]) == sorted(f"{name}{number}" for name in "abc" for number in range(5))
    for name in "abc":
        assert [prompt for prompt in prompts if prompt.startswith(name)] == [f"{name}{n}" for n in range(5)]
    assert texts(active.wait().blocks) == ["slow 30"]
    assert texts(chat.start().wait().blocks) == prompts


def test_cancel_from_another_thread_keeps_the_text_and_frees_the_session(make_manager: MakeManager) -> None:
    """Cases 8 and 20."""
    manager = make_manager()
    chat = manager.open("chat")
    execution = chat.run("slow 500")
    for event in execution.events():
        if isinstance(event, TextDelta):
            break
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: execution.cancel(f"reason {n}"), range(4)))
    assert answers == [True] * 4
    with pytest.raises(RunCancelledError, match="reason") as cancelled:
        execution.wait()
    turn = cancelled.value.turn
    assert turn and turn.text.startswith("0 ")
    assert isinstance(turn.blocks[-1], Text) and turn.blocks[-1].interrupted
    assert pickle.loads(pickle.dumps(cancelled.value)).turn == turn
    assert chat.run("hello").wait().blocks[:2] == turn.blocks
    with pytest.raises(NoActiveRunError):
        chat.cancel()
    audit(manager, "chat")


@pytest.mark.by_turns
def test_a_storm_of_submits_with_one_key_makes_one_run(make_ray_manager: MakeManager) -> None:
    """Case 16; the key outlives the session's process."""
    chat = make_ray_manager().open()
    with ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(lambda _: chat.run("slow 10", idempotency_key="order-7"), range(24)))
    assert len({handle.run_id for handle in handles}) == 1 == len(chat.runs())
    assert {handle.wait(timeout_s=120).text for handle in handles} == {"slow 10"}
    kill(chat)
    assert chat.run("slow 10", idempotency_key="order-7") == handles[0]
    with pytest.raises(IdempotencyConflictError, match="order-7"):
        chat.run("another prompt", idempotency_key="order-7")
    with pytest.raises(InvalidIdError):
        chat.run("hello", idempotency_key="")


def test_enqueue_interrupt_and_rollback_leave_the_history_they_promise(make_manager: MakeManager) -> None:
    """Case 17."""
    manager = make_manager(config=SessionConfig(max_queued=2))
    chat = manager.open("chat")
    first = chat.run("slow 20")
    queued = [chat.run(f"queued {n}", if_busy="enqueue") for n in range(2)]
    with pytest.raises(QueueFullError, match="2"):
        chat.run("one too many", if_busy="enqueue")
    assert [handle.wait().index for handle in (first, *queued)] == [0, 1, 2]
    chat.run("slow 500")
    chat.run("now", if_busy="interrupt").wait()
    chat.run("slow 501")
    turn = chat.run("instead", if_busy="rollback").wait()
    assert texts(turn.blocks) == ["slow 20", "queued 0", "queued 1", "slow 500", "now", "instead"]
    with pytest.raises(InvalidInputError, match="if_busy"):
        chat.run("hello", if_busy="whenever")  # type: ignore[arg-type]
    audit(manager, "chat")


def test_after_a_sigkill_mid_run_there_is_one_typed_outcome_and_the_last_commit(make_ray_manager: MakeManager) -> None:
    """Cases 15 and 60: one waiter was there before the kill, others come after."""
    manager = make_ray_manager()
    chat = manager.open("chat")
    before = chat.run("hello").wait()
    execution = chat.run("slow 5000")
    queued = chat.run("queued", if_busy="enqueue")
    waiter: list[Exception] = []

    def wait() -> None:
        try:
            execution.wait(timeout_s=120)
        except RunInterruptedError as error:
            waiter.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    pid = process_of(chat.info())
    kill(chat)
    thread.join(30)
    assert len(waiter) == 1
    with pytest.raises(RunInterruptedError, match=execution.run_id) as again:
        manager.execution(execution.run_id).wait(timeout_s=120)
    assert again.value.turn and again.value.turn.blocks[:2] == before.blocks
    assert texts(again.value.turn.new_blocks) == ["slow 5000"]
    assert queued.wait(timeout_s=120).text == "queued", "what waited in the queue goes on"
    assert chat.info().pid != pid
    events = list(execution.events())
    assert [event.kind for event in events if event.terminal] == ["run_interrupted"]
    assert events[-1].terminal
    audit(manager, "chat")


def test_kills_at_random_moments_lose_and_double_nothing(make_ray_manager: MakeManager) -> None:
    """Cases 15 and 63: a caller that appends and runs while its session's process is killed five times."""
    manager = make_ray_manager()
    chat = manager.open("chat")
    acknowledged: list[str] = []
    done = threading.Event()

    def killer() -> None:
        for number in range(5):
            time.sleep(0.3 + 0.13 * number)
            kill(chat)
        done.set()

    thread = threading.Thread(target=killer)
    thread.start()
    number = 0
    while not done.is_set():
        number += 1
        chat.append(f"a{number}")
        acknowledged.append(f"a{number}")
        with suppress(RunInterruptedError):
            chat.run(f"r{number}").wait(timeout_s=120)
        acknowledged.append(f"r{number}")
    thread.join()
    latest = chat.latest()
    assert latest and texts(latest.blocks) == acknowledged
    audit(manager, "chat")


ATTACH = """
import pickle, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
handle = pickle.loads(bytes.fromhex(sys.argv[2]))
print(handle.run_id, handle.wait(timeout_s=60).text, [event.kind for event in handle.events()][-1])
"""


def test_a_handle_pickled_into_another_process_works_there(
    make_ray_manager: MakeManager, ray_session: ModuleType
) -> None:
    """Cases 15 and 18."""
    chat = make_ray_manager().open()
    execution = chat.run("slow 200")
    pickled = pickle.dumps(execution)
    assert b"sqlite" not in pickled and b"ScriptedEngine" not in pickled, "a handle pickles as its ids"
    address = ray_session.get_runtime_context().gcs_address
    process = python(ATTACH, address, pickled.hex())
    assert process.communicate(timeout=60)[0].split("\n")[0] == f"{execution.run_id} slow 200 run_completed"
    assert pickle.loads(pickled).wait() == execution.wait()


START = """
import sys, time, ray
from turnwise import SessionManager
from engines import ScriptedEngine
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
manager = SessionManager(sys.argv[2], engine=ScriptedEngine(), namespace=sys.argv[3])
print(manager.open("chat").run("slow 100").run_id, flush=True)
time.sleep(60)
"""


def test_a_run_continues_when_the_callers_process_dies_and_another_attaches_by_id(
    make_ray_manager: MakeManager, ray_session: ModuleType, tmp_path: Path, namespace: str
) -> None:
    """Case 15, with a real SIGKILL of a real second process."""
    manager = make_ray_manager()
    address = ray_session.get_runtime_context().gcs_address
    process = python(START, address, f"sqlite:///{tmp_path}/chats.db", namespace)
    assert process.stdout
    run_id = process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    execution = manager.execution(run_id)
    assert execution.wait(timeout_s=60).text == "slow 100"
    assert next(event.kind for event in execution.events()) == "run_started"
    audit(manager, "chat")


def test_an_idle_session_leaves_and_comes_back_and_a_running_one_stays(make_ray_manager: MakeManager) -> None:
    """Case 61."""
    manager = make_ray_manager(config=SessionConfig(idle_s=0.4))
    chat = manager.open("chat")
    running = chat.run("slow 100")
    pid = process_of(chat.info())
    turn = running.wait()  # it ran for five times as long as a process may be idle
    deadline = time.monotonic() + 120
    while True:
        assert time.monotonic() < deadline
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    assert chat.latest() == turn
    assert chat.info().pid != pid
    again = chat.run("hello").wait()
    assert again.blocks[:2] == turn.blocks and running.wait() == turn
    audit(manager, "chat")


def test_of_two_owners_the_store_refuses_the_stale_one_and_callers_find_the_other(
    make_manager: MakeManager, tmp_path: Path
) -> None:
    """Case 64."""
    manager = make_manager()
    chat = manager.open("chat")
    chat.run("hello").wait()
    stale = chat.run("slow 5000")

    async def usurp() -> None:
        store = SQLStore(f"sqlite:///{tmp_path}/chats.db")
        core = SessionCore(SessionKey("chat"), store, ScriptedEngine())
        await core.admission.append(["from the other owner"], key="usurper")
        await store.close()

    asyncio.run(usurp())
    stale.cancel()
    with pytest.raises(RunInterruptedError):
        stale.wait(timeout_s=120)
    turn = chat.run("and on").wait(timeout_s=120)
    assert texts(turn.blocks) == ["hello", "slow 5000", "from the other owner", "and on"]
    audit(manager, "chat")


def test_fork_end_and_delete(make_ray_manager: MakeManager) -> None:
    """Cases 13 and 14."""
    manager = make_ray_manager(placement=Packed(hosts=1))
    chat = manager.open("chat", user_id="sarah", agent="hr")
    turns = [chat.run(f"prompt {n}").wait() for n in range(3)]
    fork = chat.fork(at=1, session_id="fork")
    assert (fork.user_id, fork.agent) == ("sarah", "hr")
    assert fork.run("another way").wait().blocks[:4] == turns[1].blocks
    assert chat.turns() == turns
    with pytest.raises(SessionExistsError):
        chat.fork(session_id="fork", at=2)
    with pytest.raises(TurnNotFoundError, match="99"):
        chat.fork(at=99)
    active = chat.run("slow 5000")
    with pytest.raises(SessionBusyError):
        chat.delete()
    chat.end()
    chat.end()
    with pytest.raises(RunCancelledError, match="session ended"):
        active.wait()
    with pytest.raises(SessionEndedError, match="chat"):
        chat.run("more")
    assert manager.count(status="ended") == 1 and manager.count(user_id="sarah") == 2
    chat.delete()
    for verb in (chat.latest, chat.info, chat.delete):
        with pytest.raises(SessionNotFoundError):
            verb()
    assert [session.session_id for session in manager.list()] == ["fork"]
    assert texts(fork.turns()[-1].blocks) == ["prompt 0", "prompt 1", "another way"]
    anew = manager.open("chat", user_id="bob")
    assert anew.latest() is None and anew.run("hello").wait().index == 0


def test_an_id_that_is_deleted_and_opened_again_is_another_session(make_manager: MakeManager) -> None:
    """Though the process of the deleted session may live a moment longer."""
    manager = make_manager()

    def life(number: int) -> None:
        chat = manager.open(f"phoenix-{number}")
        for _ in range(share(3, 3)):
            assert chat.run("hello").wait(timeout_s=60).index == 0
            chat.delete()
            with pytest.raises(SessionNotFoundError):
                chat.run("are you there?")
            chat = manager.open(chat.session_id)
            assert chat.latest() is None

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(life, range(3)))


def test_events_have_no_gap_and_no_duplicate_however_often_a_reader_comes_back(make_ray_manager: MakeManager) -> None:
    """Case 59; a slow reader slows nobody."""
    manager = make_ray_manager()
    chat = manager.open("chat")
    execution = chat.run("slow 60")
    all_events: list[Any] = []
    reader = threading.Thread(target=lambda: all_events.extend(execution.events()))
    slow = execution.events()
    next(slow)
    reader.start()
    pieces: list[Any] = []
    while not (pieces and pieces[-1].terminal):
        for event in manager.execution(execution.run_id).events(after=pieces[-1].seq if pieces else 0):
            pieces.append(event)
            if len(pieces) % 3 == 0:
                break
    reader.join(30)
    assert pieces == all_events and isinstance(all_events[0], RunStarted) and isinstance(all_events[-1], RunCompleted)
    assert [event.seq for event in all_events] == sorted({event.seq for event in all_events})
    assert "".join(event.text for event in all_events if isinstance(event, TextDelta)).startswith("0 1 2 3 ")
    assert [*slow][-1] == all_events[-1]
    assert chat.events(limit=2) == all_events[:2]
    kill(chat)
    replayed = list(execution.events())
    assert [event.kind for event in replayed] == ["run_started", "run_completed"]
    assert replayed[-1] == all_events[-1], "the stored end has the text too"


def test_a_session_is_followed_live_across_its_runs_by_pages(make_manager: MakeManager) -> None:
    chat = make_manager().open("chat")
    events: list[Any] = []

    def follow() -> None:
        while sum(event.terminal for event in events) < 2:
            events.extend(chat.events(events[-1].seq if events else 0, limit=5, wait_s=30.0))

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        runs = [chat.run("slow 9", if_busy="enqueue") for _ in range(2)]
        following.result(60)
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    for run in runs:
        assert [event for event in events if event.run_id == run.run_id and event.kind != "run_queued"] == [
            event for event in run.events() if event.kind != "run_queued"
        ]
        pages = [run.event_page(limit=4)]
        while (after := pages[-1].next) is not None:
            pages.append(run.event_page(after, limit=4))
        assert [event for page in pages for event in page] == list(run.events())
    assert sum(event.kind == "text_delta" for event in events) > len(runs), "live"
    assert chat.events(events[-1].seq, wait_s=0.1) == [] == chat.events(events[-1].seq)


def test_a_later_managers_engine_is_taken_over_between_runs(make_manager: MakeManager) -> None:
    old = make_manager(engine=ScriptedEngine("old "))
    chat = old.open("chat", user_id="sarah")
    active = chat.run("slow 20")
    new = make_manager(engine=ScriptedEngine("new ")).open("chat", user_id="sarah")
    queued = new.run("who", if_busy="enqueue")
    assert active.wait().text == "old slow 20"
    assert queued.wait().text == "new  sarah"
    assert chat.run("hello").wait().text == "old hello"


def test_a_session_is_not_opened_in_anothers_name(make_manager: MakeManager) -> None:
    manager = make_manager()
    manager.open("chat", user_id="sarah", agent="hr")
    with pytest.raises(SessionOwnerError, match="sales"):
        manager.open("chat", user_id="sarah", agent="sales")
    with pytest.raises(SessionNotFoundError):
        manager.get("chat")
    assert manager.open("chat").user_id == "default" and manager.open("chat", user_id="bob").latest() is None
    assert manager.get("chat", user_id="sarah").agent == "hr"
    assert manager.open("of nobody in particular").user_id == "default"
    manager.open("chat-1", user_id="user-1")
    manager.open("chat-10", user_id="user-10")
    assert [session.session_id for session in manager.list(user_id="user-1")] == ["chat-1"]


def test_bad_input_is_a_typed_error_and_the_session_is_usable_afterwards(make_manager: MakeManager) -> None:
    manager = make_manager()
    for bad in ("", " ", "a\nb", "nul\0", "x" * 257, "\ud800", 7):
        with pytest.raises(InvalidIdError):
            manager.open(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidIdError):
            manager.open("chat", user_id=bad)  # type: ignore[arg-type]
    with pytest.raises(SessionNotFoundError, match="nobody"):
        manager.get("nobody")
    with pytest.raises(RunNotFoundError, match="no-run"):
        manager.execution("no-run")
    with pytest.raises(InvalidInputError, match="cursor"):
        manager.list(cursor="over there")
    with pytest.raises(InvalidInputError, match="metadata"):
        manager.open("chat", metadata={"bytes": b"no"})
    with pytest.raises(InvalidInputError, match="looks like encrypted"):
        manager.open("chat", metadata={SEALED: "tw1:"})
    chat = manager.open("chät 💬 / 'quoted' \"x\" %_")
    for prompts in ((), ("",), ("hello", " ")):
        with pytest.raises(EmptyTurnError, match="chät"):
            chat.run(*prompts)
    with pytest.raises(EmptyTurnError):
        chat.append()
    with pytest.raises(InvalidPromptError, match="max_prompt_bytes"):
        chat.run("x" * 10_000_000)
    with pytest.raises(TurnNotFoundError, match="7"):
        chat.turn(7)
    assert chat.latest() is None
    big = "ä" * 1_500_000
    assert chat.run(big).wait().text == big
    for prompt in ("raise", "nothing"):
        with pytest.raises(RunFailedError, match="chät"):
            chat.run(prompt).wait()
    assert chat.run("hello").wait().text == "hello"


def test_a_manager_refuses_what_it_cannot_use(make_ray_manager: MakeManager, tmp_path: Path) -> None:
    for url in ("", "chats.db", "sqlite://", "sqlite:///:memory:", "mysql://host/db", "redis//x"):
        with pytest.raises(StoreURLError):
            make_ray_manager(store=url)
    with pytest.raises(ConfigError, match="engine"):
        make_ray_manager(engine="gpt-5-mini")
    engine = EchoEngine()
    engine.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="pickled"):
        make_ray_manager(engine=engine)
    (tmp_path / "not.db").write_text("This is not a database, whatever its name says. " * 100)
    for path in (tmp_path / "not.db", tmp_path / "no such folder" / "chats.db"):
        with pytest.raises(StoreError, match=path.name):
            make_ray_manager(store=f"sqlite:///{path}").open("chat")
    manager = make_ray_manager()
    manager.open("chat")
    manager.close()
    manager.close()
    with pytest.raises(StoreClosedError, match=r"manager of .* was closed: make a new SessionManager"):
        manager.open("chat")


def test_an_engine_that_fails_in_the_sessions_process_is_a_typed_error(make_ray_manager: MakeManager) -> None:
    """Case 10. No Ray exception leaves the package."""
    chat = make_ray_manager(engine=BrokenBuilder()).open("chat")
    with pytest.raises(RunFailedError, match="no such model") as failed:
        chat.run("hello").wait()
    assert failed.value.turn and texts(failed.value.turn.blocks) == ["hello"]
    with pytest.raises(RunFailedError, match="not installed here"):
        make_ray_manager(engine=UnpicklableThere()).open("other").run("hello").wait()
    with pytest.raises(ConfigError, match="not installed here"):
        make_ray_manager(engine=UnpicklableThere()).open("chat").run("hello")
    assert make_ray_manager().open("other").run("hello").wait().text == "hello"


def test_without_a_manager_a_session_that_is_not_live_says_what_to_do(
    make_ray_manager: MakeManager, namespace: str, tmp_path: Path
) -> None:
    manager = make_ray_manager()
    chat = manager.open("chat")
    execution = chat.run("hello")
    execution.wait()
    store_id = store_id_of(namespace, f"sqlite:///{tmp_path}/chats.db")
    client, ref = SessionsClient(namespace, store_id, Dedicated()), SessionRef(SessionKey("chat"))
    execution = ExecutionHandle(client, ref, execution.run_id, execution.turn_index)
    assert execution.wait().text == "hello"
    chat.delete()
    time.sleep(0.5)
    client.processes.invalidate(SessionKey("chat"))
    with pytest.raises(SessionLostError, match="SessionManager"):
        execution.wait()


def test_the_store_in_memory_is_shared_by_the_sessions_and_survives_their_kill(make_ray_manager: MakeManager) -> None:
    manager = make_ray_manager(store="memory://shared")
    chat = manager.open("chat")
    turn = chat.run("hello").wait()
    kill(chat)
    assert chat.run("again").wait().blocks[:2] == turn.blocks
    assert make_ray_manager(store="memory://other").count() == 0
    audit(manager, "chat")


async def test_blocks_and_messages_are_removed_in_both_families(
    make_manager: MakeManager, tmp_path: Path, namespace: str
) -> None:
    manager = make_manager()
    settings: Any = {"engine": ScriptedEngine(), "namespace": namespace, "placement": InProcess()}
    async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as async_manager:
        session = manager.open("chat")
        awaiting = await async_manager.get("chat")
        turns = [session.run(text).wait(30) for text in ("one", "two")]
        assert session.remove(turns[0], 0) == 1 and session.remove(turns[0], 0) == 0
        message = (await awaiting.messages(newest_first=True)).items[1]
        assert message.text == "two" and await awaiting.remove(message) == 1
        waiting = session.append("three", "four")
        assert await awaiting.remove(waiting, 1) == 1
        assert [message.text for message in session.messages()][2:] == ["three"]
        assert [turn.removed for turn in session.turns()] == [(0,), (0,), ()]
        turn = await (await awaiting.start())
        assert texts(turn.blocks) == ["three"]
        of_fork = session.fork().latest()
        assert of_fork
        for wrong, numbers in ((turn, (9,)), (of_fork, ())):
            with pytest.raises(InvalidInputError):
                await awaiting.remove(wrong, *numbers)
    await asyncio.to_thread(audit, manager, "chat")


async def test_versions_outlive_the_process_of_their_session(
    make_ray_manager: MakeManager, tmp_path: Path, namespace: str
) -> None:
    manager = make_ray_manager()
    settings: Any = {"engine": ScriptedEngine(), "namespace": namespace}
    async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as async_manager:
        session = manager.open("chat")
        awaiting = await async_manager.get("chat")
        for text in ("one", "two"):
            session.run(text).wait(30)
        assert session.rerun("other", at=0).wait(30).version == 2
        kill(session)
        with pytest.raises(TurnReplacedError):
            await awaiting.rerun(at=1)
        assert await awaiting.choose(1) and not session.choose(0)
        kill(session)
        turn = await (await awaiting.rerun())
        assert texts(turn.blocks) == ["one", "two"] and turn.version == 2
        assert [turn.index for turn in session.turns()] == [0, 3]
    await asyncio.to_thread(audit, manager, "chat")


async def test_the_async_family_does_the_same(namespace: str) -> None:
    settings: Any = {"engine": ScriptedEngine(), "namespace": namespace, "placement": InProcess()}
    async with AsyncSessionManager("memory://async", **settings) as opened:
        chat = await opened.open("chat", user_id="sarah")
        execution = await chat.run("slow 20")
        kinds = [event.kind async for event in execution.events()]
        assert kinds[0] == "run_started" and kinds[-1] == "run_completed"
        assert (await execution).text == "slow 20"
        waiting = asyncio.create_task((await chat.run("slow 40")).wait())
        await asyncio.sleep(0.05)
        waiting.cancel()
        assert (await chat.info()).active_run_id, "cancelling a wait cancels no run"
        assert await chat.cancel("enough") is True
        with pytest.raises(RunCancelledError, match="enough"):
            await (await chat.execution((await chat.runs())[-1].run_id)).wait()
        with pytest.raises(WaitTimeoutError):
            await (await chat.run("slow 50")).wait(timeout_s=0.05)
        queued = await asyncio.gather(*(chat.run(f"q{n}", if_busy="enqueue") for n in range(5)))
        assert {turn.index for turn in await asyncio.gather(*queued)} == set(range(3, 8))
        assert await opened.count(user_id="sarah") == 1 and len(await opened.list()) == 1
        fork = await chat.fork()
        assert (await (await fork.run("hello"))).text == "hello"
        await chat.end()
        await chat.delete()
    with pytest.raises(StoreClosedError, match="AsyncSessionManager"):
        await opened.open("chat")


def test_a_provider_that_fails_fails_its_turn_only_whatever_it_does(make_manager: MakeManager) -> None:
    """Cases 10 and 23, with the real client over HTTP: wrong key, malformed and cut streams, nobody there."""
    with LocalProvider(api_key="right", reply="Hello.") as provider:

        def engine(model: str = "local", **settings: Any) -> OpenAIEngine:
            arguments: dict[str, Any] = {
                "base_url": provider.base_url,
                "api_key": "right",
                "max_retries": 0,
                **settings,
            }
            return OpenAIEngine(model, **arguments)

        chat = make_manager(engine=engine()).open("chat")
        assert chat.run("first").wait(timeout_s=120).text == "Hello."
        for broken, reason in (
            (engine(api_key="wrong-key"), "401"),
            (engine("local/malformed"), "chat"),
            (engine("local/cut"), "chat"),
            (engine("local/500"), "500"),
            (engine(base_url="http://127.0.0.1:9/v1"), "cannot be reached"),
        ):
            with pytest.raises(RunFailedError, match=reason) as failed:
                make_manager(engine=broken).open("chat").run("again").wait(timeout_s=120)
            assert "wrong-key" not in str(failed.value) and failed.value.turn
        turn = chat.run("last").wait(timeout_s=120)
        assert turn.text == "Hello." and turn.usage and turn.usage.output_tokens
        assert texts(turn.blocks) == ["first", *["again"] * 5, "last"]
    audit(make_manager(), "chat")


def test_what_waits_to_be_said_is_said_once_after_its_process_was_killed(make_ray_manager: MakeManager) -> None:
    """A repeated call finds the run of the first one."""
    chat = make_ray_manager().open("chat")
    assert chat.say("Hello!").wait().text == "Hello!"
    chat.run("slow 500")
    said = chat.say("One more thing.", key="once")
    kill(chat)
    assert chat.say("One more thing.", key="once").run_id == said.run_id
    assert said.wait().text == "One more thing."
    assert [message.text for message in chat.messages()].count("One more thing.") == 1
