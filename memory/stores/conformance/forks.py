"""Laws of `SessionStore` about forks and deletions."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from turnwise.errors import CorruptRecordError, RunNotFoundError, SessionFencedError, SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, join
from turnwise.memory.deliveries.records import DeliveryChange
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import (
    Owner,
    a_delivery,
    a_run,
    a_session,
    a_turn,
    an_event,
    eventful,
    held,
    of_everything,
    own,
    state_of,
    unchanged,
)
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses

LAWS: list[Law] = []
"""All laws of this file, in order."""

_law = collector(LAWS)


async def _fork(store: SessionStore, session_id: str, *spans: Span, index: int = 0) -> SessionRecord:
    """Create a fork whose first turn has these spans: one as prompt, two as input, the others as output."""
    turn = a_turn(index, status="completed", parent=f"s#{index}", prompt=spans[:1], input=spans[:2], output=spans[2:])
    return await store.create(a_session(session_id, parent=f"s#{index}", next_index=index + 1), turn)


@_law
async def check_a_fork_starts_with_its_turn(store: SessionStore) -> None:
    """The turn uses blocks of the parent. The fork has its own log and does not change the parent; acceptance 13."""
    owner = await own(store)
    span = await owner.commit("a", "b", "c")
    async with unchanged(store, "s"):
        fork = await _fork(store, "fork", Span(span.log, 0, 1), Span(span.log, 2, 3), Span(span.log, 1, 2), index=4)
        activation, (turn,) = await store.activate(SessionKey("fork")), await store.turns(SessionKey("fork"))
        equal(
            (activation.session, activation.head),
            (replace(fork, epoch=1, revision=activation.session.revision), turn),
            "the fork",
        )
        equal((turn.index, turn.parent, fork.parent), (4, "s#4", "s#4"), "where it comes from")
        equal(await store.blocks(join(turn.input, turn.output)), ["a", "c", "b"], "what it spans")
        new = await Owner(store, activation.session).commit("d")
        equal(new.log == span.log, False, "whether it writes to the other's log")
        equal(await store.blocks([new]), ["d"], "what it appended")
    await store.delete(SessionKey("fork"))
    equal(await store.blocks([span]), ["a", "b", "c"], "the other's blocks when the fork is deleted")
    equal(await held(store, new), ["missing"], "the fork's own when it is deleted")


@_law
async def check_the_blocks_of_a_fork_outlive_its_parent(store: SessionStore) -> None:
    """Deleting the parent keeps only the blocks that forks use. Deleting the last fork deletes these too."""
    owner = await own(store)
    log = (await owner.commit(*"abcdefgh")).log
    await _fork(store, "one", Span(log, 1, 2), Span(log, 3, 5), Span(log, 4, 5))
    await _fork(store, "two", Span(log, 4, 6))
    far = await Owner(store, (await store.activate(SessionKey("two"))).session).commit("x", "y")
    await _fork(store, "of two", Span(log, 4, 5), Span(far.log, 1, 2))
    for deleted, remaining, far_kept in [
        ("s", "bdef", "xy"),
        ("one", "ef", "xy"),
        ("two", "e", "y"),
        ("of two", "", ""),
    ]:
        await store.delete(SessionKey(deleted))
        for span, letters, held_letters in [(Span(log, 0, 8), "abcdefgh", remaining), (far, "xy", far_kept)]:
            expected = [letter if letter in held_letters else "missing" for letter in letters]
            equal(await held(store, span), expected, f"{letters!r} when {deleted!r} is deleted")


@_law
async def check_carried_and_summarised_blocks_of_a_fork_outlive_its_parent(store: SessionStore) -> None:
    """The blocks of `carried` and `also` stay until the last fork that names them is deleted; `carried` comes back."""
    owner = await own(store)
    log = (await owner.commit(*"abcdefgh")).log
    first = a_turn(0, status="completed", input=(Span(log, 0, 1),), carried=(Span(log, 4, 5), Span(log, 2, 3)))
    second = a_turn(0, status="completed", input=(Span(log, 0, 1),))
    await store.create(a_session("one"), first, (Span(log, 6, 7), Span(log, 4, 6)))
    await store.create(a_session("two"), second, also=(Span(log, 5, 7), Span(log, 5, 6), Span(log, 2, 2)))
    await store.create(a_session("three"), replace(second, carried=(Span(log, 2, 3),)))
    await store.create(a_session("of nothing"), a_turn(0))
    await store.create(a_session("no fork"), also=(Span(log, 7, 9),))
    for session_id, carried in (("one", first.carried), ("two", ()), ("three", (Span(log, 2, 3),))):
        (turn,), head = await store.turns(SessionKey(session_id)), (await store.activate(SessionKey(session_id))).head
        equal((turn.carried, head and head.carried), (carried, carried), f"what the turn of {session_id!r} carries")
    for deleted, remaining in [("s", "acefg"), ("one", "acfg"), ("three", "afg"), ("two", "")]:
        await store.delete(SessionKey(deleted))
        expected = [letter if letter in remaining else "missing" for letter in "abcdefgh"]
        equal(await held(store, Span(log, 0, 8)), expected, f"the blocks when {deleted!r} is deleted")


@_law
async def check_a_fork_of_missing_blocks_is_refused(store: SessionStore) -> None:
    """It raises CorruptRecordError and stores nothing, so the id can still be used."""
    owner = await own(store)
    log = (await owner.commit("a", "b")).log
    for span in (Span(log, 1, 3), Span("no such log", 0, 1)):
        await refuses(CorruptRecordError, _fork(store, "fork", span), f"a fork of {span}")
    await _fork(store, "witness", Span(log, 0, 1))
    await store.delete(SessionKey("s"))
    for spans in ([Span(log, 1, 2)], [Span(log, 0, 1), Span(log, 0, 2)], [Span(log, 0, 1)] * 2 + [Span(log, 1, 2)]):
        await refuses(CorruptRecordError, _fork(store, "fork", *spans), f"a fork of {spans}")
        await refuses(SessionNotFoundError, store.get(SessionKey("fork")), "the fork")
    valid, missing = a_turn(0, input=(Span(log, 0, 1),)), (Span(log, 0, 2),)
    for turn, also in (
        (replace(valid, carried=missing), ()),
        (valid, missing),
        (replace(valid, carried=valid.input), missing),
    ):
        fork = store.create(a_session("fork"), turn, also)
        await refuses(CorruptRecordError, fork, f"a fork that carries {turn.carried} and names {also}")
        await refuses(SessionNotFoundError, store.get(SessionKey("fork")), "the fork")
    equal(await store.count(), 1, "sessions")
    await store.delete(SessionKey("witness"))
    equal(await held(store, Span(log, 0, 2)), ["missing"] * 2, "blocks that only refused forks spanned")
    await store.create(a_session("fork"))
    equal(await store.turns(SessionKey("fork")), [], "turns of a session under the id of a refused fork")


@_law
async def check_a_fork_and_a_deletion_at_once_are_in_some_order(store: SessionStore, other: SessionStore) -> None:
    """A fork that is not refused has all its blocks, even if its parent is deleted at the same time."""
    for round_number in range(20):
        owner = await own(store, "s")
        span = await owner.commit("a", "b")
        delete = asyncio.ensure_future(store.delete(SessionKey("s")))
        await asyncio.sleep(round_number * 0.0002)  # so that the fork comes at different points of the deletion
        fork, _ = await asyncio.gather(_fork(other, f"fork{round_number}", span), delete, return_exceptions=True)
        refused = isinstance(fork, CorruptRecordError)
        if isinstance(fork, BaseException) and not refused:
            raise fork
        expected = ["missing"] * 2 if refused else ["a", "b"]
        equal(await held(store, span), expected, f"the blocks when the fork gave {fork!r}")


@_law
async def check_a_deletion_deletes_everything(store: SessionStore) -> None:
    """It does not change other sessions. The ids and keys can be used again, and a session with the id starts empty."""
    another, owner = await own(store, "another"), await eventful(store)
    await another.commit("x", turns=[a_turn(0)], new_run=a_run("other", 0, session_id="another"), events=[an_event(1)])
    before = await state_of(store, "another")
    await store.delete(SessionKey("s"))
    await refuses(SessionNotFoundError, store.get(SessionKey("s")), "a deleted session")
    await refuses(SessionNotFoundError, store.delete(SessionKey("s")), "a deleted session, deleted again")
    await refuses(RunNotFoundError, store.run("r0"), "a run of a deleted session")
    equal(await held(store, Span(owner.session.log, 0, 2)), ["missing"] * 2, "blocks of a deleted session")
    equal([session.session_id for session in await store.query()], ["another"], "sessions")
    equal(await state_of(store, "another"), before, "the other session")
    created = await store.create(a_session())
    equal(created.log == owner.session.log, False, "whether a log is given twice")
    empty = [created, ["missing"] * 2, [], [], [], [], []]
    equal(await state_of(store, "s"), empty, "a session created under a deleted one's id")
    activation = await store.activate(SessionKey("s"))
    equal(
        (activation.head, activation.open_turns, activation.open_runs, activation.session.epoch),
        (None, (), (), 1),
        "its activation",
    )
    new = Owner(store, activation.session)
    added = [DeliveryChange(None, a_delivery(key)) for key in ("d1", "d2")]
    everything = of_everything(new, run_id="r0", idempotency_key="k0", event_key="e1")
    await store.commit(SessionKey("s"), 1, replace(everything, deliveries=added))


@_law
async def check_a_stale_owner_deletes_nothing(store: SessionStore) -> None:
    """A deletion under another epoch than the last is refused. One without an epoch is carried out."""
    await eventful(store)
    await store.activate(SessionKey("s"))
    for epoch in (0, 1, 3):
        async with unchanged(store, "s"):
            await refuses(
                SessionFencedError, store.delete(SessionKey("s"), epoch=epoch), f"a delete under epoch {epoch} of 2"
            )
    await store.delete(SessionKey("s"), epoch=2)
    await eventful(store)
    await store.delete(SessionKey("s"))
    equal(await store.count(), 0, "sessions")
