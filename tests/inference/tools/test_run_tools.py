"""Instructions and tools of a single run: checked, stored, sent in each step, and refused if unsupported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from test_tool_loop import Script, Scripted, Stage, results, use

from engine_calls import HEALTHY, Recorder, engine_at, run, turn
from quirks import QuirkServer
from schedules import inline
from turnwise.actors.client.shared import provided_result
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import EngineBuilder, engine_of_run
from turnwise.actors.inference.middleware import SystemPrompt
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.openai.runner import OpenAIRunner
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import external_tool, record_of_tools, tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.window.compaction_tasks import Compactor
from turnwise.errors import IdempotencyConflictError, InvalidInputError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import System, Text, ToolResult, User, encode
from turnwise.memory.conversation.calls.run_tools import are_tools
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord, turn_of
from turnwise.memory.values.frozen_json import freeze
from turnwise.strategies.trim import Trim

pytestmark = pytest.mark.virtual_time

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = external_tool("weather", "The weather of a city.", CITY)
TIME = external_tool("time", "The time in a city.", CITY)
TOOLS = record_of_tools([WEATHER, TIME])


@tool
def look(at: str) -> str:
    """Look."""
    return f"saw {at}"


@tool(name="weather")
def _weather(city: str) -> str:
    """The engine's own."""
    return city


class Extended(Scripted):
    """A scripted model whose runs may have tools of their own."""

    def extended(self, tools: Mapping[str, Mapping[str, Any]]) -> EngineBuilder:
        self.registry.extended(tools)
        return self


CALLS: Script = [
    [
        Text(text="let me see"),
        use("c1", "weather", city="Oslo"),
        use("c2", "look", at="it"),
        use("c3", "time", city="Oslo"),
    ],
    [Text(text="done")],
]


def provided(text: str) -> ApprovalDecision:
    return ApprovalDecision(verdict="provided", text=text)


@pytest.mark.parametrize("kill", [False, True])
async def test_a_run_waits_for_its_external_tools_and_continues_in_any_process(kill: bool) -> None:
    stage = Stage(Extended(CALLS, ToolRegistry(look)))
    await stage.start(instructions="Be brief.", tools=TOOLS)
    await stage.until(stage.awaits)
    record = await stage.core.reads.run("run")
    assert (record.instructions, record.tools, record.finish) == ("Be brief.", TOOLS, "tool_calls_pending")
    if kill:
        stage.new_core()
    pending = await stage.core.reads.pending("run")
    assert [(call.call_id, call.name, call.wants) for call in pending] == [
        ("c1", "weather", "result"),
        ("c3", "time", "result"),
    ]
    await stage.core.approvals.decide("run", "c3", provided("noon"))
    if kill:
        stage.new_core()
    assert await stage.awaits()
    await stage.core.approvals.decide("run", "c1", provided("rain"))
    outcome = await stage.outcome()
    assert outcome.turn and outcome.turn.text == "done"
    assert [result.text for result in results(outcome)] == ["rain", "saw it", "noon"]
    assert not any(isinstance(block, System) for block in outcome.turn.blocks), "no history has the instructions"
    await stage.core.admission.start(["go on"], run_id="next")
    await stage.core.reads.wait("next")
    after = await stage.core.reads.run("next")
    assert (after.instructions, after.tools) == (None, {}), "they are not carried to the next run"


async def test_a_provided_result_that_is_an_error_stays_one() -> None:
    stage = Stage(Extended([[use("c1", "weather", city="Oslo")], [Text(text="done")]], ToolRegistry()))
    await stage.start(tools=TOOLS)
    await stage.until(stage.awaits)
    decision = provided_result.provided(ToolResult(call_id="", text="closed", is_error=True), is_error=False)
    await stage.core.approvals.decide("run", "c1", decision)
    (result,) = results(await stage.outcome())
    assert (result.text, result.is_error) == ("closed", True)


async def test_arguments_are_checked_by_the_schema_before_anybody_is_asked() -> None:
    wrong = use("c1", "weather", town="Oslo")
    stage = Stage(Extended([[wrong], [use("c2", "weather", city="Oslo")], [Text(text="done")]], ToolRegistry()))
    await stage.start(tools=TOOLS)
    await stage.until(stage.awaits)
    assert [call.call_id for call in await stage.core.reads.pending("run")] == ["c2"]
    await stage.core.approvals.decide("run", "c2", provided("rain"))
    first = results(await stage.outcome())[0]
    assert first.is_error and "'city' is a required property" in first.text


