"""Managers whose sessions have memories, on Ray or in one process, and the provider that plays all models."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from memories.extraction_models import all_stated
from memories.memory_engines import pid_of
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.cluster.actors.memory_actor import MemoryActorProcess
from turnwise.actors.hosting.memory.remote_memory import RemoteMemory
from turnwise.actors.hosting.placement import Dedicated, InProcess
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.memory_tools import memory_tools, notes_tools
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.conversation.blocks import ToolResult
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.index.locations import ChromaFolder, ChromaPlace, ChromaServer
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.values.ids import new_id
from turnwise.testing import LocalProvider, Message
from turnwise.testing.embedding import HashEmbedding
from turnwise.testing.local_provider.replies import texts_of, tool_script

WAIT_S = 180.0
WANTED = "Answer with the facts now"
"""What the last message of a request for facts says."""


def extracting(messages: list[Message]) -> str:
    """Play a model that extracts facts: each prompt that begins with "My" is a fact; its second word is the topic.

    A known fact of the same topic is superseded, even if it says the same.
    """
    rows = [json.loads(line) for line in texts_of(messages[-1])[0].splitlines() if line.startswith("{")]
    known_facts = {row["text"].split()[1]: row["known"] for row in rows if row.get("text", "").startswith("My ")}
    facts = []
    for line in (row["user"] for row in rows if row.get("user", "").startswith("My ")):
        of = known_facts.get(line.split()[1])
        facts.append(
            {"text": line, "type": "facts", "topic": line.split()[1], "evidence": line}
            | {"action": "supersede" if of else "add", "of": [of] if of else []}
        )
    return json.dumps({"facts": facts})


def answering(messages: list[Message]) -> str | Message:
    """Play all models: extract, if that is asked for; call tools, if the prompt is of `toolbox.prompt`; else nod."""
    prompt = [texts_of(message)[-1] for message in messages if message["role"] == "user"][-1]
    if WANTED in prompt:
        return extracting(messages)
    if verdicts := all_stated(prompt):
        return verdicts
    if prompt.startswith('{"steps"'):
        return tool_script(json.loads(prompt)["steps"])(messages)
    return "noted"


class House:
    """Managers of one folder and namespace. Its memories are for `memory=`; the same ones are the same processes.

    Args:
        ray: where sessions and memories have processes of their own; None: all are in the process of the test.
        folder: where all is kept: `chats.db`, `facts.db`, `words.db`, `notes.db`, `vectors`.
    """

    def __init__(self, ray: ModuleType | None, folder: Path, provider: LocalProvider) -> None:
        self.folder = folder
        self.provider = provider
        self.namespace = f"house-{new_id()}"
        self._ray = ray
        self._managers: list[SessionManager] = []

    def engine(self, model: str = "local") -> OpenAIEngine:
        tools = ToolRegistry(*memory_tools(), *notes_tools())
        return OpenAIEngine(model, base_url=self.provider.base_url, max_retries=0, tools=tools)

    def url(self, name: str) -> str:
        return f"sqlite:///{self.folder}/{name}.db"

    def facts(self) -> SQLItems:
        return SQLItems(self.url("facts"))

    def extractive(self) -> ExtractiveMemory:
        model = OpenAIEngine("local", base_url=self.provider.base_url, max_retries=0)
        return ExtractiveMemory(model, self.facts())

    def vector(self, place: ChromaPlace | None = None, embedding: Any = None, **settings: Any) -> VectorMemory:
        index = VectorIndex(place or ChromaFolder(self.folder / "vectors"), embedding or HashEmbedding())
        return VectorMemory(SQLItems(self.url("words"), space="vectors"), index, **settings)

    def manager(self, *memory: Any, config: Mapping[str, Any] | None = None, **settings: Any) -> SessionManager:
        """Return a manager whose runs wait for memories as long as it takes, unless the config says how long."""
        settings.setdefault("engine", self.engine())
        settings.setdefault("placement", Dedicated() if self._ray else InProcess())
        session_config = SessionConfig(**{"memory": MemoryConfig(timeout_s=WAIT_S), **(config or {})})
        manager = SessionManager(
            self.url("chats"), namespace=self.namespace, memory=memory, config=session_config, **settings
        )
        self._managers.append(manager)
        return manager

    def remote(self, memory: Any) -> RemoteMemory:
        """Return the way to a memory for which no session is needed."""
        return RemoteMemory(memory, MemoryActorProcess(memory, self.namespace), recall_s=WAIT_S, deadline_s=WAIT_S)

    def kill(self, memory: Any) -> None:
        """SIGKILL the process of a memory, as the machine's out-of-memory killer would."""
        assert self._ray
        actor = self._ray.get_actor(MemoryActorProcess(memory, self.namespace).actor_name, namespace=self.namespace)
        pid = self._ray.get(actor.__ray_call__.remote(pid_of))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def sent(self, word: str) -> list[str]:
        """Return the text of each request whose last prompt has the word, except those of a memory."""
        conversations = [record.body["messages"] for record in self.provider.requests if "messages" in record.body]
        return [
            "\n".join(text for message in messages for text in (*texts_of(message), *_called(message)))
            for messages in conversations
            if word in (prompt := _prompts(messages)[-1]) and not (WANTED in prompt or all_stated(prompt))
        ]

    def close(self) -> None:
        """Close the managers, and end all processes of the house."""
        for manager in self._managers:
            manager.close()
        if self._ray is None:
            return
        for actor in self._ray.util.list_named_actors(all_namespaces=True):
            if actor["namespace"] == self.namespace:
                with contextlib.suppress(ValueError):  # it has left by itself
                    self._ray.kill(self._ray.get_actor(actor["name"], namespace=self.namespace))


