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
"""How long a session may take to say where it lives, in seconds."""


class Killer(Protocol):
    """Injects one kind of fault."""

    @property
    def kind(self) -> str:
        """What it does, for the report, and where."""

    async def strike(self, dice: random.Random) -> bool:
        """Do it once; return whether there was anything to do it to."""


class SessionKiller:
    """SIGKILLs the process of one of some sessions: its own, or its packed host, with all that live there.

    Only a process that the session itself names, on this node of the cluster.
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
            return False  # it has died already, or not begun
        return True


class ActorKiller:
    """Kills an actor of a namespace whose name begins so, such as `turnwise/memory/`; Ray starts it again."""

    def __init__(self, kind: str, namespace: str, prefix: str) -> None:
        self.kind = kind
        self._namespace = namespace
        self._prefix = prefix

    async def strike(self, dice: random.Random) -> bool:
        return await asyncio.to_thread(self._kill, dice)

    def _kill(self, dice: random.Random) -> bool:
        named = ray.util.list_named_actors(all_namespaces=True)
        found = [each["name"] for each in named if each["namespace"] == self._namespace]
        found = sorted(name for name in found if name.startswith(self._prefix))
        if not found:
            return False
        try:
            ray.kill(ray.get_actor(dice.choice(found), namespace=self._namespace), no_restart=False)
        except ValueError:
            return False  # it has left
        return True


class WriteLock:
    """Holds the write lock of a SQLite file for a while, as a backup does. Any longer than its writers wait, they fail.

    Args:
        longest_s: for how long at most, in seconds.
    """

    kind = "SQLite file locked by another process"

    def __init__(self, path: Path | str, longest_s: float = 0.5) -> None:
        self._path = str(path)
        self._longest_s = longest_s

    async def strike(self, dice: random.Random) -> bool:
        return await asyncio.to_thread(self._hold, dice.random() * self._longest_s)

    def _hold(self, seconds: float) -> bool:
        try:
            with closing(sqlite3.connect(self._path, timeout=1.0, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                time.sleep(seconds)
                connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False  # others hold it
        return True


class Doing:
    """Calls what it is given: to kill a store's server and start it again, or a node.

    Args:
        call: takes nothing, may be a coroutine function; else it is called on a thread. Raises if it fails.
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
