"""Stored events on their way to a caller: the session's process passes rows on, and the caller decodes them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from engines import ScriptedEngine
from turnwise import __version__
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.verb_declaration import Reader
from turnwise.actors.hosting.wire import PackedEvents
from turnwise.actors.session.core import SessionCore
from turnwise.actors.wire_version import packed, unpacked_answer
from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.events import Event, EventRow
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.sql.store import SQLStore

KEY = SessionKey("chat", "ada")


def a_store(kind: str, folder: Path) -> SessionStore:
    store = SQLStore(f"sqlite:///{folder}/chats.db")
    encryption = Encryption(lambda user_id: user_id.encode().ljust(32, b"."))
    return EncryptedStore(store, encryption) if kind == "encrypted" else store


async def talk(store: SessionStore) -> None:
    """Have runs that end, one that was merged into another, and a prompt that waits."""
    await store.create(SessionRecord(session_id=KEY.session_id, user_id=KEY.user_id))
    core = SessionCore(KEY, store, ScriptedEngine())
    await core.admission.start(["slow 20"], run_id="active", labels={"about": "trains"})
    await core.admission.start(["one"], run_id="one", if_busy="enqueue")
    await core.admission.start(["two"], run_id="two", if_busy="merge")
    await core.reads.wait("one")
    await core.admission.append(["later"], "key")
    await core.ownership.leave()


async def passed(core: SessionCore, limit: int, run_id: str | None = None) -> tuple[list[Event], int]:
    """Return all events as a caller gets them over the wire, and how many of them came as rows."""
    events: list[Event] = []
    after = rows = 0
    while True:
        call = verbs.events(0.0, after, limit, run_id=run_id, decoder=__version__)
        page, after, is_all = unpacked_answer(packed(await call.read(Reader(core.reads)))).answer
        if isinstance(page, PackedEvents):
            rows += page.count
            page = page.unpack()
        events += page
        if is_all or not page:
            return events, rows


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
async def test_a_caller_gets_the_events_that_the_process_would_have_decoded(kind: str, tmp_path: Path) -> None:
    store = a_store(kind, tmp_path)
    await talk(store)
    core = SessionCore(KEY, store, ScriptedEngine())
    await core.reads.session()
    for run_id in (None, "active", "one", "two"):
        expected = (await core.reads.events(run_id=run_id))[0]
        assert any(getattr(event, "blocks", ()) for event in expected)
        for limit in (1, 3, 100):
            assert await passed(core, limit, run_id) == (expected, len(expected)), (run_id, limit)
    await core.ownership.leave()
    await store.close()


async def test_rows_come_before_the_events_that_are_in_memory(tmp_path: Path) -> None:
    store = a_store("plain", tmp_path)
    await talk(store)
    core = SessionCore(KEY, store, ScriptedEngine())
    stored = (await core.reads.events())[0]
    await core.admission.start(["three"], run_id="three")
    await core.reads.wait("three")
    events, rows = await passed(core, 100)
    assert rows == len(stored) and events[:rows] == stored
    assert events == (await core.reads.events())[0]
    assert {event.run_id for event in events[rows:]} == {"three"}
    await core.ownership.leave()
    await store.close()


async def test_a_caller_of_another_release_gets_models(tmp_path: Path) -> None:
    """Its version of a class may have other fields, which are fitted when the models are unpickled."""
    store = a_store("plain", tmp_path)
    await talk(store)
    core = SessionCore(KEY, store, ScriptedEngine())
    for decoder in ("", "0.0.9"):
        page, _, _ = (await verbs.events(0.0, 0, 100, decoder=decoder).read(Reader(core.reads))).answer
        assert page == (await core.reads.events())[0]
    await core.ownership.leave()
    await store.close()


@pytest.mark.parametrize(
    "body", ["{", "null", "[]", '{"span":[1]}', '{"span":["0","1"],"x":1}', '{"seq":4}', '{"usage":{"x":1}}']
)
async def test_an_event_that_cannot_be_read_is_named_wherever_it_is_decoded(body: str, tmp_path: Path) -> None:
    store = a_store("plain", tmp_path)
    await talk(store)
    with closing(sqlite3.connect(tmp_path / "chats.db")) as connection, connection:
        (seq,) = connection.execute("SELECT min(seq) FROM turnwise_events WHERE kind = 'run_completed'").fetchone()
        connection.execute("UPDATE turnwise_events SET body = ? WHERE seq = ?", (body, seq))
    core = SessionCore(KEY, store, ScriptedEngine())
    with pytest.raises(CorruptRecordError, match=f"^corrupt record event chat:{seq} in the store: "):
        await passed(core, 100)
    await core.ownership.leave()
    await store.close()


def test_a_row_has_the_names_that_readers_ask_an_event_for() -> None:
    row = EventRow(4, 1.5, 0, "r", None, "run_cancelled", '{"why":"merged","code":"merged","successor":"next"}')
    assert row.terminal and row.leads_to == "next"
    assert row._replace(body='{"why":"enough"}').leads_to is None
    assert not row._replace(kind="tool_started").terminal and not row._replace(kind="hologram").terminal
