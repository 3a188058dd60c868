"""The laws of `SessionStore`: what every store holds to, shown on one that is empty at first. Needs no test framework.

`await check_contract(make_store)` runs them all; `LAWS`, with `check_law` of `memory/laws.py`, is for those who would
run each as a test of its own.
"""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar, get_args

from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    DuplicateKeyError,
    RunNotFoundError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreClosedError,
    StoreError,
)
from turnwise.memory.blocks import Text, User, encode
from turnwise.memory.events import KINDS, Appending, Event, PromptAppended, UnknownEvent
from turnwise.memory.frozen import FrozenDict, freeze
from turnwise.memory.laws import Law, check_law, collector, equal, refuses
from turnwise.memory.runs import RunRecord, RunState
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.spans import Span, Spans, join
from turnwise.memory.store import Commit, SessionOrder, SessionStore
from turnwise.memory.turns import TurnRecord, TurnStatus
from turnwise.memory.usage import Usage

Item = TypeVar("Item")


async def check_contract(make_store: Callable[[str], SessionStore]) -> None:
    """Check all laws, in order.

    Args:
        make_store: opens a store on the data of this name: nothing at first, the same for the same name. A store that
            cannot be opened twice may be returned again.

    Raises:
        AssertionError: the store breaks a law; names it.
    """
    for law in LAWS:
        await check_law(law, functools.partial(make_store, law.__name__))


_laws: list[Law] = []
_law = collector(_laws)


# What records are filled with

TEXT = "NUL \0, tab\t, line\r\n\u2028, 'single' \"double\" \\ %s %(x)s $1 ?1 :x {} ünïcödé e\u0301 文字 🦀 \U0010ffff"
"""Has what stores are known to stumble over."""

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
    *("e\u0301", "é", "ß", "ss", "I", "i", "\u0131", "İ", "文字", "🦀" * 256, "null", "None"),
)
"""Each is another id, whatever a database makes of it."""


def _session(session_id: str = "s", **values: Any) -> SessionRecord:
    return SessionRecord(session_id=session_id, **values)


def _turn(index: int, **values: Any) -> TurnRecord:
    return TurnRecord(index=index, **{"created_at": 1.5, **values})


def _run(run_id: str, index: int, state: RunState = "running", **values: Any) -> RunRecord:
    values = {"first_seq": 1, "created_at": 1.5, "session_id": "s", **values}
    return RunRecord(run_id=run_id, turn_index=index, state=state, **values)


def _event(seq: int, key: str | None = None, session_id: str = "s") -> Event:
    return PromptAppended(session_id=session_id, seq=seq, at=1.5, key=key)


class _Owner:
    """Commits to a session as its owner does: under its epoch, from the row of its last commit on."""

    def __init__(self, store: SessionStore, session: SessionRecord) -> None:
        self.store = store
        self.session = session

    def prepare(self, *texts: str, **parts: Any) -> Commit:
        """Return a commit that appends the texts as blocks."""
        session = replace(parts.pop("session", self.session), log_size=self.session.log_size + len(texts))
        return Commit(session=session, blocks=texts, **parts)

    async def commit(self, *texts: str, **parts: Any) -> Span:
        """Append the texts as blocks and return where they are."""
        commit = self.prepare(*texts, **parts)
        await self.store.commit(self.session.session_id, self.session.epoch, commit)
        self.session, size = commit.session, self.session.log_size
        return Span(self.session.log, size, size + len(texts))


async def _own(store: SessionStore, session_id: str = "s", turn: TurnRecord | None = None, **values: Any) -> _Owner:
    """Create a session and activate it."""
    await store.create(_session(session_id, **values), turn)
    return _Owner(store, (await store.activate(session_id)).session)


# How laws are put


async def _held(store: SessionStore, span: Span) -> list[str]:
    """Return the blocks of a span, one by one, and where there is none, that it is missing."""
    found: list[str] = []
    for at in range(span.start, span.stop):
        try:
            found += await store.blocks([Span(span.log, at, at + 1)])
        except CorruptRecordError:
            found.append("missing")
    return found


async def _state(store: SessionStore, session_id: str) -> list[object]:
    """Return all that the store holds of a session, and of the places that its next blocks would take."""
    session = await store.get(session_id)
    log = await _held(store, Span(session.log, 0, session.log_size + 2))
    lists = [await store.turns(session_id), await store.runs(session_id), await store.events(session_id)]
    return [session, log, *lists]


@asynccontextmanager
async def _unchanged(store: SessionStore, *session_ids: str) -> AsyncIterator[None]:
    before = [await _state(store, session_id) for session_id in session_ids]
    yield
    for session_id, state in zip(session_ids, before, strict=True):
        equal(await _state(store, session_id), state, f"session {session_id!r} after a verb that was refused")


# Sessions


@_law
async def check_a_session_comes_back_as_it_was_created(store: SessionStore) -> None:
    """`create` and `get` return every field as given, and a log that is the session's own."""
    times: dict[str, Any] = {"created_at": 1763700000.123456, "updated_at": 0.1 + 0.2}
    owner = {"user_id": "ü'%\"\\", "agent": "a", "parent": "p#3"}
    full = _session(metadata=NESTED, status="ended", next_index=4, usage=USAGE, **times, **owner)
    logs = set()
    for given in (full, _session("default")):
        created = await store.create(given)
        equal(created, replace(given, log=created.log), "what create returned")
        equal(await store.get(given.session_id), created, "what get returned")
        logs.add(created.log)
    equal(len(logs), 2, "logs of two sessions")


@_law
async def check_an_id_is_taken_once(store: SessionStore) -> None:
    """Creating a session again is refused and changes nothing; acceptance 44."""
    owner = await _own(store, user_id="first")
    await owner.commit("block", turns=[_turn(0)], new_run=_run("r", 0), events=[_event(1)])
    for turn in (None, _turn(5)):
        async with _unchanged(store, "s"):
            error = await refuses(SessionExistsError, store.create(_session(user_id="second"), turn), "a taken id")
            equal(error.session_id, "s", "the id in the error")


