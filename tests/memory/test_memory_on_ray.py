"""Long-term memories in their actors, as sessions use them, on Ray."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_agents_on_ray import WAIT_S
from test_output import says
from test_sessions_on_ray import kill

from engine_calls import engine_at
from memories.memory_engines import BrokenMemory, Mirror, SlowMemory
from memories.memory_manager import answering
from patience import until
from quirks import QuirkServer, Reply
from scale import share
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.cluster.actors.memory_actor import MemoryActorProcess
from turnwise.actors.hosting.memory.remote_memory import RemoteMemory
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, InvalidInputError, LongTermMemoryError
from turnwise.memory.conversation.events import MemoryFailed, MemoryRecalled
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Scope
from turnwise.memory.longterm.conformance import LAWS
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.stores.conformance.laws import Law, check_law
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.trim import Trim
from turnwise.testing import LocalProvider
from turnwise.testing.embedding import HashEmbedding

MakeManager = Callable[..., SessionManager]

PATIENT = SessionConfig(memory=MemoryConfig(timeout_s=60.0))
"""Runs wait for memories as long as their processes take to start."""


def test_flushed_exchanges_are_recalled_for_the_same_user_only(make_manager: MakeManager, tmp_path: Path) -> None:
    """Cases 42, 49, 50: what was flushed by one session is in the next one's request, and not in its history."""
    facts = LexicalMemory(SQLItems(f"sqlite:///{tmp_path}/facts.db"))
    handbook = StaticMemory(["Parental leave is sixteen weeks."])
    manager = make_manager(
        engine=Mirror(),
        memory=[handbook, facts],
        placement=InProcess(),
        overflow=FlushToMemory(max_ratio=0.3, otherwise=Trim()),  # to the memories above
        config=SessionConfig(
            token_counter=ByteCounter(), max_context_tokens=2000, memory=MemoryConfig(max_tokens=600, timeout_s=60.0)
        ),
    )
    first = manager.open("first", user_id="sarah")
    first.run("My parental leave is booked from 2 March to 29 May.").wait(60)
    for number in range(20):
        first.run(f"What is rule {number} of the travel policy? {'x' * 60}").wait(60)
    second = manager.open("second", user_id="sarah")
    run = second.run("When does my parental leave begin?")
    turn = run.wait(60)
    assert "2 March" in turn.text and "sixteen weeks" in turn.text
    assert [block.kind for block in turn.blocks] == ["user", "text"]
    recalled = [event for event in run.events() if isinstance(event, MemoryRecalled)]
    assert recalled and recalled[0].sent["LexicalMemory"] >= 1
    item = next(item for item in first.memory.recall("When does my parental leave begin?") if "2 March" in item.text)
    assert item.memory == "LexicalMemory" and item.score and {"parental", "leave"} <= {*item.words}
    other_turn = manager.open("other", user_id="sara").run("When does my parental leave begin?").wait(60)
    assert "2 March" not in other_turn.text and "sixteen weeks" in other_turn.text


def test_a_failing_memory_is_reported_and_stops_no_run(make_manager: MakeManager) -> None:
    memory = [BrokenMemory(), StaticMemory(["The office is in Ghent."])]
    manager = make_manager(engine=Mirror(), memory=memory, config=PATIENT)
    chat = manager.open()
    run = chat.run("Where is the office?")
    assert "Ghent" in run.wait(60).text
    (failed,) = (event for event in run.events() if isinstance(event, MemoryFailed))
    assert failed.memory == "BrokenMemory" and "the disk is full" in failed.why
    (item,) = chat.memory.recall("Where is the office?")
    assert (item.text, item.memory) == ("The office is in Ghent.", "StaticMemory")
    with pytest.raises(LongTermMemoryError, match="the disk is full"):
        chat.memory.delete("1")


def test_a_run_without_memory_calls_no_memory(make_manager: MakeManager) -> None:
    """Case 50."""
    chat = make_manager(engine=Mirror(), memory=[SlowMemory()], config=PATIENT).open()
    assert [item.id for item in chat.memory.recall("0")] == ["1"]
    chat.run("0", memory=False).wait(60)
    assert [item.id for item in chat.memory.recall("0")] == ["2"]
    chat.run("0", memory="read").wait(60)
    assert [item.id for item in chat.memory.recall("0")] == ["4"]


@pytest.fixture
def remote(ray_session: ModuleType, tmp_path: Path) -> Iterator[Callable[..., RemoteMemory]]:
    """Makes memories in actors, which end with the test."""
    namespace = f"memory-{tmp_path.name}"
    yield lambda memory, **settings: RemoteMemory(memory, MemoryActorProcess(memory, namespace), **settings)
    for actor in ray_session.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == namespace:
            ray_session.kill(ray_session.get_actor(actor["name"], namespace=namespace))


USER = Scope(user_id="ada")


