"""A program on a node of a cluster that has a long-term memory together with others, and does what it is told.

`python shared_memory.py <address> <node> <database> <name>`; see `told_program.py`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from processes.told_program import obey
from turnwise import AsyncSessionManager, EchoEngine, LexicalMemory, VectorMemory
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.cluster.node_choice import ANYWHERE
from turnwise.errors import TurnwiseError
from turnwise.memories import LongTermMemory
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.testing.embedding import HashEmbedding


class Program:
    """What the program can do."""

    def __init__(self, address: str, node: str, database: str, name: str) -> None:
        ray.init(address=address, _node_ip_address=node, configure_logging=False, log_to_driver=False)
        self._database, self._name = database, name
        self._chats: dict[str, AsyncSession] = {}
        self._loads: list[asyncio.Task[None]] = []
        self._ends = asyncio.Event()
        self.saved: dict[str, list[str]] = {}
        """The ids of the items whose saves were acknowledged, by user."""
        self.runs: dict[str, int] = {}
        """How many runs were completed, by user."""
        self.foreign: list[str] = []
        """Items of other users that were recalled."""
        self.recalled_at: list[float] = []
        self.errors: list[str] = []

    async def manage(self, memory_on: str, own: str, kind: str, namespace: str, dimensions: int = 64) -> None:
        """Open a manager, whose memory begins on one node if it is not there yet, and whose sessions on another."""
        memory: LongTermMemory
        if kind == "vector":
            memory = VectorMemory(self._database, embedding=HashEmbedding(dimensions))
        else:
            memory = LexicalMemory(SQLItems(self._database, space="saved"))
        _place(memory_on)
        self._manager = AsyncSessionManager(self._database, namespace=namespace, engine=EchoEngine(), memory=[memory])
        first = await self._manager.open(f"{kind}-first-{self._name}", user_id="nobody")
        await self._again(first.memory.recall, "figs")
        await first.delete(memory=False)
        _place(own)

    async def open(self, users: Sequence[str], kind: str) -> None:
        for user in users:
            self._chats[user] = await self._manager.open(f"{kind}-{self._name}-{user}", user_id=user)

    async def begin(self, users: Sequence[str], kind: str) -> None:
        """Save, recall and run for users, again and again."""
        await self.open(users, kind)
        self._loads = [asyncio.create_task(self._work(user)) for user in users]

    async def progress(self) -> int:
        """Return how many recalls were answered so far."""
        return len(self.recalled_at)

    async def end(self) -> dict[str, Any]:
        """Stop that; return what came of it."""
        self._ends.set()
        await asyncio.gather(*self._loads)
        gaps = [later - earlier for earlier, later in zip(self.recalled_at, self.recalled_at[1:], strict=False)]
        return {
            "saved": self.saved,
            "runs": self.runs,
            "foreign": self.foreign,
            "recalls": len(self.recalled_at),
            "longest_gap_s": round(max(gaps, default=0.0), 2),
            "errors": sorted(set(self.errors)),
        }

    async def _work(self, user: str) -> None:
        chat, number = self._chats[user], 0
        while not self._ends.is_set():
            name = f"{self._name}-{user}-{number}"
            await self._again(chat.memory.save, f"{user} keeps figs in jar {number} of {self._name}.", id=name)
            self.saved.setdefault(user, []).append(name)
            items = await self._again(chat.memory.recall, f"Who keeps figs in jar {number}?")
            self.recalled_at.append(time.monotonic())
            self.foreign += [item.text for item in items if user not in item.text]
            run = await self._again(chat.run, f"{user} says {number} to {self._name}", idempotency_key=name)
            await run.wait(120)
            self.runs[user] = self.runs.get(user, 0) + 1
            number += 1
        await chat.memory.wait(120)

    async def _again(self, ask: Any, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return await ask(*args, **options)
            except TurnwiseError as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(0.1)

    async def items(self, user: str) -> dict[str, list[str]]:
        """Return what the memory has of a user, by id."""
        found: dict[str, list[str]] = {}
        cursor = None
        while True:
            page = await self._chats[user].memory.list(cursor=cursor)
            for item in page:
                found.setdefault(item.id, []).append(item.text)
            if (cursor := page.cursor) is None:
                return found

    async def save(self, user: str, text: str, id: str) -> None:
        await self._chats[user].memory.save(text, id=id)

    async def recall(self, user: str, query: str) -> dict[str, Any]:
        """Return what a recall finds, and why it is worse than usual."""
        items = await self._chats[user].memory.recall(query)
        return {"texts": [item.text for item in items], "trouble": items.trouble}

    async def wait_for_memory(self, user: str) -> bool:
        return await self._chats[user].memory.wait(120)

    async def node_of_memory(self) -> list[str]:
        """Return the addresses of the nodes with memories' processes."""
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        found = []
        for named in ray.util.list_named_actors(all_namespaces=True):
            if "turnwise/memory/" in named["name"]:
                actor = ray.get_actor(named["name"], namespace=named["namespace"])
                state = ray._private.state.actors(actor._actor_id.hex())  # noqa: SLF001 - Ray tells it nowhere else
                found.append(addresses.get(state["Address"]["NodeID"], ""))
        return found


def _place(address: str) -> None:
    node_id = next(node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == address)
    ANYWHERE["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=True)


if __name__ == "__main__":
    asyncio.run(obey(Program(*sys.argv[1:])))
