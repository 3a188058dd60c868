"""`turnwise tenants`: labels on users, by which quotas, usage and lists go."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.cli.common import AsJson, Command, Cursor, Limit, Namespace, Server, Store, reading, run
from turnwise.cli.output import Column, note, one_line, print_json, print_table, write
from turnwise.cli.session_control import changing

tenants = typer.Typer(help="Tenants: labels on users, by which quotas, usage and lists go.", no_args_is_help=True)

User = Annotated[str, typer.Argument(metavar="USER", help="The user.")]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant, of at most 64 bytes.")]


@tenants.command("ls", cls=Command)
def list_(
    store: Store,
    *,
    server: Server = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List tenants, and how many users have each."""

    async def work() -> None:
        async with reading(store) as manager:
            page = await manager.tenants(limit=limit, cursor=cursor)
        if as_json:
            from turnwise.http.native.tenants import TenantsShown

            print_json(TenantsShown.of(page))
            return
        print_table([Column("tenant"), Column("users", right=True)], [[one.tenant, str(one.users)] for one in page])
        _note_more(page.cursor)

    run(work())


@tenants.command("users", cls=Command)
def users(
    store: Store,
    tenant: TenantName,
    *,
    server: Server = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List the users of a tenant."""

    async def work() -> None:
        async with reading(store) as manager:
            page = await manager.users(tenant, limit=limit, cursor=cursor)
        if as_json:
            from turnwise.http.native.tenants import UsersShown

            print_json(UsersShown.of(page))
            return
        print_table([Column("user")], [[user] for user in page])
        _note_more(page.cursor)

    run(work())


@tenants.command("set", cls=Command)
def set_(
    store: Store,
    user: User,
    tenant: TenantName,
    *,
    server: Server = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Give a user a tenant, in place of an earlier one."""
    _set(store, user, tenant, namespace, as_json=as_json)


@tenants.command("rm", cls=Command)
def rm(
    store: Store,
    user: User,
    *,
    server: Server = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Remove the tenant of a user."""
    _set(store, user, None, namespace, as_json=as_json)


def _set(store: str, user: str, tenant: str | None, namespace: str | None, *, as_json: bool) -> None:
    async def work() -> None:
        async with changing(store, namespace) as manager:
            await manager.set_tenant(user, tenant)
        if as_json:
            print_json({"user": user, "tenant": tenant})
        elif tenant is None:
            write(one_line(f"user {user} has no tenant"))
        else:
            write(one_line(f"user {user} has the tenant {tenant}"))

    run(work())


def _note_more(cursor: str | None) -> None:
    if cursor is not None:
        note(f"there are more: --cursor {cursor!r}")