def test_messages_become_facts_of_their_user_only(make_manager: MakeManager, tmp_path: Path) -> None:
    """Cases 42 and 53: by a model over HTTP, in the memory's actor; what changed takes the old one's place."""
    with LocalProvider(reply=answering) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url)
        facts = ExtractiveMemory(engine, SQLItems(f"sqlite:///{tmp_path}/facts.db"))
        config = SessionConfig(
            token_counter=ByteCounter(), max_context_tokens=2000, memory=MemoryConfig(max_tokens=600, timeout_s=60.0)
        )
        settings = {"placement": InProcess(), "config": config}
        talk = make_manager(engine=engine, overflow=FlushToMemory([facts], max_ratio=0.3), **settings)
        chat = talk.open("talk", user_id="sarah")
        for number in range(40):
            new = {0: "My office is in Ghent.", 20: "My office is in Porto now."}.get(number, "What of rule {number}?")
            chat.run(f"{new} {'x' * 60}" if number not in (0, 20) else new).wait(60)
        ask = make_manager(engine=Mirror(), memory=[facts], **settings)
        text = ask.open(user_id="sarah").run("Where is my office?").wait(60).text
        assert "Porto" in text and "Ghent" not in text
        assert "Porto" not in ask.open(user_id="sara").run("Where is my office?").wait(60).text
        requests = [request.body for request in provider.requests if "response_format" in request.body]
        assert requests and requests[0]["response_format"]["json_schema"]["schema"]["required"] == ["facts"]


def test_a_pin_holds_in_every_process_and_for_its_user_only(make_manager: MakeManager, tmp_path: Path) -> None:
    facts = partial(SQLItems, f"sqlite:///{tmp_path}/facts.db")
    manager = make_manager(engine=Mirror(), memory=[LexicalMemory(facts())], config=PATIENT)
    chat = manager.open("c", user_id="ada")
    item_id = chat.memory.save("Folds paper cranes.", type=MemoryType.SKILL)
    assert "<profile_memory>" not in chat.run("Where?").wait(60).text
    assert chat.memory.pin(item_id) and not chat.memory.pin("nothing")
    # the actor of a memory with other settings is another process
    other_manager = make_manager(engine=Mirror(), memory=[LexicalMemory(facts(connections=3))], config=PATIENT)
    other_chat = other_manager.open("d", user_id="ada")
    text = other_chat.run("Where?").wait(60).text
    assert "<profile_memory>" in text and "cranes" in text
    assert "<profile_memory>" not in other_manager.open("e", user_id="eve").run("Where?").wait(60).text
    assert other_chat.memory.unpin(item_id)
    assert "<profile_memory>" not in chat.run("Where now?").wait(60).text


async def test_the_async_family_changes_and_pins_what_the_other_has_saved(
    make_manager: MakeManager, tmp_path: Path, namespace: str
) -> None:
    settings: dict[str, Any] = {
        "engine": Mirror(),
        "placement": InProcess(),
        "memory": [VectorMemory(tmp_path / "said.db", embedding=None)],
        "config": replace(PATIENT, memory=MemoryConfig(timeout_s=60.0, save="none")),
    }
    manager = make_manager(**settings)
    item_id = manager.open("c", user_id="ada").memory.save("Folds paper cranes.", type=MemoryType.SKILL, name="Origami")

    settings["namespace"] = namespace
    async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as opened:
        chat = await opened.open("d", user_id="ada")

        async def profile() -> str:
            text = (await (await chat.run("Where?"))).text
            return text.partition("<profile_memory>")[2].partition("</profile_memory>")[0]

        assert await profile() == ""
        assert await chat.memory.pin(item_id) and not await chat.memory.pin("nothing")
        assert "cranes" in await profile()
        assert await chat.memory.update(item_id, name="Kirigami", topic="paper", aliases=["cuts"])
        (recalled,) = await chat.memory.recall("What of Kirigami?")
        assert (recalled.id, recalled.pinned, recalled.topic, recalled.aliases) == (item_id, True, "paper", ("cuts",))
        assert await chat.memory.recall("What of Origami?") == []
        assert await chat.memory.update(item_id, status="resolved") and await profile() == ""
        assert await chat.memory.update(item_id, status="active") and "cranes" in await profile()
        with pytest.raises(InvalidInputError, match="say what is to be changed"):
            await chat.memory.update(item_id)
        assert await chat.memory.unpin(item_id) and await profile() == ""


