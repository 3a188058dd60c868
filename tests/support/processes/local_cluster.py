"""A cluster of three nodes on this machine, and checks of it, in a process of its own.

`python local_cluster.py <URLs> <folder>` prints one line of JSON for each check: its outcome, or why it failed.
`test_cluster_on_ray.py` has the expected outcomes. `leave` and `attach` are drivers that come and go.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engines import process_of
from processes import large_settings
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.cluster.node_choice import ANYWHERE
from turnwise.actors.hosting.placement import Dedicated, Packed
from turnwise.actors.hosting.store_spec import store_id_of
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, LongTermMemoryError, RunEndedError
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.working.memory import WorkingMemory
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.audit import audit
from turnwise.testing.chaos import Bounds, chaos
from turnwise.testing.killers import Doing, Killer
from turnwise.testing.workload import Workload

# A node that is dead is known to be after some two seconds; one that is slow, since the machine is, is left in peace.
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 4,
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
}

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_log_monitor": False}

LOAD_S = 6.0
"""How long callers are at work when a node dies, in seconds."""

RESUMED = SessionConfig(on_lost="resume", cancel_grace_s=0.5)
INTERRUPTED = SessionConfig(cancel_grace_s=0.5)


class Gated:
    """Answers `hold <name>` when the folder has a file of this name, and streams until then; echoes all else."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        prompt: str = turn.new_blocks[-1].text  # type: ignore[union-attr, assignment]
        word, _, name = prompt.partition(" ")
        while word == "hold" and not await asyncio.to_thread(Path(self._folder, name).exists):
            context.emit("tick ")
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        return [Text(text=f"done: {prompt}")]


async def until(holds: Callable[[], Awaitable[bool]], most_s: float = 60.0) -> None:
    """Look again and again until something holds.

    Raises:
        TimeoutError: it does not.
    """
    async with asyncio.timeout(most_s):
        while not await holds():
            await asyncio.sleep(0.05)


async def kill(*chats: AsyncSession) -> None:
    """SIGKILL the processes of sessions; they are back on return."""
    pids = [process_of(await chat.info()) for chat in chats]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    async def are_back() -> bool:
        return not {process_of(await chat.info()) for chat in chats} & set(pids)

    await until(are_back)


@dataclass
class Box:
    """The cluster and what the checks leave for each other."""

    urls: str
    """Of databases, with `{}` for their names: one for each namespace, as sessions have one placement at a time."""
    folder: Path
    cluster: Cluster = field(default_factory=Cluster)
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    head: str = ""
    victim: Any = None
    """The node that dies."""
    namespaces: set[str] = field(default_factory=set)

    def add_head(self) -> None:
        self.cluster.add_node(include_dashboard=False, _system_config=HEALTH, **NODE)
        ray.init(address=self.cluster.address, configure_logging=False, log_to_driver=False)
        self.head = ray.get_runtime_context().get_node_id()

    def add_two(self) -> None:
        self.victim = self.cluster.add_node(wait=False, **NODE)
        self.cluster.add_node(wait=False, **NODE)
        self.cluster.wait_for_nodes()

    def kill_victim(self) -> None:
        """SIGKILL the raylet, as a crash; its workers see that it is gone, and end."""
        os.kill(self.victim.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def is_victim_dead(self) -> bool:
        return not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == self.victim.node_id)

    def manager(self, namespace: str, store: str | None = None, **settings: Any) -> AsyncSessionManager:
        return AsyncSessionManager(
            store or self.urls.format(namespace),
            engine=Gated(str(self.folder)),
            namespace=namespace,
            **{"config": INTERRUPTED, **settings},
        )

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()

    async def ask(self, chat: AsyncSession, prompt: str, **settings: Any) -> AsyncExecutionHandle:
        """Start a run, and note that it was acknowledged."""
        asked_at = self.acknowledged.clock()
        run = await chat.run(prompt, **settings)
        self.acknowledged.stored(chat.session_id, [prompt], asked_at, run_id=run.run_id, turn_index=run.turn_index)
        return run

    async def end(self, run: AsyncExecutionHandle) -> str:
        """Wait for a run, and note how it ended."""
        turn: Turn | None
        try:
            turn, state = await run.wait(60), "completed"
        except RunEndedError as error:
            turn, state = error.turn, str((await run.info()).state)
        self.acknowledged.ended(run.session_id, run.run_id, state, None if turn is None else turn.blocks)
        return state

    async def follow(self, run: AsyncExecutionHandle) -> list[str]:
        """Follow a run to its end, and note its events; return their kinds."""
        events = [event async for event in run.events()]
        self.acknowledged.followed(run.session_id, run.run_id, [event.seq for event in events])
        return [event.kind for event in events]

    async def audit(self, namespace: str, tag: str) -> dict[str, Any]:
        """Compare a store with what was acknowledged, for sessions whose ids begin with a tag."""
        store = SQLStore(self.urls.format(namespace))
        try:
            ids = [name for name in self.acknowledged.session_ids if name.startswith(tag)]
            report = await audit(store, ids, self.acknowledged)
        finally:
            await store.close()
        return {"violations": list(map(str, report.violations)), "counts": dict(report.counts)}


