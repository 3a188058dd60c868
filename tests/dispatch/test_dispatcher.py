"""The dispatcher of deliveries, on virtual time: when it hands over, how often it asks, and who of two does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dispatching import Sessions, Supervised
from scale import of_cases, share
from turnwise.actors.dispatch.dispatcher import Dispatcher, DispatchSettings
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, InvalidInputError, SessionBusyError, StoreError
from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.deliveries.schedules import Schedule
from turnwise.memory.quotas.records import CounterKey, Quota
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.faulty_store import FaultyStore
from turnwise.testing.process import Process
from turnwise.testing.schedules import spread

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("quiet")]


def now() -> float:
    return asyncio.get_running_loop().time()


class Stage:
    """A store, the dispatchers of it, and sessions that carry out what they are given."""

    def __init__(self, sessions: int = 3) -> None:
        self.store: Any = FaultyStore(InMemoryStore(clock=lambda: now() + self.ahead_s), Faults(remembers=True))
        self.ahead_s = 0.0
        """How far the clock of the store is ahead."""
        self.sessions = sessions
        self.carried_out: list[tuple[float, str]] = []
        """When which delivery was carried out, by its key."""
        self.under_way: Counter[str] = Counter()
        self.most_under_way = 0
        self.takes_s: dict[str, float] = {}
        """How long a session takes, by its id."""
        self.errors: dict[str, Exception] = {}
        """What a delivery raises, by its key."""
        self.attempts: list[tuple[float, str]] = []

    async def create(self) -> None:
        for index in range(self.sessions):
            await self.store.inner.create(SessionRecord(session_id=f"s{index}"))

    async def add(self, key: str, due_at: float, session: int = 0, **values: Any) -> Delivery:
        times = {"occurs_at": due_at, "due_at": due_at, "delivery_id": f"id of {key}", "key": key}
        delivery: Delivery = await self.store.inner.add_delivery(
            Delivery(**{**times, "session_id": f"s{session}", **values})
        )
        return delivery

    async def deliver(self, delivery: Delivery) -> None:
        """Carry out a delivery, as its session does: with the commit that moves it."""
        self.attempts.append((now(), delivery.key))
        session_id = delivery.session_id
        self.under_way[session_id] += 1
        self.most_under_way = max(self.most_under_way, self.under_way.total())
        assert self.under_way[session_id] == 1, "a session has one delivery at a time"
        try:
            await asyncio.sleep(self.takes_s.get(session_id, 0.0))
            if error := self.errors.get(delivery.key):
                raise error
            after = delivery.after_occurrence(await self.store.inner.now())
            await self.store.inner.change_delivery(DeliveryChange(delivery, after))
            self.carried_out.append((now(), delivery.key))
        finally:
            self.under_way[session_id] -= 1

    @asynccontextmanager
    async def dispatching(
        self, holder: str = "h", *, outranks: Any = None, pass_on: Any = None, **settings: Any
    ) -> AsyncIterator[Dispatcher]:
        ranks = ({"outranks": outranks} if outranks else {}) | ({"pass_on": pass_on} if pass_on else {})
        dispatcher = Dispatcher(self.store, self.deliver, holder, settings=DispatchSettings(**settings), **ranks)
        running = asyncio.create_task(dispatcher.run())
        try:
            yield dispatcher
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    def asked(self) -> Counter[str]:
        """Return how often the store was asked, by verb, since the last call."""
        points = Counter(point.split()[0] for point, _ in self.store.faults.passed if point.endswith("before"))
        self.store.faults.passed.clear()
        return points

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self.carried_out]


async def made(**settings: Any) -> Stage:
    stage = Stage(**settings)
    await stage.create()
    return stage


def check_times(stage: Stage, **expected: float) -> None:
    """Check when each delivery was carried out, to a tenth of a second."""
    times = {key: time for time, key in stage.carried_out}
    assert times == {key: pytest.approx(time, abs=0.1) for key, time in expected.items()}


async def test_each_is_handed_over_when_it_is_due() -> None:
    stage = await made()
    for key, due_at in (("late", 500.0), ("overdue", 0.0), ("soon", 7.5), ("same", 7.5)):
        await stage.add(key, due_at, session=len(key) % 3)
    async with stage.dispatching():
        await asyncio.sleep(600.0)
    check_times(stage, overdue=0.0, soon=7.5, same=7.5, late=500.0)


async def test_a_recurring_delivery_comes_each_time() -> None:
    stage = await made()
    await stage.add("every", 10.0, schedule=Schedule(every_s=10.0))
    async with stage.dispatching():
        await asyncio.sleep(105.0)
    assert [round(time) for time, _ in stage.carried_out] == [*range(10, 101, 10)]


async def test_an_idle_dispatcher_asks_once_a_minute_and_a_nearer_time_costs_no_request() -> None:
    stage = await made()
    await stage.add("far", 1e6)
    async with stage.dispatching() as dispatcher:
        await asyncio.sleep(600.0)
        requests = stage.asked()
        assert set(requests) == {"store.lease_deliveries"} and requests.total() <= 11
        await stage.add("near", 630.5)
        dispatcher.tell(630.5)
        await asyncio.sleep(29.0)
        assert stage.asked().total() <= 1
        await asyncio.sleep(60.0)
    check_times(stage, near=630.5)


async def test_what_it_is_told_while_it_asks_the_store_is_not_forgotten() -> None:
    stage = await made()
    stage.store.faults.plan = FaultPlan(rates={"delay": 1.0}, points=("store.lease_deliveries after",))
    async with stage.dispatching() as dispatcher:
        await asyncio.sleep(0)  # the lease is asked for, and its answer, which knows of none, is under way
        await stage.add("near", 2.0)
        dispatcher.tell(2.0)
        await asyncio.sleep(10.0)
    assert stage.keys == ["near"] and stage.carried_out[0][0] < 3.5


async def test_what_it_is_told_before_it_knows_the_stores_clock_is_not_late() -> None:
    stage = await made()
    epoch_s = 1e9
    stage.store = FaultyStore(InMemoryStore(clock=lambda: now() + epoch_s), Faults(remembers=True))
    await stage.create()
    stage.store.faults.plan = FaultPlan(rates={"delay": 1.0}, points=("store.lease_deliveries after",))
    async with stage.dispatching() as dispatcher:
        await asyncio.sleep(0)
        await stage.add("near", epoch_s + 5.0)
        dispatcher.tell(epoch_s + 5.0)
        await asyncio.sleep(10.0)
    assert stage.keys == ["near"] and stage.carried_out[0][0] < 6.5


async def test_it_is_idle_while_the_store_answers_that_nothing_is_ever_due() -> None:
    stage = await made()
    async with stage.dispatching() as dispatcher:

        def idle_since() -> float | None:
            return dispatcher.idle_since

        assert idle_since() is None
        await asyncio.sleep(100.0)
        assert idle_since() == 0.0
        await stage.add("late", 200.0)
        dispatcher.tell(200.0)
        assert idle_since() is None, "before it has asked the store, too"
        await asyncio.sleep(99.0)
        assert idle_since() is None
        await asyncio.sleep(30.0)
        assert stage.keys == ["late"] and idle_since() == pytest.approx(200.0, abs=0.5)
        stage.store.faults.plan = FaultPlan(rates={"error": 1.0})
        await asyncio.sleep(90.0)
        assert idle_since() is None, "nobody knows"


async def test_what_it_is_told_while_it_asks_keeps_it_from_being_idle() -> None:
    stage = await made()
    stage.store.faults.plan = FaultPlan(rates={"delay": 1.0}, points=("store.lease_deliveries after",))
    async with stage.dispatching() as dispatcher:
        await asyncio.sleep(0)  # the answer, which knows of none, is under way
        await stage.add("far", 1e6)
        dispatcher.tell(1e6)
        await asyncio.sleep(30.0)
        assert dispatcher.idle_since is None


async def test_a_dispatcher_that_is_woken_asks_at_once() -> None:
    stage = await made()
    async with stage.dispatching() as dispatcher:
        await asyncio.sleep(1.0)
        await stage.add("unknown", 2.0)
        await asyncio.sleep(20.0)
        assert not stage.keys
        dispatcher.wake()
        await asyncio.sleep(1.0)
        assert stage.keys == ["unknown"]


async def test_it_ends_also_if_it_is_told_something_as_it_is_cancelled() -> None:
    stage = await made()
    for steps in range(6):
        dispatcher = Dispatcher(stage.store, stage.deliver, "h")
        running = asyncio.create_task(dispatcher.run())
        await asyncio.sleep(1.0)
        dispatcher.tell(1e6)
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        assert await asyncio.wait({running}, timeout=5.0) == ({running}, set()), steps


async def test_what_is_handed_over_is_attempted_at_once_and_not_read() -> None:
    stage = await made()
    async with stage.dispatching() as dispatcher:
        await asyncio.sleep(1.0)
        stage.asked()
        dispatcher.hand_over([await stage.add("a", 1.0), await stage.add("b", 1.0, session=1)])
        await asyncio.sleep(1.0)
        assert stage.carried_out == [(1.0, "a"), (1.0, "b")] and stage.asked() == {}
        stage.errors["c"] = SessionBusyError("s0", "run")
        dispatcher.hand_over([await stage.add("c", 2.0)])
        await asyncio.sleep(0.1)
        assert (await stage.store.inner.delivery(SessionKey("s0"), "c")).attempts == 1
        del stage.errors["c"]
        await asyncio.sleep(10.0)
    assert stage.keys == ["a", "b", "c"] and await stage.store.inner.deliveries() == []


async def test_what_is_handed_over_keeps_the_bounds_and_comes_one_by_one() -> None:
    stage = await made(sessions=4)
    stage.takes_s = {f"s{index}": 1.0 for index in range(4)}
    async with stage.dispatching(concurrency=2) as dispatcher:
        await asyncio.sleep(1.0)
        keys = [f"{session}-{number}" for number in range(3) for session in range(4)]
        for key in keys:
            dispatcher.hand_over([await stage.add(key, 1.0, session=int(key[0]))])
        await asyncio.sleep(60.0)
    assert sorted(stage.keys) == sorted(keys) and stage.most_under_way == 2


async def test_a_dispatcher_without_the_lease_hands_nothing_over() -> None:
    stage = await made()
    async with stage.dispatching("first"), stage.dispatching("second") as second:
        await asyncio.sleep(1.0)
        stage.takes_s = {"s0": 0.5}
        second.hand_over([await stage.add("a", 1.0)])
        await asyncio.sleep(0.1)
        assert stage.attempts == []
        await asyncio.sleep(120.0)
    second.hand_over([await stage.add("b", 1.0)])
    await asyncio.sleep(1.0)
    assert stage.keys == ["a"]


async def test_a_dispatcher_without_the_lease_passes_on_what_it_is_told() -> None:
    stage, passed = await made(), list[tuple[str, float]]()
    async with stage.dispatching("first") as first:
        await asyncio.sleep(1.0)
        async with stage.dispatching("second", pass_on=lambda *told: passed.append(told)) as second:
            await asyncio.sleep(1.0)
            assert first.leads and not passed
            second.tell(told_at := now())
            await asyncio.sleep(1.0)
            assert passed == [("first", told_at)]
            first.tell(now())
            await asyncio.sleep(1.0)
            assert len(passed) == 1


async def test_a_slow_session_delays_no_other_and_its_own_come_one_by_one() -> None:
    stage = await made()
    stage.takes_s["s0"] = 20.0
    for key in ("a1", "a2"):
        await stage.add(key, 1.0)
    await stage.add("b", 1.0, session=1)
    await stage.add("c", 5.0, session=2)
    async with stage.dispatching():
        await asyncio.sleep(60.0)
    check_times(stage, b=1.0, c=5.1, a1=21.0, a2=41.0)


async def test_so_many_sessions_and_no_more_have_a_delivery_at_once() -> None:
    stage = await made(sessions=50)
    for index in range(50):
        stage.takes_s[f"s{index}"] = 1.0
        await stage.add(f"d{index}", 1.0, session=index)
    async with stage.dispatching(concurrency=8, page=7):
        await asyncio.sleep(20.0)
    assert stage.most_under_way == 8 and sorted(stage.keys) == sorted(f"d{index}" for index in range(50))
    assert max(time for time, _ in stage.carried_out) < 9.0


async def test_very_many_that_are_due_at_once_are_each_carried_out_once() -> None:
    count = share(100_000)
    stage = await made(sessions=500)
    for index in range(count):
        await stage.add(f"d{index}", 1.0, session=index % 500)
    async with stage.dispatching():
        while await stage.store.inner.deliveries(limit=1):
            await asyncio.sleep(1.0)
    assert len(stage.keys) == count == len(set(stage.keys))


async def test_a_user_for_whom_much_is_due_delays_no_other() -> None:
    """Hundreds are due before that of another user, and even before the hundred of a third one."""
    stage = await made(sessions=400)
    for index in range(400):
        stage.takes_s[f"s{index}"] = 1.0
        await stage.add(f"d{index}", 1.0, session=index)
    for index in range(100):
        session_id = f"s{400 + index}"
        stage.takes_s[session_id] = 1.0
        await stage.store.inner.create(SessionRecord(session_id=session_id, user_id="ada"))
        await stage.add(f"of ada {index}", 2.0, session=400 + index, user_id="ada")
    await stage.store.inner.create(SessionRecord(session_id="s500", user_id="bob"))
    await stage.add("of bob", 2.5, session=500, user_id="bob")
    async with stage.dispatching(concurrency=8, concurrency_each=4, page=7):
        await asyncio.sleep(130.0)
    times = {key: time for time, key in stage.carried_out}
    assert len(times) == 501 and stage.most_under_way == 8
    assert times["of bob"] < 5.0, "it waits for no more than one that is under way"
    assert max(time for key, time in times.items() if "ada" in key) < 30.0, "each has half of the room"


async def test_deliveries_of_users_who_have_enough_under_way_are_read_a_share_of_the_time_only() -> None:
    stage = await made(sessions=300)
    for index in range(300):
        stage.takes_s[f"s{index}"] = 0.5
        await stage.add(f"d{index}", 1.0, session=index)
    passed_s, due = [0.0], stage.store.due

    async def slow_due(*args: Any, **options: Any) -> Any:
        pause_s = 1.0 if options["without_users"] else 0.0
        passed_s[0] += pause_s
        await asyncio.sleep(pause_s)
        return await due(*args, **options)

    stage.store.due = slow_due
    async with stage.dispatching(concurrency=8, concurrency_each=4, page=7):
        await asyncio.sleep(60.0)
    assert len(stage.keys) == 300 and passed_s[0] < 60.0 / 4


async def test_a_store_that_fails_is_asked_again_after_growing_pauses() -> None:
    stage = await made()
    await stage.add("d", 5.0)
    async with stage.dispatching():
        await asyncio.sleep(1.0)
        stage.store.faults.plan = FaultPlan(rates={"error": 1.0})
        stage.asked()
        await asyncio.sleep(300.0)
        assert stage.asked().total() < 20 and stage.keys == []
        stage.store.faults.plan = FaultPlan()
        await asyncio.sleep(60.0)
        assert stage.keys == ["d"]


async def test_only_the_dispatcher_with_the_lease_hands_over() -> None:
    stage = await made()
    for number in range(20):
        await stage.add(f"d{number}", number * 10.0)
    async with stage.dispatching("first") as first:
        await asyncio.sleep(0.1)
        async with stage.dispatching("second") as second:
            await asyncio.sleep(95.0)
            assert (first.leads, second.leads) == (True, False)
        await asyncio.sleep(100.0)
    assert sorted(stage.keys) == sorted(f"d{number}" for number in range(20))
    assert (await stage.store.inner.lease_deliveries("third", 1.0)).holder == "third", "they gave the lease up"


async def test_a_lease_that_is_not_renewed_is_taken_after_its_time() -> None:
    stage = await made()
    process = Process("first")
    first = Dispatcher(stage.store, stage.deliver, "first")
    running = asyncio.create_task(process.call(first.run()))
    await asyncio.sleep(1.0)
    process.kill()
    with pytest.raises(Exception, match="killed"):
        await running
    await stage.add("d", 10.0)
    async with stage.dispatching("second"):
        await asyncio.sleep(120.0)
    ((time, key),) = stage.carried_out
    assert key == "d" and 60.0 < time <= 91.0


@pytest.mark.parametrize("outranked", ["", "first"])
async def test_a_dispatcher_takes_the_lease_of_one_that_it_outranks_and_that_one_yields(outranked: str) -> None:
    stage = await made()
    for number in range(40):
        await stage.add(f"d{number}", number * 5.0)

    async def outranks(holder: str) -> bool:
        return holder in ("", outranked)

    async with stage.dispatching("first") as first:
        await asyncio.sleep(22.0)
        async with stage.dispatching("second", outranks=outranks) as second:
            await asyncio.sleep(31.0)
            assert (first.leads, second.leads) == (not outranked, bool(outranked))
            await asyncio.sleep(60.0)
        await asyncio.sleep(100.0)
        assert first.leads
    assert sorted(stage.keys) == sorted(f"d{number}" for number in range(40))


async def test_a_dispatcher_that_may_not_take_a_free_lease_waits_until_it_may() -> None:
    stage = await made()
    await stage.add("d", 10.0)

    async def outranks(holder: str) -> bool:
        return now() > 100.0

    async with stage.dispatching(outranks=outranks):
        await asyncio.sleep(95.0)
        assert not stage.keys and stage.asked().total() <= 4
        await asyncio.sleep(31.0)
    assert stage.keys == ["d"]


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0])
async def test_a_clock_that_is_set_keeps_no_lease_alive_and_takes_none_from_who_works(set_by_s: float) -> None:
    stage = await made()
    stage.ahead_s = 1e4
    await stage.add("far", 1e6)
    process = Process("first")
    first = Dispatcher(stage.store, stage.deliver, "first")
    running = asyncio.create_task(process.call(first.run()))
    async with stage.dispatching("second") as second:
        await asyncio.sleep(10.0)
        stage.ahead_s += set_by_s
        for _ in range(30):
            await asyncio.sleep(20.0)
            assert [first.leads, second.leads].count(True) == 1 or now() < 75.0  # a lease that seems to end is taken
        await asyncio.sleep(100.0)
        assert (await stage.store.inner.lease_deliveries("", None)).until <= now() + stage.ahead_s + 91.0
        process.kill()
        await asyncio.gather(running, return_exceptions=True)
        await stage.add("d", now() + stage.ahead_s)
        second.wake()
        await asyncio.sleep(125.0)
    assert stage.keys == ["d"]


async def test_a_lease_whose_holder_died_before_the_clock_was_set_back_is_taken() -> None:
    stage = await made()
    stage.ahead_s = 1e4
    await stage.store.inner.lease_deliveries("dead", 90.0)
    stage.ahead_s -= 3600.0
    await stage.add("d", now() + stage.ahead_s)
    async with stage.dispatching():
        await asyncio.sleep(130.0)
    assert stage.keys == ["d"]


async def test_a_dispatcher_that_was_frozen_hands_nothing_over_after_its_lease() -> None:
    """It is frozen while it reads what is due, and cannot renew its lease afterwards."""
    stage = await made()
    skipped_s, due = 0.0, stage.store.due

    async def frozen_due(*args: Any, **options: Any) -> Any:
        nonlocal skipped_s
        page = await due(*args, **options)
        if page:
            skipped_s = 91.0
            stage.store.faults.plan = FaultPlan(rates={"error": 1.0}, points=("store.lease_deliveries before",))
        return page

    stage.store.due = frozen_due
    frozen = Dispatcher(stage.store, stage.deliver, "frozen", clock=lambda: now() + skipped_s)
    await stage.add("d", now())
    running = asyncio.create_task(frozen.run())
    await asyncio.sleep(60.0)
    assert skipped_s and not frozen.leads and stage.attempts == []
    running.cancel()
    await asyncio.wait([running])


async def test_a_lease_that_ends_while_a_session_is_slow_costs_no_later_delivery() -> None:
    stage = await made(sessions=2)
    stage.takes_s = {"s0": 200.0}
    await stage.add("slow", 0.0)
    await stage.add("waits for it", 0.0, session=1)
    async with stage.dispatching(concurrency=1, attempt_s=300.0):
        await asyncio.sleep(600.0)
    assert stage.keys == ["slow", "waits for it"]


async def test_an_attempt_that_fails_is_repeated_after_growing_pauses_and_says_why() -> None:
    stage = await made()
    await stage.add("bad", 1.0)
    await stage.add("good", 1.0)
    stage.errors["bad"] = SessionBusyError("s0", "run 7")
    async with stage.dispatching(longest_pause_s=60.0):
        await asyncio.sleep(300.0)
        bad = await stage.store.inner.delivery(SessionKey("s0"), "bad")
        times = [time for time, key in stage.attempts if key == "bad"]
        pauses = [after - before for before, after in pairwise(times)]
        assert bad.attempts == len(times) > 5 and "run 7" in bad.why and bad.occurs_at == 1.0
        assert all(pause < 61.0 for pause in pauses) and pauses[0] < 1.5 and pauses[-1] > 29.0
        assert stage.keys == ["good"]
        del stage.errors["bad"]
        await asyncio.sleep(61.0)
    assert stage.keys == ["good", "bad"]


async def test_what_a_quota_puts_off_comes_in_the_next_period_and_has_not_failed() -> None:
    stage = await made()
    await stage.add("d", 1.0)
    quota = Quota(runs=1, per="minute")
    stage.errors["d"] = quota.exceeded(CounterKey("", "", quota.quota_id), used=1, ends=60, now=1.0)
    async with stage.dispatching():
        await asyncio.sleep(30.0)
        (put_off,) = await stage.store.inner.deliveries()
        assert (put_off.due_at, put_off.attempts) == (60.0, 0) and "try again" in put_off.why
        stage.errors.clear()
        await asyncio.sleep(31.0)
    assert stage.keys == ["d"] and len(stage.attempts) == 2


async def test_a_delivery_that_can_never_be_carried_out_is_given_up_and_stays() -> None:
    stage = await made()
    await stage.add("once", 1.0)
    await stage.add("every", 1.0, session=1, schedule=Schedule(every_s=100.0))
    for key in ("once", "every"):
        stage.errors[key] = InvalidInputError("payload", "x", "it is nothing")
    async with stage.dispatching():
        await asyncio.sleep(50.0)
    every, once = await stage.store.inner.deliveries()
    assert (once.due_at, once.attempts) == (None, 1) and "it is nothing" in once.why
    assert every.due_at == 101.0 and "it is nothing" in every.why
    assert len(stage.attempts) == 2


async def test_a_delivery_whose_engine_is_missing_waits_for_it() -> None:
    stage = await made()
    await stage.add("d", 1.0)
    stage.errors["d"] = ConfigError("engine", "fast", "the manager has one engine without a name")
    async with stage.dispatching():
        await asyncio.sleep(20.0)
        assert (await stage.store.inner.deliveries())[0].attempts > 1
        stage.errors.clear()
        await asyncio.sleep(60.0)
    assert stage.keys == ["d"]


async def test_what_fails_for_too_long_is_given_up() -> None:
    stage = await made()
    await stage.add("d", 1.0)
    stage.errors["d"] = StoreError("away")
    async with stage.dispatching(give_up_s=100.0, longest_pause_s=30.0):
        await asyncio.sleep(300.0)
        count = len(stage.attempts)
        given_up = await stage.store.inner.delivery(SessionKey("s0"), "d")
        assert given_up.due_at is None and given_up.why == "away"
        await asyncio.sleep(300.0)
        assert len(stage.attempts) == count


async def test_a_session_that_does_not_answer_is_tried_again() -> None:
    stage = await made()
    await stage.add("d", 1.0)
    stage.takes_s["s0"] = 1e3
    async with stage.dispatching(attempt_s=5.0):
        await asyncio.sleep(6.1)
        (failed,) = await stage.store.inner.deliveries()
        assert "it did not answer within 5 s" in failed.why
        stage.takes_s["s0"] = 0.0
        await asyncio.sleep(20.0)
        assert stage.keys == ["d"] and len(stage.attempts) > 1


async def test_deliveries_that_cannot_be_read_delay_no_other_and_cost_few_requests() -> None:
    """Such as those of a user whose key was deleted: they stay due."""
    stage = await made()
    due = stage.store.inner.due

    async def with_unreadable_ones(*args: Any, **page: Any) -> Any:
        deliveries = await due(*args, **page)
        items = tuple(delivery for delivery in deliveries if delivery.session_id != "s0")
        return replace(deliveries, items=items, unreadable=(SessionKey("s0"),) if len(items) < len(deliveries) else ())

    stage.store.inner.due = with_unreadable_ones
    await stage.add("lost", 1.0)
    await stage.add("lost, too", 100.5)
    for key, due_at in (("first", 1.0), ("second", 130.5), ("third", 131.0)):
        await stage.add(key, due_at, session=1)
    async with stage.dispatching():
        await asyncio.sleep(300.0)
    check_times(stage, first=1.0, second=130.5, third=131.0)
    assert stage.asked().total() < 50


async def test_a_clock_that_is_set_an_hour_brings_no_time_twice_and_loses_none() -> None:
    stage = await made()
    await stage.add("once", 1800.0)
    for key, missed in (("hourly", "run_once"), ("each", "run_all")):
        schedule = Schedule(every_s=600.0)
        await stage.add(key, 600.0, session=2 if missed == "run_all" else 1, schedule=schedule, missed=missed)
    async with stage.dispatching():
        await asyncio.sleep(650.0)
        assert sorted(stage.keys) == ["each", "hourly"]
        stage.ahead_s = 3600.0
        await asyncio.sleep(61.0)
        counts = Counter(stage.keys)
        assert (counts["once"], counts["hourly"], counts["each"]) == (1, 2, 7), "of six that passed, one or each"
        stage.ahead_s = 0.0
        await asyncio.sleep(120.0)
        assert Counter(stage.keys) == counts, "the hour that comes again brings nothing"
        stage.ahead_s = 4200.0
        await asyncio.sleep(61.0)
        assert Counter(stage.keys)["hourly"] == 3 and Counter(stage.keys)["each"] == 8


async def test_a_busy_dispatcher_writes_its_lease_as_rarely_as_an_idle_one() -> None:
    stage = await made()
    await stage.add("every", 1.0, schedule=Schedule(every_s=1.0))
    leases: list[float | None] = []
    lease = stage.store.inner.lease_deliveries

    async def noted(holder: str, ttl_s: float | None) -> Any:
        leases.append(ttl_s)
        return await lease(holder, ttl_s)

    stage.store.inner.lease_deliveries = noted
    async with stage.dispatching():
        await asyncio.sleep(300.0)
    assert len(stage.keys) == 299 and sum(ttl_s is not None for ttl_s in leases) <= 9


def test_a_lease_that_would_end_between_two_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match="idle_s=60"):
        DispatchSettings(lease_s=60.0)


# Lives


def a_prompt(key: str, session_id: str, **values: Any) -> Delivery:
    payload = run_payload([encode(User(text=key))], {})
    times = {"occurs_at": 1.0, "due_at": 1.0, "payload": payload, "session_id": session_id, **values}
    return Delivery(delivery_id=f"id of {key}", key=key, **times)


@pytest.mark.by_turns
def test_nothing_is_lost_or_doubled_whatever_fails_and_whoever_dies() -> None:
    """Each fault of the store, for the dispatcher and for the sessions, and a kill at each step of each process."""

    async def life(faults: Faults) -> None:
        store = InMemoryStore(clock=now)
        config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9)
        sessions = Sessions(faults, store, engine=EchoEngine(), config=config)
        for name in "ab":
            await sessions.of(name).create()
        every = Schedule(every_s=2.0, until=5.5)
        for delivery in (a_prompt("once", "a"), a_prompt("every", "b", schedule=every, missed="run_all")):
            await store.add_delivery(delivery)

        async def is_done() -> bool:
            return not await store.deliveries()

        await Supervised(faults, store, sessions.deliver).run_until(is_done)
        for name, count in (("a", 1), ("b", 3)):
            runs = await store.runs(SessionKey(name))
            assert len(runs) == count, (name, runs)
            for run in runs:
                await sessions.of(name).ask("reads.wait", run.run_id)
        await sessions.audit()

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck


@pytest.mark.by_turns
def test_two_dispatchers_among_many_faults_lose_and_double_nothing() -> None:
    """By seed: two are replaced when they die, sessions die too, and the store fails, loses answers and is slow."""

    async def schedule(seed: int) -> None:
        faults = Faults(FaultPlan(rates={"error": 0.03, "unanswered": 0.03, "crash": 0.01, "delay": 0.1}), seed=seed)
        store = InMemoryStore(clock=now)
        config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9)
        sessions = Sessions(faults, store, engine=EchoEngine(), config=config)
        for name in "abc":
            await sessions.of(name).create()
            await store.add_delivery(a_prompt(f"once {name}", name))
            every = Schedule(every_s=3.0, until=8.0)
            await store.add_delivery(a_prompt(f"every {name}", name, schedule=every, missed="run_all"))

        async def is_done() -> bool:
            return not await store.deliveries()

        pair = [Supervised(faults, store, sessions.deliver, name=name) for name in ("left", "right")]
        await asyncio.gather(*(dispatcher.run_until(is_done) for dispatcher in pair))
        faults.plan = FaultPlan()
        for name, world in sessions.worlds.items():
            runs = await store.runs(SessionKey(name))
            assert len(runs) == 4, (name, runs)
            for run in runs:
                await world.ask("reads.wait", run.run_id)
        await sessions.audit()

    assert spread(share(1000, 20), schedule, yields=0.05, kills=0.0005)
