"""Quotas as callers meet them: set, changed and removed while sessions work, in both families, on real stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from servers.over_http import manager_at
from turnwise import (
    AsyncSessionManager,
    EchoEngine,
    InProcess,
    OpenAIEngine,
    Price,
    SessionConfig,
    SessionManager,
)
from turnwise.errors import InvalidInputError, QuotaExceededError, QuotaNotFoundError, ReadOnlyStoreError
from turnwise.memory.quotas.records import period_of
from turnwise.memory.values.ids import new_id
from turnwise.stores import Quota
from turnwise.testing import LocalProvider

MakeURL = Callable[[], str]
MakeManager = Callable[..., AbstractContextManager[SessionManager]]


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls: dict[str, MakeURL] = {
        "memory": lambda: f"memory://{new_id()}",
        "sqlite": lambda: f"sqlite:///{tmp_path}/chats.db",
        "postgresql": lambda: request.getfixturevalue("database"),
        "redis": lambda: request.getfixturevalue("redis_url"),
    }
    return urls[request.param]()


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis", "over HTTP"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where a manager has its sessions."""
    if request.param == "over HTTP":
        return {"url": f"sqlite:///{tmp_path}/chats.db", "remotely": True}
    fixtures = {"postgresql": "database", "redis": "redis_url"}
    if name := fixtures.get(request.param):
        return {"url": request.getfixturevalue(name)}
    return {"url": None if request.param == "memory" else f"sqlite:///{tmp_path}/chats.db"}


def engine_of(provider: LocalProvider) -> OpenAIEngine:
    return OpenAIEngine("local", base_url=provider.base_url)


@pytest.fixture(params=["in process", "over HTTP"])
def manager_of(request: pytest.FixtureRequest) -> MakeManager:
    """Opens a manager of a store, or of a service that has the store."""
    return partial(a_manager, remotely=request.param == "over HTTP")


def a_manager(url: str | None = None, engine: Any = None, **settings: Any) -> AbstractContextManager[SessionManager]:
    return manager_at(url or f"memory://{new_id()}", engine=engine or EchoEngine(), **settings)


def test_a_user_begins_as_many_runs_as_the_quota_allows(place: dict[str, Any]) -> None:
    with a_manager(**place) as manager:
        manager.set_quota(Quota(user_id="*", runs=2, per="month"))
        chats = [manager.open(f"chat {index}", user_id="ann") for index in range(3)]
        for chat in chats[:2]:
            chat.run("hello").wait()
        with pytest.raises(QuotaExceededError, match="user 'ann' has used 2 of 2 runs per month: try again in") as info:
            chats[2].run("hello")
        error = info.value
        assert error.resets_at == period_of("month", time.time())[1]
        assert 0 < error.retry_after_s <= 31 * 86_400
        assert not chats[2].turns()
        manager.open(user_id="bob").run("hello").wait()  # another user's runs are counted apart
        (use,) = manager.quotas(user_id="ann")
        assert (use.used, use.left, use.resets_at) == (2, 0, error.resets_at)
        assert [use.used for use in manager.quotas()] == [None]
        manager.set_quota(Quota(user_id="*", runs=3, per="month"))  # what was used stays counted
        chats[2].run("hello").wait()
        with pytest.raises(QuotaExceededError):
            chats[2].run("hello")
        manager.remove_quota(use.quota.quota_id)
        chats[2].run("hello").wait()
        with pytest.raises(QuotaNotFoundError, match="no quota"):
            manager.remove_quota(use.quota.quota_id)


