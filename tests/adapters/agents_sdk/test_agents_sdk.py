"""`AgentsSDKEngine` with the real Agents SDK, without Ray; the processes are in test_agents_sdk_on_ray.py."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    ToolGuardrailFunctionOutput,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    set_tracing_disabled,
    tool_output_guardrail,
)
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel, assistant_message, function_call
from ray import cloudpickle

from frameworks.agents_sdk_models import Steps
from schedules import SESSION, inline
from tools.agent_world import check_request, next_request
from turnwise.actors.hosting.identity import identity
from turnwise.actors.inference.text_model import EngineModel
from turnwise.actors.inference.tools.loop import LOST
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.adapters import AgentsSDKEngine
from turnwise.adapters.agents_sdk.items import answer_of, output_of
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import ConfigError, FrameworkError, InvalidInputError
from turnwise.memory.conversation.blocks import Image, System, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.events import ModelCallEnded, TextDelta, ThinkingDelta, ToolEnded, ToolStarted
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Outcome
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.frozen_json import freeze
from turnwise.strategies.trim import Trim
from turnwise.testing import LocalProvider
from turnwise.testing.local_provider.replies import tool_script

set_tracing_disabled(True)

WAIT_S = 30.0


class Stage:
    """A store with one session, and the cores that own it one after the other."""

    def __init__(self, engine: AgentsSDKEngine | Agent[Any], *, overflow: Any = None, **settings: Any) -> None:
        self.engine = engine if isinstance(engine, AgentsSDKEngine) else AgentsSDKEngine(engine)
        self.store = InMemoryStore()
        self._config, self._overflow = SessionConfig(**settings), overflow
        self.core = self.new_core()
        self._runs = 0

    def new_core(self) -> SessionCore:
        now = asyncio.get_running_loop().time
        options: dict[str, Any] = {"overflow": self._overflow, "clock": now, "off_loop": inline}
        self.core = SessionCore(SessionKey(SESSION), self.store, self.engine, self._config, **options)
        return self.core

    async def start(self, *prompts: Any, **options: Any) -> str:
        if not self._runs:
            await self.store.create(SessionRecord(session_id=SESSION))
        self._runs += 1
        await self.core.admission.start(list(prompts or ["go"]), run_id=f"run{self._runs}", **options)
        return f"run{self._runs}"

    async def run(self, *prompts: Any, **options: Any) -> Outcome:
        return await self.outcome(await self.start(*prompts, **options))

    async def outcome(self, run_id: str) -> Outcome:
        outcome = await self.core.reads.wait(run_id, WAIT_S)
        assert outcome.turn
        check_request(next_request(outcome.turn))
        return outcome

    async def until_waiting(self, run_id: str) -> list[Any]:
        async with asyncio.timeout(WAIT_S):
            while (await self.core.reads.run(run_id)).state != "awaiting_approval":
                await asyncio.sleep(0.005)
        return await self.core.reads.pending(run_id)


def script(*steps: Any) -> ScriptedModel:
    """Return a model that answers with these texts and lists of (tool, arguments, call id)."""
    return ScriptedModel(
        [
            [assistant_message(step)]
            if isinstance(step, str)
            else [function_call(name, arguments, call_id=call_id) for name, arguments, call_id in step]
            for step in steps
        ]
    )


@asynccontextmanager
async def provided(kind: Any, provider: LocalProvider) -> AsyncIterator[Any]:
    """Yield a model of the SDK that asks the provider, and keeps its reasoning."""
    async with openai.AsyncOpenAI(api_key="k", base_url=provider.base_url, max_retries=0) as client:
        yield kind("gpt-x", client)


KEPT = ModelSettings(response_include=["reasoning.encrypted_content"], store=False)


@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_an_approved_agent_goes_on_in_another_process(kind: Any) -> None:
    calls_made: list[Any] = []

    @function_tool
    def add(a: int, b: int) -> int:
        """Add."""
        calls_made.append((a, b))
        return a + b

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        calls_made.append(amount)
        return f"paid {amount}"

    steps: list[Any] = [[("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})], [("pay", {"amount": 5})], "All done."]
    with LocalProvider(reply=tool_script(steps, reasoning="hm")) as provider:
        async with provided(kind, provider) as model:
            agent = Agent(name="Clerk", instructions="Be kind.", tools=[add, pay], model=model, model_settings=KEPT)
            stage = Stage(AgentsSDKEngine(lambda: agent))
            run_id = await stage.start()
            (call,) = await stage.until_waiting(run_id)
            assert (call.name, call.wants, dict(call.input)) == ("pay", "approval", {"amount": 5})
            core = stage.new_core()
            await core.approvals.decide(run_id, call.call_id, ApprovalDecision(verdict="approved"))
            outcome = await stage.outcome(run_id)
            assert outcome.run.why is None and outcome.turn and outcome.turn.text == "All done."
            at_once, paid = calls_made[:-1], calls_made[-1]
            assert sorted(at_once) == [(1, 2), (3, 4)] and paid == 5, "nothing is made twice"
            assert len(provider.requests) == 3, "what was recorded is not asked again"
            kinds = [block.kind for block in outcome.turn.output]
            result, use = "tool_result", "tool_use"
            assert kinds == ["thinking", use, use, result, result, "thinking", use, result, "thinking", "text"]
            assert outcome.turn.usage and (outcome.turn.usage.calls, outcome.turn.usage.tool_calls) == (3, 3)
            assert outcome.turn.usage.input_tokens and outcome.turn.usage.output_tokens
            waiting = await stage.until_waiting(await stage.start("again"))
            await stage.core.approvals.decide(
                "run2", waiting[0].call_id, ApprovalDecision(verdict="rejected", text="too much")
            )
            second = await stage.outcome("run2")
            assert second.turn and second.turn.text == "All done." and len(calls_made) == 5
            last = [block for block in second.turn.output if isinstance(block, ToolResult)][-1]
            assert last.text == "rejected: too much" and last.is_error
            body = json.dumps(provider.requests[-1].body)
            assert body.count("paid 5") == 1 and "too much" in body, "the conversation goes on where it was"


async def test_parts_are_streamed_and_events_are_in_order() -> None:
    @function_tool
    def look() -> str:
        """Look."""
        return "a cat"

    with LocalProvider(reply=tool_script([[("look", {})], "It is a cat."], reasoning="let me look")) as provider:
        async with provided(OpenAIChatCompletionsModel, provider) as model:
            stage = Stage(AgentsSDKEngine(lambda: Agent(name="a", tools=[look], model=model)))
            await stage.run()
            events = (await stage.core.reads.events())[0]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "It is a cat."
    assert "".join(event.text for event in events if isinstance(event, ThinkingDelta)) == "let me look" * 2
    stored = [type(event) for event in events if not event.live]
    assert stored.index(ModelCallEnded) < stored.index(ToolStarted) < stored.index(ToolEnded)


async def test_a_finished_call_is_not_repeated_and_a_lost_one_is_reported() -> None:
    calls_made, begun = [], asyncio.Event()

    @function_tool
    async def quick() -> str:
        """Be quick."""
        calls_made.append("quick")
        return "quick"

    @function_tool
    async def slow() -> str:
        """Be slow."""
        calls_made.append("slow")
        begun.set()
        await asyncio.sleep(WAIT_S)
        return "slow"

    calls: list[Any] = [("quick", {}, "c1"), ("slow", {}, "c2")]
    agent = Agent(name="a", tools=[quick, slow], model=script(calls, "done"))
    stage = Stage(AgentsSDKEngine(lambda: agent), on_lost="resume")
    run_id = await stage.start()
    await begun.wait()
    async with asyncio.timeout(WAIT_S):
        while not any(isinstance(event, ToolEnded) for event in (await stage.core.reads.events())[0]):
            await asyncio.sleep(0.005)
    stage.new_core()  # the process was lost
    outcome = await stage.outcome(run_id)
    assert outcome.run.resumes == 1 and outcome.turn and outcome.turn.text == "done" and calls_made == ["quick", "slow"]
    results = [block for block in outcome.turn.output if isinstance(block, ToolResult)]
    assert [(result.text, result.is_error) for result in results] == [("quick", False), (LOST, True)]


class Mortal:
    """A store in which the process dies at one commit: before it is stored, or after."""

    def __init__(self, inner: InMemoryStore, at: int, *, before: bool) -> None:
        self._inner, self._at, self._before = inner, at, before
        self.died, self._never = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, *args: Any, **kwargs: Any) -> Any:
        self._at -= 1
        if self._at > 0:
            return await self._inner.commit(*args, **kwargs)
        if self._at == 0 and not self._before:
            await self._inner.commit(*args, **kwargs)
        self.died.set()
        return await self._never.wait()


@pytest.mark.parametrize("before", [False, True])
async def test_a_kill_at_any_commit_makes_no_settled_call_again(before: bool) -> None:
    dead: list[Any] = []  # kept, since what they wait for must not be collected as garbage
    for commit_number in itertools.count(2):
        calls_made = Counter[str]()

        @function_tool
        async def work(name: str) -> str:
            """Work."""
            calls_made[name] += 1  # noqa: B023
            return f"did {name}"

        calls: list[Any] = [[("work", {"name": "a"}), ("work", {"name": "b"})], [("work", {"name": "c"})]]
        agent = Agent(name="a", tools=[work], model=Steps(*calls, "done"))
        stage = Stage(AgentsSDKEngine(lambda: agent), on_lost="resume")  # noqa: B023
        living, mortal = stage.store, Mortal(stage.store, commit_number, before=before)
        stage.store = mortal  # type: ignore[assignment]
        stage.new_core()
        run_id = await stage.start()
        ended = asyncio.create_task(stage.core.reads.wait(run_id, WAIT_S))
        died = asyncio.create_task(mortal.died.wait())
        await asyncio.wait({ended, died}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if died.done():
            dead += stage.core, mortal
            stage.store = living
            stage.new_core()
        outcome = await stage.outcome(run_id)
        assert outcome.turn and outcome.turn.text == "done" and max(calls_made.values()) == 1, (
            commit_number,
            calls_made,
        )
        for use, result in zip(*(blocks_of(outcome, kind) for kind in (ToolUse, ToolResult)), strict=True):
            assert result.text == (f"did {use.input['name']}" if not result.is_error else LOST)
        if not died.done():
            break
    assert len(dead) >= 2 * 4, "commits of the answers and their calls, of the results, and of the end"


def blocks_of(outcome: Outcome, kind: type[Any]) -> list[Any]:
    assert outcome.turn
    return [block for block in outcome.turn.output if isinstance(block, kind)]


def test_a_release_whose_interface_has_moved_is_one_error_with_both_versions() -> None:
    with (
        pytest.raises(
            FrameworkError, match=r"openai-agents .*run has no parameter starting_point; .* tested with 0.24"
        ),
        framework("openai-agents", extra="openai-agents", tested="0.24"),
    ):
        expect(Runner.run, "starting_agent", "starting_point")


async def test_a_repeatable_tool_is_called_again_after_a_loss() -> None:
    calls_made, begun = [], asyncio.Event()

    @function_tool
    async def look() -> str:
        """Look."""
        calls_made.append("look")
        if len(calls_made) == 1:
            begun.set()
            await asyncio.sleep(WAIT_S)
        return "a cat"

    agent = Agent(name="a", tools=[look], model=script([("look", {}, "c1")], "done"))
    stage = Stage(AgentsSDKEngine(lambda: agent, repeatable=["look"]), on_lost="resume")
    run_id = await stage.start()
    await begun.wait()
    stage.new_core()
    outcome = await stage.outcome(run_id)
    assert outcome.turn and outcome.turn.text == "done" and calls_made == ["look", "look"]


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_cancel_closes_the_connection_before_it_returns(guarded: bool) -> None:
    @input_guardrail
    async def patient(context: Any, agent: Any, items: Any) -> GuardrailFunctionOutput:
        await asyncio.sleep(WAIT_S)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    with LocalProvider(reply="word " * 500, token_delay_s=0.02) as provider:
        async with provided(OpenAIChatCompletionsModel, provider) as model:
            guards = [patient] if guarded else []
            stage = Stage(AgentsSDKEngine(lambda: Agent(name="a", model=model, input_guardrails=guards)))
            run_id = await stage.start()
            async with asyncio.timeout(WAIT_S):
                while not any(isinstance(event, TextDelta) for event in (await stage.core.reads.events())[0]):
                    await asyncio.sleep(0.005)
            await stage.core.admission.cancel("enough")
            outcome = await stage.outcome(run_id)
            assert await asyncio.to_thread(provider.requests[0].ended.wait, WAIT_S)
    assert outcome.run.state == "cancelled" and provider.requests[0].hung_up_at is not None
    assert outcome.turn and outcome.turn.text.startswith("word") and len(outcome.turn.text) < 2500


async def test_handoffs_go_on_with_the_other_agent_and_turns_return_or_stay() -> None:
    notes: list[str] = []
    answers = ("Hello, billing here.", "Yes.", "Back.")
    billing = Agent(name="Billing", model=script(*answers))
    route = handoff(billing, on_handoff=lambda context: notes.append("handed off"))
    triage = Agent(name="Triage", handoffs=[route], model=script([("transfer_to_billing", {}, "c1")], "Triage here."))
    stage = Stage(AgentsSDKEngine(lambda: triage, after_handoff="stay"))
    first = await stage.run("my bill")
    assert first.turn and first.turn.text == "Hello, billing here." and notes == ["handed off"]
    assert [block.kind for block in first.turn.output] == ["tool_use", "tool_result", "text"]
    second = await stage.run("sure?")
    assert second.turn and second.turn.text == "Yes."
    stage.engine = AgentsSDKEngine(lambda: triage)
    stage.new_core()
    third = await stage.run("and now?")
    assert third.turn and third.turn.text == "Triage here."


async def test_an_agent_as_a_tool_is_one_call_without_approvals_within() -> None:
    calls_made: list[str] = []

    @function_tool(needs_approval=True)
    async def erase() -> str:
        """Erase."""
        calls_made.append("erase")
        return "erased"

    inner = Agent(name="Inner", tools=[erase], model=script([("erase", {}, "n1")], "I may not."))
    outer = Agent(
        name="Outer",
        tools=[inner.as_tool("ask_inner", "Asks.")],
        model=script([("ask_inner", {"input": "please"}, "c1")], "done"),
    )
    outcome = await Stage(AgentsSDKEngine(lambda: outer)).run()
    assert outcome.run.why is None and outcome.turn and outcome.turn.text == "done" and not calls_made
    assert [block.text for block in outcome.turn.output if isinstance(block, ToolResult)] == ["I may not."]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_call_within_an_agent_as_a_tool_is_always_rejected(waits: bool) -> None:
    calls_made: list[str] = []

    @function_tool(needs_approval=True)
    async def delete(what: str) -> str:
        """Delete."""
        calls_made.append(what)
        return "deleted"

    calls = [("ask_inner", {"input": "please"}, "call_0"), *[("delete", {"what": "one"}, "call_1")] * waits]
    first_step = [("delete", {"what": "all"}, f"call_{int(waits)}")]
    inner = Agent(name="Inner", tools=[delete], model=script(first_step, "I may not."))
    tools: list[Any] = [inner.as_tool("ask_inner", "Asks."), delete]
    outer = Agent(name="Outer", tools=tools, model=script(calls, "done"))
    stage = Stage(AgentsSDKEngine(lambda: outer, repeatable=["ask_inner"]))
    run_id = await stage.start()
    if waits:
        (request,) = await stage.until_waiting(run_id)
        assert request.input == {"what": "one"}
        await stage.core.approvals.decide(run_id, request.call_id, ApprovalDecision(verdict="approved"))
    outcome = await stage.outcome(run_id)
    assert outcome.run.why is None and outcome.turn and outcome.turn.text == "done"
    assert calls_made == ["one"] * waits


@pytest.mark.parametrize("wrap", [lambda agent: agent, handoff])
async def test_a_call_of_an_agent_that_got_a_handoff_waits_for_approval(wrap: Any) -> None:
    calls_made: list[str] = []

    @function_tool(needs_approval=True)
    async def delete(what: str) -> str:
        """Delete."""
        calls_made.append(what)
        return "deleted"

    after = Agent(name="After", tools=[delete], model=script([("delete", {"what": "one"}, "c2")], "done"))
    before = Agent(name="Before", handoffs=[wrap(after)], model=script([("transfer_to_after", {}, "c1")]))
    stage = Stage(AgentsSDKEngine(lambda: before))
    run_id = await stage.start()
    (request,) = await stage.until_waiting(run_id)
    await stage.core.approvals.decide(run_id, request.call_id, ApprovalDecision(verdict="approved"))
    outcome = await stage.outcome(run_id)
    assert outcome.turn and outcome.turn.text == "done" and calls_made == ["one"]


async def test_a_failed_guardrail_has_its_own_error_and_its_answer_is_dropped() -> None:
    @input_guardrail(run_in_parallel=False)
    async def polite(context: Any, agent: Any, items: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info="rude", tripwire_triggered="rude" in str(items[-1]))

    @output_guardrail
    async def harmless(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info={"secret": True}, tripwire_triggered="secret" in output)

    @tool_output_guardrail
    def public(data: Any) -> ToolGuardrailFunctionOutput:
        if data.output == "hidden":
            return ToolGuardrailFunctionOutput.reject_content("not for you")
        return ToolGuardrailFunctionOutput.raise_exception("stop")

    @function_tool(tool_output_guardrails=[public])
    def read(name: str) -> str:
        """Read."""
        return name

    model = script(
        "the secret is 7", "fine", [("read", {"name": "hidden"}, "c1")], "no", [("read", {"name": "x"}, "c2")]
    )
    agent = Agent(name="a", model=model, tools=[read], input_guardrails=[polite], output_guardrails=[harmless])
    stage = Stage(AgentsSDKEngine(lambda: agent))
    refused = await stage.run("hello")
    assert refused.run.code == "guardrail" and "output guardrail 'harmless'" in str(refused.run.why)
    assert refused.turn and refused.turn.output == (), "nothing of the refused answer is in the conversation"
    assert (await stage.run("go on")).run.state == "completed"
    rude = await stage.run("you rude thing")
    assert rude.run.code == "guardrail" and "input guardrail 'polite' stopped the run: 'rude'" in str(rude.run.why)
    stage = Stage(AgentsSDKEngine(lambda: agent))
    hidden = await stage.run("hello")
    assert [block.text for block in hidden.turn.output if isinstance(block, ToolResult)] == ["not for you"]  # type: ignore[union-attr]
    stopped = await stage.run("hello")
    assert stopped.run.code == "guardrail" and "tool output guardrail 'public'" in str(stopped.run.why)


async def test_a_prompt_that_was_not_answered_stays_an_item_of_its_own() -> None:
    inputs: list[list[Any]] = []

    @input_guardrail(run_in_parallel=False)
    async def polite(context: Any, agent: Any, items: Any) -> GuardrailFunctionOutput:
        inputs.append([_text_of(item) for item in items])
        return GuardrailFunctionOutput(output_info="rude", tripwire_triggered="rude" in str(items[-1]))

    agent = Agent(name="a", model=script("fine", "fine too"), input_guardrails=[polite])
    stage = Stage(AgentsSDKEngine(lambda: agent))
    assert (await stage.run("you rude thing")).run.code == "guardrail"
    assert (await stage.run("hello")).run.state == "completed"
    await stage.core.admission.append(["by the way"], key="k")
    assert (await stage.run("and now?")).run.state == "completed"
    assert inputs == [
        ["you rude thing"],
        ["you rude thing", "hello"],
        ["you rude thing", "hello", "fine", "by the way", "and now?"],
    ]


async def test_after_a_refused_prompt_the_items_are_those_of_the_sdk_alone() -> None:
    inputs: dict[str, list[list[str]]] = {"alone": [], "ours": []}

    def agent_of(agent_kind: str) -> Agent[Any]:
        @input_guardrail(run_in_parallel=False)
        async def polite(context: Any, agent: Any, items: Any) -> GuardrailFunctionOutput:
            texts = [items] if isinstance(items, str) else [_text_of(item) for item in items]
            inputs[agent_kind].append(texts)
            return GuardrailFunctionOutput(output_info="rude", tripwire_triggered="rude" in texts[-1])

        return Agent(name="a", model=script("fine", "fine"), input_guardrails=[polite])

    prompts, alone, session = ["hello", "rude", "hello again"], agent_of("alone"), SQLiteSession("s")
    for prompt in prompts:
        with suppress(InputGuardrailTripwireTriggered):
            await Runner.run(alone, prompt, session=session)
    session.close()
    agent_with_session = agent_of("ours")
    stage = Stage(AgentsSDKEngine(lambda: agent_with_session))
    for prompt in prompts:
        await stage.run(prompt)
    assert inputs["ours"] == inputs["alone"]


def _text_of(item: Any) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def test_limits_and_provider_failures_are_typed_and_the_session_goes_on() -> None:
    @function_tool
    def again() -> str:
        """Do it again."""
        return "again"

    endless: list[Any] = [[("again", {}, f"c{number}")] for number in range(3)]
    stage = Stage(AgentsSDKEngine(lambda: Agent(name="a", tools=[again], model=script(*endless)), max_turns=3))
    limited = await stage.run()
    assert limited.run.code == "step_limit" and "max_turns" in str(limited.run.why)
    for fault, words in {
        "cut": "did not answer to the end",
        "error": "failed",
        "500": "refused the request",
        "401": "check the client's key",
    }.items():
        with LocalProvider(reply="one two three four five six") as provider:
            async with provided(OpenAIChatCompletionsModel, provider) as model:
                settings = ModelSettings(extra_headers={"x-fault": fault})
                agent = Agent(name="a", model=model, model_settings=settings)
                stage.engine = AgentsSDKEngine(lambda agent=agent: agent)  # type: ignore[misc]
                stage.new_core()
                failed = await stage.run("hello")
                assert failed.run.state == "failed" and words in str(failed.run.why), failed.run
    stage.engine = AgentsSDKEngine(lambda: Agent(name="a", model=script("fine")))
    stage.new_core()
    fine = await stage.run("still there?")
    assert fine.turn and fine.turn.text == "fine"


async def test_an_agent_without_a_model_fails_its_runs_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    outcome = await Stage(Agent(name="bare")).run()
    assert "OPENAI_API_KEY" in str(outcome.run.why) and outcome.run.state == "failed"


async def test_a_run_has_a_model_parameters_instructions_and_tools_of_its_own() -> None:
    steps: list[Any] = [[("where", {})], "In Paris."]
    with LocalProvider(reply=tool_script(steps)) as provider:
        async with provided(OpenAIChatCompletionsModel, provider) as model:
            stage = Stage(AgentsSDKEngine(lambda: Agent(name="a", model=model, instructions="Be kind.")))
            where = {"where": {"description": "Where am I?", "parameters": {"type": "object", "properties": {}}}}
            params = {"temperature": 0.5, "max_output_tokens": 7, "service_tier": "flex", "reasoning_effort": "low"}
            run_id = await stage.start(model="gpt-y", params=params, instructions="In English.", tools=where)
            (call,) = await stage.until_waiting(run_id)
            assert (call.name, call.wants) == ("where", "result")
            await stage.core.approvals.decide(run_id, call.call_id, ApprovalDecision(verdict="provided", text="Paris"))
            outcome = await stage.outcome(run_id)
    assert outcome.turn and outcome.turn.text == "In Paris."
    body = provider.requests[-1].body
    assert body["model"] == "gpt-y" and body["temperature"] == 0.5 and body["service_tier"] == "flex"
    assert body["reasoning_effort"] == "low" and 7 in body.values()
    assert body["messages"][0]["content"] == "Be kind.\n\nIn English."
    assert [tool["function"]["name"] for tool in body["tools"]] == ["where"]
    assert "Paris" in str(body["messages"][-1])


async def test_the_conversations_own_system_prompt_follows_the_agents() -> None:
    for instructions, expected in ((None, "Speak French."), ("Be kind.", "Be kind.\n\nSpeak French.")):
        model = script("Oui.")
        await Stage(AgentsSDKEngine(lambda: Agent(name="a", model=model, instructions=instructions))).run(  # noqa: B023
            System(text="Speak French."), "hello"
        )
        assert model.last_call and model.last_call.system_instructions == expected


async def test_shortening_a_long_conversation_repeats_no_call() -> None:
    calls_made: list[str] = []

    @function_tool
    def look() -> str:
        """Look."""
        calls_made.append("look")
        return "a cat"

    too_long = openai.BadRequestError(
        "maximum context length", response=_response(400), body={"code": "context_length_exceeded"}
    )
    model = script("one", "two", [("look", {}, "c1")])
    model.extend([too_long, [assistant_message("three")]])
    stage = Stage(
        AgentsSDKEngine(lambda: Agent(name="a", tools=[look], model=model)), overflow=Trim(), max_context_tokens=100_000
    )
    await stage.run("first " * 50)
    await stage.run("second " * 50)
    third = await stage.run("third")
    assert third.run.why is None and third.turn and third.turn.text == "three" and calls_made == ["look"]
    assert len(model.calls[-1].input) < len(model.calls[-2].input), "the request was made with less"


def _response(status: int) -> Any:
    import httpx2

    return httpx2.Response(status, request=httpx2.Request("POST", "http://127.0.0.1/v1"))


async def test_a_typed_answer_that_does_not_fit_is_sent_back() -> None:
    calls_made: list[str] = []

    @function_tool
    def look() -> str:
        """Look."""
        calls_made.append("look")
        return "a cat"

    schema = {"type": "object", "properties": {"animal": {"type": "string"}}, "required": ["animal"]}
    right = '{"animal": "cat"}'
    model = script([("look", {}, "c1")], '{"plant": 1}', right, '{"plant": 2}')
    stage = Stage(AgentsSDKEngine(lambda: Agent(name="a", tools=[look], model=model)))
    output = OutputType(schema=freeze(schema), retries=1).record
    first = await stage.run("look", output=output)
    assert first.run.why is None and first.turn and first.turn.text == right and calls_made == ["look"]
    last_call = model.calls[-1]
    assert last_call.output_schema and "animal" in str(last_call.output_schema.json_schema())
    assert "does not fit" in str(last_call.input[-1]) and "plant" in str(last_call.input[-2])
    second = await stage.run("look", output=OutputType(schema=freeze(schema), retries=0).record)
    assert second.run.code == "output_invalid"


async def test_the_engine_summarises_with_the_agents_model_alone() -> None:
    @function_tool
    def look() -> str:
        """Look."""
        return "a cat"

    model = script("A summary.", '{"a": 1}')
    engine = AgentsSDKEngine(lambda: Agent(name="a", instructions="Be kind.", tools=[look], model=model))
    engine_model = EngineModel(engine)
    assert await engine_model.answer([System(text="Summarise."), User(text="Hello.")]) == "A summary."
    assert model.last_call and not model.last_call.tools and model.last_call.system_instructions == "Summarise."
    assert await engine_model.answer([User(text="Now.")], schema={"type": "object"}) == '{"a": 1}'
    assert model.last_call.output_schema


async def test_tools_of_mcp_servers_are_connected_and_journalled(tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER, encoding="utf-8")

    def make() -> Agent[Any]:
        params: Any = {"command": sys.executable, "args": [str(server)]}
        servers: list[Any] = [MCPServerStdio(params, client_session_timeout_seconds=WAIT_S)]
        return Agent(name="a", mcp_servers=servers, model=script([("double", {"number": 4}, "c1")], "done"))

    stage = Stage(AgentsSDKEngine(make))
    outcome = await stage.run()
    await stage.core.ownership.leave()
    assert outcome.run.why is None and outcome.turn and outcome.turn.text == "done"
    (result,) = [block for block in outcome.turn.output if isinstance(block, ToolResult)]
    assert "8" in result.text


SERVER = """
from mcp.server import MCPServer

