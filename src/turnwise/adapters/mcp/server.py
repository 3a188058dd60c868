"""`mcp_server`: the sessions and memories of one user as an MCP server."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

from pydantic import BaseModel, Field

from turnwise.actors.client.agent_tree import agents_of
from turnwise.actors.client.services.open_for_run import open_for_run
from turnwise.actors.client.services.schedule_room import check_room
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import RunEndedError, SessionNotFoundError, TurnwiseError, WaitTimeoutError
from turnwise.memory.deliveries.texts import prompt_text_of, recurrence_of, time_of
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.values.ids import check_id, new_id

with framework("mcp", extra="mcp", tested="2.3"):
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    expect(MCPServer, "instructions", "log_level")
    expect(MCPServer.add_tool, "annotations")

if TYPE_CHECKING:
    from turnwise.actors.client.execution import AsyncExecutionHandle
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.memory.deliveries.records import Delivery
    from turnwise.memory.longterm.base import LongTermMemory

WAIT_S = 50.0
"""How long `send` waits for an answer by default, in seconds: many clients give up after a minute."""

MAX_SCHEDULES = 100
"""How many schedules a user may have by default."""

_SHOWN_CHARS = 500
"""How many characters of a schedule's prompt are shown."""

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_REMOVES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)

Id = Annotated[str, Field(description="The id of a session, as list_sessions says.")]
Owner = Annotated[
    str | None, Field(description="Whose session it is, if another user shares it, as list_sessions says.")
]
Count = Annotated[int, Field(ge=1, le=200)]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SessionLine(BaseModel):
    """A session as `list_sessions` shows it."""

    session_id: str
    owner: str
    title: str
    agent: str
    status: str
    turns: int
    changed: str


class Sessions(BaseModel):
    """A page of sessions."""

    sessions: list[SessionLine]
    cursor: str | None


class MessageLine(BaseModel):
    """A message as `show_session` shows it."""

    turn: int
    role: str
    author: str | None
    text: str
    at: str
    status: str


class Conversation(BaseModel):
    """A page of a session's messages."""

    session_id: str
    title: str
    messages: list[MessageLine]
    cursor: str | None


class Answer(BaseModel):
    """What became of a run so far."""

    session_id: str
    run_id: str
    state: str
    text: str


class AgentLine(BaseModel):
    """The run of an agent as `show_agents` shows it."""

    run_id: str
    session_id: str
    agent: str
    depth: int
    state: str
    why: str


class Agents(BaseModel):
    """The agents below a run."""

    run_id: str
    state: str
    agents: list[AgentLine]
    is_cut: bool


class Memory(BaseModel):
    """An item of the user's memory."""

    id: str
    text: str
    type: str
    score: float | None


class ScheduleLine(BaseModel):
    """A schedule as `list_schedules` shows it."""

    session_id: str
    key: str
    next: str | None
    recurs: str
    prompt: str
    attempts: int
    why: str


class Schedules(BaseModel):
    """A page of schedules."""

    now: str
    schedules: list[ScheduleLine]
    cursor: str | None


def mcp_server(
    manager: AsyncSessionManager,
    *,
    user_id: str,
    memory: LongTermMemory | None = None,
    max_schedules: int = MAX_SCHEDULES,
) -> MCPServer[Any]:
    """Return an MCP server with one user's sessions and, if `memory` is given, that user's memories.

    Its tools are `list_sessions`, `show_session`, `show_agents`, `send`, `list_schedules`, `set_schedule`,
    `cancel_schedule`, `recall` and `save`; those that change something are left out if the manager is read-only. The
    user is this function's argument and no tool's. Tools that take a session also take its `owner`, for those that
    others share with the user, who may do there what the role allows; nobody reaches other sessions. Serve it with
    `run_stdio_async`, or mount `streamable_http_app`. A client of the server acts as the user, so make it reachable for
    that user only.

    Args:
        manager: enter it before the server runs, or let the first call connect it.
        user_id: the user whose sessions and memories they are.
        memory: where `recall` and `save` look and keep; give the manager the same, so that answers use it.
        max_schedules: how many schedules all sessions of the user may have together; `set_schedule` adds no further
            one.

    Raises:
        InvalidIdError: the user id is not a valid id.
    """
    check_id("user id", user_id)
    may_write = not manager.is_read_only
    instructions = "Conversations with a language model, kept by turnwise" + (
        ", and what is remembered." if memory else "."
    )
    server: MCPServer[Any] = MCPServer("turnwise", instructions=instructions, log_level="WARNING")
    for reader in (_list_sessions, _show_session, _show_agents, _list_schedules):
        server.add_tool(_with_tool_errors(reader(manager, user_id)), annotations=_READS)
    if may_write:
        server.add_tool(_with_tool_errors(_send(manager, user_id)), annotations=_ADDS)
        server.add_tool(_with_tool_errors(_set_schedule(manager, user_id, max_schedules)), annotations=_ADDS)
        server.add_tool(_with_tool_errors(_cancel_schedule(manager, user_id)), annotations=_REMOVES)
    if memory:
        server.add_tool(_with_tool_errors(_recall(memory, user_id)), annotations=_READS)
    if memory and may_write:
        server.add_tool(_with_tool_errors(_save(memory, user_id)), annotations=_ADDS)
    return server


