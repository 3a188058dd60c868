"""Pydantic AI with DBOS, on SQLite: each turn is a workflow, whose requests to the model are durable steps.

The program stores the history in a table of its own, in the same file, as the other peer of Pydantic AI does. A
workflow's input is the prompt, and not the history: it reads rows that never change, so DBOS stores no copy of them.
"""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from peers.libraries.pydantic_ai import PydanticAI
from peers.peer import History, Model

TABLE = """CREATE TABLE IF NOT EXISTS turns
(id INTEGER PRIMARY KEY, chat TEXT, workflow TEXT UNIQUE, messages TEXT)"""
INDEX = "CREATE INDEX IF NOT EXISTS of_chat ON turns (chat, id)"


class Durable(PydanticAI):
    packages: Sequence[str] = ("pydantic-ai-slim", "pydantic", "dbos", "sqlalchemy")

    def __init__(self, folder: Path, model: Model) -> None:
        dbos: Any = importlib.import_module("dbos")
        durability: Any = importlib.import_module("pydantic_ai.durable_exec.dbos").DBOSDurability
        self.messages = importlib.import_module("pydantic_ai.messages")
        self.functions = importlib.import_module("pydantic_ai.models.function")
        self.adapter = self.messages.ModelMessagesTypeAdapter
        self.model, self.file = model, folder / "store.db"
        self.dbos, self.with_id = dbos.DBOS, dbos.SetWorkflowID
        self.cancelled = dbos.error.DBOSAwaitedWorkflowCancelledError
        self.read: dict[str, asyncio.Queue[str | None]] = {}
        url = f"sqlite:///{self.file}"
        self.dbos(config={"name": "peers", "system_database_url": url, "log_level": "WARNING"})
        reading = durability(event_stream_handler=self.pass_on)
        agents = {
            "turn": self.agent_of("words", capabilities=[durability()]),
            "stream": self.agent_of("stream", capabilities=[reading]),
            "team": self.lead_of(self.agent_of("member", capabilities=[durability()]), capabilities=[durability()]),
        }

        @self.dbos.workflow(name="turn")  # type: ignore[untyped-decorator]
        async def turn(agent: str, chat: str, prompt: str, last: int) -> None:
            result = await agents[agent].run(prompt, message_history=self.load(chat, last))
            text = result.new_messages_json().decode()
            await self.dbos.run_step_async({"name": "save"}, self.store, chat, self.dbos.workflow_id, text)

        @self.dbos.workflow(name="later")  # type: ignore[untyped-decorator]
        async def later(chat: str, prompt: str, seconds: float) -> list[float]:
            await self.dbos.sleep_async(seconds)
            begun = time.time()
            await turn("turn", chat, prompt, self.last(chat))
            return [begun, time.time()]

        self.workflow, self.later = turn, later
        self.dbos.launch()
        with closing(self.connect()) as connection, connection:
            connection.execute(TABLE)
            connection.execute(INDEX)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.file, timeout=30.0)

    def last(self, chat: str) -> int:
        """Return the number of the newest stored turn of a conversation."""
        with closing(self.connect()) as connection:
            ((last,),) = connection.execute("SELECT COALESCE(MAX(id), 0) FROM turns WHERE chat = ?", (chat,))
        return int(last)

    def load(self, chat: str, last: int | None = None) -> list[Any]:
        up_to = self.last(chat) if last is None else last
        query = "SELECT messages FROM turns WHERE chat = ? AND id <= ? ORDER BY id"
        with closing(self.connect()) as connection:
            rows = connection.execute(query, (chat, up_to)).fetchall()
        return [message for (text,) in rows for message in self.adapter.validate_json(text)]

    async def store(self, chat: str, workflow: str, text: str) -> None:
        row = "INSERT OR IGNORE INTO turns (chat, workflow, messages) VALUES (?, ?, ?)"
        with closing(self.connect()) as connection, connection:
            connection.execute(row, (chat, workflow, text))

    async def pass_on(self, _: Any, events: AsyncIterable[Any]) -> None:
        """Give the words of a workflow to its reader, if this program has one."""
        words = self.read.get(self.dbos.workflow_id)
        async for event in events:
            if event.event_kind == "part_start" and event.part.part_kind == "text":
                word = event.part.content
            elif event.event_kind == "part_delta" and event.delta.part_delta_kind == "text":
                word = event.delta.content_delta
            else:
                continue
            if words and word:
                words.put_nowait(word)

    async def turn(self, chat: str, prompt: str) -> None:
        await self.workflow("turn", chat, prompt, self.last(chat))

    async def team(self, chat: str, prompt: str) -> None:
        await self.workflow("team", chat, prompt, self.last(chat))

    async def timer(self, chat: str, prompt: str, due_at: float) -> list[float]:
        handle = await self.dbos.start_workflow_async(self.later, chat, prompt, due_at - time.time())
        times: list[float] = await handle.get_result()
        return times

    async def start(self, chat: str, prompt: str) -> Any:
        """Start a turn whose words are read; return its handle."""
        workflow = f"{chat}-{time.time_ns()}"
        self.read[workflow] = asyncio.Queue()
        with self.with_id(workflow):
            handle: Any = await self.dbos.start_workflow_async(self.workflow, "stream", chat, prompt, self.last(chat))
        return handle

    async def words(self, chat: str, prompt: str) -> AsyncIterator[str]:
        handle = await self.start(chat, prompt)
        words, workflow = self.read[handle.workflow_id], asyncio.ensure_future(handle.get_result())
        workflow.add_done_callback(lambda _: words.put_nowait(None))
        while (word := await words.get()) is not None:
            yield word
        await workflow

    async def stop(self, chat: str, prompt: str, after: int) -> float:
        handle = await self.start(chat, prompt)
        for _ in range(after):
            await self.read[handle.workflow_id].get()
        began = time.perf_counter()
        await self.dbos.cancel_workflow_async(handle.workflow_id)
        try:
            await handle.get_result()
        except self.cancelled:
            return time.perf_counter() - began
        raise AssertionError("the workflow ended before it was cancelled")

    async def history(self, chat: str) -> History:
        return self.shown(self.load(chat))

    async def close(self) -> None:
        self.dbos.destroy()
