"""A long conversation that is recalled and extracted from, by a model that takes each shown sentence for a fact."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from memories.extraction_models import all_stated
from scale import share
from schedules import SESSION
from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.blocks import AnyBlock, Block, Recalled, Text, User
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.extraction.prompt import SCHEMA
from turnwise.memory.longterm.items.base import all_stored
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.stores.in_memory import InMemoryStore

TURNS = share(1000, 10)
NEW = 10
"""Each so manieth turn says something new."""


class Echo:
    """Answers with all items that were recalled for the prompt, word for word, as sections and as plain sentences."""

    def __init__(self) -> None:
        self.last = ""
        self.recalling = 0

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        recalled = [block.text for block in turn.blocks if isinstance(block, Recalled)]
        self.recalling += bool(recalled)
        self.last = "\n".join(recalled)
        return [Text(text=f"You told me:\n{self.last}\n{plain(self.last)}\nDo you agree that it is so?")]


def plain(recalled: str) -> str:
    """Return recalled items as sentences that do not show their source."""
    lines = (line.partition(") ")[2] for line in recalled.splitlines() if line.startswith("- ["))
    return "\n".join(json.loads(line) for line in lines)


class Greedy:
    """A model that takes each sentence that it is shown for a new fact, whoever says it, and quotes it as evidence.

    Asked which claims are stated, it says: all.
    """

    def __init__(self) -> None:
        self.calls = 0

    async def answer(self, request: Sequence[Block], *, schema: Mapping[str, Any] | None = None) -> str:
        self.calls += 1
        (shown,) = (block.text for block in request if isinstance(block, User))
        if verdicts := all_stated(shown):
            return verdicts
        assert schema == SCHEMA
        rows = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
        texts = [row.get("user") or row.get("assistant") or row["text"] for row in rows if "day" not in row]
        sentences = [sentence.strip() for text in texts for sentence in text.splitlines() if len(sentence) > 8]
        sentences += re.findall(r"My [^.\"\\]+\.", shown)
        facts = [
            {"text": text[:300], "type": "facts", "topic": None, "evidence": text, "action": "add", "of": []}
            for text in dict.fromkeys(sentences)
        ]
        return json.dumps({"facts": facts})


def prompt(number: int, recalled: str) -> str:
    """Return a prompt: a new fact, a question, or the recalled items in their sections."""
    if number % NEW == 0:
        return f"My crate {word(number)} holds {word(number + 7)}."
    if number % NEW in (3, 6) and recalled:
        return f"{recalled}\n\nWhat is in my crate {word(number - number % NEW)}?"
    return f"What is in my crate {word(number - number % NEW)}, and why?"


def word(number: int) -> str:
    """Return a word of its own for each number."""
    return "".join("bdfgklmnprstvwz"[(number // 15**index) % 15] + "aeiou"[index % 5] for index in range(4))


@pytest.mark.by_turns
@pytest.mark.timeout(400)
async def test_of_many_turns_facts_come_from_what_the_user_said_alone(tmp_path: Path) -> None:
    """Case 58: the count of facts is exact, and the model is asked once for a turn, twice if it has claims."""

    model, engine, facts = Greedy(), Echo(), SQLItems(f"sqlite:///{tmp_path}/facts.db")
    memory = ExtractiveMemory(model, facts)
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION, user_id="ada"))
    static = StaticMemory(["My lighthouse burns lavender oil.", "My anchor is made of bronze."])
    slots = [
        MemorySlot(memory=static, name="static", section="static"),
        MemorySlot(memory=memory, name="facts", section=None),
    ]
    config = SessionConfig(memory=MemoryConfig(timeout_s=60.0))
    core = SessionCore(SessionKey(SESSION, "ada"), store, engine, config, memories=slots)
    for number in range(TURNS):
        await core.admission.start([prompt(number, engine.last)], run_id=f"run {number}")
        outcome = await core.reads.wait(f"run {number}")
        assert outcome.turn and outcome.turn.status == "completed"
        if number % NEW == 0:
            assert await core.ingestion.wait_for_memory()
    assert await core.ingestion.wait_for_memory()
    held = [fact.item async for fact in all_stored(facts, "ada")]
    valid = [item for item in held if item.superseded_at is None]
    assert sorted(item.text for item in valid) == sorted(prompt(number, "") for number in range(0, TURNS, NEW))
    assert [item.source.turn_index for item in valid] == list(range(0, TURNS, NEW))
    assert engine.recalling == TURNS and "crate" in engine.last and "lavender" in engine.last
    await memory.close()
    checks = memory.stats["checks"]
    assert checks >= TURNS / NEW and model.calls <= TURNS + checks and memory.stats["calls"] == model.calls
    assert memory.stats["added"] == TURNS / NEW
    (events, _, _) = await core.reads.events(limit=100_000)
    assert not [event for event in events if event.kind in ("memory_failed", "memory_behind", "turn_not_saved")]
