"""Measures turns, streams, events, tools, sessions and windows, if possible against a lower bound: `make bench`.

    python tests/bench/bench.py            more than twenty minutes; with names of parts, only these
    python tests/bench/bench.py --quick    a short check that it works; its numbers mean little

After a warm-up, the lower bound and the subject are sampled in alternating rounds, so that other load affects both.
Ratios are of medians, unless stated otherwise. Missed goals are reported, not raised.
"""

import argparse
import asyncio
import faulthandler
import json
import logging
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# Ray reads these when it is imported: send no statistics, and do not report the actors that are killed on purpose.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as Ray spells it; otherwise its workers get less than lower bounds
os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

import openai
import psutil  # type: ignore[import-untyped]
import ray

import cancelling
import deliveries
import packing
import quotas
import searching
import serving
import window
from engines import process_of
from harness import ProcessorTime, Samples, Table, counted_calls, end_process, prompt_of, retire
from long_term import forgetting, remembering
from prefix import affinity, pressure, reuse
from replaying import measure as replaying
from stored.sql_traffic import listening
from turnwise import (
    Dedicated,
    EchoEngine,
    ExecutionHandle,
    OpenAIEngine,
    Packed,
    RunCancelledError,
    Session,
    SessionConfig,
    SessionManager,
    Turn,
    tool,
)
from turnwise.actors.cluster.actors.packed_actor import MAX_CALLS
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.alarm import NO_ALARM
from turnwise.actors.session.state.outbox import WebhookOutbox
from turnwise.engines import EngineBuilder, RunContext, SessionView, ToolLoop, ToolRegistry
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import AddsOutput, Event, TextDelta
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.stores.base import Commit
from turnwise.memory.values.ids import new_id
from turnwise.stores import SessionRecord, SQLStore
from turnwise.testing import LocalProvider

NAMESPACE = "bench"

CPUS = 2
"""Those of the Ray, which prepares as many processes when it starts."""

TOO_LONG_S = 1200
"""The time limit of a part in seconds. After it, the stacks are printed, and the bench fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of the measurements."""

    rounds: int
    turns: int
    streams: int
    tokens: int
    first_tokens: int
    replays: int
    events: int
    loops: int
    cancels: int
    hang_ups: int
    openings: int
    decisions: int
    countings: int
    neighbours: int
    neighbour_s: float
    talks: int
    resident: int
    stored: int
    activations: int
    busy: int
    kills: int
    users: int
    forgets: int
    followers: int
    followed_tokens: int
    waiting: int
    messages: int
    searches: int
    due: int
    idle_minutes: float
    agents: int
    replayed: int
    conversation: int


FULL = Scale(
    rounds=100,
    turns=2000,
    streams=5,
    tokens=100_000,
    first_tokens=60,
    replays=5,
    events=50_000,
    loops=30,
    cancels=300,
    hang_ups=60,
    openings=10,
    decisions=50,
    countings=200,
    neighbours=6,
    neighbour_s=0.8,
    talks=30,
    resident=10_000,
    stored=100_000,
    activations=1000,
    busy=1000,
    kills=15,
    users=500,
    forgets=6,
    followers=500,
    followed_tokens=150,
    waiting=100_000,
    messages=100_000,
    searches=500,
    due=400,
    idle_minutes=2.0,
    agents=50,
    replayed=100_000,
    conversation=40,
)
QUICK = Scale(
    rounds=5,
    turns=100,
    streams=2,
    tokens=10_000,
    first_tokens=5,
    replays=2,
    events=2_000,
    loops=3,
    cancels=10,
    hang_ups=5,
    openings=1,
    decisions=3,
    countings=10,
    neighbours=1,
    neighbour_s=0.2,
    talks=2,
    resident=40,
    stored=400,
    activations=20,
    busy=70,
    kills=1,
    users=10,
    forgets=2,
    followers=20,
    followed_tokens=10,
    waiting=5_000,
    messages=2_000,
    searches=20,
    due=20,
    idle_minutes=0.02,
    agents=3,
    replayed=200,
    conversation=10,
)


class Chatter:
    """An engine that streams tokens as fast as possible, and yields to the event loop after every 20."""

    def __init__(self, tokens: int) -> None:
        self._count = tokens

    @property
    def tokens(self) -> list[str]:
        return [f"{index:05} " for index in range(self._count)]

    def build(self, session: SessionView) -> "Chatter":
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        tokens = self.tokens
        for index, token in enumerate(tokens):
            context.emit(token)
            if index % 20 == 19:
                await asyncio.sleep(0)
        return [Text(text="".join(tokens))]