async def test_a_call_of_another_run_s_tool_gets_an_error_result() -> None:
    stage = Stage(Extended(CALLS, ToolRegistry(look)))
    outcome = await stage.run()
    assert outcome.turn and outcome.turn.text == "done"
    assert results(outcome)[0].text == "There is no tool 'weather'. The tools are: look."


async def test_an_idempotency_key_covers_instructions_and_tools() -> None:
    stage = Stage(Extended([[Text(text="done")]], ToolRegistry()))
    await stage.create()
    options: dict[str, Any] = {"idempotency_key": "k", "instructions": "Be brief.", "tools": TOOLS}
    first = await stage.core.admission.start(["go"], run_id="r1", **options)
    assert await stage.core.admission.start(["go"], run_id="r2", **options) == first
    for changes in ({"instructions": "Be long."}, {"tools": record_of_tools([WEATHER])}, {"instructions": None}):
        with pytest.raises(IdempotencyConflictError):
            await stage.core.admission.start(["go"], run_id="r3", **{**options, **changes})


@pytest.mark.parametrize("options", [{"instructions": "Be brief."}, {"tools": TOOLS}])
async def test_an_engine_that_does_not_say_that_it_takes_them_refuses_them(options: dict[str, Any]) -> None:
    stage = Stage(EchoEngine())
    await stage.create()
    with pytest.raises(
        InvalidInputError, match=rf"^{next(iter(options))}=.*EchoEngine does not support .* see Extensible"
    ):
        await stage.core.admission.start(["go"], run_id="run", **options)
    assert await stage.core.reads.runs() == []


def test_a_runs_tool_may_not_have_the_name_of_an_engines_tool() -> None:
    hidden = ToolRegistry(look, _weather, allow=["look"])
    for own in (
        [_weather],
        hidden,
        ToolRegistry(look, _weather, deny=["weather"]),
    ):
        with pytest.raises(InvalidInputError, match=r"tools='weather'.*the engine has a tool of this name"):
            engine_of_run(OpenAIEngine("m", tools=own), None, TOOLS)
    declared = OpenAIEngine("m", extra={"tools": [{"type": "function", "function": {"name": "weather"}}]})
    with pytest.raises(InvalidInputError, match="the engine has a tool of this name"):
        engine_of_run(declared, None, TOOLS)
    choice = {"tool_choice": {"type": "function", "function": {"name": "weather"}}, "parallel_tool_calls": False}
    allowed = OpenAIEngine("m", tools=ToolRegistry(look, allow=[]))
    assert allowed.not_taken(None, choice)
    extended: Any = engine_of_run(allowed, "Be brief.", TOOLS)
    assert not extended.not_taken(None, choice)
    assert [definition.name for definition in extended.registry.definitions()] == ["weather", "time"]


@pytest.mark.parametrize("api", HEALTHY)
@pytest.mark.parametrize("has_own", [False, True])
def test_each_request_has_the_runs_instructions_after_those_of_engine_and_conversation(api: Any, has_own: bool) -> None:
    with QuirkServer(HEALTHY[api]) as server:
        settings: dict[str, Any] = {"tools": [look], "system": "You are Ann."} if has_own else {}
        engine = engine_at(server, api=api, **settings)

        async def ask(runner: OpenAIRunner, context: Recorder) -> None:
            context.instructions, context.tools = "Be brief.", TOOLS
            await runner.run(turn(System(text="You are Bob."), "Hello"), context)

        run(engine, ask, engine.registry.definitions())
        sent = server.requests[-1]
    instructions = "You are Ann.\n\nYou are Bob.\n\nBe brief." if has_own else "You are Bob.\n\nBe brief."
    assert (sent["instructions"] if api == "responses" else sent["messages"][0]["content"]) == instructions
    declared = [entry.get("function", entry) for entry in sent["tools"]]
    assert [declaration["name"] for declaration in declared] == [*(["look"] if has_own else []), "weather", "time"]
    assert declared[-1]["description"] == "The time in a city." and declared[-1]["parameters"]["required"] == ["city"]


def test_instructions_come_after_a_middleware_s_prompt() -> None:
    with QuirkServer(HEALTHY["chat"]) as server:
        engine = engine_at(server, middleware=[SystemPrompt("You are Ann.")])

        async def ask(runner: OpenAIRunner, context: Recorder) -> None:
            context.instructions = "Be brief."
            await engine.middleware[0].run(turn("Hello"), context, runner)  # type: ignore[arg-type]

        run(engine, ask)
        assert server.requests[-1]["messages"][0]["content"] == "You are Ann.\n\nBe brief."
        assert "tools" not in server.requests[-1]