@_law
async def check_what_is_not_there_is_refused_by_name(store: SessionStore) -> None:
    """Verbs of a missing session or run name it; a commit to one is fenced; acceptance 44."""
    owner = await _own(store, "user-1")
    await owner.commit("block", new_run=_run("run-1", 0, session_id="user-1"))
    for missing in ("user-10", "user-", "user_1", "USER-1", "%"):
        for name in ("get", "activate", "turns", "runs", "events", "delete"):
            error = await refuses(SessionNotFoundError, getattr(store, name)(missing), f"{name} of {missing!r}")
            equal(error.session_id, missing, f"the id in the error of {name}")
        for verb in (store.run_of_key, store.event_of_key):
            await refuses(SessionNotFoundError, verb(missing, "key"), f"{verb.__name__} of {missing!r}")
        await refuses(SessionNotFoundError, store.delete(missing, epoch=0), f"delete of {missing!r}")
        commit = Commit(session=_session(missing), blocks=())
        await refuses(SessionFencedError, store.commit(missing, 0, commit), f"commit to {missing!r}")
    for missing in ("run-10", "run-", "RUN-1", "run_1", "%"):
        found = await refuses(RunNotFoundError, store.run(missing), f"run {missing!r}")
        equal(found.run_id, missing, "the id in the error of run")
    equal(await store.run_of_key("user-1", "key"), None, "a run of no key")
    equal(await store.event_of_key("user-1", "key"), None, "an event of no key")
    equal(await store.count(), 1, "sessions")


# Pages


async def _check_pages(
    list_: Callable[..., Awaitable[list[Item]]], given: Sequence[Item], number: Callable[[Item], int], before: int
) -> None:
    equal(await list_("s"), given, "all, by number")
    for after in sorted({before, *map(number, given), *(number(item) + 1 for item in given)}):
        behind = [item for item in given if number(item) > after]
        for limit in range(1, len(given) + 2):
            found = await list_("s", after=after, limit=limit)
            equal(found, behind[:limit], f"up to {limit} with a number above {after}")
    for limit in (0, -1):
        await refuses(ConfigError, list_("s", limit=limit), f"a limit of {limit}")


@_law
async def check_turns_come_in_pages(store: SessionStore) -> None:
    """By index, strictly above `after`, up to `limit`, 100 if not said; acceptance 30 and 44."""
    owner = await _own(store)
    turns = [_turn(index) for index in (0, 2, 3, 10, 11)]
    await owner.commit(turns=[turns[4], turns[0], turns[2]])
    await owner.commit(turns=[turns[3], turns[1]])
    await _check_pages(store.turns, turns, lambda turn: turn.index, -1)
    await owner.commit(turns=[_turn(index) for index in range(100, 200)])
    equal(len(await store.turns("s")), 100, "turns of a page by default")


@_law
async def check_runs_come_in_pages(store: SessionStore) -> None:
    """By turn index, strictly above `after`, up to `limit`; acceptance 30 and 44."""
    owner = await _own(store)
    runs = [_run(run_id, index) for run_id, index in zip("edcba", (0, 2, 3, 10, 11), strict=True)]
    for at in (3, 0, 4, 1, 2):
        await owner.commit(new_run=runs[at])
    await _check_pages(store.runs, runs, lambda run: run.turn_index, -1)


@_law
async def check_events_come_in_pages(store: SessionStore) -> None:
    """By number, strictly above `after`, up to `limit`, 1000 if not said; acceptance 30 and 44."""
    owner = await _own(store)
    events = [_event(seq) for seq in (1, 2, 9, 10, 10_000_001)]
    await owner.commit(events=events[:2])
    await owner.commit(events=events[2:])
    await _check_pages(store.events, events, lambda event: event.seq, 0)
    await owner.commit(events=[_event(20_000_000 + seq) for seq in range(1000)])
    equal(len(await store.events("s")), 1000, "events of a page by default")


# Queries


async def _listed(store: SessionStore, limit: int = 100, **query: Any) -> list[str]:
    """Return the ids of all pages; each but the last is full, and only the last has no cursor."""
    ids: list[str] = []
    cursor = None
    while True:
        page = await store.query(cursor=cursor, limit=limit, **query)
        ids += [session.session_id for session in page]
        equal(len(set(ids)), len(ids), f"how many sessions of {ids} are there once")
        if page.cursor is None:
            return ids
        equal(len(page), limit, "sessions of a page that has a cursor")
        cursor = page.cursor


@_law
async def check_sessions_are_listed_newest_first(store: SessionStore) -> None:
    """Equal times by creation; pages leave none out and give none twice; acceptance 30 and 45."""
    equal(await _listed(store), [], "no sessions")
    for name, created_at, updated_at in [
        *(("a", 5.0, 1.0), ("b", 0.1 + 0.2, 7.0), ("c", 5.0, 7.0), ("d", 5.0, 7.0)),
        *(("e", 1763700000.1234567, 2.0), ("f", 1763700000.1234565, 7.0), ("g", 0.0, 0.0), ("h", 5.0, 7.0)),
    ]:
        await store.create(_session(name, created_at=created_at, updated_at=updated_at))
    orders: dict[SessionOrder, str] = {"created_at": "efhdcabg", "updated_at": "hfdcbeag"}
    equal(await _listed(store), list(orders["created_at"]), "the order if none is said")
    for order_by, order in orders.items():
        for limit in range(1, 10):
            found = await _listed(store, limit, order_by=order_by)
            equal(found, list(order), f"all by {order_by} in pages of {limit}")
    page = await store.query(limit=3)
    await store.create(_session("newer", created_at=2e9))
    await store.delete("h")
    found = [session.session_id for session in await store.query(cursor=page.cursor)]
    equal(found, list("dcabg"), "the pages behind a cursor, when sessions came and went")
    for limit in (0, -1):
        await refuses(ConfigError, store.query(limit=limit), f"a limit of {limit}")


@_law
async def check_a_commit_moves_its_session_in_the_order_of_updates(store: SessionStore) -> None:
    """`updated_at` is that of the last commit."""
    owner = await _own(store, "old", updated_at=1.0)
    await store.create(_session("new", updated_at=2.0))
    await owner.commit(session=replace(owner.session, updated_at=3.0))
    equal(await _listed(store, order_by="updated_at"), ["old", "new"], "sessions by update")


async def _check_query(store: SessionStore, expected: Sequence[str], **filters: Any) -> None:
    equal(await _listed(store, **filters), expected, f"sessions of {filters}")
    equal(await store.count(**filters), len(expected), f"count of {filters}")


