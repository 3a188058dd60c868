"""A subscription whose process is killed again and again, and whose function raises: no event is left out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import pytest

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine

SESSIONS, PROMPTS = 3, 4
EVENTS = SESSIONS * PROMPTS * 2
"""How many events there are: each run starts and completes."""

MOST_LIVES = 60

FOLLOWERS = """
import os, random, signal, sys, threading
from pathlib import Path
from turnwise import EchoEngine, InProcess, SessionManager
import turnwise.memory.stores.sql.store, psycopg

def follow(url, folder, seed, count):
    dice, saved, log = random.Random(seed), folder / "cursor.json", folder / "events.txt"
    is_ready, is_done = threading.Event(), threading.Event()

    def perhaps_die():
        if dice.random() < 0.06:
            os.kill(os.getpid(), signal.SIGKILL)

    def save(cursor):
        fresh = saved.with_suffix(".new")
        fresh.write_text(cursor)
        fresh.replace(saved)

    def on_event(event):
        is_ready.wait()
        save(subscription.cursor)
        perhaps_die()
        if dice.random() < 0.15:
            raise ValueError("not yet")
        with log.open("a") as lines:
            lines.write(f"{event.session_id} {event.seq}\\n")
        perhaps_die()
        if len(set(log.read_text().splitlines())) == count:
            is_done.set()

    settings = {"engine": EchoEngine(), "placement": InProcess(), "read_only": True}
    with SessionManager(url, **settings) as manager:
        cursor = saved.read_text() if saved.exists() else None
        kinds = ["run_started", "run_completed"]
        with manager.subscribe(on_event, user_id="ann", kinds=kinds, cursor=cursor) as subscription:
            if cursor is None:
                save(subscription.cursor)
            else:
                is_ready.set()
                is_done.wait()

url, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
for seed in sys.stdin:
    if not (pid := os.fork()):
        code = 1
        try:
            follow(url, folder, seed.strip(), count)
            code = 0
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""For each number that it reads, a fork of this process follows the events; it prints how that ended."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    database: str = request.getfixturevalue("database")
    return database


@pytest.mark.by_turns
def test_each_event_is_handed_out_in_order_whatever_is_killed_or_raised(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FOLLOWERS, url, str(tmp_path), str(EVENTS)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as followers:
        assert followers.stdin and followers.stdout
        check_lives(url, tmp_path, followers.stdin, followers.stdout)


def check_lives(url: str, folder: Path, seeds: IO[str], ends: IO[str]) -> None:
    def live(seed: int) -> int:
        print(seed, file=seeds, flush=True)
        return int(ends.readline())

    expected: dict[str, list[int]] = {}
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open("before", user_id="ann").run("hello").wait()
        assert live(0) == 0 and json.loads((folder / "cursor.json").read_text())["seen"] == {}
        manager.open("others", user_id="bob").run("hello").wait()
        for number in range(PROMPTS):
            for name in map(str, range(SESSIONS)):
                manager.open(name, user_id="ann", if_exists="keep").run(f"prompt {number}").wait()
        for name in map(str, range(SESSIONS)):
            events = manager.get(name, user_id="ann").events()
            expected[name] = [event.seq for event in events if event.kind in ("run_started", "run_completed")]

    codes: list[int] = []
    while not codes or codes[-1]:
        assert len(codes) < MOST_LIVES and set(codes) <= {-signal.SIGKILL}, codes
        codes.append(live(len(codes) + 1))
    assert len(codes) > 1, "nobody was killed"
    handed_out: dict[str, list[int]] = {name: [] for name in expected}
    for line, _ in groupby((folder / "events.txt").read_text().splitlines()):
        name, seq = line.split()
        handed_out[name].append(int(seq))
    assert handed_out == expected