def test_a_forced_choice_holds_if_the_prompts_end_in_results() -> None:
    with QuirkServer(HEALTHY["chat"]) as server:
        engine = engine_at(server)
        prompts = [User(text="look"), use("c1", "weather", city="Oslo"), ToolResult(call_id="c1", text="rain")]

        async def ask(runner: OpenAIRunner, context: Recorder) -> None:
            context.tools, context.params = TOOLS, {"tool_choice": "required"}
            spans = (Span("chat-1", 0, len(prompts)),)
            record = TurnRecord(index=0, prompt=spans, input=spans)
            await runner.run(turn_of("chat-1", record, spans, list(map(encode, prompts))), context)

        run(engine, ask)
        assert server.requests[-1]["tool_choice"] == "required"


async def test_a_run_s_instructions_and_tools_count_in_its_window() -> None:
    compactor = Compactor(Trim(), OpenAIEngine("gpt-4.1"), SessionConfig(), inline)
    plain = RunRecord(run_id="r", session_id="s", turn_index=0, state="running", first_seq=1, created_at=0.0)
    await compactor.window(TurnRecord(index=0), BlockCache())
    assert compactor.of_run(plain) is compactor
    text, schemas = "Be brief. " * 100, len(json.dumps(TOOLS))
    for own, least in (({"instructions": text}, len(text)), ({"tools": TOOLS}, schemas)):
        run_record = replace(plain, run_id=str(least), **own)
        for _ in range(2):
            taken = compactor.of_run(run_record).budget.overhead - compactor.budget.overhead
            assert least <= taken < least + 100, "counted in bytes until something is decided"
    run_record = replace(plain, tools=TOOLS)
    exact = Compactor(Trim(), OpenAIEngine("gpt-4.1"), SessionConfig(), inline)
    await exact.count_exactly()
    assert 0 < exact.of_run(run_record).budget.overhead - exact.budget.overhead <= schemas + 100


@pytest.mark.parametrize(
    ("tools", "field", "reason"),
    [
        ("weather", "tools", "must be a list of tools"),
        ({"weather": WEATHER}, "tools", "must be a list of tools"),
        ([WEATHER, {"name": "x"}], r"tools\[1\]", "that external_tool"),
        ([look], r"tools\[0\]", "pass it to the engine"),
        ([WEATHER, WEATHER], r"tools\[1\]", "two tools have this name"),
        ([external_tool(f"t{n}", "x", CITY) for n in range(129)], "tools", "at most 128 tools, not 129"),
        ([external_tool("big", "x" * 1_000_000, CITY)], "tools", "at most 1000000 bytes"),
    ],
)
def test_wrong_tools_are_refused_in_the_caller(tools: Any, field: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{field}=.*{reason}"):
        record_of_tools(tools)


def test_the_record_of_tools_is_json_and_imports_check_its_form() -> None:
    assert freeze(json.loads(json.dumps(TOOLS))) == TOOLS and are_tools(TOOLS) and are_tools({})
    for wrong in (
        {"a b": TOOLS["time"]},
        {"a": "b"},
        {"a": {"description": "x"}},
        {"a": {"description": 1, "parameters": CITY}},
        {"a": {"description": "", "parameters": {"type": "string"}}},
    ):
        assert not are_tools(wrong), wrong


async def test_longer_instructions_than_a_prompt_may_be_are_refused() -> None:
    stage = Stage(Extended([[Text(text="done")]], ToolRegistry()), max_prompt_bytes=40)
    await stage.create()
    with pytest.raises(InvalidInputError, match=r"^instructions=.*41 bytes are over max_prompt_bytes=40"):
        await stage.core.admission.start(["go"], run_id="run", instructions="x" * 41)
    await stage.core.admission.start(["go"], run_id="run", instructions="x" * 40)


async def test_a_forced_call_of_a_runs_tool_holds_for_the_first_step() -> None:
    choices: list[tuple[Any, Any]] = []

    class Watching(Extended):
        async def run(self, turn: Any, context: Any) -> Any:
            choices.append((context.params.get("tool_choice"), dict(context.tools) == TOOLS))
            return await super().run(turn, context)

        def not_taken(self, model: Any, params: Any) -> dict[str, str]:
            return {}

    stage = Stage(Watching([[use("c1", "weather", city="Oslo")], [Text(text="done")]], ToolRegistry()))
    await stage.start(tools=TOOLS, params={"tool_choice": "required"})
    await stage.until(stage.awaits)
    stage.new_core()
    await stage.core.approvals.decide("run", "c1", provided("rain"))
    await stage.outcome()
    assert choices == [("required", True), ("auto", True)]
