"""The native API: runs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Header, Query, Request, Response

from turnwise.actors.client.agent_tree import agents_of
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.errors import InvalidInputError, RunEndedError, SessionBusyError, WaitTimeoutError, shown
from turnwise.http.middleware.paths import InPath, path_of
from turnwise.http.native.long_answers import snapshot_answer, snapshot_of, turn_answer
from turnwise.http.native.models import (
    AddEvent,
    AgentsShown,
    Approve,
    Cancel,
    Cancelled,
    EventAdded,
    EventsShown,
    PendingCalls,
    PhaseShown,
    Provide,
    Reject,
    RerunOptions,
    RunOnce,
    RunOptions,
    RunPage,
    RunResult,
    RunShown,
    RunStarted,
    Say,
    Snapshot,
    Steps,
    TurnShown,
    prompts_of,
)
from turnwise.http.native.sessions import (
    CONFLICT,
    MAX_LIMIT,
    NOT_FOUND,
    After,
    Agent,
    Cursor,
    Held,
    Limit,
    OfAll,
    OfLabels,
    OfTenant,
    Streams,
    Wait,
    users_of,
)
from turnwise.http.problems import BUSY, answer, documented, problem_of
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import Caller, MemberCaller, RequestCaller, check_may_approve, check_may_name
from turnwise.http.sse import (
    PAGE,
    SILENCE_S,
    STREAMS,
    EventStream,
    encode,
    encode_events,
    last_event_id,
    wait_for,
)
from turnwise.memory.conversation.runs import IfBusy, RunState, Until
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.conversation.turns import Turn

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["runs"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 422, 429, 503),
)

POLICIES = tuple(policy for policy in get_args(IfBusy) if policy not in ("reject", "drop"))
"""The values of `if_busy` with which a busy session takes a run."""

Key = Annotated[
    str | None,
    Header(description="A repeated request with the same key and prompts gets the run that the first one started."),
]
RUN_WAIT = Annotated[
    float | None,
    Query(
        ge=0,
        allow_inf_nan=False,
        description="Answer with the run when it has ended, or waits for a decision, or after so many seconds.",
    ),
]
STARTED: dict[int | str, dict[str, Any]] = {
    200: {"model": RunResult, "description": "With `wait_s`: the run as it is. As a stream: its events."},
    **STREAMS,
}


@router.post(
    "/sessions/{session_id}/runs",
    summary="Start a run, and wait for its end or follow it if wanted",
    status_code=202,
    response_model=RunStarted,
    responses=NOT_FOUND | BUSY | STARTED,
)
async def start_run(
    session_id: InPath,
    body: RunOptions,
    caller: MemberCaller,
    *,
    request: Request,
    streams: Streams,
    wait_s: RUN_WAIT = None,
    idempotency_key: Key = None,
) -> Response:
    """The run is stored when this answers, and goes on if the client leaves, unless `X-On-Disconnect` is `cancel`."""
    options = {**await body.options(), "idempotency_key": idempotency_key}
    prompts = prompts_of(body.prompt)
    with caller.reserve_stream(is_needed=streams or wait_s is not None) as reserved:
        try:
            execution = await caller.on_session(session_id, lambda session: session.run(*prompts, **options))
        except SessionBusyError as error:
            return answer(problem_of(error) | {"if_busy": list(POLICIES)})
        return await _started(caller, request, execution, streams, wait_s, reserved=reserved)


@router.post(
    "/sessions/{session_id}/rerun",
    summary="Answer a turn anew, with its prompt or another one",
    status_code=202,
    response_model=RunStarted,
    responses=CONFLICT | STARTED,
)
async def rerun(
    session_id: InPath,
    body: RerunOptions,
    caller: MemberCaller,
    *,
    request: Request,
    streams: Streams,
    wait_s: RUN_WAIT = None,
    idempotency_key: Key = None,
) -> Response:
    """The new turn is shown in place of the other one, which stays as a version with what was answered after it."""
    options = {**await body.options(), "idempotency_key": idempotency_key}
    prompts = () if body.prompt is None else prompts_of(body.prompt)
    with caller.reserve_stream(is_needed=streams or wait_s is not None) as reserved:
        execution = await caller.on_session(session_id, lambda session: session.rerun(*prompts, at=body.at, **options))
        return await _started(caller, request, execution, streams, wait_s, reserved=reserved)


@router.post(
    "/sessions/{session_id}/say",
    summary="Say a text as the assistant, without asking a model",
    status_code=202,
    response_model=RunStarted,
    responses=CONFLICT,
)
async def say(
    session_id: InPath, body: Say, caller: MemberCaller, *, request: Request, idempotency_key: Key = None
) -> Response:
    """The text is stored when this answers: it is said, or waits for the runs before it. Followers get its run."""
    execution = await caller.on_session(session_id, lambda session: session.say(body.text, key=idempotency_key))
    return _json(RunStarted.of(execution), 202, _headers(caller, request, execution))


@router.post(
    "/run",
    summary="Run without a session",
    status_code=202,
    response_model=RunStarted,
    responses=STARTED,
)
async def run_once(
    body: RunOnce,
    caller: RequestCaller,
    *,
    request: Request,
    streams: Streams,
    wait_s: RUN_WAIT = None,
    idempotency_key: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """The run can be waited for, followed and cancelled until a minute after its end. An idempotency key is refused.

    It has no history and no memories. A store of events keeps its events, and quotas count it; nothing else is stored.
    """
    if idempotency_key is not None:
        reason = (
            "this run is in no session, so a repeated request would run again: run it in a session, or leave it out"
        )
        raise InvalidInputError("Idempotency-Key", shown(idempotency_key), reason)
    options = {**await body.options(), "agent": body.agent, "metadata": body.metadata, "engine": body.engine}
    with caller.reserve_stream(is_needed=streams or wait_s is not None) as reserved:
        execution = await caller.manager.run_once(*prompts_of(body.prompt), user_id=caller.user_id, **options)
        return await _started(caller, request, execution, streams, wait_s, reserved=reserved)


async def _started(
    caller: Caller,
    request: Request,
    execution: AsyncExecutionHandle,
    streams: bool,
    wait_s: float | None,
    *,
    reserved: ExitStack,
) -> Response:
    headers = _headers(caller, request, execution)
    if streams:
        events = _events(execution, last_event_id(request))
        return EventStream(caller, events, on_leave=_canceller(caller, execution), reserved=reserved, headers=headers)
    if wait_s is None:
        return _json(RunStarted.of(execution), 202, headers)
    result = await _waited(caller, request, execution, wait_s, "settled", reserved=reserved)
    return _json(result, 200, headers)


def _headers(caller: Caller, request: Request, execution: AsyncExecutionHandle) -> dict[str, str]:
    """Return where a run that was started is; later requests find it at once."""
    caller.service.handles.cache_run(caller.user_id, execution, owner=caller.owner)
    location = path_of(request.scope.get("root_path", ""), "v1", "runs", execution.run_id)
    return {"Location": location, "X-Run-Id": execution.run_id}


def _json(model: RunStarted, status: int, headers: dict[str, str]) -> Response:
    return Response(model.model_dump_json(), status, headers, "application/json")


async def _waited(
    caller: Caller,
    request: Request,
    execution: AsyncExecutionHandle,
    wait_s: float,
    until: Until,
    *,
    held: Spans | None = None,
    reserved: ExitStack | None = None,
) -> RunResult:
    """Return the run as it is after a wait; with `held`, with its turn and the blocks that the client lacks."""
    work = _outcome(execution, min(wait_s, caller.service.settings.max_wait_s), until)
    outcome = await wait_for(request, caller, work, on_leave=_canceller(caller, execution), reserved=reserved)
    result, turn = outcome or await _outcome(execution, 0.0, until)
    if turn is not None and held is not None:
        result.snapshot = await snapshot_of(turn, held)
    return result


async def _outcome(execution: AsyncExecutionHandle, timeout_s: float, until: Until) -> tuple[RunResult, Turn | None]:
    try:
        turn = await execution.wait(timeout_s, until=until)
    except RunEndedError as error:
        return RunResult.ended(execution, error.turn, error), error.turn
    except WaitTimeoutError as error:
        if error.state == "unknown":
            raise
        return RunResult.open(execution, error.state), None
    if turn.record.is_open:
        return RunResult.open(execution, "awaiting_approval"), turn
    return RunResult.ended(execution, turn, None), turn


def _canceller(caller: Caller, execution: AsyncExecutionHandle) -> Callable[[], None] | None:
    if caller.on_disconnect == "keep" or execution.dropped:  # then it is another client's run
        return None
    work = "the cancellation of a run whose client disconnected"
    return lambda: caller.service.spawn(cancel_own(execution), work)


async def cancel_own(execution: AsyncExecutionHandle) -> None:
    """Cancel the run of a client that disconnected, unless its prompts are part of a run that others wait for."""
    if (await execution.info()).run_id == execution.run_id:
        await execution.cancel("its client disconnected")


@router.get("/runs", summary="List the runs of all sessions, newest first")
async def list_runs(
    caller: RequestCaller,
    *,
    agent: Agent = None,
    state: RunState | None = None,
    parent: Annotated[str | None, Query(description="Only runs that were started on behalf of this one.")] = None,
    labels: OfLabels,
    engine: Annotated[str | None, Query(description="Only runs of the engine of this name.")] = None,
    since: Annotated[float | None, Query(description="Only if created at this time or later.")] = None,
    tenant: OfTenant = None,
    among: Annotated[
        int | None, Query(ge=1, description="Only runs of so many sessions, those that changed last.")
    ] = None,
    all: OfAll = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> RunPage:
    check_may_name(caller, tenant)
    query: dict[str, Any] = {"agent": agent, "state": state, "parent": parent, "labels": labels, "since": since}
    query |= {"engine": engine, "tenant": tenant, "among": among}
    return RunPage.of(await caller.manager.runs(user_id=users_of(caller, all), cursor=cursor, limit=limit, **query))


@router.get("/runs/{run_id}", summary="Get a run's record", responses=NOT_FOUND)
async def get_run(run_id: InPath, caller: MemberCaller) -> RunShown:
    record = await caller.on_run(run_id, AsyncExecutionHandle.info)
    return RunShown.of(record)


@router.get("/runs/{run_id}/wait", summary="Wait for a run's end", responses=NOT_FOUND)
async def wait_for_run(
    run_id: InPath,
    caller: MemberCaller,
    *,
    request: Request,
    timeout_s: Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds to wait at most.")] = 30.0,
    until: Annotated[Until, Query(description="`settled`: also answer when the run waits for a decision.")] = "ended",
    held: Held,
) -> RunResult:
    """Answers with the run as it is when it has ended, however it ended, or after `timeout_s`."""
    return await caller.on_run(
        run_id, lambda execution: _waited(caller, request, execution, timeout_s, until, held=held)
    )


@router.post("/runs/{run_id}/cancel", summary="Cancel a run", responses=NOT_FOUND)
async def cancel_run(run_id: InPath, body: Cancel, caller: MemberCaller) -> Cancelled:
    """When this answers, the session is free. May be repeated."""
    return Cancelled(cancelled=await caller.on_run(run_id, lambda execution: execution.cancel(body.reason)))


@router.get("/runs/{run_id}/pending", summary="The calls that wait for a decision", responses=NOT_FOUND)
async def list_pending_calls(run_id: InPath, caller: MemberCaller) -> PendingCalls:
    return PendingCalls.of(await caller.on_run(run_id, AsyncExecutionHandle.pending))


@router.post("/runs/{run_id}/approve", summary="Approve a tool call", status_code=204, responses=CONFLICT)
async def approve_call(run_id: InPath, body: Approve, caller: MemberCaller) -> None:
    """May be repeated: an approved call is made at most once. Only operators let a run exceed a quota, of any user."""
    check_may_approve(caller.identity, body.call_id)
    await caller.in_place_of(body.user).on_run(
        run_id, lambda execution: execution.approve(body.call_id, input=body.input)
    )


@router.post("/runs/{run_id}/reject", summary="Reject a tool call", status_code=204, responses=CONFLICT)
async def reject_call(run_id: InPath, body: Reject, caller: MemberCaller) -> None:
    await caller.in_place_of(body.user).on_run(run_id, lambda execution: execution.reject(body.call_id, body.reason))


@router.post("/runs/{run_id}/provide", summary="Supply the result of a call", status_code=204, responses=CONFLICT)
async def provide_result(run_id: InPath, body: Provide, caller: MemberCaller) -> None:
    await caller.on_run(
        run_id, lambda execution: execution.provide(body.call_id, body.as_result(), is_error=body.is_error)
    )


@router.get("/runs/{run_id}/steps", summary="Its model calls, tool calls and named steps", responses=NOT_FOUND)
async def list_steps(run_id: InPath, caller: MemberCaller) -> Steps:
    return Steps.of(await caller.on_run(run_id, AsyncExecutionHandle.steps))


@router.get("/runs/{run_id}/children", summary="The agents that it has called, and those below", responses=NOT_FOUND)
async def list_children(run_id: InPath, caller: MemberCaller) -> AgentsShown:
    """Each agent's run is that of a session of its own; it is followed by the agents that it has called itself."""
    return AgentsShown.of(await caller.on_run(run_id, agents_of))


