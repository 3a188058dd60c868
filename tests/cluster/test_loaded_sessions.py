"""Which sessions packed hosts have loaded: no cluster, and hosts that answer as the test says."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from turnwise.actors.cluster.actor_lookup import PackedLookup
from turnwise.actors.cluster.sharding import Layout
from turnwise.actors.wire_version import packed
from turnwise.memory.conversation.sessions import SessionKey

LAYOUT = Layout(0, 2)

KEYS = [SessionKey(f"s{number}") for number in range(20)]


def a_host(answer: list[SessionKey] | Exception) -> Any:
    """Return an actor that says that it has loaded these sessions, or fails."""
    future = Future[bytes]()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(packed(answer))
    call = SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: future))
    return SimpleNamespace(residents=SimpleNamespace(options=lambda **_: call))


@pytest.fixture
def lookup(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("turnwise.actors.cluster.actor_lookup.find_hosts", lambda *_: [])
    lookup: Any = object.__new__(PackedLookup)
    lookup._hosts = SimpleNamespace(layout=LAYOUT)  # noqa: SLF001 - to make one takes a cluster
    lookup._namespace, lookup._store_id = "test", "store"  # noqa: SLF001
    return lookup


def of_host(index: int) -> set[SessionKey]:
    return {key for key in KEYS if LAYOUT.index_of(key) == index}


async def test_each_host_is_asked_for_its_own_sessions(lookup: Any) -> None:
    first, second = (sorted(of_host(index))[:2] for index in range(2))
    lookup._actors = [a_host([*first, SessionKey("another")]), a_host(second)]  # noqa: SLF001
    assert await lookup.loaded(KEYS) == {*first, *second}
    assert await lookup.loaded([]) == set()


async def test_all_sessions_of_a_host_that_does_not_answer_count_as_loaded(lookup: Any) -> None:
    lookup._actors = [a_host(RayActorError()), a_host([])]  # noqa: SLF001
    assert await lookup.loaded(KEYS) == of_host(0)


async def test_a_host_that_was_replaced_and_has_not_left_is_asked_too(
    lookup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup._actors = [a_host([]), a_host([])]  # noqa: SLF001
    earlier = SimpleNamespace(layout=Layout(0, 1), successors={0: [0]})
    monkeypatch.setattr("turnwise.actors.cluster.actor_lookup.find_hosts", lambda *_: [earlier])
    monkeypatch.setattr("turnwise.actors.cluster.actor_lookup.find_actor", lambda *_: a_host([KEYS[3]]))
    assert await lookup.loaded(KEYS) == {KEYS[3]}
