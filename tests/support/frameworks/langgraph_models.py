"""Chat models and graphs for the tests of LangGraph: one that asks an OpenAI server, one that follows a script."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any, TypedDict

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage, ToolMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt


class OpenAIChat(BaseChatModel):
    """Streams answers of a server that speaks Chat Completions."""

    base_url: str
    model: str = "local"
    tools: list[dict[str, Any]] = []  # noqa: RUF012 - pydantic copies it
    temperature: float | None = None

    @property
    def _llm_type(self) -> str:
        return "openai-chat"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> OpenAIChat:
        return self.model_copy(update={"tools": [convert_to_openai_tool(tool) for tool in tools]})

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **arguments: Any
    ) -> ChatResult:
        message = AIMessageChunk(content="")
        async for chunk in self._astream(messages, stop, None, **arguments):
            message += chunk.message  # type: ignore[assignment]
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        settings: dict[str, Any] = {"tools": self.tools} if self.tools else {}
        if self.temperature is not None:
            settings["temperature"] = self.temperature
        async with openai.AsyncOpenAI(base_url=self.base_url, api_key="none", max_retries=0) as client:
            create: Any = client.chat.completions.create
            stream = await create(
                model=self.model,
                messages=convert_to_openai_messages(messages),
                stream=True,
                stream_options={"include_usage": True},
                **settings,
            )
            async with stream:
                async for chunk in stream:
                    message_chunk = AIMessageChunk(content="")
                    if chunk.usage:
                        message_chunk.usage_metadata = {
                            "input_tokens": chunk.usage.prompt_tokens,
                            "output_tokens": chunk.usage.completion_tokens,
                            "total_tokens": chunk.usage.total_tokens,
                        }
                    for choice in chunk.choices:
                        calls: list[Any] = [
                            {
                                "name": call.function.name if call.function else None,
                                "args": call.function.arguments if call.function else None,
                                "id": call.id,
                                "index": call.index,
                                "type": "tool_call_chunk",
                            }
                            for call in choice.delta.tool_calls or ()
                        ]
                        message_chunk = AIMessageChunk(content=choice.delta.content or "", tool_call_chunks=calls)
                        if choice.finish_reason:
                            message_chunk.response_metadata = {
                                "finish_reason": choice.finish_reason,
                                "model_name": chunk.model,
                            }
                    piece = ChatGenerationChunk(message=message_chunk)
                    if run_manager:
                        await run_manager.on_llm_new_token(str(message_chunk.content), chunk=piece)
                    yield piece


Reply = Callable[[list[BaseMessage]], AIMessage]


class ScriptedChat(BaseChatModel):
    """Answers with what a function makes of the messages, word by word."""

    reply: Reply
    requests: list[list[BaseMessage]] = []  # noqa: RUF012 - pydantic copies it

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedChat:
        return self

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        self.requests.append(messages)
        return self.reply(messages)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> Iterator[ChatGenerationChunk]:
        message = self._answer(messages)
        for word in re.findall(r"\s*\S+", message.content) if isinstance(message.content, str) else ():
            piece = ChatGenerationChunk(message=AIMessageChunk(content=word))
            if run_manager:
                run_manager.on_llm_new_token(word, chunk=piece)
            yield piece
        extra_fields = message.model_dump(
            exclude={"type", "content", "tool_calls", "invalid_tool_calls"}, exclude_none=True
        )
        calls: list[Any] = [
            {
                "name": call["name"],
                "args": json.dumps(call["args"]),
                "id": call["id"],
                "index": index,
                "type": "tool_call_chunk",
            }
            for index, call in enumerate(message.tool_calls)
        ]
        content = message.content if isinstance(message.content, list) else ""
        yield ChatGenerationChunk(message=AIMessageChunk(content=content, tool_call_chunks=calls, **extra_fields))


def calls(*named: tuple[str, dict[str, Any]], text: str = "", first: int = 1) -> AIMessage:
    """Return a message that calls tools, with ids c1, c2, ..."""
    tool_calls = [{"name": name, "args": args, "id": f"c{number}"} for number, (name, args) in enumerate(named, first)]
    return AIMessage(text, tool_calls=tool_calls)


def script(*steps: AIMessage | str) -> Reply:
    """Return a reply that says the steps in order, by the number of the assistant's messages since the last prompt."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        since = 0
        for message in reversed(messages):
            if message.type == "human":
                break
            since += isinstance(message, AIMessage)
        step = steps[min(since, len(steps) - 1)]
        answer = AIMessage(step) if isinstance(step, str) else step
        return answer.model_copy(update={"id": None})

    return reply


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def agent(model: Any, tools: Sequence[Any] = (), *, node: ToolNode | None = None) -> StateGraph[Any]:
    """Return a graph in which a model calls tools until it answers."""
    tools = list(tools)
    bound = model.bind_tools(tools) if tools else model
    graph: StateGraph[Any] = StateGraph(State)

    async def ask(state: State) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph.add_node("agent", ask)
    graph.add_edge(START, "agent")
    if tools or node:
        graph.add_node("tools", node or ToolNode(tools))
        graph.add_conditional_edges("agent", tools_condition)
        graph.add_edge("tools", "agent")
    return graph


def said_by_tools(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the texts of the tools' messages."""
    return [str(message.content) for message in messages if isinstance(message, ToolMessage)]


def make() -> StateGraph[Any]:
    """Return a graph, as an application's module would."""
    return agent(ScriptedChat(reply=script("Ready.")))


def bench_graph() -> StateGraph[Any]:
    """Return an agent that calls a tool if the prompt asks for one, and then answers."""

    @tool
    async def weather(city: str) -> str:
        """Return the weather of a city."""
        return f"sunny in {city}"

    def reply(messages: list[BaseMessage]) -> AIMessage:
        last = messages[-1]
        if last.type == "human" and "tool" in last.text:
            return calls(("weather", {"city": "Oslo"}), first=len(messages))
        return AIMessage("It is sunny.")

    return agent(ScriptedChat(reply=reply), [weather])


def graph_that_asks() -> StateGraph[Any]:
    """Return a graph that asks whether to go on, and answers with the reply."""

    def ask(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(f"got {interrupt({'ask': 'go on?'})}")]}

    return StateGraph(State).add_node("ask", ask).add_edge(START, "ask")


ready = make().compile()
NUMBER = 3
