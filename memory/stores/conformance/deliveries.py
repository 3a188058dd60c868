"""Laws of `SessionStore` about deliveries: what sessions are to do later, and who may carry it out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from turnwise.errors import (
    DeliveryChangedError,
    DuplicateKeyError,
    InvalidInputError,
    RunNotFoundError,
    SessionFencedError,
    SessionNotFoundError,
)
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.deliveries.schedules import Schedule
from turnwise.memory.stores.base import SessionStore, SweepClaims
from turnwise.memory.stores.conformance.fixtures import (
    ADDRESSED_DELIVERY,
    FULL_DELIVERY,
    a_delivery,
    a_run,
    a_session,
    eventful,
    own,
    unchanged,
)
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses
from turnwise.memory.values.frozen_json import freeze

LAWS: list[Law] = []
"""All laws of this file, in order."""

_law = collector(LAWS)

KEY = SessionKey("s")


def _moved(delivery: Delivery, due_at: float | None) -> DeliveryChange:
    """Return a change of when a delivery is due."""
    after = replace(delivery, occurs_at=due_at or 0.0, due_at=due_at, revision=delivery.revision + 1)
    return DeliveryChange(delivery, after)


@_law
async def check_a_delivery_comes_back_as_it_was_added(store: SessionStore, other: SessionStore) -> None:
    """By its key, in lists, and when it is due. Its session is not changed."""
    session = await store.create(a_session())
    for delivery in (FULL_DELIVERY, ADDRESSED_DELIVERY, a_delivery("never", None), a_delivery("plain")):
        equal(await store.add_delivery(delivery), delivery, "what add_delivery returned")
        equal(await other.delivery(KEY, delivery.key), delivery, "the delivery by its key")
    due = (a_delivery("plain"), ADDRESSED_DELIVERY, FULL_DELIVERY)
    equal((await other.due(2e9)).items, due, "what is due")
    equal(await other.delivery(KEY, "none"), None, "the delivery of a key that was never used")
    equal(await store.get(KEY), session, "the session")


@_law
async def check_a_key_of_a_delivery_is_used_once(store: SessionStore, other: SessionStore) -> None:
    """Adding under a key again returns the first delivery, also if many add at once. Each session has its own keys."""
    for session_id in ("s", "t"):
        await store.create(a_session(session_id))
    additions = [a_delivery("d", float(index + 1), delivery_id=f"d{index}") for index in range(10)]
    added = await asyncio.gather(*((store, other)[index % 2].add_delivery(additions[index]) for index in range(10)))
    equal(set(added), {await store.delivery(KEY, "d")}, "what ten additions at once returned")
    equal(len((await store.due(100.0)).items), 1, "how many deliveries are due")
    equal((await store.add_delivery(a_delivery("d", session_id="t"))).session_id, "t", "another session's delivery")
    equal([delivery.session_id for delivery in await store.deliveries()], [added[0].session_id, "t"], "all deliveries")
    taken = a_delivery("other", delivery_id=added[0].delivery_id, session_id="t")
    await refuses(DuplicateKeyError, store.add_delivery(taken), "an id that another session's delivery has")
    for verb in (store.add_delivery(a_delivery("d", session_id="none")), store.delivery(SessionKey("none"), "d")):
        await refuses(SessionNotFoundError, verb, "a session that does not exist")


@_law
async def check_a_change_of_a_delivery_is_compared_first(store: SessionStore, other: SessionStore) -> None:
    """It is refused for another revision or id, and after a removal. Of many changes at once one is made.

    A change keeps the id and the key. Anything else may change, also who carries the delivery out.
    """
    await store.create(a_session())
    first = await store.add_delivery(a_delivery("d"))
    changes = [_moved(first, 20.0 + index) for index in range(10)]
    verbs = [(store, other)[index % 2].change_delivery(change) for index, change in enumerate(changes)]
    outcomes = await asyncio.gather(*verbs, return_exceptions=True)
    stored = [change for change, outcome in zip(changes, outcomes, strict=True) if outcome is None]
    refused = [outcome for outcome in outcomes if isinstance(outcome, DeliveryChangedError)]
    equal((len(stored), len(refused)), (1, 9), f"changes and refusals of {outcomes}")
    equal((refused[0].session_id, refused[0].delivery_id), ("s", first.delivery_id), "what the error names")
    second = stored[0].after or first
    equal(await other.delivery(KEY, "d"), second, "the delivery")
    for stale in (first, replace(second, delivery_id="another"), replace(second, session_id="none")):
        for change in (_moved(stale, 30.0), DeliveryChange(stale, None)):
            await refuses(DeliveryChangedError, store.change_delivery(change), f"a change of {stale}")
    equal(await other.delivery(KEY, "d"), second, "the delivery after refused changes")
    addition = DeliveryChange(None, a_delivery("new"))
    await refuses(InvalidInputError, store.change_delivery(addition), "a change that adds a delivery")
    names: dict[str, Any] = {"session_id": "s", "delivery_id": second.delivery_id, "key": "d", "schedule": None}
    third = replace(FULL_DELIVERY, **names, to_session="t", created_at=second.created_at, revision=second.revision + 1)
    await store.change_delivery(DeliveryChange(second, third))
    equal(await other.delivery(KEY, "d"), third, "the delivery of another kind")
    await store.change_delivery(DeliveryChange(third, None))
    equal(await other.delivery(KEY, "d"), None, "the delivery after its removal")
    equal((await other.due(100.0)).items, (), "what is due after its removal")
    await refuses(DeliveryChangedError, store.change_delivery(DeliveryChange(third, None)), "a second removal")
    again = a_delivery("d", delivery_id="s/again")
    equal(await store.add_delivery(again), again, "a delivery under the same key")


@_law
async def check_a_commit_changes_deliveries_with_its_run_or_nothing(store: SessionStore, other: SessionStore) -> None:
    """If a delivery was changed, removed or added meanwhile, nothing of the commit is stored."""
    owner = await eventful(store)
    third = a_delivery("d3")
    run = a_run("r9", 9)
    stale = [
        DeliveryChange(replace(third, revision=2), None),
        DeliveryChange(replace(third, delivery_id="another"), None),
        _moved(a_delivery("none"), 30.0),
    ]
    for change in stale:
        for changes in ([change], [_moved(a_delivery("d1"), 30.0), change], [change, DeliveryChange(third, None)]):
            async with unchanged(store, "s"):
                commit = owner.prepare("c", new_run=run, deliveries=changes)
                error = await refuses(DeliveryChangedError, store.commit(KEY, 1, commit), f"a commit with {change}")
                equal(error.session_id, "s", "the session in the error")
    twice = [DeliveryChange(None, a_delivery("new")), DeliveryChange(None, a_delivery("new", delivery_id="other"))]
    for added, key in (
        ([DeliveryChange(None, a_delivery("d1", delivery_id="other"))], "d1"),
        ([DeliveryChange(None, a_delivery("new", delivery_id=third.delivery_id))], third.delivery_id),
        (twice, "new"),
    ):
        async with unchanged(store, "s"):
            commit = owner.prepare("c", new_run=run, deliveries=added)
            duplicate = await refuses(DuplicateKeyError, store.commit(KEY, 1, commit), f"a commit that adds {key!r}")
            equal(duplicate.key, key, "the key in the error")
    await refuses(RunNotFoundError, store.run("r9"), "the run of a refused commit")
    async with unchanged(store, "s"):
        commit = owner.prepare("c", deliveries=[DeliveryChange(third, None)])
        await refuses(SessionFencedError, store.commit(KEY, 7, commit), "a commit of another epoch")
    changes = [
        _moved(a_delivery("d1"), 30.0),
        DeliveryChange(a_delivery("d2"), None),
        DeliveryChange(third, None),
        DeliveryChange(None, a_delivery("new", 5.0)),
    ]
    await owner.commit("c", new_run=run, deliveries=changes)
    moved = changes[0].after
    equal(await other.deliveries(user_id=DEFAULT_USER, session_id="s"), [moved, a_delivery("new", 5.0)], "those left")
    equal((await other.due(30.0)).items, (a_delivery("new", 5.0), moved), "what is due")


@_law
async def check_a_cancel_and_a_run_of_a_delivery_exclude_each_other(store: SessionStore, other: SessionStore) -> None:
    """Of a change and a commit that carries the delivery out at once, one is made and the other refused."""
    owner = await own(store)
    for index in range(10):
        delivery = await store.add_delivery(a_delivery(f"d{index}"))
        change = DeliveryChange(delivery, None)
        commit, cancel = await asyncio.gather(
            owner.commit(new_run=a_run(f"r{index}", index), deliveries=[change]),
            other.change_delivery(change),
            return_exceptions=True,
        )
        errors = [outcome for outcome in (commit, cancel) if isinstance(outcome, BaseException)]
        equal([type(error) for error in errors], [DeliveryChangedError], f"the errors of {(commit, cancel)}")
        runs = [run.run_id for run in await other.runs(KEY)]
        equal(f"r{index}" in runs, isinstance(cancel, BaseException), "whether the run was stored")
        equal(await other.delivery(KEY, delivery.key), None, "the delivery after both")


@_law
async def check_a_commit_receives_a_delivery_of_another_session_or_nothing(
    store: SessionStore, other: SessionStore
) -> None:
    """The delivery goes with the commit that carries it out, or nothing of the commit is stored."""
    owner = await eventful(store)
    for session_id, user_id in (("sender", DEFAULT_USER), ("sender", "zoe")):
        await store.create(a_session(session_id, user_id))
    sent = [a_delivery(f"m{index}", session_id="sender", to_session="s") for index in range(3)]
    of_zoe = a_delivery("m0", session_id="sender", user_id="zoe", to_session="s")
    for delivery in (*sent, of_zoe):
        await store.add_delivery(delivery)
    first, second, _ = sent
    stale = [
        [replace(first, revision=2)],
        [replace(first, delivery_id="another")],
        [replace(first, key="another")],
        [replace(first, session_id="s")],
        [replace(first, session_id="none")],
        [second, replace(first, revision=2)],
        [first, first],
        [of_zoe],
    ]
    run = a_run("r9", 9)
    before = await other.deliveries()
    for received in stale:
        async with unchanged(store, "s"):
            commit = owner.prepare("c", new_run=run, received=received)
            error = await refuses(DeliveryChangedError, store.commit(KEY, 1, commit), f"a commit of {received}")
            equal(error.session_id, "s", "the session in the error")
    async with unchanged(store, "s"):
        await refuses(SessionFencedError, store.commit(KEY, 7, owner.prepare("c", received=[first])), "another epoch")
    await refuses(RunNotFoundError, store.run("r9"), "the run of a refused commit")
    equal(await other.deliveries(), before, "the deliveries after refused commits")
    added = a_delivery("new", 5.0)
    await owner.commit("c", new_run=run, received=sent[:2], deliveries=[DeliveryChange(None, added)])
    left = [delivery for delivery in before if delivery not in sent[:2]]
    equal(set(await other.deliveries()), {*left, added}, "the deliveries that are left")
    equal(await other.delivery(first.session_key, first.key), None, "the delivery in its session")
    equal({*(await other.due(100.0)).items} & {*sent, of_zoe}, {sent[2], of_zoe}, "what is due of these")
    again = replace(first, delivery_id="again")
    equal(await store.add_delivery(again), again, "a delivery under the same key")
    cancelled = DeliveryChange(sent[2], None)
    received_or_cancelled = await asyncio.gather(
        owner.commit(received=[sent[2]]), other.change_delivery(cancelled), return_exceptions=True
    )
    errors = [outcome for outcome in received_or_cancelled if isinstance(outcome, BaseException)]
    equal([type(error) for error in errors], [DeliveryChangedError], f"the errors of {received_or_cancelled}")


@_law
async def check_due_deliveries_come_in_order_and_in_pages(store: SessionStore) -> None:
    """By time and id, up to and including `now`, of all sessions; those that were given up are never due."""
    due = {"c": 5.0, "a": 7.0, "e": 5.0, "b": 7.0, "d": 5.0, "late": 7.5, "f": 0.0, "never": None}
    for session_id in ("s", "t"):
        await store.create(a_session(session_id))
    for index, (key, due_at) in enumerate(due.items()):
        await store.add_delivery(a_delivery(key, due_at, session_id="st"[index % 2], delivery_id=key))
    for now, expected in ((-1.0, ""), (0.0, "f"), (4.999, "f"), (5.0, "fcde"), (7.0, "fcdeab"), (7.25, "fcdeab")):
        for limit in range(1, 8):
            keys: list[str] = []
            cursor = None
            while True:
                page = await store.due(now, cursor=cursor, limit=limit)
                keys += [delivery.key for delivery in page]
                if page.cursor is None:
                    break
                equal(len(page), limit, "deliveries of a page that has a cursor")
                cursor = page.cursor
            equal(keys, list(expected), f"due at {now} in pages of {limit}")
    page = await store.due(7.0, limit=2)
    last = page.items[-1]
    await store.change_delivery(DeliveryChange(last, None))
    await store.add_delivery(a_delivery("new", 5.0, delivery_id="cc"))
    behind = [delivery.key for delivery in await store.due(7.0, cursor=page.cursor)]
    equal(behind, ["new", "d", "e", "a", "b"], "what is behind a cursor, when deliveries came and went")
    for cursor in ("", "x", ":", "nan:a", "inf:a", "a:1.0"):
        await refuses(InvalidInputError, store.due(7.0, cursor=cursor), f"cursor {cursor!r}")
    for limit in (0, -1):
        await refuses(InvalidInputError, store.due(7.0, limit=limit), f"a limit of {limit}")


@_law
async def check_due_deliveries_leave_out_those_of_users(store: SessionStore) -> None:
    """In pages, too, which may be shorter then, and whatever is in the names of users."""
    users = ("ada", 'a "quoted" user', "emil, \u00e4gypten", "zoe")
    for user_id in users:
        await store.create(a_session("s", user_id=user_id))
    for index in range(40):
        user_id = users[index % 4]
        await store.add_delivery(a_delivery(f"d{index}", float(index), user_id=user_id, delivery_id=f"{index:02}"))
    for without in ((), users[:1], users[1:2], users[:3], users[2:], users, ("nobody",)):
        for limit in (1, 3, 100):
            numbers: list[float | None] = []
            cursor = None
            while True:
                page = await store.due(100.0, cursor=cursor, limit=limit, without_users=without)
                numbers += [delivery.due_at for delivery in page]
                if page.cursor is None:
                    break
                cursor = page.cursor
            expected = [float(index) for index in range(40) if users[index % 4] not in without]
            equal(numbers, expected, f"due without {without} in pages of {limit}")


@_law
async def check_pages_of_large_deliveries_are_shorter(store: SessionStore) -> None:
    """A page has about `PAGE_BYTES`, and the others follow: with 300 KB each, at most five deliveries."""
    await store.create(a_session())
    payload = freeze({"prompts": ["x" * 300_000]})
    keys = [f"d{number}" for number in range(10)]
    for key in keys:
        await store.add_delivery(a_delivery(key, payload=payload))
    listed: list[str] = []
    cursor = None
    while True:
        page = await store.due(10.0, cursor=cursor)
        equal(0 < len(page) <= 5, True, f"a page of {len(page)} due deliveries has one to five")  # noqa: PLR2004
        listed += [delivery.key for delivery in page]
        if (cursor := page.cursor) is None:
            break
    equal(listed, keys, "all due deliveries, once and in order")
    listed = []
    after = ""
    while deliveries := await store.deliveries(user_id=DEFAULT_USER, after=after):
        equal(len(deliveries) <= 5, True, f"a page of {len(deliveries)} deliveries has one to five")  # noqa: PLR2004
        listed += [delivery.key for delivery in deliveries]
        after = deliveries[-1].delivery_id
    equal(listed, keys, "all deliveries, once and in order")


@_law
async def check_deliveries_are_listed_by_session_and_by_user(store: SessionStore) -> None:
    """By id, in pages. An id of a session means that user's session, and matches only itself."""
    users = ("u", "u%", "U", "u ", "")
    for user in users:
        for session_id in ("s", "t"):
            await store.create(a_session(session_id, user))
            for key in ("b", "a", "c"):
                delivery_id = f"{users.index(user)}{session_id}{key}"
                delivery = a_delivery(key, session_id=session_id, user_id=user, delivery_id=delivery_id)
                await store.add_delivery(delivery)
    for number, user in enumerate(users):
        for filters, ids in (
            ({"user_id": user}, [f"{number}{name}" for name in ("sa", "sb", "sc", "ta", "tb", "tc")]),
            ({"user_id": user, "session_id": "t"}, [f"{number}{name}" for name in ("ta", "tb", "tc")]),
            ({"user_id": user, "session_id": "none"}, []),
        ):
            for limit in (1, 2, 7):
                listed: list[str] = []
                while page := await store.deliveries(**filters, after=listed[-1] if listed else "", limit=limit):
                    listed += [delivery.delivery_id for delivery in page]
                equal(listed, ids, f"deliveries of {filters} in pages of {limit}")
    equal(len(await store.deliveries()), 30, "all deliveries")
    await refuses(InvalidInputError, store.deliveries(session_id="s"), "a session without its user")
    await refuses(InvalidInputError, store.deliveries(limit=0), "a limit of 0")


