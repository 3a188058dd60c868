"""Long-term memory of a shared session: each author's own is asked, and a setting says whose gets what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from turnwise import EchoEngine, InProcess, LexicalMemory, SessionManager, WorkingMemory
from turnwise.actors.memory.config import GroupSaves, MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.memory.group_saves import recipients, words_for
from turnwise.errors import MemoryOverheardError, NotAllowedError
from turnwise.memory.conversation.blocks import AnyBlock, Block, Image, Text, User
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.extraction.candidates import Limits
from turnwise.memory.longterm.extraction.input import input_of
from turnwise.memory.values.frozen_json import freeze

SHARED = SessionRecord(session_id="plan", user_id="ann", log="7", members=freeze({"tom": "member", "rita": "reader"}))
SAID: list[AnyBlock] = [
    User(text="my code is 1234", author="ann"),
    User(text="I like tea", author="tom"),
    Image(url="https://example.com/cat.png"),
    Text(text="noted"),
]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    database: str = request.getfixturevalue("database")
    return database


@pytest.fixture
def memory(tmp_path: Path) -> LexicalMemory:
    return LexicalMemory(f"{tmp_path}/facts.db")


def manager_of(url: str, memory: LexicalMemory, **config: Any) -> SessionManager:
    settings: dict[str, Any] = {"memory": [memory], "config": SessionConfig(memory=MemoryConfig(**config))}
    return SessionManager(url, engine=EchoEngine(), placement=InProcess(), **settings)


def test_a_run_asks_the_memory_of_its_author_and_of_nobody_else(url: str, memory: LexicalMemory) -> None:
    with manager_of(url, memory) as manager:
        for user_id, fact in (("ann", "The secret of Ann: the boat is blue."), ("tom", "The secret of Tom: red boat.")):
            manager.open("own", user_id=user_id).memory.save(fact)
        chat = manager.open("plan", user_id="ann")
        chat.add_member("tom")
        tom = manager.get("plan", user_id="ann", as_user="tom")
        chat.append("the secret boat of Ann?")
        run = tom.run("which boat?")
        run.wait()
        recalled = [event for event in run.events() if event.kind == "memory_recalled"]
        assert [(event.query, dict(event.found)) for event in recalled] == [("which boat?", {"LexicalMemory": 1})]
        assert [item.text for item in tom.memory.recall("boat secret")] == ["The secret of Tom: red boat."]
        assert "Tom" not in str(chat.memory.recall("secret boat"))
        shown = [chat.messages(), list(chat.events()), [turn.blocks for turn in chat.turns()], list(run.events())]
        assert "blue" not in str(shown) and "red" not in str(shown), "what was recalled is in requests only"
        with pytest.raises(NotAllowedError):
            tom.window()


@pytest.mark.parametrize("saves", get_args(GroupSaves))
def test_a_setting_says_whose_memories_get_what_is_said(saves: GroupSaves, url: str, memory: LexicalMemory) -> None:
    with manager_of(url, memory, group_saves=saves) as manager:
        chat = manager.open("plan", user_id="ann")
        chat.run("alone").wait()
        chat.add_member("tom")
        manager.get("plan", user_id="ann", as_user="tom").run("of Tom").wait()
        chat.append("of Ann")
        manager.get("plan", user_id="ann", as_user="tom").run("of Tom again").wait()
        assert chat.memory.wait(60)
        alone = [("ann", "user: alone\nassistant: alone")]
        echo = "assistant: of Ann\nof Tom again"
        expected = {
            "none": alone,
            "author": [
                *alone,
                ("tom", "user: of Tom\nassistant: of Tom"),
                ("ann", f"user: of Ann\n{echo}"),
                ("tom", f"user: of Tom again\n{echo}"),
            ],
            "owner": [
                *alone,
                ("ann", "tom: of Tom\nassistant: of Tom"),
                ("ann", f"user: of Ann\ntom: of Tom again\n{echo}"),
            ],
        }
        expected["all"] = [
            *expected["owner"],
            ("tom", "user: of Tom\nassistant: of Tom"),
            ("tom", f"ann: of Ann\nuser: of Tom again\n{echo}"),
        ]
        saved = [
            (user_id, item.text)
            for user_id in ("ann", "tom")
            for item in manager.open("own", user_id=user_id).memory.list()
        ]
        assert sorted(saved) == sorted(expected[saves])


def test_forgetting_reaches_the_memories_of_members(url: str, memory: LexicalMemory) -> None:
    with manager_of(url, memory, group_saves="all") as manager:
        chat = manager.open("plan", user_id="ann")
        chat.add_member("tom")
        own = manager.open("plan", user_id="tom")
        own.memory.save("Tom has a boat.")
        tom = manager.get("plan", user_id="ann", as_user="tom")
        tom.run("the harbour").wait()
        chat.run("the lighthouse").wait()
        assert chat.memory.wait(60) and len(tom.memory.recall("harbour lighthouse")) == 2
        assert chat.memory.forget(0).items == {"LexicalMemory": 2}
        assert [item.source.turn_index for item in own.memory.recall("harbour lighthouse")] == [1]
        assert chat.delete().items == {"LexicalMemory": 2}
        assert [item.text for item in own.memory.recall("boat harbour lighthouse")] == ["Tom has a boat."]


def test_notes_are_each_authors_own(url: str, memory: LexicalMemory, tmp_path: Path) -> None:
    working = WorkingMemory(f"{tmp_path}/notes.db")
    with SessionManager(url, engine=EchoEngine(), placement=InProcess(), working_memory=working) as manager:
        chat = manager.open("plan", user_id="ann")
        chat.add_member("tom")
        chat.memory.replace_notes("the code is 1234")
        tom = manager.get("plan", user_id="ann", as_user="tom")
        assert tom.memory.read_notes() == ""
        tom.memory.replace_notes("tea")
        assert "1234" in chat.memory.read_notes()


@pytest.mark.parametrize("person", [None, "tom"])
def test_a_person_gets_the_own_words_as_own_and_those_of_others_by_their_names(person: str | None) -> None:
    spans = (Span("7", 0, 4),)
    own = words_for(person, "ann", spans, SAID, whole=False)[1]
    whole_spans, whole = words_for(person, "ann", spans, SAID, whole=True)
    prompts = [block for block in own if isinstance(block, User)]
    assert [(block.text, block.author) for block in prompts] == [("I like tea" if person else "my code is 1234", None)]
    assert not any(isinstance(block, Image) for block in own) and own[-1] == SAID[-1]
    assert len(whole) == 4 and whole_spans == spans
    assert {block.author for block in whole if isinstance(block, User)} == {None, "ann" if person else "tom"}


def test_the_recipients_follow_the_setting_and_the_speakers() -> None:
    plain: list[Block] = [User(text="hello"), Text(text="hi")]
    for saves in get_args(GroupSaves):
        assert recipients(SHARED, None, plain, saves) == [None], "said before it was shared"
    assert recipients(SHARED, "tom", SAID[2:], "author") == ["tom"], "a picture alone"
    by_setting = {saves: recipients(SHARED, "tom", SAID, saves) for saves in get_args(GroupSaves)}
    assert by_setting == {"author": [None, "tom"], "owner": [None], "all": [None, "rita", "tom"], "none": []}


def test_facts_are_extracted_from_the_words_of_the_memorys_user_only() -> None:
    spans, blocks = words_for("tom", "ann", (Span("7", 0, 4),), SAID, whole=True)
    item = MemoryItem(id="i", text="", source=Source(spans=spans), blocks=tuple(blocks))  # type: ignore[arg-type]
    found = input_of([item], Limits())
    assert [statement.text for statement in found.statements] == ["i like tea"]
    assert ("assistant", "ann said: my code is 1234") in found.lines


async def test_a_tool_reads_no_memory_where_others_would_see_its_result() -> None:
    from turnwise.actors.memory.session_memory_access import SessionMemoryAccess

    access = SessionMemoryAccess(Scope(user_id="tom"), (), None, is_overheard=True)
    for read in (access.recall("x"), access.list_items(), access.read_notes(), access.find_about("x")):
        with pytest.raises(MemoryOverheardError, match="memory of user 'tom'"):
            await read
    for forget in (access.forget_about("x"), access.merge_notes("x")):
        with pytest.raises(MemoryOverheardError):
            await forget
