"""`make bench` prints all its measurements. Its goals are not tested, since that needs a quiet machine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench/bench.py"

PLACES = [f"{store}, {where}" for store in ("SQLite", "PostgreSQL", "Redis") for where in ("in process", "on Ray")]

MEASURED = [
    "bare call of an empty async actor",
    "durable turn: run + wait, on SQLite",
    "  its session core alone, in one process",
    "  2 transactions of 5 rows each, by sqlite3",
    "turns 4 to 16, prompts of 200 characters",
    "turns 4 to 16, prompts of 500 characters",
    "turns 4 to 16, prompts of 2000 characters",
    "  turns 62 to 100, alternating with those",
    "tool loop: a run with 1 step, on SQLite",
    "tool loop: a run with 20 steps",
    "2,000 events read of SQLite, by 1,000",
    "  the same rows by sqlite3, their bodies as JSON",
    "  the same with their blocks, of another process",
    "10,000 tokens, streamed to another process",
    "  the same, an event for every 20 tokens",
    "first token, chat: bare client",
    "first token, chat: a session, above that",
    "first token, responses: bare client",
    "first token, responses: a session, above that",
    "bare call, between the cancels",
    "cancel to the waiter's error: median to the floor's",
    "cancel to the provider's closed line: p99",
    "bare actor: made, first call answered",
    "what a session's process imports, above ray",
    "session: open(), its process still starting",
    "session: open() + first answer, process up",
    "session: open() + info(), loaded",
    "session: open() + first turn, complete",
    "six bare actors at once",
    "six sessions at once: open() + first turn",
    "import turnwise",
    "import ray",
    "from turnwise import SessionManager, above that",
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
    *(
        f"{title}, {where}"
        for title in ("first turn of a new session", "turn that calls a tool", "turn that calls an agent")
        for where in ("in process", "on Ray")
    ),
    *(
        title
        for place in (
            f"{store}, {where}" for store in ("SQLite", "PostgreSQL", "Redis") for where in ("in process", "on Ray")
        )
        for title in (f"call of run to its start: {place}", f"  due of 5,000 that wait in {place}")
    ),
    *(
        title
        for store in ("SQLite", "PostgreSQL")
        for title in (
            f"search in 2,000 messages, {store}",
            "  deletion of a session of 50 turns there",
            f"turn in process that is not searched, {store}",
            "  that is searched, to that",
        )
    ),
    *(f"turn in process without quotas, {store}" for store in ("SQLite", "PostgreSQL")),
    "  with one quota, to that",
    "  with five quotas, to that",
    "first token of turn 4, 2 servers in turn",
    "  by the key of the prefix, to that",
    "activation, 400 sessions in SQLite: p99",
    "  the same verb again, resident",
    "bare calls of one async actor, 70 at once, each",
    "durable turns of 70 packed sessions, each",
    "bare calls of one async actor, 64 at once, each",
    "durable turns of 64 packed sessions, each",
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
    "bytes stored a turn, to those of its text",
    "bytes stored a turn, beside its text",
    "p99 to the floor's p99",
    "statements of a turn, as before deliveries",
    "to both",
    *(f"{store}, {waiting} waiting" for store in ("SQLite", "PostgreSQL", "Redis") for waiting in ("5,000", "0")),
    "tokens over a quota of 4,000, 16 hosts at once",
    "to that bound",
    *(f"prefix of {name}" for name in ("a chat", "an agent with tools", "a long chat, Trim", "a long chat, Summarize")),
    "32 agents, a cache for 25% of them",
    "six users' agents, 3 replicas, by keys of their own",
    "tokens read where their callers are, to those",
    "tokens read by that, to those in turn",
    "memory of a bare actor's process",
    "memory of a session's process",
    "of which modules, in a process without Ray's",
    "to that of a bare actor's",
    "requests a turn, counted in this process",
    "transactions a turn, counted at SQLite",
    "what a step adds",
    "transactions of 20 steps, counted at SQLite",
    "what each block adds",
    "p95, to that beside an idle one",
    "40 packed sessions: open(), to bare actors",
    "40 of them resident, with a turn each: MB above idle Ray",
    "bytes a session",
    "400 sessions on 4 hosts, each opened, with a turn",
    "the rate at the end, to the machine's speed, to that",
    "a second at the end",
    "resident, of 4,000 that may be",
    "resident at most, to max_resident of all hosts",
    "memory of their hosts, and what it adds here",
    "memory at the end, to that",
    "p99, to that of the bare app",
]


OF_A_CANCEL = ["ms of the faster half, on average", "ms of the slowest 2"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_bench_prints_every_measurement_and_whether_each_goal_is_met(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(BENCH.parents[1] / "support")}
    goals_file = tmp_path / "goals.json"
    command = [sys.executable, str(BENCH), "--quick", "--json", str(goals_file)]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=580, check=False, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    for name in MEASURED:
        times = r" +\d+( +\d+\.\d\d ms){4}"
        assert any(re.match(re.escape(name) + times, line) for line in lines), name
    for name in COUNTED:
        assert any(re.match(rf" *{re.escape(name)} +\d", line) for line in lines), name
    for name in OF_A_CANCEL:
        assert any(re.match(rf" *{name} +to the process \d", line) for line in lines), name
    goals = [line for line in lines if "goal at " in line]
    assert all(line.endswith((": met", ": MISSED")) for line in goals)
    met = sum(line.endswith(": met") for line in goals)
    assert re.match(rf"{met} of {len(goals)} goals met, in \d+ s", lines[-1])
    names = [goal["name"] for goal in json.loads(goals_file.read_text(encoding="utf-8"))["goals"]]
    assert len(names) == len(goals) and len(set(names)) == len(names), "verdicts.py finds each by its name"