@contextlib.contextmanager
def house_in(folder: Path, ray: ModuleType | None = None) -> Iterator[House]:
    """Yield a house with a provider of its own; close it then."""
    with LocalProvider(reply=answering) as provider:
        house = House(ray, folder, provider)
        try:
            yield house
        finally:
            house.close()


def _prompts(messages: Iterable[Message]) -> list[str]:
    return [texts_of(message)[-1] for message in messages if message["role"] == "user"]


def _called(message: Message) -> list[str]:
    return [call["function"]["arguments"] for call in message.get("tool_calls") or ()]


def say(chat: Session, prompt: str, **settings: Any) -> Turn:
    """Run a turn to its end."""
    return chat.run(prompt, **settings).wait(WAIT_S)


def told(chat: Session, kind: type[Any]) -> list[Any]:
    return [event for event in chat.events() if isinstance(event, kind)]


def turns_in(chat: Session) -> list[int]:
    """Return the turns whose prompts the user's memories have, in order."""
    recalled = chat.memory.recall("walrus", limit=1000, types=[MemoryType.INTERACTION])
    return sorted(item.source.turn_index or 0 for item in recalled if item.source.session_id == chat.session_id)


def results(turn: Turn) -> list[Any]:
    """Return what each tool gave, errors as text."""
    results = [block for block in turn.output if isinstance(block, ToolResult)]
    return [block.text if block.is_error else json.loads(block.text) for block in results]


SECTION = re.compile(r"<(\w+)_memory>\n(.*?)\n</\1_memory>", re.DOTALL)


def sections(request: str) -> dict[str, str]:
    """Return what each section of recalled text says, by its name."""
    return dict(SECTION.findall(request))


def files_with(folder: Path, words: Iterable[str]) -> list[str]:
    """Return the files of a folder in which one of these words stands, byte for byte, in upper case or lower.

    Another process reads them: a process that has a database open, and its file otherwise, loses its locks.
    """
    patterns = [part for word in words for part in ("-e", word)]
    process = subprocess.run(["grep", "-rlaiF", *patterns, str(folder)], capture_output=True, text=True, check=False)
    assert process.returncode in (0, 1) or "No such file" in process.stderr, process.stderr
    return process.stdout.splitlines()


class Chroma:
    """A server of Chroma on a port of this machine, that can be killed and started again on the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def place(self) -> ChromaServer:
        return ChromaServer(host="127.0.0.1", port=self.port)

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        chroma = Path(sys.executable).parent / "chroma"
        command = [str(chroma), "run", "--path", str(self.folder), "--host", "127.0.0.1", "--port", str(self.port)]
        with (self.folder.parent / "chroma.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        while True:
            assert self._process.poll() is None, (self.folder.parent / "chroma.log").read_text(errors="replace")
            with socket.socket() as client:
                if not client.connect_ex(("127.0.0.1", self.port)):
                    return
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
