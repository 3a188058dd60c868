"""`/openai/v1/chat/completions`: stateless, or with the header `X-Session-Id` durable.

Without the header, the request has the whole conversation, and nothing is stored. With it, the session has the
conversation, and the request continues it: see `new_messages.py`. A completion that ends with `tool_calls` leaves a run
that waits, in any process and for as long as it takes; the request with the results of all of its calls continues that
run. A request that brings nothing new repeats the last one, and is answered with what that was answered. With an
`Idempotency-Key`, a request that is repeated is answered by its first run, whatever the session has said since.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.services.open_for_run import open_for_run
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.run_options import RunOptions
from turnwise.actors.inference.tools.tool import record_of_tools
from turnwise.errors import (
    CallDecidedError,
    CallNotFoundError,
    InvalidInputError,
    RunEndedError,
    SessionBusyError,
    SessionInUseError,
    SessionNotFoundError,
    TurnNotFoundError,
    TurnwiseError,
    WaitTimeoutError,
)
from turnwise.http.middleware.paths import header_of_id, id_of_header
from turnwise.http.openai.chat_completions.completion_request import CreateCompletion
from turnwise.http.openai.chat_completions.completions import Completion, needs_approval
from turnwise.http.openai.chat_completions.messages import Chat, read_messages
from turnwise.http.openai.chat_completions.new_messages import New, is_alone, news
from turnwise.http.openai.errors import (
    OpenAIError,
    OpenAIRoute,
    answer,
    answer_of,
    body_of,
    check_no_key,
    check_own,
    invalid,
)
from turnwise.http.openai.models import Chosen, chosen, run_on
from turnwise.http.openai.run_events import events_so_far
from turnwise.http.same_prompt import unsigned
from turnwise.http.service import Caller, MemberCaller
from turnwise.http.sse import EventStream, encode, wait_for
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.model_params import merged
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.views.chat_messages import ChatMessage

router = APIRouter(prefix="/openai/v1/chat", tags=["OpenAI chat"], route_class=OpenAIRoute)

SESSION_ID, RUN_ID = "X-Session-Id", "X-Run-Id"
"""The header that makes a completion durable, and the one that says which run has answered."""

_REQUEST = "openai.request"
"""The label of a run that has a digest of the request with its idempotency key."""

_STOPS = "the server stops: repeat the request"

_PAGE = 1000


@dataclass(frozen=True)
class _ChatRequest:
    """A request: who makes it, and what it says."""

    caller: Caller
    body: CreateCompletion
    chat: Chat
    model: Chosen
    options: RunOptions


@dataclass(frozen=True)
class _Answering:
    """The run that answers a request, and the completion that it makes."""

    execution: AsyncExecutionHandle
    completion: Completion
    is_stored: bool
    has_tools: bool
    """Whether it may end with calls that the client makes."""


@router.post("/completions")
async def create(
    body: CreateCompletion,
    request: Request,
    caller: MemberCaller,
    x_session_id: Annotated[str | None, Header()] = None,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Answer a chat, in one piece or as a stream.

    Without `X-Session-Id`, nothing is stored: `messages` is the whole conversation, and a client that leaves cancels
    the run. With it, the session of this id has the conversation, and is made if there is none.

    `messages` may then be the whole conversation, or only what is new: one message of the user, or the results of
    tools. If it is whole, the user's messages must be those of the session; messages after them are new. Answers may be
    cut short or missing, but not changed: otherwise the answer is 422 `conflict`, which says what differs. If nothing
    is new, the request repeats the last one, and gets the same answer; one that failed is asked for again. System
    messages are instructions for this answer, and in no history.

    After `tool_calls`, the session waits for the results of all calls, for as long as it takes. Messages of role `tool`
    bring them, with the same settings and tools as before, or none.

    With an `Idempotency-Key`, a repeated request gets the answer of the first one. Without a session, a key is refused.
    """
    body.check()
    chat, model = read_messages(body.messages), chosen(caller, body.model)
    completion_request = _ChatRequest(caller, body, chat, model, await _options(body, chat, model))
    with caller.reserve_stream() as reserved:
        try:
            if x_session_id is None:
                check_no_key(idempotency_key, "name a session by X-Session-Id")
                check_own(caller.owner, "messages", "name a session by X-Session-Id, or leave `owner` out")
                answering = await _stateless(completion_request)
            else:
                answering = await _durable(completion_request, id_of_header(x_session_id), idempotency_key)
        except InvalidInputError as error:
            raise body.refusal(error) from None
        return await _respond(request, completion_request, answering, reserved)


