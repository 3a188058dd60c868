"""`turnwise tail`: print events as they come."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import (
    NAMESPACE,
    AsJson,
    History,
    Namespace,
    OfAgent,
    Server,
    Store,
    User,
    find_session,
    is_service,
    namespace_of,
    reading,
    run,
)
from turnwise.cli.output import note, one_line, print_json_line, write
from turnwise.errors import ConfigError, OverloadedError, ServiceAwayError, StoreError

if TYPE_CHECKING:
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.client.session import AsyncSession
    from turnwise.actors.hosting.placement import Placement
    from turnwise.memory.conversation.events import AnyEvent

WAIT_S, AGAIN_S = 30.0, 1.0
"""How long one request waits for an event, and how long after a failed one the next is sent, in seconds."""

PAGE = 1_000

MOST = 160
"""How many characters of an event's fields are shown."""


def tail(
    store: Store,
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Only of this session, with the pieces of live answers.")
    ] = None,
    *,
    after: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=sys.maxsize,
            help="Begin after the event of the SESSION with this number; 0 prints all. From now on, if omitted.",
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help="Only events of this kind, such as run_failed; repeatable.")
    ] = None,
    user: User = None,
    agent: OfAgent = None,
    history: History = None,
    namespace: Namespace = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Print events as they come, until Ctrl+C: of one session across its runs, or of all sessions.

    It only reads, beside the processes that have the sessions. The pieces of an answer that is being written are among
    the events of a session if RAY_ADDRESS names the Ray that has it; without, events come when they are stored.
    Numbers rise but have gaps: pieces of answers have some, and they jump by millions when a process takes over a run.
    """
    from turnwise.memory.conversation.events import KINDS

    if session is None and after is not None:
        raise typer.BadParameter("events are numbered by session: name one", param_hint="--after")
    if unknown := [kind for kind in kinds or () if kind not in KINDS]:
        raise typer.BadParameter(f"there is no kind {unknown[0]!r}: {', '.join(KINDS)}", param_hint="--kind")
    query: dict[str, Any] = {"user": user, "agent": agent, "kinds": frozenset(kinds or ())}
    place = place_of_live_sessions(store, namespace)
    run(_tail(store, session, after, as_json=as_json, history=history, **query, **place))


def place_of_live_sessions(store: str, namespace: str | None) -> dict[str, Any]:
    """Connect to the Ray that RAY_ADDRESS names; return where its sessions of a store answer.

    Returns: `placement`, which is None without such a Ray, and `namespace`, for `reading`.
    """
    if is_service(store) or not os.environ.get("RAY_ADDRESS"):
        return {"placement": None, "namespace": namespace or NAMESPACE}
    from turnwise.actors.cluster.ray_runtime import connect
    from turnwise.actors.hosting.placement import Dedicated

    connect(logs=False)
    return {"placement": Dedicated(), "namespace": namespace_of(store, namespace)}


async def _tail(
    store: str,
    session_id: str | None,
    after: int | None,
    *,
    user: str | None,
    agent: str | None,
    kinds: frozenset[str],
    history: str | None,
    namespace: str,
    placement: Placement | None,
    as_json: bool,
) -> None:
    async with reading(store, history, namespace=namespace, live=True, placement=placement) as manager:
        if session_id is None:
            events = _of_all(manager, user_id=user, agent=agent, kinds=sorted(kinds) or None)
        else:
            session = await find_session(manager, session_id, user)
            if agent not in (None, session.agent):
                raise ConfigError("--agent", agent, f"session {session_id!r} is of agent {session.agent!r}")
            events = _of_one(session, after)
        async for event in events:
            if kinds and event.kind not in kinds:
                continue
            if as_json:
                print_json_line(event.model_dump(mode="json"))
            else:
                write(line_of(event, has_session=session_id is None))


async def _of_all(manager: AsyncSessionManager, **query: Any) -> AsyncIterator[AnyEvent]:
    """Yield the stored events of all sessions that match, from now on."""
    events: asyncio.Queue[AnyEvent] = asyncio.Queue(PAGE)
    async with await manager.subscribe(events.put, **query):
        while True:
            yield await events.get()


async def _of_one(session: AsyncSession, after: int | None) -> AsyncIterator[AnyEvent]:
    """Yield the events of a session, also while its store or its service is away for a while."""
    position = await _now(session) if after is None else after
    is_away = False
    while True:
        try:
            page = await session.events(position, PAGE, wait_s=WAIT_S)
        except (StoreError, OverloadedError, ServiceAwayError) as error:
            if not is_away:
                note(f"warning: {error}; trying again")
            is_away = True
            await asyncio.sleep(AGAIN_S)
            continue
        is_away = False
        for event in page:
            yield event
            position = event.seq


async def _now(session: AsyncSession) -> int:
    """Return the number of the last event. The session's row may name a higher one: see `SessionRecord.seq`."""
    latest = await session.latest()
    runs: Sequence[Any] = await session.runs(after=latest.index - 2) if latest else ()
    after = max(0, runs[-1].first_seq - 1) if runs else 0
    while page := await session.events(after, PAGE):
        after = page[-1].seq
    return after


def line_of(event: AnyEvent, *, has_session: bool) -> str:
    """Return an event as a line: its time, its session, its number, its kind, and what it says."""
    from turnwise.memory.conversation.events import Event, RunEnded
    from turnwise.memory.conversation.sessions import SessionKey

    hidden = {*Event.model_fields, "blocks", "input_blocks", "span", "input", "prompt", "index"}
    fields = event.model_dump(mode="json", exclude=hidden, exclude_defaults=True)
    words_of_fields = [f"{name}={_shown(value)}" for name, value in fields.items()]
    if isinstance(event, RunEnded) and event.text:
        words_of_fields.append(f"text={_shown(event.text)}")
    time = datetime.fromtimestamp(event.at).astimezone().strftime("%H:%M:%S.%f")[:-3]
    words = [
        time,
        *([SessionKey(event.session_id, event.user_id).full_name] if has_session else []),
        f"{event.seq:>6}",
        f"{event.kind:<20}",
        *words_of_fields,
    ]
    return one_line(" ".join(words)).rstrip()


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"
