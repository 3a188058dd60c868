"""The laws of `SessionStore`, on every store of turnwise."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from stored.open_stores import closing
from turnwise.errors import SchemaVersionError, StoreError
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.conformance import (
    commits as contract_commits,
    deliveries as contract_deliveries,
    failures as contract_failures,
    files as contract_files,
    forks as contract_forks,
    ledger as contract_ledger,
    listing as contract_listing,
    quotas as contract_quotas,
    records as contract_records,
    search as contract_search,
    sessions as contract_sessions,
    suite as contract,
    tenants as contract_tenants,
    webhooks as contract_webhooks,
)
from turnwise.memory.stores.conformance.laws import Law, check_law
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore

MakeStore = Callable[[], SessionStore]


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Opens stores on the same data, empty at first."""
    if request.param == "memory":
        store = InMemoryStore()
        return lambda: store
    if request.param == "redis":
        return partial(RedisStore, request.getfixturevalue("redis_url"))
    url = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return partial(SQLStore, url)


def law_of(law: Law) -> Any:
    """Return a law as a parameter. Those of users run on each store each day: nobody may see what is another's."""
    name = law.__name__.removeprefix("check_")
    tells_of_users = any(word in name for word in ("user", "member", "owner", "tenant"))
    return pytest.param(law, id=name, marks=pytest.mark.on_each_store if tells_of_users else ())


@pytest.mark.parametrize("law", [law_of(law) for law in contract.LAWS])
def test_a_store_obeys(law: Law, make_store: MakeStore) -> None:
    """Cases 29, 30, 44, 45, 46, 47 and 64, as each law says."""
    asyncio.run(check_law(law, make_store))


async def test_no_call_fails_after_a_restart_of_the_server(database: str) -> None:
    """Case 65."""

    store = SQLStore(database)
    await store.create(SessionRecord(session_id="s"))
    session = (await store.activate(SessionKey("s"))).session
    for index in range(3):
        await asyncio.gather(*(store.get(SessionKey("s")) for _ in range(20)))  # so that all connections are open
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        session = session.committed(updated_at=float(index))
        await store.commit(SessionKey("s"), 1, Commit(session=session))
        assert await store.get(SessionKey("s")) == session
    await store.close()


NEXT = replace(SQLStore.schema, version=2, migrations={1: ["ALTER TABLE turnwise_turns ADD COLUMN mood TEXT"]})
"""A next version of the tables, as one to come might be."""


@pytest.fixture(params=["sqlite", "postgresql"])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of version 1 with a session."""
    url = f"sqlite:///{tmp_path}/old.db" if request.param == "sqlite" else str(request.getfixturevalue("database"))

    async def fill() -> None:
        async with closing(SQLStore(url)) as store:
            await store.create(SessionRecord(session_id="s"))

    asyncio.run(fill())
    return url


async def test_all_that_open_an_old_store_at_once_find_it_migrated(
    old_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 45."""
    monkeypatch.setattr(SQLStore, "schema", NEXT)
    stores = [SQLStore(old_url) for _ in range(6)]
    assert await asyncio.gather(*(store.count() for store in stores)) == [1] * 6
    await asyncio.gather(*(store.create(SessionRecord(session_id=str(index))) for index, store in enumerate(stores)))
    assert [await store.count() for store in stores] == [7] * 6
    engine = sa.create_engine(old_url.replace("postgresql://", "postgresql+psycopg://"))
    columns = [column["name"] for column in sa.inspect(engine).get_columns("turnwise_turns")]
    assert columns.count("mood") == 1
    engine.dispose()
    for store in stores:
        await store.close()
    monkeypatch.undo()
    with pytest.raises(SchemaVersionError, match="2"):
        async with closing(SQLStore(old_url)) as store:
            await store.count()


async def test_a_migration_that_fails_leaves_the_store_as_it_was(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {1: [*NEXT.migrations[1], "UPDATE turnwise_no_such_table SET x = 1"]}
    with monkeypatch.context() as patch:
        patch.setattr(SQLStore, "schema", replace(NEXT, migrations=broken))
        with pytest.raises(StoreError, match="turnwise_no_such_table"):
            async with closing(SQLStore(old_url)) as store:
                await store.count()
    async with closing(SQLStore(old_url)) as store:
        assert await store.count() == 1


class _Forgetful(InMemoryStore):
    async def run_of_key(self, key: SessionKey, idempotency_key: str) -> RunRecord | None:
        await super().run_of_key(key, idempotency_key)
        return None


def test_the_error_for_a_broken_law_names_the_law() -> None:
    stores: dict[str, SessionStore] = {}
    reason = "check_each_user_has_a_session_of_one_id: the run of a key of 'first': found None, expected 'run of first'"
    with pytest.raises(AssertionError, match=reason):
        asyncio.run(contract.check_session_store(lambda law: stores.setdefault(law, _Forgetful())))
    assert list(stores) == [law.__name__ for law in contract.LAWS[: len(stores)]]


def test_the_error_for_an_unexpected_exception_names_the_law() -> None:
    class Rude(InMemoryStore):
        async def get(self, key: SessionKey) -> SessionRecord:
            raise KeyError(key)

    with pytest.raises(AssertionError, match=r"^check_a_session_comes_back_as_it_was_created: KeyError"):
        asyncio.run(contract.check_session_store(lambda _: Rude()))


def test_the_laws_are_all_checks() -> None:
    parts = (
        contract_sessions,
        contract_listing,
        contract_commits,
        contract_records,
        contract_forks,
        contract_failures,
        contract_deliveries,
        contract_webhooks,
        contract_search,
        contract_ledger,
        contract_quotas,
        contract_tenants,
        contract_files,
    )
    checks = [value for part in parts for name, value in vars(part).items() if name.startswith("check_")]
    assert checks == list(contract.LAWS) and len(checks) > 40
    files = {path.stem for path in Path(contract.__file__).parent.glob("*.py")}
    assert files == {part.__name__.rpartition(".")[2] for part in parts} | {"__init__", "fixtures", "laws", "suite"}
