"""Random lives of sessions with memories: saving, recalling, forgetting, flushes, summaries, kills; 1,000 in a run.

A failing life prints its seed, which replays it: `TURNWISE_SEED=<seed> pytest -k <test>` with this file.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import pytest

from scale import share
from schedules import SESSION, explore, pause
from stored.audit import check_session
from tools.agent_world import PROCESS, AgentWorld, check_request
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import (
    CompactionError,
    InvalidMemoryError,
    LongTermMemoryError,
    NoActiveRunError,
    SessionBusyError,
    SessionNotFoundError,
    TurnNotFoundError,
    WindowOverflowError,
)
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock, Block, Recalled, Summary, Text, User
from turnwise.memory.conversation.events import TurnNotSaved, WindowCompacted
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Spans, union
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.stores.base import Commit
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim

LIVES = share(1000, 40)

COUNTER = ByteCounter()
TOKENS = 2400
PATIENCE_S = 3.0
"""How long a call of a memory may take."""

SCOPE = Scope(user_id="default", session_id=SESSION)
ENDED = ("completed", "cancelled", "failed", "interrupted")

pytestmark = pytest.mark.usefixtures("quiet")


def words_of(blocks: Sequence[Block]) -> set[str]:
    """Return the words that name prompts: `w12`."""
    return {word for block in blocks for word in re.findall(r"\bw\d+\b", getattr(block, "text", ""))}


class Shelf:
    """A memory in a process of its own: it does one thing after the other, and what was asked of it is done also if
    the caller is gone. It fails before and behind its work, keeps a part, hangs, and refuses some turns for good."""

    def __init__(self, world: MemoryWorld, name: str) -> None:
        self._world = world
        self._random = world.random
        self._one_by_one = asyncio.Lock()
        self.name = name
        self.items: dict[str, MemoryItem] = {}
        self.forgotten_ids: set[str] = set()
        self.refuses = f"w{world.random.randrange(20)}"
        self.is_sound = False

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        async def act() -> list[str]:
            saved = items
            if not self.is_sound:
                if any(self.refuses in words_of(item.blocks) for item in items):
                    raise InvalidMemoryError("x", "it is odd")
                if self._random.random() < 0.2:
                    saved = items[: self._random.randrange(len(items) + 1)]
            for item in saved:
                self._world.expect(item.source.turn_index not in self._world.forgotten, f"{item} was forgotten")
                if item.id not in self.forgotten_ids:
                    stored = self.items.setdefault(item.id, item)
                    self._world.expect(stored == item, f"one id, two items: {stored}, {item}")
            return [item.id for item in saved]

        self._world.expect(scope == SCOPE, f"{scope}")
        self._world.expect(bool(items), "nothing is given")
        return set(await self._call(act))

    async def recall(self, scope: Scope, query: str, *, limit: int = 10, **filters: Any) -> Sequence[MemoryItem]:
        await pause(self._random)
        items = list(self.items.values())
        items = self._random.sample(items, min(len(items), 3))
        await asyncio.sleep(self._random.random() * self._random.choice((0.01, 0.5)))
        self._maybe_fail()
        return items

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        return False

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        async def act() -> int:
            ids = {name for name, item in self.items.items() if turn_index in (None, item.source.turn_index)}
            self.forgotten_ids |= ids
            for name in ids:
                del self.items[name]
            return len(ids)

        self._world.expect(scope == SCOPE and ids is None, f"{scope}")
        return int(await self._call(act))

    async def close(self) -> None:
        pass

    @property
    def turns(self) -> list[int]:
        """The indexes of the turns whose items it has, in the order of saving."""
        return [item.source.turn_index for item in self.items.values() if item.source.turn_index is not None]

    async def _call(self, act: Callable[[], Awaitable[Any]]) -> Any:
        async def serve() -> Any:
            async with self._one_by_one:
                await pause(self._random)
                self._maybe_fail()
                done = await act()
                hangs = not self.is_sound and self._random.random() < 0.05
                await asyncio.sleep(self._random.random() * (20 if hangs else 0.1))
                self._maybe_fail()
                return done

        token = PROCESS.set(0)
        try:
            task = asyncio.create_task(serve())
        finally:
            PROCESS.reset(token)
        self._world.serving.add(task)
        task.add_done_callback(self._world.serving.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever asked may be killed
        await asyncio.wait({task}, timeout=PATIENCE_S)
        if not task.done():
            raise LongTermMemoryError(f"{self.name} has not answered")
        return task.result()

    def _maybe_fail(self) -> None:
        if not self.is_sound and self._random.random() < 0.1:
            raise OSError("the disk is full")


class Quoter:
    """Sums up by quoting all words of what it is shown; fails now and then."""

    def __init__(self, world: MemoryWorld) -> None:
        self._world = world

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        world = self._world
        world.check_sent(turn.blocks)
        context.report(usage=Usage(input_tokens=10))
        await asyncio.sleep(world.random.random() * world.random.choice((0.01, 0.3, 2.0)))
        if world.random.random() < 0.1:
            raise ValueError("the model broke")
        return [Text(text=" ".join(sorted(words_of(turn.blocks))) or "nothing")]


class MemoryWorld(AgentWorld):
    """A session with two memories; each request of its model and each commit is checked."""

    memories: tuple[Shelf, ...] = ()

    def __init__(self, seed: int) -> None:
        config = SessionConfig(
            on_cancel="discard" if seed % 5 == 0 else "keep",
            on_lost="resume" if seed % 2 else "interrupt",
            cancel_grace_s=0.1,
            idle_s=1e9,
            token_counter=COUNTER,
            max_context_tokens=TOKENS,
            reserve_output_tokens=0,
            compaction_timeout_s=PATIENCE_S,
            memory=MemoryConfig(max_results=3),
        )
        super().__init__(seed, config)
        self.faults: list[str] = []
        """What was found wrong where raising would be swallowed."""
        self.serving: set[asyncio.Task[Any]] = set()
        self.forgotten: set[int] = set()
        """The turns whose forgetting has returned."""
        self.secrets: set[str] = set()
        """Their words."""
        self.memories_of_turn: dict[int, tuple[Shelf, ...]] = {}
        """By turn, the memories that there were while its end was stored."""
        self.memories_at_change: dict[int, tuple[Shelf, ...]] = {}
        """By commit, the memories that there were when it began."""
        self.ended: dict[int, tuple[Spans, Spans, Spans]] = {}
        """The turns as they ended."""
        self.recalled = 0
        """How many requests had something that was recalled."""
        self.refused: set[tuple[str, int | None]] = set()
        """The turns that memories would not keep."""
        self.commits = self.switches = self.compacted = 0
        self.shelves = self.memories = (Shelf(self, "first"), Shelf(self, "second"))
        self.overflow = (
            Summarize(Quoter(self), trigger_ratio=0.1, keep_turns=1, max_summary_tokens=150, otherwise=Trim()),
            FlushToMemory(self.shelves, max_ratio=0.05, trigger_ratio=0.1, otherwise=Trim()),
            Trim(),
        )[seed % 3]
        inner, commit = self.store.inner, self.store.inner.commit

        async def watched(key: SessionKey, epoch: int, change: Commit) -> None:
            await commit(key, epoch, change)
            if key.session_id == SESSION:
                self.commits += 1
                self._note(change)
                await self.check_mark()

        inner.commit = watched
        dawdling = self.store.commit

        async def begun(session_id: str, epoch: int, change: Commit) -> None:
            self.memories_at_change[id(change)] = self.memories
            await dawdling(session_id, epoch, change)

        self.store.commit = begun  # type: ignore[attr-defined]
        self.core = self.new_core()

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        """Call the model once or more, as a tool loop does."""
        prompts = [block for block in turn.blocks if isinstance(block, User)]
        for _ in range(self.random.choice((1, 1, 2, 3))):
            self.check_sent(turn.blocks)
            taken = sum(map(COUNTER.count, turn.blocks)) + COUNTER.overhead(None, ())
            self.expect(taken <= TOKENS, f"{taken} tokens are sent")
            self.recalled += any(isinstance(block, Recalled) for block in turn.blocks)
            await asyncio.sleep(self.random.random() * self.random.choice((0.01, 0.3)))
            turn = await context.make_room()
        if self.random.random() < 0.05:
            raise ValueError("the model broke")
        return [Text(text=f"as to {prompts[-1].text[:4].strip()}")]

    def check_sent(self, blocks: Sequence[Block]) -> None:
        """Note a failure if a request has forgotten text, or if a provider would refuse it."""
        if not self.processes.is_alive:
            return
        self.expect(not words_of(blocks) & self.secrets, f"{words_of(blocks) & self.secrets} are sent in {blocks}")
        try:
            check_request(blocks)
        except Exception as error:  # noqa: BLE001 - it would only fail the run
            self.faults.append(f"{error!r} for {blocks}")

    def expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)

    def switch(self, memories: tuple[Shelf, ...]) -> None:
        """Switch to other memories while other work runs."""
        if memories == self.shelves[:1]:  # who is not there when others go on is left behind
            for index, shelves in self.memories_of_turn.items():
                self.memories_of_turn[index] = shelves[:1]
        self.memories = memories
        self.switches += memories != self.shelves
        token = PROCESS.set(self.process)
        self.core.use(self, self.config, self.overflow, self.slots)
        PROCESS.reset(token)

    @property
    def slots(self) -> list[MemorySlot]:
        return [MemorySlot(memory=memory, name=memory.name, section=None) for memory in self.memories]

    def _note(self, change: Commit) -> None:
        dropped = [index for index in change.dropped_turns if index in self.ended]
        self.expect(not dropped, f"turns {dropped} had ended")
        for event in change.events:
            self.compacted += isinstance(event, WindowCompacted)
            if isinstance(event, TurnNotSaved):
                self.refused.add((event.memory, event.turn_index))
        for turn in change.turns:
            if turn.status in ENDED and turn.index not in self.ended:
                self.ended[turn.index] = (turn.prompt, turn.input, turn.output)
                self.memories_of_turn[turn.index] = tuple(
                    shelf for shelf in self.memories if shelf in self.memories_at_change[id(change)]
                )

    async def expected_turns(self) -> list[TurnRecord]:
        """Return the turns that memories should have."""
        store = self.store.inner
        uses = {run.run_id: run.memory for run in await store.runs(SessionKey(SESSION))}
        return [
            turn
            for turn in await store.turns(SessionKey(SESSION))
            if turn.status in ENDED and not turn.forgotten and uses[turn.run_id] == "on"
        ]

    async def missing(self) -> list[tuple[str, int]]:
        """Return the name and the turn index for each turn that a memory lacks although it was attached and refused
        nothing."""
        expected = await self.expected_turns()
        return [
            (shelf.name, turn.index)
            for shelf in self.shelves
            for turn in expected
            if shelf in self.memories_of_turn[turn.index]
            and turn.index not in shelf.turns
            and (shelf.name, turn.index) not in self.refused
        ]

    async def check_mark(self) -> None:
        saved = (await self.store.inner.get(SessionKey(SESSION))).saved
        early = [lack for lack in await self.missing() if lack[1] <= saved]
        self.expect(not early, f"saved up to {saved}, but for {early}")

    async def forget(self, index: int) -> None:
        """Forget a turn, if there is one; repeat the call until it succeeds. A detached memory is not called."""
        while True:
            switches = self.switches + (self.memories != self.shelves)
            try:
                await self.ask("forgetting.forget_turn", index)
            except TurnNotFoundError:
                return
            except (SessionBusyError, LongTermMemoryError):
                await asyncio.sleep(self.random.random() * 0.2)
                continue
            break
        if switches == self.switches:
            (turn,) = await self.store.inner.turns(SessionKey(SESSION), after=index - 1, limit=1)
            cache = BlockCache()
            spans = union(turn.prompt, turn.output)
            cache.add_spans(spans, await self.store.inner.blocks(spans))
            self.secrets |= words_of(cache.read(spans))
            self.forgotten.add(index)


async def live(world: MemoryWorld, prompts: int) -> None:
    """Run a life until nothing fails and no work is left."""
    await world.create()
    random = world.random
    dice, runs = random.random, list[str]()

    async def caller() -> None:
        for number in range(prompts):
            run_id = f"run{number}"
            settings: dict[str, Any] = {"if_busy": random.choice(("enqueue", "interrupt", "reject", "rollback"))}
            if dice() < 0.3:
                settings["memory"] = random.choice(("on", "read", "off"))
            while True:
                try:
                    prompt = f"w{number} {'x' * random.choice((5, 60, 120))}"
                    await world.ask("admission.start", [prompt], run_id=run_id, **settings)
                    break
                except SessionBusyError:
                    await asyncio.sleep(0.05)
            runs.append(run_id)
            await asyncio.sleep(dice() * random.choice((0.1, 0.5, 3.0)))
            if dice() < 0.15:
                with suppress(NoActiveRunError):
                    await world.ask("admission.cancel", "stop", random.choice((None, run_id)))
            if dice() < 0.15:
                with suppress(CompactionError, WindowOverflowError):
                    await world.ask("compaction.compact", explain=dice() < 0.3)
            if dice() < 0.15:
                await world.ask("row.use_memory", random.choice(("on", "on", "read", "off")))

    async def forgetter() -> None:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(dice() * prompts * 0.5)
            await world.forget(random.randrange(prompts))

    async def killer() -> None:
        for _ in range(random.randrange(3)):
            await asyncio.sleep(dice() * prompts * 0.5)
            world.kill()

    async def switcher() -> None:
        for _ in range(random.choice((0, 0, 0, 2, 4))):
            await asyncio.sleep(dice() * prompts * 0.3)
            world.switch(random.choice((world.shelves, world.shelves[:1], (), world.shelves)))

    async def leaver() -> None:
        for _ in range(random.randrange(3)):
            await asyncio.sleep(dice() * prompts * 0.5)
            if await world.ask("ownership.leave") and (core := world.core).state.journal.lost:
                if world.memories == world.shelves and not core.state.journal.stale:
                    world.expect(not await world.missing(), f"it left {await world.missing()}")
                world.core = world.new_core()

    await asyncio.gather(caller(), forgetter(), killer(), switcher(), leaver())
    for run_id in runs:
        assert (await world.ask("reads.wait", run_id)).run.finish
    world.store.fail_rate = 0.0
    for shelf in world.shelves:
        shelf.is_sound = True
    if world.memories != world.shelves:
        world.switch(world.shelves)
    for turn in await world.store.inner.turns(SessionKey(SESSION)):
        if turn.forgotten:
            await world.forget(turn.index)
    while not await world.ask("ingestion.wait_for_memory"):
        await asyncio.sleep(0.1)
    await asyncio.sleep(70)  # until what goes on beside the conversation has ended


async def check_life(world: MemoryWorld) -> None:
    store = world.store.inner
    assert not world.faults, world.faults[:3]
    for run in await store.runs(SessionKey(SESSION)):
        assert "Error:" not in (run.why or "") or "the model broke" in str(run.why), f"{run} failed by itself"
    assert not await world.missing()
    stored_turns = {turn.index: turn for turn in await store.turns(SessionKey(SESSION))}
    expected = [turn.index for turn in await world.expected_turns()]
    for shelf in world.shelves:
        assert len(shelf.turns) == len(set(shelf.turns)), f"a turn is there twice: {shelf.turns}"
        assert len(shelf.turns) == len(shelf.items), "an item belongs to no turn"
        assert set(shelf.turns) <= set(expected), f"{set(shelf.turns) - set(expected)} should not be saved"
        for item in shelf.items.values():
            index = item.source.turn_index
            assert index is not None
            blocks = (await world.ask("reads.turn", index)).new_blocks
            assert item.blocks == tuple(blocks), "it has its own blocks"
    for index, spans in world.ended.items():
        turn = stored_turns[index]
        assert (turn.prompt, turn.input, turn.output) == spans, "the history stays as it was"
        assert turn.forgotten >= (index in world.forgotten)
    if not world.forgotten and not isinstance(world.overflow, FlushToMemory):  # which lets what is private go first
        await check_session(store, SESSION, history=world.history and world.history.inner, compacts=True)
    for number, turn_index in enumerate([None, *world.random.sample(sorted(stored_turns), min(1, len(stored_turns)))]):
        with suppress(TurnNotFoundError):
            await world.ask("forking.fork", turn_index, f"fork{number}")
            (fork,) = await store.turns(SessionKey(f"fork{number}"))
            blocks = await world.core.state.journal.blocks.read(fork.base)
            held = words_of(blocks)
            for block in blocks:
                if isinstance(block, Summary):
                    held |= words_of([block])
            assert not held & world.secrets, f"a fork at {turn_index} continues {held & world.secrets}"
            if blocks:
                check_request([*blocks, User(text="and now?")])


async def die(world: MemoryWorld) -> None:
    """Delete the session; repeat the call until it succeeds."""
    for shelf in world.shelves:
        shelf.is_sound = False
    while True:
        try:
            await world.ask("forgetting.delete")
        except LongTermMemoryError:
            continue
        except SessionNotFoundError:
            pass
        break
    await asyncio.sleep(70)
    assert not any(shelf.items for shelf in world.shelves)
    with pytest.raises(SessionNotFoundError):
        await world.store.inner.get(SessionKey(SESSION))


@pytest.mark.by_turns
def test_under_faults_memories_have_each_turn_once_and_no_forgotten_turn() -> None:
    """Cases 50, 54, 55: killed, cancelled, discarded, interrupted, switched, flushed, summed up, recalled."""

    recalled = forgotten = compacted = 0

    async def life(seed: int) -> None:
        nonlocal recalled, forgotten, compacted
        world = MemoryWorld(seed)
        await live(world, 5)
        await check_life(world)
        recalled += world.recalled
        forgotten += len(world.forgotten)
        compacted += world.compacted
        if world.random.random() < 0.2:
            await die(world)

    lives = explore(LIVES, life)
    assert lives < LIVES or min(recalled, forgotten, compacted) > LIVES // 4, "the lives test too little"


def test_saving_costs_no_commit_while_nothing_goes_wrong() -> None:
    async def life(seed: int) -> None:
        world = MemoryWorld(seed * 3 + 2)  # those that trim, which costs one too
        world.store.fail_rate = 0.0
        world.overflow = None
        world.core = world.new_core()
        for shelf in world.shelves:
            shelf.is_sound = True
        await world.create()
        for number in range(4):
            await world.ask("admission.start", [f"w{number}"], run_id=f"run{number}", if_busy="enqueue")
            await asyncio.sleep(world.random.random())
        for number in range(4):
            await world.ask("reads.wait", f"run{number}")
        assert await world.ask("ingestion.wait_for_memory")
        assert world.commits == 8 and all(shelf.turns == [0, 1, 2, 3] for shelf in world.shelves)
        assert not world.faults and await world.ask("ownership.leave") and world.commits == 9
        assert (await world.store.inner.get(SessionKey(SESSION))).saved == 3

    assert explore(share(30, 3), life)


def test_saving_continues_after_a_long_outage_of_the_store() -> None:
    async def life(seed: int) -> None:
        world = MemoryWorld(seed)
        world.store.fail_rate = 0.0
        await world.create()
        await world.ask("admission.start", ["w0"], run_id="run")
        await world.ask("reads.wait", "run")
        world.store.fail_rate = 1.0
        await asyncio.sleep(100)
        world.store.fail_rate = 0.0
        for shelf in world.shelves:
            shelf.is_sound = True
        await asyncio.sleep(200)
        assert not world.faults and not await world.missing()

    assert explore(share(30, 3), life)
