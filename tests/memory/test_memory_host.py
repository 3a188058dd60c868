"""The code of a memory's actor, without Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.actors.hosting.memory import memory_host, remote_memory
from turnwise.actors.hosting.memory.memory_host import MemoryHost
from turnwise.actors.hosting.memory.remote_memory import FAILURES, RemoteMemory
from turnwise.actors.hosting.wire import GaveUp
from turnwise.actors.wire_version import packed, unpacked
from turnwise.errors import InvalidMemoryError, LongTermMemoryError, StoreClosedError, StoreError
from turnwise.memory.longterm.base import DegradedRecall, MemoryItem, Recall, Reminder, Scope, trouble_of
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryCategory
from turnwise.memory.longterm.retention.deletion import Erasure
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.testing.embedding import HashEmbedding

pytestmark = pytest.mark.usefixtures("restless")

ADA, BOB = Scope(user_id="ada"), Scope(user_id="bob")


class Waiting:
    """Delays Ada's calls until released, as a slow model would."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.saved_by: list[str] = []

    async def _wait(self, scope: Scope) -> None:
        if scope == ADA:
            await self.goes_on.wait()

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        await self._wait(scope)
        self.saved_by += [scope.user_id for _ in items]
        return [item.id for item in items]

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        await self._wait(scope)
        return [MemoryItem(id="1", text=query)]

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        return False

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, **which: Any) -> int:
        count = self.saved_by.count(scope.user_id)
        self.saved_by = [user for user in self.saved_by if user != scope.user_id]
        return count

    async def close(self) -> None:
        pass


async def test_calls_of_users_do_not_wait_for_each_other_and_deletions_stay() -> None:
    memory = Waiting()
    host = MemoryHost(lambda: memory)
    items = [MemoryItem(id="1", text="hello")]
    save = asyncio.create_task(host.do_remember(ADA, items))
    recall = asyncio.create_task(host.do_recall(ADA, "hello"))
    await asyncio.sleep(0.01)
    assert await asyncio.wait_for(host.do_remember(BOB, items), 5) == ["1"]
    assert (await asyncio.wait_for(host.do_recall(BOB, "hello"), 5))[0].text == "hello"
    assert await asyncio.wait_for(host.do_forget(BOB, None, None), 5) == 1
    forgotten = asyncio.create_task(host.do_forget(ADA, None, None))
    await asyncio.sleep(0.01)
    assert not (save.done() or recall.done() or forgotten.done())
    memory.goes_on.set()
    assert await save == ["1"] and await forgotten == 1 and not memory.saved_by
    assert await recall and not host._pending_saves  # noqa: SLF001 - what a long life would gather


class Slow(LexicalMemory):
    """Forgets only after it is released."""

    def __init__(self, facts: InMemoryItems) -> None:
        super().__init__(facts)
        self.goes_on = asyncio.Event()
        self.forgets = 0

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        self.forgets += 1
        await self.goes_on.wait()
        return await super().forget(scope, ids, turn_index=turn_index)


async def test_repeated_erasures_share_one_answer() -> None:
    """So a caller that timed out does not start from the beginning."""

    memory = Slow(InMemoryItems())

    host = MemoryHost(lambda: memory)
    await host.do_remember(ADA, [MemoryItem(id="1", text="a zyzzyva")])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(host.do_erase(ADA, None, None), 0.01)
    second = asyncio.create_task(host.do_erase(ADA, None, None))
    await asyncio.sleep(0)
    memory.goes_on.set()
    assert (await second).items == 1 and memory.forgets == 1
    assert (await host.do_erase(ADA, None, None)).items == 0 and not host._erasing  # noqa: SLF001 - what a long life would gather


async def test_a_failed_save_is_reported_to_its_caller_only(tmp_path: Path) -> None:
    memory = _vector_memory(tmp_path)
    host = MemoryHost(lambda: memory)
    bad = host.do_remember(ADA, [MemoryItem(id="1", text=" ")])
    saved, erased = await asyncio.gather(bad, host.do_erase(BOB, None, None), return_exceptions=True)
    assert isinstance(saved, InvalidMemoryError)
    assert isinstance(erased, Erasure) and erased.verified
    await memory.close()


def _vector_memory(folder: Path) -> VectorMemory:
    return VectorMemory(
        SQLItems(f"sqlite:///{folder}/memory.db"), VectorIndex(ChromaFolder(folder / "chroma"), HashEmbedding())
    )


