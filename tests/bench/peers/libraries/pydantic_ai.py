"""Pydantic AI, whose history the program stores itself: a row of JSON for each turn, as its own chat example does."""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from peers.peer import PROMPT, History, Model, stop_reader

TABLE = "CREATE TABLE IF NOT EXISTS turns (id INTEGER PRIMARY KEY, chat TEXT, messages TEXT)"
INDEX = "CREATE INDEX IF NOT EXISTS of_chat ON turns (chat, id)"


class PydanticAI:
    packages: Sequence[str] = ("pydantic-ai-slim", "pydantic")

    def __init__(self, folder: Path, model: Model) -> None:
        self.messages: Any = importlib.import_module("pydantic_ai.messages")
        self.functions: Any = importlib.import_module("pydantic_ai.models.function")
        self.adapter = self.messages.ModelMessagesTypeAdapter
        self.model = model
        self.agent = self.agent_of("words")
        self.lead = self.lead_of(self.agent_of("member"))
        self.connection = sqlite3.connect(folder / "store.db")
        with self.connection:
            self.connection.execute(TABLE)
            self.connection.execute(INDEX)

    def agent_of(self, name: str, **options: Any) -> Any:
        """Return an agent that answers as the model does."""

        async def whole(*_: Any) -> Any:
            return self.messages.ModelResponse(parts=[self.messages.TextPart(await self.model.answer())])

        async def stream(*_: Any) -> AsyncIterator[str]:
            async for word in self.model.stream():
                yield word

        answering = self.functions.FunctionModel(whole, stream_function=stream)
        agent: Any = importlib.import_module("pydantic_ai").Agent(answering, name=name, **options)
        return agent

    def lead_of(self, member: Any, **options: Any) -> Any:
        """Return an agent whose model calls the member, and then answers."""

        async def whole(messages: Any, _: Any) -> Any:
            is_told = any(part.part_kind == "tool-return" for part in messages[-1].parts)
            call = self.messages.ToolCallPart("member", {"task": PROMPT})
            text = self.messages.TextPart(await self.model.answer())
            return self.messages.ModelResponse(parts=[text if is_told else call])

        async def call_member(task: str) -> str:
            answer: str = (await member.run(task)).output
            return answer

        lead: Any = importlib.import_module("pydantic_ai").Agent(
            self.functions.FunctionModel(whole), name="lead", **options
        )
        lead.tool_plain(call_member, name="member")
        return lead

    def load(self, chat: str) -> list[Any]:
        rows = self.connection.execute("SELECT messages FROM turns WHERE chat = ? ORDER BY id", (chat,))
        return [message for (text,) in rows for message in self.adapter.validate_json(text)]

    def save(self, chat: str, text: bytes) -> None:
        with self.connection:
            self.connection.execute("INSERT INTO turns (chat, messages) VALUES (?, ?)", (chat, text.decode()))

    async def turn(self, chat: str, prompt: str) -> None:
        result = await self.agent.run(prompt, message_history=self.load(chat))
        self.save(chat, result.new_messages_json())

    async def one_of_many(self, chat: str, prompt: str) -> None:
        await self.turn(chat, prompt)

    async def team(self, chat: str, prompt: str) -> None:
        result = await self.lead.run(prompt, message_history=self.load(chat))
        self.save(chat, result.new_messages_json())

    async def words(self, chat: str, prompt: str) -> AsyncIterator[str]:
        async with self.agent.run_stream(prompt, message_history=self.load(chat)) as result:
            async for word in result.stream_text(delta=True, debounce_by=None):
                yield word
            self.save(chat, result.new_messages_json())

    async def stop(self, chat: str, prompt: str, after: int) -> float:
        return await stop_reader(self, chat, prompt, after)

    async def history(self, chat: str) -> History:
        return self.shown(self.load(chat))

    def shown(self, messages: Sequence[Any]) -> History:
        return [(message.kind, "".join(part.content for part in message.parts)) for message in messages]

    async def close(self) -> None:
        self.connection.close()
