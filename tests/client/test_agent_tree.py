"""The agents below a run as a tree, in Python and by the native API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from servers.http_service import ANN, BOB, TOKENS
from tools.agent_team import TASKS, team
from turnwise.actors.client import agent_tree
from turnwise.actors.client.agent_tree import agents_of
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.http import create_app
from turnwise.memory.values.ids import new_id

LONG_S = 30.0


@asynccontextmanager
async def ran() -> AsyncIterator[tuple[AsyncSessionManager, AsyncExecutionHandle]]:
    """Yield a manager, and Ann's run that has called agents, which have called others."""
    async with AsyncSessionManager(f"memory://{new_id()}", engine=team(), placement=InProcess()) as manager:
        chat = await manager.open("chat", user_id="ann")
        run = await chat.run("go")
        assert (await run.wait(LONG_S)).text == "done"
        yield manager, run


async def test_each_agent_is_followed_by_those_that_it_has_called() -> None:
    async with ran() as (_, run):
        tree = await agents_of(run)
        assert not tree.is_cut
        names = [(agent.name, agent.depth) for agent in tree.agents]
        assert names == [("researcher", 1), ("assistant", 2)] * len(TASKS)
        for caller, called in zip(tree.agents[::2], tree.agents[1::2], strict=True):
            assert (caller.parent, called.parent) == (run.run_id, caller.execution.run_id)
            assert caller.record and called.record and caller.record.parent == run.run_id
            assert (caller.record.state, called.record.state) == ("completed", "completed")
        assert [agent.call_id for agent in tree.agents[::2]] == ["call_0_0", "call_0_1"]
        assert [child.session_id for child in await run.children()] == [
            agent.execution.session_id for agent in tree.agents[::2]
        ]
        (leaf,) = [agent for agent in tree.agents if agent.depth == 2][:1]
        assert (await agents_of(leaf.execution)).agents == []


async def test_an_agent_whose_session_was_deleted_has_no_record() -> None:
    async with ran() as (manager, run):
        first, *_ = await run.children()
        await (await manager.get(first.session_id, user_id="ann")).delete()
        agents = (await agents_of(run)).agents
        assert [(agent.name, agent.record is None) for agent in agents] == [
            ("researcher", True),
            ("researcher", False),
            ("assistant", False),
        ]


@pytest.mark.parametrize("most", [0, 1, 3])
async def test_a_tree_has_so_many_agents_at_most(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ran() as (_, run):
        whole = await agents_of(run)
        monkeypatch.setattr(agent_tree, "MOST", most)
        cut = await agents_of(run)
        assert cut.is_cut and list(map(place, cut.agents)) == list(map(place, whole.agents))[:most]


def place(agent: agent_tree.AgentRun) -> tuple[str, str, int]:
    return agent.execution.run_id, agent.parent, agent.depth


async def test_the_tree_over_http_is_its_users_own() -> None:
    async with ran() as (manager, run):
        transport = httpx.ASGITransport(create_app(manager, auth=TOKENS), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=ANN) as client:
            answer: Any = (await client.get(f"/v1/runs/{run.run_id}/children")).json()
            tree = await agents_of(run)
            assert not answer["is_cut"]
            assert [(item["id"], item["parent"], item["depth"]) for item in answer["items"]] == [
                place(agent) for agent in tree.agents
            ]
            first = answer["items"][0]
            assert (first["agent"], first["call_id"], first["run"]["state"]) == ("researcher", "call_0_0", "completed")
            assert first["run"]["id"] == first["id"] == first["session_id"]
            leaf = (await client.get(f"/v1/runs/{answer['items'][1]['id']}/children")).json()
            assert leaf == {"items": [], "is_cut": False}
            for run_id in (run.run_id, first["id"], "none"):
                other = await client.get(f"/v1/runs/{run_id}/children", headers=BOB)
                assert (other.status_code, other.json()["error"]) == (404, "run_not_found"), other.text
            count = len(tree.agents)
            for params, expected in ({}, 1), ({"agents": "true"}, 1 + count):
                listed = (await client.get("/v1/sessions", params=params)).json()["items"]
                assert len(listed) == expected == (await client.get("/v1/count", params=params)).json()["sessions"]
            top = (await client.get(f"/v1/runs/{run.run_id}")).json()
            assert 0 < top["agents_usage"]["calls"] == sum(item["run"]["usage"]["calls"] for item in answer["items"])
