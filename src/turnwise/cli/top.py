"""`turnwise top`: what the sessions of a store do now, on a screen that refreshes itself."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import NAMESPACE, AsJson, History, Namespace, Server, Store, is_service, reading, run
from turnwise.cli.output import console, is_terminal, one_line, print_json_line
from turnwise.cli.tail import place_of_live_sessions
from turnwise.console.elements.text import number
from turnwise.errors import StoreError

if TYPE_CHECKING:
    from rich.console import Group

    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.hosting.wire import HostInfo
    from turnwise.memory.conversation.runs import RunRecord

NEWEST = 200
"""How many runs of each state are read, the newest; and among how many sessions, those that changed last, runs are
looked for that wait for a person. Stores have an index of queued and running ones only."""

RATE_S = 10.0
"""Over how long tokens a second are averaged, in seconds."""

ONCE_S = 1.0
"""How long `--once` looks, to see tokens a second, in seconds."""

_LEAVE = ("q", "Q", "\x04")

_STATES = {"running": "running", "queued": "queued", "awaiting_approval": "wait for a person"}
"""The states of runs that have not ended, and what they are called."""

_MEGABYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of all sessions, runs and hosts at one moment."""

    at: float
    """Seconds since the epoch."""
    sessions: dict[str, int]
    """How many there are, by status."""
    runs: tuple[RunRecord, ...]
    """Those that have not ended, newest first; at most `NEWEST` of each state."""
    tokens: int
    """All that were used so far."""
    counted_tokens: int = 0
    """The part of them that no provider reported and turnwise counted."""
    hosts: tuple[HostInfo, ...] | None
    """Those of the namespace, or of a service. None if no Ray is known."""
    namespace: str | None = NAMESPACE
    """That of the hosts; None for those of a service, which does not tell it."""
    has_more: frozenset[str] = frozenset()
    """The states in which there are more runs than were read."""

    def of_state(self, state: str) -> int:
        return sum(run.state == state for run in self.runs)

    @property
    def loaded(self) -> int | None:
        """How many sessions the hosts have loaded. A store has no namespaces, so `sessions` counts those of all."""
        return None if self.hosts is None else sum(host.load.sessions for host in self.hosts if host.load)

    def as_json(self, tokens_per_s: float) -> dict[str, Any]:
        """Return it as a JSON object."""
        runs = [
            {name: getattr(run, name) for name in ("run_id", "session_id", "user_id", "state", "created_at")}
            for run in self.runs
        ]
        hosts = [_host_json(host) for host in self.hosts] if self.hosts is not None else None
        return {
            "at": self.at,
            "sessions": self.sessions,
            "namespace": self.namespace,
            "loaded": self.loaded,
            "runs": {state: self.of_state(state) for state in _STATES},
            "has_more": sorted(self.has_more),
            "tokens": self.tokens,
            "counted_tokens": self.counted_tokens,
            "tokens_per_s": round(tokens_per_s, 3),
            "open_runs": runs,
            "hosts": hosts,
        }


def top(
    store: Store,
    *,
    server: Server = None,
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="How often it looks, in seconds.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, for a second, and leave.")] = False,
    history: History = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show what sessions do: runs, the queue, tokens a second, and processes: of the Ray that RAY_ADDRESS names.

    With --server, they are those of the service, and the token has to be an operator's. It only reads. The key q
    leaves. With --json, each look is a line of JSON.
    """
    is_live = is_terminal() and not once and not as_json
    place = place_of_live_sessions(store, namespace)
    look_at = reading(store, history, live=not once, **place)
    where = None if is_service(store) else place["namespace"]
    run(
        _live(look_at, store, where, every)
        if is_live
        else _lines(look_at, store, where, every, is_one=once or not as_json, as_json=as_json)
    )


async def _live(
    opened: AbstractAsyncContextManager[AsyncSessionManager], store: str, namespace: str | None, every: float
) -> None:
    from rich.live import Live

    async with opened as manager:
        rate, shown = Rate(), None
        with _keys() as keys, Live(console=console(), screen=True, auto_refresh=False) as live:
            while True:
                try:
                    shown = await look(manager, namespace)
                    page = render(store, shown, rate.add(shown))
                except StoreError as error:
                    page = render(store, shown, 0.0, problem=str(error))
                live.update(page, refresh=True)
                with suppress(TimeoutError):
                    if await asyncio.wait_for(keys.get(), every) in _LEAVE:
                        return


async def _lines(
    opened: AbstractAsyncContextManager[AsyncSessionManager],
    store: str,
    namespace: str | None,
    every: float,
    *,
    is_one: bool,
    as_json: bool,
) -> None:
    async with opened as manager:
        rate = Rate()
        rate.add(await look(manager, namespace))
        while True:
            await asyncio.sleep(ONCE_S if is_one else every)
            snapshot = await look(manager, namespace)
            tokens_per_s = rate.add(snapshot)
            if as_json:
                print_json_line(snapshot.as_json(tokens_per_s))
            else:
                console().print(render(store, snapshot, tokens_per_s))
            if is_one:
                return


async def look(manager: AsyncSessionManager, namespace: str | None = NAMESPACE) -> Snapshot:
    """Return what is going on now.

    Args:
        namespace: that of the manager; None for that of a service.
    """
    has_hosts = namespace is None or bool(os.environ.get("RAY_ADDRESS"))
    hosts = tuple(await manager.hosts()) if has_hosts else None  # first: a service refuses it to all but operators
    statuses = ("active", "ended")
    counts = [await manager.count(status=status) for status in statuses]  # type: ignore[arg-type]
    pages = {
        "running": await manager.runs(state="running", limit=NEWEST),
        "queued": await manager.runs(state="queued", limit=NEWEST),
        "awaiting_approval": await manager.runs(state="awaiting_approval", among=NEWEST, limit=NEWEST),
    }
    runs = {run.run_id: run for page in pages.values() for run in page}  # one may have gone on meanwhile
    usage = (await manager.usage()).total
    return Snapshot(
        at=time.time(),
        sessions=dict(zip(statuses, counts, strict=True)),
        runs=tuple(sorted(runs.values(), key=lambda run: run.created_at, reverse=True)),
        tokens=usage.input_tokens + usage.output_tokens,
        counted_tokens=usage.counted_tokens,
        hosts=hosts,
        namespace=namespace,
        has_more=frozenset(state for state, page in pages.items() if page.cursor),
    )


class Rate:
    """Tokens a second over the last `RATE_S` seconds. Runs tell their tokens when they commit, so it comes in steps."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, snapshot: Snapshot) -> float:
        """Return the rate, with this snapshot as the newest."""
        self._samples.append((snapshot.at, snapshot.tokens))
        while len(self._samples) > 2 and self._samples[1][0] <= snapshot.at - RATE_S:  # noqa: PLR2004 - one before the window
            self._samples.popleft()
        (began, before), (now, tokens) = self._samples[0], self._samples[-1]
        return max(0, tokens - before) / (now - began) if now > began else 0.0


