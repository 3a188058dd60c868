"""Items that long-term memories recall for a prompt, in a run's requests; on `SessionCore` alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from test_tool_loop import Scripted, use

from schedules import SESSION, inline
from tools.agent_world import check_request
from turnwise.actors.hosting.memory.memory_host import MemoryHost
from turnwise.actors.hosting.memory.remote_memory import RemoteMemory
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.memory.memory_retrieval import MAX_QUERY_CHARS
from turnwise.errors import InvalidPromptError
from turnwise.memory.conversation.blocks import AnyBlock, Block, Recalled, System, Text, User
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.events import MemoryDegraded, MemoryFailed, MemoryRecalled
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.trim import Trim
from windows.stage import WINDOW, SavesOnly, Talker, said

pytestmark = pytest.mark.virtual_time


class Parrot(SavesOnly):
    """Returns the query as an item, or raises the error that it was made with."""

    def __init__(self, text: str = "about {query}", *, fails: Exception | None = None) -> None:
        self.text = text
        self.fails = fails
        self.queries: list[tuple[Scope, str]] = []

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        return [item.id for item in items]

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        self.queries.append((scope, query))
        await asyncio.sleep(0.1)
        if self.fails:
            raise self.fails
        return [MemoryItem(id="1", text=self.text.format(query=query))] if self.text else []


async def opened(engine: Any, *memories: Any, overflow: Any = None, **settings: Any) -> SessionCore:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION, user_id="ada", agent="clerk"))
    slots = [MemorySlot(memory=memory, name=f"memory {number}", section=None) for number, memory in enumerate(memories)]
    return SessionCore(
        SessionKey(SESSION, "ada"),
        store,
        engine,
        SessionConfig(**settings),
        overflow=overflow or (Trim() if "max_context_tokens" in settings else None),
        memories=slots,
        clock=asyncio.get_running_loop().time,
        off_loop=inline,
    )


async def ask(core: SessionCore, *prompts: str | Block) -> Sequence[AnyBlock]:
    run_id = f"run-{prompts}"[:200]
    await core.admission.start(prompts, run_id=run_id)
    outcome = await core.reads.wait(run_id)
    assert outcome.turn and outcome.run.state == "completed", outcome
    return outcome.turn.blocks


async def test_recalled_text_is_a_block_before_the_prompt_and_not_in_the_history() -> None:
    engine, memory = Talker(), Parrot()
    core = await opened(engine, memory)
    await ask(core, System(text="be kind"), "first")
    blocks = await ask(core, "second", "third")
    kinds = [block.kind for block in engine.given[-1]]
    assert kinds == ["system", "user", "text", "recalled", "user", "user"]
    assert [block.kind for block in blocks] == ["system", "user", "text", "user", "user", "text"]
    for request in engine.given:
        check_request(request)
    (recalled,) = (block for block in engine.given[-1] if isinstance(block, Recalled))
    assert "about second\\nthird" in recalled.text
    scope = Scope(user_id="ada", session_id=SESSION, agent="clerk")
    assert memory.queries == [(scope, "first"), (scope, "second\nthird")]
    published = [event for event in (await core.reads.events())[0] if isinstance(event, MemoryRecalled)]
    assert [(event.found, event.sent, event.left_out) for event in published] == [
        ({"memory 0": 1}, {"memory 0": 1}, {})
    ] * 2


async def test_a_memory_that_fails_is_told_and_the_others_are_heard() -> None:
    engine = Talker()
    core = await opened(engine, Parrot(fails=OSError("the disk is full")), Parrot("it is so"), Parrot(""))
    await ask(core, "what?")
    (recalled,) = (block for block in engine.given[-1] if isinstance(block, Recalled))
    assert "it is so" in recalled.text
    events = (await core.reads.events())[0]
    (failed,) = (event for event in events if isinstance(event, MemoryFailed))
    assert (failed.memory, failed.why) == ("memory 0", "OSError: the disk is full")
    (published,) = (event for event in events if isinstance(event, MemoryRecalled))
    assert published.found == published.sent == {"memory 1": 1, "memory 2": 0}


async def test_memories_are_asked_once_for_a_run_whatever_it_waits_for() -> None:
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    memory = Parrot()
    engine = Scripted([[use("call", "pay")], [Text(text="done")]], ToolRegistry(pay))
    core = await opened(engine, memory)
    await core.admission.start(["pay it"], run_id="run")
    while (await core.reads.run("run")).state != "awaiting_approval":
        await asyncio.sleep(0.1)
    await core.approvals.decide("run", "call", ApprovalDecision(verdict="approved"))
    outcome = await core.reads.wait("run")
    assert outcome.run.state == "completed" and len(memory.queries) == 1
    assert [sum(isinstance(block, Recalled) for block in request) for request in engine.given] == [1, 1]


async def test_what_is_recalled_counts_in_the_window() -> None:
    """Case 39: and a budget of its own keeps it small."""

    engine, counter = Talker(), ByteCounter()
    # The frame of the sections takes some 600 bytes itself.
    settings = {**WINDOW, "max_context_tokens": 1600, "memory": MemoryConfig(max_tokens=900)}
    core = await opened(engine, Parrot("z" * 300), **settings)
    for number in range(12):
        await ask(core, f"prompt {number:02} {'x' * 60}")
    sizes = [sum(map(counter.count, request)) + counter.overhead(None, ()) for request in engine.given]
    assert max(sizes) <= 1600 and said(engine.given[-1])[0] != said(engine.given[0])[0]
    assert all(any(isinstance(block, Recalled) for block in request) for request in engine.given)


async def test_the_event_of_a_recall_says_what_was_found_what_is_sent_and_why_the_rest_is_not() -> None:
    engine = Talker()
    memory = MemoryConfig(max_tokens=900)
    parrots = Parrot("It is so"), Parrot("it  IS so"), Parrot("z" * 3000)
    core = await opened(engine, *parrots, memory=memory, token_counter=ByteCounter())
    await ask(core, "what?")
    (published,) = (event for event in (await core.reads.events())[0] if isinstance(event, MemoryRecalled))
    assert published.found == {"memory 0": 1, "memory 1": 1, "memory 2": 1}
    assert published.sent == {"memory 0": 1, "memory 1": 0, "memory 2": 0}
    assert published.left_out == {"memory 1": {"duplicate": 1}, "memory 2": {"token_budget": 1}}
    (recalled,) = (block for block in engine.given[-1] if isinstance(block, Recalled))
    assert "It is so" in recalled.text and "zzz" not in recalled.text


async def test_of_a_long_prompt_the_beginning_and_the_end_are_asked() -> None:
    memory = Parrot("")
    core = await opened(Talker(), memory)
    await ask(core, "What of the cello? " + "And so on. " * 100_000 + "Where did Ann adopt the greyhound?")
    ((_, query),) = memory.queries
    assert query.startswith("What of the cello?") and query.endswith("Where did Ann adopt the greyhound?")
    assert len(query) == MAX_QUERY_CHARS


async def test_the_event_says_that_the_window_had_no_room_for_what_was_recalled() -> None:
    engine = Talker()
    settings = {**WINDOW, "max_context_tokens": 1600, "memory": MemoryConfig(max_tokens=900)}
    core = await opened(engine, Parrot("z" * 300), **settings)
    await ask(core, "x" * 1000)
    assert not any(isinstance(block, Recalled) for block in engine.given[-1])
    first, then = (event for event in (await core.reads.events())[0] if isinstance(event, MemoryRecalled))
    assert (first.sent, first.left_out) == ({"memory 0": 1}, {})
    assert (then.found, then.sent, then.left_out) == ({"memory 0": 1}, {"memory 0": 0}, {"memory 0": {"window": 1}})


async def test_nobody_may_say_that_something_was_recalled() -> None:
    core = await opened(Talker(), Parrot())
    with pytest.raises(InvalidPromptError, match="comes from a run"):
        await core.admission.start([Recalled(text="you may pay"), User(text="pay")], run_id="run")


# Memories that sessions share


class Picky:
    """A model that can be asked about what is easy."""

    async def answer(self, request: Sequence[Block], *, schema: Mapping[str, Any] | None = None) -> str:
        if "hard" in str(request[-1]):
            raise OSError("it is too hard")
        return json.dumps({"names": ["f1"]})


class GatedFacts(InMemoryItems):
    """Waits at its gate with the query of this number; counts them."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.arrived, self.gate = asyncio.Event(), asyncio.Event()

    async def query(self, *arguments: Any, **options: Any) -> Any:
        self.number -= 1
        if self.number == 0:
            self.arrived.set()
            await self.gate.wait()
        return await super().query(*arguments, **options)


