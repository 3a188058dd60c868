"""The verbs of a session: each is declared once, is used by callers, and may be carried out twice."""

from __future__ import annotations

import inspect
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines import Asking
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.session_service import SessionService
from turnwise.actors.hosting.stored_source import StoredSource
from turnwise.actors.hosting.verb_declaration import Verb, VerbCall
from turnwise.actors.hosting.verbs import VERBS
from turnwise.actors.hosting.waits import Waits
from turnwise.actors.hosting.wire import Message, SessionRef, Waited
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.reads import SessionReads
from turnwise.errors import DeliveryNotFoundError, InvalidInputError, SessionNotFoundError, UnknownVerbError
from turnwise.memory.conversation.blocks import Summary
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.schedules import When
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.providers.message_reading import read_messages
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.records import replace
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.keep_last import KeepLast

ACTORS = Path(verbs.__file__).parents[1]
REF = SessionRef(SessionKey("chat", "ann"))

VALID: dict[str, Any] = {
    "cached": (),
    "index": 1,
    "after": -1,
    "limit": 10,
    "before": None,
    "run_id": "second",
    "timeout_s": 0.0,
    "prompts": ("hello",),
    "options": {"run_id": "fourth", "if_busy": "enqueue"},
    "key": "key",
    "reason": "enough",
    "call_id": "call",
    "decision": ApprovalDecision(verdict="approved"),
    "name": None,
    "data": {"a": 1},
    "title": "A boat",
    "metadata": {"a": 1},
    "merge": True,
    "use": "read",
    "at": 0,
    "session_id": "fork",
    "conversation": read_messages([{"role": "user", "content": "old"}, {"role": "assistant", "content": "long ago"}]),
    "memory": "off",
    "most": 10,
    "keep_last": 1,
    "verify": False,
    "updated_at": None,
    "explain": False,
    "agent": "agent",
    "summary": Summary(text="of nothing"),
    "message": None,
    "text": "Ann has a boat.",
    "query": "boat",
    "id": "item",
    "ids": ("item",),
    "pinned": True,
    "content": "Ann has a boat.",
    "what": "Ann has a boat.",
    "when": When(after_s=100.0),
    "delivery_id": "tea",
    "revision": 1,
    "missed": "run_once",
    "if_busy": "enqueue",
    "cursor": None,
    "user_id": "tom",
    "role": "member",
}
"""What verbs get for a parameter of this name that has no default."""

TEA = Delivery(session_id="chat", user_id="ann", delivery_id="tea", key="tea", occurs_at=50.0, due_at=50.0)

OWN: dict[str, dict[str, Any]] = {
    "add_event": {"name": "progress", "run_id": None},
    "clear": {"memory": True},
    "cancel": {"run_id": "third"},
    "cancel_schedule": {"key": "tea"},
    "change_schedule": {"key": "tea", "options": {}},
    "check_import": {"after": None},
    "decide": {"run_id": "third"},
    "deliver": {"delivery": TEA},
    "import_turns": {"after": None},
    "mark": {"name": "thumb", "number": 1, "value": {"up": True}, "by": "Rita"},
    "memory.save": {"id": "another"},
    "memory.update": {"text": "Ann sold her boat."},
    "rerun": {"options": {"run_id": "fourth"}},
    "say": {"run_id": "fourth", "trace": None},
    "schedule": {"delivery_id": "news", "key": "news", "options": {}},
    "send": {"to_session": "chat", "delivery_id": "message"},
}
"""What single verbs get besides."""


class World:
    """A session whose first two runs have ended, with memories. `waits` says whether a third waits for a decision."""

    def __init__(self, *, waits: bool) -> None:
        self.store = InMemoryStore()
        self.waits = waits
        memory = MemorySlot(memory=LexicalMemory(InMemoryItems()), name="facts", section=None)
        self.parts: dict[str, Any] = {"memories": (memory,), "working": WorkingMemory(InMemoryItems())}
        self.core = SessionCore(REF.key, self.store, EchoEngine(), overflow=KeepLast(turns=1), **self.parts)
        self.service = service_of(self.core)

    async def begin(self) -> World:
        await self.store.create(SessionRecord(session_id="chat", user_id="ann"))
        for run_id in ("first", "second"):
            await self.core.admission.start([f"the {run_id} prompt"], run_id=run_id)
            await self.core.reads.wait(run_id)
        await self.ask(verbs.save_item("Ann has a dinghy.", id="item"))
        settings: Any = {"missed": "run_once", "if_busy": "enqueue", "options": {}}
        await self.ask(verbs.schedule(("tea",), When(after_s=50.0), delivery_id="tea", key="tea", **settings))
        if self.waits:
            self.core.use(Asking(), self.core.engines.config, **self.parts)
            await self.core.admission.start(["act"], run_id="third")
            await self.core.reads.wait("third", until="settled")
        return self

    async def ask(self, call: VerbCall[Any]) -> Any:
        answer = await self.service.carry_out(call.to(REF))
        return answer.answer if isinstance(answer, Waited) else answer

    async def stored_state(self) -> Any:
        """Return the stored records of all sessions and memories, once nothing runs."""
        contents: list[Any] = []
        for session in await self.store.query(user_id="ann"):
            if session.key == REF.key:
                for run in await self.core.reads.runs():
                    await self.core.reads.wait(run.run_id, until="settled")
                await self.core.ingestion.wait_for_memory()
            reads = SessionReads(StoredSource(session.key, self.store, None))
            row = replace(await reads.session(), revision=0, updated_at=0.0, seq=0, saved=0)
            turns = [(turn.record, turn.blocks) for turn in await reads.turns()]
            deliveries = await self.store.deliveries(**session.key._asdict())
            contents += [row, turns, await reads.runs(), (await reads.events())[0], deliveries]
        access = self.core.retrieval.memory_access()
        items = [(item.id, item.text) for item in await access.list_items()]
        return contents, items, await access.read_notes()


