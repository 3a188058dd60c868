"""Makes docs/scale.md from the measurements: `python -m capacity.page FILE`."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capacity.model import Costs, Load, Outcome, costs_with, simulate
from page_parts import markdown
from turnwise.actors.hosting.memory.batcher import AT_ONCE

ROOT = Path(__file__).parents[3]

OFF_AT_MOST = 0.2
"""How far what the model says may be from what was measured."""
GROUPS = AT_ONCE + 1
"""Into how many groups the turns at one host divide: those that are under way, and the one that gathers meanwhile."""
BUSY = 0.6
"""How much of a core is planned with, so that a burst finds room."""
RATES, SESSIONS = (100, 1_000, 10_000), 1_000_000
CORES_EACH, CONNECTIONS_EACH = 8, 100
"""What is planned for each PostgreSQL: its cores, and the connections that it allows by default."""

KILL_EVERY_S, SIMULATED_S = 10.0, 40.0
"""How often a host is killed in a simulation, and how long that lasts."""

Table = Sequence[Sequence[str]]

HEAD = """# Scale

What a turn needs of each part, and what {sessions:,} sessions with {most:,} turns a second would need. `make scale`
measured for {minutes:.0f} minutes, simulated the rest, and wrote this page. Run it on your machine: this one has
{cores} cores, which callers, hosts, nodes and PostgreSQL share. `QUICK=1 make scale` prints the page after two minutes.

