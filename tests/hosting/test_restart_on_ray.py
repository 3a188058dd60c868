"""A session's process that is restarted continues without a request."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_sessions_on_ray import kill

from memories.memory_engines import Mirror
from patience import until
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.cluster.actor_names import actor_name, find_actor
from turnwise.actors.hosting.process_memory import THRESHOLDS
from turnwise.actors.hosting.store_spec import store_id_of
from turnwise.actors.inference.echo import EchoEngine
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.urls import resolve_url


def test_unsaved_turns_of_a_lost_process_are_saved_without_a_call(
    make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    """Case 55."""
    away = tmp_path / "away"
    away.mkdir()
    manager = make_ray_manager(engine=Mirror(), memory=[LexicalMemory(SQLItems(f"sqlite:///{away}/facts.db"))])
    chat = manager.open("chat", user_id="ada")
    away.rename(tmp_path / "elsewhere")
    chat.run("I keep bees.").wait(60)
    kill(chat)
    (tmp_path / "elsewhere").rename(away)
    asker = manager.open("another", user_id="ada")
    until(lambda: any("bees" in item.text for item in asker.memory.recall("bees")))


COMES_BACK = """
import sys
import ray
from engines import Inventory
from test_sessions_on_ray import kill
from turnwise import Dedicated, Packed, SessionManager

address, store, placement = sys.argv[1:]
ray.init(address, log_to_driver=False, logging_level="ERROR")
with SessionManager(store, engine=Inventory(), placement=eval(placement)) as manager:
    chat = manager.open("chat")
    chat.run("What have you?").wait(60)
    kill(chat)
    print("answer:", chat.run("And now?").wait(60).text)
bare = ray.remote(lambda: [ray.put(object()), *sys.modules][1:]).options(num_cpus=0)  # it pickles, as all do
print("bare:", *ray.get(bare.remote()))
"""


@pytest.mark.by_turns
@pytest.mark.parametrize("placement", ["Dedicated()", "Packed(hosts=1)"])
def test_a_process_that_is_back_has_loaded_what_an_answer_needs_and_no_more(
    ray_address: str, placement: str, tmp_path: Path
) -> None:
    """Somebody waits for it meanwhile. For a program of its own, Ray starts it as it does for users.

    What a bare process of Ray has loaded does not count: where pyarrow is installed, that imports it, and numpy.
    """
    command = [sys.executable, "-c", COMES_BACK, ray_address, f"sqlite:///{tmp_path}/chats.db", placement]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=100).stdout
    answer, _, bare = printed.partition("answer: ")[2].partition("bare: ")  # Ray prints what it thinks of kills, too
    thresholds, *loaded = answer.splitlines()
    assert thresholds == str(THRESHOLDS)
    assert "turnwise.memory.stores.sql.store" in loaded
    unneeded = {"numpy", "chromadb", "openai", "sqlalchemy.dialects.postgresql", "turnwise.memory.stores.in_memory"}
    assert unneeded & ({*loaded} - {*bare.split()}) == set() and "ray" in bare.split()


@pytest.mark.usefixtures("ray_session")
async def test_a_process_that_nobody_calls_leaves_and_the_next_call_starts_another(
    namespace: str, tmp_path: Path
) -> None:
    """A manager's first call starts the session's process ahead. The program may die then, or the call be refused."""
    url = resolve_url(f"sqlite:///{tmp_path}/chats.db")

    def process_of(name: str) -> Any:
        return find_actor(namespace, actor_name(store_id_of(namespace, url), SessionKey(name, "default")))

    async with AsyncSessionManager(url, engine=EchoEngine(), namespace=namespace) as manager:
        manager._client.start_ahead(SessionKey("chat", "default"))  # noqa: SLF001 - as a program that dies then
        ahead = process_of("chat")
        await ahead.leave_unless_called.remote()
        chat = await manager.open("chat")  # while that process ends
        assert (await (await chat.run("one")).wait()).text == "one"
        called = process_of("chat")
        assert called != ahead
        await called.leave_unless_called.remote()
        assert (await (await chat.run("two")).wait()).text == "two"
        assert process_of("chat") == called