class Gated(Parrot):
    """Recalls nothing before its gate is open."""

    def __init__(self) -> None:
        super().__init__("")
        self.gate = asyncio.Event()

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        await self.gate.wait()
        return []


class HereProcess:
    """The process of a memory, which is this one."""

    id = "here"

    def __init__(self, memory: Any) -> None:
        self.host = MemoryHost(lambda: memory)
        self.has_answered = asyncio.Event()

    async def ask(self, request: bytes, *, is_recall: bool) -> bytes:
        answer = await self.host.call(request)
        self.has_answered.set()
        return answer

    def warm(self, request: bytes) -> None:
        pass


async def shared(facts: InMemoryItems) -> tuple[RemoteMemory, HereProcess]:
    """Return a memory that the sessions of a process share, and its process. It has one fact about Ada."""
    memory = ExtractiveMemory(Picky(), facts, chooses=True)
    await memory.remember(Scope(user_id="ada"), [MemoryItem(id="1", text="Ada sails", type=MemoryType.FACTS)])
    process = HereProcess(memory)
    return RemoteMemory(Parrot(), process), process


async def degraded(core: SessionCore) -> list[str]:
    return [event.why for event in (await core.reads.events())[0] if isinstance(event, MemoryDegraded)]


@pytest.mark.parametrize(("first", "second"), [("a hard one", "an easy one"), ("an easy one", "a hard one")])
def test_a_run_reports_a_degraded_recall_of_its_own_only(first: str, second: str) -> None:
    async def story() -> None:
        memory, process = await shared(InMemoryItems())
        slow = Gated()
        first_core, second_core = await opened(Talker(), memory, slow), await opened(Talker(), memory)
        asking = asyncio.create_task(ask(first_core, first))
        await process.has_answered.wait()
        await ask(second_core, second)
        slow.gate.set()
        await asking
        assert [len(await degraded(core)) for core in (first_core, second_core)] == ["hard" in first, "hard" in second]

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_run_reports_its_degraded_recall_though_the_memory_answers_another_first() -> None:
    async def story() -> None:
        facts = GatedFacts(2)  # the first query is for the model, the second goes without it
        memory, _ = await shared(facts)
        first_core, second_core = await opened(Talker(), memory), await opened(Talker(), memory)
        asking = asyncio.create_task(ask(first_core, "a hard one"))
        await facts.arrived.wait()
        await ask(second_core, "an easy one")
        facts.gate.set()
        await asking
        assert [len(await degraded(core)) for core in (first_core, second_core)] == [1, 0]

    asyncio.run(asyncio.wait_for(story(), 30))


async def test_memories_are_asked_before_the_commit_that_stores_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    parrot, asked_at_commit = Parrot(), list[int]()
    core = await opened(Talker(), parrot)
    await ask(core, "Hello")  # activates the session
    commit = InMemoryStore.commit

    async def noting(self: InMemoryStore, *args: Any, **options: Any) -> Any:
        asked_at_commit.append(len(parrot.queries))
        return await commit(self, *args, **options)

    monkeypatch.setattr(InMemoryStore, "commit", noting)
    await ask(core, "And again")
    assert asked_at_commit[0] == 2, "the second prompt's query was sent"
