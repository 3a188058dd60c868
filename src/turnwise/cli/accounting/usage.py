"""The command `usage`: what was spent, by day, user, agent, session, kind, engine, model and tool."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import AsJson, OfAgent, OfTenant, OfUser, Server, Store, reading, run
from turnwise.cli.output import Cell, Column, print_json, print_table
from turnwise.console.elements.text import number

if TYPE_CHECKING:
    from turnwise.memory.conversation.ledger import LedgerRow, UsageReport

_COLUMNS = (
    *("runs", "model calls", "tool calls", "tokens in", "cached", "tokens out", "reasoning"),
    *("reported", "counted", "seconds", "cost"),
)


def usage(
    store: Store,
    *,
    server: Server = None,
    by: Annotated[
        str,
        typer.Option(help="What to split the sums by: day, user, agent, session, kind, model, tool, tenant, engine."),
    ] = "",
    since: Annotated[str | None, typer.Option(help="Only on this day or later, in UTC: 2026-11-29.")] = None,
    until: Annotated[str | None, typer.Option(help="Only on this day or before.")] = None,
    user: OfUser = None,
    agent: OfAgent = None,
    tenant: OfTenant = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what was spent: runs, calls, tokens, time and cost, also of deleted sessions.

    Tokens that no provider reported, as of stopped answers, are counted by turnwise: of all tokens, that many.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    query = {"user_id": user, "agent": agent, "tenant": tenant, "since": since, "until": until, "by": names}
    report = run(_report(store, query))
    if as_csv:
        sys.stdout.write(report.csv())
        return
    if as_json:
        from turnwise.http.native.usage import UsageReportShown

        print_json(UsageReportShown.of(report))
        return
    columns = [*map(Column, report.by or ("",)), *(Column(name, right=True) for name in _COLUMNS)]
    rows = [_cells(report, row) for row in (report.rows if report.by else ())]
    print_table(columns, [*rows, _total(report)])


async def _report(store: str, query: dict[str, Any]) -> UsageReport:
    async with reading(store) as manager:
        return await manager.usage(**query)


def _cells(report: UsageReport, row: LedgerRow) -> list[Cell]:
    from turnwise.memory.conversation.ledger import COLUMNS, shown_numbers

    *counts, seconds, cost = shown_numbers(row)
    names = [getattr(row, COLUMNS[name]) or "" for name in report.by]
    return [*names, *(number(int(count)) for count in counts), f"{seconds:.1f}", number(round(cost, 6))]


def _total(report: UsageReport) -> list[Cell]:
    from turnwise.memory.conversation.ledger import LedgerRow

    cells = _cells(report, LedgerRow(runs=report.runs, usage=report.total))
    return ["total", *cells[1:]] if report.by else ["total", *cells]
