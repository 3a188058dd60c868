"""The native API: sessions and their runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, JsonValue

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.errors import RunEndedError, WaitTimeoutError
from turnwise.http.service import Asks, Caller
from turnwise.http.sse import EventStream, encode, last_event_id

router = APIRouter(prefix="/v1", tags=["sessions"])


class OpenSession(BaseModel):
    """What to open, or to create."""

    id: str | None = None
    agent: str | None = None
    title: str | None = None
    metadata: dict[str, JsonValue] | None = None


class StartRun(BaseModel):
    """What to run."""

    prompt: Annotated[str, Field(min_length=1)]


@router.post("/sessions", status_code=201)
async def open_session(body: OpenSession, caller: Asks) -> dict[str, Any]:
    session = await caller.manager.open(
        body.id, user_id=caller.user_id, agent=body.agent, title=body.title, metadata=body.metadata
    )
    return {"id": session.id, "user_id": session.user_id, "agent": session.agent}


@router.post("/sessions/{session_id}/runs", status_code=202)
async def start_run(
    session_id: str, body: StartRun, caller: Asks, idempotency_key: Annotated[str | None, Header()] = None
) -> dict[str, Any]:
    session = await caller.manager.get(session_id, user_id=caller.user_id)
    execution = await session.run(body.prompt, idempotency_key=idempotency_key)
    return {"id": execution.run_id, "session_id": session.id}


@router.get("/runs/{run_id}/wait")
async def wait(run_id: str, caller: Asks, timeout_s: float = 30.0) -> dict[str, Any]:
    execution = await caller.manager.execution(run_id, user_id=caller.user_id)
    try:
        turn = await execution.wait(min(timeout_s, caller.service.settings.max_wait_s))
    except RunEndedError as error:
        return {"id": run_id, "state": (await execution.status()), "error": str(error)}
    except WaitTimeoutError:
        return {"id": run_id, "state": (await execution.status())}
    return {"id": run_id, "state": "completed", "text": turn.text}


@router.get("/runs/{run_id}/events")
async def follow(run_id: str, request: Request, caller: Asks, after: int = 0) -> Response:
    execution = await caller.manager.execution(run_id, user_id=caller.user_id)
    return EventStream(caller, _events(execution, last_event_id(request, after)), left=_left(caller, execution))


async def _events(execution: AsyncExecutionHandle, after: int) -> AsyncGenerator[bytes, None]:
    async for event in execution.events(after):
        yield encode(event.model_dump_json(exclude_none=True), event=event.kind, id=event.seq)


def _left(caller: Caller, execution: AsyncExecutionHandle) -> Any:
    if caller.on_disconnect == "keep":
        return None
    work = "the cancellation of a run whose client disconnected"
    return lambda: caller.service.spawn(execution.cancel("its client disconnected"), work)
