"""The profile of a user in every request, whatever the prompt says; on `SessionCore` alone, and on Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_recalling import Parrot, opened

from schedules import SESSION
from turnwise.actors.hosting.memory.memory_host import MemoryHost
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.memory.session_memory_access import SessionMemoryAccess
from turnwise.actors.session.core import SessionCore
from turnwise.errors import ConfigError, NoMemoryError, ReadOnlyMemoryError
from turnwise.memory.conversation.blocks import Block, Image, Recalled
from turnwise.memory.conversation.events import MemoryDegraded, MemoryRecalled
from turnwise.memory.longterm.base import MemoryItem, Reminder, Scope, Source, recalled
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.base import ItemStore
from turnwise.memory.longterm.items.changes import supersede
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.prompt_sections import make_profile
from turnwise.memory.longterm.retention.retention import Use
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.memory.values.ids import new_id
from windows.stage import Talker

ADA = Scope(user_id="ada", session_id=SESSION, agent="clerk")
_FACTS, _LIKES, _RULES, _SKILL = MemoryType.FACTS, MemoryType.PREFERENCES, MemoryType.INSTRUCTIONS, MemoryType.SKILL
WHO = [
    MemoryItem(id=f"w{index}", text=text, type=kind, created_at=1e9 + index)
    for index, (text, kind) in enumerate(
        [
            ("The user's name is Sarah.", _FACTS),
            ("Is allergic to peanuts.", _FACTS),
            ("Prefers bullet points.", _LIKES),
            ("Works as a nurse.", _FACTS),
            ("Always answer in German.", _RULES),
            ("Wants to run a marathon.", MemoryType.GOALS),
        ]
    )
]
PROMPTS = (
    *("Who am I?", "Suggest a snack", "Write a haiku.", "What's 2+2?", "hey", "Plan my week, please."),
    "Quick one before I forget: how do ships float? Thanks!",
)


class NoModel:
    """A model that is never asked here."""

    async def answer(self, request: Sequence[Block], **options: Any) -> str:
        raise AssertionError("nobody is to be asked")


def memory_of(facts: ItemStore, **settings: Any) -> ExtractiveMemory:
    return ExtractiveMemory(NoModel(), facts, **settings)


async def items_of(*items: MemoryItem, scope: Scope = ADA) -> InMemoryItems:
    facts = InMemoryItems()
    await facts.put(scope, items)
    return facts


ENGINES: dict[int, Talker] = {}
"""Of the sessions of this module."""


async def chat(*memories: Any, **settings: Any) -> SessionCore:
    """Open a session with these memories."""
    engine = Talker()
    core = await opened(engine, *memories, **settings)
    ENGINES[id(core)] = engine
    return core


async def request(core: SessionCore, *prompt: str | Block) -> Sequence[Block]:
    """Return the request of the engine for a prompt."""
    run_id = new_id()
    await core.admission.start(prompt, run_id=run_id)
    outcome = await core.reads.wait(run_id)
    assert outcome.run.state == "completed", outcome
    return ENGINES[id(core)].given[-1]


def section(blocks: Sequence[Block], name: str = "profile") -> str:
    """Return the text of a section of a request; empty if the request lacks the section."""
    text = "\n\n".join(block.text for block in blocks if isinstance(block, Recalled))
    _, _, rest = text.partition(f"<{name}_memory>")
    return rest.partition(f"</{name}_memory>")[0]


async def recall_event(core: SessionCore) -> MemoryRecalled:
    events, _, _ = await core.reads.events(limit=1000)
    *_, event = [event for event in events if isinstance(event, MemoryRecalled)]
    return event


async def test_who_the_user_is_stands_in_every_request_and_nobody_elses() -> None:
    facts = await items_of(*WHO)
    eve = Scope(user_id="eve", agent="clerk")
    await facts.put(eve, [MemoryItem(id="e", text="The user's name is Eve and she hates snacks.", type=_FACTS)])
    await facts.put(replace(ADA, agent="other"), [MemoryItem(id="o", text="Never say a snack.", type=_RULES)])
    outdated = [("old", {"superseded_at": 5.0}), ("past", {"expires_at": 5.0}), ("done", {"status": "resolved"})]
    await facts.put(ADA, [MemoryItem(id=name, text=f"{name} snack", **more) for name, more in outdated])  # type: ignore[arg-type]
    await facts.put(ADA, [MemoryItem(id="skill", text="Folds paper cranes.", type=_SKILL, created_at=1e9)])
    core = await chat(memory_of(facts))
    sections = set()
    for prompt in PROMPTS:
        blocks = await request(core, prompt)
        sections.add(section(blocks))
        assert all(item.text in section(blocks) for item in WHO), prompt
        assert section(blocks).count("\n- ") == len(WHO)
        (recalled,) = [block.text for block in blocks if isinstance(block, Recalled)]
        assert not any(word in recalled for word in ("Eve", "snack", "cranes")), prompt
        assert all(recalled.count(item.text) == 1 for item in WHO)
        assert (await recall_event(core)).profile == {"memory 0": len(WHO)}
    assert len(sections) == 1  # so providers' caches of it stay good
    # whatever is in no words
    assert WHO[0].text in section(await request(core, Image(url="https://example.org/a.png")))


async def test_items_that_do_not_fit_into_the_profile_are_reported_and_may_be_recalled() -> None:
    crates = [
        MemoryItem(id=f"c{index}", text=f"Crate {index} holds pears{index}.", type=_FACTS, created_at=2e9 + index)
        for index in range(30)
    ]
    pinned = MemoryItem(id="p", text="Lives by the sea.", type=_SKILL, created_at=1.0, pinned=True)
    facts = await items_of(*crates, pinned)
    core = await chat(memory_of(facts), token_counter=ByteCounter(), memory=MemoryConfig(profile_tokens=600))
    blocks = await request(core, "Which crate holds pears3?")
    event = await recall_event(core)
    sent = event.profile["memory 0"]
    assert 1 < sent < 12 and event.profile_left_out == {"memory 0": {"token_budget": 31 - sent}}
    # what is pinned, then the newest; in the order of time
    ids = [30 - index for index in range(sent - 1, 0, -1)]
    texts = [f"Crate {index} holds pears{index}." for index in ids]
    lines = section(blocks).strip().split("\n")
    assert [line.partition(") ")[2].strip('"') for line in lines] == [pinned.text, *texts]
    assert len(f"<profile_memory>{section(blocks)}</profile_memory>".encode()) <= 600
    assert "Crate 3 holds" in section(blocks, "semantic") and "Crate 3 holds" not in section(blocks)
    assert not any(text in section(blocks, "semantic") for text in texts)


async def test_a_profile_and_what_is_recalled_share_the_windows_room() -> None:
    crates = (MemoryItem(id=str(index), text=f"Owns crate{index} {'x' * 100}.", type=_FACTS) for index in range(9))
    facts = await items_of(*crates)
    window = {"max_context_tokens": 1300, "reserve_output_tokens": 100, "token_counter": ByteCounter()}
    core = await chat(memory_of(facts), **window)
    blocks = await request(core, "Say hi about crate1 and crate2.")
    texts = [block.text for block in blocks if isinstance(block, Recalled)]
    sections = "\n\n".join(text[text.index("<") :] for text in texts)
    assert 0 < len(sections.encode()) <= 1200 // 2


async def test_a_memory_with_profiles_is_asked_once_for_a_run() -> None:
    class Counted(InMemoryItems):
        reads = 0

        async def query(self, *args: Any, **options: Any) -> Any:
            self.reads += 1
            return await super().query(*args, **options)

    facts = Counted()
    await facts.put(ADA, WHO)
    memory, parrot = memory_of(facts), Parrot()
    calls: list[str] = []
    whole = memory.remind

    async def counted(*args: Any, **options: Any) -> Reminder:
        calls.append(args[1])
        return await whole(*args, **options)

    memory.remind = counted  # type: ignore[method-assign]
    core = await chat(memory, parrot)
    await request(core, "Suggest a snack")
    assert (calls, facts.reads, len(parrot.queries)) == (["Suggest a snack"], 1, 1)
    core = await chat(memory, memory=MemoryConfig(profile_tokens=0))
    assert section(await request(core, "Suggest a snack")) == "" and len(calls) == 2
    core = await chat(memory, memory=MemoryConfig(recall=False))
    assert section(await request(core, "Suggest a snack")) == "" and len(calls) == 2


async def test_what_is_forgotten_or_contradicted_is_in_no_later_request() -> None:
    facts = await items_of(*WHO)
    memory = memory_of(facts)
    core = await chat(memory)
    assert "nurse" in section(await request(core, "hey"))
    await memory.forget(ADA, ["w3"])
    assert "nurse" not in section(await request(core, "hey"))
    await supersede(facts, ADA, "w0", MemoryItem(id="new", text="The user's name is Sally.", created_at=2e9))
    profile_text = section(await request(core, "hey"))
    assert "Sally" in profile_text and "Sarah" not in profile_text


async def test_what_a_hidden_version_says_of_the_user_is_in_no_request_until_it_is_shown() -> None:
    facts = InMemoryItems()
    core = await chat(memory_of(facts))
    await request(core, "I like crime novels.")
    likes = MemoryItem(id="c", text="Likes crime novels.", type=_LIKES, source=Source(session_id=SESSION, turn_index=0))
    await facts.put(ADA, [likes])
    started = await core.admission.rerun(["I like poems."], 0, run_id="edit")
    await core.reads.wait(started.run_id)
    assert "crime" not in section(await request(core, "hey"))
    await core.versions.choose(0, "shown again")
    assert "crime" in section(await request(core, "hey"))


class WordsOnly(LexicalMemory):
    """Says at each recall that it has no vectors."""

    async def remind(self, *request: Any, **options: Any) -> Reminder:
        return Reminder(profile=[], items=recalled([MemoryItem(id="1", text="Ada sails.")], "no vectors"))


async def test_a_memory_in_trouble_is_told_of_also_where_a_turn_has_versions() -> None:
    core = await chat(WordsOnly(InMemoryItems()))
    await request(core, "one")
    started = await core.admission.rerun(["two"], 0, run_id="edit")
    await core.reads.wait(started.run_id)
    assert core.state.journal.session.branches
    events, _, _ = await core.reads.events(limit=1000)
    assert [event.run_id for event in events if isinstance(event, MemoryDegraded)][-1] == "edit"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_pin_holds_in_every_process_and_for_the_fact_that_replaces_it(kind: str, tmp_path: Path) -> None:
    shared = InMemoryItems()
    make: Callable[[], ItemStore] = (
        (lambda: shared) if kind == "memory" else partial(SQLItems, f"sqlite:///{tmp_path}/f.db")
    )
    memory, later = memory_of(make()), memory_of(make())
    await memory.remember(ADA, [MemoryItem(id="s", text="Folds cranes.", type=_SKILL, source=Source())])
    assert (await later.remind(ADA, "")).profile == []
    assert await memory.pin(ADA, "s", True) and not await memory.pin(Scope(user_id="eve"), "s", True)
    (item,) = (await later.remind(ADA, "")).profile
    assert item.id == "s" and item.pinned
    assert await later.pin(ADA, "s", False)
    assert (await memory.remind(ADA, "")).profile == []
    # a memory without a model has what is pinned
    plain = LexicalMemory(make())
    await plain.pin(ADA, "s", True)
    assert [item.id for item in (await plain.remind(ADA, "")).profile] == ["s"]
    await memory.close()
    await later.close()
    await plain.close()


async def test_programs_pin_and_what_cannot_be_pinned_is_said() -> None:
    memory = memory_of(await items_of(*WHO))
    slots = (await chat(Parrot(), memory)).engines.current.memories
    access = SessionMemoryAccess(ADA, slots, None)
    assert await access.pin("w1", True) and not await access.pin("nothing", True)
    assert (await memory.remind(ADA, "")).profile[0].id == "w1"
    with pytest.raises(ReadOnlyMemoryError):
        await SessionMemoryAccess(ADA, slots, None, is_reading=True).pin("w1", True)
    with pytest.raises(NoMemoryError, match="profiles"):
        await SessionMemoryAccess(ADA, slots[:1], None).pin("w1", True)
    host = MemoryHost(lambda: memory)
    assert (await host.do_remind(ADA, "")).profile[0].id == "w1"
    assert await host.do_pin(ADA, "w1", False)


def test_settings_of_the_profile_are_checked() -> None:
    for wrong in (-1, 0.5, True, None):
        with pytest.raises(ConfigError, match="profile_tokens"):
            MemoryConfig(profile_tokens=wrong)  # type: ignore[arg-type]
    for types in ("facts", ["no type"], None, 5):
        with pytest.raises(ConfigError, match=r"ExtractiveMemory\.profile"):
            memory_of(InMemoryItems(), profile=types)


def test_of_two_memories_with_the_same_fact_one_has_it_in_the_profile() -> None:
    profile = make_profile({"a": WHO[:2], "b": WHO[1:3]}, counter=ByteCounter(), max_tokens=10_000)
    assert {name: len(items) for name, items in profile.items.items()} == {"a": 2, "b": 1}
    assert profile.left_out == {"b": {"duplicate": 1}}
    assert make_profile({"a": WHO}, counter=ByteCounter(), max_tokens=10).text == ""


def test_no_memory_keeps_the_profile_of_another_out() -> None:
    long = [replace(item, id=f"{n} {item.id}", text=f"{n} {item.text}") for n in range(9) for item in WHO]
    pinned = replace(WHO[3], pinned=True)
    profile = make_profile({"a": long, "b": [WHO[4], pinned]}, counter=ByteCounter(), max_tokens=400)
    assert [item.id for item in profile.items["b"]] == ["w3", "w4"] and 1 < len(profile.items["a"]) < 9
    assert profile.left_out == {"a": {"token_budget": len(long) - len(profile.items["a"])}}


async def test_a_memory_of_what_was_said_has_what_is_pinned_in_the_profile(tmp_path: Path) -> None:
    def make() -> VectorMemory:
        return VectorMemory(tmp_path / "said.db", embedding=None)

    memory, eve = make(), Scope(user_id="eve", agent="clerk")
    statements = [MemoryItem(id=name, text=f"user: The {name} is mine.", created_at=1e9) for name in ("boat", "kite")]
    skill = MemoryItem(id="skill", text="Fold paper.", type=_SKILL)
    await memory.remember(ADA, [*statements, skill])
    await memory.remember(eve, statements)
    for name in ("boat", "skill"):
        assert await memory.pin(ADA, name, True)
    assert not await memory.pin(ADA, "none", True) and not await memory.pin(replace(ADA, agent="b"), "skill", True)
    core = await chat(memory)
    blocks = await request(core, "Suggest a snack")
    assert "The boat is mine" in section(blocks) and "Fold paper" in section(blocks) and "kite" not in section(blocks)
    blocks = await request(core, "Whose are the boat and the kite?")
    recalled = "".join(block.text for block in blocks if isinstance(block, Recalled))
    assert recalled.count("The boat") == recalled.count("The kite") == 1 and "The boat" in section(blocks)
    assert (await recall_event(core)).profile == {"memory 0": 2}
    assert (await memory.remind(eve, "")).profile == []
    assert [item.id for item in (await memory.remind(replace(ADA, agent="b"), "")).profile] == ["boat"]
    # in another process, also one that has read them before
    later = make()
    host = MemoryHost(lambda: later)
    answers = await asyncio.gather(
        host.do_remind(ADA, "kite", limit=5), host.do_recall(ADA, "kite"), host.do_recall(eve, "boat")
    )
    assert {item.id for item in answers[0].profile} == {"boat", "skill"}
    assert [items[0].id for items in (answers[0].items, *answers[1:])] == ["kite", "kite", "boat"]
    assert await memory.pin(ADA, "boat", False) and await host.do_pin(ADA, "skill", False)
    for profiled_memory in (memory, later):
        assert (await profiled_memory.remind(ADA, "")).profile == []
    await host.close()
    await memory.close()


async def test_of_a_long_profile_the_most_used_and_the_newest_come_first_by_turns(tmp_path: Path) -> None:
    def make() -> ExtractiveMemory:
        return memory_of(SQLItems(f"sqlite:///{tmp_path}/f.db"))

    memory = make()
    crates = [
        MemoryItem(id=f"c{index:02}", text=f"Crate {index} holds pears{index}.", type=_FACTS, created_at=1e9 + index)
        for index in range(30)
    ]
    await memory.remember(ADA, crates)
    newest = [item.id for item in reversed(crates)]
    assert [item.id for item in (await memory.remind(ADA, "hey")).profile] == newest
    for query in ("pears3", "pears3 and pears4", "Where is a boat?"):
        await memory.remind(ADA, query)
        await memory.close()  # which stores what was used
        memory = make()
    await memory.pin(ADA, "c07", True)
    await memory.close()
    later = make()
    profile = (await later.remind(ADA, "")).profile
    assert [item.id for item in profile[:6]] == ["c07", "c03", "c29", "c04", "c28", "c27"]
    assert {item.id: item.uses for item in profile if item.uses} == {"c03": 2, "c04": 1}
    await later.close()


async def test_nothing_is_written_for_a_profile_that_fits() -> None:
    class Untouched(InMemoryItems):
        async def touch(self, uses: Sequence[Use]) -> None:
            assert not uses

    items = Untouched()
    await items.put(ADA, [*await (await items_of(*WHO)).query(ADA)])
    memory = memory_of(items)
    assert (await memory.remind(ADA, "Who is allergic to peanuts?")).items
    await memory.close()
