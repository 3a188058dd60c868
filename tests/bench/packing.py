"""Measures packed hosts: capacity, speed, and recovery after a kill."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import ray
import sqlalchemy as sa

from engines import process_of
from harness import Samples, Table, end_process, prompt_of
from turnwise import AsyncSession, AsyncSessionManager, EchoEngine, Packed, Session, SessionManager
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.wire_version import unpacked
from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.sql import schema
from turnwise.memory.stores.sql.rows import session_row, turn_row
from turnwise.stores import SQLStore

AT_ONCE = 1000
"""The number of sessions that one process calls concurrently."""

HOSTS = 2

PROMPT = prompt_of(200)

Manage = Callable[[str], AsyncSessionManager]


def manage_in(folder: Path, namespace: str) -> Manage:
    """Return a function that makes managers of packed sessions, each with its own store."""

    def manage(name: str) -> AsyncSessionManager:
        url = f"sqlite:///{folder}/{name}.db"
        return AsyncSessionManager(url, engine=EchoEngine(), placement=Packed(hosts=HOSTS), namespace=namespace)

    return manage


async def retire(manager: AsyncSessionManager) -> None:
    """End the hosts of a manager, so that they do not disturb the next measurement."""
    for host in hosts_of(manager):
        await asyncio.to_thread(end_process, host, await host.ready.remote())


def hosts_of(manager: AsyncSessionManager) -> Sequence[Any]:
    return [*{str(host): host for host in actors_of(manager, 100)}.values()]


def actors_of(manager: AsyncSessionManager, count: int) -> list[Any]:
    """Return the actor of each of so many sessions."""
    refs = some_sessions(count)
    return [manager._client.process(ref).actor for ref in refs]  # noqa: SLF001 - of sessions that need not exist


def some_sessions(count: int) -> list[SessionRef]:
    """Return so many sessions that need not exist, to find the hosts that would have them."""
    return [SessionRef(SessionKey(str(number))) for number in range(count)]


async def in_batches(work: Callable[[Any], Awaitable[object]], items: Sequence[Any]) -> None:
    for first in range(0, len(items), AT_ONCE):
        await asyncio.gather(*map(work, items[first : first + AT_ONCE]))


# Memory and openings


def residents(table: Table, manage: Manage, count: int, bare_s: float) -> None:
    """Measure opening sessions that stay resident, and their use of memory.

    Args:
        bare_s: the time to create a bare actor and call it once, in seconds.
    """

    async def open_all() -> None:
        idle = memory_of(os.getpid())
        async with manage("resident") as manager:
            await asyncio.gather(*(host.ready.remote() for host in actors_of(manager, 20)))
            sessions: list[AsyncSession] = []

            async def open_one(number: int) -> None:
                sessions.append(await manager.open(f"session-{number}"))

            began = time.perf_counter()
            await in_batches(open_one, range(count))
            opened = time.perf_counter()
            await in_batches(AsyncSession.latest, sessions)
            answered_at = time.perf_counter()
            await in_batches(one_turn, sessions)
            above = memory_of(os.getpid()) - idle
            rate, rate_with_turns = count / (opened - began), count / (answered_at - began)
            table.judge(f"{count:,} packed sessions: open(), to bare actors", rate * bare_s, 300, bound="least")
            table.line("  a second", result=f"{rate:,.0f}; bare actors {1 / bare_s:.3g}")
            table.line(
                "  the same with the first verb, active",
                result=f"{rate_with_turns * bare_s:.3g}x; {rate_with_turns:,.0f} a second",
            )
            goal = 1024 * count / 10_000 if count >= 10_000 else 1024
            title = f"{count:,} of them resident, with a turn each"
            table.judge(f"{title}: MB above idle Ray", above / 2**20, goal, " MB")
            table.line("  bytes a session", result=f"{above / count:,.0f}, hosts' processes included")
            await retire(manager)

    asyncio.run(open_all())


def in_one_host(table: Table, url: str, namespace: str, count: int) -> None:
    """Measure the memory of one host in which so many sessions are resident, with a turn each."""

    async def open_all() -> int:
        placement = Packed(hosts=1)
        async with AsyncSessionManager(url, engine=EchoEngine(), placement=placement, namespace=namespace) as manager:

            async def visit(number: int) -> None:
                await one_turn(await manager.open(f"session-{number}"))

            await in_batches(visit, range(count))
            (host,) = hosts_of(manager)
            size = pss_of(await host.ready.remote())
            await retire(manager)
            return size

    goal = 500 * max(1, count / 10_000)
    table.judge(f"a host with {count:,} resident sessions, a turn each", asyncio.run(open_all()) / 2**20, goal, " MB")


async def one_turn(session: AsyncSession) -> None:
    await (await session.run(PROMPT)).wait()


def memory_of(root: int) -> int:
    """Return the memory of a process and its descendants, in bytes; shared memory counts once."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return sum(pss_of(pid) for pid in parents if root in ancestors(pid, parents) and pid != root)


