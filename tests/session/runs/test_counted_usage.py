"""Tokens that no provider reports are counted and marked, so that no budget is evaded by stopping an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from engine_calls import HEALTHY
from quirks import QuirkServer
from turnwise.actors.inference.engine import EngineBuilder, RunContext, SessionView
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.engines.budget import Budget, Price
from turnwise.adapters.anthropic.engine import AnthropicEngine
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.events import TextDelta
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.summarize import Summarize
from turnwise.testing import LocalProvider
from turnwise.testing.schedules import inline
from turnwise.testing.scripted_engine import ScriptedEngine

WORDS = 10


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


async def words(turn: Turn) -> AsyncIterator[Any]:
    """Answer with many words, or stop early, as the prompt says; report no usage."""
    prompt = turn.asked[0].text  # type: ignore[union-attr]
    for number in range(WORDS):
        yield f"word {number} "
        if prompt == "break":
            raise ConnectionError("cut")
        if prompt == "slow":
            await asyncio.sleep(1)


async def opened(engine: EngineBuilder, **settings: Any) -> SessionCore:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    overflow = settings.pop("overflow", None)
    config = SessionConfig(cancel_grace_s=0.5, **settings)
    return SessionCore(SessionKey("s"), store, engine, config, overflow=overflow, off_loop=inline)


async def streamed(core: SessionCore, run_id: str) -> None:
    """Wait until the run has streamed some text."""
    after, done = 0, False
    while not done:
        events, after, done = await core.reads.events(after, run_id=run_id, timeout_s=10)
        if any(isinstance(event, TextDelta) and event.text for event in events):
            return


async def ended(core: SessionCore, run_id: str) -> RunRecord:
    outcome = await core.reads.wait(run_id, 60.0)

    return outcome.run


async def stopped(core: SessionCore, prompt: str = "slow", **options: Any) -> RunRecord:
    """Return a run that was stopped while it streamed."""
    await core.admission.start([prompt], run_id="stopped", **options)
    await streamed(core, "stopped")
    await core.admission.cancel("stop", "stopped")
    return await ended(core, "stopped")


def check_counted(run: RunRecord, *, least: int = 2) -> Usage:
    usage = run.usage
    assert usage and usage.calls == 1, run
    assert usage.input_tokens and usage.output_tokens >= least, usage
    assert usage.counted_tokens, usage
    return usage


@pytest.mark.virtual_time
async def test_a_stopped_run_is_charged_for_what_it_was_given_and_said() -> None:
    core = await opened(FunctionEngine(words), prices={"": Price(input=1.0, output=1.0)})
    usage = check_counted(await stopped(core))
    assert usage.counted_tokens == usage.input_tokens + usage.output_tokens
    assert (await core.state.journal.store.get(SessionKey("s"))).usage == usage


@pytest.mark.virtual_time
async def test_a_stopped_run_is_charged_for_no_less_than_its_provider_reported() -> None:
    """Tokens of thoughts are reported, and cannot be counted."""

    async def thinks(turn: Turn) -> AsyncIterator[Any]:
        yield Usage(input_tokens=5, output_tokens=500)
        async for word in words(turn):
            yield word

    usage = (await stopped(await opened(FunctionEngine(thinks)))).usage
    assert usage and (usage.input_tokens, usage.output_tokens, usage.counted_tokens) == (5, 500, 0)


@pytest.mark.virtual_time
async def test_runs_that_fail_or_time_out_or_give_way_are_charged_too() -> None:
    core = await opened(FunctionEngine(words))
    await core.admission.start(["break"], run_id="failed")
    assert (await ended(core, "failed")).state == "failed"
    await core.admission.start(["slow"], run_id="late", timeout_s=1.5)
    assert (await ended(core, "late")).code == "timeout"
    for policy in ("interrupt", "rollback"):
        await core.admission.start(["slow"], run_id=f"before {policy}")
        await streamed(core, f"before {policy}")
        await core.admission.start(["quick"], run_id=policy, if_busy=policy)
        await ended(core, policy)
    charged = Usage()
    for run_id in ("failed", "late", "before interrupt", "before rollback", "interrupt", "rollback"):
        charged += check_counted(await ended(core, run_id))
    total = (await core.state.journal.store.get(SessionKey("s"))).usage
    assert (total.counted_tokens, total.calls) == (charged.counted_tokens, 6)


@pytest.mark.virtual_time
async def test_an_answer_without_usage_is_counted_and_one_with_usage_is_not() -> None:
    async def telling(turn: Turn) -> AsyncIterator[Any]:
        yield "four words are said"
        yield Usage(input_tokens=3, output_tokens=4)

    core = await opened(FunctionEngine(words))
    await core.admission.start(["quick"], run_id="quick")
    usage = check_counted(await ended(core, "quick"), least=WORDS)
    core = await opened(FunctionEngine(telling))
    await core.admission.start(["quick"], run_id="quick")
    reported = (await ended(core, "quick")).usage
    assert reported and (reported.input_tokens, reported.output_tokens, reported.counted_tokens) == (3, 4, 0)
    assert usage.output_tokens < 2 * len("word 1 " * WORDS) / 4


@pytest.mark.virtual_time
async def test_budgets_see_what_was_counted() -> None:
    core = await opened(FunctionEngine(words), session_budget=Budget(tokens=10))
    await stopped(core)
    await core.admission.start(["slow"], run_id="next")
    assert (await ended(core, "next")).code == "budget"


@pytest.mark.virtual_time
async def test_a_custom_counter_counts_what_no_provider_reports() -> None:
    rough = check_counted(await stopped(await opened(FunctionEngine(words))))
    exact = check_counted(await stopped(await opened(FunctionEngine(words), token_counter=ByteCounter())))
    assert exact.output_tokens > rough.output_tokens and exact.input_tokens > rough.input_tokens


@pytest.mark.virtual_time
async def test_an_engine_that_announces_no_calls_is_charged_when_it_is_stopped() -> None:
    class Plain:
        def build(self, session: SessionView) -> Plain:
            return self

        async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
            context.emit("many words come")
            await asyncio.sleep(100)
            return [Text(text="never")]

    run = await stopped(await opened(Plain()))
    assert run.usage and run.usage.output_tokens >= 3 and run.usage.counted_tokens


@pytest.mark.virtual_time
async def test_a_summary_without_usage_is_counted_and_one_that_came_too_late() -> None:
    async def summary(turn: Turn) -> str:
        return "short"

    async def never(turn: Turn) -> AsyncIterator[str]:
        yield "some words of a summary"
        await asyncio.sleep(100)

    for model, settings in ((summary, {}), (never, {"compaction_timeout_s": 1.0, "compaction_attempts": 1})):
        engine = ScriptedEngine(["first " * 150, "second"])
        core = await opened(
            engine,
            overflow=Summarize(FunctionEngine(model), max_summary_tokens=100),
            max_context_tokens=1200,
            reserve_output_tokens=100,
            token_counter=ByteCounter(),
            **settings,
        )
        for run_id in ("one", "two"):
            await core.admission.start(["prompt"], run_id=run_id)
            await ended(core, run_id)
        try:
            await core.compaction.compact()
        except Exception:  # noqa: BLE001 - the second one fails, and has its price
            assert model is never
        await core.row.refresh()
        usage = (await core.state.journal.store.get(SessionKey("s"))).usage
        assert usage.counted_tokens and core.transactor.unbilled == Usage()


ENGINES: dict[str, Callable[[str, str], EngineBuilder]] = {
    "chat": lambda url, model: OpenAIEngine(model, base_url=url, api_key="k", api="chat"),
    "responses": lambda url, model: OpenAIEngine(model, base_url=url, api_key="k", api="responses"),
    "anthropic": lambda url, model: AnthropicEngine(model, base_url=url.removesuffix("/v1"), max_output_tokens=500),
}


@pytest.mark.parametrize("api", ENGINES)
async def test_a_stream_that_is_stopped_is_charged_for_each_api(api: str) -> None:
    with LocalProvider() as provider:
        prices = {"slow": Price(input=1e6, output=1e6)}
        core = await opened(ENGINES[api](provider.base_url, "slow"), prices=prices)
        usage = check_counted(await stopped(core, "Say what I say: " + "a long sentence " * 20), least=1)
        assert usage.cost == pytest.approx(usage.input_tokens + usage.output_tokens)
        await core.ownership.leave()


@pytest.mark.parametrize("api", ENGINES)
async def test_a_stream_that_breaks_off_is_charged_for_each_api(api: str) -> None:
    with LocalProvider() as provider:
        core = await opened(ENGINES[api](provider.base_url, "cut"))
        await core.admission.start(["Say what I say: " + "a long sentence " * 20], run_id="run")
        run = await ended(core, "run")
        assert run.state == "failed"
        check_counted(run, least=1)
        await core.ownership.leave()


@pytest.mark.parametrize("api", HEALTHY)
async def test_a_server_that_reports_no_usage_is_charged_by_count(api: str) -> None:
    with QuirkServer(HEALTHY[api]) as server:
        core = await opened(ENGINES[api](server.base_url, "local"), run_budget=Budget(tokens=1000))
        await core.admission.start(["Hello there"], run_id="run")
        run = await ended(core, "run")
        assert run.state == "completed"
        check_counted(run, least=1)
        await core.ownership.leave()