class Agent:
    """An engine without a provider, which calls a quick tool as often as the prompt says, and then answers."""

    def build(self, session: SessionView) -> ToolLoop:
        return ToolLoop(self, ToolRegistry(look_up, max_steps=100))

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        steps = next(int(block.text) for block in turn.new_blocks if isinstance(block, User))
        done = sum(isinstance(block, ToolResult) for block in turn.output)
        if done == steps:
            return [Text(text=f"I have looked {steps} things up.")]
        return [ToolUse(call_id=f"call_{new_id()}", name="look_up", input={"word": f"number {done}"})]


@tool
async def look_up(word: str) -> str:
    """Look up a word."""
    return f"{word} is a number, and what else is there to say of it?"


class Bare:
    """An empty actor."""

    async def call(self) -> None:
        pass

    async def pid(self) -> int:
        return os.getpid()


def await_spare() -> None:
    """Wait until some Ray of this machine has a process that is ready for an actor, and then for rest."""
    while not any(process.info["name"] == "ray::IDLE" for process in psutil.process_iter(["name"])):
        time.sleep(0.1)
    time.sleep(2)


def bare_actor() -> Any:
    """Return an empty actor with the same options as a session's."""
    return (
        ray.remote(Bare)
        .options(
            name=new_id(),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=MAX_CALLS,
            enable_task_events=False,
        )
        .remote()
    )


def write_rows(connection: sqlite3.Connection, text: str) -> None:
    """Write as many rows, in as many transactions, as a turn does."""
    for _ in range(2):
        connection.execute("BEGIN IMMEDIATE")
        for number in range(5):
            connection.execute("INSERT INTO t VALUES (?, ?)", (number, text))
        connection.execute("COMMIT")


def read_rows(connection: sqlite3.Connection, page: int) -> int:
    """Read all events, by pages, and their bodies as JSON; return how many there are."""
    select = "SELECT * FROM turnwise_events WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"
    ((key,),) = connection.execute("SELECT key FROM turnwise_sessions WHERE session_id = 'replay'")
    seq = count = 0
    while page_rows := connection.execute(select, (key, seq, page)).fetchall():
        rows = [(row, json.loads(row[-1])) for row in page_rows]
        count += len(rows)
        seq = page_rows[-1][1]
    return count


IMPORTED = "import turnwise.actors.cluster.actors.session_actor, turnwise.memory.stores.sql.store"
"""What the process of a dedicated session on SQLite imports."""


