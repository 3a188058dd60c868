"""Quotas hold, and their counters have what runs have used, whatever fails, dies, or happens at the same time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from scale import of_cases, share
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.state.quota_book import MOST_AGE_S, MOST_USERS, KnownTenants
from turnwise.engines import tool
from turnwise.errors import QuotaExceededError
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, Verdict
from turnwise.memory.conversation.events import ModelCallEnded
from turnwise.memory.conversation.ledger import LedgerQuery
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.quotas.records import CounterKey, Quota, QuotaCounter, QuotaCounters
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import FaultPlan, Faults, Kind
from turnwise.testing.schedules import explore
from turnwise.testing.scripted_engine import ScriptedEngine
from turnwise.testing.world import World

pytestmark = pytest.mark.usefixtures("quiet")

USER = "default"
RATES: dict[Kind, float] = {"error": 0.02, "unanswered": 0.02, "crash": 0.01}
RUNS, TOKENS = Quota(runs=3, per="month"), Quota(user_id="*", tokens=10**9, per="month")


async def slow(turn: Turn) -> str:
    await asyncio.sleep(1.0)
    return "an answer"


async def begun(
    store: Any, *session_ids: str, faults: Faults | None = None, clock: Any = None, engine: Any = None
) -> list[World]:
    """Return sessions of one store, each in a process of its own, whose quotas hold."""
    worlds = [
        World(
            faults or Faults(remembers=True),
            session_id=session_id,
            store=store,
            engine=engine or ScriptedEngine(["an answer"] * 99),
            config=SessionConfig(cancel_grace_s=0.1, idle_s=1e9),
            has_quotas=True,
            **({"clock": clock} if clock else {}),
        )
        for session_id in session_ids or ("session",)
    ]
    for world in worlds:
        await world.create()
    return worlds


async def used(store: Any, quota: Quota) -> int:
    (key,) = filter(None, [quota.counter_of(USER, None)])
    counters: QuotaCounters = await store.quota_counters(USER, "")
    return counters.of(quota, key).used


async def answered(world: World, prompt: str) -> bool:
    """Run a prompt to its end; return whether it was accepted."""
    try:
        await world.wait(await world.start(prompt))
    except QuotaExceededError:
        return False
    return True


async def check_counters(store: Any) -> None:
    """Check that the counters have exactly the runs that were stored, and the tokens that the ledger has."""
    runs = [run for session in await store.query(limit=99) for run in await store.runs(session.key)]
    (spent,) = await store.ledger(LedgerQuery())
    assert await used(store, RUNS) == len(runs) <= RUNS.limit
    assert await used(store, TOKENS) == spent.usage.input_tokens + spent.usage.output_tokens


@pytest.mark.by_turns
def test_no_more_runs_are_stored_than_a_quota_allows_whatever_fails_or_dies() -> None:
    """A lost answer counts nothing twice, and a kill counts nothing that is not stored."""

    async def life(faults: Faults) -> None:
        store = InMemoryStore(clock=asyncio.get_running_loop().time)
        for quota in (RUNS, TOKENS):
            await store.set_quota(quota)
        (world,) = await begun(store, faults=faults)
        accepted = [await answered(world, f"prompt {index}") for index in range(5)]
        assert accepted == [True] * 3 + [False] * 2
        await check_counters(store)
        await world.audit()

    assert exhaust(life, **of_cases()).total() > 50


@pytest.mark.by_turns
def test_sessions_that_race_for_the_last_run_exceed_no_quota() -> None:
    async def life(faults: Faults) -> None:
        store = InMemoryStore(clock=asyncio.get_running_loop().time)
        for quota in (RUNS, TOKENS):
            await store.set_quota(quota)
        worlds = await begun(store, "a", "b", "c", faults=faults)
        accepted = await asyncio.gather(
            *(answered(world, f"{world.session_id} 1") for world in worlds),
            *(answered(world, f"{world.session_id} 2") for world in reversed(worlds)),
            return_exceptions=True,
        )
        refused_as_busy = [error for error in accepted if isinstance(error, Exception)]
        assert accepted.count(True) <= 3
        assert accepted.count(True) + accepted.count(False) + len(refused_as_busy) == 6
        await check_counters(store)

    assert exhaust(life, **of_cases()).total() > 50


@pytest.mark.virtual_time
async def test_a_turn_without_quotas_takes_no_statement_more() -> None:
    store = InMemoryStore()
    (world,) = await begun(store)
    for index in range(20):
        assert await answered(world, str(index))
    passed = [point for point, _ in world.faults.passed if point.endswith("before")]
    assert passed.count("store.quotas before") == 1 and passed.count("store.commit before") == 40
    assert passed.count("store.tenants_of before") == 0  # the activation had it
    assert not (await store.quota_counters(USER, "")).counters


@pytest.mark.virtual_time
async def test_a_quota_that_another_process_sets_holds_after_some_seconds() -> None:
    store = InMemoryStore()
    (world,) = await begun(store)
    assert await answered(world, "first")
    await store.set_quota(Quota(runs=1, per="month"))
    await asyncio.sleep(MOST_AGE_S + 1)
    assert await answered(world, "second")
    assert not await answered(world, "third")
    await store.remove_quota(Quota(runs=1, per="month").quota_id)
    await asyncio.sleep(MOST_AGE_S + 1)
    assert await answered(world, "fourth")


@pytest.mark.virtual_time
async def test_a_tenant_that_another_process_sets_holds_after_some_seconds() -> None:
    store = InMemoryStore()
    await store.set_tenant(USER, "acme")
    await store.set_quota(Quota(tenant="*", runs=1, per="month"))
    (world,) = await begun(store)
    assert await answered(world, "first")
    assert not await answered(world, "second")
    await store.set_tenant(USER, "other")
    await asyncio.sleep(MOST_AGE_S + 1)
    assert await answered(world, "third")
    assert not await answered(world, "fourth")
    rows = await store.ledger(LedgerQuery(by=("tenant",)))
    assert [(row.tenant, row.runs) for row in rows] == [("acme", 1), ("other", 1)]
    passed = [point for point, _ in world.faults.passed if point.endswith("before")]
    assert passed.count("store.tenants_of before") == 1


@pytest.mark.by_turns
def test_each_tenant_has_spent_what_its_counter_says_whatever_fails_or_changes() -> None:
    """A commit counts and books for one tenant, also if the user gets another one meanwhile."""
    tokens = Quota(tenant="*", tokens=10**9, per="month")

    async def life(faults: Faults) -> None:
        store = InMemoryStore(clock=asyncio.get_running_loop().time)
        await store.set_quota(tokens)
        (world,) = await begun(store, faults=faults)
        for index, tenant in enumerate(("a", "b", None, "a")):
            await store.set_tenant(USER, tenant)
            await answered(world, f"prompt {index}")
            await asyncio.sleep(index * MOST_AGE_S / 2)
        rows = {row.tenant: row.usage for row in await store.ledger(LedgerQuery(by=("tenant",)))}
        for name in ("a", "b"):
            counters = await store.quota_counters("", "", name)
            used = counters.of(tokens, CounterKey("", "", tokens.quota_id, name)).used
            usage = rows.get(name)
            assert used == (usage.input_tokens + usage.output_tokens if usage else 0), name
        await world.audit()

    assert exhaust(life, **of_cases()).total() > 50


def test_what_is_known_of_tenants_is_never_older_than_it_may_be() -> None:
    """Whatever is set, read, activated and forgotten at the same time, by users of whom some are passed over."""

    async def life(seed: int) -> None:
        dice, clock = random.Random(seed), asyncio.get_running_loop().time
        history: dict[str, list[tuple[float, str | None]]] = {}
        announced: dict[str, int] = {}
        """By user: the place in the history of what holds at once."""

        class Slow(InMemoryStore):
            async def tenants_of(self, user_ids: Any) -> dict[str, str]:
                await asyncio.sleep(dice.random() * 2)
                found = await super().tenants_of(user_ids)
                await asyncio.sleep(dice.random() * 2)
                return found

        store = Slow(clock=clock)
        known, users = KnownTenants(store), [f"u{index}" for index in range(4)]

        async def change() -> None:
            for _ in range(20):
                await asyncio.sleep(dice.random() * 8)
                user, tenant = dice.choice(users), dice.choice(["a", "b", None])
                history.setdefault(user, [(-1.0, None)]).append((clock(), tenant))
                await store.set_tenant(user, tenant)
                if dice.random() < 0.5:
                    announced.update({name: len(changes) - 1 for name, changes in history.items()})
                    known.forget()

        async def use() -> None:
            for _ in range(40):
                await asyncio.sleep(dice.random() * 4)
                user = dice.choice(users)
                if dice.random() < 0.3:
                    read_at = known.now()
                    tenant = (await InMemoryStore.tenants_of(store, [user])).get(user)
                    await asyncio.sleep(dice.random())
                    known.learn(user, tenant, read_at)
                first = announced.get(user, 0)
                tenant, now = await known.get(user), clock()
                changes = history.get(user, [(-1.0, None)])
                ends = [at for at, _ in changes[1:]] + [float("inf")]
                held = {
                    name for (_, name), end in [*zip(changes, ends, strict=True)][first:] if end >= now - MOST_AGE_S
                }
                assert tenant in held, (user, tenant, held)

        await asyncio.gather(change(), *(use() for _ in range(3)))

    assert explore(share(150), life)


@pytest.mark.virtual_time
async def test_a_change_that_is_announced_holds_at_once() -> None:
    """Also if an earlier reading, or an activation, is under way."""
    store = InMemoryStore()
    known = KnownTenants(store)
    read_at = known.now()
    await store.set_tenant("u", "a")
    known.forget()
    known.learn("u", None, read_at)
    assert await known.get("u") == "a"
    for number in range(MOST_USERS + 5):
        known.learn(f"v{number}", "b", known.now())
    assert await known.get("u") == "a" and await known.get("v0") is None


@pytest.mark.virtual_time
@pytest.mark.parametrize(("per", "length_s"), [("minute", 60), ("day", 86_400), ("month", 31 * 86_400)])
async def test_a_quota_begins_anew_with_each_period(per: Any, length_s: int) -> None:
    now = 1_798_761_599.5  # the last half second of December 2026
    store = InMemoryStore(clock=lambda: now)
    await store.set_quota(Quota(runs=1, per=per))
    (world,) = await begun(store, clock=lambda: now)
    assert await answered(world, "a")
    with pytest.raises(QuotaExceededError, match="has used 1 of 1 runs") as info:
        await world.start("b")
    assert (info.value.resets_at, info.value.retry_after_s) == (1_798_761_600.0, 0.5)
    now += 0.5
    assert await answered(world, "c")
    assert not await answered(world, "d")
    now += length_s
    assert await answered(world, "e")


@pytest.mark.virtual_time
async def test_a_clock_that_jumps_back_by_some_seconds_frees_nothing() -> None:
    now = 1_798_761_600.0  # midnight
    store = InMemoryStore(clock=lambda: now)
    quota = Quota(runs=2, per="day")
    await store.set_quota(quota)
    (world,) = await begun(store, clock=lambda: now)
    assert await answered(world, "a")
    now -= 30
    assert await answered(world, "b")
    assert not await answered(world, "c")
    now += 60
    assert not await answered(world, "d")


@pytest.mark.virtual_time
async def test_a_clock_that_was_years_ahead_blocks_nobody_after_it_was_mended() -> None:
    now = 1_798_761_600.0 + 3e8
    store = InMemoryStore(clock=lambda: now)
    await store.set_quota(Quota(runs=1, per="minute"))
    (world,) = await begun(store, clock=lambda: now)
    assert await answered(world, "a")
    now -= 3e8
    assert await answered(world, "b")
    assert not await answered(world, "c")
    now += 60
    assert await answered(world, "d")


@pytest.mark.virtual_time
async def test_a_fork_counts_only_its_own_runs() -> None:
    store = InMemoryStore()
    for quota in (RUNS, TOKENS):
        await store.set_quota(quota)
    (world,) = await begun(store)
    assert await answered(world, "a")
    before = await used(store, TOKENS)
    await world.fork("fork")
    assert (await used(store, RUNS), await used(store, TOKENS)) == (1, before)


@pytest.mark.virtual_time
async def test_prompts_that_join_a_queued_run_are_no_runs() -> None:
    store = InMemoryStore()
    await store.set_quota(RUNS)
    (world,) = await begun(store, engine=FunctionEngine(slow))
    run_ids = [await world.start(str(index), if_busy="merge") for index in range(6)]
    for run_id in run_ids:
        await world.wait(run_id)
    assert await used(store, RUNS) == 2


def test_a_counter_of_an_earlier_period_counts_nothing() -> None:
    counter = QuotaCounter(key=CounterKey("", "", "q"), starts=0, ends=60, used=5)
    assert counter.used_at("minute", 59.9).used == 5
    assert counter.used_at("minute", 60).used == 0
    assert counter.used_at("minute", -1).used == 5  # a clock that was set back a little
    assert counter.used_at("minute", -61).used == 0


@pytest.mark.virtual_time
async def test_runs_that_a_quota_queues_begin_in_its_next_period_in_order() -> None:
    store = InMemoryStore(clock=asyncio.get_running_loop().time)
    await store.set_quota(Quota(runs=1, per="minute", then="queue"))
    (world,) = await begun(store)
    run_ids = [await world.start(name, if_busy="enqueue") for name in "abcd"]
    assert await world.wait("a") == "completed"
    waiting = await store.run("b")
    assert (waiting.state, waiting.code) == ("queued", "quota") and waiting.started_at == pytest.approx(60.0)
    for minute, run_id in enumerate(run_ids):
        assert await world.wait(run_id) == "completed"
        started_at = (await store.run(run_id)).started_at
        assert started_at is not None and started_at // 60 == minute, run_id
        assert (await store.run(run_id)).code is None


@pytest.mark.virtual_time
async def test_a_run_that_waits_for_a_quota_can_be_cancelled_and_is_not_counted() -> None:
    store = InMemoryStore(clock=asyncio.get_running_loop().time)
    await store.set_quota(Quota(runs=1, per="day", then="queue"))
    (world,) = await begun(store)
    assert await answered(world, "a")
    await world.start("b")
    assert await world.cancel("b")
    assert (await store.run("b")).code is None
    assert (await used(store, Quota(runs=1, per="day"))) == 1


@pytest.mark.by_turns
def test_runs_that_quotas_queue_survive_kills_and_never_exceed_the_quota() -> None:
    quota = Quota(runs=1, per="minute", then="queue")

    async def life(faults: Faults) -> None:
        store = InMemoryStore(clock=asyncio.get_running_loop().time)
        await store.set_quota(quota)
        worlds = await begun(store, "a", "b", faults=faults)
        prompts = [(world, f"{world.session_id} {index}") for index in range(2) for world in worlds]
        run_ids = [(world, await world.start(prompt, if_busy="enqueue")) for world, prompt in prompts]
        for world, run_id in run_ids:
            await world.wait(run_id)
        runs = [await store.run(run_id) for _, run_id in run_ids]
        minutes = [run.started_at // 60 for run in runs if run.started_at]
        assert len(set(minutes)) == len(minutes), minutes
        for world in worlds:
            await world.audit()

    assert exhaust(life, **of_cases()).total() > 50


@pytest.mark.virtual_time
async def test_a_run_over_a_quota_that_asks_begins_once_somebody_approves() -> None:
    store = InMemoryStore()
    quota = Quota(runs=1, per="month", then="ask")
    await store.set_quota(quota)
    (world,) = await begun(store)
    assert await answered(world, "a")
    cases: list[tuple[str, Verdict, str]] = [("b", "approved", "completed"), ("c", "rejected", "failed")]
    for name, verdict, state in cases:
        await world.start(name)
        outcome = await world.ask("reads.wait", name, until="settled")
        assert outcome.run.state == "awaiting_approval"
        (call_id,) = outcome.run.calls
        assert call_id == f"quota-{quota.quota_id}"
        await world.decide(name, call_id, ApprovalDecision(verdict=verdict))
        assert await world.wait(name) == state
    assert (await store.run("c")).code == "quota"
    assert await used(store, quota) == 3


@pytest.mark.virtual_time
@pytest.mark.parametrize("then", ["refuse", "queue", "ask"])
async def test_a_run_is_held_by_a_quota_of_tokens_before_its_next_call_of_the_model(then: Any) -> None:
    store = InMemoryStore()
    await store.set_quota(Quota(tokens=1, per="month", then=then))
    dig = tool(lambda: "nothing", name="dig", description="Digs.")
    (world,) = await begun(store, engine=ScriptedEngine([[("dig", {})], "found"], tools=[dig]))
    await world.start("a")
    outcome = await world.ask("reads.wait", "a", until="settled")
    if then == "refuse":
        assert (outcome.run.state, outcome.run.code) == ("failed", "quota")
        assert "has used" in outcome.run.why and outcome.turn.blocks[-1].text == "nothing"  # what it did is kept
    elif then == "queue":
        assert outcome.run.state == "completed"
    else:
        (call_id,) = [name for name in outcome.run.calls if name.startswith("quota-")]
        await world.decide("a", call_id, ApprovalDecision(verdict="approved"))
        assert await world.wait("a") == "completed"
    calls = 1 if then == "refuse" else 2
    usage = (await store.run("a")).usage
    assert usage and usage.calls == calls


@pytest.mark.virtual_time
async def test_16_processes_exceed_a_quota_of_tokens_by_one_call_each_at_most() -> None:
    store = InMemoryStore()
    dice = random.Random(1)

    async def dig() -> str:
        """Dig for a while."""
        await asyncio.sleep(dice.random())
        return "nothing"

    engine = ScriptedEngine([[("dig", {})]] * 9 + ["found"], tools=[tool(dig)])
    sessions = [f"s{index}" for index in range(16)]
    worlds = await begun(store, *sessions, engine=engine)
    most = 400
    await store.set_quota(Quota(user_id="*", tokens=most, per="month"))
    outcomes = await asyncio.gather(*(answered(world, world.session_id) for world in worlds))
    assert all(outcomes)
    runs = [await store.run(session_id) for session_id in sessions]
    events = [event for session_id in sessions for event in await store.events(SessionKey(session_id))]
    calls = [event.usage for event in events if isinstance(event, ModelCallEnded) and event.usage]
    largest = max(usage.input_tokens + usage.output_tokens for usage in calls)
    spent = await used(store, Quota(user_id="*", tokens=most, per="month"))
    assert most <= spent <= most + 16 * largest, (spent, largest)
    assert {run.code for run in runs} == {"quota"}
    print(f"a quota of {most} tokens: {spent} were used, a call takes {largest} at most")


@pytest.mark.by_turns
def test_a_quota_that_is_changed_while_runs_begin_holds_as_it_is_then() -> None:
    """The highest limit that ever held is never exceeded, and after the last change the last limit holds."""

    async def life(seed: int) -> None:
        dice = random.Random(seed)
        store = InMemoryStore(clock=asyncio.get_running_loop().time)
        quota = Quota(user_id="*", runs=2, per="month")
        await store.set_quota(quota)
        worlds = await begun(store, "a", "b", "c", faults=Faults(FaultPlan(rates=RATES), seed=seed))
        done = asyncio.Event()

        async def change() -> None:
            for limit in (4, 1, 3):
                await asyncio.sleep(dice.random() * 20)
                await store.set_quota(Quota(user_id="*", runs=limit, per="month"))
            await asyncio.sleep(MOST_AGE_S + 1)
            done.set()

        async def ask(world: World) -> None:
            number = 0
            while not done.is_set():
                number += 1
                await answered(world, f"{world.session_id} {number}")
                await asyncio.sleep(dice.random() * 5)

        await asyncio.gather(change(), *map(ask, worlds))
        count = await used(store, quota)
        runs = [run for session in await store.query(limit=99) for run in await store.runs(session.key)]
        assert count == len(runs) <= 4, (count, len(runs))
        assert await answered(worlds[0], "at last") == (count < 3)

    assert explore(share(400), life)
