"""Forgetting a subject in all memories and notes of a session; with real memories, and without Ray."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_tool_loop import Scripted, use

from memories.extraction_models import Model, fact
from memories.session_memories import Book, MemoryStage
from stored.open_stores import closing
from turnwise.actors.inference.tools.memory_tools import memory_tools
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.memory.about import SessionMemories
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.session_memory_access import SessionMemoryAccess
from turnwise.errors import InvalidInputError, NoMemoryError, NotForgottenError, ReadOnlyMemoryError, StoreError
from turnwise.memory.conversation.blocks import AnyBlock, Text, User
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.base import ItemFilter
from turnwise.memory.longterm.items.changes import supersede
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.retention.about import About, Mention
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.longterm.turn_items import TurnBlocks, turn_item
from turnwise.memory.longterm.vector import SPACE, VectorMemory
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.testing.embedding import HashEmbedding

ADA = Scope(user_id="ada", session_id="s")
VOLVO = "user: I drive a Volvo, and I live in Bern.\nassistant: Noted."
FIGS = "user: I like figs.\nassistant: Noted."
CAR = "The user's car is a Volvo."
OF_TURN_0 = Source(session_id="s", turn_index=0)
"""Of what a tool saves during turn 0."""
EVERYTHING = ItemFilter(superseded=True)


def turn_of(number: int, text: str, *, session: str = "s", at: float = 0.0) -> MemoryItem:
    """Return the item that a session saves of a turn with this prompt."""
    blocks = (User(text=text), Text(text="Noted."))
    spans = (Span(f"log-{session}", 2 * number, 2 * number + 2),)
    item = turn_item(session, TurnBlocks(number, spans, at or 1000.0 + number), spans, blocks)
    assert item is not None
    return item


def facts_in(lines: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Play a model: the prompt about a Volvo and Bern has two facts, each other prompt is one."""
    facts: list[dict[str, Any]] = []
    for prompt in [line["user"] for line in lines if "user" in line]:
        if "Volvo" in prompt and "Bern" in prompt:
            facts.append(fact("The user drives a Volvo.", "I drive a Volvo", topic="car"))
            facts.append(fact("The user lives in Bern.", "I live in Bern", topic="home"))
        else:
            facts.append(fact(prompt.replace("I ", "The user ", 1).replace("like", "likes"), prompt))
    return facts


class Memories:
    """A user's memories in files of a folder: of turns, of facts, of what programs save; and notes."""

    def __init__(self, folder: Path, model: Any = None) -> None:
        urls = {name: f"sqlite:///{folder}/{name}.db" for name in ("said", "facts", "saved")}
        self.stores = {name: SQLItems(url, space=SPACE if name == "said" else name) for name, url in urls.items()}
        self.said = VectorMemory(self.stores["said"], embedding=HashEmbedding(), keep_s=0.0)
        self.facts = ExtractiveMemory(model or Model(facts_in), self.stores["facts"])
        self.saved = LexicalMemory(self.stores["saved"])
        self.notes = WorkingMemory(folder / "notes.db")
        self.all: dict[str, Any] = {"said": self.said, "facts": self.facts, "saved": self.saved}

    def access(self, scope: Scope = ADA, **more: Any) -> SessionMemoryAccess:
        handbook: dict[str, Any] = {"handbook": StaticMemory(["Who drives a Volvo parks in front."])}
        slots = [MemorySlot(memory=memory, name=name, section=None) for name, memory in (handbook | self.all).items()]
        return SessionMemoryAccess(scope, slots, self.notes, **more)

    async def give(self, *items: MemoryItem, scope: Scope = ADA) -> None:
        for memory in (self.said, self.facts):
            await memory.remember(scope, items)

    async def texts(self, scope: Scope = ADA) -> dict[str, list[str]]:
        """Return all that is kept of a user, superseded items included."""
        pages = {name: await store.query(scope, EVERYTHING, limit=1000) for name, store in self.stores.items()}
        texts = {name: [item.text for item in page if item.text[:1].isalpha()] for name, page in pages.items()}
        return {**texts, "notes": [await self.notes.read(scope)]}