@_law
async def check_filters_are_literal(store: SessionStore) -> None:
    """An id matches itself only, and filters must all match; acceptance 46."""
    for name in IDS:
        await store.create(_session(name, user_id=name, agent=name))
    for name in IDS:
        equal((await store.get(name)).session_id, name, "the session of this id")
        await _check_query(store, [name], user_id=name)
        await _check_query(store, [name], agent=name)
        await _check_query(store, [name], user_id=name, agent=name, status="active")
    await _check_query(store, [], user_id="user")
    await _check_query(store, [], user_id="")
    await _check_query(store, [], user_id="user-1", agent="user-10")
    await _check_query(store, [], status="ended")
    owner = _Owner(store, (await store.activate("user-1")).session)
    await owner.commit(session=replace(owner.session, status="ended"))
    await _check_query(store, ["user-1"], status="ended")
    await _check_query(store, ["user-1"], status="ended", user_id="user-1")
    await _check_query(store, [], status="active", user_id="user-1")
    await _check_query(store, [name for name in reversed(IDS) if name != "user-1"], status="active")


@_law
async def check_usage_is_summed_up(store: SessionStore) -> None:
    """Over the sessions of a user, of an agent, of both, or over all; an id matches itself only."""

    async def check(expected: Usage, **filters: Any) -> None:
        equal(repr(await store.usage(**filters)), repr(expected), f"usage of {filters}")

    await check(Usage())
    for at, name in enumerate(IDS):
        for agent, calls in ((name, 1000**2), ("agent", 1000)):
            values = {"user_id": name, "agent": agent, "usage": Usage(calls=calls * at)}
            await store.create(_session(f"{name} {agent}", **values))
    for at, name in enumerate(IDS):
        await check(Usage(calls=1001000 * at), user_id=name)
        await check(Usage(calls=1000000 * at), agent=name)
        await check(Usage(calls=1000 * at), user_id=name, agent="agent")
    await check(Usage(calls=1000 * sum(range(len(IDS)))), agent="agent")
    await check(Usage(calls=1001000 * sum(range(len(IDS)))))
    for filters in ({"user_id": "user"}, {"user_id": ""}, {"agent": ""}, {"user_id": "user-1", "agent": "user-10"}):
        await check(Usage(), **filters)


@_law
async def check_a_session_keeps_what_it_has_spent(store: SessionStore) -> None:
    """As of its last commit, in every unit; what a deleted one spent goes with it."""
    first, second = await _own(store, "first"), await _own(store, "second", user_id="u", usage=Usage(calls=1))
    spent = replace(USAGE, seconds=0.25, cost=2.0**-40)
    for at in (1, 2):
        await first.commit(session=replace(first.session, usage=first.session.usage + spent))
        await second.commit()
        equal(await store.get("first"), first.session, f"the session after commit {at}")
        equal((await store.query()).items[1].usage, first.session.usage, "its usage in a list")
    equal(repr(await store.usage()), repr(spent + spent + Usage(calls=1)), "usage of all")
    equal((await store.activate("first")).session.usage, spent + spent, "usage after an activation")
    old = replace(first.session, usage=Usage())
    await refuses(SessionFencedError, store.commit("first", 1, Commit(session=old)), "a stale owner")
    equal(await store.usage(user_id="default"), spent + spent, "usage when a stale owner was refused")
    await store.delete("first")
    equal(repr(await store.usage()), repr(Usage(calls=1)), "usage when a session is deleted")


@_law
async def check_a_broken_cursor_is_refused(store: SessionStore) -> None:
    """As ConfigError, whatever it is."""
    for name in "abc":
        await store.create(_session(name))
    good = (await store.query(limit=1)).cursor or ""
    broken = ["", "x", ":", "1.0:", ":1", "nan:1", "inf:1", "1.0:1.5", "1.0:" + "9" * 30, "\0", "'"]
    for cursor in (*broken, good + "x", "x" + good):
        await refuses(ConfigError, store.query(cursor=cursor), f"cursor {cursor!r}")


# Owners and commits


@_law
async def check_an_activation_returns_where_the_session_stands(store: SessionStore) -> None:
    """The raised epoch, the last turn that has ended, and what is open, in order."""
    await store.create(_session())
    found = await store.activate("s")
    equal(found.session.epoch, 1, "the epoch of the first activation")
    equal((found.head, found.open_turns, found.open_runs), (None, (), ()), "what an empty session has")
    owner = _Owner(store, found.session)
    states: list[RunState] = ["awaiting_approval", "running", "queued"]
    statuses: list[TurnStatus] = ["completed", "failed", "running", "running", "queued", "pending"]
    turns = [_turn(index, status=status) for index, status in enumerate(statuses)]
    runs = [_run(f"r{9 - index}", index, state) for index, state in enumerate(states, 2)]
    for run in (_run("done", 0, "completed"), _run("bad", 1, "failed"), runs[2], runs[0], runs[1]):
        await owner.commit(new_run=run)
    await owner.commit(turns=reversed(turns))
    found = await store.activate("s")
    equal(found.session, replace(owner.session, epoch=2), "the session of the second activation")
    equal(await store.get("s"), found.session, "the session after it")
    equal(found.head, turns[1], "the last turn that has ended")
    equal(found.open_turns, tuple(turns[2:]), "open turns")
    equal(found.open_runs, tuple(runs), "open runs")
    for ended in ("completed", "cancelled", "failed", "interrupted"):
        owner = _Owner(store, found.session)
        await owner.commit(turns=[_turn(9, status=ended)], runs=[replace(runs[0], state=ended)])
        found = await store.activate("s")
        equal((found.head, found.open_runs), (_turn(9, status=ended), tuple(runs[1:])), f"where {ended} leaves it")


@_law
async def check_epochs_count_up_by_one(store: SessionStore, other: SessionStore) -> None:
    """However many activate at once, and only by activations."""
    await store.create(_session())
    found = await asyncio.gather(*((store, other)[at % 2].activate("s") for at in range(10)))
    epochs = sorted(activation.session.epoch for activation in found)
    equal(epochs, list(range(1, 11)), "epochs of ten activations")
    last = _Owner(store, replace(found[0].session, epoch=10))
    await store.commit("s", 10, last.prepare(session=replace(last.session, epoch=7)))
    equal((await store.get("s")).epoch, 10, "the epoch after a commit")


async def _eventful(store: SessionStore) -> _Owner:
    """Return the owner of a session that has something of everything."""
    owner = await _own(store)
    run, turns = _run("r0", 0, idempotency_key="k0"), [_turn(0, status="running"), _turn(1)]
    await owner.commit("a", "b", turns=turns, new_run=run)
    session = replace(owner.session, seq=3, next_index=2, usage=Usage(calls=1))
    await owner.commit(events=[_event(1, "e1"), _event(2), _event(3)], session=session)
    return owner


