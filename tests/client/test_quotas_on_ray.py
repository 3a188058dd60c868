"""Quotas and tenants where sessions live in processes of their own, on Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.state.quota_book import MOST_AGE_S
from turnwise.errors import QuotaExceededError
from turnwise.memory.quotas.records import Quota

pytestmark = pytest.mark.ray

MakeManager = Callable[..., SessionManager]


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_sessions_of_several_processes_begin_no_more_runs_than_a_quota_allows(
    store: str, make_ray_manager: MakeManager, namespace: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    """It counts what a killed process has begun, and its refusal keeps its type and its values."""
    url = f"sqlite:///{tmp_path}/chats.db" if store == "sqlite" else str(request.getfixturevalue("database"))
    placement = Packed(hosts=3)
    make_ray_manager(store=url, engine=EchoEngine(), placement=placement).set_quota(Quota(runs=7, per="month"))

    async def begin() -> list[Any]:
        settings: dict[str, Any] = {"engine": EchoEngine(), "placement": placement, "namespace": namespace}
        async with AsyncSessionManager(url, **settings) as manager:
            chats = [await manager.open(f"chat {index}", user_id=f"user {index % 5}") for index in range(24)]
            outcomes = await asyncio.gather(*(chat.run("hello") for chat in chats), return_exceptions=True)
            hosts = {host.pid for host in await manager.hosts() if host.load and host.load.sessions}
            assert len(hosts) == 3
            assert [use.used for use in await manager.quotas()] == [7]
            return outcomes

    outcomes = asyncio.run(begin())
    refused = [outcome for outcome in outcomes if isinstance(outcome, QuotaExceededError)]
    assert (len(outcomes), len(refused)) == (24, 17)
    error = refused[0]
    assert (error.scope, error.unit, error.used, error.limit, error.per) == ("all users", "runs", 7, 7, "month")
    assert error.quota_id == Quota(runs=7, per="month").quota_id
    assert error.resets_at > time.time() and 0 < error.retry_after_s <= 31 * 86_400


def test_quotas_and_tenants_that_change_are_known_to_processes_on_ray(make_ray_manager: MakeManager) -> None:
    """Also to that of `run_once`, which is another one."""
    manager = make_ray_manager(engine=EchoEngine(), placement=Packed(hosts=1))
    chat = manager.open("chat", user_id="ann")
    chat.run("hello").wait()
    manager.run_once("hello", user_id="ann").wait()
    manager.set_tenant("ann", "acme")
    manager.set_quota(Quota(tenant="acme", runs=2, per="month"))

    def refusal(begin: Callable[[], Any]) -> QuotaExceededError:
        """Begin runs until one is refused."""
        deadline = time.monotonic() + 3 * MOST_AGE_S
        while time.monotonic() < deadline:
            try:
                begin().wait()
            except QuotaExceededError as error:
                return error
            time.sleep(0.2)
        raise AssertionError("no run was refused")

    runs = [lambda: chat.run("hello"), lambda: manager.run_once("hello", user_id="ann")]
    assert [refusal(run).scope for run in runs] == ["tenant 'acme'"] * 2
    (use,) = manager.quotas(user_id="ann")
    assert use.used == 2
    manager.set_quota(Quota(tenant="acme", runs=100, per="month"))
    deadline = time.monotonic() + 3 * MOST_AGE_S
    while True:
        try:
            chat.run("hello").wait()
            break
        except QuotaExceededError:
            assert time.monotonic() < deadline, "the new limit is not known"
            time.sleep(0.2)
    assert {row.tenant for row in manager.usage(by=["tenant"])} >= {"", "acme"}
