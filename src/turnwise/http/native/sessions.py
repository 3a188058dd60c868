"""The native API: sessions, their turns, messages and events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import TypeAdapter
from pydantic_core import from_json

from turnwise.actors.client.session import AsyncSession
from turnwise.errors import InvalidInputError, shown
from turnwise.http.middleware.paths import InPath, path_of
from turnwise.http.native.long_answers import (
    blocks_answer,
    messages_answer,
    snapshot_answer,
    snapshot_of,
    snapshots_answer,
    turn_answer,
)
from turnwise.http.native.models import (
    AddEvent,
    Append,
    BlocksShown,
    Cancel,
    Cancelled,
    ChooseVersion,
    ClearOne,
    ClearSession,
    Compact,
    CompactionShown,
    EventAdded,
    EventsShown,
    Expand,
    ForgottenShown,
    ForkSession,
    ImportMessages,
    MakeWindow,
    MessagePage,
    MessageRemoved,
    MessagesShown,
    OpenSession,
    RunShown,
    RunsOfSession,
    SearchPage,
    SessionCount,
    SessionOpened,
    SessionPage,
    SessionShown,
    SessionState,
    Snapshot,
    SnapshotPage,
    TurnPage,
    TurnShown,
    UpdateSession,
    UseEngine,
    VersionChosen,
    prompts_of,
)
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import Caller, MemberCaller, RequestCaller, check_may_name
from turnwise.http.sse import (
    PAGE,
    SILENCE_S,
    STREAMS,
    EventStream,
    encode_events,
    last_event_id,
    wait_for,
    wants_stream,
)
from turnwise.memory.conversation.sessions import SessionStatus
from turnwise.memory.conversation.spans import Spans, join, places
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.chat_messages import parse_place
from turnwise.memory.stores.base import SessionOrder
from turnwise.memory.stores.search.finding import SearchOrder
from turnwise.memory.stores.search.query import MAX_QUERY_CHARS
from turnwise.memory.stores.search.records import SearchedRole
from turnwise.memory.values.limits import MAX_NAMES

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["sessions"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 422, 429, 503),
)

MAX_LIMIT = 1000

MAX_HITS = 100
"""The most hits of a page: each takes a read of its message."""

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many at most.")]
Agents = Annotated[bool, Query(description="Also the sessions of agents that runs have called.")]
OfTenant = Annotated[str | None, Query(description="Only of users who have this tenant; for operators.")]
OfAll = Annotated[
    bool,
    Query(description="Of all users, for operators and without authentication; others get their own."),
]
Shared = Annotated[bool, Query(description="Instead, the sessions of others that are shared with the user.")]
After = Annotated[int, Query(description="Only what has a higher number.")]
EventKinds = Annotated[
    list[str] | None, Query(max_length=MAX_NAMES, description="Only events of these kinds; may be repeated.")
]
Wait = Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds to wait for the first one.")]
Agent = Annotated[str | None, Query(description="Only of this agent.")]
Cursor = Annotated[str | None, Query(description="The cursor of the page before.")]
Exported = Annotated[
    Literal["openai_chat", "openai_responses", "anthropic"], Query(description="The format of the messages.")
]
Streams = Annotated[bool, Depends(wants_stream)]
Verified = Annotated[bool, Query(description="Whether memories are checked afterwards for remains.")]

NOT_FOUND = documented(404)
CONFLICT = documented(404, 409)


def held_spans(
    held: Annotated[
        str | None,
        Query(
            description="A JSON list of spans that the client holds, with that of the `source`: answers lack them.",
            examples=['[["0193f2a4", 0, 12], ["5d1c", 0, 1]]'],
        ),
    ] = None,
) -> Spans | None:
    """Return the spans that a client holds; None if it does not say."""
    try:
        return None if held is None else _SPANS.validate_json(held)
    except ValueError:
        raise InvalidInputError("held", shown(held), "must be a JSON list of spans: log, start, stop") from None


_SPANS: TypeAdapter[Spans] = TypeAdapter(Spans)

Held = Annotated[Any, Depends(held_spans)]


@router.post("/sessions", summary="Open a session, and create it if it does not exist", responses=documented(404))
async def open_session(body: OpenSession, caller: RequestCaller, request: Request, response: Response) -> SessionOpened:
    options = body.model_dump(exclude={"id"})
    session = await caller.manager.open(body.id, user_id=caller.user_id, **options)
    return _opened(caller, session, request, response)


def _opened(
    caller: Caller, session: AsyncSession, request: Request, response: Response, *, owner: str | None = None
) -> SessionOpened:
    caller.service.handles.cache_session(caller.user_id, session, owner=owner)
    response.headers["Location"] = path_of(request.scope.get("root_path", ""), "v1", "sessions", session.session_id)
    return SessionOpened.of(session)


@router.get("/sessions", summary="List sessions, newest first")
async def list_sessions(
    caller: RequestCaller,
    *,
    agent: Agent = None,
    status: SessionStatus | None = None,
    title: Annotated[str | None, Query(description="A part of the title.")] = None,
    metadata: Annotated[
        str | None,
        Query(description="A JSON object: names and values that the metadata has.", examples=['{"channel": "web"}']),
    ] = None,
    since: Annotated[float | None, Query(description="Only if the time is not before this one.")] = None,
    until: Annotated[float | None, Query(description="Only if the time is before this one.")] = None,
    order_by: Annotated[SessionOrder, Query(description="The time by which they are ordered.")] = "created_at",
    agents: Agents = False,
    shared: Shared = False,
    tenant: OfTenant = None,
    all: OfAll = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> SessionPage:
    check_may_name(caller, tenant)
    query: dict[str, Any] = {
        "agent": agent,
        "status": status,
        "title": title,
        "metadata": _json_object("metadata", metadata),
    }
    query |= {"agents": agents, "shared": shared, "tenant": tenant}
    query |= {"since": since, "until": until, "order_by": order_by, "cursor": cursor, "limit": limit}
    return SessionPage.of(await caller.manager.list(user_id=users_of(caller, all), **query))


def users_of(caller: Caller, all: bool) -> str | None:
    """Return the user of whom a list is: None, for all users, if the caller asks for all and may see all."""
    return None if all and caller.sees_all else caller.user_id


def _json_object(name: str, text: str | None) -> Any:
    try:
        return None if text is None else from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInputError(name, shown(text), f"must be a JSON object: {error}") from None


def labels_of(
    labels: Annotated[
        str | None,
        Query(description="A JSON object: only what has all of these labels.", examples=['{"source": "web"}']),
    ] = None,
) -> Any:
    """Return the labels that a query asks for; their names and values are not checked yet."""
    return _json_object("labels", labels)


OfLabels = Annotated[Any, Depends(labels_of)]


@router.get("/count", summary="Count sessions")
async def count_sessions(
    caller: RequestCaller,
    agent: Agent = None,
    status: SessionStatus | None = None,
    *,
    agents: Agents = False,
    shared: Shared = False,
    tenant: OfTenant = None,
    all: OfAll = False,
) -> SessionCount:
    check_may_name(caller, tenant)
    query: dict[str, Any] = {"agent": agent, "status": status, "agents": agents, "shared": shared, "tenant": tenant}
    count = await caller.manager.count(user_id=users_of(caller, all), **query)
    return SessionCount(sessions=count)


@router.get("/search", summary="Search what was said", responses=documented(409))
async def search_messages(
    caller: RequestCaller,
    *,
    text: Annotated[
        str, Query(min_length=1, max_length=MAX_QUERY_CHARS, description='Words, and "phrases in quotes".')
    ],
    order: Annotated[SearchOrder, Query(description="The newest first, or the best match first.")] = "newest",
    session_id: Annotated[str | None, Query(description="Only in this session.")] = None,
    agent: Agent = None,
    agents: Agents = False,
    role: Annotated[SearchedRole | None, Query(description="Only prompts, or only answers.")] = None,
    since: Annotated[float | None, Query(description="Only if the time is not before this one.")] = None,
    until: Annotated[float | None, Query(description="Only if the time is before this one.")] = None,
    mark: Annotated[str | None, Query(description="Only messages that have a mark of this name.")] = None,
    shared: Annotated[bool, Query(description="Also in sessions that others share with the user.")] = True,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_HITS, description="How many at most.")] = 20,
) -> SearchPage:
    """All words must occur. The last one may be the beginning of a word. 409 says that the store cannot search."""
    query: dict[str, Any] = {"order": order, "session_id": session_id, "agent": agent, "agents": agents, "role": role}
    query |= {"since": since, "until": until, "mark": mark, "cursor": cursor, "limit": limit, "shared": shared}
    return SearchPage.of(await caller.manager.search(caller.user_id, text, **query))


@router.delete("/user", summary="Delete all sessions and memories of the user")
async def forget_user(
    caller: RequestCaller,
    verify: Verified = True,
    only_memory: Annotated[bool, Query(description="If true, sessions and all else stay.")] = False,
) -> ForgottenShown:
    """Cancels active runs. May be repeated, and must be if it fails halfway."""
    options = {"verify": verify, "only_memory": only_memory}
    return ForgottenShown.of(await caller.manager.forget(caller.user_id, **options))


@router.post("/clear", summary="Clear all sessions of the user, or those of an agent")
async def clear_sessions(body: ClearSession, caller: RequestCaller, agent: Agent = None) -> ForgottenShown:
    """Those that have a run are left as they are, and named as `in_use`. May be repeated."""
    return ForgottenShown.of(await caller.manager.clear(caller.user_id, agent=agent, **body.model_dump()))


@router.get("/sessions/{session_id}", summary="Get a session, with its open runs", responses=NOT_FOUND)
async def get_session(session_id: InPath, caller: MemberCaller) -> SessionState:
    return SessionState.of_info(await caller.on_session(session_id, AsyncSession.info))


@router.patch("/sessions/{session_id}", summary="Change title and metadata", responses=NOT_FOUND)
async def update_session(session_id: InPath, body: UpdateSession, caller: MemberCaller) -> SessionShown:
    changes = body.model_dump()
    return SessionShown.of(await caller.on_session(session_id, lambda session: session.update(**changes)))


@router.delete("/sessions/{session_id}", summary="Delete a session, and what memories keep of it", responses=CONFLICT)
async def delete_session(
    session_id: InPath,
    caller: MemberCaller,
    *,
    memory: Annotated[bool, Query(description="If false, memories keep what they have of the session.")] = True,
    verify: Verified = False,
) -> ForgottenShown:
    done = await caller.on_session(session_id, lambda session: session.delete(memory=memory, verify=verify))
    caller.service.handles.drop_session(caller.user_id, session_id, owner=caller.owner)
    return ForgottenShown.of(done)


@router.post("/sessions/{session_id}/end", summary="End a session", status_code=204, responses=NOT_FOUND)
async def end_session(session_id: InPath, caller: MemberCaller) -> None:
    """Cancels its runs; it accepts no new ones. May be repeated."""
    await caller.on_session(session_id, AsyncSession.end)


@router.post("/sessions/{session_id}/refresh", summary="Restart its `ttl_s` now", status_code=204, responses=NOT_FOUND)
async def refresh_session(session_id: InPath, caller: MemberCaller) -> None:
    await caller.on_session(session_id, AsyncSession.refresh)


@router.post("/sessions/{session_id}/engine", summary="Use another engine", status_code=204, responses=NOT_FOUND)
async def use_engine(session_id: InPath, body: UseEngine, caller: MemberCaller) -> None:
    await caller.on_session(session_id, lambda session: session.use(body.engine))


@router.post("/sessions/{session_id}/clear", summary="Remove its messages for good", responses=CONFLICT)
async def clear_session(session_id: InPath, body: ClearOne, caller: MemberCaller) -> ForgottenShown:
    options = body.model_dump()
    return ForgottenShown.of(await caller.on_session(session_id, lambda session: session.clear(**options)))


@router.post("/sessions/{session_id}/choose", summary="Show another version of the conversation", responses=CONFLICT)
async def choose_version(session_id: InPath, body: ChooseVersion, caller: MemberCaller) -> VersionChosen:
    """Shows the version that has this turn, with what was answered after it. May be repeated."""
    return VersionChosen(changed=await caller.on_session(session_id, lambda session: session.choose(body.index)))


@router.post(
    "/sessions/{session_id}/fork", summary="Continue it as another session", status_code=201, responses=CONFLICT
)
async def fork_session(
    session_id: InPath, body: ForkSession, caller: MemberCaller, request: Request, response: Response
) -> SessionOpened:
    fork = await caller.on_session(session_id, lambda session: session.fork(body.at, body.id, schedules=body.schedules))
    return _opened(caller, fork, request, response, owner=caller.owner)


@router.post("/sessions/{session_id}/compact", summary="Compact its window", responses=CONFLICT)
async def compact_session(session_id: InPath, body: Compact, caller: MemberCaller) -> CompactionShown | None:
    """Answers null if nothing was to be changed."""
    compaction = await caller.on_session(session_id, lambda session: session.compact(explain=body.explain))
    return CompactionShown.of(compaction) if compaction else None


@router.post(
    "/sessions/{session_id}/expand",
    summary="The blocks that a summary replaced",
    response_model=BlocksShown,
    responses=NOT_FOUND,
)
async def expand_summary(session_id: InPath, body: Expand, caller: MemberCaller) -> Any:
    blocks = await caller.on_session(session_id, lambda session: session.expand(body.summary))
    return await blocks_answer(blocks)


@router.post("/sessions/{session_id}/append", summary="Add prompts for the next run", responses=CONFLICT)
async def append_prompts(session_id: InPath, body: Append, caller: MemberCaller, *, held: Held) -> TurnShown:
    """Must not be repeated if its outcome is unknown: use the idempotency key of a run for that."""
    prompts = prompts_of(body.prompt)
    return await _stored(await caller.on_session(session_id, lambda session: session.append(*prompts)), held)


async def _stored(turn: Turn, held: Spans | None) -> TurnShown:
    """Return a turn that was stored; with `held`, also as a record."""
    shown_turn = TurnShown.of(turn)
    if held is not None:
        shown_turn.snapshot = await snapshot_of(turn, held)
    return shown_turn


@router.post("/sessions/{session_id}/import", summary="Add a conversation from elsewhere", responses=CONFLICT)
async def import_messages(session_id: InPath, body: ImportMessages, caller: MemberCaller, *, held: Held) -> TurnShown:
    """May be repeated: the same conversation is stored once."""
    options = body.model_dump(exclude={"messages", "format"})
    turn = await caller.on_session(
        session_id, lambda session: session.import_messages(body.messages, body.format, **options)
    )
    return await _stored(turn, held)


@router.get(
    "/sessions/{session_id}/export",
    summary="Its conversation in another format",
    response_model=MessagesShown,
    responses=NOT_FOUND,
)
async def export_messages(session_id: InPath, caller: MemberCaller, format: Exported = "openai_chat") -> Any:
    return await messages_answer(await caller.on_session(session_id, lambda session: session.export_messages(format)))


@router.post("/sessions/{session_id}/cancel", summary="Cancel the active run", responses=CONFLICT)
async def cancel_active_run(session_id: InPath, body: Cancel, caller: MemberCaller) -> Cancelled:
    return Cancelled(cancelled=await caller.on_session(session_id, lambda session: session.cancel(body.reason)))


@router.get("/sessions/{session_id}/messages", summary="Its messages, page by page, back in time", responses=NOT_FOUND)
async def list_messages(
    session_id: InPath,
    caller: MemberCaller,
    *,
    limit: Limit = 100,
    before: Annotated[str | None, Query(description="The cursor of a page or of a message.")] = None,
    newest_first: bool = False,
) -> MessagePage:
    page = await caller.on_session(
        session_id, lambda session: session.messages(limit, before=before, newest_first=newest_first)
    )
    return MessagePage.of(page)


@router.delete(
    "/sessions/{session_id}/messages/{place}",
    summary="Take a message out of what later runs continue",
    responses=CONFLICT,
)
async def remove_message(session_id: InPath, place: InPath, caller: MemberCaller) -> MessageRemoved:
    """`place` is that of a listed message. Nothing is erased: turns keep their snapshots."""
    return MessageRemoved(removed=await caller.on_session(session_id, lambda session: _remove(session, place)))


async def _remove(session: AsyncSession, place: str) -> int:
    index, spans = parse_place(place)
    turn = await session.turn(index)
    numbers = {position: index for index, position in enumerate(places(join(turn.record.prompt, turn.record.output)))}
    try:
        return await session.remove(turn, *(numbers[place] for place in places(spans)))
    except KeyError:
        raise InvalidInputError("place", shown(place), f"turn {index} has no such blocks: list the messages") from None


@router.get("/sessions/{session_id}/turns", summary="Its turns, by index", responses=NOT_FOUND)
async def list_turns(session_id: InPath, caller: MemberCaller, after: After = -1, limit: Limit = 100) -> TurnPage:
    turns = await caller.on_session(session_id, lambda session: session.turns(after, limit))
    return TurnPage(items=[TurnShown.of(turn) for turn in turns], next=turns.next)


@router.get(
    "/sessions/{session_id}/turn",
    summary="One turn, by default the newest",
    response_model=TurnShown | None,
    responses=NOT_FOUND,
)
async def get_turn(
    session_id: InPath,
    caller: MemberCaller,
    *,
    index: Annotated[int | None, Query(description="Its index.")] = None,
    turn_id: Annotated[str | None, Query(description="Or the id that its run was started with.")] = None,
    snapshot: Annotated[bool, Query(description="With all blocks that the model was given.")] = False,
) -> Any:
    """Answers null if the session has no turns."""
    which = index if index is not None else turn_id
    turn = await caller.on_session(
        session_id, lambda session: session.latest() if which is None else session.turn(which)
    )
    return await turn_answer(turn, snapshot=snapshot) if turn else None


@router.get(
    "/sessions/{session_id}/snapshots",
    summary="Its turns as records, by index",
    response_model=SnapshotPage,
    responses=NOT_FOUND,
)
async def list_snapshots(
    session_id: InPath, caller: MemberCaller, *, after: After = -1, limit: Limit = 100, held: Held
) -> Any:
    """Each has the blocks that neither the client nor an earlier one has, so a long conversation comes once."""
    turns = await caller.on_session(session_id, lambda session: session.turns(after, limit))
    return await snapshots_answer(turns, held or (), turns.next)


@router.get(
    "/sessions/{session_id}/snapshot",
    summary="One turn as a record, by default the newest",
    response_model=Snapshot | None,
    responses=NOT_FOUND,
)
async def get_snapshot(
    session_id: InPath,
    caller: MemberCaller,
    *,
    index: Annotated[int | None, Query(description="Its index.")] = None,
    turn_id: Annotated[str | None, Query(description="Or the id that its run was started with.")] = None,
    held: Held,
) -> Any:
    """Answers null if the session has no turns."""
    which = index if index is not None else turn_id
    turn = await caller.on_session(
        session_id, lambda session: session.latest() if which is None else session.turn(which)
    )
    return await snapshot_answer(turn, held or ())


@router.post(
    "/sessions/{session_id}/window",
    summary="The blocks of the next request",
    response_model=BlocksShown,
    responses=CONFLICT,
)
async def make_window(session_id: InPath, body: MakeWindow, caller: MemberCaller) -> Any:
    """As many as fit, prompts that wait included. What does not fit is compacted, as before a run's request."""
    return await blocks_answer(await caller.on_session(session_id, lambda session: session.window(body.message)))


