"""`VectorMemory("postgresql://...")` in its actor, on Ray."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest
from conftest import end_actors

from turnwise.actors.cluster.actors.memory_actor import MemoryActorProcess
from turnwise.actors.hosting.memory.remote_memory import RemoteMemory
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.testing.embedding import HashEmbedding

ANN = Scope(user_id="ann")
NAMESPACE = "postgres-memory"


@pytest.mark.by_turns
def test_what_was_remembered_survives_its_process_on_whichever_node(ray_session: ModuleType, database: str) -> None:
    async def use() -> None:
        memory = VectorMemory(database, embedding=HashEmbedding(64))
        process = MemoryActorProcess(memory, NAMESPACE)
        assert not memory.is_local
        remote = RemoteMemory(memory, process, recall_s=60.0)
        await remote.remember(ANN, [MemoryItem(id="1", text="Her cousin Odile grows dates in Marrakesh.")])
        actor: Any = ray_session.get_actor(process.actor_name, namespace=NAMESPACE)
        ray_session.kill(actor, no_restart=False)
        for _ in range(2):  # by the process that came in its place
            (recalled,) = await remote.recall(ANN, "Where does cousin Odile grow dates?")
            assert recalled.id == "1"
        assert [item.id for item in await remote.list_items(ANN)] == ["1"]
        erased = await remote.erase(ANN)
        assert erased.items == 1 and not erased.verified
        await remote.close()

    try:
        asyncio.run(use())
    finally:
        end_actors(ray_session, NAMESPACE)
