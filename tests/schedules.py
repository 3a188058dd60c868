"""Seeded interleavings of `SessionCore`: a loop with virtual time, a store that fails, engines of every kind.

Everything random comes from one seed, and virtual time leaves nothing to the machine, so a seed replays its schedule.
"""

from __future__ import annotations

import asyncio
import os
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from turnwise.actors.config import SessionConfig
from turnwise.actors.core import SessionCore
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.errors import StoreError
from turnwise.memory.blocks import Block, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.in_memory import InMemoryStore
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.turns import Turn

SESSION = "session"


class _JumpingSelector(selectors.DefaultSelector):
    """Where a selector would wait for time to pass, time jumps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or self.now > 1000:
            raise RuntimeError("deadlock: everybody waits for somebody else, or for ever")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only when nothing else can."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class DawdlingStore:
    """A store whose verbs take random time before and after, and may fail before or after they act."""

    def __init__(self, random: random.Random, inner: Any = None) -> None:
        self.inner = inner or InMemoryStore()
        self.fail_rate = 0.0
        self._random = random

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        act = getattr(self.inner, verb)

        async def dawdle(*args: Any, **kwargs: Any) -> Any:
            await pause(self._random)
            self._maybe_fail(verb, "before")
            result = await act(*args, **kwargs)
            await pause(self._random)
            self._maybe_fail(verb, "after")
            return result

        return dawdle

    def _maybe_fail(self, verb: str, when: str) -> None:
        if self._random.random() < self.fail_rate:
            raise StoreError(f"injected {when} {verb}")


class WildEngine:
    """Answers, raises, says nothing, thinks only, calls tools that nobody runs, ignores cancels, as the dice fall."""

    def __init__(self, random: random.Random, kinds: Sequence[str] = ("answer",)) -> None:
        self._random = random
        self._kinds = kinds
        self.given: dict[str, tuple[Block, ...]] = {}
        """By run id, what each run was given."""

    def build(self, session: SessionView) -> WildEngine:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[Block]:
        assert context.run_id not in self.given, "a run is given to the engine once"
        self.given[context.run_id] = turn.blocks
        kind = self._random.choice(self._kinds)
        if kind == "nothing":
            return []
        if kind == "thoughts":
            context.emit(Thinking(text="hm"))
            return [Thinking(text="hm")]
        text = f"answer to {context.run_id}"
        for word in text.split(" "):
            try:
                await pause(self._random)
            except asyncio.CancelledError:
                if kind != "stubborn":
                    raise
                await asyncio.sleep(30)
                context.emit("too late")
                return [Text(text="too late")]
            context.emit(f"{word} ")
        if kind == "raise":
            raise ValueError("the engine broke")
        if kind == "tools":
            calls = [ToolUse(call_id=f"{context.run_id}-{n}", name="look") for n in range(self._random.randrange(1, 3))]
            for call in calls:
                context.emit(call)
            await pause(self._random)
            return [Text(text=text), *calls, ToolResult(call_id=calls[0].call_id, text="seen"), Text(text="done")]
        return [Text(text=text)]


class World:
    """One session in one schedule, with what its callers were told."""

    def __init__(self, seed: int, *, kinds: Sequence[str] = ("answer",), config: SessionConfig | None = None) -> None:
        self.random = random.Random(seed)
        self.store = DawdlingStore(self.random)
        self.engine = WildEngine(self.random, kinds)
        self.config = config or SessionConfig(cancel_grace_s=0.5, idle_s=1e9)
        self.core = self.new_core()
        self.ids = 0

    def new_core(self) -> SessionCore:
        """Return another core of the same session, as an actor on another node would make it."""
        return SessionCore(
            SESSION,
            self.store,  # type: ignore[arg-type]
            self.engine,
            self.config,
            clock=lambda: asyncio.get_running_loop().time(),
            off_loop=inline,
        )

    async def create(self) -> None:
        await self.store.inner.create(SessionRecord(session_id=SESSION))

    def new_id(self, kind: str) -> str:
        self.ids += 1
        return f"{kind}{self.ids}"

    async def pause(self) -> None:
        await pause(self.random)


async def inline(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


async def pause(random: random.Random) -> None:
    """Let others run: not at all, for a tick or two, or for some virtual time."""
    dice = random.random()
    if dice < 0.3:
        return
    if dice < 0.6:
        await asyncio.sleep(0)
    else:
        await asyncio.sleep(random.random() * 0.02)


def seeds(count: int) -> Iterable[int]:
    """Return the seeds of a test: `count` of them, or the one in TURNWISE_SEED."""
    only = os.environ.get("TURNWISE_SEED")
    return [int(only)] if only else range(count)


def explore(count: int, schedule: Callable[[int], Coroutine[Any, Any, None]]) -> int:
    """Run `schedule` under `count` seeds, each on a loop of its own; return how many ran.

    Raises:
        AssertionError: one failed; the message has the seed that replays it.
    """
    ran = 0
    for seed in seeds(count):
        loop = VirtualLoop()
        try:
            loop.run_until_complete(schedule(seed))
        except BaseException as error:
            raise AssertionError(f"seed {seed} fails ({error!r}); replay it with TURNWISE_SEED={seed}") from error
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        ran += 1
    return ran


def texts(blocks: Iterable[Block]) -> list[str]:
    """Return the prompts among blocks."""
    return [block.text for block in blocks if isinstance(block, User)]