def _of_everything(owner: _Owner, run_id: str = "r9", idempotency_key: str = "k9", event_key: str = "e9") -> Commit:
    """Return a commit that changes all there is of `_eventful`."""
    changed = {"status": "ended", "metadata": NESTED, "updated_at": 9.0, "next_index": 10, "seq": 9, "usage": USAGE}
    return owner.prepare(
        *("c", "d"),
        session=replace(owner.session, **changed),  # type: ignore[arg-type]
        turns=[_turn(0, status="completed"), _turn(9)],
        dropped_turns=[1],
        new_run=_run(run_id, 9, idempotency_key=idempotency_key),
        runs=[_run("r0", 0, "completed", idempotency_key="k0", ended_at=9.0, usage=USAGE, resumes=1)],
        forget_events=2,
        events=[_event(8), _event(9, event_key)],
    )


def _state_after(commit: Commit) -> list[object]:
    """Return the state that the commit `_of_everything` leaves."""
    blocks = ["a", "b", "c", "d", "missing", "missing"]
    events = [_event(1, "e1"), _event(3), *commit.events]
    return [commit.session, blocks, list(commit.turns), [commit.runs[0], commit.new_run], events]


@_law
async def check_a_commit_is_stored_whole(store: SessionStore) -> None:
    """All of its parts are there on return; what it does not name stays."""
    owner = await _eventful(store)
    commit = _of_everything(owner)
    await store.commit("s", 1, commit)
    equal(await _state(store, "s"), _state_after(commit), "the session")
    equal(await store.run("r9"), commit.new_run, "the run by its id")
    equal(await store.run_of_key("s", "k9"), commit.new_run, "the run by its key")
    equal(await store.event_of_key("s", "e9"), commit.events[1], "the event by its key")


@_law
async def check_a_commit_changes_nothing_that_a_session_keeps(store: SessionStore) -> None:
    """Owner, creation time, parent and log are those of the creation."""
    owner = await _own(store, user_id="u", agent="a", created_at=1.0, parent="p#1")
    changed = replace(owner.session, user_id="x", agent=None, created_at=2.0, parent=None, updated_at=5.0)
    await store.commit("s", 1, owner.prepare(session=changed))
    equal(await store.get("s"), replace(owner.session, updated_at=5.0), "the session")


@_law
async def check_a_stale_owner_is_refused(store: SessionStore, other: SessionStore) -> None:
    """A commit under any epoch but the last writes nothing; acceptance 47 and 64."""
    old = await _eventful(store)
    new = _Owner(other, (await other.activate("s")).session)
    for epoch in (0, 1, 3):
        async with _unchanged(store, "s"):
            commit = store.commit("s", epoch, _of_everything(old))
            error = await refuses(SessionFencedError, commit, f"a commit under epoch {epoch} of 2")
            equal((error.session_id, error.epoch), ("s", epoch), "what the error names")
    await refuses(RunNotFoundError, store.run("r9"), "the run of a refused commit")
    await new.commit("c", turns=[_turn(2)])
    await refuses(SessionFencedError, old.commit("c"), "the old owner, when the new one has committed")
    equal(await _held(store, Span(new.session.log, 2, 3)), ["c"], "the new owner's block")


@_law
async def check_an_owner_of_a_deleted_session_is_refused(store: SessionStore) -> None:
    """Also when a session of the same id and epoch is there again; acceptance 47."""
    old = await _eventful(store)
    await store.delete("s")
    await refuses(SessionFencedError, old.commit("c"), "a commit to a deleted session")
    new = await _own(store)
    equal(new.session.epoch, old.session.epoch, "the epoch of the new session")
    async with _unchanged(store, "s"):
        await refuses(SessionFencedError, store.commit("s", 1, _of_everything(old)), "the old session's owner")


@_law
async def check_an_activation_and_a_commit_come_one_after_the_other(store: SessionStore, other: SessionStore) -> None:
    """A commit that was not refused is in what the activation returns; one that was is not, ever."""
    await store.create(_session())
    owner = _Owner(store, (await store.activate("s")).session)
    for _ in range(10):
        commit, activation = await asyncio.gather(owner.commit("x"), other.activate("s"), return_exceptions=True)
        if isinstance(activation, BaseException):
            raise activation
        if not isinstance(commit, Span | SessionFencedError):
            raise AssertionError(f"a commit beside an activation gave {commit!r}")
        equal(activation.session.log_size, owner.session.log_size, f"the log when the commit gave {commit!r}")
        equal(await store.get("s"), activation.session, "the session after both")
        owner = _Owner(store, activation.session)


@_law
async def check_a_key_is_stored_once(store: SessionStore) -> None:
    """A commit with a run id, idempotency key or event key that is there already writes nothing; acceptance 29."""
    owner = await _eventful(store)
    another = await _own(store, "another")
    run = _run("r5", 0, session_id="another", idempotency_key="k5")
    await another.commit(new_run=run, events=[_event(1, "e5", "another")])
    for key, commit in [
        ("r0", _of_everything(owner, run_id="r0")),
        ("r5", _of_everything(owner, run_id="r5")),
        ("k0", _of_everything(owner, idempotency_key="k0")),
        ("e1", _of_everything(owner, event_key="e1")),
        ("e9", replace(_of_everything(owner), events=[_event(8, "e9"), _event(9, "e9")])),
        ("e1", replace(_of_everything(owner, event_key="e1"), new_run=None)),
    ]:
        async with _unchanged(store, "s", "another"):
            error = await refuses(DuplicateKeyError, store.commit("s", 1, commit), f"key {key!r} a second time")
            equal((error.session_id, error.key), ("s", key), "what the error names")
        await refuses(RunNotFoundError, store.run("r9"), "the run of a refused commit")
    await store.commit("s", 1, _of_everything(owner, idempotency_key="k5", event_key="e5"))
    equal((await store.run("r5")).session_id, "another", "the other session's run")
    equal(await store.run_of_key("another", "k5"), await store.run("r5"), "the other session's key")
    equal(await store.event_of_key("another", "e5"), _event(1, "e5", "another"), "the other session's event")


@_law
async def check_what_is_stored_is_not_written_over(store: SessionStore) -> None:
    """A commit of blocks or events whose numbers are there already is refused, and so is one that comes twice."""
    owner = await _eventful(store)
    whole = _of_everything(owner)
    late = replace(owner.session, log_size=1)
    for what, commit in [
        ("a block", replace(whole, session=replace(whole.session, log_size=3))),
        ("an event", replace(whole, events=[_event(3), _event(4)])),
        ("a forgotten event with a key", replace(whole, events=[_event(1), _event(4)])),
        ("the first block", _Owner(store, late).prepare("x", turns=[_turn(9)])),
    ]:
        async with _unchanged(store, "s"):
            await refuses(StoreError, store.commit("s", 1, commit), f"{what} that is there")
    await store.commit("s", 1, whole)
    async with _unchanged(store, "s"):
        await refuses(StoreError, store.commit("s", 1, whole), "the same commit again")