async def _respond(
    request: Request, completion_request: _ChatRequest, answering: _Answering, reserved: ExitStack
) -> Response:
    """Return the answer when it is whole, or stream it."""
    caller, body = completion_request.caller, completion_request.body
    headers = {RUN_ID: answering.execution.run_id}
    if answering.is_stored:
        headers[SESSION_ID] = header_of_id(answering.execution.session_id)
    on_leave = _canceller(caller, answering)
    if body.stream:
        farewell = encode(json.dumps(body_of(503, _STOPS, code="server_stops")))
        chunks = _chunks(caller, body, answering)
        return EventStream(
            caller, chunks, on_leave=on_leave, retry_ms=None, farewell=farewell, reserved=reserved, headers=headers
        )
    try:
        await wait_for(request, caller, _settled(caller, answering), on_leave=on_leave, reserved=reserved)
    except OpenAIError as error:
        return _failed(error, answering, headers)
    if not answering.completion.is_done:
        if on_leave and not answering.is_stored:
            on_leave()
        if caller.service.stopping.is_set():
            raise OpenAIError(503, _STOPS, code="server_stops")
        raise OpenAIError(504, "the answer takes longer than this service waits: stream it, or repeat the request")
    return JSONResponse(answering.completion.body(last_only=body.is_json), headers=headers)


def _failed(error: OpenAIError, answering: _Answering, headers: dict[str, str]) -> Response:
    """Return the answer for a run without one. Clients do not repeat it by themselves, as a session has the prompt."""
    response = answer(error.status, str(error), param=error.param, code=error.code, **error.more)
    response.headers.update({**headers, "X-Should-Retry": "false"} if answering.is_stored else headers)
    return response


async def _options(body: CreateCompletion, chat: Chat, model: Chosen) -> RunOptions:
    options = RunOptions(params=body.params(), model=model.model)
    if instructions := "\n\n".join(text for text in chat.instructions if text.strip()):
        options["instructions"] = instructions
    if tools := await body.functions_given():
        options["tools"] = tools
    return options


async def _stateless(completion_request: _ChatRequest) -> _Answering:
    """Start a run of which nothing is stored."""
    target: dict[str, Any] = {"user_id": completion_request.caller.user_id, "engine": completion_request.model.engine}
    execution = await completion_request.caller.manager.run_once(
        *completion_request.chat.blocks, **target, **completion_request.options
    )
    completion = Completion(execution.run_id, completion_request.body.model, time.time())
    return _Answering(execution, completion, is_stored=False, has_tools=bool(completion_request.body.tools))


async def _durable(completion_request: _ChatRequest, session_id: str, key: str | None) -> _Answering:
    """Start the run that answers a request within a session, continue the one that waits, or find it."""
    body, options = completion_request.body, completion_request.options
    session = await _session(completion_request, session_id)
    if not key:
        return await _in_session(completion_request, session, options)
    turn_id = f"chat {hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:32]}"
    digest = hashlib.sha256(body.model_dump_json(exclude={"stream", "stream_options"}).encode()).hexdigest()
    if earlier := await _of_key(session, turn_id, digest):
        return _answer(body, *earlier)
    try:
        return await _in_session(
            completion_request, session, options | {"turn_id": turn_id, "labels": {_REQUEST: digest}}
        )
    except (TurnwiseError, OpenAIError):  # an equal request may have come first in this moment
        if earlier := await _of_key(session, turn_id, digest):
            return _answer(body, *earlier)
        raise


