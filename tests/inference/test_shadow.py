"""`Shadow`: a candidate answers beside runs, is recorded apart, and is never in the way."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from turnwise import AsyncSessionManager, EchoEngine, Packed, SessionManager, tool
from turnwise.actors.hosting.placement import InProcess
from turnwise.engines import EngineBuilder, FunctionEngine, NoAnswer, Shadow, Split, Usage
from turnwise.errors import ConfigError
from turnwise.memory.conversation.blocks import Text, ToolResult, ToolUse
from turnwise.stores import Quota

CALLED: list[int] = []


@tool
def pay(euros: int) -> str:
    """Pay."""
    CALLED.append(euros)
    return f"paid {euros}"


def paying(*calls: int, says: str = "It is paid.") -> FunctionEngine:
    """Return an engine that makes these calls, one at a time, and then says what the tools have answered."""

    def answer(turn: Any) -> Any:
        results = [block.text for block in turn.blocks if isinstance(block, ToolResult)]
        if len(results) < len(calls):
            number = len(results)
            return ToolUse(call_id=f"{says} {number}", name="pay", input={"euros": calls[number]})
        return [Usage(input_tokens=5, output_tokens=2), f"{says} {results}"]

    return FunctionEngine(answer, tools=[pay])


async def records_of(engine: Shadow, records: Sequence[Any], manager: AsyncSessionManager, **options: Any) -> Any:
    """Have a session answer, wait for the record of the candidate, and return the run's turn and the record."""
    chat = await manager.open()
    turn = await (await chat.run("Pay.", **options)).wait()
    async with asyncio.timeout(30):
        while not records:
            await asyncio.sleep(0.01)
    return turn, records[-1]


async def test_a_candidate_answers_with_the_results_that_the_run_got() -> None:
    records: list[Any] = []
    CALLED.clear()
    engine = Shadow(paying(5, 7), paying(7, 5, says="Paid!"), share=1, sink=records.append, texts=True)
    engines: dict[str, EngineBuilder] = {"main": Split({"payer": 1}), "payer": engine}
    async with AsyncSessionManager("memory://shadow", engine=engines, placement=InProcess()) as manager:
        await manager.set_quota(Quota(tokens=1_000_000, per="month"))
        turn, record = await records_of(engine, records, manager)
        assert CALLED == [5, 7], "no tool is called for the candidate"
        assert turn.text == "It is paid. ['paid 5', 'paid 7']"
        assert (record["status"], record["text"]) == ("answered", "Paid! ['paid 7', 'paid 5']")
        assert record["run_text"] == turn.text and 0 < record["similarity"] < 1
        assert record["wanted"] == [{"name": "pay", "input": {"euros": euros}} for euros in (7, 5)]
        assert record["calls"] == record["run_calls"] == ["pay", "pay"] and not record["missing"]
        session = await manager.get(turn.session_id)
        latest = await session.latest()
        assert latest and [block.text for block in latest.output if isinstance(block, Text)] == [turn.text]
        usage = (await session.info()).session.usage
        assert usage.input_tokens == record["run_usage"]["input_tokens"], "the candidate's is not the session's"
        await (await session.run("And again.")).wait()
        spent = {row.kind: row.usage for row in await manager.usage(by=["kind"])}
        assert spent["shadow"].calls == record["usage"]["calls"] == 3
        assert spent["shadow"].input_tokens == record["usage"]["input_tokens"] > 5, "what is not reported is counted"
        by_engine = [(row.engine, row.kind, row.runs) for row in await manager.usage(by=["engine", "kind"])]
        assert by_engine == [("payer", "run", 2), ("payer", "shadow", 0)]
        own = spent["run"]
        (use,) = await manager.quotas()
        assert use.used == own.input_tokens + own.output_tokens, "the candidate's is in no quota"


async def test_a_call_that_the_run_has_not_made_ends_the_candidates_answer() -> None:
    records: list[Any] = []
    CALLED.clear()
    engine = Shadow(paying(5), paying(5, 5), share=1, sink=records.append)
    async with AsyncSessionManager("memory://diverged", engine=engine, placement=InProcess()) as manager:
        _, record = await records_of(engine, records, manager)
    assert (record["status"], record["missing"], CALLED) == ("diverged", ["pay"], [5])
    assert "text" not in record and "wanted" not in record, "texts are recorded only if that was asked for"


def hangs(_turn: Any) -> Any:
    async def forever() -> str:
        await asyncio.Event().wait()
        return ""

    return forever()


def raises(_turn: Any) -> str:
    raise ValueError("secret words")


