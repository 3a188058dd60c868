"""The ledger has what runs, summaries, memories, tools and agents have spent, exactly, whatever fails or dies."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any

import pytest

from scale import of_cases
from teams import Team, asks
from turnwise.actors.hosting.memory.memory_host import MemoryHost
from turnwise.actors.hosting.memory.remote_memory import RemoteMemory
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.engines.budget import Price
from turnwise.engines import FunctionEngine, ToolContext, agent_tool, tool
from turnwise.memories import ExtractiveMemory
from turnwise.memory.conversation.ledger import LedgerQuery, LedgerRow, Spent, UsageReport
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.records import replace
from turnwise.strategies import Summarize
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.usefixtures("quiet")

DAY_S = 86_400.0


async def ledger(store: SessionStore, *by: Any, **filters: Any) -> list[LedgerRow]:
    return await store.ledger(LedgerQuery(by=by, **filters))


def rounded(usage: Usage) -> Usage:
    return replace(usage, seconds=round(usage.seconds, 6), cost=round(usage.cost, 9))


async def check_ledger(store: SessionStore, *keys: SessionKey) -> None:
    """Check that the ledger has what these sessions say that they have spent, and how many runs of them have ended."""
    rows = {row.session_id: row for row in await ledger(store, "session")}
    for key in keys:
        session, runs = await store.get(key), await store.runs(key)
        spent = rows.get(key.session_id, LedgerRow())
        assert rounded(spent.usage) == rounded(session.usage), key
        assert spent.runs == sum(run.has_run for run in runs), key


DIG = tool(lambda: "nothing", name="dig", description="Digs.", repeatable=True)

DIGGER = agent_tool("researcher", engine="digger", description="Digs.")


@pytest.mark.by_turns
def test_the_ledger_says_what_runs_say_whatever_fails_or_dies() -> None:
    """A lost answer counts nothing twice, and a kill loses what no commit has stored, in both."""

    async def life(faults: Faults) -> None:
        digger = ScriptedEngine([[("dig", {})], "found"], tools=[DIG])
        team = Team([asks("a", "b"), "done"], faults, tools=[DIGGER], engines={"digger": digger})
        await team.begin()
        await team.dispatch(team.has_ended)
        keys = [SessionKey(name) for name in team.worlds]
        await check_ledger(team.store, *keys)
        runs = [run for key in keys for run in await team.store.runs(key)]
        total = sum((run.usage for run in runs if run.usage), Usage())
        assert [rounded(row.usage) for row in await ledger(team.store)] == [rounded(total)]
        assert sum(row.runs for row in await ledger(team.store)) == 3
        tools = {row.tool: row.usage.tool_calls for row in await ledger(team.store, "tool")}
        assert tools.keys() == {"", "dig"} and tools["dig"] >= 2 and not tools[""]

    assert exhaust(life, **of_cases()).total() > 100


async def opened(engine: Any, *, store: InMemoryStore | None = None, **settings: Any) -> SessionCore:
    store = store or InMemoryStore()
    await store.create(SessionRecord(session_id="s", agent="clerk"))
    parts = {name: settings.pop(name) for name in ("overflow", "memories") if name in settings}
    core = SessionCore(SessionKey("s"), store, engine, SessionConfig(**settings), **parts)
    await core.transactor.activate()
    return core


async def run(core: SessionCore, run_id: str, prompt: str = "prompt", **options: Any) -> None:
    await core.admission.start([prompt], run_id=run_id, **options)
    await core.reads.wait(run_id)


class Clock:
    def __init__(self, time_s: float) -> None:
        self.time_s = time_s

    def __call__(self) -> float:
        return self.time_s


def speaks(model: str, *, tokens: int = 10) -> Any:
    async def answer(turn: Turn, context: Any) -> str:
        context.report(usage=Usage(input_tokens=tokens, output_tokens=1, calls=1), model=model)
        return "an answer"

    return answer


async def test_a_run_is_priced_by_its_start_and_counted_on_the_day_of_its_commit() -> None:
    clock = Clock(20_000 * DAY_S - 10)  # the last seconds of 2024-10-03
    prices = {"m": [Price(input=1e6, output=0), Price(input=2e6, output=0, since="2024-10-04")]}  # type: ignore[arg-type]
    assert prices["m"][1].since == date(2024, 10, 4)

    async def late(turn: Turn, context: Any) -> str:
        clock.time_s += 20
        return str(await speaks("m", tokens=1)(turn, context))

    core = await opened(FunctionEngine(late), store=InMemoryStore(clock=clock), prices=prices)
    await run(core, "before midnight")
    await run(core, "after midnight")
    rows = [(row.day, row.runs, row.usage.cost) for row in await ledger(core.state.journal.store, "day")]
    assert rows == [("2024-10-04", 2, 3.0)], "the first costs 1, the second 2"
    later = [Price(input=1, output=1, since=date(2030, 1, 1))]
    core = await opened(FunctionEngine(speaks("m")), store=InMemoryStore(clock=clock), prices={"m": later})
    await run(core, "too early")
    assert [row.usage.cost for row in await ledger(core.state.journal.store)] == [0.0]


async def test_runs_are_split_by_models_and_tools_and_stopped_ones_count() -> None:
    """What a tool costs is under its name; a run that never began does not count."""

    @tool
    def look(context: ToolContext) -> str:
        """Look."""
        context.charge(0.25)
        return "seen"

    engine = ScriptedEngine([[("look", {})], "done"], tools=[look])
    core = await opened(engine)
    await run(core, "tools")
    store = core.state.journal.store
    rows = await ledger(store, "tool", "agent", "kind")
    assert [(row.tool, row.agent, row.kind) for row in rows] == [("", "clerk", "run"), ("look", "clerk", "run")]
    assert (rows[0].runs, rows[0].usage.calls, rows[0].usage.cost) == (1, 2, 0.0)
    assert rows[1].usage == Usage(tool_calls=1, cost=0.25) and not rows[1].runs
    begun = asyncio.Event()

    async def waits(turn: Turn, context: Any) -> str:
        context.report(usage=Usage(input_tokens=7, calls=1), model="slow")
        begun.set()
        await asyncio.sleep(60)
        return "never"

    core = await opened(FunctionEngine(waits))
    await core.admission.start(["stop me"], run_id="stopped")
    await core.admission.start(["never begins"], run_id="queued", if_busy="enqueue")
    await begun.wait()
    for run_id in ("queued", "stopped"):
        await core.admission.cancel("not needed", run_id=run_id)
    await core.reads.wait("stopped")
    (row,) = await ledger(core.state.journal.store, "model")
    assert (row.model, row.runs, row.usage.input_tokens, row.usage.calls) == ("slow", 1, 7, 1)
    await check_ledger(core.state.journal.store, SessionKey("s"))


async def test_summaries_are_counted_apart_from_runs() -> None:
    summary = Summarize(FunctionEngine(speaks("small")), max_summary_tokens=100)
    settings: dict[str, Any] = {"max_context_tokens": 1200, "reserve_output_tokens": 100}
    core = await opened(ScriptedEngine(["first " * 300, "second", "third"]), overflow=summary, **settings)
    for run_id in ("one", "two", "three"):
        await run(core, run_id)
    await core.compaction.compact()
    await core.row.refresh()
    store = core.state.journal.store
    rows = {(row.kind, row.model): row.usage.calls for row in await ledger(store, "kind", "model")}
    assert rows.pop(("summary", "small")) >= 1 and all(kind == "run" for kind, _ in rows)
    await check_ledger(store, SessionKey("s"))


async def test_what_memories_spend_on_models_is_the_sessions() -> None:
    """Also if the model's answer is of no use; by the memory's process, whose answer brings it along."""
    extracting = ExtractiveMemory(FunctionEngine(speaks("extractor")), InMemoryItems(), chooses=True)
    host = MemoryHost(lambda: extracting)

    class Process:
        id = "memory"

        def warm(self, request: bytes) -> None: ...

        async def ask(self, request: bytes, *, is_recall: bool) -> bytes:
            return await host.call(request)

    slot = MemorySlot(memory=RemoteMemory(extracting, Process()), name="facts", section=None)
    core = await opened(ScriptedEngine(["hello"] * 2), memories=[slot])
    await run(core, "one", "My name is Ada, and I work as a clerk in Lisbon.")
    await core.ingestion.wait_for_memory()
    store = core.state.journal.store
    rows = {(row.kind, row.model): row.usage for row in await ledger(store, "kind", "model")}
    assert rows["extraction", "extractor"].calls >= 1 and core.transactor.unbilled == Usage()
    assert rows["extraction", "extractor"].input_tokens == 10 * rows["extraction", "extractor"].calls
    await check_ledger(store, SessionKey("s"))
    await host.stop()


async def test_the_title_that_a_model_gives_is_counted_apart() -> None:
    core = await opened(FunctionEngine(speaks("m")), title="auto")
    await run(core, "one")
    async with asyncio.timeout(60):
        while not core.state.journal.session.title:
            await asyncio.sleep(0)
    store = core.state.journal.store
    assert [(row.kind, row.usage.calls, row.runs) for row in await ledger(store, "kind")] == [
        ("run", 1, 1),
        ("title", 1, 0),
    ]
    await check_ledger(store, SessionKey("s"))


def test_a_usage_report_adds_up_exactly_and_is_written_as_csv() -> None:
    rows = tuple(
        LedgerRow(day=day, model=model, runs=1, usage=Usage(input_tokens=3, counted_tokens=1, cost=cost, seconds=0.1))
        for day, model, cost in (("2026-11-29", "=1+1", 0.1), ("2026-11-29", 'a "b", c', 0.2), ("2026-11-30", "", 1e-9))
    )
    report = UsageReport(by=("day", "model"), rows=rows)
    assert report.total.cost == 0.300000001 and report.total.seconds == 0.3 and report.runs == len(report) == 3
    head, first, second, third = report.csv().splitlines()
    assert head == (
        "day,model,runs,calls,tool_calls,input_tokens,cached_tokens,output_tokens,reasoning_tokens,"
        "reported_tokens,counted_tokens,seconds,cost"
    )
    assert first == "2026-11-29,'=1+1,1,0,0,3,0,0,0,2,1,0.1,0.1"
    assert second == '2026-11-29,"a ""b"", c",1,0,0,3,0,0,0,2,1,0.1,0.2'
    assert third == "2026-11-30,,1,0,0,3,0,0,0,2,1,0.1,0.000000001"


def test_parts_of_usage_are_added_and_taken_away() -> None:
    first = Spent.on(Usage(calls=1, cost=0.1)) + Spent.on(Usage(calls=2, cost=0.2), model="m")
    both = first + Spent.on(Usage(calls=4, cost=0.2), model="m")
    assert both.total.calls == 7 and len(both.parts) == 2
    assert (both - first).parts == Spent.on(Usage(calls=4, cost=0.2), model="m").parts
    assert not both - both and both - both == Spent()
    assert [*both.with_model("m").parts.values()] == [Usage(calls=7, cost=0.5)]
