"""When a chaos run has had enough faults."""

import asyncio
import time
from collections import Counter

import pytest

from turnwise.testing import chaos
from turnwise.testing.chaos import Bounds


async def test_a_run_goes_on_until_each_kind_of_kill_has_struck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "LOOK_S", 0.01)
    struck = Counter({"a lock": 9})
    idle: asyncio.Task[None] = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    bounds = Bounds(faults=5, kinds=("a kill", "a lock"))
    run = asyncio.create_task(chaos.until_enough(bounds, time.monotonic(), struck, None, [idle]))
    await asyncio.sleep(0.1)
    assert not run.done(), "there were faults enough, and no kill"
    struck["a kill"] += 1
    await asyncio.wait_for(run, 60)
    late = chaos.until_enough(Bounds(faults=5, kinds=("never",), most_s=0.05), time.monotonic(), struck, None, [idle])
    await asyncio.wait_for(late, 60)
    idle.cancel()
