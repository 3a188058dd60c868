"""Two Rays on one PostgreSQL: one begins the runs, and the other goes on when it has ended.

Run as a program it is the second Ray: `python test_deliveries_of_two_rays.py URL` schedules runs, until its input ends.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from engines import ScriptedEngine
from stored.open_stores import run_with
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.urls import open_store

MakeManager = Callable[..., SessionManager]

TAKEN_OVER_S = 75.0
"""Below the time of a lease: the death of the other Ray is noticed, some time for processes to start included."""


def program(url: str) -> None:
    with SessionManager(url, engine=ScriptedEngine()) as manager:
        manager.open("chat").schedule("again", after_s=1.0, every_s=1.0, key="again", missed="run_all")
        while not holder_of(url):
            time.sleep(0.1)
        print("leads", flush=True)
        sys.stdin.read()


def holder_of(url: str) -> str:
    """Return who has the lease of a store's deliveries."""

    async def ask(store: SessionStore) -> str:
        return (await store.lease_deliveries("nobody", None)).holder

    return run_with(open_store(url), ask)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_one_of_two_rays_begins_the_runs_and_the_other_goes_on(make_ray_manager: MakeManager, database: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"RAY_ADDRESS": "local", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    command = [sys.executable, __file__, database]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin and other.stdout and other.stdout.readline() == "leads\n"
        first = holder_of(database)
        manager = make_ray_manager(store=database)  # which finds the deliveries, and starts an actor of its own
        time.sleep(10.0)
        assert holder_of(database) == first
        other.stdin.close()
    chat = manager.get("chat")
    until, begun = time.monotonic() + TAKEN_OVER_S, len(chat.runs())
    while len(chat.runs()) < begun + 3:
        assert time.monotonic() < until, "nobody has taken over"
        time.sleep(0.5)
    assert holder_of(database) not in ("", first)
    assert chat.cancel_schedule("again")
    revisions = [int(run.run_id.rpartition("-")[2]) for run in manager.runs(limit=1000)]
    assert sorted(revisions) == [*range(1, len(revisions) + 1)]


if __name__ == "__main__":
    program(*sys.argv[1:])
