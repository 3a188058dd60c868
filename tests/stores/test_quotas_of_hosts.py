"""16 hosts that begin runs at once exceed no quota, and lose no count, on a server of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from turnwise.errors import QuotaExceededError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.quotas.records import CounterKey, Quota, QuotaCount
from turnwise.memory.stores.conformance.fixtures import own
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore

HOSTS, EACH = 16, 6
RUNS, TOKENS = Quota(runs=50, per="month"), Quota(user_id="*", tokens=10**6, per="month")


@pytest.fixture(params=["postgresql", "redis"])
def open_store(request: pytest.FixtureRequest) -> Callable[[], Any]:
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        return lambda: RedisStore(url)
    database = request.getfixturevalue("database")
    return lambda: SQLStore(database)


async def test_16_hosts_exceed_no_quota_of_runs_and_lose_no_count(open_store: Callable[[], Any]) -> None:
    stores = [open_store() for _ in range(HOSTS)]
    user = SessionKey("", "u").user_id
    checked = QuotaCount(quota=RUNS, key=CounterKey("", "", RUNS.quota_id), amount=1, is_checked=True)
    spent = QuotaCount(quota=TOKENS, key=CounterKey(user, "", TOKENS.quota_id), amount=7)

    async def work(number: int, store: Any) -> list[bool]:
        """Begin runs of a session; return which of them were accepted. Each accepted one spends something."""
        owner, accepted = await own(store, f"s{number}", user_id=user), []
        for _ in range(EACH):
            try:
                await owner.commit(counts=[checked])
            except QuotaExceededError:
                accepted.append(False)
            else:
                await owner.commit(counts=[spent])
                accepted.append(True)
        return accepted

    outcomes = await asyncio.gather(*(work(number, store) for number, store in enumerate(stores)))
    assert sum(map(sum, outcomes)) == RUNS.limit
    counters = await stores[0].quota_counters(user, "")
    assert counters.of(RUNS, checked.key).used == RUNS.limit
    assert counters.of(TOKENS, spent.key).used == 7 * RUNS.limit
    for store in stores:
        await store.close()