def node_of(namespace: str, name: str) -> str:
    """Return which node an actor is on, as Ray has it."""
    actor = ray.get_actor(name, namespace=namespace)
    state = ray._private.state.actors(actor._actor_id.hex())  # noqa: SLF001 - Ray tells it nowhere else
    return str(state["Address"]["NodeID"])


def names_of(namespace: str, prefix: str) -> list[str]:
    named_actors = ray.util.list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in named_actors if actor["namespace"] == namespace]
    return sorted(name for name in names if name.startswith(prefix))


@asynccontextmanager
async def placed_on(node_id: str) -> AsyncIterator[None]:
    """Have actors that may go anywhere begin on this node."""
    anywhere = ANYWHERE["scheduling_strategy"]
    ANYWHERE["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=True)
    try:
        yield
    finally:
        ANYWHERE["scheduling_strategy"] = anywhere


def memory_at(url: str) -> LexicalMemory:
    return LexicalMemory(SQLItems(url))


# The checks, in their order


async def a_node_joins(box: Box) -> dict[str, Any]:
    """While there is one node, files are fine. Then two join."""
    file = f"sqlite:///{box.folder}/chats.db"
    memory = memory_at(f"sqlite:///{box.folder}/facts.db")
    dedicated = box.manager("file", file, memory=[memory])
    packed = box.manager("file-packed", file, placement=Packed(hosts=1))
    before = await dedicated.open("before")
    await before.memory.save("Ada keeps bees.", id="bees")
    await (await before.run("hello")).wait(60)
    host = await packed.open("packed")
    run = await host.run("hold join")
    box.add_two()
    after = [await dedicated.open(f"after{number}") for number in range(2)]
    await kill(before, host)
    box.open_gate("join")
    texts = [(await (await chat.run("again")).wait(60)).text for chat in (before, *after, host)]
    nodes = {(await chat.info()).node_id for chat in (before, *after, host)}
    nodes |= {node_of("file", name) for name in names_of("file", "turnwise/memory/")}
    refused: dict[str, str] = {}
    arguments: dict[str, dict[str, Any]] = {
        "store": {"store": file},
        "history_store": {"history_store": file},
        "working_memory": {"working_memory": WorkingMemory(SQLItems(file, space="notes"))},
    }
    for name, settings in arguments.items():
        try:
            async with box.manager("file", **settings):
                pass
        except ConfigError as error:
            refused[name] = str(error)
    outcome = {
        "texts": texts,
        "is_all_on_head": nodes == {box.head},
        "lost": (await run.info()).state,
        "recalled": [item.text for item in await before.memory.recall("bees")],
        "refused": refused,
    }
    for manager in (dedicated, packed):
        await manager.close()
    end_actors("file", "file-packed")
    return outcome


async def placement(box: Box) -> dict[str, Any]:
    packed = box.manager("p", placement=Packed(hosts=3))
    await packed.count()  # it starts with its first verb
    hosts = names_of("p", "turnwise/")
    await asyncio.gather(*(ray.get_actor(name, namespace="p").ready.remote() for name in hosts))
    dedicated = box.manager("d")
    chats = [await dedicated.open(f"d-spread{number}") for number in range(3)]
    nodes = {(await chat.info()).node_id for chat in chats}
    await packed.close()
    await dedicated.close()
    return {"hosts": len({node_of("p", name) for name in hosts}), "sessions": len(nodes)}


async def a_node_dies(box: Box) -> dict[str, Any]:
    """With runs in flight on it, with callers at work, with a memory's actor, with followers."""
    victim = box.victim.node_id
    facts = memory_at(box.urls.format("d"))
    async with placed_on(victim):
        dedicated = box.manager("d", config=RESUMED, memory=[facts])
        alone = await dedicated.open("d-held")
        assert (await alone.info()).node_id == victim
    memory = names_of("d", "turnwise/memory/")[0]
    packed = box.manager("p", placement=Packed(hosts=3))
    shared = await session_on(packed, victim)
    await alone.memory.save("Ada keeps bees.", id="bees")
    elsewhere = await kept_in_files_of(box, victim)
    at_first = [item.text for item in await elsewhere.memory.recall("wasps")]
    runs = [await box.ask(chat, "hold death") for chat in (alone, shared)]
    later = [await box.ask(chat, f"later {chat.session_id}", if_busy="enqueue") for chat in (alone, shared)]
    following = [asyncio.create_task(box.follow(run)) for run in runs]
    was_on = node_of("d", memory)
    died = asyncio.Event()

    async def die() -> None:
        if died.is_set():
            await asyncio.Event().wait()
        died.set()
        box.kill_victim()

    def killers(manager: AsyncSessionManager, session_ids: Sequence[str]) -> Iterator[tuple[Killer, float]]:
        yield Doing("a node's death", die), 1.0

    bounds = Bounds(seconds=LOAD_S, faults=1, settle_s=120.0)
    work = {"callers": 2, "forks": 0.0, "run_timeout_s": 30.0}
    reports = await asyncio.gather(
        chaos(
            packed,
            lambda: SQLStore(box.urls.format("p")),
            Acknowledged(),
            killers=killers,
            workload=Workload(sessions=6, tag="p-load", **work),  # type: ignore[arg-type]
            bounds=bounds,
        ),
        chaos(
            dedicated,
            lambda: SQLStore(box.urls.format("d")),
            Acknowledged(),
            killers=lambda *_: (),
            workload=Workload(sessions=2, tag="d-load", **work),  # type: ignore[arg-type]
            bounds=Bounds(seconds=LOAD_S, settle_s=120.0),
        ),
    )

    async def is_dead() -> bool:
        return box.is_victim_dead()

    await until(is_dead)

    async def has_resumed() -> bool:
        return (await runs[0].info()).resumes > 0

    await until(has_resumed)
    box.open_gate("death")
    states = [await box.end(run) for run in runs]
    after = [await box.end(run) for run in later]
    kinds = await asyncio.gather(*following)
    why_not = ""
    try:
        await elsewhere.memory.recall("wasps")
    except LongTermMemoryError as error:
        why_not = str(error)
    return {
        "broken": [str(violation) for report in reports for violation in (*report.unsettled, *report.audit.violations)],
        "faults": [report.total for report in reports],
        "prompts": [report.audit.counts["acknowledged prompt"] for report in reports],
        "followers": [report.audit.counts["acknowledged followed"] for report in reports],
        "settling_s": [report.settling_s for report in reports],
        "states": states,
        "after": after,
        "resumed": [run_kinds.count("run_resumed") for run_kinds in kinds],
        "ends": [[kind for kind in run_kinds if kind.startswith("run_")][-1] for run_kinds in kinds],
        "audit": [await box.audit("d", "d-held"), await box.audit("p", "p-on")],
        "left": victim not in {(await chat.info()).node_id for chat in (alone, shared)},
        "memory_moved": was_on == victim != node_of("d", memory),
        "recalled": [item.text for item in await alone.memory.recall("bees")],
        "kept_in_files": [at_first, why_not],
    }


async def session_on(manager: AsyncSessionManager, node_id: str) -> AsyncSession:
    """Return a session whose packed host is on a node."""
    for number in range(40):
        chat = await manager.open(f"p-on{number}")
        if (await chat.info()).node_id == node_id:
            return chat
    raise AssertionError(f"no host is on node {node_id}")


async def kept_in_files_of(box: Box, node_id: str) -> AsyncSession:
    """Return a session whose memory is in a file of a node, and that lives elsewhere; no manager of it is open here."""

    @ray.remote(num_cpus=0)
    def start_on_node(url: str, folder: str) -> bytes:
        manager = SessionManager(
            url, engine=Gated(folder), namespace="away", memory=[memory_at(f"sqlite:///{folder}/away.db")]
        )
        chat = manager.open("away")
        chat.memory.save("Ada fears wasps.", id="wasps")
        manager.close()
        return pickle.dumps(("away", store_id_of("away", url)))

    pickled = await start_on_node.options(
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
    ).remote(box.urls.format("away"), str(box.folder))
    from turnwise.actors.client.shared.sessions_client import SessionsClient

    namespace, name = pickle.loads(pickled)
    return AsyncSession(SessionsClient(namespace, name, Dedicated()), SessionRef(SessionKey("away")), None)


async def drivers_leave(box: Box) -> dict[str, Any]:
    """One ends while its runs go on, one is killed; others find the runs by id and by pickled handle."""
    drivers = [await driver(box, "leave", how) for how in ("ends", "killed")]
    notes = [json.loads(await line_of(process)) for process in drivers]
    drivers[1].send_signal(signal.SIGKILL)
    codes = [await process.wait() for process in drivers]
    managers = {"d": box.manager("d", config=RESUMED), "p": box.manager("p", placement=Packed(hosts=3))}
    runs = [
        await managers[namespace].execution(note[namespace]["run_id"]) for note in notes for namespace in ("d", "p")
    ]
    before = [(await run.info()).state for run in runs]
    handles = [note[namespace]["handle"] for note in notes for namespace in ("d", "p")]
    attached = await driver(box, "attach", *handles)
    ready = await line_of(attached)
    box.open_gate("leave")
    texts = [(await run.wait(60)).text for run in runs]
    results = json.loads(await line_of(attached))
    codes.append(await attached.wait())
    for manager in managers.values():
        await manager.close()
    return {"codes": codes, "before": before, "attached": json.loads(ready), "texts": texts, "seen": results}


async def driver(box: Box, *words: str) -> asyncio.subprocess.Process:
    """Start another driver of this cluster."""
    env = os.environ | {"RAY_ADDRESS": box.cluster.address}
    command = [sys.executable, __file__, box.urls, str(box.folder), *words]
    return await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)