@_law
async def check_a_cancelled_commit_is_whole_or_not_there(store: SessionStore) -> None:
    """Whenever it is cancelled, and final once the session was activated anew."""
    for wait_s in (None, 0, 0.0005, 0.002):
        owner = await _eventful(store)
        before, commit = await _state(store, "s"), _of_everything(owner)
        task = asyncio.ensure_future(store.commit("s", 1, commit))
        if wait_s is not None:
            await asyncio.sleep(wait_s)
        task.cancel()
        await asyncio.wait([task])
        activated = (await store.activate("s")).session
        found = await _state(store, "s")
        outcomes = ([activated, *before[1:]], [replace(commit.session, epoch=2), *_state_after(commit)[1:]])
        if found not in outcomes:
            raise AssertionError(f"a cancelled commit left {found!r}, expected one of {outcomes!r}")
        await store.delete("s")


# Records


@_law
async def check_every_field_of_a_turn_comes_back(store: SessionStore) -> None:
    """And a turn that is put again is replaced in all of them."""
    owner, another = await _own(store), await _own(store, "another")
    span, far = await owner.commit("a", "b", "c"), await another.commit("d", "e")
    parts: dict[str, Spans] = {
        "prompt": (span, far),
        "appended": (Span(span.log, 1, 2),),
        "input": (Span(far.log, 1, 2), Span(span.log, 2, 3), Span(span.log, 0, 1)),
        "output": (Span(span.log, 0, 2),),
    }
    texts = {"parent": "an'other#1", "run_id": "run", "stop_reason": TEXT}
    turns = [_turn(7, **parts, **texts, usage=USAGE, metadata=NESTED, created_at=1763700000.123456), _turn(7)]
    turns += [_turn(7, status=status, usage=Usage(), stop_reason="") for status in get_args(TurnStatus)]
    for turn in (*turns, turns[0], turns[1]):
        await owner.commit(turns=[turn])
        equal(await store.turns("s"), [turn], "the turn as it was put last")


@_law
async def check_what_a_turn_carries_comes_back(store: SessionStore) -> None:
    """From `turns` and `activate`, of turns that have ended and of open ones; what is put last, also if it is empty."""
    owner, another = await _own(store), await _own(store, "another")
    span, far = await owner.commit("a", "b", "c"), await another.commit("d", "e")
    statuses: list[TurnStatus] = ["completed", "running", "queued", "pending"]
    plain = [_turn(index, status=status, input=(span,)) for index, status in enumerate(statuses)]
    lists: list[Spans] = [(Span(far.log, 1, 2), Span(span.log, 2, 3), Span(span.log, 0, 1)), (span, far), (), (far,)]
    await owner.commit(turns=plain)
    for at in range(len(lists) + 1):
        expected = [lists[(at + index) % len(lists)] for index in range(len(plain))]
        await owner.commit(turns=[replace(turn, carried=new) for turn, new in zip(plain, expected, strict=True)])
        found = await store.activate("s")
        owner = _Owner(store, found.session)
        for what, turns in (
            ("turns", await store.turns("s")),
            ("an activation", [*([found.head] if found.head else []), *found.open_turns]),
        ):
            equal(turns, plain, f"the turns of {what}")
            equal([turn.carried for turn in turns], expected, f"what they carry, of {what}")
    await owner.commit(turns=plain[:2])
    equal([turn.carried for turn in await store.turns("s")], [(), (), *lists[2:]], "what is left of it")


@_law
async def check_turns_are_dropped(store: SessionStore) -> None:
    """Those named, before others are put; one that is not there is no matter."""
    owner = await _own(store)
    await owner.commit(turns=[_turn(index) for index in range(5)])
    await owner.commit(dropped_turns=[1, 3, 99], turns=[_turn(3, status="queued"), _turn(7)])
    left = [_turn(0), _turn(2), _turn(3, status="queued"), _turn(4), _turn(7)]
    equal(await store.turns("s"), left, "turns that are left")


@_law
async def check_every_field_of_a_run_comes_back(store: SessionStore) -> None:
    """And what may change of it changes, in that run alone."""
    owner = await _own(store)
    times = {"created_at": 1763700000.123456, "started_at": 0.1 + 0.2, "ended_at": 9.0, "timeout_s": 0.25}
    spent = {"usage": USAGE, "stop_reason": TEXT, "code": "step_limit", "calls": NESTED, "resumes": 3}
    texts = {"why": TEXT, "labels": freeze({TEXT: TEXT, "": ""}), "idempotency_key": "k'\"\\%", "fingerprint": "f" * 64}
    runs = {
        "r'%\"\\ü": _run("r'%\"\\ü", 2, "failed", **times, **texts, **spent, first_seq=2**40),
        "plain": _run("plain", 3),
        "empty": _run("empty", 4, why="", started_at=0.0, ended_at=0.0, timeout_s=0.0, usage=Usage(), stop_reason=""),
    }
    for run in runs.values():
        await owner.commit(new_run=run)
    for at, state in enumerate((None, *get_args(RunState))):
        if state:
            new = {
                "usage": Usage(calls=at),
                "stop_reason": state,
                "code": "budget",
                "resumes": at,
                "calls": NESTED[TEXT][0],
            }
            changes = new if at % 2 else dict.fromkeys(new) | {"resumes": 0, "calls": FrozenDict()}
            changes |= {"state": state, "first_seq": 77, "started_at": 2.5, "ended_at": None, "why": f"{state} {TEXT}"}
            runs["plain"] = replace(runs["plain"], **changes)
            await owner.commit(runs=[runs["plain"]])
        for run in runs.values():
            equal(await store.run(run.run_id), run, "the run by its id")
        equal(await store.runs("s"), list(runs.values()), "the runs of the session")
        equal(await store.run_of_key("s", "k'\"\\%"), runs["r'%\"\\ü"], "the run of the key")
    await owner.commit(runs=[replace(run, state="cancelled", why=run.run_id) for run in runs.values()])
    equal([run.why for run in await store.runs("s")], list(runs), "reasons of runs that were changed at once")


