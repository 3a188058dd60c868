"""Processes that Ray prepares for the next sessions: what fails there hurts nobody. `test_own_ray.py` has real ones."""

from __future__ import annotations

import logging
import threading

import pytest

from patience import until
from turnwise.actors.cluster.spare_processes import SpareProcesses

ASKED = "turnwise.actors.cluster.spare_processes.ray.is_initialized"


def test_a_ray_that_prepares_nothing_is_noted_for_whoever_looks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        raise RuntimeError("Ray has changed")

    monkeypatch.setattr(ASKED, fail)
    caplog.set_level(logging.DEBUG, "turnwise")
    SpareProcesses(1).prepare_soon()
    until(lambda: caplog.records)
    (record,) = caplog.records
    assert record.levelname == "DEBUG" and "Ray has changed" in caplog.text


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
