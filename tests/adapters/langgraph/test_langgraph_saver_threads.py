"""`TurnwiseSaver` under callers in many threads: who waits for whom, what shares a transaction, what a turn takes."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from langgraph.checkpoint.base import empty_checkpoint
from test_langgraph_saver import T, chat, children, latest, made, said

import patience
import scale
from turnwise.adapters import TurnwiseSaver
from turnwise.adapters.langgraph.checkpoints import Commit, open_checkpoints
from turnwise.errors import CheckpointFencedError, StoreClosedError, StoreError

WRITERS = 8


class Held:
    """A store of checkpoints that notes each commit and its thread; it can hold the next one, and let it fail."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.commits: list[Commit] = []
        self.threads: list[int] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_held = threading.Event()
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def hold(self) -> None:
        self.commits.clear()
        self.is_held.clear()
        self.goes_on.clear()

    def commit(self, place: Any, commit: Commit) -> Any:
        self.commits.append(commit)
        self.threads.append(threading.get_ident())
        self.is_held.set()
        assert self.goes_on.wait(patience.WAIT_S)
        if self.fails:
            raise StoreError("the disk is full")
        return self._store.commit(place, commit)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/threads.db"


@pytest.fixture
def store(url: str) -> Held:
    return Held(open_checkpoints(url))


@pytest.fixture
def saver(store: Held, monkeypatch: pytest.MonkeyPatch) -> Iterator[TurnwiseSaver]:
    monkeypatch.setattr("turnwise.adapters.langgraph.saver.open_checkpoints", lambda _: store)
    with TurnwiseSaver("memory://") as saver:
        yield saver


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WRITERS + 1) as pool:
        yield pool


def waiting(saver: TurnwiseSaver) -> int:
    """Return how many changes wait for another one of their space."""
    return sum(len(line.waiting) for line in saver._threads._lines.values())  # noqa: SLF001 - no caller can see it


def write(saver: TurnwiseSaver, config: Any, number: int) -> None:
    saver.put_writes(config, [("messages", f"w{number}")], f"task {number:02}")


def tasks(saver: TurnwiseSaver) -> list[str]:
    """Return the tasks whose pending writes are stored for the latest checkpoint."""
    read = saver.get_tuple(T)
    assert read and read.pending_writes is not None
    return [task for task, _, _ in read.pending_writes]


def begun(saver: TurnwiseSaver) -> Any:
    """Have a turn; return the config of who goes on."""
    chat(saver).invoke(said("hello"), T)
    read = saver.get_tuple(T)
    assert read
    return read.config


def test_a_blocking_call_commits_in_its_own_thread_and_an_awaited_one_in_another(
    saver: TurnwiseSaver, store: Held
) -> None:
    config = begun(saver)
    store.threads.clear()
    write(saver, config, 1)
    asyncio.run(saver.aput_writes(config, [("messages", "w2")], "task 02"))
    here, elsewhere = store.threads
    assert here == threading.get_ident() != elsewhere
    assert tasks(saver) == ["task 01", "task 02"]


def held_writes(saver: TurnwiseSaver, store: Held, config: Any, pool: ThreadPoolExecutor) -> list[Future[None]]:
    """Let several threads write while the commit of the first is held."""
    store.hold()
    writes = [pool.submit(write, saver, config, 0)]
    assert store.is_held.wait(patience.WAIT_S)
    writes += [pool.submit(write, saver, config, number) for number in range(1, WRITERS)]
    patience.until(lambda: waiting(saver) == WRITERS - 1)
    return writes


def test_changes_that_wait_for_another_one_share_a_transaction(
    saver: TurnwiseSaver, store: Held, pool: ThreadPoolExecutor
) -> None:
    writes = held_writes(saver, store, begun(saver), pool)
    assert not any(written.done() for written in writes), "each returns when it is durable"
    store.goes_on.set()
    for written in writes:
        written.result()
    assert [len(commit.writes) for commit in store.commits] == [1, WRITERS - 1]
    assert tasks(saver) == [f"task {number:02}" for number in range(WRITERS)]


