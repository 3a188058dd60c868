"""What the laws of stores use: records that are hard to store, an owner of a session, and the state of a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.branches import Branch
from turnwise.memory.conversation.events import AnyEvent, PromptAppended
from turnwise.memory.conversation.ledger import COLUMNS, LedgerQuery, LedgerRow
from turnwise.memory.conversation.runs import RunOrigin, RunRecord, RunState
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.deliveries.schedules import Schedule
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.conformance.laws import equal
from turnwise.memory.values.frozen_json import FrozenDict, freeze

TEXT = "NUL \0, tab\t, line\r\n\u2028, 'single' \"double\" \\ %s %(x)s $1 ?1 :x {} ünïcödé e\u0301 文字 🦀 \U0010ffff"
"""Text with characters that stores are known to get wrong."""

USAGE = Usage(
    input_tokens=1,
    output_tokens=2**40,
    cached_tokens=3,
    reasoning_tokens=4,
    calls=5,
    tool_calls=6,
    seconds=1234.567891,
    cost=0.000123456789,
)

NESTED: FrozenDict = freeze({"": "", TEXT: [{"a": [1, -2.5, 1e300, True, None, [], {}, TEXT]}, 2**53]})

IDS = (
    *("user-1", "user-10", "user_1", "user.1", "user%", "user-%", "user-?", "user-*", "User-1", " user-1", "user-1 "),
    *("%", "_", "'", '"', "''", "\\", "\\'", "user\\-1", "user'-1", "'; DROP TABLE turnwise_sessions; --", "0", "00"),
    *("e\u0301", "é", "ß", "ss", "I", "i", "\u0131", "İ", "文字", "🦀" * 192, "null", "None"),
)
"""Different ids, some of which databases are known to confuse."""


def a_session(session_id: str = "s", user_id: str = DEFAULT_USER, **values: Any) -> SessionRecord:
    return SessionRecord(session_id=session_id, user_id=user_id, **values)


def a_turn(index: int, **values: Any) -> TurnRecord:
    return TurnRecord(index=index, **{"created_at": 1.5, **values})


def a_run(run_id: str, index: int, state: RunState = "running", **values: Any) -> RunRecord:
    values = {"first_seq": 1, "created_at": 1.5, "session_id": "s", **values}
    if (key := values.pop("idempotency_key", None)) is not None:
        values["origin"] = RunOrigin(key, "f" * 64)
    return RunRecord(run_id=run_id, turn_index=index, state=state, **values)


def an_event(seq: int, key: str | None = None, session_id: str = "s", **values: Any) -> AnyEvent:
    return PromptAppended(session_id=session_id, seq=seq, at=1.5, key=key, **values)


def a_delivery(key: str, due_at: float | None = 10.0, **values: Any) -> Delivery:
    """Return a delivery of session `s`, whose id sorts like its key."""
    delivery_id = f"{values.get('session_id', 's')}/{values.get('user_id', DEFAULT_USER)}/{key}"
    defaults = {"delivery_id": delivery_id, "session_id": "s", "occurs_at": due_at or 0.0, "created_at": 1.5}
    return Delivery(key=key, due_at=due_at, **{**defaults, **values})


FULL_DELIVERY = a_delivery(
    "full ü%'",
    due_at=1763700000.1234567,
    namespace="space ü%'",
    engine_id="engine",
    kind="message",
    payload=NESTED,
    occurs_at=0.1 + 0.2,
    schedule=Schedule(cron="0 9 * * MON-FRI", timezone="Europe/Lisbon", until=1763700000.25),
    missed="run_all",
    if_busy="inject",
    created_at=1763700000.5,
    attempts=3,
    why=TEXT,
)
"""A delivery with a value in each field, but `to_session`."""

ADDRESSED_DELIVERY = replace(
    FULL_DELIVERY, key="addressed", delivery_id="addressed ü", to_session="t ü%'", schedule=None
)
"""A delivery to another session, with a value in each field that it may have."""


class Owner:
    """Commits to a session as its owner does: under its epoch, and from the row of its last commit."""

    def __init__(self, store: SessionStore, session: SessionRecord) -> None:
        self.store = store
        self.session = session

    def prepare(self, *texts: str, **parts: Any) -> Commit:
        """Return a commit that appends the texts as blocks."""
        session = self.session
        counters = {"log_size": session.log_size + len(texts), "revision": session.revision + 1}
        return Commit(session=replace(parts.pop("session", session), **counters), blocks=texts, **parts)

    async def commit(self, *texts: str, **parts: Any) -> Span:
        """Append the texts as blocks and return their positions."""
        commit = self.prepare(*texts, **parts)
        await self.store.commit(self.session.key, self.session.epoch, commit)
        self.session, size = commit.session, self.session.log_size
        return Span(self.session.log, size, size + len(texts))


async def own(store: SessionStore, session_id: str = "s", turn: TurnRecord | None = None, **values: Any) -> Owner:
    """Create and activate a session; return its owner."""
    session = await store.create(a_session(session_id, **values), turn)
    return Owner(store, (await store.activate(session.key)).session)


async def held(store: SessionStore, span: Span) -> list[str]:
    """Return the blocks of a span, with `missing` for each that the store does not have."""
    blocks: list[str] = []
    for position in range(span.start, span.stop):
        try:
            blocks += await store.blocks([Span(span.log, position, position + 1)])
        except CorruptRecordError:
            blocks.append("missing")
    return blocks


async def state_of(store: SessionStore, session: str | SessionKey) -> list[object]:
    """Return everything that the store has of a session, and of the positions of its next two blocks.

    Args:
        session: its key, or the id of a session of the default user.
    """
    key = SessionKey(session) if isinstance(session, str) else session
    record = await store.get(key)
    log = await held(store, Span(record.log, 0, record.log_size + 2))
    lists = [
        await store.turns(key),
        await store.runs(key),
        await store.events(key),
        await store.deliveries(user_id=key.user_id, session_id=key.session_id),
    ]
    ledger = await store.ledger(LedgerQuery(user_id=key.user_id, by=tuple(COLUMNS)))
    return [record, log, *lists, [row for row in ledger if row.session_id == key.session_id]]


@asynccontextmanager
async def unchanged(store: SessionStore, *sessions: str | SessionKey) -> AsyncIterator[None]:
    """Check that the block of code changes nothing in these sessions."""
    before = [await state_of(store, session) for session in sessions]
    yield
    for session, state in zip(sessions, before, strict=True):
        equal(await state_of(store, session), state, f"session {session!r} after a refused call")


async def eventful(store: SessionStore) -> Owner:
    """Return the owner of a session that has blocks, turns, a run, events and deliveries."""
    owner = await own(store)
    run, turns = a_run("r0", 0, idempotency_key="k0"), [a_turn(0, status="running"), a_turn(1)]
    await owner.commit("a", "b", turns=turns, new_run=run)
    session = replace(owner.session, seq=3, next_index=2, usage=Usage(calls=1))
    deliveries = [DeliveryChange(None, a_delivery(key)) for key in ("d1", "d2", "d3")]
    await owner.commit(events=[an_event(1, "e1"), an_event(2), an_event(3)], session=session, deliveries=deliveries)
    return owner


def of_everything(owner: Owner, run_id: str = "r9", idempotency_key: str = "k9", event_key: str = "e9") -> Commit:
    """Return a commit that changes every part of the session of `eventful`."""
    changed = {"status": "ended", "metadata": NESTED, "updated_at": 9.0, "next_index": 10, "seq": 9, "usage": USAGE}
    changed |= {
        "agents_usage": USAGE,
        "memory": "off",
        "saved": 9,
        "marks": 3,
        "ttl_s": 2.5,
        "model": "m",
        "engine": "e",
        "namespace": "n ü%'",
        "branches": (Branch(6, 3), Branch(9, 6)),
        "params": NESTED,
        "title": "t'%\"\0ü",
        "members": freeze({"ü%'": "reader", "n": "owner"}),
    }
    return owner.prepare(
        *("c", "d"),
        session=replace(owner.session, **changed),  # type: ignore[arg-type]
        turns=[a_turn(0, status="completed"), a_turn(9)],
        dropped_turns=[1],
        new_run=a_run(run_id, 9, idempotency_key=idempotency_key),
        runs=[a_run("r0", 0, "completed", idempotency_key="k0", ended_at=9.0, usage=USAGE, resumes=1)],
        forget_events=2,
        events=[an_event(8), an_event(9, event_key)],
        deliveries=[
            DeliveryChange(None, FULL_DELIVERY),
            DeliveryChange(a_delivery("d1"), a_delivery("d1", 20.0, revision=2, attempts=1, why=TEXT)),
            DeliveryChange(a_delivery("d2"), None),
        ],
        spent=[
            LedgerRow(
                day="2026-11-29", kind="run", model="m", tool="", tenant="", engine="e", runs=1, usage=Usage(calls=9)
            )
        ],
        joined=["ü%'", "n"],
    )


def state_after(commit: Commit) -> list[object]:
    """Return the state of the session after a commit of `of_everything`."""
    blocks = ["a", "b", "c", "d", "missing", "missing"]
    events = [an_event(1, "e1"), an_event(3), *commit.events]
    deliveries = [commit.deliveries[1].after, a_delivery("d3"), FULL_DELIVERY]
    key = commit.session.key
    spent = [replace(row, **key._asdict(), agent=commit.session.agent or "") for row in commit.spent]
    return [commit.session, blocks, list(commit.turns), [commit.runs[0], commit.new_run], events, deliveries, spent]
