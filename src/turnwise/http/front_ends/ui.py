"""`/v1/ui/chat`: what `useChat` of the Vercel AI SDK asks by its `DefaultChatTransport`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast, get_args
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.services.open_for_run import open_for_run
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.run_options import RunOptions
from turnwise.adapters.front_ends.vercel import FileUrl, VercelEncoder, file_part, output_of
from turnwise.errors import InvalidInputError, QueueFullError, SessionBusyError, shown
from turnwise.http.bounded import Bounds
from turnwise.http.front_ends.answering import (
    Decision,
    active,
    ask,
    behind,
    check_decisions,
    decide,
    fitting,
    message_id_of,
    streamed,
)
from turnwise.http.front_ends.reading import (
    PROVIDER,
    file_named_in,
    file_of,
    in_order,
    message_id,
    named_file,
    object_of,
    text_of,
)
from turnwise.http.middleware.paths import InPath, path_of
from turnwise.http.native.models import Body, Cancel, Cancelled, JsonObject, Shown, example
from turnwise.http.native.runs import POLICIES, Key
from turnwise.http.native.sessions import NOT_FOUND
from turnwise.http.problems import BUSY, answer, documented, problem_of
from turnwise.http.service import Caller, MemberCaller
from turnwise.http.sse import MEDIA_TYPE
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Document,
    Image,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.output_type import ANSWER_TOOL
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.notebook_display import ListPage
from turnwise.memory.values.limits import MAX_BLOCKS, MAX_MESSAGES, MAX_NAMES, check_count

router = APIRouter(
    prefix="/v1/ui/chat",
    tags=["front ends"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 422, 429, 503),
)

STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A UI message stream, version 1: server-sent events.",
        "content": {MEDIA_TYPE: {"example": 'data: {"type":"text-delta","id":"t1","delta":"Hi"}\n\n'}},
    }
}

_TURNS = 1000

_SAYS = ("approval-responded", "output-available", "output-error")
"""The states of calls in which a client may have decided about them."""


class Chat(Body):
    """What `DefaultChatTransport` sends; further fields by its `body`, or by that of `sendMessage`."""

    model_config = example(
        id="chat-1",
        messages=[{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Is it open today?"}]}],
        trigger="submit-message",
    )

    bounds: ClassVar[Bounds] = {"messages": ("MAX_MESSAGES", MAX_MESSAGES), "labels": ("MAX_NAMES", MAX_NAMES)}

    id: Annotated[str, Field(min_length=1, max_length=256)]
    """The chat's, which is the session's. A new session is made for a new one."""
    messages: list[JsonObject] = Field(default_factory=list)
    """Of these only the last one is used: the session has the others."""
    message: JsonObject | None = None
    """The last message alone, instead of `messages`."""
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: str | None = None  # noqa: N815 - the client's name
    """Of the message that is sent again, or answered again: a new version replaces it and what came after it."""
    engine: str | None = None
    """The name of the engine of a new session."""
    agent: str | None = None
    """The agent to which a new session belongs."""
    model: str | None = None
    """The model that answers."""
    params: JsonObject | None = None
    """Model parameters, such as `temperature`."""
    labels: dict[str, str] | None = None
    """Kept with the run."""
    timeout_s: float | None = None
    """The run fails after so many seconds."""
    if_busy: Literal["reject", "enqueue", "interrupt", "rollback", "latest", "drop"] = "reject"
    """While another run is active; see `Session.run`. A message has a turn of its own, so it joins no other run."""

    def last(self) -> tuple[Mapping[str, Any], str]:
        """Return the last message, and where it is.

        Raises:
            InvalidInputError: there is none.
        """
        if self.message is not None:
            return self.message, "message"
        if not self.messages:
            raise InvalidInputError("messages", "[]", "send the user's message")
        return self.messages[-1], f"messages[{len(self.messages) - 1}]"

    def earlier(self) -> tuple[Mapping[str, Any] | None, str]:
        """Return the assistant's message before the last one, if that is sent too, and where it is."""
        number = len(self.messages) - (2 if self.message is None else 1)
        before = self.messages[number] if number >= 0 else {}
        parts = before.get("parts") if before.get("role") == "assistant" else None
        says = any(isinstance(part, Mapping) and part.get("state") in _SAYS for part in parts or ())
        return before if says else None, f"messages[{number}]"

    def options(self) -> RunOptions:
        """Return the options of the run."""
        names = ("model", "params", "labels", "timeout_s", "if_busy")
        return cast(RunOptions, {name: getattr(self, name) for name in names})