def _with_tool_errors(tool: Callable[Arguments, Awaitable[Result]]) -> Callable[Arguments, Awaitable[Result]]:
    """Return the tool; errors of turnwise become errors that its client reads."""

    @wraps(tool)
    async def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return await tool(*args, **kwargs)
        except SessionNotFoundError as error:
            raise ToolError(f"there is no session {error.session_id!r}: list_sessions says which there are") from error
        except TurnwiseError as error:
            raise ToolError(str(error)) from error

    return called


def _list_sessions(manager: AsyncSessionManager, user_id: str) -> Callable[..., Awaitable[Sessions]]:
    async def list_sessions(
        limit: Count = 20,
        cursor: str | None = None,
        shared: Annotated[bool, Field(description="Those that others share with the user, instead.")] = False,
    ) -> Sessions:
        """List the user's sessions, the ones used last first. A cursor of one page gets the next."""
        page = await manager.list(user_id=user_id, order_by="updated_at", limit=limit, cursor=cursor, shared=shared)
        lines = [
            SessionLine(
                session_id=session.session_id,
                owner=session.user_id,
                title=session.title or "",
                agent=session.agent or "",
                status=session.status,
                turns=session.next_index,
                changed=_time(session.updated_at),
            )
            for session in page
        ]
        return Sessions(sessions=lines, cursor=page.cursor)

    return list_sessions


def _show_session(manager: AsyncSessionManager, user_id: str) -> Callable[..., Awaitable[Conversation]]:
    async def show_session(
        session_id: Id, limit: Count = 50, cursor: str | None = None, owner: Owner = None
    ) -> Conversation:
        """Show the newest messages of a session, the oldest of them first. A cursor gets those before."""
        session = await manager.get(session_id, **_whose(user_id, owner))
        page = await session.messages(limit, before=cursor)
        messages = [
            MessageLine(
                turn=message.turn_index,
                role=message.role,
                author=message.author,
                text=message.text,
                at=_time(message.at),
                status=message.turn_status,
            )
            for message in page
        ]
        title = (await session.info()).session.title or ""
        return Conversation(session_id=session_id, title=title, messages=messages, cursor=page.cursor)

    return show_session


def _show_agents(manager: AsyncSessionManager, user_id: str) -> Callable[..., Awaitable[Agents]]:
    async def show_agents(
        run_id: Annotated[str, Field(description="The run, as send returns it.")], owner: Owner = None
    ) -> Agents:
        """Show the state of a run and of the agents that it has called, each followed by those that it has called."""
        execution = await manager.execution(run_id, **_whose(user_id, owner))
        tree = await agents_of(execution)
        lines = [
            AgentLine(
                run_id=agent.execution.run_id,
                session_id=agent.execution.session_id,
                agent=agent.name,
                depth=agent.depth,
                state=agent.record.state if agent.record else "not begun, or deleted",
                why=(agent.record and agent.record.why) or "",
            )
            for agent in tree.agents
        ]
        return Agents(run_id=run_id, state=await execution.status(), agents=lines, is_cut=tree.is_cut)

    return show_agents


def _send(manager: AsyncSessionManager, user_id: str) -> Callable[..., Awaitable[Answer]]:
    async def send(
        prompt: str,
        session_id: Annotated[str | None, Field(description="A session to go on with; a new one if omitted.")] = None,
        wait_s: Annotated[float, Field(ge=0, le=3600, description="How long to wait for the answer.")] = WAIT_S,
        owner: Owner = None,
    ) -> Answer:
        """Send a prompt to a session and return the model's answer.

        If the state is not "completed", the answer is still being made, or waits for a person's approval: show_session
        has it later.
        """
        if session_id is None:  # a run that would be refused leaves no empty session behind
            if owner not in (None, user_id):
                raise ToolError("a new session is the user's own: name a session of the owner, or no owner")
            session = await open_for_run(manager, None, [prompt], user_id=user_id)
        else:
            session = await manager.get(session_id, **_whose(user_id, owner))
        run = await session.run(prompt)
        state, text = await _waited(run, wait_s)
        return Answer(session_id=session.session_id, run_id=run.run_id, state=state, text=text)

    return send


async def _waited(run: AsyncExecutionHandle, wait_s: float) -> tuple[str, str]:
    """Return the state of a run and its text, once it has ended or is suspended, or the time is over."""
    try:
        turn = await run.wait(wait_s, until="settled")
    except WaitTimeoutError as error:
        if error.state == "unknown":  # the session did not answer, so there is nothing to say of its run
            raise
        return error.state, ""
    except RunEndedError as error:
        raise ToolError(f"{error}; what was kept: {error.turn.text!r}" if error.turn else str(error)) from error
    # A settled run that has not ended waits for decisions.
    return ("completed", turn.text) if turn.status == "completed" else ("awaiting_approval", "")


