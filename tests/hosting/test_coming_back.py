"""How long callers wait for a process, and how an actor loads what it hosts: no Ray."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from turnwise.actors.cluster.actor_settings import SettingsLostError
from turnwise.actors.cluster.actors.loading import FREE_STARTS, LOAD_S, Loading
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.reach import LOOK_S, REACH_S, NoProcessError, Presence, Reach
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.hosting.worker_resources import WorkerResources
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.wire_version import packed
from turnwise.errors import SessionLostError, StoreError, WireVersionError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.growing_pauses import JITTER
from turnwise.memory.stores.in_memory import InMemoryStore

UP, AWAY = Presence(True, 1, "it is ALIVE"), Presence(False, 0, "Ray's actor a is RESTARTING")


def given_up_at(reach: Reach, now: float, presence: Presence) -> float:
    """Return when a caller gives up that looks whenever it is to look, and always sees the same."""
    for _ in range(1000):
        now += reach.pause(now)
        try:
            reach.note(now, presence)
        except NoProcessError:
            return now
    raise AssertionError("the caller never gives up")


def test_a_caller_waits_no_longer_than_promised_for_a_process() -> None:
    assert given_up_at(Reach(1000.0), 1000.0, AWAY) == 1000.0 + REACH_S


def test_a_caller_that_has_looked_before_waits_for_the_rest_only() -> None:
    assert given_up_at(Reach(1000.0, since=950.0), 1000.0, AWAY) == 950.0 + REACH_S


def test_a_process_that_works_for_hours_is_waited_for_until_it_dies() -> None:
    reach, now = Reach(0.0), 0.0
    for _ in range(1000):
        now += reach.pause(now)
        reach.note(now, UP)
    assert now == 1000 * LOOK_S
    assert given_up_at(reach, now, AWAY) == now + REACH_S


def test_a_caller_with_less_time_looks_no_later_than_that() -> None:
    reach = Reach(0.0, until=3.0)
    assert (reach.pause(0.0), reach.is_late(2.9), reach.is_late(3.0)) == (3.0, False, True)


class Counted:
    """Counts starts in memory."""

    def __init__(self, died: int = 0) -> None:
        self.died = died

    def count(self) -> int:
        self.died += 1
        return self.died - 1

    def clear(self) -> None:
        self.died = 0


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time does not wait for threads."""

    async def call(work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    monkeypatch.setattr(asyncio, "to_thread", call)


async def load() -> str:
    return "host"


def leave() -> None:
    raise AssertionError("the actor leaves")


@pytest.mark.virtual_time
async def test_an_actor_whose_processes_die_as_they_load_pauses_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(JITTER, "uniform", max)  # no pause is shortened
    starts, pauses = Counted(), []
    for _ in range(FREE_STARTS + 10):
        loading = Loading(load, actor_name="a", starts=starts, leave=leave)  # a process
        began = asyncio.get_running_loop().time()
        await loading.pause()
        assert await loading.host() == "host"
        pauses.append(round(asyncio.get_running_loop().time() - began))
    assert pauses == [0] * FREE_STARTS + [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


@pytest.mark.virtual_time
async def test_calls_during_a_pause_are_refused_at_once_and_later_ones_answered() -> None:
    loading = Loading(load, actor_name="turnwise/x/chat", starts=Counted(FREE_STARTS + 3), leave=leave)
    began = asyncio.get_running_loop().time()
    with pytest.raises(RuntimeError, match="7 processes of it in a row have died") as refused:
        await loading.host()
    assert asyncio.get_running_loop().time() < began + 1
    answer = pickle.loads(loading.refusal(verbs.info().to(SessionRef(SessionKey("chat"))).pickled(), refused.value))
    assert isinstance(answer.error, SessionLostError) and "turnwise/x/chat" in str(answer.error)
    await loading.pause()
    assert await loading.host() == "host"


@pytest.mark.virtual_time
async def test_a_process_that_has_loaded_everything_ends_the_count() -> None:
    starts = Counted(FREE_STARTS)
    loading = Loading(load, actor_name="a", starts=starts, leave=leave)
    await loading.pause()
    await loading.host()
    await loading.settle()
    assert starts.died == 0


@pytest.mark.virtual_time
async def test_what_cannot_be_loaded_is_an_answer_and_the_next_call_tries_again() -> None:
    failures: list[Exception] = [ModuleNotFoundError("No module named 'theirs'"), StoreError("the store is away")]

    async def load_late() -> str:
        if failures:
            raise failures.pop(0)
        return "host"

    loading = Loading(load_late, actor_name="a", starts=None, leave=leave)
    request, answers = verbs.info().to(SessionRef(SessionKey("chat"))).pickled(), []
    for kind in (ModuleNotFoundError, StoreError):
        with pytest.raises(kind) as failed:
            await loading.host()
        answers.append(pickle.loads(loading.refusal(request, failed.value)).error)
    assert isinstance(answers[0], SessionLostError) and "No module named 'theirs'" in answers[0].why
    assert isinstance(answers[1], StoreError)
    assert await loading.host() == "host"


@pytest.mark.virtual_time
async def test_what_never_loads_is_waited_for_so_long_and_used_once_it_has_loaded() -> None:
    goes_on = asyncio.Event()

    async def load_slowly() -> str:
        await goes_on.wait()
        return "host"

    loading = Loading(load_slowly, actor_name="a", starts=None, leave=leave)
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError, match="not been loaded"):
        await loading.host()
    assert round(asyncio.get_running_loop().time() - began) == LOAD_S
    goes_on.set()
    assert await loading.host() == "host"


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "error", [SettingsLostError("settings abc are not there"), WireVersionError("1", "2", "they do not fit")]
)
async def test_an_actor_whose_settings_are_lost_or_of_another_version_leaves(error: Exception) -> None:
    has_left = asyncio.Event()

    async def read() -> str:
        raise error

    with pytest.raises(type(error)):
        await Loading(read, actor_name="a", starts=None, leave=has_left.set).host()
    assert has_left.is_set()