@asynccontextmanager
async def opened(folder: Path, model: Any = None) -> AsyncIterator[Memories]:
    memories = Memories(folder, model)
    async with closing(memories.said), closing(memories.facts), closing(memories.saved), closing(memories.notes):
        yield memories


def shown(mentions: Sequence[Mention]) -> list[tuple[str, str, str]]:
    return [(mention.memory, mention.text, mention.why) for mention in mentions]


async def with_a_volvo(memories: Memories) -> SessionMemoryAccess:
    """Give memories two turns, a pinned item and notes; return access to them."""
    await memories.give(turn_of(0, "I drive a Volvo, and I live in Bern."), turn_of(1, "I like figs."))
    access = memories.access()
    await access.save(CAR, id="car", memory="saved")
    await access.save("The user drove a Volvo to Rome.", id="rome", memory="saved", type=MemoryType.SKILL)
    await access.pin("rome", True)
    await access.replace_notes("- Drives a Volvo. Lives in Bern.\n- Volvo: insure it")
    return access


async def test_a_subject_is_shown_and_then_gone_from_all_memories_and_notes(tmp_path: Path) -> None:
    async with opened(tmp_path) as memories:
        access = await with_a_volvo(memories)
        before = await memories.texts()
        about = await access.find_about("I drive a Volvo")
        assert await memories.texts() == before, "nothing was deleted"
        assert sorted(shown(about.mentions)) == [
            ("facts", "The user drives a Volvo.", "words"),
            ("said", VOLVO, "words"),
            ("saved", "The user drove a Volvo to Rome.", "words"),
        ]
        by_text = {mention.text: mention for mention in about.mentions}
        assert [by_text[text].in_profile for text in sorted(by_text)] == [True, True, False]
        assert [by_text[text].is_turn for text in sorted(by_text)] == [False, False, True]
        assert by_text["The user drives a Volvo."].turn == by_text[VOLVO].turn == ("s", 0)
        assert by_text[VOLVO].type is MemoryType.INTERACTION and by_text[VOLVO].created_at == 1000.0
        assert about.notes == ("Drives a Volvo.",) and not about.failed
        assert shown(about.similar)[0] == ("facts", "The user lives in Bern.", "similar")

        gone = await access.forget_about("I drive a Volvo")
        assert (gone.mentions, gone.notes) == (about.mentions, about.notes)
        after = await memories.texts()
        assert {name: sorted(texts) for name, texts in after.items()} == {
            "said": [FIGS],
            "facts": ["The user likes figs.", "The user lives in Bern."],
            "saved": [CAR],
            "notes": ["- Lives in Bern.\n- Volvo: insure it"],
        }
        assert not [text for _, text, _ in shown((await access.find_about("drive a Volvo")).mentions)]
        assert (await access.forget_about("I drive a Volvo")).mentions == ()
        assert await memories.texts() == after, "it may be repeated"
        # The vectors are gone, too, and so are the turn and what would be extracted from it.
        health = await memories.said.check()
        assert health.ok and not health.strays
        calls = len(memories.facts.model.calls)
        await memories.give(turn_of(0, "I drive a Volvo, and I live in Bern."))
        assert await memories.texts() == after and len(memories.facts.model.calls) == calls


async def test_what_is_chosen_of_a_preview_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as memories:
        access = await with_a_volvo(memories)
        about = await access.find_about("I drive a Volvo")
        (turn,) = (mention.id for mention in about.mentions if mention.memory == "said")
        bern = about.similar[0].id
        gone = await access.forget_about(replace(about.only([bern, turn]), notes=()))
        assert gone.ids == {"said": [turn], "facts": [bern]} and not gone.notes
        after = await memories.texts()
        assert after["said"] == [FIGS] and len(after["saved"]) == 2 and "Volvo" in after["notes"][0]
        assert sorted(after["facts"]) == ["The user drives a Volvo.", "The user likes figs."]
        with pytest.raises(InvalidInputError, match="memory='handbook': must be one of said, facts, saved"):
            await access.forget_about(About(mentions=(Mention(memory="handbook", id="1"),)))


