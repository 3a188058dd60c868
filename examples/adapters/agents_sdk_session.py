"""The OpenAI Agents SDK runs, and turnwise keeps its history: in a file, for any process, one run at a time.

    pip install 'turnwise[openai-agents]'; python examples/adapters/agents_sdk_session.py

A simulated model runs.
"""

import asyncio
import tempfile
from pathlib import Path

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

from turnwise import AsyncSessionManager
from turnwise.adapters import TurnwiseSession
from turnwise.engines import NoAnswer
from turnwise.testing import LocalProvider


async def chat(url: str) -> None:
    agent = Agent(name="Guide", model=OpenAIChatCompletionsModel("local", AsyncOpenAI(base_url=url, api_key="none")))
    file = Path(tempfile.mkdtemp(), "chats.db")
    async with AsyncSessionManager(f"sqlite:///{file}", engine=NoAnswer()) as manager:
        history = TurnwiseSession(await manager.open("sarah"))
        print((await Runner.run(agent, "Do whales sleep?", session=history)).final_output)

        runs = [Runner.run(agent, question, session=history) for question in ("For how long?", "And dolphins?")]
        for result in await asyncio.gather(*runs, return_exceptions=True):
            print(f"refused: {result}" if isinstance(result, BaseException) else result.final_output)
        print([item["role"] for item in await history.get_items()])


if __name__ == "__main__":
    set_tracing_disabled(True)
    with LocalProvider() as provider:
        asyncio.run(chat(provider.base_url))
