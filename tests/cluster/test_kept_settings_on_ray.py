"""Where the settings of actors are kept, for how long, and what deletes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from processes.large_settings import Holder, end_all, named_in
from turnwise.actors.cluster import actor_settings
from turnwise.actors.cluster.actor_settings import PART_BYTES, ActorSettings, sweep_settings
from turnwise.actors.cluster.actors.switched_engines import drop_overrides, find_overrides, save_override
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.memory.conversation.sessions import SessionKey

BACK_S = 100.0
"""How long an actor may take to answer on a busy machine, in seconds."""


class KeptSettings:
    """The settings that were stored since the test began."""

    def __init__(self) -> None:
        self._before = self._all()

    @staticmethod
    def _all() -> set[str]:
        return {name.split("/")[1] for name in actor_settings.entry_names("")}

    @property
    def keys(self) -> set[str]:
        return self._all() - self._before

    def sweep(self) -> set[str]:
        """Sweep as if nobody had used any settings for a long time; return the keys that are left."""
        for key in self.keys:
            actor_settings.put_entry(key, "asked", b"0")
        sweep_settings()
        return self.keys


@pytest.fixture
def store(ray_session: ModuleType) -> Iterator[KeptSettings]:
    yield KeptSettings()
    end_all("holders")


def large(word: str) -> ActorSettings:
    return ActorSettings(word.encode() * PART_BYTES)


def end(ray: ModuleType, actor: Any, name: str) -> None:
    """End an actor, and wait until Ray knows."""
    ray.kill(actor)
    for _ in range(1000):
        if name not in named_in("holders"):
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"actor {name} is still there")


def test_large_settings_stay_as_long_as_an_actor_has_them(store: KeptSettings, ray_session: ModuleType) -> None:
    shared = large("one")
    first, second = (shared.actor(Holder, name, "holders", max_restarts=-1) for name in ("a", "b"))
    assert ray_session.get([first.size.remote(), second.size.remote()], timeout=BACK_S) == [3 * PART_BYTES] * 2
    (key,) = store.keys
    end(ray_session, first, "a")
    large("two").keep()
    assert store.sweep() == {key}, "another actor has them, and the others were never used"
    ray_session.kill(second, no_restart=False)
    assert store.sweep() == {key}, "a restarted actor has them"
    end(ray_session, second, "b")
    assert store.sweep() == set()


def test_settings_that_change_again_and_again_do_not_pile_up(store: KeptSettings) -> None:
    for number in range(10):
        large(str(number)).keep()
        assert len(store.sweep()) <= 1


def test_settings_that_were_asked_for_just_now_are_not_deleted(store: KeptSettings) -> None:
    large("asked").keep()
    sweep_settings()
    assert len(store.keys) == 1


def test_settings_that_are_asked_for_while_they_are_deleted_get_another_key(
    store: KeptSettings, ray_session: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, actors = large("raced"), list[Any]()
    settings.keep()
    delete = actor_settings.delete_entry

    def delete_late(key: str, part: str, *, by_prefix: bool = False) -> None:
        if not actors:  # at the last moment: it has been looked whether anybody uses them
            actors.append(settings.actor(Holder, "late", "holders"))
        delete(key, part, by_prefix=by_prefix)

    monkeypatch.setattr(actor_settings, "delete_entry", delete_late)
    assert len(store.sweep()) == 1
    assert ray_session.get(actors[0].size.remote(), timeout=BACK_S) == 5 * PART_BYTES


def test_settings_that_are_asked_for_before_they_are_deleted_stay(
    store: KeptSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = large("raced")
    settings.keep()
    put = actor_settings.put_entry

    def ask_first(key: str, part: str, value: bytes) -> None:
        if part.startswith("doomed"):
            settings.keep()
        put(key, part, value)

    for key in store.keys:
        put(key, "asked", b"0")
    monkeypatch.setattr(actor_settings, "put_entry", ask_first)
    sweep_settings()
    (key,) = store.keys
    assert actor_settings.get_entry(key, "count") == b"5" and not actor_settings.entry_names(f"{key}/doomed")


def test_small_settings_are_in_the_record_of_their_actor(store: KeptSettings) -> None:
    settings = ActorSettings(b"x" * actor_settings.INLINE_BYTES)
    assert settings.keep() == b"x" * actor_settings.INLINE_BYTES and store.keys == set()


def test_engines_that_sessions_switched_to_are_noted_once_and_as_long_as_needed(store: KeptSettings) -> None:
    async def save(session: SessionKey, override: EngineOverride, engines: dict[str, bytes]) -> None:
        await save_override("holders", "actor", session, override, engines)

    first, second = SessionKey("a"), SessionKey("a", "ann")

    large = {name: name.encode() * PART_BYTES for name in ("0", "1")}
    asyncio.run(save(first, EngineOverride("0"), {"0": large["0"]}))
    asyncio.run(save(first, EngineOverride("1", {"run": "0"}), large))
    for number in range(3):
        asyncio.run(save(second, EngineOverride(f"other {number}"), {f"other {number}": b"other"}))
    assert len(store.sweep()) == 3
    overrides, engines = find_overrides("holders", "actor")
    assert overrides == {
        first: EngineOverride("1", {"run": "0"}),
        second: EngineOverride("other 2"),
    }
    assert engines == {**large, "other 2": b"other"}
    drop_overrides("holders", "actor", first).result()
    assert find_overrides("holders", "actor") == ({second: EngineOverride("other 2")}, {"other 2": b"other"})
    drop_overrides("holders", "actor").result()
    assert (find_overrides("holders", "actor"), store.sweep()) == (({}, {}), set())
