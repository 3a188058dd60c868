"""LangGraph: a graph of one node, with its checkpointer for SQLite. The asynchronous one where many talk, or stream.

Its store of long-term memory has an index of vectors.
"""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from peers.peer import PROMPT, History, Model, embedding, stop_reader


class LangGraph:
    packages: Sequence[str] = ("langgraph", "langgraph-checkpoint-sqlite", "langchain-core")

    def __init__(self, folder: Path, model: Model) -> None:
        self.model = model
        self.graph: Any = importlib.import_module("langgraph.graph")
        self.config: Any = importlib.import_module("langgraph.config")
        self.messages: Any = importlib.import_module("langchain_core.messages")
        self.sync: Any = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
        self.saver: Any = importlib.import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
        self.file = str(folder / "store.db")
        self.connection: sqlite3.Connection | None = None
        self.opened: Any = None
        self.opening = asyncio.Lock()
        self.apps: dict[str, Any] = {}

    def app(self, node: Any, saver: Any) -> Any:
        graph = self.graph.StateGraph(self.graph.MessagesState)
        graph.add_node("model", node)
        graph.add_edge(self.graph.START, "model")
        return graph.compile(checkpointer=saver)

    def blocking(self) -> Any:
        if "blocking" not in self.apps:
            self.connection = sqlite3.connect(self.file, check_same_thread=False)
            message = self.messages.AIMessage
            self.apps["blocking"] = self.app(
                lambda _: {"messages": [message(self.model.text)]}, self.sync(self.connection)
            )
        return self.apps["blocking"]

    async def awaited(self) -> Any:
        async with self.opening:
            if "awaited" not in self.apps:
                self.opened = self.saver.from_conn_string(self.file)
                self.apps["awaited"] = self.app(self.say, await self.opened.__aenter__())
        return self.apps["awaited"]

    async def say(self, _: Any) -> Any:
        write = self.config.get_stream_writer()
        async for word in self.model.stream():
            write(word)
        return {"messages": [self.messages.AIMessage(self.model.text)]}

    def of(self, chat: str) -> Any:
        return {"configurable": {"thread_id": chat}}

    async def turn(self, chat: str, prompt: str) -> None:
        self.blocking().invoke({"messages": [("user", prompt)]}, self.of(chat))

    async def one_of_many(self, chat: str, prompt: str) -> None:
        await (await self.awaited()).ainvoke({"messages": [("user", prompt)]}, self.of(chat))

    async def team(self, chat: str, prompt: str) -> None:
        """A subgraph is the member: a node calls it with a task, and then answers."""
        if "team" not in self.apps:
            await self.awaited()  # its checkpointer
            message = self.messages.AIMessage

            async def answer(_: Any) -> Any:
                return {"messages": [message(await self.model.answer())]}

            member = self.app(answer, None)

            async def lead(_: Any) -> Any:
                await member.ainvoke({"messages": [("user", PROMPT)]})
                return {"messages": [message(await self.model.answer())]}

            self.apps["team"] = self.app(lead, self.apps["awaited"].checkpointer)
        await self.apps["team"].ainvoke({"messages": [("user", prompt)]}, self.of(chat))

    async def words(self, chat: str, prompt: str) -> AsyncIterator[str]:
        app = await self.awaited()
        async for word in app.astream({"messages": [("user", prompt)]}, self.of(chat), stream_mode="custom"):
            yield word

    async def stop(self, chat: str, prompt: str, after: int) -> float:
        return await stop_reader(self, chat, prompt, after)

    async def history(self, chat: str) -> History:
        state = await (await self.awaited()).aget_state(self.of(chat))
        return [(message.type, message.content) for message in state.values.get("messages", [])]

    async def close(self) -> None:
        if self.opened:
            await self.opened.__aexit__(None, None, None)
        if self.connection:
            self.connection.close()


class Store:
    packages: Sequence[str] = ("langgraph-checkpoint-sqlite", "sqlite-vec")

    def __init__(self, folder: Path, model: Model) -> None:
        embed = embedding()
        if not hasattr(
            sqlite3.Connection, "enable_load_extension"
        ):  # this Python's sqlite3 can load no index of vectors
            sys.modules["sqlite3"] = importlib.import_module("pysqlite3")

        def vectors(texts: Sequence[str]) -> list[list[float]]:
            return [[float(value) for value in vector] for vector in embed(texts)]

        store: Any = importlib.import_module("langgraph.store.sqlite").SqliteStore
        self.put: Any = importlib.import_module("langgraph.store.base").PutOp
        self.opened = store.from_conn_string(
            str(folder / "store.db"), index={"dims": 384, "embed": vectors, "fields": ["text"]}
        )
        self.store = self.opened.__enter__()
        self.store.setup()

    async def save(self, user: str, items: Sequence[tuple[str, str]]) -> None:
        self.store.batch([self.put(("texts", user), key, {"text": text}) for key, text in items])

    async def find(self, user: str, prompts: Sequence[str]) -> list[str]:
        return [item.key for item in self.store.search(("texts", user), query="\n".join(prompts), limit=10)]

    async def close(self) -> None:
        self.opened.__exit__(None, None, None)
