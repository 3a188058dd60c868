"""Makes docs/scale.md of what was measured: `python -m capacity.page FILE`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from capacity.model import CONNECTIONS, Costs, Load, Outcome, simulate

ROOT = Path(__file__).parents[3]

TRANSACTIONS = 2
"""Of a turn: its start with the prompt, and its end with the answer."""
BUSY = 0.6
"""How much of a core is planned with, so that a burst finds room."""
RATES, SESSIONS = (100, 1_000, 10_000), 1_000_000
RESIDENT_KB = 25
"""What a resident session takes of its host's memory; `make bench ARGS=packed` measures it."""

KILL_EVERY_S, SIMULATED_S = 10.0, 40.0
"""How often a host is killed in a simulation, on average, and how long that lasts."""

Table = Sequence[Sequence[str]]

HEAD = """# Scale

How much of which part a turn needs, what that gives on this machine, and what it would take for {sessions:,}
sessions with {most:,} turns a second. Made by `make scale`, which measures, simulates and writes this page in some
four minutes: run it on your machine, for its numbers are those of one with {cores} cores, on which the callers, the
hosts and PostgreSQL share them.

Measured are turns of packed sessions: {callers} callers in one process, each with one turn after the other, prompts
of 200 characters, and a model that answers at once. A real model takes seconds, in which nothing of turnwise works:
what counts is how many turns begin and end in a second, and not how many are under way."""

MODEL = """A turn goes from its caller's process to its session's host, from there to the store, and back. Each
process does one thing at a time; all need a core; the processor time of each is what was measured with **one**
host. Everything else on this page follows from that by a simulation of events (`tests/bench/capacity/model.py`, on
[SimPy](https://simpy.readthedocs.io)), or by multiplication, where it says so."""

LIMITS = """What gives way first, as the load grows:

1. **The process that calls.** One event loop starts and follows {caller:,.0f} turns a second at most. Run more of
   them: `turnwise serve --workers`, replicas of Ray Serve. They keep nothing.
2. **A host.** It has one event loop, too: {host:,.0f} turns a second. `Packed(hosts=N)` spreads sessions over N;
   changing N later moves sessions, one at a time, when they are idle.
3. **Connections.** Each host has up to {connections}. PostgreSQL allows 100 by default, so {allowed} hosts; raise
   `max_connections` to {most_connections:,} for the last row, or give hosts fewer.
4. **One PostgreSQL.** {per_core:,.0f} turns a second for each core that it has for itself at {busy:.0%}. Sessions
   share no row with each other, so they can be split over several databases by a hash of the session's id. turnwise
   does not do that for you: today it takes a manager for each database, and your program chooses. Listing sessions
   then asks each.
5. **Growth.** At {most:,} turns a second, {per_day:,.0f} GB a day are stored: archive and expire what is old
   ([retention](reliability.md))."""

CARRIED = """By multiplication, with {busy:.0%} of each core planned for, on PostgreSQL. A resident session takes
{resident} KB, and one that is not takes none."""

KILLED = """Simulated: hosts on cores of their own that are always asked, one of which is killed again and again, and
whose sessions then wait for {recovery_s:.1f} s, as measured here. No turn is lost: it goes on, or is told to have been
interrupted, as [reliability](reliability.md) says."""

NOT_THERE = """What this cannot say: it was measured on one machine, so the network between hosts and PostgreSQL is
missing (each of the {transactions} transactions of a turn waits for it, and holds a connection meanwhile), and so
is a disk that syncs: the PostgreSQL here does not. Nodes were three of Ray's on the same cores."""


def text_of(results: Mapping[str, Any]) -> str:
    runs = results["runs"]
    ones = {run["store"]: run for run in runs if run["hosts"] == 1}
    costs = {store: Costs.of(run) for store, run in ones.items()}
    cluster = costs["postgresql"]
    head = {"sessions": SESSIONS, "most": RATES[-1], "cores": results["cores"], "callers": results["callers"]}
    per_core = BUSY / cluster.store
    limits = {
        "caller": 1 / cluster.caller,
        "host": 1 / cluster.serial,
        "connections": CONNECTIONS,
        "allowed": 100 // CONNECTIONS,
        "most_connections": math.ceil(RATES[-1] * cluster.serial / BUSY) * CONNECTIONS,
        "per_core": per_core,
        "busy": BUSY,
        "most": RATES[-1],
        "per_day": RATES[-1] * 86_400 * ones["sqlite"]["bytes"] / 1e9,
    }
    parts = [
        HEAD.format(**head),
        "## What a turn costs",
        markdown(cost_table(ones)),
        "## The model, and this machine",
        MODEL,
        markdown(checked(results, costs)),
        "## Carried further",
        CARRIED.format(busy=BUSY, resident=RESIDENT_KB),
        markdown(carried(cluster, ones["sqlite"]["bytes"])),
        "## Where it breaks",
        LIMITS.format(**limits),
        "## When hosts are killed",
        KILLED.format(recovery_s=ones["postgresql"]["recovery_s"]),
        markdown(killed(cluster, ones["postgresql"]["recovery_s"])),
        "## What is missing",
        NOT_THERE.format(transactions=TRANSACTIONS),
    ]
    return "\n\n".join(parts) + "\n"


