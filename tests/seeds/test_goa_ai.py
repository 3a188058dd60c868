"""The code listings of Goa-AI's page on transcripts, memory and sessions, with turnwise."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import turnwise
from engines import Researcher, ScriptedEngine
from turnwise import AsyncSessionManager, InProcess, LexicalMemory, MemoryConfig, SessionConfig, SessionManager
from turnwise.errors import InvalidRequestError, SessionEndedError, TurnIdTakenError
from turnwise.memory.conversation.blocks import Document, Image, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import CustomEvent, PhaseChanged, PlannerNote, TextDelta
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.stores import open_history
from turnwise.testing.local_provider.message_rules import check_anthropic, check_chat
from turnwise.transcripts import Ledger, encode, messages_of, rebuild

NAMESPACE = "seeds-goa-ai"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("goa-ai")


def settings(folder: Path) -> dict[str, Any]:
    return {
        "store": f"sqlite:///{folder}/chats.db",
        "history_store": f"sqlite:///{folder}/events.db",
        "engine": {"research": Researcher(), "plain": ScriptedEngine("plain ")},
        "namespace": NAMESPACE,
        "placement": InProcess(),
    }


@pytest.fixture(scope="module")
def manager(folder: Path) -> Iterator[SessionManager]:
    with SessionManager(**settings(folder)) as session_manager:
        yield session_manager


def stored_events(folder: Path, session_id: str, count: int, run_id: str | None = None) -> list[Any]:
    """Load the events from the event store alone, once it has so many."""

    async def load() -> list[Any]:
        history = open_history(f"sqlite:///{folder}/events.db")
        try:
            deadline = time.monotonic() + 30
            while len(events := await history.events(SessionKey(session_id), run_id=run_id)) < count:
                assert time.monotonic() < deadline, events
                await asyncio.sleep(0.05)
            return list(events)
        finally:
            await history.close()

    return asyncio.run(load())


def test_the_ledger_keeps_the_providers_order() -> None:
    """Record the assistant's turn, then the tool's results, and build the messages."""
    ledger = Ledger()
    ledger.append_text("I'll search the database.")
    ledger.append_thinking("Let me search for that...", signature="provider-sig", index=0, final=True)
    ledger.declare_tool_use("tu-1", "search_db", {"query": "status"})
    ledger.flush_assistant()
    ledger.append_tool_results(ToolResult(call_id="tu-1", text=json.dumps({"results": ["item1", "item2"]})))
    assistant, user = ledger.messages()
    assert [block.kind for block in assistant.blocks] == ["thinking", "text", "tool_use"]
    assert [block.kind for block in user.blocks] == ["tool_result"]
    assert (assistant.role, user.role) == ("assistant", "user")


def test_tool_results_carry_images_and_documents_in_the_providers_format() -> None:
    chart, report = Image.from_bytes(b"png", "image/png"), Document.from_bytes("a.pdf", b"%PDF-", "application/pdf")
    ledger = Ledger()
    ledger.declare_tool_use("tu-1", "search_db", {"query": "status"})
    ledger.flush_assistant()
    result = ToolResult.of({"results": ["item1"]}, chart, report).model_copy(update={"call_id": "tu-1"})
    ledger.append_tool_results(result)
    blocks = [User(text="status?"), *ledger.blocks()]
    assert blocks[-1] == result and result.data == {"results": ("item1",)}
    (part,) = encode(blocks, provider="anthropic")["messages"][-1]["content"]
    assert [content["type"] for content in part["content"]] == ["text", "image", "document"]
    output = encode(blocks, provider="responses")["input"][-1]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image", "input_file"]
    tool_message, user_message = encode(blocks, provider="chat")["messages"][-2:]
    assert (tool_message["role"], user_message["role"]) == ("tool", "user"), "a tool's message takes text only"


def test_streamed_parts_have_an_index_and_say_which_is_final(manager: SessionManager) -> None:
    run = manager.open("streamed", engine="research").run("What is the status?")
    run.wait()
    deltas = [event for event in run.events() if isinstance(event, TextDelta)]
    assert "".join(delta.text for delta in deltas) == "I found "
    assert {delta.index for delta in deltas} == {0} and [delta.final for delta in deltas][-1]
    assert sum(delta.final for delta in deltas) == 1


def test_validate_for_bedrock() -> None:
    use, result = ToolUse(call_id="tu-1", name="search_db"), ToolResult(call_id="tu-1", text="item1")
    prompt, thought = User(text="status?"), Thinking(text="Hm.", signature="c2ln")
    turnwise.validate(messages_of([prompt, thought, use, result]), provider="bedrock", thinking=True)
    for wrong, reason in (
        ([prompt, use, result], "begin with a thinking block"),
        ([prompt, thought, use, result, ToolResult(call_id="tu-2", text="?")], "no call 'tu-2'"),
        ([prompt, thought, use, Text(text="Well."), prompt], "has no result"),
    ):
        with pytest.raises(InvalidRequestError, match=reason):
            turnwise.validate(messages_of(wrong), provider="bedrock", thinking=True)


def test_a_run_with_a_turn_id(manager: SessionManager) -> None:
    chat = manager.open("chat-session-123")
    turn = chat.run("What is the status?", turn_id="turn-1", labels={"team": "ops"}).wait()
    assert turn.turn_id == "turn-1" and chat.turn("turn-1") == turn
    assert turn.text.startswith("I found ") and turn.metadata == {"sources": 1}
    with pytest.raises(TurnIdTakenError, match="turn-1"):
        chat.run("Again?", turn_id="turn-1")
    (run,) = chat.runs()
    assert (run.state, run.finish, dict(run.labels)) == ("completed", "completed", {"team": "ops"})


def test_messages_are_rebuilt_from_stored_events(manager: SessionManager, folder: Path) -> None:
    """The event store is enough: the conversation's store is not read."""
    chat = manager.open("rebuilt")
    first = chat.run("What is the status?").wait()
    second = chat.run("And now?").wait()
    count = sum(not event.live for event in chat.events())
    events = stored_events(folder, "rebuilt", count)
    assert rebuild(events) == list(second.blocks)
    assert rebuild(chat.events()) == list(second.blocks), "the session's own events tell the same"
    of_run = stored_events(folder, "rebuilt", 1, run_id=second.run_id)
    assert rebuild(of_run) == list(second.new_blocks), "one run's own part"
    ended = [index for index, event in enumerate(events, 1) if event.run_id == first.run_id and event.terminal]
    assert rebuild(events[: ended[0]]) == list(first.blocks), "any prefix tells the state at that time"

    again = [*rebuild(events), User(text="Thanks.")]
    check_anthropic(encode(again, provider="anthropic", thinking=True)["messages"], thinking=True)
    check_chat(encode(again, provider="chat")["messages"])