async def test_a_recall_is_cancelled_when_its_caller_waits_no_longer() -> None:
    cancelled = asyncio.Event()

    class Hanging(Waiting):
        async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
            try:
                return await super().recall(scope, query, **filters)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    memory = Hanging()
    host = MemoryHost(lambda: memory)
    await host.do_recall(BOB, "tea")  # opens it
    answer, _ = unpacked(await host.call(packed(("recall", {"scope": ADA, "query": "tea"}, 0.01))))
    assert isinstance(answer, GaveUp) and cancelled.is_set()
    found, _ = unpacked(await host.call(packed(("recall", {"scope": BOB, "query": "tea"}, 60.0))))
    assert [item.text for item in found] == ["tea"]


class Coarse(Waiting):
    """Has profiles, recalls in batches, and does not limit categories."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on.set()
        self.batches: list[Sequence[Recall]] = []

    async def remember_many(self, batch: Sequence[tuple[Scope, Sequence[MemoryItem]]]) -> list[Collection[str]]:
        return [[] for _ in batch]

    async def recall_many(self, batch: Sequence[Recall]) -> list[Sequence[MemoryItem]]:
        return [answer.items for answer in await self.answer_many(batch)]

    async def answer_many(self, batch: Sequence[Recall]) -> list[Reminder]:
        self.batches.append(batch)
        items = [MemoryItem(id=str(number), text="tea") for number in range(batch[0].limit)]
        return [Reminder(profile=items[:1], items=DegradedRecall(items, "by words")) for _ in batch]

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        return (await self.recall_many([Recall(scope=scope, query=query, **filters)]))[0]

    async def remind(self, scope: Scope, query: str, **filters: Any) -> Reminder:
        return (await self.answer_many([Recall(scope=scope, query=query, **filters)]))[0]

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        return False


async def test_recalls_with_a_limit_per_category_tell_trouble() -> None:
    host = MemoryHost(Coarse)
    found = await host.do_recall(ADA, "tea", limit=2, per_category=True)
    profiled = await host.do_remind(ADA, "tea", limit=2, per_category=True)
    assert len(profiled.profile) == 1 and [len(found), len(profiled.items)] == [2, 2]
    assert trouble_of(found) == trouble_of(profiled.items) == "by words"


async def test_recalls_with_a_limit_per_category_share_a_batch() -> None:
    memory = Coarse()
    host = MemoryHost(lambda: memory)
    await asyncio.gather(
        *(host.do_recall(scope, "tea", limit=2, per_category=True) for scope in (ADA, BOB)),
        host.do_remind(ADA, "tea", limit=2, per_category=True),
    )
    (batch,) = memory.batches
    assert [recall.is_reminder for recall in batch] == [False, False, True]
    assert {(recall.limit, recall.per_category) for recall in batch} == {(2 * len(MemoryCategory), False)}


class Deferring(Waiting):
    """Defers a part of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on.set()
        self.deferred = 0
        self.catches_up, self.caught_up = asyncio.Event(), asyncio.Event()
        self.caught_up.set()

    async def _wait(self, scope: Scope) -> None:
        await super()._wait(scope)
        self.deferred += 1

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        await self._wait(scope)
        return True

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, **which: Any) -> int:
        await self._wait(scope)
        raise StoreError("it was forgotten, and its trace is left")

    async def catch_up(self) -> int:
        self.deferred = 0
        self.catches_up.set()
        await self.caught_up.wait()
        return 0


@pytest.mark.virtual_time
async def test_what_a_slow_save_deferred_is_made_up_for() -> None:
    memory = Deferring()
    host = MemoryHost(lambda: memory)
    memory.goes_on.clear()
    save = asyncio.create_task(host.do_remember(ADA, [MemoryItem(id="1", text="tea")]))
    await asyncio.sleep(10 * memory_host.CATCH_UP_S)
    memory.goes_on.set()
    await save
    await asyncio.sleep(10 * memory_host.CATCH_UP_S)
    assert memory.deferred == 0


@pytest.mark.virtual_time
async def test_what_is_deferred_during_a_catching_up_is_not_left() -> None:
    memory = Deferring()
    host = MemoryHost(lambda: memory)
    memory.caught_up.clear()
    await host.do_remember(ADA, [MemoryItem(id="1", text="tea")])
    await memory.catches_up.wait()
    await host.do_remember(ADA, [MemoryItem(id="2", text="tea")])
    memory.caught_up.set()
    await asyncio.sleep(10 * memory_host.CATCH_UP_S)
    assert memory.deferred == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("verb", ["update", "forget", "erase"])
