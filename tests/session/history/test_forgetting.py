"""How a session forgets a turn, or all of itself; on `SessionCore` alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_saving import later

from memories.session_memories import Book, MemoryStage
from schedules import SESSION
from tools.agent_world import check_request
from turnwise.actors.cluster.runtime import RayRuntime
from turnwise.actors.hosting.memory.remote_memory import equip
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import (
    CompactionError,
    LongTermMemoryError,
    SessionBusyError,
    SessionNotFoundError,
    StoreError,
    TurnNotFoundError,
)
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock, Block, Recalled, Summary, System, Text
from turnwise.memory.conversation.events import TurnForgotten, WindowCompacted
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import Scope
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.trim import Trim
from windows.stage import WINDOW, Summarizer, Talker, said, summarize

pytestmark = pytest.mark.virtual_time


def prompts_of(blocks: Sequence[Block]) -> list[str]:
    return [text for text in said(blocks) if not text.startswith("summary")]


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_turn_that_is_forgotten_is_in_no_later_request_and_in_no_memory_and_its_history_stays(
    which: int,
) -> None:
    """Case 54: the first turn, one in the midst, the last."""

    book = Book()
    stage = await MemoryStage.opened(book)
    engine: Talker = stage.engine
    turns = [await stage.say(*prompts) for prompts in ((System(text="be kind"), "one"), ("two",), ("three",))]
    await stage.core.ingestion.wait_for_memory()
    report = await stage.core.forgetting.forget_turn(which)
    assert (report.turns, report.items, report.summaries, report.waiting) == (1, {"memory 0": 1}, 0, 0)
    assert not report.erased and not report.verified
    assert book.turns == [index for index in range(3) if index != which]
    remaining = [prompt for index, prompt in enumerate(("one", "two", "three")) if index != which]
    await stage.say("four")
    assert prompts_of(engine.given[-1]) == [*remaining, "four"]
    stage.new_core()
    await stage.say("five")
    assert prompts_of(engine.given[-1]) == [*remaining, "four", "five"]
    check_request(engine.given[-1])
    stored_turns = await stage.core.reads.turns()
    assert [turn.blocks for turn in stored_turns[:3]] == [turn.blocks for turn in turns], "as its model saw it"
    assert [turn.record.forgotten for turn in stored_turns] == [index == which for index in range(5)]
    await stage.core.ingestion.wait_for_memory()
    assert which not in book.turns and len(book.turns) == 4
    again = await stage.core.forgetting.forget_turn(which)
    assert (again.turns, again.items) == (0, {"memory 0": 0})
    (event,) = await stage.events_of(TurnForgotten)
    assert event.turn_index == which


async def test_all_turns_may_be_forgotten() -> None:
    stage = await MemoryStage.opened(Book())
    for number in range(3):
        await stage.say(f"prompt {number}")
    for number in (1, 2, 0):
        await stage.core.forgetting.forget_turn(number)
    await stage.say("anew")
    assert said(stage.engine.given[-1]) == ["anew"]


async def test_a_turn_that_was_still_to_be_saved_is_not_saved_any_more() -> None:
    book = Book()
    book.fails = OSError("away")
    stage = await MemoryStage.opened(book)
    await stage.say("one")
    await stage.say("two")
    with pytest.raises(LongTermMemoryError, match=r"memory 0: OSError: away\. Repeat the call"):
        await stage.core.forgetting.forget_turn(0)
    book.fails = None
    await stage.core.ingestion.wait_for_memory()
    assert book.turns == [1]
    assert (await stage.core.forgetting.forget_turn(0)).items == {"memory 0": 0}
    book.fails = OSError("away")
    await stage.say("three")
    stage.new_core()
    await stage.core.transactor.activate()
    with pytest.raises(LongTermMemoryError):
        await stage.core.forgetting.forget_turn(2)
    book.fails = None
    stage.new_core()
    await stage.core.ingestion.wait_for_memory()
    assert book.turns == [1]


async def test_a_save_in_flight_arrives_before_its_turn_is_forgotten() -> None:
    book = Book(delay_s=5.0)
    stage = await MemoryStage.opened(book)
    await stage.say("one")
    await asyncio.sleep(1)
    assert book.given and not book.items
    assert (await stage.core.forgetting.forget_turn(0)).items == {"memory 0": 1}
    await asyncio.sleep(100)
    assert not book.items


async def test_a_summary_of_a_forgotten_turn_is_replaced_by_its_other_originals() -> None:
    """Case 54: summaries lose the turn, also summaries that were folded into others."""

    model = Summarizer()
    stage = await MemoryStage.opened(Book(), overflow=summarize(model, trigger_ratio=0.6), **WINDOW)
    for number in range(24):
        await stage.say(f"prompt {number:02} {'x' * 20}")
        await asyncio.sleep(1)
    latest = await stage.core.reads.latest()
    assert latest
    (summary,) = (block for block in latest.blocks if isinstance(block, Summary))
    assert summary.folded, "a summary of summaries"
    before = await expanded(stage, latest.blocks)
    forgotten_text = before[3]
    shown = len(model.shown)
    report = await stage.core.forgetting.forget_turn(int(forgotten_text[7:9]))
    assert report.summaries == 1 and report.items == {"memory 0": 1}
    await asyncio.sleep(5)
    await stage.say("and now?")
    for block in (block for request in model.shown[shown:] for block in request):
        assert forgotten_text not in getattr(block, "text", ""), "no summary is made of it again"
    (last,) = (await stage.core.reads.turns(limit=100))[-1:]
    held = await expanded(stage, last.blocks)
    assert held == [*(text for text in before if text != forgotten_text), "and now?"], "each other prompt is there once"
    check_request(stage.engine.given[-1])


async def expanded(stage: MemoryStage, blocks: Sequence[Block]) -> list[str]:
    """Return the prompts among blocks and among the blocks that summaries replaced."""
    originals: list[Block] = []
    for block in blocks:
        originals += await stage.core.reads.expand(block) if isinstance(block, Summary) else (block,)
    return prompts_of(originals)


async def test_a_flush_gives_no_memory_what_was_forgotten() -> None:
    book = Book()
    flush = FlushToMemory([book], max_ratio=0.4, trigger_ratio=0.7)
    stage = await MemoryStage.opened(overflow=flush, **WINDOW)
    await stage.say("prompt 00 is secret")
    await stage.say("prompt 01")
    await stage.core.forgetting.forget_turn(0)
    for number in range(2, 14):
        await stage.say(f"prompt {number:02} {'x' * 20}")
        await asyncio.sleep(1)
    assert book.turns[0] == 1 and "secret" not in book.said


async def test_the_last_turn_is_forgotten_and_its_window_is_compacted_all_the_same() -> None:
    stage = await MemoryStage.opened(Book(), overflow=Trim(), **WINDOW)
    for number in range(9):
        await stage.say(f"prompt {number:02} {'x' * 20}")
    await stage.core.forgetting.forget_turn(8)
    await stage.core.compaction.compact()
    for number in range(9, 20):
        await stage.say(f"prompt {number:02} {'x' * 20}")
        check_request(stage.engine.given[-1])
        assert "prompt 08" not in "".join(prompts_of(stage.engine.given[-1]))


async def test_forks_go_on_without_what_was_forgotten() -> None:
    stage = await MemoryStage.opened(Book())
    for number in range(3):
        await stage.say(f"prompt {number}")
    await stage.core.forgetting.forget_turn(1)
    await stage.core.forgetting.forget_turn(2)
    await stage.core.forking.fork(None, "now")
    await stage.core.forking.fork(1, "then")
    for name, held in (("now", ["prompt 0"]), ("then", ["prompt 0"])):
        (turn,) = await stage.store.turns(SessionKey(name, "ada"))
        spans = turn.base
        blocks = await stage.core.state.journal.blocks.read(spans)
        assert said(blocks) == held, name


async def test_a_turn_that_cannot_be_forgotten_now_is_refused_and_nothing_is_lost() -> None:
    book = Book()
    stage = await MemoryStage.opened(book)
    await stage.say("one")
    await stage.core.admission.append(["later"], key="k")
    for missing in (7, -1, 1):
        with pytest.raises(TurnNotFoundError):
            await stage.core.forgetting.forget_turn(missing)
    await stage.core.admission.start([], run_id="run")
    with pytest.raises(SessionBusyError):
        await stage.core.forgetting.forget_turn(0)
    await stage.core.reads.wait("run")
    assert said(stage.engine.given[-1]) == ["one", "later"]
    assert (await stage.core.forgetting.forget_turn(0)).turns == 1


async def test_a_session_that_is_deleted_is_forgotten_by_all_memories() -> None:
    """Case 54."""

    facts, book = Book(), Book()
    stage = await MemoryStage.opened(facts, book)
    stage.working = WorkingMemory(InMemoryItems())
    stage.new_core()
    await stage.say("I keep bees")
    await stage.core.ingestion.wait_for_memory()
    access = stage.core.retrieval.memory_access()
    await access.merge_notes("bees")
    await access.save("Ada keeps bees", id="kept")
    book.held.clear()
    await stage.say("and goats")
    book.fails = OSError("away")
    book.held.set()
    with pytest.raises(LongTermMemoryError, match="memory 1: OSError: away"):
        await stage.core.forgetting.delete()
    assert await stage.store.get(SessionKey(SESSION, "ada"))
    book.fails = None
    report = await stage.core.forgetting.delete(verify=True)
    assert (report.sessions, report.notes) == (1, 1)
    assert report.items["memory 1"] >= 1 and not book.items
    assert not report.verified and report.erased["memory 1"].why
    with pytest.raises(SessionNotFoundError):
        await stage.store.get(SessionKey(SESSION, "ada"))
    assert not facts.items
    await asyncio.sleep(200)
    assert not book.items


async def test_a_session_may_be_deleted_and_remembered() -> None:
    book = Book()
    stage = await MemoryStage.opened(book)
    await stage.say("one")
    await stage.core.ingestion.wait_for_memory()
    assert (await stage.core.forgetting.delete(memory=False)).items == {} and book.turns == [0]


async def test_memories_that_fail_do_not_keep_others_from_forgetting() -> None:
    bad, good = Book(), Book()
    stage = await MemoryStage.opened(bad, good, Book(read_only=True))
    await stage.say("one")
    await stage.core.ingestion.wait_for_memory()
    bad.fails = OSError("away")
    with pytest.raises(LongTermMemoryError, match="memory 0: OSError: away"):
        await stage.core.forgetting.forget_turn(0)
    assert not good.items and bad.items
    bad.fails = None
    report = await stage.core.forgetting.forget_turn(0)
    assert report.items == {"memory 0": 1, "memory 1": 0}


async def test_a_turn_that_is_forgotten_while_it_is_read_for_saving_is_not_saved() -> None:
    stage = await MemoryStage.opened(Book())
    stage.memories[0].held.clear()
    for prompt in ("one", "two"):
        await stage.say(prompt)
    book = Book()
    stage.memories = (book,)
    stage.new_core()
    await stage.core.transactor.activate()
    stage.core.state.journal.blocks.cache = BlockCache()
    stage.store.blocks = later(stage.store.blocks, 5.0)
    await asyncio.sleep(1)
    spans = (Span((await stage.core.reads.session()).log, 0, 4),)
    stage.core.state.journal.blocks.cache.add_spans(spans, await InMemoryStore.blocks(stage.store, spans))
    report = await stage.core.forgetting.forget_turn(0)
    assert report.waiting == 1
    await stage.core.ingestion.wait_for_memory()
    assert book.turns == [1] and len(book.given) == 1


async def test_a_flush_of_a_turn_that_is_forgotten_meanwhile_leaves_nothing_of_it() -> None:
    book = Book()
    flush = FlushToMemory([book], max_ratio=0.2, trigger_ratio=0.3)
    stage = await MemoryStage.opened(overflow=flush, compaction_timeout_s=1000.0, **WINDOW)
    book.held.clear()
    for number in range(4):
        await stage.say(f"prompt {number:02} {'x' * 20}")
    await asyncio.sleep(1)
    assert book.given, "the save has begun"
    stage.memories = (book,)
    stage.core.use(stage.engine, stage.config, flush, stage.slots)
    forgetting = asyncio.create_task(stage.core.forgetting.forget_turn(0))
    await asyncio.sleep(10)
    book.held.set()
    await forgetting
    await asyncio.sleep(100)
    assert 0 not in book.turns and "prompt 00" not in book.said


@pytest.mark.parametrize("delay_s", [0.0, 1.0, 3.0, 6.0])
async def test_a_run_that_began_before_memories_had_forgotten_has_nothing_of_it_afterwards(delay_s: float) -> None:
    """The search of the memories ends before or after the forget returns."""

    book = Book()
    engine = Slow()
    stage = await MemoryStage.opened(book, engine=engine)
    await stage.say("secret tea")
    await stage.say("green tea")
    await stage.core.ingestion.wait_for_memory()
    recall, forget = book.recall, book.forget

    async def recalls(*args: Any, **settings: Any) -> Any:
        result = await recall(*args, **settings)
        await asyncio.sleep(delay_s)
        return result

    book.recall, book.forget = recalls, later(forget, 5.0)  # type: ignore[method-assign]
    forgetting = asyncio.create_task(stage.core.forgetting.forget_turn(0))
    await asyncio.sleep(0.5)
    await stage.core.admission.start(["what tea ?"], run_id="run")
    await forgetting
    engine.given.clear()
    outcome = await stage.core.reads.wait("run")
    assert outcome.run.state == "completed" and engine.given
    for request in engine.given:
        assert not any("secret" in getattr(block, "text", "") for block in request)
    assert any("green" in getattr(block, "text", "") for block in engine.given[-1] if isinstance(block, Recalled))


class Slow(Talker):
    """Calls its model twice, with a pause between the calls."""

    async def run(self, turn: Any, context: Any) -> Sequence[AnyBlock]:
        self.given.append(turn.blocks)
        await asyncio.sleep(10 if "what" in said(turn.blocks)[-1] else 0.1)
        self.given.append((await context.make_room()).blocks)
        return [Text(text="done")]


async def test_a_run_whose_start_is_being_stored_when_memories_have_forgotten_asks_them_again() -> None:
    book = Book()
    stage = await MemoryStage.opened(book)
    await stage.say("secret tea")
    await stage.core.ingestion.wait_for_memory()
    book.forget = later(book.forget, 5.0)  # type: ignore[method-assign]
    forgetting = asyncio.create_task(stage.core.forgetting.forget_turn(0))
    await asyncio.sleep(1)
    commit, stage.store.commit = stage.store.commit, later(stage.store.commit, 10.0)
    start = asyncio.create_task(stage.core.admission.start(["what tea ?"], run_id="run"))
    await forgetting
    stage.store.commit = commit
    await start
    await stage.core.reads.wait("run")
    assert not any("secret" in getattr(block, "text", "") for block in stage.engine.given[-1])


async def test_a_fork_of_an_earlier_turn_lacks_forgotten_blocks_and_their_summaries() -> None:
    stage = await MemoryStage.opened(
        Book(), overflow=summarize(Summarizer(), trigger_ratio=0.6), memory=MemoryConfig(recall=False), **WINDOW
    )
    for number in range(12):
        await stage.say(f"prompt {number:02} {'x' * 20}")
        await asyncio.sleep(1)
    for number in (0, 10):
        await stage.core.forgetting.forget_turn(number)
    held = (await stage.core.reads.turn(11)).blocks
    assert any(isinstance(block, Summary) for block in held)
    await stage.core.forking.fork(11, "fork")
    await stage.core.forking.fork(4, "early")
    await stage.core.forking.fork(10, "gone")
    for name, numbers in (
        ("fork", [*range(1, 10), 11]),
        ("early", list(range(1, 5))),
        ("gone", list(range(1, 10))),
    ):
        (turn,) = await stage.store.turns(SessionKey(name, "ada"))
        blocks = await stage.core.state.journal.blocks.read(turn.base)
        assert [int(text[7:9]) for text in prompts_of(blocks)] == numbers, name
        assert not any(isinstance(block, Summary) for block in blocks)
    (copied_turn,) = await stage.store.turns(SessionKey("fork", "ada"))
    assert copied_turn.spans == (await stage.store.turns(SessionKey(SESSION, "ada"), after=10, limit=1))[0].spans


async def test_forgetting_may_be_repeated_where_the_store_failed_at_any_of_its_steps() -> None:
    for verb, when in (("blocks", "before"), ("commit", "before"), ("commit", "after"), ("turns", "before")):
        stage = await MemoryStage.opened(Book(), store_retry_s=5.0)
        stage.memories[0].fails = OSError("away")
        for prompt in ("one", "two", "three"):
            await stage.say(prompt)
        book = Book()
        book.fails = OSError("away")
        stage.memories = (book,)
        stage.new_core()
        await stage.core.ingestion.wait_for_memory(0.5)
        stage.core.state.journal.blocks.cache = BlockCache()
        act = getattr(stage.store, verb)

        async def fails(*args: Any, act: Any = act, when: str = when, **settings: Any) -> Any:
            if when == "after":
                await act(*args, **settings)
            raise StoreError(when)

        setattr(stage.store, verb, fails)
        with pytest.raises(StoreError):
            await stage.core.forgetting.forget_turn(1)
        setattr(stage.store, verb, act)
        book.fails = None
        await stage.core.forgetting.forget_turn(1)
        assert await stage.core.ingestion.wait_for_memory()
        assert book.turns == [0, 2], (verb, when)
        await stage.say("four")
        assert prompts_of(stage.engine.given[-1]) == ["one", "three", "four"]


async def test_a_compaction_during_a_delete_saves_nothing_in_memories() -> None:
    book = Book()
    flush = FlushToMemory([book], max_ratio=0.2, trigger_ratio=0.3)
    stage = await MemoryStage.opened(book, overflow=flush, memory=MemoryConfig(save="none"), **WINDOW)
    for number in range(2):
        await stage.say(f"prompt {number:02} {'x' * 20}")
    book.forget = later(book.forget, 5.0)  # type: ignore[method-assign]
    await stage.core.compaction.stop()
    deleting = asyncio.create_task(stage.core.forgetting.delete())
    await asyncio.sleep(1)
    compacting = asyncio.create_task(stage.core.compaction.compact())
    await deleting
    with pytest.raises(SessionNotFoundError):
        await compacting
    await asyncio.sleep(10)
    assert not book.items and not book.given


async def test_a_delete_that_failed_leaves_a_session_that_saves_on() -> None:
    bad = Book()
    bad.fails = OSError("away")
    stage = await MemoryStage.opened(bad)
    await stage.say("one")
    await stage.say("two")
    with pytest.raises(LongTermMemoryError):
        await stage.core.forgetting.delete()
    assert not await stage.core.ownership.leave()
    bad.fails = None
    assert await stage.core.ingestion.wait_for_memory() and bad.turns == [0, 1]
    bad.forget = later(bad.forget, 5.0)  # type: ignore[method-assign]
    await stage.say("three", memory="off")
    await stage.say("four")
    bad.held.clear()
    deleting = asyncio.create_task(stage.core.forgetting.delete())
    await asyncio.sleep(1)
    bad.held.set()
    stage.core.use(stage.engine, stage.config, None, stage.slots)
    assert (await deleting).waiting == 1
    await asyncio.sleep(100)
    assert not bad.items


async def test_a_compaction_that_forgetting_stops_says_that_it_was_stopped() -> None:
    model = Summarizer(delay_s=50.0)
    stage = await MemoryStage.opened(Book(), overflow=summarize(model, trigger_ratio=0.6), **WINDOW)
    for number in range(8):
        await stage.say(f"prompt {number:02} {'x' * 20}", memory="off")
    await stage.core.compaction.stop()
    compacting = asyncio.create_task(stage.core.compaction.compact())
    await asyncio.sleep(1)
    await stage.core.forgetting.forget_turn(0)
    with pytest.raises(CompactionError, match="was stopped"):
        await compacting
    await asyncio.sleep(100)
    assert len(await stage.events_of(WindowCompacted)) == 1, "the next one began by itself"


async def test_nothing_is_given_to_memories_that_have_forgotten_a_session_which_is_being_deleted() -> None:
    book = Book()
    stage = await MemoryStage.opened(book)
    book.fails = OSError("away")
    await stage.say("one")
    await asyncio.sleep(0.5)
    book.fails = None
    stage.store.delete = later(stage.store.delete, 50.0)
    deleting = asyncio.create_task(stage.core.forgetting.delete())
    await asyncio.sleep(5)
    stage.core.use(stage.engine, stage.config, None, stage.slots)
    await deleting
    assert not book.items


async def test_notes_outlive_a_turn_that_is_forgotten() -> None:
    stage = await MemoryStage.opened(Book())
    stage.working = WorkingMemory(InMemoryItems())
    stage.new_core()
    await stage.say("one")
    await stage.core.retrieval.memory_access().merge_notes("bees")
    assert (await stage.core.forgetting.forget_turn(0)).notes == 0
    assert "bees" in await stage.core.retrieval.memory_access().read_notes()


async def test_a_memory_that_only_an_overflow_strategy_writes_forgets_too_and_so_do_all_where_memory_is_disabled() -> (
    None
):
    used, flushed = Book(), Book()
    flush = FlushToMemory([flushed], max_ratio=0.4, trigger_ratio=0.7)
    stage = await MemoryStage.opened(used, overflow=flush, **WINDOW)
    slots = [*stage.slots, MemorySlot(memory=flushed, name="flushed", section=None, is_used=False)]
    stage.core.use(stage.engine, stage.config, flush, slots)
    for number in range(12):
        await stage.say(f"prompt {number:02} {'x' * 20}")
        await asyncio.sleep(1)
    assert used.turns == list(range(12)) and 0 in flushed.turns and 11 not in flushed.turns
    assert not hasattr(flushed, "asked")
    assert (await stage.core.forgetting.forget_turn(0)).items == {"memory 0": 1, "flushed": 1}
    disabled = replace(stage.config, memory=MemoryConfig(enabled=False))
    notes = WorkingMemory(InMemoryItems())
    await notes.replace(
        Scope(user_id=stage.core.state.key.user_id, session_id=stage.core.state.key.session_id), "a note"
    )
    stage.core.use(stage.engine, disabled, flush, slots, notes)
    report = await stage.core.forgetting.delete()
    assert report.items == {"memory 0": 11, "flushed": len(flushed.gone) - 1} and report.notes == 1


def test_memories_of_a_strategy_are_known_once_and_are_not_used() -> None:
    first, second, last = (LexicalMemory(SQLItems(f"sqlite:///{name}.db")) for name in ("one", "other", "last"))
    static = StaticMemory(["It is so."])
    flush = FlushToMemory([second, first, static], otherwise=FlushToMemory([last]))
    _, slots = equip(flush, [first, static], SessionConfig(), RayRuntime("names").memory_process)
    assert [(slot.name, slot.is_used) for slot in slots] == [
        *(("LexicalMemory", True), ("StaticMemory", True)),
        *(("LexicalMemory-2", False), ("LexicalMemory-3", False)),
    ]