def leaves(_turn: Any) -> str:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("candidate", "status", "error"),
    [(hangs, "timed_out", None), (raises, "failed", "ValueError"), (leaves, "failed", "EngineError")],
)
async def test_a_candidate_that_fails_hangs_or_exits_is_never_in_the_way(
    candidate: Callable[[Any], Any], status: str, error: str | None
) -> None:
    records: list[Any] = []
    engine = Shadow(EchoEngine(), FunctionEngine(candidate), share=1, sink=records.append, timeout_s=0.2)
    async with AsyncSessionManager(f"memory://{status}{error}", engine=engine, placement=InProcess()) as manager:
        turn, record = await records_of(engine, records, manager)
        assert turn.text == "Pay."
        assert (record["status"], record["error"]) == (status, error)
        chat = await manager.get(turn.session_id)
        assert (await (await chat.run("More.")).wait()).text == "More."
        async with asyncio.timeout(30):
            while len(records) < 2:
                await asyncio.sleep(0.01)


async def test_a_sink_that_fails_changes_no_run() -> None:
    engine = Shadow(EchoEngine(), EchoEngine(), share=1, sink=lambda _: 1 / 0)
    async with AsyncSessionManager("memory://sink", engine=engine, placement=InProcess()) as manager:
        chat = await manager.open()
        for prompt in ("one", "two"):
            assert (await (await chat.run(prompt)).wait()).text == prompt


async def test_beyond_the_bound_candidates_are_dropped_and_counted() -> None:
    records: list[Any] = []
    release = threading.Event()  # sessions have an event loop of their own

    async def waits(_turn: Any) -> str:
        while not release.is_set():
            await asyncio.sleep(0.01)
        return "late"

    engine = Shadow(EchoEngine(), FunctionEngine(waits), share=1, sink=records.append, at_once=2)
    async with AsyncSessionManager("memory://bound", engine=engine, placement=InProcess()) as manager:
        chats = [await manager.open() for _ in range(5)]
        for chat in chats:
            await (await chat.run("Hi.")).wait()
        async with asyncio.timeout(30):
            while len(records) < 3:
                await asyncio.sleep(0.01)
            assert [record["status"] for record in records] == ["dropped"] * 3
            release.set()
            while len(records) < 5:
                await asyncio.sleep(0.01)
        assert [record["status"] for record in records[3:]] == ["answered"] * 2


async def test_only_completed_runs_of_the_share_are_answered_twice() -> None:
    records: list[Any] = []
    engine = Shadow(EchoEngine(token_delay_s=60), EchoEngine(), share=1, sink=records.append)
    async with AsyncSessionManager("memory://stopped", engine=engine, placement=InProcess()) as manager:
        run = await (await manager.open()).run("one two three")
        await run.cancel()
        assert not records
    shadow = Shadow(EchoEngine(), EchoEngine(), share=0.05, sink=records.append)
    count = sum(shadow.is_beside(f"run {number}") for number in range(20_000))
    assert count == 950


async def test_a_shadow_is_its_engine_for_all_else(tmp_path: Path) -> None:
    """It stands among named engines, and a split may choose it; parameters are checked by the engine that answers."""
    shadow = Shadow(FunctionEngine(lambda _: "real", takes=("temperature",)), EchoEngine(), share=1, sink=tmp_path)
    engines: dict[str, Any] = {"main": Split({"a": 1}), "a": shadow, "b": EchoEngine()}
    url = f"sqlite:///{tmp_path}/a.db"
    async with AsyncSessionManager(url, engine=engines, placement=InProcess()) as manager:
        chat = await manager.open(params={"temperature": 0.5})
        assert (await (await chat.run("Hi.")).wait()).text == "real"
        async with asyncio.timeout(30):
            while not (files := [*tmp_path.glob("*.jsonl")]):  # noqa: ASYNC240
                await asyncio.sleep(0.01)
        (line,) = files[0].read_text(encoding="utf-8").splitlines()
        record = json.loads(line)
        assert (record["engine"], record["status"], record["session_id"]) == ("a", "answered", chat.session_id)
        with pytest.raises(ConfigError):
            await manager.open(engine="none")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"share": 2}, "Shadow.share=2: must be from 0 to 1"),
        ({"sink": 5}, "the path of a folder, or a function"),
        ({"at_once": 0}, "a whole number from 1"),
        ({"timeout_s": 0}, "more than 0"),
        ({"candidate": "gpt"}, "must be an engine"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    valid: dict[str, Any] = {"engine": NoAnswer(), "candidate": EchoEngine(), "sink": "shadows"}
    with pytest.raises(ConfigError, match=reason):
        Shadow(**{**valid, **settings})


@pytest.mark.ray
@pytest.mark.parametrize("placement", [None, Packed(hosts=1)])
def test_candidates_answer_in_the_processes_of_sessions(
    make_ray_manager: Callable[..., SessionManager], tmp_path: Path, placement: Any
) -> None:
    engine = Shadow(EchoEngine(), EchoEngine(), share=1, sink=tmp_path / "shadows", texts=True)
    manager = make_ray_manager(engine=engine, **({"placement": placement} if placement else {}))
    chat = manager.open("chat", user_id="ann")
    assert chat.run("Hi.").wait().text == "Hi."
    chat.run("More.").wait()
    lines: list[str] = []
    while len(lines) < 2:
        lines = [line for file in (tmp_path / "shadows").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert {json.loads(line)["text"] for line in lines} == {"Hi.", "More."}
