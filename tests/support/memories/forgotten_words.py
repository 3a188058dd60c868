"""What tests of forgetting share: a manager whose other user keeps everything, and a look into all files."""

from __future__ import annotations

import json

from memories.memory_engines import Plan
from memories.memory_manager import WAIT_S, House, files_with, say
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.memory.working.formats import JsonForm
from turnwise.memory.working.memory import WorkingMemory

MEMORY_FILES = ("facts.db", "words.db", "notes.db", "vectors")


def notes(house: House) -> WorkingMemory:
    return WorkingMemory(house.url("notes"), form=JsonForm(Plan))


def manager_with_bo(house: House) -> SessionManager:
    """A manager whose user Bo has an item that must be found after all deletions of others."""
    manager = house.manager(house.extractive(), house.vector(), working_memory=notes(house))
    bo = manager.open("of bo", user_id="bo")
    say(bo, "My lighthouse is painted red.")
    assert bo.memory.wait(WAIT_S)
    return manager


def check_that_bo_has_everything(house: House, manager: SessionManager) -> None:
    bo = manager.open("of bo", user_id="bo")
    texts = [item.text for item in bo.memory.recall("How is my lighthouse painted?")]
    assert texts == ["My lighthouse is painted red.", "user: My lighthouse is painted red.\nassistant: noted"]
    assert files_with(house.folder, ["lighthouse"])


def held(house: House, *words: str, everywhere: bool = True) -> list[str]:
    """Return the files that hold one of the words in UTF-8 or as JSON; of memories only, unless everywhere."""
    forms = {form for word in words for form in (word, json.dumps(word)[1:-1])}
    names = [name.removeprefix(f"{house.folder}/") for name in files_with(house.folder, forms)]
    return [name for name in names if everywhere or name.startswith(MEMORY_FILES)]