def test_quotas_outlive_their_manager(manager_of: MakeManager, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    with manager_of(url) as manager:
        manager.set_quota(Quota(runs=1, per="month"))
        manager.open("chat").run("hello").wait()
    with manager_of(url) as manager, pytest.raises(QuotaExceededError, match="all users has used 1 of 1 runs"):
        manager.open("chat").run("again")


def test_tokens_and_costs_are_counted_as_the_ledger_has_them(manager_of: MakeManager) -> None:
    config = SessionConfig(prices={"local": Price(input=1.0, output=2.0)})
    with LocalProvider() as provider, manager_of(engine=engine_of(provider), config=config) as manager:
        manager.set_quota(Quota(user_id="ann", tokens=1, per="month"))
        manager.set_quota(Quota(user_id="ann", cost=100.0, per="month"))
        chat = manager.open(user_id="ann")
        chat.run("hello").wait()
        with pytest.raises(QuotaExceededError, match="of 1 tokens per month"):
            chat.run("again")
        tokens, cost = manager.quotas(user_id="ann")
        total = manager.usage(user_id="ann").total
        assert tokens.used == total.input_tokens + total.output_tokens and tokens.left == 0  # it used more than it may
        assert cost.used == pytest.approx(total.cost) and cost.left == pytest.approx(100.0 - total.cost)


def test_a_quota_of_an_agent_leaves_other_sessions_alone(manager_of: MakeManager) -> None:
    with manager_of() as manager:
        manager.set_quota(Quota(agent="travel", runs=1, per="month"))
        manager.set_quota(Quota(user_id="*", agent="*", runs=2, per="month"))
        travel, plain = manager.open(agent="travel"), manager.open()
        travel.run("hello").wait()
        with pytest.raises(QuotaExceededError, match="agent 'travel' has used 1 of 1 runs"):
            travel.run("again")
        for _ in range(3):
            plain.run("hello").wait()
        assert len(manager.quotas(user_id="ann", agent="other")) == 1
        uses = {use.quota.scope: use.used for use in manager.quotas(user_id="default", agent="travel")}
        assert uses == {"agent 'travel'": 1, "each user with each agent": 1}


def test_forgetting_a_user_removes_what_is_the_users_alone(manager_of: MakeManager) -> None:
    with manager_of() as manager:
        manager.set_quota(Quota(user_id="ann", runs=5, per="month"))
        manager.set_quota(Quota(user_id="*", runs=1, per="month"))
        manager.open(user_id="ann").run("hello").wait()
        manager.forget("ann")
        (use,) = manager.quotas(user_id="ann")
        assert (use.quota.user_id, use.used) == ("*", 0)


def test_what_a_session_says_is_no_run(manager_of: MakeManager) -> None:
    with manager_of() as manager:
        manager.set_quota(Quota(runs=1, per="month"))
        chat = manager.open()
        for _ in range(2):
            chat.say("Good morning.").wait()
        chat.run("hello").wait()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Quota(), "exactly one of runs, tokens and cost"),
        (Quota(runs=1, cost=1.0), "exactly one"),
        (Quota(runs=0), "from 1"),
        (Quota(tokens=1.5), "whole number"),  # type: ignore[arg-type]
        (Quota(cost=float("nan")), "above 0"),
        (Quota(runs=1, per="hour"), "minute, day, month"),  # type: ignore[arg-type]
        (Quota(runs=1, agent=""), "'\\*' for each"),
        ({"runs": 1}, "must be a Quota"),
    ],
)
def test_a_quota_that_cannot_be_used_is_refused(manager_of: MakeManager, wrong: Any, reason: str) -> None:
    with manager_of() as manager:
        with pytest.raises(InvalidInputError, match=reason):
            manager.set_quota(wrong)
        assert manager.quotas() == []


def test_a_read_only_manager_changes_no_quotas(manager_of: MakeManager, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    with manager_of(url) as manager:
        manager.set_quota(Quota(runs=1))
        with manager_of(url, read_only=True) as reader:
            assert [use.quota for use in reader.quotas()] == [Quota(runs=1)]
            with pytest.raises(ReadOnlyStoreError):
                reader.set_quota(Quota(runs=2))
            with pytest.raises(ReadOnlyStoreError):
                reader.remove_quota(Quota(runs=1).quota_id)


async def test_runs_at_the_same_time_exceed_no_quota(store_url: str) -> None:
    manager = AsyncSessionManager(store_url, engine=EchoEngine(), placement=InProcess())
    async with manager:
        await manager.set_quota(Quota(runs=7, per="month"))
        chats = [await manager.open(f"chat {index}", user_id=f"user {index % 5}") for index in range(30)]
        outcomes = await asyncio.gather(*(chat.run("hello") for chat in chats), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, QuotaExceededError)]
        assert (len(outcomes), len(refused)) == (30, 23)
        assert [use.used for use in await manager.quotas()] == [7]


def test_a_run_of_which_nothing_is_stored_is_counted_and_refused(manager_of: MakeManager) -> None:
    with manager_of() as manager:
        manager.set_quota(Quota(user_id="*", runs=1, per="month", then="queue"))
        with pytest.raises(InvalidInputError):
            manager.run_once(" ", user_id="ann")
        assert [use.used for use in manager.quotas(user_id="ann")] == [0]
        manager.run_once("hello", user_id="ann").wait()
        assert [use.used for use in manager.quotas(user_id="ann")] == [1]
        with pytest.raises(QuotaExceededError, match="user 'ann' has used 1 of 1 runs"):
            manager.run_once("again", user_id="ann")


def test_tokens_and_cost_of_runs_that_are_not_stored_are_counted(place: dict[str, Any]) -> None:
    """With the user's tenant. A change of a quota or a tenant is known at once."""
    prices = {"local": Price(input=1e6, output=0.0)}  # one for each token
    with (
        LocalProvider() as provider,
        a_manager(**place, engine=engine_of(provider), config=SessionConfig(prices=prices)) as manager,
    ):
        tokens, cost = Quota(tenant="*", tokens=10**6, per="month"), Quota(user_id="*", cost=1e6, per="month")
        for quota in (tokens, cost):
            manager.set_quota(quota)
        manager.run_once("hello", user_id="ann").wait()
        manager.set_tenant("ann", "acme")
        usage = manager.run_once("hello", user_id="ann").wait().usage
        assert usage and usage.input_tokens
        used = {use.quota: use.used for use in manager.quotas(user_id="ann")}
        assert used == {tokens: usage.input_tokens + usage.output_tokens, cost: 2 * usage.input_tokens}
        manager.set_quota(Quota(tenant="acme", tokens=1, per="month", then="ask"))
        manager.run_once("hello", user_id="ann").wait()
        with pytest.raises(QuotaExceededError, match="tenant 'acme' has used"):
            manager.run_once("hello", user_id="ann")
        assert not manager.usage().runs and not manager.count()
