"""A turn of a framework's agent in a session, against the same agent alone plus a turn of ours; interleaved.

    make bench-adapters
    make bench-adapters ARGS="agents-sdk langgraph --turns 60"
    make bench-adapters ARGS="cancel --cancels 15"

Models answer at once, so that what remains is the work of the framework and of turnwise. Each conversation grows alike.
All run in one process, with a SQLite file and without Ray, whose calls would only make the ratio smaller. Times are
those of the processor, in all threads, so that other work on the machine counts less. `cancel` measures how long after
a cancel was called a provider over HTTP sees its connection closed, by the clock; of Anthropic's client too.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from harness import Samples, Table
from turnwise import Turn, tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.engines import FunctionEngine
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolUse
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.urls import open_store
from turnwise.testing import LocalProvider

Alone = Callable[[str], Awaitable[Any]]
GOAL = 1.3


@tool
async def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


def own(turn: Turn) -> list[AnyBlock]:
    """Answer as the frameworks' models do: with a call of a tool, if the prompt asks for one, then with a text."""
    asks_for_tool = any(block.kind == "user" and "tool" in block.text for block in turn.asked)
    if asks_for_tool and not turn.output:
        return [ToolUse(call_id=f"c{turn.index}", name="weather", input={"city": "Oslo"})]
    return [Text(text="It is sunny.")]


async def compare(table: Table, name: str, engine: Any, alone: Alone, turns: int) -> None:
    """Measure the kinds of turns, one after the other, and judge the ratio of medians."""
    engines = {"ours": FunctionEngine(own, tools=[weather]), "wrapped": engine}
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/bench.db")
        cores = {
            kind: SessionCore(SessionKey(kind), store, builder, SessionConfig()) for kind, builder in engines.items()
        }
        for kind in cores:
            await store.create(SessionRecord(session_id=kind))
        for prompt in ("answer", "use the tool"):
            spent = {kind: Samples() for kind in (*engines, "alone")}
            for number in range(turns + 5):
                for kind, core in cores.items():
                    run, began = f"{kind} {prompt} {number}", time.process_time()
                    await core.admission.start([f"{prompt} {number}"], run_id=run)
                    ended = await core.reads.wait(run)
                    spent[kind].append(time.process_time() - began)
                    assert ended.run.state == "completed", ended
                began = time.process_time()
                await alone(f"{prompt} {number}")
                spent["alone"].append(time.process_time() - began)
            for kind, samples in spent.items():
                del samples[:5]
                table.line(f"{name}, {prompt}: {kind}", samples)
            ratio = spent["wrapped"].median / (spent["alone"].median + spent["ours"].median)
            table.judge(f"{name}, {prompt}: wrapped / (alone + ours)", ratio, GOAL)
        await store.close()


async def agents_sdk(table: Table, turns: int) -> None:
    from agents import Agent, RunConfig, Runner, function_tool

    from frameworks.agents_sdk_models import InstantModel
    from turnwise.adapters import AgentsSDKEngine

    @function_tool(name_override="weather")
    async def look(city: str) -> str:
        """Return the weather of a city."""
        return f"sunny in {city}"

    agent, history = Agent(name="Guide", model=InstantModel(), tools=[look]), list[Any]()
    config = RunConfig(tracing_disabled=True)

    async def alone(prompt: str) -> None:
        streamed = Runner.run_streamed(agent, [*history, {"role": "user", "content": prompt}], run_config=config)
        async for _ in streamed.stream_events():
            pass
        history[:] = streamed.to_input_list()

    await compare(table, "agents-sdk", AgentsSDKEngine(agent, run_config=config), alone, turns)


async def langgraph(table: Table, turns: int) -> None:
    from langchain_core.messages import HumanMessage

    from frameworks.langgraph_models import bench_graph
    from turnwise.adapters import LangGraphEngine

    graph, history = bench_graph().compile(), list[Any]()

    async def alone(prompt: str) -> None:
        inputs = [*history, HumanMessage(prompt)]
        async for mode, values in graph.astream({"messages": inputs}, stream_mode=["messages", "values"]):
            if mode == "values":
                history[:] = values["messages"]  # type: ignore[index]

    await compare(table, "langgraph", LangGraphEngine("frameworks.langgraph_models:bench_graph"), alone, turns)


