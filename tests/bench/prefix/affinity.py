"""Measures sessions on two real servers of a model, by the key of the prefix and in turn: tokens read, first tokens.

The servers are those of examples/cluster/local_model.py, each with a cache for most of the conversations, not all.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness import Samples, Table, prompt_of
from prefixes.teams import prefilled_by_teams
from turnwise import AsyncSessionManager, InProcess, OpenAIEngine
from turnwise.engines import Replicas
from turnwise.memory.values.ids import new_id

MODEL = Path(__file__).parents[3] / "examples/cluster/local_model.py"

BLOCK_MB, TURN_BLOCKS = 0.27, 2.3
"""The size of 16 tokens' keys and values, and how many such blocks a turn has."""


class InTurn(Replicas):
    """Sends each request to the next server."""

    def candidates(self, key: str) -> list[str]:
        first = next(_NUMBERS) % len(self.urls)
        return [*self.urls[first:], *self.urls[:first]]


_NUMBERS = itertools.count()


@contextmanager
def served(cache_mb: int) -> Iterator[str]:
    """Serve the model in a process of its own; the value is its URL."""
    command = [sys.executable, str(MODEL), "--cache-mb", str(cache_mb)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().split()[0]
        finally:
            process.kill()


def read_by(url: str) -> int:
    """Return how many tokens a server has prefilled."""
    with urllib.request.urlopen(url) as answer:
        return int(json.load(answer)["prefilled"])


async def _talk(router: Replicas, sessions: int, turns: int) -> tuple[Samples, int]:
    """Hold conversations in turn; return the times to the first token of the last turns, and the tokens of a chat."""
    engine = OpenAIEngine("dice", router=router, provider="vllm", max_output_tokens=8, timeout_s=300)
    last = Samples()
    size = 0
    async with AsyncSessionManager(f"memory://{new_id()}", engine=engine, placement=InProcess()) as manager:
        chats = [await manager.open(f"chat {number}") for number in range(sessions)]
        for number, (place, chat) in itertools.product(range(turns), enumerate(chats)):
            began = time.perf_counter()
            run = await chat.run(prompt_of(150, seed=100 * number + place))
            async for event in run.events():
                if event.kind == "text_delta":
                    break
            if number == turns - 1:
                last.append(time.perf_counter() - began)
            turn = await run.wait()
            size = turn.usage.input_tokens if turn.usage else 0
    return last, size


def measure(table: Table, *, sessions: int, turns: int) -> None:
    """Measure and print all of it.

    Args:
        sessions: an odd number, so that each session's requests go to both servers in turn.
    """
    cache_mb = int((sessions - 1.3) * turns * TURN_BLOCKS * BLOCK_MB) + 1
    read: dict[type[Replicas], tuple[Samples, int, int]] = {}
    for kind in (InTurn, Replicas):
        with ExitStack() as stack:
            urls: Sequence[Any] = [stack.enter_context(served(cache_mb)) for _ in range(2)]
            samples, size = asyncio.run(_talk(kind(urls), sessions, turns))
            read[kind] = samples, sum(map(read_by, urls)), size
    (slow, anew, size), (fast, kept, _) = read[InTurn], read[Replicas]
    table.line(f"first token of turn {turns}, 2 servers in turn", slow, f"{anew:,} tokens read, {size:,} at last")
    table.judge("  by the key of the prefix, to that", fast.median / slow.median, 0.5, samples=fast)
    table.judge("  tokens read by that, to those in turn", kept / anew, 0.5)


def measure_agents(table: Table) -> None:
    """Measure and print what agents read at simulated replicas where their callers are, and by keys of their own."""
    with_callers, alone = (sum(asyncio.run(prefilled_by_teams(shares)) for _ in range(5)) for shares in (True, False))
    table.line("six users' agents, 3 replicas, by keys of their own", result=f"{alone // 5:,} tokens read")
    table.line("six users' agents where their callers are", result=f"{with_callers // 5:,} tokens read")
    table.judge("  tokens read where their callers are, to those", with_callers / alone, 1.0)
