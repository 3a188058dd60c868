"""`PydanticAIEngine`: agents of the installed Pydantic AI, with its own models and stand-ins that speak over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.usage import UsageLimits
from ray import cloudpickle

from engine_calls import SESSION
from frameworks import gemini
from frameworks.gemini import GeminiServer
from schedules import inline
from stored.watched_store import WatchedStore
from tools.agent_world import check_request, next_request
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.adapters import PydanticAIEngine
from turnwise.errors import ConfigError
from turnwise.memory.conversation.blocks import Thinking, ToolResult
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.trim import Trim
from turnwise.testing import LocalProvider, tool_script
from turnwise.testing.local_provider.anthropic_messages import sign
from windows.stage import WINDOW

DONE: list[str] = []
"""What the tools of a test did."""


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


class Stage:
    """One session without Ray, in processes that follow each other."""

    def __init__(self, engine: PydanticAIEngine, overflow: OverflowStrategy | None = None, **settings: Any) -> None:
        self.engine = engine
        self.overflow = overflow
        self.store: Any = InMemoryStore()
        self.settings = settings
        self.core = self._process()

    async def __aenter__(self) -> Self:
        await self.store.create(SessionRecord(session_id="s1"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.core.engines.close(self.core.engines.remove_all())

    def _process(self) -> SessionCore:
        settings: dict[str, Any] = {"config": SessionConfig(**self.settings), "overflow": self.overflow}
        return SessionCore(SessionKey("s1"), self.store, self.engine, **settings, off_loop=inline)

    async def restart(self) -> None:
        """Go on in another process; what the one before still does has no effect on the store."""
        await self.core.engines.close(self.core.engines.remove_all())
        self.core = self._process()

    async def run(self, prompt: str, **options: Any) -> Any:
        """Run a prompt; return the outcome. The run's id is the prompt."""
        await self.core.admission.start([prompt], run_id=prompt, **options)
        return await self.outcome(prompt)

    async def outcome(self, run_id: str) -> Any:
        outcome = await self.core.reads.wait(run_id)
        assert outcome is not None and outcome.turn is not None
        check_request(next_request(outcome.turn))
        return outcome

    async def pending(self, run_id: str) -> list[Any]:
        while (run := await self.core.reads.run(run_id)).state != "awaiting_approval":
            assert run.state in ("queued", "running"), run.why
            await asyncio.sleep(0.005)
        return list(await self.core.reads.pending(run_id))


