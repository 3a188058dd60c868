"""The code listings of Geppetto's page on sessions, with turnwise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines import BrokenBuilder, ScriptedEngine
from turnwise import AnyEvent, AsyncSessionManager, InProcess, SessionManager
from turnwise.errors import (
    ConfigError,
    EmptyTurnError,
    NoActiveRunError,
    RunCancelledError,
    RunFailedError,
    SessionBusyError,
    SessionNotFoundError,
    WaitTimeoutError,
)

NAMESPACE = "seeds-geppetto"


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionManager]:
    store = f"sqlite:///{tmp_path_factory.mktemp('geppetto')}/chats.db"
    settings = {"engine": ScriptedEngine(), "namespace": NAMESPACE, "placement": InProcess()}
    with SessionManager(store, **settings) as session_manager:  # type: ignore[arg-type]
        yield session_manager


def test_basic_usage(manager: SessionManager) -> None:
    """Create a session, append the first prompt, run, wait, and continue."""
    session = manager.open()
    assert session.session_id
    turn = session.append("What's the weather in Paris?")
    assert turn.index == 0 and turn.status == "pending" and turn.parent is None
    handle = session.start()
    assert (handle.session_id, handle.turn_index) == (session.session_id, turn.index) and handle.run_id
    result = handle.wait()
    assert result == session.latest() and result.text

    second = session.append("What about tomorrow?")
    assert second.parent == result.id
    assert second.blocks[: len(result.blocks)] == result.blocks, "it continues the first turn"
    assert second == session.latest() == session.turn(second.index)
    handle = session.start()
    assert handle.input().blocks == second.blocks, "the handle knows the turn as it was started"
    after = handle.wait()
    assert after.blocks[: len(second.blocks)] == second.blocks and len(after.blocks) == 4
    assert handle.input().blocks == second.blocks and handle.input().text == ""
    assert session.turn(0) == result, "every turn is a complete snapshot, and stays as it was"


def test_multiple_prompts(manager: SessionManager) -> None:
    turn = manager.open().append("Summarize this:", "Also extract key dates.")
    assert [block.text for block in turn.blocks if block.kind == "user"] == [
        "Summarize this:",
        "Also extract key dates.",
    ]


def test_a_polling_loop_ends_when_the_run_has_ended_also_of_a_queued_run(manager: SessionManager) -> None:
    session = manager.open()
    first = session.run("slow 5")
    queued = session.run("slow 5", if_busy="enqueue")
    assert queued.status() == "queued" and queued.is_running() and not queued.is_done()
    run_input = queued.input()
    assert [block.text for block in run_input.new_blocks if block.kind == "user"] == ["slow 5"]
    while queued.is_running():
        pass
    assert queued.is_done() and first.is_done() and queued.status() == "completed"


def test_cancellation_by_the_handle_and_by_the_session(manager: SessionManager) -> None:
    session = manager.open()
    handle = session.run("slow 100000")
    assert handle.cancel() and handle.is_done()
    with pytest.raises(RunCancelledError):
        handle.wait()
    assert not handle.cancel() or handle.status() == "cancelled", "cancelling twice changes nothing"
    handle = session.run("slow 100000")
    assert session.cancel()
    with pytest.raises(NoActiveRunError):
        session.cancel()
    assert session.run("hello").wait().text == "hello"


def test_one_run_is_active_at_a_time_and_any_number_of_callers_wait_for_it(manager: SessionManager) -> None:
    session = manager.open()
    handle = session.run("slow 20")
    with pytest.raises(SessionBusyError):
        session.run("again")
    with pytest.raises(WaitTimeoutError):
        handle.wait(timeout_s=0)
    with ThreadPoolExecutor(4) as pool:
        assert len({pool.submit(handle.wait).result() for _ in range(4)}) == 1


def test_the_table_of_errors(manager: SessionManager) -> None:
    with pytest.raises(EmptyTurnError):
        manager.open().start()
    with pytest.raises(ConfigError):
        SessionManager("memory://geppetto", engine=None)  # type: ignore[arg-type]
    broken = SessionManager(f"memory://{NAMESPACE}", engine=BrokenBuilder(), namespace=NAMESPACE, placement=InProcess())
    with broken, pytest.raises(RunFailedError):
        broken.open().run("hello").wait()


def test_event_sinks_get_each_event_in_order_and_their_failure_fails_nothing(manager: SessionManager) -> None:
    session = manager.open()
    handed_out: list[AnyEvent] = []
    callers = set()

    def sink(event: AnyEvent) -> None:
        callers.add(threading.current_thread())
        handed_out.append(event)
        if event.kind == "run_started":
            raise ValueError("the sink broke")

    handle = session.run("slow 5", on_event=sink)
    assert handle.wait().text == "slow 5"
    assert [event.seq for event in handed_out] == sorted(event.seq for event in handed_out)
    assert (
        handed_out == list(handle.events())
        and handed_out[0].kind == "run_started"
        and handed_out[-1].kind == "run_completed"
    )
    assert "text_delta" in {event.kind for event in handed_out} and threading.current_thread() not in callers

    def waiting(event: AnyEvent) -> None:
        handle.wait()  # also in the sink's own thread
        handed_out.append(event)

    handle = session.run("hello", on_event=waiting)
    turn = handle.wait()
    assert turn.text == "hello" and handed_out[-1].kind == "run_completed" and handed_out[-1].turn_index == turn.index


def test_a_sink_for_all_sessions_that_goes_on_where_it_stopped(manager: SessionManager) -> None:
    ended = threading.Semaphore(0)
    handed_out: list[AnyEvent] = []

    def sink(event: AnyEvent) -> None:
        handed_out.append(event)
        ended.release()

    kinds = ["run_completed", "run_failed"]
    with manager.subscribe(sink, user_id="sue", kinds=kinds) as subscription:
        first = manager.open("first", user_id="sue").run("hello")
        second = manager.open("second", user_id="sue").run("raise")
        manager.open("other", user_id="joe").run("hello").wait()
        assert ended.acquire(timeout=60) and ended.acquire(timeout=60)
    assert {(event.run_id, event.kind) for event in handed_out} == {
        (first.run_id, "run_completed"),
        (second.run_id, "run_failed"),
    }
    third = manager.get("first", user_id="sue").run("missed meanwhile")
    third.wait()
    with manager.subscribe(sink, user_id="sue", kinds=kinds, cursor=subscription.cursor):
        assert ended.acquire(timeout=60)
    assert [event.run_id for event in handed_out[2:]] == [third.run_id]
    with pytest.raises(SessionNotFoundError):
        manager.subscribe(sink, session_id="first", user_id="joe")


async def test_the_same_awaited(
    manager: SessionManager,
) -> None:
    settings = {"engine": ScriptedEngine(), "namespace": NAMESPACE, "placement": InProcess()}
    async with AsyncSessionManager(f"memory://{NAMESPACE}", **settings) as opened:  # type: ignore[arg-type]
        session = await opened.open()
        turn = await session.append("What's the weather in Paris?")
        assert turn == await session.latest() == await session.turn(0)
        event_kinds: list[str] = []

        async def sink(event: AnyEvent) -> None:
            event_kinds.append(event.kind)
            raise ValueError("the sink broke")

        handle = await session.start(on_event=sink)
        result = await handle.wait()
        assert event_kinds[0] == "run_started" and event_kinds[-1] == "run_completed"
        assert (await handle.input()).blocks == turn.blocks != result.blocks
        assert await handle.is_done() and not await handle.is_running()
        kinds: asyncio.Queue[str] = asyncio.Queue()

        async def put(event: AnyEvent) -> None:
            await kinds.put(event.kind)

        async with await opened.subscribe(put, session_id=session.session_id):
            await (await session.run("again"))
            assert [await kinds.get(), await kinds.get()] == ["run_started", "run_completed"]