def test_the_run_log_is_read_by_pages(manager: SessionManager) -> None:
    chat = manager.open("paged")
    run = chat.run("What is the status?")
    run.wait()
    read: list[Any] = []
    while page := chat.events(after=read[-1].seq if read else 0, limit=3):
        read += page
    assert [event.seq for event in read] == [event.seq for event in chat.events()]
    assert read[-1].terminal and not any(event.terminal for event in read[:-1])


def test_phases_notes_steps_and_own_events(manager: SessionManager) -> None:
    chat = manager.open("phases")
    run = chat.run("What is the status?")
    turn = run.wait()
    for _ in range(2):
        phases = [event.phase for event in run.events(phases=True) if isinstance(event, PhaseChanged)]
        assert phases == [
            *("prompted", "planning", "synthesizing", "executing_tools", "planning", "synthesizing", "completed"),
        ]
    assert run.phase() == "completed"
    events = list(run.events())
    (note,) = [event for event in events if isinstance(event, PlannerNote)]
    (rows,) = [event for event in events if isinstance(event, CustomEvent)]
    (query,) = [step for step in run.steps() if step.kind == "step"]
    assert note.text == "search first" and dict(rows.data) == {"count": 1}
    assert (query.name, query.parent, rows.step) == ("query", "tu-1", query.id)
    seq = chat.add_event("reviewed", {"by": "ann"})
    assert [event.seq for event in chat.events() if isinstance(event, CustomEvent)] == [rows.seq, seq]
    child = manager.open("child").run("slow 1", parent=turn.run_id)
    assert child.info().parent == turn.run_id
    assert [run.run_id for run in manager.runs(parent=turn.run_id)] == [child.run_id]