def _list_schedules(manager: AsyncSessionManager, user_id: str) -> Callable[..., Awaitable[Schedules]]:
    async def list_schedules(
        session_id: Annotated[str | None, Field(description="Only of this session.")] = None,
        limit: Count = 50,
        cursor: str | None = None,
        owner: Owner = None,
    ) -> Schedules:
        """List what sessions are to do later, and tell the time that it is now.

        "next" is null where it was given up; "why" says why. A cursor of one page gets the next.
        """
        if session_id is None:
            page = await manager.schedules(user_id=user_id, limit=limit, cursor=cursor)
        else:
            session = await manager.get(session_id, **_whose(user_id, owner))
            page = await session.schedules(limit=limit, cursor=cursor)
        return Schedules(now=_time(time.time()), schedules=list(map(_schedule_line, page)), cursor=page.cursor)

    return list_schedules


def _schedule_line(schedule: Delivery) -> ScheduleLine:
    return ScheduleLine(
        session_id=schedule.session_id,
        key=schedule.key,
        next=None if schedule.due_at is None else _time(schedule.occurs_at),
        recurs=recurrence_of(schedule),
        prompt=prompt_text_of(schedule, _SHOWN_CHARS),
        attempts=schedule.attempts,
        why=schedule.why or "",
    )


def _set_schedule(
    manager: AsyncSessionManager, user_id: str, max_schedules: int
) -> Callable[..., Awaitable[ScheduleLine]]:
    async def set_schedule(
        session_id: Id,
        prompt: Annotated[str, Field(min_length=1, description="What the session's model is sent each time.")],
        *,
        at: Annotated[str | None, Field(description="Once, or first, at this time: 2030-05-01T09:00:00+02:00.")] = None,
        after_s: Annotated[float | None, Field(ge=0, description="Or in so many seconds.")] = None,
        every_s: Annotated[float | None, Field(ge=1, description="Again after each so many seconds.")] = None,
        cron: Annotated[
            str | None, Field(max_length=256, description="Or at the times of a line of cron: 0 9 * * MON-FRI.")
        ] = None,
        timezone: Annotated[
            str | None, Field(max_length=256, description="The IANA name of cron's time zone; UTC if omitted.")
        ] = None,
        until: Annotated[str | None, Field(description="The last time at which it recurs.")] = None,
        key: Annotated[
            str | None, Field(description="Its name in the session: one of this name stays as it is.")
        ] = None,
        owner: Owner = None,
    ) -> ScheduleLine:
        """Have a session answer a prompt later, by itself: once, or again and again. list_schedules tells the time."""
        session = await manager.get(session_id, **_whose(user_id, owner))
        await check_room(manager, session, key, ("max_schedules", max_schedules))
        added = await session.schedule(
            prompt,
            at=None if at is None else time_of("at", at),
            after_s=after_s,
            every_s=every_s,
            cron=cron,
            timezone=timezone,
            until=None if until is None else time_of("until", until),
            key=key,
        )
        return _schedule_line(added)

    return set_schedule


def _cancel_schedule(manager: AsyncSessionManager, user_id: str) -> Callable[..., Awaitable[bool]]:
    async def cancel_schedule(
        session_id: Id,
        key: Annotated[str, Field(description="The schedule's key, as list_schedules says.")],
        owner: Owner = None,
    ) -> bool:
        """Cancel a schedule for all times; return whether there was one."""
        session = await manager.get(session_id, **_whose(user_id, owner))
        return await session.cancel_schedule(key)

    return cancel_schedule


def _recall(memory: LongTermMemory, user_id: str) -> Callable[..., Awaitable[list[Memory]]]:
    async def recall(
        query: Annotated[str, Field(description="Words of what is looked for.")], limit: Count = 10
    ) -> list[Memory]:
        """Find what is remembered of the user, the most relevant first."""
        items = await memory.recall(Scope(user_id=user_id), query, limit=limit)
        return [Memory(id=item.id, text=item.text, type=str(item.type), score=item.score) for item in items]

    return recall


def _save(memory: LongTermMemory, user_id: str) -> Callable[..., Awaitable[str]]:
    async def save(text: Annotated[str, Field(min_length=1, max_length=10_000)]) -> str:
        """Remember a text about the user for all later sessions, and return the item's id."""
        (saved,) = await memory.remember(Scope(user_id=user_id), [MemoryItem(id=new_id(), text=text)])
        return saved

    return save


def _whose(user_id: str, owner: str | None) -> dict[str, str]:
    """Return the arguments by which a manager finds what is the user's own, or what its owner shares with the user."""
    return {"user_id": user_id} if owner in (None, user_id) else {"user_id": str(owner), "as_user": user_id}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