async def line_of(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout
    return await asyncio.wait_for(process.stdout.readline(), 60)


def leave(urls: str, folder: str, how: str) -> None:
    """Start two runs, say how to find them, and end; or be killed."""
    noted: dict[str, dict[str, str]] = {}
    ray.init(configure_logging=False, log_to_driver=False)
    placements: dict[str, Any] = {"d": Dedicated(), "p": Packed(hosts=3)}
    for namespace, placed in placements.items():
        config = RESUMED if namespace == "d" else INTERRUPTED
        url = urls.format(namespace)
        manager = SessionManager(url, engine=Gated(folder), namespace=namespace, placement=placed, config=config)
        run = manager.open(f"{namespace}-{how}").run("hold leave")
        handle = base64.b64encode(pickle.dumps(run)).decode()
        noted[namespace] = {"run_id": run.run_id, "handle": handle}
    print(json.dumps(noted), flush=True)
    if how == "killed":
        signal.pause()


def attach(handles: Sequence[str]) -> None:
    """Print the states of runs, follow them to their end, and print their texts."""
    ray.init(configure_logging=False, log_to_driver=False)
    runs: list[ExecutionHandle] = [pickle.loads(base64.b64decode(handle)) for handle in handles]
    print(json.dumps([run.status() for run in runs]), flush=True)
    print(json.dumps([[run.wait(60).text, len(list(run.events())) > 2] for run in runs]), flush=True)


async def hosts_change(box: Box) -> dict[str, Any]:
    """Two hosts follow three with runs in flight; one of the three is killed before it has given its sessions up."""
    first = box.manager("p", placement=Packed(hosts=3))
    chats = [await first.open(f"grow{number}") for number in range(9)]
    runs = [await box.ask(chat, "hold grow") for chat in chats]
    pids = [process_of(await chat.info()) for chat in chats]
    second = box.manager("p", placement=Packed(hosts=2))
    again = [await second.get(chat.session_id) for chat in chats]
    later = [await box.ask(chat, f"later {chat.session_id}", if_busy="enqueue") for chat in again]
    unmoved = [process_of(await chat.info()) for chat in again] == pids
    lost_indexes = [index for index, pid in enumerate(pids) if pid == pids[0]]
    os.kill(pids[0], signal.SIGKILL)
    store = SQLStore(box.urls.format("p"))

    async def has_outcome() -> bool:
        return all([(await store.run(runs[index].run_id)).state != "running" for index in lost_indexes])

    try:
        await until(has_outcome)  # nobody asks for them meanwhile
    finally:
        await store.close()
    box.open_gate("grow")
    states = [await box.end(await second.execution(run.run_id)) for run in runs]
    after = [await box.end(await second.execution(run.run_id)) for run in later]
    last = [await box.end(await box.ask(chat, f"last {chat.session_id}")) for chat in again]
    now = {process_of(await chat.info()) for chat in again}

    async def have_left() -> bool:
        return not [name for name in names_of("p", "turnwise/") if "/hosts/0x3/" in name]

    await until(have_left)
    await first.close()
    await second.close()
    return {
        "unmoved": unmoved,
        "lost": [states[index] for index in lost_indexes],
        "kept": [state for index, state in enumerate(states) if index not in lost_indexes],
        "after": after,
        "last": last,
        "hosts": len(now),
        "old": len(now & set(pids)),
        "audit": await box.audit("p", "grow"),
    }


async def a_program_goes_with_its_node(box: Box) -> dict[str, Any]:
    """With large settings; then the processes that it made elsewhere are killed, too."""
    node = box.cluster.add_node(**NODE)
    on_node = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    program: Any = ray.remote(num_cpus=0)(large_settings.make).options(scheduling_strategy=on_node)
    places = {
        placed: (box.urls.format("away"), f"gone-{placed}", box.folder / f"gone-{placed}", placed)
        for placed in large_settings.PLACEMENTS
    }
    for _, _, folder, _ in places.values():
        folder.mkdir()
    reports = {placed: await program.remote(*map(str, place), 20.0) for placed, place in places.items()}
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    async def is_dead() -> bool:
        return not any(entry["Alive"] for entry in ray.nodes() if entry["NodeID"] == node.node_id)

    await until(is_dead)
    return {placed: await large_settings.back(*place, reports[placed]) for placed, place in places.items()}


CHECKS = (a_node_joins, placement, a_node_dies, drivers_leave, hosts_change, a_program_goes_with_its_node)


def end_actors(*namespaces: str) -> None:
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] in namespaces:
            ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))


def main(urls: str, folder: str) -> None:
    box = Box(urls, Path(folder))
    try:
        box.add_head()
        for check in CHECKS:
            began = time.monotonic()
            try:
                outcome: dict[str, Any] = {"found": asyncio.run(asyncio.wait_for(check(box), 300))}
            except Exception:  # noqa: BLE001 - the test that asks for it shall say so
                outcome = {"error": traceback.format_exc()}
            seconds = round(time.monotonic() - began, 1)
            print(json.dumps({"check": check.__name__, "seconds": seconds, **outcome}), flush=True)
    finally:
        ray.shutdown()
        box.cluster.shutdown()


def begin(urls: str, folder: str, *words: str) -> None:
    match words:
        case ["leave", how]:
            leave(urls, folder, how)
        case ["attach", *handles]:
            attach(handles)
        case _:
            main(urls, folder)


if __name__ == "__main__":
    from processes import local_cluster  # noqa: PLW0406 - not as __main__: engines are to be found by their module

    local_cluster.begin(*sys.argv[1:])
