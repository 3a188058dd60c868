"""The periods of quotas in stores on servers, whose own clocks say which period it is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from turnwise.errors import QuotaExceededError
from turnwise.memory.quotas.records import CounterKey, Quota, QuotaCount, QuotaPeriod, period_of
from turnwise.memory.stores.redis.scripts import COMMON
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore

QUOTA = Quota(runs=2, per="day")
KEY = CounterKey("", "", QUOTA.quota_id)
COUNT = QuotaCount(quota=QUOTA, key=KEY, amount=1, is_checked=True)
DAY_S = 86_400


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("database" if request.param == "postgresql" else "redis_url"))


def move(store_url: str, days: int) -> None:
    """Move the counter by so many periods, as if it had been written at another time."""
    shift = days * DAY_S
    if store_url.startswith("redis"):
        client: Any = redis.Redis.from_url(store_url)
        (name,) = client.keys("*:counters:*")
        for field, text in client.hgetall(name).items():
            starts, ends, used = map(int, text.split())
            client.hset(name, field, f"{starts + shift} {ends + shift} {used}")
        return
    url = store_url.replace("postgresql://", "postgresql+psycopg://")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        moved = f"UPDATE turnwise_quota_counters SET starts = starts + {shift}, ends = ends + {shift}"
        assert connection.exec_driver_sql(moved).rowcount == 1
    engine.dispose()


@pytest.mark.parametrize(
    ("days", "used"),
    [(-1, 1), (-400, 1), (1, 3), (2, 1), (400, 1)],
    ids=["yesterday", "last year", "clock back a little", "clock back a day", "clock back a year"],
)
async def test_a_counter_of_another_period_begins_anew(store_url: str, days: int, used: int) -> None:
    """But not after a clock was set back a little: then what is used is added to the next period's."""
    store: Any = RedisStore(store_url) if store_url.startswith("redis") else SQLStore(store_url)
    for _ in range(2):
        await store.use_quotas([COUNT])
    move(store_url, days)
    if used > QUOTA.limit:
        with pytest.raises(QuotaExceededError):
            await store.use_quotas([COUNT])
    else:
        await store.use_quotas([COUNT])
        counters = await store.quota_counters("", "")
        assert counters.of(QUOTA, KEY).used == used
        assert counters.of(QUOTA, KEY).starts == period_of("day", counters.now)[0]
    await store.close()


@pytest.mark.parametrize("per", ["minute", "day", "month"])
def test_redis_knows_all_periods(redis_url: str, per: QuotaPeriod) -> None:
    client: Any = redis.Redis.from_url(redis_url)
    script = f"{COMMON}\nlocal starts, ends = period(ARGV[1], ARGV[2])\nreturn {{'' .. starts, '' .. ends}}"
    dice = random.Random(per)
    times = [dice.uniform(0, 4.2e9) for _ in range(300)]
    times += [1_709_164_800.0, 1_709_251_199.9, 1_735_689_599.999, 1_735_689_600.0, 951_782_400.0]
    for time in times:
        found = tuple(int(float(number)) for number in client.eval(script, 1, "{test}", per, f"{time:.6f}"))
        assert found == period_of(per, time), (per, time)