def service_of(core: SessionCore) -> SessionService:
    """Return the service of a session whose process has every engine."""
    resources: Any = SimpleNamespace(
        engine_id="", get=lambda _: ((), b""), has=lambda _: True, tell=lambda due_at: None
    )
    return SessionService(core, EngineOverride(""), resources, keep_nothing, "node", waits=Waits("max_waits", 5))


async def keep_nothing(*_: object) -> None:
    """Nobody makes another process here."""


def call_of(verb: Verb[..., Any], world: World) -> VerbCall[Any]:
    """Return the call of a verb with valid arguments."""
    own = OWN.get(verb.name, {})
    if verb.name == "remove":
        assert world.core.state.head
        own = {"spans": world.core.state.head.prompt}
    args: list[Any] = []
    options: dict[str, Any] = {}
    for parameter in [*inspect.signature(verb.carry_out).parameters.values()][2 if verb.holds_engine else 1 :]:
        if parameter.name in own or (
            parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        ):
            value = own[parameter.name] if parameter.name in own else VALID[parameter.name]
            if parameter.kind is parameter.KEYWORD_ONLY:
                options[parameter.name] = value
            else:
                args.append(value)
    return verb(*args, **options)


@pytest.mark.parametrize("verb", [verb for verb in VERBS.values() if not verb.reads], ids=lambda verb: verb.name)
async def test_a_verb_that_is_carried_out_twice_changes_no_more_than_once(verb: Verb[..., Any]) -> None:
    world = await World(waits=verb.name in ("cancel", "decide")).begin()
    call = call_of(verb, world)
    await world.ask(call)
    once = await world.stored_state()
    with suppress(SessionNotFoundError):  # what was deleted
        await world.ask(call)
    assert (await world.stored_state() == once) is verb.repeatable


@pytest.mark.parametrize("verb", [verb for verb in VERBS.values() if verb.reads], ids=lambda verb: verb.name)
async def test_a_verb_that_reads_changes_nothing_and_activates_nothing(verb: Verb[..., Any]) -> None:
    world = await World(waits=False).begin()
    core = SessionCore(REF.key, world.store, EchoEngine())
    before = await world.store.get(REF.key)
    with suppress(InvalidInputError, DeliveryNotFoundError):  # this session has no summary to expand, and no schedule
        await service_of(core).carry_out(call_of(verb, world).to(REF))
    assert await world.store.get(REF.key) == before and not core.reads.is_activated


def test_no_two_verbs_have_one_name() -> None:
    assert len(VERBS) == sum(isinstance(value, Verb) for value in vars(verbs).values())


def test_a_verb_says_what_it_does_and_of_which_types_its_arguments_are() -> None:
    for verb in VERBS.values():
        signature = inspect.signature(verb.carry_out)
        assert verb.carry_out.__doc__ and signature.return_annotation is not inspect.Signature.empty, verb.name
        assert all(parameter.annotation is not parameter.empty for parameter in [*signature.parameters.values()][1:]), (
            verb.name
        )
        if verb.waits:
            assert [*signature.parameters][1] == "timeout_s", f"{verb.name}: its time comes first"


async def test_a_verb_that_a_process_does_not_know_is_refused() -> None:
    world = await World(waits=False).begin()
    with pytest.raises(UnknownVerbError, match="'dance'"):
        await world.service.carry_out(Message(REF, "dance", {}))
    with pytest.raises(UnknownVerbError, match="'turns with these arguments'"):
        await world.service.carry_out(
            Message(REF, "turns", {"after": 0, "limit": 10, "cached": (), "newest_first": True})
        )
