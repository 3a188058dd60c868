"""Sessions that are kept nowhere use the quotas of a store that is kept, and know them as its own sessions do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnwise.actors.session.config import SessionConfig
from turnwise.errors import DuplicateKeyError, QuotaExceededError, SessionFencedError, StoreError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.quotas.records import Quota
from turnwise.memory.stores.accounted import accounted
from turnwise.memory.stores.base import Commit, clock_of
from turnwise.memory.stores.conformance.fixtures import a_run, own
from turnwise.memory.stores.conformance.quotas import a_count
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.faults import Faults
from turnwise.testing.scripted_engine import ScriptedEngine
from turnwise.testing.world import World

RUNS, TOKENS = Quota(runs=1, per="month", then="queue"), Quota(user_id="*", tokens=100, per="month")


async def used(store: Any, quota: Quota, user_id: str = "u") -> int:
    (key,) = filter(None, [quota.counter_of(user_id, None)])
    return int((await store.quota_counters(user_id, "")).of(quota, key).used)


async def test_a_commit_counts_in_the_other_store_and_stores_nothing_there() -> None:
    within, accounts = InMemoryStore(), InMemoryStore()
    store = accounted(within, accounts)
    assert clock_of(store) and (await store.quotas()) == []
    await accounts.set_quota(RUNS)
    assert [quota.then for quota in await store.quotas()] == ["refuse"]
    owner = await own(store, "s", user_id="u")
    run = a_run("r", 0, user_id="u")
    await owner.commit(counts=[a_count(RUNS, is_checked=True), a_count(TOKENS, amount=9)], new_run=run)
    assert (await used(accounts, RUNS), await used(accounts, TOKENS)) == (1, 9)
    assert (await used(within, RUNS), await accounts.count()) == (0, 0)
    refused = owner.prepare(counts=[a_count(RUNS, is_checked=True)])
    with pytest.raises(QuotaExceededError):
        await store.commit(owner.session.key, 1, refused)


async def test_what_a_refused_commit_counts_is_taken_back() -> None:
    within, accounts = InMemoryStore(), InMemoryStore()
    store = accounted(within, accounts)
    owner = await own(store, "s", user_id="u")
    await owner.commit(new_run=a_run("r", 0, user_id="u"))
    stale = Commit(session=owner.session.committed(), counts=[a_count(TOKENS, amount=9)])
    with pytest.raises(SessionFencedError):
        await store.commit(SessionKey("s", "u"), 99, stale)
    twice = owner.prepare(counts=[a_count(TOKENS, amount=9)], new_run=a_run("r", 0, user_id="u"))
    with pytest.raises(DuplicateKeyError):
        await store.commit(SessionKey("s", "u"), 1, twice)
    assert await used(accounts, TOKENS) == 0
    await store.close()
    with pytest.raises(StoreError):
        await accounts.now()


@pytest.mark.virtual_time
async def test_its_quotas_and_tenants_are_read_once_in_some_seconds_not_for_each_run() -> None:
    asked: list[str] = []

    class Counting(InMemoryStore):
        async def quotas(self) -> Any:
            asked.append("quotas")
            return await super().quotas()

        async def tenants_of(self, user_ids: Any) -> Any:
            asked.append("tenants_of")
            return await super().tenants_of(user_ids)

    accounts: Any = Counting()
    await accounts.set_tenant("default", "acme")
    await accounts.set_quota(Quota(tenant="acme", runs=40, per="month"))
    store = accounted(InMemoryStore(clock=asyncio.get_running_loop().time), accounts)
    config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9)
    world = World(Faults(), store=store, engine=ScriptedEngine(["an answer"] * 99), config=config, has_quotas=True)
    await store.create((await own(InMemoryStore(), "session")).session)
    for index in range(20):
        await world.wait(await world.start(str(index)))
    assert asked == ["quotas", "tenants_of"]
    counters = await accounts.quota_counters("default", "", "acme")
    assert [counter.used for counter in counters.counters] == [20]