async def test_what_a_change_deferred_is_made_up_for(verb: str) -> None:
    """Also if the change failed."""
    memory = Deferring()
    host = MemoryHost(lambda: memory)
    await host.do_recall(ADA, "tea")
    await asyncio.sleep(10 * memory_host.CATCH_UP_S)  # with what an earlier process left, it has caught up
    arguments = ("1", "tea", None) if verb == "update" else (["1"], None)
    with suppress(StoreError):
        await getattr(host, f"do_{verb}")(ADA, *arguments)
    assert memory.deferred == 1
    await asyncio.sleep(10 * memory_host.CATCH_UP_S)
    assert memory.deferred == 0


async def test_a_memory_that_could_not_be_opened_is_opened_once_again() -> None:
    """Even if several waited for the first opening, and the second begins before all have learnt of its failure."""
    openings: list[Waiting] = []

    def load() -> Waiting:
        openings.append(Waiting())
        openings[-1].goes_on.set()
        if len(openings) == 1:
            raise StoreError("the disk is full")
        return openings[-1]

    host = MemoryHost(load)

    async def again() -> object:
        with suppress(StoreError):
            return await host.do_recall(ADA, "tea")
        return await host.do_recall(ADA, "tea")

    await asyncio.gather(again(), again())
    assert len(openings) == 2


async def test_a_memory_that_is_being_opened_is_closed_once_it_is_open(tmp_path: Path) -> None:
    goes_on, memory = threading.Event(), LexicalMemory(SQLItems(f"sqlite:///{tmp_path}/items.db"))

    def load() -> LexicalMemory:
        assert goes_on.wait(30)
        return memory

    host = MemoryHost(load)
    asking = asyncio.create_task(host.do_warm())
    await asyncio.sleep(0)
    closing = asyncio.create_task(host.close())
    await asyncio.sleep(0)
    goes_on.set()
    await closing
    await asking
    with pytest.raises(StoreClosedError):
        await memory.recall(ADA, "boat")


async def test_a_memory_that_answers_between_failures_is_not_left_alone() -> None:
    """Only failures that follow each other count."""
    outcomes = iter([False, False, True] * 2)

    class Process:
        id = "of this test"

        async def ask(self, request: bytes, *, is_recall: bool) -> bytes:
            if is_recall and next(outcomes):
                return packed(((), []))
            raise LongTermMemoryError("its process is away")

        def warm(self, request: bytes) -> None:
            pass

    memory = RemoteMemory(Waiting(), Process())
    for _ in range(2):
        for _ in range(FAILURES - 1):
            with pytest.raises(LongTermMemoryError, match="its process is away"):
                await memory.recall(ADA, "tea")
        assert await memory.recall(ADA, "tea") == ()


@pytest.mark.virtual_time
async def test_a_memory_whose_process_was_away_is_asked_as_soon_as_that_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not when its rest would be over, which is for memories that fail in a process that answers."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(remote_memory, "time", SimpleNamespace(monotonic=loop.time))

    class Process:
        id = "of this test"
        back_at = loop.time() + 8.0

        async def ask(self, request: bytes, *, is_recall: bool) -> bytes:
            await asyncio.sleep(max(0.0, self.back_at - loop.time()))
            return packed(((), []))

        def warm(self, request: bytes) -> None:
            pass

    process = Process()
    memory = RemoteMemory(Waiting(), process, recall_s=2.0)
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while True:
                try:
                    await memory.recall(ADA, "tea")
                except LongTermMemoryError:
                    await asyncio.sleep(0.1)
                else:
                    break
    assert loop.time() - process.back_at < 0.5


async def test_a_memory_is_left_alone_though_its_host_notices_first_that_it_is_late() -> None:
    """A busy caller may notice the end of its own time after the answer has come."""
    host = MemoryHost(Waiting)

    class Process:
        id = "of this test"

        async def ask(self, request: bytes, *, is_recall: bool) -> bytes:
            verb, arguments, _ = unpacked(request)
            return await host.call(packed((verb, arguments, 0.01)))

        def warm(self, request: bytes) -> None:
            pass

    memory = RemoteMemory(Waiting(), Process(), recall_s=60.0)
    for _ in range(FAILURES):
        with pytest.raises(LongTermMemoryError, match="Waiting has not answered within 60 s"):
            await memory.recall(ADA, "tea")
    with pytest.raises(LongTermMemoryError, match=f"failed {FAILURES} times: left alone"):
        await memory.recall(BOB, "tea")
