"""Draining over HTTP, of a service whose sessions live in its own process: it has no nodes, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servers.http_service import ANN, ROOT, in_process

DRAIN = "/v1/drain"


async def test_a_service_without_nodes_refuses_a_drain_and_says_what_to_do(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        for _ in range(2):
            refused = await client.post(DRAIN, json={"node": "a-node", "timeout_s": 0}, headers=ROOT)
            problem = refused.json()
            assert refused.status_code == 422 and "no nodes without Ray: close the manager" in problem["detail"]


async def test_a_drain_that_is_refused_interrupts_no_run_and_new_ones_begin(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        await client.post("/v1/sessions", json={"id": "chat", "engine": "slow"})
        begun = await client.post("/v1/sessions/chat/runs", json={"prompt": "one two three four"})
        assert (await client.post(DRAIN, json={"node": "a-node"}, headers=ROOT)).status_code == 422
        hosts = (await client.get("/v1/hosts", headers=ROOT)).json()["items"]
        assert [host["is_replaced"] for host in hosts] == [False]
        await client.get(f"/v1/runs/{begun.json()['id']}/wait")
        await client.post("/v1/sessions/chat/runs?wait_s=60", json={"prompt": "again"})
        runs = (await client.get("/v1/runs")).json()["items"]
        assert [run["state"] for run in runs] == ["completed"] * 2


async def test_only_operators_may_drain(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        body = {"node": "a-node"}
        assert (await client.post(DRAIN, json=body, headers={"Authorization": ""})).status_code == 401
        refused = await client.post(DRAIN, json=body, headers=ANN)
        assert refused.status_code == 403 and "drain nodes" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "node"),
        ({"node": None}, "node"),
        ({"node": "a-node", "timeout_s": -1}, "timeout_s"),
        ({"node": "a-node", "timeout_s": "soon"}, "timeout_s"),
        ({"node": "a-node", "force": True}, "force"),
    ],
)
async def test_a_drain_of_nothing_or_for_no_time_is_refused_by_its_field(
    body: dict[str, Any], field: str, tmp_path: Path
) -> None:
    async with in_process(tmp_path) as client:
        refused = await client.post(DRAIN, json=body, headers=ROOT)
        assert refused.status_code == 422 and field in refused.text
