"""Starts responses: finds the conversation to continue, forks it, or goes on with a run that waits for its client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.services.open_for_run import open_for_run
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.run_options import RunOptions
from turnwise.actors.inference.tools.signature import check_safe
from turnwise.actors.inference.tools.tool import Tool, external_tool, record_of_tools
from turnwise.errors import (
    CallDecidedError,
    ConfigError,
    InvalidIdError,
    NotFoundError,
    SessionBusyError,
    SessionExistsError,
    TurnIdTakenError,
    TurnNotFoundError,
    TurnwiseError,
)
from turnwise.http.openai.answers import Answer
from turnwise.http.openai.errors import OpenAIError, check_no_key, check_own, invalid, not_found
from turnwise.http.openai.fields import CreateResponse, FunctionTool, check_same
from turnwise.http.openai.ids import hidden_session, is_hidden, response_id, run_of, session_of
from turnwise.http.openai.inputs import ResponseInput
from turnwise.http.openai.models import REQUESTED, Chosen, chosen, model_of, run_on
from turnwise.http.openai.projection import CONTINUES, Projection
from turnwise.http.openai.run_events import events_so_far
from turnwise.http.service import Caller
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.calls.run_tools import is_tool_name
from turnwise.memory.conversation.runs import RunRecord

DELETED = "openai.deleted."
"""With the id of a deleted response, a name in its session's metadata. Each has its own, so none overwrites another."""


@dataclass(frozen=True)
class RunResponse:
    """A response: a run's handle and record, and which part of the run it is."""

    execution: AsyncExecutionHandle
    run: RunRecord
    part: int
    model: str
    stored: bool = True
    encrypted: bool = False
    """Whether reasoning is shown such that it can be sent back, though the request did not ask for that."""

    @property
    def id(self) -> str:
        """Its id."""
        return response_id(self.execution.run_id, self.part)

    def answer(self) -> Answer:
        """Return the response before any event."""
        how: dict[str, Any] = {"model": self.model, "stored": self.stored, "encrypted": self.encrypted}
        return Answer(self.execution.session_id, self.run, self.part, **how)


async def find(caller: Caller, id: str) -> RunResponse | None:
    """Return a response of the caller's; None if there is none."""
    run_and_part = run_of(id)
    if run_and_part is None:
        return None
    run_id, part = run_and_part
    try:
        execution = await caller.manager.execution(run_id, **caller.whose)
        run = await execution.info()
        session = await caller.manager.get(execution.session_id, **caller.whose)
        info = await session.info()
    except (NotFoundError, InvalidIdError):
        return None
    response = RunResponse(execution, run, part, model_of(caller, run))
    return None if f"{DELETED}{id}" in info.session.metadata else response


async def load(response: RunResponse) -> Answer:
    """Return a response as it is now. Waits for nothing."""
    answer = response.answer()
    async with aclosing(events_so_far(response.execution)) as events:
        async for event in events:
            _feed(answer.state, event)
            if answer.state.is_done:
                break
    return answer


def _feed(state: Projection, event: Any) -> None:
    for _ in state.add(event):
        pass


async def conversation(caller: Caller, id: str) -> AsyncSession:
    """Return the session of a conversation of the caller's.

    Raises:
        OpenAIError: there is none.
    """
    session_id = session_of(id)
    if session_id is not None:
        try:
            return await caller.manager.get(session_id, **caller.whose)
        except (NotFoundError, InvalidIdError):
            pass
    raise not_found("Conversation", id)


async def start(caller: Caller, body: CreateResponse, request_input: ResponseInput, key: str | None) -> RunResponse:
    """Start a response, or continue the one that waits; durable on return unless it is not to be stored.

    Args:
        key: the client's idempotency key.

    Raises:
        OpenAIError, TurnwiseError: nothing was started.
    """
    choice = None if body.model is None else chosen(caller, body.model)
    engine = choice.engine if choice else None
    options = await _options(body, choice or Chosen(None, None), key)
    if body.conversation_id is not None:
        return await _in_conversation(caller, body, request_input, options, choice)
    if body.previous_response_id is not None:
        return await _after_previous(caller, body, request_input, options, choice)
    check_own(caller.owner, "conversation", "name the conversation, or a response in it, or leave `owner` out")
    if request_input.is_answer:
        raise _unknown_output(request_input)
    if body.store is False:
        return await _run_once(caller, request_input.blocks, options, engine)
    session_id = hidden_session(key)
    session = await open_for_run(
        caller.manager, session_id, request_input.blocks, options, user_id=caller.user_id, engine=engine
    )
    return await _first_run(caller, session, request_input, options)