_POLICIES = [policy for policy in POLICIES if policy in get_args(Chat.model_fields["if_busy"].annotation)]


class UiMessages(Shown):
    """Messages for `useChat({messages})`, oldest first."""

    messages: list[JsonObject]
    next: int | None
    """Pass it as `after` to get the next page; null if there is none."""


@router.post("", summary="Answer a message of useChat, as a UI message stream", responses=NOT_FOUND | BUSY | STREAM)
async def answer_chat(body: Chat, caller: MemberCaller, request: Request, idempotency_key: Key = None) -> Response:
    """Takes the newest message of the user, results of calls that the client makes, and answers to approvals.

    The run is stored before the stream begins, and goes on if the client leaves, unless `X-On-Disconnect` is `cancel`.
    A repeated request gets the answer of the first one; with `Last-Event-ID`, what is behind that. A message that is to
    be answered again is so at each request without that header or the same `Idempotency-Key`.
    """
    last, message_place = body.last()
    role = last.get("role")
    if role == "user":
        prompts = _prompts(last, message_place)
    elif role == "assistant" and body.trigger == "submit-message":
        prompts = []
    else:
        reason = "the last message must be the user's, or the assistant's with results of calls or answers to approvals"
        raise InvalidInputError(f"{message_place}.role", shown(role), reason)
    its_id = message_id(last.get("id"), f"{message_place}.id")
    resumed = request.headers.get("last-event-id")
    file_url = _file_url(request, caller, body.id)
    VercelEncoder(resumed)  # which checks it
    with caller.reserve_stream() as reserved:
        if role == "assistant":
            execution, waited = await _continue(caller, body.id, last, message_place)
            encoder = VercelEncoder(resumed, behind=waited, file_url=file_url)
            return streamed(caller, execution, encoder, reserved)
        options = body.options() | RunOptions(idempotency_key=idempotency_key)
        new: dict[str, Any] = {"engine": body.engine, "agent": body.agent}
        session = await open_for_run(caller.manager, body.id, prompts, options, **caller.whose, **new)
        caller.service.handles.cache_session(caller.user_id, session, owner=caller.owner)
        is_again = body.trigger == "regenerate-message" or body.messageId == its_id
        edits = body.trigger == "submit-message"
        options = body.options() | RunOptions(idempotency_key=idempotency_key)
        waiting = None
        if not is_again and body.if_busy in _BESIDE and (waiting := await _beside(session, *body.earlier())):
            options["if_busy"] = "enqueue" if waiting.is_whole and body.if_busy == "reject" else body.if_busy
        try:
            how = {"again": is_again, "edits": edits, "resumed": resumed is not None}
            execution = await ask(session, its_id, prompts, options, **how)
            if waiting:
                check_decisions(caller, waiting.decisions)
                await decide(waiting.execution, waiting.decisions)
        except SessionBusyError as error:
            return answer(problem_of(error) | {"if_busy": helpful(error, is_again=is_again)})
        return streamed(caller, execution, VercelEncoder(resumed, file_url=file_url), reserved)


def _file_url(request: Request, caller: Caller, chat_id: str) -> FileUrl:
    """Return what makes the addresses of a chat's files, which `useChat` may send back as those of its parts."""
    root, url = request.scope.get("root_path", ""), request.url
    owner = "" if caller.owner is None else f"?owner={quote(caller.owner, safe='')}"

    def address(file_id: str) -> str:
        path = path_of(root, "v1", "sessions", chat_id, "files", file_id, "content")
        return f"{url.scheme}://{url.netloc}{path}{owner}"

    return address


@dataclass(frozen=True)
class _Waiting:
    """A run that waits, and what a request says about its calls beside a message of the user."""

    execution: AsyncExecutionHandle
    decisions: Sequence[Decision]
    is_whole: bool
    """Whether it goes on with these decisions."""


_BESIDE = ("reject", "enqueue", "drop")
"""The policies that leave the run which waits as it is: the others end it, so that its calls need no decisions."""


async def _beside(session: AsyncSession, message: Mapping[str, Any] | None, place: str) -> _Waiting | None:
    """Return the run that the assistant's message before the user's has decisions for; None if none waits for them."""
    if message is None or not (execution := await active(session)) or execution.run_id != message.get("id"):
        return None
    pending = {call.call_id for call in await execution.pending()}
    decisions = _decisions(message, place) if pending else []
    if not any(decision.call_id in pending for decision in decisions):
        return None
    chosen = await fitting(execution, decisions)
    return _Waiting(execution, chosen, is_whole=pending <= {decision.call_id for decision in chosen})


