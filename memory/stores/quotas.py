"""Reads what is used of the quotas of a store, and whether one is used up."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.memory.quotas.records import EACH, Quota, QuotaCount, QuotaCounters, QuotaUse, counts_of, use_of
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.values.records import replace


async def quota_uses(store: SessionStore, user_id: str | None, agent: str | None) -> list[QuotaUse]:
    """Return the quotas that limit a user and an agent, by id, with what is used of them in the present period.

    Args:
        user_id: whose; None: all quotas, of which those of each user do not say what is used.
        agent: likewise.
    """
    quotas = [quota for quota in await store.quotas() if _limits(quota, user_id, agent)]
    uses: list[QuotaUse] = []
    counters: dict[tuple[str, str], QuotaCounters] = {}
    for quota in quotas:
        place = _one(quota.user_id, user_id), _one(quota.agent, agent)
        if place not in counters:
            counters[place] = await store.quota_counters(*place)
        uses.append(use_of(quota, counters[place], user_id, agent))
    return uses


async def check_quotas(store: SessionStore, user_id: str, agent: str | None) -> None:
    """Raise if a quota is used up that refuses the runs of a user with an agent. Counts nothing.

    Raises:
        QuotaExceededError: one is.
    """
    keys = [(quota, quota.counter_of(user_id, agent)) for quota in await store.quotas() if quota.then == "refuse"]
    if not any(key for _, key in keys):
        return
    counters = await store.quota_counters(user_id, agent or "")
    for quota, key in keys:
        if key and (counter := counters.of(quota, key)).used >= quota.most:
            raise quota.exceeded(key, counter.used, counter.ends, counters.now)


async def count_run(store: SessionStore, user_id: str, agent: str | None) -> Sequence[QuotaCount]:
    """Count a run of which nothing is stored; return what was counted, for `take_back`.

    Raises:
        QuotaExceededError: a quota is used up, whatever it does to other runs: this one could not wait.
    """
    counts = counts_of(await store.quotas(), user_id, agent, admits=1, spent=())
    if counts:
        await store.use_quotas(counts)
    return counts


async def take_back(store: SessionStore, counts: Sequence[QuotaCount]) -> None:
    """Take back what `count_run` has counted, as the run was not begun."""
    if counts:
        await store.use_quotas([replace(count, amount=-count.amount, is_checked=False) for count in counts])


def _limits(quota: Quota, user_id: str | None, agent: str | None) -> bool:
    return (user_id is None or quota.user_id in (None, EACH, user_id)) and (
        agent is None or quota.agent in (None, EACH, agent)
    )


def _one(of_quota: str | None, named: str | None) -> str:
    """Return the user or the agent whose counter of a quota is read; empty for the counter of all."""
    return (named if of_quota == EACH else of_quota) or ""
