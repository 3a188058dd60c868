"""Processes that Ray prepares for the next sessions: what fails there hurts nobody. `test_own_ray.py` has real ones."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest

from patience import until
from turnwise.actors.cluster.spare_processes import SETTLED_S, SpareProcesses

ASKED = "turnwise.actors.cluster.spare_processes.ray.is_initialized"


def test_a_ray_that_prepares_nothing_is_noted_for_whoever_looks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        raise RuntimeError("Ray has changed")

    monkeypatch.setattr(ASKED, fail)
    caplog.set_level(logging.DEBUG, "turnwise")
    SpareProcesses(1).prepare_soon()
    until(lambda: len(caplog.records) == 2)  # a failure keeps nobody from asking once more
    assert all(record.levelname == "DEBUG" for record in caplog.records) and "Ray has changed" in caplog.text


def test_several_sessions_at_once_ask_once_and_without_spares_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Semaphore(0)

    def ask() -> bool:
        asked.release()
        return False

    monkeypatch.setattr(ASKED, ask)
    none, some = SpareProcesses(0), SpareProcesses(2)
    for _ in range(5):
        none.prepare_soon()
        some.prepare_soon()
    assert asked.acquire(timeout=60)
    some.prepare_soon()
    assert asked.acquire(timeout=60) and not asked.acquire(blocking=False)


def test_ray_is_asked_once_more_after_the_last_actor_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if that was just before it was asked: the process that the actor is about to get counted as idle then."""
    now, request_times = [100.0], []
    spares = SpareProcesses(1)

    def sleep(seconds: float) -> None:
        until_s = now[0] + seconds
        if now[0] < 102.0 <= until_s:
            now[0] = 102.0
            spares.prepare_soon()
        now[0] = until_s

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("turnwise.actors.cluster.spare_processes.time", clock)
    monkeypatch.setattr(ASKED, lambda: request_times.append(now[0]))
    thread = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr("turnwise.actors.cluster.spare_processes.threading.Thread", lambda **_: thread)
    spares.prepare_soon()
    spares._work()  # noqa: SLF001 - the thread's body, by this clock
    assert len(request_times) == 4 and request_times[1] < 102.0 + SETTLED_S <= request_times[-1]
