"""Who stores a delivery waits for its dispatcher's actor for a bounded time, whatever becomes of that."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.actors.cluster import dispatcher_process
from turnwise.actors.cluster.dispatcher_process import DispatcherProcess
from turnwise.actors.hosting.placement import Dedicated
from turnwise.actors.hosting.reach import Presence
from turnwise.errors import StoreError
from turnwise.memory.stores.conformance.fixtures import a_delivery, own
from turnwise.memory.stores.in_memory import InMemoryStore


class Silent:
    """An actor that does not answer."""

    @property
    def expect(self) -> Silent:
        return self

    def remote(self) -> None:
        """Send a call of which nobody hears."""


async def never(actor: Any, ref: Any) -> Any:
    await asyncio.Event().wait()


def an_alarm(monkeypatch: pytest.MonkeyPatch, presence: Presence) -> DispatcherProcess:
    """Return an alarm whose actor does not answer, and of which Ray says this."""
    spec: Any = None
    alarm = DispatcherProcess("space", "store", Dedicated(), spec)
    monkeypatch.setattr(alarm, "_find", Silent)
    monkeypatch.setattr(dispatcher_process, "reached", never)
    monkeypatch.setattr(dispatcher_process, "ANSWER_S", 0.01)
    monkeypatch.setattr(dispatcher_process, "presence", lambda actor: presence)
    return alarm


async def test_an_actor_that_ray_starts_again_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    await an_alarm(monkeypatch, Presence(False, 0, "restarting", is_coming=True)).expect()


@pytest.mark.parametrize("count", [0, 1])
async def test_the_actor_is_started_if_something_is_to_be_due(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = InMemoryStore()
    await own(store)
    for number in range(count):
        await store.add_delivery(a_delivery(f"d{number}"))
    spec: Any = SimpleNamespace(place=SimpleNamespace(open_store=lambda runtime: store))
    alarm, started = DispatcherProcess("space", "store", Dedicated(), spec), []

    async def expect() -> None:
        started.append(True)

    monkeypatch.setattr(alarm, "_find", lambda: None)
    monkeypatch.setattr(alarm, "expect", expect)
    await alarm.carry_on()
    assert len(started) == count


async def test_an_actor_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = an_alarm(monkeypatch, Presence(True, 7, "alive"))
    monkeypatch.setattr(dispatcher_process, "EXPECT_S", 0.2)
    with pytest.raises(StoreError, match="begins scheduled runs cannot be reached"):
        await alarm.expect()
