"""Planner notes as items of memory: saved with their turn by `MemoryConfig.planner_notes`, of a type of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from memories.extraction_models import USER, Model, fact, texts, told
from memories.session_memories import Book, MemoryStage
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.memory.config import MemoryConfig
from turnwise.errors import ConfigError, StoreError
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.base import MemoryItem, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType

NOTES = MemoryConfig(planner_notes=True)


class Planner:
    """Notes its plan, and answers."""

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        prompt = turn.asked[-1].text  # type: ignore[union-attr]
        context.note(f"look up {prompt}")
        context.note(" ")
        context.note(f"look up {prompt}")
        await asyncio.sleep(0.01)
        context.note(f"answer about {prompt}")
        return [Text(text="Done.")]


async def opened(*memories: Any, config: MemoryConfig = NOTES) -> MemoryStage:
    return await MemoryStage.opened(*memories, engine=Planner(), agent="clerk", memory=config)


def count_reads(stage: MemoryStage) -> list[Any]:
    """Return a list that grows with each read of events from the store."""
    events, reads = stage.store.events, list[Any]()

    async def counting(*args: Any, **options: Any) -> Any:
        reads.append((args, options))
        return await events(*args, **options)

    stage.store.events = counting
    return reads


def notes_of(book: Book) -> list[tuple[int | None, str]]:
    notes = [item for item in book.items.values() if item.type is MemoryType.PLANNER_NOTE]
    return [(note.source.turn_index, note.text) for note in notes]


@pytest.mark.virtual_time
async def test_notes_are_items_of_their_turn_by_policy_and_cost_no_read_of_the_store() -> None:
    book = Book()
    stage = await opened(book)
    reads = count_reads(stage)
    for prompt, use in (("tea", "on"), ("figs", "off"), ("tea again", "on")):
        await stage.say(prompt, memory=use)
        assert await stage.core.ingestion.wait_for_memory()
    assert reads == []
    assert notes_of(book) == [
        (0, "look up tea"),
        (0, "look up tea"),
        (0, "answer about tea"),
        (2, "look up tea again"),
        (2, "look up tea again"),
        (2, "answer about tea again"),
    ]
    *_, last = [item for item in book.items.values() if item.type is MemoryType.PLANNER_NOTE]
    assert last.source == Source(session_id="session", turn_index=2) and last.created_at > 0
    assert last.type.category is MemoryCategory.EPISODIC and not last.blocks
    await stage.core.forgetting.forget_turn(0)
    assert notes_of(book)[0] == (2, "look up tea again"), "they go with their turn"


@pytest.mark.virtual_time
async def test_without_the_policy_no_note_is_saved() -> None:
    book = Book()
    stage = await opened(book, config=MemoryConfig())
    await stage.say("tea")
    assert await stage.core.ingestion.wait_for_memory()
    assert notes_of(book) == [] and book.turns == [0]


@pytest.mark.virtual_time
@pytest.mark.parametrize("leaves", [True, False])
async def test_another_process_saves_what_an_earlier_one_had_not(leaves: bool) -> None:
    """The earlier process left or was killed; after a kill the newest turn's notes are saved again, which changes
    nothing."""
    book = Book()
    stage = await opened(book)
    await stage.say("tea")
    assert await stage.core.ingestion.wait_for_memory()
    book.fails = StoreError("away")
    for number in range(2):
        await stage.say(f"figs {number}")
    if leaves:
        await stage.core.ownership.leave()
    book.fails = None
    stage.new_core()
    await stage.say("cake")
    assert await stage.core.ingestion.wait_for_memory()
    prompts = ["tea", "figs 0", "figs 1", "cake"]
    expected = [
        (index, text)
        for index, prompt in enumerate(prompts)
        for text in (f"look up {prompt}", f"look up {prompt}", f"answer about {prompt}")
    ]
    assert notes_of(book) == expected


@pytest.mark.parametrize("wrong", [None, "all", 1])
def test_the_policy_is_a_truth_value(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="planner_notes"):
        MemoryConfig(planner_notes=wrong)


def note(id: str, text: str) -> MemoryItem:
    return MemoryItem(id=id, text=text, type=MemoryType.PLANNER_NOTE, source=Source(session_id="s", turn_index=0))


async def test_a_note_is_no_fact_to_an_extraction() -> None:
    """It is kept as it is, shown to no model as a known fact, replaced by no user's words, and in no profile."""
    facts = InMemoryItems()
    model = Model(lambda _: [fact("I live in Rome.", type="planner_note"), fact("I live in Rome.")])
    memory = ExtractiveMemory(model, facts)
    await memory.remember(USER, [note("n", "Ada lives in Bonn, so look up Bonn.")])
    await memory.remember(USER, [told(1, "I live in Rome.")])
    (shown,) = model.calls
    assert not any("known" in line for line in shown)
    assert await texts(facts) == ["Ada lives in Bonn, so look up Bonn.", "I live in Rome."]
    recalled = await memory.recall(USER, "Bonn", types=[MemoryType.PLANNER_NOTE])
    assert [item.id for item in recalled] == ["n"]
    profile = (await memory.remind(USER, "")).profile
    assert [item.text for item in profile] == ["I live in Rome."]
    await memory.close()