def scripted(*steps: str | list[tuple[str, dict[str, Any]]]) -> FunctionModel:
    """Return a model that makes the steps after each prompt: a text, or calls."""

    def step(messages: list[ModelMessage]) -> tuple[int, Any]:
        number = 0
        for message in reversed(messages):
            if isinstance(message, ModelResponse):
                number += 1
            elif any(part.part_kind == "user-prompt" for part in message.parts):
                break
        return number, steps[min(number, len(steps) - 1)]

    async def stream(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
        number, answer = step(messages)
        if isinstance(answer, str):
            for word in answer.split(" "):
                yield f"{word} "
        else:
            yield {
                index: DeltaToolCall(name=name, json_args=json.dumps(args), tool_call_id=f"c{number}{index}")
                for index, (name, args) in enumerate(answer)
            }

    def whole(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        number, answer = step(messages)
        if isinstance(answer, str):
            return ModelResponse(parts=[TextPart(f"{answer} ")])
        return ModelResponse(parts=[ToolCallPart(n, a, f"c{number}{index}") for index, (n, a) in enumerate(answer)])

    return FunctionModel(whole, stream_function=stream)


def agent_of(*steps: Any, **settings: Any) -> Agent[Any, Any]:
    agent: Agent[Any, Any] = Agent(scripted(*steps), name="tester", **settings)

    @agent.tool_plain
    def look(at: str) -> dict[str, str]:
        DONE.append(f"look {at}")
        return {"saw": at}

    @agent.tool_plain(requires_approval=True)
    def pay(euros: int) -> str:
        DONE.append(f"pay {euros}")
        return f"paid {euros}"

    return agent


def kinds(outcome: Any) -> list[str]:
    return [block.kind for block in outcome.turn.output]


def results(outcome: Any) -> list[tuple[str, bool]]:
    return [(block.text, block.is_error) for block in outcome.turn.output if isinstance(block, ToolResult)]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_agent_answers_calls_its_tools_and_hears_what_was_said_before(stream: bool) -> None:
    agent = agent_of([("look", {"at": "sea"}), ("look", {"at": "sky"})], "It is blue.")
    async with Stage(PydanticAIEngine(agent, stream=stream)) as stage:
        outcome = await stage.run("Look!")
        assert outcome.run.state == "completed", outcome.run.why
        assert kinds(outcome) == ["tool_use", "tool_use", "tool_result", "tool_result", "text"]
        assert outcome.turn.text == "It is blue. "
        assert (outcome.run.usage.calls, outcome.run.usage.tool_calls) == (2, 2)
        assert outcome.run.usage.input_tokens > 0 and outcome.run.usage.output_tokens > 0
        outcome = await stage.run("Again!")
        assert len(outcome.turn.blocks) == 12 and outcome.run.state == "completed"
        events = [event.kind for event in (await stage.core.reads.events())[0] if not event.live]
    calls = ["model_call_ended", "tool_started", "tool_started", "tool_ended", "tool_ended"]
    assert events == ["run_started", *calls, "run_completed"] * 2
    assert sorted(DONE) == ["look sea", "look sea", "look sky", "look sky"]


async def test_claude_thinks_and_its_thoughts_go_back_signed() -> None:
    """The stand-in refuses thoughts whose signatures do not fit, and calls without the thoughts before them."""
    reply = tool_script([[("look", {"at": "sea"})], "Blue."], reasoning="Let me see.")
    with LocalProvider(reply=reply) as provider:
        async with Stage(claude(provider)) as stage:
            outcome = await stage.run("Look!")
            assert outcome.run.state == "completed", outcome.run.why
            assert kinds(outcome) == ["thinking", "tool_use", "tool_result", "thinking", "text"]
            assert outcome.turn.output[0] == Thinking(text="Let me see.", signature=sign("Let me see."))
            assert outcome.run.stop_reason == "stop" and outcome.run.usage.calls == 2
            await stage.restart()
            outcome = await stage.run("Again!")
            assert outcome.run.state == "completed", outcome.run.why
    assert len(provider.requests) == 4
    assert provider.requests[3].body["messages"][1]["content"][0]["signature"] == sign("Let me see.")


def claude(provider: LocalProvider, model: str = "claude", **settings: Any) -> PydanticAIEngine:
    def make() -> Agent[Any, Any]:
        to = AnthropicProvider(base_url=provider.anthropic_url, api_key="local")
        thinking: Any = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096}
        agent: Agent[Any, Any] = Agent(AnthropicModel(model, provider=to), name="claude", model_settings=thinking)
        agent.tool_plain(see)
        return agent

    return PydanticAIEngine(make, name=f"claude {provider.port} {model}", **settings)


def see(at: str) -> str:
    DONE.append(f"look {at}")
    return f"saw {at}"


see.__name__ = "look"


async def test_gemini_gets_its_signatures_back() -> None:
    """The stand-in refuses a call that comes back without its signature, as Gemini 3 does."""
    with GeminiServer([gemini.call("look", at="sea")], [{"text": "Bl"}, {"text": "ue."}]) as server:

        def make() -> Agent[Any, Any]:
            to = GoogleProvider(base_url=server.base_url, api_key="local")
            agent: Agent[Any, Any] = Agent(GoogleModel("gemini-3-pro-preview", provider=to), name="gemini")
            agent.tool_plain(see)
            return agent

        async with Stage(PydanticAIEngine(make)) as stage:
            outcome = await stage.run("Look!")
            assert outcome.run.state == "completed", outcome.run.why
            assert kinds(outcome) == ["tool_use", "tool_result", "text"] and outcome.turn.text == "Blue."
            assert outcome.run.usage.reasoning_tokens == 4
            await stage.restart()
            assert (await stage.run("Again!")).run.state == "completed"
    assert len(server.requests) == 3 and DONE == ["look sea"]


@pytest.mark.parametrize(
    ("decision", "text", "done"),
    [
        (ApprovalDecision(verdict="approved"), ("paid 5", False), ["pay 5"]),
        (ApprovalDecision(verdict="approved", input={"euros": 3}), ("paid 3", False), ["pay 3"]),
        (ApprovalDecision(verdict="rejected", text="too much"), ("too much", True), []),
        (ApprovalDecision(verdict="provided", text="paid in cash"), ("paid in cash", False), []),
    ],
)
async def test_an_approval_is_decided_in_another_process(
    decision: ApprovalDecision, text: tuple[str, bool], done: list[str]
) -> None:
    agent = agent_of([("look", {"at": "it"}), ("pay", {"euros": 5})], "Done.")
    async with Stage(PydanticAIEngine(agent)) as stage:
        await stage.core.admission.start(["Pay!"], run_id="r")
        (call,) = await stage.pending("r")
        assert (call.name, call.input, call.wants) == ("pay", {"euros": 5}, "approval")
        await stage.restart()
        await stage.core.approvals.decide("r", call.call_id, decision)
        outcome = await stage.outcome("r")
        assert outcome.run.state == "completed", outcome.run.why
        result_text, is_error = results(outcome)[1]
        assert text[0] in result_text and is_error is text[1]
        assert ["look it", *done] == DONE and outcome.turn.text == "Done. "


@pytest.mark.parametrize("stream", [True, False])
async def test_two_calls_of_one_id_are_decided_one_by_one(stream: bool) -> None:
    def step(messages: list[ModelMessage]) -> list[int]:
        return [] if any(isinstance(message, ModelResponse) for message in messages) else [5, 500]

    async def streamed(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
        for index, euros in enumerate(step(messages)):
            yield {index: DeltaToolCall(name="pay", json_args=json.dumps({"euros": euros}), tool_call_id="call_0")}
        if not step(messages):
            yield "Done."

    def whole(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        paid: list[Any] = [ToolCallPart("pay", {"euros": euros}, "call_0") for euros in step(messages)]
        return ModelResponse(parts=paid or [TextPart("Done.")])

    agent = agent_of("")
    agent.model = FunctionModel(whole, stream_function=streamed)
    async with Stage(PydanticAIEngine(agent, stream=stream)) as stage:
        await stage.core.admission.start(["Pay!"], run_id="r")
        small, large = await stage.pending("r")
        assert (small.call_id, large.call_id) == ("call_0", "call_0_2") and large.input == {"euros": 500}
        await stage.core.approvals.decide("r", small.call_id, ApprovalDecision(verdict="approved"))
        await stage.core.approvals.decide("r", large.call_id, ApprovalDecision(verdict="rejected", text="too much"))
        outcome = await stage.outcome("r")
        assert outcome.run.state == "completed", outcome.run.why
        assert DONE == ["pay 5"] and outcome.turn.text == "Done."


async def test_tools_that_defer_calls_themselves_make_the_run_wait() -> None:
    agent = agent_of([("ask", {}), ("deploy", {})], "Done.")

    @agent.tool_plain
    def ask() -> str:
        raise CallDeferred

    @agent.tool
    def deploy(ctx: RunContext[Any]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"why": "it is live"})
        DONE.append("deployed")
        return "up"

    async with Stage(PydanticAIEngine(agent)) as stage:
        await stage.core.admission.start(["Go!"], run_id="r")
        calls = {call.name: call for call in await stage.pending("r")}
        assert calls["ask"].wants == "result" and calls["deploy"].why == "it is live"
        await stage.core.approvals.decide("r", calls["ask"].call_id, ApprovalDecision(verdict="provided", text="yes"))
        await stage.restart()
        await stage.core.approvals.decide("r", calls["deploy"].call_id, ApprovalDecision(verdict="approved"))
        outcome = await stage.outcome("r")
        assert outcome.run.state == "completed", outcome.run.why
        assert results(outcome) == [("yes", False), ("up", False)] and DONE == ["deployed"]


@pytest.mark.parametrize("repeatable", [False, True])
async def test_after_a_kill_settled_calls_are_not_made_again(repeatable: bool) -> None:
    begun, hold = asyncio.Event(), asyncio.Event()
    agent = agent_of([("look", {"at": "it"}), ("slow", {})], "Done.")

    @agent.tool_plain
    async def slow() -> str:
        DONE.append("slow")
        begun.set()
        if DONE.count("slow") == 1:
            await hold.wait()
        return "slept"

    engine = PydanticAIEngine(agent, repeatable=["slow"] if repeatable else [])
    async with Stage(engine, on_lost="resume") as stage:
        await stage.core.admission.start(["Go!"], run_id="r")
        await begun.wait()
        while "tool_ended" not in [event.kind for event in (await stage.core.reads.events())[0]]:
            await asyncio.sleep(0.005)
        await stage.restart()
        outcome = await stage.outcome("r")
        assert outcome.run.state == "completed", outcome.run.why
        looked, slept = results(outcome)
        assert looked == ('{"saw":"it"}', False)
        if repeatable:
            assert slept == ("slept", False) and sorted(DONE) == ["look it", "slow", "slow"]
        else:
            assert "the process was lost" in slept[0] and slept[1] and sorted(DONE) == ["look it", "slow"]
        hold.set()  # the lost process can do no harm: the store refuses what it records
        await asyncio.sleep(0.05)


async def test_a_result_is_recorded_during_other_tools_and_commits() -> None:
    storing, returned, begun, hold = (asyncio.Event() for _ in range(4))

    class SlowStore(InMemoryStore):
        async def commit(self, key: SessionKey, epoch: int, commit: Any) -> None:
            if any(event.kind == "tool_ended" for event in commit.events) and not storing.is_set():
                storing.set()
                await returned.wait()
                for _ in range(100):  # until the agent has handed the result on
                    await asyncio.sleep(0)
            await super().commit(key, epoch, commit)

    agent = agent_of([("look", {"at": "it"}), ("second", {}), ("slow", {})], "Done.")

    @agent.tool_plain
    async def second() -> str:
        DONE.append("second")
        await storing.wait()
        returned.set()
        return "second"

    @agent.tool_plain
    async def slow() -> str:
        DONE.append("slow")
        begun.set()
        await hold.wait()
        return "slept"

    stage = Stage(PydanticAIEngine(agent), on_lost="resume")
    stage.store = SlowStore()
    async with stage:
        await stage.restart()
        await stage.core.admission.start(["Go!"], run_id="r")
        await begun.wait()
        async with asyncio.timeout(10):
            while [event.kind for event in (await stage.core.reads.events())[0]].count("tool_ended") < 2:
                await asyncio.sleep(0.005)
        await stage.restart()
        outcome = await stage.outcome("r")
        assert [is_error for _, is_error in results(outcome)] == [False, False, True], "only the one that ran is lost"
        assert sorted(DONE) == ["look it", "second", "slow"]
        hold.set()
        await asyncio.sleep(0.05)


async def test_a_kill_at_any_commit_makes_no_call_twice() -> None:
    """The store is copied at each commit, those of a decision too; a process that finds the copy goes on from there."""
    steps = [("look", {"at": "sea"}), ("look", {"at": "sky"})], [("look", {"at": "map"}), ("pay", {"euros": 5})]
    engine = PydanticAIEngine(agent_of(*steps, "Done."))
    kills: list[tuple[InMemoryStore, list[str]]] = []
    stage = Stage(engine, on_lost="resume")
    stage.store = WatchedStore(lambda twin: kills.append((twin, list(DONE))))

    async def to_the_end(stage: Stage) -> Any:
        while (run := await stage.core.reads.run("r")).state not in ("completed", "failed"):
            if run.state == "awaiting_approval":
                for call in await stage.core.reads.pending("r"):
                    await stage.core.approvals.decide("r", call.call_id, ApprovalDecision(verdict="approved"))
            await asyncio.sleep(0.005)
        return await stage.outcome("r")

    async with stage:
        await stage.restart()
        await stage.core.admission.start(["Go!"], run_id="r")
        await to_the_end(stage)
    assert sorted(DONE) == ["look map", "look sea", "look sky", "pay 5"] and len(kills) > 8
    for store, before in kills[1:-1]:
        DONE[:] = before
        again = Stage(engine, on_lost="resume")
        again.store = store
        await again.restart()
        outcome = await to_the_end(again)
        assert outcome.run.state == "completed", outcome.run.why
        assert outcome.turn.text == "Done. "
        assert len(set(DONE)) == len(DONE), "no call is made twice"
        assert kinds(outcome).count("tool_use") == kinds(outcome).count("tool_result") == 4
        await again.core.engines.close(again.core.engines.remove_all())


async def test_what_leaves_the_window_during_a_run_is_in_no_later_request() -> None:
    requests: list[str] = []

    def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        requests.append(str(messages))
        return ModelResponse(parts=[ToolCallPart("look", {}, "c1") if len(requests) == 2 else TextPart("done")])

    agent: Agent[Any, Any] = Agent(FunctionModel(answer))

    @agent.tool_plain
    def look() -> str:
        return "seen " * 60

    async with Stage(PydanticAIEngine(agent, stream=False), Trim(), **WINDOW) as stage:
        await stage.run("first " * 50)
        await stage.run("second")
    assert ["first" in request for request in requests] == [True, True, False]
    assert "second" in requests[2] and "seen" in requests[2]


async def test_a_cancel_reaches_the_provider_and_keeps_what_was_said() -> None:
    with LocalProvider() as provider:
        async with Stage(claude(provider, "claude/stall-once")) as stage:
            await stage.core.admission.start(["Hello"], run_id="r")
            record = await asyncio.to_thread(provider.wait_for_request)
            while "text_delta" not in [event.kind for event in (await stage.core.reads.events())[0]]:
                await asyncio.sleep(0.005)
            assert await stage.core.admission.cancel("stop", "r")
            assert await asyncio.to_thread(record.ended.wait, 30) and record.hung_up_at is not None
            outcome = await stage.outcome("r")
            assert outcome.run.state == "cancelled"
            assert outcome.turn.text and "You said: Hello ".startswith(outcome.turn.text)
            assert (await stage.run("Again")).run.state == "completed"


class City(BaseModel):
    """A city."""

    name: str


async def test_a_typed_output_is_json_and_a_refused_one_is_requested_again() -> None:
    def choose(name: str) -> City:
        DONE.append(name)
        if name == "Atlantis":
            raise ModelRetry("there is no such city")
        return City(name=name)

    async with Stage(
        PydanticAIEngine(
            agent_of(
                [("final_result", {"name": "Atlantis"})],
                [("look", {"at": "map"})],
                [("final_result", {"name": "Rome"})],
                output_type=choose,
            )
        )
    ) as stage:
        outcome = await stage.run("Which?")
        assert outcome.run.state == "completed", outcome.run.why
        assert outcome.turn.text == '{"name":"Rome"}'
        assert kinds(outcome) == ["tool_use", "tool_result", "tool_use", "tool_result", "text"]
        assert "there is no such city" in results(outcome)[0][0]
        assert (await stage.run("And?")).run.state == "completed"


async def test_a_run_can_bring_its_own_type_tools_instructions_and_parameters() -> None:
    infos: list[AgentInfo] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        infos.append(info)
        names = {tool.name for tool in info.function_tools}
        if "weather" in names and len(infos) == 1:
            yield {0: DeltaToolCall(name="weather", json_args='{"city": "Oslo"}', tool_call_id="w")}
        else:
            wrong = len(infos) == 2
            city = '{"town": 1}' if wrong else '{"name": "Oslo"}'
            yield {0: DeltaToolCall(name=info.output_tools[0].name, json_args=city, tool_call_id=f"o{len(infos)}")}

    engine = PydanticAIEngine(Agent(FunctionModel(stream_function=stream), name="typed", instructions="Be kind."))
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    record = OutputType(schema=City.model_json_schema(), retries=1).record  # type: ignore[arg-type]
    async with Stage(engine) as stage:
        await stage.core.admission.start(
            ["Go"],
            run_id="r",
            output=record,
            instructions="Be brief.",
            tools={"weather": {"description": "The weather.", "parameters": parameters}},
            params={"temperature": 0.5, "stop": "END", "max_output_tokens": 9},
        )
        (call,) = await stage.pending("r")
        await stage.core.approvals.decide("r", call.call_id, ApprovalDecision(verdict="provided", text="rain"))
        outcome = await stage.outcome("r")
        assert outcome.run.state == "completed", outcome.run.why
        assert outcome.turn.text == '{"name":"Oslo"}' and results(outcome)[1][1]
    assert infos[0].instructions == "Be kind.\n\nBe brief."
    assert infos[0].model_settings == {"temperature": 0.5, "stop_sequences": ["END"], "max_tokens": 9}
    assert engine.not_taken("claude", {"verbosity": "low"}).keys() == {"model", "verbosity"}


def failing(error: Callable[[], Exception]) -> FunctionModel:
    async def stream(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
        if not DONE:
            DONE.append("failed")
            yield "Hel"
            raise error()
        yield "Hello"

    return FunctionModel(stream_function=stream)


async def test_limits_and_failures_are_errors_of_ours_and_the_session_stays_usable() -> None:
    agent = agent_of([("look", {"at": "it"})], "Done.")
    async with Stage(PydanticAIEngine(agent, usage_limits=UsageLimits(request_limit=1))) as stage:
        outcome = await stage.run("Go!")
        assert (outcome.run.state, outcome.run.code) == ("failed", "step_limit")
        assert "request_limit" in outcome.run.why and results(outcome) == [('{"saw":"it"}', False)]
    DONE.clear()
    async with Stage(PydanticAIEngine(Agent(failing(lambda: OSError("gone")), name="broken"))) as stage:
        outcome = await stage.run("Go!")
        assert outcome.run.why == "agent 'broken' raised OSError: gone" and outcome.turn.text == "Hel"
        assert (await stage.run("Again!")).turn.text == "Hello"


@pytest.mark.parametrize(
    ("model", "code", "reason"),
    [
        ("claude/cut-once", None, "agent 'claude'"),
        ("claude/400-once", "refused", "the provider refuses the request"),
        ("claude/401-once", None, "check the model, its key"),
        ("claude/error-once", None, "agent 'claude'"),
    ],
)
async def test_a_server_that_fails_or_dies_in_a_stream(model: str, code: str | None, reason: str) -> None:
    with LocalProvider() as provider:
        async with Stage(claude(provider, model)) as stage:
            outcome = await stage.run("Hello")
            assert (outcome.run.state, outcome.run.code) == ("failed", code) and reason in outcome.run.why
            assert (await stage.run("Again")).run.state == "completed"


@pytest.mark.parametrize(
    "agent", [Agent(name="empty"), "no-colon", 5, Agent], ids=["no model", "no module", "no agent", "a class"]
)
def test_what_cannot_be_an_agent_is_refused(agent: Any) -> None:
    with pytest.raises(ConfigError, match="agent"):
        PydanticAIEngine(agent)


def no_model() -> Agent[Any, Any]:
    return Agent(name="empty")


@pytest.mark.parametrize(
    ("agent", "reason"),
    [(no_model, "has no model"), ("nowhere:agent", "cannot be imported"), (lambda: 5, "must be an Agent")],
)
async def test_a_function_that_gives_no_agent_fails_the_run(agent: Any, reason: str) -> None:
    async with Stage(PydanticAIEngine(agent)) as stage:
        outcome = await stage.run("Hello")
        assert outcome.run.state == "failed" and reason in outcome.run.why


def test_an_engine_travels_unless_its_agent_holds_a_client() -> None:
    engine = PydanticAIEngine(agent_of("Hi", output_type=City), repeatable=["look"])
    copy = cloudpickle.loads(cloudpickle.dumps(engine))
    assert copy.agent.name == "tester" and copy.build(SESSION)
    assert copy.engine_name == engine.engine_name and copy.repeatable == ("look",)
    model = AnthropicModel("claude", provider=AnthropicProvider(api_key="sk-secret"))
    with pytest.raises(ConfigError, match="holds a client, which cannot travel: pass a function"):
        cloudpickle.dumps(PydanticAIEngine(Agent(model, name="t")))