def render(store: str, snapshot: Snapshot | None, tokens_per_s: float, problem: str = "") -> Group:
    """Return a snapshot as tables."""
    from rich.console import Group
    from rich.text import Text

    from turnwise.memory.stores.urls import redact

    if snapshot is None:
        return Group(Text(one_line(problem), "red"))
    time_of_day = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    head = Text.assemble((f"turnwise top  {time_of_day}  ", "bold"), one_line(redact(store)))
    counts = [
        ("active sessions in the store", snapshot.sessions["active"]),
        ("ended", snapshot.sessions["ended"]),
        *([(_loaded(snapshot.namespace), snapshot.loaded)] if snapshot.loaded is not None else []),
        *((_many(name, state, snapshot), snapshot.of_state(state)) for state, name in _STATES.items()),
        ("tokens a second", round(tokens_per_s, 1)),
        ("tokens", snapshot.tokens),
        *([("of them counted here", snapshot.counted_tokens)] if snapshot.counted_tokens else []),
    ]
    parts = [
        head,
        Text(),
        Text("   ").join(Text.assemble((number(value), "bold cyan"), f" {name}") for name, value in counts),
    ]
    if problem:
        parts += [Text(), Text(one_line(problem), "red")]
    return Group(*parts, Text(), _runs(snapshot), Text(), *_hosts(snapshot.hosts))


def _loaded(namespace: str | None) -> str:
    return "loaded" if namespace is None else f"loaded in namespace {one_line(namespace)}"


def _many(name: str, state: str, snapshot: Snapshot) -> str:
    return f"or more {name}" if state in snapshot.has_more else name


def _runs(snapshot: Snapshot) -> Any:
    rows = [
        (
            run.state.replace("_", " "),
            run.session_id,
            run.user_id,
            run.run_id,
            _ago(snapshot.at - run.created_at),
            _tokens(run),
        )
        for run in snapshot.runs
    ]
    return _table(("RUN", "SESSION", "USER", "ID", "AGE", "TOKENS"), rows, empty="no run is going on", right=2)


def _hosts(hosts: Sequence[HostInfo] | None) -> list[Any]:
    from rich.text import Text

    if hosts is None:
        return [Text("hosts: RAY_ADDRESS names no Ray, so processes and pieces of live answers are not seen", "dim")]
    rows = []
    for host in hosts:
        load, memory = host.load, host.memory_bytes
        rows.append(
            (
                "packed" if host.is_packed else "session",
                host.name.rpartition("/hosts/")[2] if host.is_packed else host.name.rpartition("/")[2],
                host.node or "does not answer",
                str(host.pid or ""),
                *([number(load.sessions), number(load.calls), number(load.waits)] if load else ["", "", ""]),
                f"{memory / _MEGABYTE:,.0f} MB" if memory else "",
            )
        )
    names = ("HOST", "NAME", "NODE", "PID", "SESSIONS", "CALLS", "WAITS", "MEMORY")
    return [_table(names, rows, empty="no process has sessions now", right=5)]


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, right: int) -> Any:
    """Return a table whose last `right` columns are numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text(empty, "dim")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, name in enumerate(names):
        table.add_column(
            name, justify="right" if index >= len(names) - right else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table


def _tokens(run: RunRecord) -> str:
    if not run.usage:
        return "0"
    counted = f" ({number(run.usage.counted_tokens)} counted here)" if run.usage.counted_tokens else ""
    return number(run.usage.input_tokens + run.usage.output_tokens) + counted


def _ago(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _host_json(host: HostInfo) -> dict[str, Any]:
    load = host.load
    return {
        "name": host.name,
        "is_packed": host.is_packed,
        "is_replaced": host.is_replaced,
        "node": host.node,
        "pid": host.pid,
        "sessions": load.sessions if load else None,
        "calls": load.calls if load else None,
        "waits": load.waits if load else None,
        "memory_bytes": host.memory_bytes,
    }


@contextmanager
def _keys() -> Iterator[asyncio.Queue[str]]:
    """Read keys as they are pressed, without Enter; yields where they come."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    try:
        import termios
        import tty

        before = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError, ValueError):  # no terminal, or none of Unix
        yield keys
        return
    loop = asyncio.get_running_loop()
    tty.setcbreak(sys.stdin)
    loop.add_reader(sys.stdin, lambda: keys.put_nowait(os.read(sys.stdin.fileno(), 1).decode("ascii", "replace")))
    try:
        yield keys
    finally:
        loop.remove_reader(sys.stdin)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
