"""Stores that a manager is given as objects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from engines import process_of
from turnwise import EchoEngine, SessionManager
from turnwise.actors.cluster.runtime import RayRuntime
from turnwise.actors.hosting.store_object import StoreObject
from turnwise.errors import ConfigError
from turnwise.memories import LexicalMemory
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore

RUNTIME = RayRuntime("test")


class TracingStore:
    """A store of a user's own: SQLite's, which notes in a file which verbs were called."""

    is_local = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inner: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TracingStore, (self.folder,)

    def _store(self) -> SQLStore:
        if self._inner is None:
            self._inner = SQLStore(f"sqlite:///{self.folder}/own.db")
        return cast(SQLStore, self._inner)

    def note(self, verb: str) -> None:
        with (self.folder / "verbs").open("a") as file:
            file.write(f"{verb}\n")


def _verb(name: str) -> Callable[..., Any]:
    def call(self: TracingStore, *args: Any, **kwargs: Any) -> Any:
        self.note(name)
        return getattr(self._store(), name)(*args, **kwargs)

    return call


for _name, _value in vars(SessionStore).items():
    if callable(_value) and not _name.startswith("_"):
        setattr(TracingStore, _name, _verb(_name))


def history_in(folder: Path) -> SQLHistory:
    return SQLHistory(f"sqlite:///{folder}/events.db")


@pytest.mark.ray
def test_sessions_are_kept_in_a_store_that_was_given_as_an_object(
    ray_session: ModuleType, make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"engine": EchoEngine(), "history_store": partial(history_in, tmp_path)}
    settings["memory"] = [LexicalMemory(InMemoryItems())]  # hosted in an actor, for all sessions
    first = make_ray_manager(store=TracingStore(tmp_path), **settings)
    session = first.open("chat", user_id="ada")
    session.memory.save("Ada keeps bees")
    assert [item.text for item in first.open("other", user_id="ada").memory.recall("bees")] == ["Ada keeps bees"]
    assert session.run("hello").wait().text == "hello"
    verbs = (tmp_path / "verbs").read_text().split()
    assert "commit" in verbs
    # Equal settings are the same store, so a second manager reaches the same actor.
    again = make_ray_manager(store=TracingStore(tmp_path), **settings)
    assert process_of(again.open("chat", user_id="ada").info()) == process_of(session.info())
    assert [turn.text for turn in again.open("chat", user_id="ada").turns()] == ["hello"]
    # What was kept can be read by whoever opens the files.
    with SessionManager(
        f"sqlite:///{tmp_path}/own.db", engine=EchoEngine(), namespace="other", read_only=True
    ) as reader:
        assert [turn.text for turn in reader.open("chat", user_id="ada").turns()] == ["hello"]
    assert (tmp_path / "events.db").exists()


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (object(), "is no SessionStore: it lacks"),
        (InMemoryStore(), "has its content in one process, and sessions run in others: use memory://name"),
        (42, "is no SessionStore"),
    ],
)
def test_what_is_no_store_for_several_processes_is_refused(store: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StoreObject.of("store", store, SessionStore, RUNTIME)


def test_a_store_that_does_not_pickle_is_refused(tmp_path: Path) -> None:
    class Locked(TracingStore):
        def __reduce__(self) -> tuple[Any, ...]:
            return Locked, (threading.Lock(),)

    with pytest.raises(ConfigError, match=r"store=.*cannot be pickled.*connect at first use"):
        StoreObject.of("store", Locked(tmp_path), SessionStore, RUNTIME)


def test_a_function_that_makes_no_store_is_refused_where_it_is_called() -> None:
    with pytest.raises(ConfigError, match=r"cannot be made in a session's process.*no disk"):
        StoreObject.of("history_store", _fail, HistoryStore, RUNTIME).open(HistoryStore, RUNTIME)
    with pytest.raises(ConfigError, match="is no HistoryStore: it lacks append"):
        StoreObject.of("history_store", dict, HistoryStore, RUNTIME).open(HistoryStore, RUNTIME)
    with pytest.raises(ConfigError, match="in one process"):
        StoreObject.of("history_store", InMemoryHistory, HistoryStore, RUNTIME).open(HistoryStore, RUNTIME)


def _fail() -> Any:
    raise OSError("no disk")


def test_a_store_object_cannot_be_opened_for_reading_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a store that is given by its URL"):
        SessionManager(cast(Any, TracingStore(tmp_path)), engine=EchoEngine(), read_only=True)
