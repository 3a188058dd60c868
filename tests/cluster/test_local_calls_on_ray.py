"""Calls to actors on the caller's machine go over a socket, and by Ray whenever that gives no answer."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from test_sessions_on_ray import kill

from engines import process_of
from patience import until
from scale import one_a_day
from turnwise import AsyncSessionManager, EchoEngine, Packed, Session, SessionConfig, SessionManager, WaitTimeoutError
from turnwise.actors.cluster.calls import local_calls
from turnwise.actors.cluster.calls.local_calls import _BY_LOOP, _IDLE
from turnwise.actors.cluster.calls.unix_socket import Connection, serve
from turnwise.actors.hosting import reach
from turnwise.memory.values.ids import new_id

MakeManager = Callable[..., SessionManager]
WAIT_S = 60.0
ONE_PLACEMENT = one_a_day("options", [{}, {"placement": Packed(hosts=1)}], ["dedicated", "packed"])


@contextmanager
def counted() -> Iterator[list[bool]]:
    """Count the calls of this block: true for each that was answered over a socket."""
    answered = list[bool]()
    ask, ask_blocking = local_calls.ask, local_calls.ask_blocking

    async def counting(*args: Any) -> bytes | None:
        answer = await ask(*args)
        answered.append(answer is not None)
        return answer

    def counting_blocking(*args: Any) -> bytes | None:
        answer = ask_blocking(*args)
        answered.append(answer is not None)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_calls, "ask", counting)
        patch.setattr(local_calls, "ask_blocking", counting_blocking)
        yield answered


def talk(chat: Session, prompt: str = "Hello.") -> str:
    return chat.run(prompt).wait(WAIT_S).text


def connect(chat: Session) -> None:
    """Ask the session until it answers over its socket."""

    def is_connected() -> bool:
        with counted() as answered:
            chat.latest()
        return answered == [True]

    until(is_connected)


@ONE_PLACEMENT
def test_turns_of_one_machine_take_no_call_of_ray(
    make_ray_manager: MakeManager, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = make_ray_manager(engine=EchoEngine(), **options).open("chat")
    talk(chat)
    connect(chat)
    monkeypatch.setattr(ray.actor.ActorHandle, "_actor_method_call", None)
    assert [talk(chat, f"Hello {number}.") for number in range(3)]
    assert len(list(chat.run("Stream.").events())) > 2
    assert [turn.index for turn in chat.turns()] == [0, 1, 2, 3, 4]


@ONE_PLACEMENT
async def test_many_tasks_share_a_connection(ray_address: str, options: dict[str, Any], tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/chats.db"
    async with AsyncSessionManager(store, engine=EchoEngine(), **options) as manager:
        chats = [await manager.open(f"chat-{number}") for number in range(4)]

        async def answers() -> list[str]:
            runs = [await chat.run(f"I am {number}.") for number, chat in enumerate(chats)]
            return [(await run.wait(WAIT_S)).text for run in runs]

        texts = await answers()
        with counted() as answered:
            while not any(answered):
                assert await answers() == texts
                await asyncio.sleep(0.1)
        for number, text in enumerate(texts):
            assert f"I am {number}." in text
        ours = _BY_LOOP[asyncio.get_running_loop()].all()
        assert 0 < len(ours) <= len(chats) and all(connection.is_idle for connection in ours)


def test_threads_that_wait_each_have_a_connection(make_ray_manager: MakeManager) -> None:
    chat = make_ray_manager(engine=EchoEngine()).open("chat")
    talk(chat)
    connect(chat)
    with ThreadPoolExecutor(40) as threads:
        turns = list(threads.map(lambda _: chat.latest(), range(400)))
    assert {turn.index for turn in turns if turn} == {0}
    idle = _IDLE.get(local_calls.id_of(chat.actor))
    assert idle and len(idle) <= local_calls.MOST_IDLE


@ONE_PLACEMENT
def test_a_killed_process_loses_no_turn_that_is_asked_for_over_its_socket(
    make_ray_manager: MakeManager, options: dict[str, Any]
) -> None:
    chat = make_ray_manager(engine=EchoEngine(), **options).open("chat")
    talk(chat)
    for number in range(3):
        connect(chat)
        kill(chat)
        assert f"After kill {number}." in talk(chat, f"After kill {number}.")
    assert [turn.index for turn in chat.turns()] == [0, 1, 2, 3]


def test_a_process_killed_during_a_wait_answers_by_its_next(make_ray_manager: MakeManager) -> None:
    resuming = SessionConfig(on_lost="resume")
    chat = make_ray_manager(engine=EchoEngine(token_delay_s=0.2), config=resuming).open("chat")
    talk(chat)
    connect(chat)
    run = chat.run("Slowly, with some words.")
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(run.wait, WAIT_S)
        time.sleep(0.2)
        kill(chat)
        assert "Slowly," in waiter.result(WAIT_S).text


def test_a_callers_time_ends_also_over_a_socket(make_ray_manager: MakeManager) -> None:
    chat = make_ray_manager(engine=EchoEngine(token_delay_s=0.2)).open("chat")
    talk(chat)
    connect(chat)
    pid, run = process_of(chat.info()), chat.run("Hello.")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(WaitTimeoutError):
            run.wait(0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert talk(chat)


def test_who_is_left_by_a_process_that_is_no_more_the_actors_asks_by_ray(
    make_ray_manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen process whose raylet has died keeps its connections, and Ray starts the actor elsewhere."""
    chat = make_ray_manager(engine=EchoEngine()).open("chat")
    talk(chat)
    connect(chat)
    pid = process_of(chat.info())
    elsewhere = reach.Presence(True, pid + 1, "it is elsewhere")
    monkeypatch.setattr(local_calls, "presence", lambda actor: elsewhere)
    monkeypatch.setattr(reach, "LOOK_S", 0.05)
    os.kill(pid, signal.SIGSTOP)
    with counted() as answered, ThreadPoolExecutor(1) as threads:
        turn = threads.submit(chat.latest)
        until(lambda: answered == [False])  # it asks by Ray now
        os.kill(pid, signal.SIGCONT)
        assert turn.result(WAIT_S)


