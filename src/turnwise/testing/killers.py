"""Killers: each ends one kind of process during a chaos run."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import ray

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.errors import OverloadedError, SessionLostError, SessionNotFoundError, StoreError

ASK_S = 5.0
"""The time limit for asking a session for its process, in seconds."""


class Killer(Protocol):
    """Injects one kind of fault."""

    @property
    def kind(self) -> str:
        """The name of the fault in the report."""

    async def strike(self, dice: random.Random) -> bool:
        """Inject the fault once; return whether there was a target."""


class SessionKiller:
    """Kills the process of a random session by SIGKILL: its dedicated actor, or its packed host with all its sessions.

    Kills only processes that sessions report, on this node of the cluster.
    """

    kind = "SIGKILL of a session's process"

    def __init__(self, manager: AsyncSessionManager, session_ids: Sequence[str]) -> None:
        self._manager = manager
        self._session_ids = session_ids
        self._node_id = ray.get_runtime_context().get_node_id()

    async def strike(self, dice: random.Random) -> bool:
        try:
            session = await self._manager.get(dice.choice(self._session_ids))
            info = await asyncio.wait_for(session.info(), ASK_S)
            if info.pid is None or info.node_id != self._node_id or info.pid == os.getpid():
                return False
            os.kill(info.pid, signal.SIGKILL)
        except (TimeoutError, ProcessLookupError, SessionNotFoundError, SessionLostError, OverloadedError, StoreError):
            return False  # the process is dead already, or not yet started
        return True


class ActorKiller:
    """Kills a random actor whose name has a prefix, such as `turnwise/memory/`; Ray restarts it."""

    def __init__(self, kind: str, namespace: str, prefix: str) -> None:
        self.kind = kind
        self._namespace = namespace
        self._prefix = prefix

    async def strike(self, dice: random.Random) -> bool:
        return await asyncio.to_thread(self._kill, dice)

    def _kill(self, dice: random.Random) -> bool:
        named = ray.util.list_named_actors(all_namespaces=True)
        names = [actor["name"] for actor in named if actor["namespace"] == self._namespace]
        names = sorted(name for name in names if name.startswith(self._prefix))
        if not names:
            return False
        try:
            ray.kill(ray.get_actor(dice.choice(names), namespace=self._namespace), no_restart=False)
        except ValueError:
            return False  # the actor has ended
        return True


class WriteLock:
    """Locks a SQLite file for writing for a random time, as a backup does.

    Args:
        longest_s: the longest time, in seconds. Writers fail if it is longer than their timeout.
    """

    kind = "SQLite file locked by another process"

    def __init__(self, path: Path | str, longest_s: float = 0.5) -> None:
        self._path = str(path)
        self._longest_s = longest_s

    async def strike(self, dice: random.Random) -> bool:
        return await asyncio.to_thread(self._lock, dice.random() * self._longest_s)

    def _lock(self, seconds: float) -> bool:
        try:
            with closing(sqlite3.connect(self._path, timeout=1.0, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                time.sleep(seconds)
                connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False  # another process has locked the file
        return True


class Doing:
    """Calls a function that injects a fault, such as a restart of the store's server.

    Args:
        call: a function, which is called on a thread, or a coroutine function. Its errors end the chaos run.
    """

    def __init__(self, kind: str, call: Callable[[], Any]) -> None:
        self.kind = kind
        self._call = call

    async def strike(self, dice: random.Random) -> bool:
        if inspect.iscoroutinefunction(self._call):
            await self._call()
        else:
            await asyncio.to_thread(self._call)
        return True
