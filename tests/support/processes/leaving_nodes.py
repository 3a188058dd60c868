"""What happens to sessions when nodes leave a cluster, or die: one check for each way, in a process of its own.

`python leaving_nodes.py <URLs> <folder> <check> ...` prints one line of JSON for each check. Its figures are what
`docs/reliability.md` states; `test_leaving_nodes_on_ray.py` has the rest of the expected outcomes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import psycopg
import ray

from processes.local_cluster import Gated, memory_at, names_of, node_of, placed_on, until
from processes.ray_nodes import Nodes, kill_all
from servers.redis_server import RedisServer
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import RunEndedError, TurnwiseError

QUICK = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""What the docs recommend: a dead node is noticed within two seconds, one that does not answer within eight."""

DRIVER, VICTIM = "127.0.0.2", "127.0.0.3"


class Cluster:
    """A head, a node with this program, and one that leaves; a session of each placement and a memory are on that."""

    def __init__(self, urls: str, folder: Path, nodes: Nodes) -> None:
        self.urls, self.folder, self.nodes = urls, folder, nodes
        self.head = nodes.start_head()
        nodes.join(2)
        self.victim = nodes.join(3)
        ray.init(
            address=nodes.address,
            _node_ip_address=DRIVER,
            configure_logging=False,
            log_to_driver=False,
        )
        self.victim_id = next(node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == VICTIM)

    def manager(self, name: str, **settings: Any) -> AsyncSessionManager:
        url = self.urls.format(name)
        settings = {"engine": Gated(str(self.folder)), "config": SessionConfig(cancel_grace_s=0.5), **settings}
        return AsyncSessionManager(url, namespace=name, **settings)

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()


@asynccontextmanager
async def sessions(cluster: Cluster) -> AsyncIterator[tuple[AsyncSession, list[AsyncSession], str]]:
    """Yield a dedicated session and packed ones on the victim, and the name of a memory's actor there."""
    facts = memory_at(cluster.urls.format("d"))
    async with AsyncExitStack() as stack:
        async with placed_on(cluster.victim_id):
            dedicated = await stack.enter_async_context(cluster.manager("d", memory=[facts]))
            alone = await dedicated.open("alone")
            await (await alone.run("hello")).wait(60)
            await alone.memory.save("Ada keeps bees.", id="bees")
        packed = await stack.enter_async_context(cluster.manager("p", placement=Packed(hosts=3)))
        chats = [await packed.open(f"chat{number}") for number in range(24)]
        await asyncio.gather(*[(await chat.run("hello")).wait(60) for chat in chats])
        on_victim = [chat for chat in chats if (await chat.info()).node_id == cluster.victim_id]
        names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        memory = next(name for name in names if "/memory/" in name)
        assert on_victim and node_of("d", memory) == (await alone.info()).node_id == cluster.victim_id
        yield alone, chats, memory


async def seconds(work: Callable[[], Awaitable[Any]]) -> float:
    """Return how long it takes until something succeeds, in seconds."""
    began = time.monotonic()
    while True:
        try:
            await work()
        except TurnwiseError:
            await asyncio.sleep(0.1)
        else:
            return round(time.monotonic() - began, 2)


def drain_command(cluster: Cluster, *options: str) -> list[str]:
    return [sys.executable, "-m", "turnwise", "drain", "--address", cluster.nodes.address, "--json", *options]


