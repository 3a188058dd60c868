"""`make bench` prints all its measurements. Its goals are not tested, since that needs a quiet machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench/bench.py"

MEASURED = [
    "bare call of an empty async actor",
    "durable turn: run + wait, on SQLite",
    "turns 4 to 16, prompts of 200 characters",
    "turns 4 to 16, prompts of 500 characters",
    "turns 4 to 16, prompts of 2000 characters",
    "turns 62 to 100, alternating with those",
    "tool loop: a run with 1 step, on SQLite",
    "tool loop: a run with 20 steps",
    "2,000 events read of SQLite, by 1,000",
    "  the same with their blocks, of another process",
    "10,000 tokens, streamed to another process",
    "  the same, an event for every 20 tokens",
    "first token, chat: bare client",
    "first token, chat: a session, above that",
    "first token, responses: bare client",
    "first token, responses: a session, above that",
    "bare call, between the cancels",
    "cancel to the waiter's error: p99 to floor's median",
    "cancel to the provider's closed line: p99",
    "bare actor: made, first call answered",
    "session: open(), its process still starting",
    "session: open() + first answer, process up",
    "session: open() + info(), loaded",
    "session: open() + first turn, complete",
    "deciding on 100,000 blocks, of which as many stay",
    "counting a turn of 4 blocks behind 1,000",
    "counting a turn of 4 blocks behind 100,000",
    "counting a turn of 40 blocks there, to 4",
    "durable turn, no overflow strategy",
    "durable turn, overflow=Trim() with nothing to do",
    "durable turn, another session idle",
    "durable turn, another session compacting",
    "  a process beside it that only computes as much",
    "durable turn, no memory, model time aside",
    "durable turn that is saved in a memory",
    "  and recalls, by words",
    "  and recalls, by words and vectors",
    "recall through the actor, 2,000 items of 20 users",
    "  64 at once by one process, as many each second",
    "turn beside 3 others, 1,000 items of 10 users",
    "  while users are forgotten: p95",
    "manager.forget() of a user, verified",
    "activation, 400 sessions in SQLite: p99",
    "  the same verb again, resident",
    "bare calls of one async actor, 1000 at once, each",
    "durable turns of 40 packed sessions, each",
    "bare actor: kill -9 to the next answer",
    "session: kill -9 to the next turn",
    "packed session: kill -9 to the next turn",
    "first token over HTTP: bare client of the provider",
    "  the service, above that",
    "turn by the Python API, packed",
    "  the same over HTTP",
    "events of 2 streams, 20 open: a bare ASGI app",
    "  of 2 runs, 20 followed: p99",
]

COUNTED = [
    "actor calls a turn, counted in this process",
    "transactions a turn, counted at SQLite",
    "what a step adds",
    "transactions of 20 steps, counted at SQLite",
    "what each block adds",
    "p95, to that beside an idle one",
    "40 packed sessions: open(), to bare actors",
    "40 of them resident, with a turn each: MB above idle Ray",
    "bytes a session",
    "p99, to that of the bare app",
]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_bench_prints_every_measurement_and_whether_each_goal_is_met() -> None:
    here = os.environ | {"PYTHONPATH": str(BENCH.parents[1] / "support")}
    ran = subprocess.run(
        [sys.executable, BENCH, "--quick"], capture_output=True, encoding="utf-8", timeout=580, check=False, env=here
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    for what in MEASURED:
        times = r" +\d+( +\d+\.\d\d ms){4}"
        assert any(re.match(re.escape(what) + times, line) for line in lines), what
    for what in COUNTED:
        assert any(re.match(rf" *{re.escape(what)} +\d", line) for line in lines), what
    goals = [line for line in lines if "goal at " in line]
    assert len(goals) == 34
    assert all(line.endswith((": met", ": MISSED")) for line in goals)
    met = sum(line.endswith(": met") for line in goals)
    assert re.match(rf"{met} of 34 goals met, in \d+ s", lines[-1])
