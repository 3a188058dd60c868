"""100,000 deliveries that wait: what is due, and when the next one is, are found by an index."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from scale import share
from stored.open_stores import closing, run_with
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import a_delivery, own
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.statements import Statements
from turnwise.memory.stores.sql.store import SQLStore

WAITING = share(100_000, 4)
"""How many wait; all 100,000 with `make races`."""

AT_ONCE = 2500


def numbered(number: int, **values: Any) -> Delivery:
    return a_delivery(f"d{number}", float(number), delivery_id=f"{number:024x}", **values)


async def fill(store: SessionStore, count: int, first: int = 0) -> None:
    """Store deliveries in ten sessions, the number of each being the time at which it is due."""
    owners = [await own(store, f"s{index}") for index in range(10)]
    for start in range(first, first + count, AT_ONCE):
        owner = owners[start // AT_ONCE % 10]
        session_id = owner.session.session_id
        numbers = range(start, min(start + AT_ONCE, first + count))
        await owner.commit(
            deliveries=[DeliveryChange(None, numbered(number, session_id=session_id)) for number in numbers]
        )


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SessionStore]:
    if request.param == "memory":
        return InMemoryStore
    if request.param == "redis":
        return partial(RedisStore, request.getfixturevalue("redis_url"))
    url = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return partial(SQLStore, url)


@pytest.mark.by_turns
async def test_all_that_wait_come_when_they_are_due_and_in_order(make_store: Callable[[], SessionStore]) -> None:
    async with closing(make_store()) as store:
        await fill(store, WAITING)
        assert (await store.lease_deliveries("holder", 60.0)).next_due_at == 0.0
        assert [delivery.due_at for delivery in await store.due(2.5)] == [0.0, 1.0, 2.0]
        numbers: list[float | None] = []
        cursor = None
        while True:
            page = await store.due(float(WAITING), cursor=cursor, limit=1000)
            numbers += [delivery.due_at for delivery in page]
            if (cursor := page.cursor) is None:
                break
        assert numbers == [float(number) for number in range(WAITING)]
        last = await store.deliveries(user_id=DEFAULT_USER, after=f"{WAITING - 2:024x}")
        assert [delivery.due_at for delivery in last] == [WAITING - 1.0]
        await store.delete(SessionKey("s0"))
        assert (await store.lease_deliveries("holder", 60.0)).next_due_at == float(AT_ONCE)


def steps_of(path: Path, use: Callable[[sqlite3.Connection], object]) -> int:
    """Return how many steps SQLite takes for what is done with a connection."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection = sqlite3.connect(path)
    connection.set_progress_handler(count, 1)
    use(connection)
    connection.close()
    return steps


def test_what_is_due_costs_the_same_however_many_wait(tmp_path: Path) -> None:
    """Counted in steps of SQLite's virtual machine: of a page, and of the next time."""
    steps = {}
    for count in (200, WAITING):
        path = tmp_path / f"{count}.db"
        store = SQLStore(f"sqlite:///{path}")
        sql = Statements(sa.create_engine("sqlite://").dialect)
        run_with(store, partial(fill, count=count, first=1000))
        due = {"now": 1100.0, "time": -1.0, "after": "", "limit": 10}

        def read(connection: sqlite3.Connection, sql: Any = sql, due: Any = due) -> None:
            assert len(connection.execute(sql.due.text, sql.due.bind(due)).fetchall()) == 10
            assert connection.execute(sql.next_due.text, sql.next_due.bind({})).fetchone()[0] == 1000.0

        steps[count] = steps_of(path, read)
    assert steps[200] == steps[WAITING]


def test_postgresql_finds_what_is_due_by_the_index(database: str) -> None:
    store = SQLStore(database)
    sql = Statements(sa.create_engine("postgresql+psycopg://").dialect)
    run_with(store, partial(fill, count=5 * AT_ONCE))
    due = {"now": 100.0, "time": -1.0, "after": "", "limit": 10}
    with psycopg.connect(database) as connection:
        connection.execute("ANALYZE")
        for statement, values in ((sql.due, due), (sql.next_due, {})):
            rows = connection.execute(f"EXPLAIN {statement.text}".encode(), statement.bind(values)).fetchall()
            plan = "\n".join(row[0] for row in rows)
            assert "turnwise_deliveries_due" in plan and "Seq Scan on turnwise_deliveries" not in plan, plan
