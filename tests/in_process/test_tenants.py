"""Tenants as callers meet them: set and changed while sessions work, with quotas, spending and lists of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from servers.over_http import manager_at
from turnwise import AsyncSessionManager, EchoEngine, InProcess, SessionManager
from turnwise.errors import InvalidInputError, QuotaExceededError, ReadOnlyStoreError
from turnwise.memory.values.ids import new_id
from turnwise.stores import Encryption, Quota, Tenant

MakeURL = Callable[[], str]


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis", "encrypted", "over HTTP"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionManager]:
    urls: dict[str, MakeURL] = {
        "memory": lambda: f"memory://{new_id()}",
        "postgresql": lambda: request.getfixturevalue("database"),
        "redis": lambda: request.getfixturevalue("redis_url"),
    }
    url = urls.get(request.param, lambda: f"sqlite:///{tmp_path}/chats.db")()
    encryption = Encryption(lambda _user: b"k" * 32) if request.param == "encrypted" else None
    remotely = request.param == "over HTTP"
    with manager_at(url, engine=EchoEngine(), encryption=encryption, remotely=remotely) as manager:
        yield manager


def test_tenants_have_quotas_spending_and_lists_of_their_own(manager: SessionManager) -> None:
    for user, tenant in (("ann", "acme"), ("bob", "acme"), ("eve", "other")):
        manager.set_tenant(user, tenant)
    assert [manager.tenant(user) for user in ("ann", "eve", "nobody")] == ["acme", "other", None]
    assert list(manager.tenants()) == [Tenant(tenant="acme", users=2), Tenant(tenant="other", users=1)]
    page = manager.users("acme", limit=1)
    assert [*page, *manager.users("acme", limit=1, cursor=page.cursor)] == ["ann", "bob"]
    manager.set_quota(Quota(tenant="*", runs=2, per="month"))
    manager.set_quota(Quota(tenant="acme", user_id="*", runs=1, per="month"))
    chats = {user: manager.open("chat", user_id=user) for user in ("ann", "bob", "eve", "nobody")}
    for chat in chats.values():
        chat.run("hello").wait()
    with pytest.raises(QuotaExceededError, match="has used"):
        chats["ann"].run("hello")
    for user in ("eve", "nobody", "nobody"):
        chats[user].run("hello").wait()
    with pytest.raises(QuotaExceededError, match="tenant 'other' has used 2 of 2 runs"):
        chats["eve"].run("hello")
    scopes = {use.quota.scope: use.used for use in manager.quotas(user_id="ann")}
    assert scopes == {"each tenant": 2, "each user of tenant 'acme'": 1}
    assert [use.used for use in manager.quotas(tenant="other")] == [2]
    assert not manager.quotas(user_id="ann", tenant="other") and not manager.quotas(user_id="nobody")
    by_tenant = {row.tenant: row.runs for row in manager.usage(by=["tenant"])}
    assert by_tenant == {"": 3, "acme": 2, "other": 2}
    assert [row.user_id for row in manager.usage(tenant="acme", by=["user"])] == ["ann", "bob"]
    assert {session.user_id for session in manager.list(tenant="acme")} == {"ann", "bob"}
    assert (manager.count(tenant="acme"), manager.count(tenant="acme", user_id="eve")) == (2, 0)
    assert {run.user_id for run in manager.runs(tenant="other")} == {"eve"}


def test_what_was_spent_before_a_change_stays_with_the_former_tenant(manager: SessionManager) -> None:
    manager.set_quota(Quota(tenant="*", runs=1, per="month"))
    chat = manager.open("chat", user_id="ann")
    for tenant in ("acme", "other", None):
        manager.set_tenant("ann", tenant)
        chat.run("hello").wait()
        if tenant:
            with pytest.raises(QuotaExceededError, match=f"tenant '{tenant}'"):
                chat.run("hello")
    assert {row.tenant: row.runs for row in manager.usage(by=["tenant"])} == {"": 1, "acme": 1, "other": 1}
    assert not manager.count(tenant="acme") and not manager.tenants()


def test_forgetting_a_user_removes_the_label_and_keeps_what_the_tenant_has_spent(manager: SessionManager) -> None:
    manager.set_tenant("ann", "acme")
    manager.set_quota(Quota(tenant="acme", runs=5, per="month"))
    manager.open("chat", user_id="ann").run("hello").wait()
    manager.forget("ann")
    assert manager.tenant("ann") is None and not manager.users("acme")
    (row,) = manager.usage(tenant="acme", by=["user", "session"])
    assert (row.user_id, row.session_id, row.runs) == ("", "", 1)
    assert [use.used for use in manager.quotas(tenant="acme")] == [1]


@pytest.mark.parametrize("remotely", [False, True])
def test_a_run_of_a_member_counts_for_the_tenant_of_the_sessions_user(remotely: bool) -> None:
    with manager_at(f"memory://{new_id()}", engine=EchoEngine(), remotely=remotely) as manager:
        for user, tenant in (("ann", "acme"), ("bob", "other")):
            manager.set_tenant(user, tenant)
        manager.set_quota(Quota(tenant="*", runs=1, per="month"))
        chat = manager.open("chat", user_id="ann")
        chat.add_member("bob")
        manager.get("chat", user_id="ann", as_user="bob").run("hello").wait()
        assert [row.tenant for row in manager.usage(by=["tenant"])] == ["acme"]
        with pytest.raises(QuotaExceededError, match="tenant 'acme'"):
            chat.run("hello")
        manager.open("own", user_id="bob").run("hello").wait()


@pytest.mark.parametrize("remotely", [False, True])
def test_wrong_tenants_are_refused(tmp_path: Path, remotely: bool) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    with manager_at(url, engine=EchoEngine(), remotely=remotely) as manager:
        for tenant in ("", "*", "x" * 65, "a\0b", 1):
            with pytest.raises(InvalidInputError, match="tenant"):
                manager.set_tenant("ann", tenant)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="members may be of any tenant"):
            manager.list(user_id="ann", shared=True, tenant="acme")
        manager.set_tenant("ann", "acme")
    with manager_at(url, engine=EchoEngine(), remotely=remotely, read_only=True) as reading:
        assert reading.tenant("ann") == "acme"
        with pytest.raises(ReadOnlyStoreError):
            reading.set_tenant("ann", "acme")


async def test_the_asynchronous_family_has_tenants_too(tmp_path: Path) -> None:
    settings = {"engine": EchoEngine(), "placement": InProcess()}
    async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as manager:  # type: ignore[arg-type]
        await asyncio.gather(*(manager.set_tenant(f"u{index}", "acme") for index in range(5)))
        assert list(await manager.users("acme", limit=9)) == [f"u{index}" for index in range(5)]
        assert list(await manager.tenants()) == [Tenant(tenant="acme", users=5)]