async def test_a_fact_in_other_words_goes_with_the_sentence_that_it_was_made_from(tmp_path: Path) -> None:
    model = Model(lambda lines: [])
    async with opened(tmp_path, model) as memories:
        turn = turn_of(0, "I drive a Volvo. I grow dates, and my boat is old.")
        await memories.said.remember(ADA, [turn])
        for number, text in enumerate((CAR, "The user has an old boat.", "The user drives the boat and grows dates.")):
            saved = MemoryItem(id=f"{number}", text=text, source=OF_TURN_0, created_at=1.0)
            await memories.saved.remember(ADA, [saved])
        access = memories.access()
        about = await access.find_about("I drive a Volvo")
        assert shown(about.mentions) == [("said", turn.text, "words"), ("saved", CAR, "sentence")]
        await access.forget_about(about)
        assert len((await memories.texts())["saved"]) == 2


async def test_a_turn_goes_with_a_fact_that_was_made_from_it_in_other_words(tmp_path: Path) -> None:
    """And the deletion of that fact alone offers it."""
    say = lambda lines: [fact("The user likes dates.", line["user"]) for line in lines if "user" in line]  # noqa: E731
    for verb in ("forget_about", "delete"):
        async with opened(tmp_path / verb, Model(say)) as memories:
            (tmp_path / verb).mkdir()
            turn = turn_of(0, "They are sweet, and I like dates.")
            await memories.give(turn, turn_of(1, "It rains."))
            await memories.saved.remember(ADA, [MemoryItem(id="car", text=CAR, source=OF_TURN_0, created_at=1.0)])
            access = memories.access()
            if verb == "forget_about":
                about = await access.forget_about("The user's car is a Volvo")
                assert shown(about.mentions) == [("said", turn.text, "turn"), ("saved", CAR, "words")]
                assert (await access.delete(["car"])).count == 0
            else:
                deleted = await access.delete(["car", "missing"])
                assert deleted.count == 1 and shown(deleted.left.mentions) == [("said", turn.text, "turn")]
                await access.forget_about(deleted.left)
                assert (await access.delete(["car"])).count == 0
            assert turn.text not in (await memories.texts())["said"] and not (await memories.texts())["saved"]
            facts = (await memories.texts())["facts"]
            assert facts, "other facts of the turn stay"


async def test_items_that_were_replaced_are_resolved_or_have_expired_are_forgotten_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as memories:
        access = memories.access()
        for name in ("old", "done", "late"):
            await access.save(f"The user drives a Volvo, {name}.", id=name, memory="saved")
        await access.update("done", status="resolved")
        await access.update("late", expires_at=5.0)
        new = MemoryItem(id="new", text="The user cycles.", created_at=5e9)
        assert await supersede(memories.stores["saved"], ADA, "old", new)
        assert {mention.id for mention in (await access.forget_about("drive a Volvo")).mentions} == {
            "old",
            "done",
            "late",
        }
        assert (await memories.texts())["saved"] == ["The user cycles."]


async def test_other_users_and_agents_keep_what_they_have(tmp_path: Path) -> None:
    eve, clerk = Scope(user_id="eve", session_id="s"), Scope(user_id="ada", session_id="s", agent="clerk")
    async with opened(tmp_path) as memories:
        access = await with_a_volvo(memories)
        await memories.give(turn_of(0, "I drive a Volvo, and I live in Bern."), scope=eve)
        await memories.notes.replace(eve, "Drives a Volvo.")
        await memories.saved.remember(clerk, [MemoryItem(id="skill", text="Drive the Volvo.", type=MemoryType.SKILL)])
        before = await memories.texts(eve)
        about = await access.find_about("I drive a Volvo")
        await access.forget_about(about)
        await access.forget_about("I drive a Volvo")
        assert await memories.texts(eve) == before and "Drive the Volvo." in (await memories.texts(clerk))["saved"]
        # The same ids are another user's, too.
        await memories.access(Scope(user_id="bob", session_id="s")).forget_about(about)
        assert await memories.texts(eve) == before


