"""The laws of `HistoryStore`, on every event store of turnwise, and what is special about databases.

Run as a program it measures how many events a second are replayed: `python tests/event_store/test_history.py`.
"""

import asyncio
import pickle
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from stored.open_stores import run_with
from stored.sql_traffic import traced
from turnwise.actors.session.state.run_events import turn_key
from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    HistoryConflictError,
    SchemaVersionError,
    StoreError,
    StoreURLError,
)
from turnwise.memory.conversation.events import (
    ApprovalRequested,
    CallDecided,
    Event,
    ModelCallEnded,
    PromptAppended,
    RunCompleted,
    RunStarted,
    ToolEnded,
    ToolStarted,
)
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.event_store import conformance as contract
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.event_store.urls import open_history
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.conformance.laws import Law, check_law, check_laws
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.ids import check_id

MakeHistory = Callable[[], HistoryStore]


def events_of(session_id: str, count: int) -> list[Event]:
    about: dict[str, Any] = {"session_id": session_id, "turn_index": 0, "run_id": "r"}
    started = [RunStarted(seq=seq, at=float(seq), **about) for seq in range(1, count)]
    return [*started, RunCompleted(seq=count, at=0.5, key="end", usage=Usage(calls=1), span=(1, 2), **about)]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_history(request: pytest.FixtureRequest, tmp_path: Path) -> MakeHistory:
    """Opens histories on the same data, empty at first."""
    if request.param == "memory":
        history = InMemoryHistory()
        return lambda: history
    url = f"sqlite:///{tmp_path}/history.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return partial(SQLHistory, url)


def using(url: str, use: Callable[[SQLHistory], Awaitable[Any]]) -> Any:
    """Return what `use` returns of an open store."""
    return run_with(SQLHistory(url), use)


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_a_history_obeys(law: Law, make_history: MakeHistory) -> None:
    """Cases 29 and 30, as each law says."""
    asyncio.run(check_law(law, make_history))


def test_the_error_for_a_broken_law_of_a_history_names_the_law() -> None:
    class Forgetful(InMemoryHistory):
        async def delete(
            self, key: SessionKey, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()
        ) -> None:
            """Keep it."""

    histories: dict[str, HistoryStore] = {}
    with pytest.raises(AssertionError, match=r"^check_sessions_do_not_share_events: the sessions that are left: "):
        asyncio.run(contract.check_event_store(lambda law: histories.setdefault(law, Forgetful())))


def test_the_laws_are_all_checks() -> None:
    checks = [value for name, value in vars(contract).items() if name.startswith("check_")]
    assert [check for check in checks if check not in (contract.check_event_store, check_laws)] == list(contract.LAWS)


@pytest.mark.parametrize("history_first", [True, False])
async def test_a_history_and_a_store_share_a_database(url: str, history_first: bool) -> None:
    store, history = SQLStore(url), SQLHistory(url)
    first = history.append(SessionKey("s"), events_of("s", 3))
    second = store.create(SessionRecord(session_id="s"))
    for call in (first, second) if history_first else (second, first):
        await call
    await store.delete(SessionKey("s"))
    assert await history.events(SessionKey("s")) == events_of("s", 3) and await store.count() == 0
    await store.create(SessionRecord(session_id="s"))
    await history.delete(SessionKey("s"))
    assert await history.events(SessionKey("s")) == [] and (await store.get(SessionKey("s"))).session_id == "s"
    await asyncio.gather(store.close(), history.close())


async def test_all_that_open_a_new_database_at_once_get_it(url: str) -> None:
    histories, store = [SQLHistory(url) for _ in range(6)], SQLStore(url)
    appends = (
        history.append(SessionKey(f"s{index}"), events_of(f"s{index}", 3)) for index, history in enumerate(histories)
    )
    await asyncio.gather(store.create(SessionRecord(session_id="s")), *appends)
    for index, history in enumerate(histories):
        assert await histories[0].events(SessionKey(f"s{index}")) == events_of(f"s{index}", 3)
        await history.append(SessionKey(f"s{index}"), [])
    await asyncio.gather(store.close(), *(history.close() for history in histories))


