"""A PostgreSQL with a standby that follows it: commands read there, and programs go on after a fail-over."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from filled import fill, turnwise

from patience import until
from servers.postgres_server import PostgresServer
from turnwise import AsyncSessionManager, EchoEngine, InProcess, SessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.errors import SchemaMissingError, SessionRevertedError, StoreError, TurnwiseError
from turnwise.memory.stores.sql.rows import whole_body
from turnwise.memory.stores.urls import read_only, with_hosts_apart

ECHO = EchoEngine()


@pytest.fixture
def standby(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        server = PostgresServer(Path(folder), postgres_server)
        try:
            yield server
        finally:
            server.stop("immediate")


@pytest.fixture
def name(postgres_server: PostgresServer, standby: PostgresServer) -> Iterator[str]:
    """A database that both have."""
    name = postgres_server.make_database()
    until(lambda: is_there(standby.address.format(name)))
    yield name
    postgres_server.start()
    postgres_server.drop_database(name)


def is_there(url: str) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(url):
        return True
    return False


def both(primary: PostgresServer, standby: PostgresServer, name: str) -> str:
    """Return the URL that names both servers, and means the one that takes writes."""
    folders = ",".join(server.address.partition("host=")[2] for server in (primary, standby))
    return f"postgresql://postgres@/{name}?host={folders}&target_session_attrs=read-write"


def has_all(primary: PostgresServer, standby: PostgresServer, name: str) -> Callable[[], bool]:
    """Return what says whether the standby has what its primary has now."""
    with psycopg.connect(primary.address.format(name)) as connection:
        (place,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)

    def holds() -> bool:
        with psycopg.connect(standby.address.format(name)) as connection:
            return connection.execute("SELECT pg_last_wal_replay_lsn() >= %s", (place,)).fetchone() == (True,)

    return holds


def test_commands_that_read_work_on_a_standby_and_say_that_it_is_one(
    postgres_server: PostgresServer, standby: PostgresServer, name: str, tmp_path: Path
) -> None:
    asyncio.run(fill(postgres_server.address.format(name)))
    until(has_all(postgres_server, standby, name))
    url = standby.address.format(name)
    chat = ("chat", "--user", "ann")
    folder = str(tmp_path / "replay")
    for words in [
        ("ls", url, "--json"),
        ("show", url, *chat),
        ("runs", url),
        ("usage", url),
        ("top", url, "--once", "--json"),
        ("export", url, *chat),
        ("migrate", url, "--check"),
        ("replay", url, "--user", "ann", "--engine", "test_standbys:ECHO", "--out", folder),
    ]:
        shown, read = turnwise(*words), turnwise(words[0], both(postgres_server, standby, name), *words[2:])
        assert shown.exit_code == read.exit_code == 0, (words, shown.output, read.output)
        is_noted = words[0] not in ("export", "migrate")
        assert ("a read-only standby: its newest commit is" in shown.stderr) == is_noted, words
        assert "standby" not in read.stderr, words
    found = {finding["check"]: finding for finding in json.loads(turnwise("doctor", url, "--json").stdout)}
    assert found["store"]["state"] == "ok" and "6 sessions" in found["store"]["message"]
    assert found["store server"]["state"] == "warn" and "read-only standby" in found["store server"]["message"]


def test_a_program_that_writes_to_a_standby_gets_an_error_that_names_the_primary(
    postgres_server: PostgresServer, standby: PostgresServer, name: str
) -> None:
    url = standby.address.format(name)
    idle = InProcess(resume_lost=False)
    refused = pytest.raises(SchemaMissingError, match="this server is a read-only standby")
    with SessionManager(url, engine=ECHO, placement=idle) as manager, refused:
        manager.open("chat")
    with SessionManager(postgres_server.address.format(name), engine=ECHO, placement=InProcess()) as manager:
        manager.open("chat").run("hello").wait()
    until(has_all(postgres_server, standby, name))
    reason = r"this server is a read-only standby.*target_session_attrs=read-write"
    with SessionManager(url, engine=ECHO, placement=idle) as manager:
        chat = manager.get("chat")
        assert [turn.text for turn in chat.turns()] == ["hello"]
        for write in (lambda: manager.open("another"), lambda: chat.run("again"), lambda: chat.append("more")):
            with pytest.raises(StoreError, match=reason):
                write()


def test_a_url_may_name_several_servers_as_the_driver_does() -> None:
    url = "postgresql://app:pw@a:5432,b:5433/chats?target_session_attrs=read-write"
    apart = "postgresql://app:pw@/chats?host=a,b&port=5432,5433&target_session_attrs=read-write"
    assert with_hosts_apart(url) == apart and with_hosts_apart(apart) == apart
    assert with_hosts_apart("postgresql://a,b/chats") == "postgresql:///chats?host=a,b"
    for one in ("postgresql://a:5432/chats?host=c,d", "sqlite:///a,b.db"):
        assert with_hosts_apart(one) == one
    assert "target_session_attrs=primary" in read_only(url)


class Load:
    """Sessions that run one prompt after the other, and note what was acknowledged; each is repeated until it is."""

    def __init__(self, chats: list[AsyncSession]) -> None:
        self._chats = chats
        self.acknowledged: set[str] = set()
        self.errors: list[TurnwiseError] = []
        self._ends = asyncio.Event()

    async def talk(self) -> None:
        await asyncio.gather(*map(self._talk, self._chats))

    async def _talk(self, chat: AsyncSession) -> None:
        number = 0
        while not self._ends.is_set():
            prompt = f"{chat.session_id} {number}"
            try:
                run = await chat.run(prompt, idempotency_key=prompt, if_busy="enqueue")
                self.acknowledged.add(prompt)
                await run.wait(60)
            except TurnwiseError as error:
                self.errors.append(error)
                await asyncio.sleep(0.05)
            else:
                number += 1

    async def until_more(self, count: int) -> None:
        """Wait until so many more prompts are acknowledged."""
        most = len(self.acknowledged) + count
        async with asyncio.timeout(120):
            while len(self.acknowledged) < most:
                await asyncio.sleep(0.01)

    def end(self) -> None:
        self._ends.set()


def stored(url: str) -> tuple[Counter[str], Counter[str]]:
    """Return how often each prompt is stored, and how many runs are in which state."""
    with psycopg.connect(url) as connection:
        bodies = connection.execute(
            "SELECT body FROM turnwise_turns t JOIN turnwise_blocks b ON b.log = t.session"
            " WHERE b.at = (t.prompt::json->0->>1)::int"
        ).fetchall()
        states = connection.execute("SELECT state FROM turnwise_runs").fetchall()
    return Counter(json.loads(whole_body(body))["text"] for (body,) in bodies), Counter(state for (state,) in states)


@pytest.mark.parametrize("loses", [False, True], ids=["synchronous", "asynchronous"])
async def test_a_fail_over_loses_what_the_standby_lacks_and_no_more(
    loses: bool, postgres_server: PostgresServer, standby: PostgresServer, name: str
) -> None:
    """A standby that commits wait for has all; one that is cut off before lacks what was acknowledged since.

    The manager's URL names both servers, and it is open all the time.
    """
    url = both(postgres_server, standby, name)
    async with AsyncSessionManager(url, engine=ECHO, placement=InProcess()) as manager:
        chats = [await manager.open(f"chat{number}") for number in range(4)]
        load = Load(chats)
        talking = asyncio.create_task(load.talk())
        try:
            await load.until_more(20)
            if loses:
                await asyncio.to_thread(standby.set, primary_conninfo="")
            else:
                await asyncio.to_thread(postgres_server.set, synchronous_standby_names="*")
            await load.until_more(20)
            began, before = time.monotonic(), set(load.acknowledged)
            await asyncio.to_thread(postgres_server.stop, "immediate")
            before = set(load.acknowledged)
            await asyncio.to_thread(standby.promote)
            promoted = time.monotonic()
            await load.until_more(20)
            print(f"promoted after {promoted - began:.2f} s, 20 more runs after {time.monotonic() - promoted:.2f} s")
        finally:
            load.end()
            await talking
            await asyncio.to_thread(postgres_server.start)
            await asyncio.to_thread(postgres_server.set, synchronous_standby_names="")
        prompts, states = stored(standby.address.format(name))
        assert max(prompts.values()) == 1
        assert states.keys() <= ({"completed", "interrupted"} if loses else {"completed"}), states
        lost = before - prompts.keys()
        assert bool(lost) == loses, lost
        assert any(isinstance(error, SessionRevertedError) for error in load.errors) == loses, load.errors
        for chat in chats:
            assert (await (await chat.run("in the end")).wait(60)).text == "in the end"