async def _options(body: CreateResponse, choice: Chosen, key: str | None) -> RunOptions:
    named = {REQUESTED: body.model} if body.model is not None else {}
    options = RunOptions(labels={**body.labels(), **named}, params=body.params(), model=choice.model)
    if key is not None:
        options["idempotency_key"] = key
    if instructions := (body.instructions or "").strip():
        options["instructions"] = instructions
    if body.tools:
        options["tools"] = await asyncio.to_thread(_tools, body)  # to check them may take long
    return options


def _tools(body: CreateResponse) -> list[Tool]:
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.functions())]
    record_of_tools(tools)  # a thread, so that the event loop serves others
    return tools


def _tool(function: FunctionTool, param: str) -> Tool:
    parameters = function.parameters or {"type": "object", "properties": {}}
    try:
        check_safe(parameters)
        return external_tool(function.name, function.description or "", parameters)
    except ValueError as error:
        raise invalid(f"{param}.parameters", f"{param}.parameters: {error}", "invalid_function_parameters") from None
    except ConfigError as error:
        raise invalid(f"{param}.parameters" if is_tool_name(function.name) else f"{param}.name", str(error)) from None


async def _run_once(caller: Caller, blocks: Sequence[Block], options: RunOptions, engine: str | None) -> RunResponse:
    check_no_key(options.get("idempotency_key"), "send it with store true")
    execution = await caller.manager.run_once(*blocks, user_id=caller.user_id, engine=engine, **options)
    run = await execution.info()
    return RunResponse(execution, run, 0, model_of(caller, run), stored=False)


async def _run(
    caller: Caller,
    session: AsyncSession,
    request_input: ResponseInput,
    options: RunOptions,
    choice: Chosen | None = None,
) -> RunResponse:
    """Start a run of a session.

    Args:
        choice: what the model that the request names stands for; None if the session's engine answers.
    """
    if choice is None:
        execution = await session.run(*request_input.blocks, **options)
    else:
        execution = await run_on(caller, session, choice.engine, request_input.blocks, options)
    run = await execution.info()
    return RunResponse(execution, run, 0, model_of(caller, run))


async def _first_run(
    caller: Caller,
    session: AsyncSession,
    request_input: ResponseInput,
    options: RunOptions,
    choice: Chosen | None = None,
) -> RunResponse:
    """Start the first run of a session that was made for it; delete the session if the run is refused."""
    try:
        return await _run(caller, session, request_input, options, choice)
    except SessionBusyError:
        raise
    except TurnwiseError:
        if not await session.runs(limit=1):
            await session.delete(memory=False)
        raise


async def _in_conversation(
    caller: Caller, body: CreateResponse, request_input: ResponseInput, options: RunOptions, choice: Chosen | None
) -> RunResponse:
    session = await conversation(caller, body.conversation_id or "")
    if request_input.is_answer:
        run_id = (await session.info()).active_run_id
        if run_id is None and (turn := await session.latest()):
            run_id = turn.run_id
        if run_id is None:
            raise _unknown_output(request_input)
        return await _continue(
            caller,
            await _response_asking(caller, await session.execution(run_id), request_input),
            body,
            request_input,
            options,
        )
    try:
        return await _run(caller, session, request_input, options, choice)
    except SessionBusyError as error:
        raise await busy(caller, session, error.run_id) from None


async def newest(caller: Caller, execution: AsyncExecutionHandle) -> RunResponse:
    """Return the last response of a run."""
    response, state = await _projected(caller, execution)
    return replace(response, part=state.newest)


async def _response_asking(
    caller: Caller, execution: AsyncExecutionHandle, request_input: ResponseInput
) -> RunResponse:
    """Return the response of a run that ended with the calls of these outputs, also if they were provided before."""
    response, state = await _projected(caller, execution)
    names = [*request_input.outputs, *(approval.request_id for approval in request_input.approvals)]
    return replace(response, part=state.part_of.get(names[0], state.newest))


async def _projected(caller: Caller, execution: AsyncExecutionHandle) -> tuple[RunResponse, Projection]:
    """Return a response of the run that never begins, and the projection of all of the run's events."""
    run = await execution.info()
    response = RunResponse(execution, run, _NO_PART, model_of(caller, run))
    return response, (await load(response)).state


_NO_PART = 1 << 20
"""The number of a part that no run has."""


async def busy(caller: Caller, session: AsyncSession, run_id: str) -> OpenAIError:
    """Return the refusal of a response in a conversation with a run that has not ended."""
    response = await newest(caller, await session.execution(run_id))
    if response.run.state == "awaiting_approval":
        return _no_output(await response.execution.pending(), response.id)
    message = "Another process is currently operating on this conversation. Please retry in a few seconds."
    return invalid("conversation", message, "conversation_locked", response_id=response.id)


