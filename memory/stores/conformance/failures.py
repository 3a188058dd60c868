"""Laws of `SessionStore` about verbs that fail, and about what every store refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from turnwise.errors import CorruptRecordError, InvalidInputError, SessionExistsError, SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import (
    a_run,
    a_session,
    a_turn,
    an_event,
    eventful,
    of_everything,
    own,
    unchanged,
)
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses
from turnwise.memory.values.ids import MAX_INDEXED_BYTES

LAWS: list[Law] = []
"""All laws of this file, in order."""

_law = collector(LAWS)


class _Broken(Sequence[Any]):
    """A list that cannot be read to its end."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values) + 1

    def __iter__(self) -> Iterator[Any]:
        yield from self._values
        raise ValueError("a law has broken this list")

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


@_law
async def check_a_commit_that_fails_leaves_nothing_behind(store: SessionStore) -> None:
    """Whichever part of it cannot be read to its end. The owner goes on."""
    owner = await eventful(store)
    full_commit = replace(of_everything(owner), cleared_blocks=[(0, "cleared")])
    for part in ("blocks", "turns", "dropped_turns", "runs", "events", "cleared_blocks", "deliveries", "spent"):
        async with unchanged(store, "s"):
            parts: dict[str, Any] = {part: _Broken(getattr(full_commit, part))}
            broken = replace(full_commit, **parts)
            await refuses(Exception, store.commit(SessionKey("s"), 1, broken), f"a commit with broken {part}")
    await owner.commit("c")


@_law
async def check_other_verbs_that_fail_leave_nothing_behind(store: SessionStore) -> None:
    """Verbs that are refused late: a fork of blocks that are missing, an id that exists, one that does not."""
    owner = await eventful(store)
    log, fork = owner.session.log, a_session("fork")
    missing = a_turn(0, input=(Span(log, 0, 1), Span(log, 1, 9)))
    async with unchanged(store, "s"):
        await refuses(CorruptRecordError, store.create(fork, missing), "a fork of missing blocks")
        await refuses(SessionExistsError, store.create(a_session("s"), a_turn(0)), "a session that exists")
        for verb in (store.activate, store.state, store.delete):
            await refuses(SessionNotFoundError, verb(SessionKey("fork")), f"{verb.__name__} of what does not exist")
    equal(await store.count(), 1, "how many sessions there are")
    await store.delete(SessionKey("s"))


@_law
async def check_the_state_is_what_an_activation_starts_from(store: SessionStore) -> None:
    """With the epoch as it was; and reading it changes nothing."""
    owner = await eventful(store)
    await owner.commit(turns=[a_turn(0, status="completed"), a_turn(2, status="queued")])
    async with unchanged(store, "s"):
        state = await store.state(SessionKey("s"))
    equal(state.session, owner.session, "the session")
    activated = await store.activate(SessionKey("s"))
    equal(state.head, activated.head, "the last turn that has ended")
    equal((state.open_turns, state.open_runs), (activated.open_turns, activated.open_runs), "what is open")


@_law
async def check_names_that_some_store_cannot_keep_are_refused(store: SessionStore) -> None:
    """Null characters, lone surrogates, and more bytes than a database indexes."""
    owner = await own(store)
    longest = "é" * (MAX_INDEXED_BYTES // 2)
    for name in ("a\0b", "a\ud800b", f"{longest}é"):
        async with unchanged(store, "s"):
            for values in ({"session_id": name}, {"user_id": name}, {"agent": name}):
                session = a_session(**{"session_id": "t", **values})
                await refuses(InvalidInputError, store.create(session), f"a session of {values!r:.40}")
            parts: Sequence[dict[str, Any]] = (
                {"new_run": a_run(name, 0)},
                {"new_run": a_run("r", 0, idempotency_key=name)},
                {"turns": [a_turn(0, turn_id=name)]},
                {"events": [an_event(1, name)]},
            )
            for part in parts:
                await refuses(
                    InvalidInputError, store.commit(SessionKey("s"), 1, owner.prepare(**part)), f"{part!r:.40}"
                )
            delivery = Delivery(delivery_id="d", session_id="s", key=name, occurs_at=1.0, due_at=1.0)
            await refuses(InvalidInputError, store.add_delivery(delivery), f"a delivery under {name!r:.40}")
    await store.create(a_session(longest[:-4]))  # with its user it is as long
    await owner.commit(events=[an_event(1, longest)], new_run=a_run(longest, 0))
    equal((await store.run(longest)).session_id, "s", "the session of the run with the longest id")


@_law
async def check_a_deletion_returns_how_many_turns_went(store: SessionStore) -> None:
    """Those of this session only."""
    owner = await eventful(store)
    await own(store, "fork", a_turn(0, input=(Span(owner.session.log, 0, 1),)))
    await own(store, "none")
    equal([await store.delete(SessionKey(name)) for name in ("s", "fork", "none")], [2, 1, 0], "how many turns went")


@_law
async def check_a_check_for_writes_changes_nothing(store: SessionStore) -> None:
    """While the store takes writes, it returns."""
    await eventful(store)
    async with unchanged(store, "s"):
        await store.try_writing()
    equal(await store.count(), 1, "how many sessions there are")
