"""Failing long-term memories, end to end: unavailable embeddings and Chroma, folders in use."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memories.memory_engines import SteeredEmbedding
from memories.memory_manager import WAIT_S, Chroma, House, house_in, say, sections, told, turns_in
from patience import until
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.memory.config import MemoryConfig
from turnwise.errors import ConfigError
from turnwise.memory.conversation.events import MemoryBehind, MemoryCaughtUp, MemoryDegraded, MemoryFailed
from turnwise.memory.longterm.index.vector_index import VectorIndex

HASTY = {"memory": MemoryConfig(timeout_s=1.5), "compaction_timeout_s": 3.0}
"""How long a run waits for memories, and how long a memory may take to save."""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with house_in(tmp_path) as house:
        yield house


@pytest.fixture
def chroma(tmp_path: Path) -> Iterator[Chroma]:
    chroma = Chroma(tmp_path / "server")
    try:
        yield chroma
    finally:
        chroma.kill()


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


@pytest.mark.by_turns
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


@pytest.mark.by_turns
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


@pytest.mark.by_turns
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