def hang() -> object:
    raise AssertionError("nothing is opened before the engine is loaded")


@pytest.mark.virtual_time
async def test_an_engine_that_never_loads_is_waited_for_so_long_only(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, resources = asyncio.Event(), WorkerResources(hang, hang, "first", b"")  # type: ignore[arg-type]
    monkeypatch.setattr(resources, "_load_setups", goes_on.wait)
    with pytest.raises(TimeoutError, match="not been loaded"):
        await resources.open()


class OneStore(InMemoryStore):
    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


def failing_resources(history: Callable[[], None]) -> tuple[WorkerResources, list[OneStore]]:
    """Return resources of a process, and the stores that they have opened."""
    stores: list[OneStore] = []

    def open_store() -> OneStore:
        stores.append(OneStore())
        return stores[-1]

    engine = packed((EchoEngine(), SessionConfig(), None, (), None))
    return WorkerResources(open_store, history, "first", engine), stores


async def test_callers_who_try_again_after_a_failure_open_one_store() -> None:
    """The first of two callers who wait for a failed opening begins anew before the second learns of it."""
    attempts: list[int] = []

    def open_history() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise StoreError("away")

    resources, stores = failing_resources(open_history)

    async def open_again() -> object:
        try:
            return await resources.open()
        except StoreError:
            return await resources.open()

    callers = [asyncio.create_task(open_again()) for _ in range(2)]
    opened = await asyncio.gather(*callers)
    assert len(attempts) == 2 and opened == [stores[1]] * 2


async def test_a_store_is_closed_if_the_history_store_cannot_be_opened() -> None:
    answers = [StoreError("the history is away")]

    def open_history() -> None:
        if answers:
            raise answers.pop()

    resources, stores = failing_resources(open_history)
    with pytest.raises(StoreError, match="history"):
        await resources.open()
    assert await resources.open() is stores[1]
    assert [store.is_closed for store in stores] == [True, False]
