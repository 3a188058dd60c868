"""Agents of other packages are given conversations that their models take, whoever begins and ends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from frameworks.langgraph_models import agent
from schedules import inline
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.adapters import LangGraphEngine, PydanticAIEngine
from turnwise.memory.conversation.blocks import AnyBlock, Text, User
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
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


def graph(provider: LocalProvider) -> Any:
    return LangGraphEngine(agent(Claude(base_url=provider.anthropic_url)))


def pydantic_agent(provider: LocalProvider) -> Any:
    to = AnthropicProvider(base_url=provider.anthropic_url, api_key="local")
    return PydanticAIEngine(lambda: Agent(AnthropicModel("claude", provider=to)), name="claude")


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
    engine: Callable[[LocalProvider], Any], appended: list[AnyBlock], prompt: AnyBlock, sent: list[str]
) -> None:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    with LocalProvider(reply=lambda _: "Yes?") as provider:
        core = SessionCore(SessionKey("s"), store, engine(provider), SessionConfig(), off_loop=inline)
        await core.admission.append(appended, "key")
        await core.admission.start([prompt], run_id="run")
        outcome = await core.reads.wait("run")
        await core.engines.close(core.engines.remove_all())
    assert outcome.turn and outcome.run.state == "completed", outcome
    assert outcome.turn.text == "Yes?"
    assert outcome.turn.blocks[:-1] == (*appended, prompt), "what was added for the model is not stored"
    (request,) = provider.requests
    assert [part["text"] for message in request.body["messages"] for part in message["content"]] == sent