@_law
async def check_every_event_comes_back(store: SessionStore) -> None:
    """Of all kinds that are stored and of unknown ones, with all fields but the blocks, which the session's log has."""
    made: dict[str, Any] = {"summary": (2**40, 2**41), "usage": USAGE}
    own: dict[str, dict[str, Any]] = {
        "model_call_ended": {"call": 0, "seconds": 0.1 + 0.2, "stop_reason": TEXT, "usage": USAGE},
        "tool_started": {"call_id": TEXT, "name": ""},
        "tool_ended": {"call_id": "", "name": TEXT, "is_error": True, "seconds": 1e-9, "tries": 7},
        "approval_requested": {"call_id": "c", "name": "n", "input": NESTED, "wants": "budget", "why": TEXT},
        "call_decided": {"call_id": "c", "verdict": "provided"},
        "run_resumed": {"why": TEXT},
        "run_completed": {"stop_reason": TEXT, "usage": USAGE},
        "run_cancelled": {"why": TEXT},
        "run_failed": {"why": "", "code": TEXT},
        "run_interrupted": {"why": "'\"\\%"},
        "window_compacted": {"strategy": TEXT, "tokens_before": 2**40, "tokens_after": 0, **made},
        "compaction_failed": {"strategy": "", "attempt": 1, "of": 2**40, "why": TEXT, "usage": USAGE},
    }
    every: dict[str, Any] = {"turn_index": 7, "run_id": "r'%\"\\ü"}
    common: dict[str, Any] = {"session_id": "s", "at": 1763700000.123456}
    events: list[Event] = []
    for seq, (kind, cls) in enumerate(KINDS.items(), 1):
        if not cls.live:
            values = own.get(kind, {}) | common | {"kind": kind}
            spans: dict[str, Any] = {"span": (2**40, 2**41)} if issubclass(cls, Appending) else {}
            events += [cls(seq=seq, key=f"{seq}ü%", **values, **every, **spans), cls(seq=seq + 100, **values)]
    common["kind"] = "from_the_future"
    events += [UnknownEvent(seq=201, payload=NESTED, key="'", **every, **common), UnknownEvent(seq=202, **common)]
    events.sort(key=lambda event: event.seq)
    owner = await _own(store)
    blocks = {"blocks": (Text(text=TEXT),)}
    full = [event.model_copy(update=blocks) if isinstance(event, Appending) else event for event in events]
    await owner.commit(events=full)
    equal(await store.events("s"), events, "the events")
    for event in events:
        if event.key:
            equal(await store.event_of_key("s", event.key), event, "the event by its key")


@_law
async def check_events_are_forgotten(store: SessionStore) -> None:
    """Up to and including a number, of this session alone; those with a key stay and are found by it."""
    owner, another = await _own(store), await _own(store, "another")
    others = [_event(seq, session_id="another") for seq in (1, 2, 3)]
    await another.commit(events=others)
    events = {seq: _event(seq, key) for seq, key in {1: "e1", 2: None, 3: None, 5: "", 6: None, 2**40: None}.items()}
    await owner.commit(events=list(events.values()))
    for upto, left in [
        (0, [*events]),
        (1, [*events]),
        (2, [1, 3, 5, 6, 2**40]),
        (4, [1, 5, 6, 2**40]),
        (6, [1, 5, 2**40]),
    ]:
        await owner.commit(forget_events=upto)
        equal(await store.events("s"), [events[seq] for seq in left], f"what is left up to {upto}")
        equal(await store.events("s", after=1, limit=2), [events[seq] for seq in left[1:3]], "a page of it")
    for seq, key in ((1, "e1"), (5, "")):
        equal(await store.event_of_key("s", key), events[seq], "a forgotten event by its key")
    again = [_event(2), _event(3, "e3"), _event(2**40)]
    await owner.commit(forget_events=2**41, events=again)
    equal(
        await store.events("s"), [events[1], *again[:2], events[5], again[2]], "the events of the commit that forgets"
    )
    async with _unchanged(store, "s"):
        taken = owner.prepare(forget_events=2**41, events=[_event(7, "e1")])
        await refuses(DuplicateKeyError, store.commit("s", 1, taken), "the key of a forgotten event")
    equal(await store.events("another"), others, "the other session's events")


@_law
async def check_blocks_are_read_by_spans(store: SessionStore) -> None:
    """In the order of the spans, over several logs, as often as they name one; as they were written."""
    owner, another = await _own(store), await _own(store, "another")
    await owner.commit("a0", "a1")
    await another.commit("b0", "b1", "b2")
    await owner.commit()
    await owner.commit(encode(User(text=TEXT)), "x" * 1_000_000, "")
    a, b = owner.session.log, another.session.log
    spans = [Span(b, 1, 3), Span(a, 0, 2), Span(a, 1, 1), Span(b, 0, 1), Span(a, 2, 5), Span(b, 2, 3)]
    expected = ["b1", "b2", "a0", "a1", "b0", encode(User(text=TEXT)), "x" * 1_000_000, "", "b2"]
    equal(await store.blocks(spans), expected, "the blocks")
    equal(await store.blocks([]), [], "the blocks of no spans")
    for missing in (Span(b, 3, 4), Span(b, 2, 4), Span(a, 5, 9), Span("no such log", 0, 1), Span("-1", 0, 1)):
        error = await refuses(CorruptRecordError, store.blocks([Span(a, 0, 1), missing]), f"blocks of {missing}")
        equal(missing.log in error.key, True, f"whether {error.key!r} names the log")


# Forks and deletes


async def _fork(store: SessionStore, session_id: str, *spans: Span, index: int = 0) -> SessionRecord:
    """Create a fork whose first turn spans these: one as its prompt, one as its input, the others as its output."""
    turn = _turn(index, status="completed", parent=f"s#{index}", prompt=spans[:1], input=spans[:2], output=spans[2:])
    return await store.create(_session(session_id, parent=f"s#{index}", next_index=index + 1), turn)


@_law
async def check_a_fork_starts_with_its_turn(store: SessionStore) -> None:
    """It spans the other's blocks, appends to a log of its own, and leaves the other as it is; acceptance 13."""
    owner = await _own(store)
    span = await owner.commit("a", "b", "c")
    async with _unchanged(store, "s"):
        fork = await _fork(store, "fork", Span(span.log, 0, 1), Span(span.log, 2, 3), Span(span.log, 1, 2), index=4)
        found, (turn,) = await store.activate("fork"), await store.turns("fork")
        equal((found.session, found.head), (replace(fork, epoch=1), turn), "the fork and its head")
        equal((turn.index, turn.parent, fork.parent), (4, "s#4", "s#4"), "where it comes from")
        equal(await store.blocks(join(turn.input, turn.output)), ["a", "c", "b"], "what it spans")
        new = await _Owner(store, found.session).commit("d")
        equal(new.log == span.log, False, "whether it writes to the other's log")
        equal(await store.blocks([new]), ["d"], "what it appended")
    await store.delete("fork")
    equal(await store.blocks([span]), ["a", "b", "c"], "the other's blocks when the fork is deleted")
    equal(await _held(store, new), ["missing"], "the fork's own when it is deleted")


