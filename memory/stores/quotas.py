"""Reads what is used of the quotas of a store, and whether one is used up."""

from __future__ import annotations

from turnwise.memory.quotas.records import EACH, Quota, QuotaCounters, QuotaUse, use_of
from turnwise.memory.stores.base import SessionStore


async def quota_uses(
    store: SessionStore, user_id: str | None, agent: str | None, tenant: str | None = None
) -> list[QuotaUse]:
    """Return the quotas that limit a user, an agent and a tenant, by id, with what is used in the present period.

    Args:
        user_id: whose; None: all quotas, of which those of each user do not say what is used.
        agent: likewise.
        tenant: likewise. With a user who does not have it, there are none. A user's quotas are those of the user's
            tenant, too.
    """
    quotas = await store.quotas()
    named = {quota.user_id for quota in quotas} | {user_id}
    tenants = await store.tenants_of([name for name in named if name not in (None, EACH)])
    if user_id is not None:
        own = tenants.get(user_id, "")
        if tenant not in (None, own):
            return []
        tenant = own
    uses: list[QuotaUse] = []
    counters: dict[tuple[str, str, str], QuotaCounters] = {}
    for quota in quotas:
        if not _limits(quota, user_id, agent, tenant):
            continue
        if user_id is None and tenant is not None and tenants.get(quota.user_id or EACH, tenant) != tenant:
            continue  # it limits a user of another tenant
        place = _one(quota.user_id, user_id), _one(quota.agent, agent), _one(quota.tenant, tenant)
        if place not in counters:
            counters[place] = await store.quota_counters(*place)
        uses.append(use_of(quota, counters[place], user_id, agent, tenant))
    return uses


async def check_quotas(store: SessionStore, user_id: str, agent: str | None) -> None:
    """Raise if a quota is used up that refuses the runs of a user with an agent. Counts nothing.

    Raises:
        QuotaExceededError: one is.
    """
    quotas = [quota for quota in await store.quotas() if quota.then == "refuse"]
    if not quotas:
        return
    tenant = (await store.tenants_of([user_id])).get(user_id)
    keys = [(quota, quota.counter_of(user_id, agent, tenant)) for quota in quotas]
    if not any(key for _, key in keys):
        return
    counters = await store.quota_counters(user_id, agent or "", tenant or "")
    for quota, key in keys:
        if key and (counter := counters.of(quota, key)).used >= quota.most:
            raise quota.exceeded(key, counter.used, counter.ends, counters.now)


def _limits(quota: Quota, user_id: str | None, agent: str | None, tenant: str | None) -> bool:
    named = (quota.user_id, user_id), (quota.agent, agent), (quota.tenant, tenant)
    return all(name is None or limited in (None, *([EACH] if name else []), name) for limited, name in named)


def _one(of_quota: str | None, named: str | None) -> str:
    """Return the user, agent or tenant whose counter of a quota is read; empty for the counter of all."""
    return (named if of_quota == EACH else of_quota) or ""