def import_s(first: str, then: str) -> float:
    """Return how many seconds a statement takes after another, in a process of its own."""
    code = f"import time; {first}; began = time.perf_counter(); {then}; print(time.perf_counter() - began)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def memory_after(statement: str) -> float:
    """Return the memory of a process that has run a statement, in bytes, with its part of shared memory."""
    command = [sys.executable, "-c", f"import sys; {statement}; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        return packing.pss_of(process.pid)


class Bench:
    """The measurements in the order of the table."""

    def __init__(self, scale: Scale, table: Table, folder: Path) -> None:
        self.scale = scale
        self.table = table
        self.folder = folder
        self.bare = bare_actor()
        self.call_s = 0.0
        """The median duration of the bare call, over all rounds of `turns`."""
        self.bare_s = 0.0
        """The time to create a bare actor."""

    def url(self, name: str) -> str:
        return f"sqlite:///{self.folder / name}.db"

    def manager(
        self,
        name: str,
        engine: Any,
        *,
        overflow: Any = None,
        memories: Sequence[Any] = (),
        spare_processes: int = 0,
        **config: Any,
    ) -> SessionManager:
        """Return a manager that has Ray prepare no processes, unless told, which would work beside what is measured."""
        placement = Dedicated(spare_processes=spare_processes)
        equipment: dict[str, Any] = {"engine": engine, "memory": memories, "overflow": overflow, "placement": placement}
        return SessionManager(self.url(name), config=SessionConfig(**config), namespace=NAMESPACE, **equipment)

    def call(self, samples: Samples, times: int) -> None:
        for _ in range(times):
            with samples.timed():
                ray.get(self.bare.call.remote())

    def turns(self) -> None:
        """Measure a durable turn, compared with a bare call: the time that it takes, and the processor time."""
        calls, turns, alone, rows, rounds, prompt = Samples(), Samples(), Samples(), Samples(), 20, prompt_of(200)
        path = self.folder / "rows.db"
        with (
            self.manager("turn", EchoEngine()) as manager,
            asyncio.Runner() as runner,
            closing(sqlite3.connect(path, isolation_level=None)) as connection,
        ):
            session = manager.open()
            core, store = runner.run(self._core_of("alone", EchoEngine()))
            connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (a, b)")
            for _ in range(rounds):
                self.call(Samples(), 10)
                session.run(prompt).wait()
            runner.run(self._turns_of(core, prompt, rounds, Samples()))
            caller, session_pid, bare_pid = os.getpid(), process_of(session.info()), ray.get(self.bare.pid.remote())
            of_calls, of_turns, count = ProcessorTime(), ProcessorTime(), rounds * self.scale.rounds
            for _ in range(self.scale.rounds):
                with of_calls.measured(caller, bare_pid):
                    self.call(calls, rounds)
                with of_turns.measured(caller, session_pid):
                    for _ in range(rounds):
                        with turns.timed():
                            session.run(prompt).wait()
                runner.run(self._turns_of(core, prompt, rounds, alone))
                for _ in range(rounds):
                    with rows.timed():
                        write_rows(connection, prompt)
            runner.run(core.ownership.leave())
            runner.run(store.close())
            with counted_calls() as counted:
                for _ in range(rounds):
                    session.run(prompt).wait()
            retire(session)
        self.call_s = calls.median
        self.table.line("bare call of an empty async actor", calls, "floor")
        self.table.judge("durable turn: run + wait, on SQLite", turns.median / calls.median, 2.5, samples=turns)
        call_ms, turn_ms = (sum(taken.values()) / count * 1000 for taken in (of_calls, of_turns))
        parts = (
            f"caller {of_turns[caller] / count * 1000:.2f} ms, session {of_turns[session_pid] / count * 1000:.2f} ms"
        )
        self.table.line("  processor time of a bare call, in both processes", result=f"{call_ms:.2f} ms, floor")
        self.table.line("  processor time of a turn, in both processes", result=f"{turn_ms:.2f} ms: {parts}")
        self.table.judge("  to that of a bare call", turn_ms / call_ms, 2.5)
        shown = f"{counted.local / rounds:g} over a socket, {counted.by_ray / rounds:g} by Ray"
        self.table.line("  requests a turn, counted in this process", result=shown)
        self.table.line(
            "  its session core alone, in one process", alone, f"{alone.median / turns.median:.0%} of the turn"
        )
        self.table.line(
            "  2 transactions of 5 rows each, by sqlite3", rows, f"{rows.median / turns.median:.0%} of the turn"
        )
        transactions, statements = asyncio.run(self._sql_of_a_turn("traced", EchoEngine(), prompt, rounds))
        self.table.line(
            "  transactions a turn, counted at SQLite", result=f"{transactions:g}, of {statements:g} statements"
        )

    async def _sql_of_a_turn(
        self, name: str, engine: EngineBuilder, prompt: str, turns: int, *, about: str = ""
    ) -> tuple[float, float]:
        """Return the numbers of transactions and statements of a turn, of a session core in this process.

        Args:
            about: count only statements that have this in their text.
        """
        traced = list[str]()
        core, store = await self._core_of(name, engine, traced.append)
        await self._turns_of(core, prompt, 1, Samples())  # it reads what a process reads once a minute
        traced.clear()
        await self._turns_of(core, prompt, turns, Samples())
        await core.ownership.leave()
        await store.close()
        commits = sum(sql == "COMMIT" for sql in traced)
        begins = sum(sql.startswith("BEGIN") for sql in traced)
        assert commits == begins > 0, traced
        others = sum(about in sql for sql in traced if sql != "COMMIT" and not sql.startswith("BEGIN"))
        return commits / turns, others / turns

    async def _core_of(
        self, name: str, engine: EngineBuilder, trace: Callable[[str], object] | None = None
    ) -> tuple[SessionCore, SQLStore]:
        """Return a new session's core in this process, and its store."""
        store = SQLStore(self.url(name))
        with listening("connect", lambda connection, _: connection.set_trace_callback(trace)):
            await store.create(SessionRecord(session_id=name))
            core = SessionCore(SessionKey(name), store, engine, outbox=WebhookOutbox(store, NO_ALARM))
            await core.transactor.activate()
        return core, store

    async def _turns_of(self, core: SessionCore, prompt: str, turns: int, samples: Samples) -> None:
        for _ in range(turns):
            with samples.timed():
                started = await core.admission.start([prompt], run_id=new_id())
                await core.reads.wait(started.run_id)

    def growths(self) -> None:
        for chars in (200, 500, 2000):
            self.growth(chars)

    def growth(self, chars: int) -> None:
        """Measure an old session's turns, alternating with young sessions' early ones; and the old session's file.

        The 10th and the 2,000th turn of one session cannot be compared: the machine's speed changes in between.
        """
        early, late, name, last = Samples(), Samples(), f"growth-{chars}", self.scale.turns
        text = 0

        def converse(session: Session, samples: Samples) -> None:
            nonlocal text
            prompt = prompt_of(chars, seed=text)
            with samples.timed():
                turn = session.run(prompt).wait()
            text += (len(prompt.encode()) + len(turn.text.encode())) * (session is old)

        with self.manager(name, EchoEngine()) as manager, self.manager(f"{name}-young", EchoEngine()) as other_manager:
            old = manager.open()
            for _ in range(last - 39):
                converse(old, Samples())
            for _ in range(3):
                young = other_manager.open()
                for _ in range(100):
                    young.info()  # so that its early turns are not held back by a process that is still cold
                for _ in range(3):
                    converse(young, Samples())
                for _ in range(4, 17):
                    converse(young, early)
                    converse(old, late)
                retire(young)
            assert (newest := old.latest()) and newest.index == last - 1
            retire(old)
        stored = self._bytes_of(name)
        self.table.line(f"turns 4 to 16, prompts of {chars} characters", early, "floor")
        self.table.judge(
            f"  turns {last - 38} to {last}, alternating with those", late.median / early.median, 1.2, samples=late
        )
        self.table.line("  bytes stored a turn, to those of its text", result=f"{stored / text:.3g}x")
        self.table.judge("  bytes stored a turn, beside its text", (stored - text) / last, 500, " bytes")

    def _bytes_of(self, name: str) -> int:
        """Return the size of a store's file, including its write-ahead log."""
        path = self.folder / f"{name}.db"
        connection = sqlite3.connect(path)
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        connection.close()
        assert not busy
        return path.stat().st_size

    def streams(self) -> None:
        """Measure from the call of `run` until this process has received the last token.

        Once with events that collect 5 ms, as by default, and once with an event each time that the engine yields.
        """
        engine = Chatter(self.scale.tokens)
        rates: tuple[tuple[str, dict[str, Any]], ...] = (
            (f"{self.scale.tokens:,} tokens, streamed to another process", {}),
            ("  the same, an event for every 20 tokens", {"delta_interval_s": 0.0}),
        )
        for title, config in rates:
            samples = Samples()
            with self.manager("stream", engine, **config) as manager:
                session = manager.open()
                for number in range(-1, self.scale.streams):
                    with samples.timed():
                        events = session.run("Talk.").events()
                        received = [event.text for event in events if isinstance(event, TextDelta)]
                    assert "".join(received) == "".join(engine.tokens), "no token is missing, and none is out of order"
                    if number < 0:
                        samples.clear()
                retire(session)
            rate = self.scale.tokens / samples.median
            self.table.judge(title, rate, 20_000, " tokens/s", samples, bound="least")

    def first_tokens_of_both(self) -> None:
        self.first_tokens("chat")
        self.first_tokens("responses")

    def first_tokens(self, api: Literal["chat", "responses"]) -> None:
        """Measure from `run` to the first token, alternating with the bare client's time to the first token.

        Both have an open connection, and send the same conversation.
        """
        bare, of_sessions, messages = Samples(), Samples(), list[dict[str, str]]()
        reply = "A few words to begin with, and then a few more."
        with LocalProvider(token_delay_s=0.001, reply=reply) as provider:
            engine = OpenAIEngine("stand-in", api=api, base_url=provider.base_url, api_key="no-key")
            client = openai.OpenAI(base_url=provider.base_url, api_key="no-key", max_retries=0)
            with self.manager(f"first-{api}", engine) as manager, client:
                session = manager.open()
                for number in range(-3, self.scale.first_tokens):
                    messages.append({"role": "user", "content": f"Tell me, for the {number}th time."})
                    with bare.timed():
                        stream, text = first_text(client, api, messages)
                    for _ in stream:
                        pass  # the connection is free again when all has come
                    with of_sessions.timed():
                        run = session.run(messages[-1]["content"])
                        events = run.events()
                        first = next(event for event in events if isinstance(event, TextDelta))
                    assert text and first.text.startswith(text)
                    assert run.wait().text == reply
                    messages.append({"role": "assistant", "content": reply})
                    if number < 0:
                        bare.clear()
                        of_sessions.clear()
                retire(session)
        self.table.line(f"first token, {api}: bare client", bare, "floor")
        more = (of_sessions.median - bare.median) * 1000
        self.table.judge(f"first token, {api}: a session, above that", more, 5, " ms", of_sessions)

    def replays(self) -> None:
        """Measure how fast stored events are read from a cursor: from the store, and through a session's process."""
        stored, rows, replayed, count, page = Samples(), Samples(), Samples(), self.scale.events, 1000
        written = asyncio.run(self._write_events("replay", count))
        with self.manager("replay", EchoEngine()) as manager:
            session = manager.open("replay")
            ray.get(session.actor.ready.remote())  # without a process, this one would read the store
            for _ in range(self.scale.replays):
                asyncio.run(self._read_events("replay", stored, written, page))
                with closing(sqlite3.connect(self.folder / "replay.db")) as connection, rows.timed():
                    assert read_rows(connection, page) == len(written)
                with replayed.timed():
                    read = list[Event]()
                    while page_events := session.events(read[-1].seq if read else 0, page):
                        read += page_events
                assert [event.seq for event in read] == written
                adding = [event for event in read if isinstance(event, AddsOutput)]
                assert adding and all(
                    len(event.blocks) == event.span[1] - event.span[0] for event in adding if event.span
                )
            retire(session)
        title = f"{len(written):,} events read of SQLite, by {page:,}"
        self.table.judge(title, len(written) / stored.median, 100_000, " events/s", stored, bound="least")
        raw = f"{len(written) / rows.median:,.0f} events/s"
        self.table.line("  the same rows by sqlite3, their bodies as JSON", rows, raw)
        title, rate = "  the same with their blocks, of another process", len(written) / replayed.median
        self.table.judge(title, rate, 40_000, " events/s", replayed, bound="least")

    async def _write_events(self, name: str, count: int) -> list[int]:
        """Store many events and blocks, by repeating those of one run with tools; return the events' numbers."""
        store = SQLStore(self.url(name))
        await store.create(SessionRecord(session_id="sample"))
        core = SessionCore(SessionKey("sample"), store, Agent())
        started = await core.admission.start(["3"], run_id=new_id())
        await core.reads.wait(started.run_id)
        await core.ownership.leave()
        sample = await store.get(SessionKey("sample"))
        blocks = await store.blocks([Span(sample.log, 0, sample.log_size)])
        events = await store.events(SessionKey("sample"))
        last, size = events[-1].seq, sample.log_size

        def again(event: Event, run_id: str, copy: int) -> Event:
            own: dict[str, Any] = {
                "session_id": name,
                "seq": event.seq + copy * last,
                "turn_index": copy,
                "run_id": run_id,
            }
            if isinstance(event, AddsOutput) and event.span:
                own["span"] = (event.span[0] + copy * size, event.span[1] + copy * size)
            return event.model_copy(update=own)

        await store.create(SessionRecord(session_id=name))
        session, written = (await store.activate(SessionKey(name))).session, list[int]()
        while len(written) < count:
            copy = len(written) // len(events)
            run = [again(event, run_id, copy) for run_id in [new_id()] for event in events][: count - len(written)]
            session = session.committed(log_size=(copy + 1) * size, next_index=copy + 1, seq=(copy + 1) * last)
            await store.commit(SessionKey(name), session.epoch, Commit(session=session, blocks=blocks, events=run))
            written += [event.seq for event in run]
        await store.close()
        return written

    async def _read_events(self, name: str, samples: Samples, written: list[int], page: int) -> None:
        store = SQLStore(self.url(name))
        await store.get(SessionKey(name))
        with samples.timed():
            read = list[Event]()
            while page_events := await store.events(SessionKey(name), after=read[-1].seq if read else 0, limit=page):
                read += page_events
        await store.close()
        assert [event.seq for event in read] == written

    def tool_loops(self) -> None:
        """Measure a run with many steps, compared with runs with one step, alternating in one session."""
        single, many, steps = Samples(), Samples(), 20
        with self.manager("loop", Agent()) as manager:
            session = manager.open()
            session.run(str(steps)).wait()
            for _ in range(self.scale.loops):
                for _ in range(3):
                    with single.timed():
                        session.run("1").wait()
                with many.timed():
                    turn = session.run(str(steps)).wait()
                assert sum(isinstance(block, ToolResult) for block in turn.output) == steps
            retire(session)
        self.table.line("tool loop: a run with 1 step, on SQLite", single, "floor")
        self.table.judge(f"tool loop: a run with {steps} steps", many.median / single.median, steps, samples=many)
        step_ms = (many.median - single.median) / (steps - 1) * 1000
        self.table.line("  what a step adds", result=f"{step_ms:.3g} ms")
        transactions, statements = asyncio.run(self._sql_of_a_turn("traced-loop", Agent(), str(steps), 3))
        self.table.line(
            f"  transactions of {steps} steps, counted at SQLite",
            result=f"{transactions:g}, of {statements:g} statements",
        )

    def cancels(self) -> None:
        """Measure from the call of `cancel` to the error in a thread that waits, and where that time goes."""
        samples, calls, prompt, stamps = Samples(), Samples(), prompt_of(600), self.folder / "cancels.jsonl"
        taken: list[tuple[float, float]] = []

        def outlast(run: ExecutionHandle, waiting: threading.Event) -> float:
            waiting.set()
            with suppress(RunCancelledError):
                run.wait()
                raise AssertionError("the run was not cancelled")
            return time.monotonic()

        with (
            self.manager("cancel", cancelling.Watched(str(stamps))) as manager,
            ThreadPoolExecutor(1) as threads,
            cancelling.watched_collections(stamps),
        ):
            session = manager.open()
            for number in range(-5, self.scale.cancels):
                self.call(calls, 5)
                run, waiting = session.run(prompt), threading.Event()
                waiter = threads.submit(outlast, run, waiting)
                await_text(run)
                waiting.wait()
                began = time.monotonic()
                assert run.cancel()
                ended = waiter.result()
                if number >= 0:
                    samples.append(ended - began)
                    taken.append((began, ended))
                else:
                    calls.clear()
            retire(session)
        self.table.line("bare call, between the cancels", calls, "floor")
        title = "cancel to the waiter's error: median to the floor's"
        self.table.judge(title, samples.median / calls.median, 2.5, samples=samples)
        self.table.judge("  p99 to the floor's p99", samples.percentile(99) / calls.percentile(99), 4)
        cancel_stamps = cancelling.stamps_of(stamps)
        parts = [
            cancelling.parts_of(began, ended, cancel_stamps)
            for began, ended in sorted(taken, key=lambda times: times[1] - times[0])
        ]
        slowest = max(2, len(parts) // 100)
        self.table.line("  ms of the faster half, on average", result=cancelling.means_text(parts[: len(parts) // 2]))
        self.table.line(f"  ms of the slowest {slowest}", result=cancelling.means_text(parts[-slowest:]))

    def hang_ups(self) -> None:
        """Measure from the call of `cancel` until the provider notices that its client has disconnected."""
        samples = Samples()
        with LocalProvider(token_delay_s=0.01, reply=prompt_of(2000)) as provider:
            engine = OpenAIEngine("stand-in", base_url=provider.base_url, api_key="no-key")
            with self.manager("hang-up", engine) as manager:
                session = manager.open()
                for number in range(-2, self.scale.hang_ups):
                    run = session.run("Tell me.")
                    await_text(run)
                    record, began = provider.requests[-1], time.monotonic()
                    assert run.cancel()
                    assert record.ended.wait(10) and record.hung_up_at, "the provider's client hung up"
                    if number >= 0:
                        samples.append(record.hung_up_at - began)
                retire(session)
        self.table.judge(
            "cancel to the provider's closed line: p99", samples.percentile(99) * 1000, 50, " ms", samples=samples
        )

    def window(self) -> None:
        """Measure the cost of the context window."""
        scale, site = self.scale, (self.url("neighbours"), NAMESPACE)
        window.decisions(self.table, scale.decisions)
        window.countings(self.table, scale.countings)
        window.idle_strategy(self.table, self.manager, scale.rounds)
        with self.manager("neighbours", EchoEngine()) as manager:
            window.beside_compactions(self.table, manager, site, rounds=scale.neighbours, window_s=scale.neighbour_s)

    def memory(self) -> None:
        """Measure the cost of long-term memory."""
        remembering.turns_with_memory(self.table, self.manager, self.folder, self.scale.talks)
        remembering.recalls(self.table, NAMESPACE, self.folder, self.scale.talks)

    def forgetting(self) -> None:
        """Measure the turns of other users while users are forgotten."""
        forgetting.forgets(self.table, self.manager, self.folder, self.scale.users, self.scale.forgets)

    def http(self) -> None:
        """Measure the service over HTTP, in a process of its own."""
        asyncio.run(
            serving.measure(
                self.table,
                self.folder,
                NAMESPACE,
                first=self.scale.first_tokens,
                rounds=self.scale.rounds,
                follow=self.scale.followers,
                tokens=self.scale.followed_tokens,
            )
        )

    def deliveries(self) -> None:
        """Measure what sessions do by themselves, and what a turn costs that has nothing to do with it."""
        scale = self.scale
        table = "turnwise_deliveries"
        _, statements = asyncio.run(self._sql_of_a_turn("undelivered", EchoEngine(), prompt_of(200), 20, about=table))
        self.table.judge("statements about deliveries of a turn without any", statements, 0.0, "")
        deliveries.agent_calls(self.table, self.folder, scale.agents)
        deliveries.lateness(self.table, waiting=scale.waiting, due=scale.due)
        deliveries.idleness(self.table, waiting=scale.waiting, minutes=scale.idle_minutes)

    def search(self) -> None:
        """Measure search, and what it adds to a turn."""
        searching.measure(self.table, messages=self.scale.messages, rounds=self.scale.searches)

    def replay(self) -> None:
        """Measure replays of many stored sessions by an instant model, on Ray Data."""
        cache = Path(__file__).parents[2] / ".cache" / "replay"
        replaying.measure(self.table, self.folder, cache, sessions=self.scale.replayed)

    def quotas(self) -> None:
        """Measure what quotas add to turns, and by how much one of tokens is exceeded."""
        quotas.measure(self.table, rounds=self.scale.searches)

    def prefix(self) -> None:
        """Measure which share of their requests servers could find in their caches."""
        reuse.measure(self.table, turns=self.scale.conversation)
        pressure.measure(self.table, steps=self.scale.conversation // 2)
        affinity.measure_agents(self.table)
        is_quick = self.scale is QUICK
        affinity.measure(self.table, sessions=3 if is_quick else 5, turns=4 if is_quick else 20)

    def packed(self) -> None:
        """Measure the capacity and speed of packed hosts, and their recovery after a kill."""
        scale, manage = self.scale, packing.manage_in(self.folder, NAMESPACE)
        if not self.bare_s:
            self._measure_bare()
        packing.residents(self.table, manage, scale.resident, self.bare_s)
        packing.activations(self.table, manage, self.folder, scale.stored, scale.activations)
        packing.turns_at_once(self.table, manage, self.bare, scale.busy, scale.loops)
        packing.turns_at_once(self.table, manage, self.bare, min(64, scale.busy), scale.loops)
        with (
            self.manager("killed", EchoEngine()) as dedicated,
            SessionManager(
                self.url("killed-hosts"), engine=EchoEngine(), placement=Packed(hosts=1), namespace=NAMESPACE
            ) as packed,
        ):
            packing.kills(self.table, dedicated, packed, bare_actor, scale.kills)

    def visits(self) -> None:
        """Measure many more sessions than may be resident, each opened and visited once."""
        packing.visits(self.table, self.url("visits"), NAMESPACE, self.scale.stored)

    def _measure_bare(self) -> None:
        """Measure creating an empty actor, as `openings` does, if that is left out."""
        actors = Samples()
        for _ in range(-1, self.scale.openings):
            self._make_bare(actors)
        self.bare_s = statistics.median(actors[1:])

    def _make_bare(self, samples: Samples) -> None:
        with samples.timed():
            actor = bare_actor()
            ray.get(actor.call.remote())
        end_process(actor, ray.get(actor.pid.remote()))

    def openings(self) -> None:
        """Measure opening a session in a dedicated process, compared with creating an empty actor.

        Ray prepares processes when it starts and replaces none, so an empty actor's is new: those of a Ray of their
        own, which imports nothing ahead, are the floor. A session's process is ready, since managers have it prepared;
        what a new one takes is measured as well.
        """
        program = [sys.executable, str(Path(__file__).with_name("bare_actors.py")), str(self.scale.openings)]
        floor = Samples(json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout))
        bare_ready, opened, answered, answered_new = Samples(), Samples(), Samples(), Samples()
        with self.manager("ready", EchoEngine(), spare_processes=1) as ready, self.manager("new", EchoEngine()) as new:

            def open_one(manager: SessionManager, samples: Samples) -> None:
                with samples.timed():
                    with opened.timed():
                        session = manager.open()
                    session.run("Hello.").wait()
                retire(session)

            def measure() -> None:
                open_one(ready, Samples())  # has a process prepared
                await_spare()
                open_one(ready, answered)
                await_spare()
                self._make_bare(bare_ready)
                open_one(new, answered_new)

            for _ in range(CPUS):
                self._make_bare(Samples())  # uses up the processes that Ray started ahead
            measure()
            for samples in (bare_ready, opened, answered, answered_new):
                samples.clear()
            for _ in range(self.scale.openings):
                measure()
        self.bare_s = floor.median
        imported = Samples(import_s("import ray", IMPORTED) for _ in range(self.scale.openings))
        self.table.line("bare actor: made, first call answered", floor, "floor")
        self.table.line("bare actor, its process ready", bare_ready, f"{bare_ready.median / floor.median:.3g}x")
        self.table.line("what a session's process imports, above ray", imported)
        self.table.line("session: open(), without an answer", opened)
        self.table.judge("session: open() + first turn", answered.median / floor.median, 1.35, samples=answered)
        title = "session: open() + first turn, its process new"
        self.table.line(title, answered_new, f"{answered_new.median / floor.median:.3g}x")

    def openings_at_once(self) -> None:
        """Measure opening six sessions at once, each in a process of its own, compared with six empty actors."""
        floor, opened, six = Samples(), Samples(), range(6)
        with self.manager("six", EchoEngine()) as manager, ThreadPoolExecutor(len(six)) as threads:
            for _ in range(-1, max(1, self.scale.openings // 3)):
                with floor.timed():
                    actors = [bare_actor() for _ in six]
                    ray.get([actor.call.remote() for actor in actors])
                for actor in actors:
                    end_process(actor, ray.get(actor.pid.remote()))
                sessions = list[Session]()

                def talk(_: int, sessions: list[Session] = sessions) -> None:
                    sessions.append(manager.open())
                    sessions[-1].run("Hello.").wait()

                with opened.timed():
                    list(threads.map(talk, six))
                for session in sessions:
                    retire(session)
        title = "six sessions at once: open() + first turn"
        self.table.line("six bare actors at once", floor, "floor")
        self.table.judge(title, opened.median / floor.median, 1.3, samples=opened)

    def imports(self) -> None:
        """Measure imports, each in a process of its own."""
        taken = {"turnwise": Samples(), "ray": Samples(), "manager": Samples()}
        for _ in range(max(2, self.scale.openings)):
            taken["turnwise"].append(import_s("pass", "import turnwise"))
            taken["ray"].append(import_s("pass", "import ray"))
            taken["manager"].append(import_s("import ray", "from turnwise import SessionManager"))
        self.table.judge("import turnwise", taken["turnwise"].median, 0.15, " s", taken["turnwise"])
        self.table.line("import ray", taken["ray"], "floor")
        title = "from turnwise import SessionManager, above that"
        self.table.judge(title, taken["manager"].median, 0.3, " s", taken["manager"])

    def resident(self) -> None:
        """Measure the memory of a session's own process, compared with an empty actor's, and of a full host."""
        with self.manager("resident-one", EchoEngine()) as manager:
            actors, sessions = [bare_actor() for _ in range(3)], [manager.open() for _ in range(3)]
            for session in sessions:
                session.run("Hello.").wait()
            bare = [packing.pss_of(pid) for pid in ray.get([actor.pid.remote() for actor in actors])]
            of_sessions = [packing.pss_of(process_of(session.info())) for session in sessions]
            for actor, pid in zip(actors, ray.get([actor.pid.remote() for actor in actors]), strict=True):
                end_process(actor, pid)
            for session in sessions:
                retire(session)
        floor, usual = statistics.median(bare) / 2**20, statistics.median(of_sessions) / 2**20
        self.table.line("memory of a bare actor's process", result=f"{floor:.0f} MB, floor")
        self.table.line("memory of a session's process", result=f"{usual:.0f} MB")
        modules = (memory_after(f"import ray; {IMPORTED}") - memory_after("import ray")) / 2**20
        self.table.line("  of which modules, in a process without Ray's", result=f"{modules:.0f} MB")
        self.table.judge("  to that of a bare actor's", usual / floor, 1.25)
        packing.in_one_host(self.table, self.url("one-host"), NAMESPACE, self.scale.resident)


def first_text(client: openai.OpenAI, api: str, messages: Sequence[Any]) -> tuple[Iterator[Any], str]:
    """Request a stream from a provider; return the stream and its first piece of text.

    The conversation is sent as an extra field, since the client is slower with others: this is a lower bound.
    """
    if api == "chat":
        body = {"messages": messages}
        chunks = iter(client.chat.completions.create(model="stand-in", messages=[], stream=True, extra_body=body))
        texts = (chunk.choices[0].delta.content for chunk in chunks if chunk.choices)
        return chunks, next(text for text in texts if text)
    events = iter(client.responses.create(model="stand-in", stream=True, store=False, extra_body={"input": messages}))
    return events, next(event.delta for event in events if event.type == "response.output_text.delta")


def await_text(run: ExecutionHandle) -> None:
    """Return when the run has emitted text."""
    assert any(isinstance(event, TextDelta) for event in run.events())


PARTS: dict[str, Callable[[Bench], object]] = {
    "turns": Bench.turns,
    "growth": Bench.growths,
    "tools": Bench.tool_loops,
    "replays": Bench.replays,
    "streams": Bench.streams,
    "first-tokens": Bench.first_tokens_of_both,
    "cancels": Bench.cancels,
    "hang-ups": Bench.hang_ups,
    "openings": Bench.openings,
    "at-once": Bench.openings_at_once,
    "imports": Bench.imports,
    "resident": Bench.resident,
    "window": Bench.window,
    "memory": Bench.memory,
    "forgetting": Bench.forgetting,
    "deliveries": Bench.deliveries,
    "search": Bench.search,
    "replay": Bench.replay,
    "quotas": Bench.quotas,
    "prefix": Bench.prefix,
    "packed": Bench.packed,
    "visits": Bench.visits,
    "http": Bench.http,
}
"""The measurements in order."""


def main() -> None:
    parser = argparse.ArgumentParser(description="What turns, streams, events, tools, sessions and windows cost.")
    parser.add_argument("--quick", action="store_true", help="only see that it works")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the goals there; verdicts.py compares two runs"
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all if left out")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    scale = QUICK if options.quick else FULL
    began = time.monotonic()
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"Python {platform.python_version()}, Ray {ray.__version__}, {cores} cores, load {load:.1f} at the start")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-bench-")))
        stack.callback(ray.shutdown)
        ray.init(
            "local",
            num_cpus=CPUS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _system_config={"preload_python_modules": ["turnwise.preload"]},  # as a Ray that turnwise starts
        )
        table = Table()
        bench = Bench(scale, table, folder)
        for name, measure in PARTS.items():
            if name not in (options.parts or PARTS):
                continue
            faulthandler.dump_traceback_later(TOO_LONG_S, exit=True)
            measure(bench)
            if options.json:  # also if a later part fails
                options.json.write_text(json.dumps({"goals": table.goals}, indent=1), encoding="utf-8")
    print(f"{table.met} of {len(table.goals)} goals met, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
