"""A program on a node of a cluster, in the version that PYTHONPATH says, which does what it is told.

`python version_program.py <address> <node> <database> <folder>`; see `told_program.py`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from processes.told_program import obey
from turnwise import AsyncSessionManager, LexicalMemory, __version__
from turnwise.actors.cluster.node_choice import ANYWHERE
from turnwise.actors.hosting.placement import Dedicated, Packed
from turnwise.actors.inference.engine import SessionView
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.conversation.blocks import Text, ToolUse
from turnwise.stores import SQLItems


class Gated:
    """Answers `hold <name>` once the folder has a file of this name, raises for `fail`, and echoes all else."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def build(self, session: Any) -> Gated:
        return self

    async def run(self, turn: Any, context: Any) -> Sequence[Any]:
        prompt: str = turn.new_blocks[-1].text
        word, _, name = prompt.partition(" ")
        if word == "fail":
            raise ValueError(f"it fails with {name}")
        while word == "hold" and not await asyncio.to_thread(Path(self._folder, name).exists):
            await asyncio.sleep(0.05)
        return [Text(text=f"done: {prompt}")]


def whereabouts(context: ToolContext) -> dict[str, str | None]:
    """Say where it runs, and for whom."""
    import turnwise  # where it runs: what this module holds travels with the function

    return {"version": turnwise.__version__, "user": context.user_id, "mood": getattr(context.session, "mood", None)}


class Program:
    """What the program can do."""

    def __init__(self, address: str, node: str, database: str, folder: str) -> None:
        ray.init(address=address, _node_ip_address=node, configure_logging=False, log_to_driver=False)
        self._database, self._folder = database, folder
        self._managers: dict[str, AsyncSessionManager] = {}
        self._runs: dict[str, Any] = {}

    async def place(self, address: str) -> None:
        """Have actors that may go anywhere begin on a node, if this program starts them."""
        node_id = next(node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == address)
        ANYWHERE["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=True)

    async def manage(self, namespace: str, hosts: int = 0, memory: bool = False) -> str:
        """Open a manager: of packed sessions if it says on how many hosts. The later version uses its new setting."""
        more: dict[str, Any] = {"hurries": True} if __version__ == "0.2.0" else {}
        self._managers[namespace] = manager = AsyncSessionManager(
            self._database,
            namespace=namespace,
            engine=Gated(self._folder),
            placement=Packed(hosts=hosts) if hosts else Dedicated(),
            memory=[LexicalMemory(SQLItems(self._database))] if memory else [],
            config=SessionConfig(cancel_grace_s=0.5, **more),
        )
        await manager.count()
        return __version__

    async def open(self, namespace: str, session_id: str, **settings: Any) -> None:
        await self._managers[namespace].open(session_id, **settings)

    async def run(self, namespace: str, session_id: str, prompt: str) -> dict[str, Any]:
        """Run a prompt, and wait for its answer."""
        chat = await self._managers[namespace].get(session_id)
        run = await chat.run(prompt, if_busy="enqueue", labels={"from": __version__})
        turn = await run.wait(120)
        return {"text": turn.text, "index": turn.index, "labels": dict((await run.info()).labels)}

    async def begin(self, namespace: str, session_id: str, prompt: str) -> str:
        """Start a run, or queue it; return its id."""
        chat = await self._managers[namespace].get(session_id)
        return str((await chat.run(prompt, if_busy="enqueue")).run_id)

    async def wait(self, namespace: str, session_id: str, run_id: str) -> str:
        chat = await self._managers[namespace].get(session_id)
        run = await chat.execution(run_id)
        return str((await run.wait(120)).text)

    async def read(self, namespace: str, session_id: str) -> dict[str, Any]:
        """Return all that can be read of a session."""
        chat = await self._managers[namespace].get(session_id)
        info = await chat.info()
        address = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        return {
            "session": [info.session.session_id, info.session.user_id, info.session.title],
            "metadata": dict(info.session.metadata),
            "next": info.session.next_index,
            "node": address.get(info.node_id or ""),
            "pid": info.pid,
            "texts": [turn.text for turn in await chat.turns()],
            "states": [run.state for run in await chat.runs()],
            "events": [event.kind for event in await chat.events()],
            "schedules": [[delivery.key, delivery.if_busy] for delivery in await chat.schedules()],
        }

    async def send(self, namespace: str, session_id: str, to: str, text: str) -> None:
        await (await self._managers[namespace].get(session_id)).send(to, text)

    async def schedule(self, namespace: str, session_id: str, prompt: str, key: str, after_s: float) -> None:
        chat = await self._managers[namespace].get(session_id)
        await chat.schedule(prompt, key=key, after_s=after_s, if_busy="enqueue")

    async def call_tool(self, address: str) -> tuple[bool, str]:
        """Call a tool that is a Ray task on a node; return whether the result is an error, and its text."""
        (node_id,) = (node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == address)
        task: Any = ray.remote(whereabouts)
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        remote_tool = tool(task.options(num_cpus=0, scheduling_strategy=there), like=whereabouts, timeout_s=120.0)
        session = SessionView(session_id="s", user_id="ann", agent=None, metadata={}, author="bob")
        context = ToolContext(session=session, run_id="r", turn_index=0, call_id="c")
        use = ToolUse(call_id="c", name="whereabouts", input={})
        result = (await ToolRegistry(remote_tool).call(use, context)).result
        return result.is_error, result.text

    async def save(self, namespace: str, session_id: str, text: str, id: str) -> None:
        await (await self._managers[namespace].get(session_id)).memory.save(text, id=id)

    async def recall(self, namespace: str, session_id: str, query: str) -> list[str]:
        chat = await self._managers[namespace].get(session_id)
        return [item.text for item in await chat.memory.recall(query)]

    async def hosts(self, namespace: str) -> list[dict[str, Any]]:
        hosts = await self._managers[namespace].hosts()
        return [
            {"name": host.name, "node": host.node, "sessions": host.load.sessions if host.load else None}
            for host in hosts
        ]

    async def nodes_of(self, word: str) -> dict[str, str]:
        """Return the addresses of the nodes of actors whose names have a word, by name."""
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        found = {}
        for named in ray.util.list_named_actors(all_namespaces=True):
            if word in named["name"]:
                actor = ray.get_actor(named["name"], namespace=named["namespace"])
                state = ray._private.state.actors(actor._actor_id.hex())  # noqa: SLF001 - Ray tells it nowhere else
                found[f"{named['namespace']} {named['name']}"] = addresses.get(state["Address"]["NodeID"], "")
        return found


if __name__ == "__main__":
    asyncio.run(obey(Program(*sys.argv[1:])))
