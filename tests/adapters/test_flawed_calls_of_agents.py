"""Agents of other frameworks: calls whose arguments are no JSON object reach none of their tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, function_tool
from langchain_core.tools import tool
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

import langgraph_stage
import test_agents_sdk as sdk
import test_pydantic_ai_engine as pydantic_ai
from langgraph_models import OpenAIChat, agent
from turnwise.adapters import LangGraphEngine, PydanticAIEngine
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


def told(output: tuple[Any, ...], text: str) -> None:
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
    told(outcome.turn.output, text)
    assert "no JSON object" in json.dumps(provider.requests[-1].body)
    events = (await stage.core.reads.events())[0]
    assert not any(isinstance(event, ApprovalRequested) for event in events)


async def test_a_handoff_with_a_flaw_hands_off_to_nobody() -> None:
    with LocalProvider(reply=tool_script([[("transfer_to_other", '{"why": ')], "Done."])) as provider:
        async with sdk.provided(OpenAIResponsesModel, provider) as model:
            other = Agent(name="other", model=model, instructions="I am the other.")
            stage = sdk.Stage(Agent(name="a", model=model, instructions="I am the first.", handoffs=[other]))
            outcome = await stage.run()
    assert outcome.run.state == "completed", outcome.run.why
    assert "I am the first." in provider.requests[-1].body["instructions"]


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
    made = PydanticAgent(streamed(text), name="a")
    made.tool_plain(requires_approval=approval)(delete_files)
    async with pydantic_ai.Stage(PydanticAIEngine(made)) as stage:
        outcome = await stage.run("go")
        assert outcome.run.state == "completed", outcome.run.why
        assert deleted == []
        told(outcome.turn.output, text)
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
    told(langgraph_stage.output(outcome), text)


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