def cost_table(ones: Mapping[str, Mapping[str, Any]]) -> Table:
    def ms(store: str, part: str) -> str:
        return f"{ones[store]['cpu_s'].get(part, 0) * 1000:.2f} ms" if part in ones[store]["cpu_s"] else "-"

    return [
        ("of a turn", "SQLite", "PostgreSQL"),
        *((what, ms("sqlite", part), ms("postgresql", part)) for what, part in PARTS.items()),
        ("transactions", str(TRANSACTIONS), str(TRANSACTIONS)),
        ("stored, with its text of 400 bytes", f"{ones['sqlite']['bytes']:,.0f} bytes", "-"),
    ]


PARTS = {
    "processor time of the caller's process": "caller",
    "of the session's host": "host",
    "of PostgreSQL": "store",
    "of Ray's own processes": "ray",
}


def checked(results: Mapping[str, Any], costs: Mapping[str, Costs]) -> Table:
    """Compare each measurement with what the model says of it."""
    rows = [("store", "nodes", "hosts", "turns a second", "the model says", "off by", "median, measured", "model")]
    for run in results["runs"]:
        said = predicted(results, costs[run["store"]], run)
        off = said.rate / run["rate"] - 1
        durations = (f"{run['p50_s'] * 1000:.0f} ms", f"{said.p50_s * 1000:.0f} ms")
        shown = (f"{run['rate']:,.0f}", f"{said.rate:,.0f}", f"{off:+.0%}")
        rows.append((run["store"], str(run["nodes"]), str(run["hosts"]), *shown, *durations))
    return rows


def predicted(results: Mapping[str, Any], costs: Costs, run: Mapping[str, Any]) -> Outcome:
    return simulate(costs, Load(run["hosts"], results["callers"], results["cores"]))


def carried(costs: Costs, stored: float) -> Table:
    rows = [
        (
            "turns a second",
            "callers' processes",
            "hosts",
            "PostgreSQL: cores",
            "connections",
            "transactions/s",
            "GB a day",
        )
    ]
    for rate in RATES:
        callers, hosts, cores = (math.ceil(rate * each / BUSY) for each in (costs.caller, costs.serial, costs.store))
        counts = (rate, callers, hosts, cores, hosts * CONNECTIONS, rate * TRANSACTIONS)
        rows.append((*(f"{count:,}" for count in counts), f"{rate * 86_400 * stored / 1e9:,.0f}"))  # type: ignore[arg-type]
    rows.append(
        (f"{SESSIONS:,} sessions, all resident", "", f"{SESSIONS * RESIDENT_KB / 1e6:,.0f} GB in all", "", "", "", "")
    )
    return rows


def killed(costs: Costs, recovery_s: float) -> Table:
    rows = [("hosts", "killed", "turns a second", "median", "p99")]
    return [*rows, *(of_kills(costs, hosts, every, recovery_s) for hosts in (2, 4) for every in (None, KILL_EVERY_S))]


def of_kills(costs: Costs, hosts: int, every: float | None, recovery_s: float) -> tuple[str, ...]:
    """Simulate hosts on cores of their own, with as many callers as keep them busy."""
    alone = Costs(0.0, costs.host, 0.0, 0.0, costs.serial)
    load = Load(hosts, 2 * hosts, 4 * hosts, seconds=SIMULATED_S, kill_every_s=every, recovery_s=recovery_s)
    found = simulate(alone, load)
    times = (f"{found.p50_s * 1000:.1f} ms", f"{found.p99_s * 1000:.1f} ms")
    return str(hosts), f"one each {every:.0f} s" if every else "none", f"{found.rate:,.0f}", *times


def markdown(table: Table) -> str:
    heading, *rows = table
    return "\n".join(f"| {' | '.join(line)} |" for line in _lines(heading, rows))


def _lines(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    yield heading
    yield ["---"] * len(heading)
    yield from rows


def main() -> None:
    results = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    (ROOT / "docs/scale.md").write_text(text_of(results), encoding="utf-8")


if __name__ == "__main__":
    main()
