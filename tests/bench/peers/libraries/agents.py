"""The OpenAI Agents SDK: an agent without tools, with its session for SQLite."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from peers.peer import PROMPT, History, Model


class Agents:
    packages: Sequence[str] = ("openai-agents", "openai")

    def __init__(self, folder: Path, model: Model) -> None:
        self.agents: Any = importlib.import_module("agents")
        self.types: Any = importlib.import_module("openai.types.responses")
        self.agents.set_tracing_disabled(True)
        self.file = folder / "store.db"
        self.sessions: dict[str, Any] = {}
        self.agent = self.agents.Agent(name="words", model=self.model_of(model))
        member = self.agent.as_tool("member", "Does one task.")
        self.lead = self.agents.Agent(name="lead", model=self.leading(model), tools=[member])

    def model_of(self, model: Model) -> Any:
        async def get(*_: Any, **__: Any) -> Any:
            answer = self.message(await model.answer())
            return self.agents.ModelResponse(output=[answer], usage=self.agents.Usage(), response_id=None)

        async def stream(*_: Any, **__: Any) -> AsyncIterator[Any]:
            number = 0
            async for word in model.stream():
                kind = "response.output_text.delta"
                place = {"content_index": 0, "output_index": 0, "item_id": "m", "logprobs": []}
                yield self.types.ResponseTextDeltaEvent(delta=word, sequence_number=number, type=kind, **place)
                number += 1
            answer = {"output": [self.message(model.text)], "tools": [], "tool_choice": "auto", "model": "m"}
            response = self.types.Response(id="r", created_at=0, object="response", parallel_tool_calls=False, **answer)
            yield self.types.ResponseCompletedEvent(
                type="response.completed", sequence_number=number, response=response
            )

        return type("Words", (self.agents.Model,), {"get_response": get, "stream_response": stream})()

    def leading(self, model: Model) -> Any:
        """Return a model that calls the member, and then answers."""

        async def get(*_: Any, **arguments: Any) -> Any:
            is_told = arguments["input"][-1].get("type") == "function_call_output"
            call = self.types.ResponseFunctionToolCall(
                type="function_call", name="member", call_id="c", arguments=json.dumps({"input": PROMPT})
            )
            output = [self.message(await model.answer()) if is_told else call]
            return self.agents.ModelResponse(output=output, usage=self.agents.Usage(), response_id=None)

        return type("Lead", (self.agents.Model,), {"get_response": get, "stream_response": None})()

    def message(self, text: str) -> Any:
        part = self.types.ResponseOutputText(type="output_text", text=text, annotations=[])
        return self.types.ResponseOutputMessage(
            id="m", type="message", role="assistant", status="completed", content=[part]
        )

    def session(self, chat: str) -> Any:
        if chat not in self.sessions:
            self.sessions[chat] = self.agents.SQLiteSession(chat, self.file)
        return self.sessions[chat]

    async def turn(self, chat: str, prompt: str) -> None:
        await self.agents.Runner.run(self.agent, prompt, session=self.session(chat))

    async def one_of_many(self, chat: str, prompt: str) -> None:
        await self.turn(chat, prompt)

    async def team(self, chat: str, prompt: str) -> None:
        await self.agents.Runner.run(self.lead, prompt, session=self.session(chat))

    async def read(self, run: Any) -> AsyncIterator[str]:
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                yield event.data.delta

    async def words(self, chat: str, prompt: str) -> AsyncIterator[str]:
        run = self.agents.Runner.run_streamed(self.agent, prompt, session=self.session(chat))
        async for word in self.read(run):
            yield word

    async def stop(self, chat: str, prompt: str, after: int) -> float:
        run = self.agents.Runner.run_streamed(self.agent, prompt, session=self.session(chat))
        count, began = 0, 0.0
        async for _ in self.read(run):
            count += 1
            if count == after:
                began = time.perf_counter()
                run.cancel()
        return time.perf_counter() - began

    async def history(self, chat: str) -> History:
        items = await self.session(chat).get_items()
        texts = [item["content"] for item in items]
        strings = [text if isinstance(text, str) else text[0]["text"] for text in texts]
        return [(item["role"], text) for item, text in zip(items, strings, strict=True)]

    async def close(self) -> None:
        for session in self.sessions.values():
            session.close()
