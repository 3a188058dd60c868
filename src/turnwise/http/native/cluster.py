"""The native API: the processes of sessions, nodes and expired sessions, for operators."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import Field

from turnwise.actors.hosting.wire import DrainReport, HostInfo
from turnwise.http.native.models import Body, Shown, example
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import RequestCaller, check_operator
from turnwise.memory.archive.expiry import PAGE, Swept
from turnwise.memory.conversation.sessions import SessionKey

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["cluster"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 403, 422, 429, 503),
)


class NamedSession(Shown):
    """A session and its user."""

    session_id: str
    user_id: str


class LoadShown(Shown):
    """What a process of sessions has to do."""

    sessions: int
    recent: list[NamedSession]
    """Those called last, at most 100."""
    calls: int
    waits: int


class HostShown(Shown):
    """A process that hosts sessions."""

    name: str
    is_packed: bool
    """Whether it hosts many sessions."""
    is_replaced: bool
    """Whether newer processes have replaced it; it leaves when its last run has ended."""
    pid: int | None
    """Null if it did not answer in time, as `load`."""
    node_id: str | None
    node: str | None
    """The address of its node."""
    load: LoadShown | None
    memory_bytes: int | None


class HostsShown(Shown):
    """The processes that host sessions, on all nodes."""

    items: list[HostShown]

    @classmethod
    def of(cls, hosts: list[HostInfo]) -> Self:
        return cls(items=list(map(HostShown.model_validate, hosts)))


class Drain(Body):
    """Which node is about to go."""

    model_config = example(node="2f0c4ad3b1e6")

    node: str
    """Ray's id of the node."""
    timeout_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """How long runs may go on there, in seconds."""


class Drained(Shown):
    """How a node was drained."""

    node_id: str
    processes: int
    """How many processes of turnwise have left it."""
    seconds: float
    late: list[str]
    """The processes, by name, that had not left when the time was over."""
    staying: dict[str, str]
    """Why other processes stay, by name."""

    @classmethod
    def of(cls, report: DrainReport) -> Self:
        names = ("node_id", "processes", "seconds")
        plain = {name: getattr(report, name) for name in names}
        return cls(**plain, late=list(report.late), staying=dict(report.staying))


class Sweep(Body):
    """How to delete sessions that have expired."""

    model_config = example(memory=True)

    memory: bool = False
    """Whether memories also forget what they keep of each deleted session."""
    cursor: str | None = None
    """The cursor of the answer before; null at first."""
    limit: Annotated[int, Field(ge=1, le=PAGE)] = PAGE
    """How many sessions to sweep at most."""


class FailedSession(NamedSession):
    """A session that could not be deleted."""

    why: str


class SweptShown(Shown):
    """Sessions that have expired, by what became of them."""

    deleted: list[NamedSession]
    busy: list[NamedSession]
    """Kept, because they have an open run."""
    used: list[NamedSession]
    """Kept, because they were used meanwhile."""
    failed: list[FailedSession]
    cursor: str | None
    """Where to go on; null after the last session."""

    @classmethod
    def of(cls, swept: Swept) -> Self:
        def named(keys: tuple[SessionKey, ...]) -> list[NamedSession]:
            return list(map(NamedSession.model_validate, keys))

        failed = [FailedSession(**key._asdict(), why=why) for key, why in swept.failed.items()]
        groups = {name: named(getattr(swept, name)) for name in ("deleted", "busy", "used")}
        return cls(failed=failed, cursor=swept.cursor, **groups)


@router.get("/hosts", summary="The processes that host sessions")
async def list_hosts(caller: RequestCaller) -> HostsShown:
    """For operators."""
    check_operator(caller, "see the processes of the service")
    return HostsShown.of(list(await caller.manager.hosts()))


@router.post("/drain", summary="Have all processes leave a node", responses=documented(409))
async def drain_node(body: Drain, caller: RequestCaller) -> Drained:
    """For operators. Answers when the processes have left, or after `timeout_s`. May be repeated."""
    check_operator(caller, "drain nodes")
    return Drained.of(await caller.manager.drain(body.node, timeout_s=body.timeout_s))


@router.post("/sweep", summary="Delete sessions that have expired")
async def sweep_sessions(body: Sweep, caller: RequestCaller) -> SweptShown:
    """For operators. Exports nothing before. Repeat it with the `cursor` of the answer until that is null."""
    check_operator(caller, "sweep sessions")
    return SweptShown.of(await caller.manager.sweep(memory=body.memory, cursor=body.cursor, limit=body.limit))
