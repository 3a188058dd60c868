"""Each step of an agent of another package is counted if its server reports no tokens, those with calls too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, function_tool
from langchain_core.tools import tool
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from frameworks.langgraph_models import OpenAIChat, agent
from frameworks.strict_servers import StrictServer
from quirks import QuirkServer
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.adapters import AgentsSDKEngine, LangGraphEngine, PydanticAIEngine
from turnwise.memory.conversation.events import ModelCallEnded
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.schedules import inline


def look(at: str) -> str:
    """Look at a city."""
    return f"Sun in {at}"


@asynccontextmanager
async def graph(base_url: str) -> AsyncIterator[Any]:
    yield LangGraphEngine(agent(OpenAIChat(base_url=base_url), [tool(look)]))


@asynccontextmanager
async def sdk(base_url: str) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(api_key="k", base_url=base_url, max_retries=0) as client:
        yield AgentsSDKEngine(
            Agent(name="a", model=OpenAIChatCompletionsModel("m", client), tools=[function_tool(look)])
        )


@asynccontextmanager
async def pydantic_agent(base_url: str) -> AsyncIterator[Any]:
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=base_url, api_key="k"))
    yield PydanticAIEngine(PydanticAgent(model, name="a", tools=[look]))


@pytest.mark.parametrize("engine", [graph, sdk, pydantic_agent])
async def test_a_step_with_calls_whose_server_reports_no_tokens_is_counted(
    engine: Callable[[str], AbstractAsyncContextManager[Any]],
) -> None:
    store, server_of = InMemoryStore(), StrictServer(name="any", provider=None, refusals=())
    await store.create(SessionRecord(session_id="s"))
    with QuirkServer(server_of.calls(), server_of.says("Both have sun.")) as server:
        async with engine(server.base_url) as built:
            core = SessionCore(SessionKey("s"), store, built, SessionConfig(), off_loop=inline)
            await core.admission.start(["Compare Paris and Rome."], run_id="run")
            outcome = await core.reads.wait("run")
            await core.engines.close(core.engines.remove_all())
    assert outcome.run.state == "completed", outcome
    events = (await core.reads.events())[0]
    (step,) = [event.usage for event in events if isinstance(event, ModelCallEnded)]
    assert step and step.counted_tokens == step.input_tokens + step.output_tokens > 0
    whole = outcome.run.usage
    assert whole and whole.counted_tokens == whole.input_tokens + whole.output_tokens > step.counted_tokens
