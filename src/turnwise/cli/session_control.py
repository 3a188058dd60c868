"""What changes a session: `turnwise say`, `cancel`, `approve`, `reject`, `end`, `rm`, `fork`, `schedule`, `unschedule`.

They reach the process that has the session, in the Ray that `RAY_ADDRESS` names, that has the SQLite file open, or that
`ray start` has started on this machine. A session without a process gets one for the command in that Ray; where there
is none, it runs in the command's own process. It has no engine there, so a session with open runs is refused rather
than let them fail.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnwise.cli.common import (
    LOOKED_AT,
    NAMESPACE,
    AsJson,
    History,
    Namespace,
    Server,
    SessionId,
    Store,
    User,
    check_shared,
    complete_session,
    file_of,
    find_session,
    is_service,
    missing,
    namespace_of,
    no_run,
    of_service,
    reading,
    run,
)
from turnwise.cli.output import print_json, progress, write
from turnwise.errors import (
    CallNotFoundError,
    ConfigError,
    NoActiveRunError,
    NotFoundError,
    TurnwiseError,
    shown,
)
from turnwise.memory.values.ranges import MAX_COUNT

if TYPE_CHECKING:
    from turnwise.actors.client.execution import AsyncExecutionHandle
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.client.session import AsyncSession
    from turnwise.actors.hosting.placement import Placement
    from turnwise.actors.hosting.wire import SessionInfo
    from turnwise.memory.conversation.calls.tool_calls import PendingCall

Id = Annotated[
    str,
    typer.Argument(
        metavar="SESSION|RUN", help="A run, or a session, for its active run.", autocompletion=complete_session
    ),
]
Call = Annotated[str | None, typer.Argument(help="The call that waits; may be left out if only one does.")]

RAY_ADDRESS = "RAY_ADDRESS"

_LISTED = 1000
"""Among how many schedules the nearest key is looked for."""

_IDLE = "has no call that waits for a decision"


@dataclass(frozen=True)
class _Place:
    """Where a session is."""

    store: str
    user: str | None
    history: str | None
    namespace: str | None
    """The one that the user has named, until it is known where the processes are."""


def say(
    store: Store,
    session: SessionId,
    text: Annotated[str, typer.Argument(help="What the assistant says.")],
    *,
    server: Server = None,
    key: Annotated[str | None, typer.Option(help="The same text with the same key is said once.")] = None,
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Store a text as the assistant's message, without asking a model. A busy session says it after its runs."""

    async def work() -> None:
        async with _acting(_Place(store, user, history, namespace), session) as (handle, _):
            execution = await handle.say(text, key=key)
            state = (await execution.info()).state
            message = (
                f"session {handle.session_id} has said it"
                if state == "completed"
                else f"run {execution.run_id} is {state}"
            )
            _report(
                {"session_id": handle.session_id, "run_id": execution.run_id, "state": state}, message, as_json=as_json
            )

    run(work())


