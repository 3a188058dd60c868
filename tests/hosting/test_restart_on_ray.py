"""A session's process that is started again goes on by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engines import Inventory
from memory_engines import Mirror
from test_agents_on_ray import until
from test_sessions_on_ray import kill
from turnwise.actors.client.manager import SessionManager
from turnwise.actors.cluster.gc_tuning import THRESHOLDS
from turnwise.actors.cluster.placement import Dedicated, Packed, Placement
from turnwise.memory.longterm.items.sql import SQLFacts
from turnwise.memory.longterm.lexical import LexicalMemory


def test_unsaved_turns_of_a_lost_process_are_saved_without_a_call(
    make_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    """Case 55."""
    away = tmp_path / "away"
    away.mkdir()
    manager = make_manager(engine=Mirror(), memory=[LexicalMemory(SQLFacts(f"sqlite:///{away}/facts.db"))])
    chat = manager.open("chat", user_id="ada")
    away.rename(tmp_path / "elsewhere")
    chat.run("I keep bees.").wait(60)
    kill(chat)
    (tmp_path / "elsewhere").rename(away)
    asker = manager.open("another", user_id="ada")
    until(lambda: any("bees" in item.text for item in asker.memory.recall("bees")))


@pytest.mark.parametrize("placement", [Dedicated(), Packed(hosts=1)], ids=["dedicated", "packed"])
def test_a_process_that_is_back_has_loaded_what_an_answer_needs_and_no_more(
    make_manager: Callable[..., SessionManager], placement: Placement
) -> None:
    """Somebody waits for it meanwhile."""
    chat = make_manager(engine=Inventory(), placement=placement).open("chat")
    chat.run("What have you?").wait(60)
    kill(chat)
    thresholds, *loaded = chat.run("And now?").wait(60).text.split("\n")
    assert thresholds == str(THRESHOLDS)
    assert "turnwise.memory.stores.sql.store" in loaded
    others = {"numpy", "chromadb", "openai", "sqlalchemy.dialects.postgresql", "turnwise.memory.stores.in_memory"}
    assert not others & {*loaded}