Measured are turns of packed sessions: {callers} callers in one process, prompts of 200 characters, and a model that
answers at once. A real model takes seconds, in which nothing of turnwise works: what counts is how many turns begin and
end in a second."""

MODEL = """Processor times are those of **one** host, with {callers} callers and with {few}. Turns that come at once
share a call and a transaction: a caller has up to {at_once} batches under way at a host, so a batch has one in
{groups} of its callers. A simulation of events (`tests/bench/capacity/model.py`, on
[SimPy](https://simpy.readthedocs.io)) predicts the rows with more hosts or nodes, or with kills. A prediction is met
if it is within {off:.0%} of the turns a second that were measured."""

LIMITS = {
    "caller": """**The process that calls**, at {rate} turns a second: it has one event loop. Run more of them, by
   `turnwise serve --workers` or as replicas of Ray Serve.""",
    "host": """**A host**, at {rate} turns a second: it has one event loop. `Packed(hosts=N)` spreads sessions over N;
   changing N later moves sessions, one at a time, when they are idle.""",
    "connections": """**Connections**, at {rate} turns a second. A host opened {connections}, and one PostgreSQL allows
   {allowed} by default: {hosts} hosts, at {busy:.0%}. Raise `max_connections`, give hosts fewer, or have more than one
   PostgreSQL.""",
    "store": """**One PostgreSQL** of {cores} cores, at {rate} turns a second, at {busy:.0%}. Your program can split
   sessions over several databases by a hash of their ids, with a manager for each. Listing sessions then asks each.""",
}

GROWTH = """At {most:,} turns a second, PostgreSQL grows by {per_day:,.0f} GB a day: let sessions expire, and archive
   them ([conversations](guides/conversations.md))."""

CARRIED = """By multiplication, with {busy:.0%} of each core planned for. A partition is one PostgreSQL with {cores}
cores and {allowed} connections, and has its own hosts and its part of the sessions. A resident session
takes {resident:.0f} KB of its host, as measured, and one that is not takes none."""

KILLED = """Simulated: busy hosts on cores of their own, one of which is killed again and again. Its sessions then
wait for {recovery_s:.1f} s, as measured. No turn is lost: it goes on, or ends as interrupted
([reliability](reliability.md)). In the measured run with kills above, {interrupted} turns were
interrupted, and {turns:,} were not."""

NOT_THERE = """One machine has no network between hosts and PostgreSQL, for which each transaction waits with its
connection. This PostgreSQL does not sync to its disk. A transaction writes what many turns have to write at that
moment, so there were {transactions:.2f} for each turn. With fewer turns at once there are more for each."""


def text_of(results: Mapping[str, Any], comparisons: Sequence[Compared]) -> str:
    runs = results["runs"]
    ones = ones_of(runs)
    single = ones["postgresql"]
    cluster = Costs.of(single, connections_of(runs))
    kills = next(run for run in runs if "kill_every_s" in run)
    head = {"sessions": SESSIONS, "most": RATES[-1], "cores": results["cores"], "callers": results["callers"]}
    planned = {"busy": BUSY, "cores": CORES_EACH, "allowed": CONNECTIONS_EACH}
    growth = GROWTH.format(most=RATES[-1], per_day=RATES[-1] * 86_400 * single["bytes"] / 1e9)
    parts = [
        HEAD.format(**head, minutes=results["seconds"] / 60),
        "## What a turn costs",
        markdown(cost_table(ones, cluster.connections)),
        "## The model, and this machine",
        MODEL.format(
            off=OFF_AT_MOST,
            callers=results["callers"],
            few=min(run["callers"] for run in runs),
            at_once=AT_ONCE,
            groups=GROUPS,
        ),
        markdown(checked(comparisons)),
        "## Carried further",
        CARRIED.format(**planned, resident=results["resident_bytes"] / 1024),
        markdown(carried(cluster, single, results["resident_bytes"])),
        "## Where it breaks",
        "What gives way first, as the load grows, with one of each, on PostgreSQL:",
        "\n".join(f"{number}. {text}" for number, text in enumerate([*limits(cluster), f"**The disk.** {growth}"], 1)),
        "## When hosts are killed",
        KILLED.format(recovery_s=single["recovery_s"], interrupted=kills["interrupted"], turns=kills["turns"]),
        markdown(killed(cluster, single["recovery_s"])),
        "## What is missing",
        NOT_THERE.format(transactions=single["transactions"]),
    ]
    return "\n\n".join(parts) + "\n"


def ones_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the run of all callers with one host, by its store."""
    most = max(run["callers"] for run in runs)
    return {run["store"]: run for run in runs if run["hosts"] == 1 and run["callers"] == most}


def connections_of(runs: Sequence[Mapping[str, Any]]) -> int:
    """Return how many connections to PostgreSQL one more host adds: the callers have some, too."""
    counted_runs = [run for run in runs if "connections" in run and run["nodes"] == 1]
    counts: dict[int, int] = {
        run["hosts"]: max(
            run_of_hosts["connections"] for run_of_hosts in counted_runs if run_of_hosts["hosts"] == run["hosts"]
        )
        for run in counted_runs
    }
    most = max(counts)
    return math.ceil((counts[most] - counts[1]) / (most - 1))


def limits(costs: Costs) -> list[str]:
    """Return a text about each limit, the lowest limit first."""
    hosts = CONNECTIONS_EACH // costs.connections
    rates = {
        "caller": 1 / costs.caller,
        "host": 1 / costs.serial,
        "connections": hosts * BUSY / costs.serial,
        "store": CORES_EACH * BUSY / costs.store,
    }
    facts = {
        "connections": costs.connections,
        "allowed": CONNECTIONS_EACH,
        "hosts": hosts,
        "cores": CORES_EACH,
        "busy": BUSY,
    }
    return [LIMITS[name].format(rate=f"{rates[name]:,.0f}", **facts) for name in sorted(rates, key=rates.__getitem__)]


def cost_table(ones: Mapping[str, Mapping[str, Any]], connections: int) -> Table:
    def row(title: str, show: Callable[[Mapping[str, Any]], str]) -> tuple[str, str, str]:
        return (title, show(ones["sqlite"]), show(ones["postgresql"]))

    def ms(part: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda run: f"{run['cpu_s'][part] * 1000:.2f} ms" if part in run["cpu_s"] else "-"

    def number(name: str, unit: str = "") -> Callable[[Mapping[str, Any]], str]:
        return lambda run: f"{run[name]:,.{0 if run[name] >= 100 else 2}f}{unit}" if name in run else "-"

    return [
        ("of a turn", "SQLite", "PostgreSQL"),
        *(row(title, ms(part)) for title, part in PARTS.items()),
        row("calls of actors by the caller, which puts several turns into one", number("calls")),
        row("transactions, by PostgreSQL's count", number("transactions")),
        row("stored, with its text of 400 bytes and indexes", number("bytes", " bytes")),
        ("connections of a host", "-", str(connections)),
    ]


PARTS = {
    "processor time of the caller's process": "caller",
    "of the session's host": "host",
    "of PostgreSQL": "store",
    "of Ray's own processes": "ray",
}


@dataclass(frozen=True, slots=True)
class Compared:
    """A measurement, and what the model says of it."""

    run: Mapping[str, Any]
    outcome: Outcome

    @property
    def off(self) -> float:
        return self.outcome.rate / float(self.run["rate"]) - 1

    @property
    def is_prediction(self) -> bool:
        """Whether the model was not made of it."""
        return bool(self.run["hosts"] > 1 or self.run["nodes"] > 1)

    @property
    def verdict(self) -> str:
        if not self.is_prediction:
            return "the constants"
        return "met" if abs(self.off) <= OFF_AT_MOST else "MISSED"


def compared(results: Mapping[str, Any]) -> list[Compared]:
    """Compare each measurement with what the model says of it."""
    return [Compared(run, predicted(results, run)) for run in results["runs"]]


def checked(comparisons: Sequence[Compared]) -> Table:
    rows = [
        (
            "store",
            "nodes",
            "hosts",
            "callers",
            "killed",
            "turns a second",
            "the model says",
            "off by",
            "",
            "median, measured",
            "model",
        )
    ]
    for comparison in comparisons:
        run, outcome = comparison.run, comparison.outcome
        durations = (f"{run['p50_s'] * 1000:.0f} ms", f"{outcome.p50_s * 1000:.0f} ms")
        cells = (f"{run['rate']:,.0f}", f"{outcome.rate:,.0f}", f"{comparison.off:+.0%}", comparison.verdict)
        kills = every(run.get("kill_every_s"))
        rows.append(
            (run["store"], str(run["nodes"]), str(run["hosts"]), str(run["callers"]), kills, *cells, *durations)
        )
    return rows


def predicted(results: Mapping[str, Any], run: Mapping[str, Any]) -> Outcome:
    """Simulate a run with the costs that were measured at one host."""
    alone = [single for single in results["runs"] if single["hosts"] == 1 and single["store"] == run["store"]]
    measured = {1 / single["calls"]: Costs.of(single, connections_of(results["runs"])) for single in alone}
    together = 1 / run["calls"] if run in alone else run["callers"] / run["hosts"] / GROUPS
    load = Load(run["hosts"], run["callers"], results["cores"], seconds=SIMULATED_S)
    if seconds := run.get("kill_every_s"):
        largest = max(alone, key=lambda single: single["callers"])
        again = {"recovery_s": largest["recovery_s"], "restart_cpu_s": largest["restart_cpu_s"]}
        load = replace(load, kill_every_s=seconds, **again)
    return simulate(costs_with(measured, together), load)


def every(seconds: float | None) -> str:
    return f"one every {seconds:.0f} s" if seconds else "none"


def carried(costs: Costs, single: Mapping[str, Any], resident: float) -> Table:
    rows = [
        (
            "turns a second",
            "callers' processes",
            "hosts",
            "PostgreSQL: cores",
            "connections",
            "partitions for the cores",
            "for the connections",
            "transactions/s",
            "GB a day",
        )
    ]
    for rate in RATES:
        callers, hosts, cores = (math.ceil(rate * cost / BUSY) for cost in (costs.caller, costs.serial, costs.store))
        connections = hosts * costs.connections
        parts = (math.ceil(cores / CORES_EACH), math.ceil(connections / CONNECTIONS_EACH))
        counts = (rate, callers, hosts, cores, connections, *parts, rate * single["transactions"])
        rows.append((*(f"{count:,.0f}" for count in counts), f"{rate * 86_400 * single['bytes'] / 1e9:,.0f}"))  # type: ignore[arg-type]
    all_of_it = (f"{SESSIONS:,} sessions, all resident", "", f"{SESSIONS * resident / 1e9:,.0f} GB in all")
    return [*rows, (*all_of_it, *[""] * (len(rows[0]) - len(all_of_it)))]


def killed(costs: Costs, recovery_s: float) -> Table:
    rows = [("hosts", "killed", "turns a second", "median", "p99")]
    return [
        *rows,
        *(
            of_kills(costs, hosts, kill_every_s, recovery_s)
            for hosts in (2, 4)
            for kill_every_s in (None, KILL_EVERY_S)
        ),
    ]


def of_kills(costs: Costs, hosts: int, seconds: float | None, recovery_s: float) -> tuple[str, ...]:
    """Simulate hosts on cores of their own, with as many callers as keep them busy."""
    alone = Costs(0.0, costs.host, 0.0, 0.0, costs.serial)
    load = Load(hosts, 2 * hosts, 4 * hosts, seconds=SIMULATED_S, kill_every_s=seconds, recovery_s=recovery_s)
    outcome = simulate(alone, load)
    times = (f"{outcome.p50_s * 1000:.1f} ms", f"{outcome.p99_s * 1000:.1f} ms")
    return str(hosts), every(seconds), f"{outcome.rate:,.0f}", *times


def main() -> int:
    """Write the page, or print it; return 1 if a prediction was too far off."""
    results = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    comparisons = compared(results)
    text = text_of(results, comparisons)
    if os.environ.get("QUICK", "0") not in ("", "0"):
        print(text)
        return 0  # so short a measurement says nothing about the model
    (ROOT / "docs/scale.md").write_text(text, encoding="utf-8")
    missed = [comparison for comparison in comparisons if comparison.verdict == "MISSED"]
    for comparison in missed:
        run_text = f"{comparison.run['store']}, nodes={comparison.run['nodes']}, hosts={comparison.run['hosts']}"
        print(
            f"the model is off by {comparison.off:+.0%}, which is more than {OFF_AT_MOST:.0%}: {run_text}",
            file=sys.stderr,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
