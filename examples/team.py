"""A team of agents: a lead calls researchers in sessions of their own. One team is cancelled, and one is killed.

    pip install turnwise
    python examples/team.py

It needs no Ray, no key and no network: scripts take the place of models. Exits with 0 only if everything that it prints
was checked.
"""
# ruff: noqa: S101 - here an assertion is what is shown

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

from turnwise import AsyncSessionManager, InProcess, RunCancelledError, SessionConfig, Turn
from turnwise.engines import EngineBuilder, FunctionEngine, agent_tool
from turnwise.testing import ScriptedEngine

TOPICS = ("tides", "boats", "winds")
SLOW_S = 1.0


async def research(turn: Turn) -> str:
    """Answer after a while, as a model does that looks things up."""
    await asyncio.sleep(SLOW_S)
    (task,) = (block.text for block in turn.asked if block.kind == "user")
    return f"all about {task}"


def team(store: str) -> AsyncSessionManager:
    researcher = agent_tool("researcher", engine="research", description="Finds out facts about one topic.")
    calls = [("researcher", {"task": topic}) for topic in TOPICS]
    lead = ScriptedEngine([calls, "The report is done."], tools=[researcher])
    engines: dict[str, EngineBuilder] = {"lead": lead, "research": FunctionEngine(research)}
    config = SessionConfig(on_lost="resume")  # what was under way when a process was killed goes on
    return AsyncSessionManager(store, engine=engines, config=config, placement=InProcess())


async def until_agents_work(manager: AsyncSessionManager, caller: str) -> None:
    while True:
        agents = [session for session in await manager.list(agents=True) if session.called_by == caller]
        if len(agents) == len(TOPICS) and all(session.next_index for session in agents):
            return
        await asyncio.sleep(0.05)


async def begin(store: str) -> None:
    """The first program: one team is cancelled in the middle; then the program is killed while another one works."""
    async with team(store) as manager:
        cancelled = await (await manager.open("cancelled")).run("Write the report.")
        await until_agents_work(manager, "cancelled")
        await cancelled.cancel()
        for child in await cancelled.children():
            try:
                await child.wait(30.0)
            except RunCancelledError:
                print(f"  {child.session_id[:12]} is cancelled, too", flush=True)
        await (await manager.open("killed")).run("Write the report.")
        await until_agents_work(manager, "killed")
        print("  The agents of the second team work, and the program is killed.", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def go_on(store: str) -> None:
    """The second program: it opens the store, and the team goes on."""
    async with team(store) as manager:
        session = await manager.get("killed")
        (record,) = await session.runs()
        run = await session.execution(record.run_id)
        turn = await run.wait(60.0)
        results = [block.text for block in turn.output if block.kind == "tool_result"]
        print(f"The lead has heard: {results}. It says: {turn.text}")
        assert results == [f"all about {topic}" for topic in TOPICS], "each agent has answered once"
        states = [(await child.info()).state for child in await run.children()]
        assert states == ["completed"] * len(TOPICS)
        (first,) = await (await manager.get("cancelled")).runs()
        assert first.state == "cancelled"
        everything = [session for session in await manager.list(agents=True) if session.called_by]
        assert len(everything) == 2 * len(TOPICS), "no agent was called twice"


def main() -> None:
    if len(sys.argv) > 1:
        return asyncio.run(begin(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/team.db"
        print("Two teams begin, and the first one is cancelled:")
        killed = subprocess.run([sys.executable, __file__, store], check=False)  # noqa: S603 - it is this file
        assert killed.returncode == -signal.SIGKILL
        print("Another program opens the store:")
        asyncio.run(go_on(store))
    return None


if __name__ == "__main__":
    main()
