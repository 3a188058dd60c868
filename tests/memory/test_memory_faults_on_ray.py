"""Failing long-term memories, end to end: killed processes, unavailable embeddings and Chroma, folders in use."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_agents_on_ray import until
from test_sessions_on_ray import kill

from memories.memory_engines import SteeredEmbedding
from memories.memory_manager import WAIT_S, Chroma, House, answering, say, sections, told
from scale import share
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.cluster.calls.local_calls import _BY_LOOP
from turnwise.actors.memory.config import MemoryConfig
from turnwise.errors import ConfigError
from turnwise.memory.conversation.events import MemoryBehind, MemoryCaughtUp, MemoryDegraded, MemoryFailed
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.extraction.memory import is_record
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.base import all_stored
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.testing import LocalProvider

TURNS = share(12, 2)
"""One for each third turn of each session that runs while memories are killed."""

HASTY = {"memory": MemoryConfig(timeout_s=1.5), "compaction_timeout_s": 3.0}
"""How long a run waits for memories, and how long a memory may take to save."""


@pytest.fixture
def house(ray_session: ModuleType, tmp_path: Path) -> Iterator[House]:
    with LocalProvider(reply=answering) as provider:
        house = House(ray_session, tmp_path, provider)
        try:
            yield house
        finally:
            house.close()


@pytest.fixture
def chroma(tmp_path: Path) -> Iterator[Chroma]:
    chroma = Chroma(tmp_path / "server")
    try:
        yield chroma
    finally:
        chroma.kill()


def turns_in(chat: Session) -> list[int]:
    """Return the turns whose prompts the user's memories have, in order."""
    recalled = chat.memory.recall("walrus", limit=1000, types=[MemoryType.INTERACTION])
    return sorted(item.source.turn_index or 0 for item in recalled if item.source.session_id == chat.id)


def vectors_in(place: Any, embedding: SteeredEmbedding) -> int:
    index = VectorIndex(place, embedding)
    try:
        return len(index.keys())
    finally:
        index.close()


def told_of(chat: Session, prompt: str, kind: type[Any]) -> list[Any]:
    """Run a turn; return its events of this kind. Events of memories are live only."""
    run = chat.run(prompt)
    run.wait(WAIT_S)
    return [event for event in run.events() if isinstance(event, kind)]


NUMBERS = itertools.count()


def until_whole(chat: Session, kind: type[Any]) -> None:
    """Run turns until memories publish no event of this kind any more."""
    until(lambda: not told_of(chat, f"And walrus {next(NUMBERS)}?", kind), WAIT_S)


@pytest.mark.timeout(400)
def test_while_vectors_fail_words_are_found_and_vectors_follow_later(
    house: House, chroma: Chroma, tmp_path: Path
) -> None:
    """Case 55: away from the first, killed in the midst, and back; an embedding function that raises for a while."""
    embedding = SteeredEmbedding(tmp_path)
    memory = house.vector(chroma.place, embedding, pause_s=0.1, keep_s=0)
    chat = house.manager(memory).open("chat")
    turns = 0

    def tell_while_away(cause: str) -> None:
        nonlocal turns
        say(chat, f"My walrus is named {cause}{turns}.")
        assert chat.memory.wait(WAIT_S), "items are durable"
        (degraded,) = told_of(chat, f"Which walrus is named {cause}{turns}?", MemoryDegraded)
        assert degraded.memory == "VectorMemory" and cause in degraded.why
        request = house.sent(f"Which walrus is named {cause}{turns}?")[-1]
        assert f"My walrus is named {cause}{turns}." in sections(request)["vector"]
        turns = len(chat.turns(limit=1000))

    def check_that_all_is_back() -> None:
        nonlocal turns
        until_whole(chat, MemoryDegraded)
        assert chat.memory.wait(WAIT_S)
        turns = len(chat.turns(limit=1000))
        until(lambda: vectors_in(chroma.place, embedding) == turns, WAIT_S)

    tell_while_away("Connection")
    chroma.start()
    check_that_all_is_back()
    chroma.kill()
    tell_while_away("127.0.0.1")
    chroma.start()
    check_that_all_is_back()
    embedding.down.on()
    tell_while_away("embeddings")
    embedding.down.off()
    check_that_all_is_back()
    assert turns_in(chat) == list(range(turns))
    assert not told(chat, MemoryBehind)