def test_a_forked_process_leaves_its_parents_connections_alone(make_ray_manager: MakeManager) -> None:
    chat = make_ray_manager(engine=EchoEngine()).open("chat")
    talk(chat)
    connect(chat)
    assert _IDLE.get(local_calls.id_of(chat.actor))
    if (pid := os.fork()) == 0:
        os._exit(0 if _IDLE.get(local_calls.id_of(chat.actor)) is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    with counted() as answered:
        assert chat.latest()
    assert answered == [True]


def test_connections_of_closed_event_loops_are_closed(ray_address: str, tmp_path: Any) -> None:
    async def main() -> Connection:
        async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()) as manager:
            chat = await manager.open("chat")
            await (await chat.run("Hello.")).wait(WAIT_S)
            while not _BY_LOOP[asyncio.get_running_loop()].all():
                await asyncio.sleep(0.1)
                await chat.latest()
            return _BY_LOOP[asyncio.get_running_loop()].all()[0]

    connections = [asyncio.run(main()) for _ in range(2)]
    assert [connection.is_open for connection in connections] == [False, True]
    connections.clear()
    gc.collect()
    assert sum(loop.is_closed() for loop in _BY_LOOP) == 1


def test_the_least_recently_used_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, busy = list[str](), {"b"}
    connections = local_calls.Connections[str](closed.append, lambda name: name not in busy)
    monkeypatch.setattr(local_calls, "MOST_ACTORS", 3)
    for actor_id in "abc":
        connections.keep(actor_id, actor_id)
    assert connections.get("a") == "a"
    for actor_id in "def":
        connections.keep(actor_id, actor_id)
    assert closed == ["c", "a", "d"], "b is busy, and a was used after c"
    connections.drop("e")
    connections.close()
    assert closed[3] == "e" and {*closed[4:]} == {"b", "f"}


async def test_a_verb_that_fails_unexpectedly_is_asked_for_by_ray() -> None:
    """Ray hands on the error, which a socket does not."""

    async def fail(request: bytes) -> bytes:
        raise ValueError(request)

    name = new_id()
    actor = SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: name))
    with closing(await serve(name, fail)):
        assert await local_calls.ask(actor, b"verb", reach.Reach(time.monotonic())) is None
        blocking = asyncio.to_thread(local_calls.ask_blocking, actor, b"verb", reach.Reach(time.monotonic()))
        assert await blocking is None
        _IDLE.drop(name)
        _BY_LOOP[asyncio.get_running_loop()].drop(name)
        await asyncio.sleep(0.01)  # the other side closes its connections


def test_a_caller_that_found_nobody_tries_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()

    def refuse(actor_id: str) -> str:
        tried.append(actor_id)
        raise ConnectionRefusedError

    connections = local_calls.Connections[str](lambda _: None, lambda _: True)
    assert [connections.connect("a", refuse) for _ in range(3)] == [None] * 3 and tried == ["a"]
    later = time.monotonic() + local_calls.AGAIN_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert connections.connect("a", str) == "a"
