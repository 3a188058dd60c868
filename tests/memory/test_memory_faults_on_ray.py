"""Failing long-term memories, end to end: killed processes, unavailable embeddings and Chroma, folders in use."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from test_sessions_on_ray import kill

from memories.memory_engines import SteeredEmbedding
from memories.memory_manager import WAIT_S, House, house_in, say, told, turns_in
from patience import until
from scale import share
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.cluster.calls.local_calls import _BY_LOOP
from turnwise.actors.memory.config import MemoryConfig
from turnwise.memory.conversation.events import MemoryBehind, MemoryCaughtUp
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.extraction.memory import is_record
from turnwise.memory.longterm.items.base import all_stored

TURNS = share(12, 2)
"""One for each third turn of each session that runs while memories are killed."""

HASTY = {"memory": MemoryConfig(timeout_s=1.5), "compaction_timeout_s": 3.0}
"""How long a run waits for memories, and how long a memory may take to save."""


@pytest.fixture
def house(ray_session: ModuleType, tmp_path: Path) -> Iterator[House]:
    with house_in(tmp_path, ray_session) as house:
        yield house


@pytest.mark.by_turns
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_memories_killed_under_load_have_each_turn_once(house: House, tmp_path: Path) -> None:
    """Cases 55 and 63: SIGKILL while turns are recalled and saved, in vectors and in facts by a model."""
    memories = [house.vector(embedding=SteeredEmbedding(tmp_path)), house.extractive()]
    manager = house.manager(*memories, config=HASTY)
    chats = [manager.open(f"chat {number}", user_id=f"user-{number}") for number in (1, 10, 2)]
    turn_counts: Counter[str] = Counter()
    arrived = threading.Condition()

    def talk(chat: Session) -> None:
        for number in range(TURNS):
            say(chat, f"My thing{number} of {chat.user_id} is a walrus.")
            with arrived:
                turn_counts[chat.session_id] += 1
                arrived.notify_all()

    def strike() -> None:
        for number in range(TURNS // 3):
            with arrived:
                assert arrived.wait_for(lambda: sum(turn_counts.values()) >= 6 * number + 3, WAIT_S)  # noqa: B023 - at once
            house.kill(memories[number % 2])

    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(strike), *(pool.submit(talk, chat) for chat in chats)]
        for task in tasks:
            task.result()
    for chat in chats:
        assert chat.memory.wait(WAIT_S)
        until(lambda: turns_in(chat) == list(range(TURNS)), WAIT_S)  # noqa: B023 - a recall may come too late
        things = [f"My thing{number} of {chat.user_id} is a walrus." for number in range(TURNS)]
        assert sorted(facts_of(house, chat.user_id)) == sorted(things)
        behind, caught_up = told(chat, MemoryBehind), told(chat, MemoryCaughtUp)
        assert Counter(event.memory for event in behind) == Counter(event.memory for event in caught_up)


def facts_of(house: House, user: str) -> list[str]:
    """Return the texts of a user's facts, superseded ones too."""

    async def read() -> list[str]:
        facts = house.facts()
        texts = [fact.item.text async for fact in all_stored(facts, user) if not is_record(fact.item.id)]
        await facts.close()
        return texts

    return asyncio.run(read())


@pytest.mark.by_turns
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_turn_is_saved_after_all_processes_were_killed(house: House, tmp_path: Path) -> None:
    """Cases 55 and 63: the memory had taken the turn and not kept it, the session had not noted that."""
    embedding = SteeredEmbedding(tmp_path)
    memory = house.vector(embedding=embedding)
    patient = {**HASTY, "memory": MemoryConfig(timeout_s=WAIT_S)}  # its process takes its time to come back
    chat = house.manager(memory, config=patient).open("chat")
    say(chat, "My walrus is small.")
    assert chat.memory.wait(WAIT_S)
    embedding.held.on()
    say(chat, "My walrus has grown.")
    kill(chat)
    house.kill(memory)
    embedding.held.off()
    assert len(chat.turns()) == 2 and chat.memory.wait(WAIT_S)
    assert turns_in(chat) == [0, 1]
    say(chat, "My walrus is fed.")
    kill(chat)
    assert chat.info().session.session_id == "chat" and chat.memory.wait(WAIT_S)
    assert turns_in(chat) == [0, 1, 2]


@pytest.mark.by_turns
@pytest.mark.timeout(400)
async def test_recalls_go_over_a_socket_and_by_ray_while_the_memorys_process_is_killed(house: House) -> None:
    memory, scope = house.vector(), Scope(user_id="ann")
    remote = house.remote(memory)
    await remote.remember(scope, [MemoryItem(id="1", text="My walrus is called Antje.")])

    async def recall() -> None:
        assert [item.id for item in await remote.recall(scope, "What is my walrus called?")] == ["1"]

    async def recall_over_the_socket() -> int:
        """Recall until that goes over the socket; return the id of the process that answers."""
        while True:
            await recall()
            connections = _BY_LOOP[asyncio.get_running_loop()].all()
            if pids := [connection.peer_pid for connection in connections if connection.is_open]:
                return pids[0]
            await asyncio.sleep(0.05)

    first = await recall_over_the_socket()
    await asyncio.to_thread(house.kill, memory)
    await asyncio.gather(*(recall() for _ in range(20)))
    assert await recall_over_the_socket() != first
    await asyncio.gather(*(recall() for _ in range(20)))
    await remote.close()
