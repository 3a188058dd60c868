"""Laws of `SessionStore` about quotas: how they are kept, and what commits count."""

from __future__ import annotations

import asyncio
from typing import Any

from turnwise.errors import (
    DuplicateKeyError,
    InvalidInputError,
    QuotaExceededError,
    QuotaNotFoundError,
    SessionFencedError,
)
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.quotas.records import MAX_QUOTAS, MOST_COUNT, CounterKey, Quota, QuotaCount, period_of
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.conformance.fixtures import IDS, a_run, own, unchanged
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses

LAWS: list[Law] = []

_law = collector(LAWS)


def _key(quota: Quota, user_id: str, agent: str | None) -> CounterKey:
    key = quota.counter_of(user_id, agent)
    if key is None:
        raise AssertionError(f"{quota} does not limit user {user_id!r} with agent {agent!r}")
    return key


def a_count(quota: Quota, user_id: str = "u", agent: str | None = None, *, amount: int = 1, **more: Any) -> QuotaCount:
    """Return what a commit of a session of this user and agent adds to the quota's counter."""
    return QuotaCount(quota=quota, key=_key(quota, user_id, agent), amount=amount, **more)


async def _check_used(store: SessionStore, quota: Quota, used: int, user_id: str = "u", agent: str = "") -> None:
    """Check what is used of a quota by this user and agent in the present period."""
    counters = await store.quota_counters(user_id, agent)
    counter = counters.of(quota, _key(quota, user_id, agent or None))
    equal(counter.used, used, f"what is used of {quota} by {user_id!r} with {agent!r}")
    equal((counter.starts, counter.ends), period_of(quota.per, counters.now), f"the period of {quota}")


@_law
async def check_quotas_come_back_as_they_were_set(store: SessionStore, other: SessionStore) -> None:
    """They are listed by id; one with another limit for the same replaces the first; a removed one is gone."""
    equal(await store.quotas(), [], "the quotas of a new store")
    quotas = [
        Quota(runs=1),
        Quota(user_id="*", tokens=MOST_COUNT, per="minute"),
        Quota(user_id=IDS[-1], agent="*", tenant="t", cost=0.000_000_001, per="month"),
    ]
    for quota in quotas:
        await store.set_quota(quota)
    quotas.sort(key=lambda quota: quota.quota_id)
    equal(await other.quotas(), quotas, "the quotas")
    again = Quota(runs=5)
    await other.set_quota(again)
    await store.remove_quota(Quota(user_id="*", tokens=1, per="minute").quota_id)
    rest = [quota for quota in quotas if quota.unit == "cost"]
    equal(await other.quotas(), sorted([*rest, again], key=lambda quota: quota.quota_id), "the quotas after changes")
    await refuses(QuotaNotFoundError, store.remove_quota("none"), "the removal of no quota")
    for wrong in (Quota(), Quota(runs=1, tokens=1), Quota(runs=0), Quota(cost=-0.5), Quota(runs=1, user_id="")):
        await refuses(InvalidInputError, store.set_quota(wrong), f"an unusable quota {wrong}")
    for index in range(MAX_QUOTAS - 2):
        await store.set_quota(Quota(user_id=str(index), runs=1))
    await refuses(InvalidInputError, other.set_quota(Quota(user_id="x", runs=1)), "a quota too many")
    await other.set_quota(Quota(runs=6))


@_law
async def check_commits_add_to_counters_of_quotas(store: SessionStore, other: SessionStore) -> None:
    """Exactly. One that is checked is refused when the limit is reached, and then nothing of it is stored."""
    runs, tokens = Quota(runs=2, per="month"), Quota(user_id="*", tokens=10, per="month")
    for quota in (runs, tokens):
        await store.set_quota(quota)
    owner = await own(store, "s", user_id="u")
    await owner.commit(counts=[a_count(runs, is_checked=True), a_count(tokens, amount=0, is_checked=True)])
    await owner.commit(counts=[a_count(tokens, amount=9)])
    await owner.commit(counts=[a_count(runs, is_checked=True), a_count(tokens, amount=0, is_checked=True)])
    await owner.commit(counts=[a_count(tokens, amount=MOST_COUNT - 9)])  # what was spent is counted anyway
    await _check_used(other, runs, 2)
    await _check_used(other, tokens, MOST_COUNT)
    fresh = Quota(cost=1.0, per="month")
    for count, used, limit in ((a_count(runs), 2, 2), (a_count(tokens, amount=0), MOST_COUNT, 10)):
        counts = [a_count(fresh), QuotaCount(quota=count.quota, key=count.key, amount=count.amount, is_checked=True)]
        async with unchanged(store, SessionKey("s", "u")):
            refused = owner.prepare(counts=counts, new_run=a_run("r", 0, user_id="u"))
            error = await refuses(QuotaExceededError, store.commit(SessionKey("s", "u"), 1, refused), "a used up quota")
        equal((error.quota_id, error.used, error.limit), (count.quota.quota_id, used, limit), "the error")
        counters = await store.quota_counters("u", "")
        equal(error.resets_at, period_of("month", counters.now)[1], "when the quota begins anew")
        await _check_used(store, fresh, 0)
    await _check_used(other, runs, 2)
    counts = [a_count(runs, is_checked=True)]
    await owner.commit(new_run=a_run("r", 0, user_id="u"))
    twice = owner.prepare(counts=counts, new_run=a_run("r", 0, user_id="u"))
    await refuses(DuplicateKeyError, store.commit(SessionKey("s", "u"), 1, twice), "a repeated run")