def test_a_resumed_run_has_the_same_profile(make_ray_manager: MakeManager, tmp_path: Path) -> None:
    is_killed = threading.Event()

    def held() -> Reply:
        is_killed.wait(WAIT_S)
        return says("too late")

    with QuirkServer(held, says("An apple.")) as server:
        facts = ExtractiveMemory(engine_at(server), SQLItems(f"sqlite:///{tmp_path}/facts.db"))
        config = SessionConfig(on_lost="resume", memory=MemoryConfig(timeout_s=60.0, save="none"))
        chat = make_ray_manager(engine=engine_at(server), memory=[facts], config=config).open("chat", user_id="ada")
        chat.memory.save("The user is allergic to peanuts.", type=MemoryType.FACTS)
        assert chat.memory.pin(chat.memory.save("Folds paper cranes.", type=MemoryType.SKILL))
        run = chat.run("Suggest a snack")
        until(lambda: len(server.requests) == 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(run.wait, WAIT_S)
            kill(chat)
            is_killed.set()
            assert waiting.result().text == "An apple."
        assert run.info().resumes == 1
        first, second = (json.dumps(request["messages"]) for request in server.requests)
        profiles = [text.partition("<profile_memory>")[2].partition("</profile_memory>")[0] for text in (first, second)]
        assert profiles[0] == profiles[1] and "peanuts" in profiles[0] and "cranes" in profiles[0]


async def test_a_memory_is_one_process_which_is_replaced_when_it_is_lost(
    remote: Callable[..., RemoteMemory],
) -> None:
    memory, copy = remote(SlowMemory(), recall_s=60.0), pickle.loads(pickle.dumps(remote(SlowMemory(), recall_s=60.0)))
    (first,) = await memory.recall(USER, "0")
    (second,) = await copy.recall(USER, "0")
    assert first.text == second.text != str(os.getpid()) and second.id == "2"
    other_memory = remote(SlowMemory("another"), recall_s=60.0)
    assert (await other_memory.recall(USER, "0"))[0].text != first.text
    os.kill(int(first.text), signal.SIGKILL)
    (later,) = await memory.recall(USER, "0")
    assert later.text != first.text and later.id == "1"
    for handle in (memory, copy, other_memory):
        await handle.close()


async def test_slow_and_failing_memories_time_out_and_then_rest(
    remote: Callable[..., RemoteMemory],
) -> None:
    patient, slow = (remote(SlowMemory(), recall_s=limit) for limit in (60.0, 0.05))
    await patient.recall(USER, "0")
    for _ in range(3):
        with pytest.raises(LongTermMemoryError, match=r"not answered within 0\.05 s"):
            await slow.recall(USER, "5")
    with pytest.raises(LongTermMemoryError, match="failed 3 times: left alone"):
        await slow.recall(USER, "0")
    broken = remote(BrokenMemory())
    for _ in range(5):
        with pytest.raises(LongTermMemoryError, match="OSError: the disk is full"):
            await broken.remember(USER, [MemoryItem(id="1", text="hello")])
    for handle in (patient, slow, broken):
        await handle.close()


class Tenant:
    """A memory with user ids of its own, for data shared with other tenants."""

    def __init__(self, memory: RemoteMemory, name: str) -> None:
        self._memory = memory
        self._name = name

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda scope, *args, **options: getattr(self._memory, verb)(self._own(scope), *args, **options)

    async def close(self) -> None:
        await self._memory.close()

    def _own(self, scope: Scope) -> Scope:
        return replace(scope, user_id=hashlib.sha256(f"{self._name}/{scope.user_id}".encode()).hexdigest())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["lexical", "vector"][: share(2, 2)])
async def test_a_memory_in_its_actor_obeys_all_laws(
    remote: Callable[..., RemoteMemory], tmp_path: Path, kind: str
) -> None:
    """Cases 50, 51, 52 and 54: all laws side by side on the data of one actor, each with users of its own."""
    memory: LongTermMemory = LexicalMemory(SQLItems(f"sqlite:///{tmp_path}/facts.db"))
    if kind == "vector":
        vectors = VectorIndex(ChromaFolder(tmp_path / "vectors"), HashEmbedding())
        memory = VectorMemory(SQLItems(f"sqlite:///{tmp_path}/words.db", lock_timeout_s=60.0), vectors)

    async def check(law: Law) -> None:
        await check_law(law, lambda: Tenant(remote(memory, deadline_s=250.0, recall_s=250.0), law.__name__))

    await asyncio.gather(*map(check, LAWS))


def test_invalid_and_unpicklable_memories_are_refused_at_once(make_ray_manager: MakeManager) -> None:
    with pytest.raises(ConfigError, match=r"^memory='type': pass LongTermMemory objects"):
        make_ray_manager(memory=[StaticMemory])
    with pytest.raises(ConfigError, match=r"^memory='StaticMemory': pass a list of memories"):
        make_ray_manager(memory=StaticMemory(["The office opens at nine."]))
    with pytest.raises(ConfigError, match=r"^memory='LexicalMemory': it cannot be pickled"):
        make_ray_manager(memory=[LexicalMemory(InMemoryItems(), clock=threading.Lock().acquire)])