@_law
async def check_a_fork_keeps_what_it_spans(store: SessionStore) -> None:
    """Deleting the session that it came from keeps that and nothing else; the last fork frees it."""
    owner = await _own(store)
    log = (await owner.commit(*"abcdefgh")).log
    await _fork(store, "one", Span(log, 1, 2), Span(log, 3, 5), Span(log, 4, 5))
    await _fork(store, "two", Span(log, 4, 6))
    far = await _Owner(store, (await store.activate("two")).session).commit("x", "y")
    await _fork(store, "of two", Span(log, 4, 5), Span(far.log, 1, 2))
    for deleted, kept, far_kept in [("s", "bdef", "xy"), ("one", "ef", "xy"), ("two", "e", "y"), ("of two", "", "")]:
        await store.delete(deleted)
        for span, letters, left in [(Span(log, 0, 8), "abcdefgh", kept), (far, "xy", far_kept)]:
            expected = [letter if letter in left else "missing" for letter in letters]
            equal(await _held(store, span), expected, f"{letters!r} when {deleted!r} is deleted")


@_law
async def check_a_fork_keeps_what_its_turn_carries_and_what_else_it_names(store: SessionStore) -> None:
    """Beside what the turn spans, and until the last fork that does is deleted; its turn carries what it was given."""
    owner = await _own(store)
    log = (await owner.commit(*"abcdefgh")).log
    one = _turn(0, status="completed", input=(Span(log, 0, 1),), carried=(Span(log, 4, 5), Span(log, 2, 3)))
    two = _turn(0, status="completed", input=(Span(log, 0, 1),))
    await store.create(_session("one"), one, (Span(log, 6, 7), Span(log, 4, 6)))
    await store.create(_session("two"), two, also=(Span(log, 5, 7), Span(log, 5, 6), Span(log, 2, 2)))
    await store.create(_session("three"), replace(two, carried=(Span(log, 2, 3),)))
    await store.create(_session("of nothing"), _turn(0))
    await store.create(_session("no fork"), also=(Span(log, 7, 9),))
    for session_id, carried in (("one", one.carried), ("two", ()), ("three", (Span(log, 2, 3),))):
        (turn,), head = await store.turns(session_id), (await store.activate(session_id)).head
        equal((turn.carried, head and head.carried), (carried, carried), f"what the turn of {session_id!r} carries")
    for deleted, kept in [("s", "acefg"), ("one", "acfg"), ("three", "afg"), ("two", "")]:
        await store.delete(deleted)
        expected = [letter if letter in kept else "missing" for letter in "abcdefgh"]
        equal(await _held(store, Span(log, 0, 8)), expected, f"the blocks when {deleted!r} is deleted")


@_law
async def check_a_fork_of_what_is_gone_is_refused(store: SessionStore) -> None:
    """As CorruptRecordError, and nothing is stored: the id is free."""
    owner = await _own(store)
    log = (await owner.commit("a", "b")).log
    for span in (Span(log, 1, 3), Span("no such log", 0, 1)):
        await refuses(CorruptRecordError, _fork(store, "fork", span), f"a fork of {span}")
    await _fork(store, "witness", Span(log, 0, 1))
    await store.delete("s")
    for spans in ([Span(log, 1, 2)], [Span(log, 0, 1), Span(log, 0, 2)], [Span(log, 0, 1)] * 2 + [Span(log, 1, 2)]):
        await refuses(CorruptRecordError, _fork(store, "fork", *spans), f"a fork of {spans}")
        await refuses(SessionNotFoundError, store.get("fork"), "the fork")
    good, gone = _turn(0, input=(Span(log, 0, 1),)), (Span(log, 0, 2),)
    for turn, also in ((replace(good, carried=gone), ()), (good, gone), (replace(good, carried=good.input), gone)):
        fork = store.create(_session("fork"), turn, also)
        await refuses(CorruptRecordError, fork, f"a fork that carries {turn.carried} and names {also}")
        await refuses(SessionNotFoundError, store.get("fork"), "the fork")
    equal(await store.count(), 1, "sessions")
    await store.delete("witness")
    equal(await _held(store, Span(log, 0, 2)), ["missing"] * 2, "blocks that only refused forks spanned")
    await store.create(_session("fork"))
    equal(await store.turns("fork"), [], "turns of a session under the id of a refused fork")


@_law
async def check_a_fork_and_a_delete_come_one_after_the_other(store: SessionStore, other: SessionStore) -> None:
    """A fork that is not refused has all of its blocks, though what it came from is deleted meanwhile."""
    for at in range(20):
        owner = await _own(store, "s")
        span = await owner.commit("a", "b")
        delete = asyncio.ensure_future(store.delete("s"))
        await asyncio.sleep(at * 0.0002)  # they are to meet at every point of the delete
        fork, _ = await asyncio.gather(_fork(other, f"fork{at}", span), delete, return_exceptions=True)
        refused = isinstance(fork, CorruptRecordError)
        if isinstance(fork, BaseException) and not refused:
            raise fork
        expected = ["missing"] * 2 if refused else ["a", "b"]
        equal(await _held(store, span), expected, f"the blocks when the fork gave {fork!r}")


@_law
async def check_a_delete_leaves_nothing(store: SessionStore) -> None:
    """Of the session; others are left alone. Its ids and keys can be used again, and what uses them starts empty."""
    another, owner = await _own(store, "another"), await _eventful(store)
    await another.commit("x", turns=[_turn(0)], new_run=_run("other", 0, session_id="another"), events=[_event(1)])
    before = await _state(store, "another")
    await store.delete("s")
    await refuses(SessionNotFoundError, store.get("s"), "a deleted session")
    await refuses(SessionNotFoundError, store.delete("s"), "a deleted session, deleted again")
    await refuses(RunNotFoundError, store.run("r0"), "a run of a deleted session")
    equal(await _held(store, Span(owner.session.log, 0, 2)), ["missing"] * 2, "blocks of a deleted session")
    equal(await _listed(store), ["another"], "sessions")
    equal(await _state(store, "another"), before, "the other session")
    created = await store.create(_session())
    equal(created.log == owner.session.log, False, "whether a log is given twice")
    empty = [created, ["missing"] * 2, [], [], []]
    equal(await _state(store, "s"), empty, "a session created under a deleted one's id")
    found = await store.activate("s")
    equal((found.head, found.open_turns, found.open_runs, found.session.epoch), (None, (), (), 1), "its activation")
    new = _Owner(store, found.session)
    await store.commit("s", 1, _of_everything(new, run_id="r0", idempotency_key="k0", event_key="e1"))


