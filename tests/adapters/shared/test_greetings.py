"""Agents of other packages are given conversations that their models take, whoever begins and ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import agents
import anthropic
import openai
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from frameworks.langgraph_models import agent
from schedules import inline
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.adapters import AgentsSDKEngine, AnthropicEngine, LangGraphEngine, PydanticAIEngine
from turnwise.memory.conversation.blocks import AnyBlock, Text, User
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.providers.arrangement import BEGIN, CONTINUE
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing import LocalProvider


class Claude(BaseChatModel):
    """Asks Anthropic's API, with the messages as they are: one beside another of its side, as `langchain-anthropic`."""

    base_url: str

    @property
    def _llm_type(self) -> str:
        return "claude"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        sent: list[Any] = []
        for message in messages:
            side = "assistant" if isinstance(message, AIMessage) else "user"
            if not sent or sent[-1]["role"] != side:
                sent.append({"role": side, "content": []})
            parts: list[Any] = [message.text] if isinstance(message.content, str) else list(message.content)
            texts = [part if isinstance(part, str) else part["text"] for part in parts]
            sent[-1]["content"] += [{"type": "text", "text": text} for text in texts]
        async with anthropic.AsyncAnthropic(base_url=self.base_url, api_key="local", max_retries=0) as client:
            answer: Any = await client.messages.create(model="claude", max_tokens=99, messages=sent)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer.content[0].text))])


class Stage:
    """A simulated provider, and clients of it, which are closed at the end."""

    def __init__(self, provider: LocalProvider, clients: AsyncExitStack) -> None:
        self.provider = provider
        self._clients = clients

    @property
    def openai(self) -> openai.AsyncOpenAI:
        """A new client of OpenAI's APIs."""
        client = openai.AsyncOpenAI(base_url=self.provider.base_url, api_key="local")
        self._clients.push_async_callback(client.close)
        return client

    @property
    def anthropic(self) -> anthropic.AsyncAnthropic:
        """A new client of Anthropic's API."""
        client = anthropic.AsyncAnthropic(base_url=self.provider.anthropic_url, api_key="local")
        self._clients.push_async_callback(client.close)
        return client


@asynccontextmanager
async def staged(reply: str) -> AsyncIterator[Stage]:
    with LocalProvider(reply=lambda _: reply) as provider:
        async with AsyncExitStack() as clients:
            yield Stage(provider, clients)


MakeEngine = Callable[[Stage], Any]


def graph(stage: Stage) -> Any:
    return LangGraphEngine(agent(Claude(base_url=stage.provider.anthropic_url)))


def pydantic_agent(stage: Stage) -> Any:
    model = AnthropicModel("claude", provider=AnthropicProvider(anthropic_client=stage.anthropic))
    return PydanticAIEngine(lambda: Agent(model), name="claude")


def openai_pydantic_agent(stage: Stage) -> Any:
    model = OpenAIChatModel("local", provider=OpenAIProvider(openai_client=stage.openai))
    return PydanticAIEngine(lambda: Agent(model), name="openai")


def sdk_agent(stage: Stage) -> Any:
    return AgentsSDKEngine(agents.Agent(name="clerk", model=agents.OpenAIResponsesModel("local", stage.openai)))


def sdk_chat_agent(stage: Stage) -> Any:
    return AgentsSDKEngine(agents.Agent(name="clerk", model=agents.OpenAIChatCompletionsModel("local", stage.openai)))


def chat(stage: Stage) -> Any:
    return OpenAIEngine("local", base_url=stage.provider.base_url, api_key="local")


def responses(stage: Stage) -> Any:
    return OpenAIEngine("local", base_url=stage.provider.base_url, api_key="local", api="responses")


def claude(stage: Stage) -> Any:
    return AnthropicEngine("claude", base_url=stage.provider.anthropic_url)


TAKE_INSTRUCTIONS = [chat, responses, claude, sdk_agent, sdk_chat_agent, pydantic_agent, openai_pydantic_agent]
ENGINES = [*TAKE_INSTRUCTIONS, graph]

GREETING, HELLO = Text(text="I am the clerk."), User(text="Hello")


