"""Questions of turnwise's own, for titles, summaries and facts, keep their instructions beside an engine's prompt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    function_tool as tool_of_agents,
)
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from patience import until
from turnwise import InProcess, OpenAIEngine, SessionConfig, SessionManager, Summarize, tool
from turnwise.actors.inference.text_model import EngineModel
from turnwise.actors.session.history import titles
from turnwise.adapters.agents_sdk.engine import AgentsSDKEngine
from turnwise.adapters.anthropic.engine import AnthropicEngine
from turnwise.adapters.pydantic_ai.engine import PydanticAIEngine
from turnwise.engines import SystemPrompt
from turnwise.memories import ExtractiveMemory
from turnwise.memory.conversation.blocks import System, User
from turnwise.strategies import summary_task
from turnwise.testing import LocalProvider, tool_script
from turnwise.testing.local_provider.assistant import assistant_reply

PIRATE = "You are a pirate."


def of_openai(provider: LocalProvider) -> OpenAIEngine:
    return OpenAIEngine("m", system=PIRATE, base_url=provider.base_url)


def of_middleware(provider: LocalProvider) -> OpenAIEngine:
    return OpenAIEngine("m", middleware=[SystemPrompt(PIRATE)], base_url=provider.base_url)


def of_anthropic(provider: LocalProvider) -> AnthropicEngine:
    return AnthropicEngine("m", system=PIRATE, base_url=provider.anthropic_url)


def system_of(body: dict[str, Any]) -> str:
    """Return the system prompt of a request, by either API."""
    system = body.get("system") or next((m["content"] for m in body["messages"] if m["role"] == "system"), "")
    return system if isinstance(system, str) else "".join(part["text"] for part in system)


@pytest.mark.parametrize("make_engine", [of_openai, of_middleware, of_anthropic])
def test_each_question_has_its_own_instructions_and_each_run_the_engines_prompt(
    make_engine: Callable[[LocalProvider], Any], tmp_path: Path
) -> None:
    with LocalProvider(reply=assistant_reply) as provider:
        engine = make_engine(provider)
        settings: Any = {
            "memory": [ExtractiveMemory(engine, f"sqlite:///{tmp_path}/facts.db")],
            "overflow": Summarize(engine, keep_turns=1),
            "config": SessionConfig(title="auto", max_context_tokens=4000, reserve_output_tokens=200),
        }
        with SessionManager(
            f"sqlite:///{tmp_path}/chats.db", engine=engine, placement=InProcess(), **settings
        ) as manager:
            session = manager.open("a", user_id="ann")
            for prompt in ("I live in Oslo.", *(f"{letter} " * 250 for letter in "abcdefgh")):
                session.run(prompt).wait()
            wanted = {titles.INSTRUCTIONS[:40], summary_task.PROMPT[:40], "facts"}

            def systems() -> set[str]:
                return {system_of(request.body) for request in provider.requests}

            until(lambda: all(any(part in system for system in systems()) for part in wanted))
            assert PIRATE in systems()
            assert not [system for system in systems() if PIRATE in system and system != PIRATE]


class Verdict(BaseModel):
    """The answers of the engines below have this form."""

    pirate: bool


USER = {"metadata": {"user_id": "ann"}}
SHAPES = {"tool_choice": "required", "stop": ["."], "guided_json": {"type": "object"}, **USER}
"""Fields of requests, of which only the last gives answers no form."""

FACTS = {
    "type": "object",
    "properties": {"facts": {"type": "array", "items": {"type": "string"}}},
    "required": ["facts"],
}


def sink(ship: str) -> str:
    """Sink a ship."""
    raise AssertionError(ship)


SINK = tool(sink)


@asynccontextmanager
async def chat(provider: LocalProvider) -> AsyncIterator[Any]:
    yield OpenAIEngine("m", tools=[SINK], extra=SHAPES, base_url=provider.base_url).answering(Verdict)


@asynccontextmanager
async def chat_with_tools(provider: LocalProvider) -> AsyncIterator[Any]:
    extra = {**SHAPES, "response_format": {"type": "json_object"}}
    yield OpenAIEngine("m", tools=[SINK], extra=extra, base_url=provider.base_url)


@asynccontextmanager
async def responses(provider: LocalProvider) -> AsyncIterator[Any]:
    extra = {
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "tool_choice": "required",
        "metadata": {"user_id": "ann"},
    }
    yield OpenAIEngine("m", api="responses", tools=[SINK], extra=extra, base_url=provider.base_url)


@asynccontextmanager
async def anthropic(provider: LocalProvider) -> AsyncIterator[Any]:
    extra = {"stop_sequences": ["."], "tool_choice": {"type": "any"}, **USER}
    yield AnthropicEngine("m", tools=[SINK], extra=extra, base_url=provider.anthropic_url).answering(Verdict)


@asynccontextmanager
async def anthropic_with_tools(provider: LocalProvider) -> AsyncIterator[Any]:
    extra = {
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": FACTS}},
        "metadata": {"user_id": "ann"},
    }
    yield AnthropicEngine("m", tools=[SINK], extra=extra, base_url=provider.anthropic_url)


def refused(context: Any, agent: Any, items: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)


@asynccontextmanager
async def agents_sdk(provider: LocalProvider) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(api_key="k", base_url=provider.base_url) as client:
        settings = ModelSettings(tool_choice="required", extra_body=SHAPES)
        agent = Agent(
            "pirate",
            instructions=PIRATE,
            model=OpenAIChatCompletionsModel("m", client),
            model_settings=settings,
            tools=[tool_of_agents(sink)],
            output_type=Verdict,
        )
        config = RunConfig(
            model_settings=ModelSettings(tool_choice="required", extra_args={"stop": ["."]}),
            input_guardrails=[InputGuardrail(refused)],
        )
        yield AgentsSDKEngine(agent, run_config=config).answering(Verdict.model_json_schema())


@asynccontextmanager
async def pydantic_ai(provider: LocalProvider) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(api_key="k", base_url=provider.base_url) as client:
        model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
        settings: Any = {"tool_choice": "required", "stop_sequences": ["."], "extra_body": SHAPES}
        yield PydanticAIEngine(
            PydanticAgent(
                model,
                name="pirate",
                instructions=PIRATE,
                output_type=Verdict,
                tools=[sink],
                model_settings=settings,
            )
        )


@pytest.mark.parametrize(
    "make_engine", [chat, chat_with_tools, responses, anthropic, anthropic_with_tools, agents_sdk, pydantic_ai]
)
async def test_no_question_has_the_form_of_the_engines_answers_or_its_tools(make_engine: Callable[..., Any]) -> None:
    question = [System(text="Give a title."), User(text="We sail to Oslo.")]
    with LocalProvider(reply="A voyage") as provider:
        async with make_engine(provider) as engine:
            model = EngineModel(engine)
            assert await model.answer(question) == "A voyage"
            body = provider.requests[-1].body
            assert not {"tools", "tool_choice", "stop", "stop_sequences", "response_format", "guided_json"} & set(body)
            assert "format" not in {*body.get("text", ()), *body.get("output_config", ())}
            assert body["metadata"] == {"user_id": "ann"}
            assert PIRATE not in json.dumps(body)


@pytest.mark.parametrize("make_engine", [chat, chat_with_tools, responses, anthropic, agents_sdk, pydantic_ai])
async def test_a_question_for_json_has_its_own_schema(make_engine: Callable[..., Any]) -> None:
    question = [System(text="List facts."), User(text="We sail to Oslo.")]
    reply: Any = tool_script([[("final_result", {"facts": []})]]) if make_engine is pydantic_ai else '{"facts": []}'
    with LocalProvider(reply=reply) as provider:
        async with make_engine(provider) as engine:
            answer = await EngineModel(engine).answer(question, schema=FACTS)
            assert json.loads(answer) == {"facts": []}
            sent = json.dumps(provider.requests[-1].body)
            assert "facts" in sent and "pirate" not in sent and "sink" not in sent
