"""`StaticMemory`: read-only facts for all users from a list, a file or a store."""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from turnwise.conformance import check_read_only_memory
from turnwise.errors import ConfigError, InvalidMemoryError, LongTermMemoryError, ReadOnlyMemoryError
from turnwise.memory.longterm.base import MemoryItem, Scope, is_read_only
from turnwise.memory.longterm.conformance import READ_ONLY_ITEMS
from turnwise.memory.longterm.items.changes import update
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.ranking import Weights
from turnwise.memory.longterm.static import EVERYONE, StaticMemory, read_facts
from turnwise.memory.stores.conformance.fixtures import IDS

SARAH = Scope(user_id="sarah", session_id="s", agent="hr")

POLICY = [
    "Employees get 25 days of paid vacation a year.",
    "Sick leave needs a doctor's note from the third day on.",
    "Travel is booked through the travel desk.",
    "Parental leave is 16 weeks for each parent.",
    "Expenses are paid back within 30 days.",
]


def recall(memory: StaticMemory, query: str, scope: Scope = SARAH, **options: Any) -> list[str]:
    return [item.text for item in asyncio.run(memory.recall(scope, query, **options))]


def test_all_users_recall_the_facts_and_none_can_write() -> None:
    """Case 49."""
    memory = StaticMemory(POLICY)
    assert is_read_only(memory)
    for scope in [SARAH, *(Scope(user_id=name) for name in IDS)]:
        assert recall(memory, "How many vacation days do I get?", scope)[0] == POLICY[0]
        assert sorted(recall(memory, "hello", scope)) == sorted(POLICY)
        for verb, call in {
            "remember": memory.remember(scope, [MemoryItem(id="x", text="x")]),
            "update": memory.update(scope, "1", "x"),
            "forget": memory.forget(scope, ["1"]),
        }.items():
            with pytest.raises(
                ReadOnlyMemoryError, match=rf"^StaticMemory\(<5 facts>\) is read-only and refuses {verb}"
            ):
                asyncio.run(call)
    assert issubclass(ReadOnlyMemoryError, LongTermMemoryError)
    assert sorted(recall(memory, "hello")) == sorted(POLICY)
    asyncio.run(memory.close())


def test_of_many_facts_only_relevant_ones_are_recalled() -> None:
    memory = StaticMemory(POLICY, all_up_to=0)
    assert recall(memory, "How much vacation do I get?") == [POLICY[0]]
    assert recall(memory, "How many vacation days do I get?")[0] == POLICY[0]
    assert recall(memory, "I am ill: do I need a note from a doctor?") == [POLICY[1]]
    assert recall(memory, "who books my TRAVELS") == [POLICY[2]]
    assert recall(memory, "What is leave?") == [POLICY[1], POLICY[3]]
    assert recall(memory, "What is leave?", limit=1) == [POLICY[1]]
    for nothing in ("Which quark has charm?", "what is the", "", "?", "🦀"):
        assert recall(memory, nothing) == []
    for text in POLICY:
        assert recall(memory, text)[0] == text
    scores = [item.score for item in asyncio.run(memory.recall(SARAH, POLICY[0]))]
    assert 0.5 < (scores[0] or 0) < 1 and scores == sorted(scores, key=lambda score: -(score or 0))


def test_a_few_facts_are_all_recalled_the_best_first() -> None:
    memory = StaticMemory(POLICY, all_up_to=5)
    assert recall(memory, "travel") == [POLICY[2], POLICY[0], POLICY[1], POLICY[3], POLICY[4]]
    assert recall(memory, "travel", limit=2) == [POLICY[2], POLICY[0]]
    assert recall(StaticMemory(POLICY, all_up_to=4), "travel") == [POLICY[2]]
    assert recall(memory, "travel", limit=0) == []


def test_types_and_times_filter_first() -> None:
    items = [
        MemoryItem(id="1", text="Answer in English.", type=MemoryType.INSTRUCTIONS),
        MemoryItem(id="2", text="The office is in Oslo.", created_at=10.0, superseded_at=20.0, superseded_by="3"),
        MemoryItem(id="3", text="The office is in Bergen.", created_at=20.0),
    ]
    memory = StaticMemory(items)
    assert recall(memory, "office") == ["The office is in Bergen.", "Answer in English."]
    assert recall(memory, "office", types=[MemoryType.INSTRUCTIONS], limit=1) == ["Answer in English."]
    assert recall(memory, "office", as_of=15.0, limit=1) == ["The office is in Oslo."]
    assert recall(memory, "office", as_of=5.0) == ["Answer in English."]


