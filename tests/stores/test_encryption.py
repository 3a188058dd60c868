"""Encrypted stores: data cannot be read without the user's key, and changes by others are detected."""

import asyncio
import hashlib
import pickle
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pytest

from engines import ScriptedEngine
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    EncryptionError,
    IdempotencyConflictError,
    KeyMissingError,
    NotEncryptedError,
    RunNotFoundError,
    SessionNotFoundError,
    StillEncryptedError,
    StoreError,
    WrongKeyError,
)
from turnwise.memory.conversation.blocks import ToolResult, ToolUse, User, encode
from turnwise.memory.conversation.events import Event, PromptAppended, RunFailed, ToolStarted
from turnwise.memory.conversation.runs import RunOrigin, RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.event_store import conformance as history_contract
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.encrypted import EncryptedHistory
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.conformance import suite as contract
from turnwise.memory.stores.conformance.laws import Law, check_law
from turnwise.memory.stores.encrypted import keys as encryption_keys
from turnwise.memory.stores.encrypted.keys import KeyRing, Place, Unsealing
from turnwise.memory.stores.encrypted.records import SEALED
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.frozen_json import freeze

SECRET = "rosebud"


def key_of(user_id: str, salt: str = "") -> bytes:
    return hashlib.sha256(f"{salt}{user_id}".encode("utf-8", "surrogatepass")).digest()


ENCRYPTION = Encryption(key_of)


@dataclass(frozen=True)
class KeyFiles:
    """Keys in a folder, as processes share them."""

    folder: Path

    def __call__(self, user_id: str) -> bytes | None:
        path = self.folder / user_id
        return path.read_bytes() if path.exists() else None

    def make(self, *user_ids: str) -> None:
        self.folder.mkdir()
        for user_id in user_ids:
            (self.folder / user_id).write_bytes(key_of(user_id))

    def delete(self, user_id: str) -> None:
        (self.folder / user_id).unlink()


# Laws


@pytest.mark.parametrize("inner", ["memory", "sqlite"])
@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_an_encrypted_store_obeys(law: Law, inner: str, tmp_path: Path) -> None:
    inner_store = InMemoryStore() if inner == "memory" else None
    asyncio.run(
        check_law(law, lambda: EncryptedStore(inner_store or SQLStore(f"sqlite:///{tmp_path}/store.db"), ENCRYPTION))
    )