def pss_of(pid: int) -> int:
    """Return the memory of a process, in bytes, with its part of shared memory; 0 if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0


def ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        yield pid
        pid = parents[pid]


# Activations


def activations(table: Table, manage: Manage, folder: Path, stored: int, visits: int) -> None:
    """Measure the first call of sessions that are not resident, in a store with many sessions."""
    fill(f"sqlite:///{folder}/many.db", stored)
    taken, again = Samples(), Samples()

    async def activate() -> None:
        async with manage("many") as manager:
            step = stored // (visits + 40)
            sessions = [await manager.get(f"session-{index * step}") for index in range(visits + 40)]
            for index, session in enumerate(sessions):
                for samples in (taken, again):
                    began = time.perf_counter()
                    turn = await session.latest()
                    samples.append(time.perf_counter() - began)
                    assert turn and turn.index == 0
                if index < 40:  # also for the hosts to be there
                    taken.clear()
                    again.clear()
            await retire(manager)

    asyncio.run(activate())
    title = f"activation, {stored:,} sessions in SQLite: p99"
    table.judge(title, taken.percentile(99) * 1000, 20, " ms", taken)
    table.line("  the same verb again, resident", again)


def fill(url: str, count: int) -> None:
    """Store this number of sessions, each with one turn."""

    async def make() -> None:
        store = SQLStore(url)
        await store.create(SessionRecord(session_id="first"))  # which makes the tables
        await store.close()

    asyncio.run(make())
    block, now = encode(User(text=PROMPT)), time.time()
    sessions, turns, blocks = [], [], []
    for index in range(count):
        key = index + 2
        record = SessionRecord(session_id=f"session-{index}", created_at=now, updated_at=now, log_size=1, next_index=1)
        span = (Span(str(key), 0, 1),)
        sessions.append(session_row(key, record))
        turn = TurnRecord(index=0, status="completed", prompt=span, input=span, created_at=now)
        turns.append(turn_row(key, turn, record.session_id))
        blocks.append({"log": key, "at": 0, "body": block})
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for table, rows in ((schema.sessions, sessions), (schema.turns, turns), (schema.blocks, blocks)):
            connection.execute(sa.insert(table), rows)
    engine.dispose()


# Turns


def turns_at_once(table: Table, manage: Manage, bare: Any, count: int, rounds: int) -> None:
    """Measure concurrent durable turns of many sessions, compared with bare calls, from one process, alternating."""
    calls, turns = Samples(), Samples()

    async def talk() -> None:
        async with manage("busy") as manager:
            sessions = await asyncio.gather(*(manager.open(f"session-{number}") for number in range(count)))

            async def call(_: object) -> None:
                await bare.call.remote()

            for number in range(-2, rounds):
                for work, samples in ((call, calls), (one_turn, turns)):
                    began = time.perf_counter()
                    await in_batches(work, sessions)
                    samples.append((time.perf_counter() - began) / count)
                if number < 0:
                    calls.clear()
                    turns.clear()
            await retire(manager)

    asyncio.run(talk())
    at_once = min(count, AT_ONCE)
    table.line(f"bare calls of one async actor, {at_once} at once, each", calls, f"{1 / calls.median:,.0f} a second")
    title = f"durable turns of {count:,} packed sessions, each"
    if count <= 64:
        table.judge(title, turns.median / calls.median, 1.8, samples=turns)
    else:
        table.judge(title, calls.median / turns.median, 0.5, " of the bare rate", turns, bound="least")
    table.line("  a second", result=f"{1 / turns.median:,.0f}")


# Visits

MOST_RESIDENT = 1000
"""How many sessions each host may have resident while sessions are visited."""


def visits(table: Table, url: str, namespace: str, count: int) -> None:
    """Open sessions on four hosts, have a turn in each, and never come back; in ten parts, which are compared.

    A loop that only computes alternates with them: by its median, a machine that becomes slower is told from a store
    that does. Bare calls would not do: from part to part, they vary by a tenth where visits vary by a fiftieth. The end
    is compared with the beginning by a line through all ten parts, since one part may meet other work of the machine.
    """
    loops, taken, sizes, counts = list[float](), list[float](), list[int](), list[int]()
    part_size = count // 10

    async def visit_all() -> None:
        idle = pss_of(os.getpid())
        placement = Packed(hosts=4, max_resident=MOST_RESIDENT)
        async with AsyncSessionManager(url, engine=EchoEngine(), placement=placement, namespace=namespace) as manager:

            async def visit(number: int) -> None:
                await one_turn(await manager.open(f"session-{number}"))

            await in_batches(visit, range(-2 * AT_ONCE, 0))
            pids = [os.getpid(), *await asyncio.gather(*(host.ready.remote() for host in hosts_of(manager)))]
            for part in range(0, count, part_size):
                seconds, looped = 0.0, list[float]()
                for first in range(part, part + part_size, AT_ONCE):
                    began = time.perf_counter()
                    await in_batches(visit, range(first, min(first + AT_ONCE, part + part_size)))
                    ended = time.perf_counter()
                    seconds += ended - began
                    sum(range(200_000))
                    looped.append(time.perf_counter() - ended)
                taken.append(seconds / part_size)
                loops.append(median(looped))
                sizes.append(sum(map(pss_of, pids)) - idle)
                counts.append(await resident_count(manager))
            await retire(manager)

    asyncio.run(visit_all())
    first, last = ends([loop / seconds for loop, seconds in zip(loops, taken, strict=True)])
    visited = f"{count:,} sessions on 4 hosts, each opened, with a turn"
    table.line(visited, result=f"{1 / taken[0]:,.0f} a second at first")
    table.judge("  the rate at the end, to the machine's speed, to that", last / first, 0.9, bound="least")
    speed = f"a loop {loops[0] * 1000:.3g} ms, then {loops[-1] * 1000:.3g} ms"
    table.line("  a second at the end", result=f"{1 / taken[-1]:,.0f} a second; {speed}")
    most = 4 * MOST_RESIDENT
    title = "  resident at most, to max_resident of all hosts"
    table.line(f"  resident, of {most:,} that may be", result=f"{counts[0]:,}, then {counts[-1]:,}")
    table.judge(title, max(counts) / most, 1)
    above = f"{sizes[0] / 2**20:,.0f} MB, then {sizes[-1] / 2**20:,.0f}"
    table.line("  memory of their hosts, and what it adds here", result=above)
    table.judge("  memory at the end, to that", sizes[-1] / sizes[0], 1.1)


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a line through values of the same distance, which outliers hardly move: Theil and Sen's.

    Its slope is the median of all slopes between two values. P. K. Sen, "Estimates of the regression coefficient based
    on Kendall's tau", Journal of the American Statistical Association 63, 1968.
    """
    slope = median((values[b] - values[a]) / (b - a) for a, b in combinations(range(len(values)), 2))
    first = median(value - slope * index for index, value in enumerate(values))
    return first, first + slope * (len(values) - 1)