@_law
async def check_deliveries_go_with_their_session(store: SessionStore, other: SessionStore) -> None:
    """A deletion takes them along, and no other session's. One that is added at the same time does not stay alone."""
    await eventful(store)
    await store.create(a_session("t"))
    of_other = await store.add_delivery(a_delivery("d1", session_id="t"))
    await store.delete(KEY)
    equal(await other.deliveries(), [of_other], "deliveries after the deletion")
    equal((await other.due(100.0)).items, (of_other,), "what is due after the deletion")
    await store.create(a_session())
    equal(await other.delivery(KEY, "d1"), None, "the delivery of a new session with the same id")
    for index in range(5):
        delivery = a_delivery(f"d{index}")
        added, _ = await asyncio.gather(other.add_delivery(delivery), store.delete(KEY), return_exceptions=True)
        if not (added == delivery or isinstance(added, SessionNotFoundError)):
            raise AssertionError(f"an addition beside a deletion gave {added!r}")
        equal(await other.deliveries(), [of_other], "deliveries after an addition beside a deletion")
        await store.create(a_session())


@_law
async def check_a_session_is_created_with_its_deliveries(store: SessionStore) -> None:
    """All of them, or the session is not created."""
    deliveries = [FULL_DELIVERY, a_delivery("plain")]
    await store.create(a_session(), deliveries=deliveries)
    equal(set(await store.deliveries()), set(deliveries), "the deliveries")
    taken = [a_delivery("new", session_id="t"), a_delivery("x", session_id="t", delivery_id=FULL_DELIVERY.delivery_id)]
    await refuses(DuplicateKeyError, store.create(a_session("t"), deliveries=taken), "an id that is stored")
    await refuses(SessionNotFoundError, store.get(SessionKey("t")), "the session that was not created")
    equal(len(await store.deliveries()), 2, "deliveries after the refusal")