def test_of_changes_that_share_a_transaction_each_is_refused_or_stored_by_itself(
    saver: TurnwiseSaver, store: Held, pool: ThreadPoolExecutor
) -> None:
    config = begun(saver)
    rival = saver.get_tuple(T)
    assert rival
    write(saver, config, 99)  # from here on the rival is refused
    store.hold()
    first = pool.submit(write, saver, config, 0)
    assert store.is_held.wait(patience.WAIT_S)
    allowed = pool.submit(write, saver, config, 1)
    refused = pool.submit(write, saver, rival.config, 2)
    cannot_be_stored = pool.submit(saver.put_writes, config, [("messages", "w3")], "\ud800")
    allowed_too = pool.submit(write, saver, config, 4)
    patience.until(lambda: waiting(saver) == 4)
    store.goes_on.set()
    for written in (first, allowed, allowed_too):
        written.result()
    with pytest.raises(CheckpointFencedError):
        refused.result()
    with pytest.raises((ValueError, TypeError)):
        cannot_be_stored.result()
    assert tasks(saver) == ["task 00", "task 01", "task 04", "task 99"]


def test_no_change_refers_to_elements_of_one_that_could_not_be_made(
    saver: TurnwiseSaver, store: Held, pool: ThreadPoolExecutor
) -> None:
    config = begun(saver)
    texts = [f"{number} " * 50 for number in range(9)]
    bad = made("2", texts=texts, lock=threading.Lock())  # which cannot be serialised
    store.hold()
    first = pool.submit(write, saver, config, 0)
    assert store.is_held.wait(patience.WAIT_S)
    cannot_be_made = pool.submit(saver.put, config, bad, {}, {"texts": "1"})
    patience.until(lambda: waiting(saver) == 1)
    shared = pool.submit(saver.put_writes, config, [("texts", texts)], "task 01")
    patience.until(lambda: waiting(saver) == 2)
    store.goes_on.set()
    first.result()
    shared.result()
    with pytest.raises(TypeError):
        cannot_be_made.result()
    with TurnwiseSaver("memory://") as another:  # of the same store; it remembers nothing
        read = another.get_tuple(T)
    assert read and read.pending_writes
    assert read.pending_writes[-1] == ("task 01", "texts", texts)


def test_if_a_shared_transaction_fails_each_of_its_calls_does_and_can_be_repeated(
    saver: TurnwiseSaver, store: Held, pool: ThreadPoolExecutor
) -> None:
    config = begun(saver)
    writes = held_writes(saver, store, config, pool)
    store.fails = True
    store.goes_on.set()
    for written in writes:
        with pytest.raises(StoreError, match="the disk is full"):
            written.result()
    store.fails = False
    assert tasks(saver) == []
    for number in range(WRITERS):
        write(saver, config, number)
    assert len(tasks(saver)) == WRITERS