@router.get("/runs/{run_id}/phase", summary="What it does now", responses=NOT_FOUND)
async def get_phase(run_id: InPath, caller: MemberCaller) -> PhaseShown:
    return PhaseShown(phase=await caller.on_run(run_id, AsyncExecutionHandle.phase))


@router.get("/runs/{run_id}/input", summary="What the model was given", response_model=TurnShown, responses=NOT_FOUND)
async def get_input(run_id: InPath, caller: MemberCaller) -> Any:
    return await turn_answer(await caller.on_run(run_id, AsyncExecutionHandle.input), snapshot=True)


@router.get(
    "/runs/{run_id}/snapshot",
    summary="Its turn as a record, as it was started",
    response_model=Snapshot,
    responses=NOT_FOUND,
)
async def get_snapshot_of_run(run_id: InPath, caller: MemberCaller, *, held: Held) -> Any:
    return await snapshot_answer(await caller.on_run(run_id, AsyncExecutionHandle.input), held or ())


@router.post("/runs/{run_id}/events", summary="Add an event of your own", status_code=201, responses=NOT_FOUND)
async def add_run_event(run_id: InPath, body: AddEvent, caller: MemberCaller) -> EventAdded:
    return EventAdded(seq=await caller.on_run(run_id, lambda execution: execution.add_event(**body.model_dump())))