@router.get("/sessions/{session_id}/runs", summary="Its runs, by turn index", responses=NOT_FOUND)
async def list_runs_of_session(
    session_id: InPath, caller: MemberCaller, after: After = -1, limit: Limit = 100
) -> RunsOfSession:
    runs = await caller.on_session(session_id, lambda session: session.runs(after, limit))
    return RunsOfSession(items=[RunShown.of(run) for run in runs], next=runs.next)


@router.post("/sessions/{session_id}/events", summary="Add an event of your own", status_code=201, responses=CONFLICT)
async def add_session_event(session_id: InPath, body: AddEvent, caller: MemberCaller) -> EventAdded:
    return EventAdded(seq=await caller.on_session(session_id, lambda session: session.add_event(**body.model_dump())))


@router.get(
    "/sessions/{session_id}/events",
    summary="Its events, of all runs: a page, or live as server-sent events",
    response_model=EventsShown,
    responses=NOT_FOUND | STREAMS,
)
async def list_session_events(
    session_id: InPath,
    request: Request,
    caller: MemberCaller,
    *,
    streams: Streams,
    after: After = 0,
    limit: Limit = MAX_LIMIT,
    kinds: EventKinds = None,
    labels: OfLabels,
    wait_s: Wait = 0.0,
) -> Any:
    """The stream does not end by itself. It goes on behind `Last-Event-ID` or `after`, each event once.

    Deltas of an answer are live: they are there until the run after the next one starts. With `kinds` or `labels`, a
    page may have fewer events than `limit`, and none, though `next` says that there are more.
    """
    after = last_event_id(request, after)
    only = {"kinds": kinds, "labels": labels}
    if streams:
        session, page = await caller.on_session(session_id, lambda session: _first_page(session, after, only))
        return EventStream(caller, _events(session, after, page, only))
    wait_s = min(wait_s, caller.service.settings.max_wait_s)
    work = caller.on_session(session_id, lambda session: session.events(after, limit, **only, wait_s=wait_s))
    events = await wait_for(request, caller, work) if wait_s else await work
    return EventsShown.of(events or (), events.next if events is not None else after)


async def _first_page(session: AsyncSession, after: int, only: Mapping[str, Any]) -> tuple[AsyncSession, Any]:
    return session, await session.events(after, PAGE, **only)


async def _events(session: AsyncSession, after: int, page: Any, only: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    while True:
        if page:
            yield encode_events(page)
            after = page[-1].seq
        after = after if page.next is None else page.next
        page = await session.events(after, PAGE, **only, wait_s=SILENCE_S)