def test_appended_events_can_be_read_after_reopening(url: str) -> None:
    using(url, lambda history: history.append(SessionKey("s"), events_of("s", 2000)))
    assert using(url, lambda history: history.events(SessionKey("s"), limit=5000)) == events_of("s", 2000)
    with pytest.raises(
        HistoryConflictError, match=r"^the history of session 's' has another event under number 1, and"
    ):
        using(url, lambda history: history.append(SessionKey("s"), events_of("s", 1)))


def test_a_conflict_names_the_key_only_if_the_key_conflicts() -> None:
    assert "number 4" in str(HistoryConflictError("s", 4, None)) and "key" not in str(
        HistoryConflictError("s", 4, None)
    )
    assert "under the key 'e1' of event 4," in str(HistoryConflictError("s", 4, "e1"))


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()


@pytest.mark.parametrize("body", ["{", "", "null", "5", '{"x":1}', '{"seq":4}', '{"usage":{"x":1}}', '{"span":[1]}'])
def test_a_corrupt_event_is_named_and_never_skipped(tmp_path: Path, body: str) -> None:
    url, events = f"sqlite:///{tmp_path}/history.db", events_of("s", 4)
    using(url, lambda history: history.append(SessionKey("s"), events))
    edit(tmp_path / "history.db", f"UPDATE turnwise_history SET body = '{body}' WHERE seq = 4")
    for use in (
        lambda history: history.events(SessionKey("s")),
        lambda history: history.events(SessionKey("s"), run_id="r"),
        lambda history: history.append(SessionKey("s"), events),
    ):
        with pytest.raises(CorruptRecordError, match=r"^corrupt record event s:4 in the store: ") as error:
            using(url, use)
        assert error.value.key == "event s:4"
    assert using(url, lambda history: history.events(SessionKey("s"), limit=3)) == events[:3]


def test_a_history_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    using(url, lambda history: history.append(SessionKey("s"), events_of("s", 2)))
    edit(tmp_path / "history.db", "UPDATE turnwise_meta SET value = '2' WHERE name = 'history_version'")
    with pytest.raises(SchemaVersionError, match="has schema version 2, this turnwise writes 1"):
        using(url, lambda history: history.events(SessionKey("s")))


def test_each_kind_of_page_uses_its_index(tmp_path: Path) -> None:
    """So that replaying a session, or one run of a long session, takes the time of what is replayed."""

    async def read(history: SQLHistory) -> list[str]:
        await history.append(SessionKey("s"), events_of("s", 2))
        statements.clear()
        await history.events(SessionKey("s"), limit=10)
        await history.events(SessionKey("s"), run_id="r", limit=10)
        return [sql for sql in statements if "FROM turnwise_history" in sql]

    with traced() as statements:
        selects = using(f"sqlite:///{tmp_path}/history.db", read)
    with closing(sqlite3.connect(tmp_path / "history.db")) as connection:
        plan_of_session, of_run = (str(connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()) for sql in selects)
    assert (
        "PRIMARY KEY (user_id=? AND session_id=? AND seq>?)" in plan_of_session and "TEMP B-TREE" not in plan_of_session
    )
    assert "turnwise_history_run (run_id=? AND seq>?)" in of_run and "TEMP B-TREE" not in of_run


def test_a_url_opens_the_history_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert repr(open_history("sqlite:///a.db")) == f"SQLHistory('sqlite:///{tmp_path}/a.db')"
    assert repr(open_history("postgresql://u:secret@h/x")) == "SQLHistory('postgresql://u:***@h/x')"
    for url in ("memory://", "memory://name"):
        with pytest.raises(ConfigError, match=r"history_store='memory://.*is not shared by processes"):
            open_history(url)
    for url in ("", "mysql://u:secret@h/x", "sqlite://", "redis://u:secret@h"):
        with pytest.raises((StoreURLError, ConfigError)) as error:
            open_history(url)
        assert "secret" not in str(error.value)