@_law
async def check_commits_at_the_same_time_exceed_no_quota(store: SessionStore, other: SessionStore) -> None:
    """Of many that are checked at once, as many are written as the quota allows, by whichever store."""
    most, others = Quota(runs=7, per="month"), Quota(user_id="*", runs=3, per="month")
    owners = [await own(store, f"s{index}", user_id=f"u{index % 4}") for index in range(24)]
    commits = [
        (
            owner.session.key,
            owner.prepare(counts=[a_count(quota, owner.session.user_id, is_checked=True) for quota in (most, others)]),
        )
        for owner in owners
    ]
    verbs = [(store, other)[index % 2].commit(key, 1, commit) for index, (key, commit) in enumerate(commits)]
    outcomes = await asyncio.gather(*verbs, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, QuotaExceededError)]
    equal((outcomes.count(None), len(refused)), (7, 17), f"commits and refusals of {outcomes}")
    await _check_used(store, most, 7)
    for index in range(4):
        used = outcomes[index::4].count(None)
        equal(used, min(used, int(others.limit)), f"how many commits of user u{index} were written")
        await _check_used(other, others, used, f"u{index}")


@_law
async def check_quotas_are_used_without_a_session(store: SessionStore, other: SessionStore) -> None:
    """All counts of a call are added or none; of many at once, no more than the quota allows."""
    quota, tokens = Quota(runs=5, per="month"), Quota(user_id="*", tokens=100, per="month")
    await store.use_quotas([])
    await store.use_quotas([a_count(tokens, amount=7)])
    calls = [[a_count(tokens, amount=1), a_count(quota, is_checked=True)] for _ in range(12)]
    verbs = [(store, other)[index % 2].use_quotas(counts) for index, counts in enumerate(calls)]
    outcomes = await asyncio.gather(*verbs, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, QuotaExceededError)]
    equal((outcomes.count(None), len(refused)), (5, 7), f"calls and refusals of {outcomes}")
    equal((refused[0].quota_id, refused[0].used), (quota.quota_id, 5), "the error")
    await _check_used(store, quota, 5)
    await _check_used(other, tokens, 12)


@_law
async def check_counters_are_apart_by_user_and_agent(store: SessionStore, other: SessionStore) -> None:
    """Where the quota says so. Forgetting a user, and removing a quota, delete the counters that are theirs alone."""
    each, both, everything = Quota(user_id="*", runs=9), Quota(user_id="*", agent="*", runs=9), Quota(runs=9)
    for quota in (each, both, everything):
        await store.set_quota(quota)
    for user in ("u", "v"):
        for agent in ("a", "b"):
            owner = await own(store, f"{user} {agent}", user_id=user, agent=agent)
            await owner.commit(counts=[a_count(quota, user, agent) for quota in (each, both, everything)])
    for user in ("u", "v"):
        await _check_used(other, each, 2, user)
        await _check_used(other, both, 1, user, "a")
    await _check_used(other, everything, 4)
    await _check_used(other, each, 0, "nobody")
    keys = {counter.key for counter in (await other.quota_counters("u", "a")).counters}
    expected = {CounterKey("u", "", each.quota_id), CounterKey("u", "a", both.quota_id)}
    equal(keys, {*expected, CounterKey("", "", everything.quota_id)}, "the counters of a user and an agent")
    of_tenant, each_tenant = Quota(tenant="t", user_id="*", runs=9), Quota(tenant="*", runs=9)
    counts = [
        QuotaCount(quota=quota, key=key, amount=1)
        for quota in (of_tenant, each_tenant)
        for user, tenant in (("u", "t"), ("v", "t"), ("v", "other"))
        if (key := quota.counter_of(user, None, tenant))
    ]
    await store.use_quotas(counts)
    used = {counter.key: counter.used for counter in (await other.quota_counters("v", "", "t")).counters}
    own_key, whole_key = CounterKey("v", "", of_tenant.quota_id, "t"), CounterKey("", "", each_tenant.quota_id, "t")
    equal((used[own_key], used[whole_key]), (1, 2), "what is used by a user of a tenant, and by the tenant")
    equal({key.tenant for key in used}, {"", "t"}, "the tenants of the counters")
    equal({key.tenant for counter in (await other.quota_counters("v", "")).counters for key in [counter.key]}, {""}, "")
    await store.forget_in_ledger("u")
    await _check_used(other, each, 0, "u")
    await _check_used(other, both, 0, "u", "a")
    await _check_used(other, each, 2, "v")
    await _check_used(other, everything, 4)
    await store.remove_quota(each.quota_id)
    await store.set_quota(each)
    await _check_used(other, each, 0, "v")
    await _check_used(other, both, 1, "v", "b")


@_law
async def check_a_stale_commit_counts_nothing(store: SessionStore) -> None:
    """A commit that is refused for any reason adds nothing to counters."""
    quota = Quota(runs=9)
    owner = await own(store, "s", user_id="u")
    stale = Commit(session=owner.session.committed(), counts=[a_count(quota)])
    await refuses(SessionFencedError, store.commit(SessionKey("s", "u"), 99, stale), "a stale owner")
    await _check_used(store, quota, 0)