@router.get(
    "/runs/{run_id}/events",
    summary="Its events: a page, or live as server-sent events up to its end",
    response_model=EventsShown,
    responses=NOT_FOUND | STREAMS,
)
async def list_run_events(
    run_id: InPath,
    request: Request,
    caller: MemberCaller,
    *,
    streams: Streams,
    after: After = 0,
    limit: Limit = MAX_LIMIT,
    wait_s: Wait = 0.0,
) -> Any:
    """The stream goes on behind `Last-Event-ID` or `after`, each event once, and ends after the run's last one.

    Deltas of the answer are live: they are there until the run after the next one starts.
    """
    after = last_event_id(request, after)
    if streams:
        execution, page = await caller.on_run(run_id, lambda execution: _first_page(execution, after))
        return EventStream(caller, _events(execution, after, page), on_leave=_canceller(caller, execution))
    wait_s = min(wait_s, caller.service.settings.max_wait_s)
    work = caller.on_run(run_id, lambda execution: execution.event_page(after, limit, wait_s=wait_s))
    events = await wait_for(request, caller, work) if wait_s else await work
    return EventsShown.of(events or (), events.next if events is not None else after)


async def _first_page(execution: AsyncExecutionHandle, after: int) -> tuple[AsyncExecutionHandle, Any]:
    return execution, await execution.event_page(after, PAGE)


async def _events(execution: AsyncExecutionHandle, after: int, page: Any = None) -> AsyncGenerator[bytes, None]:
    following: int | None = after
    while following is not None:
        if page is None:
            page = await execution.event_page(following, PAGE, wait_s=SILENCE_S)
        if page:
            yield encode_events(page)
        following, page = page.next, None


@router.get(
    "/runs/{run_id}/partials",
    summary="The object that it answers with, as it grows: server-sent events",
    response_class=Response,
    responses=NOT_FOUND | STREAMS,
)
async def follow_partials(run_id: InPath, caller: MemberCaller) -> Response:
    """For runs with `output`. Each event has the whole object so far; the last one is complete."""
    execution, _ = await caller.on_run(run_id, lambda execution: _first_page(execution, 0))
    return EventStream(caller, _partials(execution), on_leave=_canceller(caller, execution))


async def _partials(execution: AsyncExecutionHandle) -> AsyncGenerator[bytes, None]:
    async for partial in execution.partials():
        yield encode(json.dumps(partial), event="partial")
