"""`/v1/ag-ui`: what clients of AG-UI ask, such as `HttpAgent` of `@ag-ui/client`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, cast

from fastapi import APIRouter, Query, Request, Response
from pydantic import model_validator

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.services.open_for_run import open_for_run
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.run_options import RerunOptions, RunOptions
from turnwise.actors.inference.tools.signature import check_safe
from turnwise.actors.inference.tools.tool import Tool, external_tool
from turnwise.adapters.front_ends.ag_ui import AgUiEncoder
from turnwise.adapters.version_checks import framework
from turnwise.errors import (
    ConfigError,
    InvalidIdError,
    InvalidInputError,
    NotFoundError,
    RunNotFoundError,
    SessionBusyError,
    shown,
)
from turnwise.http.bounded import Bounds, within_bounds
from turnwise.http.front_ends.answering import (
    Decision,
    active,
    ask,
    behind,
    check_decisions,
    decide,
    fitting,
    streamed,
    turn_of,
)
from turnwise.http.front_ends.reading import PROVIDER, file_named_in, file_of, in_order, message_id, named_file
from turnwise.http.middleware.paths import InPath
from turnwise.http.native.models import example
from turnwise.http.native.sessions import CONFLICT, NOT_FOUND
from turnwise.http.problems import answer, documented, problem_of
from turnwise.http.service import Caller, MemberCaller
from turnwise.http.sse import MEDIA_TYPE
from turnwise.memory.conversation.blocks import Block, User
from turnwise.memory.conversation.calls.run_tools import MAX_TOOLS
from turnwise.memory.values.limits import MAX_BLOCKS, MAX_NAMES, MAX_WAITING_BLOCKS, check_count

with framework("ag-ui-protocol", extra="ag-ui", tested="1.0"):
    from ag_ui.core import AssistantMessage, RunAgentInput, Tool as AgUiTool, ToolMessage, UserMessage

router = APIRouter(
    prefix="/v1/ag-ui",
    tags=["front ends"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 422, 429, 503),
)

_EVENT = 'data: {"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"Hi"}\n\n'


class AgentInput(RunAgentInput):
    """A run of AG-UI, as clients ask for it."""

    bounds: ClassVar[Bounds] = {
        "messages": ("MAX_WAITING_BLOCKS", MAX_WAITING_BLOCKS),
        "tools": ("MAX_TOOLS", MAX_TOOLS),
        "context": ("MAX_NAMES", MAX_NAMES),
        "resume": ("MAX_NAMES", MAX_NAMES),
    }
    model_config = example(threadId="trip", runId="r1", messages=[{"id": "m1", "role": "user", "content": "Hello!"}])

    _within_bounds = within_bounds

    @model_validator(mode="before")
    @classmethod
    def _with_media_parts(cls, body: Any) -> Any:
        """Take the `binary` parts of clients before AG-UI 1.0 for what replaced them, as its own client does."""
        if not isinstance(body, dict) or not isinstance(messages := body.get("messages"), list):
            return body
        return {**body, "messages": [_modern(message) for message in messages]}


def _modern(message: Any) -> Any:
    parts = message.get("content") if isinstance(message, dict) else None
    return {**message, "content": [_modern_part(part) for part in parts]} if isinstance(parts, list) else message


def _modern_part(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "binary":
        return part
    media_type = part.get("mimeType")
    kind = str(media_type).partition("/")[0]
    sources = (("id", "file"), ("url", "url"), ("data", "data"))
    name, source = next(((name, kind) for name, kind in sources if part.get(name) is not None), ("data", "data"))
    new: dict[str, Any] = {"type": kind if kind in ("image", "audio", "video") else "document"}
    new["source"] = {"type": source, "value": part.get(name), "mimeType": media_type}
    return {**new, "metadata": {"filename": part["filename"]}} if part.get("filename") else new


STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Events of AG-UI 1.0, as server-sent events.", "content": {MEDIA_TYPE: {"example": _EVENT}}}
}


@router.post("", summary="Run the service's first engine as an agent of AG-UI", responses=CONFLICT | STREAM)
async def run_agent(body: AgentInput, caller: MemberCaller, request: Request) -> Response:
    """Takes the newest message of the user, results of the client's tools, and answers to interrupts.

    The thread is a session. The run is stored before the stream begins, and goes on if the client leaves, unless
    `X-On-Disconnect` is `cancel`. A repeated request goes on with the same run; with `Last-Event-ID`, behind that.
    """
    return await _run(caller, body, request, None)


@router.post("/{engine}", summary="Run an engine as an agent of AG-UI", responses=CONFLICT | STREAM)
async def run_named_agent(engine: InPath, body: AgentInput, caller: MemberCaller, request: Request) -> Response:
    """As without a name. The engine is that of a new thread; a thread keeps its engine."""
    return await _run(caller, body, request, engine)


@router.get(
    "/{thread_id}/stream",
    summary="Read the run of a thread that has not ended, from its beginning",
    responses=NOT_FOUND | STREAM | {204: {"description": "No run is active."}},
)
async def resume_agent(
    thread_id: InPath,
    caller: MemberCaller,
    request: Request,
    run_id: Annotated[str | None, Query(description="The id that the client gave the run in the protocol.")] = None,
) -> Response:
    """With `Last-Event-ID`, only what is behind that event."""
    encoder = AgUiEncoder(thread_id, run_id, request.headers.get("last-event-id"))
    execution = await caller.on_session(thread_id, active)
    return Response(status_code=204) if execution is None else streamed(caller, execution, encoder)


async def _run(caller: Caller, body: RunAgentInput, request: Request, engine: str | None) -> Response:
    resumed = request.headers.get("last-event-id")
    AgUiEncoder(body.thread_id, last_event_id=resumed)  # which checks it
    if engine is not None and engine not in caller.manager.engines:
        names = ", ".join(repr(name) for name in caller.manager.engines if name)
        raise InvalidInputError("engine", shown(engine), f"there is no such engine; there are {names}")
    decisions = decisions_of(body)
    check_decisions(caller, decisions)
    approved = {decision.call_id for decision in decisions if decision.approved is not None}
    had = [decision.call_id for decision in decisions if decision.call_id not in approved]
    with caller.reserve_stream() as reserved:
        try:
            execution, answered = await _execution(caller, body, engine, resumed is not None)
        except SessionBusyError as error:
            detail = f"thread {body.thread_id!r} is busy with run {error.run_id!r}: wait until it ends, or cancel it"
            return answer(problem_of(error) | {"detail": detail})
        encoder = AgUiEncoder(body.thread_id, body.run_id, resumed, behind=answered, had=had)
        return streamed(caller, execution, encoder, reserved)


async def _execution(
    caller: Caller, body: RunAgentInput, engine: str | None, resumed: bool
) -> tuple[AsyncExecutionHandle, frozenset[str]]:
    """Return the run that answers a request, and the calls that it has answers to."""
    message_place = f"messages.{len(body.messages) - 1}"
    last = body.messages[-1] if body.messages else None
    decisions = decisions_of(body)
    is_history = bool(decisions) and isinstance(last, UserMessage) and not body.resume
    if is_history and not await _waits(caller, body.thread_id, decisions):
        decisions = []
    if decisions:
        message = (
            (message_id(last.id, f"{message_place}.id"), _prompts(last, message_place))
            if isinstance(last, UserMessage)
            else None
        )
        execution = await caller.on_session(body.thread_id, lambda session: deciding(session, decisions, message))
        resumes = [decision.call_id for decision in decisions if decision.approved is not None]
        answered = resumes or [decision.call_id for decision in decisions]
        return execution, await behind(execution, answered)
    if not isinstance(last, UserMessage):
        reason = "the last message must be the user's or a tool's; or answer interrupts by 'resume'"
        raise InvalidInputError(
            f"{message_place}.role" if last else "messages", shown(getattr(last, "role", [])), reason
        )
    its_id, prompts, options = (
        message_id(last.id, f"{message_place}.id"),
        _prompts(last, message_place),
        await _options(body),
    )
    session = await open_for_run(caller.manager, body.thread_id, prompts, options, **caller.whose, engine=engine)
    caller.service.handles.cache_session(caller.user_id, session, owner=caller.owner)
    branched = await _branch(session, body.parent_run_id, its_id, prompts, options)
    asked = branched or await ask(session, its_id, prompts, options, again=False, edits=True, resumed=resumed)
    return asked, frozenset()


async def _branch(
    session: AsyncSession, parent_run_id: str | None, its_id: str, prompts: Sequence[Block], options: RunOptions
) -> AsyncExecutionHandle | None:
    """Answer a message after the run that the request names as its parent, in place of the turn that follows there.

    Returns None if there is nothing to replace: no run of the thread has this id, its turn is the newest one, or a turn
    has the message already.

    Args:
        parent_run_id: the service's id of a run, as in `X-Run-Id` and before the first `-` of ids of messages.
    """
    try:
        parent = await session.execution(parent_run_id) if parent_run_id else None
    except (RunNotFoundError, InvalidIdError, InvalidInputError):
        return None  # a client may send an id of its own
    if parent is None or await turn_of(session, its_id):
        return None
    await session.choose(parent.turn_index)
    if not (following := await session.turns(after=parent.turn_index, limit=1)):
        return None
    return await session.rerun(*prompts, at=following[0], **cast(RerunOptions, {**options, "turn_id": its_id}))


async def _waits(caller: Caller, thread_id: str, decisions: Sequence[Decision]) -> bool:
    """Return whether a run of the thread waits for one of these decisions."""

    async def is_waiting(session: AsyncSession) -> bool:
        execution = await active(session)
        pending = {call.call_id for call in await execution.pending()} if execution else set()
        return bool(execution) and any(
            decision.call_id in pending and execution and decision.run_id == execution.run_id for decision in decisions
        )

    try:
        return await caller.on_session(thread_id, is_waiting)
    except NotFoundError:
        return False


async def deciding(
    session: AsyncSession, decisions: Sequence[Decision], message: tuple[str, list[Block]] | None = None
) -> AsyncExecutionHandle:
    """Give the run of the first decision what it waits for, and return it, also if it has got it already.

    Results of calls that never waited are left out, such as those of the service's own tools, which the client has too.

    Args:
        message: the message of the user that comes with them, by its id. If the thread does not have it yet, it joins
            the run, or follows it if the engine takes no prompts then. If the run has ended, it is answered by a run of
            its own, which is returned.

    Raises:
        InvalidInputError: an interrupt is none of this run's, no result is of a call that waited, or a call waits for
            something else; nothing was changed.
        CallDecidedError: a call was decided differently before.
    """
    run_id, reason = decisions[0].run_id, "no call of this id waits in this thread"
    try:
        execution = await session.execution(run_id or "")
    except (RunNotFoundError, InvalidIdError):
        raise InvalidInputError(decisions[0].at, shown(decisions[0].call_id), reason) from None
    calls = (await execution.info()).calls
    undecided = [
        decision
        for decision in decisions
        if decision.run_id in (run_id, None) and calls.get(decision.call_id, {}).get("wants")
    ]
    places = {decision_.at for decision_ in undecided}
    for decision in decisions:
        if decision.at not in places and (decision.approved is not None or not undecided):
            raise InvalidInputError(decision.at, shown(decision.call_id), reason)
    chosen = await fitting(execution, undecided)
    joined = None if message is None else await _joined(session, *message)
    await decide(execution, chosen)
    if joined is None:
        return execution
    run = await joined.info()
    is_joined = execution.run_id in (run.run_id, run.leads_to)  # reads of a run that joined may follow it
    return execution if is_joined or run.state == "queued" else joined


async def _joined(session: AsyncSession, its_id: str, prompts: Sequence[Block]) -> AsyncExecutionHandle | None:
    """Start the run of a message beside decisions, which joins the one that waits; None if a turn has the message."""
    if await turn_of(session, its_id):
        return None
    return await session.run(*prompts, if_busy="inject", idempotency_key=f"message {its_id}")


def decisions_of(body: RunAgentInput) -> list[Decision]:
    """Return the answers to interrupts, and the results of calls at the end, which a message of the user may follow."""
    decisions = []
    for number, entry in enumerate(body.resume or ()):
        place = f"resume.{number}.payload"
        payload = entry.payload if isinstance(entry.payload, dict) else {"approved": entry.payload}
        approved = False if entry.status == "cancelled" else payload.get("approved")
        if not isinstance(approved, bool):
            raise InvalidInputError(f"{place}.approved", shown(approved), "it must be true or false")
        edited, reason = payload.get("editedArgs"), payload.get("reason")
        if edited is not None and not isinstance(edited, dict):
            raise InvalidInputError(f"{place}.editedArgs", shown(edited), "it must be an object")
        feedback = reason if isinstance(reason, str) else "cancelled" if entry.status == "cancelled" else ""
        arguments = edited if approved else None
        run_id, _, call_id = entry.interrupt_id.partition(".")
        decisions.append(Decision(call_id, place, run_id, approved=approved, value=arguments, reason=feedback))
    runs = _runs_of(body.messages)
    is_asked = bool(body.messages) and isinstance(body.messages[-1], UserMessage)
    for number in range(len(body.messages) - 1 - is_asked, -1, -1):
        message = body.messages[number]
        if not isinstance(message, ToolMessage):
            break
        text = message.content if isinstance(message.content, str) else _texts(message.content, f"messages.{number}")
        value, is_error = (text, False) if message.error is None else (message.error, True)
        call_id, place = message.tool_call_id, f"messages.{number}.toolCallId"
        decisions.append(Decision(call_id, place, runs.get(call_id), value=value, is_error=is_error))
    check_count("answers to calls", len(decisions), "MAX_NAMES", MAX_NAMES)
    return decisions


def _runs_of(messages: Sequence[Any]) -> dict[str, str]:
    """Return the runs of calls, by the ids of the messages that have them last: a call's id is unique within a run."""
    asking = (message for message in messages if isinstance(message, AssistantMessage))
    return {call.id: message.id.partition("-")[0] for message in asking for call in message.tool_calls or ()}


