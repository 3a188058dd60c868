"""Names and limits of memories, URLs instead of stores, and strategies that use the manager's memories; without Ray."""

from __future__ import annotations

import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from turnwise.actors.cluster.runtime import RayRuntime
from turnwise.actors.hosting.identity import identity
from turnwise.actors.hosting.memory.remote_memory import RemoteMemory, equip
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.in_process.runtime import InProcessRuntime
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, StoreURLError
from turnwise.memory.longterm.base import MemoryItem, label_of
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.redis import RedisItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.recall.prompt_sections import RetrievalResult, make_sections
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.summarize import Summarize

CONFIG = SessionConfig()
PROCESS_OF = RayRuntime("test").memory_process


def memories(folder: Path, **label: Any) -> list[Any]:
    return [
        StaticMemory(["a rule"], **label),
        LexicalMemory(folder / "facts.db", **label),
        ExtractiveMemory(EchoEngine(), folder / "facts.db", **label),
        VectorMemory(folder / "said.db", embedding=None, **label),
    ]


def test_a_memorys_name_and_limit_travel_and_are_no_part_of_its_identity(tmp_path: Path) -> None:
    plain = memories(tmp_path)
    for memory, without in zip(memories(tmp_path, name="my memory", max_tokens=50), plain, strict=True):
        assert identity(memory) == identity(without)
        unpickled = pickle.loads(cloudpickle.dumps(memory))
        assert label_of(unpickled) == memory.label and (memory.label.name, memory.label.max_tokens) == ("my memory", 50)
    for wrong in ({"name": ""}, {"name": "a:b"}, {"name": "x" * 65}, {"max_tokens": 0}, {"max_tokens": True}):
        with pytest.raises(ConfigError):
            StaticMemory(["a rule"], **wrong)


@pytest.mark.parametrize("kind", [LexicalMemory, VectorMemory, SQLItems, WorkingMemory])
def test_a_subclass_of_a_memory_travels_as_itself(kind: type[Any], tmp_path: Path) -> None:
    """Otherwise what it changes, such as leaving secrets out, is lost in the memory's process."""
    subclass = type("Own", (kind,), {})
    memory = subclass(f"sqlite:///{tmp_path}/items.db")
    assert type(pickle.loads(cloudpickle.dumps(memory))).__name__ == "Own"


def test_slots_have_the_names_of_memories_and_refuse_the_same_twice(tmp_path: Path) -> None:
    handbook = StaticMemory(["a rule"], name="handbook", max_tokens=300)
    memories: list[Any] = [handbook, StaticMemory(["b"]), StaticMemory(["c"]), LexicalMemory(tmp_path / "facts.db")]
    _, slots = equip(None, memories, CONFIG, PROCESS_OF)
    assert [slot.name for slot in slots] == ["handbook", "StaticMemory", "StaticMemory-2", "LexicalMemory"]
    assert [(slot.section, slot.max_tokens) for slot in slots[:2]] == [("static", 300), ("static", None)]
    for twice in (
        [handbook, StaticMemory(["d"], name="handbook")],
        [StaticMemory(["a"]), StaticMemory(["b"], name="StaticMemory")],
    ):
        with pytest.raises(ConfigError, match="the name of two memories"):
            equip(None, twice, CONFIG, PROCESS_OF)


def test_a_memory_is_named_once_for_a_manager_and_its_strategy(tmp_path: Path) -> None:
    facts, handbook = LexicalMemory(tmp_path / "facts.db"), StaticMemory(["a rule"])
    flush, slots = equip(FlushToMemory(max_ratio=0.3), [facts, handbook], CONFIG, PROCESS_OF)
    assert isinstance(flush, FlushToMemory)
    assert flush.memories == (slots[0].memory, slots[1].memory) and len(slots) == 2
    nested, _ = equip(Summarize(EchoEngine(), otherwise=FlushToMemory()), [facts], CONFIG, PROCESS_OF)
    assert isinstance(nested, Summarize) and isinstance(nested.otherwise, FlushToMemory)
    assert nested.otherwise.memories and len(nested.otherwise.memories) == 1
    for without in ([], [handbook]):
        with pytest.raises(ConfigError, match=r"FlushToMemory\.memories"):
            equip(FlushToMemory(), without, CONFIG, PROCESS_OF)


def test_a_memory_that_does_not_pickle_is_also_one_memory_in_its_process() -> None:
    class Locked(LexicalMemory):
        def __reduce__(self) -> Any:
            raise TypeError("it has a lock")

    memory, process_of = Locked(InMemoryItems()), InProcessRuntime("test", InProcess()).memory_process
    flush, slots = equip(FlushToMemory([memory]), [memory, Locked(InMemoryItems())], CONFIG, process_of)
    assert isinstance(flush, FlushToMemory) and flush.memories and len(slots) == 2
    first, second = (slot.memory.process for slot in slots if isinstance(slot.memory, RemoteMemory))
    assert process_of(memory) is first is not second


def test_no_other_memory_gets_the_address_of_one_that_is_known_by_it() -> None:
    class Odd(LexicalMemory):
        def __reduce__(self) -> Any:
            raise TypeError("it has a lock")

        def __deepcopy__(self, memo: object) -> LexicalMemory:
            return LexicalMemory(InMemoryItems())

    memory = Odd(InMemoryItems())
    process, passed = InProcessRuntime("test", InProcess()).memory_process(memory), weakref.ref(memory)
    del memory
    gc.collect()
    assert process.id and passed() is not None


def test_stores_are_opened_by_path_and_by_url(tmp_path: Path) -> None:
    for place in ("facts.db", tmp_path / "facts.db", "sqlite:///facts.db", "postgresql://user@host/name"):
        assert isinstance(ExtractiveMemory(EchoEngine(), place).store, SQLItems)
    assert isinstance(ExtractiveMemory(EchoEngine(), "redis://host").store, RedisItems)
    assert isinstance(ExtractiveMemory(EchoEngine(), "memory://x").store, InMemoryItems)
    with pytest.raises(StoreURLError):
        LexicalMemory("mongodb://host")


def test_a_memorys_own_limit_leaves_room_to_the_others() -> None:
    def items(word: str) -> list[MemoryItem]:
        return [MemoryItem(id=f"{word}{number}", text=f"{word} {number}", score=0.9) for number in range(20)]

    results = [
        RetrievalResult(items=items("many"), section="vector", max_tokens=200),
        RetrievalResult(items=items("few")[:3]),
    ]
    sections = make_sections(results, now=0.0, counter=ByteCounter(), max_tokens=10_000)
    assert 1 <= len(sections.items[0]) < 6 and len(sections.items[1]) == 3
    assert sections.left_out[0]["token_budget"] == 20 - len(sections.items[0])
    (vector,) = make_sections(results[:1], now=0.0, counter=ByteCounter()).items
    assert len(vector) == len(sections.items[0])
