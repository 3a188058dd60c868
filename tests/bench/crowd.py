"""200 users who chat, save and recall at once: whether anybody is shown another's memory, and how long it takes.

    python tests/bench/crowd.py                             ten minutes
    python tests/bench/crowd.py --seconds 20 --users 40     a short one, to see that it works

All users note the same things in the same words, each with a key of their own, and ask for them again. Every key that
stands in a request, or that a program recalls, says whose it is. Every second question is asked without memory: what
memory adds is the difference between the two, at the same time and under the same load. Exits with 1 if anybody saw
another's key, or too few saw their own.
"""

import argparse
import asyncio
import logging
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}

import ray

from harness import Samples
from long_term.remembering import vector_memory
from turnwise import AsyncSession, AsyncSessionManager, Packed, Turn
from turnwise.engines import RunContext, SessionView
from turnwise.memory.conversation.blocks import AnyBlock, Recalled, Text

HOSTS = 2
ADDED_MS = 20
"""The goal: what memory adds to a turn, at the 95th percentile of both."""
FOUND = 0.9
"""Of the questions for what was noted, how many are to have it in their request."""
THINGS = ("locker", "bicycle", "suitcase", "cabinet", "garage", "letter box", "cellar", "safe")
KEY = re.compile(r"\bkey(\d+)x(\d+)\b")


class Looking:
    """An engine that answers which keys were recalled for it."""

    def build(self, session: SessionView) -> "Looking":
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        recalled = "\n".join(block.text for block in turn.blocks if isinstance(block, Recalled))
        return [Text(text=" ".join(sorted({match[0] for match in KEY.finditer(recalled)})) or "none")]


class Crowd:
    """The users, and what came of what they did."""

    def __init__(self, manager: AsyncSessionManager, pause_s: float, until: float) -> None:
        self._manager = manager
        self._pause_s = pause_s
        self._until = until
        self.counts: Counter[str] = Counter()
        self.with_memory, self.without, self.recalls = Samples(), Samples(), Samples()
        self.leaks: list[str] = []

    async def live(self, user: int) -> None:
        """Let a user chat until the time is over, with a pause after each turn."""
        random = Random(user)
        session = await self._manager.open(user_id=f"user-{user}")
        await asyncio.sleep(random.random() * self._pause_s)
        noted = 0
        while time.monotonic() < self._until:
            if noted < 3 or random.random() < 0.2:
                thing = THINGS[noted % len(THINGS)]
                text = f"Please note that my {thing} number {noted} opens with key{user}x{noted}."
                await self._turn(session, text, memory=True)
                noted += 1
                self.counts["noted"] += 1
            else:
                await self._ask(session, user, random.randrange(noted - 1), random)
            await asyncio.sleep(random.expovariate(1 / self._pause_s))

    async def _ask(self, session: AsyncSession, user: int, number: int, random: Random) -> None:
        question = f"Which key opens my {THINGS[number % len(THINGS)]} number {number}?"
        if random.random() < 0.1:
            with self.recalls.timed():
                items = await session.memory.recall(question)
            self._look(user, KEY.findall("\n".join(item.text for item in items)), number)
            return
        memory = random.random() < 0.5
        samples = self.with_memory if memory else self.without
        with samples.timed():
            answer = await self._turn(session, question, memory=memory)
        if memory:
            self._look(user, KEY.findall(answer), number)
        elif answer != "none":
            self.leaks.append(f"user {user} was shown {answer} without memory")

    async def _turn(self, session: AsyncSession, prompt: str, *, memory: bool) -> str:
        turn = await (await session.run(prompt, memory="on" if memory else "off")).wait()
        answer = turn.blocks[-1]
        assert isinstance(answer, Text)
        return answer.text

    def _look(self, user: int, keys: Sequence[tuple[str, str]], number: int) -> None:
        self.counts["asked"] += 1
        self.counts["found"] += (str(user), str(number)) in keys
        self.leaks += [
            f"user {user} was shown key {number} of user {owner}" for owner, number in keys if int(owner) != user
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Let many users chat, save and recall at once.")
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--pause", type=float, default=4, help="how long a user waits after a turn on average, seconds")
    options = parser.parse_args()
    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="turnwise-crowd-") as folder:
        crowd = asyncio.run(live_together(Path(folder), options.users, options.seconds, options.pause))
    ray.shutdown()
    return report(crowd, options.users, options.seconds)


async def live_together(folder: Path, users: int, seconds: float, pause_s: float) -> Crowd:
    manager = AsyncSessionManager(
        f"sqlite:///{folder}/sessions.db",
        engine=Looking(),
        memory=[vector_memory(folder, "crowd")],
        placement=Packed(hosts=HOSTS),
        namespace="crowd",
    )
    async with manager:
        crowd = Crowd(manager, pause_s, time.monotonic() + seconds)
        await asyncio.gather(*map(crowd.live, range(users)))
    return crowd


def report(crowd: Crowd, users: int, seconds: float) -> int:
    """Print the results; return 1 if a user saw another's key, too few saw their own, or it took too long."""
    turns = len(crowd.with_memory) + len(crowd.without) + crowd.counts["noted"]
    if not (crowd.with_memory and crowd.without and crowd.recalls):
        print("too short: nobody had the time to ask")
        return 1
    print(f"{users} users, {seconds:.0f} s: {turns:,} turns, {turns / seconds:.0f}/s, {crowd.counts['noted']:,} noted")
    for name, samples in (
        ("turn without memory", crowd.without),
        ("turn that recalls and is saved", crowd.with_memory),
        ("recall by a program", crowd.recalls),
    ):
        percentiles = "  ".join(f"p{percent} {1000 * samples.percentile(percent):7.1f} ms" for percent in (50, 95, 99))
        print(f"  {name:32} n {len(samples):6}  {percentiles}")
    added = 1000 * (crowd.with_memory.percentile(95) - crowd.without.percentile(95))
    verdict = "met" if added <= ADDED_MS else "MISSED"
    print(f"  memory adds at p95 {added:.1f} ms, goal at most {ADDED_MS} ms: {verdict}")
    share = crowd.counts["found"] / crowd.counts["asked"]
    print(f"  own keys found: {share:.3f} of {crowd.counts['asked']:,} questions, at least {FOUND}")
    print(f"  another's keys shown: {len(crowd.leaks)}", *crowd.leaks[:10], sep="\n    ")
    return int(bool(crowd.leaks) or share < FOUND or added > ADDED_MS)


if __name__ == "__main__":
    sys.exit(main())
