"""`LocalRealm`: sessions in this process, for tests of clients without Ray."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.actors.client import steps
from turnwise.actors.client.blocking import steps as blocking_steps
from turnwise.actors.client.shared.portal import Portal
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.session_service import SessionService
from turnwise.actors.hosting.waits import Waits
from turnwise.actors.hosting.wire import Message, Refused, SessionRef
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.items.base import ItemStore
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.working.memory import WorkingMemory

PORTAL = Portal()


class LocalRealm(SessionsClient):
    """The way to sessions in this process: the same requests, in the same bytes, to the same verbs, without Ray."""

    is_shared = False

    def __init__(self, store: SessionStore, facts: ItemStore, notes: ItemStore) -> None:
        super().__init__("local", "local")
        self.memories = (MemorySlot(memory=LexicalMemory(facts), name="facts", section=None),)
        self.working_memory = WorkingMemory(notes)
        self.store = store
        self.engine: EngineBuilder = EchoEngine()
        self.portal = PORTAL
        self.config = SessionConfig()
        self.residents: dict[SessionKey, SessionService] = {}
        self.verbs: list[str] = []

    @property
    def lookup(self) -> Any:
        return self

    def actor(self, ref: SessionRef) -> Any:
        return self

    async def call(self, request: bytes) -> bytes:
        message: Message = pickle.loads(request)
        self.verbs.append(message.verb)
        try:
            return pickle.dumps(await self._resident(message.session.key).carry_out(message))
        except TurnwiseError as error:
            return pickle.dumps(Refused(error))

    def _resident(self, key: SessionKey) -> SessionService:
        if key not in self.residents or self.residents[key].is_deleted:
            parts = {"memories": self.memories, "working": self.working_memory}
            core = SessionCore(key, self.store, self.engine, self.config, **parts)  # type: ignore[arg-type]
            waits = Waits("max_waits", 10)
            resources: Any = SimpleNamespace(engine_id="", get=lambda _: ((), b""), has=lambda _: True)
            resident = SessionService(core, EngineOverride(""), resources, _nothing, "node", waits=waits)  # type: ignore[arg-type]
            self.residents[key] = resident
        return self.residents[key]

    def warm(self, ref: SessionRef) -> None:
        pass

    def open_store(self) -> SessionStore:
        return self.store

    def is_live(self, ref: SessionRef) -> bool:
        return ref.key in self.residents


async def _nothing() -> None:
    pass


@contextmanager
def calls_within_this_process() -> Iterator[None]:
    """Within the `with` block, clients call the sessions of their `LocalRealm`."""

    def blocking(actor: LocalRealm, request: bytes, reach: Any, **how: Any) -> bytes:
        return PORTAL.run(actor.call(request))

    async def awaited(actor: LocalRealm, request: bytes, reach: Any, **how: Any) -> bytes:
        return await actor.call(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocking_steps, "call", blocking)
        patch.setattr(steps, "call", awaited)
        yield
