"""Measures deliveries: how late runs begin, what an idle dispatcher asks for, and what a call of an agent takes."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import Samples, Table
from servers.postgres_server import PostgresServer
from servers.redis_server import RedisServer
from turnwise import EchoEngine, InProcess, Packed, SessionManager, Turn
from turnwise.actors.dispatch.dispatcher import Dispatcher
from turnwise.engines import EngineBuilder, RunContext, SessionView, Tool, ToolLoop, ToolRegistry, agent_tool, tool
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.urls import open_store
from turnwise.memory.values.ids import new_id

NAMESPACE = "bench"

FAR_S = 1e8
"""In how many seconds those are due that only wait."""

AT_ONCE = 2500
"""How many deliveries are stored by one commit."""

RATE = 20.0
"""How many deliveries are due each second."""

LATE_S = 30.0
"""How long the last one may take to be carried out, in seconds."""

IDLE_FROM_S = 30.0
"""When counting begins, after the start of a dispatcher: between two of its requests, if it sends one a minute."""

researcher = agent_tool("researcher", engine="agent", description="Finds things out.")


@tool
async def look_up(task: str) -> str:
    """Look something up."""
    return task


class Lead:
    """An engine without a provider, which calls the tool that the prompt names, and then answers."""

    tools: Sequence[Tool] = (researcher, look_up)

    def build(self, session: SessionView) -> ToolLoop:
        return ToolLoop(self, ToolRegistry(*self.tools))

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        if any(isinstance(block, ToolResult) for block in turn.output):
            return [Text(text="That is what is known.")]
        name = next(block.text for block in turn.new_blocks if isinstance(block, User))
        return [ToolUse(call_id=f"call_{new_id()}", name=name, input={"task": "the weather in Lisbon"})]


@contextlib.contextmanager
def stores() -> Iterator[dict[str, Callable[[], str]]]:
    """Yield what makes the URL of a new, empty store, by the name of the database."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-stores-")))
        folder.chmod(0o755)  # the server of PostgreSQL may run under a user of its own
        postgres = PostgresServer(folder)
        stack.callback(postgres.stop, "immediate")

        def of_redis() -> str:
            folder_of_server = folder / new_id()
            folder_of_server.mkdir()
            redis = RedisServer(folder_of_server)
            redis.start()
            stack.callback(redis.kill)
            return redis.url

        yield {
            "SQLite": lambda: f"sqlite:///{folder}/{new_id()}.db",
            "PostgreSQL": postgres.url,
            "Redis": of_redis,
        }


async def fill(store: SessionStore, count: int) -> None:
    """Store deliveries that are due in a time that nobody waits for, in ten sessions."""
    keys = [SessionKey(f"waits-{index}") for index in range(10)]
    sessions = {}
    for key in keys:
        await store.create(SessionRecord(session_id=key.session_id))
        sessions[key] = (await store.activate(key)).session
    due_at = await store.now() + FAR_S
    for first in range(0, count, AT_ONCE):
        key = keys[first // AT_ONCE % 10]
        waiting = [
            Delivery(session_id=key.session_id, delivery_id=new_id(), key=new_id(), occurs_at=due_at, due_at=due_at)
            for _ in range(min(AT_ONCE, count - first))
        ]
        changes = [DeliveryChange(None, delivery) for delivery in waiting]
        sessions[key] = sessions[key].committed()
        await store.commit(key, sessions[key].epoch, Commit(session=sessions[key], deliveries=changes))


def on_store(url: str, use: Callable[[SessionStore], Any]) -> Any:
    """Return what a coroutine function returns for a store that is opened for it."""

    async def run() -> Any:
        store = open_store(url)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())


def lateness(table: Table, *, waiting: int, due: int) -> None:
    """Measure from the time at which a delivery is due to the time of its run, by the store's clock, and judge p99.

    The floor is a call of `run` until it is acknowledged, in the same sessions, meanwhile.
    """
    with stores() as databases:
        for name, make_url in databases.items():
            for placement in (InProcess(), Packed(hosts=1)):
                url = make_url()
                on_store(url, partial(fill, count=waiting))
                where = "in process" if isinstance(placement, InProcess) else "on Ray"
                title = f"due of {waiting:,} that wait in {name}, {where}"
                with SessionManager(url, engine=EchoEngine(), placement=placement, namespace=NAMESPACE) as manager:
                    calls, late = _late(manager, due)
                table.line(f"call of run to its start: {name}, {where}", calls, "floor")
                ratio = f"{late.median / calls.median:.2g} times the floor"
                table.line(f"  {title}", late, ratio)
                table.judge("  p99", late.percentile(99), 1.0, " s")


