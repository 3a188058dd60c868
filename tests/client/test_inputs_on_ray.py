"""Arguments that cannot be used, as callers of sessions on Ray meet them; see `test_inputs.py` for all verbs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines import ScriptedEngine
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Dedicated, Packed, Placement
from turnwise.errors import InvalidInputError
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryCategory

pytestmark = pytest.mark.ray

MakeManager = Callable[..., SessionManager]

DEEP: Any = {}
for _ in range(3000):
    DEEP = {"deeper": DEEP}

REFUSED: list[tuple[str, Callable[[Any, Any, Any], Any]]] = [
    ("labels", lambda manager, chat, run: chat.run("hi", labels={"a": object()})),
    ("labels", lambda manager, chat, run: chat.run("hi", labels={"a": 1})),
    ("labels", lambda manager, chat, run: chat.run("hi", labels=["a"])),
    *(("timeout_s", lambda manager, chat, run, s=s: chat.run("hi", timeout_s=s)) for s in ("3", math.nan, math.inf, 0)),
    ("if_busy", lambda manager, chat, run: chat.run("hi", if_busy="whenever")),
    ("memory", lambda manager, chat, run: chat.run("hi", memory="maybe")),
    ("idempotency key", lambda manager, chat, run: chat.run("hi", idempotency_key=1)),
    ("prompt", lambda manager, chat, run: chat.run(lambda: "hi")),
    ("index", lambda manager, chat, run: chat.turn(1.5)),
    ("index", lambda manager, chat, run: chat.turn(2**70)),
    ("at", lambda manager, chat, run: chat.fork(at="x")),
    ("reason", lambda manager, chat, run: chat.cancel(reason=None)),
    ("reason", lambda manager, chat, run: run.cancel(reason=None)),
    ("limit", lambda manager, chat, run: chat.events(limit=0)),
    ("limit", lambda manager, chat, run: chat.turns(limit=True)),
    ("timeout_s", lambda manager, chat, run: run.wait("3")),
    ("input", lambda manager, chat, run: run.approve("call", input={"n": 2**64})),
    ("call_id", lambda manager, chat, run: run.approve("\ud800")),
    ("type", lambda manager, chat, run: chat.memory.save("text", type="nope")),
    ("types", lambda manager, chat, run: chat.memory.recall("text", types=[MemoryCategory.SEMANTIC])),
    ("types", lambda manager, chat, run: chat.memory.recall("text", types="facts")),
    ("metadata", lambda manager, chat, run: manager.open("new", metadata=DEEP)),
    ("metadata", lambda manager, chat, run: manager.open("new", metadata={"a": "\ud800"})),
    ("metadata", lambda manager, chat, run: manager.open("new", metadata={"a": 2**64})),
    ("order_by", lambda manager, chat, run: manager.list(order_by="title")),
    ("status", lambda manager, chat, run: manager.list(status="nope")),
    ("status", lambda manager, chat, run: manager.count(status="nope")),
    ("cursor", lambda manager, chat, run: manager.list(cursor="over there")),
    ("agent", lambda manager, chat, run: manager.usage(agent=b"bytes")),
]


@pytest.mark.parametrize(
    ("store", "placement"), [("sqlite", Packed(hosts=1)), ("memory", Dedicated())], ids=["sqlite", "memory"]
)
def test_what_cannot_be_used_is_refused_by_name_and_the_session_goes_on(
    make_ray_manager: MakeManager, tmp_path: Path, placement: Placement, store: str
) -> None:
    memory = [LexicalMemory(SQLItems(f"sqlite:///{tmp_path}/facts.db"))]
    stores = {"store": f"memory://{tmp_path.name}"} if store == "memory" else {}
    manager = make_ray_manager(placement=placement, memory=memory, **stores)
    chat = manager.open("chat")
    run = chat.run("slow 400")
    for name, call in REFUSED:
        with pytest.raises(InvalidInputError, match=name):
            call(manager, chat, run)
    assert run.cancel()
    assert not [session for session in manager.list() if session.session_id != "chat"]
    assert chat.run("hello").wait().index == 1


async def test_callers_that_await_get_the_same_errors(
    make_ray_manager: MakeManager, tmp_path: Path, namespace: str
) -> None:
    memory = [LexicalMemory(SQLItems(f"sqlite:///{tmp_path}/facts.db"))]
    settings: dict[str, Any] = {"engine": ScriptedEngine(), "memory": memory}
    make_ray_manager(**settings)

    async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings, namespace=namespace) as manager:
        chat = await manager.open("chat")
        run = await chat.run("slow 400")
        for name, call in REFUSED:
            answer = call(manager, chat, run)
            with pytest.raises(InvalidInputError, match=name):
                await answer
        assert await run.cancel()
        assert (await (await chat.run("hello"))).index == 1
