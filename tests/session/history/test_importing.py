"""How a conversation from elsewhere becomes a session's turns; on `SessionCore` alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from engines import ScriptedEngine
from memories.session_memories import Book, MemoryStage
from scale import of_cases
from schedules import SESSION
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import InvalidInputError, SessionBusyError, SessionEndedError, TurnsChangedError
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.blocks import Block, Document, Image, System, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.providers.message_reading import Given, read_messages
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.ids import new_id
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.faulty_engine import FaultyEngine
from turnwise.testing.world import World

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
CHAT: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two"},
    {"role": "user", "content": "please"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "here"},
    {"role": "assistant", "content": "2"},
]
GIVEN = read_messages(CHAT)
WAITING = read_messages([*CHAT, {"role": "user", "content": "three"}])


def texts_of(blocks: Iterable[Block]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, System | User | Text)]


async def opened(**options: Any) -> SessionCore:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))
    return SessionCore(
        SessionKey(SESSION), store, options.pop("engine", ScriptedEngine()), options.pop("config", None), **options
    )


async def run(core: SessionCore, *prompts: str) -> list[Block]:
    started = await core.admission.start(list(prompts), run_id=new_id())
    await core.reads.wait(started.run_id)
    return list((await core.reads.turn(started.turn_index)).blocks)


async def test_each_prompt_with_its_answer_is_a_turn_and_the_next_run_continues_them() -> None:
    core = await opened()
    assert await core.importing.import_turns(GIVEN) == 1
    first, second = await core.reads.turns()
    assert [first.status, second.status] == ["completed"] * 2 and first.run_id is second.run_id is None
    assert list(second.blocks) == list(GIVEN.blocks) and second.parent == first.id and second.text == "2"
    assert texts_of(second.asked) == ["two", "please"] and second.new_blocks[2] == ToolUse(
        call_id="c1", name="find", input={"a": 1}
    )
    assert await core.reads.runs() == []
    blocks = await run(core, "three")
    assert blocks[: len(GIVEN.blocks)] == list(GIVEN.blocks) and texts_of(blocks)[-2] == "three"
    assert rebuild((await core.reads.events())[0]) == blocks
    again = SessionCore(SessionKey(SESSION), core.state.journal.store, ScriptedEngine())
    assert texts_of(await run(again, "four"))[: len(texts_of(blocks))] == texts_of(blocks)
    fork = await again.forking.fork(0, "fork")
    assert fork.next_index == 1


async def test_prompts_at_the_end_wait_for_a_run() -> None:
    core = await opened()
    assert await core.importing.import_turns(WAITING) == 2
    (*_, pending) = await core.reads.turns()
    assert pending.status == "pending" and texts_of(pending.asked) == ["three"]
    assert texts_of(await run(core))[-2:-1] == ["three"]
    assert rebuild((await core.reads.events())[0]) == list((await core.reads.turn(2)).blocks)


async def test_answers_before_the_first_prompt_belong_to_the_first_turns_prompt() -> None:
    core = await opened()
    greeting = {"role": "assistant", "content": "Hello."}
    await core.importing.import_turns(read_messages([CHAT[0], greeting, *CHAT[1:3]]))
    (turn,) = await core.reads.turns()
    assert [block.kind for block in turn.asked] == ["system", "text", "user"] and texts_of(turn.output) == ["1"]
    second_core = await opened()
    await second_core.importing.import_turns(read_messages([greeting]))
    assert [turn.status for turn in await second_core.reads.turns()] == ["pending"]


async def test_the_same_conversation_is_stored_once_and_another_one_behind_it() -> None:
    core = await opened()
    assert await core.importing.import_turns(GIVEN) == await core.importing.import_turns(GIVEN) == 1
    await run(core, "three")
    assert await core.importing.import_turns(GIVEN) == 1 and len(await core.reads.turns()) == 3
    assert await core.importing.import_turns(GIVEN, "again") == await core.importing.import_turns(GIVEN, "again") == 4
    with pytest.raises(InvalidInputError, match="pass a new key"):
        await core.importing.import_turns(WAITING, "again")
    assert [turn.index for turn in await core.reads.turns()] == [0, 1, 2, 3, 4]
    assert rebuild((await core.reads.events())[0]) == list((await core.reads.turn(4)).blocks)


@pytest.mark.parametrize("conversation", [GIVEN, WAITING, read_messages([CHAT[1]])])
async def test_what_was_cleared_is_stored_again_once_by_its_key_or_without(conversation: Given) -> None:
    core = await opened()
    for begin in (0, 1, 2):
        for key in (None, "key"):
            last = await core.importing.import_turns(conversation, key)
            assert last >= begin and await core.importing.import_turns(conversation, key) == last
            again = SessionCore(SessionKey(SESSION), core.state.journal.store, ScriptedEngine())
            assert await again.importing.import_turns(conversation, key) == last
            assert (await again.reads.turns())[-1].index == last
            await again.forgetting.clear()
            core = SessionCore(SessionKey(SESSION), core.state.journal.store, ScriptedEngine())
    await core.importing.import_turns(GIVEN, "other")
    await core.forgetting.clear(keep_last=1)
    assert len(await core.reads.turns()) == 1 and await core.importing.import_turns(GIVEN, "other") == (
        await latest(core)
    )


async def latest(core: SessionCore) -> int:
    turn = await core.reads.latest()
    return turn.index if turn else -1


async def test_imported_prompts_that_moved_to_the_next_turn_are_not_stored_again() -> None:
    core, prompts = await opened(), read_messages([CHAT[1]])
    assert await core.importing.import_turns(prompts) == 0
    await core.admission.start(["slow 100"], run_id="a")
    await core.admission.start(["instead"], run_id="b", if_busy="rollback")
    await core.reads.wait("b")
    assert [turn.index for turn in await core.reads.turns()] == [1]
    assert await core.importing.import_turns(prompts) == 0 and await latest(core) == 1
    await core.forgetting.clear()
    assert await core.importing.import_turns(prompts) == 2


async def test_a_conversation_follows_the_turn_that_its_writer_read() -> None:
    core = await opened()
    assert await core.importing.import_turns(GIVEN, "a", -1) == await core.importing.import_turns(GIVEN, "a", -1) == 1
    await run(core, "three")
    with pytest.raises(TurnsChangedError, match=r"'s.*' is 2 and not 1.*what follows turn 2"):
        await core.importing.import_turns(GIVEN, "b", 1)
    assert await core.importing.import_turns(GIVEN, "b", 2) == 4
    await core.forgetting.clear()
    with pytest.raises(TurnsChangedError, match="is -1 and not 4"):
        await core.importing.import_turns(GIVEN, "c", 4)
    with pytest.raises(TurnsChangedError):
        await core.importing.import_turns(WAITING, "a", 1)
    assert await core.importing.import_turns(WAITING, "a", -1) == 7


async def test_a_session_that_is_busy_waits_or_has_ended_stores_nothing() -> None:
    core = await opened()
    started = await core.admission.start(["slow 9"], run_id="r")
    with pytest.raises(SessionBusyError):
        await core.importing.import_turns(GIVEN)
    await core.reads.wait(started.run_id)
    await core.admission.append(["waits"], "key")
    with pytest.raises(InvalidInputError, match="wait for a run"):
        await core.importing.import_turns(GIVEN)
    await core.admission.end_session()
    with pytest.raises(SessionEndedError):
        await core.importing.import_turns(GIVEN)
    assert [turn.index for turn in await core.reads.turns()] == [0, 1]


class Choosy(ScriptedEngine):
    """An engine that takes no pictures."""

    def refuses(self, block: Image | Document) -> str | None:
        return "no pictures here"


async def test_what_the_session_cannot_store_or_its_engine_refuses_is_named_by_its_message() -> None:
    small = await opened(config=SessionConfig(max_prompt_bytes=99))
    with pytest.raises(InvalidInputError, match=r"messages\[1\].*max_prompt_bytes=99"):
        await small.importing.import_turns(read_messages([CHAT[0], {"role": "user", "content": "x" * 99}]))
    picture = {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}
    choosy = await opened(engine=Choosy())
    with pytest.raises(InvalidInputError, match=r"messages\[2\].*no pictures here"):
        await choosy.importing.import_turns(read_messages([*CHAT[1:3], {"role": "user", "content": [picture]}]))
    assert await small.reads.turns() == await choosy.reads.turns() == []


@pytest.mark.virtual_time
async def test_memories_do_not_get_imported_turns_and_get_later_ones() -> None:
    book = Book()
    stage = await MemoryStage.opened(book)
    await stage.core.importing.import_turns(GIVEN)
    await stage.say("three")
    assert await stage.core.ingestion.wait_for_memory()
    assert [item.source.turn_index for item in book.items.values()] == [2]
    stage.new_core()
    assert await stage.core.ingestion.wait_for_memory() and len(book.items) == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_killed", [False, True])
async def test_memories_get_imported_turns_if_they_are_to_also_by_the_next_process(is_killed: bool) -> None:
    book = Book()
    stage = await MemoryStage.opened(book)
    await stage.core.importing.import_turns(GIVEN, memory="on")
    if is_killed:
        assert not book.items
        stage.new_core()
    assert await stage.core.ingestion.wait_for_memory()
    assert [item.source.turn_index for item in book.items.values()] == [0, 1]
    await stage.core.importing.import_turns(GIVEN, "again")
    assert await stage.core.ingestion.wait_for_memory() and len(book.items) == 2
    await stage.core.forgetting.forget_turn(0)
    assert [item.source.turn_index for item in book.items.values()] == [1]


@pytest.mark.virtual_time
async def test_no_event_is_read_to_find_planner_notes_of_an_imported_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book()
    stage = await MemoryStage.opened(book, memory=MemoryConfig(planner_notes=True))
    read = list[int]()

    async def bare_events(after: int, limit: int) -> list[Event]:
        read.append(after)
        return []

    await stage.core.reads.session()
    monkeypatch.setattr(stage.core.state.journal, "bare_events", bare_events)
    await stage.core.importing.import_turns(GIVEN, memory="on")
    assert await stage.core.ingestion.wait_for_memory() and len(book.items) == 2 and read == []


async def test_events_tell_an_import_behind_a_forgotten_turn_and_what_was_cleared() -> None:
    history = InMemoryHistory()
    core = await opened(history=history)
    forwarder = core.state.journal.forwarder
    assert forwarder
    await run(core, "zero")
    await core.forgetting.forget_turn(0)
    await core.importing.import_turns(GIVEN)
    await forwarder.flush(5)
    assert (
        rebuild(await history.events(SessionKey(SESSION)))
        == list((await core.reads.turn(2)).blocks)
        == list(GIVEN.blocks)
    )
    blocks = await run(core, "three")
    assert rebuild((await core.reads.events())[0]) == blocks
    await core.forgetting.clear(keep_last=2)
    await forwarder.flush(5)
    stored_text = str(await history.events(SessionKey(SESSION)))
    assert "Be brief." not in stored_text and "please" in stored_text


async def test_an_archive_keeps_imported_turns() -> None:
    core = await opened()
    await core.importing.import_turns(WAITING)
    lines: list[str] = []
    await export_session(core.state.journal.store, SessionKey(SESSION), lines.append)
    target_store = InMemoryStore()
    await import_session(target_store, lines)
    copy = SessionCore(SessionKey(SESSION), target_store, ScriptedEngine())
    turns = [
        [(turn.index, turn.status, turn.blocks) for turn in await session_core.reads.turns()]
        for session_core in (copy, core)
    ]
    assert turns[0] == turns[1]
    assert await copy.importing.import_turns(WAITING) == 2, "imported turns are in the archive, too"


async def test_an_archive_keeps_appended_calls_and_thoughts() -> None:
    core = await opened()
    await core.admission.append(
        [User(text="one"), ToolUse(call_id="c", name="f"), ToolResult(call_id="c", text="1")], "a"
    )
    await core.admission.append([Text(text="It is 1."), "two"], "b")
    blocks = await run(core)
    lines: list[str] = []
    await export_session(core.state.journal.store, SessionKey(SESSION), lines.append)
    target_store = InMemoryStore()
    await import_session(target_store, lines)
    assert list((await SessionCore(SessionKey(SESSION), target_store, ScriptedEngine()).reads.turn(0)).blocks) == blocks


async def test_an_archive_keeps_an_appended_call_that_waits_for_its_result() -> None:
    core = await opened()
    await core.admission.append([User(text="one"), ToolUse(call_id="c", name="f")], "a")
    lines: list[str] = []
    await export_session(core.state.journal.store, SessionKey(SESSION), lines.append)
    target_store = InMemoryStore()
    await import_session(target_store, lines)
    copy = SessionCore(SessionKey(SESSION), target_store, ScriptedEngine())
    await copy.admission.append([ToolResult(call_id="c", text="1")], "b")
    assert [block.kind for block in (await copy.reads.turn(0)).asked] == ["user", "tool_use", "tool_result"]


@pytest.mark.usefixtures("quiet")
def test_no_fault_at_any_point_leaves_a_part_of_an_import_or_two() -> None:
    async def life(faults: Faults) -> None:
        world = World(faults, engine=FaultyEngine(faults, word_s=0.01))
        await world.create()
        assert await world.ask("importing.import_turns", WAITING) == 2
        turns = await world.store.inner.turns(SessionKey("session"))
        assert [turn.status for turn in turns] == ["completed", "completed", "pending"]
        assert (await world.store.inner.get(SessionKey("session"))).log_size == len(WAITING.blocks)
        await world.ask("admission.start", [], run_id="three", timeout_s=5.0)
        outcome = await world.ask("reads.wait", "three")
        assert outcome.turn and outcome.turn.parent == "session#1"

    assert exhaust(life, **of_cases())["kill"] > 10


@pytest.mark.usefixtures("quiet")
def test_no_fault_at_any_point_keeps_what_was_cleared_from_being_imported_again() -> None:
    async def life(faults: Faults) -> None:
        world = World(faults)
        await world.create()
        assert await world.ask("importing.import_turns", GIVEN) == 1
        await world.ask("forgetting.clear")
        assert await world.ask("importing.import_turns", GIVEN) == 3
        assert [turn.index for turn in await world.store.inner.turns(SessionKey("session"))] == [2, 3]

    assert exhaust(life, **of_cases())["kill"] > 10


async def test_a_conversation_that_continues_the_sessions_adds_only_what_is_new() -> None:
    core = await opened()
    longer = read_messages([*CHAT, {"role": "user", "content": "three"}, {"role": "assistant", "content": "3"}])
    assert [await core.importing.import_turns(GIVEN) for _ in range(2)] == [1, 1]
    assert [await core.importing.import_turns(longer) for _ in range(2)] == [2, 2]
    assert list((await core.reads.turns())[-1].blocks) == list(longer.blocks)
    await run(core, "four")
    said_by_all = read_messages([*CHAT, {"role": "user", "content": "one"}])
    assert await core.importing.import_turns(said_by_all) == 6, "all blocks of another conversation are added"
    assert (await core.reads.turns())[4].new_blocks[0] == longer.blocks[0]


async def test_a_conversation_with_a_key_of_its_own_is_added_whole() -> None:
    core = await opened()
    assert await core.importing.import_turns(GIVEN) == 1
    assert await core.importing.import_turns(GIVEN, "again") == 3


def at(time: Any, role: str = "user", **other: Any) -> dict[str, Any]:
    return {"role": role, "content": "words", "created_at": time, **other}


async def test_turns_have_the_times_of_their_first_messages() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        at(1_700_000_000),
        at("2023-11-14T23:13:20+01:00", "assistant", timestamp="not looked at"),
        {"role": "user", "content": "later", "timestamp": "2023-11-15T00:00:00Z"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "last", "createdAt": datetime(2024, 1, 1, tzinfo=UTC)},
    ]
    core = await opened()
    await core.importing.import_turns(read_messages(messages))
    times = [turn.created_at for turn in await core.reads.turns()]
    assert times == [1_700_000_000, 1_700_006_400, 1_704_067_200]
    longer = [*messages, {"role": "assistant", "content": "answer"}, at(1_710_000_000), at(1_710_000_000, "assistant")]
    core = await opened()
    await core.importing.import_turns(read_messages(messages[:5]))
    await core.importing.import_turns(read_messages(longer))
    assert [turn.created_at for turn in await core.reads.turns()] == [*times, 1_710_000_000], (
        "a conversation that goes on"
    )


async def test_a_turn_is_never_of_the_future() -> None:
    core = await opened(clock=lambda: 1_700_000_000.0)
    await core.importing.import_turns(read_messages([at(1_700_000_060), at(1_700_000_060, "assistant")]))
    assert [turn.created_at for turn in await core.reads.turns()] == [1_700_000_000]


@pytest.mark.parametrize(
    ("times", "place", "reason"),
    [
        (["yesterday"], 0, "it is no time"),
        ([True], 0, "it is no time"),
        ([float("nan")], 0, "it is no time"),
        (["2023-11-14T23:13:20"], 0, "no time zone"),
        ([-1], 0, "of the past"),
        ([1_700_000_000_000], 0, "in seconds"),
        ([1_700_000_000, 1_699_999_999], 1, "before the time of an earlier message"),
    ],
)
def test_times_that_cannot_be_are_named_by_their_messages(times: list[Any], place: int, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as refused:
        read_messages([at(time) for time in times])
    assert refused.value.field == f"messages[{place}].created_at"
