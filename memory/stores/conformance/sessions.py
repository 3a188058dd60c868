"""Laws of `SessionStore` about sessions, concurrent calls, and closed stores."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from turnwise.errors import (
    RunNotFoundError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreClosedError,
)
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.conformance.fixtures import (
    NESTED,
    USAGE,
    Owner,
    a_run,
    a_session,
    a_turn,
    an_event,
    own,
    state_of,
    unchanged,
)
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses

LAWS: list[Law] = []
"""All laws of this file, in order."""

_law = collector(LAWS)


@_law
async def check_a_session_comes_back_as_it_was_created(store: SessionStore) -> None:
    """`create` and `get` return every field as given, and a log that no other session has."""
    times: dict[str, Any] = {"created_at": 1763700000.123456, "updated_at": 0.1 + 0.2}
    owner = {"user_id": "ü'%\"\\", "agent": "a", "parent": "p#3"}
    memory: dict[str, Any] = {"memory": "read", "saved": 2, "ttl_s": 0.1 + 0.2}
    asked: dict[str, Any] = {"model": "m'%\"\\ü", "engine": "e'%\"\\ü", "params": NESTED, "title": "t'%\"\\ü\0"}
    full = a_session(metadata=NESTED, status="ended", next_index=4, usage=USAGE, **times, **owner, **memory, **asked)
    logs = set()
    for given in (full, a_session("default")):
        created = await store.create(given)
        equal(created, replace(given, log=created.log), "what create returned")
        equal(await store.get(given.session_id), created, "what get returned")
        logs.add(created.log)
    equal(len(logs), 2, "logs of two sessions")


@_law
async def check_an_id_is_taken_once(store: SessionStore) -> None:
    """Creating a session again is refused and changes nothing; acceptance 44."""
    owner = await own(store, user_id="first")
    await owner.commit("block", turns=[a_turn(0)], new_run=a_run("r", 0), events=[an_event(1)])
    for turn in (None, a_turn(5)):
        async with unchanged(store, "s"):
            error = await refuses(SessionExistsError, store.create(a_session(user_id="second"), turn), "a taken id")
            equal(error.session_id, "s", "the id in the error")


@_law
async def check_all_stores_have_one_clock(store: SessionStore, other: SessionStore) -> None:
    """`now` and `activate` return the same time through every store, to a few seconds."""
    await store.create(a_session())
    times = [await store.now(), (await other.activate("s")).now, await other.now(), (await store.activate("s")).now]
    equal([round(time - times[0], -1) for time in times], [0.0] * len(times), f"how far {times} are apart")


@_law
async def check_a_missing_session_or_run_is_named(store: SessionStore) -> None:
    """Calls for a missing session or run raise an error that names it. A commit is fenced; acceptance 44."""
    owner = await own(store, "user-1")
    await owner.commit("block", new_run=a_run("run-1", 0, session_id="user-1"))
    for missing in ("user-10", "user-", "user_1", "USER-1", "%"):
        for name in ("get", "activate", "turns", "runs", "events", "delete"):
            error = await refuses(SessionNotFoundError, getattr(store, name)(missing), f"{name} of {missing!r}")
            equal(error.session_id, missing, f"the id in the error of {name}")
        for verb in (store.run_of_key, store.event_of_key):
            await refuses(SessionNotFoundError, verb(missing, "key"), f"{verb.__name__} of {missing!r}")
        await refuses(SessionNotFoundError, store.delete(missing, epoch=0), f"delete of {missing!r}")
        commit = Commit(session=a_session(missing), blocks=())
        await refuses(SessionFencedError, store.commit(missing, 0, commit), f"commit to {missing!r}")
    for missing in ("run-10", "run-", "RUN-1", "run_1", "%"):
        found = await refuses(RunNotFoundError, store.run(missing), f"run {missing!r}")
        equal(found.run_id, missing, "the id in the error of run")
    equal(await store.run_of_key("user-1", "key"), None, "a run of no key")
    equal(await store.event_of_key("user-1", "key"), None, "an event of no key")
    equal(await store.count(), 1, "sessions")


@_law
async def check_first_use_at_once_loses_nothing(store: SessionStore, other: SessionStore) -> None:
    """Two stores make their tables at the same time, each for many callers; acceptance 45."""
    names = [f"s{at}" for at in range(20)]
    stores = {name: (store, other)[at % 2] for at, name in enumerate(names)}
    created = await asyncio.gather(*(stores[name].create(a_session(name)) for name in names))
    equal(len({session.log for session in created}), 20, "logs")
    for reader in (store, other):
        equal(await reader.count(), 20, "sessions")
        equal([await reader.get(name) for name in names], created, "the sessions as created")


@_law
async def check_one_of_many_creates_a_session(store: SessionStore, other: SessionStore) -> None:
    """If many create one id at once, one succeeds and the others get SessionExistsError; acceptance 45."""
    given = [a_session(user_id=f"u{at}") for at in range(10)]
    creates = [(store, other)[at % 2].create(session) for at, session in enumerate(given)]
    found = await asyncio.gather(*creates, return_exceptions=True)
    won = [session for session in found if isinstance(session, SessionRecord)]
    lost = [error for error in found if isinstance(error, SessionExistsError)]
    equal((len(won), len(lost)), (1, 9), f"winners and losers of {found}")
    equal([await store.get("s"), await other.get("s")], won * 2, "the session")


@_law
async def check_commits_at_once_lose_nothing(store: SessionStore, other: SessionStore) -> None:
    """Many sessions are written through two stores, and each store reads what the other wrote; acceptance 45."""

    async def write(at: int) -> Owner:
        owner = await own((store, other)[at % 2], f"s{at}")
        for number in range(5):
            await owner.commit(
                f"{at}.{number}",
                turns=[a_turn(number)],
                new_run=a_run(f"r{at}.{number}", number, session_id=f"s{at}"),
                events=[an_event(number + 1, f"e{number}", f"s{at}")],
            )
        return owner

    for at, owner in enumerate(await asyncio.gather(*map(write, range(8)))):
        numbers = range(5)
        blocks: list[object] = [f"{at}.{number}" for number in numbers]
        runs = [a_run(f"r{at}.{number}", number, session_id=f"s{at}") for number in numbers]
        events = [an_event(number + 1, f"e{number}", f"s{at}") for number in numbers]
        whole = [owner.session, [*blocks, *["missing"] * 2], [a_turn(number) for number in numbers], runs, events]
        for reader in (store, other):
            equal(await state_of(reader, f"s{at}"), whole, f"session s{at}")


@_law
async def check_a_closed_store_raises_store_closed_error(store: SessionStore) -> None:
    """Closing twice is fine. Every other call after it raises StoreClosedError; acceptance 45."""
    owner = await own(store)
    await store.close()
    await store.close()
    span, commit = Span(owner.session.log, 0, 1), owner.prepare("a")
    for verb in (store.get, store.activate, store.turns, store.run, store.runs, store.events, store.delete):
        await refuses(StoreClosedError, verb("s"), f"{verb.__name__} of a closed store")
    for what, call in {
        "create": store.create(a_session("new")),
        "commit": store.commit("s", 1, commit),
        "blocks": store.blocks([span]),
        "run_of_key": store.run_of_key("s", "key"),
        "event_of_key": store.event_of_key("s", "key"),
        "query": store.query(),
        "count": store.count(),
        "now": store.now(),
        "state": store.state("s"),
        "try_writing": store.try_writing(),
        "usage": store.usage(),
        "unsettled": store.unsettled(),
        "expired": store.expired(0.0),
    }.items():
        await refuses(StoreClosedError, call, f"{what} of a closed store")