@pytest.mark.timeout(400)
def test_sessions_continue_without_a_hanging_memory_which_catches_up(house: House, tmp_path: Path) -> None:
    """Case 55."""
    embedding = SteeredEmbedding(tmp_path)
    memory = house.vector(embedding=embedding, pause_s=0.1, embed_s=WAIT_S, query_s=WAIT_S)
    chat = house.manager(memory, config=HASTY).open("chat")
    until_whole(chat, MemoryFailed)  # until its process is up
    assert chat.memory.wait(WAIT_S)
    behind, caught_up = len(told(chat, MemoryBehind)), len(told(chat, MemoryCaughtUp))
    embedding.held.on()
    failed = [event for n in range(5) for event in told_of(chat, f"My walrus has {n} tusks.", MemoryFailed)]
    assert [event.memory for event in failed] == ["VectorMemory"] * 5
    assert "not answered within 1.5 s" in failed[0].why and "left alone for" in failed[-1].why
    until(lambda: len(told(chat, MemoryBehind)) == behind + 1)
    embedding.held.off()
    assert chat.memory.wait(WAIT_S)
    assert len(told(chat, MemoryCaughtUp)) == caught_up + 1
    assert turns_in(chat) == list(range(len(chat.turns(limit=1000))))


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
                turn_counts[chat.id] += 1
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


@pytest.mark.timeout(400)
def test_vectors_of_another_dimension_are_refused_with_the_remedy(house: House, chroma: Chroma, tmp_path: Path) -> None:
    """Case 55: nothing is mixed, the chat goes on, and who goes back finds all."""
    chroma.start()
    manager, other_manager = (
        house.manager(house.vector(chroma.place, SteeredEmbedding(tmp_path, dimensions), keep_s=0))
        for dimensions in (64, 128)
    )
    chat = manager.open("chat")
    say(chat, "My walrus is small.")
    assert chat.memory.wait(WAIT_S)
    changed = other_manager.get("chat")
    say(changed, "My walrus has grown.")
    until(lambda: told(changed, MemoryBehind))
    (failed,) = told_of(changed, "My walrus is fed.", MemoryFailed)
    for told_why in (failed.why, told(changed, MemoryBehind)[0].why):
        assert "128 dimensions, the stored ones 64: rebuild() computes all vectors again" in told_why
    with pytest.raises(ConfigError, match="rebuild"):
        changed.memory.save("My walrus is fed.")
    assert not told_of(chat, "My walrus sleeps.", MemoryFailed)
    assert chat.memory.wait(WAIT_S)
    assert turns_in(chat) == [0, 1, 2, 3]


HOLDER = """
import sys
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.testing.embedding import HashEmbedding
index = VectorIndex(ChromaFolder(sys.argv[1]), HashEmbedding())
index.keys()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(400)
def test_a_folder_of_vectors_in_use_by_another_process_is_refused(house: House, tmp_path: Path) -> None:
    """Case 55: items are kept and found by words; when the other is gone, vectors are made."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "vectors")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout and holder.stdin
    try:
        assert holder.stdout.readline() == "open\n"
        chat = house.manager(house.vector(pause_s=0.1, keep_s=0)).open("chat")
        say(chat, "My walrus is small.")
        assert chat.memory.wait(WAIT_S)
        (degraded,) = told_of(chat, "How is my walrus?", MemoryDegraded)
        assert str(tmp_path / "vectors") in degraded.why and "another process" in degraded.why
        assert "My walrus is small." in sections(house.sent("How is my walrus?")[-1])["vector"]
    finally:
        holder.communicate()
    until_whole(chat, MemoryDegraded)
    assert chat.memory.wait(WAIT_S)
    assert turns_in(chat) == list(range(len(chat.turns())))


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
