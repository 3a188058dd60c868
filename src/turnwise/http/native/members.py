"""The native API: members of shared sessions.

Every route about a session or a run takes `?owner=`, the user whose session it is. Without it, the session is the
caller's own. What a member may do there is what the member's role allows: 403 says that it does not.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from turnwise.actors.client.session import AsyncSession
from turnwise.http.middleware.paths import InPath
from turnwise.http.native.models import Body, Shown, example
from turnwise.http.native.sessions import NOT_FOUND
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import MemberCaller
from turnwise.memory.conversation.sessions import MemberRole

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["members"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 403, 404, 422, 429, 503),
)


class SetMember(Body):
    """What a member may do."""

    model_config = example(role="member")

    role: MemberRole = "member"
    """`reader`: reads and follows. `member`: also writes, and controls the own runs. `owner`: does all."""


class Members(Shown):
    """Who shares a session."""

    members: dict[str, MemberRole] = Field(examples=[{"ann": "owner", "tom": "member"}])
    """The roles by user; the session's own user, an owner, is among them."""


@router.get("/sessions/{session_id}/members", summary="Who shares the session", responses=NOT_FOUND)
async def list_members(session_id: InPath, caller: MemberCaller) -> Members:
    return Members(members=dict(await caller.on_session(session_id, AsyncSession.members)))


@router.put(
    "/sessions/{session_id}/members/{user_id}",
    summary="Share the session with a user, or change a role",
    responses=NOT_FOUND,
)
async def set_member(session_id: InPath, user_id: InPath, body: SetMember, caller: MemberCaller) -> Members:
    """For owners. May be repeated. The user reaches the session by `?owner=`, and lists it by `?shared=true`."""
    session = await caller.on_session(session_id, lambda session: session.add_member(user_id, body.role))
    return Members(members={session.user_id: "owner", **session.members})


@router.delete(
    "/sessions/{session_id}/members/{user_id}",
    summary="Remove a member, or leave",
    status_code=204,
    responses=NOT_FOUND,
)
async def remove_member(session_id: InPath, user_id: InPath, caller: MemberCaller) -> None:
    """For owners; every member may leave. May be repeated by an owner."""
    await caller.on_session(session_id, lambda session: session.remove_member(user_id))
