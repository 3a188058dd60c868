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
from turnwise.memory.conversation.branches import Branch
from turnwise.memory.conversation.ledger import LedgerQuery
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.deliveries.records import DeliveryChange
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.conformance.fixtures import (
    NESTED,
    USAGE,
    Owner,
    a_delivery,
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
    request: dict[str, Any] = {"model": "m'%\"\\ü", "engine": "e'%\"\\ü", "params": NESTED, "title": "t'%\"\\ü\0"}
    request["branches"] = (Branch(2, 1), Branch(3, 2))
    full = a_session(metadata=NESTED, status="ended", next_index=4, usage=USAGE, **times, **owner, **memory, **request)
    logs = set()
    for session in (full, a_session("default")):
        created = await store.create(session)
        equal(created, replace(session, log=created.log), "what create returned")
        equal(await store.get(session.key), created, "what get returned")
        logs.add(created.log)
    equal(len(logs), 2, "logs of two sessions")


@_law
async def check_an_id_is_taken_once(store: SessionStore) -> None:
    """Creating a session again is refused and changes nothing; acceptance 44."""
    owner = await own(store, user_id="first")
    await owner.commit("block", turns=[a_turn(0)], new_run=a_run("r", 0, user_id="first"), events=[an_event(1)])
    for turn in (None, a_turn(5)):
        async with unchanged(store, SessionKey("s", "first")):
            error = await refuses(SessionExistsError, store.create(a_session(user_id="first"), turn), "a taken id")
            equal(error.session_id, "s", "the id in the error")


@_law
async def check_each_user_has_a_session_of_one_id(store: SessionStore) -> None:
    """A session is its user's session with this id; what is done to one is not seen in another's."""
    users = ("first", "second", "s", "default")
    owners = {user: await own(store, user_id=user) for user in users}
    for user, owner in owners.items():
        run_id = f"run of {user}"
        await owner.commit(
            f"block of {user}",
            turns=[a_turn(0)],
            new_run=a_run(run_id, 0, user_id=user, idempotency_key="key"),
            events=[an_event(1, user_id=user)],
        )
    for user, owner in owners.items():
        key = SessionKey("s", user)
        equal((await store.get(key)).log, owner.session.log, f"the session of {user!r}")
        equal([run.run_id for run in await store.runs(key)], [f"run of {user}"], f"runs of {user!r}")
        run = await store.run_of_key(key, "key")
        equal(run and run.run_id, f"run of {user}", f"the run of a key of {user!r}")
        equal([event.user_id for event in await store.events(key)], [user], f"events of {user!r}")
        equal(await store.run(f"run of {user}", user), run, f"the run of {user!r} by its id")
        for other in ("", *users):
            if other != user:
                error = await refuses(
                    RunNotFoundError, store.run(f"run of {user}", other), f"the run of {user!r} for {other!r}"
                )
                missing = await refuses(RunNotFoundError, store.run("none", other), "a missing run")
                equal(error.where, missing.where, "the place in the errors")
    await store.delete(SessionKey("s", "first"))
    await refuses(SessionNotFoundError, store.get(SessionKey("s", "first")), "a deleted session")
    for user in users[1:]:
        equal(len(await store.turns(SessionKey("s", user))), 1, f"turns of {user!r} after another's deletion")


@_law
async def check_all_stores_have_one_clock(store: SessionStore, other: SessionStore) -> None:
    """`now` and `activate` return the same time through every store, to a few seconds."""
    await store.create(a_session())
    times = [
        await store.now(),
        (await other.activate(SessionKey("s"))).now,
        await other.now(),
        (await store.activate(SessionKey("s"))).now,
    ]
    equal([round(time - times[0], -1) for time in times], [0.0] * len(times), f"how far {times} are apart")


@_law
async def check_a_missing_session_or_run_is_named(store: SessionStore) -> None:
    """Calls for a missing session or run raise an error that names it. A commit is fenced; acceptance 44."""
    owner = await own(store, "user-1")
    await owner.commit("block", new_run=a_run("run-1", 0, session_id="user-1"))
    for missing in ("user-10", "user-", "user_1", "USER-1", "%"):
        for name in ("get", "activate", "turns", "runs", "events", "delete"):
            error = await refuses(
                SessionNotFoundError, getattr(store, name)(SessionKey(missing)), f"{name} of {missing!r}"
            )
            equal(error.session_id, missing, f"the id in the error of {name}")
        for verb in (store.run_of_key, store.event_of_key):
            await refuses(SessionNotFoundError, verb(SessionKey(missing), "key"), f"{verb.__name__} of {missing!r}")
        await refuses(SessionNotFoundError, store.delete(SessionKey(missing), epoch=0), f"delete of {missing!r}")
        commit = Commit(session=a_session(missing), blocks=())
        await refuses(SessionFencedError, store.commit(SessionKey(missing), 0, commit), f"commit to {missing!r}")
    for missing in ("run-10", "run-", "RUN-1", "run_1", "%"):
        refusal = await refuses(RunNotFoundError, store.run(missing), f"run {missing!r}")
        equal(refusal.run_id, missing, "the id in the error of run")
    equal(await store.run_of_key(SessionKey("user-1"), "key"), None, "a run of no key")
    equal(await store.event_of_key(SessionKey("user-1"), "key"), None, "an event of no key")
    equal(await store.count(), 1, "sessions")


@_law
async def check_first_use_at_once_loses_nothing(store: SessionStore, other: SessionStore) -> None:
    """Two stores make their tables at the same time, each for many callers; acceptance 45."""
    names = [f"s{index}" for index in range(20)]
    stores = {name: (store, other)[index % 2] for index, name in enumerate(names)}
    created = await asyncio.gather(*(stores[name].create(a_session(name)) for name in names))
    equal(len({session.log for session in created}), 20, "logs")
    for reader in (store, other):
        equal(await reader.count(), 20, "sessions")
        equal([await reader.get(SessionKey(name)) for name in names], created, "the sessions as created")


@_law
async def check_one_of_many_creates_a_session(store: SessionStore, other: SessionStore) -> None:
    """If many create one id at once, one succeeds and the others get SessionExistsError; acceptance 45."""
    sessions = [a_session(agent=f"a{index}") for index in range(10)]
    creates = [(store, other)[index % 2].create(session) for index, session in enumerate(sessions)]
    outcomes = await asyncio.gather(*creates, return_exceptions=True)
    won = [session for session in outcomes if isinstance(session, SessionRecord)]
    errors = [error for error in outcomes if isinstance(error, SessionExistsError)]
    equal((len(won), len(errors)), (1, 9), f"winners and losers of {outcomes}")
    equal([await store.get(SessionKey("s")), await other.get(SessionKey("s"))], won * 2, "the session")


@_law
async def check_commits_at_once_lose_nothing(store: SessionStore, other: SessionStore) -> None:
    """Many sessions are written through two stores, and each store reads what the other wrote; acceptance 45."""

    async def write(session_number: int) -> Owner:
        owner = await own((store, other)[session_number % 2], f"s{session_number}")
        for number in range(5):
            await owner.commit(
                f"{session_number}.{number}",
                turns=[a_turn(number)],
                new_run=a_run(f"r{session_number}.{number}", number, session_id=f"s{session_number}"),
                events=[an_event(number + 1, f"e{number}", f"s{session_number}")],
            )
        return owner

    for session_number, owner in enumerate(await asyncio.gather(*map(write, range(8)))):
        numbers = range(5)
        blocks: list[object] = [f"{session_number}.{number}" for number in numbers]
        runs = [a_run(f"r{session_number}.{number}", number, session_id=f"s{session_number}") for number in numbers]
        events = [an_event(number + 1, f"e{number}", f"s{session_number}") for number in numbers]
        expected = [
            owner.session,
            [*blocks, *["missing"] * 2],
            [a_turn(number) for number in numbers],
            runs,
            events,
            [],
            [],
        ]
        for reader in (store, other):
            equal(await state_of(reader, f"s{session_number}"), expected, f"session s{session_number}")


@_law
async def check_a_closed_store_raises_store_closed_error(store: SessionStore) -> None:
    """Closing twice is fine. Every other call after it raises StoreClosedError; acceptance 45."""
    owner = await own(store)
    await store.close()
    await store.close()
    span, commit = Span(owner.session.log, 0, 1), owner.prepare("a")
    for verb in (store.get, store.activate, store.turns, store.runs, store.events, store.delete):
        await refuses(StoreClosedError, verb(SessionKey("s")), f"{verb.__name__} of a closed store")
    await refuses(StoreClosedError, store.run("r"), "run of a closed store")
    for verb_name, call in {
        "create": store.create(a_session("new")),
        "commit": store.commit(SessionKey("s"), 1, commit),
        "blocks": store.blocks([span]),
        "run_of_key": store.run_of_key(SessionKey("s"), "key"),
        "event_of_key": store.event_of_key(SessionKey("s"), "key"),
        "query": store.query(),
        "count": store.count(),
        "now": store.now(),
        "state": store.state(SessionKey("s")),
        "try_writing": store.try_writing(),
        "ledger": store.ledger(LedgerQuery()),
        "forget_in_ledger": store.forget_in_ledger("u"),
        "unsettled": store.unsettled(),
        "expired": store.expired(0.0),
        "add_delivery": store.add_delivery(a_delivery("d")),
        "change_delivery": store.change_delivery(DeliveryChange(a_delivery("d"), None)),
        "delivery": store.delivery(SessionKey("s"), "d"),
        "deliveries": store.deliveries(),
        "due": store.due(0.0),
        "lease_deliveries": store.lease_deliveries("holder", 1.0),
    }.items():
        await refuses(StoreClosedError, call, f"{verb_name} of a closed store")
