"""Agents answer with the engine of whoever has called them, though managers of several applications share a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processes.large_settings import end_all
from scale import ONE_PLACEMENT
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import InProcess, Placement
from turnwise.engines import EngineBuilder, FunctionEngine, agent_tool
from turnwise.memory.conversation.turns import Turn
from turnwise.testing.scripted_engine import ScriptedEngine

WAIT_S = 60.0


def a_bot(name: str) -> dict[str, EngineBuilder]:
    """Return the engines of a bot whose agent answers with the bot's name."""

    async def answer(turn: Turn) -> Any:
        yield name

    helper = agent_tool("helper", engine="help", description="Helps.")
    return {
        "lead": ScriptedEngine([[("helper", {"task": "help"})], f"{name} is done"], tools=[helper]),
        "help": FunctionEngine(answer),
    }


def answers(manager: SessionManager, session_id: str) -> list[str]:
    """Run a prompt that calls an agent; return what the agent and the caller have answered."""
    turn = manager.open(session_id).run("go").wait(WAIT_S)
    return [block.text for block in turn.output if block.kind in ("tool_result", "text")]


def test_agents_of_two_bots_answer_with_the_engines_of_their_callers() -> None:
    with (
        SessionManager("memory://bots", engine=a_bot("support"), placement=InProcess()) as support,
        SessionManager("memory://bots", engine=a_bot("sales"), placement=InProcess()) as sales,
    ):
        assert answers(support, "one") == ["support", "support is done"]
        assert answers(sales, "two") == ["sales", "sales is done"]
        assert answers(support, "three") == ["support", "support is done"]


@ONE_PLACEMENT
@pytest.mark.parametrize("namespaces", [1, 2])
def test_agents_of_two_bots_on_one_ray_answer_with_the_engines_of_their_callers(
    make_ray_manager: Callable[..., SessionManager],
    namespace: str,
    placement: Placement,
    namespaces: int,
    tmp_path: Path,
) -> None:
    """With two namespaces, the dispatcher of the first one has the lease."""
    support = make_ray_manager(engine=a_bot("support"), placement=placement)
    assert answers(support, "one") == ["support", "support is done"]
    other = namespace if namespaces == 1 else f"{namespace}-sales"
    url = f"sqlite:///{tmp_path}/chats.db"
    try:
        with SessionManager(url, engine=a_bot("sales"), placement=placement, namespace=other) as sales:
            assert answers(sales, "two") == ["sales", "sales is done"]
            assert answers(support, "three") == ["support", "support is done"]
            assert answers(sales, "four") == ["sales", "sales is done"]
    finally:
        if namespaces > 1:
            end_all(other)
