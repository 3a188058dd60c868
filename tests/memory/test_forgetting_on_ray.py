"""Forgetting, end to end: what real memories and the session store hold of a turn, a session, a user afterwards.

The words that are to be forgotten are in no other text, so the bytes of all files are searched for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from memories.forgotten_words import check_that_bo_has_everything, held, manager_with_bo, notes
from memories.memory_manager import WAIT_S, House, house_in, say, sections
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.errors import RunCancelledError, SessionNotFoundError
from turnwise.memory.conversation.events import TextDelta


@pytest.fixture(scope="module")
def house(ray_session: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house_in(tmp_path_factory.mktemp("forgetting"), ray_session) as house:
        yield house


@pytest.fixture(scope="module")
def manager(house: House) -> SessionManager:
    return manager_with_bo(house)


def test_a_user_is_forgotten_during_runs_of_their_sessions(
    house: House, manager: SessionManager, ray_session: ModuleType
) -> None:
    """Case 54: one session is idle, one has no process, one has a run in the midst of its answer, one waits behind."""
    user = "quixotrix"
    chats = [manager.open(f"snarkly-{number}", user_id=user) for number in range(3)]
    say(chats[0], "My llama is called Bandersnatch.")
    say(chats[1], "My llama eats jubjubs, in Třeskoprsk.")
    chats[2].memory.replace_notes({"stops": ["Brilligton"]})
    assert chats[0].memory.wait(WAIT_S) and chats[1].memory.wait(WAIT_S)
    ray_session.kill(chats[1].actor)
    stalled = house.manager(
        house.extractive(), house.vector(), working_memory=notes(house), engine=house.engine("local/stall")
    )
    running = stalled.get(chats[2].session_id, user_id=user).run("My llama wears a momerath, vorpally.")
    assert any(isinstance(event, TextDelta) for event in running.events())
    waiting = stalled.get(chats[2].session_id, user_id=user).run("My llama is frabjous.", if_busy="enqueue")
    words = (user, "snarkly", "bandersnatch", "jubjub", "Třeskoprsk", "brilligt", "momerath", "vorpal", "frabjous")
    assert {name.partition(".")[0] for name in held(house, *words)} == {"chats", "facts", "notes", "words"}
    done = manager.forget(user)
    assert (done.sessions, done.notes, done.verified) == (3, 1, True)
    assert done.items["VectorMemory"] >= 2 and done.items["ExtractiveMemory"] >= 2
    assert set(done.erased) == {"ExtractiveMemory", "VectorMemory"}
    assert held(house, *words) == []
    assert manager.count(user_id=user) == 0
    for run in (running, waiting):
        with pytest.raises((RunCancelledError, SessionNotFoundError)):
            run.wait(WAIT_S)
    chat = manager.open("anew", user_id=user)
    say(chat, "What is my llama called?")
    (request,) = house.sent("What is my llama called?")
    assert sections(request) == {}
    assert chat.delete().sessions == 1
    second = manager.forget(user)
    assert (second.sessions, second.verified) == (0, True)
    assert held(house, *words) == []
    check_that_bo_has_everything(house, manager)