def helpful(error: SessionBusyError, *, is_again: bool) -> list[str]:
    """Return the policies with which a message is taken that was refused."""
    if is_again:
        return []  # what would be replaced is not of the active run, or runs wait
    return [policy for policy in _POLICIES if not (policy == "enqueue" and isinstance(error, QueueFullError))]


def _prompts(message: Mapping[str, Any], place: str) -> list[Block]:
    if isinstance(parts := message.get("parts"), list):
        check_count(f"{place}.parts", len(parts), "MAX_BLOCKS", MAX_BLOCKS)
    blocks: list[Block] = []
    for part_place, part in _parts(message, place):
        match part.get("type"):
            case "text":
                blocks.append(User(text=text_of(part, "text", part_place)))
            case "file":
                media_type, name = part.get("mediaType"), part.get("filename")
                if media_type is not None or name is not None:
                    media_type, name = (
                        text_of(part, "mediaType", part_place),
                        name and text_of(part, "filename", part_place),
                    )
                blocks.append(_file(part, media_type, name, part_place))
            case kind:
                reason = "a message of the user has parts of type text and file"
                raise InvalidInputError(f"{part_place}.type", shown(kind), reason)
    return in_order(blocks, f"{place}.parts")


def _file(part: Mapping[str, Any], media_type: str | None, name: str | None, place: str) -> Image | Document:
    """Return a file: one of the session's or the user's, by its id or its address in the native API, or another."""
    reference_place = f"{place}.providerReference"
    if (reference := part.get("providerReference")) is not None and PROVIDER in object_of(reference, reference_place):
        return named_file(text_of(reference, PROVIDER, reference_place), media_type, name, reference_place)
    url = text_of(part, "url", place)
    if (file_id := file_named_in(url)) is not None:
        return named_file(file_id, media_type, name, f"{place}.url")
    return file_of(url, media_type, name, f"{place}.url")


def _parts(message: Mapping[str, Any], place: str) -> list[tuple[str, Mapping[str, Any]]]:
    parts = message.get("parts")
    if not isinstance(parts, list):
        raise InvalidInputError(f"{place}.parts", shown(parts), "it must be a list")
    return [(f"{place}.parts[{n}]", object_of(part, f"{place}.parts[{n}]")) for n, part in enumerate(parts)]


async def _continue(
    caller: Caller, chat_id: str, message: Mapping[str, Any], place: str
) -> tuple[AsyncExecutionHandle, frozenset[str]]:
    """Give a run what the assistant's message has for its calls; return it, and those of the calls that waited."""
    if not (decisions := _decisions(message, place)):
        reason = "nothing is new: it has neither results of calls nor answers to approvals"
        raise InvalidInputError(f"{place}.parts", shown(message.get("parts")), reason)
    check_decisions(caller, decisions)

    async def decided(session: AsyncSession) -> AsyncExecutionHandle:
        execution = await session.execution(str(message["id"]))
        chosen = await fitting(execution, decisions)
        if undecided := [
            decision for decision in decisions if decision.call_id not in {decision.call_id for decision in chosen}
        ]:
            turn = await session.turn(execution.turn_index)
            calls = {block.call_id for block in turn.output if isinstance(block, ToolUse)}
            if unknown := next((unmatched for unmatched in undecided if unmatched.call_id not in calls), None):
                raise InvalidInputError(unknown.at, shown(unknown.call_id), "the answer has no call of this id")
        await decide(execution, chosen)
        return execution

    execution = await caller.on_session(chat_id, decided)
    return execution, await behind(execution, [decision.call_id for decision in decisions])


def _decisions(message: Mapping[str, Any], place: str) -> list[Decision]:
    """Return what the last step of the assistant's message says about its calls."""
    calls = [
        (part_place, part)
        for part_place, part in _parts(message, place)
        if str(part.get("type")).startswith("tool-") or part.get("type") in ("dynamic-tool", "step-start")
    ]
    steps = [number for number, (_, part) in enumerate(calls) if part["type"] == "step-start"]
    calls = calls[steps[-1] + 1 :] if steps else calls
    decisions = [decision for part_place, part in calls if (decision := _decision(part, part_place))]
    check_count("answers to calls", len(decisions), "MAX_NAMES", MAX_NAMES)
    return decisions


