"""The native API: what was spent, as JSON or CSV."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from turnwise.errors import OperatorsOnlyError
from turnwise.http.native.models import Shown, UsageShown, example
from turnwise.http.native.sessions import Agent, OfTenant
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import RequestCaller, check_may_name
from turnwise.memory.conversation.ledger import COLUMNS, LedgerRow, UsageReport
from turnwise.memory.values.limits import MAX_NAMES

CSV = "text/csv"

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["usage"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 403, 422, 429, 503),
)

By = Annotated[
    list[str] | None,
    Query(
        max_length=MAX_NAMES,
        description=f"By what to split the sums, of {', '.join(COLUMNS)}: `day,model`. May be repeated. Rows have this "
        "order.",
    ),
]
Since = Annotated[str | None, Query(description="Only on this day or later, in UTC, as `2026-11-29`.")]
Until = Annotated[str | None, Query(description="Only on this day or before.")]
OfUser = Annotated[str | None, Query(description="Only of this user. Operators see all users, others themselves.")]
AsCSV = Annotated[
    Literal["json", "csv"] | None, Query(description="The format; by default CSV if `Accept` is text/csv, else JSON.")
]


class UsageRow(UsageShown):
    """What was spent, in all or on one thing. What the sums are not split by is left out; an empty text means none."""

    model_config = example(day="2026-11-29", model="gpt-5-mini", runs=2, input_tokens=120, output_tokens=40, calls=2)

    day: str | None = None
    user: str | None = None
    agent: str | None = None
    session: str | None = None
    """Empty for sessions that were deleted."""
    kind: str | None = None
    """`run`, `summary`, `title`, `extraction`, `recall` or `shadow`."""
    model: str | None = None
    tool: str | None = None
    tenant: str | None = None
    """The tenant that the user had when it was spent."""
    engine: str | None = None
    """The name of the run's engine; empty if it has none, and for what no run has spent."""
    runs: int = 0
    """How many runs have ended."""

    @classmethod
    def of_row(cls, row: LedgerRow) -> Self:
        names: dict[str, Any] = {"day": row.day, "user": row.user_id, "agent": row.agent, "session": row.session_id}
        names |= {"kind": row.kind, "model": row.model, "tool": row.tool, "tenant": row.tenant, "engine": row.engine}
        return cls(runs=row.runs, **names, **vars(row.usage))


class UsageReportShown(Shown):
    """What was spent."""

    by: list[str] = Field(default_factory=list)
    since: str | None = None
    until: str | None = None
    total: UsageRow
    rows: list[UsageRow] = Field(default_factory=list)
    """The sums, in the order of what they are split by; one if that is nothing."""

    @classmethod
    def of(cls, report: UsageReport) -> Self:
        return cls(
            by=list(report.by),
            since=report.since,
            until=report.until,
            total=UsageRow.of_row(LedgerRow(runs=report.runs, usage=report.total)),
            rows=[UsageRow.of_row(row) for row in report],
        )


@router.get(
    "/usage",
    summary="What was spent, also by deleted sessions",
    response_model=UsageReportShown,
    response_model_exclude_none=True,
    responses={200: {"content": {CSV: {"schema": {"type": "string"}}}}},
)
async def get_usage(  # noqa: PLR0917 - a route's parameters
    request: Request,
    caller: RequestCaller,
    by: By = None,
    since: Since = None,
    until: Until = None,
    user: OfUser = None,
    agent: Agent = None,
    tenant: OfTenant = None,
    format: AsCSV = None,
) -> UsageReportShown | Response:
    identity = caller.identity
    sees_all = identity is None or identity.is_operator
    check_may_name(caller, tenant)
    if not sees_all and user not in (None, caller.user_id):
        raise OperatorsOnlyError(caller.user_id, "see what others have spent", "leave `user` out")
    names = [name.strip() for text in by or () for name in text.split(",") if name.strip()]
    query: dict[str, Any] = {"agent": agent, "since": since, "until": until, "by": names, "tenant": tenant}
    report = await caller.manager.usage(user_id=user if sees_all else caller.user_id, **query)
    if format == "csv" or (format is None and CSV in request.headers.get("accept", "")):
        return Response(report.csv(), media_type=CSV)
    return UsageReportShown.of(report)