def noted(folder: Path) -> dict[str, Any]:
    """Return the settings of a manager whose memory keeps planner notes."""
    memory = LexicalMemory(f"sqlite:///{folder}/memory.db")
    config = SessionConfig(memory=MemoryConfig(planner_notes=True))
    return settings(folder) | {"memory": [memory], "config": config, "namespace": f"{NAMESPACE}-noted"}


@pytest.fixture
def noting(folder: Path) -> Iterator[SessionManager]:
    with SessionManager(**noted(folder)) as session_manager:
        yield session_manager


async def test_planner_notes_are_a_kind_of_memory(noting: SessionManager, folder: Path) -> None:
    """The memory store has the planner's notes beside messages and tool calls, and both families find them."""
    chat = noting.open("noted", user_id="ann", agent="research")
    turn = chat.run("What is the status?").wait()
    assert chat.memory.wait(60)
    (listed,) = chat.memory.list(type="planner_note")
    assert (listed.text, listed.type, listed.source.turn_index) == ("search first", "planner_note", turn.index)
    assert {item.type for item in chat.memory.list()} == {"planner_note", "interaction"}
    assert [item.id for item in chat.memory.recall("search", types=["planner_note"])] == [listed.id]
    assert listed.id in [item.id for item in chat.memory.recall("search first", category="episodic")]
    assert chat.memory.recall("search", category="semantic") == []
    async with AsyncSessionManager(**noted(folder)) as asynchronous:
        again = await asynchronous.get("noted", user_id="ann")
        assert [item.id for item in await again.memory.recall("search", types=["planner_note"])] == [listed.id]
        await (await again.run("And now?")).wait()
        assert await again.memory.wait(60)
        assert len((await again.memory.list(type="planner_note")).items) == 2
        await again.memory.forget(turn.index)
        (note,) = await again.memory.list(type="planner_note")
        assert note.source.turn_index == turn.index + 1


def test_an_ended_session_accepts_no_more_runs(manager: SessionManager) -> None:
    chat = manager.open("ended")
    chat.run("What is the status?").wait()
    for _ in range(2):
        chat.end()
    with pytest.raises(SessionEndedError):
        chat.run("More?")
    assert len(chat.turns()) == 1, "what was said stays"


async def test_the_asynchronous_family_does_the_same(manager: SessionManager, folder: Path) -> None:
    async with AsyncSessionManager(**settings(folder)) as asynchronous:
        chat = await asynchronous.open("async", engine="plain")
        run = await chat.run("slow 50", turn_id="t")
        seq = await run.add_event("watched", {"by": "ann"})
        assert (await run.wait()).text == "plain slow 50"
        assert await run.phase() == "completed" and (await chat.turn("t")).turn_id == "t"
        events = [event async for event in run.events(phases=True)]
        assert [event.phase for event in events if isinstance(event, PhaseChanged)][-1] == "completed"
        assert seq in [event.seq for event in events]
        await chat.use("research")
        assert (await (await chat.run("What is the status?")).wait()).text.startswith("I found")
        assert await chat.add_event("reviewed") > seq
    assert manager.get("async").info().session.engine == "research"
