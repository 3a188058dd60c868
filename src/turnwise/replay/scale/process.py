"""`WorkerProcess`: a `ChunkWorker` in a process of its own, which opens the store by its URL, and only reads it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from turnwise.actors.client.services.stored_conversations import StoredConversations
from turnwise.actors.hosting.process_memory import collect_rarely
from turnwise.actors.hosting.store_spec import StoreSpec
from turnwise.actors.wire_version import packed
from turnwise.memory.files.access import access_to
from turnwise.memory.files.records import FileLimits
from turnwise.replay.scale.pace import PaceCalls, Permits
from turnwise.replay.scale.plan import join
from turnwise.replay.scale.worker import ChunkWork, ChunkWorker


@dataclass(frozen=True, kw_only=True)
class WorkerProcess:
    """Makes a process's worker: call it there. It pickles."""

    job: ChunkWork
    place: StoreSpec
    namespace: str
    has_memories: bool
    file_limits: FileLimits | None
    pace: PaceCalls
    is_limited: bool

    def __call__(self) -> Callable[[int], bytes]:
        """Return what replays a chunk and returns its receipt, packed. It may be called from several threads."""
        return _Process(self).replay


class _Process:
    def __init__(self, settings: WorkerProcess) -> None:
        collect_rarely()
        self._folder = settings.job.folder
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="turnwise-replay", daemon=True).start()
        self._worker: Future[ChunkWorker] = Future()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(settings), self._loop)

    def replay(self, number: int) -> bytes:
        """Return the receipt of a chunk, packed; nothing if the replay was cancelled."""
        worker = self._worker.result()
        if worker.is_cancelled:
            return b""
        with closing(join(self._folder)):
            try:
                receipt = asyncio.run_coroutine_threadsafe(worker.replay(number), self._loop).result()
            except CancelledError:
                return b""
        return packed(receipt)

    async def _serve(self, settings: WorkerProcess) -> None:
        try:
            stored = await asyncio.to_thread(_opened, settings)
            permits = Permits(settings.pace, is_limited=settings.is_limited)
            async with ChunkWorker(stored, settings.job, permits).running() as worker:
                self._worker.set_result(worker)
                await asyncio.Event().wait()  # until the process ends
        except Exception as error:  # noqa: BLE001 - whoever waits for the worker gets it
            if not self._worker.done():
                self._worker.set_exception(error)


def _opened(settings: WorkerProcess) -> StoredConversations:
    from turnwise.actors.cluster.runtime import RayRuntime

    runtime: Any = RayRuntime(settings.namespace)
    place = replace(settings.place, read_only=isinstance(settings.place.url, str))
    store = place.open_store(runtime)
    files = None
    if place.has_files and settings.file_limits:
        files = access_to(store, place.open_files(store), settings.file_limits)
    return StoredConversations(store, files, settings.has_memories)
