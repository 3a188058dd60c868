"""The native API: marks of messages, such as thumbs, stars, notes and flags."""

from __future__ import annotations

from typing import Annotated, Any, Self

from fastapi import APIRouter, Query
from pydantic import Field, JsonValue

from turnwise.actors.client.session import AsyncSession
from turnwise.errors import InvalidInputError
from turnwise.http.middleware.paths import InPath
from turnwise.http.native.models import Body, MarkShown, Shown, example
from turnwise.http.native.sessions import CONFLICT, Cursor, Limit
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import MemberCaller, RequestCaller, check_operator
from turnwise.memory.conversation.marks import MarkedMessage
from turnwise.memory.stores.base import Page

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["marks"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 404, 422, 429, 503),
)

Session = Annotated[str | None, Query(description="Only of this session's messages.")]


class SetMark(Body):
    """A mark of a message."""

    model_config = example(value="up")

    value: JsonValue
    """Any JSON but null, of at most 4,096 bytes."""
    by: str | None = None
    """Who marks it; only operators may name another than themselves, and whoever asks without authentication."""


class MarkedMessageShown(Shown):
    """A mark, and the message that has it."""

    id: str
    """The id of the message."""
    session_id: str
    user_id: str
    turn_index: int
    number: int
    mark: MarkShown


class MarkPage(Shown):
    """A page of marks."""

    items: list[MarkedMessageShown]
    cursor: str | None
    """Pass it to get the next page; null if there is none."""

    @classmethod
    def of(cls, page: Page[MarkedMessage]) -> Self:
        return cls(items=[MarkedMessageShown.model_validate(marked) for marked in page], cursor=page.cursor)


class MarkCounts(Shown):
    """How many marks of each name there are."""

    marks: dict[str, int] = Field(examples=[{"thumb": 2}])


@router.put(
    "/sessions/{session_id}/messages/{cursor}/marks/{name}",
    summary="Set a mark of a message, in place of the one of its name",
    responses=CONFLICT,
)
async def set_mark(session_id: InPath, cursor: InPath, name: InPath, body: SetMark, caller: MemberCaller) -> MarkShown:
    """`cursor` is that of a listed message, whose turn has ended. The mark names the user who sets it."""
    own = caller.identity.user_id if caller.identity else None
    if body.by not in (None, own):
        check_operator(caller, "set marks of others", "leave `by` out")
    by = body.by or own
    mark = await caller.on_session(session_id, lambda session: _set(session, cursor, name, body.value, by))
    return MarkShown.model_validate(mark)


async def _set(session: AsyncSession, cursor: str, name: str, value: Any, by: str | None) -> Any:
    if value is None:
        raise InvalidInputError("value", None, "a mark has a value; DELETE removes a mark")
    return await session.mark(f"{session.session_id}#{cursor}", name, value, by=by)


@router.delete(
    "/sessions/{session_id}/messages/{cursor}/marks/{name}",
    summary="Remove a mark of a message",
    status_code=204,
    responses=CONFLICT,
)
async def remove_mark(session_id: InPath, cursor: InPath, name: InPath, caller: MemberCaller) -> None:
    """May be repeated."""
    by = caller.identity.user_id if caller.identity else None
    await caller.on_session(
        session_id, lambda session: session.mark(f"{session.session_id}#{cursor}", name, None, by=by)
    )


@router.get("/marks", summary="List the marks of messages")
async def list_marks(
    caller: RequestCaller,
    *,
    name: Annotated[str | None, Query(description="Only marks of this name.")] = None,
    session_id: Session = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> MarkPage:
    """Of the newest sessions first, in the order of messages."""
    query: dict[str, Any] = {"name": name, "session_id": session_id, "cursor": cursor, "limit": limit}
    return MarkPage.of(await caller.manager.marks(caller.user_id, **query))


@router.get("/marks/count", summary="Count the marks of messages, by name")
async def count_marks(caller: RequestCaller, session_id: Session = None) -> MarkCounts:
    return MarkCounts(marks=dict(await caller.manager.count_marks(caller.user_id, session_id=session_id)))
