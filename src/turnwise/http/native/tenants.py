"""The native API: tenants, which operators give to users."""

from __future__ import annotations

from typing import Self

from fastapi import APIRouter
from pydantic import Field

from turnwise.http.middleware.paths import InPath
from turnwise.http.native.models import Body, Shown, example
from turnwise.http.native.sessions import NOT_FOUND, Cursor, Limit
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import RequestCaller, check_operator
from turnwise.memory.quotas.tenants import Tenant
from turnwise.memory.stores.base import Page

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["tenants"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 403, 422, 429, 503),
)


class SetTenant(Body):
    """The label of a user."""

    model_config = example(tenant="acme")

    tenant: str | None
    """An id of at most 64 bytes; null removes the user's tenant."""


class UserTenant(Shown):
    """A user's tenant."""

    model_config = example(user="ann", tenant="acme")

    user: str
    tenant: str | None
    """Null if the user has none."""


class TenantShown(Shown):
    """A tenant, and how many users have it."""

    model_config = example(tenant="acme", users=12)

    tenant: str
    users: int


class TenantsShown(Shown):
    """Tenants that users have, by their names."""

    items: list[TenantShown] = Field(default_factory=list)
    cursor: str | None = None
    """Pass it to get the next page; null if there is none."""

    @classmethod
    def of(cls, page: Page[Tenant]) -> Self:
        return cls(items=[TenantShown(tenant=one.tenant, users=one.users) for one in page], cursor=page.cursor)


class UsersShown(Shown):
    """The ids of users, in order."""

    items: list[str] = Field(default_factory=list)
    cursor: str | None = None
    """Pass it to get the next page; null if there is none."""

    @classmethod
    def of(cls, page: Page[str]) -> Self:
        return cls(items=list(page), cursor=page.cursor)


@router.get("/tenants", summary="List tenants, and how many users have each")
async def list_tenants(caller: RequestCaller, cursor: Cursor = None, limit: Limit = 100) -> TenantsShown:
    """For operators."""
    check_operator(caller, "list tenants")
    return TenantsShown.of(await caller.manager.tenants(cursor=cursor, limit=limit))


@router.get("/tenants/{tenant}/users", summary="List the users of a tenant", responses=NOT_FOUND)
async def list_users(tenant: InPath, caller: RequestCaller, cursor: Cursor = None, limit: Limit = 100) -> UsersShown:
    """For operators."""
    check_operator(caller, "list users")
    return UsersShown.of(await caller.manager.users(tenant, cursor=cursor, limit=limit))


@router.get("/users/{user}/tenant", summary="Get the tenant of a user", responses=NOT_FOUND)
async def get_tenant(user: InPath, caller: RequestCaller) -> UserTenant:
    """Operators get that of any user, others their own."""
    if user != caller.user_id:
        check_operator(caller, "see the tenants of others")
    return UserTenant(user=user, tenant=await caller.manager.tenant(user))


@router.put("/users/{user}/tenant", summary="Give a user a tenant, or remove it", responses=NOT_FOUND)
async def set_tenant(user: InPath, body: SetTenant, caller: RequestCaller) -> UserTenant:
    """For operators. May be repeated. Where tokens name tenants, change them there: their tenant is set again."""
    check_operator(caller, "set tenants")
    await caller.manager.set_tenant(user, body.tenant)
    return UserTenant(user=user, tenant=body.tenant)