async def _after_previous(
    caller: Caller, body: CreateResponse, request_input: ResponseInput, options: RunOptions, choice: Chosen | None
) -> RunResponse:
    previous = body.previous_response_id or ""
    response = await find(caller, previous)
    if response is None:
        raise _no_previous(previous)
    if request_input.is_answer:
        return await _continue(caller, response, body, request_input, options)
    if any(state.get("wants") in ("result", "approval") for state in response.run.calls.values()):
        state = (await load(response)).state
        if state.status is None:
            raise _no_previous(previous)
        if state.waiting or state.requests:
            raise _no_output_of(state, previous)
    elif response.part:
        raise _no_previous(previous)
    if response.run.is_open:
        reason = f"Previous response with id '{previous}' has not ended: wait for it, or cancel it."
        raise invalid("previous_response_id", reason, "previous_response_not_completed", response_id=previous)
    session = await caller.manager.get(response.execution.session_id, **caller.whose)
    if body.store is False:
        turn = await session.turn(response.execution.turn_index)
        return await _run_once(
            caller, [*turn.blocks, *request_input.blocks], options, choice.engine if choice else None
        )
    if is_hidden(session.session_id) and "openai.conversation" not in response.run.labels:
        # The first request continues the session, which takes each turn id once. Later ones fork it.
        try:
            return await _run(caller, session, request_input, {**options, "turn_id": f"after {previous}"}, choice)
        except (SessionBusyError, TurnIdTakenError):
            pass
    fork = await _fork(caller, session, response, options)
    return await _first_run(caller, fork, request_input, options, choice)


async def _fork(caller: Caller, session: AsyncSession, response: RunResponse, options: RunOptions) -> AsyncSession:
    """Return a new session that continues after a response."""
    key = options.get("idempotency_key")
    session_id = hidden_session(key and f"{response.id}\n{key}")
    try:
        return await session.fork(response.execution.turn_index, session_id)
    except SessionExistsError:  # the request was repeated
        return await caller.manager.get(session_id, **caller.whose)
    except TurnNotFoundError:  # its turn was discarded
        raise _no_previous(response.id) from None


async def _continue(
    caller: Caller, response: RunResponse, body: CreateResponse, request_input: ResponseInput, options: RunOptions
) -> RunResponse:
    """Give a run the results and decisions that it waits for. May be repeated: a second time changes nothing."""
    state = (await load(response)).state
    if state.status is None:
        raise _no_previous(response.id)
    if not (state.waiting or state.requests):
        raise _unknown_output(request_input)
    if request_input.blocks:
        reason = "outputs continue the response that called the functions: send messages after it"
        raise invalid("input", reason, "unsupported_input")
    decided = {state.requests.get(approval.request_id): approval for approval in request_input.approvals}
    if unknown := next((call_id for call_id in request_input.outputs if call_id not in state.waiting), None):
        raise _unknown_call(unknown)
    if None in decided:
        raise not_found("Approval request", decided[None].request_id)
    expected = {*state.waiting, *state.requests.values()}
    if expected - {*request_input.outputs, *decided}:
        raise _no_output_of(state, response.id, {*request_input.outputs, *decided})
    check_same(body, response.run, response.model, record_of_tools(options.get("tools") or []))
    execution = response.execution
    is_new = any(not response.run.calls.get(call_id, {}).get("verdict") for call_id in expected)
    if (body.metadata or body.background) and is_new:
        change = {"metadata": body.metadata or {}, "background": bool(body.background)}
        await execution.add_event(CONTINUES, change)
    try:
        for call_id, result in request_input.outputs.items():
            await execution.provide(call_id, result if result.blocks else result.text)
        for request, approval in decided.items():
            if approval.approve:
                await execution.approve(request or "")
            else:
                await execution.reject(request or "", approval.reason)
    except CallDecidedError as error:
        raise invalid("input", str(error), "call_decided") from None
    return RunResponse(execution, await execution.info(), response.part + 1, response.model)


def _no_previous(id: str) -> OpenAIError:
    reason = f"Previous response with id '{id}' not found."
    return invalid("previous_response_id", reason, "previous_response_not_found")


def _unknown_output(request_input: ResponseInput) -> OpenAIError:
    if request_input.outputs:
        return _unknown_call(next(iter(request_input.outputs)))
    return not_found("Approval request", request_input.approvals[0].request_id)


def _unknown_call(call_id: str) -> OpenAIError:
    return invalid("input", f"No tool call found for function call output with call_id {call_id}.")


def _no_output(pending: Any, id: str) -> OpenAIError:
    call = next(iter(pending), None)
    return _missing(call.call_id if call else "", id)


def _no_output_of(state: Projection, id: str, request_input: Any = ()) -> OpenAIError:
    expected = [*state.waiting, *state.requests.values()]
    return _missing(next(call_id for call_id in expected if call_id not in request_input), id)


def _missing(call_id: str, id: str) -> OpenAIError:
    return invalid("input", f"No tool output found for function call {call_id}.", response_id=id)
