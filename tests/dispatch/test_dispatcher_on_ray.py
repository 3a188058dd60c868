"""Timers on Ray: the actor that begins runs when they are due, whoever is killed and whoever has left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engines import ScriptedEngine, process_of
from patience import within
from scale import ONE_PLACEMENT
from stored.audit import store_of
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.cluster.actor_names import actor_name, dispatcher_name, find_actor
from turnwise.actors.cluster.actor_spec import ActorSpec
from turnwise.actors.cluster.dispatcher_process import DispatcherProcess
from turnwise.actors.cluster.runtime import RayRuntime
from turnwise.actors.cluster.sharding import Layout, find_layouts
from turnwise.actors.hosting.placement import Dedicated, Packed, Placement
from turnwise.actors.hosting.store_spec import StoreSpec, store_id_of
from turnwise.actors.session.config import SessionConfig
from turnwise.engines import schedule_tools
from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery
from turnwise.testing.scripted_engine import ScriptedAnswer, ScriptedEngine as Script

MakeManager = Callable[..., SessionManager]

WAIT_S = 60.0

until = within(WAIT_S)

QUICK = SessionConfig(idle_s=0.2)


def texts(chat: Session) -> list[str | None]:
    """Return the answers of all turns that have completed."""
    return [turn.text for turn in chat.turns() if turn.status == "completed"]


@dataclass(frozen=True)
class Actors:
    """The actors of the store of a test's managers."""

    namespace: str
    store_id: str

    def dispatcher(self) -> Any:
        """Return the dispatcher's; None if there is none."""
        return find_actor(self.namespace, dispatcher_name(self.store_id))

    def of_session(self, session_id: str) -> Any:
        """Return a session's own; None if it has none."""
        return find_actor(self.namespace, actor_name(self.store_id, SessionKey(session_id)))

    def alarm(self, url: str, leave_s: float) -> DispatcherProcess:
        """Return what starts the dispatcher's actor, which leaves so soon."""
        setup = RayRuntime(self.namespace).setup_of((ScriptedEngine(), SessionConfig(), None, [], None))
        spec = ActorSpec(StoreSpec(url, is_local=True), *setup)
        return DispatcherProcess(self.namespace, self.store_id, Dedicated(), spec, leave_s=leave_s)

    def has_left(self, manager: SessionManager, session_id: str) -> bool:
        """Return whether no process has a session."""
        packed = [host.load for host in manager.hosts() if host.is_packed]
        return self.of_session(session_id) is None and all(
            load and session_id not in str(load.recent) for load in packed
        )


@pytest.fixture
def actors(namespace: str, tmp_path: Path) -> Actors:
    return Actors(namespace, store_id_of(namespace, f"sqlite:///{tmp_path}/chats.db"))


@ONE_PLACEMENT
def test_a_session_that_has_left_is_woken_when_its_run_is_due(
    make_ray_manager: MakeManager, actors: Actors, placement: Placement
) -> None:
    manager = make_ray_manager(placement=placement, config=QUICK)
    chat = manager.open("chat")
    soon = chat.schedule("soon", after_s=0.2)
    until(lambda: texts(chat) == ["soon"])
    assert chat.runs()[0].created_at == pytest.approx(soon.occurs_at, abs=10.0)
    later = chat.schedule("later", after_s=4.0)
    until(lambda: actors.has_left(manager, chat.session_id))
    assert not any("dispatcher" in host.name for host in manager.hosts())
    until(lambda: texts(chat) == ["soon", "later"])
    assert later.run_id in [run.run_id for run in chat.runs()] and not chat.schedules().items


@ONE_PLACEMENT
def test_a_message_wakes_a_session_that_has_left(
    make_ray_manager: MakeManager, actors: Actors, placement: Placement
) -> None:
    manager = make_ray_manager(placement=placement, config=QUICK)
    ann, bob = (manager.open(name) for name in ("ann", "bob"))
    until(lambda: actors.has_left(manager, bob.session_id))
    message = ann.send("bob", "hello")
    until(lambda: texts(bob) == ["hello"])
    (run,) = bob.runs()
    assert (run.run_id, run.labels) == (message.run_id, {"from_session": "ann"})
    until(lambda: not ann.schedules().items)


