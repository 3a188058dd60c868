"""A PostgreSQL that allows fewer connections than a store was told, or whose role lacks rights."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from test_sql_store import whole_turn

from servers.postgres_server import PostgresServer
from stored.open_stores import own
from turnwise.errors import StoreError
from turnwise.memory.stores.sql.connection_room import AGAIN_S, ConnectionRoom
from turnwise.memory.stores.sql.store import SQLStore

ROLE = "few"


@pytest.fixture
def url_of_role(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database, as a role that may have three connections."""
    name = postgres_server.make_database()
    admin = postgres_server.address.format(name)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN CONNECTION LIMIT 3")
        connection.execute(f"GRANT ALL ON SCHEMA public TO {ROLE}")
    yield admin.replace("//postgres@", f"//{ROLE}@")
    postgres_server.drop_database(name)
    with psycopg.connect(postgres_server.address.format("postgres"), autocommit=True) as connection:
        connection.execute(f"DROP ROLE {ROLE}")


async def test_calls_wait_for_the_connections_that_the_server_allows(url_of_role: str) -> None:
    store = SQLStore(url_of_role, connections=12)
    sessions = await asyncio.gather(*(own(store, f"s{index}") for index in range(40)))

    async def write(index: int) -> None:
        session = sessions[index]
        for turn in range(5):
            commit = whole_turn(session, turn)
            await store.commit(session.key, 1, commit)
            session = commit.session
            assert (await store.get(session.key)).next_index == turn + 1

    await asyncio.gather(*map(write, range(40)))
    await store.close()


async def test_a_store_without_a_connection_says_what_to_do(url_of_role: str) -> None:
    others = [await psycopg.AsyncConnection.connect(url_of_role) for _ in range(3)]
    store = SQLStore(url_of_role)
    with pytest.raises(StoreError, match=r'too many connections for role "few"; let fewer processes use it \(Packed\)'):
        await own(store, "first")
    for other in others:
        await other.close()
    await own(store, "first")
    await store.close()


async def test_a_call_that_gets_no_connection_in_time_says_what_to_do(url_of_role: str) -> None:
    others = [await psycopg.AsyncConnection.connect(url_of_role) for _ in range(2)]
    patient = "&options=-c%20statement_timeout%3D60s%20-c%20lock_timeout%3D60s"
    store = SQLStore(f"{url_of_role}{patient}", lock_timeout_s=1)
    session = await own(store, "first")
    admin = url_of_role.replace(f"//{ROLE}@", "//postgres@")
    async with await psycopg.AsyncConnection.connect(admin) as locking:
        await locking.execute("LOCK TABLE turnwise_sessions")
        calls = [asyncio.create_task(store.get(session.key)) for _ in range(2)]
        (late,), (locked,) = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(
            StoreError, match=r"none of its own was free for 1 s; let fewer processes use it \(Packed\)"
        ):
            await late
    assert await locked == session
    for other in others:
        await other.close()
    await store.close()


async def test_a_role_without_rights_is_told_to_get_them(url_of_role: str) -> None:
    owner = SQLStore(url_of_role.replace(f"//{ROLE}@", "//postgres@"))
    await own(owner, "first")
    await owner.close()
    store = SQLStore(url_of_role)
    with pytest.raises(StoreError, match=r"permission denied for table .*; the role lacks a right .*: GRANT it"):
        await own(store, "second")
    await store.close()


def test_the_room_grows_again_some_time_after_a_refusal() -> None:
    now = 0.0
    room = ConnectionRoom(3, clock=lambda: now)
    assert all(room.take(0) for _ in range(3))
    room.leave()
    assert room.refused()
    assert not room.take(0)
    now = AGAIN_S
    assert room.take(0)
    assert not room.take(0)
    for _ in range(3):
        room.leave()
    assert not room.refused()
    assert room.take(0)
    assert not room.take(0)
