"""Random lives of sessions with small windows, killed and cancelled at any await of a compaction.

There are 3,000 with `make races`.

A failing life prints its seed; `TURNWISE_SEED=<seed> pytest -k <test>` replays it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from scale import share
from schedules import SESSION, pause, spread
from stored.audit import check_session, turns_of
from tools.agent_world import AgentWorld, check_request, next_request
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import (
    CompactionError,
    NoActiveRunError,
    SessionBusyError,
    TurnNotFoundError,
    WindowOverflowError,
)
from turnwise.memory.conversation.blocks import AnyBlock, Block, Summary, Text, ToolUse, User
from turnwise.memory.conversation.events import CompactionFailed, WindowCompacted
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim
from windows.stage import SavesOnly

LIVES = share(1000, 50)

COUNTER = ByteCounter()

pytestmark = pytest.mark.usefixtures("quiet")


class Summarizer:
    """Writes good summaries and bad ones, at once, slowly, or never, at random."""

    def __init__(self, world: WindowWorld) -> None:
        self._world = world
        self._random = world.random
        self.call_count = 0
        self.shown: list[str] = []
        """What it was shown for each good summary."""

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        self._world.check(turn.blocks)
        self._world.expect(self._world.processes.is_alive, "a dead process asks")
        self.call_count += 1
        dice = self._random.random
        await pause(self._random)
        context.report(usage=Usage(input_tokens=1000))
        await asyncio.sleep(dice() * self._random.choice((0.01, 0.3, 2.0)))
        kind = dice()
        if kind < 0.1:
            raise ValueError("the model broke")
        if kind < 0.15:
            return [Text(text="y" * 5000)]
        if kind < 0.2:
            return [ToolUse(call_id="c", name="look")]
        if kind < 0.25:
            return []
        self.shown.append("\n".join(block.text for block in turn.blocks if isinstance(block, User)))
        return [Text(text=f"summary {len(self.shown)}")]


class Archive(SavesOnly):
    """A memory that outlives processes and fails now and then, perhaps after it has saved."""

    def __init__(self, world: WindowWorld) -> None:
        self._world = world
        self._random = world.random
        self.items: dict[str, MemoryItem] = {}

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> list[str]:
        self._world.expect(scope == Scope(user_id="default", session_id=SESSION), f"{scope}")
        await pause(self._random)
        saved = items if self._random.random() < 0.7 else items[: self._random.randrange(len(items) + 1)]
        for item in saved:
            stored = self.items.setdefault(item.id, item)
            self._world.expect(stored == item, f"one id, two items: {stored}, {item}")
        await pause(self._random)
        if self._random.random() < 0.2:
            raise OSError("the disk is full")
        return [item.id for item in saved]


class WindowWorld(AgentWorld):
    """An agent's session with a small window; each request of its model is checked."""

    def __init__(self, seed: int, *, tokens: int) -> None:
        config = SessionConfig(
            on_cancel="discard" if seed % 5 == 0 else "keep",
            on_lost="resume" if seed % 2 else "interrupt",
            cancel_grace_s=0.1,
            idle_s=1e9,
            token_counter=COUNTER,
            max_context_tokens=tokens,
            reserve_output_tokens=0,
            compaction_timeout_s=1.5,
        )
        super().__init__(seed, config)
        self.summarizer = Summarizer(self)
        self.archives = (Archive(self), Archive(self))
        self.requests: dict[str, tuple[Block, ...]] = {}
        """The last request of each run."""
        self.faults: list[str] = []
        """What was found wrong where raising alone would only fail a run or a compaction."""
        model, run = self.model, self.model.run

        async def watched(turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
            taken = sum(map(COUNTER.count, turn.blocks)) + COUNTER.overhead(None, ())
            self.expect(taken <= tokens, f"{taken} of {tokens} tokens are sent")
            self.check(turn.blocks)
            if self.processes.is_alive:
                self.requests[context.run_id] = turn.blocks
            return await run(turn, context)

        model.run = watched  # type: ignore[method-assign]

    def expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)

    def check(self, blocks: Sequence[Block]) -> None:
        """Note it if a provider would refuse these."""
        try:
            check_request(blocks)
        except Exception as error:
            self.faults.append(f"{error!r} for {blocks}")
            raise

    def restart(self) -> None:
        """Switch to another strategy."""
        self.core = self.new_core()


async def live(world: WindowWorld, prompts: int, *, kills: int = 2) -> list[str]:
    """Lead a life; return its runs."""
    await world.create()
    dice, runs, quiet = world.random.random, list[str](), asyncio.Event()

    async def caller() -> None:
        for number in range(prompts):
            run_id = f"run{number}"
            while True:
                policy = world.random.choice(("enqueue", "interrupt", "reject", "enqueue"))
                prompt = f"prompt {number} {'x' * world.random.choice((5, 20, 60))}"
                try:
                    await world.ask("admission.start", [prompt], run_id=run_id, if_busy=policy)
                    break
                except SessionBusyError:
                    await asyncio.sleep(0.05)
            runs.append(run_id)
            await asyncio.sleep(dice() * world.random.choice((0.1, 0.5, 3.0)))
            if dice() < 0.15:
                with suppress(NoActiveRunError):
                    await world.ask("admission.cancel", "stop", world.random.choice((None, run_id)))
            if dice() < 0.2:
                with suppress(CompactionError, WindowOverflowError):
                    await world.ask("compaction.compact", explain=dice() < 0.3)

    async def killer() -> None:
        for _ in range(world.random.randrange(kills + 1)):
            await asyncio.sleep(dice() * prompts * 0.4)
            world.kill()

    deciding = asyncio.create_task(world.decide_until(quiet, runs))
    await asyncio.gather(caller(), killer())
    for run_id in runs:
        assert (await world.ask("reads.wait", run_id)).run.finish
    quiet.set()
    await deciding
    world.store.fail_rate = 0.0
    return runs


