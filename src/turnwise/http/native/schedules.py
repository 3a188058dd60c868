"""The native API: schedules, by which sessions begin runs later."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from turnwise.actors.client.services.schedule_room import check_room
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.schedule_times import repeatable_id
from turnwise.http.middleware.paths import InPath, path_of
from turnwise.http.native.models import SendMessage, prompts_of
from turnwise.http.native.schedule_models import (
    TIMES,
    AddSchedule,
    ChangeSchedule,
    ScheduleCancelled,
    SchedulePage,
    ScheduleShown,
)
from turnwise.http.native.sessions import CONFLICT, NOT_FOUND, Cursor, Limit, OfAll, users_of
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import MemberCaller, RequestCaller
from turnwise.memory.deliveries.records import Delivery

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["schedules"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 422, 429, 503),
)


Key = Annotated[
    str | None,
    Header(description="A repeated request with the same key adds nothing, also if its schedule was carried out."),
]


@router.post(
    "/sessions/{session_id}/schedules",
    summary="Start runs later, once or again and again",
    status_code=201,
    responses=CONFLICT,
)
async def add_schedule(
    session_id: InPath,
    body: AddSchedule,
    caller: MemberCaller,
    *,
    request: Request,
    response: Response,
    idempotency_key: Key = None,
) -> ScheduleShown:
    """The schedule is stored when this answers. Each occurrence begins exactly one run, whatever is killed.

    Followers of the session's events see the runs come. What was scheduled before under the same `key` is answered
    as it is.
    """
    arguments: dict[str, Any] = {name: getattr(body, name) for name in (*TIMES, "key", "missed")}
    arguments |= {**await body.options(), "idempotency_key": idempotency_key}

    async def add(session: AsyncSession) -> Delivery:
        most = caller.service.settings.max_schedules_per_user
        key = body.key or (idempotency_key and repeatable_id(session.session_id, session.user_id, idempotency_key))
        await check_room(caller.manager, session, key, ("max_schedules_per_user", most))
        return await session.schedule(*prompts_of(body.prompt), **arguments)

    schedule = await caller.on_session(session_id, add)
    root = request.scope.get("root_path", "")
    response.headers["Location"] = path_of(root, "v1", "sessions", session_id, "schedules", schedule.key)
    return ScheduleShown.of(schedule)


@router.get("/sessions/{session_id}/schedules", summary="Its schedules, by id", responses=NOT_FOUND)
async def list_schedules_of_session(
    session_id: InPath, caller: MemberCaller, *, cursor: Cursor = None, limit: Limit = 100
) -> SchedulePage:
    return SchedulePage.of(
        await caller.on_session(session_id, lambda session: session.schedules(cursor=cursor, limit=limit))
    )


@router.get("/sessions/{session_id}/schedules/{key}", summary="Get a schedule", responses=NOT_FOUND)
async def get_schedule(session_id: InPath, key: InPath, caller: MemberCaller) -> ScheduleShown:
    return ScheduleShown.of(await caller.on_session(session_id, lambda session: session.get_schedule(key)))


@router.patch("/sessions/{session_id}/schedules/{key}", summary="Change a schedule", responses=CONFLICT)
async def change_schedule(session_id: InPath, key: InPath, body: ChangeSchedule, caller: MemberCaller) -> ScheduleShown:
    """One that was given up is due again. Must not be repeated blindly: `after_s` counts from each request."""
    options = {name: value for name, value in (await body.options()).items() if name in body.model_fields_set}
    changes = {name: getattr(body, name) for name in (*TIMES, "missed")}
    changes |= {name: value for name, value in options.items() if value is not None}
    prompts = prompts_of(body.prompt)
    return ScheduleShown.of(
        await caller.on_session(session_id, lambda session: session.change_schedule(key, *prompts, **changes))
    )


@router.delete("/sessions/{session_id}/schedules/{key}", summary="Cancel a schedule", responses=CONFLICT)
async def cancel_schedule(session_id: InPath, key: InPath, caller: MemberCaller) -> ScheduleCancelled:
    """May be repeated. A run that has begun goes on."""
    return ScheduleCancelled(
        cancelled=await caller.on_session(session_id, lambda session: session.cancel_schedule(key))
    )


@router.post("/sessions/{session_id}/send", summary="Send a message to another session", responses=CONFLICT)
async def send_message(session_id: InPath, body: SendMessage, caller: MemberCaller) -> ScheduleShown:
    """Must not be repeated if its outcome is unknown. The other session gets the message once, whatever is killed."""
    return ScheduleShown.of(
        await caller.on_session(session_id, lambda session: session.send(body.to_session, body.text))
    )


@router.get("/schedules", summary="List the schedules of all sessions, by id")
async def list_schedules(
    caller: RequestCaller, *, all: OfAll = False, cursor: Cursor = None, limit: Limit = 100
) -> SchedulePage:
    return SchedulePage.of(await caller.manager.schedules(user_id=users_of(caller, all), cursor=cursor, limit=limit))
