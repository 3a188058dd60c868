"""A program that used `InProcess` moves to a cluster by another placement: the sessions are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from patience import within
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.hosting.placement import Dedicated, InProcess, Packed, Placement
from turnwise.errors import LongTermMemoryError
from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.values.ids import new_id
from turnwise.testing import ScriptedEngine

until = within(60.0)

SCRIPT = ["one", "two", "three", "four"]


def recalled(chat: Session, query: str) -> Sequence[MemoryItem]:
    """Return what its memory finds; nothing while the memory's process is not ready."""
    with suppress(LongTermMemoryError):
        return chat.memory.recall(query)
    return []


@pytest.mark.by_turns
@pytest.mark.parametrize("placement", [Dedicated(), Packed(hosts=1)], ids=str)
def test_a_sqlite_file_written_in_process_goes_on_on_a_cluster(
    placement: Placement, make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/{new_id()}.db"

    def opened(where: Placement) -> SessionManager:
        memory = [LexicalMemory(tmp_path / "facts.db")]
        return make_ray_manager(engine=ScriptedEngine(SCRIPT), store=store, placement=where, memory=memory)

    with opened(InProcess()) as manager:
        chat = manager.open("chat", user_id="ada", title="Herons")
        assert chat.run("The heron stands in the reeds.").wait().text == "one"
        chat.memory.wait()
        handle = chat.run("And the frog?")
        assert handle.wait().text == "two"
        epoch = chat.info().session.epoch
    with opened(placement) as manager:
        chat = manager.get("chat", user_id="ada")
        assert [turn.text for turn in chat.turns()] == ["one", "two"]
        until(lambda: [item.text for item in recalled(chat, "heron")])
        assert chat.run("on the cluster").wait(120).text == "three"
        assert manager.execution(handle.run_id, user_id="ada").wait().text == "two"
        info = chat.info()
        assert (info.session.title, info.session.epoch) == ("Herons", epoch + 1)