async def check_life(world: WindowWorld) -> list[Turn]:
    """Check what holds for every strategy; return the turns."""
    store = world.store.inner
    await asyncio.sleep(30)  # until what goes on beside the conversation has ended
    assert not world.faults
    for run in await store.runs(SessionKey(SESSION)):
        assert "Error:" not in (run.why or "") or "the model broke" in str(run.why), f"{run} failed by itself"
    turns = await check_session(store, SESSION, history=world.history and world.history.inner, compacts=True)
    for turn in turns:
        check_request(next_request(turn))
        request = world.requests.get(turn.run_id or "")
        if request and turn.status == "completed":
            assert turn.blocks[: len(request)] == request, f"{turn} does not begin with its last request"
    return turns


def prompts_of(blocks: Sequence[Block]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, User)]


async def base_of(world: WindowWorld) -> tuple[Block, ...]:
    """Return the blocks that the next turn continues, without its own prompt."""
    await world.ask("admission.start", ["and now?"], run_id="last")
    outcome = await world.ask("reads.wait", "last")
    assert outcome.turn
    return tuple(outcome.turn.blocks)


@pytest.mark.by_turns
def test_under_faults_trim_and_delete_leave_the_history_whole() -> None:
    """Cases 35 and 41."""

    async def life(seed: int) -> None:
        world = WindowWorld(seed, tokens=500)
        world.overflow = Trim() if seed % 2 else DeleteOldest(3)
        world.restart()
        await live(world, 6)
        await check_life(world)

    assert spread(LIVES, life)


@pytest.mark.by_turns
def test_under_faults_summaries_lose_nothing_and_replace_nothing_twice() -> None:
    """Cases 37, 40, 41 and 43: what the window holds and what its summaries stand for is the whole conversation."""

    async def life(seed: int) -> None:
        world = WindowWorld(seed, tokens=700)
        only = seed % 2
        # Where nothing else may make room, no exchange may ever go without a summary.
        otherwise: dict[str, Any] = {"otherwise": _Never()} if only else {}
        world.overflow = Summarize(
            world.summarizer, trigger_ratio=0.6, keep_turns=2, max_summary_tokens=60, **otherwise
        )
        world.restart()
        await live(world, 6)
        turns = await check_life(world)
        if not turns:
            return
        stored_prompts = Counter(prompt for turn in turns for prompt in prompts_of(turn.new_blocks))
        latest = await world.ask("reads.latest")
        blocks = latest.blocks
        for block in blocks:
            if isinstance(block, Summary):
                blocks = (*await world.ask("reads.expand", block), *blocks)
        held = Counter(prompts_of(blocks))
        assert max(held.values(), default=1) == 1, "a prompt is there twice"
        assert not held - stored_prompts, "a prompt was never stored"
        if only:
            assert held == stored_prompts, f"lost: {stored_prompts - held}"
        events = [event for event in (await world.ask("reads.events"))[0] if not event.live]
        done = [event for event in events if isinstance(event, WindowCompacted) and event.summary]
        assert len(done) <= len(world.summarizer.shown)
        usage = (await world.ask("reads.session")).usage
        charged = [
            event.usage for event in events if isinstance(event, WindowCompacted | CompactionFailed) and event.usage
        ]
        assert usage.input_tokens >= sum(charge.input_tokens for charge in charged)
        reported = usage.input_tokens - usage.counted_tokens  # runs that were stopped are counted, and report nothing
        assert reported <= 1000 * world.summarizer.call_count, "no summary is paid for twice"
        if world.random.random() < 0.3:
            with suppress(TurnNotFoundError):
                turn_index = world.random.choice([None, world.random.choice(turns).index])
                await world.ask("forking.fork", turn_index, "fork")
                (fork,) = await turns_of(world.store.inner, SessionKey("fork"))
                await world.ask("forgetting.delete")
                check_request(next_request(fork))

    assert spread(LIVES, life)


class _Never:
    """A strategy that makes no room, so the request fails."""

    def decide(self, window: Any, budget: Any) -> Any:
        raise window.overflow(budget)

    def due(self, window: Any, budget: Any) -> bool:
        return False


@pytest.mark.by_turns
def test_under_faults_blocks_that_left_the_window_are_in_all_memories() -> None:
    """Cases 41 and 42: durable before the window drops it, and nothing is remembered twice."""

    async def life(seed: int) -> None:
        world = WindowWorld(seed, tokens=700)
        world.overflow = FlushToMemory(world.archives, max_ratio=0.4, trigger_ratio=0.7)
        world.restart()
        await live(world, 6)
        turns = await check_life(world)
        if not turns:
            return
        stored_prompts = {prompt for turn in turns for prompt in prompts_of(turn.new_blocks)}
        latest = await world.ask("reads.latest")
        held = set(prompts_of(latest.blocks))
        for archive in world.archives:
            archived = [prompt for item in archive.items.values() for prompt in prompts_of(item.blocks)]
            assert stored_prompts <= held | set(archived), f"lost: {stored_prompts - held - set(archived)}"
            assert len(archived) == len(set(archived)), "no prompt is in two items"
            for item in archive.items.values():
                source = item.source
                turn = next((turn for turn in turns if turn.index == source.turn_index), None)
                assert turn is None or item.blocks[0] in turn.new_blocks

    assert spread(LIVES, life)