def _late(manager: SessionManager, count: int) -> tuple[Samples, Samples]:
    calls, late = Samples(), Samples()
    sessions = [manager.open() for _ in range(10)]
    for session in sessions:
        session.run("Hello.").wait()
    first = manager.open().schedule("Now.", after_s=1.0).occurs_at + 2.0
    due = {}
    for index in range(count):
        delivery = sessions[index % 10].schedule("It is time.", at=first + index / RATE)
        due[delivery.run_id] = delivery.occurs_at
    until = time.monotonic() + LATE_S + count / RATE
    while any(session.schedules().items for session in sessions):
        assert time.monotonic() < until, "they are not carried out"
        with calls.timed():
            run = sessions[0].run("Meanwhile.")
        run.wait()
        time.sleep(0.1)
    for session in sessions:
        late += [run.created_at - due[run.run_id] for run in session.runs(limit=1000) if run.run_id in due]
    assert len(late) == count
    return calls, late


class CountedStore:
    """A store that counts what it is asked for."""

    def __init__(self, inner: SessionStore) -> None:
        self.requests: Counter[str] = Counter()
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def counted(*args: Any, **settings: Any) -> Any:
            self.requests[name] += 1
            return await method(*args, **settings)

        return counted


def idleness(table: Table, *, waiting: int, minutes: float) -> None:
    """Count what idle dispatchers ask their stores for, with many deliveries that wait and with none."""

    async def requests_of(url: str) -> float:
        store = open_store(url)
        counted: Any = CountedStore(store)

        async def deliver(delivery: Delivery) -> None:
            raise AssertionError(f"{delivery} is not due")

        running = asyncio.create_task(Dispatcher(counted, deliver, "bench").run())
        await asyncio.sleep(min(IDLE_FROM_S, minutes * 60.0))
        counted.requests.clear()
        await asyncio.sleep(minutes * 60.0)
        total: int = counted.requests.total()
        running.cancel()
        await asyncio.wait([running])
        await store.close()
        return total / minutes

    async def count(urls: Sequence[str]) -> Sequence[float]:
        return await asyncio.gather(*map(requests_of, urls))

    with stores() as databases:
        urls: dict[str, str] = {}
        for name, make_url in databases.items():
            for number in (waiting, 0):
                url = urls[f"{name}, {number:,} waiting"] = make_url()
                on_store(url, partial(fill, count=number))
        table.line("requests of an idle dispatcher")
        for title, per_minute in zip(urls, asyncio.run(count([*urls.values()])), strict=True):
            table.judge(f"  {title}", per_minute, 1.0, " a minute")


def agent_calls(table: Table, folder: Path, count: int) -> None:
    """Measure a turn that calls an agent, compared with the agent's turn by itself and one of the caller with a tool.

    They alternate. The agent's turn by itself is the first one of a new session, as it is in a call.
    """
    for placement in (InProcess(), Packed(hosts=1)):
        where = "in process" if isinstance(placement, InProcess) else "on Ray"
        of_agent, of_tool, called = Samples(), Samples(), Samples()
        engines: dict[str, EngineBuilder] = {"lead": Lead(), "agent": EchoEngine()}
        url = f"sqlite:///{folder}/agents-{type(placement).__name__}.db"
        with SessionManager(url, engine=engines, placement=placement, namespace=NAMESPACE) as manager:
            session = manager.open(engine="lead")
            for number in range(-5, count):
                with of_agent.timed():
                    manager.open(engine="agent").run("the weather in Lisbon").wait()
                with of_tool.timed():
                    session.run("look_up").wait()
                with called.timed():
                    turn = session.run("researcher").wait(LATE_S)
                results = [block.text for block in turn.output if isinstance(block, ToolResult)]
                assert results == ["the weather in Lisbon"]
                if number < 0:
                    for samples in (of_agent, of_tool, called):
                        samples.clear()
        table.line(f"first turn of a new session, {where}", of_agent, "floor")
        table.line(f"turn that calls a tool, {where}", of_tool, "floor")
        ratio = called.median / (of_agent.median + of_tool.median)
        table.line(f"turn that calls an agent, {where}", called)
        table.judge("  to both", ratio, 1.3)