server = MCPServer("numbers")


@server.tool()
def double(number: int) -> int:
    return 2 * number


server.run()
"""


async def test_results_with_pictures_are_recorded_and_given_again() -> None:
    url = "data:image/png;base64,aGk="

    @function_tool
    def draw() -> list[Any]:
        """Draw."""
        return [ToolOutputText(text="a cat"), ToolOutputImage(image_url=url)]

    @function_tool(needs_approval=True)
    def show() -> str:
        """Show."""
        return "shown"

    model = script([("draw", {}, "c1")], [("show", {}, "c2")], "done")
    stage = Stage(AgentsSDKEngine(lambda: Agent(name="a", tools=[draw, show], model=model)))
    run_id = await stage.start()
    await stage.until_waiting(run_id)
    stage.new_core()
    await stage.core.approvals.decide(run_id, "c2", ApprovalDecision(verdict="approved"))
    outcome = await stage.outcome(run_id)
    assert outcome.turn
    drawn = next(block for block in outcome.turn.output if isinstance(block, ToolResult))
    assert drawn.text == "a cat" and drawn.blocks == (Image(data="aGk=", media_type="image/png"),)
    result = [item for item in model.calls[-1].input if item.get("call_id") == "c1"][-1]
    assert [part.get("image_url") for part in result["output"]] == [None, url]


async def test_edited_arguments_are_those_that_the_tool_gets() -> None:
    amounts: list[int] = []

    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        amounts.append(amount)
        return f"paid {amount}"

    agent = Agent(name="a", tools=[pay], model=script([("pay", {"amount": 500}, "c1")], "done"))
    stage = Stage(AgentsSDKEngine(lambda: agent))
    run_id = await stage.start()
    await stage.until_waiting(run_id)
    await stage.core.approvals.decide(run_id, "c1", ApprovalDecision(verdict="approved", input={"amount": 5}))
    outcome = await stage.outcome(run_id)
    assert outcome.turn and outcome.turn.text == "done" and amounts == [5]


async def test_ids_that_a_server_counts_anew_are_made_unique() -> None:
    numbers: list[int] = []

    @function_tool
    def work(number: int) -> str:
        """Work."""
        numbers.append(number)
        return str(number)

    model = script([("work", {"number": 1}, "call_0")], [("work", {"number": 2}, "call_0")], "done")
    outcome = await Stage(AgentsSDKEngine(lambda: Agent(name="a", tools=[work], model=model))).run()
    assert outcome.turn and numbers == [1, 2]
    assert [block.call_id for block in outcome.turn.output if isinstance(block, ToolUse)] == ["call_0", "call_0_2"]


async def test_an_agent_that_stops_at_a_tools_result_answers_with_it() -> None:
    @function_tool
    def look() -> str:
        """Look."""
        return "a cat"

    agent = Agent(name="a", tools=[look], model=script([("look", {}, "c1")]), tool_use_behavior="stop_on_first_tool")
    outcome = await Stage(AgentsSDKEngine(lambda: agent)).run()
    assert outcome.turn and outcome.turn.text == "a cat" and outcome.turn.output[-1] == Text(text="a cat")


def test_items_that_no_block_says_are_kept_and_given_back() -> None:
    search = {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    patch = {
        "id": "ap_1",
        "type": "apply_patch_call",
        "call_id": "c1",
        "status": "completed",
        "operation": {"type": "delete_file", "path": "a.txt"},
    }
    reasoning = {
        "id": "rs_1",
        "type": "reasoning",
        "encrypted_content": "x",
        "summary": [{"type": "summary_text", "text": "hm"}],
    }
    blocks = answer_of([reasoning, search, assistant_message("hello"), patch], "gpt-x")
    assert [type(block) for block in blocks] == [Thinking, Thinking, Text, ToolUse]
    again = [item.model_dump(exclude_unset=True) for item in output_of(blocks)]
    assert [item["type"] for item in again] == ["reasoning", "web_search_call", "message", "apply_patch_call"]
    assert again[0] == reasoning and again[1] == search and again[3] == patch


def test_an_agent_pickles_with_its_closures_and_handoffs() -> None:
    def make(bonus: int) -> AgentsSDKEngine:
        @function_tool
        def add(a: int) -> int:
            """Add."""
            return a + bonus

        second_agent = Agent(name="Other", tools=[add])
        tools: list[Any] = [add, second_agent.as_tool("ask", "Asks.")]
        return AgentsSDKEngine(Agent(name="a", model="gpt-x", tools=tools, handoffs=[handoff(second_agent)]))

    engine = pickle.loads(cloudpickle.dumps(make(3)))
    assert isinstance(engine.agent.tools[0], FunctionTool)
    assert identity(engine) == identity(make(3)) != identity(make(4))
    frame = engine.frame()
    assert frame.model == "gpt-x" and [tool["name"] for tool in frame.tools] == ["add", "ask"]


def test_settings_that_cannot_work_are_refused() -> None:
    model = OpenAIResponsesModel("gpt-x", openai.AsyncOpenAI(api_key="k"))
    with pytest.raises(ConfigError, match="pass a function that makes the agent"):
        cloudpickle.dumps(AgentsSDKEngine(Agent(name="a", model=model)))
    wrong: list[Callable[[], Any]] = [
        lambda: AgentsSDKEngine(3),  # type: ignore[arg-type]
        lambda: AgentsSDKEngine("nothing"),
        lambda: AgentsSDKEngine("a:b", max_turns=0),
        lambda: AgentsSDKEngine("a:b", after_handoff="leave"),  # type: ignore[arg-type]
        lambda: AgentsSDKEngine("a:b", repeatable="look"),
    ]
    for make in wrong:
        with pytest.raises(ConfigError):
            make()

    @function_tool
    def look() -> str:
        """Look."""
        return "a cat"

    engine = AgentsSDKEngine(Agent(name="a", tools=[look]))
    with pytest.raises(InvalidInputError, match="has a tool of this name"):
        engine.extended({"look": {}})
    assert list(engine.not_taken("m", {"seed": 1, "temperature": 0})) == ["seed"]