@ONE_PLACEMENT
def test_each_occurrence_begins_one_run_whoever_is_killed(
    make_ray_manager: MakeManager, actors: Actors, ray_session: ModuleType, placement: Placement
) -> None:
    manager = make_ray_manager(placement=placement)
    chat = manager.open("chat")
    for number in range(8):
        chat.schedule(f"once {number}", after_s=1.0 + number / 4, key=f"{number}")
    chat.schedule("again", after_s=1.0, every_s=1.0, key="again", missed="run_all")
    began = time.monotonic()
    for number in range(6):
        time.sleep(0.5)
        if number % 2:
            os.kill(process_of(chat.info()), signal.SIGKILL)
        else:
            ray_session.kill(actors.dispatcher(), no_restart=False)
    until(lambda: [schedule.key for schedule in chat.schedules()] == ["again"])
    until(lambda: chat.schedules().items[0].occurs_at > time.time())
    assert time.monotonic() < began + 60.0, "the next process of the actor waits for no lease"
    chat.cancel_schedule("again")
    until(lambda: not manager.runs(state="running").items and not manager.runs(state="queued").items)
    prompts = [block.text for turn in chat.turns() for block in turn.asked if block.kind == "user"]
    assert sorted(text for text in prompts if text != "again") == [f"once {number}" for number in range(8)]
    revisions = [int(run.run_id.rpartition("-")[2]) for run in chat.runs() if prompts[run.turn_index] == "again"]
    assert sorted(revisions) == [*range(1, len(revisions) + 1)] and len(revisions) >= 3


SCHEDULING = """
import sys, time, ray
from turnwise import EchoEngine, SessionManager
url, address, namespace = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
manager = SessionManager(url, engine=EchoEngine(), namespace=namespace)
manager.open("chat").schedule("water the plants", after_s=4.0)
print("scheduled", flush=True)
time.sleep(600)
"""


