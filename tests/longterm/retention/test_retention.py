"""Retention: unused items expire and are swept, and uses refresh them; case 48."""

import asyncio
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memories.extraction_models import Model, fact, told
from memories.item_verbs import count
from memories.vector_memories import item
from turnwise.errors import ConfigError, StoreError
from turnwise.memory.longterm.base import Scope, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory, is_record
from turnwise.memory.longterm.index.locations import ChromaInMemory
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.base import ItemFilter
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.ranking import Weights
from turnwise.memory.longterm.retention.retention import Retention, Sweeping, Use, Uses
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.values.ids import new_id
from turnwise.testing.embedding import HashEmbedding

pytestmark = pytest.mark.usefixtures("restless")

ANN, BOB = Scope(user_id="ann"), Scope(user_id="bob", agent="hr")
KEEP_S = 100.0
SKILL = MemoryType.SKILL

Memory = LexicalMemory | ExtractiveMemory | VectorMemory
Make = Callable[..., Memory]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class LastingItems(InMemoryItems):
    """The memories that close it are made again."""

    async def close(self) -> None: ...


@pytest.fixture(params=["lexical", "sqlite", "extractive", "vector"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Make:
    """Makes memories on the same data, in which unused items expire after 100 s."""
    facts = LastingItems()
    index = VectorIndex(ChromaInMemory(), HashEmbedding(), name=f"test-{new_id()}")

    def make(**changes: Any) -> Memory:
        settings: dict[str, Any] = {"retention": Retention(KEEP_S, **changes), "clock": clock}
        if request.param == "vector":
            return VectorMemory(SQLItems(f"sqlite:///{tmp_path}/memory.db"), index, **settings)
        if request.param == "extractive":
            return ExtractiveMemory(Model(), facts, **settings)
        return LexicalMemory(
            facts if request.param == "lexical" else SQLItems(f"sqlite:///{tmp_path}/f.db"), **settings
        )

    return make


async def ids(memory: Memory, query: str = "walrus", scope: Scope = ANN, **options: Any) -> list[str]:
    recalled_items = await memory.recall(scope, query, **{"limit": 5000, **options})
    return sorted(recalled.id for recalled in recalled_items if recalled.words)


async def test_unused_items_expire_and_are_swept(make: Make, clock: Clock) -> None:
    """Whenever it was created; and it does not come back."""

    memory = make()
    assert isinstance(memory, Sweeping)
    first_item, second_item = item("1", "a walrus", created_at=5.0), item("2", "a walrus too", created_at=2e6)
    await memory.remember(ANN, [first_item])
    await memory.remember(BOB, [item("1", "a walrus", type=SKILL)])
    clock.now += 60
    await memory.remember(ANN, [second_item])
    assert await ids(memory) == ["1", "2"]
    await memory.close()
    clock.now += KEEP_S
    memory = make()
    assert await ids(memory) == ["1", "2"]  # just so long
    clock.now += 1
    assert await ids(memory, as_of=6.0) == await ids(memory, types=list(MemoryType), as_of=6.0) == ["1"]
    await memory.forget(ANN, ["1"])
    assert await ids(memory, scope=BOB) == []
    assert await memory.sweep() == 1
    clock.now += KEEP_S
    assert await ids(memory) == []
    assert await memory.sweep() == 1
    assert await memory.sweep() == 0
    await memory.remember(ANN, [first_item, second_item])
    await memory.remember(BOB, [first_item])
    assert await ids(memory) == await ids(memory, scope=BOB) == []
    await memory.remember(ANN, [item("3", "a walrus again")])
    assert await ids(memory) == ["3"]
    await memory.close()


async def test_only_recalled_items_are_refreshed(make: Make, clock: Clock) -> None:
    memory = make()
    await memory.remember(ANN, [item("1", "a walrus swims"), item("2", "a lighthouse")])
    await memory.remember(BOB, [item("1", "a walrus swims")])
    for _ in range(4):
        clock.now += KEEP_S - 1
        # at once, and though it may not be written down yet
        assert await ids(memory, limit=1) == ["1"]
    assert await ids(memory, "lighthouse") == []
    assert await ids(memory, scope=BOB) == []
    assert await memory.sweep() == 2
    await memory.close()
    clock.now += KEEP_S
    memory = make()
    assert await ids(memory) == ["1"]
    await memory.close()


async def test_items_of_the_profile_are_refreshed_by_each_request(make: Make, clock: Clock) -> None:
    memory = make()
    for scope in (ANN, BOB):
        await memory.remember(scope, [item("1", "a walrus", pinned=True), item("2", "a boat", type=SKILL)])
    for _ in range(3):
        clock.now += KEEP_S - 1
        profiled = await memory.remind(ANN, "What is 2 + 2?")
        assert profiled.items == [] and [recalled.id for recalled in profiled.profile] == ["1"]
    assert (await memory.remind(BOB, "")).profile == []
    assert await memory.sweep() == 3
    assert [recalled.id for recalled in (await memory.remind(ANN, "")).profile] == ["1"]
    await memory.close()


async def test_without_refresh_the_profile_refreshes_nothing(make: Make, clock: Clock) -> None:
    memory = make(refresh=False)
    await memory.remember(ANN, [item("1", "a walrus", pinned=True)])
    clock.now += KEEP_S
    assert [recalled.id for recalled in (await memory.remind(ANN, "")).profile] == ["1"]
    clock.now += 1
    assert (await memory.remind(ANN, "")).profile == []
    await memory.close()


async def test_without_refresh_a_recall_refreshes_nothing(make: Make, clock: Clock) -> None:
    memory = make(refresh=False)
    await memory.remember(ANN, [item("1", "a walrus")])
    clock.now += KEEP_S
    assert await ids(memory) == ["1"]
    clock.now += 1
    assert await ids(memory) == []
    assert await memory.sweep() == 1
    await memory.close()


async def test_saving_again_or_changing_an_item_refreshes_it(make: Make, clock: Clock) -> None:
    memory = make(refresh=False)
    await memory.remember(ANN, [item(name, f"a walrus {name}") for name in "123"])
    clock.now += 60
    await memory.remember(ANN, [item("1", "something else")])
    assert await memory.update(ANN, "2", "a walrus changed")
    clock.now += 60
    assert await ids(memory) == ["1", "2"]
    assert await memory.sweep() == 1
    assert await ids(memory) == ["1", "2"]
    clock.now += 60
    assert await ids(memory) == []
    assert await memory.sweep() == 2
    await memory.close()


async def test_items_of_other_types_never_expire(make: Make, clock: Clock) -> None:
    memory = make(types={SKILL, "context"}, refresh=False)
    kinds = [SKILL, MemoryType.CONTEXT, MemoryType.FACTS, MemoryType.GOALS]
    await memory.remember(ANN, [item(kind, f"a walrus {kind}", type=kind) for kind in kinds])
    clock.now += KEEP_S + 1
    assert await ids(memory) == ["facts", "goals"]
    assert await ids(memory, types=[SKILL]) == []
    assert await ids(memory, types=[SKILL, MemoryType.GOALS]) == ["goals"]
    assert await ids(memory, types=[]) == []
    assert await memory.sweep() == 2
    assert await ids(memory) == ["facts", "goals"]
    await memory.close()


async def test_a_sweep_deletes_all_expired_items(make: Make, clock: Clock, small_batches: int) -> None:
    """In any number; the predecessors of the deleted items are valid again."""
    many = 1200 // small_batches

    memory = make(refresh=False)
    await memory.remember(ANN, [item(f"{number}", f"a walrus {number}") for number in range(many)])
    clock.now += 60
    old = item("old", "a lighthouse of old", superseded_at=9.0, superseded_by="7", created_at=1.0)
    await memory.remember(ANN, [old, item("new", "a new lighthouse")])
    await memory.remember(BOB, [item(f"{number}", f"a walrus {number}") for number in range(many)])
    assert await ids(memory, "lighthouse") == ["new"]
    clock.now += 41
    assert await memory.sweep() == many
    assert await ids(memory, "lighthouse") == ["new", "old"]
    assert len(await ids(memory, scope=BOB)) == many
    clock.now += 60
    assert await memory.sweep() == many + 2
    assert await ids(memory, "lighthouse") == []
    await memory.close()


class Unwritable(InMemoryItems):
    """A store that can be set to fail at uses."""

    down = False
    touched: list[tuple[str, int]]

    async def touch(self, uses: Sequence[Use]) -> None:
        if self.down:
            raise StoreError("the disk is full")
        self.touched += [(use.user_id, len(use.ids)) for use in uses]
        await super().touch(uses)


async def test_a_failed_write_of_uses_is_retried_and_fails_no_recall(clock: Clock) -> None:
    facts = Unwritable()
    facts.down, facts.touched = True, []
    memory = LexicalMemory(facts, retention=Retention(KEEP_S), clock=clock)
    await memory.remember(ANN, [item("1", "a walrus"), item("2", "a lighthouse")])
    await memory.remember(BOB, [item("1", "a walrus")])
    clock.now += 60
    assert await ids(memory) == await ids(memory, scope=BOB) == ["1"]
    clock.now += 60
    assert await ids(memory) == ["1"]
    with pytest.raises(StoreError, match="full"):
        await memory.sweep()
    assert await count(facts, ANN) == 2
    facts.down = False
    assert await memory.sweep() == 1
    assert facts.touched == [("ann", 1), ("bob", 1)]
    assert await ids(memory) == ["1"]
    facts.down = True
    await memory.close()


async def test_uses_are_written_in_batches_and_the_latest_counts() -> None:
    written: list[list[Use]] = []

    async def write(uses: Sequence[Use]) -> None:
        written.append(list(uses))
        uses_of.note("ann", ["1"], 11.7)  # meanwhile
        if len(written) == 1:
            raise StoreError("away")

    uses_of = Uses(write)
    await uses_of.write()
    uses_of.note("ann", [], 1.0)
    assert written == []
    uses_of.note("ann", ["1", "2"], 10.2)
    uses_of.note("ann", ["1"], 9.0)
    uses_of.note("ann", ["3"], 10.9)
    uses_of.note("bob", ["1"], 12.0)
    with pytest.raises(StoreError):
        await uses_of.write()
    assert {use.ids: use.at for use in written[0]} == {("1", "2", "3"): 10.9, ("1",): 12.0}
    assert uses_of.noted("ann", 10.3) == {"1", "3"} and uses_of.noted("nobody", 0.0) == set()
    uses_of.note("ann", ["1"], 20.0)
    await uses_of.write()
    assert {(use.user_id, use.ids): use.at for use in written[1]} == {
        ("ann", ("1",)): 20.0,
        ("ann", ("2", "3")): 10.9,
        ("bob", ("1",)): 12.0,
    }
    assert uses_of.noted("ann", 0.0) == uses_of.noted("bob", 0.0) == set()


async def test_uses_are_written_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    written = asyncio.Event()
    calls: list[Sequence[Use]] = []

    async def write(uses: Sequence[Use]) -> None:
        calls.append(uses)
        if len(calls) == 1:
            raise StoreError("away")
        written.set()

    monkeypatch.setattr("turnwise.memory.longterm.retention.retention.PAUSE_S", 0.0)
    uses = Uses(write)
    uses.note("ann", ["1"], 1.0)
    while uses.trouble is None:
        await asyncio.sleep(0)
    assert str(uses.trouble) == "away"
    uses.note("ann", ["2"], 2.0)
    await asyncio.wait_for(written.wait(), 10)
    assert [use.ids for use in calls[1]] == [("1",), ("2",)]
    await uses.close()
    trouble: str | None = vars(uses)["trouble"]  # mypy takes it for what it was above
    assert trouble is None and len(calls) == 2


async def test_expired_facts_are_unknown_and_repeated_facts_are_refreshed(clock: Clock) -> None:
    facts = InMemoryItems()
    model = Model()
    memory = ExtractiveMemory(model, facts, retention=Retention(KEEP_S), clock=clock)
    await memory.remember(ANN, [told(1, "I live in Graz."), told(2, "I own a boat.")])
    clock.now += 60
    await memory.remember(ANN, [told(3, "I live in Graz.")])
    boat = [
        fact("Owns a boat", "I own a boat, as you know.", action="ignore", of=[name]) for name in ("f1", "f2", "f9")
    ]
    model.say = lambda _: [fact("Paints", "I do paint", action="ignore", of=["f1"]), *boat[2:]]
    await memory.remember(ANN, [told(4, "I own a boat, as you know.")])  # of which the model shows nothing
    clock.now += 60
    assert [recalled.text for recalled in await memory.recall(ANN, "Graz boat")] == ["I live in Graz."]
    # what was known once is new, also to the model
    model.say = lambda lines: [fact("I own a boat.")]
    await memory.remember(ANN, [told(5, "I own a boat.")])
    assert [line["text"] for line in model.calls[-1] if "known" in line] == ["I live in Graz."]
    recalled = await memory.recall(ANN, "boat")
    assert [(entry.text, entry.source.turn_index) for entry in recalled] == [("I own a boat.", 5)]
    model.say = lambda lines: [fact("Owns a boat", "I own a boat, really.", action="ignore", of=["f1"])]
    clock.now += 60
    await memory.remember(ANN, [told(6, "I own a boat, really.")])
    (shown,) = [line["text"] for line in model.calls[-1] if line.get("known") == "f1"]
    assert shown == "I own a boat."
    clock.now += 60
    assert [entry.text for entry in await memory.recall(ANN, "Graz boat")] == ["I own a boat."]
    await memory.close()


async def test_an_item_is_not_read_again_after_its_record_is_swept(clock: Clock) -> None:
    facts = InMemoryItems()
    model = Model()
    memory = ExtractiveMemory(model, facts, retention=Retention(KEEP_S), clock=clock)
    message = told(1, "I live in Graz.")
    await memory.remember(ANN, [message])
    for _ in range(2):
        clock.now += 60
        assert len(await memory.recall(ANN, "Graz")) == 1
    assert await memory.sweep() == 2
    assert not [stored for stored in await facts.scan() if is_record(stored.item.id)]
    await memory.remember(ANN, [message])
    assert len(model.calls) == 1
    assert len(await memory.recall(ANN, "Graz")) == 1
    assert await memory.forget(ANN, [message.id]) == 1
    assert await count(facts, ANN, ItemFilter(superseded=True)) == 0
    await memory.close()


async def test_without_retention_nothing_expires(tmp_path: Path, clock: Clock) -> None:
    text, index = (
        SQLItems(f"sqlite:///{tmp_path}/memory.db"),
        VectorIndex(ChromaInMemory(), HashEmbedding(), name=f"test-{new_id()}"),
    )
    for memory in (LexicalMemory(InMemoryItems(), clock=clock), VectorMemory(text, index, clock=clock)):
        await memory.remember(ANN, [item("1", "a walrus")])
        clock.now += 1e9
        assert await memory.sweep() == 0
        assert await ids(memory) == ["1"]
        await memory.close()
    assert not isinstance(StaticMemory(["a"]), Sweeping)


def test_retention_is_pickled_with_the_settings(tmp_path: Path) -> None:
    """In one order, as a memory is found by its settings."""
    retention = Retention(60.0, types=[MemoryType.SKILL, MemoryType.CONTEXT, MemoryType.SKILL])
    assert retention == Retention(60.0, types={"context", "skill"})  # type: ignore[arg-type]
    assert retention.types == (MemoryType.CONTEXT, MemoryType.SKILL)
    facts = SQLItems(f"sqlite:///{tmp_path}/facts.db")
    text, index = (
        SQLItems(f"sqlite:///{tmp_path}/memory.db"),
        VectorIndex(ChromaInMemory(), HashEmbedding(), name="test"),
    )
    makes: tuple[Callable[..., Memory], ...] = (
        partial(LexicalMemory, facts, weights=Weights(tail=0.5)),
        partial(ExtractiveMemory, ids, facts),
        partial(VectorMemory, text, index, pause_s=1.0),
    )
    for make in makes:
        memory = make(retention=retention)
        assert pickle.dumps(pickle.loads(pickle.dumps(memory))) == pickle.dumps(memory)
        assert pickle.dumps(make(retention=Retention(60.0))) != pickle.dumps(memory) != pickle.dumps(make())


@pytest.mark.parametrize("keep_s", [0.0, -1.0, float("inf"), float("nan")])
def test_an_invalid_retention_is_refused(keep_s: float) -> None:
    with pytest.raises(ConfigError, match=r"Retention\.keep_s"):
        Retention(keep_s)
    with pytest.raises(ConfigError, match=r"Retention\.types"):
        Retention(1.0, types=["no"])  # type: ignore[list-item]


async def test_a_forgotten_turn_does_not_come_back_after_a_sweep(make: Make, clock: Clock) -> None:
    memory = make()
    batch = [
        item(f"{number}", f"a walrus {number}", source=Source(session_id="s", turn_index=number)) for number in range(3)
    ]
    await memory.remember(ANN, batch)
    assert await memory.forget(Scope(user_id="ann", session_id="s"), turn_index=1) == 1
    clock.now += KEEP_S + 1
    assert await memory.sweep() == 2
    await memory.remember(ANN, batch)
    assert await ids(memory) == []
    await memory.close()


class SlowNotes:
    """Keeps the uses that are written; each write waits for `goes_on`, and those of `fails` raise."""

    def __init__(self, fails: int = 0) -> None:
        self.calls: list[list[Use]] = []
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.fails = fails

    async def write(self, uses: Sequence[Use]) -> None:
        self.calls.append(list(uses))
        self.begun.set()
        await self.goes_on.wait()
        if len(self.calls) <= self.fails:
            raise StoreError("away")


@pytest.mark.virtual_time
async def test_a_use_that_is_noted_during_a_write_is_written_within_a_second() -> None:
    notes = SlowNotes()
    uses = Uses(notes.write)
    uses.note("ann", ["1"], 1.0)
    await notes.begun.wait()
    uses.note("ann", ["2"], 2.0)
    assert uses.noted("ann", 0.0) == {"1", "2"}
    notes.goes_on.set()
    await asyncio.sleep(1.1)
    assert notes.calls == [[Use("ann", ("1",), 1.0)], [Use("ann", ("2",), 2.0)]]
    assert uses.noted("ann", 0.0) == set()


async def test_a_use_that_a_write_has_is_not_written_again() -> None:
    notes = SlowNotes()
    uses = Uses(notes.write)
    uses.note("ann", ["1"], 1.0)
    writing = asyncio.create_task(uses.write())
    await notes.begun.wait()
    uses.note("ann", ["1"], 1.0)
    notes.goes_on.set()
    await writing
    assert uses.noted("ann", 0.0) == set()
    await uses.close()
    assert notes.calls == [[Use("ann", ("1",), 1.0)]]


@pytest.mark.virtual_time
async def test_uses_that_could_not_be_written_are_tried_again_without_others() -> None:
    notes = SlowNotes(fails=3)
    notes.goes_on.set()
    uses = Uses(notes.write)
    uses.note("ann", ["1"], 1.0)
    await asyncio.sleep(1.1)
    trouble: str | None = uses.trouble
    assert trouble == "away" and uses.noted("ann", 0.0) == {"1"}
    await asyncio.sleep(10)
    assert uses.trouble is None and notes.calls == [[Use("ann", ("1",), 1.0)]] * 4
    await asyncio.sleep(100)
    assert len(notes.calls) == 4


async def test_a_counted_use_is_counted_once_though_used_again_meanwhile() -> None:
    notes = SlowNotes()
    uses = Uses(notes.write)
    uses.note("ann", ["1"], 1.0, counts=True)
    writing = asyncio.create_task(uses.write())
    await notes.begun.wait()
    uses.note("ann", ["1"], 5.0)
    notes.goes_on.set()
    await writing
    await uses.write()
    assert notes.calls == [[Use("ann", ("1",), 1.0, counts=True)], [Use("ann", ("1",), 5.0, counts=False)]]
    await uses.close()


async def test_uses_of_a_cancelled_write_are_written_by_the_next() -> None:
    notes = SlowNotes()
    uses = Uses(notes.write)
    uses.note("ann", ["1"], 1.0, counts=True)
    writing = asyncio.create_task(uses.write())
    await notes.begun.wait()
    uses.note("ann", ["1", "2"], 2.0)
    writing.cancel()
    await asyncio.wait([writing])
    notes.goes_on.set()
    await uses.close()
    assert notes.calls[1:] == [[Use("ann", ("1",), 2.0, counts=True), Use("ann", ("2",), 2.0)]]