def _decision(part: Mapping[str, Any], place: str) -> Decision | None:
    """Return what a call of the assistant's message says; None if it says nothing new."""
    state = part.get("state")
    if state not in _SAYS:
        return None
    call_id = text_of(part, "toolCallId", place)
    if state == "output-error":
        return Decision(call_id, f"{place}.errorText", value=text_of(part, "errorText", place), is_error=True)
    if state == "output-available":
        return Decision(call_id, f"{place}.output", value=part.get("output"))
    approval = object_of(part.get("approval"), f"{place}.approval")
    approved = approval.get("approved")
    if not isinstance(approved, bool):
        raise InvalidInputError(f"{place}.approval.approved", shown(approved), "it must be true or false")
    reason = approval.get("reason")
    return Decision(call_id, f"{place}.approval", approved=approved, reason=reason if isinstance(reason, str) else "")


@router.get(
    "/{chat_id}/stream",
    summary="Read the answer that is being made, from its beginning",
    responses=NOT_FOUND | STREAM | {204: {"description": "No run is active."}},
)
async def resume_chat(
    chat_id: InPath,
    caller: MemberCaller,
    request: Request,
    answer_id: Annotated[
        str | None, Query(alias="message_id", description="The answer with this id, also if it is whole.")
    ] = None,
) -> Response:
    """What `resume: true` and `resumeStream()` ask. With `Last-Event-ID`, only what is behind that event."""
    encoder = VercelEncoder(request.headers.get("last-event-id"), file_url=_file_url(request, caller, chat_id))
    if answer_id is not None:
        execution = await caller.on_session(chat_id, lambda session: session.execution(answer_id))
        return streamed(caller, execution, encoder)
    running = await caller.on_session(chat_id, active)
    return Response(status_code=204) if running is None else streamed(caller, running, encoder)


@router.post("/{chat_id}/stop", summary="Cancel the active run", responses=documented(404, 409))
async def stop_chat(chat_id: InPath, body: Cancel, caller: MemberCaller) -> Cancelled:
    """What a stop button asks: `stop()` of `useChat` alone only closes its connection."""
    return Cancelled(cancelled=await caller.on_session(chat_id, lambda session: session.cancel(body.reason)))


@router.get("/{chat_id}/messages", summary="The messages of a chat, for useChat", responses=NOT_FOUND)
async def list_chat_messages(
    chat_id: InPath,
    caller: MemberCaller,
    request: Request,
    after: Annotated[int, Query(description="Only of later turns than this one.")] = -1,
) -> UiMessages:
    """The first turns behind `after`, a thousand or a megabyte, without those that were replaced."""
    turns, runs = await caller.on_session(chat_id, lambda session: _history(session, after))
    shown_messages = ui_messages(turns, runs, _file_url(request, caller, chat_id))
    return UiMessages(messages=shown_messages, next=turns.next)


async def _history(session: AsyncSession, after: int) -> tuple[ListPage[Turn], list[RunRecord]]:
    """Return the turns, and their runs with those that were merged into them."""
    turns = await session.turns(after, _TURNS)
    page = await session.runs(after, _TURNS)
    runs = list(page)
    while turns and page.next is not None and (page[-1].leads_to or page[-1].turn_index <= turns[-1].index):
        page = await session.runs(page.next, _TURNS)
        runs += page
    return turns, runs


def ui_messages(turns: Sequence[Turn], runs: Sequence[RunRecord], file_url: FileUrl | None = None) -> list[JsonObject]:
    """Return what turns added as messages, without what was removed. `metadata` has the author of another's prompt."""
    calls = {run.run_id: run.calls for run in runs}
    merged = {run.leads_to for run in runs if run.leads_to}
    return [
        message
        for turn in turns
        for message in _messages_of(turn, calls.get(turn.run_id or "", {}), file_url, is_merged=turn.run_id in merged)
    ]