@_law
async def check_a_stale_owner_deletes_nothing(store: SessionStore) -> None:
    """A delete under any epoch but the last is refused; without an epoch it is not."""
    await _eventful(store)
    await store.activate("s")
    for epoch in (0, 1, 3):
        async with _unchanged(store, "s"):
            await refuses(SessionFencedError, store.delete("s", epoch=epoch), f"a delete under epoch {epoch} of 2")
    await store.delete("s", epoch=2)
    await _eventful(store)
    await store.delete("s")
    equal(await store.count(), 0, "sessions")


# Many at once


@_law
async def check_first_use_at_once_loses_nothing(store: SessionStore, other: SessionStore) -> None:
    """Stores that meet empty data at the same time, each for many callers; acceptance 45."""
    names = [f"s{at}" for at in range(20)]
    stores = {name: (store, other)[at % 2] for at, name in enumerate(names)}
    created = await asyncio.gather(*(stores[name].create(_session(name)) for name in names))
    equal(len({session.log for session in created}), 20, "logs")
    for reader in (store, other):
        equal(await reader.count(), 20, "sessions")
        equal([await reader.get(name) for name in names], created, "the sessions as created")


@_law
async def check_an_id_goes_to_one_of_many(store: SessionStore, other: SessionStore) -> None:
    """Of those that create it at once; the others get SessionExistsError; acceptance 45."""
    given = [_session(user_id=f"u{at}") for at in range(10)]
    creates = [(store, other)[at % 2].create(session) for at, session in enumerate(given)]
    found = await asyncio.gather(*creates, return_exceptions=True)
    won = [session for session in found if isinstance(session, SessionRecord)]
    lost = [error for error in found if isinstance(error, SessionExistsError)]
    equal((len(won), len(lost)), (1, 9), f"winners and losers of {found}")
    equal([await store.get("s"), await other.get("s")], won * 2, "the session")


@_law
async def check_commits_at_once_lose_nothing(store: SessionStore, other: SessionStore) -> None:
    """Many sessions through two stores; each reads what the other wrote; acceptance 45."""

    async def write(at: int) -> _Owner:
        owner = await _own((store, other)[at % 2], f"s{at}")
        for number in range(5):
            await owner.commit(
                f"{at}.{number}",
                turns=[_turn(number)],
                new_run=_run(f"r{at}.{number}", number, session_id=f"s{at}"),
                events=[_event(number + 1, f"e{number}", f"s{at}")],
            )
        return owner

    for at, owner in enumerate(await asyncio.gather(*map(write, range(8)))):
        numbers = range(5)
        blocks: list[object] = [f"{at}.{number}" for number in numbers]
        runs = [_run(f"r{at}.{number}", number, session_id=f"s{at}") for number in numbers]
        events = [_event(number + 1, f"e{number}", f"s{at}") for number in numbers]
        whole = [owner.session, [*blocks, *["missing"] * 2], [_turn(number) for number in numbers], runs, events]
        for reader in (store, other):
            equal(await _state(reader, f"s{at}"), whole, f"session s{at}")


# What comes out, and the end


@_law
async def check_what_comes_out_is_independent_of_what_went_in(store: SessionStore) -> None:
    """Changing a list afterwards, on either side, changes nothing stored; records refuse; acceptance 12 and 44."""
    deep = freeze({"deep": {"list": [{}]}})
    owner = await _own(store, metadata=deep)
    blocks, turns, dropped = ["a"], [_turn(0, metadata=deep)], [5]
    run = _run("r", 0, labels=freeze({"a": "b"}))
    events = [UnknownEvent(kind="x", session_id="s", seq=1, at=1.5, payload=deep)]
    commit = owner.prepare(turns=turns, new_run=run, events=events, dropped_turns=dropped)
    await store.commit("s", 1, replace(commit, session=replace(commit.session, log_size=1), blocks=blocks))
    before = await _state(store, "s")
    found: list[list[Any]] = [await store.turns("s"), await store.runs("s"), await store.events("s")]
    session, turn, stored_run, event = await store.get("s"), *(part[0] for part in found)
    given: list[list[Any]] = [blocks, turns, dropped, events]
    for mutable in (*given, *found, await store.blocks([Span(session.log, 0, 1)])):
        mutable.clear()
    for record, name in ((session, "user_id"), (turn, "status"), (stored_run, "state"), (event, "at")):
        _refuses_change(setattr, record, name, "x")
    for mapping in (session.metadata, turn.metadata, event.payload):
        for level in (mapping, mapping["deep"], mapping["deep"]["list"][0]):
            _refuses_change(operator.setitem, level, "deep", "x")
        _refuses_change(operator.setitem, mapping["deep"]["list"], 0, "x")
    _refuses_change(operator.setitem, stored_run.labels, "a", "x")
    equal(await _state(store, "s"), before, "the session")


def _refuses_change(change: Callable[..., object], record: object, *values: object) -> None:
    try:
        change(record, *values)
    except (TypeError, AttributeError, ValueError):
        return
    raise AssertionError(f"{record!r} can be changed")


@_law
async def check_a_closed_store_says_so(store: SessionStore) -> None:
    """Closing twice is fine; every verb after it raises StoreClosedError; acceptance 45."""
    owner = await _own(store)
    await store.close()
    await store.close()
    span, commit = Span(owner.session.log, 0, 1), owner.prepare("a")
    for verb in (store.get, store.activate, store.turns, store.run, store.runs, store.events, store.delete):
        await refuses(StoreClosedError, verb("s"), f"{verb.__name__} of a closed store")
    for what, call in {
        "create": store.create(_session("new")),
        "commit": store.commit("s", 1, commit),
        "blocks": store.blocks([span]),
        "run_of_key": store.run_of_key("s", "key"),
        "event_of_key": store.event_of_key("s", "key"),
        "query": store.query(),
        "count": store.count(),
        "usage": store.usage(),
    }.items():
        await refuses(StoreClosedError, call, f"{what} of a closed store")


LAWS: tuple[Law, ...] = tuple(_laws)
"""All laws, in order."""