async def _in_session(completion_request: _ChatRequest, session: AsyncSession, options: RunOptions) -> _Answering:
    """Start the run that answers a request, continue the one that waits, or find the one that it repeats."""
    caller, body, engine = completion_request.caller, completion_request.body, completion_request.model.engine
    new = news(completion_request.chat, [] if is_alone(completion_request.chat) else await _messages(session))
    if new.results:
        return await _continue(session, body, options, new)
    prompts: Sequence[AnyBlock] = new.prompts
    if new.repeats:
        repeated = await _last(session)
        if repeated.run.is_open or repeated.run.state == "completed" or new.after:
            return _answer(body, repeated.execution, repeated.run, new.after)
        prompts = list(map(unsigned, repeated.prompts))  # it has failed, so it is asked again
    try:
        if engine is None:
            execution = await session.run(*prompts, **options)
        else:
            execution = await run_on(caller, session, engine, prompts, options)
    except SessionBusyError as error:
        pending = await (await session.execution(error.run_id)).pending()
        if any(call.wants == "result" for call in pending):
            raise _no_result(next(call.call_id for call in pending if call.wants == "result"), error.run_id) from None
        reason = str(SessionInUseError(error.session_id, error.run_id))  # the API's requests have no policy
        raise OpenAIError(409, reason, code="session_busy", run_id=error.run_id) from None
    return _answer(body, execution, await execution.info())


def _answer(
    body: CreateCompletion, execution: AsyncExecutionHandle, run: RunRecord, after: frozenset[str] = frozenset()
) -> _Answering:
    completion = Completion(run.run_id, body.model, run.created_at, after)
    return _Answering(execution, completion, is_stored=True, has_tools=bool(run.tools))


async def _of_key(session: AsyncSession, turn_id: str, digest: str) -> tuple[AsyncExecutionHandle, RunRecord] | None:
    """Return the run of an earlier request with this idempotency key; None if there is none.

    Raises:
        OpenAIError: it was another request.
    """
    try:
        turn = await session.turn(turn_id)
        execution = await session.execution(turn.run_id or "")
    except TurnNotFoundError:
        return None
    run = await execution.info()
    if run.labels.get(_REQUEST) != digest:
        reason = "this Idempotency-Key belongs to another request: use a new key for a new request"
        raise OpenAIError(422, reason, code="idempotency_conflict", run_id=run.run_id)
    return execution, run


async def _messages(session: AsyncSession) -> list[ChatMessage]:
    """Return all messages of a session that are complete, oldest first."""
    messages: list[ChatMessage] = []
    page = await session.messages(_PAGE)
    messages[:0] = page
    while page.cursor:
        page = await session.messages(_PAGE, before=page.cursor)
        messages[:0] = page
    return [message for message in messages if not message.is_partial]


@dataclass(frozen=True)
class _Repeated:
    """The last run of a session, and the prompts of its turn."""

    execution: AsyncExecutionHandle
    run: RunRecord
    prompts: Sequence[AnyBlock]


async def _last(session: AsyncSession) -> _Repeated:
    turn = await session.latest()
    if turn is None or turn.run_id is None:
        raise invalid("messages", "there is nothing new in these messages, and nothing that they repeat")
    execution = await session.execution(turn.run_id)
    return _Repeated(execution, await execution.info(), turn.asked)


async def _session(completion_request: _ChatRequest, session_id: str) -> AsyncSession:
    """Return the session of a request; a new one only if its first run can start."""
    caller = completion_request.caller
    try:
        return await caller.manager.get(session_id, **caller.whose)
    except SessionNotFoundError:
        if caller.owner is not None:
            raise
        new = news(completion_request.chat, [])
    if new.results:
        reason = f"no call with the id {new.results[0].call_id!r} waits for a result in this session"
        raise invalid("messages", reason, "unknown_tool_call")
    return await open_for_run(
        caller.manager,
        session_id,
        new.prompts,
        completion_request.options,
        user_id=caller.user_id,
        engine=completion_request.model.engine,
    )


async def _continue(session: AsyncSession, body: CreateCompletion, options: RunOptions, new: New) -> _Answering:
    """Give the run that waits the results of its calls. A second time changes nothing."""
    results = {result.call_id: result for result in new.results}
    active = (await session.info()).active_run_id
    execution = await session.execution(active) if active else (await _last(session)).execution
    run = await execution.info()
    calls = {call_id: state for call_id, state in run.calls.items() if state.get("wants") == "result"}
    if unknown := results.keys() - calls.keys():
        reason = f"no call with the id {min(unknown)!r} waits for a result in this session"
        raise invalid("messages", reason, "unknown_tool_call")
    waiting = {call_id for call_id, state in calls.items() if not state.get("verdict")}
    if missing := waiting - results.keys():
        raise _no_result(min(missing), run.run_id)
    _check_same(body, options, run)
    try:
        for call_id, result in results.items():
            await execution.provide(call_id, result.text)
    except (CallDecidedError, CallNotFoundError) as error:
        raise OpenAIError(422, str(error), param="messages", code="conflict", run_id=run.run_id) from None
    return _answer(body, execution, run, frozenset(results))