@_law
async def check_one_holder_has_the_lease_until_it_ends(store: SessionStore, other: SessionStore) -> None:
    """Of many that ask at once one gets it; the holder renews it; after its time, another gets it."""
    names = [f"h{index}" for index in range(8)]
    equal((await store.lease_deliveries("h0", None)).holder, "", "the holder, before anybody took the lease")
    leases = await asyncio.gather(
        *((store, other)[index % 2].lease_deliveries(name, 3600.0) for index, name in enumerate(names))
    )
    holders = {lease.holder for lease in leases}
    equal(len(holders), 1, f"holders of {leases}")
    (holder,) = holders
    rival = next(name for name in names if name != holder)
    renewed = await other.lease_deliveries(holder, 7200.0)
    equal((renewed.holder, round(renewed.until - renewed.now)), (holder, 7200), "the lease after its renewal")
    equal((await store.lease_deliveries(holder, None)).until, renewed.until, "the end, after its holder only asked")
    equal((await store.lease_deliveries(rival, 0.0)).holder, holder, "the holder, after another gave up its lease")
    equal((await store.lease_deliveries(rival, 1e5)).until, renewed.until, "the end, after another asked")
    equal(renewed.next_due_at, None, "when the next delivery is due, of none")
    await store.create(a_session())
    for key, due_at in (("b", 7.0), ("a", 5.0), ("never", None)):
        await store.add_delivery(a_delivery(key, due_at))
    equal((await store.lease_deliveries(rival, 1.0)).next_due_at, 5.0, "when the next delivery is due")
    equal(round((await store.lease_deliveries(holder, 0.0)).now - await store.now(), -1), 0.0, "the clock of the lease")
    equal((await other.lease_deliveries(rival, 0.05)).holder, rival, "the holder, after the first gave it up")
    await asyncio.sleep(0.1)
    equal((await store.lease_deliveries(rival, None)).holder, "", "the holder, after the lease has ended")
    equal((await store.lease_deliveries(holder, 1.0)).holder, holder, "the holder, after the lease has ended")