def test_facts_of_a_store_are_read_at_each_recall(tmp_path: Path) -> None:
    facts = SQLItems(f"sqlite:///{tmp_path}/facts.db")
    memory = StaticMemory(facts, all_up_to=0)
    unpickled = pickle.loads(pickle.dumps(memory))

    async def use() -> list[list[str]]:
        await facts.put(Scope(user_id="everyone"), [MemoryItem(id="1", text=POLICY[0], created_at=1.0)])
        await facts.put(SARAH, [MemoryItem(id="2", text="Sarah's vacation is in May.")])
        answers = [[item.text for item in await memory.recall(SARAH, "vacation")]]
        await update(facts, Scope(user_id="everyone"), "1", "Vacation is 30 days.", at=2.0)
        answers += [[item.text for item in await handle.recall(SARAH, "vacation")] for handle in (memory, unpickled)]
        await asyncio.gather(memory.close(), unpickled.close())
        return answers

    assert asyncio.run(use()) == [[POLICY[0]], ["Vacation is 30 days."], ["Vacation is 30 days."]]
    assert repr(memory) == f"StaticMemory(SQLItems('sqlite:///{tmp_path}/facts.db'))"
    assert recall(StaticMemory(InMemoryItems()), "vacation") == []


def test_it_pickles_as_its_settings() -> None:
    memory = pickle.loads(pickle.dumps(StaticMemory(POLICY, all_up_to=1, weights=Weights(tail=0.5))))
    assert recall(memory, "travel desk") == [POLICY[2]]
    assert is_read_only(memory) and repr(memory) == "StaticMemory(<5 facts>)"


def test_invalid_facts_are_refused() -> None:
    for wrong in ([""], ["a", " \n"], ["\ud800"], [MemoryItem(id="", text="x")], [5]):
        with pytest.raises(InvalidMemoryError, match="cannot be saved"):
            StaticMemory(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'1': is the id of two facts"):
        StaticMemory(["a", MemoryItem(id="1", text="b")])
    with pytest.raises(ConfigError, match="is one text: pass a list of facts"):
        StaticMemory("Travel is booked.")
    with pytest.raises(ConfigError, match=r"cannot be iterated over: .* from_file\(\)"):
        StaticMemory(Path("policy.md"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"from_file=.*cannot be read"):
        StaticMemory.from_file(None)  # type: ignore[arg-type]
    for setting, value in {"all_up_to": -1}.items():
        with pytest.raises(ConfigError, match=f"StaticMemory.{setting}={value}"):
            StaticMemory(POLICY, **{setting: value})  # type: ignore[arg-type]


MARKDOWN = """\
The handbook, in force
since January.

# Leave #

- Vacation: 25 days.
  Unused days go on
  to the next year.
* Sick leave: paid.

1. Ask your lead.
2) Book it.

---
## Travel
By train, where one goes.

Never first class.
"""


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a\nb\n", [(None, "a"), (None, "b")]),
        ("\n\na\nb", [(None, "a"), (None, "b")]),
        ("a\nb\n\nc\r\nd\n", [(None, "a b"), (None, "c d")]),
        ("- a\n- b\nc\n", [(None, "a"), (None, "b c")]),
        ("-5 degrees\n#1 rule\n", [(None, "-5 degrees"), (None, "#1 rule")]),
        ("", []),
        ("# only a title\n\n---\n", []),
        (
            MARKDOWN,
            [
                (None, "The handbook, in force since January."),
                ("Leave", "Vacation: 25 days. Unused days go on to the next year."),
                ("Leave", "Sick leave: paid."),
                ("Leave", "Ask your lead."),
                ("Leave", "Book it."),
                ("Travel", "By train, where one goes."),
                ("Travel", "Never first class."),
            ],
        ),
    ],
)
def test_a_file_has_a_fact_for_each_bullet_paragraph_or_line(text: str, facts: list[tuple[str | None, str]]) -> None:
    assert read_facts(text) == facts


def test_a_file_is_read_when_the_memory_is_made(tmp_path: Path) -> None:
    path = tmp_path / "policy.md"
    path.write_text(MARKDOWN, encoding="utf-8-sig")
    memory = StaticMemory.from_file(path, type=MemoryType.INSTRUCTIONS, topic="handbook")
    path.unlink()
    recalled = asyncio.run(memory.recall(SARAH, "in force"))
    assert {(item.type, item.topic) for item in recalled} == {
        (MemoryType.INSTRUCTIONS, topic) for topic in ("handbook", "Leave", "Travel")
    }
    with pytest.raises(ConfigError, match=r"policy.md'.*cannot be read: "):
        StaticMemory.from_file(path)
    path.write_text(" \n", encoding="utf-8")
    with pytest.raises(ConfigError, match="contains no facts"):
        StaticMemory.from_file(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        StaticMemory.from_file(path)


@pytest.mark.parametrize("kind", ["items", "sqlite", "memory"])
async def test_it_obeys_the_laws_of_read_only_memories(kind: str, tmp_path: Path) -> None:
    """Case 49."""

    if kind == "items":
        return await check_read_only_memory(StaticMemory)
    facts = InMemoryItems() if kind == "memory" else SQLItems(f"sqlite:///{tmp_path}/facts.db")
    await facts.put(Scope(user_id=EVERYONE), READ_ONLY_ITEMS)
    return await check_read_only_memory(lambda _: StaticMemory(facts))


def test_a_writable_memory_breaks_a_law_of_read_only_memories() -> None:
    class Lax(StaticMemory):
        async def update(self, *args: Any, **changes: Any) -> Any:
            return True

    with pytest.raises(AssertionError, match="update: found True, expected ReadOnlyMemoryError"):
        asyncio.run(check_read_only_memory(Lax))