def test_a_missing_database_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"unable to open database file; is it reachable, writable"):
        using(f"sqlite:///{tmp_path}/missing/history.db", lambda history: history.events(SessionKey("s")))


def some_events(session_id: str, count: int) -> list[Event]:
    """Return events of runs that call a tool each, as they are stored."""
    spent = Usage(input_tokens=100, output_tokens=20, calls=1, seconds=1.25, cost=0.001)
    call: dict[str, Any] = {"call_id": "call_123456", "name": "search"}
    kinds: list[tuple[type[Event], dict[str, Any]]] = [
        (RunStarted, {}),
        (ModelCallEnded, {"call": 0, "seconds": 1.25, "stop_reason": "tool_calls", "usage": spent, "span": (1, 3)}),
        (ApprovalRequested, {**call, "input": {"query": "x", "n": [1, 2, 3]}}),
        (CallDecided, {"call_id": "call_123456", "verdict": "approved"}),
        (ToolStarted, call),
        (ToolEnded, {**call, "seconds": 0.2, "span": (3, 4)}),
        (RunCompleted, {"stop_reason": "stop", "usage": spent, "span": (4, 5)}),
    ]
    events: list[Event] = []
    for number in range(count):
        cls, values = kinds[number % len(kinds)]
        run = number // len(kinds)
        about: dict[str, Any] = {"session_id": session_id, "turn_index": run, "run_id": f"{run:024}"}
        events.append(cls(seq=number + 1, at=1763700000.123 + number, **about, **values))
    return events


async def measure(count: int = 50_000, limit: int = 1000, rounds: int = 5) -> None:
    """Print the best rates of some rounds in which `count` events are read in pages."""
    name = "s" * 24
    events = some_events(name, count)
    pages = [events[first : first + limit] for first in range(0, count, limit)]
    with tempfile.TemporaryDirectory() as folder:
        store, history = SQLStore(f"sqlite:///{folder}/store.db"), SQLHistory(f"sqlite:///{folder}/history.db")
        await store.create(SessionRecord(session_id=name))
        session = (await store.activate(SessionKey(name))).session
        for page in pages:
            session = session.committed()
            await store.commit(SessionKey(name), 1, Commit(session=session, events=page))
            await history.append(SessionKey(name), page)
        for source in (store, history):
            best = 0.0
            for _ in range(rounds):
                start, after = perf_counter(), 0
                while events_of_page := await source.events(SessionKey(name), after=after, limit=limit):
                    after = events_of_page[-1].seq
                best = max(best, count / (perf_counter() - start))
            print(f"{type(source).__name__:12} {best:10,.0f} events/s read in pages of {limit}")
        await asyncio.gather(store.close(), history.close())
    sizes, times = [], []
    for page in pages:
        start = perf_counter()
        pickled = pickle.dumps(page, pickle.HIGHEST_PROTOCOL)
        middle = perf_counter()
        unpickled = pickle.loads(pickled)
        times.append((middle - start, perf_counter() - middle))
        assert unpickled == page
        sizes.append(len(pickled))
    write_ms, read_ms = (1000 * min(time) for time in zip(*times, strict=True))
    print(f"a page pickles in {write_ms:.1f} ms to {sizes[0]:,} bytes, and back in {read_ms:.1f} ms")


if __name__ == "__main__":
    asyncio.run(measure())


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql"])
async def test_the_events_of_the_longest_ids_are_kept(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/history.db" if kind == "sqlite" else None
    url = request.getfixturevalue("database") if kind == "postgresql" else url
    history: HistoryStore = SQLHistory(url) if url else InMemoryHistory()
    longest = "🦀" * 192
    assert check_id("session id", longest)
    key = SessionKey(longest, longest)
    event = PromptAppended(**key._asdict(), seq=1, at=1.0, key=turn_key(longest), run_id=longest)
    await history.append(key, [event])
    assert await history.events(key) == [event] == await history.events(key, run_id=longest)
    await history.close()
