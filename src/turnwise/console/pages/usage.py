"""The page of usage: what was spent, by day and as a table, and by session, beside the budgets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from nicegui import ui

from turnwise.actors.session.engines.budget import Budget
from turnwise.console.elements.frame import Frame
from turnwise.console.elements.tags import fact, link, tag
from turnwise.console.elements.text import moment, number
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.ledger import COLUMNS, LedgerField, UsageReport, day_of
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.quotas.records import QuotaUse

DAYS = 14
"""How many days the chart has."""

_DAY_S = 86_400

_TABLES: dict[str, tuple[LedgerField, ...]] = {
    "model": ("model", "kind"),
    "user": ("user",),
    "tenant": ("tenant",),
    "agent": ("agent",),
    "tool": ("tool",),
    "engine": ("engine", "kind"),
    "day": ("day", "model"),
}
"""What the table may be split by, and its columns then."""

_ROWS = 100
"""How many rows the table shows, those with the most tokens."""

_RUNS = 200
"""How many of the newest runs are compared with the budget of a run."""

_SESSIONS, _LISTED = 100, 10
"""How many of the sessions used last are looked at, and how many of them are listed."""

_REFRESH_S = 30.0


async def usage_page(
    user: str = "", agent: str = "", since: str = "", until: str = "", by: str = "model", *, tenant: str = ""
) -> None:
    """Show what was spent."""
    with Frame.of_page("usage", "Usage") as frame:
        filters = {"user": user, "tenant": tenant, "agent": agent, "since": since, "until": until}
        page = _UsagePage(frame, {**filters, "by": by if by in _TABLES else "model"})
        page.build()
    if await frame.arrived():
        await frame.repeat(page.refresh)


class _UsagePage:
    def __init__(self, frame: Frame, filters: dict[str, str]) -> None:
        self._frame = frame
        self._filters = filters

    def build(self) -> None:
        tag("h1", "", "Usage")
        with tag("div", "filters two", role="search"):
            names = {"agent": "Agent", "since": "Since (day, UTC)", "until": "Until (day, UTC)"}
            if self._frame.viewer.sees_all:
                names = {"user": "User", "tenant": "Tenant", **names}
            for name, label in names.items():
                field = ui.input(label, value=self._filters[name])
                field.on_value_change(lambda e, name=name: self._set_filter(name, e.value or ""))
                field.props("outlined dense clearable debounce=300")
            choice = ui.select([*_TABLES], value=self._filters["by"], label="Table by")
            choice.on_value_change(lambda e: self._set_filter("by", e.value)).props("outlined dense")
        self._body = tag("div", "", aria_live="polite")

    def _set_filter(self, name: str, value: str) -> None:
        self._filters[name] = value
        ui.navigate.history.replace(self._frame.viewer.url("usage", **self._filters))
        self._frame.wake.set()

    async def refresh(self) -> float:
        """Read and show what was used."""
        chosen, viewer = dict(self._filters), self._frame.viewer
        user = (chosen["user"].strip() or None) if viewer.sees_all else viewer.user_id
        filters: dict[str, Any] = {"user_id": user, "agent": chosen["agent"].strip() or None}
        filters["tenant"] = (chosen["tenant"].strip() or None) if viewer.sees_all else None
        since = time.time() - (DAYS - 1) * _DAY_S
        by_day = await viewer.manager.usage(since=day_of(since), by=["day"], **filters)
        sessions = await viewer.manager.list(order_by="updated_at", limit=_SESSIONS, **filters)
        runs = await viewer.manager.runs(limit=_RUNS, **filters)
        days, why = {name: chosen[name].strip() or None for name in ("since", "until")}, ""
        try:
            report = await viewer.manager.usage(by=_TABLES[chosen["by"]], **days, **filters)
        except InvalidInputError as error:
            report, why = UsageReport(), str(error)
        quotas = await viewer.manager.quotas(**filters)
        if chosen == self._filters:
            self._body.clear()
            with self._body:
                self._show(report, by_day, list(sessions), list(runs), why)
                with tag("section", "card", aria_label="Quotas"):
                    tag("h2", "", "Quotas")
                    _quotas(quotas)
        return _REFRESH_S

    def _show(
        self,
        report: UsageReport,
        by_day: UsageReport,
        sessions: Sequence[SessionRecord],
        runs: Sequence[RunRecord],
        why: str,
    ) -> None:
        total = report.total
        with tag("div", "tiles"):
            _tile("Tokens in", number(total.input_tokens), f"{number(total.cached_tokens)} cached")
            _tile("Tokens out", number(total.output_tokens), f"{number(total.reasoning_tokens)} of reasoning")
            if total.counted_tokens:
                _tile("Tokens counted here", number(total.counted_tokens), "which providers did not report")
            _tile("Model calls", number(total.calls), f"{number(total.tool_calls)} tool calls")
            _tile("Runs", number(report.runs), "that have ended")
            _tile("Cost", number(round(total.cost, 4)), "by the prices of the configuration")
        with tag("section", "card", aria_label="Tokens by day"):
            tag("h2", "", "Tokens by day")
            _columns(_by_day(by_day))
        with tag("section", "card", aria_label="Table"):
            tag("h2", "", f"What was spent, by {' and '.join(report.by)}" if report.by else "What was spent")
            if why:
                tag("p", "soft", why)
            _table(report)
        config = self._frame.viewer.manager.config
        with tag("section", "card", aria_label="Budgets"):
            tag("h2", "", "Budgets")
            if config.run_budget is None and config.session_budget is None:
                tag("p", "soft", "The configuration has no budgets.")
            _budget("Of a run", config.run_budget, [run.usage for run in runs if run.usage], "newest runs")
            _budget(
                "Of a session", config.session_budget, [session.usage for session in sessions], "sessions used last"
            )
        with tag("section", "card", aria_label="Sessions"):
            tag("h2", "", f"Most tokens, of the {number(len(sessions))} sessions used last")
            self._bars(sessions)

    def _bars(self, sessions: Sequence[SessionRecord]) -> None:
        most = sorted(sessions, key=lambda session: _tokens(session.usage), reverse=True)[:_LISTED]
        if not most:
            tag("p", "soft", "There are no sessions.")
        for session in most:
            with tag("div", "row"):
                href = self._frame.viewer.session_url(session.session_id, session.user_id)
                link((session.title or session.session_id)[:200], href, "grow clip")
                if self._frame.viewer.sees_all:
                    tag("span", "soft small clip", session.user_id)
                tag("span", "soft small", number(_tokens(session.usage)))
            _meter(_tokens(session.usage), _tokens(most[0].usage))


def _tokens(usage: Usage | None) -> int:
    return usage.input_tokens + usage.output_tokens if usage else 0


def _tile(name: str, value: str, more: str) -> None:
    with tag("div", "card tile"):
        tag("div", "soft small", name)
        tag("div", "value", value)
        tag("div", "soft small", more)


def _by_day(report: UsageReport) -> list[tuple[str, int]]:
    """Return the tokens of each of the last days, the oldest first."""
    now = time.time()
    spent = {row.day: _tokens(row.usage) for row in report}
    times = [now - age * _DAY_S for age in reversed(range(DAYS))]
    return [(datetime.fromtimestamp(at, UTC).strftime("%b %d"), spent.get(day_of(at), 0)) for at in times]


def _table(report: UsageReport) -> None:
    """Show the rows with the most tokens."""
    rows = sorted(report, key=lambda row: _tokens(row.usage), reverse=True)[:_ROWS]
    if not rows:
        tag("p", "soft", "Nothing was spent.")
        return
    names = ("runs", "calls", "tool calls", "tokens in", "cached", "tokens out", "counted", "cost")
    with tag("div", "scroll"), tag("table", "list"):
        with tag("thead", ""), tag("tr", ""):
            for name in (*report.by, *names):
                tag("th", "number" if name in names else "", name, scope="col")
        with tag("tbody", ""):
            for row in rows:
                used = row.usage
                tokens = (used.input_tokens, used.cached_tokens, used.output_tokens, used.counted_tokens)
                with tag("tr", ""):
                    for field in report.by:
                        tag("td", "", (getattr(row, COLUMNS[field]) or "-")[:200])
                    for count in (row.runs, used.calls, used.tool_calls, *tokens, round(used.cost, 6)):
                        tag("td", "number", number(count))
    if len(report) > len(rows):
        tag("p", "soft small", f"These are the {number(len(rows))} rows of {number(len(report))} with the most tokens.")


def _quotas(uses: Sequence[QuotaUse]) -> None:
    """Show each quota, and how much of it is used; of those of each user, once a user is chosen."""
    if not uses:
        tag("p", "soft", "There are no quotas.")
        return
    names = ("for", "limits", "used", "limit", "per", "then", "begins anew")
    with tag("div", "scroll"), tag("table", "list"):
        with tag("thead", ""), tag("tr", ""):
            for name in names:
                tag("th", "number" if name in ("used", "limit") else "", name, scope="col")
        with tag("tbody", ""):
            for use in uses:
                quota, used = use.quota, "-" if use.used is None else number(round(use.used, 6))
                with tag("tr", "", aria_label=quota.quota_id):
                    tag("td", "", quota.scope[:200])
                    tag("td", "", quota.unit)
                    for amount in (used, number(round(quota.limit, 6))):
                        tag("td", "number", amount)
                    for text in (quota.per, quota.then, moment(use.resets_at)):
                        tag("td", "", text)


def _columns(days: Sequence[tuple[str, int]]) -> None:
    highest = max(1, *(tokens for _, tokens in days))
    summary = ", ".join(f"{day}: {number(tokens)}" for day, tokens in days if tokens) or "none"
    with tag("div", "columns", role="img", aria_label=f"Tokens by day: {summary}"):
        for day, tokens in days:
            tag("div", title=f"{day}: {number(tokens)} tokens").style(f"height: {tokens / highest:.1%}")
    with tag("div", "axis"):
        tag("span", "", days[0][0])
        tag("span", "", f"at most {number(highest)} tokens on a day" if highest > 1 else "no tokens")
        tag("span", "", days[-1][0])


def _budget(name: str, budget: Budget | None, spent: Sequence[Usage], of: str) -> None:
    """Show each limit, and how near the largest use is."""
    if budget is None:
        return
    tag("h2", "", name)
    for limit in fields(budget):
        if (allowed := getattr(budget, limit.name)) is None:
            continue
        of_each = [_tokens(usage) if limit.name == "tokens" else getattr(usage, limit.name) for usage in spent]
        used = max(of_each, default=0)
        with tag("dl", "facts"):
            most = f"{number(used)} of {number(allowed)}, the most of {number(len(spent))} {of}"
            fact(limit.name.replace("_", " ").capitalize(), most)
        _meter(used, allowed, "bad" if used >= allowed else "")


def _meter(value: float, whole: float, kind: str = "") -> None:
    share = min(1.0, value / whole) if whole else 0.0
    with tag("div", "meter", aria_hidden="true"):
        tag("span", kind).style(f"left: 0; width: {share:.1%}")
