"""Fixtures for tests of programs that use turnwise, without Ray, network or model: for pytest.

`pytest_plugins = ["turnwise.testing.pytest_plugin"]` in the root `conftest.py`, or in a file of tests, makes them
known; otherwise nothing of it is imported. Each fixture imports what it needs when a test asks for it. Tests of
coroutines may use any plugin that runs them: no fixture is asynchronous itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from turnwise.actors.client.blocking.manager import SessionManager
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.inference.engine import EngineBuilder
    from turnwise.testing.faults import Faults
    from turnwise.testing.fixtures.frozen_clock import FrozenClock
    from turnwise.testing.fixtures.make_manager import MakeManager
    from turnwise.testing.scripted_engine import RecordingEngine


@pytest.fixture
def frozen_clock() -> FrozenClock:
    """The time of the test's store, which `advance` moves: of new sessions, commits and their expiry.

    Pass it as `clock=` to long-term memories, too. Ids are made by the time of the machine, and timeouts pass in real
    time.
    """
    from turnwise.testing.fixtures.frozen_clock import FrozenClock

    return FrozenClock()


@pytest.fixture
def turnwise_faults() -> Faults:
    """The faults of the test's store: none, until the test sets its `plan`; see `FaultPlan`.

    Also pass it to a `FaultyEngine`. Nothing can crash here, since sessions run in the process of the tests.
    """
    from turnwise.testing.faults import Faults

    return Faults()


@pytest.fixture
def scripted_engine() -> type[RecordingEngine]:
    """Makes an engine of the answers of a script, whose `calls` are what it was given; see `ScriptedEngine`."""
    from turnwise.testing.scripted_engine import RecordingEngine

    return RecordingEngine


@pytest.fixture
def turnwise_store(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of the test's store, which its managers share: in memory, empty, and gone after the test.

    It has the time of `frozen_clock` and the faults of `turnwise_faults`, if the test uses these.
    """
    from turnwise.actors.in_process.runtime import SharedStore, share_store, unshare_store
    from turnwise.memory.stores.in_memory import InMemoryStore
    from turnwise.memory.values.ids import new_id
    from turnwise.testing.faulty_store import with_faults

    is_used = request.fixturenames.__contains__
    clock: Callable[[], float] = request.getfixturevalue("frozen_clock") if is_used("frozen_clock") else time.time
    store: Any = SharedStore(InMemoryStore(clock=clock))
    if is_used("turnwise_faults"):
        store = with_faults(store, request.getfixturevalue("turnwise_faults"))
    url = f"memory://test-{new_id()}"
    share_store(url, store)
    yield url
    unshare_store(url)


@pytest.fixture
def turnwise_manager(turnwise_store: str) -> Iterator[MakeManager[SessionManager]]:
    """Makes managers of the test's store: `turnwise_manager(engine, **settings)`; see `MakeManager`."""
    from turnwise.actors.client.blocking.manager import SessionManager

    managers: list[SessionManager] = []
    yield _maker(SessionManager, turnwise_store, managers)
    for manager in managers:
        manager.close()


@pytest.fixture
def async_turnwise_manager(turnwise_store: str) -> Iterator[MakeManager[AsyncSessionManager]]:
    """Makes managers with coroutine methods of the test's store, each for one event loop; see `MakeManager`.

    A manager of a store in memory may be left open: it is closed after the test. Others end by `async with`.
    """
    import asyncio

    from turnwise.actors.client.manager import AsyncSessionManager

    managers: list[AsyncSessionManager] = []
    yield _maker(AsyncSessionManager, turnwise_store, managers)

    async def close() -> None:
        for manager in managers:
            await manager.close()

    # On a thread, since the plugin that runs the tests keeps an event loop on this one.
    closing = threading.Thread(target=asyncio.run, args=[close()])
    closing.start()
    closing.join()


def _maker(kind: Callable[..., Any], store: str, managers: list[Any]) -> MakeManager[Any]:
    from turnwise.actors.hosting.placement import InProcess
    from turnwise.actors.inference.echo import EchoEngine

    def make(engine: EngineBuilder | None = None, /, **settings: Any) -> Any:
        defaults: dict[str, Any] = {"store": store, "placement": InProcess()}
        manager = kind(engine=engine or EchoEngine(), **{**defaults, **settings})
        managers.append(manager)
        return manager

    return make
