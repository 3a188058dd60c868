"""Requests and answers over a Unix socket: many at once, of any size, with processes that end."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing

import pytest

from turnwise.actors.cluster.calls.unix_socket import BlockingConnection, Connection, serve
from turnwise.memory.values.ids import new_id


async def reverse(request: bytes) -> bytes:
    """Answer after a while, so that answers come in another order than requests."""
    await asyncio.sleep(random.Random(request).random() / 100)
    return request[::-1]


@pytest.fixture
def name() -> str:
    return new_id()


Blocking = Callable[[bytes], bytes | None]


def blocking_call(name: str) -> Blocking:
    """Return a function that asks over a connection of its own, and receives in steps of a few milliseconds."""

    def ask(request: bytes) -> bytes | None:
        with closing(BlockingConnection(name)) as connection:
            connection.send(request, 60)
            while (answer := connection.receive(0.003)) is None:
                pass
            return answer

    return ask


async def test_each_of_many_requests_gets_its_own_answer_whatever_its_size(name: str) -> None:
    with closing(await serve(name, reverse)):
        connections = [Connection(name) for _ in range(3)]
        sizes = [*(0, 1, 11, 12, 13, 70_000) * 20, *[5_000_000] * 3]
        requests = [os.urandom(size) for size in sizes]
        calls = [connections[index % 3].ask(request) for index, request in enumerate(requests)]
        assert await asyncio.gather(*calls) == [request[::-1] for request in requests]
        assert all(connection.peer_pid == os.getpid() and connection.is_idle for connection in connections)
        for connection in connections:
            connection.close()


async def test_threads_get_their_own_answers_whatever_their_size(name: str) -> None:
    requests = [os.urandom(size) for size in [*(0, 1, 11, 12, 13, 70_000) * 5, 5_000_000]]
    loop = asyncio.get_running_loop()
    with closing(await serve(name, reverse)), ThreadPoolExecutor(8) as threads:
        calls = [loop.run_in_executor(threads, blocking_call(name), request) for request in requests]
        assert await asyncio.gather(*calls) == [request[::-1] for request in requests]


async def test_who_gives_up_leaves_the_answers_of_others_alone(name: str) -> None:
    with closing(await serve(name, reverse)), closing(Connection(name)) as connection:
        calls = [connection.ask(b"%d" % number) for number in range(100)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        assert await asyncio.gather(*calls[1::2]) == [(b"%d" % number)[::-1] for number in range(1, 100, 2)]
        assert connection.is_open and await connection.ask(b"ab") == b"ba"


LISTENER = """
import asyncio, sys
from turnwise.actors.cluster.calls.unix_socket import serve

async def hang(request):
    await asyncio.sleep(1000 if request == b"hang" else 0)
    return request

async def main():
    await serve(sys.argv[1], hang)
    print(1, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def listening(name: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Start a process that answers, and return it once it does."""
    process = subprocess.Popen([sys.executable, "-c", LISTENER, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "1\n"
    return process


async def test_a_killed_process_is_an_error_and_the_next_can_listen_there(name: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        Connection(name)
    for _ in range(2):
        with listening(name) as process:
            connection, thread_connection = Connection(name), BlockingConnection(name)
            assert connection.peer_pid == thread_connection.peer_pid == process.pid
            assert await connection.ask(b"quick") == b"quick"
            call = connection.ask(b"hang")
            thread_connection.send(b"hang", 60)
            process.send_signal(signal.SIGKILL)
            with pytest.raises(ConnectionError, match="lost"):
                await call
            with pytest.raises(ConnectionError):
                thread_connection.receive(60)
        thread_connection.close()
        assert not connection.is_open
        with pytest.raises(ConnectionError):
            await connection.ask(b"more")
        connection.close()
        with pytest.raises(ConnectionRefusedError):
            Connection(name)


async def test_a_process_that_reads_nothing_holds_up_nobody(name: str) -> None:
    """What the socket does not take is sent later, or never: the event loop goes on, and a thread gives up."""
    with listening(name) as process:
        connection, thread_connection = Connection(name), BlockingConnection(name)
        process.send_signal(signal.SIGSTOP)
        large = os.urandom(5_000_000)
        call = connection.ask(large)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(thread_connection.send, large, 0.05)
        thread_connection.close()
        assert not call.done()
        process.send_signal(signal.SIGCONT)
        assert await call == large
        connection.close()
        process.kill()


async def test_a_connection_that_is_closed_tells_those_who_wait(name: str) -> None:
    with closing(await serve(name, reverse)):
        connection = Connection(name)
        call = connection.ask(b"a")
        connection.close()
        with pytest.raises(ConnectionError):
            await call


async def test_a_failed_request_has_an_empty_answer(name: str) -> None:
    async def fail(request: bytes) -> bytes:
        raise ValueError(request)

    with closing(await serve(name, fail)), closing(Connection(name)) as connection:
        assert await connection.ask(b"a") == b""


async def test_a_name_belongs_to_one_process(name: str) -> None:
    with closing(await serve(name, reverse)), pytest.raises(OSError, match="in use"):
        await serve(name, reverse)


async def test_processes_of_other_users_get_no_answer_and_no_request(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(await serve(name, reverse)):
        connection = Connection(name)
        own = os.geteuid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: own + 1)  # now the process at the other end is another user's
            call = connection.ask(b"ab")  # the server looks when it accepts the connection, which it does next
            for connect in (Connection, BlockingConnection):
                with pytest.raises(PermissionError, match=f"user {own}"):
                    connect(name)
            with pytest.raises(ConnectionError):
                await call
        with closing(Connection(name)) as other:
            assert await other.ask(b"ab") == b"ba"


async def test_a_process_that_may_answer_no_more_closes_the_connection(name: str) -> None:
    may = True
    with closing(await serve(name, reverse, may_answer=lambda: may)):
        connection = Connection(name)
        assert await connection.ask(b"ab") == b"ba"
        may = False
        with pytest.raises(ConnectionError):
            await connection.ask(b"ab")
        assert not connection.is_open
