"""`serve`: runs a service on uvicorn, in this process or in several, until it is told to stop.

A stop has an order. The port is closed; streams end where clients can resume them; requests that are under way may end
within `stop_s`; then the manager is closed. Runs go on in a Ray that outlives the service; the client comes back to
them through any other process of the service, with `Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from turnwise.actors.wire_version import packed, unpacked_settings
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.http.assembly import Assembly, assemble
from turnwise.http.config import ServiceConfig, Source
from turnwise.http.server import listening
from turnwise.http.server.listening import url_of
from turnwise.http.server.log import configure_logging
from turnwise.memory.stores.encrypted.records import check_session
from turnwise.memory.stores.urls import open_store

SIGNALS = (signal.SIGINT, signal.SIGTERM)

STOP_MARGIN_S = 5.0
"""How much longer than `stop_s` a process may take to end before it is killed, in seconds."""

RETRY_S = 1.0
"""How long after a replacement did not start another is tried, in seconds."""

_log = logging.getLogger(__name__)

Ready = Callable[[Assembly, str], None]
"""Called with what is served, and its URL, when requests are answered."""


def listen(config: ServiceConfig, source: Source) -> socket.socket:
    """Return the bound socket on which the service will listen.

    Raises:
        ConfigError: the port is taken, or the host is none of this machine's.
    """
    try:
        bound = listening.listen(config.host, config.port)
    except socket.gaierror as error:
        raise source.error(("host",), config.host, f"it cannot be resolved: {error.strerror}") from None
    except OSError as error:
        reason = f"the port cannot be opened ({error.strerror}): stop the program that uses it, or choose another; "
        reason += "0 takes a free one"
        raise source.error(("port",), config.port, reason) from None
    bound.set_inheritable(True)
    return bound


async def check_store(config: ServiceConfig, source: Source) -> None:
    """Open the store and read its clock and newest session, before anything is started.

    Raises:
        ConfigError, StoreError: it cannot be opened, or does not answer.
        StillEncryptedError: it is encrypted, and the configuration has no keys.
    """
    if config.store.startswith("memory:"):
        return
    with source.at("store"):
        store = await asyncio.to_thread(open_store, config.store)
        try:
            await store.now()
            if config.encryption is None:
                for session in await store.query(limit=1):
                    check_session(session)
        finally:
            await store.close()


def serve(config: ServiceConfig, source: Source, ready: Ready) -> None:
    """Serve until SIGTERM or SIGINT; returns when everything has ended in order. For the main thread.

    With several workers, this process listens, starts or joins Ray, and replaces a worker that ends by itself. With
    sessions in this process, no Ray is needed; their runs end with it, and those that were open go on, or are ended,
    when the service starts again.

    Raises:
        TurnwiseError: it cannot start: the configuration is wrong, the port is taken, the store is away.
    """
    listening.raise_file_limit()
    assembly = assemble(config, source)
    with contextlib.closing(listen(config, source)) as bound:
        asyncio.run(check_store(config, source))
        if config.placement != "in_process":
            _join_ray(config)
        if config.workers == 1:
            asyncio.run(serve_here(assembly, bound, lambda: ready(assembly, url_of(bound))))
        else:
            _Workers(config, source, bound, lambda: ready(assembly, url_of(bound))).run()


def _join_ray(config: ServiceConfig) -> None:
    """Join or start Ray, and name it for other workers. On the main thread, as Ray would warn about another."""
    from turnwise.actors.cluster.ray_runtime import connect, this_ray

    _log.info("starting: where no Ray runs yet, that takes some seconds")
    connect(logs=False)
    if config.workers > 1:
        os.environ["RAY_ADDRESS"] = this_ray().address


async def serve_here(assembly: Assembly, bound: socket.socket, ready: Callable[[], None]) -> None:
    async with assembly.manager:
        # To look for garbage among all that was imported held all streams up for a tenth of a second, again and again.
        gc.collect()
        gc.freeze()
        await _Server(assembly, ready).serve([bound])


class _Server(listening.Server):
    """Ends streams when it stops, and after a signal returns instead of dying of it."""

    def __init__(self, assembly: Assembly, ready: Callable[[], None]) -> None:
        super().__init__(
            assembly.app,
            assembly.config.http.protocol,
            stop_s=assembly.config.stop_s,
            ready=ready,
            stopping=assembly.service.stop,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Workers:
    """Processes that answer requests on one socket. One that ends by itself is replaced.

    If one of the first does not start, none serves. Later, one that does not start is tried again.
    """

    def __init__(self, config: ServiceConfig, source: Source, bound: socket.socket, ready: Callable[[], None]) -> None:
        self._config = config
        self._start_with = packed((config, source))
        self._bound = bound
        self._ready = ready
        self._processes: dict[SpawnProcess, Connection] = {}
        self._started: set[SpawnProcess] = set()
        """Those that answer requests, or did."""
        self._have_started = False
        """Whether the first ones have all started."""
        self._wakes, self._woken = socket.socketpair()
        self._is_stopping = False

    def run(self) -> None:
        """Keep the workers until a signal comes; then end them."""
        before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            for _ in range(self._config.workers):
                self._start()
            while not self._is_stopping:
                self._watch()
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True
        self._wakes.send(b".")

    def _start(self) -> None:
        parent_end, child_end = get_context("spawn").Pipe()
        process = get_context("spawn").Process(
            target=_work, args=(self._start_with, self._bound, child_end), name="turnwise-serve"
        )
        process.start()
        child_end.close()
        self._processes[process] = parent_end

    def _watch(self) -> None:
        """Wait until a worker is ready or has ended, or a signal has come."""
        waiting = [pipe for process, pipe in self._processes.items() if process not in self._started]
        sentinels = [process.sentinel for process in self._processes]
        missing = self._config.workers - len(self._processes)
        ready_objects = wait([self._woken, *waiting, *sentinels], RETRY_S if missing else None)
        if not ready_objects:
            self._start()
        for process, pipe in list(self._processes.items()):
            if pipe in ready_objects and process not in self._started:
                with contextlib.suppress(EOFError):
                    pipe.recv()
                    self._started.add(process)
                    if not self._have_started and self._started.issuperset(self._processes):
                        self._have_started = True
                        self._ready()
            if process.sentinel in ready_objects and not self._is_stopping:
                self._replace(process)

    def _replace(self, process: SpawnProcess) -> None:
        process.join()
        self._processes.pop(process).close()
        if process in self._started:
            _log.warning("worker process %s ended with exit code %s and is replaced", process.pid, process.exitcode)
            self._start()
        elif self._have_started:
            _log.error("worker process %s did not start; see its error. Another is tried soon", process.pid)
        else:
            raise ConfigError("workers", self._config.workers, f"process {process.pid} did not start; see its error")

    def _end(self) -> None:
        self._bound.close()
        for process in self._processes:
            process.terminate()
        for process, pipe in self._processes.items():
            process.join(self._config.stop_s + STOP_MARGIN_S)
            if process.is_alive():
                _log.error("worker process %s did not stop and is killed", process.pid)
                process.kill()
                process.join()
            pipe.close()
        self._wakes.close()
        self._woken.close()


def _work(start: bytes, bound: socket.socket, parent: Connection) -> None:
    """Be a worker: serve until a signal comes, or the parent has gone.

    Args:
        start: the configuration and its source, `packed`: another version may have been installed since the parent
            started.
    """
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # while it starts; a terminal sends it to the parent, too
    try:
        config, source = unpacked_settings(start)
        asyncio.run(_serve_for(assemble(config, source), bound, parent))
    except TurnwiseError as error:
        sys.exit(f"error: {error}")


async def _serve_for(assembly: Assembly, bound: socket.socket, parent: Connection) -> None:
    def orphaned() -> None:
        asyncio.get_running_loop().remove_reader(parent.fileno())
        os.kill(os.getpid(), signal.SIGTERM)

    asyncio.get_running_loop().add_reader(parent.fileno(), orphaned)
    await serve_here(assembly, bound, lambda: parent.send(os.getpid()))