async def resident_count(manager: AsyncSessionManager) -> int:
    loads = map(unpacked, await asyncio.gather(*(host.load.remote() for host in hosts_of(manager))))
    return sum(load.sessions for load in loads)


# Kills


def kills(
    table: Table, dedicated: SessionManager, packed: SessionManager, make_bare: Callable[[], Any], times: int
) -> None:
    """Measure the time to an answer after a kill -9 of the process that should give it.

    Ray retries a failed call at its next tick, once a second. So the kills are spread evenly over that second; without
    that, they would be synchronized with the ticks.
    """
    floor, session_s, host_s = Samples(), Samples(), Samples()
    bare = make_bare()

    def after_kill(number: int, samples: Samples, pid: int, ask: Callable[[], object]) -> None:
        time.sleep((number / times - time.monotonic()) % 1)
        os.kill(pid, signal.SIGKILL)
        with samples.timed():
            ask()

    def verb(session: Session) -> Callable[[], object]:
        return lambda: session.run("Are you there?").wait()

    sessions = [(dedicated.open(), session_s), (packed.open(), host_s)]
    for session, _ in sessions:
        session.run("Hello.").wait()
    for number in range(-1, times):
        after_kill(number, floor, ray.get(bare.pid.remote()), lambda: ray.get(bare.call.remote()))
        for session, samples in sessions:
            after_kill(number, samples, process_of(session.info()), verb(session))
        if number < 0:
            for samples in (floor, session_s, host_s):
                samples.clear()
    end_process(bare, ray.get(bare.pid.remote()))
    table.line("bare actor: kill -9 to the next answer", floor, "floor")
    for title, samples in (("session", session_s), ("packed session", host_s)):
        table.judge(f"{title}: kill -9 to the next turn", samples.median / floor.median, 1.5, samples=samples)
    for session, _ in sessions:
        end_process(session.actor, process_of(session.info()))
