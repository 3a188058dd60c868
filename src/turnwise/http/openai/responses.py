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
from turnwise.http.openai.start_response import DELETED, RunResponse, find, load, newest, start
from turnwise.http.service import Caller, MemberCaller
from turnwise.http.sse import EventStream, encode, wait_for

router = APIRouter(prefix="/openai/v1/responses", tags=["OpenAI responses"], route_class=OpenAIRoute)


class Look(Including):
    """How a response is retrieved."""

    stream: bool = False
    starting_after: int = Field(default=-1, ge=-1)
    include_obfuscation: bool = False


@router.post("")
async def create(
    body: CreateResponse,
    request: Request,
    caller: MemberCaller,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Start a response, and return it when it has ended, or at once if it is in the background; or stream it."""
    body.check()
    with caller.reserve_stream(is_needed=bool(body.stream or not body.background)) as reserved:
        response = await start(caller, body, read_input(body.input), idempotency_key)
        if body.stream:
            return _streamed(caller, response, -1, reserved)
        if body.background:
            return JSONResponse((await load(response)).body())
        on_leave = _cancelling(caller, response) if caller.on_disconnect == "cancel" else None
        answer = await wait_for(request, caller, _settled(caller, response), on_leave=on_leave, reserved=reserved)
    if answer is None:  # the server stops
        answer = await load(response) if response.stored else response.answer()
    return JSONResponse(answer.body())


@router.get("/{response_id}")
async def retrieve(
    response_id: str,
    caller: MemberCaller,
    look: Annotated[Look, Query()],
) -> Response:
    """Return a response as it is now, or stream its events behind a sequence number."""
    if look.include_obfuscation:
        raise invalid("include_obfuscation", "this service sends no obfuscation: leave it out")
    look.check()
    response = replace(await _find(caller, response_id), encrypted=ENCRYPTED in look.include)
    if look.stream:
        return _streamed(caller, response, look.starting_after)
    answer = await load(response)
    if answer.state.status is None:
        raise not_found("Response", response_id)
    return JSONResponse(answer.body())


@router.post("/{response_id}/cancel")
async def cancel(response_id: str, caller: MemberCaller) -> Response:
    """Cancel a response, in the background or not; return it. One that has ended stays as it is.

    If it waits for outputs, its run ends; if a later response has its run, that one goes on.
    """
    response = await _find(caller, response_id)
    if await _is_newest(caller, response):
        await response.execution.cancel("cancelled by the client")
    return JSONResponse((await load(await _find(caller, response_id))).body())


@router.delete("/{response_id}")
async def delete(response_id: str, caller: MemberCaller) -> Response:
    """Delete a response; cancel it first if it has not ended. Its text stays part of later responses."""
    response = await _find(caller, response_id)
    if await _is_newest(caller, response) and response.run.is_open:
        await response.execution.cancel("its response was deleted")
    session = await caller.manager.get(response.execution.session_id, **caller.whose)
    if (
        is_hidden(session.session_id)
        and len(await session.runs(limit=2)) == 1
        and await _is_last(caller, session, response)
    ):
        try:
            await session.delete()
        except SessionBusyError:  # somebody has just continued it
            pass
        else:
            return _deleted(response_id)
    await session.update(metadata={f"{DELETED}{response_id}": True})
    return _deleted(response_id)


async def _is_newest(caller: Caller, response: RunResponse) -> bool:
    """Return whether no later response has the run of this one.

    Raises:
        OpenAIError: the run has no such response.
    """
    last = await newest(caller, response.execution)
    if response.part > last.part:
        raise not_found("Response", response.id)
    return response.part == last.part


async def _is_last(caller: Caller, session: AsyncSession, response: RunResponse) -> bool:
    """Return whether all other responses of its run were deleted."""
    count = (await newest(caller, response.execution)).part + 1
    other_ids = {id_of(response.execution.run_id, part) for part in range(count)} - {response.id}
    metadata = (await session.info()).session.metadata
    return all(f"{DELETED}{other_id}" in metadata for other_id in other_ids)


def _deleted(id: str) -> Response:
    return JSONResponse({"id": id, "object": "response", "deleted": True})


@router.get("/{response_id}/input_items")
async def input_items(
    response_id: str,
    caller: MemberCaller,
    page: Asked,
) -> Response:
    """List the items that a response was given: prompts, or the outputs of the calls before it."""
    page.check()
    response = await _find(caller, response_id)
    session = await caller.manager.get(response.execution.session_id, **caller.whose)
    try:
        turn = await session.turn(response.execution.turn_index)
    except TurnNotFoundError:
        raise not_found("Response", response_id) from None
    if response.part == 0:
        items = prompt_items(turn.record.prompt, turn.asked)
    else:
        every = output_items(response.run.run_id, turn.output, response.run.calls, encrypted=ENCRYPTED in page.include)
        input_types = ("function_call_output", "mcp_approval_response")
        items = [item for part, item in every if part == response.part and item["type"] in input_types]
    return JSONResponse(page_of(items, page))


async def _find(caller: Caller, id: str) -> RunResponse:
    response = await find(caller, id)
    if response is None:
        raise not_found("Response", id)
    return response


async def _settled(caller: Caller, response: RunResponse) -> Answer:
    """Return a response when it has ended, or as it is after the longest wait."""
    with suppress(RunEndedError, WaitTimeoutError):
        await response.execution.wait(caller.service.settings.max_wait_s, until="settled")
    answer = await load(response)
    _end_if_left(caller, response, answer)
    return answer


async def _events(
    caller: Caller, response: RunResponse, answer: Answer, after: int
) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """Yield the events of a response behind a number, up to its last one."""
    async for event in response.execution.events():
        for sent in answer.state.add(event):
            if server_event := answer.sent(sent, after):
                yield server_event
        if answer.state.is_done:
            break
    _end_if_left(caller, response, answer)


def _end_if_left(caller: Caller, response: RunResponse, answer: Answer) -> None:
    """Cancel the run of a response that waits for its client but is not stored."""
    if not response.stored and (answer.state.waiting or answer.state.requests):
        cancelled = response.execution.cancel("the response was not to be stored, so nobody can continue it")
        caller.service.spawn(cancelled, "the end of a response that is not stored")


def _streamed(caller: Caller, response: RunResponse, after: int, reserved: ExitStack | None = None) -> Response:
    on_leave = _cancelling(caller, response) if caller.on_disconnect == "cancel" else None
    return EventStream(caller, _chunks(caller, response, after), on_leave=on_leave, retry_ms=None, reserved=reserved)


def _cancelling(caller: Caller, response: RunResponse) -> Callable[[], None]:
    """Return what cancels a response whose client has left."""

    def cancel() -> None:
        cancelled = response.execution.cancel("its client disconnected")
        caller.service.spawn(cancelled, "the cancellation of a response whose client disconnected")

    return cancel


async def _chunks(caller: Caller, response: RunResponse, after: int) -> AsyncGenerator[bytes, None]:
    answer, last = response.answer(), after
    try:
        async for kind, data in _events(caller, response, answer, after):
            last = data["sequence_number"]
            yield encode(json.dumps(data, ensure_ascii=False, separators=(",", ":")), event=kind)
    except TurnwiseError as error:  # the run goes on: the client can resume
        error_fields = body_of(500, str(error), code=name_of(error))["error"]
        data = {**error_fields, "type": "error", "sequence_number": last}
        yield encode(json.dumps(data, ensure_ascii=False), event="error")