class Wrapped:
    """A memory with the verbs of another one. They are its attributes, since Python looks for these in a protocol."""

    def __init__(self, memory: Any, **verbs: Any) -> None:
        self.memory = memory
        for name in dir(memory):
            if not name.startswith("_"):
                setattr(self, name, getattr(memory, name))
        vars(self).update(verbs)


def failing(memory: Any, *verbs: str) -> Wrapped:
    """Return a memory of which some verbs fail."""

    async def fail(verb: str, *args: Any, **options: Any) -> Any:
        raise StoreError(f"{verb} fails")

    return Wrapped(memory, **{verb: partial(fail, verb) for verb in verbs})


async def test_a_memory_that_cannot_delete_is_named_with_the_ids_and_the_others_are_done(tmp_path: Path) -> None:
    async with opened(tmp_path) as memories:
        access = await with_a_volvo(memories)
        about = await access.find_about("I drive a Volvo")
        memories.all["said"] = failing(memories.said, "forget")
        with pytest.raises(NotForgottenError, match=r"said: .*forget fails.* Repeat the call") as caught:
            await memories.access().forget_about("I drive a Volvo")
        ids = about.ids
        assert caught.value.left == {"said": ids["said"]}
        assert caught.value.gone == {"facts": ids["facts"], "saved": ids["saved"], "notes": []}
        assert (await memories.texts())["facts"] == ["The user likes figs.", "The user lives in Bern."]
        gone = await access.forget_about("I drive a Volvo")
        assert gone.ids == {"said": ids["said"]} and (await memories.texts())["said"] == [FIGS]


async def test_what_leads_to_an_item_that_is_left_is_left_too(tmp_path: Path) -> None:
    async with opened(tmp_path, Model(lambda lines: [])) as memories:
        turn = turn_of(0, "They are sweet, and I like dates.")
        await memories.said.remember(ADA, [turn])
        await memories.saved.remember(ADA, [MemoryItem(id="car", text=CAR, source=OF_TURN_0, created_at=1.0)])
        memories.all["said"] = failing(memories.said, "forget")
        with pytest.raises(NotForgottenError) as caught:
            await memories.access().forget_about("the user's car is a Volvo")
        assert (caught.value.left, caught.value.gone) == ({"said": [turn.id], "saved": ["car"]}, {})
        memories.all["said"] = memories.said
        await memories.access().forget_about("the user's car is a Volvo")
        assert await memories.texts() == {"said": [], "facts": [], "saved": [], "notes": [""]}