class Load:
    """Callers who run one prompt after the other, and how long they waited beyond their runs."""

    RUN_S = 0.05
    """How long a run takes, in seconds."""

    def __init__(self, chats: Sequence[AsyncSession]) -> None:
        self._chats = chats
        self.runs = 0
        self.states: list[str] = []
        self.longest_s = 0.0
        self.waits_s: list[float] = []
        self._ends = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._call(chat)) for chat in self._chats]
        await asyncio.sleep(2)
        self.waits_s.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(2)
        self._ends.set()
        await asyncio.gather(*self._tasks)

    async def _call(self, chat: AsyncSession) -> None:
        while not self._ends.is_set():
            began = time.monotonic()
            try:
                await (await chat.run("hello", if_busy="enqueue")).wait(90)
                state = "completed"
            except RunEndedError as error:
                state = str(error)
            self.states.append(state)
            self.waits_s.append(time.monotonic() - began - self.RUN_S)
            await asyncio.sleep(0.2)

    def report(self) -> dict[str, Any]:
        waits_s = sorted(self.waits_s)
        return {
            "runs": len(self.states),
            "interrupted": [state for state in self.states if state != "completed"],
            "longest_wait_s": round(waits_s[-1], 2),
            "median_wait_s": round(waits_s[len(waits_s) // 2], 2),
        }


async def drained(cluster: Cluster) -> dict[str, Any]:
    """Under load, by three commands at once of which one is killed; a run that is held ends within the time."""
    async with sessions(cluster) as (alone, chats, memory):
        held = await alone.run("hold drain")
        async with Load(chats) as load:
            commands = [
                await asyncio.create_subprocess_exec(
                    *drain_command(cluster, "--node", cluster.victim_id, "--timeout", "60"),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
                for _ in range(3)
            ]
            commands[0].kill()

            async def packed_have_left() -> bool:
                return cluster.victim_id not in {(await chat.info()).node_id for chat in chats}

            await until(packed_have_left)
            state = (await held.info()).state
            cluster.open_gate("drain")
            outputs = [await command.communicate() for command in commands]
            text = (await held.wait(60)).text
        again = (await (await alone.run("again")).wait(60)).text

        async def has_ended() -> bool:
            return not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == cluster.victim_id)

        await until(has_ended)
        return {
            "codes": [command.returncode for command in commands],
            "report": json.loads(outputs[1][0]),
            "errors": [output[1].decode()[-500:] for output in outputs[1:]],
            "held": [state, text],
            "again": again,
            "recalled": [item.text for item in await alone.memory.recall("bees")],
            "memory_moved": node_of("d", memory) != cluster.victim_id,
            "left": cluster.victim_id not in {(await chat.info()).node_id for chat in (alone, *chats)},
            "load": load.report(),
        }


async def drained_too_late(cluster: Cluster) -> dict[str, Any]:
    """Two runs do not end in time: one ends as interrupted, one goes on elsewhere. The head is not drained."""
    resumed = cluster.manager("r", config=SessionConfig(on_lost="resume"))
    async with sessions(cluster) as (alone, _, _), resumed:
        async with placed_on(cluster.victim_id):
            other = await resumed.open("resumed")
            assert (await other.info()).node_id == cluster.victim_id
        runs = [await chat.run("hold late") for chat in (alone, other)]
        command = drain_command(cluster, "--node", cluster.victim_id, "--timeout", "3")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        cluster.open_gate("late")
        with suppress(RunEndedError):
            await runs[0].wait(60)
        text = (await runs[1].wait(60)).text
        head = next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
        refused = await asyncio.to_thread(
            subprocess.run, drain_command(cluster, "--node", head), capture_output=True, text=True, check=False
        )
        info = await runs[0].info()
        events = [event.why for event in [event async for event in runs[1].events()] if event.kind == "run_resumed"]
        return {
            "code": process.returncode,
            "report": json.loads(output),
            "interrupted": [info.state, info.why],
            "resumed": [text, events],
            "head": [refused.returncode, refused.stderr[-300:]],
        }


async def hosts_change(cluster: Cluster) -> dict[str, Any]:
    """Under load, two hosts follow four, and then four the two."""
    outcome: dict[str, Any] = {}
    async with cluster.manager("c", placement=Packed(hosts=4)) as first:
        chats = [await first.open(f"chat{number}") for number in range(16)]
        await asyncio.gather(*[(await chat.run("hello")).wait(60) for chat in chats])
        for before, after in ((4, 2), (2, 4)):
            async with Load(chats) as load:
                began = time.monotonic()
                async with cluster.manager("c", placement=Packed(hosts=after)) as later:

                    async def have_left(later: AsyncSessionManager = later, after: int = after) -> bool:
                        return len(await later.hosts()) == after

                    await until(have_left, 120)
                took_s = time.monotonic() - began
            outcome[f"{before} to {after}"] = {**load.report(), "took_s": round(took_s, 1)}
    return outcome


def lives_elsewhere(namespace: str, name: str, node_id: str) -> bool:
    """Return whether an actor has a process on another node than this one, as Ray has it."""
    actor = ray.get_actor(name, namespace=namespace)
    state = ray._private.state.actors(actor._actor_id.hex())  # noqa: SLF001 - Ray tells it nowhere else
    return str(state["State"]) == "ALIVE" and str(state["Address"]["NodeID"]) != node_id


async def death(cluster: Cluster) -> dict[str, Any]:
    """The node and all its processes are killed: how long until each kind answers again."""
    async with sessions(cluster) as (alone, chats, memory):
        lost = [chat for chat in chats if (await chat.info()).node_id == cluster.victim_id]
        session = next(name for name in names_of("d", "turnwise/") if name.endswith("/alone"))

        async def runs(chat: AsyncSession) -> None:
            await (await chat.run("hello", if_busy="enqueue")).wait(90)

        async def recalls() -> None:
            assert [item.text for item in await alone.memory.recall("bees")] == ["Ada keeps bees."]

        store_of_all = cluster.manager("d", memory=[memory_at(cluster.urls.format("d"))])
        async with store_of_all as other:
            elsewhere = await other.open("elsewhere", user_id="default")
            await (await elsewhere.run("hello")).wait(60)

            async def recalls_elsewhere() -> None:
                assert await elsewhere.memory.recall("bees")

            await recalls_elsewhere()
            kill_all(cluster.victim)

            async def noticed() -> None:
                while any(node["Alive"] for node in ray.nodes() if node["NodeID"] == cluster.victim_id):
                    await asyncio.sleep(0.05)

            async def is_up(name: str) -> None:
                while not await asyncio.to_thread(lives_elsewhere, "d", name, cluster.victim_id):
                    await asyncio.sleep(0.1)

            names = (
                "ray notices",
                "a recall",
                "a dedicated session",
                "the memory's process is up",
                "the session's process is up",
                "packed sessions, the slowest",
            )
            took_s = await asyncio.gather(
                seconds(noticed),
                seconds(recalls_elsewhere),
                seconds(lambda: runs(alone)),
                seconds(lambda: is_up(memory)),
                seconds(lambda: is_up(session)),
                asyncio.gather(*(seconds(partial(runs, chat)) for chat in lost)),
            )
            await recalls()
            new = await other.open("new")
            report = dict(zip(names, [*took_s[:5], max(took_s[5])], strict=True))
            return {**report, "for comparison, the first run of a new session": await seconds(lambda: runs(new))}


STORED = 100_000
"""How many sessions the store has while commands look at a cluster."""


def store_copies(url: str, session_id: str, count: int) -> None:
    """Store copies of a session, which nobody has loaded."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'turnwise_sessions'"
        ).fetchall()
        values = {name: f'"{name}"' for (name,) in rows} | {"key": "number", "session_id": "'stored-' || number"}
        names, chosen = ", ".join(f'"{name}"' for name in values), ", ".join(values.values())
        connection.execute(
            f"INSERT INTO turnwise_sessions ({names}) SELECT {chosen} FROM turnwise_sessions,"
            f" generate_series(1, {count}) AS number WHERE session_id = '{session_id}'".encode()
        )


async def watched(cluster: Cluster) -> dict[str, Any]:
    """What commands say of three nodes and many stored sessions, before and after a node is killed."""

    async def look(*words: str) -> dict[str, Any]:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "turnwise", *words, "--json"),
            env={**os.environ, "RAY_ADDRESS": cluster.nodes.address},
            stdout=asyncio.subprocess.PIPE,
        )
        printed = json.loads((await process.communicate())[0])
        if words[0] == "top":
            summary = {name: printed[name] for name in ("sessions", "runs")} | {"hosts": len(printed["hosts"])}
        else:
            summary = {line["check"]: line["message"] for line in printed if line["check"] in ("ray nodes", "store")}
        return {"seconds": round(time.monotonic() - began, 1), **summary}

    async with sessions(cluster) as (_, chats, _):
        url = cluster.urls.format("p")
        await asyncio.to_thread(store_copies, url, chats[0].session_id, STORED)
        runs = [await chat.run("hold look") for chat in chats]
        on_victim = [chat.session_id for chat in chats if (await chat.info()).node_id == cluster.victim_id]
        top, doctor = ("top", url, "--once", "--namespace", "p"), ("doctor", url)
        outcome: dict[str, Any] = {"top": await look(*top), "doctor": await look(*doctor), "on_victim": len(on_victim)}
        kill_all(cluster.victim)

        async def is_noticed() -> bool:
            return not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == cluster.victim_id)

        await until(is_noticed)
        outcome |= {"top after": await look(*top), "doctor after": await look(*doctor)}
        cluster.open_gate("look")
        for run in runs:
            with suppress(RunEndedError):
                await run.wait(90)
        return outcome


async def head_dies(cluster: Cluster) -> dict[str, Any]:
    """The head and all its processes are killed, and started again ten seconds later."""
    outcome: dict[str, Any] = {}
    async with cluster.manager("p", placement=Packed(hosts=2)) as packed, cluster.manager("d") as dedicated:
        chats = [await packed.open(f"chat{number}") for number in range(8)]
        alone = await dedicated.open("alone")
        for chat in (*chats, alone):
            await (await chat.run("hello")).wait(60)
        head_id = next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
        on_head = [chat.session_id for chat in (*chats, alone) if (await chat.info()).node_id == head_id]
        elsewhere = next(chat for chat in chats if chat.session_id not in on_head)
        held = await elsewhere.run("hold head")
        kill_all(cluster.head)
        began = time.monotonic()

        async def runs(chat: AsyncSession) -> None:
            await (await chat.run("hello", if_busy="enqueue")).wait(90)

        other = next(chat for chat in chats if chat.session_id not in (*on_head, elsewhere.session_id))
        outcome["without a head, a session elsewhere"] = await asyncio.wait_for(seconds(lambda: runs(other)), 60)
        await asyncio.sleep(max(0.0, began + 10 - time.monotonic()))
        cluster.head = await asyncio.to_thread(cluster.nodes.start_head)
        outcome["head is back"] = round(time.monotonic() - began, 1)
        cluster.open_gate("head")
        was_there = next(chat for chat in (*chats, alone) if chat.session_id in on_head)
        for name, chat in {"elsewhere": other, "on the head": was_there}.items():
            outcome[name] = await asyncio.wait_for(seconds(partial(runs, chat)), 150)
        outcome["held"] = (await held.wait(60)).text
        outcome["all after"] = round(time.monotonic() - began, 1)
        new = await dedicated.open("new")
        outcome["a new one"] = await seconds(lambda: runs(new))
    return outcome


async def head_dies_for_good(cluster: Cluster) -> dict[str, Any]:
    """The head is killed, and another one started, which knows nothing: the nodes end, and are started again."""
    outcome: dict[str, Any] = {}
    resumed = SessionConfig(on_lost="resume", cancel_grace_s=0.5)
    async with (
        cluster.manager("p", placement=Packed(hosts=2)) as packed,
        cluster.manager("r", placement=Packed(hosts=2), config=resumed) as other,
    ):
        runs = [await (await manager.open("chat")).run("hold gone") for manager in (packed, other)]
        kill_all(cluster.head)
        began = time.monotonic()
        await asyncio.to_thread(cluster.nodes.start_head)
        outcome["head is back"] = round(time.monotonic() - began, 1)
        await asyncio.gather(*(asyncio.to_thread(node.wait) for node in cluster.nodes.workers))
        outcome["nodes have ended"] = round(time.monotonic() - began, 1)
        try:
            await asyncio.wait_for((await packed.open("chat")).run("again"), 120)
        except TurnwiseError as error:
            outcome["this program"] = f"{type(error).__name__}: {error}"
        outcome["this program reads"] = [run.state for run in await packed.runs(limit=1)]
    # Now no process of the earlier Ray has the store open, so its runs are known to be lost.
    await asyncio.to_thread(cluster.nodes.join, 2)
    outcome["nodes are back"] = round(time.monotonic() - began, 1)
    command = [sys.executable, __file__, cluster.urls, str(cluster.folder), "again", *(run.run_id for run in runs)]
    env = os.environ | {"RAY_ADDRESS": cluster.nodes.address}
    program = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)
    output, _ = await program.communicate()
    outcome |= json.loads(output.splitlines()[-1])
    outcome["another program has its answer"] = round(time.monotonic() - began, 1)
    return outcome


async def again(urls: str, folder: str, run_ids: Sequence[str]) -> None:
    """Use the sessions of a Ray that is gone, and print how its runs have ended."""
    states: list[str] = []
    for name, on_lost, run_id in zip("pr", ("interrupt", "resume"), run_ids, strict=True):
        config = SessionConfig(on_lost=on_lost)  # type: ignore[arg-type]
        placement = Packed(hosts=2)
        settings: dict[str, Any] = {"namespace": name, "placement": placement, "config": config}
        async with AsyncSessionManager(urls.format(name), engine=Gated(folder), **settings) as manager:
            run = await manager.execution(run_id)
            with suppress(RunEndedError):
                await run.wait(60)
            states.append((await run.info()).state)
            await (await (await manager.open("chat")).run("again")).wait(60)
    print(json.dumps({"runs": states}))


CHECKS: dict[str, tuple[Callable[[Cluster], Awaitable[dict[str, Any]]], dict[str, str]]] = {
    "drained": (drained, QUICK),
    "drained_too_late": (drained_too_late, QUICK),
    "hosts_change": (hosts_change, QUICK),
    "death": (death, QUICK),
    "death_by_default": (death, {}),
    "watched": (watched, QUICK),
    "head_dies_for_good": (head_dies_for_good, QUICK),
    "head_dies_with_redis": (head_dies, QUICK),
}


def main(urls: str, folder: str, *names: str) -> None:
    for name in names or CHECKS:
        check, settings = CHECKS[name]
        own = Path(folder, name)
        own.mkdir()
        began = time.monotonic()
        redis = RedisServer(own) if name.endswith("_redis") else None
        if redis:
            redis.start()
            settings = settings | {"RAY_REDIS_ADDRESS": f"127.0.0.1:{redis.port}"}
        with Nodes(own, dict(os.environ), **settings) as nodes:
            try:
                cluster = Cluster(urls, own, nodes)
                outcome: dict[str, Any] = {"found": asyncio.run(asyncio.wait_for(check(cluster), 400))}
            except BaseException:  # noqa: BLE001 - the test that asks for it shall say so
                outcome = {"error": traceback.format_exc()}
            finally:
                ray.shutdown()
        if redis:
            redis.kill()
        print(json.dumps({"check": name, "seconds": round(time.monotonic() - began, 1), **outcome}), flush=True)


if __name__ == "__main__":
    from processes import leaving_nodes  # noqa: PLW0406 - not as __main__: engines are to be found by their module

    if sys.argv[3:4] == ["again"]:
        Path(sys.argv[2], "gone").touch()
        asyncio.run(leaving_nodes.again(sys.argv[1], sys.argv[2], sys.argv[4:]))
    else:
        leaving_nodes.main(*sys.argv[1:])
