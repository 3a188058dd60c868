"""A session's process that is started again goes on by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from memorybox import Mirror
from test_agents_on_ray import until
from test_sessions_on_ray import kill
from turnwise.actors.manager import SessionManager
from turnwise.memory.facts_sql import SQLFacts
from turnwise.memory.lexical_memory import LexicalMemory


def test_turns_that_a_lost_process_had_not_saved_are_saved_though_nobody_calls(
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