async def test_nothing_is_deleted_if_a_memory_cannot_be_searched_but_what_a_preview_found_may_be(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as memories:
        access = await with_a_volvo(memories)
        before = await memories.texts()
        memories.all["said"] = failing(memories.said, "mentions")
        with pytest.raises(NotForgottenError, match=r"said: .*mentions fails") as caught:
            await memories.access().forget_about("I drive a Volvo")
        assert await memories.texts() == before and not caught.value.gone
        assert caught.value.left["said"] == [] and caught.value.left["notes"] == []
        about = await memories.access().find_about("I drive a Volvo")
        assert list(about.failed) == ["said"] and {mention.memory for mention in about.mentions} == {"facts", "saved"}
        await access.forget_about(about)
        assert (await memories.texts())["saved"] == [CAR] and VOLVO in (await memories.texts())["said"]


@pytest.mark.parametrize("steps", range(5))
async def test_a_kill_between_two_deletions_leaves_what_the_same_call_completes(steps: int, tmp_path: Path) -> None:
    """After so many deletions: two refuse the turn, and two delete; with the last the call has ended."""
    numbers = random.Random(steps)
    async with opened(tmp_path, Model(lambda lines: [])) as memories:
        turn = turn_of(0, "They are sweet, and I like dates.")  # only the saved item leads to it
        other = turn_of(1, "I drive a Volvo.")
        await memories.said.remember(ADA, [turn, other])
        await memories.saved.remember(ADA, [MemoryItem(id="car", text=CAR, source=OF_TURN_0, created_at=1.0)])
        await memories.saved.remember(ADA, [MemoryItem(id="figs", text="The user likes figs.", created_at=1.0)])
        await memories.notes.replace(ADA, "Their car is a Volvo.")
        steps_left, is_killed = steps, asyncio.Event()

        async def forget(memory: Any, *args: Any, **options: Any) -> int:
            nonlocal steps_left
            await asyncio.sleep(numbers.random() / 1000)
            if steps_left == 0:
                is_killed.set()
                await asyncio.Event().wait()
            steps_left -= 1
            count: int = await memory.forget(*args, **options)
            return count

        dying: dict[str, Any] = {
            name: Wrapped(memory, forget=partial(forget, memory)) for name, memory in memories.all.items()
        }
        slots = [MemorySlot(memory=memory, name=name, section=None) for name, memory in dying.items()]
        access = SessionMemoryAccess(ADA, slots, memories.notes)
        forgetting = asyncio.ensure_future(access.forget_about("the user's car is a Volvo"))
        killed = asyncio.ensure_future(is_killed.wait())
        await asyncio.wait({forgetting, killed}, return_when=asyncio.FIRST_COMPLETED)
        for task in (forgetting, killed):
            task.cancel()
        await asyncio.gather(forgetting, killed, return_exceptions=True)
        assert is_killed.is_set() is (steps < 4)

        await memories.access().forget_about("the user's car is a Volvo")
        assert await memories.texts() == {
            "said": [other.text],
            "facts": [],
            "saved": ["The user likes figs."],
            "notes": [""],
        }
        # No memory takes the turn again, also the one that had not got it.
        await memories.give(turn)
        await memories.saved.remember(ADA, [turn])
        assert turn.text not in [text for texts in (await memories.texts()).values() for text in texts]
        assert not memories.facts.model.calls


async def test_a_turn_that_a_memory_has_not_got_yet_never_gets_there(tmp_path: Path) -> None:
    """Also of another session, which saves it later; other facts of turns that it has got stay."""
    model = Model(facts_in)
    async with opened(tmp_path, model) as memories:
        late, seen = (turn_of(n, "I drive a Volvo, and I live in Bern.", session="other") for n in (4, 5))
        await memories.said.remember(ADA, [late, seen])
        await memories.facts.remember(ADA, [seen])
        await memories.access().forget_about("I drive a Volvo")
        assert (await memories.texts())["facts"] == ["The user lives in Bern."]
        await memories.give(late, seen)
        assert (await memories.texts())["facts"] == ["The user lives in Bern."] and len(model.calls) == 1


async def test_a_memory_without_the_method_is_searched_by_its_list_or_else_by_recalls(tmp_path: Path) -> None:
    listed: Any = Wrapped(LexicalMemory(InMemoryItems()))
    book = Book(delay_s=0)
    del listed.mentions
    memories: dict[str, Any] = {"listed": listed, "book": book}
    slots = [MemorySlot(memory=memory, name=name, section=None) for name, memory in memories.items()]
    access = SessionMemoryAccess(ADA, slots, None)
    turn, other = turn_of(0, "I drive a Volvo."), turn_of(1, "I drive a lot.")
    await book.remember(ADA, [turn, other])
    await listed.remember(
        ADA, [MemoryItem(id="car", text=CAR, source=OF_TURN_0), MemoryItem(id="x", text="Likes figs.")]
    )
    about = await access.forget_about("I drive a Volvo")
    assert shown(about.mentions) == [("listed", CAR, "sentence"), ("book", turn.text, "words")]
    assert ("book", other.text, "similar") in shown(about.similar)
    assert list(book.items) == [other.id]
    assert [item.id for item in await listed.list_items(ADA)] == ["x"]


async def test_what_cannot_be_written_is_refused() -> None:
    rules = MemorySlot(memory=StaticMemory(["Drive a Volvo."]), name="handbook", section=None)
    for slots, error in (([rules], ReadOnlyMemoryError), ([], NoMemoryError)):
        access = SessionMemoryAccess(ADA, slots, None)
        for verb in (access.find_about, access.forget_about):
            with pytest.raises(error):
                await verb("drive a Volvo")
    notes = WorkingMemory(InMemoryItems())
    await notes.replace(ADA, "Drive the Volvo.")
    reading = SessionMemoryAccess(ADA, [rules], notes, is_reading=True)
    assert (await reading.find_about("drive the Volvo")).notes == ("Drive the Volvo.",)
    with pytest.raises(ReadOnlyMemoryError):
        await reading.forget_about("drive the Volvo")
    writing = SessionMemoryAccess(ADA, [rules], notes)
    for text in ("that I am", ""):
        with pytest.raises(InvalidInputError, match="no word that says"):
            await writing.forget_about(text)
    assert (await writing.forget_about("drive the Volvo")).notes and await writing.read_notes() == ""


# In sessions


async def test_a_model_forgets_a_subject_and_the_turn_in_which_it_does_is_not_saved() -> None:
    """Nor is what it noted there; an earlier turn is forgotten whether it was saved or not."""
    book, late = Book(delay_s=0), Book(delay_s=0)
    late.fails = OSError("away")
    forget = use("f", "forget_about", subject="drive a Volvo")
    script: list[list[AnyBlock]] = [[forget], [Text(text="I no longer know that you drive a Volvo.")]]
    stage = await MemoryStage.opened(book, late)
    await stage.say("I drive a Volvo")
    await stage.say("I like figs")
    stage.engine = Scripted(script, ToolRegistry(*memory_tools()))
    late.fails = None
    stage.core.use(stage.engine, stage.config, None, stage.slots)
    turn = await stage.say("Forget that I drive a Volvo")
    assert '{"forgotten": ' in str(turn.blocks)
    await stage.say("Good bye")
    assert await stage.core.ingestion.wait_for_memory()
    for memory in (book, late):
        assert "Volvo" not in memory.said and "figs" in memory.said, memory.said


async def test_a_turn_that_waits_to_be_saved_is_shown_and_never_saved() -> None:
    book = Book(delay_s=0)
    book.held.clear()  # it never ends what it is given
    stage = await MemoryStage.opened(book)
    await stage.say("I drive a Volvo")
    access = stage.core.retrieval.memory_access()
    about = await access.find_about("drive a Volvo")
    assert [(mention.memory, mention.is_turn) for mention in about.mentions] == [("memory 0", True)]
    await access.forget_about(about)
    book.held.set()
    assert await stage.core.ingestion.wait_for_memory()
    assert not book.items and book.given


async def test_a_memory_that_only_a_strategy_writes_to_forgets_too() -> None:
    book = Book(delay_s=0)
    await book.remember(ADA, [turn_of(0, "I drive a Volvo.")])
    slot = MemorySlot(memory=book, name="flushed", section=None, is_used=False)
    stage = await MemoryStage.opened(Book(delay_s=0), max_context_tokens=1000)
    stage.core.use(stage.engine, stage.config, FlushToMemory([book]), [*stage.slots, slot])
    await stage.core.transactor.activate()
    access = stage.core.retrieval.memory_access()
    assert (await access.forget_about("drive a Volvo")).ids == {"flushed": [turn_of(0, "I drive a Volvo.").id]}
    assert not book.items


def test_access_forgets_in_its_own_memories_if_it_is_told_no_others() -> None:
    slots: Collection[Any] = [MemorySlot(memory=Book(), name="book", section=None)]
    assert SessionMemories(list(slots)).writable == list(slots)