def _no_result(call_id: str, run_id: str) -> OpenAIError:
    reason = (
        f"the session waits for the results of tool calls; the call {call_id!r} has none: send a message of role tool"
    )
    return invalid("messages", reason, "missing_tool_result", run_id=run_id)


def _check_same(body: CreateCompletion, options: RunOptions, run: RunRecord) -> None:
    """Refuse results with other settings than the run that waits for them has: they would have no effect."""
    tools = record_of_tools(options.get("tools") or [])
    params = merged(run.params, options.get("params") or {})
    differs = {
        "model": run.model != options.get("model"),
        "messages": options.get("instructions") not in (None, run.instructions),
        "tools": bool(tools) and tools != run.tools,
    }
    differs |= {name: params[name] != run.params.get(name) for name in params}
    for name, is_other in differs.items():
        if is_other:
            subject = "the system message" if name == "messages" else name
            reason = f"{subject} is another than that of the run which waits for these results: send the same, or none"
            raise invalid(name if name in type(body).model_fields else "max_tokens", reason)


def _canceller(caller: Caller, answering: _Answering) -> Callable[[], Any] | None:
    """Return what to do when the client leaves. Without a session, no later request could read the answer."""
    if answering.is_stored and caller.on_disconnect == "keep":
        return None
    work = "the cancellation of a run whose client disconnected"
    return lambda: caller.service.spawn(answering.execution.cancel("its client disconnected"), work)


async def _settled(caller: Caller, answering: _Answering) -> None:
    """Wait until a completion is whole, for as long as the service waits.

    Raises:
        OpenAIError: there is no answer.
    """
    execution, completion = answering.execution, answering.completion
    with suppress(RunEndedError):  # its events say how it ended, and whether it made calls of the client before
        try:
            turn = await execution.wait(caller.service.settings.max_wait_s, until="settled")
        except WaitTimeoutError:
            return
        if turn.status == "completed" and not answering.has_tools:
            completion.add_turn(turn)
            return
    async with aclosing(_pieces(caller, answering, events_so_far(execution))) as pieces:
        async for _ in pieces:
            pass
    if not completion.is_done and (call := next(iter(await execution.pending()), None)):
        raise needs_approval(call, execution.session_id, execution.run_id)


async def _pieces(caller: Caller, answering: _Answering, events: AsyncIterator[AnyEvent]) -> AsyncGenerator[str, None]:
    """Yield the texts of a completion as its run's events come, up to its end."""
    completion, execution = answering.completion, answering.execution
    try:
        async for event in events:
            for piece in completion.add(event):
                yield piece
            if completion.is_done:
                break
    finally:
        if not answering.is_stored and (completion.calls or completion.needs_approval):
            cancelled = execution.cancel("it has no session, so nobody can continue it")
            caller.service.spawn(cancelled, "the end of a run that waits")


async def _chunks(caller: Caller, body: CreateCompletion, answering: _Answering) -> AsyncGenerator[bytes, None]:
    completion = answering.completion
    yield _chunk(completion.opening())
    try:
        async for piece in _pieces(caller, answering, answering.execution.events()):
            yield _chunk(completion.text(piece))
    except OpenAIError as error:
        yield _chunk(body_of(error.status, str(error), param=error.param, code=error.code, **error.more))
        return
    except TurnwiseError as error:
        yield b"data: " + bytes(answer_of(error).body) + b"\n\n"
        return
    for chunk in completion.closing(usage=bool(body.stream_options and body.stream_options.include_usage)):
        yield _chunk(chunk)
    yield b"data: [DONE]\n\n"


def _chunk(data: dict[str, Any]) -> bytes:
    return encode(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