def _texts(parts: Sequence[Any], place: str) -> str:
    for number, part in enumerate(parts):
        if part.type != "text":
            raise InvalidInputError(f"{place}.content.{number}.type", shown(part.type), "a result of a call has texts")
    return "\n".join(part.text for part in parts)


def _prompts(message: UserMessage, place: str) -> list[Block]:
    if isinstance(message.content, str):
        return in_order([User(text=message.content)], f"{place}.content")
    check_count(f"{place}.content", len(message.content), "MAX_BLOCKS", MAX_BLOCKS)
    blocks: list[Block] = []
    for number, part in enumerate(message.content):
        part_place = f"{place}.content.{number}"
        if part.type == "text":
            blocks.append(User(text=part.text))
        elif part.type in ("image", "document"):
            blocks.append(_file(part, f"{part_place}.source"))
        else:
            reason = "a message of the user has texts, images and documents"
            raise InvalidInputError(f"{part_place}.type", shown(part.type), reason)
    return in_order(blocks, f"{place}.content")


def _file(part: Any, place: str) -> Block:
    """Return an image or a document: by its bytes, by an address, or as a file of the session or the user."""
    source = part.source
    media_type = source.mime_type or ("image" if part.type == "image" else None)
    name = part.metadata.get("filename") if isinstance(part.metadata, dict) else None
    name = name if isinstance(name, str) else None
    if source.type == "file" and source.provider not in (None, PROVIDER):
        reason = f"a file is of the provider {PROVIDER!r}: upload it by POST /v1/files, and send its id"
        raise InvalidInputError(f"{place}.provider", shown(source.provider), reason)
    file_id = source.value if source.type == "file" else file_named_in(source.value) if source.type == "url" else None
    if file_id is not None:
        return named_file(file_id, media_type, name, f"{place}.value")
    url = f"data:{media_type};base64,{source.value}" if source.type == "data" else source.value
    return file_of(url, media_type, name, f"{place}.value")


async def _options(body: RunAgentInput) -> RunOptions:
    """Return the options of the run: the client's tools, which a thread checks, and its context as instructions."""
    options = RunOptions()
    if body.tools:
        options["tools"] = await asyncio.to_thread(_tools, body.tools)
    if body.context:
        options["instructions"] = "\n\n".join(f"{entry.description}:\n{entry.value}" for entry in body.context)
    return options


def _tools(tools: Sequence[AgUiTool]) -> list[Tool]:
    return [_tool(tool, f"tools.{number}") for number, tool in enumerate(tools)]


def _tool(tool: AgUiTool, place: str) -> Tool:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    try:
        check_safe(parameters)
        return external_tool(tool.name, tool.description, parameters)
    except (ConfigError, ValueError, TypeError) as error:
        raise InvalidInputError(f"{place}.parameters", shown(json.dumps(parameters)), str(error)) from None
