"""The way to a session's process, with processes that die as the test says: no Ray, and a clock of the test's."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.actors.client.blocking import session_host, steps
from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.shared import resending as reaching
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.cluster.actor_lookup import _LookupOfOne
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.hosting.reach import REACH_S
from turnwise.actors.hosting.runtime import AwayError
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.wire_version import packed
from turnwise.errors import KeyMissingError, SessionLostError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.retention.deletion_report import Forgotten


class Lookup:
    """Stands for a process, and for what finds it."""

    missed = 0

    def of(self, key: SessionKey) -> Any:
        return self

    def invalidate(self, key: SessionKey) -> None:
        self.missed += 1


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (reaching, session_host, steps):
        monkeypatch.setattr(module, "time", clock)
    return clock


def ask(lookup: Lookup, monkeypatch: pytest.MonkeyPatch, call: Callable[[], bytes]) -> Any:
    """Ask a session, each call to which is answered by the function."""
    monkeypatch.setattr(steps, "call", lambda *_, **__: call())
    client: Any = SessionsClient("namespace", "realm", InProcess())
    client.runtime = SimpleNamespace(live_processes=lambda _: lookup)
    return SessionHost(client, SessionRef(SessionKey("s"))).ask(verbs.wait(None, "run", ()))


def test_who_waits_for_hours_outlives_a_process_every_hour(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 63: each was reached, so none of them counts for how long the next is looked for."""
    lookup = Lookup()

    def call() -> bytes:
        if lookup.missed == 5:
            return packed("done")
        clock.now += 3600
        raise AwayError("the actor died")

    assert ask(lookup, monkeypatch, call) == "done" and lookup.missed == 5


def test_a_process_that_cannot_be_reached_is_looked_for_so_long_and_no_longer(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock.now

    def call() -> bytes:
        clock.now += 1
        raise AwayError("the actor died")

    with pytest.raises(SessionLostError, match="'s'"):
        ask(Lookup(), monkeypatch, call)
    assert REACH_S < clock.now - began < REACH_S + 5


@pytest.mark.parametrize("memory", [False, True])
def test_a_session_that_cannot_be_read_is_deleted_unless_memories_are_to_forget_it(
    memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[SessionKey] = []

    def end(host: SessionHost) -> None:
        raise KeyMissingError("ann")

    def delete(key: SessionKey) -> int:
        deleted.append(key)
        return 3

    monkeypatch.setattr(SessionHost, "end", end)
    monkeypatch.setattr(steps, "run", lambda _, work, *arguments: work(*arguments))
    client: Any = SimpleNamespace(
        has_store=True,
        is_live=lambda _: True,
        memories=[object()],
        history_store=None,
        portal=None,
        session_store=SimpleNamespace(delete=delete),
        drop=lambda _: None,
    )
    host, key = SessionHost(client, SessionRef(SessionKey("s", "ann"))), SessionKey("s", "ann")
    if memory:
        with pytest.raises(KeyMissingError):
            host.remove(memory=True, verify=False)
        assert deleted == []
    else:
        assert host.remove(memory=False, verify=False) == Forgotten(sessions=1, turns=3)
        assert deleted == [key]


def test_a_verb_that_may_not_be_repeated_is_sent_once_to_a_process_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[tuple[str, bool]] = []

    def call(process: Any, request: bytes, reach: Any, *, is_repeatable: bool) -> bytes:
        verb = pickle.loads(request).verb
        requests.append((verb, is_repeatable))
        if requests == [("warm", True)] or verb != "warm":
            raise AwayError("the actor died")
        return packed(None)

    client: Any = SessionsClient("namespace", "realm", InProcess())
    client.runtime = SimpleNamespace(live_processes=lambda _: Lookup())
    monkeypatch.setattr(steps, "call", call)
    with pytest.raises(SessionLostError, match=r"perhaps after it did memory\.merge_notes"):
        SessionHost(client, SessionRef(SessionKey("s"))).ask(verbs.merge_notes("Ann has a boat."))
    assert requests == [("warm", True), ("warm", True), ("memory.merge_notes", False)]


class Named(_LookupOfOne):
    """Finds actors that are names."""

    def warm(self, key: SessionKey, request: bytes) -> None:
        """There is no process."""

    def _look_up(self, key: SessionKey) -> Any:
        return f"the actor of {key.session_id}"


class CutIn(OrderedDict[SessionKey, Any]):
    """Cached actors; whenever one is read, another thread invalidates it."""

    invalidate: Callable[[SessionKey], None]

    def get(self, key: SessionKey, default: Any = None) -> Any:
        found = super().get(key, default)
        other = threading.Thread(target=self.invalidate, args=(key,))
        other.start()
        other.join(0.2)  # it waits, or has removed the actor
        return found


def test_a_cached_actor_is_returned_while_another_thread_invalidates_it() -> None:
    lookup, key = Named("namespace", "store"), SessionKey("chat")
    actors = CutIn({key: "the cached actor"})
    actors.invalidate = lookup.invalidate
    lookup._actors = actors  # noqa: SLF001 - the other thread comes between two of its lines
    assert lookup.of(key).actor == "the cached actor"