def test_a_run_begins_though_the_program_that_scheduled_it_is_killed(
    make_ray_manager: MakeManager, ray_session: ModuleType, tmp_path: Path, namespace: str
) -> None:
    reader = make_ray_manager(read_only=True, store=f"sqlite:///{tmp_path}/chats.db")
    address = ray_session.get_runtime_context().gcs_address
    command = [sys.executable, "-c", SCHEDULING, f"sqlite:///{tmp_path}/chats.db", address, namespace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "scheduled\n"
        finally:
            process.kill()
    chat = reader.get("chat")
    assert not chat.runs()
    until(lambda: texts(chat) == ["water the plants"])


def test_the_actor_leaves_when_nothing_is_due_and_comes_back(
    make_ray_manager: MakeManager, actors: Actors, tmp_path: Path
) -> None:
    chat = make_ray_manager().open("chat")
    assert actors.dispatcher() is None, "a store without deliveries has none"
    asyncio.run(actors.alarm(f"sqlite:///{tmp_path}/chats.db", leave_s=1.0).expect())
    first = actors.dispatcher()
    chat.schedule("one", after_s=2.5)
    until(lambda: texts(chat) == ["one"])
    assert actors.dispatcher() == first
    until(lambda: actors.dispatcher() is None)
    chat.schedule("two", after_s=0.2)
    until(lambda: texts(chat) == ["one", "two"])


def test_an_actor_that_leaves_as_a_delivery_is_stored_loses_none(
    make_ray_manager: MakeManager, actors: Actors, tmp_path: Path
) -> None:
    url, dice, count = f"sqlite:///{tmp_path}/chats.db", random.Random(0), 12
    manager = make_ray_manager(store=url)
    chat = manager.open("chat")

    async def store_all() -> set[Any]:
        alarm = actors.alarm(url, leave_s=0.3)
        store, expecting = store_of(manager), set[Any]()
        for number in range(count):
            await alarm.expect()
            expecting.add(actors.dispatcher())
            due_at, name = time.time() + dice.random() * 0.3, f"{number}"
            payload = run_payload([encode(User(text=name))], {})
            ids: dict[str, Any] = {"delivery_id": name, "key": name, "session_id": chat.session_id}
            await store.add_delivery(Delivery(**ids, payload=payload, occurs_at=due_at, due_at=due_at))
            alarm.tell(due_at)
            await asyncio.sleep(0.3 + dice.random() * 0.9)
        await store.close()
        return expecting

    assert len(asyncio.run(store_all())) > 2, "it has left in between"
    until(lambda: sorted(map(str, texts(chat))) == sorted(map(str, range(count))))


def test_a_manager_that_opens_the_store_has_what_waits_carried_out(
    make_ray_manager: MakeManager, actors: Actors, ray_session: ModuleType
) -> None:
    """As after the end of a whole Ray."""
    with make_ray_manager() as manager:
        chat = manager.open("chat")
        chat.schedule("one", after_s=4.0)
        ray_session.kill(actors.dispatcher())
        ray_session.kill(actors.of_session("chat"))
        until(lambda: actors.dispatcher() is None)
    with make_ray_manager() as manager:
        until(lambda: actors.dispatcher() is not None)
        until(lambda: texts(manager.get("chat")) == ["one"])


@ONE_PLACEMENT
def test_the_manager_that_has_scheduled_a_run_has_the_engine_of_it(
    make_ray_manager: MakeManager, actors: Actors, placement: Placement
) -> None:
    managers = [
        make_ray_manager(placement=placement, config=QUICK, engine=ScriptedEngine(name)) for name in ("a ", "b ")
    ]
    first, second = (manager.open(f"chat-{number}") for number, manager in enumerate(managers))
    first.schedule("one", after_s=4.0)
    second.schedule("two", after_s=4.0)
    until(lambda: actors.has_left(managers[0], first.session_id) and actors.has_left(managers[1], second.session_id))
    until(lambda: (texts(first), texts(second)) == (["a one"], ["b two"]))


@ONE_PLACEMENT
def test_a_model_sets_a_reminder_within_a_run(
    make_ray_manager: MakeManager, actors: Actors, placement: Placement
) -> None:
    at = datetime.fromtimestamp(time.time() + 6.0, UTC).isoformat()
    script: list[ScriptedAnswer] = [[("set_reminder", {"text": "Water.", "at": at})], "I will.", "Water the plants!"]
    engine = Script(script, tools=schedule_tools())
    manager = make_ray_manager(placement=placement, config=QUICK, engine=engine)
    chat = manager.open("chat")
    assert chat.run("Remind me.").wait(WAIT_S).text == "I will."
    assert actors.dispatcher() is not None
    until(lambda: texts(chat) == ["I will.", "Water the plants!"])


def test_sessions_of_another_layout_get_what_was_scheduled_before(
    make_ray_manager: MakeManager, actors: Actors, ray_session: ModuleType
) -> None:
    chat = make_ray_manager(placement=Packed(hosts=1), config=QUICK).open("chat")
    chat.schedule("one", after_s=5.0)
    manager = make_ray_manager(placement=Packed(hosts=2), config=QUICK)
    newest = Layout(2, 2)
    assert find_layouts(actors.namespace, actors.store_id)[0] == newest
    ray_session.kill(actors.dispatcher(), no_restart=False)
    until(lambda: texts(manager.get("chat")) == ["one"])
    assert find_layouts(actors.namespace, actors.store_id)[0] == newest


def test_the_actor_starts_sessions_where_the_newest_manager_does(
    make_ray_manager: MakeManager, actors: Actors, ray_session: ModuleType
) -> None:
    make_ray_manager(placement=Dedicated(), config=QUICK).open("chat").schedule("one", after_s=6.0)
    manager = make_ray_manager(placement=Packed(hosts=1))
    chat = manager.get("chat")
    until(lambda: actors.of_session("chat") is None)
    ray_session.kill(actors.dispatcher(), no_restart=False)
    until(lambda: texts(chat) == ["one"])
    (host,) = manager.hosts()
    assert host.is_packed and host.load and host.load.sessions == 1