def test_closing_waits_for_a_call_and_refuses_later_ones(
    saver: TurnwiseSaver, store: Held, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = begun(saver)
    store.hold()
    written = pool.submit(write, saver, config, 0)
    assert store.is_held.wait(patience.WAIT_S)
    closed = pool.submit(saver.close)

    def is_refused() -> bool:
        try:
            saver.get_tuple(T)
        except StoreClosedError:
            return True
        return False

    patience.until(is_refused)
    assert not closed.done() and not written.done()
    store.goes_on.set()
    written.result()
    closed.result()
    with pytest.raises(StoreClosedError):
        asyncio.run(saver.aget_tuple(T))


# Races


@contextmanager
def switching(every_s: float) -> Iterator[None]:
    """Let Python switch threads as often as that."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(every_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("seed", range(scale.share(200)))
def test_what_was_acknowledged_is_there_and_what_was_refused_is_not(
    seed: int, url: str, pool: ThreadPoolExecutor
) -> None:
    """Several threads of one saver write, and one of another saver takes over at some moment."""
    chance = random.Random(seed)
    with TurnwiseSaver(url) as first, TurnwiseSaver(url) as other, switching(10 ** -chance.uniform(3, 6)):
        rival = first if url == "memory://" else other
        config = begun(first)
        moment, outcomes = chance.randrange(WRITERS + 1), dict[str, bool]()

        def attempt(number: int) -> None:
            try:
                write(first, config, number)
                outcomes[f"task {number:02}"] = True
            except CheckpointFencedError:
                outcomes[f"task {number:02}"] = False

        def take_over() -> None:
            patience.until(lambda: len(outcomes) >= moment)
            while True:
                read = rival.get_tuple(T)
                assert read
                try:
                    write(rival, read.config, 99)
                    return
                except CheckpointFencedError:
                    continue

        numbers = chance.sample(range(WRITERS), WRITERS)
        for work in [pool.submit(take_over), *(pool.submit(attempt, number) for number in numbers)]:
            work.result()
        with pytest.raises(CheckpointFencedError):
            write(first, config, 98)
        stored = sorted(task for task, is_stored in outcomes.items() if is_stored)
        assert tasks(first) == tasks(rival) == [*stored, "task 99"]


@pytest.mark.parametrize("seed", range(scale.share(100)))
def test_runs_in_threads_that_repeat_what_was_refused_lose_nothing_and_fork_nothing(
    seed: int, url: str, pool: ThreadPoolExecutor
) -> None:
    chance, turns = random.Random(seed), 4

    def talk(saver: TurnwiseSaver, name: str) -> None:
        app, number = chat(saver), 0
        while number < turns:
            try:
                app.invoke(said(f"{name}{number} " + "q" * 60), T)
                number += 1
            except CheckpointFencedError:
                latest(app)

    with TurnwiseSaver(url) as first, TurnwiseSaver(url) as other, switching(10 ** -chance.uniform(3, 6)):
        second = first if url == "memory://" else other
        for work in [pool.submit(talk, saver, name) for saver, name in ((first, "a"), (second, "b"))]:
            work.result()
        assert set(children(first).values()) == {1}
        assert latest(chat(first)) == latest(chat(second))
        texts = list(dict.fromkeys(text.split()[0] for text in latest(chat(second))))
        for name in "ab":
            assert [text for text in texts if text[0] == name] == [f"{name}{number}" for number in range(turns)]
        if second is other:
            with TurnwiseSaver(url) as third:
                assert latest(chat(third)) == latest(chat(first)), "with nothing that a process remembers"


# What a turn takes


def test_a_turn_makes_five_changes_in_at_most_as_many_transactions(saver: TurnwiseSaver, store: Held) -> None:
    app = chat(saver)
    for _ in range(4):
        store.commits.clear()
        app.invoke(said("more"), T)
        assert len(store.commits) <= 5
        assert sum(len(commit.rows) + len(commit.writes) for commit in store.commits) == 5
        assert len({commit.after.revision for commit in store.commits}) == len(store.commits)


def counted(turn: Callable[[int], object], statements: list[str]) -> list[int]:
    """Return how many statements each turn made on SQLite, from the second on."""
    counts = []
    for number in range(12):
        statements.clear()
        turn(number)
        counts.append(len(statements))
    return counts[1:]


def test_a_turn_makes_as_many_statements_at_any_length(tmp_path: Path) -> None:
    statements: list[str] = []

    def trace(connection: Any, _: object) -> None:
        connection.set_trace_callback(statements.append)

    sa.event.listen(sa.Engine, "connect", trace)
    try:
        with TurnwiseSaver(f"sqlite:///{tmp_path}/threads.db") as saver:
            app = chat(saver)
            of_graph = counted(lambda number: app.invoke(said(f"{number} " + "q" * 100), T), statements)
            of_read = counted(lambda _: saver.get_tuple(T), statements)
            config = begun(saver)
            of_writes = counted(lambda number: write(saver, config, number), statements)

            def put(number: int) -> None:
                nonlocal config
                checkpoint = {**empty_checkpoint(), "id": f"f{number:03}"}
                config = saver.put(config, checkpoint, {}, {})  # type: ignore[arg-type]

            of_put = counted(put, statements)
    finally:
        sa.event.remove(sa.Engine, "connect", trace)
    assert set(of_read) == {4}, "it begins, reads the checkpoint and its writes, and ends"
    assert set(of_writes) == {4} == set(of_put), "it begins, updates the space, inserts, and commits"
    assert max(of_graph) <= 27, "one read, two writes, three checkpoints, and three new elements"
