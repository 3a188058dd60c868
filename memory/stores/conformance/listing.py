"""Laws of `SessionStore` about lists: pages, queries, sums, sessions that need a process, and expired sessions."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from turnwise.errors import InvalidInputError, SessionFencedError, SessionNotFoundError
from turnwise.memory.conversation.runs import RunState
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.base import (
    NO_CALLER,
    Page,
    SessionOrder,
    SessionStore,
    UnchangedDeletion,
    deletes_unchanged,
)
from turnwise.memory.stores.conformance.fixtures import (
    IDS,
    NESTED,
    Owner,
    a_run,
    a_session,
    a_turn,
    an_event,
    held,
    own,
)
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses
from turnwise.memory.values.frozen_json import freeze

Item = TypeVar("Item")

LAWS: list[Law] = []
"""All laws of this file, in order."""

_law = collector(LAWS)


KEY = SessionKey("s")


async def _check_pages(
    list_: Callable[..., Awaitable[list[Item]]], items: Sequence[Item], number: Callable[[Item], int], before: int
) -> None:
    equal(await list_(KEY), items, "all, by number")
    for after in sorted({before, *map(number, items), *(number(item) + 1 for item in items)}):
        behind = [item for item in items if number(item) > after]
        for limit in range(1, len(items) + 2):
            page = await list_(KEY, after=after, limit=limit)
            equal(page, behind[:limit], f"up to {limit} with a number above {after}")
    for limit in (0, -1):
        await refuses(InvalidInputError, list_(KEY, limit=limit), f"a limit of {limit}")


@_law
async def check_turns_come_in_pages(store: SessionStore) -> None:
    """By index, above `after`, at most `limit`, by default 100; acceptance 30 and 44."""
    owner = await own(store)
    turns = [a_turn(index) for index in (0, 2, 3, 10, 11)]
    await owner.commit(turns=[turns[4], turns[0], turns[2]])
    await owner.commit(turns=[turns[3], turns[1]])
    await _check_pages(store.turns, turns, lambda turn: turn.index, -1)
    await owner.commit(turns=[a_turn(index) for index in range(100, 200)])
    equal(len(await store.turns(SessionKey("s"))), 100, "turns of a page by default")


@_law
async def check_runs_come_in_pages(store: SessionStore) -> None:
    """By turn index, above `after`, at most `limit`; acceptance 30 and 44."""
    owner = await own(store)
    runs = [a_run(run_id, index) for run_id, index in zip("edcba", (0, 2, 3, 10, 11), strict=True)]
    for index in (3, 0, 4, 1, 2):
        await owner.commit(new_run=runs[index])
    await _check_pages(store.runs, runs, lambda run: run.turn_index, -1)


@_law
async def check_events_come_in_pages(store: SessionStore) -> None:
    """By sequence number, above `after`, at most `limit`, by default 1000; acceptance 30 and 44."""
    owner = await own(store)
    events = [an_event(seq) for seq in (1, 2, 9, 10, 10_000_001)]
    await owner.commit(events=events[:2])
    await owner.commit(events=events[2:])
    await _check_pages(store.events, events, lambda event: event.seq, 0)
    await owner.commit(events=[an_event(20_000_000 + seq) for seq in range(1000)])
    equal(len(await store.events(SessionKey("s"))), 1000, "events of a page by default")


# Queries


async def _listed(store: SessionStore, limit: int = 100, **query: Any) -> list[str]:
    """Return the ids of all pages. Check that each page but the last is full and has a cursor."""
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
    """Sessions with equal times are in the order of creation. Pages have each session once; acceptance 30 and 45."""
    equal(await _listed(store), [], "no sessions")
    for name, created_at, updated_at in [
        *(("a", 5.0, 1.0), ("b", 0.1 + 0.2, 7.0), ("c", 5.0, 7.0), ("d", 5.0, 7.0)),
        *(("e", 1763700000.1234567, 2.0), ("f", 1763700000.1234565, 7.0), ("g", 0.0, 0.0), ("h", 5.0, 7.0)),
    ]:
        await store.create(a_session(name, created_at=created_at, updated_at=updated_at))
    orders: dict[SessionOrder, str] = {"created_at": "efhdcabg", "updated_at": "hfdcbeag"}
    equal(await _listed(store), list(orders["created_at"]), "the order if none is said")
    for order_by, order in orders.items():
        for limit in range(1, 10):
            listed = await _listed(store, limit, order_by=order_by)
            equal(listed, list(order), f"all by {order_by} in pages of {limit}")
    page = await store.query(limit=3)
    await store.create(a_session("newer", created_at=2e9))
    await store.delete(SessionKey("h"))
    listed = [session.session_id for session in await store.query(cursor=page.cursor)]
    equal(listed, list("dcabg"), "the pages behind a cursor, when sessions came and went")
    for limit in (0, -1):
        await refuses(InvalidInputError, store.query(limit=limit), f"a limit of {limit}")


async def _share(store: SessionStore, owner: Owner, members: Mapping[str, str]) -> None:
    """Commit who shares a session."""
    before = owner.session.members
    joined, left = [*(members.keys() - before.keys())], [*(before.keys() - members.keys())]
    await owner.commit(session=replace(owner.session, members=freeze(members)), joined=joined, left=left)
    equal((await store.get(owner.session.key)).members, freeze(members), "the members of a session")


@_law
async def check_sessions_are_listed_by_member(store: SessionStore) -> None:
    """From the commit that adds the member to the one that removes it, or the deletion; for each of any ids."""
    owners = [await own(store, name, agent=agent) for name, agent in (("a", None), ("b", "x"), ("c", None))]
    await store.create(a_session("d", user_id="u", members=freeze({"m": "owner"})))
    for owner in owners[:2]:
        await _share(store, owner, {"m": "reader", "n": "member"})
    equal(await _listed(store, member="m"), ["d", "b", "a"], "the sessions of a member, newest first")
    equal(await _listed(store, 1, member="m"), ["d", "b", "a"], "the same in pages of one")
    equal(await _listed(store, member="m", agent="x"), ["b"], "those of an agent")
    equal(await _listed(store, member="u"), [], "of the user of a session, who is no member")
    equal(await _listed(store, user_id="m"), [], "the own sessions of a member")
    equal(await store.count(member="m"), 3, "how many they are")
    await _share(store, owners[1], {"n": "owner"})
    await _share(store, owners[2], {"m": "member"})
    equal(await _listed(store, member="m"), ["d", "c", "a"], "after one was left, and another one joined")
    equal(await _listed(store, member="n"), ["b", "a"], "of the other member")
    await owners[0].commit(session=replace(owners[0].session, status="ended"))
    equal(await _listed(store, member="m", status="ended"), ["a"], "those that have ended")
    equal(await _listed(store, member="m", status="active"), ["d", "c"], "those that have not")
    await _share(store, owners[0], {"m": "reader"})
    equal(await _listed(store, member="n", status="ended"), [], "of one who left an ended session")
    await store.delete(SessionKey("c"))
    await store.delete(SessionKey("d", "u"))
    equal(await _listed(store, member="m"), ["a"], "after two were deleted")
    await store.create(a_session("d", user_id="u"))
    equal(await _listed(store, member="m"), ["a"], "after another one has the id of a deleted one")
    await _share(store, owners[1], dict.fromkeys(IDS, "reader"))
    for user_id in IDS:
        equal(await _listed(store, member=user_id), ["b"], f"of member {user_id!r}")
    wrong: list[dict[str, Any]] = [{"user_id": "u"}, {"called_by": NO_CALLER}]
    for filters in wrong:
        await refuses(InvalidInputError, store.query(member="m", **filters), f"a member with {filters}")


@_law
async def check_a_refused_commit_adds_no_member(store: SessionStore) -> None:
    """Neither does one of a stale epoch."""
    owner = await own(store)
    commit = owner.prepare(session=replace(owner.session, members=freeze({"m": "reader"})), joined=["m"])
    await refuses(SessionFencedError, store.commit(KEY, owner.session.epoch + 1, commit), "a stale epoch")
    equal(await _listed(store, member="m"), [], "the sessions of the member")


@_law
async def check_pages_of_large_sessions_are_shorter(store: SessionStore) -> None:
    """A page has about `PAGE_BYTES`, and the others follow: with metadata of 300 KB each, at most five sessions."""
    metadata = freeze({"notes": "x" * 300_000})
    names = [f"s{number}" for number in range(11)]
    for index, name in enumerate(names, start=1):
        await store.create(
            a_session(name, created_at=float(index), updated_at=float(index), ttl_s=1.0, metadata=metadata)
        )
    reads: list[tuple[list[str], Callable[..., Awaitable[Page[SessionRecord]]]]] = [
        (names[::-1], store.query),
        (names, functools.partial(store.expired, 1e9)),
    ]
    for order, read in reads:
        listed: list[str] = []
        page = await read(limit=100)
        while True:
            equal(0 < len(page) <= 5, True, f"a page of {len(page)} sessions has one to five")  # noqa: PLR2004
            listed += [session.session_id for session in page]
            if page.cursor is None:
                break
            page = await read(cursor=page.cursor, limit=100)
        equal(listed, order, "all sessions, once and in order")


@_law
async def check_a_commit_moves_its_session_in_the_order_of_updates(store: SessionStore) -> None:
    """The order by `updated_at` follows the last commit."""
    owner = await own(store, "old", updated_at=1.0)
    await store.create(a_session("new", updated_at=2.0))
    await owner.commit(session=replace(owner.session, updated_at=3.0))
    equal(await _listed(store, order_by="updated_at"), ["old", "new"], "sessions by update")


async def _check_query(store: SessionStore, expected: Sequence[str], **filters: Any) -> None:
    equal(await _listed(store, **filters), expected, f"sessions of {filters}")
    equal(await store.count(**filters), len(expected), f"count of {filters}")


@_law
async def check_filters_are_literal(store: SessionStore) -> None:
    """An id matches only itself, and all filters must match; acceptance 46."""
    for name in IDS:
        await store.create(a_session(name, user_id=name, agent=name))
    for name in IDS:
        equal((await store.get(SessionKey(name, name))).session_id, name, "the session of this id")
        await _check_query(store, [name], user_id=name)
        await _check_query(store, [name], agent=name)
        await _check_query(store, [name], user_id=name, agent=name, status="active")
    await _check_query(store, [], user_id="user")
    await _check_query(store, [], user_id="")
    await _check_query(store, [], user_id="user-1", agent="user-10")
    await _check_query(store, [], status="ended")
    owner = Owner(store, (await store.activate(SessionKey("user-1", "user-1"))).session)
    await owner.commit(session=replace(owner.session, status="ended"))
    await _check_query(store, ["user-1"], status="ended")
    await _check_query(store, ["user-1"], status="ended", user_id="user-1")
    await _check_query(store, [], status="active", user_id="user-1")
    await _check_query(store, [name for name in reversed(IDS) if name != "user-1"], status="active")


@_law
async def check_sessions_are_listed_by_their_caller(store: SessionStore) -> None:
    """`called_by` finds the agents that a session has called, `NO_CALLER` what none has called."""
    for name, user, caller in [
        ("a", "u", None),
        ("b", "u", "a"),
        ("c", "u", "a"),
        ("d", "u", "b"),
        ("b", "v", "a"),
    ]:
        agent = name if caller else None
        await store.create(a_session(name, user_id=user, agent=agent, called_by=caller, usage=Usage(calls=1)))
    expected: list[tuple[str | None, str | None, str]] = [
        *(("u", None, "dcba"), ("u", NO_CALLER, "a"), ("u", "a", "cb"), ("u", "b", "d"), ("u", "c", "")),
        *(("v", NO_CALLER, ""), ("v", "a", "b"), (None, NO_CALLER, "a"), (None, None, "bdcba")),
    ]
    for user_id, called_by, names in expected:
        filters: dict[str, Any] = {"user_id": user_id, "called_by": called_by}
        listed = [session.session_id for session in await store.query(**filters)]
        equal(listed, list(names), f"sessions of {filters}")
        equal(await store.count(**filters), len(names), f"count of {filters}")
    await _check_query(store, ["b"], user_id="u", called_by="a", agent="b")
    await _check_query(store, [], user_id="u", called_by="a", status="ended")
    await _check_query(store, [], called_by=NO_CALLER, agent="b")
    await refuses(InvalidInputError, store.query(called_by="a"), "a caller without a user")
    owner = Owner(store, (await store.activate(SessionKey("c", "u"))).session)
    await owner.commit(session=replace(owner.session, status="ended"))
    await _check_query(store, ["c"], user_id="u", called_by="a", status="ended")
    await store.delete(SessionKey("b", "u"))
    await _check_query(store, ["c"], user_id="u", called_by="a")
    await _check_query(store, ["d"], user_id="u", called_by="b")


@_law
async def check_a_broken_cursor_is_refused(store: SessionStore) -> None:
    """Whatever is wrong with it, the call raises InvalidInputError."""
    for name in "abc":
        await store.create(a_session(name))
    valid_cursor = (await store.query(limit=1)).cursor or ""
    broken = ["", "x", ":", "1.0:", ":1", "nan:1", "inf:1", "1.0:1.5", "1.0:" + "9" * 30, "\0", "'"]
    for cursor in (*broken, valid_cursor + "x", "x" + valid_cursor):
        await refuses(InvalidInputError, store.query(cursor=cursor), f"cursor {cursor!r}")
        await refuses(InvalidInputError, store.unsettled(cursor=cursor), f"cursor {cursor!r} of unsettled ones")
        await refuses(InvalidInputError, store.expired(0.0, cursor=cursor), f"cursor {cursor!r} of expired ones")


# Sessions that need a process, and expired sessions


async def _all_pages(list_: Callable[..., Awaitable[Page[Item]]], expected: Sequence[Item], subject: str) -> None:
    """Check that pages of every size have the expected items, in order."""
    for limit in range(1, len(expected) + 2):
        items: list[Item] = []
        cursor = None
        while True:
            page = await list_(cursor=cursor, limit=limit)
            items += page
            if page.cursor is None:
                break
            equal(len(page), limit, f"{subject} of a page that has a cursor")
            cursor = page.cursor
        equal(items, expected, f"{subject} in pages of {limit}")
    for limit in (0, -1):
        await refuses(InvalidInputError, list_(limit=limit), f"{subject} with a limit of {limit}")


@_law
async def check_sessions_with_unsettled_runs_are_listed(store: SessionStore) -> None:
    """Once each, in order of creation, while a run is queued or running. Waiting for approval does not count."""
    await _all_pages(store.unsettled, [], "of no sessions")
    states_of_sessions: dict[str, list[RunState]] = {
        "z": ["completed", "running"],
        "b": ["queued", "running", "queued"],
        "none": [],
        "waits": ["awaiting_approval"],
        "a": ["awaiting_approval", "queued"],
        "ended": ["completed", "cancelled", "failed", "interrupted"],
        "c": ["running"],
    }
    owners = {}
    for position, (name, states) in enumerate(states_of_sessions.items()):
        owner = owners[name] = await own(
            store, name, created_at=float((position * 3) % 7), updated_at=float((position * 5) % 7)
        )
        for index, state in enumerate(states):
            await owner.commit(new_run=a_run(f"{name}{index}", index, state, session_id=name))
    await _all_pages(store.unsettled, list(map(SessionKey, "zbac")), "unsettled ones")
    page = await store.unsettled(limit=2)
    await owners["z"].commit(runs=[a_run("z1", 1, "completed", session_id="z")])
    await owners["a"].commit(runs=[a_run("a1", 1, "awaiting_approval", session_id="a")])
    await owners["waits"].commit(runs=[a_run("waits0", 0, "running", session_id="waits")])
    await store.delete(SessionKey("c"))
    equal(
        (await store.unsettled(cursor=page.cursor)).items,
        (SessionKey("waits"),),
        "what is behind a cursor, when runs went on",
    )
    await _all_pages(store.unsettled, [SessionKey("b"), SessionKey("waits")], "unsettled ones, later")
    for name in ("b", "waits"):
        await store.delete(SessionKey(name))
    await _all_pages(store.unsettled, [], "unsettled ones, when those are deleted")


@_law
async def check_expired_sessions_are_listed(store: SessionStore) -> None:
    """In order of creation, from exactly `ttl_s` seconds after the last commit. Without `ttl_s` they never expire."""

    async def check(now: float, *expected: str) -> None:
        records = [await store.get(SessionKey(name)) for name in expected]
        await _all_pages(functools.partial(store.expired, now), records, f"expired ones at {now}")

    await check(1e12)
    for name, updated_at, ttl_s in [
        *(("z", 100.0, 10.0), ("never", 0.0, None), ("a", 50.0, 60.0), ("at once", 110.0, 0.0), ("long", 0.0, 1e6)),
        *(("fine", 1763700000.125, 0.0625), ("b", 90.0, 20.0)),
    ]:
        await store.create(a_session(name, updated_at=updated_at, created_at=-updated_at, ttl_s=ttl_s))
    await check(109.999)
    await check(110.0, "z", "a", "at once", "b")
    await check(1763700000.187, "z", "a", "at once", "long", "b")
    await check(1763700000.1875, "z", "a", "at once", "long", "fine", "b")
    page = await store.expired(110.0, limit=1)
    owners = {name: Owner(store, (await store.activate(SessionKey(name))).session) for name in ("z", "a", "never", "b")}
    await check(110.0, "z", "a", "at once", "b")
    await owners["z"].commit(session=replace(owners["z"].session, updated_at=105.0))
    await owners["a"].commit(session=replace(owners["a"].session, ttl_s=None))
    await owners["never"].commit(session=replace(owners["never"].session, ttl_s=110.0))
    behind = [session.session_id for session in await store.expired(110.0, cursor=page.cursor)]
    equal(behind, ["never", "at once", "b"], "what is behind a cursor, when sessions went on")
    await store.delete(SessionKey("b"))
    await check(110.0, "never", "at once")
    await check(115.0, "z", "never", "at once")


@_law
async def check_sessions_that_nobody_uses_are_deleted_together(store: SessionStore) -> None:
    """Of those that were read, all but used, busy and calling ones, and agents, go with what is theirs alone."""
    if not (isinstance(store, UnchangedDeletion) and deletes_unchanged(store)):
        return
    owners = {name: await own(store, name) for name in ("plain", "forked", "used", "taken", "busy", "caller")}
    first = {name: Span(owner.session.log, 0, 1) for name, owner in owners.items()}
    for name, owner in owners.items():
        await owner.commit(f"text of {name}", turns=[a_turn(0, output=(first[name],))], events=[an_event(1)])
    shared = first["forked"]
    await store.create(a_session("fork"), a_turn(0, prompt=(shared,)))
    await owners["busy"].commit(turns=[a_turn(1, status="running")], new_run=a_run("r", 1))
    await store.create(a_session("agent", called_by="caller"))
    stored = [await store.get(SessionKey(name)) for name in (*owners, "agent")]
    await owners["used"].commit(events=[an_event(2)])
    await store.activate(SessionKey("taken"))
    gone = [SessionKey("plain"), SessionKey("forked")]
    equal(sorted(await store.delete_unchanged(stored)), sorted(gone), "the sessions that nobody uses")
    for key in gone:
        await refuses(SessionNotFoundError, store.get(key), f"reading {key}")
    equal(await store.count(), len(stored) - len(gone) + 1, "sessions that stay")
    equal(await held(store, shared), ["text of forked"], "the block that a fork uses")
    equal(await held(store, first["plain"]), ["missing"], "the block that none uses")
    equal([event.seq for event in await store.events(SessionKey("used"))], [1, 2], "events of one that stays")
    equal(await store.delete_unchanged(stored), [], "what is deleted again")
    equal(await store.delete_unchanged([]), [], "what is deleted of none")


@_law
async def check_sessions_that_nobody_uses_are_ended_together(store: SessionStore) -> None:
    """Each under a new epoch, so that nobody goes on with it. Used, busy and calling ones, and agents, stay."""
    if not (isinstance(store, UnchangedDeletion) and deletes_unchanged(store)):
        return
    names = ("plain", "over", "used", "taken", "busy", "caller")
    owners = {name: await own(store, name, ttl_s=1.0, metadata=NESTED, agent="a") for name in names}
    await owners["over"].commit(session=replace(owners["over"].session, status="ended"))
    await owners["busy"].commit(turns=[a_turn(0, status="running")], new_run=a_run("r", 0))
    await store.create(a_session("agent", called_by="caller"))
    read = {name: await store.get(SessionKey(name)) for name in (*names, "agent")}
    await owners["used"].commit(events=[an_event(2)])
    await store.activate(SessionKey("taken"))
    others = [await store.get(SessionKey(name)) for name in ("used", "taken", "busy", "caller", "agent")]
    ended = {session.session_id: session for session in await store.end_unchanged(list(read.values()))}
    equal(sorted(ended), ["over", "plain"], "the sessions that nobody uses")
    for name, session in ended.items():
        stored = await store.get(SessionKey(name))
        equal(session, stored, f"{name}, as it was returned")
        changes = {"status": "ended", "epoch": read[name].epoch + 1, "revision": stored.revision}
        equal(stored, replace(read[name], **changes), f"{name}, once it has ended")  # type: ignore[arg-type]
        equal(stored.revision > read[name].revision, True, f"whether the revision of {name} is higher")
        await refuses(SessionFencedError, owners[name].commit(events=[an_event(9)]), f"a commit to {name}")
    for session in others:
        equal(await store.get(session.key), session, f"{session.session_id}, which is used")
    for filters in ({}, {"user_id": DEFAULT_USER}, {"agent": "a"}):
        listed = [session.session_id for session in await store.query(status="ended", **filters)]  # type: ignore[arg-type]
        equal(sorted(listed), ["over", "plain"], f"sessions that have ended, of {filters}")
    equal("plain" in [session.session_id for session in await store.expired(1e9)], True, "whether one expires still")
    equal(await store.end_unchanged(list(read.values())), [], "what is ended again, as it was first")
    equal(await store.end_unchanged([]), [], "what is ended of none")
    again = await store.end_unchanged(list(ended.values()))
    equal(sorted(session.session_id for session in again), ["over", "plain"], "what is ended again, as it is then")
    deleted = await store.delete_unchanged([*ended.values(), *again])
    equal(sorted(deleted), [SessionKey("over"), SessionKey("plain")], "what is deleted then")


@_law
async def check_many_deletions_at_once_are_each_done_or_refused(store: SessionStore) -> None:
    """A missing and a fenced session do not keep the others, and each tells how many turns it had."""
    owners = [await own(store, f"s{number}") for number in range(6)]
    for number, owner in enumerate(owners):
        await owner.commit(turns=[a_turn(index) for index in range(number)])
    deletions = [store.delete(owner.session.key, epoch=1) for owner in owners[:5]]
    fenced, missing = store.delete(owners[5].session.key, epoch=7), store.delete(SessionKey("missing"))
    outcomes = await asyncio.gather(*deletions, fenced, missing, return_exceptions=True)
    equal(outcomes[:5], [0, 1, 2, 3, 4], "turns that each had")
    kinds = [type(outcome) for outcome in outcomes[5:]]
    equal(kinds, [SessionFencedError, SessionNotFoundError], "the errors of the others")
    equal(await store.count(), 1, "sessions that stay")
