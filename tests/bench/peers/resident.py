"""Memory

Equal: so many conversations, each with one turn of 360 characters, that the program keeps at hand. Counted is the
resident memory of the program and of all processes that it started, memory that they share once (PSS), first with one
conversation, then with all. turnwise on Ray has Ray's processes, which the first column shows; the last one shows
what a conversation adds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from peers.bench import Bench, Table, Working, megabytes
from peers.peer import PROMPT, Model, Peer
from peers.worker import descendants

COUNT, QUICK_COUNT = 300, 20
FEWER: Mapping[str, int] = {"turnwise, dedicated": 8}
"""Those that have a process for each conversation."""


async def fill(peer: Peer, first: int, last: int) -> None:
    for begin in range(first, last, 50):
        batch = range(begin, min(begin + 50, last))
        await asyncio.gather(*(peer.one_of_many(f"chat-{number}", PROMPT) for number in batch))


def ask(bench: Bench) -> dict[str, Any]:
    result = {}
    for name in bench.names:
        count = FEWER.get(name, COUNT)
        worker = bench.start_one(name, "resident", Model())
        try:
            count = min(count, QUICK_COUNT) if bench.quick else count
            worker.do("resident.fill", first=0, last=1)
            settle(worker, bench)
            before = memory_of(worker.pid)
            worker.do("resident.fill", first=1, last=count)
            settle(worker, bench)
            result[name] = {"count": count, "before": before, "after": memory_of(worker.pid)}
        finally:
            worker.close()
    return result


def settle(worker: Working, bench: Bench) -> None:
    """Wait, if the program has started others: Ray starts processes ahead."""
    if not bench.quick and descendants(worker.pid):
        time.sleep(5)


def memory_of(root: int) -> int:
    """Return the memory of a process and its descendants, in bytes; shared memory counts once."""
    total = 0
    for pid in [root, *descendants(root)]:
        with suppress(OSError):  # it has ended meanwhile
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    rows = [
        (
            name,
            megabytes(sizes["before"]),
            f"{sizes['count']:,}",
            megabytes(sizes["after"]),
            f"{(sizes['after'] - sizes['before']) / (sizes['count'] - 1) / 1000:,.0f} KB",
        )
        for name, sizes in result.items()
    ]
    yield "", [("", "with one", "conversations", "with all", "each adds"), *rows]
