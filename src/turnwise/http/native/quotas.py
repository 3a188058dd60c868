"""The native API: quotas, which operators set, and of which users see what they have used."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import Field

from turnwise.errors import OperatorsOnlyError, QuotaNotFoundError
from turnwise.http.middleware.paths import InPath
from turnwise.http.native.models import Body, Shown, example
from turnwise.http.native.sessions import NOT_FOUND, Agent, OfTenant
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import RequestCaller, check_may_name, check_operator
from turnwise.memory.quotas.records import Quota, QuotaPeriod, QuotaThen, QuotaUnit, QuotaUse

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["quotas"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 403, 422, 429, 503),
)

OfUser = Annotated[str | None, Query(description="What limits this user. Operators see all users, others themselves.")]


class SetQuota(Body):
    """What may be used in each period: exactly one of `runs`, `tokens` and `cost`."""

    model_config = example(user="*", runs=100, per="day")

    user: str | None = None
    """Whose sessions it limits: a user's, or with `*` each user's on their own; of all users together if omitted."""
    agent: str | None = None
    """The sessions of which agent it limits: of one, or with `*` of each on its own."""
    tenant: str | None = None
    """The users of which tenant it limits: of one together, or with `*` of each on its own."""
    runs: int | None = None
    tokens: int | None = None
    """Of input and output, together."""
    cost: float | None = None
    per: QuotaPeriod = "day"
    """The period: a `minute`, a `day` or a `month`, in UTC."""
    then: QuotaThen = "refuse"
    """What happens to a run when it is used up: `refuse` it with 429, `queue` it until the next period, or `ask`."""

    @property
    def quota(self) -> Quota:
        """The quota to set."""
        limits = {"runs": self.runs, "tokens": self.tokens, "cost": self.cost}
        names = {"user_id": self.user, "agent": self.agent, "tenant": self.tenant}
        return Quota(**names, per=self.per, then=self.then, **limits)  # type: ignore[arg-type]


class QuotaShown(Shown):
    """A quota, and what was used of it in the present period."""

    model_config = example(
        id="1f0c6a2b9d3e",
        user="*",
        limits="runs",
        limit=100,
        per="day",
        then="refuse",
        used=12,
        left=88,
        resets_at=1764460800.0,
    )

    id: str
    user: str | None = None
    agent: str | None = None
    tenant: str | None = None
    limits: QuotaUnit
    limit: float
    per: QuotaPeriod
    then: QuotaThen
    used: float | None = None
    """Left out of a quota of each user or tenant, unless one was named."""
    left: float | None = None
    resets_at: float
    """When the next period begins, in seconds since the epoch."""

    @classmethod
    def of(cls, use: QuotaUse) -> Self:
        quota = use.quota
        return cls(
            id=quota.quota_id,
            user=quota.user_id,
            agent=quota.agent,
            tenant=quota.tenant,
            limits=quota.unit,
            limit=quota.limit,
            per=quota.per,
            then=quota.then,
            used=use.used,
            left=use.left,
            resets_at=use.resets_at,
        )


class QuotasShown(Shown):
    """Quotas, by their ids."""

    items: list[QuotaShown] = Field(default_factory=list)


class QuotaRemoved(Shown):
    """What a removal did."""

    removed: bool


@router.get("/quotas", summary="Quotas, and what was used of them", response_model_exclude_none=True)
async def list_quotas(
    caller: RequestCaller, *, user: OfUser = None, agent: Agent = None, tenant: OfTenant = None
) -> QuotasShown:
    """Operators get all, or those that limit a user or a tenant; others those that limit themselves."""
    check_may_name(caller, tenant)
    identity = caller.identity
    sees_all = identity is None or identity.is_operator
    if not sees_all and user not in (None, caller.user_id):
        raise OperatorsOnlyError(caller.user_id, "see quotas of others", "leave `user` out")
    uses = await caller.manager.quotas(user_id=user if sees_all else caller.user_id, agent=agent, tenant=tenant)
    return QuotasShown(items=[QuotaShown.of(use) for use in uses])


@router.put("/quotas", summary="Limit what may be used in a period", response_model_exclude_none=True)
async def set_quota(body: SetQuota, caller: RequestCaller) -> QuotaShown:
    """One with another limit for the same replaces the earlier one, and what was used stays counted."""
    check_operator(caller, "set quotas")
    await caller.manager.set_quota(body.quota)
    uses = {use.quota.quota_id: use for use in await caller.manager.quotas()}
    if body.quota.quota_id not in uses:
        raise QuotaNotFoundError(body.quota.quota_id)  # it was removed meanwhile
    return QuotaShown.of(uses[body.quota.quota_id])


@router.delete("/quotas/{quota_id}", summary="Remove a quota", responses=NOT_FOUND)
async def remove_quota(quota_id: InPath, caller: RequestCaller) -> QuotaRemoved:
    """May be repeated."""
    check_operator(caller, "remove quotas")
    try:
        await caller.manager.remove_quota(quota_id)
    except QuotaNotFoundError:
        return QuotaRemoved(removed=False)
    return QuotaRemoved(removed=True)
