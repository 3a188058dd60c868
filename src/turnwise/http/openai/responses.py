"""`/openai/v1/responses`: create, retrieve, stream, cancel and delete responses; list what they were given."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from turnwise.actors.client.session import AsyncSession
from turnwise.errors import RunEndedError, SessionBusyError, TurnNotFoundError, TurnwiseError, WaitTimeoutError
from turnwise.http.native.models import name_of
from turnwise.http.openai.answers import Answer
from turnwise.http.openai.errors import OpenAIRoute, body_of, invalid, not_found
from turnwise.http.openai.fields import CreateResponse
from turnwise.http.openai.ids import is_hidden, response_id as id_of
from turnwise.http.openai.inputs import read_input
from turnwise.http.openai.items import ENCRYPTED, output_items, prompt_items
from turnwise.http.openai.pages import Asked, Including, page_of
from turnwise.http.openai.start_response import DELETED, Found, find, load, newest, start
from turnwise.http.service import Asks, Caller
from turnwise.http.sse import EventStream, encode, wait_for

router = APIRouter(prefix="/openai/v1/responses", tags=["OpenAI responses"], route_class=OpenAIRoute)


class Look(Including):
    """How a response is retrieved."""

    stream: bool = False
    starting_after: int = Field(default=-1, ge=-1)
    include_obfuscation: bool = False


@router.post("")
async def create(
    body: CreateResponse, request: Request, caller: Asks, idempotency_key: Annotated[str | None, Header()] = None
) -> Response:
    """Start a response, and return it when it has ended, or at once if it is in the background; or stream it."""
    body.check()
    with caller.room(wanted=bool(body.stream or not body.background)) as room:
        found = await start(caller, body, read_input(body.input), idempotency_key)
        if body.stream:
            return _streamed(caller, found, -1, room)
        if body.background:
            return JSONResponse((await load(found)).body())
        left = _cancelling(caller, found) if caller.on_disconnect == "cancel" else None
        answer = await wait_for(request, caller, _settled(caller, found), left=left, room=room)
    if answer is None:  # the server stops
        answer = await load(found) if found.stored else found.answer()
    return JSONResponse(answer.body())


@router.get("/{response_id}")
async def retrieve(
    response_id: str,
    caller: Asks,
    look: Annotated[Look, Query()],
) -> Response:
    """Return a response as it is now, or stream its events behind a sequence number."""
    if look.include_obfuscation:
        raise invalid("include_obfuscation", "this service sends no obfuscation: leave it out")
    look.check()
    found = replace(await _find(caller, response_id), encrypted=ENCRYPTED in look.include)
    if look.stream:
        return _streamed(caller, found, look.starting_after)
    answer = await load(found)
    if answer.state.status is None:
        raise not_found("Response", response_id)
    return JSONResponse(answer.body())


@router.post("/{response_id}/cancel")
async def cancel(response_id: str, caller: Asks) -> Response:
    """Cancel a response, in the background or not; return it. One that has ended stays as it is.

    If it waits for outputs, its run ends; if a later response has its run, that one goes on.
    """
    found = await _find(caller, response_id)
    if await _is_newest(caller, found):
        await found.execution.cancel("cancelled by the client")
    return JSONResponse((await load(await _find(caller, response_id))).body())


@router.delete("/{response_id}")
async def delete(response_id: str, caller: Asks) -> Response:
    """Delete a response; cancel it first if it has not ended. What was said stays part of later responses."""
    found = await _find(caller, response_id)
    if await _is_newest(caller, found) and found.run.is_open:
        await found.execution.cancel("its response was deleted")
    session = await caller.manager.get(found.execution.session_id, user_id=caller.user_id)
    if is_hidden(session.id) and len(await session.runs(limit=2)) == 1 and await _is_last(caller, session, found):
        try:
            await session.delete()
        except SessionBusyError:  # somebody has just continued it
            pass
        else:
            return _deleted(response_id)
    await session.update(metadata={f"{DELETED}{response_id}": True})
    return _deleted(response_id)


async def _is_newest(caller: Caller, found: Found) -> bool:
    """Return whether no later response has the run of this one.

    Raises:
        OpenAIError: the run has no such response.
    """
    last = await newest(caller, found.execution)
    if found.part > last.part:
        raise not_found("Response", found.id)
    return found.part == last.part


async def _is_last(caller: Caller, session: AsyncSession, found: Found) -> bool:
    """Return whether all other responses of its run were deleted."""
    count = (await newest(caller, found.execution)).part + 1
    others = {id_of(found.execution.run_id, part) for part in range(count)} - {found.id}
    metadata = (await session.info()).session.metadata
    return all(f"{DELETED}{each}" in metadata for each in others)


def _deleted(id: str) -> Response:
    return JSONResponse({"id": id, "object": "response", "deleted": True})


@router.get("/{response_id}/input_items")
async def input_items(
    response_id: str,
    caller: Asks,
    page: Asked,
) -> Response:
    """List the items that a response was given: prompts, or the outputs of the calls before it."""
    page.check()
    found = await _find(caller, response_id)
    session = await caller.manager.get(found.execution.session_id, user_id=caller.user_id)
    try:
        turn = await session.turn(found.execution.turn_index)
    except TurnNotFoundError:
        raise not_found("Response", response_id) from None
    if found.part == 0:
        items = prompt_items(turn.record.prompt, turn.asked)
    else:
        every = output_items(found.run.run_id, turn.output, found.run.calls, encrypted=ENCRYPTED in page.include)
        given = ("function_call_output", "mcp_approval_response")
        items = [item for part, item in every if part == found.part and item["type"] in given]
    return JSONResponse(page_of(items, page))


async def _find(caller: Caller, id: str) -> Found:
    found = await find(caller, id)
    if found is None:
        raise not_found("Response", id)
    return found


async def _settled(caller: Caller, found: Found) -> Answer:
    """Return a response when it has ended, or as it is after the longest wait."""
    with suppress(RunEndedError, WaitTimeoutError):
        await found.execution.wait(caller.service.settings.max_wait_s, until="settled")
    answer = await load(found)
    _end_if_left(caller, found, answer)
    return answer


async def _events(
    caller: Caller, found: Found, answer: Answer, after: int
) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """Yield the events of a response behind a number, up to its last one."""
    async for event in found.execution.events():
        for sent in answer.state.add(event):
            if told := answer.sent(sent, after):
                yield told
        if answer.state.is_done:
            break
    _end_if_left(caller, found, answer)


def _end_if_left(caller: Caller, found: Found, answer: Answer) -> None:
    """Cancel the run of a response that waits for its client but is not stored."""
    if not found.stored and (answer.state.waiting or answer.state.requests):
        cancelled = found.execution.cancel("the response was not to be stored, so nobody can continue it")
        caller.service.spawn(cancelled, "the end of a response that is not stored")


def _streamed(caller: Caller, found: Found, after: int, room: ExitStack | None = None) -> Response:
    left = _cancelling(caller, found) if caller.on_disconnect == "cancel" else None
    return EventStream(caller, _chunks(caller, found, after), left=left, retry_ms=None, room=room)


def _cancelling(caller: Caller, found: Found) -> Callable[[], None]:
    """Return what cancels a response whose client has left."""

    def left() -> None:
        cancelled = found.execution.cancel("its client disconnected")
        caller.service.spawn(cancelled, "the cancellation of a response whose client disconnected")

    return left


async def _chunks(caller: Caller, found: Found, after: int) -> AsyncGenerator[bytes, None]:
    answer, last = found.answer(), after
    try:
        async for kind, data in _events(caller, found, answer, after):
            last = data["sequence_number"]
            yield encode(json.dumps(data, ensure_ascii=False, separators=(",", ":")), event=kind)
    except TurnwiseError as error:  # the run goes on: the client can resume
        said = body_of(500, str(error), code=name_of(error))["error"]
        data = {**said, "type": "error", "sequence_number": last}
        yield encode(json.dumps(data, ensure_ascii=False), event="error")