@pytest.mark.parametrize("engine", [graph, pydantic_agent])
@pytest.mark.parametrize(
    ("appended", "prompt", "sent"),
    [
        ([GREETING], HELLO, [BEGIN, GREETING.text, HELLO.text]),
        ([HELLO], GREETING, [HELLO.text, GREETING.text, CONTINUE]),
        ([GREETING], GREETING, [BEGIN, GREETING.text, GREETING.text, CONTINUE]),
    ],
    ids=["a greeting first", "the assistant last", "the assistant alone"],
)
async def test_claude_takes_what_begins_or_ends_with_the_assistant(
    engine: MakeEngine, appended: list[AnyBlock], prompt: AnyBlock, sent: list[str]
) -> None:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    async with staged("Yes?") as stage:
        core = SessionCore(SessionKey("s"), store, engine(stage), SessionConfig(), off_loop=inline)
        await core.admission.append(appended, "key")
        await core.admission.start([prompt], run_id="run")
        outcome = await core.reads.wait("run")
        await core.engines.close(core.engines.remove_all())
    assert outcome.turn and outcome.run.state == "completed", outcome
    assert outcome.turn.text == "Yes?"
    assert outcome.turn.blocks[:-1] == (*appended, prompt), "what was added for the model is not stored"
    (request,) = stage.provider.requests
    assert [part["text"] for message in request.body["messages"] for part in message["content"]] == sent


async def opened(engine: Any) -> SessionCore:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    return SessionCore(SessionKey("s"), store, engine, SessionConfig(), off_loop=inline)


async def completed(core: SessionCore, run_id: str) -> Turn:
    outcome = await core.reads.wait(run_id)
    assert outcome.turn and outcome.run.state == "completed", outcome.run.why
    return outcome.turn


def texts_in(body: Any) -> list[str]:
    """Return all texts of a request, in order."""
    if isinstance(body, dict):
        return [text for value in body.values() for text in texts_in(value)]
    if isinstance(body, list):
        return [text for value in body for text in texts_in(value)]
    return [body] if isinstance(body, str) else []


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_model_takes_what_a_session_has_said(engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """First, twice in a row, and behind an answer."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "local")
    async with staged("Yes?") as stage:
        core = await opened(engine(stage))
        for number, texts in enumerate((["Hello.", "Are you there?"], ["One more thing."])):
            for text in texts:
                await core.admission.say(text, run_id=text)
            await core.admission.start([f"prompt {number}"], run_id=f"run {number}")
            await completed(core, f"run {number}")
        turn = await completed(core, "run 1")
        await core.engines.close(core.engines.remove_all())
    said = ["Hello.", "Are you there?", "prompt 0", "Yes?", "One more thing.", "prompt 1", "Yes?"]
    assert [block.text for block in turn.blocks if isinstance(block, Text | User)] == said
    sent = "\n".join(texts_in(stage.provider.requests[-1].body))
    places = [sent.index(text) for text in said[:-1]]
    assert places == sorted(places), sent


@pytest.mark.parametrize("before", [[], ["said"], ["asked"], ["said", "asked", "said"]], ids="-".join)
@pytest.mark.parametrize("engine", TAKE_INSTRUCTIONS)
async def test_a_run_may_have_instructions_instead_of_prompts(
    engine: MakeEngine, before: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "local")
    reminder = "The reminder is due: tell her to make tea."
    async with staged("Tea time!") as stage:
        core = await opened(engine(stage))
        for number, kind in enumerate(before):
            if kind == "said":
                await core.admission.say("Hello.", run_id=str(number))
            else:
                await core.admission.start(["Remind me of tea."], run_id=str(number))
            await completed(core, str(number))
        await core.admission.start([], run_id="run", instructions=reminder)
        turn = await completed(core, "run")
        await core.engines.close(core.engines.remove_all())
    assert turn.new_blocks == (Text(text="Tea time!"),), "what was added for the model is not stored"
    body = stage.provider.requests[-1].body
    assert any(reminder in text for text in texts_in(body))
    messages = body.get("messages") or body["input"]
    assert messages[-1]["role"] == "user" and CONTINUE in texts_in(messages[-1])