def cancel(
    store: Store,
    id: Id,
    *,
    server: Server = None,
    reason: Annotated[str, typer.Option(help="Why; the run's record has it.")] = "cancelled by the command line",
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a run, and wait until it has ended. The text of its answer so far is kept."""

    async def work() -> None:
        async with _acting(_Place(store, user, history, namespace), id, may="cancel") as (session, run_id):
            execution = await _run_of(session, run_id)
            await execution.cancel(reason)
            state = (await execution.info()).state
            _report({"run_id": execution.run_id, "state": state}, f"run {execution.run_id} is {state}", as_json=as_json)

    run(work())


def approve(
    store: Store,
    id: Id,
    call: Call = None,
    *,
    server: Server = None,
    edited: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="Other arguments, as a JSON object.")
    ] = None,
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Approve a tool call that waits, or a run that is over its budget. The run goes on."""
    run(_decide(_Place(store, user, history, namespace), id, call, as_json=as_json, edited=_object(edited)))


def reject(
    store: Store,
    id: Id,
    call: Call = None,
    *,
    server: Server = None,
    reason: Annotated[str, typer.Option(help="Why; the model is told.")] = "",
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Reject a tool call that waits. The run goes on."""
    run(_decide(_Place(store, user, history, namespace), id, call, as_json=as_json, reason=reason))


def end(
    store: Store,
    session: SessionId,
    *,
    server: Server = None,
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """End a session: its runs are cancelled, and it takes no new ones. It can still be read, forked and deleted."""

    async def work() -> None:
        async with _acting(_Place(store, user, history, namespace), session, may="end") as (handle, _):
            await handle.end()
            _report(
                {"session_id": handle.session_id, "status": "ended"},
                f"session {handle.session_id} has ended",
                as_json=as_json,
            )

    run(work())


def share(
    store: Store,
    session: SessionId,
    member: Annotated[str, typer.Argument(help="The user with whom it is shared.")],
    *,
    server: Server = None,
    role: Annotated[Literal["reader", "member", "owner"], typer.Option(help="What the member may do.")] = "member",
    remove: Annotated[bool, typer.Option("--remove", help="Do not share it with this user any more.")] = False,
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Share a session with another user, change what a member may do, or remove a member."""

    async def work() -> None:
        async with _acting(_Place(store, user, history, namespace), session) as (handle, _):
            await (handle.remove_member(member) if remove else handle.add_member(member, role))
            members = dict(await handle.members())
            names = ", ".join(f"{name} ({role})" for name, role in members.items())
            facts = {"session_id": handle.session_id, "members": members}
            _report(facts, f"session {handle.session_id} is open to {names}", as_json=as_json)

    run(work())


def rm(
    store: Store,
    session: SessionId,
    *,
    server: Server = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Delete a session for good. Its forks stay whole; long-term memories keep what they have of it."""
    if not yes:
        typer.confirm(f"Delete session {session!r}? It cannot be restored.", abort=True, err=True)

    async def work() -> None:
        async with _acting(_Place(store, user, history, namespace), session) as (handle, _):
            await handle.delete(memory=False)
            _report(
                {"session_id": handle.session_id, "deleted": True},
                f"session {handle.session_id} is deleted",
                as_json=as_json,
            )

    run(work())


def fork(
    store: Store,
    session: SessionId,
    *,
    server: Server = None,
    at: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_COUNT, help="After this turn; after the last one that ended if omitted."),
    ] = None,
    new_id: Annotated[str | None, typer.Option("--as", help="The id of the new session.")] = None,
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Make a new session that continues a session after one of its turns; print its id."""

    async def work() -> None:
        async with _acting(_Place(store, user, history, namespace), session) as (handle, _):
            new = await handle.fork(at, new_id)
            _report({"session_id": new.session_id, "parent": handle.session_id}, new.session_id, as_json=as_json)

    run(work())


def schedule(
    store: Store,
    session: SessionId,
    prompt: Annotated[str, typer.Argument(help="What each run begins with.")],
    *,
    server: Server = None,
    at: Annotated[
        str | None, typer.Option(help="Once, or first, at this time, such as 2030-05-01T09:00:00+02:00.")
    ] = None,
    after: Annotated[float | None, typer.Option(help="Or in so many seconds.")] = None,
    every: Annotated[float | None, typer.Option(help="Again after each so many seconds.")] = None,
    cron: Annotated[
        str | None, typer.Option(help="Or at the times of a line of cron, such as '0 9 * * MON-FRI'.")
    ] = None,
    timezone: Annotated[str | None, typer.Option(help="The IANA name of cron's time zone; UTC if omitted.")] = None,
    until: Annotated[str | None, typer.Option(help="The last time at which it recurs.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Its name: if the session has a schedule of this name, it stays as it is.")
    ] = None,
    missed: Annotated[
        Literal["run_once", "skip", "run_all"], typer.Option(help="What becomes of times that nobody was there for.")
    ] = "run_once",
    if_busy: Annotated[
        Literal["enqueue", "drop", "reject"],
        typer.Option(help="While a run is active: wait for its end; leave this time out; or try until it has ended."),
    ] = "enqueue",
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Have a session begin a run later: once, or again and again; print the schedule's key."""

    async def work() -> None:
        from turnwise.memory.deliveries.texts import time_of

        first, last = (text and time_of(name, text) for name, text in (("at", at), ("until", until)))
        place = _Place(store, user, history, namespace)
        async with _acting(place, session, needs_engine=True) as (handle, _):
            times: Any = {"at": first, "after_s": after, "every_s": every, "cron": cron, "until": last}
            added = await handle.schedule(prompt, **times, timezone=timezone, key=key, missed=missed, if_busy=if_busy)
        if as_json:
            from turnwise.http.native.schedule_models import ScheduleShown

            print_json(ScheduleShown.of(added))
        else:
            _report({}, added.key, as_json=False)

    run(work())


def unschedule(
    store: Store,
    session: SessionId,
    key: Annotated[str, typer.Argument(help="The schedule, as `turnwise schedules` names it.")],
    *,
    server: Server = None,
    user: User = None,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a schedule for all times. A run that it has begun goes on."""

    async def work() -> None:
        async with _acting(_Place(store, user, history, namespace), session) as (handle, _):
            if not await handle.cancel_schedule(key):
                keys = [schedule.key for schedule in await handle.schedules(limit=_LISTED)]
                raise missing(f"schedule of session {handle.session_id!r} with the key", key, keys)
            fields = {"session_id": handle.session_id, "key": key, "cancelled": True}
            _report(fields, f"schedule {key} of session {handle.session_id} is cancelled", as_json=as_json)

    run(work())


async def _decide(
    place: _Place,
    id: str,
    call: str | None,
    *,
    as_json: bool,
    edited: dict[str, Any] | None = None,
    reason: str | None = None,
) -> None:
    """Approve a call; reject it if a reason is given."""
    async with _acting(place, id, may="decide") as (session, run_id):
        execution = await _run_of(session, run_id, _IDLE)
        call_id = call or await _only_call(execution)
        try:
            if reason is None:
                await execution.approve(call_id, input=edited)
            else:
                await execution.reject(call_id, reason)
        except CallNotFoundError:
            there = [call.call_id for call in await _undecided(execution)]
            raise missing(f"call of run {execution.run_id!r} with the id", call_id, there) from None
        verdict = "approved" if reason is None else "rejected"
        message = f"call {call_id} of run {execution.run_id} is {verdict}"
        _report({"run_id": execution.run_id, "call_id": call_id, "verdict": verdict}, message, as_json=as_json)


async def _only_call(execution: AsyncExecutionHandle) -> str:
    """Return the id of the call that waits for a decision."""
    pending = await _undecided(execution)
    if not pending:
        raise NotFoundError(f"run {execution.run_id!r} waits for no decision")
    if len(pending) > 1:
        ids = ", ".join(call.call_id for call in pending)
        raise ConfigError("CALL", None, f"several calls of run {execution.run_id!r} wait, so name one of {ids}")
    return pending[0].call_id


async def _undecided(execution: AsyncExecutionHandle) -> list[PendingCall]:
    return [call for call in await execution.pending() if call.wants != "result"]


async def _run_of(session: AsyncSession, run_id: str | None, idle: str | None = None) -> AsyncExecutionHandle:
    """Return the handle of a run, by default the active one; `idle` says what is missing if there is none."""
    if run_id is None:
        info: SessionInfo = await session.info()
        if info.active_run_id is None:
            raise (
                NotFoundError(f"session {session.session_id!r} {idle}")
                if idle
                else NoActiveRunError(session.session_id)
            )
        run_id = info.active_run_id
    return await session.execution(run_id)


def _report(fields: dict[str, Any], message: str, *, as_json: bool) -> None:
    from turnwise.cli.output import one_line

    if as_json:
        print_json(fields)
    else:
        write(one_line(message))


def _object(text: str | None) -> dict[str, Any] | None:
    """Return the JSON object of a text."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"it is no JSON: {error}", param_hint="--input") from None
    if not isinstance(value, dict):
        raise typer.BadParameter("it must be a JSON object", param_hint="--input")
    return value


# Reaching the session's process


@asynccontextmanager
async def _acting(
    place: _Place, id: str, *, may: str = "", needs_engine: bool = False
) -> AsyncIterator[tuple[AsyncSession, str | None]]:
    """Yield a session that can be changed, and the run that `id` names, if it names one.

    Args:
        id: of the session or, for what is done to runs, of a run.
        may: what is done although the session has open runs that no process carries on: `cancel`, `decide` or `end`.
        needs_engine: whether a process that is made for the command in a Ray is refused: what is scheduled there would
            be answered by its engine, and it has none.

    Raises:
        TurnwiseError: there is no such session or run, or it cannot be changed from here; the message says how.
    """
    if is_service(place.store):
        async with of_service(place.store) as remote:
            yield await _find(remote, id, place.user, has_runs=may in ("cancel", "decide"))
        return
    placement = _placement(place.store)
    from turnwise.actors.client.without_engine import live
    from turnwise.actors.cluster.ray_address import starts_own_ray
    from turnwise.actors.hosting.placement import Dedicated

    if isinstance(placement, Dedicated) and not starts_own_ray():
        place = await _in_ray(place)
    settings: dict[str, Any] = {"placement": placement, "namespace": place.namespace or NAMESPACE}
    async with reading(place.store, place.history, live=True, **settings) as reader:
        session, run_id = await _find(reader, id, place.user, has_runs=may in ("cancel", "decide"))
        if starts_own_ray():  # so no process has the session or an engine of its runs, in a Ray or without one
            if may == "decide":
                await _run_of(session, run_id, _IDLE)
            await _check_open_runs(session, may, is_alone=True)
        if isinstance(placement, Dedicated):
            _connect_ray()  # on the main thread, where Ray wants to be started
            attached = await asyncio.to_thread(live, session)
            if attached is not None:
                yield attached, run_id
                return
            if needs_engine:
                raise TurnwiseError(
                    f"no process of this Ray has session {session.session_id!r}, and here is no engine to answer in "
                    "it: schedule it in the program that has its engine, or while it has the session"
                )
            await _check_open_runs(session, may)
    async with _opened(place, placement) as manager:
        yield await manager.get(session.session_id, user_id=session.user_id), run_id


@asynccontextmanager
async def changing(store: str, namespace: str | None, files: str | None = None) -> AsyncIterator[AsyncSessionManager]:
    """Yield a manager that can change what belongs to no session's process, such as webhooks. It starts no process.

    Args:
        files: where the bytes of files are; if omitted, where the store has them by itself.

    Raises:
        TurnwiseError: the store cannot be changed from here; the message says why.
    """
    if is_service(store):
        async with of_service(store) as remote:
            yield remote
        return
    place, placement = _Place(store, None, None, namespace), _placement(store)
    from turnwise.actors.hosting.placement import Dedicated

    async with reading(store):
        pass  # it is there, and not encrypted
    if isinstance(placement, Dedicated):
        place = await _in_ray(place)
    async with _opened(place, placement, files) as manager:
        yield manager


def _placement(store: str) -> Placement:
    """Return where the sessions of a store are: in the Ray that is here, or in this process. Imports Ray if it is."""
    _set_ray_address(store)
    from turnwise.actors.cluster.ray_address import ray_to_join
    from turnwise.actors.hosting.placement import Dedicated, InProcess

    return Dedicated() if ray_to_join() else InProcess(resume_lost=False)


@asynccontextmanager
async def _opened(place: _Place, placement: Placement, files: str | None = None) -> AsyncIterator[AsyncSessionManager]:
    """Yield a manager without an engine, unless somebody else has the store open."""
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.client.without_engine import NoEngine

    await _check_rivals(place.store, placement)
    settings: dict[str, Any] = {"placement": placement, "history_store": place.history}
    settings["namespace"] = place.namespace or NAMESPACE
    async with AsyncSessionManager(place.store, engine=NoEngine(), overflow=None, files=files, **settings) as manager:
        yield manager


async def _find(
    manager: AsyncSessionManager, id: str, user: str | None, *, has_runs: bool
) -> tuple[AsyncSession, str | None]:
    if not has_runs:
        return await find_session(manager, id, user), None
    try:
        handle = await manager.execution(id, user_id=user)
    except NotFoundError:
        try:
            return await find_session(manager, id, user), None
        except NotFoundError as error:
            if "give --user" in str(error):
                raise
            of_run = no_run(id, await manager.runs(limit=LOOKED_AT), "session or run")
            raise (of_run if "give --user" in str(of_run) or "did you mean" not in str(error) else error) from None
    return await manager.get(handle.session_id, user_id=user), handle.run_id


def _set_ray_address(store: str) -> None:
    """Name, by Ray's variables, the Ray that has a SQLite file open. Call it before Ray is imported.

    Raises:
        ConfigError: a process without Ray has it open.
    """
    from turnwise.memory.stores.sql.sqlite_owner import running_owner
    from turnwise.memory.stores.store_owner import variables_of

    path = file_of(store)
    check_shared(store, path)
    owner = None if path is None or os.environ.get(RAY_ADDRESS) else running_owner(path)
    if owner and not owner.is_process:
        os.environ |= variables_of(owner.address)


def _connect_ray() -> None:
    """Connect to the Ray that is named, or to that of this machine; start one if there is none."""
    from turnwise.actors.cluster.ray_runtime import connect

    with progress("connect to Ray"):
        connect(logs=False)


async def _in_ray(place: _Place) -> _Place:
    """Connect to Ray, and return the place with the namespace in which that has the store's processes."""
    _connect_ray()  # on the main thread, where Ray wants to be started
    return replace(place, namespace=await asyncio.to_thread(namespace_of, place.store, place.namespace))


async def _check_open_runs(session: AsyncSession, may: str, *, is_alone: bool = False) -> None:
    """Refuse a session with open runs and no process, since they would fail without an engine.

    Args:
        is_alone: whether there is no Ray that could have noted their engine.
    """
    from turnwise.actors.client.without_engine import has_noted_engine

    info: SessionInfo = await session.info()
    if info.active_run_id is None or may == "end" or (may == "cancel" and not info.queued_run_ids):
        return
    if not is_alone and await asyncio.to_thread(has_noted_engine, session):
        return
    where = "here is no Ray that could have it" if is_alone else "no process of this Ray has it"
    reason = f"session {session.session_id!r} has open runs, such as {info.active_run_id!r}, and {where}"
    raise TurnwiseError(
        f"{reason}; here is no engine to go on with them: do it in the program that has its engine, connect to its Ray,"
        " if that still runs, by RAY_ADDRESS, or end the session by `turnwise end`"
    )


async def _check_rivals(store: str, placement: Placement) -> None:
    """Refuse a store that another Ray, or a process without Ray, has open.

    Raises:
        ConfigError: says which.
    """
    from turnwise.actors.client.shared.runtimes import runtime_of
    from turnwise.memory.stores.store_owner import Shared, rivals
    from turnwise.memory.stores.urls import open_store, redact

    opened = await asyncio.to_thread(open_store, store)
    try:
        if isinstance(opened, Shared):
            await asyncio.to_thread(opened.own, runtime_of(placement, "turnwise").owner)
        others = await rivals(opened)
    finally:
        await opened.close()
    if others:
        reason = f"{', '.join(others)} has {redact(store)} open"
        do = "name it by this variable if it is a Ray, or end that process"
        raise ConfigError(RAY_ADDRESS, shown(os.environ.get(RAY_ADDRESS)), f"{reason}: {do}")
