"""Requests and answers over a Unix socket: many at once, of any size, with processes that end."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from turnwise.actors.cluster.shared_actors.unix_socket import Connection, path_of, serve


async def echo(request: bytes) -> bytes:
    """Answer after a while, so that answers come in another order than requests."""
    await asyncio.sleep(random.Random(request).random() / 100)
    return request[::-1]


async def test_each_of_many_requests_gets_its_own_answer_whatever_its_size(tmp_path: Path) -> None:
    server = await serve(tmp_path / "s", echo)
    connections = [await Connection.open(tmp_path / "s") for _ in range(3)]
    sizes = [*(0, 1, 11, 12, 13, 70_000) * 20, *[5_000_000] * 3]
    requests = [os.urandom(size) for size in sizes]
    calls = [connections[index % 3].ask(request) for index, request in enumerate(requests)]
    assert await asyncio.gather(*calls) == [request[::-1] for request in requests]
    for connection in connections:
        connection.close()
    server.close()


async def test_who_gives_up_leaves_the_answers_of_others_alone(tmp_path: Path) -> None:
    server = await serve(tmp_path / "s", echo)
    connection = await Connection.open(tmp_path / "s")
    calls = [asyncio.create_task(connection.ask(b"%d" % number)) for number in range(100)]
    await asyncio.sleep(0)
    for task in calls[::2]:
        task.cancel()
    assert await asyncio.gather(*calls[1::2]) == [(b"%d" % number)[::-1] for number in range(1, 100, 2)]
    assert connection.is_open and await connection.ask(b"ab") == b"ba"
    connection.close()
    server.close()


LISTENER = """
import asyncio, sys
from pathlib import Path
from turnwise.actors.cluster.shared_actors.unix_socket import serve

async def hang(request):
    await asyncio.sleep(1000 if request == b"hang" else 0)
    return request

async def main():
    await serve(Path(sys.argv[1]), hang)
    print(1, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


async def test_a_request_to_a_process_that_is_killed_is_an_error_and_the_next_process_can_listen_there(
    tmp_path: Path,
) -> None:
    with pytest.raises(FileNotFoundError):
        await Connection.open(tmp_path / "s")
    for _ in range(2):
        command = [sys.executable, "-c", LISTENER, str(tmp_path / "s")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
            assert process.stdout and process.stdout.readline() == "1\n"
            connection = await Connection.open(tmp_path / "s")
            assert await connection.ask(b"quick") == b"quick"
            call = asyncio.create_task(connection.ask(b"hang"))
            await asyncio.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            with pytest.raises(ConnectionError, match="lost"):
                await call
        assert not connection.is_open
        with pytest.raises(ConnectionError):
            await connection.ask(b"more")
        connection.close()
        with pytest.raises(ConnectionRefusedError):  # the socket is there still, and nobody listens
            await Connection.open(tmp_path / "s")


async def test_a_connection_that_is_closed_tells_those_who_wait(tmp_path: Path) -> None:
    server = await serve(tmp_path / "s", echo)
    connection = await Connection.open(tmp_path / "s")
    call = asyncio.create_task(connection.ask(b"a"))
    await asyncio.sleep(0)
    connection.close()
    with pytest.raises(ConnectionError):
        await call
    server.close()


def test_the_folder_of_sockets_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = path_of("name")
    assert path.name == "name" and path.parent.stat().st_mode & 0o777 == 0o700
    assert path_of("name") == path
    path.parent.chmod(0o755)
    with pytest.raises(OSError, match="remove it"):
        path_of("name")
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(OSError, match="remove it"):
        path_of("name")


async def test_a_process_that_may_answer_no_more_closes_the_connection(tmp_path: Path) -> None:
    may = True
    server = await serve(tmp_path / "s", echo, may_answer=lambda: may)
    connection = await Connection.open(tmp_path / "s")
    assert await connection.ask(b"ab") == b"ba"
    may = False
    with pytest.raises(ConnectionError):
        await connection.ask(b"ab")
    assert not connection.is_open
    server.close()
