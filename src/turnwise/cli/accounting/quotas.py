"""`turnwise quotas`: what users and agents may use in a minute, a day or a month, and what they have used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import AsJson, Command, Namespace, OfAgent, OfTenant, OfUser, Server, Store, reading, run
from turnwise.cli.output import Cell, Column, one_line, print_json, print_table, write
from turnwise.cli.session_control import changing
from turnwise.console.elements.text import moment, number

if TYPE_CHECKING:
    from turnwise.memory.quotas.records import QuotaUse

quotas = typer.Typer(help="What users and agents may use in a period, and have used.", no_args_is_help=True)

_COST_DIGITS = 6


@quotas.command("ls", cls=Command)
def list_(
    store: Store,
    *,
    server: Server = None,
    user: OfUser = None,
    agent: OfAgent = None,
    tenant: OfTenant = None,
    as_json: AsJson = False,
) -> None:
    """List quotas. With --user, those that limit this user, and what was used of those of each user."""

    async def work() -> None:
        async with reading(store) as manager:
            uses = await manager.quotas(user_id=user, agent=agent, tenant=tenant)
        if as_json:
            from turnwise.http.native.quotas import QuotaShown, QuotasShown

            print_json(QuotasShown(items=[QuotaShown.of(use) for use in uses]))
            return
        names = ("quota", "for", "limits", "limit", "per", "used", "then", "begins anew")
        print_table([Column(name, right=name in ("limit", "used")) for name in names], [_row(use) for use in uses])

    run(work())


def _row(use: QuotaUse) -> list[Cell]:
    quota = use.quota
    used: Cell = "" if use.used is None else _amount(use.used)
    if use.left == 0:
        used = (_amount(use.used or 0), "red")
    return [
        *(quota.quota_id, quota.scope, quota.unit, _amount(quota.limit), quota.per, used, quota.then),
        moment(use.resets_at),
    ]


def _amount(amount: float) -> str:
    return number(round(amount, _COST_DIGITS) if amount % 1 else int(amount))


@quotas.command("set", cls=Command)
def set_(
    store: Store,
    *,
    server: Server = None,
    user: Annotated[str | None, typer.Option("--user", help="Of this user; '*' for each. Else of all.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Of this agent's sessions; '*' for each agent.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Of this tenant's users; '*' for each tenant.")] = None,
    runs: Annotated[int | None, typer.Option("--runs", help="How many runs begin.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", help="How many tokens are used.")] = None,
    cost: Annotated[float | None, typer.Option("--cost", help="How much is spent.")] = None,
    per: Annotated[str, typer.Option("--per", help="minute, day or month, in UTC.")] = "day",
    then: Annotated[str, typer.Option("--then", help="What happens to a run then: refuse, queue or ask.")] = "refuse",
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Limit runs, tokens or cost, and print the quota's id. Another limit for the same replaces the earlier one."""
    fields: Any = {"runs": runs, "tokens": tokens, "cost": cost, "per": per, "then": then}

    async def work() -> None:
        from turnwise.memory.quotas.records import Quota

        quota = Quota(user_id=user, agent=agent, tenant=tenant, **fields)
        async with changing(store, namespace) as manager:
            await manager.set_quota(quota)
        if as_json:
            print_json({"id": quota.quota_id})
        else:
            write(quota.quota_id)

    run(work())


@quotas.command("rm", cls=Command)
def rm(
    store: Store,
    quota: Annotated[str, typer.Argument(metavar="QUOTA", help="The quota, as `turnwise quotas ls` names it.")],
    *,
    server: Server = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Remove a quota."""

    async def work() -> None:
        async with changing(store, namespace) as manager:
            await manager.remove_quota(quota)
        if as_json:
            print_json({"id": quota, "removed": True})
        else:
            write(one_line(f"quota {quota} is removed"))

    run(work())