def _messages_of(
    turn: Turn, calls: Mapping[str, Any], file_url: FileUrl | None, *, is_merged: bool
) -> list[JsonObject]:
    """Return a turn's messages. The last one of the assistant has the run's id, as its stream has.

    If the turn has versions, `metadata` has its number among them, and the indexes of their turns.

    Args:
        calls: the states of its run's calls.
        is_merged: whether it has prompts of several runs, which are a message each.
    """
    removed, call_parts, messages = set(turn.removed), dict[str, JsonObject](), list[JsonObject]()
    its_id, prompt_count = message_id_of(turn), len(turn.new_blocks) - len(turn.output)
    answer = turn.run_id or f"{its_id}-answer"
    for first, blocks in _grouped(turn.new_blocks, prompt_count, is_merged=is_merged):
        remaining = [block for number, block in enumerate(blocks, first) if number not in removed]
        number = f".{first}" if first else ""
        if first >= prompt_count and not isinstance(blocks[0], User):
            if parts := _answer_parts(remaining, calls, call_parts, file_url):
                messages.append({"id": f"{answer}{number}", "role": "assistant", "parts": parts})
        elif parts := [part for block in remaining if (part := _prompt_part(block, file_url))]:
            author = next((block.author for block in remaining if isinstance(block, User) and block.author), None)
            metadata = {} if author is None else {"metadata": {"author": author}}
            messages.append({"id": f"{its_id}{number}", "role": "user", "parts": parts, **metadata})
    if answers := [message for message in messages if message["role"] == "assistant"]:
        answers[-1]["id"] = answer
    if len(turn.versions) > 1:
        versions = {"version": turn.version, "versions": [version.turn_index for version in turn.versions]}
        messages = [{**message, "metadata": {**message.get("metadata", {}), **versions}} for message in messages]
    return messages


def _grouped(blocks: Sequence[AnyBlock], prompt_count: int, *, is_merged: bool) -> list[tuple[int, list[AnyBlock]]]:
    """Return the blocks of each message, with the number of its first one. The output has prompts that joined the run.

    Args:
        prompt_count: how many of the blocks the run was started with.
        is_merged: whether each text among these is a message.
    """
    groups: list[tuple[int, list[AnyBlock]]] = []
    for number, block in enumerate(blocks):
        is_prompt = isinstance(block, User) and (number >= prompt_count or is_merged)
        follows_prompt = number > prompt_count and isinstance(blocks[number - 1], User)
        if number in (0, prompt_count) or is_prompt or follows_prompt:
            groups.append((number, []))
        groups[-1][1].append(block)
    return groups


def _prompt_part(block: AnyBlock, file_url: FileUrl | None) -> JsonObject | None:
    if isinstance(block, User):
        return {"type": "text", "text": block.text}
    return file_part(block, file_url) if isinstance(block, Image | Document) else None


def _answer_parts(
    blocks: Sequence[AnyBlock],
    calls: Mapping[str, Any],
    call_parts: dict[str, JsonObject],
    file_url: FileUrl | None,
) -> list[JsonObject]:
    """Return blocks of an answer as parts; `call_parts` has the parts of the calls before."""
    parts: list[JsonObject] = [{"type": "step-start"}]
    for block in blocks:
        has_results = any("output" in part or "errorText" in part for part in parts[_step(parts) :])
        if has_results and not isinstance(block, ToolResult):
            parts.append({"type": "step-start"})
        match block:
            case Text(text=text) if text:
                parts.append({"type": "text", "text": text, "state": "done"})
            case Thinking(text=text) if text:
                parts.append({"type": "reasoning", "text": text, "state": "done"})
            case ToolUse(call_id=call_id, name=name) if name != ANSWER_TOOL:
                call_parts[call_id] = {"type": f"tool-{name}", "toolCallId": call_id, "input": block.input}
                call_parts[call_id] |= _state(call_id, calls.get(call_id, {}))
                parts.append(call_parts[call_id])
            case ToolResult(call_id=call_id) if call_id in call_parts:
                _add_result(call_parts[call_id], block)
            case Image() | Document() if part := file_part(block, file_url):
                parts.append(part)
            case _:
                pass
    return parts if len(parts) > 1 else []


def _step(parts: Sequence[JsonObject]) -> int:
    return max(number for number, part in enumerate(parts) if part["type"] == "step-start")


def _state(call_id: str, state: Mapping[str, Any]) -> JsonObject:
    if state.get("wants") not in ("approval", "budget"):
        return {"state": "input-available"}
    if verdict := state.get("verdict"):
        return {"state": "approval-responded", "approval": {"id": call_id, "approved": verdict == "approved"}}
    return {"state": "approval-requested", "approval": {"id": call_id}}


def _add_result(part: JsonObject, result: ToolResult) -> None:
    if part.get("approval", {}).get("approved") is False:
        part["state"] = "output-denied"
    elif result.is_error:
        part |= {"state": "output-error", "errorText": result.plain}
    else:
        part |= {"state": "output-available", "output": output_of(result)}