async def pydantic_ai(table: Table, turns: int) -> None:
    from collections.abc import AsyncIterator

    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

    from turnwise.adapters import PydanticAIEngine

    async def answer(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
        last = messages[-1].parts[-1]
        if last.part_kind == "user-prompt" and "tool" in str(last.content):
            yield {0: DeltaToolCall("weather", '{"city": "Oslo"}', tool_call_id=f"c{len(messages)}")}
        else:
            yield "It is sunny."

    agent: Agent[Any, Any] = Agent(FunctionModel(stream_function=answer), name="guide")

    @agent.tool_plain(name="weather")
    async def look(city: str) -> str:
        return f"sunny in {city}"

    history = list[ModelMessage]()

    async def alone(prompt: str) -> None:
        async with agent.run_stream_events(prompt, message_history=history) as events:
            async for event in events:
                if event.event_kind == "agent_run_result":
                    history[:] = event.result.all_messages()

    await compare(table, "pydantic-ai", PydanticAIEngine(agent), alone, turns)


CANCEL_S = 0.05


async def cancel(table: Table, cancels: int) -> None:
    """Measure, for each engine, the time from the call of a cancel to the end of the provider's connection."""
    from agents import Agent, OpenAIChatCompletionsModel
    from openai import AsyncOpenAI
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from frameworks.langgraph_models import OpenAIChat, agent
    from turnwise.adapters import AgentsSDKEngine, AnthropicEngine, LangGraphEngine, PydanticAIEngine

    def anthropic(url: str) -> Any:
        return AnthropicEngine("claude", base_url=url.removesuffix("/v1"))

    def sdk(url: str) -> Any:
        client = AsyncOpenAI(base_url=url, api_key="none")
        return AgentsSDKEngine(lambda: Agent(name="guide", model=OpenAIChatCompletionsModel("local", client)))

    def graph(url: str) -> Any:
        return LangGraphEngine(agent(OpenAIChat(base_url=url)))

    def pydantic(url: str) -> Any:
        model = OpenAIChatModel("local", provider=OpenAIProvider(base_url=url, api_key="none"))
        return PydanticAIEngine(lambda: PydanticAgent(model))

    engines = {"anthropic": anthropic, "agents-sdk": sdk, "langgraph": graph, "pydantic-ai": pydantic}
    for name, make in engines.items():
        durations = Samples()
        with (
            LocalProvider(reply="word " * 2000, token_delay_s=0.02) as provider,
            tempfile.TemporaryDirectory() as folder,
        ):
            store = open_store(f"sqlite:///{folder}/bench.db")
            core = SessionCore(SessionKey(name), store, make(provider.base_url), SessionConfig())
            await store.create(SessionRecord(session_id=name))
            for number in range(cancels):
                await core.admission.start(["Tell me all."], run_id=f"run {number}")
                record = await asyncio.to_thread(provider.wait_for_request, number + 1, 30)
                while not await _streams(core, number):
                    await asyncio.sleep(0.002)
                began = time.monotonic()
                await core.admission.cancel("enough")
                await asyncio.to_thread(record.ended.wait, 30)
                assert record.hung_up_at, record
                durations.append(record.hung_up_at - began)
            await store.close()
        table.line(f"{name}: from cancel to the closed connection", durations)
        table.judge(f"{name}: the slowest of {cancels}, of 50 ms", max(durations) / CANCEL_S, 1)


async def _streams(core: SessionCore, number: int) -> bool:
    """Return whether the run has streamed a text."""
    events, *_ = await core.reads.events(run_id=f"run {number}")
    return any(event.kind == "text_delta" for event in events)


FRAMEWORKS = {"agents-sdk": agents_sdk, "langgraph": langgraph, "pydantic-ai": pydantic_ai, "cancel": cancel}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "frameworks", nargs="*", metavar="framework", help=f"of {', '.join(FRAMEWORKS)}; by default all"
    )
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--cancels", type=int, default=15)
    options = parser.parse_args()
    table = Table()
    for name in options.frameworks or FRAMEWORKS:
        asyncio.run(FRAMEWORKS[name](table, options.cancels if name == "cancel" else options.turns))


if __name__ == "__main__":
    main()