@_law
async def check_one_caller_has_each_sweep(store: SessionStore, other: SessionStore) -> None:
    """None has the first one before its time; of many that ask at once, one has it; a shorter interval counts."""
    if not isinstance(store, SweepClaims) or not isinstance(other, SweepClaims):
        return
    equal(round(await store.claim_sweep(3600.0)), 3600, "seconds until the first sweep")
    every_s = 0.05
    left_s = await other.claim_sweep(every_s)
    equal(0.0 < left_s <= every_s, True, f"whether {left_s} s are left of a shorter interval")
    await asyncio.sleep(0.1)
    answers = await asyncio.gather(*((store, other)[index % 2].claim_sweep(3600.0) for index in range(8)))
    equal(sorted(map(round, answers)), [0, *[3600] * 7], "seconds until the sweep, of callers at once")
    equal(round(await other.claim_sweep(7200.0)), 3600, "seconds until the sweep after that")


@_law
async def check_deliveries_that_cannot_be_used_are_refused(store: SessionStore) -> None:
    """Whichever verb brings them: no key, or a time or a schedule that is none."""
    owner = await eventful(store)
    third = a_delivery("d3")
    changes: tuple[dict[str, object], ...] = (
        {"key": ""},
        {"occurs_at": float("nan")},
        {"due_at": float("inf")},
        {"due_at": -1.0},
        {"schedule": Schedule()},
        {"schedule": Schedule(every_s=0.5)},
        {"schedule": Schedule(every_s=60.0, cron="* * * * *")},
        {"schedule": Schedule(cron="* * * *")},
        {"schedule": Schedule(cron="0 0 31 2 *")},
        {"schedule": Schedule(cron="0 0 * * *", timezone="Nowhere/Else")},
        {"schedule": Schedule(every_s=60.0, until=float("nan"))},
        {"schedule": Schedule(every_s=60.0), "to_session": "t"},
        {"to_session": "\0"},
    )
    for values in changes:
        broken = replace(third, **values)  # type: ignore[arg-type]
        async with unchanged(store, "s"):
            for change in (DeliveryChange(third, replace(broken, revision=2)), DeliveryChange(None, broken)):
                commit = owner.prepare(deliveries=[change])
                await refuses(InvalidInputError, store.commit(KEY, 1, commit), f"a commit with {values}")
            await refuses(InvalidInputError, store.add_delivery(broken), f"an addition with {values}")
            change = DeliveryChange(third, broken)
            await refuses(InvalidInputError, store.change_delivery(change), f"a change to {values}")
            new = store.create(a_session("new"), deliveries=[replace(broken, session_id="new")])
            await refuses(InvalidInputError, new, f"a session with {values}")
