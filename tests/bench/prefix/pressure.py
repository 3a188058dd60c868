"""Measures what hints are worth where a cache is too small: 32 agents, whose tools take seconds and whose people hours.

All is simulated: the cache, the agents and the time. The sessions call the hints at the same moments as real ones.
"""

import heapq
import random

from harness import Table
from prefixes.cache import BLOCK, PrefixCache

SESSIONS = 32

HOUR_S = 3600.0

HOLD_S = 30.0


def reuse(share: float, *, hints: bool, steps: int, seed: int = 1) -> float:
    """Return which share of the tokens of all requests is reused.

    Each agent calls five tools, of 1 to 20 seconds, then waits for a person, who decides at the beginning of the next
    hour, and so on.

    Args:
        share: how much of all conversations the cache holds, when they are at their longest.
        steps: how many requests each agent makes.
    """
    dice = random.Random(seed)
    cache = PrefixCache(int(share * SESSIONS * (40 + 8 * steps)))
    system = [f"system {number}" for number in range(40 * BLOCK)]
    said = {number: [*system] for number in range(SESSIONS)}
    due = [(dice.random() * 60, number, 0) for number in range(SESSIONS)]
    heapq.heapify(due)
    while due:
        now, number, step = heapq.heappop(due)
        tokens = said[number]
        tokens += [f"{number} {step} {place}" for place in range(8 * BLOCK)]
        cache.read(tokens, now=now)
        is_person = step % 6 == 5
        if hints and is_person:
            cache.drop(tokens, before=system)
        elif hints:
            cache.hold(tokens, now + HOLD_S, now=now)
        next_s = (now // HOUR_S + 1) * HOUR_S + dice.random() * 60 if is_person else now + 1 + dice.random() * 19
        if step + 1 < steps:
            heapq.heappush(due, (next_s, number, step + 1))
    return cache.reused / (cache.reused + cache.prefilled)


def measure(table: Table, *, steps: int) -> None:
    """Measure and print all of it."""
    for share in (0.1, 0.25, 0.5):
        without, with_hints = (reuse(share, hints=hints, steps=steps) for hints in (False, True))
        table.line(f"32 agents, a cache for {share:.0%} of them", result=f"{without:.1%} reused without hints")
        table.judge("  tokens prefilled with hints, to that", (1 - with_hints) / (1 - without), 1.0)
