"""Google ADK: an agent without tools, with its session service for databases."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from peers.peer import PROMPT, History, Model, stop_reader

USER = "sarah"


class ADK:
    packages: Sequence[str] = ("google-adk", "sqlalchemy", "aiosqlite")

    def __init__(self, folder: Path, model: Model) -> None:
        self.types: Any = importlib.import_module("google.genai.types")
        agents: Any = importlib.import_module("google.adk.agents")
        runs: Any = importlib.import_module("google.adk.agents.run_config")
        models: Any = importlib.import_module("google.adk.models")
        response: Any = importlib.import_module("google.adk.models.llm_response").LlmResponse

        async def generate(_: Any, request: Any, stream: bool = False) -> AsyncIterator[Any]:
            if stream:
                async for word in model.stream():
                    yield response(content=self.content("model", word), partial=True)
                yield response(content=self.content("model", model.text))
            else:
                yield response(content=self.content("model", await model.answer()))

        async def lead(_: Any, request: Any, stream: bool = False) -> AsyncIterator[Any]:
            if request.contents[-1].parts[-1].function_response:
                yield response(content=self.content("model", await model.answer()))
            else:
                call = self.types.FunctionCall(name="member", args={"request": PROMPT})
                yield response(content=self.types.Content(role="model", parts=[self.types.Part(function_call=call)]))

        def model_of(name: str, answers: Any) -> Any:
            methods = {"generate_content_async": answers, "__module__": __name__}
            return type(name, (models.BaseLlm,), methods)(model="words")

        agent = agents.LlmAgent(name="words", model=model_of("Words", generate))
        member = agents.LlmAgent(name="member", description="Does one task.", model=model_of("Words", generate))
        tool: Any = importlib.import_module("google.adk.tools.agent_tool").AgentTool
        lead_agent = agents.LlmAgent(name="lead", model=model_of("Lead", lead), tools=[tool(agent=member)])
        self.service: Any = importlib.import_module("google.adk.sessions").DatabaseSessionService(
            f"sqlite+aiosqlite:///{folder}/store.db"
        )
        runner: Any = importlib.import_module("google.adk.runners").Runner
        self.runner = runner(app_name="peers", agent=agent, session_service=self.service)
        self.lead = runner(app_name="peers", agent=lead_agent, session_service=self.service)
        self.streaming = runs.RunConfig(streaming_mode=runs.StreamingMode.SSE)
        self.chats: set[str] = set()
        self.making = asyncio.Lock()

    def content(self, role: str, text: str) -> Any:
        return self.types.Content(role=role, parts=[self.types.Part(text=text)])

    async def stored_chat(self, chat: str) -> Any:
        return await self.service.get_session(app_name="peers", user_id=USER, session_id=chat)

    async def run(self, chat: str, prompt: str, runner: Any = None, **config: Any) -> AsyncIterator[Any]:
        async with self.making:
            if chat not in self.chats:
                if await self.stored_chat(chat) is None:
                    await self.service.create_session(app_name="peers", user_id=USER, session_id=chat)
                self.chats.add(chat)
        message = self.content("user", prompt)
        events = (runner or self.runner).run_async(user_id=USER, session_id=chat, new_message=message, **config)
        async for event in events:
            yield event

    async def turn(self, chat: str, prompt: str) -> None:
        async for _ in self.run(chat, prompt):
            pass

    async def team(self, chat: str, prompt: str) -> None:
        async for _ in self.run(chat, prompt, self.lead):
            pass

    async def one_of_many(self, chat: str, prompt: str) -> None:
        await self.turn(chat, prompt)

    async def words(self, chat: str, prompt: str) -> AsyncIterator[str]:
        async for event in self.run(chat, prompt, run_config=self.streaming):
            if event.partial:
                yield "".join(part.text for part in event.content.parts)

    async def stop(self, chat: str, prompt: str, after: int) -> float:
        return await stop_reader(self, chat, prompt, after)

    async def history(self, chat: str) -> History:
        session = await self.stored_chat(chat)
        events = session.events if session else []
        return [
            (event.author, "".join(part.text or "" for part in event.content.parts))
            for event in events
            if event.content
        ]

    async def close(self) -> None:
        await self.service.close()