@pytest.mark.parametrize("inner", ["memory", "sqlite"])
@pytest.mark.parametrize("law", history_contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_an_encrypted_history_obeys(law: Law, inner: str, tmp_path: Path) -> None:
    inner_history = InMemoryHistory() if inner == "memory" else None

    def make() -> HistoryStore:
        return EncryptedHistory(inner_history or SQLHistory(f"sqlite:///{tmp_path}/history.db"), ENCRYPTION)

    asyncio.run(check_law(law, make))


# What is hidden

READABLE = {
    SessionRecord: "session_id user_id agent status created_at updated_at parent called_by inherited namespace log"
    " log_size next_index branches epoch revision seq usage agents_usage memory saved ttl_s model engine marks members",
    TurnRecord: "index parent turn_id run_id status prompt appended input output carried usage created_at forgotten"
    " removed",
    RunRecord: "run_id session_id user_id turn_index state first_seq created_at started_at ended_at code timeout_s"
    " successor parent usage resumes memory model engine trace",
    Delivery: "delivery_id session_id user_id key to_session namespace engine_id revision kind occurs_at due_at"
    " schedule missed if_busy created_at attempts",
}
"""What stays as it is. A new field is sealed in `encryption_records`, or named here and in `EncryptedStore`."""


async def fill(store: SessionStore, session_id: str, user_id: str, secret: str = SECRET) -> SessionRecord:
    """Store a session that has the secret wherever it can be put, and return it."""
    secret_json = freeze({secret: [secret]})
    own: dict[str, Any] = {
        "agent": "agent",
        "metadata": secret_json,
        "ttl_s": 9.0,
        "model": "m",
        "params": secret_json,
        "title": secret,
    }
    session = SessionRecord(session_id=session_id, user_id=user_id, **own)
    await store.create(session)
    session = (await store.activate(SessionKey(session_id, user_id))).session
    run = RunRecord(
        run_id=f"run of {session_id}",
        session_id=session_id,
        user_id=user_id,
        turn_index=0,
        state="running",
        first_seq=1,
        created_at=1.0,
        labels=secret_json,
        origin=RunOrigin("key", secret),
        model="m",
        params=secret_json,
        output=secret_json,
        instructions=secret,
        tools=secret_json,
        overflow=secret_json,
    )
    end = replace(
        run, state="failed", why=secret, stop_reason=secret, calls=secret_json, code="budget", usage=Usage(calls=1)
    )
    blocks = [
        User(text=secret),
        ToolUse(call_id="1", name=secret, input={secret: secret}),
        ToolResult(call_id="1", text=secret),
    ]
    about: dict[str, Any] = {"session_id": session_id, "user_id": user_id, "at": 1.0}
    about |= {"turn_index": 0, "run_id": run.run_id}
    events: list[Event] = [
        PromptAppended(seq=1, key="event key", **about),
        ToolStarted(seq=2, call_id="1", name=secret, **about),
        RunFailed(seq=3, why=secret, code="budget", **about),
    ]
    span = Span(session.log, 0, 3)
    turn = TurnRecord(
        index=0,
        run_id=run.run_id,
        input=(span,),
        status="failed",
        metadata=secret_json,
        stop_reason=secret,
        marks=secret_json,
    )
    begun = session.committed()
    grown = begun.committed(log_size=3, seq=3, next_index=1)
    await store.commit(SessionKey(session_id, user_id), 1, Commit(session=begun, new_run=run))
    await store.commit(
        SessionKey(session_id, user_id),
        1,
        Commit(session=grown, blocks=[encode(block) for block in blocks], turns=[turn], runs=[end], events=events),
    )
    await store.add_delivery(a_delivery_with(secret, session_id, user_id))
    return grown


def a_delivery_with(secret: str, session_id: str, user_id: str, key: str = "delivery key") -> Delivery:
    about: dict[str, Any] = {"session_id": session_id, "user_id": user_id, "occurs_at": 1.0, "due_at": 1.0}
    delivery_id = f"{key} of {session_id}"
    return Delivery(delivery_id=delivery_id, key=key, payload=freeze({secret: [secret]}), why=secret, **about)


async def test_only_the_documented_fields_of_records_stay_readable() -> None:
    inner = InMemoryStore()
    store = EncryptedStore(inner, ENCRYPTION)
    await fill(store, "s", "u")
    for record, sealed in (
        (await store.get(SessionKey("s", "u")), await inner.get(SessionKey("s", "u"))),
        ((await store.turns(SessionKey("s", "u")))[0], (await inner.turns(SessionKey("s", "u")))[0]),
        (await store.run("run of s", "u"), await inner.run("run of s", "u")),
        ((await store.deliveries())[0], (await inner.deliveries())[0]),
    ):
        readable = {
            field.name for field in fields(record) if getattr(record, field.name) == getattr(sealed, field.name)
        }
        assert readable == set(READABLE[type(record)].split()), f"of {type(record).__name__}"
        assert SECRET in repr(record) and SECRET not in repr(sealed)
    for event, hidden in zip(
        await store.events(SessionKey("s", "u")), await inner.events(SessionKey("s", "u")), strict=True
    ):
        shown = hidden.model_dump(exclude={"kind", "stored_kind", "payload"})
        assert shown == event.model_dump(include=set(shown)) and event.kind not in repr(hidden)


def raw_sqlite(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


def raw_postgres(url: str) -> bytes:
    """Return all rows of all tables, as a dump has them."""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows: list[bytes] = []
        for (name,) in tables:
            with connection.cursor().copy(f'COPY "{name}" TO STDOUT'.encode()) as copy:
                rows += map(bytes, copy)
    return b"".join(rows)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_stored_data_contains_no_text_of_the_conversation(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The search finds the secret in a store that is not encrypted, so it would find it here."""
    urls = []
    for name in ("plain", "sealed"):
        (tmp_path / name).mkdir()
        urls.append(f"sqlite:///{tmp_path}/{name}/store.db")
    if kind == "postgresql":
        urls[1] = request.getfixturevalue("database")

    async def use(url: str, encryption: Encryption | None) -> bytes:
        store: Any = SQLStore(url)
        history: Any = SQLHistory(url)
        if encryption:
            store, history = EncryptedStore(store, encryption), EncryptedHistory(history, encryption)
        await fill(store, "s", "u")
        await history.append(SessionKey("s", "u"), await store.events(SessionKey("s", "u")))
        assert await history.events(SessionKey("s", "u")) == await store.events(SessionKey("s", "u"))
        raw = raw_postgres(url) if url.startswith("postgres") else raw_sqlite(Path(url[10:]).parent)
        await store.close()
        await history.close()
        return raw

    assert SECRET.encode() in asyncio.run(use(urls[0], None))
    raw = asyncio.run(use(urls[1], ENCRYPTION))
    assert b"event key" in raw and b"run of s" in raw and b"tw1:" in raw
    for text in (SECRET, SECRET.upper(), 'user":', "tool_use", "tool_started", "run_failed"):
        assert text.encode() not in raw, text
    assert key_of("u") not in raw and key_of("u").hex().encode() not in raw


# Keys


class Vault(dict[str, bytes]):
    """Keys that can be deleted, and the number of requests for them."""

    requests = 0

    def __call__(self, user_id: str) -> bytes:
        self.requests += 1
        return self[user_id]


async def test_without_a_users_key_only_that_users_data_cannot_be_read() -> None:
    """Lists still have the sessions, so that they can be deleted; a fork goes with its user's key too."""

    vault = Vault(alice=key_of("alice"), bob=key_of("bob"))
    inner = InMemoryStore()
    store = EncryptedStore(inner, Encryption(vault, cache_s=0))
    alice, bob = await fill(store, "a", "alice", "hers"), await fill(store, "b", "bob", "his")
    (turn,) = await store.turns(SessionKey("a", "alice"))
    fork = await store.create(SessionRecord(session_id="f", user_id="alice", parent="a#0"), turn)
    del vault["alice"]
    commit = Commit(session=alice.committed(), blocks=())
    calls: dict[str, Any] = {
        **{
            name: getattr(store, name)(SessionKey("a", "alice"))
            for name in ("get", "activate", "turns", "runs", "events")
        },
        "run": store.run("run of a", "alice"),
        "run_of_key": store.run_of_key(SessionKey("a", "alice"), "key"),
        "event_of_key": store.event_of_key(SessionKey("a", "alice"), "event key"),
        "blocks": store.blocks([Span(alice.log, 0, 3)]),
        "commit": store.commit(SessionKey("a", "alice"), 2, commit),
        "create": store.create(SessionRecord(session_id="new", user_id="alice")),
        "a fork's turns": store.turns(SessionKey("f", "alice")),
        "delivery": store.delivery(SessionKey("a", "alice"), "delivery key"),
        "deliveries": store.deliveries(user_id="alice"),
        "add_delivery": store.add_delivery(a_delivery_with("hers", "a", "alice", "new")),
        "bob's blocks and hers": store.blocks([Span(bob.log, 0, 1), Span(alice.log, 0, 1)]),
    }
    for verb_name, call in calls.items():
        with pytest.raises(KeyMissingError, match="'alice'") as caught:
            await call
        assert caught.value.user_id == "alice" and "hers" not in str(caught.value), verb_name
    with pytest.raises(SessionNotFoundError):
        await store.get(SessionKey("new", "alice"))
    assert (await store.get(SessionKey("b", "bob"))).metadata == {"his": ("his",)}
    assert len(await store.blocks([Span(bob.log, 0, 3)])) == 3
    assert [run.why for run in await store.runs(SessionKey("b", "bob"))] == ["his"]
    due = await store.due(2.0)
    assert ([one.why for one in due], due.unreadable) == (["his"], (SessionKey("a", "alice"),))
    (hers,) = await inner.deliveries(user_id="alice")
    await store.change_delivery(DeliveryChange(hers, None))
    listed = {session.session_id: session for session in await store.query()}
    assert set(listed) == {"a", "b", "f"} and listed["b"].metadata == {"his": ("his",)}
    assert listed["a"].metadata == (await inner.get(SessionKey("a", "alice"))).metadata and "hers" not in repr(
        listed["a"]
    )
    assert [session.session_id for session in await store.expired(1e12)] == ["a", "b"]
    assert (await store.count(user_id="alice"), (await store.unsettled()).items) == (2, ())
    for session_id in ("a", "f"):
        await store.delete(SessionKey(session_id, "alice"))
    assert (await store.query(user_id="alice")).items == () and fork.log
    vault["alice"] = key_of("alice")
    await fill(store, "a", "alice")


async def test_a_key_is_fetched_again_after_cache_s(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(encryption_keys, "time", SimpleNamespace(monotonic=lambda: now_s))

    vault = Vault(u=key_of("u"))
    store = EncryptedStore(InMemoryStore(), Encryption(vault, cache_s=60))
    await fill(store, "s", "u")
    assert vault.requests == 1
    del vault["u"]
    now_s += 59.9
    assert (await store.get(SessionKey("s", "u"))).metadata and vault.requests == 1
    now_s += 0.1
    for times in (2, 3):
        with pytest.raises(KeyMissingError):
            await store.get(SessionKey("s", "u"))
        assert vault.requests == times
    vault["u"] = key_of("u")
    assert (await store.get(SessionKey("s", "u"))).metadata and len(await store.events(SessionKey("s", "u"))) == 3


def raising(error: Exception) -> Callable[[str], bytes]:
    def key(user_id: str) -> bytes:
        raise error

    return key


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (lambda user_id: None, KeyMissingError),
        (raising(KeyError("u")), KeyMissingError),
        (raising(OSError("https://token:rosebud@keys")), StoreError),
        (lambda user_id: b"rosebud", ConfigError),
        (lambda user_id: "rosebud" * 5, ConfigError),
        (lambda user_id: key_of(user_id, "another"), WrongKeyError),
    ],
)
async def test_an_invalid_key_is_refused_and_not_shown(key: Any, error: type[Exception]) -> None:
    inner = InMemoryStore()
    await fill(EncryptedStore(inner, ENCRYPTION), "s", "u")
    with pytest.raises(error) as caught:
        await EncryptedStore(inner, Encryption(key)).get(SessionKey("s", "u"))
    assert "'u'" in str(caught.value)
    assert SECRET not in str(caught.value) + repr(caught.value) + repr(pickle.loads(pickle.dumps(caught.value)))


def test_settings_are_checked_pickle_and_do_not_show_keys() -> None:
    for key, cache_s in (("key", 1.0), (key_of, -1.0), (key_of, float("inf")), (key_of, float("nan"))):
        with pytest.raises(ConfigError):
            Encryption(key, cache_s)  # type: ignore[arg-type]
    assert SECRET not in repr(Encryption(partial(key_of, salt=SECRET)))
    assert pickle.loads(pickle.dumps(ENCRYPTION)) == ENCRYPTION


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    makes: list[Callable[[], object]] = [
        lambda: EncryptedStore(InMemoryStore(), ENCRYPTION),
        lambda: EncryptedHistory(InMemoryHistory(), ENCRYPTION),
    ]
    for make in makes:
        with pytest.raises(ConfigError, match=r"turnwise\[encryption\]"):
            make()


# What was tampered with


async def blocks_of(store: SessionStore) -> list[str]:
    return await store.blocks([Span((await store.get(SessionKey("s", "u"))).log, 0, 3)])


READS: dict[str, Callable[[SessionStore], Any]] = {
    "sessions": lambda store: store.get(SessionKey("s", "u")),
    "blocks": blocks_of,
    "turns": lambda store: store.turns(SessionKey("s", "u")),
    "runs": lambda store: store.runs(SessionKey("s", "u")),
    "events": lambda store: store.events(SessionKey("s", "u")),
}
COLUMNS = {"sessions": "metadata", "blocks": "body", "turns": "metadata", "runs": "calls", "events": "body"}
NTH_KEY = "(SELECT key FROM turnwise_sessions ORDER BY key LIMIT 1 OFFSET {0} - 1)"
PLACES = {
    "sessions": f"key = {NTH_KEY}",
    "blocks": f"log = {NTH_KEY} AND at = {{1}}",
    "turns": f"session = {NTH_KEY}",
    "runs": f"session = {NTH_KEY}",
}
PLACES["events"] = f"session = {NTH_KEY} AND seq = {{1}} + 1"


def edit(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(sql).rowcount >= 1, sql
    connection.close()


def taken_from(table: str, log: int, position: int, source_table: str = "") -> str:
    """Return SQL that copies a value from another session, numbered from 1, into the first session's row."""
    column, target = COLUMNS[table], PLACES[table].format(1, 0)
    source_table = source_table or table
    value = COLUMNS[source_table]
    if table == "blocks" != source_table:  # which stand by themselves, not in a mapping
        value = f"json_extract({value}, '$.\"{SEALED}\"')"
    source = f"(SELECT {value} FROM turnwise_{source_table} WHERE {PLACES[source_table].format(log, position)})"
    return f"UPDATE turnwise_{table} SET {column} = {source} WHERE {target}"


CHANGES: dict[str, tuple[Callable[[str], str], type[Exception]]] = {
    "of another session of the user": (lambda table: taken_from(table, 2, 0), CorruptRecordError),
    "of another user": (lambda table: taken_from(table, 3, 0), CorruptRecordError),
    "of another place": (lambda table: taken_from(table, 1, 1), CorruptRecordError),
    "of another kind": (
        lambda table: taken_from(table, 1, 0, "runs" if table != "runs" else "turns"),
        CorruptRecordError,
    ),
    "cut off": (lambda table: _set(table, "substr({}, 1, length({}) - 10) || substr({}, -2)"), CorruptRecordError),
    "of another alphabet": (lambda table: _set(table, "replace({}, 'tw1:', 'tw1:ü')"), CorruptRecordError),
    "not encrypted": (lambda table: _set(table, '\'{{"kind":"user","text":"hi"}}\''), NotEncryptedError),
}


def _set(table: str, value: str) -> str:
    return f"UPDATE turnwise_{table} SET {COLUMNS[table]} = " + value.format(*[COLUMNS[table]] * value.count("{}"))


@pytest.mark.parametrize(
    ("table", "change"),
    [(table, name) for table in COLUMNS for name in CHANGES if table in ("blocks", "events") or "place" not in name],
)
async def test_texts_that_were_changed_or_moved_in_the_file_are_refused(
    table: str, change: str, tmp_path: Path
) -> None:
    sql, expected = CHANGES[change]

    inner = SQLStore(f"sqlite:///{tmp_path}/store.db")
    store = EncryptedStore(inner, ENCRYPTION)
    for session_id, user_id in (("s", "u"), ("same user", "u"), ("other", "v")):
        await fill(store, session_id, user_id)
    await READS[table](store)
    edit(tmp_path / "store.db", sql(table))
    with pytest.raises(expected) as caught:
        await READS[table](store)
    assert SECRET not in str(caught.value)
    await store.close()


async def test_changing_the_readable_part_of_a_row_is_detected() -> None:
    """A run's state, a turn's status, an event's run or key: what is sealed belongs to what it was sealed with."""

    inner = InMemoryStore()
    store = EncryptedStore(inner, ENCRYPTION)
    await fill(store, "s", "u")
    row = inner._rows[SessionKey("s", "u")]  # noqa: SLF001 - to change it
    run, turn, event = row.runs["run of s"], row.turns[0], row.events[1]
    row.runs["run of s"] = replace(run, state="completed")
    row.turns[0] = replace(turn, status="completed")
    for changed in ({"key": "x"}, {"run_id": "x"}, {"turn_index": 9}):
        row.events[1] = event.model_copy(update=changed)
        with pytest.raises(CorruptRecordError, match="event s:1"):
            await store.events(SessionKey("s", "u"))
    with pytest.raises(CorruptRecordError, match="run of s"):
        await store.runs(SessionKey("s", "u"))
    with pytest.raises(CorruptRecordError, match="turn s#0"):
        await store.turns(SessionKey("s", "u"))


async def test_equal_texts_are_encrypted_differently_except_repeated_events() -> None:
    inner = InMemoryStore()
    store = EncryptedStore(inner, ENCRYPTION)
    session = await store.create(SessionRecord(session_id="s"))
    session = (await store.activate(SessionKey("s"))).session.committed(log_size=2)
    await store.commit(SessionKey("s"), 1, Commit(session=session, blocks=["same", "same"]))
    first = (await inner.get(SessionKey("s"))).metadata
    await store.commit(SessionKey("s"), 1, Commit(session=session.committed()))
    sealed = [
        *await inner.blocks([Span(session.log, 0, 2)]),
        str(first),
        str((await inner.get(SessionKey("s"))).metadata),
    ]
    assert len(set(sealed)) == 4


@pytest.mark.parametrize("place", [Place("b", "x", ("s", 1)), Place("a", "x", ("s", 2)), Place("a", "x", ("s",))])
async def test_a_text_can_be_decrypted_only_at_its_place(place: Place) -> None:
    ring, own_place = KeyRing(ENCRYPTION), Place("a", "x", ("s", 1))
    sealed = (await ring.of("u")).seal(own_place, "ünïcödé \0 \ud800")
    assert await Unsealing(ring).open(own_place, sealed) == "ünïcödé \0 \ud800"
    for text in (sealed.replace(":dQ==:", ":dg==:"), sealed[:-4], sealed[:30], "tw1:", "tw1:dQ==:", f"{sealed}!"):
        with pytest.raises((CorruptRecordError, WrongKeyError)):
            await Unsealing(ring).open(own_place, text)
    with pytest.raises(CorruptRecordError, match="^corrupt record b x " if place.kind == "b" else "a x"):
        await Unsealing(ring).open(place, sealed)


# Sessions


async def test_an_encrypted_session_can_be_continued_but_not_read_without_its_key() -> None:
    """A later process reads the session's turns and idempotency keys; a process without encryption refuses it."""

    inner, history = InMemoryStore(), InMemoryHistory()

    def core(session_id: str, *, sealed: bool = True) -> SessionCore:
        store = EncryptedStore(inner, ENCRYPTION) if sealed else inner
        feed = EncryptedHistory(history, ENCRYPTION) if sealed else history
        return SessionCore(SessionKey(session_id, "u"), store, ScriptedEngine(), history=feed)

    await EncryptedStore(inner, ENCRYPTION).create(SessionRecord(session_id="s", user_id="u"))
    first = core("s")
    await first.admission.start(["rosebud"], run_id="r", idempotency_key="k")
    await first.reads.wait("r")
    await first.forking.fork(None, "fork")
    assert await first.ownership.leave()
    later = core("s")
    assert (await later.admission.start(["rosebud"], run_id="r2", idempotency_key="k")).run_id == "r"
    with pytest.raises(IdempotencyConflictError):
        await later.admission.start(["other"], run_id="r3", idempotency_key="k")
    assert [event.kind for event in (await later.reads.events())[0]] == ["run_started", "run_completed"]
    fork = await core("fork").reads.latest()
    assert fork and fork.text == "rosebud"
    assert await later.ownership.leave()
    for session_id in ("s", "fork"):
        with pytest.raises(StillEncryptedError, match=f"session {session_id} "):
            await core(session_id, sealed=False).reads.latest()
    assert SECRET.encode() not in pickle.dumps(inner) + pickle.dumps(history)
    assert b"run_started" not in pickle.dumps(history) and await history.last_seq(SessionKey("s", "u"))


def test_managers_keep_sessions_encrypted_until_their_users_key_is_deleted(
    ray_session: ModuleType, make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    """Through real processes, with a history of its own; without the key a user can be forgotten, not read."""
    keys = KeyFiles(tmp_path / "keys")
    keys.make("alice", "bob")
    (tmp_path / "data").mkdir()
    place: dict[str, Any] = {
        "store": f"sqlite:///{tmp_path}/data/chats.db",
        "history_store": f"sqlite:///{tmp_path}/data/events.db",
    }
    place["placement"] = Packed(hosts=1)
    manager = make_ray_manager(**place, encryption=Encryption(keys, cache_s=0))
    chats = {user: manager.open(f"of {user}", user_id=user, metadata={"topic": SECRET}) for user in ("alice", "bob")}
    runs = {user: chat.run(f"{SECRET} of {user}", labels={"a": SECRET}) for user, chat in chats.items()}
    for user, run in runs.items():
        assert run.wait().text == f"{SECRET} of {user}"
        assert chats[user].runs()[0].labels == {"a": SECRET}
    with pytest.raises(KeyMissingError):
        manager.open("new", user_id="nobody")
    plain = make_ray_manager(**place)
    asks: list[Callable[[], object]] = [
        plain.list,
        *(partial(verb, "of bob", user_id="bob") for verb in (plain.get, plain.open)),
    ]
    for ask in asks:
        with pytest.raises(StillEncryptedError):
            ask()
    keys.delete("alice")
    asks = [
        partial(manager.get, "of alice", user_id="alice"),
        partial(manager.open, "of alice", user_id="alice"),
        partial(manager.execution, runs["alice"].run_id, user_id="alice"),
        partial(chats["alice"].run, "more"),
        chats["alice"].turns,
    ]
    for ask in asks:
        with pytest.raises(KeyMissingError, match="'alice'"):
            ask()
    # Other callers see no session, as before.
    with pytest.raises(SessionNotFoundError):
        manager.get("of alice", user_id="bob")
    with pytest.raises(RunNotFoundError):
        manager.execution(runs["alice"].run_id, user_id="bob")
    assert manager.open("of alice", user_id="bob").latest() is None
    manager.get("of alice", user_id="bob").delete()
    assert chats["bob"].turn(0).text == f"{SECRET} of bob"
    assert [session.session_id for session in manager.list(user_id="alice")] == ["of alice"]
    assert manager.forget("alice").sessions == 1
    assert manager.count(user_id="alice") == 0 and manager.count(user_id="bob") == 1
    chats["bob"].run("again").wait()
    assert SECRET.encode() not in raw_sqlite(tmp_path / "data")


def test_a_manager_refuses_an_invalid_encryption(make_ray_manager: Callable[..., SessionManager]) -> None:
    import threading

    lock = threading.Lock()
    for invalid in (key_of, Encryption(lambda user_id: repr(lock).encode())):
        with pytest.raises(ConfigError, match="encryption"):
            make_ray_manager(encryption=invalid)


def test_errors_of_encryption_are_store_errors() -> None:
    """So whoever handles a store that fails handles these."""
    assert issubclass(EncryptionError, StoreError)
