"""Forgetting, end to end: what real memories and the session store hold of a turn, a session, a user afterwards.

The words that are to be forgotten are in no other text, so the bytes of all files are searched for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from memories.forgotten_words import check_that_bo_has_everything, held, manager_with_bo
from memories.memory_manager import WAIT_S, House, house_in, results, say, sections
from tools.agent_tools import prompt
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.errors import SessionNotFoundError
from turnwise.memory.longterm.memory_types import MemoryType


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house_in(tmp_path_factory.mktemp("forgetting")) as house:
        yield house


@pytest.fixture(scope="module")
def manager(house: House) -> SessionManager:
    return manager_with_bo(house)


@pytest.mark.by_turns
def test_a_turn_is_forgotten_by_all_memories_and_files(house: House, manager: SessionManager) -> None:
    """Case 54: the turn with its fact, what it superseded holding again; the rest of the session stays."""
    chat = manager.open("of cy", user_id="cy")
    say(chat, "My parrot lives in Ulmezia.")
    assert chat.memory.wait(WAIT_S)
    turn = say(chat, "My parrot lives in Quaxolto now, in Žbluňkov.")
    say(chat, "My canoe is made of birch.")
    assert chat.memory.wait(WAIT_S)
    assert "Ulmezia" not in "".join(item.text for item in chat.memory.recall("parrot", types=[MemoryType.FACTS]))
    words = ("quaxolt", "Žbluňkov")
    assert len(held(house, *words, everywhere=False)) >= 2
    done = chat.memory.forget(turn.index, verify=True)
    assert (done.turns, done.items) == (1, {"ExtractiveMemory": 1, "VectorMemory": 1})
    assert done.verified and all(erasure.files for erasure in done.erased.values())
    assert held(house, *words, everywhere=False) == []
    (fact,) = chat.memory.recall("parrot", types=[MemoryType.FACTS])
    assert (fact.text, fact.superseded_at) == ("My parrot lives in Ulmezia.", None)
    say(chat, "Where does my parrot live? cy-asks")
    (request,) = house.sent("cy-asks")
    assert "Quaxolto" not in request and "Ulmezia" in sections(request)["profile"] and "canoe" in request
    second = chat.memory.forget(turn.index, verify=True)
    assert (second.turns, second.items, second.verified) == (0, {"ExtractiveMemory": 0, "VectorMemory": 0}, True)
    assert chat.turn(turn.index).record.forgotten and "Quaxolto" in chat.turn(turn.index).blocks[-2].text  # type: ignore[union-attr, operator]
    check_that_bo_has_everything(house, manager)


def test_a_subject_is_forgotten_by_all_memories_and_the_notes(house: House, manager: SessionManager) -> None:
    """By a program after a preview, by the deletion of a fact, and by a model, whose turn is not saved."""
    chat, other = (manager.open(f"{name} of fay", user_id="fay") for name in ("a chat", "another"))
    say(chat, "My car is a Vexlomar.")
    say(chat, "My canoe is made of ash.")
    assert chat.memory.wait(WAIT_S)
    pinned = chat.memory.save("The car, a Vexlomar, is red.")
    assert chat.memory.pin(pinned)
    chat.memory.replace_notes({"stops": ["see the car, a Vexlomar", "Malmö"]})
    about = other.memory.find_about("my car is a Vexlomar")
    assert sorted((mention.memory, mention.is_turn, mention.in_profile) for mention in about.mentions) == [
        *(("ExtractiveMemory", False, True), ("ExtractiveMemory", False, True), ("VectorMemory", True, False)),
    ]
    assert pinned in about.ids["ExtractiveMemory"] and not about.notes, "each session has notes of its own"
    assert chat.memory.find_about("car Vexlomar").notes == ("stops: see the car, a Vexlomar",)
    gone = chat.memory.forget_about("my car is a Vexlomar")
    assert gone.ids == about.ids and json.loads(chat.memory.read_notes())["stops"] == ["Malmö"]
    say(other, "What is my car? fay-asks")
    (request,) = house.sent("fay-asks")
    assert "Vexlomar" not in request and chat.memory.forget_about("car Vexlomar").mentions == ()

    say(chat, "My parrot is called Zuberino.")
    assert chat.memory.wait(WAIT_S)
    (fact,) = (item for item in chat.memory.recall("parrot Zuberino") if item.memory == "ExtractiveMemory")
    deleted = chat.memory.delete(fact.id)
    assert deleted.count == 1
    assert [(mention.memory, mention.text) for mention in deleted.left.mentions] == [
        ("VectorMemory", "user: My parrot is called Zuberino.\nassistant: noted")
    ]
    chat.memory.forget_about(deleted.left)
    assert not chat.memory.find_about("parrot Zuberino").mentions

    say(chat, "My yacht is the Ulfandra.")
    assert chat.memory.wait(WAIT_S)
    forget = prompt([("forget_about", {"subject": "the yacht Ulfandra"})], "done")
    (forgotten,) = results(say(other, forget))
    assert forgotten == {"forgotten": 2}
    assert other.memory.wait(WAIT_S)
    assert not other.memory.find_about("yacht Ulfandra").mentions, "the turn that says what to forget is not saved"
    assert [item.text for item in chat.memory.recall("What is my canoe made of?")][:1] == ["My canoe is made of ash."]
    check_that_bo_has_everything(house, manager)


def test_a_session_is_deleted_with_all_of_its_items(house: House, manager: SessionManager) -> None:
    """Case 54: in memories, notes and the session store; what the user said elsewhere stays."""
    deleted, stays = (manager.open(f"chat-{name}", user_id="dee") for name in ("xyloquent", "stays"))
    say(deleted, "My gardener is called Wrexolby.")
    say(deleted, "Wrexolby pruned the vombulous hedge, shouting Grüßzölpel.")
    deleted.memory.save("The user pays in drachmixes.", type=MemoryType.PREFERENCES, topic="zorkling")
    deleted.memory.replace_notes({"stops": ["Frobnitzia"]})
    say(stays, "My tractor is green.")
    stays.memory.replace_notes({"stops": ["Malmö"]})
    assert deleted.memory.wait(WAIT_S) and stays.memory.wait(WAIT_S)
    words = ("wrexolb", "vombulous", "Grüßzölpel", "drachmix", "zorkling", "frobnitz", "xyloquent")
    assert {name.partition(".")[0] for name in held(house, *words)} == {"chats", "facts", "notes", "words"}
    done = deleted.delete(verify=True)
    assert (done.sessions, done.notes, done.items) == (1, 1, {"ExtractiveMemory": 2, "VectorMemory": 2})
    assert done.verified and all(erasure.files and not erasure.found for erasure in done.erased.values())
    assert held(house, *words) == []
    with pytest.raises(SessionNotFoundError):
        manager.get("chat-xyloquent")
    assert json.loads(stays.memory.read_notes())["stops"] == ["Malmö"]
    texts = [item.text for item in stays.memory.recall("What colour is my tractor?")]
    assert texts == ["My tractor is green.", "user: My tractor is green.\nassistant: noted"]
    check_that_bo_has_everything(house, manager)
