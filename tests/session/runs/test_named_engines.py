"""Engines by name, of which each session uses one; and what hooks and middleware note about a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engines import ScriptedEngine
from schedules import SESSION, inline
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.inference.middleware import wrap
from turnwise.actors.inference.named_engines import MissingEngine, NamedEngines, as_engine
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.loop import Phase, ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.engines.run_resources import RunResources
from turnwise.errors import ConfigError
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolResult, ToolUse
from turnwise.memory.conversation.ledger import LedgerQuery
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.strategies.trim import Trim

pytestmark = pytest.mark.virtual_time

BOTH = NamedEngines({"fast": ScriptedEngine("fast "), "smart": ScriptedEngine("smart ")})


async def a_store(**row: Any) -> InMemoryStore:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION, **row))
    return store


def a_core(store: Any, engine: Any = BOTH, **config: Any) -> SessionCore:
    return SessionCore(SessionKey(SESSION), store, engine, SessionConfig(**config), off_loop=inline)


async def answer_of(core: SessionCore, run_id: str, prompt: str = "hi") -> str:
    await core.admission.start([prompt], run_id=run_id)
    return await answer(core, run_id)


async def answer(core: SessionCore, run_id: str) -> str:
    outcome = await core.reads.wait(run_id)
    assert outcome.turn
    return outcome.turn.text or str(outcome.run.why)


async def test_a_session_uses_the_engine_that_it_names_also_in_the_next_process() -> None:
    store = await a_store()
    core = a_core(store)
    assert await answer_of(core, "a") == "fast hi"
    await core.row.use_engine("smart")
    assert await answer_of(core, "b") == "smart hi"
    later = a_core(store)
    assert await answer_of(later, "c") == "smart hi"
    assert [run.engine for run in await store.runs(SessionKey(SESSION))] == [None, "smart", "smart"]
    await later.row.use_engine(None)
    assert await answer_of(later, "d") == "fast hi"


async def test_a_session_without_a_name_is_counted_under_that_of_the_first_engine() -> None:
    store = await a_store()
    core = a_core(store)
    await answer_of(core, "a")
    await core.row.use_engine("fast")
    await answer_of(core, "b")
    await core.row.use_engine("smart")
    await answer_of(core, "c")
    rows = await store.ledger(LedgerQuery(by=("engine",)))
    assert [(row.engine, row.runs) for row in rows] == [("fast", 2), ("smart", 1)]


async def test_open_runs_keep_their_engine() -> None:
    store = await a_store(engine="smart")
    core = a_core(store)
    await core.admission.start(["slow 20"], run_id="a")
    await core.admission.start(["hi"], run_id="b", if_busy="enqueue")
    await core.row.use_engine("fast")
    await core.admission.start(["hi"], run_id="c", if_busy="enqueue")
    assert [await answer(core, run_id) for run_id in "abc"] == ["smart slow 20", "smart hi", "fast hi"]


async def test_a_run_that_another_process_resumes_keeps_its_engine() -> None:
    store = await a_store(engine="smart")
    core = a_core(store, on_lost="resume")
    await core.admission.start(["slow 500"], run_id="a")
    await core.admission.start(["hi"], run_id="b", if_busy="enqueue")
    later = a_core(store, on_lost="resume")
    await later.transactor.activate()
    await later.row.use_engine("fast")
    await later.admission.cancel("enough", "a")
    assert await answer(later, "b") == "smart hi"
    assert await answer_of(later, "c") == "fast hi"


async def test_an_engine_that_the_manager_does_not_have_is_a_typed_error() -> None:
    store = await a_store(engine="smart")
    for engine, has in ((NamedEngines({"fast": ScriptedEngine()}), "'fast'"), (ScriptedEngine(), "without a name")):
        core = a_core(store, engine)
        with pytest.raises(ConfigError, match=rf"'smart'.*{SESSION}.*{has}.*use\(\)"):
            await core.admission.start(["hi"], run_id="a")
        with pytest.raises(ConfigError, match="'wise'"):
            await core.row.use_engine("wise")
        await core.admission.append(["kept"], key=str(engine))
    assert await store.runs(SessionKey(SESSION)) == []
    core = a_core(store, ScriptedEngine())
    await core.row.use_engine(None)
    assert await answer_of(core, "b") == "hi"


async def test_a_lost_run_of_an_engine_that_is_gone_fails_with_the_reason() -> None:
    store = await a_store(engine="smart")
    core = a_core(store, on_lost="resume")
    await core.admission.start(["slow 500"], run_id="a")
    later = a_core(store, ScriptedEngine(), on_lost="resume")
    await later.transactor.activate()
    outcome = await later.reads.wait("a")
    assert outcome.run.state == "failed" and "'smart'" in str(outcome.run.why)


@pytest.mark.parametrize(
    ("engine", "field"), [({}, "engine"), ({"": ScriptedEngine()}, "engine"), ({"a": 3}, "engine['a']"), (3, "engine")]
)
def test_what_is_no_engine_is_refused(engine: Any, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        as_engine(engine)
    assert refused.value.setting == field


def test_the_name_of_a_model_is_refused_with_its_engine() -> None:
    with pytest.raises(ConfigError, match=r"such as OpenAIEngine\('gpt-5'\)"):
        as_engine("gpt-5")


# Metadata of turns


@tool
def look() -> str:
    """Look."""
    return "seen"


class Stamp:
    """A middleware that notes its calls."""

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        answer = await runner.run(turn, context)
        context.annotate(trace="t-1", calls=len(turn.output))
        return answer


def note_phase(phase: Phase, turn: Turn, context: StepContext) -> None:
    context.annotate(**{phase: {"blocks": len(turn.blocks)}, "draft": None if phase == "after_tools" else True})


class Looking:
    """Looks once, then answers; with a middleware and a hook."""

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(wrap(self, [Stamp()]), ToolRegistry(look), hooks=[note_phase])

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        if any(isinstance(block, ToolResult) for block in turn.output):
            return [Text(text="Done.")]
        return [ToolUse(call_id="a", name="look")]


async def test_hooks_and_middleware_write_metadata_that_is_stored_with_the_turn() -> None:
    store = await a_store()
    core = a_core(store, Looking())
    await core.admission.start(["go"], run_id="a")
    outcome = await core.reads.wait("a")
    assert outcome.turn
    assert outcome.turn.metadata == {
        "trace": "t-1",
        "calls": 2,
        "before_inference": {"blocks": 3},
        "after_inference": {"blocks": 4},
        "after_tools": {"blocks": 3},
        "draft": True,
    }
    (turn,) = await store.turns(SessionKey(SESSION))
    assert turn.metadata == outcome.turn.metadata
    later = a_core(store, Looking())
    assert (await later.reads.turn(0)).metadata == turn.metadata
    await later.admission.start(["go on"], run_id="b")
    await later.reads.wait("b")
    assert (await later.reads.turn(1)).metadata["trace"] == "t-1"


class Wrong:
    """Notes a value that is no JSON."""

    def build(self, session: SessionView) -> Wrong:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        context.annotate(fine=1, wrong=object())
        return [Text(text="unreachable")]


async def test_metadata_that_is_no_json_is_refused() -> None:
    store = await a_store()
    core = a_core(store, Wrong())
    await core.admission.start(["go"], run_id="a")
    outcome = await core.reads.wait("a")
    assert outcome.run.state == "failed" and "wrong" in str(outcome.run.why)
    assert outcome.turn and outcome.turn.metadata == {}


def resources_of(engine: Any) -> RunResources:
    arguments: Any = (engine, SessionConfig(), Trim(), (), None)
    return RunResources(*arguments, engine_id="e", off_loop=inline)


def test_each_engine_has_the_limit_of_its_own_window() -> None:
    engines = {"fast": OpenAIEngine("gpt-4"), "smart": OpenAIEngine("gpt-4.1")}
    resources = resources_of(NamedEngines(engines))
    fast_resources, smart_resources = resources.of_engine("fast"), resources.of_engine("smart")
    compactors = [run_resources.compactor for run_resources in (resources, fast_resources, smart_resources)]
    assert all(compactors)
    first, fast, smart = [compactor.budget.max_tokens for compactor in compactors if compactor]
    assert first == fast < smart


def test_an_engine_that_the_manager_does_not_have_is_named_whatever_the_strategy() -> None:
    missing = resources_of(NamedEngines({"fast": OpenAIEngine("gpt-4")})).of_engine("slow")
    assert missing.compactor is None and isinstance(missing.builder, MissingEngine)
