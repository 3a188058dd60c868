"""The way to a session's process, with processes that die as the test says: no Ray, and a clock of the test's."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from ray.exceptions import RayActorError

from turnwise.actors.client import cluster_client as realm_module
from turnwise.actors.client.cluster_client import ClusterClient
from turnwise.actors.client.requests import Call, Pause
from turnwise.actors.cluster.reach import REACH_S
from turnwise.actors.cluster.wire import SessionRef
from turnwise.actors.hosting import verbs
from turnwise.errors import SessionLostError
from turnwise.memory.conversation.sessions import SessionKey


class Remote:
    """Stands for an actor, its method, and the homes that find it."""

    missed = 0
    is_shared = False

    def actor(self, session_id: str) -> Remote:
        return self

    def invalidate(self, session_id: str) -> None:
        self.missed += 1


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(realm_module, "time", clock)
    return clock


def ask(lookup: Remote) -> Any:
    client: Any = ClusterClient("namespace", "realm")
    client._lookup = lookup
    return client.ask(SessionRef(SessionKey("s")), verbs.wait(None, "run", ()))


def test_who_waits_for_hours_outlives_a_process_every_hour(clock: Clock) -> None:
    """Case 63: each was reached, so none of them counts for how long the next is looked for."""
    lookup = Remote()
    asking = ask(lookup)
    step = next(asking)
    for _ in range(5):
        assert isinstance(step, Call)
        clock.now += 3600
        assert isinstance(asking.throw(RayActorError()), Pause)
        step = next(asking)
    with pytest.raises(StopIteration) as answered:
        asking.send(pickle.dumps("done"))
    assert answered.value.value == "done" and lookup.missed == 5


def test_a_process_that_cannot_be_reached_is_looked_for_so_long_and_no_longer(clock: Clock) -> None:
    began, asking = clock.now, ask(Remote())
    assert isinstance(next(asking), Call)

    def look() -> None:
        while True:
            clock.now += 1
            clock.now += asking.throw(RayActorError()).seconds
            assert isinstance(next(asking), Call)

    with pytest.raises(SessionLostError, match="'s'"):
        look()
    assert REACH_S < clock.now - began < REACH_S + 5
