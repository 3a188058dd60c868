"""Measures what is in every request, for any prompt: a part of `recall.py`.

Facts about who the user is and how they want to be answered share no word with most prompts: those of the types of a
profile, and pinned items. Each request should have all of them, and no other items.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from long_term import fact_set
from long_term.messages import WORDS, Half, half_of
from turnwise.memory.conversation.blocks import AnyBlock, Recalled, Text
from turnwise.memory.longterm.extraction.memory import PROFILE, ExtractiveMemory
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.quoting import quote

AGENTS = {"sarah": "hr", "tom": "code", "mei": "coach", "omar": "kitchen", "ines": "desk", "paul": "coach"}


class Showing:
    """An engine that answers with the recalled text."""

    def build(self, session: Any) -> Showing:
        return self

    async def run(self, turn: Any, context: Any) -> Sequence[AnyBlock]:
        recalled_text = "\n".join(block.text for block in turn.blocks if isinstance(block, Recalled))
        return [Text(text=recalled_text or "nothing")]


@dataclass(frozen=True, slots=True)
class Standing:
    """The scores of requests for prompts that share no word with any fact."""

    n: int
    share: float
    """The share of these facts that a request had, averaged over all requests."""
    exact_share: float
    """The share of requests that had all of them, and no other item."""
    surplus: float
    """The number of other facts in a request, averaged over all requests."""


def standing_of(user: str, agent: str) -> set[str]:
    """Return the ids of the facts that should be in each request of the user to the agent."""
    return {
        fact["id"]
        for fact in fact_set.SET["facts"]
        if fact["user"] == user
        and fact.get("agent") in (None, agent)
        and fact.get("status") != "resolved"
        and not {"superseded_by", "expires_at"} & set(fact)
        and (fact.get("pinned") or MemoryType(fact["type"]) in PROFILE)
    }


def ask_standing(half: Half) -> Standing:
    """Send each user's prompts through sessions, and look for facts in the requests."""
    from turnwise import MemoryConfig, Packed, SessionConfig, SessionManager

    quotes = {item.id: (scope.user_id, quote(item.text)) for scope, item in fact_set.facts()}
    shares, is_exact, surplus = [], [], []
    with tempfile.TemporaryDirectory() as folder:

        def memory(model: object) -> ExtractiveMemory:
            return ExtractiveMemory(model, SQLItems(f"sqlite:///{folder}/facts.db"))

        asyncio.run(_fill(lambda: memory(None)))
        with SessionManager(
            f"sqlite:///{Path(folder)}/sessions.db",
            engine=Showing(),
            memory=[memory(Showing())],
            config=SessionConfig(memory=MemoryConfig(save="none", timeout_s=20)),
            placement=Packed(hosts=1),
            namespace="bench-standing",
        ) as manager:
            for user, agent in AGENTS.items():
                expected = standing_of(user, agent)
                session = manager.open(user_id=user, agent=agent)
                for prompt in half_of(WORDS["standing"], half):
                    answer = session.run(prompt).wait().blocks[-1]
                    assert isinstance(answer, Text)
                    shown_ids = {
                        name for name, (owner, text) in quotes.items() if owner == user and text in answer.text
                    }
                    shares.append(len(expected & shown_ids) / len(expected))
                    is_exact.append(expected == shown_ids)
                    surplus.append(len(shown_ids - expected))
    count = len(shares)
    return Standing(count, sum(shares) / count, sum(is_exact) / count, sum(surplus) / count)


async def _fill(make: Callable[[], ExtractiveMemory]) -> None:
    memory = make()
    await fact_set.fill_with_facts(memory)
    await memory.close()
