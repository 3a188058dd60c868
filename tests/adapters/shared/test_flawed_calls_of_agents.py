"""Agents of other frameworks: calls whose arguments are no JSON object reach none of their tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import test_agents_sdk as sdk
import test_pydantic_ai_engine as pydantic_ai
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIProvider,
    OpenAIResponsesModel,
    RunConfig,
    function_tool,
)
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from test_langgraph_engine import reviewed

from frameworks import langgraph_stage
from frameworks.langgraph_models import OpenAIChat, agent
from turnwise.adapters import AgentsSDKEngine, LangGraphEngine, PydanticAIEngine
from turnwise.memory.conversation.blocks import Text, ToolResult, ToolUse
from turnwise.memory.conversation.events import ApprovalRequested
from turnwise.testing import LocalProvider, tool_script

FLAWED = ['{"path": "/a', '{"path": "/a"}{"path": "/a"}', '["/a"]', '{"path": NaN}', '{"path": "/a", "path": "/b"}']

SUN, FIRST, SECOND = "\N{SUN WITH FACE}", "\ud83c", "\udf1e"

deleted: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_deleted() -> None:
    deleted.clear()


def delete_files(path: str = "/everything") -> str:
    """Delete files."""
    deleted.append(path)
    return f"deleted {path}"


def check_result(output: tuple[Any, ...], text: str) -> None:
    """Check that the first call has a flaw, and that its result says so."""
    use = next(block for block in output if isinstance(block, ToolUse))
    result = next(block for block in output if isinstance(block, ToolResult))
    assert use.flaw and use.input == {"unparsed": text}
    assert result.is_error and "no JSON object" in result.text


@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
@pytest.mark.parametrize("text", FLAWED)
@pytest.mark.parametrize("approval", [False, True])
async def test_the_agents_sdk_gets_no_call_with_a_flaw(kind: Any, text: str, approval: bool) -> None:
    with LocalProvider(reply=tool_script([[("delete_files", text)], "Done."])) as provider:
        async with sdk.provided(kind, provider) as model:
            tools: list[Any] = [function_tool(delete_files, needs_approval=approval)]
            stage = sdk.Stage(Agent(name="a", model=model, model_settings=sdk.KEPT, tools=tools))
            outcome = await stage.run()
    assert outcome.run.state == "completed", outcome.run.why
    assert deleted == [] and outcome.turn and outcome.turn.output[-1] == Text(text="Done.")
    check_result(outcome.turn.output, text)
    assert "no JSON object" in json.dumps(provider.requests[-1].body)
    events = (await stage.core.reads.events())[0]
    assert not any(isinstance(event, ApprovalRequested) for event in events)


async def test_a_handoff_with_a_flaw_hands_off_to_nobody() -> None:
    with LocalProvider(reply=tool_script([[("transfer_to_other", '{"why": ')], "Done."])) as provider:
        async with sdk.provided(OpenAIResponsesModel, provider) as model:
            second_agent = Agent(name="other", model=model, instructions="I am the other.")
            stage = sdk.Stage(Agent(name="a", model=model, instructions="I am the first.", handoffs=[second_agent]))
            outcome = await stage.run()
    assert outcome.run.state == "completed", outcome.run.why
    assert "I am the first." in provider.requests[-1].body["instructions"]


async def delegated(text: str, provider: LocalProvider, *, approval: bool, streams: bool) -> Any:
    """Return the outcome of an agent with a tool that is an agent, which calls `delete_files` with a text."""
    outer, inner = (
        tool_script([[("ask", '{"input": "go"}')], "Done."]),
        tool_script([[("delete_files", text)], "Left."]),
    )
    provider.reply = lambda messages: (inner if "I am the inner." in str(messages[0]) else outer)(messages)
    async with openai.AsyncOpenAI(base_url=provider.base_url, api_key="local", max_retries=0) as client:
        tools: list[Any] = [function_tool(delete_files, needs_approval=approval)]
        inner_agent = Agent(name="other", model="local", instructions="I am the inner.", tools=tools)
        streamed_events: list[Any] = []
        ask = inner_agent.as_tool("ask", "Asks.", on_stream=streamed_events.append if streams else None)
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client, use_responses=True))
        engine = AgentsSDKEngine(Agent(name="a", model="local", tools=[ask]), run_config=config)
        outcome = await sdk.Stage(engine).run()
    assert outcome.run.state == "completed", outcome.run.why
    return outcome


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("text", FLAWED)
@pytest.mark.parametrize("approval", [False, True])
async def test_an_agent_that_is_a_tool_gets_no_call_with_a_flaw(text: str, approval: bool, streams: bool) -> None:
    with LocalProvider() as provider:
        outcome = await delegated(text, provider, approval=approval, streams=streams)
    assert deleted == []
    assert [block.kind for block in outcome.turn.output] == ["tool_use", "tool_result", "text"]
    assert outcome.turn.output[1].text == "Left."
    assert len(provider.requests) == 4 and "no JSON object" in json.dumps(provider.requests[2].body)


async def test_answers_sent_back_within_an_agent_as_a_tool_are_counted() -> None:
    counts = []
    for streams in (False, True):
        with LocalProvider() as provider:
            usage = (await delegated(FLAWED[0], provider, approval=False, streams=streams)).run.usage
        counts.append((usage.input_tokens, usage.output_tokens))
    assert counts[0] == counts[1]


def streamed(*steps: str) -> FunctionModel:
    """Return a model of Pydantic AI that calls `delete_files` with each text, then says that it is done."""

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        if number < len(steps):
            yield {0: DeltaToolCall(name="delete_files", json_args=steps[number], tool_call_id=f"c{number}")}
        else:
            yield "Done."

    return FunctionModel(stream_function=stream)


@pytest.mark.parametrize("text", FLAWED)
@pytest.mark.parametrize("approval", [False, True])
async def test_pydantic_ai_calls_no_tool_with_a_flaw(text: str, approval: bool) -> None:
    agent = PydanticAgent(streamed(text), name="a")
    agent.tool_plain(requires_approval=approval)(delete_files)
    async with pydantic_ai.Stage(PydanticAIEngine(agent)) as stage:
        outcome = await stage.run("go")
        assert outcome.run.state == "completed", outcome.run.why
        assert deleted == []
        check_result(outcome.turn.output, text)
        events = (await stage.core.reads.events())[0]
        assert not any(isinstance(event, ApprovalRequested) for event in events)


@pytest.mark.parametrize("text", FLAWED)
async def test_langgraph_calls_no_tool_with_a_flaw(text: str) -> None:
    with LocalProvider(reply=tool_script([[("delete_files", text)], "Done."])) as provider:
        stage = langgraph_stage.Stage(
            LangGraphEngine(agent(OpenAIChat(base_url=provider.base_url), [tool(delete_files)]))
        )
        outcome = await stage.run()
    assert deleted == []
    check_result(langgraph_stage.output(outcome), text)


def under_review(provider: LocalProvider, how: str) -> Any:
    """Return a graph that asks before it calls `delete_files`."""
    model = OpenAIChat(base_url=provider.base_url)
    if how == "breakpoint":
        return agent(model, [tool(delete_files)]).compile(checkpointer=InMemorySaver(), interrupt_before=["tools"])
    graph = reviewed(model, [tool(delete_files)], old=how == "human interrupt")
    return graph.compile(checkpointer=InMemorySaver())


REVIEWS = ["middleware", "human interrupt", "breakpoint"]


@pytest.mark.parametrize("how", REVIEWS)
@pytest.mark.parametrize("text", FLAWED)
async def test_nobody_is_asked_about_a_call_of_a_graph_with_a_flaw(text: str, how: str) -> None:
    with LocalProvider(reply=tool_script([[("delete_files", text)], "Done."])) as provider:
        stage = langgraph_stage.Stage(LangGraphEngine(under_review(provider, how)))
        await stage.begin()
        async with asyncio.timeout(30):
            outcome = await stage.outcome()
        blocks = langgraph_stage.output(outcome)
    assert deleted == []
    check_result(blocks, text)
    assert not any(isinstance(event, ApprovalRequested) for event in await stage.events())
    if text != '["/a"]':  # LangChain shows a graph no call of these, so it ends
        assert blocks[-1] == Text(text="Done.")
        assert "no JSON object" in json.dumps(provider.requests[-1].body)


@pytest.mark.parametrize("how", REVIEWS)
async def test_of_parallel_calls_of_a_graph_only_the_whole_ones_wait(how: str) -> None:
    calls = [("delete_files", FLAWED[0]), ("delete_files", '{"path": "/b"}')]
    with LocalProvider(reply=tool_script([calls, "Done."])) as provider:
        stage = langgraph_stage.Stage(LangGraphEngine(under_review(provider, how)))
        await stage.begin()
        async with asyncio.timeout(30):
            (waiting,) = await stage.until_it_waits()
            assert waiting.input == {"path": "/b"}
            stage.new_core()
            await stage.decide(waiting.call_id, "approved")
            blocks = langgraph_stage.output(await stage.outcome())
    assert deleted == ["/b"] and blocks[-1] == Text(text="Done.")
    results = {block.call_id: block for block in blocks if isinstance(block, ToolResult)}
    assert len(results) == 2 and results[waiting.call_id].text == "deleted /b"
    check_result(blocks, FLAWED[0])


@pytest.mark.parametrize("how", REVIEWS)
async def test_a_graph_whose_model_makes_only_flawed_calls_ends(how: str) -> None:
    with LocalProvider(reply=tool_script([[("delete_files", FLAWED[0])]] * 40)) as provider:
        stage = langgraph_stage.Stage(LangGraphEngine(under_review(provider, how)))
        await stage.begin()
        async with asyncio.timeout(30):
            outcome = await stage.outcome()
    assert outcome.run.state == "failed" and "no JSON object" in str(outcome.run.why)
    assert deleted == [] and len(provider.requests) < 40


async def test_halves_of_a_character_are_joined_in_each_framework() -> None:
    pieces = [{"content": f"Sun: {FIRST}"}, {"content": f"{SECOND}."}]
    with LocalProvider(reply=pieces) as provider:
        for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            async with sdk.provided(kind, provider) as model:
                stage = sdk.Stage(Agent(name="a", model=model, model_settings=sdk.KEPT))
                for prompt in ("go", "again"):
                    outcome = await stage.run(prompt)
                    assert outcome.turn and outcome.turn.output == (Text(text=f"Sun: {SUN}."),)
        graph = langgraph_stage.Stage(
            LangGraphEngine(agent(OpenAIChat(base_url=provider.base_url), [tool(delete_files)]))
        )
        assert langgraph_stage.output(await graph.run()) == (Text(text=f"Sun: {SUN}."),)

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece["content"]

    async with pydantic_ai.Stage(
        PydanticAIEngine(PydanticAgent(FunctionModel(stream_function=stream), name="a"))
    ) as session:
        whole = await session.run("go")
        assert whole.turn.output == (Text(text=f"Sun: {SUN}."),)
